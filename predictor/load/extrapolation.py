"""Extrapolates runs of a model to another batch size or another type of GPU.

Measured time comes first: of an earlier run the time of a step, the share of it in which the GPU
is busy, and the memory are known. The formula gives only the ratio between the two configurations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from predictor.load import spread as intervals
from predictor.load.equations import Step, host_of, training_step
from predictor.load.measured import is_input_bound, measured_step
from predictor.load.memory import allocator_of, formula_levels
from predictor.load.sources import (
    Memory,
    Question,
    Utilisation,
    gib,
)
from tandem.contracts.resources import Observation, Source
from tandem.gpu_types import UNKNOWN_GPU, GpuType, find_gpu, type_name
from tandem.reasons.counting import counted

VERSION = "extrapolated/1"

#: Idle time above this share of a step is the host's doing, and the host sets the pace.
_HOST_SHARE = 0.1
#: log of the factor to the upper bound: at the measured batch size, for each doubling away from
#: it, and for another type of GPU. docs/evidence/results/predictions.md has their coverage.
_MEMORY_SPREAD = (0.10, 0.12, 0.20)
_UTILISATION_SPREAD = (0.15, 0.10, 0.30)
#: Doublings of the batch size beyond which an answer is out of distribution.
_FAR = 3.0
#: What one measured run may correct of the formula's activations.
_LEAST, _MOST = 0.25, 4.0


@dataclass(frozen=True)
class Run:
    """An earlier run: samples on the GPU at once, and the step that was measured."""

    seen: Observation
    batch: int
    gpu: GpuType
    step: Step
    input_bound: bool


def runs_of(question: Question) -> list[Run]:
    """Return the earlier runs of the graph, those most like the question first."""
    features, batch = question.features, question.batch_size
    if features is None or batch is None:
        return []
    found = []
    for seen in question.earlier:
        size = -(-seen.batch_size // seen.accumulation_steps)
        gpu = find_gpu(seen.gpu_model) or UNKNOWN_GPU
        step = measured_step(features, size, gpu, seen, question.precision)
        bound = is_input_bound(features, size, gpu, step, question.precision)
        found.append(Run(seen, size, gpu, step, bound))
    return sorted(found, key=lambda run: (_elsewhere(run, question), _doublings(run, question)))


def extrapolated_utilisation(question: Question) -> Utilisation | None:
    """Predict time and utilisation from the earlier run most like it; passes without one."""
    runs = runs_of(question)
    if not runs:
        return None
    assert question.features is not None
    assert question.batch_size is not None
    run = runs[0]
    gpu = question.gpu or UNKNOWN_GPU
    seconds, busy = _time(question, runs, gpu)
    shares = training_step(question.features, question.batch_size, gpu, seconds, question.precision)
    step = Step(seconds, busy, shares.compute_share, shares.bandwidth_share)
    mean = step.utilisation_percent
    spread = _spread(_UTILISATION_SPREAD, run, question)
    waits = ", which waits for its input" if run.input_bound else ""
    return Utilisation(
        mean,
        min(100.0, mean * math.exp(spread)),
        Source.MODEL,
        f"utilisation and time from {_described(run)}{waits}",
        VERSION,
        _is_far(run, question),
        step,
        intervals.AFTER_UTILISATION * spread,
        intervals.AFTER_STEP * spread,
    )


def extrapolated_memory(question: Question) -> Memory | None:
    """Predict memory from the earlier run most like it; passes without one."""
    runs = runs_of(question)
    if not runs:
        return None
    run, seen = runs[0], runs[0].seen
    peak = _peak_bytes(question, runs)
    extra_share = 1 - min(seen.memory_base_bytes / max(seen.memory_peak_bytes, 1), 1.0)
    spread = _spread(_MEMORY_SPREAD, run, question)
    p95 = peak * math.exp(spread)
    assert question.features is not None
    growth, growth_p95 = allocator_of(question.features, question.setup).growth
    if run.batch < (question.batch_size or 1):
        # An allocator whose regions double may take one more.
        p95 *= growth_p95 / growth
    why = f"memory from {_described(run)}"
    capacity = question.gpu_memory_bytes
    if capacity is not None and peak > capacity:
        why += f": {gib(peak)}, more than the GPU's {gib(capacity)}, so all of it"
        return Memory(capacity, 0, 0, capacity, Source.MODEL, why, VERSION, True)
    return Memory(
        peak * (1 - extra_share),
        peak * extra_share,
        seen.peak_probability,
        p95 if capacity is None else min(p95, capacity),
        Source.MODEL,
        why,
        VERSION,
        _is_far(run, question),
        spread=spread
        * (intervals.AFTER_REGIONS if growth_p95 > growth else intervals.AFTER_MEMORY),
    )


def _time(question: Question, runs: Sequence[Run], gpu: GpuType) -> tuple[float, float]:
    """Return the seconds of a step and those in which the GPU is busy."""
    features, batch = question.features, question.batch_size
    assert features is not None
    assert batch is not None
    run = runs[0]
    other = _second(question, runs)
    if other is not None:
        seconds = _line(batch, run.batch, run.step.seconds, other.batch, other.step.seconds)
        busy = _line(batch, run.batch, run.step.busy_seconds, other.batch, other.step.busy_seconds)
        return seconds, min(busy, seconds)
    then = training_step(features, run.batch, run.gpu, precision=question.precision)
    now = training_step(features, batch, gpu, precision=question.precision)
    busy = run.step.busy_seconds * now.busy_seconds / then.busy_seconds
    if run.input_bound:
        return max(busy, run.step.seconds * batch / run.batch), busy
    idle = run.step.seconds - run.step.busy_seconds
    stall = host_of(features).stall_s
    if idle > _HOST_SHARE * run.step.seconds:
        host = run.step.seconds
    else:
        host = min(now.seconds - stall, run.step.seconds)
        host = host if now.seconds - stall > now.busy_seconds else 0.0
    return max(busy + min(idle, stall), host), busy


def _peak_bytes(question: Question, runs: Sequence[Run]) -> float:
    features, batch = question.features, question.batch_size
    assert features is not None
    assert batch is not None
    run, other = runs[0], _second(question, runs)
    known = run.seen.memory_peak_bytes
    if other is not None:
        return _line(batch, run.batch, known, other.batch, other.seen.memory_peak_bytes)
    then = formula_levels(features, run.batch, question.setup)
    now = formula_levels(features, batch, question.setup)
    formula = then.fixed + then.varying - then.start_up
    right = min(max((known - then.start_up) / max(formula, 1.0), _LEAST), _MOST)
    least = min(float(known), then.fixed)
    return max(known + right * (now.varying - then.varying), least)


def _second(question: Question, runs: Sequence[Run]) -> Run | None:
    """Return the next run on the same type of GPU at another batch size."""
    first = runs[0]
    if _elsewhere(first, question):
        return None
    return next(
        (
            run
            for run in runs[1:]
            if run.batch != first.batch
            and not _elsewhere(run, question)
            # A step that was measured and one that was derived are not of one line.
            and (run.seen.iterations_per_second is None)
            == (first.seen.iterations_per_second is None)
        ),
        None,
    )


def _line(at: float, x: float, y: float, x_other: float, y_other: float) -> float:
    """Return the line through two measurements; it never falls, and is never below zero at 0."""
    slope = max((y - y_other) / (x - x_other), 0.0)
    slope = min(slope, min(y, y_other) / min(x, x_other))
    return y + slope * (at - x)


def _elsewhere(run: Run, question: Question) -> bool:
    return type_name(run.seen.gpu_model) != question.gpu_type


def _doublings(run: Run, question: Question) -> float:
    return abs(math.log2((question.batch_size or 1) / run.batch))


def _spread(spread: tuple[float, float, float], run: Run, question: Question) -> float:
    base, doubling, elsewhere = spread
    found = base + doubling * _doublings(run, question)
    return found + (elsewhere if _elsewhere(run, question) else 0.0)


def _is_far(run: Run, question: Question) -> bool:
    return _elsewhere(run, question) or _doublings(run, question) > _FAR


def _described(run: Run) -> str:
    return f"{counted(run.seen.runs, 'run')} at batch {run.batch} on {run.seen.gpu_model}"
