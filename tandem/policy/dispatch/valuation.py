"""Values a place for a job and for its residents: the arithmetic of sharing."""

from __future__ import annotations

from typing import Any

import numpy as np

from tandem.policy.board import Board
from tandem.policy.cluster import LOAD_COLUMNS, GpuArrays
from tandem.policy.columns import JobColumns
from tandem.policy.equations.slices import slice_speed
from tandem.policy.equations.turns import shares_well
from tandem.policy.gather import whole_pods
from tandem.policy.job import EMPTY_SLOT
from tandem.policy.pipeline import Pipeline
from tandem.policy.units import Bools, Floats, Ints

#: Yields that differ by less than this part are the same: CPUs round exponentials differently.
_SAME = 1e-12


class Valuation:
    """Values in expected completions per second, on one board, during one round.

    A job with rate of completion `rate` per GPU-second yields rate x GPUs x speed. A newcomer
    yields that at the speed of its slowest worker, and costs each neighbour what it slows it down;
    a neighbour that another GPU holds back already loses nothing more. A gang on more nodes than it
    needs is slowed down as predicted ([Tiresias] 3.3), with `locality`. Any number of jobs may be
    on a GPU: slowdowns of several neighbours add up.
    """

    def __init__(
        self,
        board: Board,
        rate: Floats,
        pipeline: Pipeline,
        *,
        shares: bool,
        min_speed: float,
        min_gain: float = 0.0,
        equal_worth: float = 0.0,
        locality: bool = True,
    ) -> None:
        self.board = board
        self.rate = rate  # (jobs,) completions per GPU-second
        self.loads: JobColumns = board.loads
        self.pipeline = pipeline
        self.min_speed, self.min_gain = min_speed, min_gain
        # Places that gain at least this part of the best are of equal worth: the scorers decide.
        self.least_of_best = 1 - equal_worth if pipeline.scorers else 1.0
        self.locality = locality
        # (gpus,) jobs at most
        self.most = board.gpus.shares if shares else np.minimum(board.gpus.shares, 1)
        self.refresh()

    # --- running jobs -------------------------------------------------------------------------

    def refresh(self) -> None:
        """Predict anew the speed of running jobs whose neighbours have changed."""
        board = self.board
        if not board.stale:
            return
        residents, jobs = board.gpus.residents, board.gpus.jobs
        for job in board.stale:
            rows = board.rows_of[job]
            spread = self.spread_speed(job)
            if jobs[rows].max() <= 1:
                board.predicted_speed[job] = spread
                continue
            there = residents[rows]
            neighbours = np.where(there == job, EMPTY_SLOT, board.gpus.resident_class[rows])
            slowdown = self.loads.own[self.loads.table[job]][neighbours].sum(axis=1)
            board.predicted_speed[job] = 1 / (1 + slowdown.max()) * spread
        board.stale.clear()

    def spread_speed(self, jobs: Ints | int) -> Floats | float:
        """Return the speed of running jobs where they are, neighbours aside.

        It is a share of that on whole GPUs of the fewest nodes.
        """
        if not self.locality:
            return 1.0
        speed: Floats | float = self.board.spread_speed[jobs]
        return speed

    def slice_speed(self, jobs: Ints, gpus: GpuArrays) -> Floats | float:
        """Return the speed of a worker of each of `jobs` on `gpus`, over that on whole GPUs.

        Shape (jobs, gpus), or 1 where all are whole.
        """
        if not (self.locality and gpus.sliced.any()):
            return 1.0
        on_slices = slice_speed(self.loads.busy_share[jobs, None], gpus.compute)
        return np.where(gpus.sliced, on_slices, 1.0)

    def spread_slowdown(self, job: int) -> float:
        """Return the slowdown of a job on more nodes than it needs; 0 where it has no price."""
        return float(self.loads.spread_slowdown[job]) if self.locality else 0.0

    def speed(self, jobs: Ints) -> Floats:
        """Return the predicted speed of running jobs, as a share of their solo speed, (jobs,)."""
        self.refresh()
        return self.board.predicted_speed[jobs]

    def value(self, jobs: Ints) -> Floats:
        """Return what running jobs yield now, (jobs,)."""
        return self.rate[jobs] * self.speed(jobs) * self.board.arrays.gpus[jobs]

    # --- places -------------------------------------------------------------------------------

    def open_rows(self) -> Ints:
        """Return the GPUs that have a share free."""
        return np.flatnonzero(self.board.gpus.jobs < self.most)

    def is_open(self, gpus: GpuArrays, rows: Ints) -> Bools:
        """Return which of `gpus`, those at `rows`, have a share free."""
        return gpus.jobs < self.most[rows]

    def offers(self, jobs: Ints, rows: Ints) -> Offers:
        """Return what each of `jobs` would do on each of `rows`, as the board is now."""
        self.refresh()
        gpus = self.board.gpus
        return Offers(self, jobs, gpus if len(rows) == len(gpus) else gpus.take(rows), rows)

    def best_without(self, job: int, gone: Bools) -> Ints | None:
        """Return where `job` gains most if the jobs `gone` (jobs,) had left; None: nowhere."""
        board = self.board
        there = board.gpus.residents
        leaves = gone[there] & (there >= 0)
        hit: Bools = np.asarray(leaves.any(axis=1))
        rows = np.flatnonzero(hit | (board.gpus.jobs < self.most))
        if len(rows) < self.loads.gpus[job]:
            return None
        left = without(board.gpus.take(np.flatnonzero(hit)), self.loads, ~leaves[hit])
        gpus = with_rows(board.gpus.take(rows), hit[rows], left)
        partners = np.unique(left.residents[left.residents >= 0])
        # The former neighbours of a job that left run faster.
        now = board.predicted_speed[partners]
        slowdown = board.gpus.resident_slowdown.copy()
        slowdown[hit] = left.resident_slowdown
        board.predicted_speed[partners] = self._speeds(partners, slowdown)
        found = Offers(self, np.array([job]), gpus, rows).best(0)[0]
        board.predicted_speed[partners] = now
        return found

    def _speeds(self, jobs: Ints, slowdown: Floats) -> Floats:
        """Return the speed of some running jobs, given that of each resident (gpus, slots)."""
        marked = np.full(len(self.board.arrays), -1)
        marked[jobs] = np.arange(len(jobs))
        residents = self.board.gpus.residents
        index = np.where(residents >= 0, marked[residents], -1)
        most = np.zeros(len(jobs))
        np.maximum.at(most, index[index >= 0], slowdown[index >= 0])
        return 1 / (1 + most) * self.spread_speed(jobs)

    def in_place_of(self, job: int, victims: Ints) -> tuple[int, int] | None:
        """Return the best victim for `job`, of one GPU, and which GPU of it; None without a gain.

        What `job` yields there, and what the neighbours that stay gain or lose, less what the
        victim yields now. A neighbour that is a gang is held back elsewhere, so it gains nothing.
        """
        board, loads = self.board, self.loads
        held = [board.rows_of[victim] for victim in victims.tolist()]
        rows = np.concatenate(held)
        victim = np.repeat(victims, [len(each) for each in held])
        gpus = board.gpus.take(rows)
        left = without(gpus, loads, gpus.residents != victim[:, None])
        there = left.residents >= 0
        before = np.where(there, board.predicted_speed[left.residents], 0.0)
        alone = loads.gpus[left.residents] == 1
        after = np.where(there & alone, 1 / (1 + left.resident_slowdown), before)
        offers = Offers(self, np.array([job]), left, rows, now=after)
        recovered = (self.rate[left.residents] * (after - before)).sum(axis=1)
        gains = offers.rate[0] * offers.speed[0] - offers.loss[0]
        may = offers.allowed[0] & (gains > 0)
        if not may.any():
            return None
        net = np.where(may, gains + recovered - self.value(victim), -np.inf)
        # What others yield on the rest of a gang's GPUs is for the caller to count.
        net[(net <= 0) & (board.arrays.gpus[victim] == 1)] = -np.inf
        most = float(net.max())
        if most == -np.inf:
            return None
        best = int(np.argmax(net >= most - _SAME * abs(most)))
        return int(victim[best]), int(rows[best])

    def best_move(self, job: int, offers: Offers, index: int) -> tuple[Ints | None, float]:
        """Return the best rows for a running job, and about how much all would yield more there.

        `offers` has it as job `index`. A gang may keep some of its places.
        """
        board, loads = self.board, self.loads
        partners = board.partners(job)
        gain = -float(self.value(np.array([job]))[0])
        own = board.rows_of[job]
        speed, loss = np.zeros(0), np.zeros(0)
        if len(own) > 1:
            speed = self._own_speeds(job, own)
            loss = np.zeros(len(own))
        for partner in partners:
            size = int(board.arrays.gpus[partner])
            faster = self.speed_without(partner, job) - float(board.predicted_speed[partner])
            lost = float(self.rate[partner]) * faster * size
            gain += lost
            if len(own) > 1 and lost > 0:
                shared = (board.gpus.residents[own] == partner).any(axis=1)
                loss[shared] += lost / min(size, int(loads.gpus[job]))
        rows, most = offers.best(index, own, speed, loss)
        return rows, gain + most

    def _own_speeds(self, job: int, own: Ints) -> Floats:
        """Return the speed of each worker of a running job, (workers,)."""
        gpus = self.board.gpus
        neighbours = np.where(gpus.residents[own] == job, EMPTY_SLOT, gpus.resident_class[own])
        speeds: Floats = 1 / (1 + self.loads.own[self.loads.table[job]][neighbours].sum(axis=1))
        return speeds

    def speed_without(self, job: int, leaving: int) -> float:
        """Return the speed of a running job if another one left."""
        gpus, rows = self.board.gpus, self.board.rows_of[job]
        there = gpus.residents[rows]
        neighbours = np.where(
            (there == job) | (there == leaving), EMPTY_SLOT, gpus.resident_class[rows]
        )
        alone = 1 / (1 + self.loads.own[self.loads.table[job]][neighbours].sum(axis=1).max())
        return float(alone * self.spread_speed(job))

    def gains_at(self, job: int, rows: Ints) -> bool:
        """Say whether `job` may and should be put on exactly `rows`."""
        offers = self.offers(np.array([job]), rows)
        if not offers.allowed.all():
            return False
        floor = offers.speed[0].min()
        there = floor * self.speed_at(job, rows)
        return bool(offers.worthwhile(0, floor).all()) and bool(
            self.rate[job] * there * len(rows) > offers.loss[0].sum()
        )

    def speed_at(self, job: int, rows: Ints) -> float:
        """Return the speed of a gang on `rows` over that on the fewest nodes, neighbours aside."""
        slowdown = self.spread_slowdown(job)
        if not slowdown or len(rows) < 2:
            return 1.0
        nodes = len(np.unique(self.board.gpus.node[rows]))
        return 1 / (1 + slowdown) if nodes > self.board.fewest_nodes(job) else 1.0


