"""Closes GPUJobs whose workload has ended, and opens them again when it has new pods."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from scheduler_extender import faults
from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.records import Key
from scheduler_extender.cluster.workloads import kind_of
from scheduler_extender.cluster.writes import Writer
from scheduler_extender.queue import lifecycle
from scheduler_extender.queue.owners import Owners
from scheduler_extender.queue.preemption import has_ended
from tandem.kube.errors import NotFound

_AGAIN_S = 2.0  # a workload without pods that has not ended is read again; doubled each time
_LONGEST_S = 60.0


@dataclass(slots=True)
class _Read:
    """When the workload of a gang without live pods is read: first, and next (Unix time)."""

    since_s: float
    pods: int  # of the gang when it was read last
    next_s: float = field(default=0.0)


class Completion:
    """How gangs end. All methods run on the event loop."""

    def __init__(
        self, writer: Writer, clock: Callable[[], float], later: Callable[[Key, float], None]
    ) -> None:
        self._writer = writer
        self._owners = Owners(writer)
        self._clock = clock
        self._later = later
        self._without_pods: dict[Key, _Read] = {}

    def forget(self, key: Key) -> None:
        """Forget a gang that is gone, or that has pods again."""
        self._without_pods.pop(key, None)

    def step(self, gang: Gang) -> Awaitable[None] | None:
        """Return what is to be done about a gang whose pods have all ended or are gone, if any."""
        now = self._clock()
        read = self._without_pods.setdefault(gang.key, _Read(now, len(gang.pods)))
        if read.pods != len(gang.pods):
            read.pods, read.next_s = len(gang.pods), now
        if now < read.next_s and not gang.gone:
            self._later(gang.key, read.next_s)
            return None
        read.next_s = now + min(max(_AGAIN_S, now - read.since_s), _LONGEST_S)
        self._later(gang.key, read.next_s)
        return self.end(gang)

    async def revive(self, gang: Gang) -> None:
        """Put a GPUJob whose workload has pods again (a CronJob's, say) back into the queue."""
        assert gang.record is not None
        status = lifecycle.revived(gang.record.status, self._clock())
        await self._writer.write_status(gang, status)

    async def end(self, gang: Gang) -> None:
        """Close a GPUJob whose workload has ended; a workload that goes on keeps it open.

        Pods may be gone because the workload has ended (operators delete them), because it was
        suspended, or because they belong to another gang now: only the workload itself can say.
        """
        assert gang.record is not None
        record = gang.record
        failed = gang.failed > 0
        if kind_of(record.spec.workload).resource is not None and not record.spans_workloads:
            try:
                owner = await self._owners.get(record)
            except NotFound:
                return  # the garbage collector takes the GPUJob with it
            end = has_ended(owner)
            if not end:
                # Its pods have ended, it has not: it may make more, or is about to say so.
                await self._go_on(gang)
                return
            failed = end == "Failed"
        elif not gang.pods:
            await self._go_on(gang)
            return
        faults.reach("end-before")
        await self._writer.write_status(gang, lifecycle.ended(gang, failed, self._clock()))
        faults.reach("end-after")

    async def _go_on(self, gang: Gang) -> None:
        """Write what follows from the pods alone: without any, the gang is in the queue again."""
        assert gang.record is not None
        status = gang.record.status
        if not gang.pods:
            status = lifecycle.observed(gang, self._clock())
        if status is not gang.record.status or gang.gone:
            await self._writer.write_status(gang, status)
