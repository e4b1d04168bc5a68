"""Speed-up curves of Pollux' measured steps, and the jobs that the study of elastic jobs makes."""

from __future__ import annotations

import pytest
from simulator_builders import needs_data

from studies.papers import pollux
from studies.profiles.elastic import WAYS, batches_per_s, elastic_job, jobs_of
from tandem.simulator.jobs import TraceJob

pytestmark = needs_data
FIXED, FEWER, MORE, BOTH = WAYS


@pytest.fixture(scope="module")
def apps() -> dict[str, pollux.Application]:
    return pollux.applications(0)


def test_a_curve_is_that_of_the_measured_step_with_the_jobs_own_batch(
    apps: dict[str, pollux.Application],
) -> None:
    app = apps["cifar10"]
    for gpus in (4, 8):  # 512 samples a GPU: on a line between two that were measured
        assert batches_per_s(app, gpus, 512 * gpus) == 1 / app.iteration_s(gpus, 512, 1)
    # 384 samples on one GPU are accumulated in 32 steps of twelve, the largest batch measured.
    assert batches_per_s(apps["bert"], 1, 384) == 1 / apps["bert"].iteration_s(1, 12, 32)


def test_what_a_job_does_is_the_same_in_each_way(apps: dict[str, pollux.Application]) -> None:
    app = apps["imagenet"]
    job = pollux.job_of("i", app, 0.0, 8, 1600, 1000)
    fixed, fewer, more, both = (elastic_job(job, app, 1600, way) for way in WAYS)
    assert fixed == job.trace
    assert (fewer.min_gpus, fewer.gpus, fewer.duration_s) == (2, 8, job.trace.duration_s)
    assert (more.min_gpus, both.min_gpus) == (8, 2)
    assert 8 < more.gpus <= 16
    for found in (more, both):
        assert found.duration_s / found.speed_with(8) == pytest.approx(job.trace.duration_s)
    for gpus in range(2, 9):
        iterations = batches_per_s(app, gpus, 1600) * fewer.duration_s / fewer.speed_with(gpus)
        assert iterations == pytest.approx(1000)


def test_a_job_wants_no_more_than_makes_it_faster(apps: dict[str, pollux.Application]) -> None:
    app = apps["ncf"]
    job = pollux.job_of("n", app, 0.0, 1, 256, 1000)
    assert elastic_job(job, app, 256, FEWER) == job.trace
    assert elastic_job(job, app, 256, MORE) == job.trace  # two GPUs are slower than one


def test_a_seed_changes_which_job_arrives_when_and_a_load_how_often() -> None:
    def shape(jobs: tuple[TraceJob, ...]) -> tuple[list[str], list[float]]:
        return sorted(job.id for job in jobs), [job.submit_s for job in jobs]

    plain, other = (jobs_of("realistic-1", FIXED, 1.0, seed) for seed in (0, 1))
    assert shape(plain) == shape(other)
    assert [job.id for job in plain] != [job.id for job in other]
    often = jobs_of("realistic-1", FIXED, 2.0, 0)
    assert [job.submit_s * 2 for job in often] == [job.submit_s for job in plain]
