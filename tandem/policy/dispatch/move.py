"""Running jobs move out of bad pairs where that repays the move."""

from __future__ import annotations

import numpy as np

from tandem.policy.dispatch.valuation import Valuation
from tandem.policy.units import Bools, Ints

_TRIES = 6  # movers looked at in one round
_HORIZON_S = 300.0  # a job is expected to run as long as it has, and at least this


def improve(
    valuation: Valuation, may_stop: Bools, changed: Bools, *, cost_s: float, below: float
) -> None:
    """Move jobs that run slower than `below` where the gain repays the move.

    `may_stop` (jobs,) says who may be moved. Who had nowhere better to go is looked at again where
    something is `changed` (gpus,), there or where a share is free. A job is expected to run on for
    as long as it has run, as under a heavy tail: the gain over that time must exceed the work of
    `cost_s` seconds.

    Source: [OJPP] Alg. 4. Differs: gain and cost are both in completions, so that no budget is
    needed; a share of another GPU will do as well as an empty one.
    """
    board = valuation.board
    rows = valuation.open_rows()
    if not len(rows):
        return
    if not changed[rows].any():
        residents = board.gpus.residents[changed]
        on_changed = np.zeros_like(may_stop)
        on_changed[residents[residents >= 0]] = True
        may_stop = may_stop & on_changed
    slow = np.flatnonzero(may_stop)
    speed = valuation.speed(slow)
    slow, speed = slow[speed < below], speed[speed < below]
    movers = slow[np.argsort(speed, kind="stable")][:_TRIES]
    if not len(movers):
        return
    arrays = board.arrays
    size = arrays.gpus[movers]
    horizon_s = arrays.attained_gpu_s(movers, board.now_s) / size + _HORIZON_S
    least = cost_s * valuation.rate[movers] * size / horizon_s
    offers = valuation.offers(movers, rows)
    for index, job in enumerate(movers.tolist()):
        place, gain = valuation.best_move(job, offers, index)
        if place is None or gain <= least[index]:
            continue
        if _gain(valuation, job, place, gain) > least[index]:
            board.stop(job)
            board.start(job, place)
            offers = valuation.offers(movers, rows := valuation.open_rows())


def _gain(valuation: Valuation, job: int, rows: Ints, estimate: float) -> float:
    """Return what all concerned would yield more with `job` on `rows`: by trial, so exactly.

    The gain by which a place is chosen shares a gang's loss out over its GPUs; were a move decided
    by it, a job could move to and fro, or to where it is.
    """
    board = valuation.board
    there = {other for row in rows.tolist() for other in board.residents_of[row]}
    if len(rows) == 1 and there.isdisjoint(board.partners(job)):
        return estimate  # of one GPU, next to other jobs: the estimate is exact
    concerned = np.array(sorted({job} | board.partners(job) | there))
    before = float(valuation.value(concerned).sum())
    changed = board.changed.copy()  # a trial changes nothing
    aside = board.set_aside(job)
    board.place(job, rows)
    after = float(valuation.value(concerned).sum())
    board.remove(job)
    board.put_back(aside)
    board.changed[:] = changed
    return after - before
