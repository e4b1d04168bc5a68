"""By who is there: the partner whose load complements the job's, or hurts it least."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from tandem.policy.cluster import GpuArrays
from tandem.policy.equations.ojpp import slowdown_with
from tandem.policy.equations.xonar import active_idle_misfit
from tandem.policy.job import Job
from tandem.policy.ports import Policy
from tandem.policy.units import Floats


class ActiveIdleFit(Policy):
    """One computes while the other waits: 1 / (1 + misfit), 0 on an empty GPU. [Xonar] Eq. (1)."""

    kind: Literal["active_idle_fit"] = "active_idle_fit"
    weight: Annotated[float, Field(gt=0)] = 1.0

    def __call__(self, job: Job, gpus: GpuArrays) -> Floats:
        """Return (gpus,) in [0, 1]."""
        busy = np.minimum(gpus.gpu_utilisation / 100, 1.0)
        misfit = active_idle_misfit(busy, min(job.gpu_utilisation / 100, 1.0))
        score: Floats = np.where(gpus.jobs > 0, 1 / (1 + misfit), 0.0)
        return score


class LeastSlowdown(Policy):
    """1 / (1 + the largest slowdown on the GPU after placement). Source: [OJPP] Alg. 2."""

    kind: Literal["least_slowdown"] = "least_slowdown"
    weight: Annotated[float, Field(gt=0)] = 1.0

    def __call__(self, job: Job, gpus: GpuArrays) -> Floats:
        """Return (gpus,) in [0, 1]; 0 next to a job of which nothing is known."""
        if job.own_slowdown is None or job.caused_slowdown is None:
            alone: Floats = (gpus.jobs == 0).astype(np.float64)
            return alone
        worst = slowdown_with(
            job.own_slowdown, job.caused_slowdown, gpus.resident_class, gpus.resident_slowdown
        )
        score: Floats = 1 / (1 + worst)
        return score
