"""[Horus]: prefer the GPU on which memory and utilisation cost least."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from tandem.policy.cluster import GpuArrays
from tandem.policy.constraints.memory import all_peaks_gib
from tandem.policy.equations.horus import placement_cost
from tandem.policy.job import Job
from tandem.policy.ports import Policy
from tandem.policy.units import Floats


# Paper: [Horus] Alg. 1 line 14-16 | the GPUs with the least cost | test:
#   tests/policy/test_policy_horus.py test_horus_looks_at_utilisation_and_obp_at_memory_alone |
#   live: yes | ablation: horus cost
class HorusCost(Policy):
    """1 / (1 + cost), with the cost of [Horus] Eq. (7)-(10) after the job is added.

    The over-commit curve is that of the GPU's type, (gpus, 3) in `GpuArrays.over_commit`.
    """

    kind: Literal["horus_cost"] = "horus_cost"
    weight: Annotated[float, Field(gt=0)] = 1.0
    memory_weight: Annotated[float, Field(ge=0)] = 0.5
    utilisation_weight: Annotated[float, Field(ge=0)] = 0.5

    def __call__(self, job: Job, gpus: GpuArrays) -> Floats:
        """Return (gpus,) in (0, 1], higher is better."""
        capacity = np.maximum(gpus.memory_capacity_gib, 1e-9)
        cost = placement_cost(
            all_peaks_gib(job, gpus) / capacity,
            gpus.gpu_utilisation + job.gpu_utilisation,
            self.memory_weight,
            self.utilisation_weight,
            gpus.over_commit,
        )
        score: Floats = 1 / (1 + cost)
        return score

    def compiled(self) -> dict[str, float]:
        """Return the fields of a compiled cycle that stand for this scorer."""
        return {
            "horus_weight": self.weight,
            "horus_memory_weight": self.memory_weight,
            "horus_utilisation_weight": self.utilisation_weight,
        }
