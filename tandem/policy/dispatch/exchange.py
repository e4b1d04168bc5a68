"""Running jobs make room for those worth far more."""

from __future__ import annotations

import numpy as np

from tandem.policy.board import Aside
from tandem.policy.dispatch.valuation import Valuation
from tandem.policy.units import Bools, Ints

_SPARE = 8  # victims beyond a gang's own size that may be set aside while room is sought


def replace_some(
    valuation: Valuation, waiting: Ints, may_stop: Bools, *, factor: float, most: int
) -> Ints:
    """Preempt running jobs for waiting ones worth `factor` times as much; return who started.

    `waiting` is in order of worth, `may_stop` (jobs,) says who may be preempted; a demand for which
    no place was found is not tried again.
    """
    rate, loads = valuation.rate, valuation.loads
    may_stop = may_stop.copy()
    least = rate[may_stop].min(initial=np.inf)
    new: list[int] = []
    refused: set[int] = set()
    for job in waiting[rate[waiting] >= factor * least].tolist():
        demand = int(loads.demand[job])
        if demand in refused:
            continue
        victims = np.flatnonzero(may_stop & (rate <= rate[job] / factor))
        if not len(victims) or len(refused) > most:
            break
        victims = victims[np.lexsort((victims, rate[victims] * valuation.speed(victims)))]
        one = loads.gpus[job] == 1
        gone = _replace_one(valuation, job, victims) if one else _replace(valuation, job, victims)
        if not gone:
            refused.add(demand)
            continue
        new.append(job)
        may_stop[gone] = False
    return np.array(new, dtype=np.int64)


def _replace_one(valuation: Valuation, job: int, victims: Ints) -> list[int]:
    """Give `job`, of one GPU, the place of the victim that leaves most; return the victim."""
    best = valuation.in_place_of(job, victims)
    if best is None:
        return []
    victim, row = best
    valuation.board.stop(victim)
    valuation.board.start(job, np.array([row]))
    return [victim]


def _replace(valuation: Valuation, job: int, victims: Ints) -> list[int]:
    """Set victims aside, least worth first, until the gang fits; who can stay beside it stays."""
    board = valuation.board
    count, place = _fewest(valuation, job, victims)
    if place is None:
        return []
    aside: list[Aside] = [board.set_aside(victim) for victim in victims[:count].tolist()]
    board.place(job, place)
    gone: list[int] = []
    for one in reversed(aside):
        if valuation.gains_at(one.job, one.rows):
            board.place(one.job, one.rows)
        else:
            gone.append(one.job)
    board.remove(job)
    for left in gone:
        board.note_stop(left)
    board.start(job, place)
    return gone


def _fewest(valuation: Valuation, job: int, victims: Ints) -> tuple[int, Ints | None]:
    """Return how many of `victims`, the first ones, must leave until `job` fits, and where."""
    board = valuation.board
    held = np.cumsum(board.arrays.gpus[victims])
    wanted = int(board.jobs[job].gpus)
    gone = np.zeros(len(board.arrays), dtype=np.bool_)
    low = int(np.searchsorted(held, wanted)) + 1
    high = min(len(victims), max(low, wanted + _SPARE + 1))
    if low > high:
        return 0, None

    def place(count: int) -> Ints | None:
        gone[:] = False
        gone[victims[:count]] = True
        return valuation.best_without(job, gone)

    found = place(high)
    if found is None:
        return 0, None
    while low < high:
        middle = (low + high) // 2
        there = place(middle)
        if there is None:
            low = middle + 1
        else:
            high, found = middle, there
    return high, found
