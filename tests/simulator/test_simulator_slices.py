"""Slices of MIG in the simulator: a job is slower on one, and a gang waits for whole GPUs."""

from dataclasses import replace

import numpy as np
import pytest
from simulator_builders import trace

from tandem.errors import TandemError, UsageError
from tandem.policy.catalog import load_profile, profile_names
from tandem.policy.cluster import GpuArrays
from tandem.simulator.cluster import gpu_arrays, parse_cluster
from tandem.simulator.engine import Engine
from tandem.simulator.outcome import Outcome
from tandem.simulator.run import Setup, check_fits
from tandem.simulator.world import plain_world

SEVENTH = 1 / 7


def with_slices(cluster: str, count: int) -> GpuArrays:
    """The last `count` GPUs of each node are slices."""
    gpus = gpu_arrays([parse_cluster(cluster)], shares=2)
    place = np.arange(len(gpus)) % np.bincount(gpus.node)[gpus.node]
    sliced = place >= np.bincount(gpus.node)[gpus.node] - count
    return replace(
        gpus,
        sliced=sliced,
        compute=np.where(sliced, SEVENTH, 1.0),
        shares=np.where(sliced, 1, gpus.shares),
    )


def run(jobs, gpus: GpuArrays, *, busy: float = 100.0, profile: str = "tandem") -> Outcome:
    world = plain_world(jobs, gpus)
    believed = [replace(job, gpu_utilisation=busy, exclusive=True) for job in world.believed]
    return Engine(jobs, believed, gpus, load_profile(profile), world.truth).run()


@pytest.mark.parametrize(("busy", "takes_s"), [(100.0, 700.0), (50.0, 400.0), (0.0, 100.0)])
def test_what_keeps_the_gpu_busy_takes_longer_on_a_slice(busy, takes_s):
    outcome = run(trace((0, 1, 100)), with_slices("1x1", 1), busy=busy)
    assert outcome.end_s.tolist() == [pytest.approx(takes_s)]


def test_a_busy_job_takes_the_whole_gpu_and_the_next_one_the_slice():
    outcome = run(trace((0, 1, 1000), (1, 1, 10)), with_slices("1x2", 1))
    assert outcome.end_s.tolist() == pytest.approx([1000.0, 71.0])


@pytest.mark.parametrize("profile", profile_names())
def test_under_every_profile_a_gang_waits_for_whole_gpus_and_all_jobs_finish(profile):
    # Four slices are free all the time; the gang of two waits until both whole GPUs are.
    jobs = trace((0, 2, 50), (1, 2, 50), (2, 1, 10), (2, 1, 10))
    outcome = run(jobs, with_slices("1x6", 4), profile=profile)
    assert np.isfinite(outcome.end_s).all()
    assert outcome.end_s[:2].min() >= 50


def test_a_cluster_of_slices_is_written_with_their_profile():
    slices, whole = parse_cluster("2x7:A100-MIG-1g.5gb"), parse_cluster("1x8:A100-80G")
    assert (slices.gpu_type, slices.memory_gib, slices.profile) == ("A100", 5.0, "1g.5gb")
    assert (whole.memory_gib, whole.profile) == (80.0, "")
    gpus = gpu_arrays([slices, whole], shares=2)
    assert gpus.sliced.tolist() == [True] * 14 + [False] * 8
    assert gpus.shares.tolist() == [1] * 14 + [2] * 8
    assert gpus.compute.tolist() == [SEVENTH] * 14 + [1.0] * 8
    with pytest.raises(UsageError):
        parse_cluster("2x7:A100-MIG-huge")


def test_a_gang_that_finds_too_few_whole_gpus_is_named_before_the_run():
    clusters = (parse_cluster("1x7:A100-MIG-1g.5gb"), parse_cluster("1x1:A100"))
    with pytest.raises(TandemError, match="wants 2 GPUs, and 1 are no slices"):
        check_fits(Setup(tuple(trace((0, 1, 70), (0, 2, 10))), clusters))
    check_fits(Setup(tuple(trace((0, 1, 70), (0, 1, 10))), clusters))


def test_jobs_without_slices_run_as_before():
    jobs = trace((0, 2, 50), (1, 1, 50), (2, 1, 10), (2, 1, 10))
    plain = gpu_arrays([parse_cluster("2x2")], shares=2)
    assert run(jobs, plain).end_s.tolist() == run(jobs, with_slices("2x2", 0)).end_s.tolist()
