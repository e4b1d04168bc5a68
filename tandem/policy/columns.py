"""What jobs ask for as columns: a constraint answers for many jobs at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tandem.policy.job import NOBODY, UNKNOWN, Job
from tandem.policy.units import Bools, Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """The loads of several jobs, each a (jobs, 1) column that broadcasts against (gpus,).

    The names are those of `Job`, so that a constraint whose formula broadcasts takes either.
    """

    memory_base_gib: Floats
    memory_peak_extra_gib: Floats
    memory_peak_gib: Floats
    peak_probability: Floats
    peak_measured: Bools
    gpu_utilisation: Floats
    exclusive: Bools


class JobColumns:
    """The loads of all jobs of a board, one row a job, and their tables of predictions.

    `table` (jobs,) names the job's row of `own` and `caused`, (tables, classes): the predicted
    slowdown beside each class, and of each class beside the job. Jobs of one class share a row
    unless what they were taught is their own. A job without predictions has a row that is infinite
    beside every class but nobody. `demand` (jobs,) is equal for jobs that may go to the same GPUs.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        # A column at a time: row by row, a cycle of 12,000 jobs would spend most of its time here.
        self.base_gib = np.array([job.memory_base_gib for job in jobs], dtype=np.float64)
        self.extra_gib = np.array([job.memory_peak_extra_gib for job in jobs], dtype=np.float64)
        self.peak_probability = np.array([job.peak_probability for job in jobs], dtype=np.float64)
        self.peak_measured = np.array([job.peak_measured for job in jobs], dtype=np.bool_)
        self.gpu_utilisation = np.array([job.gpu_utilisation for job in jobs], dtype=np.float64)
        self.spread_slowdown = np.array([job.spread_slowdown for job in jobs], dtype=np.float64)
        self.exclusive = np.array([job.exclusive for job in jobs], dtype=np.bool_)
        self.checkpointable = np.array([job.checkpointable for job in jobs], dtype=np.bool_)
        self.gpus_per_pod = np.array([job.gpus_per_pod for job in jobs], dtype=np.int64)
        self.gpus = np.array([job.pods for job in jobs], dtype=np.int64) * self.gpus_per_pod
        self.where = np.array([job.where for job in jobs], dtype=np.int64)  # as `Job.where`
        classes = [job.interference_class for job in jobs]
        self.interference_class = np.array(classes, dtype=np.int64)
        self._demands: dict[tuple[object, ...], int] = {}
        self._tables: dict[tuple[int, str], int] = {}
        self._vectors: list[tuple[Floats | None, Floats | None]] = []
        self._classes = max([UNKNOWN, *classes]) + 1
        self._own: Floats | None = None
        self._caused: Floats | None = None
        demands = self._demands
        numbers = [demands.setdefault(job.demand, len(demands)) for job in jobs]
        self.demand = np.array(numbers, dtype=np.int64)
        self.known = np.array([_is_known(job) for job in jobs], dtype=np.bool_)  # has predictions
        self.table = np.zeros(len(jobs), dtype=np.int64)
        for row in np.flatnonzero(self.known).tolist():
            self.table[row] = self._table_of(jobs[row])
        if not self.known.all():
            self.table[~self.known] = self._table_of(None)

    def set(self, row: int, job: Job) -> None:
        """Write the row of a job, anew where it has changed."""
        self.base_gib[row] = job.memory_base_gib
        self.extra_gib[row] = job.memory_peak_extra_gib
        self.peak_probability[row] = job.peak_probability
        self.peak_measured[row] = job.peak_measured
        self.gpu_utilisation[row] = job.gpu_utilisation
        self.spread_slowdown[row] = job.spread_slowdown
        self.exclusive[row] = job.exclusive
        self.checkpointable[row] = job.checkpointable
        self.gpus[row] = job.gpus
        self.gpus_per_pod[row] = job.gpus_per_pod
        self.where[row] = job.where
        self.interference_class[row] = job.interference_class
        self._classes = max(self._classes, job.interference_class + 1)
        self.demand[row] = self._demands.setdefault(job.demand, len(self._demands))
        self.known[row] = _is_known(job)
        self.table[row] = self._table_of(job if self.known[row] else None)

    def _table_of(self, job: Job | None) -> int:
        """Return the row of a job's predictions; of None, that of all jobs without predictions."""
        key = (job.interference_class, job.experience) if job else (-1, "")
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = len(self._vectors)
            self._vectors.append((job.own_slowdown, job.caused_slowdown) if job else (None, None))
            self.forget_tables()
        return table

    def forget_tables(self) -> None:
        """Read the predictions anew: they have been corrected where they stand."""
        self._own = self._caused = None

    @property
    def own(self) -> Floats:
        """The slowdown of a job of each table beside each class, (tables, classes)."""
        if self._own is None:
            self._own = self._stacked(0)
        return self._own

    @property
    def caused(self) -> Floats:
        """The slowdown of each class beside a job of each table, (tables, classes)."""
        if self._caused is None:
            self._caused = self._stacked(1)
        return self._caused

    def demands(self, rows: Ints) -> Demands:
        """Return the loads of some jobs, as columns."""
        base, extra = self.base_gib[rows, None], self.extra_gib[rows, None]
        return Demands(
            memory_base_gib=base,
            memory_peak_extra_gib=extra,
            memory_peak_gib=base + extra,
            peak_probability=self.peak_probability[rows, None],
            peak_measured=self.peak_measured[rows, None],
            gpu_utilisation=self.gpu_utilisation[rows, None],
            exclusive=self.exclusive[rows, None],
        )

    def _stacked(self, which: int) -> Floats:
        found = [pair[which] for pair in self._vectors]
        width = max([self._classes, *(len(vector) for vector in found if vector is not None)])
        table = np.full((len(found), width), np.inf)
        for row, vector in enumerate(found):
            if vector is not None:
                table[row, : len(vector)] = vector
        table[:, NOBODY] = 0.0
        return table


def _is_known(job: Job) -> bool:
    return job.own_slowdown is not None and job.caused_slowdown is not None
