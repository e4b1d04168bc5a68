"""Memory: room for every base and the largest peak, and a bounded chance that peaks meet."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from tandem.policy.cluster import GpuArrays
from tandem.policy.columns import Demands
from tandem.policy.equations.collision import collision_probability, memory_needed_gib
from tandem.policy.job import Job
from tandem.policy.ports import Policy
from tandem.policy.units import Bools, Floats, Ints
from tandem.reasons.causes import Cause, Reason, figure


class MemoryCapacity(Policy):
    """Room for every base and for one peak. Source: [OJPP] Eq. (3), (12).

    Differs: a GPU without a size (a capacity of 0) takes a job that has it alone, whatever that
    needs, and no other.
    """

    has_figures: ClassVar[bool] = True
    kind: Literal["memory_capacity"] = "memory_capacity"

    def __call__(self, job: Job, gpus: GpuArrays) -> Bools:
        """Return (gpus,), True where the memory suffices."""
        return self._fits(job, gpus)

    def each(self, jobs: Demands, gpus: GpuArrays) -> Bools:
        """Return the same for many jobs, (jobs, gpus)."""
        return self._fits(jobs, gpus)

    def compiled(self) -> dict[str, float]:
        """Return the fields of a compiled cycle that stand for this constraint."""
        return {"needs_memory": 1}

    def cause(self, job: Job, gpus: GpuArrays, row: int) -> Cause:
        """Say why `row` may not take `job`."""
        there = float(gpus.memory_capacity_gib[row])
        if there == 0 and gpus.shares[row] > 0:
            return Cause(Reason.MEMORY_UNKNOWN)
        if job.memory_peak_gib > there:
            return Cause(Reason.MEMORY_ALONE, value=figure(job.memory_peak_gib), bound=there)
        return Cause(Reason.MEMORY, value=figure(self._needed(job, gpus)[row]), bound=there)

    def reasons(self, job: Job, gpus: GpuArrays) -> Ints | None:
        """Return (gpus,): the size is unknown, too small for the job alone, or for all."""
        there = gpus.memory_capacity_gib
        alone = job.memory_peak_gib > there
        if there.all() and (alone.all() or not alone.any()):
            return None
        unknown = (there == 0) & (gpus.shares > 0)
        return np.where(unknown, 0, np.where(alone, 1, 2))

    def _fits(self, job: Job | Demands, gpus: GpuArrays) -> Bools:
        fits: Bools = self._needed(job, gpus) <= gpus.memory_capacity_gib
        if not np.any(job.exclusive):
            return fits
        unsized: Bools = (gpus.memory_capacity_gib == 0) & job.exclusive
        return fits | unsized

    def _needed(self, job: Job | Demands, gpus: GpuArrays) -> Floats:
        return memory_needed_gib(
            gpus.memory_base_gib,
            gpus.memory_peak_extra_gib,
            job.memory_base_gib,
            job.memory_peak_extra_gib,
        )


# Paper: [OJPP] Eq. (5), (14) | bound on that chance | test: tests/policy/test_policy_pipeline.py
#   test_a_pair_whose_peaks_fit_together_is_not_refused_for_a_collision | live: yes | deviation:
#   no bound where the peaks fit together; `strict: true` of the constraint bounds the chance
#   there as well, as in the paper
class MemoryCollision(Policy):
    """A bounded chance that two memory peaks fall together and memory runs over.

    Where all peaks fit together there is nothing that a collision could run over, so no chance of
    one refuses the GPU; with `strict`, the chance is bounded there as well, as in the paper.

    Source: [OJPP] Eq. (4), (5). Differs: without `strict`, where the peaks fit together.
    """

    has_figures: ClassVar[bool] = True
    kind: Literal["memory_collision"] = "memory_collision"
    max_collision_probability: Annotated[float, Field(ge=0, le=1)] = 0.1
    strict: bool = False

    def __call__(self, job: Job, gpus: GpuArrays) -> Bools:
        """Return (gpus,), True where the chance stays within the bound, or every peak fits."""
        return self._within(job, gpus)

    def each(self, jobs: Demands, gpus: GpuArrays) -> Bools:
        """Return the same for many jobs, (jobs, gpus)."""
        return self._within(jobs, gpus)

    def compiled(self) -> dict[str, float]:
        """Return the fields of a compiled cycle that stand for this constraint."""
        bound = self.max_collision_probability
        return {"max_collision_probability": bound, "strict_collision": self.strict}

    def cause(self, job: Job, gpus: GpuArrays, row: int) -> Cause:
        """Say why `row` may not take `job`."""
        chance = figure(self._probability(job, gpus)[row])
        bound = self.max_collision_probability
        return Cause(Reason.MEMORY_COLLISION, value=chance, bound=bound)

    def _within(self, job: Job | Demands, gpus: GpuArrays) -> Bools:
        if self.strict:
            return self._rare(job, gpus)
        fits: Bools = all_peaks_gib(job, gpus) <= gpus.memory_capacity_gib
        return fits if fits.all() else fits | self._rare(job, gpus)

    def _rare(self, job: Job | Demands, gpus: GpuArrays) -> Bools:
        rare: Bools = self._probability(job, gpus) <= self.max_collision_probability
        return rare

    def _probability(self, job: Job | Demands, gpus: GpuArrays) -> Floats:
        return collision_probability(gpus.none_in_peak, gpus.one_in_peak, job.peak_probability)


def all_peaks_gib(job: Job | Demands, gpus: GpuArrays) -> Floats:
    """Return what all residents and one worker of `job` need if all are in their peaks."""
    return gpus.memory_base_gib + gpus.memory_peak_sum_gib + job.memory_peak_gib


# Paper: [Horus] Eq. (5); [Xonar] III-B | memory of all jobs on a GPU within its capacity, peaks
#   included | test: tests/policy/test_policy_horus.py
#   test_memory_is_summed_with_all_peaks_and_not_with_one | live: yes | ablation: all peaks |
#   deviation: a job that has the GPU alone is allowed
class PeakFits(Policy):
    """Room for the peaks of all: memory cannot run over whatever falls together.

    With `opportunistic`, room for one peak suffices where the peaks of all are measured, an agent
    guards the GPU's memory, and all save their work when they are evicted ([OJPP] Eq. 3);
    `memory_collision` bounds the chance of two peaks.

    Source: [Xonar] III-B, which pairs jobs only where both peaks fit; [Horus] Eq. (5), whose
    estimate of a job's memory is its peak. Differs: a job that has the GPU alone is allowed also
    where its estimate exceeds the memory.
    """

    has_figures: ClassVar[bool] = True
    kind: Literal["peak_fits"] = "peak_fits"
    opportunistic: bool = False

    def __call__(self, job: Job, gpus: GpuArrays) -> Bools:
        """Return (gpus,), True where every peak fits at once, or the GPU is empty."""
        return self._fits(job, gpus)

    def each(self, jobs: Demands, gpus: GpuArrays) -> Bools:
        """Return the same for many jobs, (jobs, gpus)."""
        return self._fits(jobs, gpus)

    def compiled(self) -> dict[str, float]:
        """Return the fields of a compiled cycle that stand for this constraint."""
        return {"peaks_fit": 1, "peaks_opportunistic": self.opportunistic}

    def cause(self, job: Job, gpus: GpuArrays, row: int) -> Cause:
        """Say why `row` may not take `job`."""
        needed, there = figure(self._needed(job, gpus)[row]), float(gpus.memory_capacity_gib[row])
        return Cause(Reason.MEMORY_PEAKS, value=needed, bound=there)

    def _fits(self, job: Job | Demands, gpus: GpuArrays) -> Bools:
        fits: Bools = self._needed(job, gpus) <= gpus.memory_capacity_gib
        alone: Bools = gpus.jobs == 0
        return fits | alone

    def _needed(self, job: Job | Demands, gpus: GpuArrays) -> Floats:
        needed = all_peaks_gib(job, gpus)
        if not self.opportunistic or not np.any(job.peaks_may_meet):
            return needed
        known = gpus.guarded & gpus.peaks_measured & job.peaks_may_meet
        one_peak = memory_needed_gib(
            gpus.memory_base_gib,
            gpus.memory_peak_extra_gib,
            job.memory_base_gib,
            job.memory_peak_extra_gib,
        )
        chosen: Floats = np.where(known, one_peak, needed)
        return chosen