class Offers:
    """Offers: the effect of some jobs on some GPUs; shapes (jobs, gpus).

    `speed` is a worker's own next to the residents. `loss` is what they lose, in completions
    per second; a gang loses as a whole, shared out over those of its GPUs that are taken. `slowed`
    is the speed that they lose together; `present` and `worth` (gpus,) are the speed that they
    have now, and what it yields.
    """

    def __init__(
        self,
        valuation: Valuation,
        jobs: Ints,
        gpus: GpuArrays,
        rows: Ints,
        now: Floats | None = None,
    ) -> None:
        self.valuation = valuation
        self.jobs = jobs
        self.rows = rows  # (gpus,) of the board
        self.rate = valuation.rate[jobs]  # (jobs,)
        self.wanted = valuation.loads.gpus[jobs]  # (jobs,)
        self._job_list = [valuation.board.jobs[j] for j in jobs.tolist()]
        self._demands = valuation.loads.demands(jobs)
        self._set(self._columns_on(gpus, rows, now))

    def _set(self, found: tuple[Floats, Floats, Floats, Bools, Floats, Floats]) -> None:
        self.speed, self.loss, self.slowed, self.allowed, self.present, self.worth = found

    def put(self, index: int, job: int) -> None:
        """Put another job of the same demand in the place of job `index`."""
        self.jobs[index] = job
        self.rate[index] = self.valuation.rate[job]

    def renew(self, job: int) -> Bools:
        """Work out anew what the start of `job` has changed; return which GPUs, (gpus,)."""
        valuation, board = self.valuation, self.valuation.board
        valuation.refresh()
        slower = [job, *board.partners(job)]
        rows = np.unique(np.concatenate([board.rows_of[j] for j in slower]))
        at = np.searchsorted(self.rows, rows)
        at = at[self.rows[np.minimum(at, len(self.rows) - 1)] == rows]
        rows = self.rows[at]
        live = self.allowed.any(axis=1)
        new = self._columns_on(board.gpus.take(rows), rows, None)
        for column, part in zip(
            (self.speed, self.loss, self.slowed, self.allowed, self.present, self.worth),
            new,
            strict=True,
        ):
            column[..., at] = part
        self.allowed[~live] = False
        changed = np.zeros(len(self.rows), dtype=np.bool_)
        changed[at] = True
        return changed

    def _columns_on(
        self, gpus: GpuArrays, rows: Ints, now: Floats | None
    ) -> tuple[Floats, Floats, Floats, Bools, Floats, Floats]:
        """Return the columns for `gpus`, those at `rows`; `now` are the speeds of residents."""
        valuation = self.valuation
        loads, board, least = valuation.loads, valuation.board, valuation.min_speed
        residents, classes = gpus.residents, gpus.resident_class
        there = residents >= 0
        shape = (len(self.jobs), len(rows))
        loss, slowed, slowdown = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        allowed = np.broadcast_to(valuation.is_open(gpus, rows), shape).copy()
        present, worth = np.zeros(len(rows)), np.zeros(len(rows))
        if there.any():
            table = loads.table[self.jobs]
            own, caused = loads.own[table], loads.caused[table]
            # A slot at a time: (jobs, gpus) stays small, and most profiles have two.
            for slot in np.flatnonzero(there.any(axis=0)).tolist():
                here, job, at = there[:, slot], residents[:, slot], classes[:, slot]
                size, rate = board.arrays.gpus[job], valuation.rate[job]
                of_all = board.predicted_speed[job] if now is None else now[:, slot]
                speed_now = np.where(here, of_all, 0.0)
                slowdown += own.take(at, axis=1)
                theirs = 1 / (1 + gpus.resident_slowdown[:, slot] + caused.take(at, axis=1))
                lost = speed_now - theirs * valuation.spread_speed(job)
                np.maximum(lost, 0.0, out=lost)  # zero in an empty slot
                slowed += lost
                loss += rate * lost * (size / np.minimum(size, self.wanted[:, None]))
                present += speed_now
                worth += rate * speed_now
                if least:
                    allowed &= ~here | (theirs >= least)
            allowed &= slowdown < np.inf  # elsewhere the job makes no progress
        speed = 1 / (1 + slowdown)
        if least:
            allowed &= (gpus.jobs == 0) | (speed >= least)
        speed *= valuation.slice_speed(self.jobs, gpus)
        allowed = valuation.pipeline.narrowed_each(allowed, self._job_list, self._demands, gpus)
        return speed, loss, slowed, allowed, present, worth

    def gains(self, single: Ints, at: Ints) -> Floats:
        """Return what those of the jobs `single`, of one GPU each, gain on the GPUs `at`.

        Shape (single, at); minus infinity where a job may not or should not be.
        """
        in_part = len(single) < len(self.jobs) or len(at) < len(self.rows)
        where: Any = np.ix_(single, at) if in_part else slice(None)
        speed, loss, may = self.speed[where], self.loss[where], self.allowed[where]
        rate, present, worth = self.rate[single][:, None], self.present[at], self.worth[at]
        if present.any():
            may = may & (
                (present == 0)
                | shares_well(
                    rate, speed, loss, self.slowed[where],
                    present, worth, self.valuation.min_gain,
                )
            )  # fmt: skip
        return np.where(may, rate * speed - loss, -np.inf)

    def scores(self, at: Ints) -> Floats:
        """Return what the profile's scorers say of the GPUs `at` for each job, (jobs, at)."""
        valuation = self.valuation
        gpus = valuation.board.gpus.take(self.rows[at])
        return valuation.pipeline.scores_each(self._job_list, gpus)

    def worthwhile(self, index: int, speed: Floats | float) -> Bools:
        """Return (gpus,) where job `index`, at `speed`, had better share than take turns."""
        better: Bools = (self.present == 0) | shares_well(
            float(self.rate[index]), speed, self.loss[index], self.slowed[index],
            self.present, self.worth, self.valuation.min_gain,
        )  # fmt: skip
        return better

    def best(
        self,
        index: int,
        more: Ints | None = None,
        more_speed: Floats | None = None,
        more_loss: Floats | None = None,
        may: Bools | None = None,
        score: Floats | None = None,
    ) -> tuple[Ints | None, float]:
        """Return the rows where job `index` gains most, and the gain; None where it gains nothing.

        For a gang: for each speed that it could run at, the cheapest rows that allow it, and where
        being spread has a price also those of the fewest nodes. `more` (places,) are rows besides,
        with what it would do there. `may` (gpus,) are those where it may and should be, if known.
        With `score` (gpus,), the best scored of the places of equal worth is taken; for a gang,
        those that cost as much at the same speed are of equal worth.
        """
        if may is None:
            may = self.allowed[index]
            if self.present.any():
                may = may & self.worthwhile(index, self.speed[index])
        at = np.flatnonzero(may)
        rows, speed, loss = self.rows[at], self.speed[index, at], self.loss[index, at]
        marks = np.zeros(len(at)) if score is None else score[at]
        wanted, rate = int(self.wanted[index]), float(self.rate[index])
        if wanted == 1:
            if not len(at):
                return None, 0.0
            gains = rate * speed - loss
            if more is not None:
                gains[rows == more[0]] = -np.inf  # where it is already
            least = 1.0 if score is None else self.valuation.least_of_best
            found = int(best_scored(gains[None], marks[None], least)[0])
            gain = float(gains[found])
            return (rows[found : found + 1], gain) if gain > 0 else (None, 0.0)
        if more is not None and more_speed is not None and more_loss is not None:
            own = np.zeros(len(self.valuation.board.gpus), dtype=np.bool_)
            own[more] = True
            other = ~own[rows]
            rows = np.concatenate((rows[other], more))
            speed = np.concatenate((speed[other], more_speed))
            loss = np.concatenate((loss[other], more_loss))
            marks = np.zeros(len(rows))
        if len(rows) < wanted:
            return None, 0.0
        valuation, job = self.valuation, int(self.jobs[index])
        candidates = np.arange(len(rows))
        if valuation.loads.gpus_per_pod[job] == 1:
            candidates = cheap_enough(speed, loss, wanted)
        some = candidates[_cheapest_first(rows, speed, loss, marks, candidates)]
        chosen, most = self._best_gang(index, rows[some], speed[some], loss[some])
        if chosen is None or valuation.speed_at(job, chosen) == 1.0:
            return chosen, most
        in_order = _cheapest_first(rows, speed, loss, marks, np.arange(len(rows)))
        rows, speed, loss = rows[in_order], speed[in_order], loss[in_order]
        # Spread, it earns less; the revenue is what the gain and the losses add up to.
        cost = float(loss[np.isin(rows, chosen)].sum())
        gain = (most + cost) * valuation.speed_at(job, chosen) - cost
        near = self._on_fewest_nodes(index, rows, speed, loss)
        together, kept = self._best_gang(index, rows[near], speed[near], loss[near])
        if together is not None and kept >= gain:
            return together, kept
        return (chosen, gain) if gain > 0 else (None, 0.0)

    def _on_fewest_nodes(self, index: int, rows: Ints, speed: Floats, loss: Floats) -> Bools:
        """Return which of the places, cheapest first, are on the best of the fewest nodes.

        A node is as good as its cheapest places for as many workers as it can take are.
        """
        board, job = self.valuation.board, int(self.jobs[index])
        fewest = board.fewest_nodes(job)
        size = int(self.valuation.loads.gpus_per_pod[job])
        wanted, rate = int(self.wanted[index]), float(self.rate[index])
        node = board.gpus.node[rows]
        order = np.argsort(node, kind="stable")  # on each node still the cheapest first
        names, start, room = np.unique(node[order], return_index=True, return_counts=True)
        room = np.minimum(room - room % size, wanted)
        place = np.arange(len(rows)) - np.repeat(start, np.diff([*start, len(rows)]))
        taken = place < np.repeat(room, np.diff([*start, len(rows)]))
        owner = np.repeat(np.arange(len(names)), np.diff([*start, len(rows)]))[taken]
        floor = np.full(len(names), np.inf)
        np.minimum.at(floor, owner, speed[order][taken])
        cost = np.bincount(owner, weights=loss[order][taken], minlength=len(names))
        worth = np.where(room > 0, rate * np.minimum(floor, 1.0) * room - cost, -np.inf)
        most_room = np.lexsort((names, -worth, -room))
        chosen = names[most_room[:fewest]]
        if fewest == 1:
            enough = np.flatnonzero(room >= wanted)
            chosen = names[enough[np.argsort(-worth[enough], kind="stable")[:1]]]
        near: Bools = np.isin(node, chosen)
        return near

    def _best_gang(
        self, index: int, rows: Ints, speed: Floats, loss: Floats
    ) -> tuple[Ints | None, float]:
        """Return the rows of a gang and its gain, wherever the rows are; they come cheapest first.

        None where too few are there or it gains nothing.
        """
        wanted, rate = int(self.wanted[index]), float(self.rate[index])
        if self.valuation.loads.gpus_per_pod[self.jobs[index]] > 1:
            return self._best_pods(index, rows, speed, loss)
        chosen, most = None, 0.0
        while len(rows) >= wanted:
            # The cheapest places, then the cheapest of those that are faster than their slowest.
            floor = float(speed[:wanted].min())
            gain = rate * floor * wanted - float(loss[:wanted].sum())
            if gain > most:
                chosen, most = rows[:wanted], gain
            faster = speed > floor
            rows, speed, loss = rows[faster], speed[faster], loss[faster]
        return chosen, most

    def _best_pods(
        self, index: int, rows: Ints, speed: Floats, loss: Floats
    ) -> tuple[Ints | None, float]:
        board, job = self.valuation.board, int(self.jobs[index])
        rate, wanted = float(self.rate[index]), int(self.wanted[index])
        node = board.gpus.node[rows]
        chosen, most = None, 0.0
        for floor in np.unique(speed)[::-1].tolist():
            cheapest = whole_pods(board.jobs[job], node, np.flatnonzero(speed >= floor))
            if cheapest is None:
                continue
            gain = rate * floor * wanted - float(loss[cheapest].sum())
            if gain > most:
                chosen, most = rows[cheapest], gain
        return chosen, most


