"""Speed of the simulator: `tandem` next to `tiresias-l`, by jobs, GPUs and waiting jobs.

    python -m benchmarks.simulator [--before COMMIT]

Each case runs in a process of its own, both profiles in turn; with `--before`, `tandem` of that
commit as well. Writes docs/evidence/results/simulator.md and a picture of the growth.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pages import made_by, write
from benchmarks.plot import growth
from benchmarks.tables import commit, git, markdown
from tandem.policy.catalog import load_profile
from tandem.simulator.cluster import Nodes
from tandem.simulator.jobs import TraceJob
from tandem.simulator.run import Setup, run_profile

ROOT = Path(__file__).parents[1]
GPUS_PER_NODE = 8
BASE, TANDEM = "tiresias-l", "tandem"


@dataclass(frozen=True, slots=True)
class Case:
    """So many jobs that arrive at `load` times what the cluster can do."""

    nodes: int
    jobs: int
    load: float

    def workload(self, seed: int = 0) -> tuple[TraceJob, ...]:
        """Draw jobs of 1-32 GPUs with log-normal durations, arriving evenly at `load`."""
        rng = np.random.default_rng(seed)
        sizes, shares = [1, 2, 4, 8, 16, 32], [0.70, 0.10, 0.10, 0.07, 0.02, 0.01]
        gpus = rng.choice(sizes, size=self.jobs, p=shares)
        duration = np.exp(rng.normal(7.5, 1.8, size=self.jobs)).clip(30, 3e6)
        span = float((gpus * duration).sum()) / (self.nodes * GPUS_PER_NODE) / self.load
        submit = np.sort(rng.uniform(0, span, size=self.jobs))
        return tuple(
            TraceJob(str(i), float(submit[i]), int(gpus[i]), float(duration[i]))
            for i in range(self.jobs)
        )

    def run(self, profile: str) -> dict[str, float]:
        """Simulate it in this process; return its figures."""
        setup = Setup(self.workload(), (Nodes(self.nodes, GPUS_PER_NODE),))
        started = time.process_time()
        result = run_profile(setup, load_profile(profile))
        return {
            "cpu_s": time.process_time() - started,
            "rounds": result.outcome.rounds,
            "preemptions": result.report.preemptions,
            "waiting": max(result.outcome.waiting),
        }


#: What is varied -> the cases.
SWEEPS = {
    "jobs": [Case(250, jobs, 1.2) for jobs in (10_000, 20_000, 50_000, 100_000)],
    "GPUs": [Case(nodes, 10_000, 1.2) for nodes in (8, 32, 125, 250)],
    "waiting jobs": [Case(250, 20_000, load) for load in (0.8, 1.2, 2.0, 4.0)],
}


def in_process(case: Case, profile: str, tree: Path) -> dict[str, Any]:
    """Run a case in a process with the package `tandem` of `tree`."""
    arguments = [profile, str(case.nodes), str(case.jobs), str(case.load)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.simulator", "--one", *arguments],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": f"{tree}{os.pathsep}{ROOT}"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def unpack(revision: str, folder: Path) -> None:
    """Write the package `tandem` of a commit below `folder`."""
    packed = subprocess.run(
        ["git", "archive", revision, "tandem"], cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed.stdout, check=True)


def main() -> None:
    """Measure, write the page and the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", metavar="COMMIT", help="also measure `tandem` of this commit")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        profile, nodes, jobs, load = arguments.one
        print(json.dumps(Case(int(nodes), int(jobs), float(load)).run(profile)))
        return
    with tempfile.TemporaryDirectory() as folder:
        trees = {BASE: (BASE, ROOT), TANDEM: (TANDEM, ROOT)}
        if arguments.before:
            unpack(arguments.before, Path(folder))
            trees[f"{TANDEM} at {git('rev-parse', '--short', arguments.before)}"] = (
                TANDEM,
                Path(folder),
            )
        found: dict[Case, dict[str, dict[str, Any]]] = {}
        for case in dict.fromkeys(chain(*SWEEPS.values())):
            found[case] = {
                label: in_process(case, profile, tree) for label, (profile, tree) in trees.items()
            }
            print(case, {label: round(of["cpu_s"], 1) for label, of in found[case].items()})
    _write(found, list(trees))


def _write(found: dict[Case, dict[str, dict[str, Any]]], labels: list[str]) -> None:
    tables = []
    for varied, cases in SWEEPS.items():
        rows = [
            [
                f"{case.nodes * GPUS_PER_NODE:,}",
                f"{case.jobs:,}",
                f"{case.load:.0%}",
                f"{found[case][TANDEM]['waiting']:,}",
                *(f"{found[case][label]['cpu_s']:.1f}" for label in labels),
                f"{found[case][TANDEM]['cpu_s'] / found[case][BASE]['cpu_s']:.1f}",
            ]
            for case in cases
        ]
        head = ["GPUs", "jobs", "load", "most waiting", *(f"{name}, CPU s" for name in labels)]
        table = markdown([*head, f"{TANDEM} / {BASE}"], rows)
        tables.append(f"## By {varied}\n\n{table}\n")
    growth(
        "simulator",
        {
            "jobs": ([c.jobs for c in SWEEPS["jobs"]], SWEEPS["jobs"]),
            "GPUs": ([c.nodes * GPUS_PER_NODE for c in SWEEPS["GPUs"]], SWEEPS["GPUs"]),
            "most waiting": (
                [found[c][TANDEM]["waiting"] for c in SWEEPS["waiting jobs"]],
                SWEEPS["waiting jobs"],
            ),
        },
        {label: {case: of[label]["cpu_s"] for case, of in found.items()} for label in labels},
        "CPU seconds",
    )
    write(
        "simulator",
        f"""# Speed of the simulator

{made_by("python -m benchmarks.simulator", f"seed 0; commit {commit()}")} The
seconds below do. They are those of one process, and grow with what else the machine does; the
profiles of a row ran one after the other.

Jobs of 1 to 32 GPUs on nodes of {GPUS_PER_NODE}, durations log-normal, no two of them measured
together. They arrive at a load of what the cluster can do.

{chr(10).join(tables)}
![CPU seconds by jobs, GPUs and waiting jobs](simulator.svg)
""",
    )


if __name__ == "__main__":
    main()
