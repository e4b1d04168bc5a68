"""Keeps GPUJobs in step with their pods: chooses the action that is due for a gang."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.jobs import seconds
from scheduler_extender.cluster.pods import PodInfo
from scheduler_extender.cluster.records import Key
from scheduler_extender.cluster.workloads import (
    KINDS,
    above,
    earlier_name,
    group_of,
    resource_of,
    topmost,
    workload_of,
)
from scheduler_extender.queue.gangs.load_prediction import LoadPrediction
from scheduler_extender.queue.gangs.missing_pods import SETTLE_S, MissingPods
from scheduler_extender.queue.gangs.resizing import Resizer
from scheduler_extender.queue.gangs.sizes import Sizes
from scheduler_extender.queue.shared import Shared
from scheduler_extender.queue.steps import decisions, lifecycle, waits
from scheduler_extender.queue.steps.decisions import method_of
from scheduler_extender.queue.steps.effects import (
    CreateGpuJob,
    DeleteGpuJob,
    JoinGpuJob,
    Mark,
    MarkPods,
    Owners,
    WriteRoles,
    names_object,
)
from scheduler_extender.queue.steps.lifecycle import starts_by_s
from scheduler_extender.queue.steps.phases import Stage, stage_of
from scheduler_extender.queue.workqueue import ExternalWork, RefusedError
from tandem.contracts import names
from tandem.contracts.resources import GPUJobSpec, Phase, Role, WorkloadRef
from tandem.kube.errors import Conflict, Forbidden, NotFound, Unavailable
from tandem.reasons.causes import Cause, Reason

#: The service of running gangs is written this often: what a crash may cost those that end while no
#: replica counts. Where many run, it is written less often: so many a second in the long run.
COUNT_EVERY_S = 60.0
COUNTS_PER_S = 40.0
#: The same for gangs that give up their GPUs. Their pods soon vanish, and who begins anew after a
#: crash finds no pod to count.
COUNT_LEAVING_EVERY_S = 2.0
#: A gang of which only a part holds GPUs is released as a whole after this: the GPUs of the part
#: are idle meanwhile, and two gangs that each hold a part could wait for each other.
PARTIAL_GANG_S = 60.0
#: A status that is kept for a cycle, and that none has written with what it decided, is written
#: after this; while other writes wait for their turn, after the longer time.
KEPT_S, LONGEST_KEPT_S = 2.0, 10.0
_AGAIN_S = 2.0  # a workload without pods that has not ended is read again; doubled each time
_LONGEST_S = 60.0


@dataclass(slots=True)
class _Read:
    """When the workload of a gang without live pods is read: first, and next (Unix time)."""

    since_s: float
    pods: int  # of the gang when it was read last
    next_s: float = 0.0


class Reconciler:
    """Brings one GPUJob after another up to date. All methods run on the event loop."""

    def __init__(self, shared: Shared, load_prediction: LoadPrediction) -> None:
        self._executor = shared.executor
        self._gangs = shared.gangs
        self._settings = shared.settings
        self._clock = shared.clock
        self._later = shared.work.later
        self._load_prediction = load_prediction
        self._owners = Owners(shared.writer)
        self._writer = shared.writer
        self._sizes = Sizes(shared)
        self.resizer = Resizer(shared)
        self._missing_pods = MissingPods(shared, self._owners)
        self._preempter = shared.preempter
        self._anti_affinity = shared.anti_affinity
        self._queue_state = shared.queue_state
        self._counted_at: dict[Key, float] = {}
        self._partial_since: dict[Key, float] = {}
        self._without_pods: dict[Key, _Read] = {}
        self._marked: dict[Key, set[Mark]] = {}
        self._roles: dict[Key, tuple[Role, ...]] = {}  # as they were written last

    def forget(self, key: Key) -> None:
        """Forget a gang that is gone."""
        self._load_prediction.forget(key)
        self._sizes.forget(key)
        self.resizer.forget(key)
        self._missing_pods.forget(key)
        self._counted_at.pop(key, None)
        self._partial_since.pop(key, None)
        self._without_pods.pop(key, None)
        self._marked.pop(key, None)
        self._roles.pop(key, None)

    def step(self, gang: Gang) -> Awaitable[None] | ExternalWork | None:
        """Return what is to be done about one gang, if anything; only decides, does not wait.

        Where time alone will make something due, `later` is called with the time to ask again.
        """
        match stage_of(gang):
            case Stage.NEW:
                if earlier := self._earlier(gang):
                    pods = tuple(gang.live_pods())
                    return self._executor.carry_out(gang, (JoinGpuJob(pods, earlier),))
                return self.create(gang, gang.first())
            case Stage.REPLACED:
                return self._executor.carry_out(gang, (DeleteGpuJob(),))
            case Stage.REVIVED:
                return self._executor.carry_out(gang, decisions.revive(gang, self._clock()))
            case Stage.UNPREDICTED:
                return self._load_prediction.enqueue(gang)
            case Stage.PREEMPTING:
                now = self._clock()
                self._later(gang.key, now + 1.0)
                if self._should_count(gang, now, COUNT_LEAVING_EVERY_S):
                    self._counted_at[gang.key] = now
                    return self._executor.carry_out(gang, decisions.write(gang, gang.job.status))
                return self._preempter.step(gang)
            case Stage.ENDING:
                return self.write_kept(gang) or self._end(gang)
            case Stage.OPEN:
                self._without_pods.pop(gang.key, None)
                return self._follow_pods(gang)
            case Stage.CLOSED:
                return (
                    self._executor.carry_out(gang, shorter)
                    if (shorter := decisions.shorten(gang))
                    else None
                )
            case Stage.GONE:
                return None

    def read(self, gang: Gang) -> Awaitable[None] | None:
        """Return what is to be read about a gang for which nothing else is to be done, if any."""
        return self._missing_pods.step(gang)

    def _earlier(self, gang: Gang) -> str:
        """Return the GPUJob that the workload of a new gang has from an earlier release, or ''.

        Its pods start together, and what they have had counts together, whichever of them is newer.
        """
        pod = gang.first()
        name = earlier_name(pod)
        other = self._gangs.by_key.get((pod.namespace, name)) if name != gang.key[1] else None
        if other is None or other.record is None or above(pod) is not None:
            return ""
        return name if other.record.spec.workload.uid == workload_of(pod).uid else ""

    async def create(self, gang: Gang, pod: PodInfo) -> None:
        """Create the GPUJob of a gang from the first of its pods.

        Raises:
            RefusedError: what the pod says of itself allows no GPUJob.
            KubeError: the API server does not take it.
        """
        workload, owner, suspends = await self._owner_of(gang, pod)
        effects = decisions.create(
            gang, pod, workload, owner, suspends, self._asked_before(gang, suspends)
        )
        await self._executor.carry_out(gang, effects)
        if not any(isinstance(each, CreateGpuJob) for each in effects):
            raise RefusedError
        if gang.record is not None and gang.record.status.queued_at is None:
            await self._load_prediction.enqueue(gang)

    def _asked_before(self, gang: Gang, maker: WorkloadRef | None) -> GPUJobSpec | None:
        """Return the GPUJob of the workload that was made before this one, None without one."""
        others = self._gangs.of_maker(maker, gang.key) if maker is not None else ()
        earlier = lifecycle.earlier_of(others)
        return earlier.job.spec if earlier is not None else None

    async def _owner_of(
        self, gang: Gang, pod: PodInfo
    ) -> tuple[WorkloadRef, Mapping[str, Any] | None, WorkloadRef | None]:
        """Return the workload of a pod, what says how many start together, and what is suspended.

        The second is None where nothing says it, the third where it is the workload itself.

        Raises:
            NotFound: the workload is deleted, and its pods will be. What they had counted with the
                GPUJob that went with it; another one would count it again.
        """
        workload = workload_of(pod)
        if (group := group_of(pod)) is not None and names.GANG_SIZE not in pod.annotations:
            found = await self._sizes.group(gang, *group)
            if found is not None:
                return workload, found, None
        higher = above(pod)
        resource = KINDS[higher[0]].resource if higher else resource_of(workload)
        if resource is None or (names.GANG_SIZE in pod.annotations and not higher):
            return workload, None, None
        name = higher[1] if higher else workload.name
        try:
            owner = await self._owners.read(resource, name, pod.namespace)
        except NotFound as error:
            # Of pods that hold nothing and have not ended, nothing is counted twice.
            if names_object(error, name) and (gang.holds or not gang.is_live):
                raise
            return workload, None, None
        except Forbidden:
            return workload, None, None
        if higher:
            metadata = owner["metadata"]
            workload = WorkloadRef(
                api_version=resource.api_version,
                kind=resource.kind,
                name=metadata["name"],
                uid=metadata["uid"],
            )
        kind = {"kind": resource.kind, "apiVersion": resource.api_version}
        return workload, owner | kind, topmost(owner, workload)

    def write_kept(self, gang: Gang) -> Awaitable[None] | None:
        """Write a status that is kept, if there is one: no cycle is about to."""
        if gang.job.unwritten_since_s is None:
            return None
        return self._executor.carry_out(gang, decisions.write(gang, gang.job.status))

    def _write_overdue(self, gang: Gang, now: float) -> Awaitable[None] | None:
        """Write a status that has been kept for long enough, if there is one."""
        since_s = gang.job.unwritten_since_s
        if since_s is None:
            return None
        due_s = since_s + KEPT_S
        if now >= due_s:
            if now >= since_s + LONGEST_KEPT_S or not self._writer.turns.crowded:
                return self.write_kept(gang)
            due_s = now + KEPT_S / 2
        self._later(gang.key, due_s)
        return None

    def _end(self, gang: Gang) -> Awaitable[None] | None:
        """Return what is to be done about a gang whose pods have all ended or are gone, if any."""
        now = self._clock()
        others = self._gangs.of_maker(gang.job.spec.suspends, gang.key)
        if any(other.is_live and other.job.status.queued_at for other in others):
            return self._executor.carry_out(gang, (DeleteGpuJob(),))  # another carries it on
        read = self._without_pods.setdefault(gang.key, _Read(now, len(gang.pods)))
        if read.pods != len(gang.pods):
            read.pods, read.next_s = len(gang.pods), now
        if now < read.next_s and not gang.gone:
            self._later(gang.key, read.next_s)
            return None
        read.next_s = now + min(max(_AGAIN_S, now - read.since_s), _LONGEST_S)
        self._later(gang.key, read.next_s)
        lasts = now - read.since_s >= SETTLE_S
        return self._executor.carry_out(gang, decisions.end(gang, now, lasts=lasts))

    def _follow_pods(self, gang: Gang) -> Awaitable[None] | ExternalWork | None:
        """Return what is to be done about a gang that waits or runs: at most one thing at a time.

        Its size, its prediction, a start that stayed incomplete, then its status and service.
        """
        record, now = gang.job, self._clock()
        if (overdue := self._write_overdue(gang, now)) is not None:
            return overdue
        if marks := self._missing_marks(gang):
            return self._mark(gang, marks)
        if (sized := self._sizes.step(gang)) is not None:
            return sized
        if (resized := self.resizer.step(gang)) is not None:
            return resized
        if (roles := self._new_roles(gang)) is not None:
            return self._write_roles(gang, roles)
        if self._load_prediction.is_due(gang, now):
            return self._load_prediction.again(gang)
        if self._is_half_placed(gang, now):
            why = Cause(Reason.PART_WITHOUT_PLACE, seconds=PARTIAL_GANG_S)
            return self._preempter.release(gang, why)
        if late := self._late(gang, now):
            nodes = {pod.node_name for pod in late}
            self._anti_affinity.refused(gang.key, nodes, now)
            return self._preempter.give_up_start(gang, late)
        absent = self._missing_pods.absent(gang)
        status = waits.held(gang, lifecycle.observed(gang, now), now, absent)
        if status.reason == "PlanExpired" and record.status.plan is not None:
            nodes = {pod.node for pod in record.status.plan.pods}
            rests_until_s = self._anti_affinity.refused(gang.key, nodes, now)
            if rests_until_s > now:
                status = lifecycle.rests(status, rests_until_s - now)
        if status is not record.status or self._should_count(gang, now, self._count_every_s()):
            self._counted_at[gang.key] = now
            written = self._executor.carry_out(gang, decisions.write(gang, status))
            # No job waits for a report: it takes no place from decisions.
            return ExternalWork(written) if decisions.reports(gang, status) else written
        return None

    def _new_roles(self, gang: Gang) -> tuple[Role, ...] | None:
        """Return the roles of a gang that is about to start, where its GPUJob has others.

        An API server with the definition of an earlier release drops them: each is written once.
        """
        spec = gang.job.spec
        if gang.asks == 1 and not spec.roles:
            return None
        if gang.bound or gang.unbound < gang.still_to_come(spec.demand.gang_size):
            return None
        # Pods that start each alone are no gang: order and quota count one of them.
        roles = decisions.roles_of(gang) if spec.demand.gang_size > 1 else ()
        return None if roles in (tuple(spec.roles), self._roles.get(gang.key)) else roles

    async def _write_roles(self, gang: Gang, roles: tuple[Role, ...]) -> None:
        self._roles[gang.key] = roles
        try:
            await self._executor.carry_out(gang, (WriteRoles(roles),))
        except (Conflict, Unavailable):
            self._roles.pop(gang.key, None)  # they were not looked at
            raise

    def _missing_marks(self, gang: Gang) -> list[Mark]:
        """Return what is to be written on pods that hold GPUs, except what was refused before."""
        tried: Set[Mark] = self._marked.get(gang.key) or frozenset()
        found = ((pod, self._writer.placed_with(pod)) for pod in gang.unmarked())
        marks = [Mark(pod.name, pod.uid, placed) for pod, placed in found if placed is not None]
        return [
            mark
            for mark in marks
            if mark not in tried and gang.pods[mark.uid].placed_with != mark.placed
        ]

    async def _mark(self, gang: Gang, marks: Sequence[Mark]) -> None:
        await self._executor.carry_out(gang, (MarkPods(tuple(marks)),))
        self._marked.setdefault(gang.key, set()).update(marks)

    def _late(self, gang: Gang, now: float) -> list[PodInfo]:
        """Return the pods whose containers have not started in time, by name."""
        late, next_s = [], math.inf
        for pod in gang.starting():
            by_s = starts_by_s(pod, self._settings.start_within_s, self._settings.pull_within_s)
            if by_s <= now:
                late.append(pod)
            else:
                slow_s = by_s - self._settings.start_within_s + waits.STARTS_WITHIN_S
                next_s = min(next_s, slow_s if now < slow_s else by_s)
        if next_s < math.inf:
            self._later(gang.key, next_s)
        return sorted(late, key=lambda pod: pod.name)

    def _count_every_s(self) -> float:
        return max(COUNT_EVERY_S, len(self._queue_state.placed) / COUNTS_PER_S)

    def _should_count(self, gang: Gang, now: float, every_s: float) -> bool:
        """Return True where service is to be written down: regularly, and when a pod is gone."""
        if gang.gone:
            return True
        if not gang.holds:
            return False
        due = self._counted_at.setdefault(gang.key, now) + every_s
        self._later(gang.key, due)
        return now >= due

    def _is_half_placed(self, gang: Gang, now: float) -> bool:
        """Return True where a gang that has not run yet has had only a part of its places."""
        record = gang.job
        size = gang.still_to_come(record.spec.demand.gang_size)
        if (
            record.status.phase is Phase.RUNNING
            or size == 1
            or not 0 < gang.holds < size
            or not method_of(record)
        ):
            self._partial_since.pop(gang.key, None)
            return False
        started = [seconds(pod.started_at) for pod in gang.holders() if pod.started_at]
        since = self._partial_since.setdefault(gang.key, min([now, *started]))
        self._later(gang.key, since + PARTIAL_GANG_S)
        return now - since >= PARTIAL_GANG_S
