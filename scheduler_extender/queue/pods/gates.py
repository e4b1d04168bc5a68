"""Opens the gates of pods with a live plan, and nominates the planned nodes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from scheduler_extender.cluster.gang_index import Gangs
from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.pods import PodInfo
from scheduler_extender.cluster.records import GpuJobRecord, Key
from scheduler_extender.queue.steps import lifecycle
from scheduler_extender.queue.steps.effects import ClearNominations, Effect, Executor, OpenGates
from scheduler_extender.queue.steps.waits import HELD
from tandem.contracts import names
from tandem.reasons.words import clause


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
    #: Whether kube-scheduler would find the pod's claim allocated as planned, where it has one.
    is_given: Callable[[PodInfo], bool] = lambda _: True

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
            return clause(pod.blocked)
        if record.spec.hold:
            return f"GPUJob {record.name}: {HELD}"
        plan = record.status.plan
        if plan is None or pod.uid not in planned:
            return (
                f"the pod waits for its turn; the status of GPUJob {record.name} gives the reason"
            )
        return self.withdrawn.get((record.key, plan.made_at), "")

    def step(self, gang: Gang) -> Awaitable[None] | None:
        """Let the planned pods of a gang go to the scheduler; also what a crash left undone.

        A nomination reserves CPU and memory in kube-scheduler. It ends with the plan that it
        follows, so that it is in no other pod's way.
        """
        record = gang.record
        if record is None:
            return None
        planned = lifecycle.planned_uids(record.status, self._clock())
        effects: list[Effect] = []
        if record.status.plan is not None:
            made_at = record.status.plan.made_at
            waiting = ((each.uid, each.node) for each in record.plan if gang.is_waiting(each.uid))
            places = tuple(
                (pod, node)
                for pod, node in ((gang.pods[uid], node) for uid, node in waiting)
                if (pod.gated or pod.annotations.get(names.WAKE) != made_at)
                and not self._refusal(pod, record, planned)
                and self.is_given(pod)
                and self._executor.may_open(pod, made_at)
            )
            if places:
                effects.append(OpenGates(places, made_at))
        stale = tuple(filter(self._executor.may_clear, self._stale(gang, record, planned)))
        if stale:
            effects.append(ClearNominations(stale))
        return self._executor.carry_out(gang, effects) if effects else None

    def _stale(
        self, gang: Gang, record: GpuJobRecord, planned: Collection[str]
    ) -> Iterator[PodInfo]:
        """Yield the pods that are nominated for a node without a plan that may be followed."""
        plan = record.status.plan
        none = record.spec.hold or (plan and (record.key, plan.made_at) in self.withdrawn)
        for uid, pod in gang.nominated.items():
            if none or uid not in planned:
                yield pod
