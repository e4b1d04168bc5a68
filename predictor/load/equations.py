"""The formulas behind a first prediction: numbers in, numbers out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tandem.contracts.prediction import Framework, Precision
from tandem.contracts.resources import GraphFeatures
from tandem.gpu_types import GpuType

# What a job does in a forward pass it does again, about twice over, in the backward pass.
_PASSES = 3.0
# Share of a data sheet's rate that frameworks reach on layers of usual size.
_FLOPS_EFFICIENCY = 0.5
_BANDWIDTH_EFFICIENCY = 0.7
# The shortest kernel, and what the host needs to start a further one of a recurrent node.
_KERNEL_FLOOR_S = 4e-6
# What autocast leaves of activations in bytes: half, but for norms, softmax and losses in 32 bits.
HALF_ACTIVATIONS = 0.6
# What a wait for the input leaves at least of the busy share by which pairs are priced.
_LEAST_LEFT = 0.5
# How sharply time sharing begins to cost at 100 %.
_CORNER = 6.0
# Power of the ratio of two steps by which their jobs share the time, and the largest ratio.
_TURNS, _LONGEST = 0.2, 1e3
# Kernels of the optimiser, which works on lists of tensors at a time.
_OPTIMIZER_KERNELS = 40
# CPU seconds that the input of one sample takes: a photo of 224 x 224 (decoded, cut, scaled; other
# sizes by the square root of their pixels), a picture of fewer than 64 x 64 pixels (it lies in
# memory), any other input, and each of its values.
_PHOTO_S, _PHOTO_PIXELS = 2e-3, 224 * 224
_PICTURE_S, _PICTURE_PIXELS = 50e-6, 64 * 64
_SAMPLE_S, _VALUE_S = 2.5e-6, 0.1e-6
_IMAGE_RANK, _MOST_CHANNELS = 4, 4
# Share of the input, or of the step where that is shorter, that does not overlap with the other.
_NOT_OVERLAPPED = 0.9
#: CPUs of a job that does not say how many it asks for: an eighth of a machine of eight GPUs.
DEFAULT_CPUS = 8.0


@dataclass(frozen=True)
class Host:
    """What a training loop needs of its host: to start a kernel, and between two steps."""

    launch_s: float
    #: The step of the loop, the batch, the loss: meanwhile the GPU waits.
    stall_s: float


#: A framework that starts one operator after the other from Python, and one that runs a graph.
EAGER, COMPILED = Host(15e-6, 5e-3), Host(10e-6, 1e-3)
_HOSTS = {
    Framework.PYTORCH: EAGER, Framework.TENSORFLOW: COMPILED, Framework.JAX: COMPILED, None: EAGER,
}  # fmt: skip


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


def host_of(features: GraphFeatures, framework: Framework | None = None) -> Host:
    """Return what a job's framework needs of its host: as stated, else the graph's exporter's."""
    return _HOSTS[framework or features.framework]


def input_cpus(asked: float | None) -> float:
    """Return the CPUs that make a job's input: the geometric mean of those asked for and usual.

    What a pod asks for is no limit: it also uses what its node leaves idle.
    """
    return math.sqrt((DEFAULT_CPUS if asked is None else asked) * DEFAULT_CPUS)


def input_cpu_seconds(features: GraphFeatures) -> float:
    """Return the CPU time that makes the input of one sample, by the shapes of the graph's inputs.

    Source: ours (decision 89). Public rates of decoding alone: 400 to 700 photos a second and core.
    """
    return sum(_of_input(shape, features.graph_batch) for shape in features.input_shapes.values())


def _of_input(shape: Sequence[int], samples: int) -> float:
    if len(shape) == _IMAGE_RANK and min(shape[1:]) > 0 and shape[1] <= _MOST_CHANNELS:
        pixels = shape[2] * shape[3]
        if pixels < _PICTURE_PIXELS:
            return _PICTURE_S
        return _PHOTO_S * math.sqrt(pixels / _PHOTO_PIXELS)
    values = math.prod(size for size in shape if size > 0)
    return _SAMPLE_S + _VALUE_S * values / samples


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
    *,
    host: Host | None = None,
    cpus: float = math.inf,
) -> Step:
    """Return the training step of a graph on a type of GPU.

    Computing takes the longest of three: the FLOPs at the GPU's rate, the bytes at its bandwidth,
    the kernels at their shortest (a roofline with a floor). Meanwhile the host starts one kernel
    after the other; when that takes longer, the GPU waits for it. `host` is that of the graph's
    exporter where it is not given. On `cpus` CPUs the input of the next step is made meanwhile: the
    longer of both counts in full, and of the shorter what does not overlap.
    Where the step was measured (solo and on such a GPU), its time counts and only the shares are
    derived.
    """
    host = host or host_of(features)
    kernels = _PASSES * features.kernels + _OPTIMIZER_KERNELS
    # A recurrent node has a kernel for each step of its sequence, and one call starts them all.
    calls = _PASSES * min(features.kernels, features.nodes) + _OPTIMIZER_KERNELS
    launches = calls * host.launch_s + (kernels - calls) * _KERNEL_FLOOR_S
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
    made = batch_size * input_cpu_seconds(features) / cpus
    alone = max(busy, launches) + host.stall_s
    seconds = measured_seconds or max(alone, made) + _NOT_OVERLAPPED * min(alone, made)
    return Step(
        seconds,
        min(busy, seconds),
        min(flops / rate / seconds, 1.0),
        min(moved / gpu.bandwidth / seconds, 1.0),
    )


def pair_step(
    features: GraphFeatures,
    batch_size: int,
    gpu: GpuType,
    precision: Precision = Precision.FP32,
    *,
    host: Host | None = None,
    cpus: float = DEFAULT_CPUS,
) -> Step:
    """Return the step by which pairs are priced of which nothing was measured.

    Two jobs on a GPU also share the host, so that the time in which a job waits for its host is no
    room for others: of the stall between two steps that of a framework that runs a graph counts,
    and a wait for the input leaves at least half of the busy share. The time of the step is that
    without the input: it stands for the length of the kernels.

    Source: ours, from measured pairs (docs/evidence/results/predictions.md).
    """
    own = host or host_of(features)
    without = training_step(features, batch_size, gpu, precision=precision, host=own)
    graph = Host(own.launch_s, COMPILED.stall_s)
    alone, fed = (
        training_step(features, batch_size, gpu, precision=precision, host=graph, cpus=count)
        for count in (math.inf, cpus)
    )
    share = alone.busy_seconds / alone.seconds * max(alone.seconds / fed.seconds, _LEAST_LEFT)
    return replace(without, busy_seconds=share * without.seconds)


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

    Source: ours, from measured pairs (docs/evidence/results/predictions.md).
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
