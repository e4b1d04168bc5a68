"""What the pages of results share: one run, and the lines that say how it was made."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path

from tandem.policy.catalog import Profile, load_profile
from tandem.policy.job import Job
from tandem.simulator.cluster import Nodes, gpu_arrays
from tandem.simulator.engine import Engine, RunOptions
from tandem.simulator.jobs import TraceJob
from tandem.simulator.outcome import Outcome
from tandem.simulator.truth import Truth

FOLDER = Path(__file__).parents[2] / "docs" / "results"


def simulate(
    profile: str | Profile,
    nodes: Nodes,
    trace: Sequence[TraceJob],
    believed: Sequence[Job],
    truth: Truth,
    *,
    seed: int,
) -> Outcome:
    """Run one profile, by name or as it is, on one cluster."""
    chosen = load_profile(profile) if isinstance(profile, str) else profile
    gpus = gpu_arrays([nodes], shares=chosen.max_jobs_per_gpu)
    return Engine(
        trace, believed, gpus, chosen, truth, seed=seed, options=RunOptions(record_decisions=True)
    ).run()


def made_by(command: str, seeds: str) -> str:
    """Return the line that says by which command, seed and machine a page was written."""
    cores = os.cpu_count()
    return (
        f"Written by `{command}`; {seeds}; "
        f"{platform.system()} {platform.machine()}, {cores} cores, "
        f"Python {platform.python_version()}. Simulated time does not depend on the machine."
    )


def write(name: str, text: str) -> None:
    """Write docs/results/`name`.md, and say so."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}.md"
    path.write_text(text)
    print(text)
    print(f"written: {path}")
