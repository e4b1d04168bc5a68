"""Refusals that still hold: a refused job is not tried again before GPUs become free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

import numpy as np

from tandem.policy.cluster import GpuArrays, Snapshot
from tandem.policy.units import Bools

_KEPT = 20_000


class Refusals:
    """Demands that were refused (`of`), forgotten as soon as that might no longer hold."""

    def __init__(self) -> None:
        self.of: set[tuple[object, ...]] = set()
        self._seen: Snapshot | None = None
        self._eligible: dict[int, Bools] = {}

    def look(self, snapshot: Snapshot, eligible: Mapping[int, Bools]) -> None:
        """Compare the cluster with how it last was; forget where it may take more than then."""
        seen, self._seen = self._seen, snapshot
        known, self._eligible = self._eligible, dict(eligible)
        if (
            seen is None
            or seen.gpu_ids != snapshot.gpu_ids
            or len(self.of) > _KEPT
            or _roomier(seen.gpus, snapshot.gpus)
            or any(
                number in known and (mask & ~known[number]).any()
                for number, mask in eligible.items()
            )
        ):
            self.of.clear()


def _roomier(before: GpuArrays, after: GpuArrays) -> bool:
    """Return False only where each row is as it was, or has got residents beside its own."""
    changed = np.zeros(len(before), dtype=np.bool_)
    for field in fields(GpuArrays):
        differs = getattr(before, field.name) != getattr(after, field.name)
        changed |= differs if differs.ndim == 1 else differs.any(axis=1)
    fuller = after.jobs > before.jobs
    return bool((changed & ~fuller).any())
