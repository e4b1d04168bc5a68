"""The memory guard's last step: evicts the pod that an agent names, before a neighbour fails.

A pod that a disruption budget protects is deleted where it exceeds what it was placed with: a
budget of its owner must not cost a neighbour its work. One that takes long to end is given less
time.

An agent may not evict; it writes a request into its GPUNode. What is asked is checked against what
we know ourselves: the pod is ours, runs on that agent's node, and was given that GPU. The job's
need is raised before the pod goes, so that its next run is placed by what this one showed.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from scheduler_extender.cluster.gang_index import Gangs
from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.jobs import memory_of_steps
from scheduler_extender.cluster.pods import PodInfo
from scheduler_extender.cluster.records import GpuNodeRecord
from scheduler_extender.cluster.writes import Writer
from scheduler_extender.queue.pods.memory_needs import outgrown
from scheduler_extender.queue.steps.effects import Executor
from scheduler_extender.queue.steps.lifecycle import deletion_asked_s
from tandem.contracts.resources import EvictionRequest, Source
from tandem.kube.errors import Conflict, KubeError, NotFound, TooManyRequests
from tandem.kube.resource import PODS

log = logging.getLogger(__name__)

#: An eviction that a disruption budget forbids is tried again after this: a neighbour may fail
#: meanwhile. After another failure, the pause doubles with each attempt.
RETRY_S, RETRY_MAX_S = 5.0, 40.0
#: How long a pod that must leave may save its state before its grace period is cut, and what is
#: left of that period then.
SAVES_S, LEFT_S = 30.0, 30
#: What may become of a request, for the metric.
OUTCOMES = ("evicted", "deleted", "shortened", "forbidden", "failed", "refused")

_Key = tuple[str, str, str]  # node, pod uid, GPU


@dataclass(eq=False)
class Evictions:
    """Requests by node, as the agents' latest reports have them. Runs on the event loop.

    `_max_age_s` is the age at which a report, and what it asks for, is stale. `outcomes` counts
    what became of requests, each attempt of an eviction once.
    """

    _writer: Writer
    _executor: Executor
    _gangs: Gangs
    _clock: Callable[[], float]
    _max_age_s: float
    outcomes: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(OUTCOMES, 0)))
    _nodes: dict[str, GpuNodeRecord] = field(default_factory=dict)
    _again_s: dict[_Key, float] = field(default_factory=dict)  # when a request is looked at next
    _attempts: Counter[_Key] = field(default_factory=Counter)  # that failed
    _notified: set[_Key] = field(
        default_factory=set
    )  # whose owner and neighbours have been notified

    def node_changed(self, record: GpuNodeRecord) -> None:
        """Take in the report of a node's agent."""
        if record.status.eviction_requests:
            self._nodes[record.name] = record
        else:
            self._nodes.pop(record.name, None)

    def node_gone(self, record: GpuNodeRecord) -> None:
        """Forget a node."""
        self._nodes.pop(record.name, None)

    async def step(self) -> None:
        """Carry out what is asked for and not yet done; what fails is tried again later."""
        now = self._clock()
        asked = {
            (record.name, request.uid, request.gpu): (record, request)
            for record in self._nodes.values()
            if now - record.observed_at_s <= self._max_age_s
            for request in record.status.eviction_requests
        }
        self._again_s = {key: at for key, at in self._again_s.items() if key in asked}
        self._attempts = Counter({key: n for key, n in self._attempts.items() if key in asked})
        self._notified &= asked.keys()
        due = [key for key in asked if now >= self._again_s.get(key, 0.0)]
        await asyncio.gather(*(self._act(key, *asked[key]) for key in due))

    async def _act(self, key: _Key, record: GpuNodeRecord, request: EvictionRequest) -> None:
        found = self._find(record.name, request)
        if isinstance(found, str):
            if key not in self._again_s:
                self.outcomes["refused"] += 1
                log.warning("eviction refused node=%s uid=%s gpu=%s reason=%s", *key, found)
            self._again_s[key] = self._clock() + RETRY_S  # its pod may reach us after the request
            return
        gang, pod = found
        if pod.finished:
            return
        outgrew = _outgrew(gang, pod, request)  # as it was placed: its need is raised below
        try:
            capacity = record.capacity_bytes(request.gpu)
            raised = outgrown(gang, request, capacity, self._clock())
            if raised is not None:
                await self._executor.carry_out(gang, (raised,))
            if pod.deleting:
                await self._shorten(key, pod, request)
                return
            outcome = await self._evict(pod, outgrew)
        except (NotFound, Conflict) as error:
            # The pod or its GPUJob has changed or is gone: looked at again as it then is.
            log.info("eviction put off pod=%s/%s reason=%r", *pod.key, str(error))
            self._rest(key, RETRY_S / 5)
        except KubeError as error:
            await self._not_evicted(key, pod, request, error)
        else:
            self._again_s[key] = self._clock() + SAVES_S
            await self._evicted(pod, request, outcome)

    async def _evict(self, pod: PodInfo, outgrew: bool) -> str:
        """Evict a pod, or delete it where a budget forbids that and it outgrew its place.

        The pod has its own grace period either way. Returns the outcome.
        """
        call, api = self._writer.call, self._writer.api
        try:
            await call(api.evict, pod.namespace, pod.name, uid=pod.uid)
        except KubeError as error:
            if not outgrew or not _by_budget(error):
                raise
            log.warning("budget overridden pod=%s/%s error=%s", *pod.key, error)
            await call(api.delete, PODS, pod.name, pod.namespace, uid=pod.uid)
            return "deleted"
        return "evicted"

    async def _shorten(self, key: _Key, pod: PodInfo, request: EvictionRequest) -> None:
        """Have a pod that is being deleted end soon, once it has had time to save its state."""
        now = self._clock()
        cut_s = deletion_asked_s(pod) + SAVES_S
        if now < cut_s:
            self._again_s[key] = cut_s
            return
        self._again_s[key] = math.inf
        # The API server counts from the first request, the kubelet from when it hears of this one.
        if pod.grace_s <= now - deletion_asked_s(pod) + LEFT_S:
            return
        try:
            if not await self._writer.shorten_grace(pod, LEFT_S):
                return
        except KubeError as error:
            self.outcomes["failed"] += 1
            self._rest(key, RETRY_S)
            log.warning("not shortened pod=%s/%s gpu=%s error=%s", *pod.key, request.gpu, error)
            return
        self.outcomes["shortened"] += 1
        log.warning("grace period cut pod=%s/%s gpu=%s", *pod.key, request.gpu)
        note = (
            f"Must leave {self._gpu(pod, request)} ({request.reason}) and is being deleted: its"
            f" grace period of {pod.grace_s} s is cut, and ends in {LEFT_S} s"
        )
        await self._writer.say(pod, "MemoryOutgrown", note, "Warning")

    def _rest(self, key: _Key, pause_s: float) -> None:
        """Put a request off after an attempt that failed."""
        pause_s = min(pause_s * 2 ** min(self._attempts[key], 10), RETRY_MAX_S)
        self._attempts[key] += 1
        self._again_s[key] = self._clock() + pause_s

    def _find(self, node: str, request: EvictionRequest) -> tuple[Gang, PodInfo] | str:
        """Return the pod that is asked for, or why the agent of `node` may not ask for it."""
        gang = self._gangs.gang_of(request.uid)
        if gang is None:
            return "no such pod of ours"
        pod = gang.pods[request.uid]
        if pod.node_name != node or request.gpu not in pod.devices:
            return "the pod was not given that GPU"
        load = gang.record.status.load if gang.record is not None else None
        if load is not None and load.memory_source is Source.WHOLE_GPU:
            return "the pod has the GPU to itself"
        return gang, pod

    async def _evicted(self, pod: PodInfo, request: EvictionRequest, outcome: str) -> None:
        self.outcomes[outcome] += 1
        log.warning("evicted pod=%s/%s gpu=%s reason=%r", *pod.key, request.gpu, request.reason)
        grows = " Its next run is placed with more memory." if request.memory_bytes else ""
        how = "" if outcome == "evicted" else " A disruption budget does not protect it from that."
        note = f"Evicted from {self._gpu(pod, request)}: {request.reason}.{how}{grows}"
        await self._writer.say(pod, "MemoryOutgrown", note, "Warning")
        note = f"was evicted from {self._gpu(pod, request)}, whose memory was nearly used up."
        await self._tell_neighbours(pod, request.gpu, "NeighbourEvicted", note, "Normal")

    async def _not_evicted(
        self, key: _Key, pod: PodInfo, request: EvictionRequest, error: KubeError
    ) -> None:
        forbidden = _by_budget(error)
        self.outcomes["forbidden" if forbidden else "failed"] += 1
        first = key not in self._notified
        self._notified.add(key)
        if forbidden:
            self._again_s[key] = self._clock() + RETRY_S
        else:
            self._rest(key, RETRY_S)
        log.warning("not evicted pod=%s/%s gpu=%r error=%r", *pod.key, request.gpu, str(error))
        if not first:
            return
        gpu = self._gpu(pod, request)
        note = f"Must leave {gpu} ({request.reason}), but cannot be evicted: {error}"
        reason = "EvictionForbidden" if forbidden else "EvictionFailed"
        await self._writer.say(pod, reason, note, "Warning")
        note = f"may fill {gpu} and cannot be evicted; no other job is placed there"
        await self._tell_neighbours(pod, request.gpu, "MemoryAtRisk", note, "Warning")

    def _gpu(self, pod: PodInfo, request: EvictionRequest) -> str:
        """Return the GPU as people call it."""
        record = self._nodes.get(pod.node_name)
        return request.gpu if record is None else record.gpu_name(request.gpu)

    async def _tell_neighbours(
        self, pod: PodInfo, gpu: str, reason: str, what: str, kind: str
    ) -> None:
        """Write to the owners of the other pods on a GPU what happens to `pod`."""
        pods = [each for gang in self._gangs.by_key.values() for each in gang.live_pods()]
        for other in pods:
            if other.uid != pod.uid and gpu in other.devices:
                await self._writer.say(other, reason, f"{_named(pod, other)} {what}", kind)


def _outgrew(gang: Gang, pod: PodInfo, request: EvictionRequest) -> bool:
    """Say whether a pod holds more memory than it was placed with; False where that is unknown."""
    if not request.memory_bytes:
        return False
    placed = pod.placed_with
    if placed is not None:
        return placed.memory_bytes is not None and request.memory_bytes > placed.memory_bytes
    status = gang.record.status if gang.record is not None else None
    said = memory_of_steps(status, gang.steps_of(pod.uid)) if status is not None else None
    return said is not None and request.memory_bytes > said


def _by_budget(error: KubeError) -> bool:
    """Tell a disruption budget's no from an API server that has too much to do."""
    causes = error.details.get("causes") or ()
    return isinstance(error, TooManyRequests) and any(
        cause.get("reason") == "DisruptionBudget" for cause in causes
    )


def _named(pod: PodInfo, reader: PodInfo) -> str:
    """Return what may be said of a pod to the owner of another."""
    same = pod.namespace == reader.namespace
    return f"{pod.namespace}/{pod.name}" if same else "A pod of another namespace"
