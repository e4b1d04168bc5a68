"""What running pairs show corrects what is predicted of their models."""

import numpy as np
import pytest

from tandem.policy.adjust.learn import Learn
from tandem.policy.board import Board
from tandem.policy.catalog import load_profile
from tandem.policy.cluster import GpuArrays
from tandem.policy.job import Job
from tandem.policy.jobs import JobArrays
from tandem.policy.units import Floats

ONE, OTHER = 2, 3  # classes; 0 is an empty slot, 1 unknown
PIPELINE = load_profile("tandem").pipeline()
EXACT = Learn(weight_of_past=0.0)


def predicted(slowdown: float) -> Floats:
    """Slowdown of each class next to each, in both directions."""
    table = np.full((4, 4), slowdown)
    table[:, 0] = table[0, :] = 0.0
    return table


def board_of(
    table: Floats, rows: dict[int, list[int]], speeds: dict[int, float], spread: float = 0.0
) -> Board:
    """Job 0 of class ONE and job 1 of class OTHER on nodes of one GPU each, at these speeds."""
    jobs = [
        Job(
            id=f"j{job}", pods=len(at), memory_base_gib=1.0, spread_slowdown=spread,
            interference_class=ONE + job, own_slowdown=table[ONE + job],
            caused_slowdown=table[:, ONE + job],
        )
        for job, at in rows.items()
    ]  # fmt: skip
    gpus = GpuArrays.empty(np.arange(4) // 2, np.full(4, 80.0), shares=2)
    board = Board.of(jobs, JobArrays.of(jobs), gpus)
    for job, at in rows.items():
        board.place(job, np.array(at))
        board.arrays.running[job] = True
        board.arrays.speed[job] = speeds[job]
    return board


def test_an_exact_look_replaces_the_prediction_of_both() -> None:
    table = predicted(0.05)
    board = board_of(table, {0: [0], 1: [0]}, {0: 1 / 3, 1: 1 / 1.5})
    assert EXACT(board, PIPELINE)
    assert table[ONE, OTHER] == pytest.approx(2.0)
    assert table[OTHER, ONE] == pytest.approx(0.5)
    assert sorted(board.gpus.resident_slowdown[0].tolist()) == pytest.approx([0.5, 2.0])


def test_a_second_look_finds_nothing_new() -> None:
    board = board_of(predicted(0.05), {0: [0], 1: [0]}, {0: 1 / 3, 1: 1 / 1.5})
    EXACT(board, PIPELINE)
    board.changed[:] = False
    assert not EXACT(board, PIPELINE)
    assert not board.changed.any()  # no round has to look at these GPUs again


def test_a_job_that_has_yet_to_begin_shows_nothing() -> None:
    table = predicted(0.05)
    board = board_of(table, {0: [0], 1: [0]}, {0: 0.0, 1: 1 / 1.5})
    EXACT(board, PIPELINE)
    assert table[ONE, OTHER] == 0.05
    assert table[OTHER, ONE] == pytest.approx(0.5)


def test_what_being_spread_costs_a_gang_is_not_blamed_on_its_neighbour() -> None:
    table = predicted(0.2)
    # Two workers on two nodes: half as fast for that, and slowed down by 0.6 next to the other.
    speeds = {0: 1 / (2 * 1.6), 1: 1 / 1.2}
    board = board_of(table, {0: [0, 2], 1: [0]}, speeds, spread=1.0)
    EXACT(board, PIPELINE)
    assert table[ONE, OTHER] == pytest.approx(0.6)


@pytest.mark.parametrize("once", [False, True])
def test_it_looks_again_unless_once_is_enough(once: bool) -> None:
    assert Learn(once=once).repeats is not once
