"""A gang: a GPUJob and its pods, with the counts that the queue reads updated as pods change.

Only `Gangs` (`gang_index.py`) changes one.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any, TypeVar

from scheduler_extender.cluster.jobs import seconds
from scheduler_extender.cluster.pods import PodInfo, Shape
from scheduler_extender.cluster.records import GpuJobRecord, Key
from scheduler_extender.cluster.workers import Declared, declared_of, demand_of, figures_of
from scheduler_extender.cluster.workloads import has_no_end, is_endless
from tandem.contracts import names
from tandem.contracts.resources import GPUJobStatus, PodService

_Names = list[tuple[str, str]]  # (name, uid) of pods, ascending
_Name = TypeVar("_Name")
_Value = TypeVar("_Value")
#: By uid, or by what pods ask for, of pods of which a gang has none: one for all gangs. Each has a
#: dozen such, and a cluster tens of thousands of gangs, most of one pod. It is never written to.
NO_ENTRIES: dict[Any, Any] = {}
#: What may be taken back of the service of each GPU of a pod, once the end of its run is known:
#: kubelets write starts and ends in whole seconds, and clocks differ by a little.
TAKEN_BACK_S = 2.0
_TAKEN_BACK_MS = round(TAKEN_BACK_S * 1000)
Ask = tuple[int, Declared]  # GPUs of a pod, and what it declares


def _none() -> dict[Any, Any]:
    return NO_ENTRIES


@dataclass(frozen=True, slots=True)
class Expected:
    """The workload of a gang when it was read: the number of pods by role that can exist now.

    `left` is how many pods had not succeeded, None where any number may follow; `succeeded` is how
    many of the gang's pods were seen to have succeeded at that time. `least` of the pods of all
    roles start together, None for all.
    """

    roles: Mapping[str, int]
    left: int | None
    succeeded: int
    least: int | None = None


@dataclass(slots=True)
class Gang:
    """One GPUJob, as far as it exists, and its pods by uid.

    `gone` are pods that have left the gang and whose last service may not have been written yet,
    with the time at which they left (Unix time). `ends_since_s` is when its pods were last heard to
    begin to succeed (Unix time). `put` and `remove` keep the counts, so that a change of one pod
    costs the same in a gang of one and in a gang of thousands.
    """

    key: Key
    record: GpuJobRecord | None = None
    pods: dict[str, PodInfo] = field(default_factory=dict)
    gone: dict[str, tuple[PodInfo, float]] = field(default_factory=_none)
    ends_since_s: float = -math.inf
    expected: Expected | None = None
    has_loads: bool = field(default=False, init=False)  # its pods declare, or did, several loads
    size_is_stale: bool = False  # its pods disagree with its size, and its workload is not read yet
    absent_group: str = ""  # kind and name of the group that its pods name, while there is none
    running: int = field(default=0, init=False)  # live pods on a node in phase Running
    succeeded: int = field(default=0, init=False)
    failed: int = field(default=0, init=False)
    leaving: int = field(default=0, init=False)  # pods that are being deleted and hold GPUs
    gpus_running: int = field(default=0, init=False)  # GPUs (shares) on which containers run
    _live: _Names = field(default_factory=list, init=False, repr=False)
    unbound: int = field(default=0, init=False)  # live pods on no node
    _endless: int = field(default=0, init=False, repr=False)  # of those that have not ended
    _asks: dict[int, int] = field(default_factory=_none, init=False, repr=False)  # by their GPUs
    # What the live pods ask for: all of them the same, or each role with its pods.
    _ask: Ask | None = field(default=None, init=False, repr=False)
    _roles: dict[Ask, _Names] = field(default_factory=_none, init=False, repr=False)
    _waiting: dict[Shape, _Names] = field(  # those of them for which a plan could take effect
        default_factory=_none, init=False, repr=False
    )
    _holders: dict[str, PodInfo] = field(default_factory=_none, init=False, repr=False)
    _starting: dict[str, PodInfo] = field(default_factory=_none, init=False, repr=False)
    _nominated: dict[str, PodInfo] = field(default_factory=_none, init=False, repr=False)
    # Holders that no annotation says what they were placed with, and those placed on whole GPUs.
    _unmarked: dict[str, PodInfo] = field(default_factory=_none, init=False, repr=False)
    _on_whole_gpus: dict[str, PodInfo] = field(default_factory=_none, init=False, repr=False)
    # The service of its pods is `rate * now + offset`, in GPU-milliseconds; `before` is what of it
    # the record has counted already, of the pods in `served`. Pods in `folded` are in none of
    # these: their service is final, and the record has all of it (`is_folded`).
    _rate: int = field(default=0, init=False, repr=False)
    _offset: int = field(default=0, init=False, repr=False)
    _before: int = field(default=0, init=False, repr=False)
    _served: dict[str, PodService] = field(default_factory=_none, init=False, repr=False)
    _served_of: GpuJobRecord | None = field(default=None, init=False, repr=False)
    _folded_until_s: float = field(default=-math.inf, init=False, repr=False)
    _folded: dict[str, PodInfo] = field(default_factory=_none, init=False, repr=False)
    _ended: dict[str, PodInfo] = field(default_factory=_none, init=False, repr=False)  # the others

    def __post_init__(self) -> None:
        """Count the pods that are there at the start."""
        for pod in self.pods.values():
            self._count(pod, 1)

    def put(self, pod: PodInfo) -> None:
        """Take in a pod as it is now."""
        known = self.pods.get(pod.uid)
        if known is not None:
            self._count(known, -1)
        self.pods[pod.uid] = pod
        self.counted(pod.uid)
        self._count(pod, 1)

    def remove(self, uid: str, now_s: float) -> None:
        """Let a pod go; its service is still to be counted to `now_s` or to its end."""
        pod = self.pods.pop(uid)
        is_counted = uid in self._folded
        self._count(pod, -1)
        if pod.started_at and not is_counted:
            self.gone = _with(self.gone, uid, (pod, now_s))

    def counted(self, uid: str) -> None:
        """Forget a pod that is gone: its service is written, or it is here again."""
        self.gone = _without(self.gone, uid)

    def frozen(self) -> Gang:
        """Return a copy to read in another thread; its pods and its record do not change."""
        same = copy(self)
        same.pods, same.gone = dict(self.pods), dict(self.gone)
        same._holders, same._ended = dict(self._holders), dict(self._ended)
        same._folded, same._starting = dict(self._folded), dict(self._starting)
        same._nominated = dict(self._nominated)
        return same

    @property
    def job(self) -> GpuJobRecord:
        """Its GPUJob, for callers that know that there is one."""
        assert self.record is not None
        return self.record

    def attained_gpu_s(self, now_s: float) -> float:
        """Return the service until `now_s` (Unix time) in GPU-seconds, as a write counts it.

        Its time does not grow with the number of pods, except once for each version of the record.
        Clocks that go back, which a write takes care of pod by pod, count for all as one.
        """
        status = self.job.status
        self._follow_record(self.job)
        added = self._rate * _ms(now_s) + self._offset - self._before
        for pod, gone_s in self.gone.values():
            if self._is_folded(pod):
                continue
            end_s = seconds(pod.finished_at) if pod.finished_at else gone_s
            service = pod.gpus * max(0, _ms(end_s) - _ms(seconds(pod.started_at)))
            least = -pod.gpus * _TAKEN_BACK_MS if pod.finished_at else 0
            added += max(least, service - self._counted(pod))
        if added < 0:
            ended = (*self._ended.values(), *(pod for pod, _ in self.gone.values()))
            added = max(added, -_TAKEN_BACK_MS * sum(pod.gpus for pod in ended if pod.finished_at))
        return max(0.0, status.attained_gpu_seconds + added / 1000)

    @property
    def nominated(self) -> Mapping[str, PodInfo]:
        """Live pods on no node for which kube-scheduler is to try one node first, by uid."""
        return self._nominated

    def starting(self) -> list[PodInfo]:
        """Return the pods on nodes whose containers have not started, those terminating apart."""
        return list(self._starting.values())

    def unfolded(self) -> list[PodInfo]:
        """Return the pods on nodes, and those that have ended whose service may not be counted yet.

        Their number does not grow with the pods that have ended before.
        """
        if self.record is not None:
            self._follow_record(self.record)
        return [*self._holders.values(), *self._ended.values()]

    @property
    def is_live(self) -> bool:
        """True with a pod that has neither ended nor is terminating."""
        return bool(self._live)

    @property
    def finished(self) -> int:
        """The number of its pods that have ended."""
        return self.succeeded + self.failed

    def first(self) -> PodInfo:
        """Return the first live pod by name."""
        return self.pods[self._live[0][1]]

    def steps_of(self, uid: str) -> int:
        """Return in how many micro-batches a pod runs its batch."""
        pod = self.pods.get(uid)
        return self.job.steps(uid, pod.annotations if pod is not None else {})

    def live_pods(self) -> list[PodInfo]:
        """Return the pods that have neither ended nor are terminating, by name."""
        return [self.pods[uid] for _, uid in self._live]

    def waiting_pods(
        self, leaving_out: Iterable[str] = (), most: float = math.inf
    ) -> list[PodInfo]:
        """Return the pods for which a plan could take effect, by name.

        Those with uids in `leaving_out` are left out. Of those that ask the same of a node, `most`
        at most are returned.
        """
        out = frozenset(leaving_out)
        limit = None if most == math.inf else int(most)
        found: _Names = []
        for named in self._waiting.values():
            found += islice((each for each in named if each[1] not in out), limit)
        if len(self._waiting) > 1:
            found.sort()
        return [self.pods[uid] for _, uid in found]

    def is_waiting(self, uid: str) -> bool:
        """Say whether a pod of the gang is live and on no node."""
        pod = self.pods.get(uid)
        return pod is not None and not (pod.node_name or pod.finished or pod.deleting)

    def still_to_come(self, size: int) -> int:
        """Return how many pods must start together now: those that have succeeded do not come back.

        `size` is what the GPUJob says; what the workload said when it was read is newer. At least
        one, for a workload that has pods again after all had ended.
        """
        if self.expected is None:
            return max(1, size - self.succeeded)
        more = max(0, self.succeeded - self.expected.succeeded)
        at_once, left = sum(self.expected.roles.values()), self.expected.left
        if self.expected.least is not None:
            at_once = min(at_once, self.expected.least)
        return max(1, at_once - more if left is None else min(at_once, left - more))

    @property
    def bound(self) -> int:
        """The number of live pods on nodes."""
        return len(self._live) - self.unbound

    @property
    def blocked(self) -> int:
        """The number of live pods on no node that could follow no plan yet (`PodInfo.blocked`)."""
        return self.unbound - sum(map(len, self._waiting.values()))

    def roles(self) -> list[list[PodInfo]]:
        """Return the live pods by what they ask for and declare, in the order of `by_role`."""
        if self._ask is not None:
            return [self.live_pods()]
        return in_order([[self.pods[uid] for _, uid in named] for named in self._roles.values()])

    @property
    def asks(self) -> int:
        """In how many ways its live pods ask for GPUs."""
        return len(self._roles) if self._ask is None else 1

    @property
    def most_gpus(self) -> int:
        """The most GPUs that one of its live pods on no node asks for, 0 without any."""
        return max(self._asks, default=0)

    @property
    def is_endless(self) -> bool:
        """True where a pod of it, or its workload, has no end of its own."""
        return self._endless > 0 or has_no_end(self.job.spec.rests)

    @property
    def checkpoints(self) -> bool:
        """True where every pod that holds GPUs saves checkpoints: only then the gang may move."""
        return self.job.spec.demand.checkpoint and all(
            pod.annotations.get(names.CHECKPOINT) == "true" for pod in self._holders.values()
        )

    @property
    def holds(self) -> int:
        """The number of its pods that hold GPUs."""
        return len(self._holders)

    def holders(self) -> list[PodInfo]:
        """Return the pods that hold GPUs: bound and not ended, those terminating included."""
        return list(self._holders.values())

    def unmarked(self) -> list[PodInfo]:
        """Return holders whose annotations do not say yet what their GPUs are thought to hold.

        These are pods that were bound by a version without such annotations, and pods that got
        whole GPUs because nothing was known of them, once something is.
        """
        pods = list(self._unmarked.values())
        if self.record is not None and not self.record.worker.exclusive:
            pods += self._on_whole_gpus.values()
        return pods

    def _follow_record(self, record: GpuJobRecord) -> None:
        """Take in which pods a new version of the record has counted; those folded leave the sums.

        Each pod is folded once; a record that has folded less than the one before (a new GPUJob of
        the same name) brings all of them back.
        """
        if self._served_of is record:
            return
        status, before_s = record.status, self._folded_until_s
        self._served_of = record
        self._served = {part.uid: part for part in status.pod_service} or NO_ENTRIES
        self._folded_until_s = folded_until_s(status)
        back = self._folded if self._folded_until_s < before_s else self._served
        for uid in [uid for uid in back if uid in self._folded]:
            pod = self._folded[uid]
            self._folded = _without(self._folded, uid)
            self._ended = _with(self._ended, uid, pod)
            self._serve(pod, 1)
        for uid, pod in list(self._ended.items()):
            if self._is_folded(pod):
                self._ended = _without(self._ended, uid)
                self._serve(pod, -1)
                self._folded = _with(self._folded, uid, pod)
        served = (self.pods[uid] for uid in self._served if uid in self.pods)
        self._before = sum(map(self._counted, served))

    def _is_folded(self, pod: PodInfo) -> bool:
        return pod.uid not in self._served and is_folded(pod, self._folded_until_s)

    def _counted(self, pod: PodInfo) -> int:
        """Return what of a pod's service the record has counted, in GPU-milliseconds."""
        part = self._served.get(pod.uid)
        if part is None or part.started_at != pod.started_at or not _has_run(pod):
            return 0
        return _ms(part.gpu_seconds)

    def _count_service(self, pod: PodInfo, by: int) -> None:
        """Add or take out the service of a pod that has run; the record may have all of it."""
        if by < 0 and pod.uid in self._folded:
            self._folded = _without(self._folded, pod.uid)
            return
        if pod.finished:
            if by > 0 and self._is_folded(pod):
                self._folded = _with(self._folded, pod.uid, pod)
                return
            self._ended = _kept(self._ended, pod, by)
        self._serve(pod, by)

    def _serve(self, pod: PodInfo, by: int) -> None:
        """Add the service of a pod that has run, or with -1 take it out."""
        start_ms = _ms(seconds(pod.started_at))
        if pod.finished and pod.finished_at:
            self._offset += by * pod.gpus * max(0, _ms(seconds(pod.finished_at)) - start_ms)
        else:
            self._rate += by * pod.gpus
            self._offset -= by * pod.gpus * start_ms
        self._before += by * self._counted(pod)

    def _count(self, pod: PodInfo, by: int) -> None:
        """Add a pod to the counts, or with -1 take it out."""
        if _has_run(pod):
            self._count_service(pod, by)
        self.succeeded += by * (pod.phase == "Succeeded")
        self.failed += by * (pod.phase == "Failed")
        if pod.finished:
            return
        self._endless += by * is_endless(pod)
        if pod.phase == "Running" and pod.started_at:
            self.gpus_running += by * pod.gpus
        if pod.node_name:
            self._holders = _kept(self._holders, pod, by)
            if by < 0:
                self._unmarked = _without(self._unmarked, pod.uid)
                self._on_whole_gpus = _without(self._on_whole_gpus, pod.uid)
            elif pod.devices:
                self._mark(pod)
        if pod.deleting:
            self.leaving += by * bool(pod.node_name)
            return
        self.running += by * bool(pod.node_name and pod.phase == "Running")
        if pod.node_name and pod.phase == "Pending":
            self._starting = _kept(self._starting, pod, by)
        entry = (pod.name, pod.uid)
        self._count_role(ask_of(pod), entry, by)
        self._live = _named(self._live, entry, by)
        if not self._live:
            self._ask, self._roles = None, NO_ENTRIES
        if pod.node_name:
            return
        self.unbound += by
        if pod.nominated_node:
            self._nominated = _kept(self._nominated, pod, by)
        asking = self._asks.get(pod.gpus, 0) + by
        self._asks = _set(self._asks, pod.gpus, asking)
        if not pod.blocked:
            waiting = _named(self._waiting.get(pod.shape, []), entry, by)
            self._waiting = _set(self._waiting, pod.shape, waiting)

    def _count_role(self, ask: Ask, entry: tuple[str, str], by: int) -> None:
        """Add a live pod to its role, or with -1 take it out; `_live` is still without it, or with.

        Most gangs have one role, whose pods are all that live. Roles are counted apart from the
        first pod on that asks for something else, until none lives.
        """
        if not self._live:
            self._ask = ask
        if self._ask == ask:
            return
        if self._ask is not None:
            self._roles, self._ask = {self._ask: self._live.copy()}, None
        if not (self.has_loads or ask in self._roles):
            # All others declare one load, or it would have several already.
            others = (figures_of(other[1]) for other in islice(self._roles, 1))
            self.has_loads = any(other != figures_of(ask[1]) for other in others)
        self._roles = _set(self._roles, ask, _named(self._roles.get(ask, []), entry, by))

    def _mark(self, pod: PodInfo) -> None:
        placed = pod.placed_with
        if placed is None or names.GPU_JOB not in pod.annotations:
            self._unmarked = _with(self._unmarked, pod.uid, pod)
        elif placed.memory_bytes is None:
            self._on_whole_gpus = _with(self._on_whole_gpus, pod.uid, pod)


