"""Requests of jobs as columns: a constraint answers for many jobs at once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np

from tandem.policy.job import EMPTY_SLOT, UNKNOWN, Job
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
    peaks_may_meet: Bools
    gpu_utilisation: Floats
    exclusive: Bools
    spans: Bools


#: Columns that are read off a job alone: the attribute of `Job`, and the type.
_READ = {
    "base_gib": ("memory_base_gib", np.float64),
    "extra_gib": ("memory_peak_extra_gib", np.float64),
    "peak_probability": ("peak_probability", np.float64),
    "peaks_may_meet": ("peaks_may_meet", np.bool_),
    "gpu_utilisation": ("gpu_utilisation", np.float64),
    "spread_slowdown": ("spread_slowdown", np.float64),
    "busy_share": ("busy_share", np.float64),
    "exclusive": ("exclusive", np.bool_),
    "spans": ("spans", np.bool_),
    "checkpointable": ("checkpointable", np.bool_),
    "gpus": ("gpus", np.int64),
    "gpus_per_pod": ("gpus_per_pod", np.int64),
    "where": ("where", np.int64),
    "asks_topology": ("asks_topology", np.bool_),
    "interference_class": ("interference_class", np.int64),
}
_UNPREDICTED = -1, ""  # names the table of jobs without predictions

_Name = TypeVar("_Name", bound=Hashable)


class JobColumns:
    """The loads of all jobs of a board, one row a job, and their tables of predictions.

    `table` (jobs,) names the job's row of `own` and `caused`, (tables, classes): the predicted
    slowdown next to each class, and of each class next to the job. Jobs of one class share a row
    unless what they were taught is their own. A job without predictions has a row that is infinite
    next to every class but the empty slot's. `demand` (jobs,) is equal for jobs that may go to the
    same GPUs.

    With `before`, rows of jobs that are the same objects there are copied, and only others are
    read. The columns are the same as without it: a job never changes, it is replaced by another.
    """

    base_gib: Floats
    extra_gib: Floats
    peak_probability: Floats
    peaks_may_meet: Bools
    gpu_utilisation: Floats
    spread_slowdown: Floats
    busy_share: Floats
    exclusive: Bools
    spans: Bools
    checkpointable: Bools
    gpus: Ints
    gpus_per_pod: Ints
    where: Ints  # as `Job.where`
    asks_topology: Bools
    interference_class: Ints
    _demands: dict[tuple[object, ...], int]
    _tables: dict[tuple[int, str], int]

    def __init__(self, jobs: Sequence[Job], before: JobColumns | None = None) -> None:
        self._jobs = list(jobs)  # it keeps them alive, so that no other job gets the id of one
        known = {} if before is None else {id(job): row for row, job in enumerate(before._jobs)}
        at = np.array([known.get(id(job), -1) for job in self._jobs], dtype=np.int64)
        new = np.flatnonzero(at < 0)
        read = [self._jobs[row] for row in new.tolist()]
        old = np.flatnonzero(at >= 0)
        at = at[old]

        def column(name: str, values: list[Any], of: type) -> np.ndarray[Any, Any]:
            found: np.ndarray[Any, Any] = np.empty(len(self._jobs), dtype=of)
            found[new] = values
            if before is not None:
                found[old] = getattr(before, name)[at]
            return found

        # A column at a time: row by row, a cycle of 12,000 jobs would spend most of its time here.
        for name, (attribute, of) in _READ.items():
            setattr(self, name, column(name, list(map(attrgetter(attribute), read)), of))
        self.known: Bools = column("known", [_is_known(job) for job in read], np.bool_)
        demands = {} if before is None else before._demands.copy()
        numbers = [demands.setdefault(job.demand, len(demands)) for job in read]
        self.demand, self._demands, _ = _renumbered(column("demand", numbers, np.int64), demands)
        tables = {} if before is None else before._tables.copy()
        numbers = [tables.setdefault(_table_name(job), len(tables)) for job in read]
        self._number_tables(column("table", numbers, np.int64), tables)

    def _number_tables(self, table: Ints, tables: dict[tuple[int, str], int]) -> None:
        """Give the tables numbers in the order of the jobs; jobs without predictions come last."""
        self._classes = int(self.interference_class.max(initial=UNKNOWN)) + 1
        self._own: Floats | None = None
        self._caused: Floats | None = None
        self.table = np.zeros(len(table), dtype=np.int64)
        rows = np.flatnonzero(self.known)
        self.table[rows], self._tables, first = _renumbered(table[rows], tables)
        firsts = [self._jobs[row] for row in rows[first].tolist()]
        self._vectors: list[tuple[Floats | None, Floats | None]] = [
            (job.own_slowdown, job.caused_slowdown) for job in firsts
        ]
        if not self.known.all():
            self.table[~self.known] = self._table_of(None)

    def set(self, row: int, job: Job) -> None:
        """Write the row of a job, anew where it has changed."""
        self._jobs[row] = job
        for name, (attribute, _) in _READ.items():
            getattr(self, name)[row] = getattr(job, attribute)
        self._classes = max(self._classes, job.interference_class + 1)
        self.demand[row] = self._demands.setdefault(job.demand, len(self._demands))
        self.known[row] = _is_known(job)
        self.table[row] = self._table_of(job if self.known[row] else None)

    def _table_of(self, job: Job | None) -> int:
        """Return the row of a job's predictions; of None, that of all jobs without predictions."""
        name = _UNPREDICTED if job is None else _table_name(job)
        table = self._tables.get(name)
        if table is None:
            table = self._tables[name] = len(self._vectors)
            self._vectors.append((job.own_slowdown, job.caused_slowdown) if job else (None, None))
            self.forget_tables()
        return table

    def forget_tables(self) -> None:
        """Read the predictions anew: they have been corrected where they stand."""
        self._own = self._caused = None

    @property
    def own(self) -> Floats:
        """The slowdown of a job of each table next to each class, (tables, classes)."""
        if self._own is None:
            self._own = self._stacked(0)
        return self._own

    @property
    def caused(self) -> Floats:
        """The slowdown of each class next to a job of each table, (tables, classes)."""
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
            peaks_may_meet=self.peaks_may_meet[rows, None],
            gpu_utilisation=self.gpu_utilisation[rows, None],
            exclusive=self.exclusive[rows, None],
            spans=self.spans[rows, None],
        )

    def _stacked(self, which: int) -> Floats:
        found = [pair[which] for pair in self._vectors]
        width = max([self._classes, *(len(vector) for vector in found if vector is not None)])
        table = np.full((len(found), width), np.inf)
        for row, vector in enumerate(found):
            if vector is not None:
                table[row, : len(vector)] = vector
        table[:, EMPTY_SLOT] = 0.0
        return table


def _is_known(job: Job) -> bool:
    return job.own_slowdown is not None and job.caused_slowdown is not None


def _table_name(job: Job) -> tuple[int, str]:
    return (job.interference_class, job.experience) if _is_known(job) else _UNPREDICTED


def _renumbered(numbers: Ints, names: dict[_Name, int]) -> tuple[Ints, dict[_Name, int], Ints]:
    """Return numbers that count from 0 in the order in which they come, without gaps.

    And their names, and where each comes first. `names` has its keys in the order of their numbers.
    """
    first = np.full(len(names), len(numbers))
    np.minimum.at(first, numbers, np.arange(len(numbers)))
    used = np.argsort(first, kind="stable")[: np.count_nonzero(first < len(numbers))]
    new = np.zeros(len(names), dtype=np.int64)
    new[used] = np.arange(len(used))
    by_number = list(names)
    found = {by_number[old]: number for number, old in enumerate(used.tolist())}
    return new[numbers], found, first[used]
