"""A bound on how much a job and its neighbours slow each other down."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from tandem.policy.cluster import GpuArrays
from tandem.policy.columns import Demands
from tandem.policy.equations.ojpp import slowdown_with
from tandem.policy.job import EMPTY_SLOT, UNKNOWN, Job
from tandem.policy.ports import Policy
from tandem.policy.units import Bools, Floats, Ints
from tandem.reasons.causes import Cause, Reason, figure


# Paper: [OJPP] Eq. (6), (7), (13) | bound on the slowdown on a device | test:
#   tests/policy/test_policy_ojpp.py
#   test_i_greedy_opens_a_gpu_rather_than_pass_the_bound_on_interference | live: yes |
#   ablation: interference | deviation: slowdowns of three or more are added; the bound of
#   `tandem` is its own
class Interference(Policy):
    """The largest predicted slowdown on the GPU stays within a bound. Source: [OJPP] Eq. (6), (7).

    The bound is on each job on the GPU, the newcomer and those that are there: 1 is twice the time.
    The slowdown is the one that a cycle plans with, which is an upper one where a pair is unlike
    those that were measured (docs/decisions/0023). Among three or more it is the sum of the
    pairwise ones (ours). Where nothing is predicted at all, nothing is refused: memory and
    utilisation must do.
    """

    has_figures: ClassVar[bool] = True
    kind: Literal["interference"] = "interference"
    max_interference: Annotated[float, Field(ge=0)] = 0.2

    def __call__(self, job: Job, gpus: GpuArrays) -> Bools:
        """Return (gpus,), True where everyone's slowdown stays within the bound."""
        within: Bools = self._worst(job, gpus) <= self.max_interference
        return within

    def each(self, jobs: Demands, gpus: GpuArrays) -> None:
        """One job at a time: the answer depends on tables of the job's own."""

    def compiled(self) -> dict[str, float]:
        """Return the fields of a compiled cycle that stand for this constraint."""
        return {"max_interference": self.max_interference}

    def cause(self, job: Job, gpus: GpuArrays, row: int) -> Cause:
        """Say why `row` may not take `job`."""
        worst = figure(self._worst(job, gpus)[row])
        if worst is None:
            return Cause(Reason.BAD_NEIGHBOURS)
        return Cause(Reason.SLOWDOWN, value=worst, bound=self.max_interference)

    def reasons(self, job: Job, gpus: GpuArrays) -> Ints | None:
        """Return (gpus,): never to be put together, or too slow; None where all get along."""
        slowdowns = (job.own_slowdown, job.caused_slowdown, gpus.resident_slowdown)
        if all(each is None or np.isfinite(each).all() for each in slowdowns):
            return None
        return np.isfinite(self._worst(job, gpus)).astype(np.int64)

    def _worst(self, job: Job, gpus: GpuArrays) -> Floats:
        if job.own_slowdown is None or job.caused_slowdown is None:
            return np.zeros(len(gpus))
        return slowdown_with(
            job.own_slowdown, job.caused_slowdown, gpus.resident_class, gpus.resident_slowdown
        )


class Apart(Policy):
    """Two that are believed never to get along (an infinite slowdown) are not put together.

    Ours: models that running jobs have shown to be bad neighbours stay apart, whatever else is
    weighed. Where nothing is believed, nothing is refused.
    """

    kind: Literal["apart"] = "apart"

    def __call__(self, job: Job, gpus: GpuArrays) -> Bools:
        """Return (gpus,), True where neither was ever bad next to the other, job or resident."""
        if job.own_slowdown is None or job.caused_slowdown is None:
            return np.ones(len(gpus), dtype=np.bool_)
        bad = np.isinf(job.own_slowdown) | np.isinf(job.caused_slowdown)
        bad[[EMPTY_SLOT, UNKNOWN]] = False
        apart = np.ones(len(gpus), dtype=np.bool_)
        if bad.any():
            for slot in range(gpus.resident_class.shape[1]):  # a short axis is slow to reduce
                apart &= ~bad.take(gpus.resident_class[:, slot])
        return apart

    def each(self, jobs: Demands, gpus: GpuArrays) -> None:
        """One job at a time: the answer depends on tables of the job's own."""

    def cause(self, job: Job, gpus: GpuArrays, row: int) -> Cause:
        """Say why `row` may not take `job`."""
        return Cause(Reason.BAD_NEIGHBOURS)


# Paper: [OJPP] Eq. (1), (11) | compute demands within the device | test:
#   tests/policy/test_policy_ojpp.py test_ojpp_never_passes_any_of_its_bounds | live: yes |
#   deviation: not in `tandem`: it forbids what Horus over-commits
class Utilisation(Policy):
    """The compute demands on a GPU stay within its capacity. Source: [OJPP] Eq. (1), (11)."""

    has_figures: ClassVar[bool] = True
    kind: Literal["utilisation"] = "utilisation"
    max_percent: Annotated[float, Field(gt=0)] = 100.0

    def __call__(self, job: Job, gpus: GpuArrays) -> Bools:
        """Return (gpus,), True where the sum stays within the bound, or the GPU is empty."""
        return self._within(job, gpus)

    def each(self, jobs: Demands, gpus: GpuArrays) -> Bools:
        """Return the same for many jobs, (jobs, gpus)."""
        return self._within(jobs, gpus)

    def compiled(self) -> dict[str, float]:
        """Return the fields of a compiled cycle that stand for this constraint."""
        return {"max_utilisation": self.max_percent}

    def cause(self, job: Job, gpus: GpuArrays, row: int) -> Cause:
        """Say why `row` may not take `job`."""
        total = figure(gpus.gpu_utilisation[row] + job.gpu_utilisation)
        return Cause(Reason.UTILISATION, value=total, bound=self.max_percent)

    def _within(self, job: Job | Demands, gpus: GpuArrays) -> Bools:
        within: Bools = gpus.gpu_utilisation + job.gpu_utilisation <= self.max_percent
        alone: Bools = gpus.jobs == 0
        return within | alone
