"""The training step of a run as it was measured, and whether its input sets the pace."""

from __future__ import annotations

from predictor.equations import HOST_STALL_S, Step, training_step
from predictor.gpus import GpuType
from tandem.contracts.prediction import Precision
from tandem.contracts.resources import GraphFeatures, Observation

#: Idle time above this share of a step, and above this multiple of what the graph's kernels
#: explain, is an input pipeline's.
_INPUT_SHARE, _INPUT_FACTOR = 0.25, 3.0


def measured_step(
    features: GraphFeatures, batch: int, gpu: GpuType, seen: Observation, precision: Precision
) -> Step:
    """Return the step of a run as measured: one consistent load.

    The time of a step is what the job's pods told. Where they told nothing it is the formula's
    busy time over the measured utilisation, but at least the formula's time. The GPU is busy for
    the measured share of it, and takes its FLOPs and bytes in that time.
    """
    busy_share = min(seen.utilisation_percent / 100, 1.0)
    if seen.iterations_per_second:
        seconds = 1 / (seen.iterations_per_second * seen.accumulation_steps)
    else:
        formula = training_step(features, batch, gpu, precision=precision)
        seconds = max(formula.seconds, formula.busy_seconds / max(busy_share, 0.01))
    shares = training_step(features, batch, gpu, seconds, precision)
    return Step(seconds, busy_share * seconds, shares.compute_share, shares.bandwidth_share)


def is_input_bound(
    features: GraphFeatures, batch: int, gpu: GpuType, step: Step, precision: Precision
) -> bool:
    """Whether the GPU waits for something that the graph does not explain: the input pipeline."""
    formula = training_step(features, batch, gpu, precision=precision)
    idle = step.seconds - step.busy_seconds
    explained = max(formula.seconds - formula.busy_seconds, HOST_STALL_S)
    return idle > _INPUT_SHARE * step.seconds and idle > _INPUT_FACTOR * explained
