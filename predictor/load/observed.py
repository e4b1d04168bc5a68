"""Earlier runs of a model: the best source of a load, and how runs are combined."""

from __future__ import annotations

from collections.abc import Sequence

from tandem.contracts.learning import Neighbour
from tandem.contracts.prediction import Feedback
from tandem.contracts.resources import ModelProfileStatus, Observation
from tandem.gpu_types import find_gpu

#: Weight of the newest run in what is averaged.
_NEWEST_WEIGHT = 0.3
#: Kinds of runs (type of GPU, batch size, accumulation steps) that are kept; the one unseen for
#: longest goes first.
_MAX_KINDS = 64
_MAX_NEIGHBOURS = 8


def find(
    observed: Sequence[Observation],
    feature_hash: str,
    gpu_model: str | None,
    batch_size: int | None,
    accumulation_steps: int = 1,
) -> Observation | None:
    """Return what was seen of this graph at this batch size, in these steps, on this type of GPU.

    A run in micro-batches needs less memory than one of the whole batch, so neither stands for the
    other.
    """
    if gpu_model is None or batch_size is None:
        return None
    return next(
        (
            seen
            for seen in observed
            if seen.feature_hash == feature_hash
            and (seen.batch_size, seen.accumulation_steps) == (batch_size, accumulation_steps)
            and _same_type(seen.gpu_model, gpu_model)
        ),
        None,
    )


def add_run(
    status: ModelProfileStatus, feature_hash: str, run: Feedback, now: str
) -> ModelProfileStatus:
    """Return the status with one more run in it; `now` is RFC 3339."""
    known = find(
        status.observed, feature_hash, run.gpu_model, run.batch_size, run.accumulation_steps
    )
    peak = max(run.memory_peak_bytes, run.memory_base_bytes)
    if known is None:
        seen = Observation(
            gpu_model=run.gpu_model,
            batch_size=run.batch_size,
            accumulation_steps=run.accumulation_steps,
            feature_hash=feature_hash,
            runs=1,
            memory_base_bytes=run.memory_base_bytes,
            memory_peak_bytes=peak,
            peak_probability=run.peak_probability,
            peaks_measured=run.peaks_measured,
            utilisation_percent=run.utilisation_percent,
            active_seconds=run.active_seconds,
            idle_seconds=run.idle_seconds,
            iterations_per_second=run.iterations_per_second,
            neighbours=run.neighbours,
            last_observed_at=now,
        )
    else:
        seen = known.model_copy(
            update={
                "runs": known.runs + 1,
                "memory_base_bytes": round(_mean(known.memory_base_bytes, run.memory_base_bytes)),
                "memory_peak_bytes": max(known.memory_peak_bytes, peak),
                "peak_probability": _mean(known.peak_probability, run.peak_probability),
                "peaks_measured": known.peaks_measured and run.peaks_measured,
                "utilisation_percent": _mean(known.utilisation_percent, run.utilisation_percent),
                "active_seconds": _mean_of(known.active_seconds, run.active_seconds),
                "idle_seconds": _mean_of(known.idle_seconds, run.idle_seconds),
                "iterations_per_second": run.iterations_per_second or known.iterations_per_second,
                "neighbours": _latest(known.neighbours, run.neighbours),
                "last_observed_at": now,
            }
        )
    others = [o for o in status.observed if o is not known and o.feature_hash == feature_hash]
    others.sort(key=lambda o: o.last_observed_at, reverse=True)
    return ModelProfileStatus(
        observations=status.observations + 1,
        last_observed_at=now,
        observed=[seen, *others[: _MAX_KINDS - 1]],
    )


def _latest(before: Sequence[Neighbour], newest: Sequence[Neighbour]) -> list[Neighbour]:
    """Return what was seen next to each neighbour last, the newest at the end."""
    kinds = {each.kind for each in newest}
    return [*(each for each in before if each.kind not in kinds), *newest][-_MAX_NEIGHBOURS:]


def _mean(before: float, newest: float) -> float:
    return before + _NEWEST_WEIGHT * (newest - before)


def _mean_of(before: float | None, newest: float | None) -> float | None:
    if before is None or newest is None:
        return newest if before is None else before
    return _mean(before, newest)


def _same_type(one: str, other: str) -> bool:
    known = find_gpu(one)
    return one == other or (known is not None and known is find_gpu(other))
