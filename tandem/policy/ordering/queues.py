"""[Tiresias] discretised orders: a few queues between which jobs are demoted."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from tandem.policy.equations.gittins import fixed_quantum_index
from tandem.policy.equations.tiresias import promotion_wait_s, queue_level
from tandem.policy.jobs import History, JobArrays
from tandem.policy.ordering.base import ActiveSet, KeyOrder
from tandem.policy.ports import OrderState
from tandem.policy.units import Bools, Floats, Ints


# Paper: [Tiresias] 3.2.3 | discretised 2D-LAS: K queues, FIFO by start time inside each | test:
#   tests/simulator/test_simulator_orderings.py
#   test_inside_a_queue_the_job_that_started_first_goes_first | live: yes | ablation: queues
class Queues(KeyOrder):
    """K queues; a job is demoted when its service crosses a threshold.

    Inside a queue: `first_start` is the paper's Tiresias-L, FIFO by the time at which a job first
    ran; jobs that never ran come last, by arrival. `gittins` is its Tiresias-G, by the index whose
    quantum is the queue's upper bound, the last queue FIFO by first start. `worth` is ours: by what
    the dispatch says that a job is worth (`share`: a Gittins index that is learned), which needs a
    dispatch that says so. `list` is ours: arrivals
    and demotions are appended, and after each round a stable partition puts running jobs before
    waiting ones; a promoted job goes before the waiting ones of the first queue.

    Source: [Tiresias] 3.2.3.
    """

    kind: Literal["queues"] = "queues"
    thresholds_gpu_s: Annotated[tuple[float, ...], Field(min_length=1)] = (3200.0,)
    within: Literal["list", "first_start", "gittins", "worth"] = "list"
    renewed_gpu_s: Annotated[float, Field(gt=0)] = 500.0
    promote_knob: Annotated[float, Field(gt=0)] | None = None
    starve_limit_s: Annotated[float, Field(ge=0)] = 0.0

    @model_validator(mode="after")
    def _ascending(self) -> Queues:
        if list(self.thresholds_gpu_s) != sorted(set(self.thresholds_gpu_s)):
            raise ValueError("thresholds_gpu_s must ascend")
        return self

    def level(self, service_gpu_s: Floats | float) -> Ints:
        """Return the queue of a service, 0 first, (jobs,)."""
        return queue_level(np.asarray(service_gpu_s), np.array(self.thresholds_gpu_s))

    def next_level_gpu_s(self, service_gpu_s: float) -> float:
        """Return the next threshold; infinite in the last queue.

        `within: worth`: a job's worth, and by that its place, is looked at again when its service
        reaches `renewed_gpu_s`, and each time that it has doubled since.
        """
        queue = self.queue_of(service_gpu_s)
        ends = self.thresholds_gpu_s
        end = ends[queue] if queue < len(ends) else float("inf")
        if self.within != "worth":
            return end
        renewed = self.renewed_gpu_s
        if service_gpu_s >= renewed:
            renewed *= 2.0 ** (1 + math.floor(math.log2(service_gpu_s / renewed)))
            renewed *= 1.0 if service_gpu_s < renewed else 2.0  # rounding of the logarithm
        return min(end, renewed)

    def queue_of(self, service_gpu_s: float) -> int:
        """Return the queue of a service, 0 first."""
        return bisect_right(self.thresholds_gpu_s, service_gpu_s)

    def queues_of(self, service_gpu_s: Floats) -> Ints:
        """Return the queue of each service, (jobs,), 0 first."""
        return self.level(service_gpu_s)

    def promote_after_s(self, executed_s: float) -> float:
        """Return how long a preempted job waits before it goes back to the first queue.

        Source: [Tiresias] 3.2.3, waiting >= promote_knob x executed, but at least STARVELIMIT.
        """
        if self.promote_knob is None:
            return float("inf")
        wait = promotion_wait_s(np.array(executed_s), self.promote_knob, self.starve_limit_s)
        return float(wait)

    def keys(
        self, jobs: JobArrays, rows: Ints, now_s: float, history: History
    ) -> tuple[Floats | Ints, ...]:
        """Return queue, then place in it; a list's place is kept by its state, not here."""
        service = jobs.service_gpu_s(rows, now_s)
        level = self.level(service)
        if self.within in ("list", "worth"):
            return (level,)
        if self.within == "first_start" or not len(history.service_gpu_s):
            return (level, jobs.first_started_s[rows])
        bounds = np.array([*self.thresholds_gpu_s, np.inf])[level]
        index = fixed_quantum_index(
            history.sorted_service,
            service,
            np.where(np.isinf(bounds), 1.0, bounds),
            history.sorted_votes,
        )
        return (level, np.where(np.isinf(bounds), 0.0, -index), jobs.first_started_s[rows])

    def lasting_key(self, jobs: JobArrays, row: int) -> tuple[float, ...] | None:
        """Return queue and first start; a list has no keys, and an index changes with the time."""
        if self.within != "first_start":
            return None
        return (self.queue_of(jobs.service_at_since.item(row)), jobs.first_started_s.item(row))

    def state(self) -> OrderState:
        """Return lists where the place is a list's, else the plain set."""
        if self.within == "worth":
            return Unsorted(self)
        return QueueLists(self) if self.within == "list" else super().state()


