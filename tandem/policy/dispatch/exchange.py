"""Running jobs make room for those worth far more."""

from __future__ import annotations

from collections.abc import Sequence

from tandem.policy.board import Aside
from tandem.policy.dispatch.valuation import Valuation
from tandem.policy.units import Ints

_TRIES = 6  # victims looked at for one decision
_SPARE = 8  # victims beyond a gang's own size that may be set aside while room is sought


def replace_some(
    valuation: Valuation, waiting: Sequence[int], started: set[int], *, factor: float, most: int
) -> set[int]:
    """Preempt running jobs for waiting ones worth `factor` times as much; return who started.

    `waiting` is in order of worth; a demand for which no place was found is not tried again.
    """
    board, rate = valuation.board, valuation.rate
    victims = {
        job: float(rate[job])
        for job in board.rows_of
        if board.jobs[job].checkpointable and job not in started and job not in board.pinned
    }
    new: set[int] = set()
    refused: set[tuple[object, ...]] = set()
    for job in waiting:
        limit = float(rate[job]) / factor
        if not victims or limit < min(victims.values()) or len(refused) > most:
            break
        demand = board.jobs[job].demand
        if demand in refused:
            continue
        allowed = sorted(
            (k for k, worth in victims.items() if worth <= limit),
            key=lambda k: (victims[k] * valuation.speed(k), k),
        )
        one = board.jobs[job].gpus == 1
        gone = _replace_one(valuation, job, allowed) if one else _replace(valuation, job, allowed)
        if not gone:
            refused.add(demand)
            continue
        new.add(job)
        for victim in gone:
            del victims[victim]
    return new


def _replace_one(valuation: Valuation, job: int, victims: Sequence[int]) -> list[int]:
    """Give `job`, of one GPU, the place of the victim that leaves most; return the victim."""
    board = valuation.board
    best: tuple[float, int, Ints] | None = None
    for victim in victims[:_TRIES]:
        value = float(valuation.rate[victim]) * valuation.speed(victim)
        aside = board.set_aside(victim)
        rows, gain = valuation.best_place(job)
        board.put_back(aside)
        if rows is not None and (best is None or gain - value > best[0]):
            best = gain - value, victim, rows
    if best is None:
        return []
    _, victim, rows = best
    board.stop(victim)
    board.start(job, rows)
    return [victim]


def _replace(valuation: Valuation, job: int, victims: Sequence[int]) -> list[int]:
    """Set victims aside, least worth first, until the gang fits; who can stay beside it stays."""
    board = valuation.board
    wanted = board.jobs[job].gpus
    aside: list[Aside] = []
    place: Ints | None = None
    freed = 0
    for victim in victims:
        aside.append(board.set_aside(victim))
        freed += len(aside[-1].rows)
        if freed >= wanted:
            place, _ = valuation.best_place(job)
            if place is not None or len(aside) > wanted + _SPARE:
                break
    if place is None:
        for one in reversed(aside):
            board.put_back(one)
        return []
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
