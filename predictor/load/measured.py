"""The training step of a run as it was measured, and whether its input sets the pace."""

from __future__ import annotations

import math

from predictor.load.equations import Step, host_of, training_step
from tandem.contracts.prediction import Precision
from tandem.contracts.resources import GraphFeatures, Observation
from tandem.gpu_types import GpuType

#: Idle time above this share of a step, and above this multiple of what the graph's kernels
#: explain, is an input pipeline's.
_INPUT_SHARE, _INPUT_FACTOR = 0.25, 3.0
#: A period further than this factor from what the graph says is that of something else: an epoch,
#: a log, a few steps at once.
_NEAR = 1.8


def measured_step(
    features: GraphFeatures, batch: int, gpu: GpuType, seen: Observation, precision: Precision
) -> Step:
    """Return the step of a run as measured: one consistent load.

    The time of a step is what the job's pods reported. Where they reported none it is the formula's
    busy time over the measured utilisation, but at least the formula's time; the period that the
    agent found in the job's phases replaces that where it is near. The GPU is busy for the measured
    share of it, and takes its FLOPs and bytes in that time.
    """
    busy_share = min(seen.utilisation_percent / 100, 1.0)
    if seen.iterations_per_second:
        seconds = 1 / (seen.iterations_per_second * seen.accumulation_steps)
    else:
        formula = training_step(features, batch, gpu, precision=precision)
        seconds = max(formula.seconds, formula.busy_seconds / max(busy_share, 0.01))
        period = _period(seen)
        if period is not None and 1 / _NEAR <= period / seconds <= _NEAR:
            seconds = period
    shares = training_step(features, batch, gpu, seconds, precision)
    return Step(seconds, busy_share * seconds, shares.compute_share, shares.bandwidth_share)


def _period(seen: Observation) -> float | None:
    """Return the seconds of a micro-batch by the rhythm of phases with and without kernels.

    Phases that add up to one second say what share they have, and no period.
    """
    active, idle = seen.active_seconds, seen.idle_seconds
    if active is None or idle is None or math.isclose(active + idle, 1.0, abs_tol=0.005):
        return None
    return (active + idle) / seen.accumulation_steps


def is_input_bound(
    features: GraphFeatures, batch: int, gpu: GpuType, step: Step, precision: Precision
) -> bool:
    """Whether the GPU waits for something that the graph does not explain: the input pipeline."""
    formula = training_step(features, batch, gpu, precision=precision)
    idle = step.seconds - step.busy_seconds
    explained = max(formula.seconds - formula.busy_seconds, host_of(features).stall_s)
    return idle > _INPUT_SHARE * step.seconds and idle > _INPUT_FACTOR * explained
