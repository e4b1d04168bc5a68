"""A container ran out of GPU memory: the job that is to blame requests more from now on."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

from scheduler_extender.cluster.gangs import Gang, Gangs
from scheduler_extender.cluster.jobs import memory_of_steps, seconds
from scheduler_extender.cluster.pods import PodInfo
from scheduler_extender.cluster.records import GpuNodeRecord
from scheduler_extender.cluster.writes import Writer
from scheduler_extender.queue import lifecycle
from scheduler_extender.queue.evictions import raised_in_steps
from tandem.contracts.resources import OutOfMemory, Source
from tandem.kube.errors import Conflict, NotFound

log = logging.getLogger(__name__)

_GIB = 1 << 30
_KEPT = 5000
_Seen = tuple[str, str, int]  # uid of the pod that is to ask for more, container, when it ended


class OutOfMemories:
    """Each of them is taken once. Runs on the event loop."""

    def __init__(self, writer: Writer, gangs: Gangs, clock: Callable[[], float]) -> None:
        self.counts: Counter[str] = Counter()
        self._writer = writer
        self._gangs = gangs
        self._clock = clock
        self._seen: dict[_Seen, None] = {}
        self._nodes: dict[str, GpuNodeRecord] = {}  # the last reports
        self._new: list[tuple[OutOfMemory, int]] = []

    def take(self, record: GpuNodeRecord) -> None:
        """Take in the report of a node's agent."""
        self._nodes[record.name] = record
        for one in record.status.out_of_memory:
            self._note(one, record)

    def node_gone(self, name: str) -> None:
        """Forget the report of a node."""
        self._nodes.pop(name, None)

    def take_pod(self, pod: PodInfo) -> None:
        """Take in a pod whose container said that GPU memory ran out.

        The container may have asked for any amount beyond what was there: it needs at least what
        the other pods had left of the GPU where they left most ([Horus] 4.4).
        """
        record = self._nodes.get(pod.node_name)
        if record is None or not pod.devices:
            return
        left = {
            gpu.uuid: gpu.memory_bytes
            - sum(use.memory_bytes or 0 for use in gpu.pods if use.uid != pod.uid)
            for gpu in record.status.gpus
            if gpu.uuid in pod.devices
        }
        for container, ended_at in pod.out_of_memory if left else ():
            uuid = max(left, key=lambda gpu: (left[gpu], gpu))
            said = OutOfMemory(
                gpu=uuid, namespace=pod.namespace, pod=pod.name, uid=pod.uid, container=container,
                exit_code=1, ended_at=ended_at, inferred=False, memory_bytes=max(0, left[uuid]),
            )  # fmt: skip
            self._note(said, record)

    def _note(self, one: OutOfMemory, record: GpuNodeRecord) -> None:
        uid = one.blamed.uid if one.blamed else one.uid
        key = (uid, one.container, int(seconds(one.ended_at)) if one.ended_at else 0)
        if key in self._seen:
            return
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
            gang = self._gangs.gang_of(uid)
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
            f"ran out of GPU memory on {one.gpu}"
            f" ({'inferred by the node agent' if one.inferred else 'reported by its container'}):"
            f" {'it held' if one.inferred else 'there were'} {held / _GIB:.1f} GiB"
            f"{'' if one.inferred else ' for it'}; its next run is placed with"
            f" {more.memory_p95_bytes / _GIB:.1f} GiB"
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
