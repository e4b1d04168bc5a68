"""Which of a node's empty GPUs a pod of several gets: the best connected, and no others."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.policy.board import Board, Start
from tandem.policy.catalog import load_profile
from tandem.policy.cluster import GpuArrays, Links
from tandem.policy.job import Job
from tandem.policy.jobs import JobArrays
from tandem.policy.links import connect, connected_rows, nearest
from tandem.policy.pipeline import Pipeline
from tandem.policy.units import Bools, Ints

PIPELINE = load_profile("fifo").pipeline()
_ = -1  # unknown
ALONE: dict[str, Any] = {"exclusive": True, "checkpointable": True}


def ints(*values: int) -> Ints:
    return np.array(values, dtype=np.int64)


@pytest.mark.parametrize(
    ("wanted", "nvlink", "numa", "chosen"),
    [
        # One NVLink domain, whichever NUMA node.
        (2, (0, 1, 0, 1), (0, 0, 1, 1), [0, 2]),
        (2, (_, 1, _, 1), (0, 0, 0, 1), [1, 3]),
        # The smallest that suffices, so that the larger one stays whole; ties: the first.
        (2, (0, 0, 0, 0, 4, 4), (_,) * 6, [4, 5]),
        (3, (0, 0, 0, 0, 4, 4), (_,) * 6, [0, 1, 2]),
        (2, (2, 2, 0, 0), (_,) * 4, [2, 3]),
        # Inside the domain, one NUMA node: the smallest that suffices.
        (2, (0,) * 6, (0, 1, 0, 0, 1, _), [1, 4]),
        (3, (0,) * 6, (0, 1, 0, 0, 1, _), [0, 2, 3]),
        (4, (0,) * 6, (0, 1, 0, 0, 1, _), [0, 1, 2, 3]),
        # Without an NVLink domain of that size, one NUMA node; whole domains inside it first.
        (2, (_,) * 4, (0, 1, 0, 1), [0, 2]),
        (3, (0, 1, 0, 1, _), (0,) * 5, [0, 2, 4]),
        (4, (0, 1, 2, 0, 1, 2), (0,) * 6, [0, 1, 3, 4]),
        (3, (0, 0, 1, 1), (0,) * 4, [0, 1, 2]),
        # Neither: as the policy decided.
        (3, (0, 0, 1, 1), (0, 0, 1, 1), None),
        (2, (_, _), (_, _), None),
        (2, (0, 1), (1, 0), None),
    ],
)
def test_the_best_connected(
    wanted: int, nvlink: tuple[int, ...], numa: tuple[int, ...], chosen: list[int] | None
) -> None:
    assert nearest(wanted, nvlink, numa) == chosen


def board_of(jobs: list[Job], gpus: int = 8, nodes: int = 1, **columns: Any) -> Board:
    empty = GpuArrays.empty(np.repeat(np.arange(nodes), gpus), np.full(nodes * gpus, 80.0))
    return Board.of(jobs, JobArrays.of(jobs), replace(empty, **columns))


def started(board: Board, links: Links | None, **more: Any) -> dict[int, list[int]]:
    connect(board, links, PIPELINE, **more)
    found = {action.job: list(action.rows) for action in board.actions if isinstance(action, Start)}
    for job, rows in found.items():
        assert board.rows_of[job].tolist() == rows
    return found


def pair(id: str = "a", pods: int = 1, gpus: int = 2, **more: Any) -> Job:
    return Job(id=id, pods=pods, gpus_per_pod=gpus, **ALONE, **more)


PAIRS = Links(ints(0, 1, 2, 3, 0, 1, 2, 3), np.full(8, -1))


def test_a_pod_of_two_gets_an_nvlink_pair() -> None:
    board = board_of([pair()])
    board.start(0, ints(0, 1))
    assert started(board, PAIRS) == {0: [0, 4]}


def test_one_job_takes_no_gpu_of_another_that_starts() -> None:
    board = board_of([pair("a"), pair("b"), pair("c")])
    for job in range(3):
        board.start(job, ints(2 * job, 2 * job + 1))
    # 6 and 7, which are free, make no pair with those of a; b leaves 3, c leaves 4 for it.
    assert started(board, PAIRS) == {0: [0, 4], 1: [2, 6], 2: [3, 7]}


def test_jobs_that_fill_a_node_keep_their_gpus() -> None:
    board = board_of([pair(str(job)) for job in range(4)])
    for job in range(4):
        board.start(job, ints(2 * job, 2 * job + 1))
    assert started(board, PAIRS) == {job: [2 * job, 2 * job + 1] for job in range(4)}


def test_pods_of_one_job_exchange_their_gpus() -> None:
    board = board_of([pair(pods=4)])
    board.start(0, np.arange(8))
    assert started(board, PAIRS) == {0: [0, 4, 1, 5, 2, 6, 3, 7]}


def test_a_pod_keeps_what_it_has_where_no_pair_is_free() -> None:
    board = board_of([pair(), pair("b", gpus=4)])
    board.place(1, ints(4, 5, 6, 7))
    board.start(0, ints(2, 3))
    assert started(board, PAIRS) == {0: [2, 3]}


@pytest.mark.parametrize(
    "columns",
    [
        {"healthy": np.arange(8) != 4},
        {"shares": np.where(np.arange(8) == 4, 1, 2)},
        {"memory_capacity_gib": np.where(np.arange(8) == 4, 79.0, 80.0)},
        {"gpu_type": np.where(np.arange(8) == 4, 1, 0)},
        {"sliced": np.arange(8) == 4},
        {"guarded": np.arange(8) == 4},
    ],
    ids=lambda columns: next(iter(columns)),
)
def test_a_gpu_that_differs_is_not_taken(columns: dict[str, Any]) -> None:
    board = board_of([pair()], **columns)
    board.start(0, ints(0, 1))
    # GPU 4 is the partner of 0: the next pair is taken.
    assert started(board, PAIRS) == {0: [1, 5]}


def test_a_closed_gpu_and_a_fixed_job_are_left_alone() -> None:
    board = board_of([pair()])
    board.start(0, ints(0, 1))
    assert started(board, PAIRS, fixed={0}) == {0: [0, 1]}
    closed = np.isin(np.arange(8), [4, 5, 6])
    assert started(board, PAIRS, closed=closed) == {0: [3, 7]}


def test_a_job_whose_own_gpus_are_closed_keeps_them() -> None:
    """It waits until others have left them."""
    board = board_of([pair()])
    board.start(0, ints(0, 1))
    assert started(board, PAIRS, closed=np.arange(8) == 1) == {0: [0, 1]}


def test_a_reserved_gpu_is_not_taken() -> None:
    board = board_of([pair()])
    board.columns["shares"][4] = 0
    board.start(0, ints(0, 1))
    assert started(board, PAIRS) == {0: [1, 5]}


def test_a_gpu_that_the_job_may_not_have_is_not_taken() -> None:
    class NotFour(Pipeline):
        def narrowed(self, among: Bools, job: Job, gpus: GpuArrays) -> Bools:
            return super().narrowed(among, job, gpus) & (gpus.place != 4)

    pipeline = NotFour(PIPELINE.constraints, PIPELINE.scorers, PIPELINE.gather)
    board = board_of([pair()], place=np.arange(8))
    board.start(0, ints(0, 1))
    connect(board, PAIRS, pipeline)
    assert board.actions == [Start(0, (1, 5))]


def test_a_pod_next_to_another_job_keeps_its_gpus() -> None:
    board = board_of([replace(pair(), exclusive=False), Job(id="b")])
    board.place(1, ints(1))
    board.start(0, ints(0, 1))
    assert started(board, PAIRS) == {0: [0, 1]}


def test_of_a_job_that_was_stopped_and_started_again_the_last_counts() -> None:
    board = board_of([pair()])
    board.start(0, ints(0, 1))
    board.stop(0)
    board.start(0, ints(2, 3))
    connect(board, PAIRS, PIPELINE)
    assert board.actions[-1] == Start(0, (0, 4))
    assert board.rows_of[0].tolist() == [0, 4]


@pytest.mark.parametrize("links", [None, Links(np.full(8, -1), np.full(8, -1))])
def test_where_nothing_is_known_nothing_is_done(links: Links | None) -> None:
    board = board_of([pair()])
    board.start(0, ints(0, 1))
    board.changed[:] = False
    assert started(board, links) == {0: [0, 1]}
    assert not board.changed.any()


@pytest.mark.parametrize(
    ("jobs", "columns", "allowed", "expected"),
    [
        ({}, {}, range(8), [0, 4]),
        ({4: 1}, {}, range(8), [1, 5]),
        ({0: 1}, {}, range(8), [0, 1]),  # it shares one of them
        ({}, {}, (0, 1, 2, 3, 6, 7), [2, 6]),
        ({}, {}, (0, 1, 2), [0, 1]),
        ({}, {"gpu_type": np.where(np.arange(8) == 4, 1, 0)}, range(8), [1, 5]),
        ({}, {"gpu_type": np.where(np.arange(8) == 1, 1, 0)}, range(8), [0, 1]),
    ],
)
def test_the_best_connected_rows_of_a_node(
    jobs: dict[int, int], columns: dict[str, Any], allowed: list[int], expected: list[int]
) -> None:
    there = np.array([jobs.get(row, 0) for row in range(8)])
    gpus = replace(board_of([], **columns).gpus, jobs=there)
    mask = np.isin(np.arange(8), list(allowed))
    assert connected_rows(ints(0, 1), gpus, mask, PAIRS).tolist() == expected
    assert connected_rows(ints(0, 1), gpus, mask, None).tolist() == [0, 1]
    assert connected_rows(ints(0), gpus, mask, PAIRS).tolist() == [0]


# --- random rounds --------------------------------------------------------------------------------


@st.composite
def rounds(draw: st.DrawFn) -> tuple[Board, Links, Bools, str]:
    """A board of two nodes with jobs that run and jobs that wait, some GPUs different or closed."""
    sizes = st.tuples(st.sampled_from([1, 2, 4]), st.integers(1, 3), st.booleans())
    jobs = [
        Job(id=f"j{i}", gpus_per_pod=size, pods=pods, exclusive=alone, memory_base_gib=1.0,
            gpu_utilisation=10.0, checkpointable=True)
        for i, (size, pods, alone) in enumerate(draw(st.lists(sizes, min_size=2, max_size=8)))
    ]  # fmt: skip

    def of_gpus(low: int, high: int) -> Ints:
        return ints(*draw(st.lists(st.integers(low, high), min_size=16, max_size=16)))

    board = board_of(
        jobs, nodes=2, healthy=of_gpus(0, 5) > 0, gpu_type=of_gpus(0, 4) // 4,
        memory_capacity_gib=np.where(of_gpus(0, 5) > 0, 80.0, 40.0), shares=of_gpus(1, 6) // 3 + 1,
    )  # fmt: skip
    for job in range(len(jobs) // 2):
        rows = PIPELINE.choose(jobs[job], board.gpus)
        if rows is not None:
            board.place(job, rows)
            board.arrays.running[job] = True
    links = Links(of_gpus(-1, 3), of_gpus(-1, 1))
    return board, links, of_gpus(0, 6) == 0, draw(st.sampled_from(["tandem", "fifo", "horus"]))


@given(rounds())
@settings(max_examples=150, deadline=None)
def test_a_round_starts_the_same_jobs_on_equal_gpus(
    drawn: tuple[Board, Links, Bools, str],
) -> None:
    board, links, closed, name = drawn
    profile = load_profile(name)
    pipeline = profile.pipeline()
    waiting = ints(*(job for job in range(len(board.jobs)) if job not in board.rows_of))
    before = board.twin()
    profile.dispatch(board, waiting, pipeline, profile.order.blocks)
    decided, after = board.twin(), list(board.actions)
    closed |= before.gpus.jobs > 0  # as in a cluster, where those that must leave are there still
    connect(board, links, pipeline, closed)

    assert [action.job for action in board.actions] == [action.job for action in after]
    for new, old in zip(board.actions, after, strict=True):
        if not (isinstance(new, Start) and isinstance(old, Start)):
            assert new == old
            continue
        got, kept = ints(*new.rows), ints(*old.rows)
        size = board.jobs[new.job].gpus_per_pod
        assert board.gpus.node[got].tolist() == board.gpus.node[kept].tolist()
        for column in ("gpu_type", "memory_capacity_gib", "shares"):
            values = getattr(board.gpus, column)
            assert values[got].tolist() == values[kept].tolist()
        changed = np.setdiff1d(got, kept)
        assert not closed[changed].any()
        assert board.gpus.healthy[changed].all()
        assert (before.gpus.jobs[changed] == 0).all(), "it was another's"
        assert (board.gpus.jobs[changed] == 1).all(), "it is another's"
        if size == 1:
            assert not len(changed)
    # The board is as if the jobs had been started there at first.
    again = before.twin()
    for action in board.actions:
        if isinstance(action, Start):
            again.start(action.job, ints(*action.rows))
        else:
            again.stop(action.job)
    for each in fields(GpuArrays):
        assert np.array_equal(getattr(board.gpus, each.name), getattr(again.gpus, each.name))
    assert board.residents_of == again.residents_of
    assert board.empty == again.empty == decided.empty
