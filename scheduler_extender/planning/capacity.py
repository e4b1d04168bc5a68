"""Which jobs the cluster could hold if it were empty."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import fields, replace
from zlib import crc32

import numpy as np

from scheduler_extender.cluster.records import Key
from scheduler_extender.cluster.table import gpu_arrays
from scheduler_extender.planning.cluster_pipeline import ClusterPipeline
from scheduler_extender.planning.cycle_input import CycleInput
from scheduler_extender.planning.questions import Question, Start
from tandem.policy.cluster import GpuArrays, reset_rows
from tandem.policy.gather import whole_pods
from tandem.policy.units import Ints

#: Jobs of one namespace that are looked at in one cycle, and of all.
_LOOKS_PER_NAMESPACE, _LOOKS = 4, 32
#: For how long a job that no node can hold is not looked at again; up to twice that, so that not
#: all are looked at again in one cycle. New GPUs end it at once.
_KNOWN_S = 300.0

_Asks = tuple[Key, tuple[object, ...]]  # a gang, and what its pods ask


class Capacity:
    """The GPUs of one board as if they were empty, on nodes as if nothing ran there."""

    def __init__(self, question: Question, inputs: CycleInput, pipeline: ClusterPipeline) -> None:
        self._q = question
        self._inputs = inputs
        self._pipeline = pipeline
        columns = {f.name: getattr(inputs.board.gpus, f.name).copy() for f in fields(GpuArrays)}
        reset_rows(columns, np.arange(len(inputs.board.gpus)))
        self._empty = gpu_arrays(columns)
        self._known: dict[tuple[object, ...], Ints] = {}

    def rows(self, index: int) -> Ints:
        """Return the GPUs (rows) that the job at `index` of the board could use."""
        start = self._inputs.starts[index]
        assert start is not None
        job = start.job
        if job.demand not in self._known:
            mask = self._q.capable(job.where)
            nodes = {} if mask is None else {job.where: mask}
            alone = replace(self._pipeline, nodes=nodes, apart={})
            self._known[job.demand] = np.flatnonzero(alone.allowed(job, self._empty))
        return self._known[job.demand]

    def holds(self, index: int) -> bool:
        """Say whether the cluster could hold the job at `index` of the board."""
        job, node = self._inputs.board.jobs[index], self._empty.node
        return whole_pods(job, node, self.rows(index)) is not None


class Impossible:
    """Jobs that the cluster could not hold when they were looked at; kept from cycle to cycle.

    Each cycle looks at a few jobs only, and at a few of each namespace: a namespace with many jobs
    of this kind does not use up the looks of the others.
    """

    def __init__(self) -> None:
        self._until_s: dict[_Asks, float] = {}
        self._gpu_ids: tuple[str, ...] = ()

    def __contains__(self, start: Start | None) -> bool:
        """Say whether the cluster is known not to hold a job."""
        return start is not None and (start.gpujob, start.job.demand) in self._until_s

    def sift(
        self, waiting: Iterable[int], question: Question, inputs: CycleInput, capacity: Capacity
    ) -> Iterable[int]:
        """Yield the waiting jobs (rows of the board) that the cluster can hold, in their order."""
        if question.snapshot.gpu_ids != self._gpu_ids:
            self._gpu_ids = question.snapshot.gpu_ids
            self._until_s.clear()
        now = question.now_s
        self._until_s = {
            asks: until_s
            for asks, until_s in self._until_s.items()
            if now < until_s and asks[0] in question.starts
        }
        looks: Counter[str] = Counter()
        seen: set[_Asks] = set()
        for index in waiting:
            start, key = inputs.starts[index], inputs.keys[index]
            if start is None or start in self or looks[key[0]] == _LOOKS_PER_NAMESPACE:
                continue
            asks = key, start.job.demand
            if asks in seen:
                continue
            if looks.total() == _LOOKS:
                return
            looks[key[0]] += 1
            seen.add(asks)
            if capacity.holds(index):
                yield index
            else:
                spread = crc32("/".join(key).encode()) / 2**32
                self._until_s[asks] = now + _KNOWN_S * (1 + spread)
