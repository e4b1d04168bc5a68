"""Elastic gangs: which of their pods go when their workload asks for fewer. Pure.

The controller of such a workload numbers the pods of one role from 0. Of fewer pods, those with the
highest numbers go.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.kinds import Scale
from scheduler_extender.cluster.pods import PodInfo
from scheduler_extender.cluster.workloads import kind_of, role_of


@dataclass(frozen=True, slots=True)
class Smaller:
    """A gang whose workload asks for `pods`: `uids` are the pods that give up `gpus` then."""

    pods: int
    uids: frozenset[str]
    gpus: int


def scale_of(gang: Gang) -> Scale | None:
    """Return by which field of its workload a gang gets fewer pods, None where it never does."""
    record = gang.record
    if record is None or record.spans_workloads or record.spec.suspends is not None:
        return None
    return kind_of(record.spec.workload).scale


def number_of(pod: PodInfo, scale: Scale) -> int | None:
    """Return the number of a pod in the role that gets smaller, None for pods of others."""
    number = pod.labels.get(scale.index, "")
    return int(number) if role_of(pod) == scale.role and number.isdecimal() else None


def beyond(gang: Gang, pods: int) -> list[PodInfo]:
    """Return the pods of a gang that have not ended and go where its workload asks for `pods`."""
    scale = scale_of(gang)
    if scale is None:
        return []
    open_pods = (pod for pod in gang.pods.values() if not pod.finished)
    numbered = ((number_of(pod, scale), pod) for pod in open_pods)
    return [pod for number, pod in numbered if number is not None and number >= pods]


def going(gang: Gang) -> list[PodInfo]:
    """Return the pods that go because their workload was given fewer."""
    shrunk = gang.job.status.shrunk
    return [] if shrunk is None else beyond(gang, shrunk.pods)


def works_together(gang: Gang) -> bool:
    """Say whether the pods of a gang work on one thing, and not each for itself.

    Collective libraries such as NCCL refuse two ranks on one GPU.
    """
    expected = gang.expected
    elastic = expected is not None and expected.least is not None
    return elastic or gang.job.spec.demand.gang_size > 1


def grows(gang: Gang, planned: Collection[str]) -> bool:
    """Say whether a gang has the pods that it needs, so that others of it only make it larger.

    `planned` are the uids of its pods that have a place in its plan.
    """
    expected = gang.expected
    if expected is None or expected.least is None:
        return False
    if expected.least >= sum(expected.roles.values()):
        return False
    on_their_way = sum(1 for uid in planned if gang.is_waiting(uid))
    return gang.holds + on_their_way >= expected.least


def smaller(gang: Gang) -> list[Smaller]:
    """Return how small a gang may become: each gives up more GPUs than the one before.

    As many pods as start together keep their GPUs.
    """
    scale = scale_of(gang)
    if scale is None:
        return []
    shrunk = gang.job.status.shrunk
    if shrunk is not None and (not shrunk.written or beyond(gang, shrunk.pods)):
        return []  # it is getting smaller
    least, found, last = gang.job.spec.demand.gang_size, [], 0
    held = {pod.uid: pod for pod in gang.holders() if not pod.deleting}
    numbers = {uid: number_of(pod, scale) for uid, pod in held.items()}
    for pods in range(max((n + 1 for n in numbers.values() if n is not None), default=0), 0, -1):
        gone = frozenset(
            uid for uid, number in numbers.items() if number is not None and number >= pods
        )
        if pods < least or len(held) - len(gone) < least:
            break
        gpus = sum(held[uid].gpus for uid in gone)
        if gpus > last:
            found.append(Smaller(pods, gone, gpus))
            last = gpus
    return found
