"""NVLink in the simulator: pods get GPUs that it connects; runs without it are as before."""

from __future__ import annotations

import numpy as np
import pytest

from tandem.policy.catalog import load_profile
from tandem.policy.cluster import Links
from tandem.simulator.cluster import gpu_arrays, parse_cluster
from tandem.simulator.engine import Engine, RunOptions
from tandem.simulator.jobs import TraceJob
from tandem.simulator.outcome import Outcome
from tandem.simulator.world import plain_world

#: Of eight GPUs of a node, 0 and 4 are connected, 1 and 5, and so on.
PAIRS = np.tile([0, 1, 2, 3, 0, 1, 2, 3], 2)
UNKNOWN = np.full(16, -1)


def run(trace: list[TraceJob], profile: str, links: Links | None) -> Outcome:
    nodes, chosen = (parse_cluster("2x8:A100-80G"),), load_profile(profile)
    gpus = gpu_arrays(nodes, shares=chosen.max_jobs_per_gpu)
    world = plain_world(trace, gpus)
    options = RunOptions(record_decisions=True, links=links)
    return Engine(trace, world.believed, gpus, chosen, world.truth, options=options).run()


def random_trace(seed: int) -> list[TraceJob]:
    rng = np.random.default_rng(seed)
    times = np.sort(rng.uniform(0, 500, 40))
    sizes = rng.choice([1, 2, 4, 8], 40)
    return [
        TraceJob(str(i), float(at), int(size), float(rng.uniform(50, 500)), gpus_per_pod=int(size))
        for i, (at, size) in enumerate(zip(times, sizes, strict=True))
    ]


@pytest.mark.parametrize("profile", ["tandem", "fifo", "horus"])
def test_a_pod_of_two_gpus_gets_an_nvlink_pair(profile: str) -> None:
    trace = [TraceJob(f"j{i}", 0.0, 2, 100.0, gpus_per_pod=2) for i in range(3)]
    outcome = run(trace, profile, Links(PAIRS, UNKNOWN))
    starts = [rows for _, verb, _, rows in outcome.decisions if verb == "start"]
    assert len(starts) == 3
    assert {rows[1] - rows[0] for rows in starts} == {4}, "two GPUs of one NVLink domain"


@pytest.mark.parametrize("profile", ["tandem", "fifo", "horus", "tiresias-g"])
def test_where_nothing_is_known_a_run_is_as_before(profile: str) -> None:
    trace = random_trace(3)
    before = run(trace, profile, None)
    unknown = run(trace, profile, Links(UNKNOWN, UNKNOWN))
    assert before.decisions == unknown.decisions
    assert before.end_s.tobytes() == unknown.end_s.tobytes()


@pytest.mark.parametrize("profile", ["tandem", "fifo"])
def test_jobs_of_one_gpu_alone_run_as_before(profile: str) -> None:
    trace = [
        TraceJob(job.id, job.submit_s, job.gpus, job.duration_s) for job in random_trace(4)
    ]  # fmt: skip
    assert run(trace, profile, Links(PAIRS, UNKNOWN)).decisions == run(
        trace, profile, None
    ).decisions  # fmt: skip


@pytest.mark.parametrize("profile", ["fifo", "srtf"])
def test_jobs_start_and_end_when_they_did(profile: str) -> None:
    """The GPUs are equal to the policies: which of them a job has changes no time."""
    trace = random_trace(5)
    connected = run(trace, profile, Links(PAIRS, UNKNOWN))
    before = run(trace, profile, None)
    assert connected.end_s.tolist() == before.end_s.tolist()
    assert connected.decisions != before.decisions
