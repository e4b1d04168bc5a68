"""What the benchmarks share: where data are, how traces are read, how tables look."""

from __future__ import annotations

import csv
import os
import subprocess
from collections.abc import Sequence
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


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])
