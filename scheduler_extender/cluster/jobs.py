"""From messages to the policy core's Job: the demand of a gang and its predicted load."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache

import numpy as np

from scheduler_extender.cluster.pair_slowdowns import PACK_LIMIT
from tandem.contracts.resources import Demand, GPUJobSpec, GPUJobStatus, Load, Source, SubBatch
from tandem.contracts.values import MAX_GPU_BYTES
from tandem.policy.equations.tiresias import spread_price
from tandem.policy.job import Job, gib
from tandem.policy.job import SubBatch as PolicySubBatch

#: After this time of observation, what was seen of a job is its need, even below the prediction.
SETTLED_S = 600.0
_HEADROOM = 1.1  # of the highest level seen: what may still come
_TIME_STEP = 1.25


def kind_of_model(spec: GPUJobSpec, load: Load | None) -> str:
    """Return what a job is known by from run to run: its graph and batch, else its fingerprint.

    With its training setup where its annotations state one: runs that differ in it need other
    memory and time.
    """
    demand = spec.demand
    if load is not None and load.feature_hash and demand.batch_size:
        how = "".join(f"+{value}" for value in demand.training_setup)
        return sys.intern(f"{load.feature_hash}@{demand.batch_size}{how}")
    return sys.intern(f"image:{spec.fingerprint}") if spec.fingerprint else ""


def load_now(demand: Demand, status: GPUJobStatus) -> Load:
    """Return the load that counts: what is predicted, or what is measured where that is more.

    What was measured for long enough counts also where it is less than a model or a formula said.
    Of a job that has whole GPUs nothing need be known.
    """
    load = status.load or unpredicted_load(demand)
    seen = status.observed
    if seen is None or load.memory_source is Source.WHOLE_GPU:
        return load
    settled = seen.seconds >= SETTLED_S
    changes: dict[str, object] = {}
    base, peak = seen.memory_base_bytes, seen.memory_peak_bytes
    guessed = load.memory_source in (Source.MODEL, Source.FORMULA)
    if seen.accumulation_steps > 1:
        load = scaled(load, _outgrown(status))
    elif peak is not None and ((settled and guessed) or peak > load.memory_p95_bytes):
        low = min(peak if base is None else base, peak)
        upper = max(round(_HEADROOM * peak), demand.declared_memory_bytes or 0)
        changes = {
            "memory_base_bytes": low,
            "memory_peak_extra_bytes": peak - low,
            "peak_probability": seen.peak_probability or 0.0,
            "memory_p95_bytes": max(min(upper, load.memory_p95_bytes), peak),
            "memory_source": Source.OBSERVED,
            "peaks_measured": settled and seen.peak_probability is not None,
        }
    if seen.active_seconds is not None and seen.idle_seconds is not None:
        changes |= {"active_s": seen.active_seconds, "idle_s": seen.idle_seconds}
    busy = seen.solo_utilisation_percent if settled else None
    if busy is None:  # next to others it gets less than it would take
        most = max(seen.solo_utilisation_percent or 0.0, seen.utilisation_percent or 0.0)
        busy = most if most > load.utilisation_percent else None
    if busy is not None:
        changes |= {
            "utilisation_percent": busy,
            "utilisation_p95_percent": max(busy, min(load.utilisation_p95_percent, 100.0)),
            "utilisation_source": Source.OBSERVED,
            "pair": None,
        }
    changes |= _time_as_measured(load, status)
    return load.model_copy(update=changes) if changes else load


def _time_as_measured(load: Load, status: GPUJobStatus) -> dict[str, object]:
    """Return time and shares of a load by the step that was measured, where it differs notably.

    A step that takes twice as long takes half the share of the GPU's rates.
    """
    seconds = alone_iteration_s(status)
    shares = load.compute_share, load.bandwidth_share
    if seconds is None or load.iteration_s is None or None in shares:
        return {}
    # In steps of a quarter: loads that differ by less are priced as one kind.
    slower = _TIME_STEP ** round(math.log(seconds / load.iteration_s, _TIME_STEP))
    if slower == 1.0:
        return {}
    compute, bandwidth = (min((share or 0.0) / slower, 1.0) for share in shares)
    return {
        "pair": None,
        "iteration_s": load.iteration_s * slower,
        "compute_share": compute,
        "bandwidth_share": bandwidth,
    }


def sub_batches_now(status: GPUJobStatus) -> list[SubBatch]:
    """Return the ways to split the batch with the memory that counts, as `load_now` of the whole.

    Where a run needed more than was said of it, in whichever way it ran, all ways need more by the
    same factor. What was measured of one way for long enough counts for it also where it is less.
    """
    factor, seen = _outgrown(status), status.observed
    found = [scaled_steps(each, factor) for each in status.sub_batches]
    if seen is None or seen.seconds < SETTLED_S or seen.memory_peak_bytes is None:
        return found
    peak = seen.memory_peak_bytes
    base = peak if seen.memory_base_bytes is None else min(seen.memory_base_bytes, peak)
    measured = {"memory_base_bytes": base, "memory_peak_bytes": round(_HEADROOM * peak)}
    return [
        each.model_copy(update=measured) if each.steps == seen.accumulation_steps else each
        for each in found
    ]


def scaled(load: Load, factor: float) -> Load:
    """Return a load whose memory is `factor` (at least 1) times as much."""
    if factor <= 1 or load.memory_source is Source.WHOLE_GPU:
        return load
    more: dict[str, object] = {
        name: min(round(factor * getattr(load, name)), MAX_GPU_BYTES)
        for name in ("memory_base_bytes", "memory_peak_extra_bytes", "memory_p95_bytes")
    }
    more |= {"memory_source": Source.OBSERVED, "peaks_measured": False}
    return load.model_copy(update=more)


def scaled_steps(sub_batch: SubBatch, factor: float) -> SubBatch:
    """Return a way to split the batch whose memory is `factor` (at least 1) times as much."""
    if factor <= 1:
        return sub_batch
    more = {
        name: min(round(factor * getattr(sub_batch, name)), MAX_GPU_BYTES)
        for name in ("memory_base_bytes", "memory_peak_bytes")
    }
    return sub_batch.model_copy(update=more)


def memory_of_steps(status: GPUJobStatus, steps: int) -> int | None:
    """Return the upper estimate for a batch in so many steps, in bytes; None if none is known."""
    if steps == 1:
        return status.load.memory_p95_bytes if status.load is not None else None
    return next((b.memory_peak_bytes for b in status.sub_batches if b.steps == steps), None)


def stretch_of_steps(status: GPUJobStatus, steps: int) -> float:
    """Return the time of an iteration in so many steps, as a multiple of that in one."""
    return next((each.stretch for each in status.sub_batches if each.steps == steps), 1.0)


def alone_iteration_s(status: GPUJobStatus) -> float | None:
    """Return the time of an iteration of the batch as submitted, without neighbours, in seconds.

    As the pods of this run report it, else as predicted; None where neither is known.
    """
    seen = status.observed
    if seen is not None and seen.solo_iterations_per_second:
        stretch = stretch_of_steps(status, seen.accumulation_steps)
        return 1 / (seen.solo_iterations_per_second * stretch)
    return status.load.iteration_s if status.load is not None else None


def progress_of(demand: Demand, status: GPUJobStatus, ran_s: float) -> tuple[float, float]:
    """Return the work that a job has left and its speed; the work is NaN where it is not known.

    The work is in seconds of a run alone, the speed a share of that of a run alone. `ran_s` is how
    long the job has run, in seconds, not counting runs that were lost. The iterations that its pods
    have reported count; without them, the time that it ran less what it lost.

    Worked: 1,000 iterations of 1 s, 1,000 s at a slowdown of 0.6: 375 s lost, so 375 s are left.
    """
    seen = status.observed
    slowdown = seen.slowdown.value if seen is not None and seen.slowdown is not None else 0.0
    steps = seen.accumulation_steps if seen is not None else 1
    speed = 1 / ((1 + slowdown) * stretch_of_steps(status, steps))
    iteration_s = alone_iteration_s(status)
    if iteration_s is None or demand.iterations is None:
        return float("nan"), speed
    work_s = demand.iterations * iteration_s
    if seen is not None and seen.iterations_done is not None:
        done_s = seen.iterations_done * iteration_s
    else:
        done_s = max(0.0, ran_s - (seen.slowed_seconds if seen is not None else 0.0))
    return work_s - done_s, speed


def _outgrown(status: GPUJobStatus) -> float:
    """Return by how much a run needed more than was said of the way in which it ran; at least 1."""
    seen = status.observed
    if seen is None or seen.memory_peak_bytes is None:
        return 1.0
    said = memory_of_steps(status, seen.accumulation_steps)
    return max(1.0, seen.memory_peak_bytes / said) if said else 1.0


def unpredicted_load(demand: Demand) -> Load:
    """Return the load of a job when no predictor answers: what was declared, or the whole GPU.

    A job that declared its memory may share by it; its utilisation, unless declared, counts as
    100 %. A job of which nothing is known takes whole GPUs and has no figures of its own.
    """
    known = demand.declared_memory_bytes is not None
    memory = demand.declared_memory_bytes or 0
    utilisation = demand.declared_utilisation_percent
    return Load(
        utilisation_percent=100.0 if utilisation is None else utilisation,
        utilisation_p95_percent=100.0 if utilisation is None else utilisation,
        memory_base_bytes=memory,
        memory_peak_extra_bytes=0,
        peak_probability=0.0,
        memory_p95_bytes=memory,
        utilisation_source=Source.WHOLE_GPU if utilisation is None else Source.DECLARED,
        memory_source=Source.DECLARED if known else Source.WHOLE_GPU,
    )


def policy_job(
    job_id: str,
    demand: Demand,
    load: Load,
    *,
    pods: int | None = None,
    queued_at_s: float = 0.0,
    attained_gpu_seconds: float = 0.0,
    sub_batches: Sequence[SubBatch] = (),
    kind: str = "",
) -> Job:
    """Return the job as policies see it; memory is the upper estimate, so that sharing is safe.

    `pods` is how many start now (a gang, or one replacement); by default the whole gang.
    `sub_batches` is what gradient accumulation offers, where the job allows it; `kind` is what the
    job is known by from run to run.
    """
    base = gib(load.memory_base_bytes)
    peak = max(
        gib(load.memory_base_bytes + load.memory_peak_extra_bytes), gib(load.memory_p95_bytes)
    )
    return Job(
        id=job_id,
        pods=demand.gang_size if pods is None else pods,
        gpus_per_pod=demand.gpus_per_pod,
        gang_gpus=demand.gang_size * demand.gpus_per_pod,
        memory_base_gib=base,
        memory_peak_extra_gib=peak - base,
        peak_probability=load.peak_probability,
        peak_measured=load.peaks_measured,
        gpu_utilisation=load.utilisation_percent,
        active_share=_active_share(load),
        exclusive=demand.exclusive or load.memory_source is Source.WHOLE_GPU,
        checkpointable=demand.checkpoint,
        queued_at_s=queued_at_s,
        attained_gpu_seconds=attained_gpu_seconds,
        model=kind,
        skewed=load.tensor_skew is None or load.tensor_skew > PACK_LIMIT,
        # An unknown skew has the price of the limit: it neither is ignored nor decides alone.
        spread_slowdown=_spread_price(
            PACK_LIMIT if load.tensor_skew is None else load.tensor_skew,
            demand.gang_size * demand.gpus_per_pod,
        ),
        sub_batches=tuple(
            PolicySubBatch(
                each.steps,
                gib(each.memory_base_bytes),
                gib(each.memory_peak_bytes - each.memory_base_bytes),
                each.stretch,
                each.utilisation_percent,
                rates_of(each),
            )
            for each in sub_batches
            if demand.accumulation
        ),
        required_topology=demand.required_topology or "",
        preferred_topology=demand.preferred_topology or "",
    )


@lru_cache(4096)
def _spread_price(skew: float, gpus: int) -> float:
    return float(spread_price(np.array(skew), gpus))


def rates_of(load: Load | SubBatch) -> tuple[float, ...]:
    """Return what a load takes of a GPU's rates, by which a model prices it; () where not known."""
    rates = load.iteration_s, load.compute_share, load.bandwidth_share
    known = tuple(rate for rate in rates if rate is not None)
    return known if len(known) == len(rates) else ()


