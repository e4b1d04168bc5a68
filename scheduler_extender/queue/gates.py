"""Which pods kube-scheduler may try: those with a live plan, whose gates are then removed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field

from scheduler_extender.cluster.gangs import Gang, Gangs
from scheduler_extender.cluster.pods import PodInfo
from scheduler_extender.cluster.records import GpuJobRecord, Key
from scheduler_extender.queue import lifecycle
from scheduler_extender.queue.effects import Executor, OpenGates
from scheduler_extender.queue.waits import HELD
from tandem.contracts import names


@dataclass(eq=False)
class Gates:
    """Lets planned pods go to kube-scheduler, and no others. All methods run on the event loop.

    `withdrawn` has the plans of an earlier leader that exceed a quota of this one, by GPUJob and
    the time at which they were made, with the reason.
    """

    _executor: Executor
    _gangs: Gangs
    _clock: Callable[[], float]
    withdrawn: Mapping[tuple[Key, str], str] = field(default_factory=dict)

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
        pods = tuple(
            pod
            for pod in waiting
            if (pod.gated or pod.annotations.get(names.WAKE) != made_at)
            and not self._refusal(pod, record, planned)
            and self._executor.may_open(pod, made_at)
        )
        return self._executor.carry_out(gang, (OpenGates(pods, made_at),)) if pods else None
