"""The jobs in their order, kept from round to round: only who has changed is placed anew."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Set as AbstractSet

import numpy as np

from tandem.policy.jobs import History, JobArrays
from tandem.policy.ordering.base import ActiveSet, KeyOrder
from tandem.policy.ports import OrderState
from tandem.policy.units import Bools, Ints


class Ranking(ActiveSet):
    """The jobs in the system, ranked by keys that only events change (`KeyOrder.lasting_key`).

    The owner of the arrays reports every event. The answers are those of `KeyOrder.rank`.
    """

    def __init__(self, order: KeyOrder) -> None:
        super().__init__(order)
        self._keys: list[tuple[float, ...]] = []  # ascending
        self._key_of: dict[int, tuple[float, ...]] = {}
        self._count = 0  # of `_rows` that are in use, in the order of `_keys`
        self._changed: set[int] = set()  # those to be placed anew

    def add(self, row: int, level_service_gpu_s: float) -> None:
        """Take in a job that arrived."""
        self._changed.add(row)

    def remove(self, row: int) -> None:
        """Forget a job that ended."""
        self._changed.discard(row)
        at = self._forget(row)
        if at is not None:
            self._count -= 1
            self._rows[at : self._count] = self._rows[at + 1 : self._count + 1]

    def cross(self, row: int, level_service_gpu_s: float) -> None:
        """Note that a job's service has crossed a threshold."""
        self._changed.add(row)

    def promote(self, row: int, running: Bools) -> None:
        """Note that a job's priority service was reset."""
        self._changed.add(row)

    def settle(self, running: Bools, turned: AbstractSet[int] | None = None) -> None:
        """Note which jobs have started or stopped: the first start may be part of a key."""
        self._changed.update(self._key_of if turned is None else turned & self._key_of.keys())

    def rank(self, jobs: JobArrays, now_s: float, history: History) -> Ints:
        """Return the jobs in the order in which they are tried, as they stand until the next."""
        if len(self._rows) < len(jobs):
            self._rows = np.resize(self._rows, len(jobs))
        rows, keys = self._rows, self._keys
        for row in self._changed:
            lasting = self._order.lasting_key(jobs, row)
            assert lasting is not None
            key = (*lasting, jobs.arrived_s.item(row), row)
            if key == self._key_of.get(row):
                continue
            old = self._forget(row)
            if old is None:
                old = self._count
                self._count += 1
            at = bisect_left(keys, key)
            if at < old:
                rows[at + 1 : old + 1] = rows[at:old]
            else:
                rows[old:at] = rows[old + 1 : at + 1]
            rows[at] = row
            keys.insert(at, key)
            self._key_of[row] = key
        self._changed.clear()
        return rows[: self._count]

    def _forget(self, row: int) -> int | None:
        """Drop the key of a job; return at which place it stood, None where it had none."""
        key = self._key_of.pop(row, None)
        if key is None:
            return None
        at = bisect_left(self._keys, key)
        del self._keys[at]
        return at


def state_of(order: KeyOrder, jobs: JobArrays) -> OrderState:
    """Return the memory of an order: the ranking where keys last, else the order's own."""
    lasts = len(jobs) > 0 and order.lasting_key(jobs, 0) is not None
    return Ranking(order) if lasts else order.state()
