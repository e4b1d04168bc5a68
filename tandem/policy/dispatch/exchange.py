"""Running jobs make room for those worth far more, and move out of bad pairs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tandem.policy.board import Aside
from tandem.policy.dispatch.valuation import Valuation
from tandem.policy.units import Ints

_TRIES = 6  # victims, or movers, looked at for one decision
_SPARE = 8  # victims beyond a gang's own size that may be set aside while room is sought
_HORIZON_S = 300.0  # a job is expected to run as long as it has, and at least this


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
        for victim in reversed(aside):
            board.put_back(victim)
        return []
    board.place(job, place)
    gone: list[int] = []
    for victim in reversed(aside):
        if valuation.gains_at(victim.job, victim.rows):
            board.place(victim.job, victim.rows)
        else:
            gone.append(victim.job)
    board.remove(job)
    for left in gone:
        board.note_stop(left)
    board.start(job, place)
    return gone


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
        size = int(board.arrays.gpus[job])
        service = float(board.arrays.attained_gpu_s(np.array([job]), board.now_s)[0])
        horizon_s = service / size + _HORIZON_S
        partners = board.partners(job)
        before = valuation.value(job) + sum(valuation.value(p) for p in partners)
        worth = float(valuation.rate[job]) * size

        def repays(after: float, before: float = before, least: float = cost_s * worth) -> bool:
            return (after - before) * horizon_s > least

        alone = sum(valuation.value_without(p, job) for p in partners)
        if not repays(valuation.most_elsewhere(job) + alone):
            continue
        rows, gain = _best_elsewhere(valuation, job)
        if rows is not None and repays(gain + alone):
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
