"""Closing GPUJobs whose workload has ended, and opening them again where it has pods anew."""

from __future__ import annotations

from collections.abc import Callable

from scheduler_extender import faults
from scheduler_extender.cluster.gangs import kind_of
from scheduler_extender.cluster.jobs import rfc3339
from scheduler_extender.cluster.records import Key
from scheduler_extender.queue import lifecycle
from scheduler_extender.queue.preemption import has_ended
from scheduler_extender.queue.registry import Gang
from scheduler_extender.queue.writes import Writer
from tandem.contracts.resources import Phase
from tandem.kube.errors import NotFound

_AGAIN_S = 2.0


class Endings:
    """How gangs end. All methods run on the event loop."""

    def __init__(
        self, writer: Writer, clock: Callable[[], float], later: Callable[[Key, float], None]
    ) -> None:
        self._writer = writer
        self._clock = clock
        self._later = later

    async def revive(self, gang: Gang) -> None:
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

    async def end(self, gang: Gang) -> None:
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
                self._later(gang.key, self._clock() + _AGAIN_S)
                if gang.gone:
                    await self._writer.write_status(gang, record.status)
                return
            failed = end == "Failed"
        faults.reach("end-before")
        await self._writer.write_status(gang, lifecycle.ended(gang, failed, self._clock()))
        faults.reach("end-after")
