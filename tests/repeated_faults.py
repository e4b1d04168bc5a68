"""Repeated faults: how many of them, by which seed, and what is written down of them.

`make test` runs a few of each. `make chaos` sets `TANDEM_CHAOS` to the share of the full counts
that is wanted (1: all) and `TANDEM_CHAOS_RECORD` to a file that takes a line of JSON for each test.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from statistics import median
from typing import Any

from seeds import SEED

SHARE = float(os.environ.get("TANDEM_CHAOS", "0"))


def times(few: int, full: int) -> int:
    """Return how often a fault is repeated in this run."""
    return max(few, round(full * SHARE))


def fuzz_cases(few: int) -> int:
    """Return how many inputs of one kind are tried: as TANDEM_FUZZ_CASES says, else by share."""
    given = os.environ.get("TANDEM_FUZZ_CASES")
    return int(given) if given else times(few, 10_000)


def record(check: str, what: str, repeats: int, **figures: Any) -> None:
    """Print what was shown, and write it down where that is wanted; times are lists of seconds."""
    figures = {
        name: spread(value) if isinstance(value, list) else value for name, value in figures.items()
    }
    line = {"check": check, "what": what, "repeats": repeats, "seed": SEED, "figures": figures}
    print(json.dumps(line))
    file = os.environ.get("TANDEM_CHAOS_RECORD")
    if file:
        with Path(file).open("a") as lines:
            lines.write(json.dumps(line) + "\n")


def spread(values: list[float]) -> str:
    """Return the median and the largest of some times."""
    return f"{median(values):.1f} (max {max(values):.1f})" if values else "-"
