"""The base of orders: sort keys over arrays, one call for gangs and one for whole tables."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Annotated

import numpy as np
from pydantic import Field

from tandem.policy.job import Job
from tandem.policy.jobs import History, JobArrays
from tandem.policy.ports import OrderState, Policy
from tandem.policy.units import Bools, Floats, Ints

NO_HISTORY = History()


class KeyOrder(Policy):
    """An order given by sort keys; ties by arrival, then by row."""

    blocks: bool = False  # a gang that does not fit holds up those behind it
    slice_s: Annotated[float, Field(gt=0)] = float("inf")  # look again though nothing happened

    @property
    def by_work_left(self) -> bool:
        """True where jobs compete by the work that they have left, False where by their service."""
        return False

    @abstractmethod
    def keys(
        self, jobs: JobArrays, rows: Ints, now_s: float, history: History
    ) -> tuple[Floats | Ints, ...]:
        """Return the sort keys of `rows`, most significant first, lowest tried first."""

    def lasting_key(self, jobs: JobArrays, row: int) -> tuple[float, ...] | None:
        """Return the keys of one job where events alone change them; None where time does.

        Events: it arrives, starts, crosses a threshold (`next_level_gpu_s`) or is promoted.
        """
        return None

    def next_level_gpu_s(self, service_gpu_s: float) -> float:
        """Return the service at which a job's place in the order changes; infinite if never."""
        return float("inf")

    def queue_of(self, service_gpu_s: float) -> int | None:
        """Return the queue of a service, 0 first; None where the order has no queues."""
        return None

    def queues_of(self, service_gpu_s: Floats) -> Ints:
        """Return the queue of each service, (jobs,), 0 first; 0 where the order has no queues."""
        return np.zeros(len(service_gpu_s), dtype=np.int64)

    def promote_after_s(self, executed_s: float) -> float:
        """Return how long a preempted job waits before its service counts as 0; infinite: never."""
        return float("inf")

    def rank(self, jobs: JobArrays, rows: Ints, now_s: float, history: History) -> Ints:
        """Return `rows` in the order in which they are tried."""
        keys = (*self.keys(jobs, rows, now_s, history), jobs.arrived_s[rows], rows)
        return rows[np.lexsort(keys[::-1])]

    def state(self) -> OrderState:
        """Return what remembers the jobs between rounds."""
        return ActiveSet(self)

    def __call__(
        self, jobs: Sequence[Job], now_s: float, history: History = NO_HISTORY
    ) -> list[int]:
        """Return the indices of waiting `jobs`, first to be tried first; ties by id."""
        by_id = sorted(range(len(jobs)), key=lambda i: jobs[i].id)
        arrays = JobArrays.of([jobs[i] for i in by_id])
        ranked = self.rank(arrays, np.arange(len(jobs)), now_s, history)
        return [by_id[i] for i in ranked.tolist()]


class ActiveSet:
    """The jobs in the system, ranked anew each time: the order itself remembers nothing."""

    def __init__(self, order: KeyOrder) -> None:
        self._order = order
        self._rows = np.zeros(0, dtype=np.int64)  # ascending

    def add(self, row: int, level_service_gpu_s: float) -> None:
        """Take in a job that arrived."""
        self._rows = np.insert(self._rows, np.searchsorted(self._rows, row), row)

    def remove(self, row: int) -> None:
        """Forget a job that ended."""
        self._rows = np.delete(self._rows, np.searchsorted(self._rows, row))

    def cross(self, row: int, level_service_gpu_s: float) -> None:
        """Note that a job's service has crossed a threshold: the keys show it."""

    def promote(self, row: int, running: Bools) -> None:
        """Note that a job's priority service was reset: the keys show it."""

    def rank(self, jobs: JobArrays, now_s: float, history: History) -> Ints:
        """Return the jobs in the order in which they are tried."""
        return self._order.rank(jobs, self._rows, now_s, history)

    def settle(self, running: Bools, turned: AbstractSet[int] | None = None) -> None:
        """Note which jobs run after a round."""

    @property
    def queues(self) -> tuple[Ints, ...]:
        """No queues: the keys alone order the jobs."""
        return ()

    def restore(self, rows: Ints, level_service_gpu_s: Floats, promoted: Iterable[int]) -> None:
        """Nothing to restore: the keys alone order the jobs."""
