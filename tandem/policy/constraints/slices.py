"""Slices of a GPU (MIG) are for jobs of one GPU."""

from __future__ import annotations

from typing import Literal

import numpy as np

from tandem.policy.cluster import GpuArrays
from tandem.policy.columns import Demands
from tandem.policy.job import Job
from tandem.policy.ports import Policy
from tandem.policy.units import Bools
from tandem.reasons.causes import Cause, Reason


class Slices(Policy):
    """A job with several GPUs gets whole ones: a process on a slice reaches no other GPU.

    CUDA gives a process one slice, and NCCL connects none (docs/decisions/0069). It holds under
    every profile, also under those that do not name it.
    """

    kind: Literal["slices"] = "slices"

    def __call__(self, job: Job, gpus: GpuArrays) -> Bools:
        """Return (gpus,), True where the GPU is whole or the job has no other."""
        return ~gpus.sliced if job.spans else np.ones(len(gpus), dtype=np.bool_)

    def each(self, jobs: Demands, gpus: GpuArrays) -> Bools:
        """Return the same for many jobs, (jobs, gpus)."""
        return ~(jobs.spans & gpus.sliced)

    def compiled(self) -> dict[str, float]:
        """Return the fields of a compiled cycle that stand for this constraint."""
        return {"needs_whole": 1}

    def cause(self, job: Job, gpus: GpuArrays, row: int) -> Cause:
        """Say why `row` may not take `job`."""
        return Cause(Reason.SLICE)
