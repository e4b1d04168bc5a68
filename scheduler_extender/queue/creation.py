"""Creates the GPUJob of a gang from its first pod."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.pods import PodInfo
from scheduler_extender.cluster.workloads import (
    ENDLESS,
    KINDS,
    above,
    gang_size,
    resource_of,
    workload_of,
)
from scheduler_extender.cluster.writes import Writer
from scheduler_extender.queue.effects import CreateGpuJob, Effects, Executor, WriteEvent
from scheduler_extender.queue.load_prediction import LoadPrediction
from scheduler_extender.queue.owners import Owners
from tandem.contracts import names
from tandem.contracts.annotations import AnnotationError, parse_demand
from tandem.contracts.resources import GPUJobSpec, WorkloadRef
from tandem.kube.errors import Forbidden, NotFound


class Creation:
    """One GPUJob per gang. All methods run on the event loop."""

    def __init__(self, writer: Writer, executor: Executor, load_prediction: LoadPrediction) -> None:
        self._executor = executor
        self._load_prediction = load_prediction
        self._owners = Owners(writer)

    async def create(self, gang: Gang, pod: PodInfo) -> None:
        """Create the GPUJob of a gang from the first of its pods."""
        effects = new_gpu_job(gang, pod, *await self._owner_of(pod))
        await self._executor.carry_out(gang, effects)
        if gang.record is not None and gang.record.status.queued_at is None:
            await self._load_prediction.enqueue(gang)

    async def _owner_of(self, pod: PodInfo) -> tuple[WorkloadRef, Mapping[str, Any] | None]:
        """Return the workload of a pod, and the object where its kind says what starts together."""
        workload = workload_of(pod)
        higher = above(pod)
        resource = KINDS[higher[0]].resource if higher else resource_of(workload)
        if resource is None or (names.GANG_SIZE in pod.annotations and not higher):
            return workload, None
        try:
            owner = await self._owners.read(
                resource, higher[1] if higher else workload.name, pod.namespace
            )
        except (NotFound, Forbidden):
            return workload, None
        if higher:
            metadata = owner["metadata"]
            workload = WorkloadRef(
                api_version=resource.api_version,
                kind=resource.kind,
                name=metadata["name"],
                uid=metadata["uid"],
            )
        return workload, owner | {"kind": resource.kind}


def new_gpu_job(
    gang: Gang, pod: PodInfo, workload: WorkloadRef, owner: Mapping[str, Any] | None
) -> Effects:
    """Create the GPUJob of a gang whose first pod belongs to `workload`. Pure.

    `owner` is the object of the workload where its kind says how many pods start together.
    """
    try:
        demand = parse_demand(pod.annotations, pod.gpus, gang_size=gang_size(pod, owner))
    except AnnotationError as error:
        # The webhook refuses these; a pod that came past it waits, and its owner reads why.
        return (WriteEvent(pod, "InvalidAnnotation", str(error)),)
    if workload.kind in ENDLESS:
        demand = demand.model_copy(update={"exclusive": True})
    spec = GPUJobSpec(
        workload=workload,
        demand=demand,
        gang=pod.annotations.get(names.GANG, ""),
        fingerprint=pod.fingerprint,
    )
    reference = {
        "apiVersion": workload.api_version,
        "kind": workload.kind,
        "name": workload.name,
        "uid": workload.uid,
    }
    namespace, name = gang.key
    metadata = {"name": name, "namespace": namespace, "ownerReferences": [reference]}
    return (CreateGpuJob({"metadata": metadata, "spec": spec.wire()}),)
