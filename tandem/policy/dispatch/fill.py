"""Free shares go to the waiting jobs that gain most there."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from tandem.policy.dispatch.valuation import Valuation
from tandem.policy.units import Ints


def fill(
    valuation: Valuation, waiting: Sequence[int], *, most: int, best_pair: bool
) -> tuple[list[int], set[int]]:
    """Start jobs, greatest gain per GPU first; return those left and those started.

    `waiting` is in order of worth. Of jobs with the same demand only the first is looked at, and
    at most `most` demands. A start can only lower the gains of others, so a gain is computed anew
    only when its job comes to the front. Without `best_pair`, the order is that of worth.
    """
    board = valuation.board
    if not valuation.open_shares():
        return list(waiting), set()
    by_demand: dict[tuple[object, ...], list[int]] = {}
    for job in waiting:
        demand = board.jobs[job].demand
        if demand in by_demand or len(by_demand) < most:
            by_demand.setdefault(demand, []).append(job)
    offers: list[tuple[float, int, int, Ints, list[int]]] = []
    starts = 0

    def offer(queue: list[int]) -> None:
        rows, gain = valuation.best_place(queue[0])
        if rows is not None:
            key = gain / len(rows) if best_pair else float(valuation.rate[queue[0]])
            heapq.heappush(offers, (-key, queue[0], starts, rows, queue))

    for queue in by_demand.values():
        offer(queue)
    started: set[int] = set()
    while offers:
        _, job, seen, rows, queue = heapq.heappop(offers)
        if seen == starts:
            board.start(job, rows)
            started.add(job)
            starts += 1
            queue.pop(0)
        if queue:
            offer(queue)
    return [job for job in waiting if job not in started], started