def ask_of(pod: PodInfo) -> Ask:
    """Return what tells the pods of one role from those of others."""
    return _one_of((pod.gpus, declared_of(pod)))


@lru_cache(4096)
def _one_of(ask: Ask) -> Ask:
    """Return one object for all that ask and declare the same, which most pods do."""
    return ask


def by_role(pods: Iterable[PodInfo]) -> list[list[PodInfo]]:
    """Return pods by what they ask for and declare; those that are hardest to place come first."""
    found: dict[Ask, list[PodInfo]] = {}
    for pod in pods:
        found.setdefault(ask_of(pod), []).append(pod)
    return in_order(found.values())


def in_order(roles: Iterable[list[PodInfo]]) -> list[list[PodInfo]]:
    """Return roles with those first whose pods are hardest to place: they need most GPUs."""

    def place(pods: list[PodInfo]) -> tuple[int, bool, int, str]:
        demand = demand_of(declared_of(pods[0]))
        return (
            -pods[0].gpus,
            not demand.exclusive,
            -(demand.declared_memory_bytes or 0),
            pods[0].name,
        )

    return sorted(roles, key=place)


def _has_run(pod: PodInfo) -> bool:
    return bool(pod.started_at) and (pod.phase == "Running" or bool(pod.finished_at))


def is_folded(pod: PodInfo, until_s: float) -> bool:
    """Say whether a pod that the status does not list has ended and is counted to its end.

    `until_s` is `GPUJobStatus.folded_until` (Unix time): of the pods that were bound until then,
    the status lists those that had not ended when it was written.
    """
    return pod.finished and bool(pod.bound_at) and seconds(pod.bound_at) <= until_s


