"""A job that its neighbours slow down more than the profile allows is preempted."""

from dataclasses import replace

import numpy as np
import pytest
from test_policy_three_shares import board_of, jobs_of, table

from tandem.policy.board import Board
from tandem.policy.catalog import load_profile
from tandem.policy.dispatch.too_slow import preempt_too_slow
from tandem.policy.dispatch.valuation import Valuation

PIPELINE = load_profile("tandem-guarded").pipeline()


def preempted(board: Board, worth: list[float]) -> list[int]:
    board.stale.update(board.rows_of)
    valuation = Valuation(board, np.array(worth), PIPELINE, shares=True, min_speed=0.73)
    return preempt_too_slow(valuation, board.on_gpus & board.loads.checkpointable).tolist()


def board_with(pairs: dict[tuple[int, int], float], *, stays: int | None = None) -> Board:
    """Two jobs of different models on one GPU, and one that is alone on another."""
    jobs = jobs_of([0, 1, 2], table(pairs, 3))
    if stays is not None:
        jobs[stays] = replace(jobs[stays], checkpointable=False)
    return board_of(jobs, {0: [0], 1: [0], 2: [1]}, gpus=2)


@pytest.mark.parametrize(
    ("pairs", "worth", "left"),
    [
        ({(0, 1): 0.3, (1, 0): 0.3}, [1, 1, 1], []),  # both keep 77 %
        ({(0, 1): 0.5}, [9, 1, 1], [0]),  # for its own slowdown, whatever its worth
        ({(0, 1): 0.5, (1, 0): 0.5}, [9, 1, 1], [1]),  # both: the one that is worth less
        ({(0, 1): 0.5, (1, 0): 0.5}, [1, 9, 1], [0]),
    ],
)
def test_which_job_is_preempted(
    pairs: dict[tuple[int, int], float], worth: list[float], left: list[int]
) -> None:
    assert preempted(board_with(pairs), worth) == left


def test_a_job_that_saves_no_checkpoint_stays_and_its_neighbour_is_not_stopped_for_it() -> None:
    assert preempted(board_with({(0, 1): 0.5}, stays=0), [1, 1, 1]) == []


def test_a_gang_that_is_slow_because_it_is_spread_stays() -> None:
    board = board_with({})
    board.spread_speed[0] = 0.6
    assert preempted(board, [1, 1, 1]) == []
