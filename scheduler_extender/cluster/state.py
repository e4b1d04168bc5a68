"""The one mutable object of the extender: the cluster state, which the event loop alone touches.

Fed by events in any order, it depends on what the API server last said of each object, on the
clock and on the Bindings under way, and on nothing else. The event loop alone touches it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Protocol

import numpy as np

from scheduler_extender.cluster.gang_index import Gangs
from scheduler_extender.cluster.jobs import in_steps
from scheduler_extender.cluster.ledger import Claim, Hold, Ledger, Plans
from scheduler_extender.cluster.nodes import NodeBook, NodesPicture
from scheduler_extender.cluster.objects import Objects
from scheduler_extender.cluster.pair_slowdowns import PairSlowdowns, PlacementHistory
from scheduler_extender.cluster.parsing import PARSERS, as_known, with_unwritten
from scheduler_extender.cluster.pods import PodInfo, Use
from scheduler_extender.cluster.records import (
    GpuJobRecord,
    GpuNodeRecord,
    Key,
    NodeRecord,
    PodRecord,
    Record,
)
from scheduler_extender.cluster.slowdowns import Slowdowns, classes_of
from scheduler_extender.cluster.table import GpuKind, GpuTable, LiveSnapshot
from scheduler_extender.cluster.workers import (
    accumulates,
    declared_of,
    has_own_figures,
    not_less,
    placed_with,
    worker_by_annotations,
    worker_of,
)
from scheduler_extender.cluster.workloads import gpujob_name, role_of
from tandem.contracts import names
from tandem.contracts.limits import parse_memory_fraction
from tandem.contracts.placement import PlacedWith
from tandem.contracts.resources import GPUJobStatus, Load
from tandem.policy.cluster import GpuArrays, Snapshot
from tandem.policy.job import Job
from tandem.policy.units import BYTES_PER_GIB, Bools, Ints

#: Pods of a gang among which one is sought that is on a node.
_LOOKED_AT = 64
#: Pods of one gang that are worked out in one go.
_AT_ONCE = 64
#: A node's clock may be ahead of ours by so much.
_CLOCKS_DIFFER_S = 60.0


class Listener(Protocol):
    """Listens to changes of the state: the queue controller. `gangs` are those that changed."""

    def observe(self, record: Record, gangs: Collection[Key]) -> None:
        """Take in an object that the state has accepted."""
        ...

    def forget(self, record: Record, gangs: Collection[Key]) -> None:
        """Take in that an object is gone."""
        ...


class ClusterState:
    """Nodes, GPUs, pods, gangs, and which pod holds which GPU.

    `max_jobs_per_gpu` caps the shares that agents offer; a report older than `stale_after_s` makes
    its GPUs stale. `now_s` (Unix time) only moves by `tick`. `clock` (Unix time) is read where a
    pod leaves or ends; it defaults to `now_s`. `topology_levels` are labels of nodes, widest first.
    `slowdowns` says how jobs get along.
    """

    def __init__(
        self,
        *,
        now_s: float,
        max_jobs_per_gpu: int = 2,
        stale_after_s: float = 150.0,
        pairs: PairSlowdowns | None = None,
        placements: PlacementHistory | None = None,
        clock: Callable[[], float] | None = None,
        topology_levels: Sequence[str] = (),
    ) -> None:
        self.now_s = now_s
        self.slowdowns = Slowdowns(pairs, placements)
        self._limits_known = 0
        self._closed: frozenset[tuple[str, str]] = frozenset()
        self._taken: frozenset[tuple[str, str]] = frozenset()
        self._max_jobs_per_gpu = max_jobs_per_gpu
        self._stale_after_s = stale_after_s
        self.table = GpuTable(residents_per_gpu=max_jobs_per_gpu)
        self.ledger = Ledger(self.table)
        self.nodes = NodeBook(topology_levels)
        self._objects = Objects()
        self._objects.tick(now_s)
        self._pods: dict[str, PodRecord] = {}  # by uid
        self.gangs = Gangs(clock or (lambda: self.now_s))
        self._plans = Plans()
        #: Called for each object that is accepted, once the state has followed it. An old version
        #: of an object, or one that is gone, never comes to the listener.
        self.listener: Listener | None = None
        #: Called after the listener with each record and whether the object is gone.
        self.followers: list[Callable[[Record, bool], None]] = []
        #: Called when there is a `backlog`; without it, all that follows is worked out at once.
        self.on_backlog: Callable[[], None] | None = None
        self._backlog: dict[str, None] = {}

    # --- reading ------------------------------------------------------------------------------

    @property
    def gpus(self) -> GpuArrays:
        """All GPUs, live and read-only; see GpuTable for its rows."""
        return self.table.gpus

    def snapshot(self) -> LiveSnapshot:
        """Return frozen copies for planning, nodes in the order of their names."""
        return self.table.snapshot()

    def unchanged(self, snapshot: Snapshot, rows: Iterable[int]) -> bool:
        """Say whether `rows` of a snapshot of ours still are what they were when it was taken."""
        assert isinstance(snapshot, LiveSnapshot)
        return self.table.unchanged(snapshot, rows)

    def eligible_nodes(self, pod: PodInfo) -> Bools:
        """Return (nodes,) in the order of a snapshot: where the pod could run, GPUs apart."""
        return self.nodes.eligible(pod, self.table.sorted_names)

    def nodes_for(self, pod: PodInfo, names: tuple[str, ...] = ()) -> NodesPicture:
        """Return what decides on which of the nodes one pod, number 0, could run.

        By default these are the nodes of a snapshot.
        """
        return self.nodes.picture_without(pod, names or self.table.sorted_names)

    def nodes_picture(
        self,
        pods: Mapping[int, Sequence[PodInfo]],
        together: Mapping[int, int] | None = None,
        promised: Mapping[str, Use] | None = None,
    ) -> NodesPicture:
        """Return what decides on which nodes of a snapshot `pods` could run, by number."""
        return self.nodes.picture(pods, self.table.sorted_names, together, promised)

    def rows_of(self, node: str, gpus: Iterable[str]) -> Ints:
        """Return the rows of GPUs by UUID; those that are not there are left out."""
        found = (self.table.row_of.get((node, gpu)) for gpu in gpus)
        return np.array([row for row in found if row is not None], dtype=np.int64)

    def pod(self, uid: str) -> PodRecord | None:
        """Return a pod by its uid."""
        return self._pods.get(uid)

    def pod_named(self, namespace: str, name: str) -> PodRecord | None:
        """Return a pod by its name."""
        record = self._objects.of("pods").get((namespace, name))
        return record if isinstance(record, PodRecord) else None

    def pods(self) -> Iterable[PodRecord]:
        """Return all pods; for those of a gang see `members`."""
        return self._pods.values()

    def gpu_jobs(self) -> Mapping[Key, GpuJobRecord]:
        """Return the gangs by (namespace, name)."""
        return self._objects.of("gpujobs")  # type: ignore[return-value] # kinds are kept apart

    def gpu_nodes(self) -> Mapping[Key, GpuNodeRecord]:
        """Return the agents' reports by ('', node)."""
        return self._objects.of("gpunodes")  # type: ignore[return-value] # kinds are kept apart

    def gpu_name(self, node: str, uuid: str) -> str:
        """Return a GPU as people call it, node/index; by its UUID where no agent reports it."""
        report = self.gpu_nodes().get(("", node))
        return f"{node}/{uuid}" if report is None else report.gpu_name(uuid)

    def smallest_gib(self, node: str, gpus: Collection[str]) -> float:
        """Return the memory of the smallest of these GPUs, reserved part and all; 0: not known."""
        report = self.gpu_nodes().get(("", node))
        sizes = {} if report is None else {gpu: kind.memory_bytes for gpu, _, kind in report.named}
        return min((sizes.get(gpu, 0) for gpu in gpus), default=0) / BYTES_PER_GIB

    def memory_limit_gib(self, pod: PodInfo) -> float | None:
        """Return what a pod's frameworks may take of each of its GPUs; None without a limit."""
        fraction = parse_memory_fraction(pod.annotations.get(names.MEMORY_FRACTION, ""))
        total_gib = self.smallest_gib(pod.node_name, pod.devices) if fraction else 0.0
        return round(fraction * total_gib, 2) if fraction and total_gib else None

    def gpu_kind(self, pod: PodInfo | None = None) -> GpuKind | None:
        """Return the commonest type of GPU on the nodes where a pod may run, None without GPUs.

        Without a pod, or where no node would do, it is that of all nodes.
        """
        found = None
        if pod is not None:
            capable = self.nodes.capable((pod,), self.table.sorted_names)
            found = self.table.commonest_kind(capable)
        return found or self.table.commonest_kind()

    def members(self, gpujob: Key) -> list[PodRecord]:
        """Return the pods of a gang by name."""
        found = (self._pods[uid] for uid in self.gangs.pods_of(gpujob))
        return sorted(found, key=lambda record: record.name)

    def worker(self, pod: PodInfo) -> Job:
        """Return the load of the pod's worker on each of its GPUs: its GPUJob's, or its own.

        It only reads: a load that has no class yet gets none. `worker_to_hold` makes one.
        """
        return self._worker(pod, self.slowdowns.find)

    def worker_to_hold(self, pod: PodInfo) -> Job:
        """Return the same for a pod that is about to hold GPUs: its load gets a class."""
        return self._worker(pod, self.slowdowns.of)

    def placed_with(self, pod: PodInfo, worker: Job) -> PlacedWith:
        """Return what is written on a pod that is placed as `worker`."""
        known = self._pods.get(pod.uid)
        return placed_with(self._gpujob_of(pod)[1], role_of(known.pod if known else pod), worker)

    def _gpujob_of(self, pod: PodInfo) -> Key:
        """Return the key of a pod's GPUJob; as it was just read, it may have other labels."""
        known = self._pods.get(pod.uid)
        return (pod.namespace, gpujob_name(pod)) if known is None else known.gpujob

    def _worker(self, pod: PodInfo, classify: Callable[[Job, Load | None], Job]) -> Job:
        key = self._gpujob_of(pod)
        gang = self.gpu_jobs().get(key)
        if gang is None:
            job = classify(worker_by_annotations(pod), None)
        else:
            declared, several = declared_of(pod), self.gangs.has_loads(key)
            own = has_own_figures(gang, declared, several=several)
            job = classify(
                worker_of(gang, declared, several=several), None if own else gang.status.load
            )
            if job.sub_batches and accumulates(declared):
                job = in_steps(job, gang.steps(pod.uid, pod.annotations))
            placed = pod.placed_with
            if placed is not None and not gang.measured:
                job = not_less(job, placed)
        return job if job.gpus_per_pod == pod.gpus else replace(job, gpus_per_pod=pod.gpus)

    def required_domain(self, pod: PodInfo) -> tuple[str, str] | None:
        """Return the level of topology that a pod's gang requires, and a node in its domain.

        That is a node on which one of its pods is, or is being bound to, else the first that is
        planned; None where no level is required, or nothing is planned.
        """
        key = self._gpujob_of(pod)
        gang = self.gpu_jobs().get(key)
        level = None if gang is None else gang.spec.demand.required_topology
        if gang is None or not level:
            return None
        for uid in islice(self.gangs.pods_of(key), _LOOKED_AT):
            held = self.ledger.held(uid)
            if held is not None and held[0] is not Hold.PLANNED:
                return level, held[1].node
        return (level, gang.plan[0].node) if gang.plan else None

    def settle_beliefs(self, held: Iterable[Job] | None = None) -> bool:
        """Let what the predictor has said since take effect, on the sums of the GPUs as well.

        Where `held` names all jobs that are held elsewhere, classes that no job uses are released
        when room is short. Return whether some were, or gangs are to be kept on few nodes by
        another skew than before: what was refused is not refused for that any more.
        """
        released: set[int] = set()
        limits = self.slowdowns.placements.limits_version
        if held is not None and self.slowdowns.crowded():
            jobs = (*held, *self.ledger.jobs(), *self._plans.jobs())
            released = self.slowdowns.release(set().union(*map(classes_of, jobs)))
            self.table.touch(np.zeros(0, dtype=np.int64))
        changed = self.slowdowns.settle()
        if changed:
            gpus = self.table.gpus
            shared = (gpus.jobs > 1) & np.isin(gpus.resident_class, list(changed)).any(axis=1)
            self.ledger.sum_rows(np.flatnonzero(shared))
        if held is None:
            return False
        moved, self._limits_known = limits != self._limits_known, limits
        return moved or bool(released)

    # --- what the API server says ---------------------------------------------------------------

    def upsert(self, kind: str, raw: Mapping[str, Any]) -> None:
        """Take over an object as the API server has it; an older version changes nothing."""
        self.apply(kind, PARSERS[kind](raw))

    def apply(self, kind: str, record: Record) -> None:
        """Take over an object that has been read already."""
        if self._objects.is_predecessor(kind, record):
            self.forget(kind, record.key, record.uid)
            return
        if (
            isinstance(record, GpuNodeRecord)
            and record.observed_at_s > self.now_s + _CLOCKS_DIFFER_S
        ):
            # A report from the future would never be stale.
            record = replace(record, observed_at_s=self.now_s)
        before = self._objects.of(kind).get(record.key)
        if isinstance(record, PodRecord) and isinstance(before, PodRecord):
            record = as_known(record, before) if record.uid == before.uid else record
        gone, new = self._objects.put(kind, record)
        if gone is not None:
            self._follow(gone, gone=True)
        if new is not None:
            self._follow(new, gone=False, before=before if gone is None else None)

    def held(self, kind: str, raw: Mapping[str, Any]) -> Record | None:
        """Return the record of an object, None where this version of it is not held.

        Each write of ours comes twice, as its answer and as an event: it is read once. May be
        called from any thread.
        """
        metadata = raw["metadata"]
        found = self._objects.of(kind).get((metadata.get("namespace") or "", metadata["name"]))
        if found is None or found.uid != metadata.get("uid"):
            return None
        return found if found.resource_version == metadata.get("resourceVersion") else None

    def keep(self, record: GpuJobRecord, status: GPUJobStatus, now_s: float) -> None:
        """Let a GPUJob have a status that is not written yet, since `now_s` (Unix time).

        The next version of the object replaces it. Where that is known already, nothing changes.
        """
        if self.gpu_jobs().get(record.key) is not record:
            return
        kept = with_unwritten(record, status, now_s)
        self._objects.of("gpujobs")[record.key] = kept
        self._follow(kept, gone=False, before=record)

    def delete(self, kind: str, raw: Mapping[str, Any]) -> None:
        """Forget an object (only the one with this uid); it never comes back."""
        metadata = raw["metadata"]
        self.forget(
            kind, (metadata.get("namespace") or "", metadata["name"]), metadata.get("uid") or ""
        )

    def forget(self, kind: str, key: Key, uid: str) -> None:
        """Forget an object by its name and uid."""
        gone = self._objects.forget(kind, key, uid)
        if gone is not None:
            self._follow(gone, gone=True)
        elif kind == "pods":
            self._derive(uid)

    def tick(self, now_s: float) -> None:
        """Let the clock advance (Unix time): reports grow stale, plans end."""
        self.now_s = now_s
        self._objects.tick(now_s)
        self.table.tick(now_s, self._stale_after_s)
        for uid in sorted(self._plans.end(now_s)):
            self._derive(uid)

    def close_gpus(self, gpus: frozenset[tuple[str, str]]) -> None:
        """Let these GPUs, and no others, take no further pod."""
        changed = {node for node, _ in gpus ^ self._closed}
        self._closed = gpus
        for node in sorted(changed):
            record = self.gpu_nodes().get(("", node))
            if record is not None:
                self._follow_gpu_node(record, gone=False)

    def take_gpus(self, gpus: frozenset[tuple[str, str]]) -> bool:
        """Let these GPUs take no pod at all: claims that the queue did not allocate have them.

        Return whether others take pods again.
        """
        freed = not self._taken <= gpus
        changed = {node for node, _ in gpus ^ self._taken}
        self._taken = gpus
        for node in sorted(changed):
            record = self.gpu_nodes().get(("", node))
            if record is not None:
                self._follow_gpu_node(record, gone=False)
        return freed

    # --- Bindings under way -------------------------------------------------------------------

    def reserve(self, uid: str, claim: Claim) -> None:
        """Hold GPUs while a Binding is under way: until the watch shows it, or `release`."""
        self.ledger.put(uid, Hold.RESERVED, claim)
        self._derive(uid)

    def release(self, uid: str) -> None:
        """Give back what a failed Binding held."""
        self.ledger.put(uid, Hold.RESERVED, None)
        self._derive(uid)

    def use_levels(self, levels: Sequence[str]) -> None:
        """Let other labels of nodes be the levels of topology, widest first."""
        self.nodes.use_levels(levels)
        for name in self.table.slot_of:
            self.table.put_rack(name, self.nodes.rack(name))

    # --- what follows ---------------------------------------------------------------------------

    def _follow(self, record: Record, *, gone: bool, before: Record | None = None) -> None:
        match record:
            case NodeRecord():
                self.nodes.put(record.name, None if gone else record)
                self.table.put_rack(record.name, self.nodes.rack(record.name))
            case GpuNodeRecord():
                self._follow_gpu_node(record, gone=gone)
            case GpuJobRecord():
                self._follow_gpu_job(record, before, gone=gone)
            case PodRecord():
                self._follow_pod(record, gone=gone)
        gangs = self.gangs.forget(record) if gone else self.gangs.observe(record)
        for key in self.gangs.take_with_loads():
            # Its pods declare different loads: what its GPUJob says counts for some alone.
            self._derive_all(self.gangs.pods_of(key))
        if self.listener is not None:
            (self.listener.forget if gone else self.listener.observe)(record, gangs)
        for follow in self.followers:
            follow(record, gone)
        if isinstance(record, GpuNodeRecord):
            record.kept.followed()

    def _follow_gpu_node(self, record: GpuNodeRecord, *, gone: bool) -> None:
        self.nodes.put_by_claims(record.name, record.by_claims and not gone)
        if gone:
            self.table.remove_node(record.name)
            return
        # A GPU whose memory is nearly used up takes no further pod until that has changed.
        full = {request.gpu for request in record.status.eviction_requests}
        full |= {gpu for node, gpu in self._closed if node == record.name}
        most = self._max_jobs_per_gpu
        capped = [g.at_most(1 if g.uuid in full else most) for g in record.gpus]
        if self._taken:
            capped = [g.at_most(0) if (record.name, g.uuid) in self._taken else g for g in capped]
        self.ledger.sum_rows(self.table.put_node(record.name, capped))
        self.table.put_rack(record.name, self.nodes.rack(record.name))
        self.table.observe(record.name, record.observed_at_s, self.now_s, self._stale_after_s)

    def _follow_gpu_job(self, record: GpuJobRecord, before: Record | None, *, gone: bool) -> None:
        if not gone and record.plan and record.plan_deadline_s > self.now_s:
            worker = self.slowdowns.of(record.worker, record.status.load)
            planned = self._plans.put(record, worker)
        else:
            planned = self._plans.drop(record.key)
        # What is planned holds at once: the next plan is made by it.
        for uid in sorted(planned):
            self._derive(uid)
        if gone or not isinstance(before, GpuJobRecord) or _runs_otherwise(before, record):
            self._derive_all(self.gangs.pods_of(record.key) - planned)

    def _derive_all(self, uids: Collection[str]) -> None:
        """Work out anew what pods hold: a few at once, of many as `catch_up` comes to them.

        Their load is another then, as if the API server had said so a moment later.
        """
        if self.on_backlog is None or len(uids) <= _AT_ONCE:
            for uid in sorted(uids):
                self._derive(uid)
            return
        self._backlog |= dict.fromkeys(sorted(uids))
        self.on_backlog()

    @property
    def backlog(self) -> int:
        """The number of pods whose entries are out of date."""
        return len(self._backlog)

    def catch_up(self, stops: Callable[[], bool]) -> None:
        """Work out pods of the backlog until it is empty, or until `stops` says so."""
        while self._backlog and not stops():
            uid = next(iter(self._backlog))
            del self._backlog[uid]
            self._derive(uid)

    def _follow_pod(self, record: PodRecord, *, gone: bool) -> None:
        if gone:
            self._pods.pop(record.uid, None)
        else:
            self._pods[record.uid] = record
        self._derive(record.uid)

    def _derive(self, uid: str) -> None:
        """Work out anew what a pod holds and what it takes of its node."""
        record = self._pods.get(uid)
        planned = self._plans.of(uid, record.gpujob if record is not None else None)
        bound = None
        settled = record is None and self._objects.is_gone(uid)
        if record is not None:
            pod = record.pod
            settled = bool(pod.node_name) or pod.finished
            if planned is not None:
                planned = self._as_declared(planned, record)
            if record.bound and record.ours and (devices := tuple(dict.fromkeys(pod.devices))):
                bound = Claim(pod.node_name, devices, self.worker_to_hold(pod))
        if settled or (record is not None and record.pod.deleting):
            planned = None
        # The stronger first, so that a pod whose Binding has come through changes nothing.
        self.ledger.put(uid, Hold.BOUND, bound)
        self.ledger.put(uid, Hold.PLANNED, planned)
        if settled:
            self.ledger.put(uid, Hold.RESERVED, None)
        self.nodes.use(uid, self._use(record))

    def _as_declared(self, planned: Claim, record: PodRecord) -> Claim:
        """Return the place of a pod with the load of its own role."""
        gang, several = self.gpu_jobs().get(record.gpujob), self.gangs.has_loads(record.gpujob)
        if gang is None:
            return planned
        if worker_of(gang, declared_of(record.pod), several=several) is gang.worker:
            return planned
        return replace(planned, job=self.worker_to_hold(record.pod))

    def _use(self, record: PodRecord | None) -> Use | None:
        if record is None:
            return None
        pod, held = record.pod, self.ledger.held(record.uid)
        return pod.takes or (held and pod.on(held[1].node))

    # --- what must hold -----------------------------------------------------------------------

    def check(self) -> None:
        """Raise AssertionError unless everything derived agrees with the objects. For tests."""
        self.ledger.check()
        self.gangs.check()
        for uid, record in self._pods.items():
            assert self._objects.of("pods")[record.key] is record
            assert (uid in self.gangs.pods_of(record.gpujob)) == record.ours
        assert len(self._pods) == len(self._objects.of("pods"))
        assert {node for _, node in self.gpu_nodes()} == set(self.table.slot_of)
        assert not any(self._objects.is_gone(uid) for uid in self.nodes.uses())


def _runs_otherwise(before: GpuJobRecord, after: GpuJobRecord) -> bool:
    """Say whether the pods of a gang put another load on their GPUs than before."""
    steps = [each.status.plan and each.status.plan.accumulation_steps for each in (before, after)]
    return (
        before.worker != after.worker
        or before.status.load != after.status.load
        or steps[0] != steps[1]
    )
