"""Why a gang does not go on for reasons of its own pods; pure. Cycles find out about GPUs."""

from __future__ import annotations

from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.jobs import seconds
from scheduler_extender.cluster.workloads import above, workload_of
from scheduler_extender.queue.steps import lifecycle
from tandem.contracts.resources import GPUJobStatus, Phase, WorkloadRef
from tandem.reasons.causes import Cause, Reason
from tandem.reasons.words import clause, in_full

BLOCKED = Reason.BLOCKED  # its pods cannot be planned for reasons of their own
MISSING = Reason.PODS_MISSING  # fewer pods exist than start together
ENDED = Reason.PODS_ENDED  # all its pods have ended, and its workload has not
STARTING = (
    Reason.STARTING
)  # its pods have places, and their containers have not started for a while
#: Most containers start within this time of the Binding: of others it is said what they wait for.
STARTS_WITHIN_S = 30.0
_HELD = (Cause(Reason.HELD),)
HELD = clause(_HELD[0])
_WAITS = (Phase.QUEUED, Phase.SUSPENDED)

_Why = tuple[Cause, ...]


def missing(gang: Gang) -> int:
    """Return how many pods of a gang do not exist that must run together with the others."""
    if gang.size_is_stale:
        return 0
    wanted = gang.still_to_come(gang.job.spec.demand.gang_size)
    return max(0, wanted - gang.bound - gang.unbound)


def held(gang: Gang, status: GPUJobStatus, now_s: float, absent: _Why = ()) -> GPUJobStatus:
    """Return the status with the reason why a gang cannot go on, for reasons of its own pods.

    `absent` says why pods do not exist; () where none are missing, or not for long.
    """
    reason, why = _why(gang, status, now_s, absent)
    if not why or _is_said(status, reason, why):
        return status
    if status.phase in _WAITS:
        return lifecycle.waiting(status, reason, why, None, now_s)
    return lifecycle.with_reason(status, reason, why, now_s, scheduled=True)


def _is_said(status: GPUJobStatus, reason: Reason, why: _Why) -> bool:
    """Say whether a status has the reason already, by its words.

    It has no causes where the definition of GPUJobs is of an earlier release: the API server drops
    them, and they would be written again each time.
    """
    return (status.reason, status.message) == (reason, in_full(why))


def _why(gang: Gang, status: GPUJobStatus, now_s: float, absent: _Why) -> tuple[Reason, _Why]:
    waits = status.phase in _WAITS
    if waits and gang.job.spec.hold:
        return Reason.HELD, _HELD
    if waits and (why := blocked(gang, now_s)):
        return BLOCKED, (why,)
    if absent:
        return MISSING, absent
    rests_until_s = lifecycle.rests_until_s(status)
    if waits and now_s < rests_until_s and status.reason != lifecycle.NEVER_STARTED:
        return lifecycle.NEVER_STARTED, (lifecycle.rest(status, now_s),)
    if waits and status.reason != Reason.WAITING and is_on_its_way(gang, now_s):
        return STARTING, (starting(gang),)
    if status.phase in (Phase.ADMITTED, Phase.RUNNING) and starts_slowly(gang, now_s):
        return STARTING, (starting(gang),)
    if status.reason not in (MISSING, BLOCKED, Reason.HELD, STARTING, ENDED):
        return Reason.WAITING, ()
    # What was said of its pods holds no longer.
    if status.phase is Phase.RUNNING:
        return Reason.RUNNING, (Cause(Reason.RUNNING, pods=gang.running),)
    if status.phase is Phase.ADMITTED:
        return STARTING, (starting(gang),)
    return Reason.QUEUED, (Cause(Reason.QUEUED),)


def blocked(gang: Gang, now_s: float) -> Cause | None:
    """Return why no pod of a gang can be planned for reasons of its pods' own, or None."""
    if not gang.bound and gang.absent_group:
        return Cause(Reason.GROUP_MISSING, workload=gang.absent_group).cut()
    if not gang.bound and (why := lifecycle.unplannable(gang, now_s)):
        return why
    if not gang.blocked or gang.bound or lifecycle.pods_to_start(gang, now_s):
        return None
    return next((pod.blocked for pod in gang.live_pods() if pod.blocked), None)


def is_on_its_way(gang: Gang, now_s: float) -> bool:
    """Say whether nothing is left to plan of a gang that does not run yet: its pods have places."""
    placed = lifecycle.is_placed(gang, lifecycle.planned_uids(gang.job.status, now_s))
    return placed and not gang.size_is_stale and not lifecycle.pods_to_start(gang, now_s)


def starts_slowly(gang: Gang, now_s: float) -> bool:
    """Say whether pods that the gang needs have been on their nodes for long and not started."""
    if gang.running >= gang.still_to_come(gang.job.spec.demand.gang_size):
        return False
    return any(
        pod.bound_at and seconds(pod.bound_at) + STARTS_WITHIN_S <= now_s for pod in gang.starting()
    )


def starting(gang: Gang) -> Cause:
    """Return how far the pods are that have places, and what the first of them waits for."""
    waiting = sorted(gang.starting(), key=lambda pod: pod.name)
    first = next((pod for pod in waiting if pod.waits_for), None)
    return Cause(
        Reason.STARTING,
        value=gang.running,
        bound=gang.bound + gang.unbound,
        pods=gang.bound,
        pod=first.name if first is not None else None,
        detail=first.waits_for if first is not None else None,
    ).cut()


def absent(gang: Gang, made_by: Cause | None = None) -> tuple[Cause, ...]:
    """Return how many pods exist, and which object has to make the others.

    `made_by` is what that object says of it itself, where it says anything.
    """
    live = gang.bound + gang.unbound
    exist = Cause(
        Reason.PODS_MISSING,
        value=live,
        bound=live + missing(gang),
        leaving=gang.leaving or None,
        failed=gang.failed or None,
    )
    return exist, (made_by or _maker(gang)).cut()


def called(workload: WorkloadRef) -> str:
    """Return how people call a workload: kind and name."""
    return f"{workload.kind} {workload.name}"


def _maker(gang: Gang) -> Cause:
    record = gang.job
    pod = gang.first() if gang.is_live else next(iter(gang.pods.values()), None)
    owner = pod.owner if pod is not None and above(pod) is None else None
    if owner is not None and owner.kind == "StatefulSet":
        return Cause(Reason.ONE_BY_ONE, workload=called(owner))
    workload = record.spec.workload
    if record.spans_workloads:
        last = workload_of(pod) if pod is not None else workload
        if last.kind == "Pod":
            return Cause(Reason.GANG_INCOMPLETE, job=record.spec.gang or record.name)
        workload = last
    if workload.kind == "Pod":
        return Cause(Reason.NO_CONTROLLER, pod=workload.name)
    return Cause(Reason.NOT_MADE, workload=called(workload))


def without_live_pods(gang: Gang, status: GPUJobStatus, now_s: float) -> GPUJobStatus:
    """Return the status of a gang whose pods have all ended or are gone, and what it waits for."""
    reason: Reason
    why: _Why
    if gang.job.spec.hold and status.phase in _WAITS:
        reason, why = Reason.HELD, _HELD
    elif gang.pods:
        reason, workload = ENDED, called(gang.job.spec.workload)
        ended = Cause(ENDED, workload=workload, pods=len(gang.pods), failed=gang.failed)
        why = (ended.cut(),)
    else:
        reason, why = MISSING, absent(gang)
    if _is_said(status, reason, why):
        return status
    if status.phase in _WAITS:
        return lifecycle.waiting(status, reason, why, None, now_s)
    return lifecycle.with_reason(status, reason, why, now_s)
