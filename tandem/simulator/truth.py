"""The truth of a shared GPU: slowdowns, memory, costs. The policies never see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np

from tandem.policy.job import UNKNOWN, SubBatch
from tandem.policy.units import Floats, Ints

#: How often memory is at a new, independent point of its course: [Xonar] samples each 1/6 s, but
#: an iteration's peaks come back alike; a minute is the scale at which they drift apart (ours).
PEAK_WINDOW_S = 60.0
OOM_AT_ONCE_S = 1 / 6


@dataclass(frozen=True, slots=True)
class MemoryCourse:
    """The memory of one worker: a level, and what a peak adds with a probability. [OJPP] 3.2."""

    base_gib: float
    peak_extra_gib: float
    peak_probability: float

    @property
    def peak_gib(self) -> float:
        """Memory in the peak."""
        return self.base_gib + self.peak_extra_gib


@dataclass(frozen=True, slots=True)
class Latency:
    """Delays of a cluster with each job, seconds."""

    start_s: Floats  # (jobs,) for which it holds its GPUs before it begins
    release_s: Floats  # (jobs,) for which its GPUs are not free yet once it is preempted


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """The physics of one simulation.

    Class 0 is an empty slot, class 1 a job that no neighbour slows down. Three or more on a GPU: a
    job's slowdown is the sum over its neighbours ([OJPP] has pairs only). Infinite slowdown: the
    two do not fit together in memory.
    """

    slowdown: Floats  # (classes, classes) of row next to column
    slowdown_by_type: Floats | None = None  # (GPU types, classes, classes), where types differ
    gpu_type: Ints | None = None  # (gpus,) index of the first axis of `slowdown_by_type`
    job_class: Ints  # (jobs,)
    memory: Sequence[MemoryCourse]  # by job
    memory_gib: Floats  # (gpus,)
    gpu_utilisation: Floats  # (jobs,) percent, when alone
    preemption_cost_s: float = 0.0  # work that a preempted job does again
    resize_cost_s: float = 0.0  # for which an elastic job starts anew once its GPUs change
    latency: Latency | None = None  # none: a start and a preemption take no time
    spread_slowdown: Floats | None = None  # (jobs,) when on more nodes than needed
    # Of elastic jobs, by the number of GPUs: the speed as a share of that on all that they want.
    elastic_speed: Mapping[int, Sequence[float]] = field(default_factory=dict)
    sub_batches: Sequence[Mapping[int, SubBatch]] = ()  # by job, by accumulation steps
    stretch: Floats | None = None  # (jobs,) of an iteration, by the accumulation steps in use

    @property
    def interferes(self) -> bool:
        """False where sharing costs nothing, as in `--truth none`."""
        return bool((self.slowdown > 0).any())

    def table(self, row: int) -> Floats:
        """Return the slowdowns on GPU `row`, (classes, classes)."""
        if self.slowdown_by_type is None or self.gpu_type is None:
            return self.slowdown
        table: Floats = self.slowdown_by_type[self.gpu_type[row]]
        return table

    def speed(self, job: int, neighbours: Sequence[int], row: int = 0) -> float:
        """Return the speed of a job next to others on GPU `row`, as a share of its solo speed."""
        own = self.table(row)[self.job_class[job]]
        total = sum(float(own[self.job_class[other]]) for other in neighbours)
        return 1 / (1 + total) if np.isfinite(total) else 1e-3

    def accumulating(self, job: int, steps: int) -> Truth:
        """Return what is true once `job` runs its batch in `steps` micro-batches."""
        if steps not in (self.sub_batches[job] if self.sub_batches else {}):
            return self
        chosen = self.sub_batches[job][steps]
        memory = list(self.memory)
        memory[job] = replace(
            memory[job],
            base_gib=chosen.memory_base_gib,
            peak_extra_gib=chosen.memory_peak_extra_gib,
        )
        stretch = np.ones(len(memory)) if self.stretch is None else self.stretch.copy()
        stretch[job] = chosen.stretch
        classes = self.job_class.copy()
        if chosen.interference_class is not None:
            classes[job] = chosen.interference_class
        return replace(self, memory=memory, stretch=stretch, job_class=classes)

    def overflow(self, row: int, jobs: Sequence[int]) -> float:
        """Return the chance per window that `jobs` together exceed the memory of GPU `row`.

        1 where they cannot be together at all.
        """
        table = self.table(row)
        for i, job in enumerate(jobs):
            for other in jobs[:i]:
                if np.isinf(table[self.job_class[job], self.job_class[other]]):
                    return 1.0
        courses = [self.memory[job] for job in jobs]
        room = self.memory_gib[row] - sum(course.base_gib for course in courses)
        if sum(course.peak_extra_gib for course in courses) <= room:
            return 0.0
        chance = 0.0
        for peaks in product((False, True), repeat=len(courses)):
            extra = sum(c.peak_extra_gib for c, on in zip(courses, peaks, strict=True) if on)
            if extra > room:
                chance += float(
                    np.prod(
                        [
                            c.peak_probability if on else 1 - c.peak_probability
                            for c, on in zip(courses, peaks, strict=True)
                        ]
                    )
                )
        return chance


def no_truth(jobs: int, gpus: int) -> Truth:
    """Return `--truth none`: no job slows another down, memory is endless, nothing costs."""
    return Truth(
        slowdown=np.zeros((2, 2)),
        job_class=np.full(jobs, UNKNOWN, dtype=np.int64),
        memory=[MemoryCourse(0.0, 0.0, 0.0)] * jobs,
        memory_gib=np.full(gpus, np.inf),
        gpu_utilisation=np.full(jobs, 100.0),
    )
