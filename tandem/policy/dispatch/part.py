"""Jobs leave neighbours beside which they are slower than was promised."""

from __future__ import annotations

import numpy as np

from tandem.policy.dispatch.valuation import Valuation
from tandem.policy.units import Bools, Ints

_ROUNDING = 1e-9


def part(valuation: Valuation, may_stop: Bools) -> Ints:
    """Stop jobs that neighbours slow down to less than `min_speed`; return who was stopped.

    A pair starts at a predicted speed that measurements correct. Where both of a pair are too slow,
    the one that is worth less leaves. `may_stop` (jobs,) says who may be preempted. A job leaves by
    its own slowdown alone: what is measured of one job stops no other.
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
            board.stop(int(job), leaves=True)
            stopped.append(int(job))
    return np.array(stopped, dtype=np.int64)


def _is_slow(valuation: Valuation, jobs: Ints) -> Bools:
    """Return which of some running jobs are too slow; what being spread costs does not count."""
    kept: Bools = valuation.speed(jobs) / valuation.spread_speed(jobs) < (
        valuation.min_speed - _ROUNDING
    )
    return kept
