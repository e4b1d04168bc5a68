"""The events of a simulation on a heap; those of a job are void once it has changed."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Set
from enum import IntEnum

from tandem.policy.units import SAME_MOMENT_S


class Kind(IntEnum):
    """Kinds of events; of events at one time, the lower kind comes first."""

    END = 0
    ARRIVE = 1
    CROSS = 2
    PROMOTE = 3
    OOM = 4
    TICK = 5
    ADJUST = 6
    BEGIN = 7
    ROUND = 8
    GROW = 9


_OF_A_JOB = (Kind.END, Kind.CROSS, Kind.PROMOTE, Kind.BEGIN)


class Events:
    """A queue of expected events, soonest first.

    An event of a job, or of a GPU's memory, carries the version that its job or GPU had when it was
    expected; `void_job` and `void_row` raise the version, so that it is passed over.
    """

    def __init__(self, jobs: int, rows: int) -> None:
        self._heap: list[tuple[float, Kind, int, int]] = []
        self._job = [0] * jobs
        self._row = [0] * rows
        # By kind: the versions that its events are held against; nothing voids the other kinds.
        never = [0] * max(jobs, 1)
        self._versions = [
            self._job if kind in _OF_A_JOB else self._row if kind is Kind.OOM else never
            for kind in Kind
        ]

    def __bool__(self) -> bool:
        return bool(self._heap)

    @property
    def next_s(self) -> float:
        """When something is expected next."""
        return self._heap[0][0]

    def expect(self, at_s: float, kind: Kind, index: int = 0) -> None:
        """Expect an event of job or GPU `index`; never, where `at_s` is infinite."""
        if at_s == math.inf:
            return
        heapq.heappush(self._heap, (at_s, kind, index, self._versions[kind][index]))

    def void_job(self, job: int) -> None:
        """From now on, what was expected of a job does not come."""
        self._job[job] += 1

    def void_row(self, row: int) -> None:
        """From now on, what was expected of a GPU's memory does not come."""
        self._row[row] += 1

    def keep(self, jobs: Set[int]) -> None:
        """Forget all that is expected but the events of some jobs."""
        self._heap = [each for each in self._heap if each[1] in _OF_A_JOB and each[2] in jobs]
        heapq.heapify(self._heap)

    def due(self, now_s: float) -> Iterator[tuple[Kind, int]]:
        """Take out what is due, one by one, also what becomes due on the way.

        Events of one moment (`SAME_MOMENT_S`) come in the order of their kinds.
        """
        heap, until_s = self._heap, now_s + SAME_MOMENT_S
        moment: list[tuple[Kind, int, int]] = []
        while True:
            while heap and heap[0][0] <= until_s:
                heapq.heappush(moment, heapq.heappop(heap)[1:])
            if not moment:
                return
            kind, index, version = heapq.heappop(moment)
            if version == self._versions[kind][index]:
                yield kind, index
