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
    least = cost_s * float(valuation.rate[job]) * size / horizon_s
    partners = board.partners(job)
    before = valuation.value(job) + sum(valuation.value(p) for p in partners)
    alone = sum(valuation.value_without(p, job) for p in partners)
    if valuation.most_elsewhere(job) + alone - before <= least:
        return
    rows = _best_elsewhere(valuation, job)
    if rows is not None and _gain(valuation, job, rows) > least:
        board.stop(job)
        board.start(job, rows)


def _best_elsewhere(valuation: Valuation, job: int) -> Ints | None:
    """Return the best place if `job` left the one it has."""
    board = valuation.board
    if len(board.rows_of[job]) == 1 and not valuation.open_shares(board.rows_of[job]):
        return valuation.best_place(job)[0]  # its own GPU is full, so it is not among the places
    aside = board.set_aside(job)
    rows, _ = valuation.best_place(job)
    board.put_back(aside)
    return rows


def _gain(valuation: Valuation, job: int, rows: Ints) -> float:
    """Return what all concerned would yield more with `job` on `rows`: by trial, so exactly.

    The gain by which a place is chosen shares a gang's loss out over its GPUs; were a move decided
    by it, a job could move to and fro, or to where it is.
    """
    board = valuation.board
    there = {other for row in rows.tolist() for other in board.residents_of[row]}
    concerned = sorted({job} | board.partners(job) | there)
    before = sum(valuation.value(one) for one in concerned)
    aside = board.set_aside(job)
    board.place(job, rows)
    after = sum(valuation.value(one) for one in concerned)
    board.remove(job)
    board.put_back(aside)
    return after - before
