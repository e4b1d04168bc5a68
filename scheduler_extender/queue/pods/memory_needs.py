"""A job's need of GPU memory after it was seen to need more, or ran out of it.

The functions are pure: gang and time -> effects.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from scheduler_extender.cluster.gang_index import Gangs
from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.jobs import memory_of_steps, scaled, scaled_steps, seconds
from scheduler_extender.cluster.pods import PodInfo
from scheduler_extender.cluster.records import GpuNodeRecord
from scheduler_extender.queue.steps import lifecycle
from scheduler_extender.queue.steps.effects import Effects, Executor, WriteEvent, WriteStatus
from tandem.contracts import names
from tandem.contracts.limits import GROWTH, parse_memory_fraction
from tandem.contracts.resources import (
    GPU,
    EvictionRequest,
    GPUJobStatus,
    Load,
    OutOfMemory,
    Source,
    SubBatch,
)
from tandem.kube.errors import Conflict, Forbidden, Invalid, KubeError, NotFound
from tandem.policy.units import BYTES_PER_GIB

log = logging.getLogger(__name__)

#: The next need is what was seen and this much of it more: the pod was still growing.
HEADROOM = 0.1
#: Containers that ran out of memory and have been counted. Beyond it, the namespace with most of
#: them loses its oldest: no tenant makes those of the others count once more.
_KEPT = 5000
#: A CUDA context, the libraries loaded into it, and what they allocate for themselves.
_CONTEXT_BYTES = 1 << 30


def outgrown(
    gang: Gang, request: EvictionRequest, capacity_bytes: int, now_s: float
) -> WriteStatus | None:
    """Raise the need of a job whose pod an agent asks to evict; None where it need not rise."""
    if gang.record is None or gang.record.status.load is None:
        return None
    status = gang.record.status
    if not request.memory_bytes:
        return _all_peaks_counted(status)
    steps = gang.steps_of(request.uid)
    held = min(request.memory_bytes, capacity_bytes)
    load, sub_batches = raised_in_steps(status, steps, held, capacity_bytes)
    message = (
        f"held {held / BYTES_PER_GIB:.1f} GiB on {request.gpu};"
        f" its next run is placed with {load.memory_p95_bytes / BYTES_PER_GIB:.1f} GiB"
    )
    if (load, sub_batches) == (status.load, status.sub_batches):
        return None
    return WriteStatus(_observed(status, load, sub_batches, message, now_s))


def _all_peaks_counted(status: GPUJobStatus) -> WriteStatus | None:
    """Let a job whose peak has met another one share only where all peaks fit together."""
    assert status.load is not None
    if not status.load.peaks_measured:
        return None
    changes = {"peaks_measured": False, "memory_source": Source.OBSERVED}
    load = status.load.model_copy(update=changes)
    return WriteStatus(status.model_copy(update={"load": load}))


def out_of_memory(
    gang: Gang, uid: str, one: OutOfMemory, capacity_bytes: int, gpu: str, now_s: float
) -> Effects:
    """Raise the need of the job whose pod `uid` is to blame; nothing where it need not rise.

    `gpu` is what people call the GPU whose memory ran out.
    """
    record = gang.record
    if record is None or record.status.load is None:
        return ()
    status, load, pod = record.status, record.status.load, gang.pods.get(uid)
    if load.memory_source is Source.WHOLE_GPU or not capacity_bytes:
        return ()
    held = min(one.blamed.memory_bytes if one.blamed else (one.memory_bytes or 0), capacity_bytes)
    steps = gang.steps_of(uid)
    said = memory_of_steps(status, steps) or load.memory_p95_bytes
    more, sub_batches = raised_in_steps(status, steps, max(held, said), capacity_bytes)
    if (more, sub_batches) == (load, status.sub_batches):
        return ()
    message = (
        f"ran out of GPU memory on {gpu}"
        f" ({'inferred by the node agent' if one.inferred else 'reported by its container'}):"
        f" {'it held' if one.inferred else 'there were'} {held / BYTES_PER_GIB:.1f} GiB"
        f"{'' if one.inferred else ' for it'}; its next run is placed with"
        f" {more.memory_p95_bytes / BYTES_PER_GIB:.1f} GiB"
    )
    log.warning("out of memory gpujob=%s/%s gpu=%s", *gang.key, one.gpu)
    status = _observed(status, more, sub_batches, message, now_s)
    written = WriteStatus(lifecycle.decided(status, "OutOfMemory", message, now_s))
    return (written,) if pod is None else (written, WriteEvent(pod, "OutOfMemory", message))


def _observed(
    status: GPUJobStatus, load: Load, sub_batches: list[SubBatch], message: str, now_s: float
) -> GPUJobStatus:
    """Return the status with a load that was observed, and with what was observed."""
    conditions = lifecycle.with_condition(
        status.conditions, lifecycle.PREDICTED, True, "Observed", message, now_s
    )
    return status.model_copy(
        update={"load": load, "sub_batches": sub_batches, "conditions": conditions}
    )


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


def _beyond_limit(pod: PodInfo, gpu: GPU) -> int:
    """Return what a pod that ran out of memory at its own limit is given next, in bytes.

    All of the GPU where it has no limit, or has been seen to hold more than that: not every
    framework keeps to it. What a process holds besides its allocator's memory is no part of it.
    """
    limit = parse_memory_fraction(pod.annotations.get(names.MEMORY_FRACTION, ""))
    held = max((use.memory_peak_bytes or 0 for use in gpu.pods if use.uid == pod.uid), default=0)
    if limit is None or held > limit * gpu.memory_bytes + _CONTEXT_BYTES:
        return gpu.memory_bytes
    return min(gpu.memory_bytes, int(limit * GROWTH * gpu.memory_bytes))


_Seen = tuple[str, str, int]  # uid of the pod that is to ask for more, container, when it ended


# Paper: [Horus] 4.2.3 | a job that ran out of memory is queued again with a need of at least what
#   was there | test: tests/queue/test_queue_learning.py
#   test_a_node_raises_the_need_of_its_own_pods_alone_and_to_the_memory_of_its_gpu | live: yes
class OutOfMemories:
    """Each of them is taken once. Runs on the event loop.

    A node says it of pods that are bound there and were given that GPU, and of no others: what it
    says of others is passed over. A pod that is not known yet comes again: each report of ten
    minutes has the entry.
    """

    def __init__(self, executor: Executor, gangs: Gangs, clock: Callable[[], float]) -> None:
        self._executor = executor
        self._gangs = gangs
        self._clock = clock
        self._seen: dict[str, dict[_Seen, None]] = {}  # by namespace
        self._kept = 0  # in all
        self._nodes: dict[str, GpuNodeRecord] = {}  # the last reports
        self._new: list[tuple[OutOfMemory, int, str]] = []

    def take(self, record: GpuNodeRecord) -> None:
        """Take in the report of a node's agent."""
        self._nodes[record.name] = record
        for one in record.status.out_of_memory:
            self._note(one, record)

    def node_gone(self, name: str) -> None:
        """Forget the report of a node."""
        self._nodes.pop(name, None)

    def take_pod(self, pod: PodInfo) -> None:
        """Take in a pod whose container said that GPU memory ran out.

        The container may have asked for any amount beyond what was there: it needs at least what
        the other pods had left of the GPU where they left most ([Horus] 4.2.3). One that kept to a
        limit of its own may not have had that: half as much again as the limit is tried next.
        """
        record = self._nodes.get(pod.node_name)
        if record is None or not pod.devices:
            return
        left = {
            gpu.uuid: min(
                gpu.memory_bytes
                - sum(use.memory_bytes or 0 for use in gpu.pods if use.uid != pod.uid),
                _beyond_limit(pod, gpu),
            )
            for gpu in record.status.gpus
            if gpu.uuid in pod.devices
        }
        for container, ended_at in pod.out_of_memory if left else ():
            uuid = max(left, key=lambda gpu: (left[gpu], gpu))
            said = OutOfMemory(
                gpu=uuid, namespace=pod.namespace, pod=pod.name, uid=pod.uid, container=container,
                exit_code=1, ended_at=ended_at, inferred=False, memory_bytes=max(0, left[uuid]),
            )  # fmt: skip
            self._note(said, record)

    def _note(self, one: OutOfMemory, record: GpuNodeRecord) -> None:
        uid = one.blamed.uid if one.blamed else one.uid
        key = (uid, one.container, int(seconds(one.ended_at)) if one.ended_at else 0)
        gang = self._gangs.gang_of(uid)
        if gang is None or not self._gangs.runs_on(uid, record.name, one.gpu):
            return
        seen = self._seen.setdefault(gang.key[0], {})
        if key in seen:
            return
        seen[key] = None
        self._kept += 1
        self._new.append((one, record.capacity_bytes(one.gpu), record.gpu_name(one.gpu)))
        if self._kept > _KEPT:
            largest = max(self._seen, key=lambda namespace: len(self._seen[namespace]))
            del self._seen[largest][next(iter(self._seen[largest]))]
            self._kept -= 1
            if not self._seen[largest]:
                del self._seen[largest]

    async def step(self) -> None:
        """Raise the needs of the jobs that took too much."""
        new, self._new = self._new, []
        for number, (one, capacity, gpu) in enumerate(new):
            uid = one.blamed.uid if one.blamed else one.uid
            gang = self._gangs.gang_of(uid)
            if gang is None:
                continue
            try:
                effects = out_of_memory(gang, uid, one, capacity, gpu, self._clock())
                if effects:
                    await self._executor.carry_out(gang, effects)
            except (Conflict, NotFound):
                self._new.append((one, capacity, gpu))  # its GPUJob has changed: looked at again
            except (Invalid, Forbidden) as error:
                log.warning("need not raised gpujob=%s/%s error=%r", *gang.key, str(error))
            except KubeError:
                self._new += new[number:]  # the API server is away: all that are left, later
                raise
