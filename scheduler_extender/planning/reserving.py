"""Reservations: GPUs kept free for the job that has waited longest.

A stream of small jobs fills every share as it falls free, and a job that needs whole or many GPUs
would wait for ever. The job that has waited longest, beyond a limit, gets GPUs of its own: no job
joins their residents, and when these have ended it starts. One job at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from zlib import crc32

import numpy as np

from scheduler_extender.cluster.records import Key
from scheduler_extender.cluster.table import places_of, without_residents
from scheduler_extender.planning.cluster_pipeline import ClusterPipeline
from scheduler_extender.planning.cycle_input import CycleInput, freest_first
from scheduler_extender.planning.questions import Part, Question, Start
from scheduler_extender.planning.together import OtherResources, rows_for, start_together
from tandem.policy.gather import whole_pods
from tandem.policy.job import Job
from tandem.policy.pipeline import Evaluation, Pipeline
from tandem.policy.topology import Topology, in_largest
from tandem.policy.units import Floats, Ints
from tandem.reasons.causes import Cause, Reason

#: Jobs of one namespace that are looked at in one cycle, and of all.
_LOOKS_PER_NAMESPACE, _LOOKS = 4, 32
#: For how long a job that no node can hold is not looked at again; up to twice that, so that not
#: all are looked at again in one cycle. New GPUs end it at once.
_KNOWN_S = 300.0
_DEMANDS = 20_000

_Asks = tuple[Key, tuple[object, ...]]  # a gang, and what its pods ask


def _asks(start: Start) -> _Asks:
    return start.gpujob, tuple(part.job.demand for part in start.parts)


class Capacity:
    """The GPUs of a round as if they were empty, on nodes as if nothing ran there."""

    def __init__(self, question: Question, pipeline: ClusterPipeline) -> None:
        self._q = question
        self._pipeline = pipeline
        gpus = question.snapshot.gpus  # those of the board may be kept for a job already
        self._empty = replace(without_residents(gpus), place=freest_first(gpus))
        self._gpus = np.bincount(self._empty.node, minlength=len(question.snapshot.node_names))
        self._known: dict[tuple[object, ...], Ints] = {}

    def rows(self, job: Job) -> Ints:
        """Return the GPUs (rows) that a job could use: of a level that it requires, one domain."""
        rows = self._rows(job)
        if not job.required_topology:
            return rows
        topology = self._q.topology
        allowed = np.zeros(len(self._empty), dtype=np.bool_)
        allowed[rows] = topology is not None
        if topology is not None:
            allowed = in_largest(job, self._empty, allowed, topology)
        return np.flatnonzero(allowed)

    def _rows(self, job: Job) -> Ints:
        if job.demand not in self._known:
            mask = self._q.capable(job.where)
            nodes = {} if mask is None else {job.where: mask}
            there = self._q.nodes
            most = there.most(job.where, self._gpus, empty=True) if there is not None else None
            limits = {} if most is None else {job.where: most}
            alone = replace(self._pipeline, nodes=nodes, most=limits, apart={})
            self._known[job.demand] = np.flatnonzero(alone.allowed(job, self._empty))
        return self._known[job.demand]

    def holds(self, parts: Sequence[Part]) -> bool:
        """Say whether the cluster could hold all roles of a start."""
        node = self._empty.node
        jobs = [part.job for part in parts]
        resources = OtherResources(self._q.nodes, parts, node, empty=True)
        return rows_for(jobs, node, lambda at: self.rows(jobs[at]), resources) is not None

    def too_small(self, parts: Sequence[Part]) -> Cause:
        """Return that the cluster cannot hold a start whose roles it could hold one by one."""
        needed = sum(part.job.gpus for part in parts)
        there = len(np.unique(np.concatenate([self.rows(part.job) for part in parts])))
        # There may be enough of them, and too few on one node.
        bound = there if there < needed else None
        return Cause(Reason.CLUSTER_TOO_SMALL, value=needed, bound=bound)

    def why_not(self, job: Job) -> tuple[Cause, ...]:
        """Return why the cluster could not hold a job; () where it could."""
        rows, node = self._rows(job), self._empty.node
        if whole_pods(job, node, rows) is not None:
            return self._domains_too_small(job)
        size = job.gpus_per_pod
        there = np.bincount(node[rows], minlength=1)
        most, enough = int(there.max()), int((there // size).sum()) * size
        refused = self._refusals(job)
        if 0 < most < size:
            return (Cause(Reason.NODES_TOO_SMALL, value=size, bound=most), *refused)
        if most or not refused:
            return (Cause(Reason.CLUSTER_TOO_SMALL, value=job.gpus, bound=enough), *refused)
        return refused

    def _domains_too_small(self, job: Job) -> tuple[Cause, ...]:
        """Return that no domain of the level that a job requires could hold it, else ()."""
        if not job.required_topology:
            return ()
        rows = self.rows(job)
        if whole_pods(job, self._empty.node, rows) is not None:
            return ()
        size = job.gpus_per_pod
        there = np.bincount(self._empty.node[rows], minlength=1)
        cause = Cause(
            Reason.DOMAINS_TOO_SMALL, resource=job.required_topology, value=job.gpus,
            bound=int((there // size).sum()) * size,
        )  # fmt: skip
        return (cause.cut(),)

    def _refusals(self, job: Job) -> tuple[Cause, ...]:
        """Return what keeps a job off GPUs and nodes on which nothing runs."""
        evaluation = Pipeline.evaluate(self._pipeline, job, self._empty)
        mask, nodes = self._q.capable(job.where), self._q.nodes
        if mask is not None:
            suits = np.where(mask[self._empty.node], evaluation.refused_by, -1)
            evaluation = Evaluation(evaluation.allowed, suits, evaluation.score)
        found = self._pipeline.refusals(job, self._empty, evaluation)
        lacking = nodes.why_not(job.where) if nodes is not None and job.where in nodes.asks else ()
        return (*found, *(each for each in lacking if each.reason is not Reason.NODE_SHORT))


class _Cluster:
    """The GPUs and domains that a cluster had when it was last looked at."""

    def __init__(self) -> None:
        self._gpu_ids: tuple[str, ...] = ()
        self._topology: Topology | None = None

    def changed(self, question: Question) -> bool:
        """Say whether there are other GPUs or domains than before."""
        gpu_ids, topology = self._gpu_ids, self._topology
        self._gpu_ids, self._topology = question.snapshot.gpu_ids, question.topology
        return gpu_ids != self._gpu_ids or not _same(topology, self._topology)


def _same(one: Topology | None, other: Topology | None) -> bool:
    if one is None or other is None or one is other:
        return one is other
    return one.levels == other.levels and np.array_equal(one.domain, other.domain)


class Holdable:
    """Demands that the cluster could hold if it were empty; kept from cycle to cycle for a while.

    To find it out takes a look at all GPUs, for each reason that is written about a job that waits.
    """

    def __init__(self) -> None:
        self._until_s: dict[tuple[object, ...], float] = {}
        self._cluster = _Cluster()

    def why_not(
        self, job: Job, question: Question, capacity: Callable[[], Capacity]
    ) -> tuple[Cause, ...]:
        """Return why the cluster could not hold a job; () where it could."""
        if self._cluster.changed(question) or len(self._until_s) > _DEMANDS:
            self._until_s.clear()
        if question.now_s < self._until_s.get(job.demand, 0.0):
            return ()
        why = capacity().why_not(job)
        if not why:
            self._until_s[job.demand] = question.now_s + _KNOWN_S
        return why


class Impossible:
    """Jobs that the cluster could not hold when they were looked at; kept from cycle to cycle.

    Each cycle looks at a few jobs only, and at a few of each namespace: a namespace with many jobs
    of this kind does not use up the looks of the others.
    """

    def __init__(self) -> None:
        self._until_s: dict[_Asks, float] = {}
        self._cluster = _Cluster()

    def __contains__(self, start: Start | None) -> bool:
        """Say whether the cluster is known not to hold a job."""
        return start is not None and _asks(start) in self._until_s

    def sift(
        self, waiting: Iterable[int], question: Question, inputs: CycleInput, capacity: Capacity
    ) -> Iterable[int]:
        """Yield the waiting jobs (rows of the board) that the cluster can hold, in their order."""
        if self._cluster.changed(question):
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
            asks = _asks(start)
            if asks in seen:
                continue
            if looks.total() == _LOOKS:
                return
            looks[key[0]] += 1
            seen.add(asks)
            if capacity.holds(inputs.parts(index)):
                yield index
            else:
                spread = crc32("/".join(key).encode()) / 2**32
                self._until_s[asks] = now + _KNOWN_S * (1 + spread)


class Reserve:
    """The job that has GPUs reserved, and which; remembered from cycle to cycle."""

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._for: Key | None = None
        self._gpus: frozenset[tuple[str, str]] = frozenset()

    def hold(
        self,
        question: Question,
        inputs: CycleInput,
        pipeline: ClusterPipeline,
        impossible: Impossible,
    ) -> None:
        """Start the job that has waited too long, or keep others off the GPUs that it will have.

        A job that the cluster could not hold even if it were empty has no claim: nothing that is
        kept free would help it, and those behind it wait too long themselves.
        """
        waiting = self._waited_too_long(question, inputs)
        if not waiting:
            self._for, self._gpus = None, frozenset()
            return
        capacity = Capacity(question, pipeline)
        for index in impossible.sift(waiting, question, inputs, capacity):
            if self._start(index, question, inputs, pipeline):
                return
            if self._keep(index, question, inputs, capacity):
                return
        self._for, self._gpus = None, frozenset()

    def _start(
        self, index: int, question: Question, inputs: CycleInput, pipeline: ClusterPipeline
    ) -> bool:
        board = inputs.board
        if index in inputs.roles:
            resources = OtherResources(question.nodes, inputs.parts(index), board.gpus.node)
            begun = start_together(board, inputs.roles[index], pipeline, resources)
            inputs.began(list(inputs.roles[index]) if begun else [])
            return begun
        rows = pipeline.choose(board.jobs[index], board.gpus)
        if rows is None:
            return False
        board.start(index, rows)
        inputs.began([index])
        return True

    def _keep(self, index: int, question: Question, inputs: CycleInput, capacity: Capacity) -> bool:
        board = inputs.board
        gpus = places_of(question.snapshot)
        kept = self._gpus if inputs.keys[index] == self._for else frozenset()
        before = np.fromiter((gpu in kept for gpu in gpus), np.bool_, len(gpus))
        rows = self._choose(question, inputs, index, before, capacity)
        if rows is None:
            return False
        board.columns["shares"][rows] = board.columns["jobs"][rows]
        self._for = inputs.keys[index]
        self._gpus = frozenset(gpus[row] for row in rows.tolist())
        return True

    def _waited_too_long(self, question: Question, inputs: CycleInput) -> list[int]:
        """Return the waiting jobs that have waited for longer than the limit, longest first."""
        arrays = inputs.board.arrays
        waiting = inputs.ranked[~arrays.running[inputs.ranked]]
        since = arrays.waiting_since_s[waiting]
        long = question.now_s - since >= self._after_s
        found: list[int] = waiting[long][np.argsort(since[long], kind="stable")].tolist()
        return found

    @staticmethod
    def _choose(
        question: Question, inputs: CycleInput, index: int, before: np.ndarray, capacity: Capacity
    ) -> Ints | None:
        """Return GPUs that would do if they were empty: those kept already, else soonest free.

        GPUs on which a job has no end of its own are never free again.
        """
        board, parts = inputs.board, inputs.parts(index)
        jobs = [part.job for part in parts]
        endless = {i for i in inputs.held if inputs.keys[i] in question.endless}
        ends = np.array([endless.isdisjoint(there) for there in board.residents_of], dtype=np.bool_)
        free_in_s = _free_in_s(inputs)

        def soonest(part: int) -> Ints:
            rows = capacity.rows(jobs[part])
            rows = rows[ends[rows]]
            order = np.lexsort((rows, free_in_s[rows], board.gpus.jobs[rows], ~before[rows]))
            return rows[order]

        resources = OtherResources(question.nodes, parts, board.gpus.node, empty=True)
        return rows_for(jobs, board.gpus.node, soonest, resources)


def _free_in_s(inputs: CycleInput) -> Floats:
    """Return (gpus,) how long the residents of each GPU are expected to run on."""
    board = inputs.board
    left = board.arrays.remaining_s(np.arange(len(board.arrays)), board.now_s)
    left = np.where(np.isnan(left), np.inf, left)
    return np.array([max((left[i] for i in there), default=0.0) for there in board.residents_of])
