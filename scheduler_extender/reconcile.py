"""Keeping GPUJobs in step with their pods: made, predicted, followed, closed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from scheduler_extender import faults, lifecycle
from scheduler_extender.accounting import with_service
from scheduler_extender.config import QueueConfig
from scheduler_extender.gangs import KINDS, above, gang_size, kind_of, workload_of
from scheduler_extender.jobs import rfc3339, seconds
from scheduler_extender.pods import PodInfo
from scheduler_extender.predictions import GpuKind, Predictor
from scheduler_extender.preemption import Preempter, has_ended, method_of
from scheduler_extender.records import GpuJobRecord, Key
from scheduler_extender.registry import Gang
from scheduler_extender.writes import Writer
from tandem.contracts import names
from tandem.contracts.annotations import AnnotationError, parse_demand
from tandem.contracts.prediction import Prediction
from tandem.contracts.resources import (
    Condition,
    GPUJobSpec,
    GPUJobStatus,
    Phase,
    Source,
    WorkloadRef,
)
from tandem.kube.errors import AlreadyExists, Forbidden, NotFound
from tandem.kube.resource import GPU_JOBS

PREDICT_AGAIN_S = 30.0
PREDICTED = "Predicted"
#: The service of running gangs is written at least this often: what a crash may cost them.
COUNT_EVERY_S = 60.0


class Gpus(Protocol):
    """What a prediction needs to know of the cluster."""

    def gpu_kind(self) -> GpuKind | None:
        """Return the commonest type of GPU."""
        ...


class Reconciler:
    """Brings one GPUJob after another up to date. All methods run on the event loop."""

    def __init__(
        self,
        writer: Writer,
        predictor: Predictor,
        gpus: Gpus,
        preempter: Preempter,
        settings: QueueConfig,
        clock: Callable[[], float],
        later: Callable[[Key, float], None],
    ) -> None:
        self._writer = writer
        self._predictor = predictor
        self._gpus = gpus
        self._preempter = preempter
        self._settings = settings
        self._clock = clock
        self._later = later
        self._predicted_at: dict[Key, float] = {}
        self._counted_at: dict[Key, float] = {}
        self._partial_since: dict[Key, float] = {}

    def forget(self, key: Key) -> None:
        """Forget a gang that is gone."""
        for times in (self._predicted_at, self._counted_at, self._partial_since):
            times.pop(key, None)

    def step(self, gang: Gang) -> Awaitable[None] | None:
        """Return what is to be done about one gang, if anything; only decides, does not wait.

        Where time alone will make something due, `later` is told when to ask again.
        """
        record, now = gang.record, self._clock()
        live = gang.live_pods()
        if record is None:
            return self._create(gang, live[0]) if live else None
        if live and _is_stale(record, live[0]):
            return self._delete_stale(record)
        phase = record.status.phase
        if phase in (Phase.COMPLETED, Phase.FAILED):
            return self._revive(gang) if live else None
        if record.status.queued_at is None:
            return self._enqueue(gang)
        if phase is Phase.PREEMPTING:
            self._later(gang.key, now + 1.0)
            return self._preempter.step(gang)
        if not live and gang.pods and all(pod.finished for pod in gang.pods.values()):
            return self._end(gang)
        if self._should_predict_again(gang, now):
            return self._predict_again(gang)
        if self._is_half_placed(gang, now):
            why = f"part of it had no place for {self._settings.partial_gang_s:.0f} s"
            return self._preempter.release(gang, why)
        status = self._held(gang, lifecycle.observed(gang, now), now)
        if status is not record.status or self._should_count(gang, status, now):
            self._counted_at[gang.key] = now
            return self._writer.write_status(gang, status)
        return None

    def _held(self, gang: Gang, status: GPUJobStatus, now: float) -> GPUJobStatus:
        """Return the status with the word that an administrator holds the gang, where one does."""
        assert gang.record is not None
        waits = status.phase in (Phase.QUEUED, Phase.SUSPENDED)
        if not gang.record.spec.hold or not waits or status.reason == "Held":
            return status
        return lifecycle.waiting(status, "Held", "an administrator holds it", None, now)

    def _should_count(self, gang: Gang, status: GPUJobStatus, now: float) -> bool:
        """Return True where service is to be written down: regularly, and when a pod is gone."""
        if gang.gone:
            return True
        if not gang.holders():
            return False
        due = self._counted_at.setdefault(gang.key, now) + COUNT_EVERY_S
        self._later(gang.key, due)
        return now >= due and with_service(status, gang, now) is not status

    def _is_half_placed(self, gang: Gang, now: float) -> bool:
        """Return True where a gang that has not run yet has had only a part of its places."""
        record = gang.record
        assert record is not None
        holders = gang.holders()
        size = record.spec.demand.gang_size
        if (
            record.status.phase is Phase.RUNNING
            or size == 1
            or not 0 < len(holders) < size
            or not method_of(record)
        ):
            self._partial_since.pop(gang.key, None)
            return False
        started = [seconds(pod.started_at) for pod in holders if pod.started_at]
        since = self._partial_since.setdefault(gang.key, min([now, *started]))
        self._later(gang.key, since + self._settings.partial_gang_s)
        return now - since >= self._settings.partial_gang_s

    async def _create(self, gang: Gang, pod: PodInfo) -> None:
        """Create the GPUJob of a gang from the first of its pods."""
        workload, owner = await self._owner_of(pod)
        try:
            demand = parse_demand(pod.annotations, pod.gpus, gang_size=gang_size(pod, owner))
        except AnnotationError as error:
            # The webhook refuses these; a pod that came past it is told, and waits.
            await self._writer.say(pod, "InvalidAnnotation", str(error), "Warning")
            return
        spec = GPUJobSpec(
            workload=workload, demand=demand, gang=pod.annotations.get(names.GANG, "")
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
        await self._enqueue(gang)

    async def _owner_of(self, pod: PodInfo) -> tuple[WorkloadRef, Mapping[str, Any] | None]:
        """Return the workload of a pod, and the object where its kind says what starts together."""
        workload = workload_of(pod)
        higher = above(pod)
        kind = KINDS[higher[0]] if higher else kind_of(workload)
        if kind.resource is None or (names.GANG_SIZE in pod.annotations and not higher):
            return workload, None
        try:
            owner = await self._writer.call(
                self._writer.api.get,
                kind.resource,
                higher[1] if higher else workload.name,
                pod.namespace,
            )
        except (NotFound, Forbidden):
            return workload, None
        if higher:
            metadata = owner["metadata"]
            workload = WorkloadRef(
                api_version=kind.resource.api_version,
                kind=kind.resource.kind,
                name=metadata["name"],
                uid=metadata["uid"],
            )
        return workload, owner | {"kind": kind.resource.kind}

    async def _enqueue(self, gang: Gang) -> None:
        """Predict the load of a new GPUJob and put it in the queue."""
        assert gang.record is not None
        status, now = gang.record.status, rfc3339(self._clock())
        created = min((p.created_at for p in gang.pods.values() if p.created_at), default=now)
        prediction = await self._predict(gang)
        faults.reach("enqueue-before")
        await self._writer.write_status(
            gang,
            status.model_copy(
                update={
                    "phase": Phase.QUEUED,
                    "reason": "Queued",
                    "message": prediction.explanation,
                    "load": prediction.load,
                    "queued_at": created,
                    "waiting_since": now,
                    "conditions": self._predicted(status, prediction),
                }
            ),
        )
        faults.reach("enqueue-after")

    async def _predict(self, gang: Gang) -> Prediction:
        assert gang.record is not None
        self._predicted_at[gang.key] = self._clock()
        return await self._predictor.predict(
            gang.key[0], gang.record.spec.demand, self._gpus.gpu_kind()
        )

    def _predicted(self, status: GPUJobStatus, prediction: Prediction) -> list[Condition]:
        source = prediction.load.memory_source
        return lifecycle.with_condition(
            status.conditions,
            PREDICTED,
            source is not Source.WHOLE_GPU,
            source.value.title().replace("-", ""),
            prediction.explanation,
            self._clock(),
        )

    def _should_predict_again(self, gang: Gang, now: float) -> bool:
        """Return True where a model was named but nothing was known of it when asked last."""
        assert gang.record is not None
        status, demand = gang.record.status, gang.record.spec.demand
        if (
            status.phase is not Phase.QUEUED
            or demand.model is None
            or demand.exclusive
            or status.load is None
            or status.load.memory_source not in (Source.WHOLE_GPU, Source.DECLARED)
        ):
            return False
        due = self._predicted_at.get(gang.key, 0.0) + PREDICT_AGAIN_S
        self._later(gang.key, max(due, now + 1.0))
        return now >= due

    async def _predict_again(self, gang: Gang) -> None:
        assert gang.record is not None
        prediction = await self._predict(gang)
        status = gang.record.status
        seen = status.load is not None and status.load.memory_source is Source.OBSERVED
        if seen or prediction.load == status.load:
            return  # what was seen meanwhile, by the memory guard, counts for more
        conditions = self._predicted(status, prediction)
        await self._writer.write_status(
            gang, status.model_copy(update={"load": prediction.load, "conditions": conditions})
        )

    async def _delete_stale(self, record: GpuJobRecord) -> None:
        """Delete the GPUJob of a workload that has been replaced by another of the same name."""
        await self._writer.call(
            self._writer.api.delete, GPU_JOBS, record.name, record.namespace, uid=record.uid
        )

    async def _revive(self, gang: Gang) -> None:
        """Put a GPUJob whose workload has pods again (a CronJob's, say) back into the queue."""
        assert gang.record is not None
        now = rfc3339(self._clock())
        await self._writer.write_status(
            gang,
            gang.record.status.model_copy(
                update={
                    "phase": Phase.QUEUED,
                    "reason": "NewPods",
                    "message": "the workload has pods again",
                    "finished_at": None,
                    "running_since": None,
                    "plan": None,
                    "queued_at": now,
                    "waiting_since": now,
                }
            ),
        )

    async def _end(self, gang: Gang) -> None:
        """Close a GPUJob whose workload has ended; a workload that goes on keeps it open."""
        assert gang.record is not None
        record = gang.record
        workload, resource = record.spec.workload, kind_of(record.spec.workload).resource
        failed = any(pod.phase == "Failed" for pod in gang.pods.values())
        if resource is not None and not record.spans_workloads:
            try:
                owner = await self._writer.call(
                    self._writer.api.get, resource, workload.name, gang.key[0]
                )
            except NotFound:
                return  # the garbage collector takes the GPUJob with it
            end = has_ended(owner)
            if not end:
                # Its pods have ended, it has not: it may make more, or is about to say so.
                self._later(gang.key, self._clock() + 2.0)
                if self._should_count(gang, record.status, self._clock()):
                    await self._writer.write_status(gang, record.status)
                return
            failed = end == "Failed"
        faults.reach("end-before")
        await self._writer.write_status(gang, lifecycle.ended(gang, failed, self._clock()))
        faults.reach("end-after")


def _is_stale(record: GpuJobRecord, pod: PodInfo) -> bool:
    """Return True where the workload has been replaced by another of the same name."""
    if record.spans_workloads or above(pod) is not None:
        return False
    return workload_of(pod).uid != record.spec.workload.uid
