"""Free shares go to the waiting jobs that gain most there."""

from __future__ import annotations

import numpy as np

from tandem.policy.dispatch.valuation import Offers, Valuation
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
    if not len(demand):
        return started
    first = np.full(demand.max() + 1, len(demand))
    np.minimum.at(first, demand, np.arange(len(demand)))
    heads = np.sort(first[first < len(demand)])[:most]
    queues: dict[int, list[int]] = {}  # of `waiting`, by head; made when the first of it starts
    offers = valuation.offers(waiting[small[heads]], rows)
    places = _Places(offers)

    def key(i: int) -> float:
        place = places.of[i]
        if place is None:
            return -np.inf
        return places.gain[i] / len(place) if best_pair else float(offers.rate[i])

    keys = np.array([key(i) for i in range(len(heads))])
    while True:
        ahead = np.flatnonzero(keys == keys.max())
        front = int(ahead[np.argmin(offers.jobs[ahead])])
        place = places.of[front]
        if place is None:
            return started
        job = int(offers.jobs[front])
        board.start(job, place)
        if front not in queues:
            queues[front] = small[demand == demand[heads[front]]].tolist()
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
        renewed = places.renew(front, changed)
        keys[renewed] = [key(i) for i in renewed]


class _Places:
    """Where each job of the offers gains most: `of`, rows or None, and how much: `gain`.

    What jobs of one GPU gain is kept for every GPU, since each start changes it for many of them.
    """

    def __init__(self, offers: Offers) -> None:
        self._offers = offers
        self._single = np.flatnonzero(offers.wanted == 1)
        self._gains = offers.gains(self._single, np.arange(len(offers.rows)))
        self._at = np.zeros(len(self._single), dtype=np.int64)  # of `offers.rows`; -1: nowhere
        self.of: list[Ints | None] = [None] * len(offers.jobs)
        self.gain = [0.0] * len(offers.jobs)
        self._gangs: list[int] = np.flatnonzero(offers.wanted > 1).tolist()
        self._find_singles(np.arange(len(self._single)))
        self._find_gangs(self._gangs)

    def renew(self, front: int, changed: Bools) -> list[int]:
        """Look again for job `front` and where GPUs have `changed` (gpus,); return for whom."""
        offers = self._offers
        at = np.flatnonzero(changed)
        self._gains[:, at] = offers.gains(self._single, at)
        mine = self._single == front
        if mine.any():
            self._gains[mine] = offers.gains(self._single[mine], np.arange(len(offers.rows)))
        singles = np.flatnonzero(((self._at >= 0) & changed[self._at]) | mine)
        self._find_singles(singles)
        gangs = [i for i in self._gangs if i == front or self._has_changed(i, changed)]
        self._find_gangs(gangs)
        looked: list[int] = self._single[singles].tolist() + gangs
        return looked

    def _has_changed(self, gang: int, changed: Bools) -> bool:
        place = self.of[gang]
        if place is None:
            return False
        return bool(changed[np.searchsorted(self._offers.rows, place)].any())

    def _find_gangs(self, gangs: list[int]) -> None:
        for i in gangs:
            self.of[i], self.gain[i] = self._offers.best(i)

    def _find_singles(self, singles: Ints) -> None:
        gains = self._gains[singles]
        at = gains.argmax(axis=1)
        most = gains[np.arange(len(singles)), at]
        self._at[singles] = np.where(most > 0, at, -1)
        for i, found, gain in zip(
            self._single[singles].tolist(), at.tolist(), most.tolist(), strict=True
        ):
            self.of[i] = self._offers.rows[found : found + 1] if gain > 0 else None
            self.gain[i] = gain
