"""The simulator's ground truth and the figures of a run, each by a sum that is done by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from simulator_builders import run_shared, trace

from tandem.policy.job import SubBatch
from tandem.simulator.outcome import Outcome
from tandem.simulator.report import report
from tandem.simulator.truth import MemoryCourse, Truth, no_truth

INF = float("inf")


def truth(
    slowdown: list[list[float]], classes: list[int], memory: list[tuple[float, float, float]] = ()
) -> Truth:
    return Truth(
        slowdown=np.array(slowdown),
        job_class=np.array(classes),
        memory=[MemoryCourse(*course) for course in memory],
        memory_gib=np.array([16.0]),
        gpu_utilisation=np.full(len(classes), 50.0),
    )


# --- speed --------------------------------------------------------------------------------------

# Class 0 is slowed by 0.5 next to class 1 and by 1.5 next to class 2, and slows them by others.
THREE = truth([[0.1, 0.5, 1.5], [0.2, 0.3, 0.7], [0.9, 0.4, 0.6]], [0, 1, 2])


def test_a_job_alone_runs_at_its_solo_speed() -> None:
    assert THREE.speed(0, []) == 1.0


@pytest.mark.parametrize(("job", "neighbour", "slowdown"), [(0, 1, 0.5), (1, 0, 0.2), (0, 2, 1.5)])
def test_a_pair_is_as_slow_as_was_measured_each_by_its_own_row(
    job: int, neighbour: int, slowdown: float
) -> None:
    assert THREE.speed(job, [neighbour]) == pytest.approx(1 / (1 + slowdown))


def test_three_on_a_gpu_slow_each_other_down_by_the_sum_and_not_by_the_worst() -> None:
    assert THREE.speed(0, [1, 2]) == pytest.approx(1 / (1 + 0.5 + 1.5))
    assert THREE.speed(1, [0, 2]) == pytest.approx(1 / (1 + 0.2 + 0.7))


def test_jobs_that_do_not_fit_together_hardly_move() -> None:
    apart = truth([[0, INF], [0, 0]], [0, 1])
    assert apart.speed(0, [1]) == pytest.approx(1e-3)
    assert apart.speed(1, [0]) == 1.0


def test_whether_sharing_costs_anything() -> None:
    assert THREE.interferes
    assert not no_truth(3, 1).interferes


# --- memory -------------------------------------------------------------------------------------


def overflow(*courses: tuple[float, float, float], room: float = 16.0) -> float:
    made = replace(truth([[0.0]], [0] * len(courses), list(courses)), memory_gib=np.array([room]))
    return made.overflow(0, list(range(len(courses))))


@pytest.mark.parametrize(
    ("courses", "chance"),
    [
        ([(8, 0, 0), (8, 0, 0)], 0.0),  # exactly full
        ([(6, 2, 0.5), (6, 2, 0.5)], 0.0),  # both peaks fit
        ([(6, 3, 0.5), (6, 3, 0.2)], 0.1),  # not both at once: 6 > 4
        ([(6, 5, 0.5), (6, 1, 0.2)], 0.5),  # the first alone is too much
        ([(6, 5, 0.5), (6, 5, 0.2)], 0.6),  # either: 1 - 0.5 * 0.8
        ([(6, 2.5, 0.5), (6, 2, 0.2)], 0.1),  # both by half a GiB too much
        ([(9, 0, 0), (8, 0, 0)], 1.0),  # not even without a peak
        ([(4, 3, 0.5), (4, 3, 0.5), (4, 3, 0.5)], 0.5),  # room for one peak of 3: two of three
    ],
)
def test_the_chance_that_memory_overflows(courses: list, chance: float) -> None:
    assert overflow(*courses) == pytest.approx(chance)
    assert overflow(*courses[::-1]) == pytest.approx(chance)


def test_jobs_that_do_not_fit_together_overflow_for_certain() -> None:
    made = truth([[0, INF], [INF, 0]], [0, 1], [(1, 0, 0), (1, 0, 0)])
    assert made.overflow(0, [0, 1]) == made.overflow(0, [1, 0]) == 1.0
    assert made.overflow(0, [1]) == 0.0


def test_accumulation_changes_the_memory_and_the_speed_of_its_job_alone() -> None:
    parts = {2: SubBatch(steps=2, memory_base_gib=3.0, memory_peak_extra_gib=1.0, stretch=1.25)}
    made = replace(THREE, memory=[MemoryCourse(6, 2, 0.5)] * 3, sub_batches=[parts, {}, {}])
    halved = made.accumulating(0, 2)
    assert halved.memory[0] == MemoryCourse(3.0, 1.0, 0.5)
    assert halved.memory[1] == MemoryCourse(6, 2, 0.5)
    assert halved.stretch.tolist() == [1.25, 1, 1]
    assert made.stretch is None
    assert made.accumulating(0, 4) is made
    assert made.accumulating(1, 2) is made


# --- figures ------------------------------------------------------------------------------------


def outcome(**changes: object) -> Outcome:
    """Two jobs: (submitted 0, ended 20, on one GPU) and (submitted 10, ended 50, on three)."""
    values = {
        "submit_s": np.array([0.0, 10.0]),
        "end_s": np.array([20.0, 50.0]),
        "gpus": np.array([1, 3]),
        "duration_s": np.array([10.0, 20.0]),
        "run_s": np.array([15.0, 30.0]),
        "overhead_s": np.array([0.0, 5.0]),
        "preemptions": np.array([1, 2]),
        "migrations": np.array([0, 3]),
        "ooms": np.array([4, 0]),
        "grown": np.zeros(2, dtype=np.int64),
        "shrunk": np.zeros(2, dtype=np.int64),
        "elastic_gpu_s": np.full(2, np.nan),
        "busy_gpu_s": 105.0,
        "max_gpus_used": 4,
    }
    return Outcome(**values | changes)


def test_the_figures_of_a_run() -> None:
    said = report(outcome(), no_truth(2, 4), gpus=4, wall_s=1.5)
    assert (said.jobs, said.wall_s) == (2, 1.5)
    assert (said.avg_jct_s, said.median_jct_s) == (30.0, 30.0)
    assert said.p95_jct_s == pytest.approx(39.0)
    assert said.p99_jct_s == pytest.approx(39.8)
    assert said.makespan_s == 50.0
    assert said.avg_queue_s == pytest.approx((5 + 10) / 2)
    assert (said.preemptions, said.migrations, said.ooms) == (3, 3, 4)
    assert (said.gpu_seconds, said.max_gpus_used) == (105.0, 4)
    assert said.mean_slowdown == pytest.approx((15 / 10 + 30 / 25) / 2 - 1)
    assert said.mean_speed == pytest.approx((10 / 15 + 25 / 30) / 2)


@pytest.mark.parametrize(("busy", "mean"), [((100, 100), 42.5), ((50, 50), 21.25), ((80, 0), 4.0)])
def test_utilisation_is_that_of_the_work_over_all_gpus_and_the_whole_time(
    busy: tuple[float, float], mean: float
) -> None:
    # 10 s on one GPU and 25 s (5 of them again) on three, of 4 GPUs in 50 s.
    world = replace(no_truth(2, 4), gpu_utilisation=np.array(busy, dtype=float))
    assert report(outcome(), world, gpus=4, wall_s=0).mean_gpu_utilisation == pytest.approx(mean)


def test_the_time_until_the_first_submission_does_not_count() -> None:
    later = outcome(submit_s=np.array([5.0, 10.0]))
    assert report(later, no_truth(2, 4), gpus=4, wall_s=0).makespan_s == 45.0


def test_utilisation_of_a_run_that_is_known_by_hand() -> None:
    # One GPU of two is used, at 50 %, all the time.
    made = run_shared(trace((0, 1, 10)), "1x2", "fifo", [[1.0]], [0])
    world = replace(no_truth(1, 2), gpu_utilisation=np.array([50.0]))
    assert report(made, world, gpus=2, wall_s=0).mean_gpu_utilisation == pytest.approx(25.0)
    assert made.busy_gpu_s == 10.0
