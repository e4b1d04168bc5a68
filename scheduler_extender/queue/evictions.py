"""The memory guard's last step: evicts the pod that an agent names, before a neighbour fails.

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

from scheduler_extender.cluster.gangs import Gang, Gangs
from scheduler_extender.cluster.jobs import memory_of_steps, scaled, scaled_steps
from scheduler_extender.cluster.pods import PodInfo
from scheduler_extender.cluster.records import GpuNodeRecord
from scheduler_extender.cluster.writes import Writer
from scheduler_extender.queue import lifecycle
from tandem.contracts.resources import EvictionRequest, GPUJobStatus, Load, Source, SubBatch
from tandem.kube.errors import Conflict, KubeError, NotFound, TooManyRequests

log = logging.getLogger(__name__)

#: The next need is what was seen and this much of it more: the pod was still growing.
HEADROOM = 0.1
#: An eviction that a disruption budget forbids, or that failed, is tried again after this.
RETRY_S = 5.0
#: What may become of a request, for the metric.
OUTCOMES = ("evicted", "forbidden", "failed", "refused")

_GIB = 1 << 30
_Key = tuple[str, str, str]  # node, pod uid, GPU


class Evictions:
    """Requests by node, as the agents' latest reports have them. Runs on the event loop.

    `max_age_s` is the age at which a report, and what it asks for, is stale. `outcomes` counts
    what became of requests, each attempt of an eviction once.
    """

    def __init__(
        self, writer: Writer, gangs: Gangs, clock: Callable[[], float], max_age_s: float
    ) -> None:
        self.outcomes: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        self._writer = writer
        self._gangs = gangs
        self._clock = clock
        self._max_age_s = max_age_s
        self._nodes: dict[str, GpuNodeRecord] = {}
        self._again_s: dict[_Key, float] = {}  # when a request is looked at next

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
        if pod.finished or pod.deleting:
            return
        try:
            await self._raise_need(gang, record, request)
            await self._writer.call(self._writer.api.evict, pod.namespace, pod.name, uid=pod.uid)
        except (NotFound, Conflict) as error:
            # The pod or its GPUJob has changed or is gone: looked at again as it then is.
            log.info("eviction put off pod=%s/%s reason=%s", *pod.key, error)
        except KubeError as error:
            await self._not_evicted(key, pod, request, error)
        else:
            self._again_s[key] = math.inf
            await self._evicted(pod, request)

    def _find(self, node: str, request: EvictionRequest) -> tuple[Gang, PodInfo] | str:
        """Return the pod that is asked for, or why the agent of `node` may not ask for it."""
        for gang in self._gangs.by_key.values():
            pod = gang.pods.get(request.uid)
            if pod is None:
                continue
            if pod.node_name != node or request.gpu not in pod.devices:
                return "the pod was not given that GPU"
            load = gang.record.status.load if gang.record is not None else None
            if load is not None and load.memory_source is Source.WHOLE_GPU:
                return "the pod has the GPU to itself"
            return gang, pod
        return "no such pod of ours"

    async def _raise_need(
        self, gang: Gang, record: GpuNodeRecord, request: EvictionRequest
    ) -> None:
        if gang.record is None or gang.record.status.load is None:
            return
        status = gang.record.status
        if not request.memory_bytes:
            await self._count_all_peaks(gang, status)
            return
        capacity = next((g.capacity_gib * _GIB for g in record.gpus if g.uuid == request.gpu), 0.0)
        pod = gang.pods.get(request.uid)
        steps = gang.record.steps(request.uid, pod.annotations if pod is not None else {})
        load, sub_batches = raised_in_steps(status, steps, request.memory_bytes, int(capacity))
        if (load, sub_batches) == (status.load, status.sub_batches):
            return
        message = (
            f"held {request.memory_bytes / _GIB:.1f} GiB on {request.gpu};"
            f" its next run is placed with {load.memory_p95_bytes / _GIB:.1f} GiB"
        )
        conditions = lifecycle.with_condition(
            status.conditions, lifecycle.PREDICTED, True, "Observed", message, self._clock()
        )
        await self._writer.write_status(
            gang,
            status.model_copy(
                update={"load": load, "sub_batches": sub_batches, "conditions": conditions}
            ),
        )

    async def _count_all_peaks(self, gang: Gang, status: GPUJobStatus) -> None:
        """Let a job whose peak has met another one share only where all peaks fit together."""
        assert status.load is not None
        if not status.load.peaks_measured:
            return
        changes = {"peaks_measured": False, "memory_source": Source.OBSERVED}
        load = status.load.model_copy(update=changes)
        await self._writer.write_status(gang, status.model_copy(update={"load": load}))

    async def _evicted(self, pod: PodInfo, request: EvictionRequest) -> None:
        self.outcomes["evicted"] += 1
        log.warning("evicted pod=%s/%s gpu=%s reason=%r", *pod.key, request.gpu, request.reason)
        grows = " Its next run is placed with more memory." if request.memory_bytes else ""
        note = f"Evicted from {request.gpu}: {request.reason}.{grows}"
        await self._writer.say(pod, "MemoryOutgrown", note, "Warning")
        for other in self._neighbours(pod, request.gpu):
            note = (
                f"{_named(pod, other)} was evicted from {request.gpu}, whose memory was nearly"
                " used up."
            )
            await self._writer.say(other, "NeighbourEvicted", note, "Normal")

    async def _not_evicted(
        self, key: _Key, pod: PodInfo, request: EvictionRequest, error: KubeError
    ) -> None:
        forbidden = _by_budget(error)
        self.outcomes["forbidden" if forbidden else "failed"] += 1
        first = key not in self._again_s
        self._again_s[key] = self._clock() + RETRY_S
        log.warning("not evicted pod=%s/%s gpu=%s error=%s", *pod.key, request.gpu, error)
        if not first:
            return
        note = f"Must leave {request.gpu} ({request.reason}), but cannot be evicted: {error}"
        reason = "EvictionForbidden" if forbidden else "EvictionFailed"
        await self._writer.say(pod, reason, note, "Warning")
        for other in self._neighbours(pod, request.gpu):
            note = (
                f"{_named(pod, other)} may fill {request.gpu} and cannot be evicted;"
                " no other job is placed there"
            )
            await self._writer.say(other, "MemoryAtRisk", note, "Warning")

    def _neighbours(self, pod: PodInfo, gpu: str) -> list[PodInfo]:
        return [
            other
            for gang in self._gangs.by_key.values()
            for other in gang.live_pods()
            if other.uid != pod.uid and gpu in other.devices
        ]


def raised(load: Load, seen_bytes: int, capacity_bytes: int) -> Load:
    """Return `load` with a need of at least what was seen and some headroom; never a lower one.

    The level outside peaks is raised: how long the pod holds what was seen is not known. The
    headroom ends at the capacity of the GPU, so that the job still fits there by itself.
    """
    need = max(seen_bytes, min(round(seen_bytes * (1 + HEADROOM)), capacity_bytes))
    if need <= load.memory_p95_bytes:
        return load
    base = max(load.memory_base_bytes, seen_bytes - load.memory_peak_extra_bytes)
    return load.model_copy(
        update={
            "memory_p95_bytes": need,
            "memory_base_bytes": base,
            "memory_source": Source.OBSERVED,
            "peaks_measured": False,
        }
    )


def raised_in_steps(
    status: GPUJobStatus, steps: int, seen_bytes: int, capacity_bytes: int
) -> tuple[Load, list[SubBatch]]:
    """Return load and sub-batches of a job that held `seen_bytes` as it ran, in `steps`.

    What was seen in micro-batches says nothing of the whole batch by itself: all ways to run it are
    raised by the factor by which this one was.
    """
    assert status.load is not None
    said = memory_of_steps(status, steps)
    if steps == 1 or not said:
        load = raised(status.load, seen_bytes, capacity_bytes)
        factor = load.memory_p95_bytes / max(status.load.memory_p95_bytes, 1)
    else:
        need = max(seen_bytes, min(round(seen_bytes * (1 + HEADROOM)), capacity_bytes))
        factor = need / said
        load = scaled(status.load, factor)
    return load, [scaled_steps(each, factor) for each in status.sub_batches]


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
