"""A container ran out of GPU memory: the job that is to blame requests more from now on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from scheduler_extender.cluster.gangs import Gangs
from scheduler_extender.cluster.jobs import seconds
from scheduler_extender.cluster.pods import PodInfo
from scheduler_extender.cluster.records import GpuNodeRecord
from scheduler_extender.queue.effects import Executor
from scheduler_extender.queue.memory_needs import out_of_memory
from tandem.contracts.resources import OutOfMemory
from tandem.kube.errors import Conflict, NotFound

_KEPT = 5000
_Seen = tuple[str, str, int]  # uid of the pod that is to ask for more, container, when it ended


class OutOfMemories:
    """Each of them is taken once. Runs on the event loop."""

    def __init__(self, executor: Executor, gangs: Gangs, clock: Callable[[], float]) -> None:
        self.counts: Counter[str] = Counter()
        self._executor = executor
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
        self._new.append((one, record.capacity_bytes(one.gpu)))
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
                effects = out_of_memory(gang, uid, one, capacity, self._clock())
                if effects:
                    self.counts["outgrown" if one.blamed else "together"] += 1
                    await self._executor.carry_out(gang, effects)
            except (Conflict, NotFound):
                self._new.append((one, capacity))  # its GPUJob has changed: looked at again
