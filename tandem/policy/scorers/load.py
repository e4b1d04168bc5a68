"""By how much is already there: fullest or emptiest first."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from tandem.policy.cluster import GpuArrays
from tandem.policy.job import Job
from tandem.policy.ports import Policy
from tandem.policy.units import Floats


class BestFit(Policy):
    """The GPU that is busiest already, by utilisation. Source: [OJPP] Best-fit."""

    kind: Literal["best_fit"] = "best_fit"
    weight: Annotated[float, Field(gt=0)] = 1.0

    def __call__(self, job: Job, gpus: GpuArrays) -> Floats:
        """Return (gpus,) in [0, 1]: utilisation as a share of two whole GPUs."""
        score: Floats = np.minimum(gpus.gpu_utilisation / 200, 1.0)
        return score


# Paper: [Horus] 5.2 | OBP: the least loaded GPU by memory | test:
#   tests/policy/test_policy_horus.py test_horus_looks_at_utilisation_and_obp_at_memory_alone |
#   live: yes
class LeastLoaded(Policy):
    """The GPU with most memory free. Source: [Horus] OBP."""

    kind: Literal["least_loaded"] = "least_loaded"
    weight: Annotated[float, Field(gt=0)] = 1.0

    def __call__(self, job: Job, gpus: GpuArrays) -> Floats:
        """Return (gpus,) in [0, 1]: the share of memory that is free."""
        used = gpus.memory_base_gib + gpus.memory_peak_extra_gib
        score: Floats = (1 - used / np.maximum(gpus.memory_capacity_gib, 1e-9)).clip(0.0, 1.0)
        return score


class LeastRoom(Policy):
    """The node with the fewest empty GPUs: whole nodes stay whole for large jobs."""

    kind: Literal["least_room"] = "least_room"
    weight: Annotated[float, Field(gt=0)] = 1.0

    def __call__(self, job: Job, gpus: GpuArrays) -> Floats:
        """Return (gpus,) in (0, 1]: 1 / (1 + empty GPUs of the node)."""
        empty = np.bincount(gpus.node, weights=(gpus.jobs == 0).astype(np.float64))
        score: Floats = 1 / (1 + empty[gpus.node])
        return score
