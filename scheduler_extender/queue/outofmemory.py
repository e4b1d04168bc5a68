"""A container ran out of GPU memory, as it seems: whoever outgrew asks for more from now on."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

from scheduler_extender.cluster.jobs import memory_of_steps
from scheduler_extender.cluster.records import GpuNodeRecord
from scheduler_extender.queue import lifecycle
from scheduler_extender.queue.evictions import raised_in_steps
from scheduler_extender.queue.registry import Gang, Registry
from scheduler_extender.queue.writes import Writer
from tandem.contracts.resources import OutOfMemory, Source
from tandem.kube.errors import Conflict, NotFound

log = logging.getLogger(__name__)

_GIB = 1 << 30
_KEPT = 5000
_Seen = tuple[str, str, str]  # pod uid, container, when it ended


class OutOfMemories:
    """Each of them is taken once. Runs on the event loop."""

    def __init__(self, writer: Writer, registry: Registry, clock: Callable[[], float]) -> None:
        self.counts: Counter[str] = Counter()
        self._writer = writer
        self._registry = registry
        self._clock = clock
        self._seen: dict[_Seen, None] = {}
        self._new: list[tuple[OutOfMemory, int]] = []

    def take(self, record: GpuNodeRecord) -> None:
        """Take in the report of a node's agent."""
        for one in record.status.out_of_memory:
            key = (one.uid, one.container, one.ended_at)
            if key in self._seen:
                continue
            self._seen[key] = None
            capacity = next((g.capacity_gib * _GIB for g in record.gpus if g.uuid == one.gpu), 0.0)
            self._new.append((one, int(capacity)))
        while len(self._seen) > _KEPT:
            del self._seen[next(iter(self._seen))]

    async def step(self) -> None:
        """Raise the needs of those who are to blame."""
        new, self._new = self._new, []
        for one, capacity in new:
            uid = one.blamed.uid if one.blamed else one.uid
            gang = self._registry.gang_of(uid)
            if gang is None:
                continue
            try:
                await self._raise(gang, uid, one, capacity)
            except (Conflict, NotFound):
                self._new.append((one, capacity))  # its GPUJob has changed: looked at again

    async def _raise(self, gang: Gang, uid: str, one: OutOfMemory, capacity: int) -> None:
        record = gang.record
        if record is None or record.status.load is None:
            return
        load = record.status.load
        if load.memory_source is Source.WHOLE_GPU:
            return
        held = one.blamed.memory_bytes if one.blamed else (one.memory_bytes or 0)
        status, pod = record.status, gang.pods.get(uid)
        steps = record.steps(uid, pod.annotations if pod is not None else {})
        said = memory_of_steps(status, steps) or load.memory_p95_bytes
        more, sub_batches = raised_in_steps(status, steps, max(held, said), capacity)
        if (more, sub_batches) == (load, status.sub_batches):
            return
        self.counts["outgrown" if one.blamed else "together"] += 1
        message = (
            f"ran out of memory on {one.gpu} (inferred); held {held / _GIB:.1f} GiB, asks for"
            f" {more.memory_p95_bytes / _GIB:.1f} GiB from now on"
        )
        log.warning("out of memory gpujob=%s/%s gpu=%s", *gang.key, one.gpu)
        now = self._clock()
        conditions = lifecycle.with_condition(
            status.conditions, lifecycle.PREDICTED, True, "Observed", message, now
        )
        status = status.model_copy(
            update={"load": more, "sub_batches": sub_batches, "conditions": conditions}
        )
        await self._writer.write_status(
            gang, lifecycle.decided(status, "OutOfMemory", message, now)
        )
        if pod is not None:
            await self._writer.say(pod, "OutOfMemory", message, "Warning")
