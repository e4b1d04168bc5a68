"""The formulas behind a first prediction: numbers in, numbers out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tandem.contracts.prediction import Precision
from tandem.contracts.resources import GraphFeatures
from tandem.gpu_types import GpuType

# What a job does in a forward pass it does again, about twice over, in the backward pass.
_PASSES = 3.0
# Share of a data sheet's rate that frameworks reach on layers of usual size.
_FLOPS_EFFICIENCY = 0.5
_BANDWIDTH_EFFICIENCY = 0.7
# The shortest kernel, and what the host needs to start one from an eager framework.
_KERNEL_FLOOR_S = 4e-6
_LAUNCH_S = 10e-6
# Per iteration the GPU waits for the host at least this long (step of the loop, batch, loss).
HOST_STALL_S = 1e-3
# What autocast leaves of activations in bytes: half, but for norms, softmax and losses in 32 bits.
HALF_ACTIVATIONS = 0.6
# How sharply time sharing begins to cost at 100 %.
_CORNER = 6.0
# Power of the ratio of two steps by which their jobs share the time, and the largest ratio.
_TURNS, _LONGEST = 0.2, 1e3
# Kernels of the optimiser, which works on lists of tensors at a time.
_OPTIMIZER_KERNELS = 40


@dataclass(frozen=True)
class Step:
    """One training step: how long, how long of it the GPU computes, what of its rates it takes."""

    seconds: float
    busy_seconds: float
    compute_share: float  # of the data sheet's FLOP/s, over the whole step
    bandwidth_share: float  # of the data sheet's bytes/s, over the whole step

    @property
    def utilisation_percent(self) -> float:
        """Share of the time in which the GPU computes."""
        return min(100.0 * self.busy_seconds / self.seconds, 100.0)


def is_half(features: GraphFeatures) -> bool:
    """Whether the graph itself holds its weights in 16 bits or fewer."""
    return 0 < features.parameter_bytes < 3 * features.parameters


def activation_scale(features: GraphFeatures, precision: Precision) -> float:
    """Return what a precision leaves of the graph's activations, in bytes."""
    return HALF_ACTIVATIONS if precision.half and not is_half(features) else 1.0


def training_step(
    features: GraphFeatures,
    batch_size: int,
    gpu: GpuType,
    measured_seconds: float | None = None,
    precision: Precision = Precision.FP32,
) -> Step:
    """Return the training step of a graph on a type of GPU.

    Computing takes the longest of three: the FLOPs at the GPU's rate, the bytes at its bandwidth,
    the kernels at their shortest (a roofline with a floor). Meanwhile the host starts one kernel
    after the other; when that takes longer, the GPU waits for it. Where the step was measured (solo
    and on such a GPU), its time counts and only the shares are derived.
    """
    kernels = _PASSES * features.kernels + _OPTIMIZER_KERNELS
    # A recurrent node has a kernel for each step of its sequence, and one call starts them all.
    calls = _PASSES * min(features.kernels, features.nodes) + _OPTIMIZER_KERNELS
    launches = calls * _LAUNCH_S + (kernels - calls) * _KERNEL_FLOOR_S
    flops = batch_size * (features.flops + features.elementwise_flops + features.backward_flops)
    # Weights are read once a pass, whatever the batch; the rest of what moves grows with it.
    per_sample = max(features.bytes_moved - features.parameter_bytes, 0.0)
    per_sample *= activation_scale(features, precision)
    rate = gpu.flops(precision)
    moved = _PASSES * (batch_size * per_sample + features.parameter_bytes)
    busy = max(
        flops / (rate * _FLOPS_EFFICIENCY),
        moved / (gpu.bandwidth * _BANDWIDTH_EFFICIENCY),
        kernels * _KERNEL_FLOOR_S,
    )
    seconds = measured_seconds or max(busy, launches) + HOST_STALL_S
    return Step(
        seconds,
        min(busy, seconds),
        min(flops / rate / seconds, 1.0),
        min(moved / gpu.bandwidth / seconds, 1.0),
    )


def time_shared_speed(total_utilisation_percent: ArrayLike) -> NDArray[np.float64]:
    """Return the speed of each job on a GPU whose time they share, about min(1, 1 / (u1 + u2)).

    `total_utilisation_percent`, any shape, is the sum of what the jobs use alone. Above 100 % each
    gets its share. The corner is rounded, (1 + u^6)^(-1/6): kernels meet by chance below 100 % as
    well, and pairs that lose nothing by the formula still differ. At 160 %: 0.619; at 100 %: 0.891;
    at 50 %: 0.997.

    Source: ours; the kernels of two processes take turns on a GPU without MPS.
    """
    total = np.asarray(total_utilisation_percent, dtype=np.float64) / 100
    speed: NDArray[np.float64] = (1 + total**_CORNER) ** (-1 / _CORNER)
    return speed


def taken_turns(
    speed: ArrayLike, own_step_s: ArrayLike, partner_step_s: ArrayLike, power: float = _TURNS
) -> NDArray[np.float64]:
    """Return (pairs, 2): the speeds of a job and of its partner, whose sum is twice `speed`.

    `speed` (pairs,) is what each has when both get an equal part of the GPU. The kernels of two
    processes take turns, so that the one with longer kernels gets more of the time. The length of a
    step stands for that of the kernels: of the sum, a job gets r^0.2 / (1 + r^0.2), r being its
    step's time over its partner's, and 0.2 the `power`. No speed exceeds 1; what one cannot use the
    other gets. At speed 0.6 and steps of 1 s and 0.1 s: 0.736 and 0.464.

    Source: ours, from measured pairs (docs/results/predictions.md).
    """
    equal = np.asarray(speed, dtype=np.float64)
    ratio = np.asarray(own_step_s, dtype=np.float64) / np.asarray(partner_step_s, dtype=np.float64)
    share = 1 / (1 + np.clip(ratio, 1 / _LONGEST, _LONGEST) ** -power)
    own = np.clip(2 * equal * share, 2 * equal - 1, 1.0)
    both: NDArray[np.float64] = np.stack([own, 2 * equal - own], axis=-1)
    return both


def two_levels(
    fixed_bytes: float, varying_bytes: float, level: float
) -> tuple[float, float, float]:
    """Return (base, peak extra, peak probability) of memory that rises and falls once a step.

    Forward, activations pile up; backward, they go again: memory is a triangle between
    `fixed_bytes` and `fixed_bytes + varying_bytes`. Time above the share `level` of a triangle's
    height is 1 - `level` of the whole. So the base `fixed + level * varying` holds outside peaks,
    a peak adds the rest, and its probability is 1 - `level`. Bytes, bytes, [0, 1].

    Source: [OJPP] <gamma, delta, p>. Differs: from the graph instead of 100 samples of a solo run.
    """
    return fixed_bytes + level * varying_bytes, (1 - level) * varying_bytes, 1 - level
