"""Opening the gates of pods that have a place: all of a gang's in one go, each guarded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from scheduler_extender import faults
from scheduler_extender.cluster.pods import PodInfo
from scheduler_extender.queue import lifecycle
from scheduler_extender.queue.registry import Gang
from scheduler_extender.queue.writes import Object, Writer
from tandem.contracts import names
from tandem.kube.errors import Forbidden, Invalid
from tandem.kube.resource import PODS


class Gates:
    """Lets planned pods go to kube-scheduler. All methods run on the event loop."""

    def __init__(self, writer: Writer, clock: Callable[[], float]) -> None:
        self._writer = writer
        self._clock = clock

    def step(self, gang: Gang) -> Awaitable[None] | None:
        """Let the planned pods of a gang go to the scheduler; also what a crash left undone."""
        record = gang.record
        if record is None or record.status.plan is None or record.spec.hold:
            return None
        planned = lifecycle.planned_uids(record.status, self._clock())
        made_at = record.status.plan.made_at
        pods = [
            pod
            for pod in gang.live_pods()
            if pod.uid in planned
            and not pod.node_name
            and (pod.gated or pod.annotations.get(names.WAKE) != made_at)
        ]
        return self._open(pods, made_at) if pods else None

    async def _open(self, pods: Sequence[PodInfo], made_at: str) -> None:
        await asyncio.gather(*(self._open_one(pod, made_at) for pod in pods))

    async def _open_one(self, pod: PodInfo, made_at: str) -> None:
        """Remove our gate, and touch the pod: kube-scheduler looks again at one it had put away."""
        remaining = [{"name": gate} for gate in pod.gates if gate != names.SCHEDULING_GATE]
        # The resourceVersion guards the list: another controller may remove its own gate meanwhile.
        body: Object = {
            "metadata": {
                "uid": pod.uid,
                "resourceVersion": pod.resource_version,
                "annotations": {names.WAKE: made_at},
            }
        }
        if pod.gated:
            body["spec"] = {"schedulingGates": remaining or None}
        faults.reach("gate-before")
        try:
            answer = await self._writer.call(
                self._writer.api.patch, PODS, pod.name, body, pod.namespace
            )
        except (Invalid, Forbidden) as error:
            await self._writer.say(pod, "GateNotRemoved", str(error), "Warning")
            return
        faults.reach("gate-after")
        self._writer.take_pod(answer)