def folded_until_s(status: GPUJobStatus) -> float:
    """Return until when pods were bound of which only a sum is kept once they end (Unix time)."""
    return seconds(status.folded_until) if status.folded_until else -math.inf


def _ms(time_s: float) -> int:
    return round(1000 * time_s)


def _with(entries: dict[_Name, _Value], name: _Name, entry: _Value) -> dict[_Name, _Value]:
    """Return the entries with one more; they are changed, but for `NO_ENTRIES`."""
    if not entries:
        return {name: entry}
    entries[name] = entry
    return entries


def _without(entries: dict[_Name, _Value], name: _Name) -> dict[_Name, _Value]:
    """Return the entries without one, which may be absent; they are changed, or `NO_ENTRIES`."""
    entries.pop(name, None)
    return entries or NO_ENTRIES


def _set(entries: dict[_Name, _Value], name: _Name, entry: _Value) -> dict[_Name, _Value]:
    """Return the entries with this one in place of what is there, without it where it is empty."""
    return _with(entries, name, entry) if entry else _without(entries, name)


def _kept(pods: dict[str, PodInfo], pod: PodInfo, by: int) -> dict[str, PodInfo]:
    """Return the pods with one more, or with -1 without it."""
    return _with(pods, pod.uid, pod) if by > 0 else _without(pods, pod.uid)


def _named(names: _Names, entry: tuple[str, str], by: int) -> _Names:
    """Return the names with one more, or with -1 without it; they are changed, but empty ones."""
    if by < 0:
        del names[bisect_left(names, entry)]
        return names
    if not names:
        return [entry]
    insort(names, entry)
    return names
