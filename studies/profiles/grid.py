"""Cells of docs/evidence/results.md: one profile on one trace with one seed, kept once run.

    python -m studies.profiles.grid [--processes 2]

runs those that are missing under .out/results, the promised first; it may be stopped at any time.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.tables import data_folder, git, load_trace
from tandem.policy.catalog import Profile, load_profile, profile_names
from tandem.simulator.cluster import parse_cluster
from tandem.simulator.run import Setup, run_profile

ROOT = Path(__file__).parents[2]
CELLS = ROOT / ".out" / "results"
SEEDS = (0, 1, 2, 3, 4)
CLUSTERS = {
    "philly-103959": "4x8",
    "philly-ed69ec": "2x8",
    "philly-0e4a51": "6x8",
    "muri-trace3": "8x8",
}
#: The type of GPU on whose pairs the profiles were tuned, and one on which they were not.
TUNED_ON, HELD_OUT = "V100", "P100"
#: The profiles that promises are made of.
PROMISED = ("tandem", "tandem-guarded", "tiresias-l-list", "srtf")
#: Slices as long as a preemption costs: no job would end, so these alone are not charged for it.
FREE_PREEMPTION = ("gandiva",)
#: What `tandem` is without each of its parts.
ABLATION: dict[str, dict[str, Any]] = {
    "sharing": {"share": False},
    "preemption": {"preempt_factor": None},
    "moves": {"move_cost_s": None},
    "the best pair (order of worth instead)": {"best_pair": False},
    "the learned distribution (attained service alone)": {"learn": False},
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One profile, or `tandem` less one of its parts, on one trace with one seed."""

    name: str
    trace: str
    seed: int
    less: str | None = None  # a key of ABLATION
    gpu: str = TUNED_ON

    def __str__(self) -> str:
        less = f" less {self.less}" if self.less else ""
        return f"{self.name}{less} on {self.trace}, {self.gpu}, seed {self.seed}"

    @property
    def path(self) -> Path:
        """Where its figures are kept."""
        part = f"-less-{self.less.split()[0]}-{self.less.split()[-1]}" if self.less else ""
        gpu = "" if self.gpu == TUNED_ON else f"--{self.gpu}"
        return CELLS / f"{self.name}{part}--{self.trace}{gpu}--{self.seed}.json"

    def profile(self) -> Profile:
        """Return the profile that it runs."""
        whole = load_profile(self.name)
        if self.less is None:
            return whole
        values = whole.model_dump()
        values["dispatch"] |= ABLATION[self.less]
        return Profile.model_validate(values)

    def setup(self) -> Setup:
        """Return the jobs, the cluster and the truth that it runs on."""
        matrix = data_folder() / "colocation" / "gavel-oracle-v100-p100.json"
        nodes = (parse_cluster(f"{CLUSTERS[self.trace]}:{self.gpu}"),)
        setup = Setup(load_trace(self.trace), nodes, matrix, self.seed)
        return replace(setup, preemption_cost_s=0.0) if self.name in FREE_PREEMPTION else setup

    def figures(self) -> dict[str, float] | None:
        """Return what has been kept, or None."""
        return json.loads(self.path.read_text()) if self.path.exists() else None


def cells(seeds: Sequence[int] = SEEDS) -> list[Cell]:
    """Return all cells of the page: the promised, the others by seed, the ablation, another GPU."""
    others = [name for name in profile_names() if name not in PROMISED]
    promised = [Cell(n, t, s) for s, n, t in product(seeds, PROMISED, CLUSTERS)]
    rest = [Cell(n, t, s) for s, t, n in product(seeds, CLUSTERS, others)]
    parts = [Cell("tandem", t, s, less) for s, t, less in product(seeds, CLUSTERS, ABLATION)]
    other = [Cell(n, t, s, gpu=HELD_OUT) for s, n, t in product(seeds, PROMISED, CLUSTERS)]
    return promised + rest + parts + other


def run(cell: Cell, commit: str) -> None:
    """Run one cell and keep its figures."""
    figures = run_profile(cell.setup(), cell.profile()).report.as_json()
    CELLS.mkdir(parents=True, exist_ok=True)
    partial = cell.path.with_suffix(".partial")
    partial.write_text(json.dumps({**figures, "commit": commit}))
    partial.rename(cell.path)  # an interrupted run leaves no half of a cell


def run_missing(wanted: Sequence[Cell], *, processes: int, reuse: bool) -> None:
    """Run the cells that are not kept, in order; with `reuse`, those that are kept are taken."""
    missing = [cell for cell in wanted if not (reuse and cell.path.exists())]
    commit = _commit()
    with ProcessPoolExecutor(processes) as pool:
        futures = {pool.submit(run, cell, commit): cell for cell in missing}
        try:
            for done, future in enumerate(as_completed(futures), 1):
                future.result()
                print(f"{done}/{len(missing)} {futures[future]}", file=sys.stderr, flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # or all that waits would run first
            raise


def _commit() -> str:
    """Return the commit of the tree, marked where it has changes; "unknown" outside git."""
    return git("describe", "--always", "--dirty", "--abbrev=10", "--exclude=*") or "unknown"


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    run_missing(cells(), processes=arguments.processes, reuse=True)


if __name__ == "__main__":
    main()