def cheap_enough(speed: Floats, loss: Floats, wanted: int) -> Ints:
    """Return the places that a gang may want, whatever the speed of its slowest worker.

    `wanted` of the fastest places are always to be had. At a lower speed there are more to choose
    from, so the cheapest cost no more than the dearest of the cheapest `wanted` there.
    """
    fastest = speed >= np.partition(speed, -wanted)[-wanted]
    dearest = np.partition(loss[fastest], wanted - 1)[wanted - 1]
    return np.flatnonzero(loss <= dearest)


def best_scored(gains: Floats, scores: Floats, least: float) -> Ints:
    """Return the best scored place of each job among those of equal worth, (jobs,).

    Those are the places where it gains at least the part `least` of the most; of equal scores, the
    one where it gains most. Shapes: `gains` and `scores` (jobs, places).
    """
    near = gains >= least * gains.max(axis=1)[:, None]
    marks = np.where(near, scores, -np.inf)
    best = marks == marks.max(axis=1)[:, None]
    found: Ints = np.where(best, gains, -np.inf).argmax(axis=1)
    return found


def _cheapest_first(rows: Ints, speed: Floats, loss: Floats, score: Floats, some: Ints) -> Ints:
    """Return the order of `some` places: the cheapest first, the fastest, the best scored."""
    return np.lexsort((rows[some], -score[some], -speed[some], loss[some]))


