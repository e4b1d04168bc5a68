"""What every command prints: tables and progress for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

#: Results go to stdout; progress and messages to stderr, so that pipes carry results alone.
out = Console(soft_wrap=False)
err = Console(stderr=True)


def print_json(value: object) -> None:
    """Print `value` as JSON on stdout."""
    json.dump(value, sys.stdout, indent=2, sort_keys=False, default=str)
    sys.stdout.write("\n")


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows as a table; numbers are right-aligned by their column's first value."""
    rows = list(rows)
    table = Table(title=title or None, header_style="bold")
    for index, name in enumerate(columns):
        numeric = bool(rows) and isinstance(rows[0][index], int | float)
        table.add_column(name, justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    out.print(table)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,.2f}" if isinstance(value, float) else str(value)
