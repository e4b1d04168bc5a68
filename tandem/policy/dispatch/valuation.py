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
    a neighbour that another GPU holds back already loses nothing more. A worker's slowdown is the
    sum of what each of its neighbours causes (ours, as in `Interference`: measurements have pairs).
    """

    def __init__(
        self, board: Board, rate: Floats, pipeline: Pipeline, *, shares: bool, min_speed: float
    ) -> None:
        self.board = board
        self.rate = rate  # (jobs,) completions per GPU-second
        self._pipeline = pipeline
        self._min_speed = min_speed
        self._most = board.gpus.shares if shares else np.minimum(board.gpus.shares, 1)
        # Where a share is free, the last slot is empty.
        self._slots = max(int(board.gpus.shares.max(initial=0)) - 1, 1)

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
        speed = self._predict_speed(job, leaving)
        return float(self.rate[job]) * speed * int(self.board.arrays.gpus[job])

    def open_shares(self, rows: Ints | None = None) -> int:
        """Return how many GPUs have a free share; of `rows` alone where given."""
        free = self.board.gpus.jobs < self._most
        return int(np.count_nonzero(free if rows is None else free[rows]))

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
        mine = _speed_beside(info.own_slowdown, gpus.resident_class[:, : self._slots])
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
        return _speed_beside(
            info.own_slowdown, np.where(gpus.residents[rows] == job, NOBODY, classes)
        )

    def gains_at(self, job: int, rows: Ints) -> bool:
        """Say whether `job` may and should be put on exactly `rows`."""
        info = self.board.jobs[job]
        gpus = self.board.gpus.take(rows)
        mine, loss, allowed = self._effects(info, gpus)
        if not self._pipeline.narrowed(allowed, info, gpus).all():
            return False
        return bool(self.rate[job] * mine.min() * len(rows) > loss.sum())

    def _effects(self, job: Job, gpus: GpuArrays) -> tuple[Floats, Floats, Bools]:
        """Return the newcomer's speed, what its neighbours lose, and whether all keep a speed.

        Each (gpus,), for GPUs with a free share.
        """
        classes, neighbours = (
            gpus.resident_class[:, : self._slots], gpus.residents[:, : self._slots],
        )  # fmt: skip
        there = neighbours >= 0
        mine = _speed_beside(job.own_slowdown, classes)
        theirs = np.zeros(classes.shape)
        if job.caused_slowdown is not None:
            already = gpus.resident_slowdown[:, : self._slots]
            theirs = 1 / (1 + already + job.caused_slowdown[classes])
        self._refresh()
        now = self.board.predicted_speed[neighbours]
        size = self.board.arrays.gpus[neighbours]
        # A gang loses as a whole; the loss is shared out over those of its GPUs that are taken.
        loss = self.rate[neighbours] * np.maximum(now - theirs, 0.0) * size
        loss = np.where(there, loss / np.minimum(size, job.gpus), 0.0)
        slowest = np.minimum(mine, np.where(there, theirs, 1.0).min(axis=1))
        return mine, loss.sum(axis=1), ~there.any(axis=1) | (slowest >= self._min_speed)

    def _refresh(self) -> None:
        board = self.board
        for job in board.stale:
            board.predicted_speed[job] = self._predict_speed(job)
        board.stale.clear()

    def _predict_speed(self, job: int, leaving: int | None = None) -> float:
        """Return the speed of a gang, its slowest worker's, without the neighbour `leaving`."""
        board = self.board
        own = board.jobs[job].own_slowdown
        worst = 0.0
        # The same company on several GPUs counts once.
        for residents in {tuple(board.residents_of[row]) for row in board.rows_of[job].tolist()}:
            others = [other for other in residents if other not in (job, leaving)]
            if not others:
                continue
            if own is None:
                return 0.0
            worst = max(worst, sum(float(own[board.jobs[o].interference_class]) for o in others))
        return 1 / (1 + worst)


def _speed_beside(slowdown: Floats | None, classes: Ints) -> Floats:
    """Return the speed of a job next to all of `classes`, (places, slots) -> (places,).

    Without a prediction, 0: never next to another job.
    """
    if slowdown is None:
        alone: Floats = (classes == NOBODY).all(axis=1).astype(np.float64)
        return alone
    speed: Floats = 1 / (1 + slowdown[classes].sum(axis=1))
    return speed
