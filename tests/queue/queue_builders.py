"""Pods and gangs for the queue's tests: only what a scenario says differs from the default."""

import asyncio
import contextlib
from pathlib import Path

from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.parsing import parse_gpu_job
from scheduler_extender.cluster.pods import PodInfo, pod_info
from scheduler_extender.cluster.records import GpuJobRecord
from scheduler_extender.cluster.workloads import resource_of
from scheduler_extender.queue.controller import Controller
from scheduler_extender.queue.steps.phases import TRANSITIONS
from scheduler_extender.queue.workqueue import WorkQueue
from tandem.contracts.resources import (
    Demand,
    GPUJobSpec,
    GPUJobStatus,
    Load,
    Phase,
    Source,
    WorkloadRef,
)
from tandem.kube.errors import AlreadyExists
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import PODS

GIB = 1 << 30


def raw_pod(
    name: str,
    *,
    gpus: int = 1,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    owner: tuple[str, str] | None = None,
    api_version: str = "batch/v1",  # of the owner
    gated: bool = True,
    **spec: object,
) -> dict:
    metadata: dict = {
        "name": name,
        "namespace": "default",
        "annotations": annotations or {},
        "labels": labels or {},
    }
    if owner:
        kind, owner_name = owner
        metadata["ownerReferences"] = [
            {
                "apiVersion": api_version,
                "kind": kind,
                "name": owner_name,
                "uid": f"uid-{owner_name}",
                "controller": True,
            }
        ]
    pod: dict = {
        "metadata": metadata,
        "spec": {
            "containers": [{"name": "main", "resources": {"limits": {"tandem.gpu/gpu": gpus}}}],
            **spec,
        },
    }
    if gated:
        pod["spec"]["schedulingGates"] = [{"name": "tandem.gpu/queue"}]
    return pod


def pod(name: str, *, uid: str = "", **more: object) -> PodInfo:
    raw = raw_pod(name, **more)  # type: ignore[arg-type]
    raw["metadata"] |= {"uid": uid or f"uid-{name}", "resourceVersion": "1"}
    return pod_info(raw)


def load(base_gib: float = 10, extra_gib: float = 2, p: float = 0.2) -> Load:
    return Load(
        utilisation_percent=40,
        utilisation_p95_percent=60,
        memory_base_bytes=int(base_gib * GIB),
        memory_peak_extra_bytes=int(extra_gib * GIB),
        peak_probability=p,
        memory_p95_bytes=int((base_gib + extra_gib) * GIB),
        utilisation_source=Source.FORMULA,
        memory_source=Source.FORMULA,
    )


def gang(*pods: PodInfo, size: int = 1, phase: Phase = Phase.QUEUED, **status: object) -> Gang:
    spec = GPUJobSpec(
        workload=WorkloadRef(api_version="batch/v1", kind="Job", name="j", uid="uid-j"),
        demand=Demand(gpus_per_pod=1, gang_size=size),
    )
    record: GpuJobRecord = parse_gpu_job(
        {
            "metadata": {
                "namespace": "default",
                "name": "job-j",
                "uid": "u",
                "resourceVersion": "1",
            },
            "spec": spec.wire(),
            "status": GPUJobStatus(phase=phase, load=load(), **status).wire(),  # type: ignore[arg-type]
        }
    )
    return Gang(("default", "job-j"), record, {pod.uid: pod for pod in pods})


def on_the_page(message: str) -> bool:
    """Say whether docs/messages.md has a message word for word."""
    page = Path(__file__).resolve().parents[2] / "docs" / "messages.md"
    return f"`{message}` |\n" in page.read_text()


def is_transition(before: Phase, after: Phase) -> bool:
    """Return True where the table of phases has this change, or where the phase stays."""
    return before is after or any(before in row.of and after is row.to for row in TRANSITIONS)


async def settled(work: WorkQueue) -> None:
    """Return when nothing is to be done any more, timers apart."""
    while work._dirty or work._tasks:
        if work._tasks:
            await asyncio.wait(work._tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0)


async def cycle(controller: Controller) -> None:
    """Bring every gang up to date, plan what waits, and carry it out to its end."""
    controller.work.go()
    try:
        controller.work.wake()
        await settled(controller.work)
        await controller._run_cycle()
        await settled(controller.work)
    finally:
        controller.work.hold()


def create_with_owner(api: MemoryCluster, body: dict) -> None:
    """Create a pod, and before it each owner that is of a known kind and does not exist."""
    for owner in body["metadata"].get("ownerReferences", ()):
        _create_owner(api, owner)
    api.create(PODS, body)


def _create_owner(api: MemoryCluster, owner: dict[str, str]) -> None:
    reference = WorkloadRef(
        api_version=owner["apiVersion"], kind=owner["kind"], name=owner["name"], uid=owner["uid"]
    )
    resource = resource_of(reference)
    if resource is not None:
        metadata = {"name": owner["name"], "namespace": "default", "uid": owner["uid"]}
        with contextlib.suppress(AlreadyExists):
            api.create(resource, {"metadata": metadata, "spec": {}})
