"""The table of docs/cli.md: ten questions, and what to look at or to type for each."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"


def table() -> dict[str, list[str]]:
    """Return the cells of the page's table by question: page, command, kubectl."""
    text = PAGE.read_text().partition("## Ten questions")[2].partition("JOB is a GPUJob")[0]
    rows = [[cell.strip() for cell in line.split(" | ")] for line in text.splitlines()]
    found = {row[0].removeprefix("| "): row[1:] for row in rows if row[0].endswith("?")}
    return {
        question: [cell.removesuffix(" |") for cell in cells] for question, cells in found.items()
    }


def commands(cell: str, program: str) -> list[str]:
    """Return the commands of a cell that begin with a program."""
    return [each for each in re.findall(r"`([^`]+)`", cell) if each.startswith(f"{program} ")]


def named(command: str, names: dict[str, str]) -> str:
    """Return a command with the placeholders of the table replaced."""
    for placeholder, name in sorted(names.items(), reverse=True):
        command = command.replace(placeholder, name)
    return command
