"""Every `tandem` command of every page is one that the program takes, with its options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from command_tree import whole_tree

ROOT = Path(__file__).parents[2]
#: What is a history or a record is not of the present program.
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(
        page
        for page in (ROOT / "docs").rglob("*.md")
        if page.parent.name not in ("decisions", "results") and page.name != "messages.md"
    ),
    *sorted((ROOT / "predictor").rglob("*.md")),
    *sorted((ROOT / "deploy").rglob("*.md")),
]
#: What begins so is a call; `tandem top  10:00:00` is what one prints.
_CALL = re.compile(r"tandem [a-z-]\S*(?!\S| {2}\d)")
_STOPS = re.compile(r"\s(?:\||>|&&|;|->)(?:\s|$)|;$")


def commands(text: str) -> Iterator[tuple[list[str], bool]]:
    """Yield the words of each command, and whether it is a line that a reader would enter."""
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    fenced = False
    for line in lines:
        if line.startswith("```"):
            fenced = not fenced
        entered = fenced or line.startswith("    ")
        found = [line.strip().removeprefix("$ ")] if entered else re.findall(r"`([^`]+)`", line)
        for each in found:
            command = re.sub(r"\$\(.*\)", "x", each.removeprefix("kubectl "))
            command = _STOPS.split(command)[0]
            if _CALL.match(command) and "..." not in command and "completion" not in command:
                words = shlex.split(re.sub(r"[\[\]]", "", command), comments=True)
                yield words, entered


@cache
def tree() -> Any:
    return whole_tree()


def read(words: list[str]) -> tuple[Any, str]:
    """Return the command that words lead to, and what is wrong with its arguments ('' nothing)."""
    command, context, rest = tree(), None, words[1:]
    name = "tandem"
    while True:
        try:
            context = command.make_context(name, list(rest), parent=context)
        except SystemExit:
            return command, ""
        except Exception as error:
            if type(error).__name__ in ("Exit", "NoArgsIsHelpError"):  # it says what there is
                return command, ""
            return command, str(getattr(error, "message", "") or error)
        rest = [*context._protected_args, *context.args]
        if not hasattr(command, "commands") or not rest:
            return command, ""
        try:
            name, command, rest = command.resolve_command(context, rest)
        except Exception as error:
            return None, str(getattr(error, "message", error))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_are_those_of_the_program(page: Path) -> None:
    wrong = []
    for words, entered in commands(page.read_text()):
        command, error = read(words)
        # In a sentence, a command may stand for itself, without what it is about.
        names_only = not entered and ("requires an argument" in error or "Missing" in error)
        if command is None or (error and not names_only):
            wrong.append((shlex.join(words), error))
    assert not wrong


def test_the_commands_of_the_pages_are_found() -> None:
    found = [words for page in PAGES for words, _ in commands(page.read_text())]
    assert len(found) > 100
    used = {words[1] for words in found}
    assert {"why", "model", "simulate", "doctor", "top", "page", "hold", "demo"} <= used
