"""The phases of a GPUJob as pure functions: pods and status -> next status."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence

from scheduler_extender.cluster.attained_service import with_service
from scheduler_extender.cluster.elastic import works_together
from scheduler_extender.cluster.gangs import Gang, ask_of
from scheduler_extender.cluster.jobs import rfc3339, seconds
from scheduler_extender.cluster.pods import PodInfo
from scheduler_extender.cluster.workloads import role_of
from tandem.contracts import names
from tandem.contracts.learning import Decision
from tandem.contracts.prediction import Prediction
from tandem.contracts.resources import (
    Condition,
    GPUJobStatus,
    Phase,
    Plan,
    PodPlan,
    Preemption,
    Source,
    SubBatch,
)
from tandem.contracts.values import LONGEST_TEXT, MAX_ROLES, shortened
from tandem.policy.decision import Placement
from tandem.reasons.causes import MOST_CAUSES, Cause, Reason, first_of
from tandem.reasons.words import in_full, sentence

#: Starts of one gang that one cycle is asked about, of those whose pods ask the same.
MOST_STARTS = 128
_ENDED = (Phase.COMPLETED, Phase.FAILED)
SCHEDULED, PREDICTED = "Scheduled", "Predicted"  # types of conditions
_DECISIONS, _LONGEST = 8, 2000
_REMEMBERED = 100  # preemptions whose times are kept in the status
#: A gang whose containers did not start rests before it is placed again; doubled with each failure.
REST_S, LONGEST_REST_S = 60.0, 3600.0
#: The same where other pods of the gang run: what they show of the gang counts for more.
LONGEST_REST_RUNNING_S = 300.0
NEVER_STARTED = Reason.NEVER_STARTED
#: A pod that is being deleted is expected to end within this time, whatever its grace period is.
LEAVES_WITHIN_S = 300.0
#: The pods of a gang that has done its work end within this time of the first.
_ENDS_WITHIN_S = 3.0


def planned_uids(status: GPUJobStatus, now_s: float) -> set[str]:
    """Return the uids of the pods that have a place under a plan that still holds."""
    if status.plan is None or now_s >= plan_ends_s(status):
        return set()
    return {pod.uid for pod in status.plan.pods}


def is_placed(gang: Gang, planned: Collection[str]) -> bool:
    """Say whether a pod of the gang holds GPUs, or has a place among the `planned` uids."""
    return bool(gang.holds) or any(gang.is_waiting(uid) for uid in planned)


def rests_until_s(status: GPUJobStatus) -> float:
    """Return until when a gang is not placed, because its containers did not start (Unix time)."""
    return seconds(status.rests_until) if status.rests_until else -math.inf


def starts_by_s(pod: PodInfo, start_s: float, pull_s: float) -> float:
    """Return when a pod on a node is given up unless its containers have started (Unix time).

    It has `start_s` (seconds) from its Binding, and again from the last start of an init container,
    whose images took time as well. While an image is pulled it has `pull_s` from its Binding, which
    bounds all of it.
    """
    if not pod.bound_at:
        return math.inf
    bound_s = seconds(pod.bound_at)
    if pod.pulling:
        return bound_s + pull_s
    since_s = max(bound_s, seconds(pod.prepared_at)) if pod.prepared_at else bound_s
    return min(since_s + start_s, bound_s + max(start_s, pull_s))


def deletion_asked_s(pod: PodInfo) -> float:
    """Return when the deletion of a pod was asked for (Unix time); infinite where it was not."""
    return seconds(pod.ends_by) - pod.grace_s if pod.ends_by else math.inf


def leaves_until_s(pod: PodInfo) -> float:
    """Return until when a pod counts as one that is about to give up its GPUs (Unix time)."""
    return deletion_asked_s(pod) + LEAVES_WITHIN_S if pod.deleting else -math.inf


def leaves_soon(pod: PodInfo, now_s: float) -> bool:
    """Say whether a pod is being deleted, and has not been for longer than a pod takes."""
    return now_s < leaves_until_s(pod)


def plan_ends_s(status: GPUJobStatus) -> float:
    """Return when the plan ends (Unix time), 0 without one."""
    return seconds(status.plan.deadline) if status.plan else 0.0


def pods_to_start(gang: Gang, now_s: float) -> list[list[PodInfo]]:
    """Return the groups of pods that want a place; each group starts as a whole or not at all.

    A gang of which nothing runs starts with its size; a replacement in a gang that runs starts
    alone, and so does each pod beyond the size, once the gang has its places. Fewer pods than the
    size: none starts yet; but members that have succeeded (of an indexed Job stopped as it ended,
    say) do not come back. A pod for which a plan could not take effect yet (`PodInfo.blocked`) is
    not counted. Pods whose group does not exist yet wait for it. Of pods that start alone and ask
    the same of a node, the first `MOST_STARTS` by name are returned: the others would be refused
    with them, and follow when they have their places. Pods that ask in too many different ways do
    not start together. A gang whose containers did not start rests first.
    """
    starts = _starts(gang, now_s)
    if gang.asks <= MAX_ROLES:
        return starts
    return [pods for pods in starts if not too_many_roles(pods)]


def too_many_roles(pods: Sequence[PodInfo]) -> Cause | None:
    """Return why pods cannot start together, or None.

    Each role is looked for a place by itself.
    """
    # Only counted: any user may have thousands of pods that all declare different things.
    if len(pods) <= MAX_ROLES or (roles := len(set(map(ask_of, pods)))) <= MAX_ROLES:
        return None
    return Cause(Reason.TOO_MANY_ROLES, value=roles, bound=MAX_ROLES)


def unplannable(gang: Gang, now_s: float) -> Cause | None:
    """Return why pods that are there cannot start together, or None."""
    if gang.asks <= MAX_ROLES:
        return None
    return next(filter(None, map(too_many_roles, _starts(gang, now_s))), None)


def _starts(gang: Gang, now_s: float) -> list[list[PodInfo]]:
    record = gang.record
    if record is None or record.spec.hold or record.status.phase is Phase.PREEMPTING:
        return []
    if now_s < rests_until_s(record.status):
        return []
    size = record.spec.demand.gang_size
    planned = planned_uids(record.status, now_s)
    if gang.bound or any(gang.is_waiting(uid) for uid in planned):
        return _next_to_running(gang, planned)
    if gang.size_is_stale or gang.absent_group:
        return []
    if gang.still_to_come(size) == 1:
        # The others of an elastic gang grow next to the first one.
        most = 1 if works_together(gang) else MOST_STARTS
        return [[pod] for pod in gang.waiting_pods(planned, most)]
    waiting = gang.waiting_pods()
    size = gang.still_to_come(size)
    if len(waiting) < size:
        return []
    # A pod beyond the size would find a place where the gang finds none, and start it in part.
    return [waiting[:size]]


def _next_to_running(gang: Gang, planned: Collection[str]) -> list[list[PodInfo]]:
    """Return the starts of a gang of which some pods have places: replacements start alone.

    The pods of a role that is created later (`dependsOn`, `LeaderReady`) start together. Where pods
    were placed before their kind had roles, nothing says which of these have begun. Where a gang
    may start with fewer pods than all, no role of it waits for all of its own.
    """
    expected = gang.expected
    roles = expected.roles if expected is not None else {}
    if expected is not None and expected.least is not None and expected.least < sum(roles.values()):
        roles = {}
    begun = {role_of(pod) for uid, pod in gang.pods.items() if pod.node_name or uid in planned}
    if len(roles) < 2 or ("" in begun and "" not in roles):
        return [[pod] for pod in gang.waiting_pods(planned, MOST_STARTS)]
    starts, together = [], defaultdict(list)
    for pod in gang.waiting_pods(planned):
        role = role_of(pod)
        if role in begun or roles.get(role, 1) == 1:
            starts.append([pod])
        else:
            together[role].append(pod)
    for role, pods in together.items():
        if len(pods) >= roles[role]:
            starts += [pods[: roles[role]], *([pod] for pod in pods[roles[role] :])]
    return starts


def ends_until_s(gang: Gang) -> float:
    """Return until when a gang is taken to be ending, -inf where it is not.

    Its pods end one by one. The job that is to have the GPUs of all of them must not lose them to
    jobs behind it, which would do with the first that are free. A straggler may run on: no job
    waits for it.
    """
    record, begun = gang.record, gang.ends_since_s > -math.inf
    if record is None or not begun or record.spec.demand.gang_size == 1:
        return -math.inf
    return -math.inf if gang.unbound else gang.ends_since_s + _ENDS_WITHIN_S


def queued(
    status: GPUJobStatus,
    prediction: Prediction,
    sub_batches: Sequence[SubBatch],
    created_at: str,
    waiting_since: str,
    now_s: float,
) -> GPUJobStatus:
    """Return the status of a new GPUJob whose load is predicted.

    Its place in the queue follows from `created_at`, when its first pod was created; its wait
    begins at `waiting_since`, when its load was asked for.
    """
    cause = Cause(Reason.QUEUED, detail=prediction.explanation.rstrip(".")).cut()
    return status.model_copy(
        update={
            "phase": Phase.QUEUED,
            "reason": Reason.QUEUED.value,
            "message": shortened(sentence(cause), LONGEST_TEXT),
            "causes": [cause],
            "found_at": rfc3339(now_s),
            "load": prediction.load,
            "sub_batches": list(sub_batches),
            "queued_at": created_at,
            "waiting_since": waiting_since,
            "conditions": predicted(status, prediction, now_s),
        }
    )


def predicted(status: GPUJobStatus, prediction: Prediction, now_s: float) -> list[Condition]:
    """Return the conditions with the source of the predicted load."""
    source = prediction.load.memory_source
    unknown = prediction.away and source in (Source.WHOLE_GPU, Source.DECLARED)
    return with_condition(
        status.conditions,
        PREDICTED,
        source is not Source.WHOLE_GPU,
        names.PREDICTOR_AWAY if unknown else source.value.title().replace("-", ""),
        prediction.explanation,
        now_s,
    )


def earlier_of(others: Iterable[Gang]) -> Gang | None:
    """Return the gang that a new one of the same maker takes the place of, None without one."""
    before = [
        other
        for other in others
        if not (other.is_live or other.holds) and other.job.status.phase not in _ENDED
    ]
    return max(before, key=lambda other: other.job.status.attained_gpu_seconds, default=None)


def carried_on(status: GPUJobStatus, earlier: Gang, now_s: float) -> GPUJobStatus:
    """Return the status of a new GPUJob that carries on what another has had until `now_s`.

    What has made the workload of `earlier` has made another in its place: its service counts, and
    so do its place in the queue and the preemptions of the last hour.
    """
    had, service = earlier.job.status, round(earlier.attained_gpu_s(now_s), 3)
    return status.model_copy(
        update={
            "attained_gpu_seconds": service,
            # A report has counted what the other had.
            "ended_gpu_seconds": service,
            "counted_until": rfc3339(now_s),
            "waits_until": rfc3339(now_s),
            "promoted_gpu_seconds": had.promoted_gpu_seconds,
            "preempted_at": had.preempted_at,
            "queued_at": had.queued_at or status.queued_at,
            "queue_key": had.queue_key,
            "waiting_since": had.waiting_since or status.waiting_since,
            "started_at": had.started_at,
        }
    )


def revived(status: GPUJobStatus, now_s: float) -> GPUJobStatus:
    """Return the status of a closed GPUJob whose workload has pods again (a CronJob's, say)."""
    now, cause = rfc3339(now_s), Cause(Reason.NEW_PODS)
    return status.model_copy(
        update={
            "phase": Phase.QUEUED,
            "reason": Reason.NEW_PODS.value,
            "message": sentence(cause),
            "causes": [cause],
            "found_at": now,
            "finished_at": None,
            "running_since": None,
            "plan": None,
            "queued_at": now,
            "waiting_since": now,
            # A report has counted the run that ended; what follows counts anew.
            "ended_gpu_seconds": status.attained_gpu_seconds,
            "waits": [],
        }
    )


def with_plan(
    status: GPUJobStatus,
    gang: Gang,
    placements: Sequence[tuple[Sequence[PodInfo], Placement]],
    now_s: float,
    deadline_s: float,
    steps: int = 1,
    gpu_name: Callable[[str, str], str] = "{}/{}".format,
) -> GPUJobStatus:
    """Return the status with places for more pods; places of pods still on their way are kept.

    The gang runs in `steps` micro-batches. `gpu_name` returns how people call a GPU of a node.
    """
    on_their_way = planned_uids(status, now_s)
    kept = [
        pod
        for pod in (status.plan.pods if status.plan else [])
        if pod.uid in on_their_way and gang.is_waiting(pod.uid)
    ]
    new = [
        PodPlan(pod=pod.name, uid=pod.uid, node=place.node, gpus=list(place.gpu_ids))
        for pods, placement in placements
        for pod, place in zip(pods, placement.pods, strict=True)
    ]
    named = (gpu_name(pod.node, gpu) for pod in new[:3] for gpu in pod.gpus)
    where = " ".join(named)
    gpus = f"{where}{', ...' if len(new) > 3 else ''}"
    phase = Phase.RUNNING if status.phase is Phase.RUNNING else Phase.ADMITTED
    plan = Plan(
        pods=[*kept, *new],
        made_at=rfc3339(now_s),
        deadline=rfc3339(deadline_s),
        accumulation_steps=steps,
    )
    return with_reason(
        status,
        Reason.PLANNED,
        (Cause(Reason.PLANNED, pods=len(new), gpu=gpus),),
        now_s,
        scheduled=True,
        phase=phase,
        plan=plan,
        admitted_at=rfc3339(now_s),
        attempts=status.attempts + 1,
        position=None,
    )


def waiting(
    status: GPUJobStatus,
    reason: Reason,
    why: Sequence[Cause],
    position: int | None,
    now_s: float,
) -> GPUJobStatus:
    """Return the status of a gang that waits, or of a running one some of whose pods wait."""
    kept = (Phase.RUNNING, Phase.SUSPENDED)
    phase = status.phase if status.phase in kept else Phase.QUEUED
    since = status.waiting_since or rfc3339(now_s)
    return with_reason(
        status, reason, why, now_s, phase=phase, position=position, waiting_since=since
    )


def observed(gang: Gang, now_s: float) -> GPUJobStatus:
    """Return the status that follows from the pods alone (no decision is made here).

    Running once as many pods run as must start together; back in the queue when none is placed
    any more though some are there.
    """
    record, status = gang.job, gang.job.status
    if status.phase in (Phase.COMPLETED, Phase.FAILED, Phase.PREEMPTING):
        return status
    enough = gang.still_to_come(record.spec.demand.gang_size)
    if gang.running >= enough and status.phase is not Phase.RUNNING:
        return with_reason(
            status,
            Reason.RUNNING,
            (Cause(Reason.RUNNING, pods=gang.running),),
            now_s,
            scheduled=True,
            phase=Phase.RUNNING,
            started_at=status.started_at or rfc3339(now_s),
            running_since=rfc3339(now_s),
            preemption=None,
            waiting_since=None,
            position=None,
            failed_starts=0,
            rests_until=None,
        )
    # Terminating pods still hold their GPUs: a gang is back in the queue when they are gone.
    placed = is_placed(gang, planned_uids(status, now_s))
    if status.phase in (Phase.ADMITTED, Phase.RUNNING) and not placed:
        expired = status.phase is Phase.ADMITTED and gang.is_live
        reason = Reason.PLAN_EXPIRED if expired else Reason.PODS_GONE
        said = Reason.PLAN_EXPIRED if expired and status.plan else Reason.QUEUED
        return with_reason(
            status,
            reason,
            (Cause(said if gang.is_live else Reason.PODS_GONE),),
            now_s,
            phase=Phase.QUEUED,
            plan=None,
            running_since=None,
            # A plan that was not followed does not end the wait.
            waiting_since=status.waiting_since or rfc3339(now_s),
        )
    return status


def rests(status: GPUJobStatus, rest_s: float) -> GPUJobStatus:
    """Return the status of a gang whose plans were not followed, with when it is placed again."""
    causes = [*status.causes, Cause(Reason.RESTS, seconds=rest_s)]
    return status.model_copy(update={"message": in_full(causes), "causes": causes})


def preempting(status: GPUJobStatus, by: Cause, method: str, now_s: float) -> GPUJobStatus:
    """Return the status of a gang that is asked to give up its GPUs; written before it is asked."""
    now, by = rfc3339(now_s), by.cut()
    return with_reason(
        status,
        Reason.PREEMPTING,
        (Cause(Reason.PREEMPTING), by),
        now_s,
        phase=Phase.PREEMPTING,
        plan=None,
        preemption=Preemption(by=sentence(by), causes=[by], method=method, requested_at=now),
        preempted_at=[*status.preempted_at, now][-_REMEMBERED:],
    )


def never_started(status: GPUJobStatus, why: Cause, method: str, now_s: float) -> GPUJobStatus:
    """Return the status of a gang that is released because its containers did not start.

    It was not preempted for another: the hourly bound of preemptions does not count it.
    """
    why = why.cut()
    asked = Preemption(
        by=sentence(why),
        causes=[why],
        method=method,
        requested_at=rfc3339(now_s),
        never_started=True,
    )
    return with_reason(
        status.model_copy(update=_rest(status, LONGEST_REST_S, now_s)),
        NEVER_STARTED,
        (why,),
        now_s,
        phase=Phase.PREEMPTING,
        plan=None,
        preemption=asked,
    )


def rests_in_part(status: GPUJobStatus, why: Cause, now_s: float) -> GPUJobStatus:
    """Return the status of a running gang of which some pods are evicted: they did not start."""
    status = decided(status, NEVER_STARTED, sentence(why), now_s)
    return status.model_copy(update=_rest(status, LONGEST_REST_RUNNING_S, now_s))


def rested(status: GPUJobStatus, now_s: float) -> GPUJobStatus:
    """Return the status of a gang that is queued again because its containers did not start."""
    return with_reason(
        status,
        NEVER_STARTED,
        (*_why_it_went(status, NEVER_STARTED), rest(status, now_s)),
        now_s,
        phase=Phase.QUEUED,
        running_since=None,
        waiting_since=rfc3339(now_s),
        preemption=None,
    )


def rest(status: GPUJobStatus, now_s: float) -> Cause:
    """Return for how long a gang is not placed, because its containers did not start."""
    rest_s = max(0.0, rests_until_s(status) - now_s)
    return Cause(Reason.RESTS, seconds=round(rest_s), failed=status.failed_starts)


def _why_it_went(status: GPUJobStatus, reason: Reason) -> tuple[Cause, ...]:
    """Return why a gang gave up its GPUs; in words, of an object of an earlier version."""
    asked = status.preemption
    if asked is None:
        return ()
    return tuple(asked.causes) or (Cause(reason, detail=asked.by),)


def _rest(status: GPUJobStatus, longest_s: float, now_s: float) -> dict[str, object]:
    rest_s = min(REST_S * 2 ** min(status.failed_starts, 16), longest_s)
    return {
        "failed_starts": status.failed_starts + 1,
        "rests_until": rfc3339(now_s + rest_s),
    }


def promoted(status: GPUJobStatus, now_s: float) -> GPUJobStatus:
    """Return the status of a gang that starved: its priority service and its wait begin anew."""
    return status.model_copy(
        update={
            "promoted_gpu_seconds": status.attained_gpu_seconds,
            "waiting_since": rfc3339(now_s),
            "queue": 0,
        }
    )


def suspended(status: GPUJobStatus, now_s: float) -> GPUJobStatus:
    """Return the status of a gang that has given up its GPUs and waits for others."""
    why = _why_it_went(status, Reason.PREEMPTED)
    return with_reason(
        status,
        Reason.PREEMPTED,
        (Cause(Reason.PREEMPTED), *why),
        now_s,
        phase=Phase.SUSPENDED,
        running_since=None,
        waiting_since=rfc3339(now_s),
        preemption=None,
    )


def ended(gang: Gang, failed: bool, now_s: float) -> GPUJobStatus:
    """Return the final status of a gang whose workload has ended, its service counted."""
    status = with_service(gang.job.status, gang, now_s)
    phase = Phase.FAILED if failed else Phase.COMPLETED
    workload = gang.job.spec.rests  # what a RayJob has made may be gone
    cause = Cause(Reason(phase.value), workload=f"{workload.kind} {workload.name}")
    return with_reason(
        status,
        cause.reason,
        (cause,),
        now_s,
        phase=phase,
        plan=None,
        queue=None,
        position=None,
        preemption=None,
        finished_at=rfc3339(now_s),
    )


def decided(status: GPUJobStatus, what: str, why: str, now_s: float) -> GPUJobStatus:
    """Return the status with one more of the latest decisions; said again, only its time moves."""
    new = Decision(at=rfc3339(now_s), what=what, why=why[:_LONGEST])
    kept = [each for each in status.decisions if (each.what, each.why) != (new.what, new.why)]
    return status.model_copy(update={"decisions": [*kept, new][-_DECISIONS:]})


def with_reason(
    status: GPUJobStatus,
    reason: Reason,
    why: Sequence[Cause],
    now_s: float,
    *,
    scheduled: bool = False,
    **changes: object,
) -> GPUJobStatus:
    """Return the status with `changes`, and why: also as the condition `Scheduled`."""
    causes = [cause.cut() for cause in why[:MOST_CAUSES]]
    message, counts = shortened(in_full(causes), LONGEST_TEXT), first_of(causes)
    found = counts.reason.value if counts is not None else reason.value
    conditions = with_condition(status.conditions, SCHEDULED, scheduled, found, message, now_s)
    reasons: dict[str, object] = {
        "reason": reason.value,
        "message": message,
        "causes": causes,
        "found_at": rfc3339(now_s),
        "conditions": conditions,
    }
    return status.model_copy(update=changes | reasons)


def with_condition(
    conditions: Sequence[Condition], kind: str, holds: bool, reason: str, message: str, now_s: float
) -> list[Condition]:
    """Return the conditions with one set; its time moves only when its status does."""
    status = "True" if holds else "False"
    since = rfc3339(now_s)
    for known in conditions:
        if known.type == kind and known.status == status:
            since = known.last_transition_time
    new = Condition(
        type=kind, status=status, reason=reason, message=message, last_transition_time=since
    )
    return [*(known for known in conditions if known.type != kind), new]