class Unsorted(ActiveSet):
    """The jobs as they came: the dispatch puts each queue in order by what its jobs are worth."""

    def rank(self, jobs: JobArrays, now_s: float, history: History) -> Ints:
        """Return the jobs, by row."""
        return self._rows


class QueueLists:
    """The queues as lists, kept from round to round."""

    def __init__(self, order: Queues) -> None:
        self._order = order
        self._lists: list[Ints] = [
            np.zeros(0, dtype=np.int64) for _ in range(len(order.thresholds_gpu_s) + 1)
        ]
        self._level: dict[int, int] = {}
        self._promoted: set[int] = set()  # and not started since
        self._unsettled: set[int] = set()  # levels with rows at a place of their own

    def add(self, row: int, level_service_gpu_s: float) -> None:
        """Append a job to the queue of its service."""
        level = self._order.queue_of(level_service_gpu_s)
        self._lists[level] = np.append(self._lists[level], row)
        self._level[row] = level
        self._unsettled.add(level)

    def remove(self, row: int) -> None:
        """Take a job out."""
        queue = self._lists[level := self._level.pop(row)]
        self._lists[level] = queue[queue != row]
        self._promoted.discard(row)

    def cross(self, row: int, level_service_gpu_s: float) -> None:
        """Move a job to the end of the queue of its service."""
        self.remove(row)
        self.add(row, level_service_gpu_s)

    def promote(self, row: int, running: Bools) -> None:
        """Move a job that starved to the first queue, before the jobs that wait there.

        Behind those that run, and behind those that were promoted before it. At the end of the
        list it would wait once more, for as long as the backlog of the first queue takes, and the
        wait after which it is promoted would bound nothing.
        """
        self.remove(row)
        queue = self._lists[0]
        before = running[queue] | np.isin(queue, list(self._promoted))
        at = len(queue) if before.all() else int(np.argmin(before))
        self._lists[0] = np.insert(queue, at, row)
        self._level[row] = 0
        self._promoted.add(row)
        self._unsettled.add(0)

    @property
    def queues(self) -> tuple[Ints, ...]:
        """The jobs of each queue in their order, queue 0 first."""
        return tuple(self._lists)

    def restore(self, rows: Ints, level_service_gpu_s: Floats, promoted: Iterable[int]) -> None:
        """Replace the lists: `rows` in their order, (jobs,), with the service of each.

        `promoted` are the rows that were promoted and have not started since.
        """
        levels = self._order.level(level_service_gpu_s)
        self._lists = [rows[levels == level] for level in range(len(self._lists))]
        self._level = dict(zip(rows.tolist(), levels.tolist(), strict=True))
        self._promoted = set(promoted)
        self._unsettled.update(range(len(self._lists)))

    def rank(self, jobs: JobArrays, now_s: float, history: History) -> Ints:
        """Return the lists one after the other."""
        return np.concatenate(self._lists)

    def settle(self, running: Bools, turned: AbstractSet[int] | None = None) -> None:
        """Put running jobs before waiting ones in each list; both keep their order."""
        if self._promoted:
            self._promoted = {row for row in self._promoted if not running[row]}
        if turned is None:
            self._unsettled.update(range(len(self._lists)))
        else:
            self._unsettled.update(self._level[row] for row in turned if row in self._level)
        for level in self._unsettled:
            queue = self._lists[level]
            on = running[queue]
            self._lists[level] = np.concatenate((queue[on], queue[~on]))
        self._unsettled.clear()
