"""A bound on how unequally the workers of one job are slowed down."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from tandem.policy.cluster import GpuArrays
from tandem.policy.columns import Demands
from tandem.policy.equations.ojpp import spread_after
from tandem.policy.job import Job
from tandem.policy.ports import Policy
from tandem.policy.units import Bools, Floats, Ints
from tandem.reasons.causes import Cause, Reason, figure


# Paper: [OJPP] Eq. (8), (15) | bound on the imbalance of a job | test:
#   tests/policy/test_policy_ojpp.py test_balance_agrees_with_trying_each_gpu | live: yes
class Balance(Policy):
    """The slowdowns of one job's workers spread no further than a bound.

    Both for the jobs that are there, whose other workers are elsewhere, and, where the job's
    workers are placed one by one, for those that it has placed. Where nothing is predicted,
    nothing is refused. Source: [OJPP] Eq. (8), (15), Alg. 2 line 6.
    """

    has_figures: ClassVar[bool] = True
    kind: Literal["balance"] = "balance"
    max_imbalance: Annotated[float, Field(ge=0)] = 0.1

    def __call__(self, job: Job, gpus: GpuArrays) -> Bools:
        """Return (gpus,), True where every job stays balanced, or the GPU is empty."""
        within: Bools = self._worst(job, gpus) <= self.max_imbalance
        return within

    def each(self, jobs: Demands, gpus: GpuArrays) -> None:
        """One job at a time: the answer depends on tables of the job's own."""

    def cause(self, job: Job, gpus: GpuArrays, row: int) -> Cause:
        """Say why `row` may not take `job`."""
        worst = figure(self._worst(job, gpus)[row])
        return Cause(Reason.UNEQUAL_WORKERS, value=worst, bound=self.max_imbalance)

    def _worst(self, job: Job, gpus: GpuArrays) -> Floats:
        """Return the largest spread of a job with a worker on each GPU, (gpus,)."""
        worst = np.zeros(len(gpus))
        if job.own_slowdown is None or job.caused_slowdown is None:
            return worst
        row, slot = np.nonzero(gpus.residents >= 0)
        owner = gpus.residents[row, slot]
        now = gpus.resident_slowdown[row, slot]
        after = now + job.caused_slowdown[gpus.resident_class[row, slot]]
        # An unpredictable neighbour is infinitely slow; infinity less infinity is within no bound.
        with np.errstate(invalid="ignore"):
            spread = spread_after(owner, row, now, after)
            np.maximum.at(worst, row, np.where(np.isnan(spread), np.inf, spread))
            if job.placing is not None:
                placed = owner == job.placing.handle
                mine = job.own_slowdown[gpus.resident_class].sum(axis=1)
                own = _spread_with(mine, row[placed], now[placed], job.placing.least_slowdown)
                worst = np.maximum(worst, np.where(np.isnan(own), np.inf, own))
        return worst


def _spread_with(slowdown: Floats, row: Ints, placed: Floats, least: float) -> Floats:
    """Return the spread if one more worker went to each GPU, (gpus,), besides those at `row`.

    Workers on that very GPU are as slow as the new one, so only those elsewhere differ from it.
    """
    elsewhere = row[None, :] != np.arange(len(slowdown))[:, None]
    highest = np.where(elsewhere, placed, -np.inf).max(axis=1, initial=-np.inf)
    lowest = np.where(elsewhere, placed, np.inf).min(axis=1, initial=least)
    spread: Floats = np.maximum(highest, slowdown) - np.minimum(lowest, slowdown)
    return spread