def _active_share(load: Load) -> float | None:
    """Return for which share of its time a worker runs kernels; None where it was not measured."""
    if load.active_s is None or load.idle_s is None or load.active_s + load.idle_s <= 0:
        return None
    return load.active_s / (load.active_s + load.idle_s)


def in_steps(job: Job, steps: int) -> Job:
    """Return the job as it runs in so many micro-batches; as submitted where it has no such way."""
    chosen = next((each for each in job.sub_batches if each.steps == steps), None)
    return job if chosen is None else job.with_sub_batch(chosen)


def demand_now(spec: GPUJobSpec, status: GPUJobStatus) -> Demand:
    """Return what a job asks for; one that was moved to GPUs of its own shares with no job."""
    return spec.demand.model_copy(update={"exclusive": True}) if status.alone else spec.demand


def job_of(job_id: str, spec: GPUJobSpec, status: GPUJobStatus, *, pods: int | None = None) -> Job:
    """Return the policy core's job of a GPUJob."""
    return policy_job(
        job_id,
        demand_now(spec, status),
        load_now(spec.demand, status),
        pods=pods,
        queued_at_s=seconds(status.queued_at) if status.queued_at else 0.0,
        attained_gpu_seconds=status.attained_gpu_seconds,
        sub_batches=sub_batches_now(status),
        kind=kind_of_model(spec, status.load),
    )


def seconds(time: str) -> float:
    """Return the Unix time of an RFC 3339 time."""
    return datetime.fromisoformat(time).timestamp()


def rfc3339(unix_s: float) -> str:
    """Return a Unix time as Kubernetes writes it, with microseconds."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
