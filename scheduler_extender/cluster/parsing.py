"""Objects as JSON -> records: read once, in the thread that received them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache

from scheduler_extender.cluster.jobs import (
    demand_now,
    kind_of_model,
    load_now,
    policy_job,
    seconds,
    sub_batches_now,
)
from scheduler_extender.cluster.pods import OWN_COLUMNS, PodInfo, pod_info
from scheduler_extender.cluster.records import (
    GpuJobRecord,
    GpuNodeRecord,
    KeptReport,
    Key,
    NodeRecord,
    PodRecord,
    Raw,
    Record,
)
from scheduler_extender.cluster.table import GpuFacts, GpuKind
from scheduler_extender.cluster.workloads import (
    earlier_name,
    gpujob_name,
    is_renamed,
    role_of,
)
from tandem.contracts import names
from tandem.contracts.inventory import changes, inventory_of, parse_inventory
from tandem.contracts.quantity import parse_quantity
from tandem.contracts.resources import (
    GPU,
    GPUJobSpec,
    GPUJobStatus,
    GPUNodeStatus,
    Health,
    MemorySource,
    PodUse,
    Source,
)
from tandem.gpu_types import compute_share, is_slice, most_memory_bytes
from tandem.policy.job import gib


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
                nvlink=-1 if gpu.nvlink_domain is None else gpu.nvlink_domain,
                numa=-1 if gpu.numa_node is None else gpu.numa_node,
            )
            for gpu in {gpu.uuid: gpu for gpu in status.gpus}.values()
            if gpu.uuid not in unknown
        ),
        kept=KeptReport(status),
        named=tuple((g.uuid, g.number, _kind(g.model, g.memory_bytes)) for g in status.gpus),
        inventory=inventory,
        changed=changed,
        created_s=seconds(metadata.get("creationTimestamp") or "1970-01-01T00:00:00Z"),
        by_claims=any(gpu.dra_shares is not None and gpu.shares > 0 for gpu in status.gpus),
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
