"""What a place is worth to a job and to those who are there: the arithmetic of sharing."""

from __future__ import annotations

import numpy as np

from tandem.policy.board import Board
from tandem.policy.cluster import GpuArrays
from tandem.policy.gather import whole_pods
from tandem.policy.job import NOBODY, Job
from tandem.policy.pipeline import Pipeline
from tandem.policy.units import Bools, Floats, Ints


class Valuation:
    """Values in expected completions per second, on one board, during one round.

    A job with rate of completion `rate` per GPU-second yields rate x GPUs x speed. A newcomer
    yields that at the speed of its slowest worker, and costs each neighbour what it slows it down;
    a neighbour that another GPU holds back already loses nothing more. Two jobs a GPU.
    """

    def __init__(
        self, board: Board, rate: Floats, pipeline: Pipeline, *, shares: bool, min_speed: float
    ) -> None:
        self.board = board
        self.rate = rate  # (jobs,) completions per GPU-second
        self._pipeline = pipeline
        self._min_speed = min_speed
        self._most = board.gpus.shares if shares else np.minimum(board.gpus.shares, 1)

    def speed(self, job: int) -> float:
        """Return the predicted speed of a running job, as a share of its solo speed."""
        if job in self.board.stale:
            self._refresh()
        return float(self.board.predicted_speed[job])

    def value(self, job: int) -> float:
        """Return what a running job yields now."""
        return float(self.rate[job]) * self.speed(job) * int(self.board.arrays.gpus[job])

    def value_without(self, job: int, leaving: int) -> float:
        """Return what a running job would yield if one of its neighbours left."""
        speed = self._predict_speed(job, self.board.partners(job) - {leaving})
        return float(self.rate[job]) * speed * int(self.board.arrays.gpus[job])

    def open_shares(self) -> int:
        """Return how many GPUs have a share free."""
        return int(np.count_nonzero(self.board.gpus.jobs < self._most))

    def best_place(self, job: int) -> tuple[Ints | None, float]:
        """Return the rows where `job` gains most, and the gain; None where nothing is gained.

        For a gang: for each speed that it could run at, the cheapest rows that allow it.
        """
        info, gpus = self.board.jobs[job], self.board.gpus
        wanted = info.gpus
        free = gpus.jobs < self._most
        if np.count_nonzero(free) < wanted:
            return None, 0.0
        mine, loss, allowed = self._effects(info, gpus)
        allowed &= free
        if np.count_nonzero(allowed) < wanted:
            return None, 0.0
        allowed = self._pipeline.narrowed(allowed, info, gpus)
        at = np.flatnonzero(allowed)
        if len(at) < wanted:
            return None, 0.0
        mine, loss, node = mine[at], loss[at], gpus.node[at]
        rate = float(self.rate[job])
        if wanted == 1:
            gains = rate * mine - loss
            best = int(np.argmax(gains))
            gain = float(gains[best])
            return (at[best : best + 1], gain) if gain > 0 else (None, 0.0)
        chosen, most = None, 0.0
        for floor in sorted(set(mine.tolist()), reverse=True):
            enough = np.flatnonzero(mine >= floor)
            if len(enough) < wanted:
                continue
            in_order = enough[np.lexsort((enough, -mine[enough], loss[enough]))]
            cheapest = whole_pods(info, node, in_order)
            if cheapest is None:
                continue
            gain = rate * floor * wanted - float(loss[cheapest].sum())
            if gain > most:
                chosen, most = at[cheapest], gain
        return chosen, most

    def most_elsewhere(self, job: int) -> float:
        """Return what a running job can yield at most, wherever it moves: an upper bound.

        It is as fast as its slowest worker, so the n-th fastest of the places that are open to it,
        the gang's own among them, bounds its speed; what neighbours lose is left out.
        """
        info, gpus = self.board.jobs[job], self.board.gpus
        mine = _speed_beside(info.own_slowdown, gpus.resident_class[:, 0])
        places = mine[gpus.jobs < self._most]
        if info.gpus > 1:
            places = np.concatenate((places, self._own_places(job, info)))
        if len(places) < info.gpus:
            return 0.0
        floor = float(np.sort(places)[-info.gpus])
        return float(self.rate[job]) * floor * info.gpus

    def _own_places(self, job: int, info: Job) -> Floats:
        """Return the speed of each worker beside those who are there now, (workers,)."""
        gpus, rows = self.board.gpus, self.board.rows_of[job]
        classes = gpus.resident_class[rows]
        beside = np.where(gpus.residents[rows] == job, NOBODY, classes).max(axis=1)
        return _speed_beside(info.own_slowdown, beside)

    def gains_at(self, job: int, rows: Ints) -> bool:
        """Say whether `job` may and should be put on exactly `rows`."""
        info = self.board.jobs[job]
        gpus = self.board.gpus.take(rows)
        mine, loss, allowed = self._effects(info, gpus)
        if not self._pipeline.narrowed(allowed, info, gpus).all():
            return False
        return bool(self.rate[job] * mine.min() * len(rows) > loss.sum())

    def _effects(self, job: Job, gpus: GpuArrays) -> tuple[Floats, Floats, Bools]:
        """Return the newcomer's speed, what its neighbour loses, and whether both keep a speed."""
        neighbour_class, neighbour = gpus.resident_class[:, 0], gpus.residents[:, 0]
        there = neighbour >= 0
        mine = _speed_beside(job.own_slowdown, neighbour_class)
        theirs = _speed_beside(job.caused_slowdown, neighbour_class)
        self._refresh()
        now = self.board.predicted_speed[neighbour]
        size = self.board.arrays.gpus[neighbour]
        # A gang loses as a whole; the loss is shared out over those of its GPUs that are taken.
        loss = self.rate[neighbour] * np.maximum(now - theirs, 0.0) * size
        loss = np.where(there, loss / np.minimum(size, job.gpus), 0.0)
        keeps = ~there | ((mine >= self._min_speed) & (theirs >= self._min_speed))
        return mine, loss, keeps

    def _refresh(self) -> None:
        board = self.board
        for job in board.stale:
            board.predicted_speed[job] = self._predict_speed(job, board.partners(job))
        board.stale.clear()

    def _predict_speed(self, job: int, partners: set[int]) -> float:
        """Return the speed beside `partners`: two a GPU, and a gang is as slow as its slowest."""
        if not partners:
            return 1.0
        own = self.board.jobs[job].own_slowdown
        if own is None:
            return 0.0
        return 1 / (1 + max(float(own[self.board.jobs[p].interference_class]) for p in partners))


def _speed_beside(slowdown: Floats | None, classes: Ints) -> Floats:
    """Return the speed of a job beside each class; without a prediction, 0: never beside anyone."""
    if slowdown is None:
        alone: Floats = (classes == NOBODY).astype(np.float64)
        return alone
    speed: Floats = 1 / (1 + slowdown[classes])
    return speed
