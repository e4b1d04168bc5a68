"""Creates the GPUJob of a gang from its first pod, and deletes one that is out of date."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler_extender import faults
from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.pods import PodInfo
from scheduler_extender.cluster.records import GpuJobRecord
from scheduler_extender.cluster.workloads import (
    ENDLESS,
    KINDS,
    above,
    gang_size,
    resource_of,
    workload_of,
)
from scheduler_extender.cluster.writes import Writer
from scheduler_extender.queue.load_prediction import LoadPrediction
from scheduler_extender.queue.owners import Owners
from tandem.contracts import names
from tandem.contracts.annotations import AnnotationError, parse_demand
from tandem.contracts.resources import GPUJobSpec, WorkloadRef
from tandem.kube.errors import AlreadyExists, Forbidden, NotFound
from tandem.kube.resource import GPU_JOBS


class Creation:
    """One GPUJob per gang. All methods run on the event loop."""

    def __init__(self, writer: Writer, load_prediction: LoadPrediction) -> None:
        self._writer = writer
        self._load_prediction = load_prediction
        self._owners = Owners(writer)

    async def create(self, gang: Gang, pod: PodInfo) -> None:
        """Create the GPUJob of a gang from the first of its pods."""
        workload, owner = await self._owner_of(pod)
        try:
            demand = parse_demand(pod.annotations, pod.gpus, gang_size=gang_size(pod, owner))
        except AnnotationError as error:
            # The webhook refuses these; a pod that came past it is told, and waits.
            await self._writer.say(pod, "InvalidAnnotation", str(error), "Warning")
            return
        if workload.kind in ENDLESS:
            demand = demand.model_copy(update={"exclusive": True})
        spec = GPUJobSpec(
            workload=workload,
            demand=demand,
            gang=pod.annotations.get(names.GANG, ""),
            fingerprint=pod.fingerprint,
        )
        body = {
            "metadata": {
                "name": gang.key[1],
                "namespace": gang.key[0],
                "ownerReferences": [
                    {
                        "apiVersion": workload.api_version,
                        "kind": workload.kind,
                        "name": workload.name,
                        "uid": workload.uid,
                    }
                ],
            },
            "spec": spec.wire(),
        }
        faults.reach("gpujob-create-before")
        try:
            created = await self._writer.call(self._writer.api.create, GPU_JOBS, body, gang.key[0])
        except AlreadyExists:
            return
        faults.reach("gpujob-create-after")
        self._writer.take(created)
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

    async def delete_replaced(self, record: GpuJobRecord) -> None:
        """Delete the GPUJob of a workload that was replaced by another of the same name."""
        await self._writer.call(
            self._writer.api.delete, GPU_JOBS, record.name, record.namespace, uid=record.uid
        )
