"""Gangs near together: domains of nodes such as zones and racks, level by level.

The dispatches know nothing of levels. Before a round each gang that asks for one is kept to nodes
of one domain (`Job.where`), and they decide on the GPUs there: in Python and in compiled code, in a
cluster and in the simulator.

Source: the semantics of required and preferred levels are those of Kueue's topology-aware
scheduling. Differs: a preferred level is sought among empty GPUs alone, so that no gang waits for
it; domains are chosen by room, the smallest that suffices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from tandem.policy.board import Board
from tandem.policy.cluster import LOAD_COLUMNS, GpuArrays, reset_rows
from tandem.policy.columns import Demands
from tandem.policy.gather import whole_pods
from tandem.policy.job import Job
from tandem.policy.pipeline import Evaluation, Pipeline
from tandem.policy.units import Bools, Ints

#: From here on a `Job.where` names nodes to which a gang is kept.
KEPT = 1 << 41


@dataclass(frozen=True, slots=True)
class Topology:
    """In which domain each node is, level by level.

    `domain` is (nodes, levels), -1 where a node has no domain of a level. Nodes in one domain are
    in one domain of every wider level, too.
    """

    levels: tuple[str, ...]  # widest first
    domain: Ints

    def of(self, level: str) -> Ints | None:
        """Return the domain of each node at a level, (nodes,); None: there is no such level."""
        return self.domain[:, self.levels.index(level)] if level in self.levels else None


def most_in_one(job: Job, gpus: GpuArrays, allowed: Bools, topology: Topology) -> int:
    """Return how many of the `allowed` GPUs (gpus,) one domain has in whole pods, at most.

    The domains are those of the level that `job` requires.
    """
    domain = topology.of(job.required_topology)
    if domain is None:
        return 0
    room = _whole(np.bincount(gpus.node[allowed], minlength=len(domain)), job)
    return int(_by_domain(room, domain).max(initial=0))


def in_largest(job: Job, gpus: GpuArrays, allowed: Bools, topology: Topology) -> Bools:
    """Return those of the `allowed` GPUs (gpus,) that are in the domain with most of them.

    The domains are those of the level that `job` requires; ties: the first.
    """
    domain = topology.of(job.required_topology)
    if domain is None:
        return np.zeros_like(allowed)
    room = _whole(np.bincount(gpus.node[allowed], minlength=len(domain)), job)
    most = _by_domain(room, domain)
    if not len(most):
        return np.zeros_like(allowed)
    found: Bools = allowed & (domain == most.argmax())[gpus.node]
    return found


@dataclass(frozen=True, slots=True)
class Gang:
    """A gang that asks for a level: its roles (rows of the board).

    `at` are the GPUs (rows) of its pods that run, or to which it is being moved: it stays in their
    domain.
    """

    roles: tuple[int, ...]
    at: Ints | None = None


@dataclass(slots=True)
class Keeper:
    """Keeps gangs to domains. `nodes` has (nodes,) by `Job.where`, and is added to.

    `others` is what else is known by `Job.where`: it holds for jobs that are kept as before. One
    keeper may serve many rounds of one cluster: equal nodes have equal numbers.
    """

    topology: Topology
    nodes: MutableMapping[int, Bools] = field(default_factory=dict)
    others: tuple[MutableMapping[int, Ints], ...] = ()
    _numbers: dict[tuple[int, bytes], int] = field(default_factory=dict)
    _before: dict[int, int] = field(default_factory=dict)  # `Job.where` of jobs that are kept

    def keep(self, board: Board, gangs: Iterable[Gang], pipeline: Pipeline) -> None:
        """Give the jobs of each gang, in order, the `Job.where` of the nodes where it may start."""
        choice = _Choice(board, self.topology, pipeline)
        for gang in gangs:
            jobs = [self._as_before(board.jobs[role]) for role in gang.roles]
            mask = choice.nodes(jobs, gang.at)
            for role, job in zip(gang.roles, jobs, strict=True):
                where = job.where if mask is None else self._number(job.where, mask)
                if board.jobs[role].where != where:
                    board.change(role, replace(job, where=where))

    def _as_before(self, job: Job) -> Job:
        """Return a job as it was before it was kept to a domain."""
        return replace(job, where=self._before[job.where]) if job.where in self._before else job

    def _number(self, where: int, mask: Bools) -> int:
        own = self.nodes.get(where)
        mask = mask if own is None else mask & own
        number = self._numbers.setdefault((where, mask.tobytes()), KEPT + len(self._numbers))
        self.nodes[number] = mask
        self._before[number] = where
        for known in self.others:
            if where in known:
                known[number] = known[where]
        return number


@dataclass(frozen=True, slots=True)
class _Room:
    """GPUs in whole pods by node, (nodes,): of each role, and of all together."""

    roles: tuple[Ints, ...]
    all: Ints
    wanted: tuple[int, ...]

    def fits(self, domain: Ints) -> Bools:
        """Return (domains,), True where all roles fit."""
        enough = _by_domain(self.all, domain) >= sum(self.wanted)
        for room, wanted in zip(self.roles, self.wanted, strict=True):
            enough &= _by_domain(room, domain) >= wanted
        return enough

    def within(self, nodes: Bools) -> _Room:
        """Return the room on some nodes alone."""
        return _Room(
            tuple(np.where(nodes, r, 0) for r in self.roles), self.all * nodes, self.wanted
        )


class _Choice:
    """The domains of one round: who comes later gets what those before have left."""

    def __init__(self, board: Board, topology: Topology, pipeline: Pipeline) -> None:
        self._gpus = board.gpus
        self._topology = topology
        self._pipeline = pipeline
        self._left = np.ones(len(board.gpus), dtype=np.bool_)
        self._emptied: GpuArrays | None = None
        self._allowed: dict[tuple[object, ...], Bools] = {}
        self._capable: dict[tuple[object, ...], Bools] = {}
        # Without room for the one before, there is none for the next that asks for the same.
        self._full: dict[tuple[object, ...], Bools | None] = {}

    def nodes(self, jobs: Sequence[Job], at: Ints | None) -> Bools | None:
        """Return the nodes (nodes,) to which a gang is kept, given as its roles; None: to none."""
        required = next((j.required_topology for j in jobs if j.required_topology), "")
        preferred = next((j.preferred_topology for j in jobs if j.preferred_topology), "")
        if at is not None and len(at):
            return self._around(at, required, preferred)
        demand = tuple(job.demand for job in jobs)
        if demand in self._full:
            return self._full[demand]
        allowed = [self._allowed_to(job) for job in jobs]
        empty = self._room(jobs, [each & (self._gpus.jobs == 0) & self._left for each in allowed])
        mask = self._preferred(empty, preferred, required)
        if mask is None and required:
            mask = self._required(jobs, empty, allowed, required)
            inside = self._preferred(empty.within(mask), preferred, required)
            mask = mask if inside is None else inside & mask
        if mask is None or not self._take(jobs, allowed, mask):
            self._full[demand] = mask
        return mask

    def _around(self, at: Ints, required: str, preferred: str) -> Bools | None:
        """Return where a gang that holds GPUs stays: a level that is required has one domain.

        Of a gang that was torn apart since, as a label was changed, it is that of most of its GPUs.
        """
        domain = self._topology.of(required or preferred)
        if domain is None and not required:
            return None
        here = self._gpus.node[at]
        held = np.zeros(0, dtype=np.int64) if domain is None else domain[here]
        held = held[held >= 0]
        if domain is None or not len(held):
            return np.isin(np.arange(len(self._topology.domain)), here)
        stays = np.bincount(held).argmax() if required else held
        return np.isin(domain, stays)

    def _required(
        self, jobs: Sequence[Job], empty: _Room, allowed: Sequence[Bools], level: str
    ) -> Bools:
        """Return the one domain that is best for a gang, whether or not it has room there now."""
        domain = self._topology.of(level)
        if domain is None:
            return np.zeros(len(self._topology.domain), dtype=np.bool_)
        free = _by_domain(empty.all, domain)
        if not len(free):
            return np.zeros(len(domain), dtype=np.bool_)
        fits = np.flatnonzero(empty.fits(domain))
        if len(fits):
            return _in_one(domain, int(fits[np.argmin(free[fits])]))
        shared = self._room(jobs, [each & self._left for each in allowed])
        enough = shared.fits(domain)
        if not enough.any():
            enough = self._room(jobs, [self._capable_of(job) for job in jobs]).fits(domain)
        order = np.lexsort((-_by_domain(shared.all, domain), -free, ~enough))
        return _in_one(domain, int(order[0]))

    def _preferred(self, empty: _Room, level: str, required: str) -> Bools | None:
        """Return the nodes of the narrowest domain, from `level` on, that has room; or of a few.

        None where the empty GPUs are too few, or are in several domains of the level `required`.
        """
        levels = self._topology.levels
        if level not in levels:
            return None
        narrow = self._topology.domain[:, levels.index(level)]
        widest = levels.index(required) if required in levels else 0
        for index in range(levels.index(level), widest - 1, -1):
            domain = self._topology.domain[:, index]
            fits = np.flatnonzero(empty.fits(domain))
            if len(fits):
                room = _by_domain(empty.all, domain)
                fits = fits[np.argsort(room[fits], kind="stable")]
                return min(
                    (_in_few(empty, domain == each, narrow) for each in fits.tolist()),
                    key=lambda nodes: len(np.unique(narrow[nodes])),
                )
        if required:
            return None
        nodes = _in_few(empty, np.ones(len(narrow), dtype=np.bool_), narrow)
        return None if nodes.all() else nodes

    def _take(self, jobs: Sequence[Job], allowed: Sequence[Bools], mask: Bools) -> bool:
        """Take the GPUs of a gang out of those that are left; False where it has no room now."""
        left, there = self._left.copy(), mask[self._gpus.node]
        for job, each in zip(jobs, allowed, strict=True):
            rows = np.flatnonzero(each & there & left)
            rows = rows[np.argsort(self._gpus.jobs[rows], kind="stable")]
            found = whole_pods(job, self._gpus.node, rows)
            if found is None:
                return False
            left[found] = False
        self._left = left
        return True

    def _room(self, jobs: Sequence[Job], free: Sequence[Bools]) -> _Room:
        nodes, node = len(self._topology.domain), self._gpus.node
        roles = tuple(
            _whole(np.bincount(node[each], minlength=nodes), job)
            for job, each in zip(jobs, free, strict=True)
        )
        together = (
            roles[0]
            if len(jobs) == 1
            else np.bincount(node[np.logical_or.reduce(free)], minlength=nodes)
        )
        return _Room(roles, together, tuple(job.gpus for job in jobs))

    def _allowed_to(self, job: Job) -> Bools:
        if job.demand not in self._allowed:
            self._allowed[job.demand] = self._pipeline.allowed(job, self._gpus)
        return self._allowed[job.demand]

    def _capable_of(self, job: Job) -> Bools:
        """Return (gpus,): those that would take a worker of the job if nothing ran there."""
        if self._emptied is None:
            columns: dict[str, Any] = {
                name: getattr(self._gpus, name).copy() for name in LOAD_COLUMNS
            }
            reset_rows(columns, np.arange(len(self._gpus)))
            self._emptied = self._gpus.with_loads(columns)
        if job.demand not in self._capable:
            self._capable[job.demand] = self._pipeline.allowed(job, self._emptied)
        return self._capable[job.demand]


def _in_few(room: _Room, within: Bools, domain: Ints) -> Bools:
    """Return the nodes of few domains among those `within`, (nodes,), that have the gang's room.

    The domains with most room come first. All of `within` where its domains alone have too little.
    """
    inside = room.within(within)
    free = _by_domain(inside.all, domain)
    most = np.argsort(-free, kind="stable")
    fewest = int(np.searchsorted(np.cumsum(free[most]), sum(room.wanted))) + 1
    for count in range(fewest, int(np.count_nonzero(free)) + 1):
        nodes: Bools = within & np.isin(domain, most[:count])
        if inside.fits(np.where(nodes, 0, -1)).any():
            return nodes
    return within


def _in_one(domain: Ints, number: int) -> Bools:
    """Return (nodes,), True in one domain."""
    found: Bools = domain == number
    return found


def _whole(free: Ints, job: Job) -> Ints:
    """Return how many of the free GPUs of each node, (nodes,), whole pods take."""
    return free - free % job.gpus_per_pod


def _by_domain(room: Ints, domain: Ints) -> Ints:
    """Return the sum over the nodes of each domain, (domains,)."""
    known = domain >= 0
    found: Ints = np.bincount(
        domain[known], weights=room[known], minlength=int(domain.max(initial=-1)) + 1
    ).astype(np.int64)
    return found


@dataclass(frozen=True, slots=True)
class KeptPipeline(Pipeline):
    """A pipeline of which each job may have the `nodes` (nodes,) of its `Job.where` alone."""

    nodes: Mapping[int, Bools] = field(default_factory=dict)

    def evaluate(self, job: Job, gpus: GpuArrays) -> Evaluation:
        """Evaluate one worker of `job` on every row of `gpus`, all of them or some."""
        # Two arguments: a dataclass with slots is a new class, which a bare super() does not know.
        found = super(KeptPipeline, self).evaluate(job, gpus)
        nodes = self.nodes.get(job.where)
        if nodes is None:
            return found
        return Evaluation(found.allowed & nodes[gpus.node], found.refused_by, found.score)

    def narrowed(self, among: Bools, job: Job, gpus: GpuArrays) -> Bools:
        """Return those of `among` (gpus,) where every constraint allows one worker of `job`."""
        nodes = self.nodes.get(job.where)
        among = among if nodes is None else among & nodes[gpus.node]
        return super(KeptPipeline, self).narrowed(among, job, gpus)

    def narrowed_each(
        self, among: Bools, jobs: Sequence[Job], demands: Demands, gpus: GpuArrays
    ) -> Bools:
        """Return the same for many jobs: `among`, `demands` and the answer by (jobs, gpus)."""
        may = among.copy()
        for row, job in enumerate(jobs):
            if job.where in self.nodes:
                may[row] &= self.nodes[job.where][gpus.node]
        return super(KeptPipeline, self).narrowed_each(may, jobs, demands, gpus)

    def elsewhere(self) -> tuple[Mapping[int, Bools], Mapping[int, Ints]]:
        """Return the nodes that each `Job.where` must do without, and no neighbours."""
        return self.nodes, {}


def kept_pipeline(topology: Topology, pipeline: Pipeline) -> tuple[Keeper, Pipeline]:
    """Return a keeper, and a pipeline that does without nodes as the keeper says.

    `pipeline` is a plain one, or one of a dataclass with the fields `nodes` and `most`.
    """
    nodes, most = dict(pipeline.elsewhere()[0]), dict(pipeline.limits())
    keeper = Keeper(topology, nodes, (most,))
    names = {each.name for each in fields(pipeline)}
    if "nodes" in names:
        known: dict[str, Any] = {"nodes": nodes, "most": most}
        return keeper, replace(pipeline, **known)
    return keeper, KeptPipeline(
        pipeline.constraints, pipeline.scorers, pipeline.gather, nodes=nodes
    )
