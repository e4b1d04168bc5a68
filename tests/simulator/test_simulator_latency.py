"""A cluster that takes time to start a gang and to have its GPUs back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tandem.policy.catalog import load_profile
from tandem.policy.ordering.queues import Queues
from tandem.simulator.cluster import Nodes, gpu_arrays
from tandem.simulator.engine import Engine, Outcome, RunOptions
from tandem.simulator.jobs import TraceJob
from tandem.simulator.truth import Latency
from tandem.simulator.world import plain_world


def run(
    jobs: list[TraceJob], start_s: float, release_s: float, *, threshold_gpu_s: float
) -> tuple[Engine, Outcome]:
    profile = load_profile("tiresias-l")
    order = Queues(thresholds_gpu_s=(threshold_gpu_s,))
    profile = profile.model_copy(update={"order": order})
    gpus = gpu_arrays([Nodes(1, 2)], shares=1)
    world = plain_world(jobs, gpus)
    count = len(jobs)
    latency = Latency(np.full(count, start_s), np.full(count, release_s))
    truth = replace(world.truth, latency=latency)
    engine = Engine(
        jobs, world.believed, gpus, profile, truth, options=RunOptions(record_decisions=True)
    )
    return engine, engine.run()


@pytest.mark.parametrize("start_s", [0.0, 0.5, 2.0])
def test_a_start_holds_the_gpus_and_is_no_service(start_s: float) -> None:
    jobs = [TraceJob("first", 0.0, 2, 10.0), TraceJob("second", 1.0, 2, 10.0)]
    engine, outcome = run(jobs, start_s, 0.0, threshold_gpu_s=1e6)
    assert outcome.end_s.tolist() == [10 + start_s, 20 + 2 * start_s]
    assert engine._finished == [20, 20]
    assert outcome.run_s.tolist() == [10 + start_s] * 2


def test_who_comes_waits_until_the_gpus_are_free_and_the_victim_starts_anew() -> None:
    # Over the threshold of 20 GPU-seconds at 2 + 10 s; free 3 s later.
    jobs = [TraceJob("long", 0, 2, 30), TraceJob("short", 5, 2, 4)]
    _, outcome = run(jobs, 2.0, 3.0, threshold_gpu_s=20.0)
    assert [d[:3] for d in outcome.decisions] == [
        (0, "start", "long"), (12, "stop", "long"), (12, "start", "short"), (21, "start", "long"),
    ]  # fmt: skip
    assert outcome.end_s.tolist() == pytest.approx([21 + 2 + 20, 12 + 3 + 2 + 4])
    assert outcome.overhead_s.tolist() == [0, 0]


def test_who_has_yet_to_begin_is_not_preempted() -> None:
    # The first is over the threshold when it is suspended for the second; the third comes while
    # the first starts again, and has to wait until it has begun.
    jobs = [
        TraceJob("long", 0, 2, 30),
        TraceJob("short", 5, 2, 4),
        TraceJob("late", 22, 2, 1),
    ]
    _, outcome = run(jobs, 2.0, 3.0, threshold_gpu_s=20.0)
    stops = [(at, job) for at, verb, job, _ in outcome.decisions if verb == "stop"]
    assert stops == [(12, "long"), (23, "long")]
