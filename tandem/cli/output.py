"""Output of every command: tables and progress for people, JSON for programs."""

from __future__ import annotations

import json
import os
import sys
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text


class _Console(Console):
    """Breaks lines on a terminal alone, and where COLUMNS says so: a pipe has no width."""

    def print(self, *objects: Any, soft_wrap: bool | None = None, **how: Any) -> None:  # noqa: ANN401 - rich's own
        """Print as `Console` does."""
        if soft_wrap is None:
            soft_wrap = endless(self)
        super().print(*objects, soft_wrap=soft_wrap, **how)


def endless(console: Console) -> bool:
    """Say whether the lines of a console have no end: those of a pipe."""
    return not console.is_terminal and "COLUMNS" not in os.environ


#: Results go to stdout; progress and messages to stderr, so that pipes carry results alone.
out = _Console()
err = _Console(stderr=True)

_GAPS = (2, 1)  # between columns
_LEAST = 8  # of a column in whose words a line may break

#: Of Unicode: control characters, formats (which reorder text), surrogates, separators of lines.
_UNPRINTABLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def clean(text: object) -> str:
    """Return text that changes nothing about a terminal: tenants write some of what is printed.

    Each character that moves the cursor, colours, reorders or breaks lines becomes a question mark.
    """
    found = str(text)
    if found.isascii() and found.isprintable():
        return found
    return "".join(
        "?" if unicodedata.category(character) in _UNPRINTABLE else character for character in found
    )


def clean_lines(text: object) -> str:
    """Return text of several lines, each of them clean."""
    return "\n".join(clean(line) for line in str(text).splitlines())


def print_json(value: object) -> None:
    """Print `value` as JSON on stdout."""
    json.dump(value, sys.stdout, indent=2, sort_keys=False, default=str)
    sys.stdout.write("\n")


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    may_break: Collection[str] = (),
) -> None:
    """Print rows as a table, or as plain columns into a pipe.

    A column's first value decides its side: numbers stand on the right. Where a terminal is narrow,
    cells break between words; in words only where there is no other way, and first in those of the
    columns that `may_break`.
    """
    rows = list(rows)
    cells = [tuple(_cell(value) for value in row) for row in rows]
    if endless(out):
        _print_columns(columns, [tuple(each.plain for each in row) for row in cells])
        return
    gap, widths = _widths(columns, cells, out.width, may_break)
    table = Table(
        title=title or None, header_style="bold", box=None, padding=(0, gap, 0, 0), pad_edge=False
    )
    for index, name in enumerate(columns):
        numeric = bool(rows) and isinstance(rows[0][index], int | float)
        side: Literal["left", "right"] = "right" if numeric else "left"
        table.add_column(name, justify=side, overflow="fold", width=widths[index])
    for row in cells:
        table.add_row(*row)
    out.print(table)


def _print_columns(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print plain columns, a row a line, as kubectl does: a pipe has no width and no boxes."""
    lines = [tuple(columns), *rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    for line in lines:
        text = "   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        out.print(text.rstrip(), soft_wrap=True, markup=False, highlight=False)


def _widths(
    columns: Sequence[str], rows: Sequence[Sequence[Text]], screen: int, may_break: Collection[str]
) -> tuple[int, list[int]]:
    """Return the gap between columns, and their widths, which fit a screen together."""
    texts = [[name, *(row[index].plain for row in rows)] for index, name in enumerate(columns)]
    widths = [max(map(cell_len, of)) for of in texts]
    words = [max(cell_len(word) for text in of for word in text.split() or [""]) for of in texts]
    breaking = [min(_LEAST, each) if name in may_break else each
                for name, each in zip(columns, words, strict=True)]  # fmt: skip
    gap = next((each for each in _GAPS if sum(breaking) + each * (len(columns) - 1) <= screen), 1)
    room = max(screen - gap * (len(columns) - 1), len(columns))
    # The widest gives way first, to its longest word, then within words where that may be.
    for least in (words, breaking, [1] * len(columns)):
        while sum(widths) > room:
            index = max(range(len(widths)), key=lambda i: (widths[i] > least[i], widths[i]))
            if widths[index] <= least[index]:
                break
            widths[index] -= 1
    return gap, widths


def _cell(value: object) -> Text:
    if value is None:
        return Text("-")
    # A Text, since a string in brackets is markup to rich.
    return Text(f"{value:,.2f}" if isinstance(value, float) else clean(value))
