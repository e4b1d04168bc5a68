"""Estimates which residents waiting gangs would best replace, for all gangs and GPUs at once."""

from __future__ import annotations

import numpy as np

from tandem.policy.cluster import GpuArrays
from tandem.policy.dispatch.valuation import Valuation, without
from tandem.policy.equations.turns import shares_well
from tandem.policy.units import Bools, Floats, Ints

_AT_ONCE = 16  # gangs of which it is estimated together whether an exchange pays


class Swaps:
    """The additional yield of each GPU with a worker of a waiting gang in place of residents.

    Each GPU is taken for itself: the gang's worker is alone there, or next to one of the residents.
    A gang then takes the GPUs on which its yield exceeds `factor` times the loss by most. No
    resident of an earlier queue than the gang's leaves. Of a
    victim that is a gang, it is assumed to take as many GPUs as it can use; the others yield to the
    next jobs in the order what they would yield to it. The mean speed of its workers counts in
    place of the least. The estimate says which gangs are worth a trial, and with which victims; the
    trial then counts exactly, so that an estimate that is too good preempts no job. `gangs` are
    those that may be asked about, in the order in which they are; some are worked out together.

    Columns of residents have shape (gpus, slots), those of offers (gangs, gpus).
    """

    def __init__(self, valuation: Valuation, may_stop: Bools, factor: float, gangs: Ints) -> None:
        self._valuation, self._factor, self._gangs = valuation, factor, gangs
        self._pays: dict[int, bool] = {}
        self._victims: dict[int, Ints] = {}
        self._with_slot: dict[int, GpuArrays] = {}
        board = valuation.board
        used = max(1, int(board.gpus.jobs.max(initial=0)))  # slots, from the first one on
        self._residents = residents = board.gpus.residents[:, :used]
        self._there = there = residents >= 0
        self._size = np.where(there, board.arrays.gpus[residents], 1)
        self._speed = np.where(there, valuation.speed(residents), 0.0)
        self._rate = np.where(there, valuation.rate[residents], 0.0)
        self._yields = self._rate * self._size  # at solo speed
        self._spread = np.broadcast_to(valuation.spread_speed(residents), residents.shape)
        self._stays = there & ~may_stop[residents]
        self._of_queue = np.where(there, board.arrays.queue[residents], 0)
        self._full = board.gpus.jobs >= valuation.most
        # On how many GPUs a resident has neighbours, and what they would yield more without it.
        self._crowded = np.ones(residents.shape, dtype=np.int64)
        self._recovered = np.zeros(residents.shape)
        crowd = there & (board.gpus.jobs > 1)[:, None]
        if crowd.any() and self._size.max() > 1:
            count = np.bincount(residents[crowd], minlength=len(board.arrays))
            self._crowded = np.maximum(count[residents], 1)
            self._recovered = self._neighbours_recover()

    def pays(self, gang: int) -> bool:
        """Return False where the estimate finds no exchange that pays for the gang."""
        if gang not in self._pays:
            gangs = self._from(gang, _AT_ONCE)
            wanted = self._valuation.loads.gpus[gangs]
            gain, _ = self._gains(gangs, exact=False)
            most = np.cumsum(-np.sort(-gain, axis=1), axis=1)
            last = np.minimum(wanted, most.shape[1]) - 1
            pay = (wanted <= most.shape[1]) & (most[np.arange(len(gangs)), last] >= 0)
            self._pays.update(zip(gangs.tolist(), pay.tolist(), strict=True))
        return self._pays[gang]

    def victims(self, gang: int, most: int) -> Ints:
        """Return the jobs that the gang would best replace; none where no exchange pays.

        At most so many gangs are going to be asked about, this one included.
        """
        if gang not in self._victims:
            gangs = self._from(gang, most)
            gain, leaves = self._gains(gangs, exact=True)
            order = np.argsort(-gain, axis=1, kind="stable")
            for at, each in enumerate(gangs.tolist()):
                rows = order[at, : int(self._valuation.loads.gpus[each])]
                pays = gain[at, rows].sum() >= 0
                chosen = self._residents[rows][leaves[:, at, rows].T]
                self._victims[each] = np.unique(chosen if pays else chosen[:0])
        return self._victims[gang]

    def _from(self, gang: int, most: int) -> Ints:
        """Return the gang and those after it that pay as far as is known, `most` at most."""
        at = int(np.flatnonzero(self._gangs == gang)[0])
        after = [each for each in self._gangs[at + 1 :].tolist() if self._pays.get(each, True)]
        return np.array([gang, *after[: most - 1]])

    def _gains(self, gangs: Ints, *, exact: bool) -> tuple[Floats, Bools]:
        """Return what each gang gains on each GPU beyond the price, and who leaves for that.

        The second is (slots, gangs, gpus). With `exact`, constraints and `shares_well` decide which
        residents can be its neighbours.
        """
        valuation, slots = self._valuation, self._there.shape[1]
        loads, classes = valuation.loads, valuation.board.gpus.resident_class
        table, wanted = loads.table[gangs], loads.gpus[gangs][:, None]
        worth = valuation.rate[gangs][:, None]
        queue = valuation.board.arrays.queue[gangs][:, None]
        leaving: list[Floats] = []  # cost where the resident of a slot leaves
        staying: list[Floats] = []  # cost where it becomes the neighbour
        speeds: list[Floats] = []  # of the gang's worker next to it
        for slot in range(slots):
            size, classes_there = self._size[:, slot], classes[:, slot]
            yields, speed = self._yields[:, slot], self._speed[:, slot]
            used = np.minimum(size, wanted)
            rest = self._recovered[:, slot] / size + worth / self._factor
            cost = (yields * speed - (size - used) * rest) / used
            stays = self._stays[:, slot] | (
                self._there[:, slot] & (self._of_queue[:, slot] < queue)
            )
            leaving.append(np.where(stays, np.inf, cost))
            own = 1 / (1 + loads.own[table][:, classes_there])
            theirs = 1 / (1 + loads.caused[table][:, classes_there]) * self._spread[:, slot]
            lost = yields * (speed - theirs)
            of_gang = np.where(lost > 0, used, np.minimum(self._crowded[:, slot], used))
            may = self._there[:, slot] & ((own + theirs >= 1 + valuation.min_gain) | (size > 1))
            if exact and may.any():
                may &= self._may_share(gangs, slot, own, theirs)
            staying.append(np.where(may, lost / of_gang, np.inf))
            speeds.append(own)
        gain = worth - self._factor * np.sum(leaving, axis=0)
        there = self._there.T[:, None]
        out = np.broadcast_to(there, (slots, *gain.shape)).copy()
        leave, kept = np.stack(leaving), np.where(there, np.stack(staying), 0.0)
        cheaper = kept <= leave
        cost_of_each = np.where(cheaper, kept, leave)
        # Where no share is free, one of the others has to leave, also where it had better stay.
        extra = np.broadcast_to(np.where(there, 0.0, np.inf), kept.shape).copy()
        np.subtract(leave, kept, out=extra, where=there & cheaper & np.isfinite(kept))
        for slot in range(slots):
            others = np.arange(slots) != slot
            cost = staying[slot] + cost_of_each[others].sum(axis=0)
            leaves = (there & ~cheaper)[others]
            stuck = self._full & ~leaves.any(axis=0)
            cost = cost + np.where(stuck, extra[others].min(axis=0, initial=np.inf), 0.0)
            net = worth * speeds[slot] - self._factor * cost
            better = net > gain
            gain = np.where(better, net, gain)
            if slots > 1:
                first = np.arange(slots - 1)[:, None, None] == extra[others].argmin(axis=0)
                out[others] = np.where(better, leaves | (stuck & first), out[others])
            out[slot] &= ~better
        return np.where(valuation.most > 0, gain, -np.inf), out

    def _may_share(self, gangs: Ints, slot: int, own: Floats, theirs: Floats) -> Bools:
        """Return where each gang may and should join the resident of `slot` alone."""
        valuation = self._valuation
        board, loads = valuation.board, valuation.loads
        gpus = self._alone(slot)
        jobs = [board.jobs[gang] for gang in gangs.tolist()]
        every = np.ones(own.shape, dtype=np.bool_)
        may = valuation.pipeline.narrowed_each(every, jobs, loads.demands(gangs), gpus)
        size, rate = self._size[:, slot], self._rate[:, slot]
        of_gang = size / np.minimum(size, loads.gpus[gangs][:, None])
        slowed = np.maximum(1 - theirs, 0.0)
        better: Bools = may & shares_well(
            valuation.rate[gangs][:, None], own, rate * slowed * of_gang, slowed,
            np.ones(len(gpus)), rate, valuation.min_gain,
        )  # fmt: skip
        return better

    def _alone(self, slot: int) -> GpuArrays:
        """Return the GPUs with the residents of one slot only."""
        if slot not in self._with_slot:
            valuation = self._valuation
            keep = np.zeros(valuation.board.gpus.residents.shape, dtype=np.bool_)
            keep[:, slot] = True
            self._with_slot[slot] = without(valuation.board.gpus, valuation.loads, keep)
        return self._with_slot[slot]

    def _neighbours_recover(self) -> Floats:
        """Return what the neighbours of each resident would yield more if they were alone."""
        residents, slots = self._residents, self._there.shape[1]
        jobs = len(self._valuation.board.arrays)
        lost = self._yields * (1 - self._speed)
        total = np.zeros(jobs)
        for slot in range(slots):
            for other in range(slots):
                if slot == other:
                    continue
                both = self._there[:, slot] & self._there[:, other]
                pairs = residents[both, slot] * jobs + residents[both, other]
                pairs, first = np.unique(pairs, return_index=True)  # once, however many GPUs
                np.add.at(total, pairs // jobs, lost[both, other][first])
        recovered: Floats = total[residents]
        return recovered
