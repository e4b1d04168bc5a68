"""Memory: room for every base and the largest peak, and a bounded chance that peaks meet."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tandem.policy.cluster import GpuArrays
from tandem.policy.columns import Demands
from tandem.policy.equations.collision import collision_probability, memory_needed_gib
from tandem.policy.job import Job
from tandem.policy.ports import Policy
from tandem.policy.units import Bools, Floats


class MemoryCapacity(Policy):
    """Room for every base and for one peak. Source: [OJPP] Eq. (3), (12)."""

    kind: Literal["memory_capacity"] = "memory_capacity"

    def __call__(self, job: Job, gpus: GpuArrays) -> Bools:
        """Return (gpus,), True where the memory suffices."""
        return self._needed(job, gpus) <= gpus.memory_capacity_gib

    def each(self, jobs: Demands, gpus: GpuArrays) -> Bools:
        """Return the same for many jobs, (jobs, gpus)."""
        return self._needed(jobs, gpus) <= gpus.memory_capacity_gib

    def sentence(self, job: Job, gpus: GpuArrays, row: int) -> str:
        """Say why `row` may not take `job`."""
        needed = self._needed(job, gpus)[row]
        return f"needs {needed:.1f} GiB of memory; {gpus.memory_capacity_gib[row]:.1f} GiB there"

    def _needed(self, job: Job | Demands, gpus: GpuArrays) -> Floats:
        return memory_needed_gib(
            gpus.memory_base_gib,
            gpus.memory_peak_extra_gib,
            job.memory_base_gib,
            job.memory_peak_extra_gib,
        )


class MemoryCollision(Policy):
    """A bounded chance that two memory peaks fall together. Source: [OJPP] Eq. (4), (5)."""

    kind: Literal["memory_collision"] = "memory_collision"
    max_collision_probability: Annotated[float, Field(ge=0, le=1)] = 0.1

    def __call__(self, job: Job, gpus: GpuArrays) -> Bools:
        """Return (gpus,), True where the chance of a collision stays within the bound."""
        return self._probability(job, gpus) <= self.max_collision_probability

    def each(self, jobs: Demands, gpus: GpuArrays) -> Bools:
        """Return the same for many jobs, (jobs, gpus)."""
        return self._probability(jobs, gpus) <= self.max_collision_probability

    def sentence(self, job: Job, gpus: GpuArrays, row: int) -> str:
        """Say why `row` may not take `job`."""
        chance = self._probability(job, gpus)[row]
        return (
            f"memory peaks would collide with probability {chance:.2f}, "
            f"bound {self.max_collision_probability:.2f}"
        )

    def _probability(self, job: Job | Demands, gpus: GpuArrays) -> Floats:
        return collision_probability(gpus.none_in_peak, gpus.one_in_peak, job.peak_probability)


class PeakFits(Policy):
    """Room for the peaks of all: memory cannot run over whatever falls together.

    Source: [Xonar] 3.2, which pairs jobs only where both peaks fit.
    """

    kind: Literal["peak_fits"] = "peak_fits"

    def __call__(self, job: Job, gpus: GpuArrays) -> Bools:
        """Return (gpus,), True where every peak fits at once, or the GPU is empty."""
        return self._fits(job, gpus)

    def each(self, jobs: Demands, gpus: GpuArrays) -> Bools:
        """Return the same for many jobs, (jobs, gpus)."""
        return self._fits(jobs, gpus)

    def sentence(self, job: Job, gpus: GpuArrays, row: int) -> str:
        """Say why `row` may not take `job`."""
        needed = self._needed(job, gpus)[row]
        return (
            f"peaks need {needed:.1f} GiB together; {gpus.memory_capacity_gib[row]:.1f} GiB there"
        )

    def _fits(self, job: Job | Demands, gpus: GpuArrays) -> Bools:
        fits: Bools = self._needed(job, gpus) <= gpus.memory_capacity_gib
        alone: Bools = gpus.jobs == 0
        return fits | alone

    def _needed(self, job: Job | Demands, gpus: GpuArrays) -> Floats:
        return gpus.memory_base_gib + gpus.memory_peak_sum_gib + job.memory_peak_gib
