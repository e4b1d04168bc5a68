"""What the benchmarks share: where data are, how traces are read, how tables look."""

from __future__ import annotations

import csv
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tandem.simulator.jobs import TraceJob
from tandem.simulator.traces import read_trace


def data_folder() -> Path:
    """Return the folder of measured data; exits with a word where there is none."""
    default = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("TANDEM_SHARED_DATA", default))
    if not folder.is_dir():
        raise SystemExit("no measured data: set TANDEM_SHARED_DATA to the folder that has traces/")
    return folder


def git(*arguments: str) -> str:
    """Return what git says of this checkout; nothing where it does not know."""
    answer = subprocess.run(
        ("git", *arguments), cwd=Path(__file__).parent, text=True, capture_output=True, check=False
    )
    return answer.stdout.strip()


def commit() -> str:
    """Return the short name of the commit of this checkout."""
    return git("rev-parse", "--short", "HEAD")


def load_trace(name: str) -> tuple[TraceJob, ...]:
    """Return a trace of the folder; Muri's has columns and units (ms) of its own."""
    path = data_folder() / "traces" / f"{name}.csv"
    if not name.startswith("muri"):
        return read_trace(path, strict=True).jobs
    with path.open(newline="") as file:
        return tuple(
            TraceJob(
                row["job_id"],
                float(row["submit_time"]) / 1000,
                int(row["num_gpu"]),
                float(row["duration"]) / 1000,
            )
            for row in csv.DictReader(file)
        )


def markdown(columns: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a table; what is no text is written as `str` has it."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)])


_FIGURE = re.compile(r"[+-]?[0-9][0-9,]*(?:\.[0-9]+)?")


class Table:
    """A table as a page prints it, so that what is said below it follows from what stands in it.

    A row is named by its first cell, or by as many as it takes to tell it from every other one.
    """

    def __init__(self, text: str) -> None:
        head, _, *lines = text.strip().splitlines()
        self._columns = _cells(head)
        rows = [_cells(line) for line in lines]
        for cells in range(1, len(self._columns) + 1):
            self._rows = {", ".join(row[:cells]): row for row in rows}
            if len(self._rows) == len(rows):
                break

    @property
    def rows(self) -> list[str]:
        """The names of all rows."""
        return list(self._rows)

    @property
    def columns(self) -> list[str]:
        """The heads of all columns but the first."""
        return self._columns[1:]

    def figures(self, row: str, column: str | int) -> list[float]:
        """Return all figures of a cell: `0.31 ± 0.05 / 0.82` has three.

        A column is named, or where several have one name it is counted, the row's name being 0.
        """
        at = column if isinstance(column, int) else self._columns.index(column)
        found = _FIGURE.findall(self._rows[row][at])
        return [float(each.replace(",", "")) for each in found]

    def figure(self, row: str, column: str | int, at: int = 0) -> float:
        """Return one figure of a cell."""
        return self.figures(row, column)[at]

    def across(self, row: str, columns: Sequence[str] | None = None, at: int = 0) -> list[float]:
        """Return one figure of each of some cells of a row, of all by default."""
        return [self.figure(row, each, at) for each in (columns or self.columns)]


def tables_of(page: str) -> Iterator[Table]:
    """Yield the tables of a page in their order."""
    for text in re.findall(r"(?:^\|.*\n?)+", page, re.MULTILINE):
        yield Table(text)


def spread(values: Sequence[float], form: str = ".0f") -> str:
    """Return the least and the most of some figures, `3 to 37`; one where they read the same."""
    least, most = format(min(values), form), format(max(values), form)
    return least if least == most else f"{least} to {most}"


def less(value: float, than: float) -> float:
    """Return by how many percent `value` is less than another one."""
    return 100 * (1 - value / than)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]
