"""Prefer GPUs in use: an empty one stays free for a job that needs it whole ([OJPP] Alg. 2)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tandem.policy.cluster import GpuArrays
from tandem.policy.job import Job
from tandem.policy.ports import Policy
from tandem.policy.units import Floats


# Paper: [Xonar] IV | baseline: pairs in the order of arrival | test:
#   tests/policy/test_policy_pairs.py test_unordered_pairs_take_the_next_whatever_it_needs |
#   live: yes
class InUseFirst(Policy):
    """1 where the GPU already has a job, else 0."""

    kind: Literal["in_use_first"] = "in_use_first"
    weight: Annotated[float, Field(gt=0)] = 1.0

    def __call__(self, job: Job, gpus: GpuArrays) -> Floats:
        """Return (gpus,): 1 in use, 0 empty."""
        return (gpus.jobs > 0).astype(float)

    def compiled(self) -> dict[str, float]:
        """Return the fields of a compiled cycle that stand for this scorer."""
        return {"in_use_weight": self.weight}
