"""The simulator with what the shipped predictor says: what is believed, and what is true."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.pages import FOLDER
from benchmarks.tables import tables_of
from studies.predictions import simulated
from tandem.simulator.jobs import TraceJob

TRACE = tuple(TraceJob(str(i), 60.0 * i, 1 + i % 2, 3600.0) for i in range(24))


@pytest.fixture(scope="module")
def work() -> simulated.Workload:
    return simulated.chosen_workload("T4")


def test_policies_read_what_is_predicted_and_nothing_that_is_true(
    work: simulated.Workload,
) -> None:
    world = simulated.world(work, TRACE, predicted=True, seed=1)
    for job in world.believed:
        kind = next(each for each in work.kinds if each.name == job.model)
        assert job.gpu_utilisation == kind.load.utilisation_percent != kind.utilisation
        assert job.memory_peak_gib == pytest.approx(kind.load.memory_p95_bytes / 2**30)
        assert job.peak_probability == kind.load.peak_probability
        assert job.own_slowdown is not None
        row = job.interference_class - 2
        assert job.own_slowdown[2:].tolist() == work.predicted[row].tolist()
        assert not job.peak_measured


def test_with_the_truth_policies_know_what_runs(work: simulated.Workload) -> None:
    world = simulated.world(work, TRACE, predicted=False, seed=1)
    for index, job in enumerate(world.believed):
        assert job.gpu_utilisation == world.truth.gpu_utilisation[index]
        assert job.memory_peak_gib == world.truth.memory[index].peak_gib
        own = world.truth.slowdown[world.truth.job_class[index]]
        assert job.own_slowdown is not None
        assert job.own_slowdown[2:].tolist() == own[2:].tolist()
    same = simulated.world(work, TRACE, predicted=True, seed=1)
    assert np.array_equal(same.truth.job_class, world.truth.job_class)


def test_a_job_whose_step_is_predicted_twice_as_long_gets_twice_the_time(
    work: simulated.Workload,
) -> None:
    slow = replace(work, kinds=tuple(replace(kind, step_ratio=2.0) for kind in work.kinds))
    world = simulated.world(slow, TRACE, predicted=True, seed=0)
    assert {job.remaining_s for job in world.believed} == {7200.0}


@pytest.mark.parametrize("system", [simulated.BASE, *simulated.SYSTEMS])
def test_every_system_ends_all_jobs(work: simulated.Workload, system: str) -> None:
    found = simulated.run(work, TRACE, system, predicted=True, seed=0)
    assert found.jobs == len(TRACE)
    assert found.ooms == 0
    if system == simulated.BASE:
        assert found.mean_speed == 1.0


def test_the_page_says_what_its_tables_say() -> None:
    page = (FOLDER / f"{simulated.PAGE}.md").read_text()
    _, outcomes = tables_of(page)
    assert simulated.findings(outcomes) in page
    assert {row.partition(", ")[2] for row in outcomes.rows} == set(simulated.SYSTEMS)
