"""Free shares go to the waiting jobs that gain most there."""

from __future__ import annotations

import numpy as np

from tandem.policy.dispatch.valuation import Valuation
from tandem.policy.units import Bools, Ints


def fill(valuation: Valuation, waiting: Ints, *, most: int, best_pair: bool) -> Bools:
    """Start jobs, greatest gain per GPU first; return which of `waiting` were started.

    `waiting` is in order of worth. Of jobs with the same demand only the first is looked at, and
    at most `most` demands. Without `best_pair`, the order is that of worth. A start can only lower
    the gains of others, so only those are worked out anew whose place it has changed.
    """
    started = np.zeros(len(waiting), dtype=np.bool_)
    rows = valuation.open_rows()
    if not len(rows) or not len(waiting):
        return started
    board, loads = valuation.board, valuation.loads
    # A job that wants more GPUs than have a share free is not looked at.
    small = np.flatnonzero(loads.gpus[waiting] <= len(rows))
    demand = loads.demand[waiting[small]]
    _, first, queue_of = np.unique(demand, return_index=True, return_inverse=True)
    heads = np.sort(first)[:most]
    if not len(heads):
        return started
    queues = [small[queue_of == queue_of[head]].tolist() for head in heads.tolist()]
    offers = valuation.offers(waiting[small[heads]], rows)
    best = [offers.best(i) for i in range(len(heads))]

    def key(i: int) -> float:
        place, gain = best[i]
        if place is None:
            return -np.inf
        return gain / len(place) if best_pair else float(offers.rate[i])

    keys = np.array([key(i) for i in range(len(heads))])
    while True:
        ahead = np.flatnonzero(keys == keys.max())
        front = int(ahead[np.argmin(offers.jobs[ahead])])
        place = best[front][0]
        if place is None:
            return started
        job = int(offers.jobs[front])
        board.start(job, place)
        started[queues[front].pop(0)] = True
        if not queues[front]:
            offers.allowed[front] = False
            keys[front] = -np.inf
            if np.isneginf(keys).all():
                valuation.refresh()
                return started
        changed = offers.renew(job)
        if queues[front]:
            offers.put(front, int(waiting[queues[front][0]]))
        for i in range(len(heads)):
            old = best[i][0]
            if i == front or (old is not None and changed[np.searchsorted(rows, old)].any()):
                best[i] = offers.best(i)
                keys[i] = key(i)
