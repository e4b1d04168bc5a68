"""New work goes to GPUs that are well and, where it would share, recently measured."""

from __future__ import annotations

from typing import Literal

from tandem.policy.cluster import GpuArrays
from tandem.policy.columns import Demands
from tandem.policy.job import Job
from tandem.policy.ports import Policy
from tandem.policy.units import Bools
from tandem.reasons.causes import Cause, Reason


class Healthy(Policy):
    """The GPU is not quarantined."""

    kind: Literal["healthy"] = "healthy"

    def __call__(self, job: Job, gpus: GpuArrays) -> Bools:
        """Return (gpus,), True where new work may go at all."""
        return gpus.healthy

    def each(self, jobs: Demands, gpus: GpuArrays) -> Bools:
        """Return (gpus,): the same for every job."""
        return gpus.healthy

    def compiled(self) -> dict[str, float]:
        """Return the fields of a compiled cycle that stand for this constraint."""
        return {"needs_healthy": 1}

    def cause(self, job: Job, gpus: GpuArrays, row: int) -> Cause:
        """Say why `row` may not take `job`."""
        return Cause(Reason.QUARANTINED)


class Fresh(Policy):
    """The agent's report is recent, or the GPU is empty: no job joins by stale measurements."""

    kind: Literal["fresh_telemetry"] = "fresh_telemetry"

    def __call__(self, job: Job, gpus: GpuArrays) -> Bools:
        """Return (gpus,), True where the job would be alone or the report is fresh."""
        alone: Bools = gpus.jobs == 0
        return gpus.fresh | alone

    def each(self, jobs: Demands, gpus: GpuArrays) -> Bools:
        """Return (gpus,): the same for every job."""
        alone: Bools = gpus.jobs == 0
        return gpus.fresh | alone

    def compiled(self) -> dict[str, float]:
        """Return the fields of a compiled cycle that stand for this constraint."""
        return {"needs_fresh": 1}

    def cause(self, job: Job, gpus: GpuArrays, row: int) -> Cause:
        """Say why `row` may not take `job`."""
        return Cause(Reason.NOT_MEASURED)
