"""Decisions about a gang in each stage, as pure functions: gang and time -> effects.

The functions read the gang and what the API server has answered, and change nothing. `phases.py`
says which stage a gang is in, `lifecycle.py` computes the statuses, and `effects.Executor` carries
out what is returned here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from scheduler_extender.cluster.attained_service import with_service
from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.jobs import seconds
from scheduler_extender.cluster.kinds import Ended
from scheduler_extender.cluster.pods import PodInfo
from scheduler_extender.cluster.records import GpuJobRecord
from scheduler_extender.cluster.roles import at
from scheduler_extender.cluster.selectors import selects
from scheduler_extender.cluster.workers import declared_of, demand_of
from scheduler_extender.cluster.workloads import Kind, gang_size, has_no_end, kind_of, role_of
from scheduler_extender.queue.steps import lifecycle, waits
from scheduler_extender.queue.steps.effects import (
    CreateGpuJob,
    DeleteGpuJob,
    Effects,
    EvictPods,
    Reach,
    ReadWorkload,
    Suspend,
    WriteEvent,
    WriteStatus,
)
from scheduler_extender.queue.steps.waits import BLOCKED, MISSING
from tandem.contracts import names
from tandem.contracts.annotations import AnnotationError, parse_demand
from tandem.contracts.resources import (
    Demand,
    GPUJobSpec,
    GPUJobStatus,
    Phase,
    ResourceAmount,
    Role,
    WorkloadRef,
)
from tandem.contracts.values import (
    LEAST_CPUS,
    LONGEST_TEXT,
    MAX_CPUS,
    MAX_INTEGER,
    MAX_ROLES,
    shortened,
)
from tandem.reasons.causes import MOST_CAUSES, Cause, Reason
from tandem.reasons.words import clause, in_full, sentence

log = logging.getLogger(__name__)

SUSPEND, EVICT = "suspend", "evict"
#: After this time, pods that their owner has not stopped are evicted.
SUSPEND_WITHIN_S = 60.0
#: A gang that still holds its GPUs this long after it was preempted is reported.
OVERDUE_S = 300.0
OVERDUE = Reason.PREEMPTION_OVERDUE
#: Entries of pods that a closed GPUJob may keep: to write it again costs more.
_LISTED = 100
NOT_REPORTED = "its kubelet reports nothing"
_PODS_WITH_EVENTS = 8  # pods of one gang that get an event
_ENDED = ("Complete", "Completed", "Succeeded", "Failed")


def _with_cpus(demand: Demand, pod: PodInfo) -> Demand:
    if pod.cpu <= 0:
        return demand
    cpus = min(max(pod.cpu / max(pod.gpus, 1), LEAST_CPUS), MAX_CPUS)
    return demand.model_copy(update={"cpus": cpus})


def roles_of(gang: Gang) -> tuple[Role, ...]:
    """Return what the pods of a gang ask for where they ask for different things, else nothing."""
    if not 1 < gang.asks <= MAX_ROLES:
        return ()
    roles: list[Role] = []
    for pods in gang.roles():
        first, count = pods[0], len(pods)
        demand = demand_of(declared_of(first), first.gpus).model_copy(update={"gang_size": count})
        name = role_of(first) or f"{first.gpus}-gpu"
        same = sum(role.name == name or role.name.startswith(f"{name}-") for role in roles)
        memory = [("memory", first.memory_bytes)] if first.memory_bytes else []
        roles.append(
            Role(
                name=f"{name}-{same + 1}" if same else name,
                pods=count,
                min_pods=count,
                demand=_with_cpus(demand, first),
                resources=[
                    ResourceAmount(name=resource, amount=min(amount, MAX_INTEGER))
                    for resource, amount in (*memory, *first.amounts)
                ],
            )
        )
    return tuple(roles)


# --- a gang without a GPUJob -------------------------------------------------------------------


def create(
    gang: Gang,
    pod: PodInfo,
    workload: WorkloadRef,
    owner: Mapping[str, Any] | None,
    suspends: WorkloadRef | None = None,
    earlier: GPUJobSpec | None = None,
) -> Effects:
    """Create the GPUJob of a gang whose first pod belongs to `workload`.

    `owner` is the object that says how many pods start together, where there is one. `suspends` is
    what made the workload and rests in its place: the GPUJob stays as long as that, since it may
    delete the workload to rest (a RayJob its RayCluster), and has to be resumed then. What people
    have asked for `earlier`, of the workload that it had made before, holds for this one.
    """
    try:
        demand = parse_demand(pod.annotations, pod.gpus, gang_size=gang_size(pod, owner))
    except AnnotationError as error:
        # The webhook refuses these; a pod that came past it waits, and its owner reads why.
        return (WriteEvent(pod, "InvalidAnnotation", str(error)),)
    demand = _with_cpus(demand, pod)
    if has_no_end(suspends or workload):
        demand = demand.model_copy(update={"exclusive": True})
    spec = GPUJobSpec(
        workload=workload,
        suspends=suspends,
        demand=demand,
        gang=pod.annotations.get(names.GANG, ""),
        fingerprint=pod.fingerprint,
        hold=earlier is not None and earlier.hold,
        prioritized_at=earlier.prioritized_at if earlier is not None else None,
        user=pod.labels.get(names.USER_LABEL, ""),
    )
    reference = {
        "apiVersion": spec.rests.api_version,
        "kind": spec.rests.kind,
        "name": spec.rests.name,
        "uid": spec.rests.uid,
    }
    namespace, name = gang.key
    metadata = {"name": name, "namespace": namespace, "ownerReferences": [reference]}
    return (CreateGpuJob({"metadata": metadata, "spec": spec.wire()}),)


# --- a gang that waits or runs ------------------------------------------------------------------


def reports(gang: Gang, status: GPUJobStatus) -> bool:
    """Return True where a status says of a gang that it runs: no job waits for that to be written.

    The service of pods that have gone is no report: a crash would lose it.
    """
    return status.phase is Phase.RUNNING and not gang.gone


def write(gang: Gang, status: GPUJobStatus) -> Effects:
    """Write a status that has changed; a pod that has become the reason of a wait gets an event."""
    before = gang.job.status
    now_blocked = (status.reason, status.message) != (before.reason, before.message)
    if status.reason == MISSING and before.reason != MISSING and gang.is_live:
        return (WriteStatus(status), WriteEvent(gang.first(), MISSING, status.message))
    if status.reason != BLOCKED or not now_blocked or not gang.is_live:
        return (WriteStatus(status, report=reports(gang, status)),)
    pod = next((pod for pod in gang.live_pods() if pod.blocked), gang.first())
    return (WriteStatus(status), WriteEvent(pod, BLOCKED, status.message))


# --- a gang that gives up its GPUs ----------------------------------------------------------------


def release(gang: Gang, by: Cause, now_s: float) -> Effects:
    """Write that all pods of a gang go, before its owner is asked (`ask`)."""
    record = gang.job
    method = method_of(record)
    log.info("preempting gpujob=%s/%s method=%s by=%s", *gang.key, method, clause(by))
    status = lifecycle.preempting(record.status, by, method, now_s)
    return (WriteStatus(status, after="preempting-written"),)


def give_up_start(gang: Gang, late: Sequence[PodInfo], now_s: float) -> Effects:
    """Release a gang whose containers did not start; of one that runs, only these pods go."""
    record, pod = gang.job, late[0]
    bound_s = seconds(pod.bound_at) if pod.bound_at else now_s
    why = Cause(
        Reason.NEVER_STARTED,
        pod=pod.name,
        node=pod.node_name,
        seconds=round(now_s - bound_s),
        detail=pod.waits_for or NOT_REPORTED,
        pods=len(late) - 1,
    ).cut()
    log.info("never started gpujob=%s/%s pods=%d", *gang.key, len(late))
    said = sentence(why)
    events = [WriteEvent(each, lifecycle.NEVER_STARTED, said) for each in late[:_PODS_WITH_EVENTS]]
    if record.status.phase is Phase.RUNNING:
        status = lifecycle.rests_in_part(record.status, why, now_s)
        return (WriteStatus(status), *events, EvictPods(tuple(late)))
    method = method_of(record) or EVICT
    status = lifecycle.never_started(record.status, why, method, now_s)
    return (WriteStatus(status, after="preempting-written"), *events)


def ask(gang: Gang) -> Effects:
    """Suspend the workload of a gang in phase Preempting, or evict its pods."""
    preemption = gang.job.status.preemption
    if preemption is not None and preemption.method == SUSPEND:
        return (Suspend(True, partial(_asked, gang)),)
    return (_evict_all(gang), Reach("preempt-asked"))


def _asked(gang: Gang, why: str, now_s: float) -> Effects:
    """Decide what follows from the suspension, which is not possible for the reason `why`."""
    status = gang.job.status
    if why:
        return (WriteStatus(_evicted_instead(gang, why)), _evict_all(gang), Reach("preempt-asked"))
    if giving_up_s(status, now_s) >= SUSPEND_WITHIN_S:
        return (_evict_all(gang), Reach("preempt-asked"))
    return (Reach("preempt-asked"),)


def _evict_all(gang: Gang) -> EvictPods:
    """Evict a gang as a whole: the pods on their way to a node too."""
    return EvictPods(tuple(pod for pod in gang.live_pods() if not pod.gated))


def _evicted_instead(gang: Gang, why: str) -> GPUJobStatus:
    """Return the status of a gang whose owner cannot be suspended, so that its pods are evicted."""
    record = gang.job
    preemption = record.status.preemption
    assert preemption is not None
    log.warning("owner not suspended gpujob=%s/%s why=%s", *gang.key, why)
    workload = waits.called(record.spec.workload)
    instead = Cause(Reason.NOT_SUSPENDED, workload=workload, detail=why).cut()
    causes = [*record.status.causes, instead][:MOST_CAUSES]
    changes = {
        "preemption": preemption.model_copy(update={"method": EVICT}),
        "message": shortened(in_full(causes), LONGEST_TEXT),
        "causes": causes,
    }
    return record.status.model_copy(update=changes)


def giving_up_s(status: GPUJobStatus, now_s: float) -> float:
    """Return for how long a gang has been giving up its GPUs, in seconds."""
    return now_s - seconds(status.preemption.requested_at) if status.preemption else 0.0


def report_overdue(gang: Gang, now_s: float) -> Effects:
    """Report that a gang still holds GPUs, or could not be put back in the queue."""
    record, held = gang.job, gang.holders()
    going = sum(pod.deleting for pod in held)
    cause = (
        Cause(OVERDUE, pods=len(held), leaving=going, seconds=OVERDUE_S)
        if held
        else Cause(Reason.NOT_RESUMED, workload=waits.called(record.spec.rests))
    )
    log.warning("preemption overdue gpujob=%s/%s held=%d", *gang.key, len(held))
    events = [WriteEvent(pod, OVERDUE, sentence(cause)) for pod in held[:_PODS_WITH_EVENTS]]
    status = lifecycle.with_reason(record.status, OVERDUE, (cause,), now_s)
    return (WriteStatus(status), *events)


def come_back(gang: Gang, now_s: float) -> Effects:
    """Put a gang whose pods are gone back in the queue; its owner makes new ones."""
    preemption = gang.job.status.preemption
    gone = Reach("preempt-gone")
    if preemption is not None and preemption.method == SUSPEND:
        return (gone, ReadWorkload(partial(_back_by_workload, gang)))
    return (gone, *_back(gang, now_s))


def _back_by_workload(gang: Gang, workload: Mapping[str, Any] | None, now_s: float) -> Effects:
    if workload is None and gang.job.spec.suspends is not None:
        return (Suspend(False, partial(_resumed, gang)),)  # it makes another
    if workload is None:
        return _back(gang, now_s)  # the garbage collector takes the GPUJob with it
    if end := has_ended(workload, kind_of(gang.job.spec.workload).ended):
        return (WriteStatus(lifecycle.ended(gang, end == "Failed", now_s)),)
    return (Suspend(False, partial(_resumed, gang)),)


def _resumed(gang: Gang, why: str, now_s: float) -> Effects:
    if why:  # tried again, and reported when it lasts
        log.warning("owner not resumed gpujob=%s/%s why=%s", *gang.key, why)
        return ()
    return _back(gang, now_s)


def _back(gang: Gang, now_s: float) -> Effects:
    before = gang.job.status
    if before.preemption is not None and before.preemption.never_started:
        status = lifecycle.rested(before, now_s)
    else:
        status = lifecycle.suspended(before, now_s)
    return (Reach("preempt-resumed"), WriteStatus(status, after="suspended-written"))


# --- a gang whose pods have ended -----------------------------------------------------------------


def end(gang: Gang, now_s: float, *, lasts: bool = False) -> Effects:
    """Close a GPUJob whose workload has ended; a workload that goes on keeps it open.

    `lasts`: it has been without live pods for a while, and its status says so.

    Pods may be gone because the workload has ended (operators delete them), because it was
    suspended, or because they were deleted: only the workload itself can say.
    """
    record = gang.job
    if kind_of(record.spec.workload).resource is not None and not record.spans_workloads:
        return (ReadWorkload(partial(_end_by_workload, gang, lasts)),)
    return _close(gang, gang.failed > 0, now_s) if gang.pods else _go_on(gang, lasts, now_s)


def _end_by_workload(
    gang: Gang, lasts: bool, workload: Mapping[str, Any] | None, now_s: float
) -> Effects:
    if workload is None and gang.job.spec.suspends is not None:
        return (ReadWorkload(partial(_end_by_maker, gang, lasts), maker=True),)
    if workload is None:
        return ()  # the garbage collector takes the GPUJob with it
    end = has_ended(workload, kind_of(gang.job.spec.workload).ended)
    # A workload that has not ended may make more pods, or is about to say that it has.
    return _close(gang, end == "Failed", now_s) if end else _go_on(gang, lasts, now_s)


def _end_by_maker(
    gang: Gang, lasts: bool, maker: Mapping[str, Any] | None, now_s: float
) -> Effects:
    """Decide about a gang whose workload is gone, by what has made it and may make another."""
    if maker is None:
        return (DeleteGpuJob(),)
    end = has_ended(maker, kind_of(gang.job.spec.rests).ended)
    return _close(gang, end == "Failed", now_s) if end else _go_on(gang, lasts, now_s)


def _close(gang: Gang, failed: bool, now_s: float) -> Effects:
    status = lifecycle.ended(gang, failed, now_s)
    return (WriteStatus(status, before="end-before", after="end-after"),)


def _go_on(gang: Gang, lasts: bool, now_s: float) -> Effects:
    """Write what follows from the pods alone: without any, the gang is in the queue again."""
    before = gang.job.status
    status = before if gang.pods else lifecycle.observed(gang, now_s)
    if lasts:
        status = waits.without_live_pods(gang, status, now_s)
    return (WriteStatus(status),) if status is not before or gang.gone else ()


def revive(gang: Gang, now_s: float) -> Effects:
    """Put a GPUJob whose workload has pods again (a CronJob's, say) back into the queue."""
    return (WriteStatus(lifecycle.revived(gang.job.status, now_s)),)


def shorten(gang: Gang) -> Effects:
    """Fold the entries of ended pods of a closed GPUJob that an earlier version has written."""
    status = gang.job.status
    if len(status.pod_service) <= _LISTED or status.finished_at is None:
        return ()
    shorter = with_service(status, gang, seconds(status.finished_at))
    return (WriteStatus(shorter),) if shorter is not status else ()


# --- what the decisions ask of a gang -------------------------------------------------------------


def method_of(record: GpuJobRecord) -> str:
    """Return how a gang is made to give up its GPUs, '' if it never is.

    By its owner where that can rest: it makes new pods at once when it is resumed, while after an
    eviction a Job waits for longer each time. A gang named by its users may have many owners.
    """
    kind: Kind = kind_of(record.spec.rests)
    if kind.suspend and not record.spans_workloads:
        return SUSPEND
    return EVICT if kind.restarts else ""


def has_ended(workload: Mapping[str, Any], says: Ended | None = None) -> str:
    """Return the condition by which a workload has ended, or ''.

    `says` is the field by which its kind says so, where it has one: `Completed` or `Failed` then.
    """
    if says is not None:
        said = at(workload, says.at)
        return "Failed" if said in says.failed else "Completed" if said in says.completed else ""
    for condition in (workload.get("status") or {}).get("conditions") or ():
        if condition.get("type") in _ENDED and condition.get("status") == "True":
            return str(condition["type"])
    return ""


def forbidding(budgets: Sequence[Mapping[str, Any]], gang: Gang) -> Cause | None:
    """Return which disruption budget forbids that all pods of a gang go, or None.

    `budgets` are the PodDisruptionBudgets of its namespace.
    """
    pods = gang.holders()
    for budget in budgets:
        selector = (budget.get("spec") or {}).get("selector")
        hit = sum(selects(selector, pod.labels) for pod in pods)
        allowed = int((budget.get("status") or {}).get("disruptionsAllowed") or 0)
        if hit > allowed:
            name = budget["metadata"]["name"]
            return Cause(
                Reason.NOT_PREEMPTED, resource=name, job=gang.key[1], pods=hit, bound=allowed
            )
    return None