def with_rows(gpus: GpuArrays, at: Bools, some: GpuArrays) -> GpuArrays:
    """Return the GPUs with the loads of `some` where `at` (gpus,)."""
    columns: dict[str, Any] = {name: getattr(gpus, name).copy() for name in LOAD_COLUMNS}
    for name, column in columns.items():
        column[at] = getattr(some, name)
    return gpus.with_loads(columns)


def without(gpus: GpuArrays, loads: JobColumns, keep: Bools) -> GpuArrays:
    """Return the GPUs with those residents only that are in `keep` (gpus, slots)."""
    keep = keep & (gpus.residents >= 0)
    residents = np.where(keep, gpus.residents, -1)
    classes = np.where(keep, gpus.resident_class, EMPTY_SLOT)
    base = np.where(keep, loads.base_gib[residents], 0.0)
    extra = np.where(keep, loads.extra_gib[residents], 0.0)
    chance = np.where(keep, loads.peak_probability[residents], 0.0)
    columns: dict[str, Any] = {
        "memory_base_gib": base.sum(axis=1),
        "memory_peak_extra_gib": extra.max(axis=1),
        "memory_peak_sum_gib": extra.sum(axis=1),
        "peaks_measured": (~keep | loads.peaks_may_meet[residents]).all(axis=1),
        "gpu_utilisation": np.where(keep, loads.gpu_utilisation[residents], 0.0).sum(axis=1),
        "exclusive": (keep & loads.exclusive[residents]).any(axis=1),
        "jobs": gpus.jobs - ((gpus.residents >= 0) & ~keep).sum(axis=1),
        "residents": residents,
        "resident_class": classes,
    }
    none, one = np.ones(len(gpus)), np.zeros(len(gpus))
    slowdown = np.zeros(residents.shape)
    table = loads.table[residents]
    for slot in range(residents.shape[1]):
        p = chance[:, slot]
        none, one = none * (1 - p), one * (1 - p) + none * p
        for other in range(residents.shape[1]):
            if other != slot:
                slowdown[:, slot] += loads.own[table[:, slot], classes[:, other]]
    columns |= {
        "none_in_peak": none,
        "one_in_peak": one,
        "resident_slowdown": np.where(keep, slowdown, 0.0),
    }
    return gpus.with_loads(columns)
