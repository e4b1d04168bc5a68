"""Which pods kube-scheduler may try: those with a live plan, whose gates are then removed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from scheduler_extender import faults
from scheduler_extender.cluster.gangs import Gang, Gangs
from scheduler_extender.cluster.pods import PodInfo
from scheduler_extender.cluster.records import GpuJobRecord, Key
from scheduler_extender.cluster.writes import Object, Writer
from scheduler_extender.queue import lifecycle
from tandem.contracts import names
from tandem.kube.errors import Forbidden, Invalid
from tandem.kube.resource import PODS

HELD = "an administrator holds it"


class Gates:
    """Lets planned pods go to kube-scheduler, and no others. All methods run on the event loop.

    `withdrawn` has the plans of an earlier leader that exceed a quota of this one, by GPUJob and
    the time at which they were made, with the reason.
    """

    def __init__(self, writer: Writer, gangs: Gangs, clock: Callable[[], float]) -> None:
        self._writer = writer
        self._gangs = gangs
        self._clock = clock
        self.withdrawn: Mapping[tuple[Key, str], str] = {}

    def refusal(self, pod: PodInfo) -> str:
        """Return why a pod may not be bound now, or ''.

        An open gate proves nothing: the plan for which it was opened may have expired while the
        pod could not be scheduled for a reason of its own, such as an unbound volume claim. Only a
        live plan says that quota, order and hold allow the pod to start.
        """
        gang = self._gangs.gang_of(pod.uid)
        if gang is None or gang.record is None:
            return "Tandem's queue has not seen the pod yet"
        planned = lifecycle.planned_uids(gang.record.status, self._clock())
        return self._refusal(pod, gang.record, planned)

    def _refusal(self, pod: PodInfo, record: GpuJobRecord, planned: Collection[str]) -> str:
        if pod.blocked:
            return pod.blocked
        if record.spec.hold:
            return f"GPUJob {record.name}: {HELD}"
        plan = record.status.plan
        if plan is None or pod.uid not in planned:
            return (
                f"the pod waits for its turn; the status of GPUJob {record.name} gives the reason"
            )
        return self.withdrawn.get((record.key, plan.made_at), "")

    def step(self, gang: Gang) -> Awaitable[None] | None:
        """Let the planned pods of a gang go to the scheduler; also what a crash left undone."""
        record = gang.record
        if record is None or record.status.plan is None:
            return None
        made_at = record.status.plan.made_at
        planned = lifecycle.planned_uids(record.status, self._clock())
        waiting = [gang.pods[place.uid] for place in record.plan if gang.is_waiting(place.uid)]
        pods = [
            pod
            for pod in waiting
            if (pod.gated or pod.annotations.get(names.WAKE) != made_at)
            and not self._refusal(pod, record, planned)
        ]
        return self._open(pods, made_at) if pods else None

    async def _open(self, pods: Sequence[PodInfo], made_at: str) -> None:
        await asyncio.gather(*(self._open_one(pod, made_at) for pod in pods))

    async def _open_one(self, pod: PodInfo, made_at: str) -> None:
        """Remove our gate, and touch the pod: kube-scheduler looks again at one it had put away."""
        # The resourceVersion guards the list of gates, which is replaced as a whole.
        body: Object = {
            "metadata": {
                "uid": pod.uid,
                "resourceVersion": pod.resource_version,
                "annotations": {names.WAKE: made_at},
            }
        }
        if pod.gated:
            body["spec"] = {"schedulingGates": None}  # ours is the last: see PodInfo.blocked
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
