"""The profile's pipeline, with the constraints that only a real cluster has.

Nodes that cannot run a pod, neighbours that a gang is to be kept apart from, and what was refused
before: the policies see none of it, and decide on the GPUs that are left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from tandem.policy.cluster import GpuArrays, Snapshot
from tandem.policy.columns import Demands
from tandem.policy.job import Job
from tandem.policy.pipeline import Evaluation, Pipeline
from tandem.policy.units import Bools, Ints

_KEPT = 20_000  # refusals
#: Evaluations of distinct demands in one round, where each waiting job is tried. What is beyond it
#: has its turn in the next, since refusals are remembered until there is more room.
TRIES = 300
#: From here on a `Job.where` is of one round alone.
SPECIAL = 1 << 40


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
    """Return False only where each row is as it was, or has got residents besides its own."""
    changed = np.zeros(len(before), dtype=np.bool_)
    for column in fields(GpuArrays):
        differs = getattr(before, column.name) != getattr(after, column.name)
        changed |= differs if differs.ndim == 1 else differs.any(axis=1)
    fuller = after.jobs > before.jobs
    return bool((changed & ~fuller).any())


@dataclass(slots=True)
class Tries:
    """The number of searches of the GPUs in this round, and the jobs that were left out of them."""

    left: int = TRIES
    put_off: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class ClusterPipeline(Pipeline):
    """A pipeline for one round on one board.

    `nodes` has (nodes,) by `Job.where`, False where those pods cannot run; `most` how many GPUs of
    each node they may have together, and `apart` handles of residents whose GPUs they must not
    join. `residents` (gpus,) is how many there were at first: what is refused while none of them
    has left is remembered in `memory`.
    """

    nodes: Mapping[int, Bools] = field(default_factory=dict)
    apart: Mapping[int, Ints] = field(default_factory=dict)
    most: Mapping[int, Ints] = field(default_factory=dict)
    memory: Refusals = field(default_factory=Refusals)
    tries: Tries = field(default_factory=Tries)
    residents: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def evaluate(self, job: Job, gpus: GpuArrays) -> Evaluation:
        """Evaluate one worker of `job` on every row of `gpus`, all of them or some."""
        # Two arguments: a dataclass with slots is a new class, which a bare super() does not know.
        found = super(ClusterPipeline, self).evaluate(job, gpus)
        return Evaluation(found.allowed & self._may(job, gpus), found.refused_by, found.score)

    def narrowed(self, among: Bools, job: Job, gpus: GpuArrays) -> Bools:
        """Return those of `among` (gpus,) where every constraint allows one worker of `job`."""
        return super(ClusterPipeline, self).narrowed(among & self._may(job, gpus), job, gpus)

    def narrowed_each(
        self, among: Bools, jobs: Sequence[Job], demands: Demands, gpus: GpuArrays
    ) -> Bools:
        """Return the same for many jobs: `among`, `demands` and the answer by (jobs, gpus)."""
        may = among.copy()
        for row, job in enumerate(jobs):
            if any(job.where in each for each in (self.nodes, self.most, self.apart)):
                may[row] &= self._may(job, gpus)
        return super(ClusterPipeline, self).narrowed_each(may, jobs, demands, gpus)

    def elsewhere(self) -> tuple[Mapping[int, Bools], Mapping[int, Ints]]:
        """Return the nodes and the neighbours that each `Job.where` must do without."""
        return self.nodes, self.apart

    def limits(self) -> Mapping[int, Ints]:
        """Return how many GPUs of each node each `Job.where` may have."""
        return self.most

    def choose(self, job: Job, gpus: GpuArrays) -> Ints | None:
        """Return rows for a gang, or None; who was refused is refused until there is more room."""
        # Which GPUs count where only so many do differs from round to round.
        remembers = job.where < SPECIAL and job.where not in self.most
        remembers = remembers and bool((gpus.jobs >= self.residents).all())
        if remembers and job.demand in self.memory.of:
            return None
        if self.tries.left <= 0:
            self.tries.put_off.add(job.id)
            return None
        self.tries.left -= 1
        rows = super(ClusterPipeline, self).choose(job, gpus)
        if rows is None and remembers:
            self.memory.of.add(job.demand)
        return rows

    def _may(self, job: Job, gpus: GpuArrays) -> Bools:
        nodes = self.nodes.get(job.where)
        may: Bools = np.ones(len(gpus), dtype=np.bool_) if nodes is None else nodes[gpus.node]
        if job.where in self.most:
            may = may & (gpus.place < self.most[job.where][gpus.node])
        if job.where in self.apart:
            may = may & ~np.isin(gpus.residents, self.apart[job.where]).any(axis=1)
        return may
