"""What MPS did on one H100: the section of docs/evidence/results/h100.md, from `h100-mps.jsonl`.

The file has a line of facts (limits, what NVML shows of clients, who ends with whom, what the
agent's calls cost) and a line for each pair of jobs, whose steps (s) were measured by time slicing
and under MPS on one machine, minutes apart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
MEASURED = Path(__file__).with_name("h100-mps.jsonl")
#: A job that runs at less than this share of its speed is said to be slowed down to a half.
_HALF = 0.5

_SECTION = """
## Pairs under MPS

{pairs} pairs of {jobs} configurations, each by time slicing and then under MPS, on one machine
(`h100-mps.jsonl`). The speeds are relative to the runs alone of the table above. In {short} of them
other processes imported PyTorch now and then, in both ways alike: read the two columns against each
other.

| figure | time slicing | MPS |
|---|---|---|
{figures}

MPS does {gain:.0%} more work in the geometric mean, and more in {more} of {pairs} pairs. It is less
fair: BERT next to a job of small kernels runs at a sixth to a quarter of its speed, where time
slicing leaves each job nearly a half at least.

What else was seen of MPS on this driver:

- {limit}
- NVML lists a client among the MPS clients and among the other processes, with its memory. Its work
  counts for the server's process: a client has no utilisation of its own.
{ends}
"""


def pairs() -> list[dict[str, Any]]:
    """Return the pairs: keys of both jobs, seconds of a step each way, SM activity each way."""
    return [row for row in _rows() if row["kind"] == "pair"]


def facts() -> dict[str, Any]:
    """Return what was seen besides pairs."""
    (found,) = (row for row in _rows() if row["kind"] == "facts")
    return found


def speeds(alone_s: Mapping[str, float]) -> tuple[Floats, Floats]:
    """Return (pairs, 2) speeds by time slicing and under MPS, given each job's step alone (s)."""
    rows = pairs()
    alone = np.array([[alone_s[row["first"]], alone_s[row["second"]]] for row in rows])
    slicing, mps = (np.array([row[way] for row in rows]) for way in ("slicingS", "mpsS"))
    return alone / slicing, alone / mps


def section(alone_s: Mapping[str, float]) -> str:
    """Return the section of the page."""
    ways = speeds(alone_s)
    total = [way.sum(axis=1) for way in ways]
    lowest = [way.min(axis=1) for way in ways]
    rows, seen = pairs(), facts()
    figures: list[tuple[str, list[str]]] = [
        ("speeds of both jobs together, mean", [f"{each.mean():.2f}" for each in total]),
        ("least of any pair", [f"{each.min():.2f}" for each in total]),
        ("pairs that do less than one GPU's work", [f"{(each < 1).sum()}" for each in total]),
        ("speed of the slower job, mean", [f"{each.mean():.2f}" for each in lowest]),
        ("lowest speed of any job", [f"{each.min():.2f}" for each in lowest]),
        ("pairs that slow one job down to a half", [f"{(x < _HALF).sum()}" for x in lowest]),
    ]
    ratio = total[1] / total[0]
    limit = seen["limit"]
    return _SECTION.format(
        pairs=len(rows),
        jobs=len({row[side] for row in rows for side in ("first", "second")}),
        short=sum(row["run"] == 2 for row in rows),
        figures="\n".join(f"| {what} | {' | '.join(both)} |" for what, both in figures),
        gain=float(np.exp(np.log(ratio).mean())) - 1,
        more=int((ratio > 1).sum()),
        limit=f"`{limit['setting']}` holds for every allocation. cuMemAlloc: {limit['cuMemAlloc']};"
        f"\n  PyTorch: {limit['torch']}; {limit['nonsense']}.",
        ends="\n".join(f"- {who[0].upper()}{who[1:]}: {how}." for who, how in seen["ends"].items()),
    ).rstrip()


def cost() -> str:
    """Return what the agent's calls take of a core, in words."""
    agent = facts()["agent"]
    cpu = ", ".join(f"{call} {us:.0f}" for call, us in agent["cpu_us"].items())
    percent = agent["cpu_percent"]
    return (
        f"Nearly all of it is CPU, on another machine of the kind, in microseconds: {cpu}.\n"
        f"The readings took {percent['idle']:.1f} % of a core on an idle GPU and"
        f" {percent['two jobs']:.1f} % with two jobs."
    )


def _rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in MEASURED.read_text().splitlines()]
