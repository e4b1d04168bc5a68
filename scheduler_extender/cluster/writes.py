"""Writes of the queue controller: few at a time, with preconditions, visible to itself at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from scheduler_extender import faults
from scheduler_extender.cluster.attained_service import with_service
from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.ledger import Hold
from scheduler_extender.cluster.parsing import parse_gpu_job, parse_pod
from scheduler_extender.cluster.pods import PodInfo
from scheduler_extender.cluster.records import GpuJobRecord
from scheduler_extender.cluster.state import ClusterState
from scheduler_extender.cluster.turns import Turns
from scheduler_extender.cluster.waited import with_waits
from tandem.contracts.placement import PlacedWith
from tandem.contracts.resources import GPUJobStatus
from tandem.contracts.values import LONGEST_TEXT, shortened
from tandem.kube.api import ClusterApi
from tandem.kube.errors import AlreadyExists, Conflict, NotFound
from tandem.kube.resource import CONFIG_MAPS, GPU_JOBS, PODS

PARALLEL_WRITES = 16
#: The same for what a cycle itself writes.
CYCLE_WRITES = 4
#: The service of more pods than this is counted in a thread.
_LARGE = 64

Object = dict[str, Any]
Tell = Callable[[Object, str, str, str], None]  # regarding, reason, note, type


@dataclass(eq=False)
class Writer:
    """Writes to the API server off the event loop; answers are taken in before the watch tells."""

    api: ClusterApi
    _state: ClusterState
    _tell: Tell
    _clock: Callable[[], float]
    #: Adds to each status what other parts know of the gang.
    annotate: Callable[[Gang, GPUJobStatus], GPUJobStatus] = lambda _, status: status
    may_write: Callable[[], bool] = lambda: True  # asked right before each write
    turns: Turns = field(default_factory=lambda: Turns(PARALLEL_WRITES))

    async def write_status(self, gang: Gang, status: GPUJobStatus, *, report: bool = False) -> None:
        """Write the status if it differs; with our resourceVersion, so that late writers lose.

        The attained service until now goes with it. A `report` lets other writes go first.
        """
        record = gang.record
        if record is None:
            return
        ending = tuple(gang.gone)
        large = len(gang.pods) > _LARGE
        if status.finished_at is None:
            now = self._clock()
            if large:
                status = await asyncio.to_thread(with_service, status, gang.frozen(), now)
            else:
                status = with_service(status, gang, now)
        status = self.annotate(gang, status)
        if len(status.message) > LONGEST_TEXT:
            status = status.model_copy(update={"message": shortened(status.message, LONGEST_TEXT)})
        if (causes := [cause.cut() for cause in status.causes]) != status.causes:
            status = status.model_copy(update={"causes": causes})
        written = None
        if large or status != record.status or record.unwritten_since_s is not None:
            written = await self.call(self._replace_status, record, status, report=report)
        for uid in ending:  # counted now, or there was nothing to count
            gang.counted(uid)
        if written is not None:
            self._state.apply("gpujobs", written)

    def _replace_status(self, record: GpuJobRecord, status: GPUJobStatus) -> GpuJobRecord | None:
        """Write a status if it differs, and read the answer; in a thread."""
        if status == record.status and record.unwritten_since_s is None:
            return None
        status = with_waits(record.status, status, self._clock())
        faults.reach("service-before")
        body = {
            "metadata": {
                "name": record.name,
                "namespace": record.namespace,
                "uid": record.uid,
                "resourceVersion": record.resource_version,
            },
            "spec": record.spec.wire(),
            "status": status.wire(),
        }
        answer = self.api.replace(GPU_JOBS, body, record.namespace, subresource="status")
        faults.reach("service-after")
        held = self._state.held("gpujobs", answer)
        return held if isinstance(held, GpuJobRecord) else parse_gpu_job(answer)

    def keep_status(self, gang: Gang, status: GPUJobStatus) -> None:
        """Let a gang have a status now that is written with what is decided of it next."""
        if gang.record is not None:
            self._state.keep(gang.record, status, self._clock())

    def placed_with(self, pod: PodInfo) -> PlacedWith | None:
        """Return what the GPUs of a bound pod are thought to hold of it, None where it has none."""
        claim = self._state.ledger.claim(pod.uid, Hold.BOUND)
        return self._state.placed_with(pod, claim.job) if claim is not None else None

    def take_pod(self, pod: Object) -> None:
        """Take in a pod that a write of ours has answered with."""
        if self._state.held("pods", pod) is None:
            self._state.apply("pods", parse_pod(pod))

    def take(self, gpujob: Object) -> None:
        """Take in the answer of our own write at once: the watch may be a moment behind."""
        if self._state.held("gpujobs", gpujob) is None:
            self._state.apply("gpujobs", parse_gpu_job(gpujob))

    async def shorten_grace(self, pod: PodInfo, grace_s: int) -> bool:
        """Let a pod that is being deleted end within `grace_s`; False where it has ended."""
        try:
            await self.call(
                self.api.delete, PODS, pod.name, pod.namespace, uid=pod.uid, grace_period_s=grace_s
            )
        except (NotFound, Conflict):
            return False  # the watch reports it
        return True

    async def say(self, pod: PodInfo, reason: str, note: str, kind: str) -> None:
        """Write an event on a pod."""
        regarding = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid},
        }
        await self.call(self._tell, regarding, reason, note, kind)

    async def call(
        self,
        function: Callable[..., Any],
        *args: Any,  # noqa: ANN401 - passes through
        report: bool = False,
        **kwargs: Any,  # noqa: ANN401 - passes through
    ) -> Any:  # noqa: ANN401 - passes through
        """Run a blocking call in a thread, when it is its turn and while we lead.

        Raises:
            Conflict: another replica leads by now, and this one must write no more.
        """
        await self.turns.acquire(report=report)
        try:
            return await asyncio.to_thread(self._while_leading, function, *args, **kwargs)
        finally:
            self.turns.release()

    def _while_leading(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - passes through
        if not self.may_write():
            raise Conflict(409, "another replica leads by now")
        return function(*args, **kwargs)


def write_config_map(api: ClusterApi, body: dict[str, Any]) -> bool:
    """Create or replace a ConfigMap; False where somebody else was faster."""
    namespace = body["metadata"]["namespace"]
    try:
        if "resourceVersion" in body["metadata"]:
            api.replace(CONFIG_MAPS, body, namespace)
        else:
            api.create(CONFIG_MAPS, body, namespace)
    except (Conflict, AlreadyExists):
        return False
    return True
