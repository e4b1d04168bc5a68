"""Preempts jobs that their neighbours slow down more than the profile allows."""

from __future__ import annotations

import numpy as np

from tandem.policy.dispatch.valuation import Valuation
from tandem.policy.units import Bools, Ints

_ROUNDING = 1e-9


def preempt_too_slow(valuation: Valuation, may_stop: Bools) -> Ints:
    """Preempt jobs that their neighbours slow down to less than `min_speed`; return those jobs.

    A job joins another one on a predicted speed, and measurements correct the prediction. If both
    jobs of a pair are too slow, the job of lower worth is preempted. `may_stop` (jobs,) says which
    jobs may be preempted. A measurement of one job never preempts another job.
    """
    board = valuation.board
    crowded = board.gpus.residents[board.gpus.jobs > 1]
    shared = np.unique(crowded[crowded >= 0])
    shared = shared[may_stop[shared]]
    slow = shared[_is_slow(valuation, shared)]
    worth = valuation.rate[slow] * board.arrays.gpus[slow]
    stopped: list[int] = []
    for job in slow[np.argsort(worth, kind="stable")]:
        if _is_slow(valuation, np.array([job]))[0]:
            board.stop(int(job), too_slow=True)
            stopped.append(int(job))
    return np.array(stopped, dtype=np.int64)


def _is_slow(valuation: Valuation, jobs: Ints) -> Bools:
    """Return which running jobs are too slow; the price of a spread gang does not count."""
    kept: Bools = valuation.speed(jobs) / valuation.spread_speed(jobs) < (
        valuation.min_speed - _ROUNDING
    )
    return kept
