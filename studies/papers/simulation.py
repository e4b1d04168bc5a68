"""One run of one profile, as the papers' comparisons make it."""

from __future__ import annotations

from collections.abc import Sequence

from tandem.policy.catalog import Profile, load_profile
from tandem.policy.job import Job
from tandem.simulator.cluster import Nodes, gpu_arrays
from tandem.simulator.engine import Engine, RunOptions
from tandem.simulator.jobs import TraceJob
from tandem.simulator.outcome import Outcome
from tandem.simulator.truth import Truth


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
