"""Random placement, without a generator: a fixed hash of job and GPU."""

from __future__ import annotations

from typing import Annotated, Literal
from zlib import crc32

import numpy as np
from pydantic import Field

from tandem.policy.cluster import GpuArrays
from tandem.policy.job import Job
from tandem.policy.ports import Policy
from tandem.policy.units import Floats

_MASK = np.uint64(0xFFFFFFFF)


class Shuffled(Policy):
    """A score that looks random but is the same each time it is asked."""

    kind: Literal["shuffled"] = "shuffled"
    weight: Annotated[float, Field(gt=0)] = 1.0

    def __call__(self, job: Job, gpus: GpuArrays) -> Floats:
        """Return (gpus,) in [0, 1)."""
        # Multiplicative hashing (Knuth): spreads neighbouring rows over the whole range.
        seed = np.uint64(crc32(job.id.encode()))
        mixed = (np.arange(len(gpus), dtype=np.uint64) + seed) * np.uint64(2654435761) & _MASK
        mixed = (mixed ^ (mixed >> np.uint64(15))) * np.uint64(2246822519) & _MASK
        score: Floats = mixed.astype(np.float64) / 2.0**32
        return score
