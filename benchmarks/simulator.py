"""Speed of the simulator: `tiresias-l` on 2,000 GPUs, from 10,000 to 100,000 jobs.

    python -m benchmarks.simulator

Writes docs/results/simulator.md and a picture of the growth.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from benchmarks.papers.page import FOLDER, made_by, write
from benchmarks.tables import markdown
from tandem.policy.catalog import load_profile
from tandem.simulator.cluster import Nodes
from tandem.simulator.jobs import TraceJob
from tandem.simulator.run import Setup, run_profile

GPUS = Nodes(250, 8)
COUNTS = (10_000, 20_000, 50_000, 100_000)
LOAD = 1.2  # of what the cluster can do while jobs arrive: a queue builds up


def workload(jobs: int, seed: int = 0) -> tuple[TraceJob, ...]:
    """Draw jobs of 1-32 GPUs with log-normal durations, arriving evenly at `LOAD`."""
    rng = np.random.default_rng(seed)
    sizes, shares = [1, 2, 4, 8, 16, 32], [0.70, 0.10, 0.10, 0.07, 0.02, 0.01]
    gpus = rng.choice(sizes, size=jobs, p=shares)
    duration = np.exp(rng.normal(7.5, 1.8, size=jobs)).clip(30, 3e6)
    span = float((gpus * duration).sum()) / (GPUS.count * GPUS.gpus) / LOAD
    submit = np.sort(rng.uniform(0, span, size=jobs))
    return tuple(
        TraceJob(str(i), float(submit[i]), int(gpus[i]), float(duration[i])) for i in range(jobs)
    )


def main() -> None:
    """Measure, write the page and the picture."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    rows, seconds = [], []
    for count in COUNTS:
        started = time.process_time()
        result = run_profile(Setup(workload(count), (GPUS,)), load_profile("tiresias-l"))
        cpu = time.process_time() - started
        seconds.append(cpu)
        rows.append(
            [
                f"{count:,}",
                f"{cpu:.1f}",
                f"{result.report.wall_s:.1f}",
                f"{result.outcome.rounds / cpu:,.0f}",
                f"{result.report.preemptions:,}",
                f"{max(result.outcome.waiting):,}",
            ]
        )
    _plot(seconds, FOLDER / "simulator.svg")
    table = markdown(
        ["jobs", "CPU seconds", "wall seconds", "rounds/s", "preemptions", "longest queue"], rows
    )
    write(
        "simulator",
        f"""# Speed of the simulator

{made_by("python -m benchmarks.simulator", "seed 0")} The
seconds below do.

`tiresias-l` on 250 x 8 GPUs; jobs arrive at {LOAD:.0%} of what the cluster can do. One
process. Wall seconds depend on what else the machine does.

{table}

![Seconds by jobs](simulator.svg)
""",
    )


def _plot(seconds: list[float], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "tandem"
    from matplotlib import pyplot as plt

    plt.figure(figsize=(6, 3.5))
    plt.loglog(COUNTS, seconds, marker="o")
    plt.xlabel("jobs")
    plt.ylabel("CPU seconds")
    plt.grid(visible=True, which="both", alpha=0.3)
    plt.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    plt.savefig(path, metadata={"Date": None})
    plt.close()


if __name__ == "__main__":
    main()
