"""A job's need of GPU memory after it was seen to need more. Pure: gang and time -> effects."""

from __future__ import annotations

import logging

from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.jobs import memory_of_steps, scaled, scaled_steps
from scheduler_extender.queue import lifecycle
from scheduler_extender.queue.effects import Effects, WriteEvent, WriteStatus
from tandem.contracts.resources import (
    EvictionRequest,
    GPUJobStatus,
    Load,
    OutOfMemory,
    Source,
    SubBatch,
)
from tandem.policy.units import BYTES_PER_GIB

log = logging.getLogger(__name__)

#: The next need is what was seen and this much of it more: the pod was still growing.
HEADROOM = 0.1


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
    load, sub_batches = raised_in_steps(status, steps, request.memory_bytes, capacity_bytes)
    message = (
        f"held {request.memory_bytes / BYTES_PER_GIB:.1f} GiB on {request.gpu};"
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
    gang: Gang, uid: str, one: OutOfMemory, capacity_bytes: int, now_s: float
) -> Effects:
    """Raise the need of the job whose pod `uid` is to blame; nothing where it need not rise."""
    record = gang.record
    if record is None or record.status.load is None:
        return ()
    status, load, pod = record.status, record.status.load, gang.pods.get(uid)
    if load.memory_source is Source.WHOLE_GPU:
        return ()
    held = one.blamed.memory_bytes if one.blamed else (one.memory_bytes or 0)
    steps = gang.steps_of(uid)
    said = memory_of_steps(status, steps) or load.memory_p95_bytes
    more, sub_batches = raised_in_steps(status, steps, max(held, said), capacity_bytes)
    if (more, sub_batches) == (load, status.sub_batches):
        return ()
    message = (
        f"ran out of GPU memory on {one.gpu}"
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
