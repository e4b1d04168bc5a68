"""[Tiresias] continuous orders by attained service, looked at again each slice."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from tandem.policy.jobs import History, JobArrays
from tandem.policy.ordering.base import KeyOrder
from tandem.policy.ports import OrderState
from tandem.policy.units import Bools, Floats, Ints

_DIGITS = 6  # services that differ by rounding alone are a tie


# Paper: [Tiresias] 3.2.2 | 2D-LAS: least attained service first | test:
#   tests/simulator/test_simulator_orderings.py test_three_jobs_by_plain_attained_service | live:
#   yes
class Las2D(KeyOrder):
    """Least attained service, GPUs x seconds, first. Source: [Tiresias] 3.2.2."""

    kind: Literal["las_2d"] = "las_2d"
    slice_s: Annotated[float, Field(gt=0)] = 60.0

    def keys(
        self, jobs: JobArrays, rows: Ints, now_s: float, history: History
    ) -> tuple[Floats | Ints, ...]:
        """Return the attained service in GPU-seconds."""
        return (np.round(jobs.service_gpu_s(rows, now_s), _DIGITS),)


# Paper: [Tiresias] 3.2.2, App. C | 2D-Gittins index, exact suprema | test:
#   tests/simulator/test_simulator_orderings.py test_three_jobs_by_plain_gittins_index | live:
#   yes
class Gittins2D(KeyOrder):
    """Highest Gittins index of the attained service first. Source: [Tiresias] 3.2.2.

    The distribution is that of the jobs that have finished; before the first, it is `Las2D`.
    """

    kind: Literal["gittins_2d"] = "gittins_2d"
    slice_s: Annotated[float, Field(gt=0)] = 60.0

    def keys(
        self, jobs: JobArrays, rows: Ints, now_s: float, history: History
    ) -> tuple[Floats | Ints, ...]:
        """Return minus the index, then the attained service in GPU-seconds."""
        service = np.round(jobs.service_gpu_s(rows, now_s), _DIGITS)
        if history.gittins is None:
            return (service,)
        return (-history.gittins(service), service)


# Paper: [Tiresias] 5.1, 5.3 | Gandiva as a baseline: time-sharing in turns | test:
#   tests/simulator/test_simulator_orderings.py
#   test_round_robin_gives_whole_slices_in_turn_and_newcomers_wait_for_theirs | live: yes
class RoundRobin(KeyOrder):
    """Time slices in turn: a job that has had its slice goes behind all others, newcomers as well.

    A job that is looked at within its slice keeps its place, so that an arrival preempts no job.
    Without a memory of the turns (`keys`), the job that has had the fewest slices goes first.

    Source: [Gandiva], the time-sharing that [Tiresias] 5.1 compares with and 5.3 simulates.
    """

    kind: Literal["round_robin"] = "round_robin"
    slice_s: Annotated[float, Field(gt=0)] = 60.0

    def keys(
        self, jobs: JobArrays, rows: Ints, now_s: float, history: History
    ) -> tuple[Floats | Ints, ...]:
        """Return the number of slices had so far."""
        return (self.slices_had(jobs, rows, now_s),)

    def slices_had(self, jobs: JobArrays, rows: Ints, now_s: float) -> Floats:
        """Return how many whole slices each job has run, (rows,)."""
        run_s = jobs.service_gpu_s(rows, now_s) / jobs.gpus[rows]
        slices: Floats = np.floor(run_s / self.slice_s + 1e-9)
        return slices

    def state(self) -> OrderState:
        """Return the line in which the jobs stand."""
        return Line(self)


class Line:
    """The jobs in the order of their turns, kept from round to round."""

    def __init__(self, order: RoundRobin) -> None:
        self._order = order
        self._slices_had: dict[int, float] = {}  # by row, in the order of the line

    def add(self, row: int, level_service_gpu_s: float) -> None:
        """Put a job that arrived at the end of the line."""
        self._slices_had[row] = 0.0

    def remove(self, row: int) -> None:
        """Take a job out."""
        del self._slices_had[row]

    def cross(self, row: int, level_service_gpu_s: float) -> None:
        """Note that a job's service has crossed a threshold: a line has none."""

    def promote(self, row: int, running: Bools) -> None:
        """Note that a job's priority service was reset: its turn comes by itself."""

    def rank(self, jobs: JobArrays, now_s: float, history: History) -> Ints:
        """Return the line, after the jobs that have had a slice since have gone to its end."""
        rows = np.fromiter(self._slices_had, dtype=np.int64, count=len(self._slices_had))
        had = self._order.slices_had(jobs, rows, now_s).tolist()
        for row, slices in zip(rows.tolist(), had, strict=True):
            if slices > self._slices_had[row]:
                del self._slices_had[row]
                self._slices_had[row] = slices
        return np.fromiter(self._slices_had, dtype=np.int64, count=len(rows))

    def settle(self, running: Bools, turned: AbstractSet[int] | None = None) -> None:
        """Note which jobs run after a round: the line shows it at the next one."""

    @property
    def queues(self) -> tuple[Ints, ...]:
        """No queues: the turns follow from the service of the jobs."""
        return ()

    def restore(self, rows: Ints, level_service_gpu_s: Floats, promoted: Iterable[int]) -> None:
        """Nothing to restore: the turns follow from the service of the jobs."""
