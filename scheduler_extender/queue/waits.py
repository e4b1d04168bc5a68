"""Why a gang does not go on for reasons of its own pods; pure. Cycles find out about GPUs."""

from __future__ import annotations

from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.jobs import seconds
from scheduler_extender.cluster.workloads import above, workload_of
from scheduler_extender.queue import lifecycle
from tandem.contracts.resources import GPUJobStatus, Phase
from tandem.reasons.causes import Cause, Reason
from tandem.reasons.counting import counted
from tandem.reasons.words import clause, in_full

BLOCKED = Reason.BLOCKED  # its pods cannot be planned for reasons of their own
MISSING = Reason.PODS_MISSING  # fewer pods exist than start together
ENDED = Reason.PODS_ENDED  # all its pods have ended, and its workload has not
STARTING = (
    Reason.STARTING
)  # its pods have places, and their containers have not started for a while
#: Most containers start within so long of the Binding: of others it is said what they wait for.
STARTS_WITHIN_S = 30.0
_HELD = (Cause(Reason.HELD),)
HELD = clause(_HELD[0])
_WAITS = (Phase.QUEUED, Phase.SUSPENDED)

_Why = str | tuple[Cause, ...]


def missing(gang: Gang) -> int:
    """Return how many pods of a gang do not exist that must run together with the others."""
    if gang.size_is_stale:
        return 0
    wanted = gang.still_to_come(gang.job.spec.demand.gang_size)
    return max(0, wanted - gang.bound - gang.unbound)


def held(gang: Gang, status: GPUJobStatus, now_s: float, absent: str = "") -> GPUJobStatus:
    """Return the status with the reason why a gang cannot go on, for reasons of its own pods.

    `absent` says in words why pods do not exist; '' where none are missing, or not for long.
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
    message = why if isinstance(why, str) else in_full(why)
    return (status.reason, status.message) == (reason, message)


def _why(gang: Gang, status: GPUJobStatus, now_s: float, absent: str) -> tuple[Reason, _Why]:
    waits = status.phase in _WAITS
    if waits and gang.job.spec.hold:
        return Reason.HELD, _HELD
    if waits and (why := blocked(gang, now_s)):
        return BLOCKED, why
    if absent:
        return MISSING, absent
    rests_until_s = lifecycle.rests_until_s(status)
    if waits and now_s < rests_until_s and status.reason != lifecycle.NEVER_STARTED:
        rest_s = rests_until_s - now_s
        return lifecycle.NEVER_STARTED, (
            f"it failed to start {counted(status.failed_starts, 'time')}, and is placed again in"
            f" {rest_s:.0f} s at the earliest"
        )
    if waits and status.reason != Reason.WAITING and is_on_its_way(gang, now_s):
        return STARTING, starting(gang)
    if status.phase in (Phase.ADMITTED, Phase.RUNNING) and starts_slowly(gang, now_s):
        return STARTING, starting(gang)
    if status.reason not in (MISSING, BLOCKED, Reason.HELD, STARTING, ENDED):
        return Reason.WAITING, ""
    # What was said of its pods holds no longer.
    if status.phase is Phase.RUNNING:
        return Reason.RUNNING, f"{counted(gang.running, 'pod')} running"
    if status.phase is Phase.ADMITTED:
        return STARTING, starting(gang)
    return Reason.QUEUED, "all its pods exist; it waits for its turn"


def blocked(gang: Gang, now_s: float) -> str:
    """Return why no pod of a gang can be planned for reasons of its pods' own, or ''."""
    if not gang.bound and (why := lifecycle.unplannable(gang, now_s)):
        return why
    if not gang.blocked or gang.bound or lifecycle.pods_to_start(gang, now_s):
        return ""
    return next((pod.blocked for pod in gang.live_pods() if pod.blocked), "")


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


def starting(gang: Gang) -> str:
    """Say how far the pods are that have places, and what the first of them waits for."""
    waiting = sorted(gang.starting(), key=lambda pod: pod.name)
    first = next((f": {pod.name} ({pod.waits_for})" for pod in waiting if pod.waits_for), "")
    return (
        f"{gang.bound} of its {counted(gang.bound + gang.unbound, 'pod')} are on nodes, and"
        f" {gang.running} of them run; it waits for the others to start{first}"
    )


def absent(gang: Gang, made_by: str = "") -> str:
    """Say how many pods exist, and which object has to make the others.

    `made_by` is what that object says of it itself, where it says anything.
    """
    live = gang.bound + gang.unbound
    wanted = live + missing(gang)
    parts = [f"{live} of {wanted} pods exist"]
    if gang.leaving:
        parts.append(f"{gang.leaving} more are being deleted and hold GPUs")
    if gang.failed:
        parts.append(f"{gang.failed} have failed")
    parts.append(made_by or _maker(gang))
    return "; ".join(parts)


def _maker(gang: Gang) -> str:
    record = gang.job
    pod = gang.first() if gang.is_live else next(iter(gang.pods.values()), None)
    owner = pod.owner if pod is not None and above(pod) is None else None
    if owner is not None and owner.kind == "StatefulSet":
        return (
            f"StatefulSet {owner.name} makes the next pod only when the one before it is ready,"
            " unless its podManagementPolicy is Parallel: a gang of its pods needs that"
        )
    workload = record.spec.workload
    if record.spans_workloads:
        last = workload_of(pod) if pod is not None else workload
        if last.kind == "Pod":
            return f"the other pods of gang {record.spec.gang or record.name} are not created yet"
        workload = last
    if workload.kind == "Pod":
        return f"pod {workload.name} has no controller that would make another one"
    return f"{workload.kind} {workload.name} has not made the others"


def without_live_pods(gang: Gang, status: GPUJobStatus, now_s: float) -> GPUJobStatus:
    """Return the status of a gang whose pods have all ended or are gone, and what it waits for."""
    workload = gang.job.spec.workload
    reason: Reason
    why: _Why
    if gang.job.spec.hold and status.phase in _WAITS:
        reason, why = Reason.HELD, _HELD
    elif gang.pods:
        reason = ENDED
        why = (
            f"all {counted(len(gang.pods), 'pod')} have ended, {gang.failed} of them failed;"
            f" {workload.kind} {workload.name} has neither ended nor made others"
        )
    else:
        reason, why = MISSING, absent(gang)
    if _is_said(status, reason, why):
        return status
    if status.phase in _WAITS:
        return lifecycle.waiting(status, reason, why, None, now_s)
    return lifecycle.with_reason(status, reason, why, now_s)
