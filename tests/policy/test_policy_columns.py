"""Columns of jobs that are kept from cycle to cycle are those that are read anew."""

from dataclasses import replace

import numpy as np

from tandem.policy.columns import _READ, JobColumns
from tandem.policy.job import UNKNOWN, Job

CLASSES = 6


class Jobs:
    """Jobs that come, go and are replaced; their predictions are views of one table."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.table = self.rng.random((CLASSES, CLASSES))
        self.made = 0
        self.here = [self.new() for _ in range(12)]

    def new(self) -> Job:
        self.made += 1
        kind = int(self.rng.integers(2, CLASSES))
        own = self.rng.random() < 0.2
        job = Job(
            id=f"default/j{self.made}",
            pods=int(self.rng.integers(1, 3)),
            gpus_per_pod=int(self.rng.integers(1, 3)),
            memory_base_gib=float(self.rng.integers(1, 4)),
            peak_probability=float(self.rng.choice([0, 0.25])),
            peak_measured=bool(self.rng.random() < 0.5),
            exclusive=bool(self.rng.random() < 0.2),
            checkpointable=bool(self.rng.random() < 0.5),
            where=int(self.rng.integers(0, 3)),
            interference_class=kind,
            own_slowdown=self.table[kind] * (0.5 if own else 1.0),
            caused_slowdown=self.table[:, kind],
            experience="default" if own else "",
        )
        if self.rng.random() < 0.2:
            return replace(job, interference_class=UNKNOWN, own_slowdown=None, caused_slowdown=None)
        return job

    def change(self) -> None:
        match int(self.rng.integers(0, 5)):
            case 0:
                self.here.insert(int(self.rng.integers(0, len(self.here) + 1)), self.new())
            case 1 if self.here:
                self.here.pop(int(self.rng.integers(0, len(self.here))))
            case 2 if self.here:  # another object of the same name
                at = int(self.rng.integers(0, len(self.here)))
                self.here[at] = replace(self.new(), id=self.here[at].id)
            case 3:
                self.here = [self.here[at] for at in self.rng.permutation(len(self.here))]
            case 4:
                self.table *= 1.5  # learned: it is corrected where it stands


def assert_same(one: JobColumns, other: JobColumns) -> None:
    for name in (*_READ, "known", "demand", "table", "own", "caused"):
        kept, fresh = getattr(one, name), getattr(other, name)
        assert kept.dtype == fresh.dtype, name
        np.testing.assert_array_equal(kept, fresh, name)
    assert one._demands == other._demands
    assert one._tables == other._tables


def test_columns_that_are_kept_are_those_that_are_read_anew(seed: int) -> None:
    jobs = Jobs(seed)
    known: JobColumns | None = None
    for _ in range(300):
        for _ in range(int(jobs.rng.integers(0, 4))):
            jobs.change()
        known = JobColumns(jobs.here, known)
        assert_same(known, JobColumns(jobs.here))


def test_a_row_that_was_written_in_a_cycle_is_not_kept_for_the_job_before_it(seed: int) -> None:
    jobs = Jobs(seed)
    known = JobColumns(jobs.here)
    for row in range(0, len(jobs.here), 2):
        known.set(row, jobs.new())  # of the board of this cycle alone
    known = JobColumns(jobs.here, known)
    assert_same(known, JobColumns(jobs.here))


def test_a_job_that_is_kept_is_not_read_again() -> None:
    job = Job(id="default/j", memory_base_gib=7.0)
    known = JobColumns([job])
    known.base_gib[0] = 8.0  # as no job says
    assert JobColumns([job], known).base_gib.tolist() == [8.0]
    assert JobColumns([replace(job)], known).base_gib.tolist() == [7.0]


def test_a_job_with_a_class_is_the_same_in_all_else() -> None:
    jobs = Jobs(3)
    for job in jobs.here:
        own, caused = jobs.table[2], jobs.table[:, 2]
        found = job.with_class(2, own, caused)
        assert found == replace(job, interference_class=2)
        assert found.own_slowdown is own
        assert found.caused_slowdown is caused
        assert found.placing is job.placing
