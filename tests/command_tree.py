"""The commands of `tandem`, loaded: the program itself loads the one that is called."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from tandem.cli.main import build_app


def whole_tree() -> Any:
    """Return the group of all commands, each with its parameters."""
    tree = get_command(build_app())
    tree.commands = {name: tree.resolve_command(None, [name])[1] for name in tree.commands}
    return tree


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command with its words; a group is one, too."""
    if path:
        yield path, command
    for name, each in getattr(command, "commands", {}).items():
        yield from leaves(each, (*path, name))
