"""Free shares go, queue by queue, to the waiting jobs that gain most there."""

from __future__ import annotations

import numpy as np

from tandem.policy.dispatch.valuation import Offers, Valuation, best_scored
from tandem.policy.units import Bools, Ints

_ROUNDED_UP = 1 + 1e-9  # so that a bound is none the less one for what is rounded


def fill(valuation: Valuation, waiting: Ints, *, most: int, best_pair: bool) -> Bools:
    """Start jobs, queue by queue, greatest gain per GPU first; return which of `waiting` were.

    `waiting` is in order: by queue, then by worth. Of jobs with the same demand only the first is
    looked at, and at most `most` demands. Without `best_pair`, each queue goes in order of worth.
    Among places of equal worth (`Valuation.equal_worth`) the scorers of the profile decide. A start
    can only lower the gains of others, so only those are worked out anew whose place it has
    changed.
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
    places = _Places(offers, best_pair=best_pair)
    while True:
        front = places.first()
        place = places.of[front]
        if place is None:
            return started
        job = int(offers.jobs[front])
        board.start(job, place)
        if front not in queues:
            queues[front] = small[demand == demand[heads[front]]].tolist()
        started[queues[front].pop(0)] = True
        if not queues[front]:
            places.drop(front)
            if not places.any():
                valuation.refresh()
                return started
        changed = offers.renew(job)
        if queues[front]:
            offers.put(front, int(waiting[queues[front][0]]))
        places.renew(front, changed)


class _Places:
    """Where each job of the offers gains most: `of`, rows or None.

    What a worker of each job gains, and the score of the place, are kept for every GPU. A job of
    one GPU is where the score is best of the places where it gains about as much as it can.
    The slowest worker of a gang sets the speed of all, so the mean of its best GPUs is a bound on
    what it gains on each. Its place is looked for once the bound comes first, and again when a GPU
    has changed that it is on or may be on.
    """

    def __init__(self, offers: Offers, *, best_pair: bool) -> None:
        self._offers = offers
        self._best_pair = best_pair
        self._single = offers.wanted == 1
        self._every = np.arange(len(offers.jobs))
        self._gains = offers.gains(self._every, np.arange(len(offers.rows)))
        self._scores = offers.scores(np.arange(len(offers.rows)))
        self._least = offers.valuation.least_of_best
        self._queue = offers.valuation.board.arrays.queue[offers.jobs]
        self._at = np.zeros(len(self._every), dtype=np.int64)  # of `offers.rows`; -1: nowhere
        self._top = self._at.copy()  # where it gains most
        self.of: list[Ints | None] = [None] * len(self._every)
        self._keys = np.full(len(self._every), -np.inf)  # what goes first
        self._open = ~self._single  # gangs whose key is a bound as yet
        self._rough = self._open.copy()  # those whose bound is that of their best GPU alone
        self._find_singles(np.flatnonzero(self._single))
        self._bound()

    def first(self) -> int:
        """Return the job that goes first; of equals, the first one of the board."""
        while True:
            some = self._keys > -np.inf
            if some.any():
                some &= self._queue == self._queue[some].min()
            else:
                some[:] = True
            ahead = np.flatnonzero(some & (self._keys == self._keys[some].max()))
            undecided = ahead[self._open[ahead]]
            if not len(undecided):
                return int(ahead[np.argmin(self._offers.jobs[ahead])])
            for gang in undecided.tolist():
                if self._rough[gang] and self._best_pair:
                    self._tighten(gang)
                else:
                    self._find_gang(gang)

    def any(self) -> bool:
        """Say whether there is a GPU where a job gains anything."""
        return bool((self._gains > 0).any())

    def drop(self, index: int) -> None:
        """Leave out a job, whose like wait no more."""
        self._offers.allowed[index] = False
        self._gains[index] = -np.inf
        self._keys[index] = -np.inf
        self._open[index] = False

    def renew(self, front: int, changed: Bools) -> None:
        """Look again for job `front` and where GPUs have `changed` (gpus,)."""
        offers = self._offers
        at = np.flatnonzero(changed)
        new = offers.gains(self._every, at)
        self._gains[:, at] = new
        self._scores[:, at] = offers.scores(at)
        self._queue[front] = offers.valuation.board.arrays.queue[offers.jobs[front]]
        self._gains[front] = offers.gains(self._every[[front]], np.arange(len(offers.rows)))[0]
        most = new.max(axis=1, initial=-np.inf)
        top = np.where(self._at >= 0, self._gains[self._every, self._top], 0.0)
        again = ((self._at >= 0) & (changed[self._at] | changed[self._top])) | (
            most > self._least * top
        )
        again[front] = True
        self._find_singles(np.flatnonzero(again & self._single))
        for gang in np.flatnonzero(~self._single & ~self._open).tolist():
            may_change = gang == front or most[gang] > -np.inf or self._has_changed(gang, changed)
            self._open[gang] = may_change
        self._bound()

    def _has_changed(self, gang: int, changed: Bools) -> bool:
        place = self.of[gang]
        if place is None:
            return False
        return bool(changed[np.searchsorted(self._offers.rows, place)].any())

    def _bound(self) -> None:
        gangs = np.flatnonzero(self._open)
        if len(gangs):
            most = self._gains[gangs].max(axis=1)
            key = most if self._best_pair else self._offers.rate[gangs]
            self._keys[gangs] = np.where(most > 0, key * _ROUNDED_UP, -np.inf)
            self._rough[gangs] = True

    def _tighten(self, gang: int) -> None:
        wanted, gains = int(self._offers.wanted[gang]), self._gains[gang]
        most = np.partition(gains, -wanted)[-wanted:].mean() if wanted <= len(gains) else -np.inf
        self._keys[gang] = most * _ROUNDED_UP if most > 0 else -np.inf
        self._rough[gang] = False

    def _find_gang(self, gang: int) -> None:
        self.of[gang], gain = self._offers.best(
            gang, may=self._gains[gang] > -np.inf, score=self._scores[gang]
        )
        self._keys[gang] = -np.inf if self.of[gang] is None else self._key(gang, gain)
        self._open[gang] = False

    def _key(self, index: int, gain: float) -> float:
        if not self._best_pair:
            return float(self._offers.rate[index])
        return gain / float(self._offers.wanted[index])

    def _find_singles(self, singles: Ints) -> None:
        gains = self._gains[singles]
        at = best_scored(gains, self._scores[singles], self._least)
        most = gains[np.arange(len(singles)), at]
        self._at[singles] = np.where(most > 0, at, -1)
        self._top[singles] = gains.argmax(axis=1)
        for i, found, gain in zip(singles.tolist(), at.tolist(), most.tolist(), strict=True):
            self.of[i] = self._offers.rows[found : found + 1] if gain > 0 else None
            self._keys[i] = self._key(i, gain) if gain > 0 else -np.inf
