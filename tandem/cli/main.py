"""The `tandem` command: gathers the commands that each package contributes.

A command's module is loaded when the command is called, so that help and completion are quick.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Never

import typer
from typer.core import TyperCommand, TyperGroup

from tandem.cli.commands import COMMANDS
from tandem.errors import TandemError, UsageError
from tandem.kube.errors import KubeError

ENTRY_POINTS = "tandem.commands"
#: What only an extra installs is none of these.
_OURS = ("tandem", "tandem_demo", "scheduler_extender", "node_agent", "predictor")
#: A tool of the tests, which no installed package has.
_IN_A_CHECKOUT = "controlplane"


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"tandem {version('tandem-gpu')}")
        raise typer.Exit


class _Named(TyperCommand):
    """A command by its name and help; `load` returns the command itself."""

    def __init__(self, entry: EntryPoint, summary: str) -> None:
        super().__init__(entry.name, help=summary, rich_markup_mode=None)
        self.load: Callable[[], Any] = lambda: _loaded(entry)


class _Commands(TyperGroup):
    """Loads the command that is called, and no other."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - those of the class
        super().__init__(**settings)
        self._called = ""
        for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda each: each.name):
            known = COMMANDS.get(entry.name)
            self.add_command(_Named(entry, known.summary) if known else _loaded(entry), entry.name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - not public
        """Return the command that the words name, loaded."""
        self._called = args[0]
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, _Named) else command, rest

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - not public
        """Run the command.

        Raises:
            TandemError: it needs a package that an extra installs.
        """
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package in ("", *_OURS):
                raise
            called = self._called
            if package == _IN_A_CHECKOUT:
                raise TandemError(
                    f"`tandem {called}` is part of the source tree, not of the installed package",
                    "Run this command in a checkout of the repository, after `make setup`.",
                ) from error
            extra = COMMANDS[called].extra if called in COMMANDS else ""
            raise TandemError(
                f"`tandem {called}` needs the package {package}, which is not installed here",
                f"pip install 'tandem-gpu[{extra or 'run'}]'",
            ) from error


def _loaded(entry: EntryPoint) -> Any:  # noqa: ANN401 - the type of commands is not public
    app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)
    command = entry.load()
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=entry.name)
    else:
        app.command(name=entry.name)(command)
    return typer.main.get_group(app).commands[entry.name]


def build_app() -> typer.Typer:
    """Return the whole command tree. A Typer app becomes a group, a function a command."""
    app = typer.Typer(
        name="tandem",
        cls=_Commands,
        help="Share GPUs between training jobs on Kubernetes where it is safe.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )

    @app.callback()
    def root(
        show_version: bool = typer.Option(
            False, "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ) -> None:
        """Share GPUs between training jobs on Kubernetes where it is safe."""

    return app


def kubectl() -> None:
    """Run as the kubectl plugin: the same commands, under another name."""
    main("kubectl tandem")


def main(program: str | None = None) -> None:
    """Run the command line; exit codes: 0, 1 (failed), 2 (usage)."""
    try:
        # krew's plugin starts `tandem` and says by what name the user knows it.
        build_app()(prog_name=program or os.environ.get("TANDEM_PROGRAM") or None)
    except TandemError as error:
        _fail(error.message, error.hint, 2 if isinstance(error, UsageError) else 1)
    except KubeError as error:
        _fail(
            f"the API server refuses, or does not answer: {error.message}",
            "`tandem doctor` says what is wrong",
        )
    except UnicodeEncodeError as error:  # a byte of an argument, as Python keeps it
        _fail(f"{error.object!r} is no text in UTF-8", code=2)
    except OSError as error:  # a full disk, a folder that may not be written
        where = f"{error.filename}: " if error.filename else ""
        _fail(where + (error.strerror or str(error)))


def _fail(words: str, hint: str = "", code: int = 1) -> Never:
    from rich.markup import escape

    from tandem.cli.output import clean_lines, err

    said = f"[red]error:[/red] {escape(clean_lines(words))}"
    err.print(said, highlight=False, soft_wrap=True)
    if hint:
        err.print(f"  {escape(clean_lines(hint))}", highlight=False, soft_wrap=True)
    sys.exit(code)
