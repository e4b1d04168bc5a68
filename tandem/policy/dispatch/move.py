"""Running jobs move out of bad pairs where that repays the move."""

from __future__ import annotations

import numpy as np

from tandem.policy.dispatch.valuation import Valuation
from tandem.policy.units import Ints

_TRIES = 6  # movers looked at in one round
_HORIZON_S = 300.0  # a job is expected to run as long as it has, and at least this


def improve(valuation: Valuation, started: set[int], *, cost_s: float, below: float) -> None:
    """Move jobs that run slower than `below` where the gain repays the move.

    A job is expected to run on for as long as it has run, as under a heavy tail: the gain over
    that time must exceed the work of `cost_s` seconds.

    Source: [OJPP] Alg. 4. Differs: gain and cost are both in completions, so that no budget is
    needed; a share of another GPU will do as well as an empty one.
    """
    board = valuation.board
    if not valuation.open_shares():
        return
    slow = sorted(
        (valuation.speed(job), job)
        for job in board.rows_of
        if job not in started
        and job not in board.pinned
        and board.jobs[job].checkpointable
        and valuation.speed(job) < below
    )
    for _, job in slow[:_TRIES]:
        _move_if_better(valuation, job, cost_s)


def _move_if_better(valuation: Valuation, job: int, cost_s: float) -> None:
    """Move one job to its best place where the gain repays the move."""
    board = valuation.board
    size = int(board.arrays.gpus[job])
    service = float(board.arrays.attained_gpu_s(np.array([job]), board.now_s)[0])
    horizon_s = service / size + _HORIZON_S
    partners = board.partners(job)
    before = valuation.value(job) + sum(valuation.value(p) for p in partners)
    alone = sum(valuation.value_without(p, job) for p in partners)
    least = cost_s * float(valuation.rate[job]) * size
    if (valuation.most_elsewhere(job) + alone - before) * horizon_s <= least:
        return
    rows, gain = _best_elsewhere(valuation, job)
    if rows is not None and (gain + alone - before) * horizon_s > least:
        board.stop(job)
        board.start(job, rows)


def _best_elsewhere(valuation: Valuation, job: int) -> tuple[Ints | None, float]:
    """Return the best place if `job` left the one it has, and the gain there."""
    board = valuation.board
    if len(board.rows_of[job]) == 1:  # its GPU is full, or it would not be slow: it may stay there
        return valuation.best_place(job)
    aside = board.set_aside(job)
    found = valuation.best_place(job)
    board.put_back(aside)
    return found
