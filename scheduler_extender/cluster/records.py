"""The API server's objects as records: read once, in the thread that received them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import attrgetter
from typing import Any

from scheduler_extender.cluster.jobs import (
    demand_now,
    kind_of_model,
    load_now,
    policy_job,
    seconds,
    sub_batches_now,
    unpredicted_load,
)
from scheduler_extender.cluster.pods import OWN_COLUMNS, PodInfo, pod_info
from scheduler_extender.cluster.table import GpuFacts, GpuKind
from scheduler_extender.cluster.workloads import (
    earlier_name,
    gpujob_name,
    is_endless,
    is_renamed,
    role_of,
)
from tandem.contracts import names
from tandem.contracts.annotations import AnnotationError, parse_demand
from tandem.contracts.inventory import changes, inventory_of, parse_inventory
from tandem.contracts.placement import PlacedWith
from tandem.contracts.quantity import parse_quantity
from tandem.contracts.resources import (
    GPU,
    Demand,
    GPUJobSpec,
    GPUJobStatus,
    GPUNodeStatus,
    Health,
    MemorySource,
    PodPlan,
    PodUse,
    Source,
)
from tandem.gpu_types import compute_share, is_slice, most_memory_bytes
from tandem.kube.reflector import Identified
from tandem.policy.job import Job, gib
from tandem.policy.units import BYTES_PER_GIB

Raw = Mapping[str, Any]
Key = tuple[str, str]  # (namespace, name)


@dataclass(frozen=True, slots=True)
class Record(Identified):
    """What every object has."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    #: Namespace ('' where there is none) and name: one object for all tables that have it.
    key: Key = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Make the key."""
        object.__setattr__(self, "key", (self.namespace, self.name))

    @property
    def version(self) -> int:
        """The resourceVersion as the number that it is; an object without one is always new."""
        return int(self.resource_version) if self.resource_version.isdigit() else -1


@dataclass(frozen=True, slots=True)
class NodeRecord(Record):
    """What kube-scheduler would look at before it puts a pod on a node."""

    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[tuple[str, str, str], ...] = ()  # (key, value, effect), those that keep pods off
    unschedulable: bool = False
    cpu: float = 0.0  # cores
    memory_bytes: int = 0
    pods: int = 0
    amounts: Mapping[str, int] = field(default_factory=dict)  # of the other resources


class KeptReport:
    """The report of an agent, in the form that it has while its event is followed, and later.

    As a message a report takes thirty times the memory of its JSON, compressed; later readers are
    few. To compress it takes 10 us, to read it 0.1 ms.
    """

    __slots__ = ("_packed", "_status")

    def __init__(self, status: GPUNodeStatus) -> None:
        self._packed = zlib.compress(status.json_bytes(), 1)
        self._status: GPUNodeStatus | None = status

    @property
    def json(self) -> bytes:
        """The report as JSON."""
        return zlib.decompress(self._packed)

    @property
    def status(self) -> GPUNodeStatus:
        """The report as a message."""
        return self._status or GPUNodeStatus.model_validate_json(self.json)

    def followed(self) -> None:
        """Keep the JSON alone."""
        self._status = None


@dataclass(frozen=True, slots=True)
class GpuNodeRecord(Record):
    """The report of a node's agent. `shares` of a GPU is not yet capped by our configuration.

    `inventory` says which GPUs the node is known to have, '' before that is noted. `changed` names
    those that are not as they are known: until an operator agrees nothing new runs on the node.
    `named` has UUID, number and type of all that the report names.
    """

    observed_at_s: float
    gpus: tuple[GpuFacts, ...]
    kept: KeptReport = field(compare=False)
    named: tuple[tuple[str, str, GpuKind], ...]
    inventory: str = ""
    changed: tuple[tuple[str, str], ...] = ()
    created_s: float = 0.0

    @property
    def status(self) -> GPUNodeStatus:
        """The whole report; see `KeptReport`."""
        return self.kept.status

    def capacity_bytes(self, gpu: str) -> int:
        """Return the memory that a GPU has for jobs, 0 where the GPU is not in the report."""
        return int(next((g.capacity_gib * BYTES_PER_GIB for g in self.gpus if g.uuid == gpu), 0.0))

    def gpu_name(self, gpu: str) -> str:
        """Return a GPU as people call it, node/index; by its UUID where it is not in the report."""
        number = next((number for uuid, number, _ in self.named if uuid == gpu), gpu)
        return f"{self.name}/{number}"


@dataclass(frozen=True, slots=True)
class GpuJobRecord(Record):
    """A gang, and what the ledger needs of it."""

    spec: GPUJobSpec
    status: GPUJobStatus
    worker: Job
    plan_deadline_s: float = 0.0
    measured: bool = False  # the memory of its worker was measured, and not only predicted
    #: Since when its status is known here alone (Unix time); None where it is written.
    unwritten_since_s: float | None = None

    @property
    def spans_workloads(self) -> bool:
        """True for gangs that their users have named: their pods may have several owners."""
        return self.name.startswith(("gang-", "group-", "podgroup-"))

    def steps(self, uid: str, annotations: Mapping[str, str]) -> int:
        """Return in how many micro-batches a pod runs: as it was bound, else as it is planned."""
        bound = annotations.get(names.ACCUMULATION_STEPS, "")
        if bound.isdecimal() and len(bound) <= _LONGEST_STEPS:
            return int(bound)
        plan = self.status.plan
        planned = plan is not None and any(pod.uid == uid for pod in plan.pods)
        return plan.accumulation_steps if plan is not None and planned else 1

    @property
    def plan(self) -> tuple[PodPlan, ...]:
        """The places of its pods, as planned."""
        return tuple(self.status.plan.pods) if self.status.plan else ()


@dataclass(frozen=True, slots=True)
class PodRecord(Record):
    """A pod of any scheduler; `gpujob` names the GPUJob of one that asks for GPUs of ours."""

    pod: PodInfo
    gpujob: Key = ("", "")

    @property
    def ours(self) -> bool:
        """True when it asks for GPUs of ours."""
        return self.pod.gpus > 0

    @property
    def bound(self) -> bool:
        """True when it has a node and may still run there."""
        return bool(self.pod.node_name) and not self.pod.finished


def parse_node(raw: Raw) -> NodeRecord:
    """Read a Node."""
    spec, status = raw.get("spec") or {}, raw.get("status") or {}
    allocatable = status.get("allocatable") or {}
    return NodeRecord(
        *_identity(raw),
        labels=raw["metadata"].get("labels") or {},
        taints=tuple(
            (taint["key"], taint.get("value", ""), taint["effect"])
            for taint in spec.get("taints") or ()
            if taint["effect"] != "PreferNoSchedule"
        ),
        unschedulable=bool(spec.get("unschedulable")),
        cpu=float(parse_quantity(allocatable.get("cpu", "0"))),
        memory_bytes=int(parse_quantity(allocatable.get("memory", "0"))),
        pods=int(parse_quantity(allocatable.get("pods", "0"))),
        amounts={
            name: int(parse_quantity(text))
            for name, text in allocatable.items()
            if name not in OWN_COLUMNS
        },
    )


def parse_gpu_node(raw: Raw) -> GpuNodeRecord:
    """Read a GPUNode; one whose agent has not reported yet has no GPUs."""
    if not raw.get("status"):
        raw = {**raw, "status": {"observedAt": "1970-01-01T00:00:00Z"}}
    status = _plausible(GPUNodeStatus.model_validate(raw["status"]))
    metadata = raw["metadata"]
    inventory = (metadata.get("annotations") or {}).get(names.INVENTORY) or ""
    changed: tuple[tuple[str, str], ...] = ()
    if inventory:
        changed = tuple(changes(parse_inventory(inventory), inventory_of(status.gpus)))
    unknown = {uuid for uuid, _ in changed}
    return GpuNodeRecord(
        *_identity(raw),
        observed_at_s=seconds(status.observed_at),
        gpus=tuple(
            GpuFacts(
                uuid=gpu.uuid,
                kind=_kind(gpu.model, gpu.memory_bytes),
                capacity_gib=gib(
                    max(
                        0,
                        gpu.memory_bytes
                        - (gpu.memory_reserved_bytes or 0)
                        - (gpu.memory_foreign_bytes or 0),
                    )
                ),
                shares=gpu.shares if _has_room(gpu) else 0,
                healthy=gpu.health is Health.HEALTHY and not changed,
                # An API server with the definition of an earlier version drops `slice`.
                sliced=gpu.slice is not None or is_slice(gpu.model),
                compute=compute_share(gpu.model),
                guarded=gpu.memory_guarded,
            )
            for gpu in {gpu.uuid: gpu for gpu in status.gpus}.values()
            if gpu.uuid not in unknown
        ),
        kept=KeptReport(status),
        named=tuple((g.uuid, g.number, _kind(g.model, g.memory_bytes)) for g in status.gpus),
        inventory=inventory,
        changed=changed,
        created_s=seconds(metadata.get("creationTimestamp") or "1970-01-01T00:00:00Z"),
    )


_kind = lru_cache(1024)(GpuKind)  # a cluster has tens of thousands of GPUs, of few types


def _has_room(gpu: GPU) -> bool:
    """Say whether a job may have any of a GPU's memory: all jobs need some.

    A capacity of 0 with shares stands for a GPU without a size, which takes whole jobs.
    """
    if gpu.memory_source is MemorySource.UNKNOWN:
        return True
    taken = (gpu.memory_reserved_bytes or 0) + (gpu.memory_foreign_bytes or 0)
    return taken < gpu.memory_bytes


def _plausible(status: GPUNodeStatus) -> GPUNodeStatus:
    """Return a report without GPUs larger than their type, and without more use than they hold.

    A node has what it says on its own GPUs alone: what its pods used goes into the needs of their
    next runs, wherever those are.
    """
    gpus = [gpu for gpu in status.gpus if gpu.memory_bytes <= most_memory_bytes(gpu.model)]
    changes: dict[int, GPU] = {}
    for index, gpu in enumerate(gpus):
        most = gpu.memory_bytes or most_memory_bytes(gpu.model)
        over = [use for use in gpu.pods if any(_over(use, most))]
        if over:
            uses = [_at_most(use, most) for use in gpu.pods]
            changes[index] = gpu.model_copy(update={"pods": uses})
    if not changes and len(gpus) == len(status.gpus):
        return status
    return status.model_copy(
        update={"gpus": [changes.get(index, gpu) for index, gpu in enumerate(gpus)]}
    )


_LONGEST_STEPS = 10  # digits
_MEMORY = ("memory_bytes", "memory_peak_bytes", "memory_base_bytes", "memory_peak_extra_bytes")


def _over(use: PodUse, most: int) -> Iterator[bool]:
    return ((getattr(use, name) or 0) > most for name in _MEMORY)


def _at_most(use: PodUse, most: int) -> PodUse:
    held = {name: getattr(use, name) for name in _MEMORY}
    return use.model_copy(
        update={name: None if value is None else min(value, most) for name, value in held.items()}
    )


def parse_gpu_job(raw: Raw) -> GpuJobRecord:
    """Read a GPUJob."""
    spec = GPUJobSpec.model_validate(raw["spec"])
    return _gpu_job(_identity(raw), spec, GPUJobStatus.model_validate(raw.get("status") or {}))


def with_unwritten(record: GpuJobRecord, status: GPUJobStatus, now_s: float) -> GpuJobRecord:
    """Return a GPUJob with a status that is not written yet, since `now_s` (Unix time)."""
    identity = (record.namespace, record.name, record.uid, record.resource_version)
    return replace(_gpu_job(identity, record.spec, status), unwritten_since_s=now_s)


def _gpu_job(
    identity: tuple[str, str, str, str], spec: GPUJobSpec, status: GPUJobStatus
) -> GpuJobRecord:
    load, kind = load_now(spec.demand, status), kind_of_model(spec, status.load)
    return GpuJobRecord(
        *identity,
        spec=spec,
        status=status,
        worker=policy_job(
            "/".join(identity[:2]),
            demand_now(spec, status),
            load,
            pods=1,
            kind=kind,
            sub_batches=sub_batches_now(status),
        ),
        plan_deadline_s=seconds(status.plan.deadline) if status.plan else 0.0,
        measured=load.memory_source is Source.OBSERVED,
    )


def parse_pod(raw: Raw, before: PodRecord | None = None) -> PodRecord:
    """Read a pod; of pods that are not ours, and of those that run, only what still matters.

    `before` is what was read of it earlier. It is returned itself where the pod is not ours and
    takes the same of its node.
    """
    if before is not None and before.uid != raw["metadata"].get("uid"):
        before = None
    pod = pod_info(raw, before.pod if before is not None else None, kept=True)
    identity = (pod.namespace, pod.name, pod.uid, pod.resource_version)
    if pod.gpus == 0:
        if before is not None and not before.ours and before.pod.takes == pod.takes:
            return before
        return PodRecord(*identity, pod)
    return PodRecord(*identity, pod, (pod.namespace, gpujob_name(pod)))


def share_owner(pod: PodInfo, gang: GpuJobRecord) -> None:
    """Let a pod have the object that its GPUJob has for the same workload.

    The values of neither change. Tens of thousands of gangs have one pod each, and what is equal in
    both would take 0.4 KB twice.
    """
    owner, workload = pod.owner, gang.spec.workload
    if owner is None or owner is workload or owner.uid != workload.uid:
        return
    if owner == workload:
        object.__setattr__(pod, "owner", workload)


def share_key(pod: PodRecord, key: Key) -> None:
    """Let a pod have the object that its gang has for the key of the GPUJob, in the same way."""
    if pod.gpujob is not key and pod.gpujob == key:
        object.__setattr__(pod, "gpujob", key)


def as_known(record: PodRecord, known: PodRecord) -> PodRecord:
    """Return a newer record of a pod with the GPUJob and the role that it had before.

    Labels and owners that change while a pod lives change neither. The annotation that fixes the
    GPUJob replaces what was known without it.
    """
    if not (record.ours and known.ours):
        return record
    fixed = names.GPU_JOB in record.pod.annotations and (
        names.GPU_JOB not in known.pod.annotations or _joins(record, known)
    )
    gpujob = record.gpujob if fixed else known.gpujob
    role = role_of(known.pod)
    if (gpujob, role) == (record.gpujob, role_of(record.pod)):
        return record
    return replace(record, pod=replace(record.pod, known_as=(gpujob[1], role)), gpujob=gpujob)


def _joins(record: PodRecord, known: PodRecord) -> bool:
    """Say whether a pod goes to the GPUJob that its workload has by the name of an earlier release.

    It belongs to the same owner, so that the GPUs of an owner count for no other.
    """
    return record.gpujob != known.gpujob and (
        known.gpujob[1] != earlier_name(record.pod) == record.gpujob[1]
        and is_renamed(record.pod, known.gpujob[1])
    )


#: What a pod declares of itself, as it is written, and whether it has no end of its own.
Declared = tuple[tuple[str | None, ...], bool]
#: Annotations of the gang as a whole.
_OF_GANG = (names.GANG, names.GANG_SIZE, names.REQUIRED_TOPOLOGY, names.PREFERRED_TOPOLOGY)
_DECLARED = tuple(name for name in names.USER_ANNOTATIONS if name not in _OF_GANG)
#: Of a demand, what the load of a worker follows from.
_FIGURES = attrgetter(
    "model",
    "batch_size",
    "declared_memory_bytes",
    "declared_utilisation_percent",
    "precision",
    "optimizer",
    "sequence_length",
    "framework",
    "parallelism",
    "gradient_checkpointing",
)


def declared_of(pod: PodInfo) -> Declared:
    """Return what a pod declares of itself, as it is written."""
    return tuple(map(pod.annotations.get, _DECLARED)), is_endless(pod)


@lru_cache(4096)
def demand_of(declared: Declared, gpus: int = 1) -> Demand:
    """Return what a pod asks for by what it declares; one that cannot be read takes whole GPUs."""
    texts, endless = declared
    named = dict(zip(_DECLARED, texts, strict=True))
    try:
        demand = parse_demand({name: text for name, text in named.items() if text}, gpus)
    except AnnotationError:
        return Demand(gpus_per_pod=gpus, exclusive=True)
    return demand.model_copy(update={"exclusive": True}) if endless else demand


@lru_cache(4096)
def figures_of(declared: Declared) -> tuple[object, ...]:
    """Return what a pod declares of the load that it puts on a GPU."""
    figures: tuple[object, ...] = _FIGURES(demand_of(declared))
    return figures


def accumulates(declared: Declared) -> bool:
    """Say whether pods may run their batch in parts: they learn of the number by annotation."""
    return demand_of(declared).accumulation


def has_own_figures(record: GpuJobRecord, declared: Declared, *, several: bool) -> bool:
    """Say whether a pod declares another load than the pod that its GPUJob was made of.

    `several`: the pods of the gang declare different loads. Of a gang whose pods all declare the
    same, the GPUJob says what counts.
    """
    if not (several or record.spec.roles):
        return False
    own: bool = figures_of(declared) != _FIGURES(record.spec.demand)
    return own


def worker_of(record: GpuJobRecord, declared: Declared, *, several: bool) -> Job:
    """Return the load of a pod of a GPUJob: what is known of the job, or of the pod's own role.

    What is predicted of the job says nothing of pods that declare another load: they have what they
    declare, or whole GPUs; and the most that was seen of the job, where that is more.
    """
    demand, said, status = demand_of(declared), record.spec.demand, record.status
    if not has_own_figures(record, declared, several=several):
        if demand.exclusive == said.exclusive or (said.exclusive and not several):
            return record.worker
        whole = load_now(said, status).memory_source is Source.WHOLE_GPU
        return replace(record.worker, exclusive=demand.exclusive or status.alone or whole)
    status = status.model_copy(update={"load": None, "sub_batches": []})
    level = {each: getattr(said, each) for each in ("required_topology", "preferred_topology")}
    demand = demand.model_copy(update=level | ({"exclusive": True} if status.alone else {}))
    name = f"{record.namespace}/{record.name}"
    return policy_job(name, demand, load_now(demand, status), pods=1)


def worker_by_annotations(pod: PodInfo) -> Job:
    """Return the load of one worker without its GPUJob: as it was placed, else as it declares.

    A pod whose annotations cannot be read (it came past the webhook) takes whole GPUs.
    """
    placed = pod.placed_with
    if placed is not None:
        return _worker_as_placed(pod, placed)
    try:
        demand = parse_demand(pod.annotations, pod.gpus)
    except AnnotationError:
        demand = Demand(gpus_per_pod=pod.gpus, exclusive=True)
    return policy_job(
        f"{pod.namespace}/{gpujob_name(pod)}", demand, unpredicted_load(demand), pods=1
    )


def _worker_as_placed(pod: PodInfo, placed: PlacedWith) -> Job:
    return Job(
        id=f"{pod.namespace}/{gpujob_name(pod)}",
        gpus_per_pod=pod.gpus,
        memory_base_gib=gib(placed.memory_base_bytes or 0),
        memory_peak_extra_gib=gib(placed.memory_peak_extra_bytes or 0),
        peak_probability=placed.peak_probability or 0.0,
        gpu_utilisation=100.0 if placed.utilization is None else placed.utilization,
        exclusive=bool(placed.exclusive) or placed.memory_base_bytes is None,
        checkpointable=pod.annotations.get(names.CHECKPOINT) == "true",
    )


def placed_with(gpujob: str, role: str, worker: Job) -> PlacedWith:
    """Return what is written on a pod that is placed as `worker`."""
    whole = worker.exclusive and not worker.memory_peak_gib
    return PlacedWith(
        gpu_job=gpujob,
        role=role or None,
        memory_base_bytes=None if whole else _bytes(worker.memory_base_gib),
        memory_peak_extra_bytes=None if whole else _bytes(worker.memory_peak_extra_gib),
        peak_probability=None if whole else worker.peak_probability,
        utilization=None if whole else worker.gpu_utilisation,
        exclusive=worker.exclusive or None,
    )


def _bytes(memory_gib: float) -> int:
    return round(memory_gib * BYTES_PER_GIB)


def not_less(worker: Job, placed: PlacedWith) -> Job:
    """Return a worker with at least the memory that its pod was placed with."""
    base, peak = placed.memory_base_bytes, placed.memory_bytes
    if base is None or peak is None:
        return worker
    base_gib = max(worker.memory_base_gib, gib(base))
    peak_gib = max(worker.memory_peak_gib, gib(peak))
    if (base_gib, peak_gib) == (worker.memory_base_gib, worker.memory_peak_gib):
        return worker
    return replace(
        worker,
        memory_base_gib=base_gib,
        memory_peak_extra_gib=peak_gib - base_gib,
        peak_probability=max(worker.peak_probability, placed.peak_probability or 0.0),
    )


#: By the plural of the resource, as reflectors name them.
PARSERS: dict[str, Callable[[Raw], Record]] = {
    "nodes": parse_node,
    "gpunodes": parse_gpu_node,
    "gpujobs": parse_gpu_job,
    "pods": parse_pod,
}


def _identity(raw: Raw) -> tuple[str, str, str, str]:
    metadata = raw["metadata"]
    return (
        metadata.get("namespace") or "",
        metadata["name"],
        metadata.get("uid") or "",
        metadata.get("resourceVersion") or "",
    )


KINDS = tuple(PARSERS)
#: Uids of deleted objects are kept, because an answer that was read before the deletion may come
#: after it: no request takes as long as this, and a burst of deletions is not larger than that.
GRAVES_S, _GRAVES = 600.0, 20_000


class Objects:
    """Records by kind and key; one that is gone never comes back."""

    def __init__(self) -> None:
        self._by_kind: dict[str, dict[Key, Record]] = {kind: {} for kind in KINDS}
        # uid -> when it was deleted, in order of time. Those of pods without GPUs are apart:
        # however many of them are deleted, what holds GPUs is remembered.
        self._graves: dict[str, float] = {}
        self._graves_of_others: dict[str, float] = {}
        self._now_s = 0.0

    def tick(self, now_s: float) -> None:
        """Take the time, and forget which objects were deleted long ago."""
        self._now_s = now_s
        for graves in (self._graves, self._graves_of_others):
            self._bury(graves)

    def of(self, kind: str) -> dict[Key, Record]:
        """Return the records of a kind, live."""
        return self._by_kind[kind]

    def is_gone(self, uid: str) -> bool:
        """Say whether the object with this uid was there, or was said to be, and is no more."""
        return uid in self._graves or uid in self._graves_of_others

    def is_predecessor(self, kind: str, record: Record) -> bool:
        """Say whether a record is of an earlier object of that name, and arrived late."""
        known = self._by_kind[kind].get(record.key)
        return known is not None and known.uid != record.uid and known.version >= record.version

    def put(self, kind: str, record: Record) -> tuple[Record | None, Record | None]:
        """Take over a record: (what is gone by that, what is new); an older one changes nothing."""
        if self.is_gone(record.uid):
            return None, None
        known = self._by_kind[kind].get(record.key)
        if known is not None and known.version >= record.version:
            return None, None
        gone = None
        if known is not None and known.uid != record.uid:
            gone = self.remove(kind, known)
        self._by_kind[kind][record.key] = record
        return gone, record

    def forget(self, kind: str, key: Key, uid: str) -> Record | None:
        """Forget the object with this uid, known or not; return it where it was known."""
        known = self._by_kind[kind].get(key)
        if known is not None and known.uid == uid:
            return self.remove(kind, known)
        self._remember(self._graves, uid)
        return None

    def remove(self, kind: str, record: Record) -> Record:
        """Forget a record that is held."""
        del self._by_kind[kind][record.key]
        ours = not isinstance(record, PodRecord) or record.ours
        self._remember(self._graves if ours else self._graves_of_others, record.uid)
        return record

    def _remember(self, graves: dict[str, float], uid: str) -> None:
        graves.setdefault(uid, self._now_s)
        self._bury(graves)

    def _bury(self, graves: dict[str, float]) -> None:
        while graves:
            uid, deleted_s = next(iter(graves.items()))
            if deleted_s >= self._now_s - GRAVES_S and len(graves) <= _GRAVES:
                return
            del graves[uid]
