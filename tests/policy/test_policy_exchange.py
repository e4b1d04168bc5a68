"""Who gives way to whom: what the GPUs yield as a whole decides, and none of them stays idle."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tandem.policy.board import Board, Stop
from tandem.policy.board import Start as Started
from tandem.policy.catalog import load_profile
from tandem.policy.cluster import GpuArrays
from tandem.policy.job import Job
from tandem.policy.jobs import JobArrays

NOW_S = 100_000.0
ALONE = np.array([0.0, np.inf, 1.0])  # pairs gain nothing


def decided(
    gpus: int, running: list[tuple[int, float]], waiting: list[tuple[int, float]]
) -> tuple[set[str], set[str]]:
    """Return who starts and who stops; jobs are (GPUs, seconds that they have run)."""
    jobs = [
        Job(
            id=f"{name}{index}", pods=size, memory_base_gib=1.0, checkpointable=True,
            queued_at_s=NOW_S - run_s, attained_gpu_seconds=size * run_s, interference_class=2,
            own_slowdown=ALONE, caused_slowdown=ALONE,
        )
        for name, some in (("runs", running), ("waits", waiting))
        for index, (size, run_s) in enumerate(some)
    ]  # fmt: skip
    arrays = JobArrays.of(jobs)
    arrays = replace(arrays, since_s=np.full(len(jobs), NOW_S))
    node, memory_gib = np.zeros(gpus, dtype=np.int64), np.full(gpus, 16.0)
    board = Board.of(jobs, arrays, GpuArrays.empty(node, memory_gib, shares=2))
    board.now_s = NOW_S
    free = 0
    for index, (size, _) in enumerate(running):
        board.place(index, np.arange(free, free + size))
        arrays.running[index], arrays.speed[index] = True, 1.0
        free += size
    profile = load_profile("tandem")
    profile.dispatch(board, np.arange(len(jobs)), profile.pipeline(), False)
    actions = board.take_actions()
    return (
        {jobs[a.job].id for a in actions if isinstance(a, Started)},
        {jobs[a.job].id for a in actions if isinstance(a, Stop)},
    )


def test_a_job_of_one_gpu_does_not_stop_a_gang_whose_other_gpus_would_be_idle() -> None:
    # Per GPU the newcomer is worth about seven times as much, yet the gang yields more.
    assert decided(8, [(8, 300.0)], [(1, 0.0)]) == (set(), set())


def test_jobs_that_fill_the_gpus_of_a_gang_stop_it_and_all_start_at_once() -> None:
    started, stopped = decided(8, [(8, 3000.0)], [(1, 0.0)] * 8)
    assert started == {f"waits{i}" for i in range(8)}
    assert stopped == {"runs0"}


def test_a_gang_takes_a_cluster_that_is_almost_idle_from_one_long_job() -> None:
    # The job of one GPU is worth more per GPU than the gang, and keeps seven GPUs from it.
    assert decided(8, [(1, 6000.0)], [(8, 0.0)]) == ({"waits0"}, {"runs0"})


def test_a_gang_does_not_stop_jobs_that_yield_more_together() -> None:
    assert decided(8, [(1, 3000.0)] * 8, [(8, 0.0)]) == (set(), set())


def test_jobs_of_about_the_same_worth_do_not_take_turns() -> None:
    assert decided(1, [(1, 1200.0)], [(1, 1000.0)]) == (set(), set())


def test_a_gang_replaces_the_job_whose_neighbour_suits_it_and_not_the_one_that_yields_least() -> (
    None
):
    # Speeds of one job next to another. B yields least, but next to A the newcomer gains nothing.
    names = "A", "B", "C", "D", "newcomer"
    speed = np.full((5, 5), 0.5)
    speed[0, 1], speed[1, 0] = 0.9, 0.2
    speed[2, 3] = speed[3, 2] = 0.6
    speed[4, 0] = speed[0, 4] = 0.6
    speed[4, 3] = speed[3, 4] = 1.0
    jobs = [
        Job(
            id=name, pods=2, memory_base_gib=1.0, checkpointable=True, queued_at_s=NOW_S - 300.0,
            attained_gpu_seconds=600.0, interference_class=2 + index,
            own_slowdown=np.concatenate(([0.0, np.inf], 1 / speed[index] - 1)),
            caused_slowdown=np.concatenate(([0.0, np.inf], 1 / speed[:, index] - 1)),
        )
        for index, name in enumerate(names)
    ]  # fmt: skip
    arrays = replace(JobArrays.of(jobs), since_s=np.full(5, NOW_S))
    gpus = GpuArrays.empty(np.zeros(4, dtype=np.int64), np.full(4, 16.0), shares=2)
    board = Board.of(jobs, arrays, gpus)
    board.now_s = NOW_S
    for index, rows in enumerate(([0, 1], [0, 1], [2, 3], [2, 3])):
        board.place(index, np.array(rows))
        arrays.running[index], arrays.speed[index] = True, 1.0
    profile = load_profile("tandem")
    profile.dispatch(board, np.arange(5), profile.pipeline(), False)
    assert board.take_actions() == [Stop(2), Started(4, (2, 3))]
