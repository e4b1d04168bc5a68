"""Which of the allowed GPUs a gang of one-GPU workers takes together."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from tandem.policy.cluster import GpuArrays
from tandem.policy.job import Job
from tandem.policy.ports import Policy
from tandem.policy.units import Bools, Floats, Ints


class BestScored(Policy):
    """The best scored, wherever they are; ties by row."""

    kind: Literal["best_scored"] = "best_scored"

    def __call__(self, job: Job, gpus: GpuArrays, allowed: Bools, score: Floats) -> Ints | None:
        """Return as many rows as `job` has GPUs, or None if too few are allowed."""
        rows = np.flatnonzero(allowed)
        if len(rows) < job.gpus:
            return None
        best: Ints = rows[np.argsort(-score[rows], kind="stable")[: job.gpus]]
        return best


class InUse(Policy):
    """The best scored GPUs in use; if the gang does not fit there, the empty ones as well."""

    kind: Literal["in_use"] = "in_use"

    def __call__(self, job: Job, gpus: GpuArrays, allowed: Bools, score: Floats) -> Ints | None:
        """Return as many rows as `job` has GPUs, or None if there is no place for all."""
        for rows in (np.flatnonzero(allowed & (gpus.jobs > 0)), np.flatnonzero(allowed)):
            if len(rows) >= job.gpus:
                best: Ints = rows[np.argsort(-score[rows], kind="stable")[: job.gpus]]
                return best
        return None


class FewestNodes(Policy):
    """As few nodes as possible for jobs whose model is skewed; the others fill gaps.

    The smallest sufficient node is taken; if there is none, the nodes with most room first. With
    `hard`, every job waits until it need not be spread further than its size demands, as in
    [Tiresias]' YARN-CS; without, as in Tiresias itself, it takes what there is.
    Jobs of at least `from_gpus` GPUs alone are gathered ([Horus]: 8).

    Source: [Tiresias] 3.4.
    """

    kind: Literal["fewest_nodes"] = "fewest_nodes"
    hard: bool = False
    from_gpus: Annotated[int, Field(ge=1)] = 2

    def __call__(self, job: Job, gpus: GpuArrays, allowed: Bools, score: Floats) -> Ints | None:
        """Return as many rows as `job` has GPUs, or None if too few are allowed."""
        rows = np.flatnonzero(allowed)
        if len(rows) < job.gpus:
            return None
        rows = rows[np.argsort(-score[rows], kind="stable")]
        together = job.gpus >= self.from_gpus and (self.hard or job.skewed)
        if not together and job.gpus >= self.from_gpus:
            # Nodes with least room first: fragments are used up before whole nodes are broken.
            room = np.bincount(gpus.node[rows])[gpus.node[rows]]
            fragments: Ints = rows[np.argsort(room, kind="stable")[: job.gpus]]
            return fragments
        if not together:
            return rows[: job.gpus]
        node, room = np.unique(gpus.node[rows], return_counts=True)
        enough = room >= job.gpus
        if enough.any():
            chosen = node[enough][np.argmin(room[enough])]
            there: Ints = rows[gpus.node[rows] == chosen][: job.gpus]
            return there
        by_room = node[np.argsort(-room, kind="stable")]
        place = np.empty(int(node.max()) + 1, dtype=np.int64)
        place[by_room] = np.arange(len(by_room))
        rows = rows[np.argsort(place[gpus.node[rows]], kind="stable")][: job.gpus]
        widest = int(np.bincount(gpus.node).max())
        if self.hard and len(np.unique(gpus.node[rows])) > -(-job.gpus // widest):
            return None
        return rows
