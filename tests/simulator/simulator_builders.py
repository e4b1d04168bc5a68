"""Traces and runs in one line."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tandem.policy.adjust.learn import Learn
from tandem.policy.catalog import Profile, load_profile
from tandem.policy.job import Job
from tandem.policy.jobs import History
from tandem.simulator.cluster import gpu_arrays, parse_cluster
from tandem.simulator.engine import Engine, RunOptions
from tandem.simulator.jobs import TraceJob
from tandem.simulator.outcome import Outcome
from tandem.simulator.truth import MemoryCourse, Truth
from tandem.simulator.world import plain_world, with_reserved_classes

SHARED = Path(os.environ.get("TANDEM_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
needs_data = pytest.mark.skipif(not SHARED.is_dir(), reason="no measured data (TANDEM_SHARED_DATA)")


def trace(*jobs: tuple[float, int, float]) -> list[TraceJob]:
    """Jobs as (submission, GPUs, duration)."""
    return [TraceJob(str(i), float(s), g, float(d)) for i, (s, g, d) in enumerate(jobs)]


def run(
    jobs: list[TraceJob],
    cluster: str,
    profile: str | Profile,
    history: list[float] | None = None,
    **changes: object,
) -> Outcome:
    """Run without interference; `changes` replace fields of the profile's order."""
    if isinstance(profile, str):
        profile = load_profile(profile)
    values = profile.model_dump()
    values["order"] |= changes
    profile = Profile.model_validate(values)
    gpus = gpu_arrays([parse_cluster(cluster)], shares=profile.max_jobs_per_gpu)
    world = plain_world(jobs, gpus)
    engine = Engine(
        jobs, world.believed, gpus, profile, world.truth,
        options=RunOptions(history=None if history is None else History(np.array(history))),
    )  # fmt: skip
    return engine.run()


def run_shared(
    jobs: list[TraceJob],
    cluster: str,
    profile: str | Profile,
    slowdown: list[list[float]],
    classes: list[int],
    memory: list[tuple[float, float, float]] | None = None,
    believed_slowdown: list[list[float]] | None = None,
    believed_memory: list[tuple[float, float, float]] | None = None,
    preemption_cost_s: float = 0.0,
    seed: int = 0,
    guarded: bool = False,
    learner: Learn | None = None,
) -> Outcome:
    """Run with a matrix of slowdowns and memory courses by job; the policies know both.

    What is `believed` is what they think instead.
    """
    if isinstance(profile, str):
        profile = load_profile(profile)
    gpus = gpu_arrays([parse_cluster(cluster)], shares=profile.max_jobs_per_gpu)
    true = memory or [(1.0, 0.0, 0.0)] * len(jobs)
    memory = believed_memory or true
    matrix = np.array(slowdown)
    thought = matrix if believed_slowdown is None else np.array(believed_slowdown)
    beliefs = with_reserved_classes(np.where(np.isinf(thought), 1.0, thought), unknown=np.inf)
    truth = Truth(
        slowdown=with_reserved_classes(matrix, unknown=0.0),
        job_class=np.array(classes) + 2,
        memory=[MemoryCourse(*m) for m in true],
        memory_gib=np.array(gpus.memory_capacity_gib),
        gpu_utilisation=np.full(len(jobs), 50.0),
        preemption_cost_s=preemption_cost_s,
    )
    believed = [
        Job(
            id=job.id, pods=job.gpus, queued_at_s=job.submit_s, remaining_s=job.duration_s,
            gpu_utilisation=50.0, memory_base_gib=memory[i][0], memory_peak_extra_gib=memory[i][1],
            peak_probability=memory[i][2], checkpointable=True, interference_class=classes[i] + 2,
            own_slowdown=beliefs[classes[i] + 2], caused_slowdown=beliefs[:, classes[i] + 2],
        )
        for i, job in enumerate(jobs)
    ]  # fmt: skip
    return Engine(
        jobs, believed, gpus, profile, truth, seed=seed, guarded=guarded,
        options=RunOptions(learner=learner),
    ).run()  # fmt: skip
