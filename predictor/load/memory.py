"""Memory of a training job by formula: what each framework, optimiser and way to train takes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from predictor.load.equations import activation_scale, is_half
from tandem.contracts.prediction import Framework, Optimizer, Parallelism, Precision
from tandem.contracts.resources import GraphFeatures
from tandem.gpu_types import GIB
from tandem.policy.equations.horus import gpu_memory_bytes

# Weights; with autocast also in 16 bits.
_WEIGHTS = 1.0
_CAST_COPIES = 0.5
# The state of an unknown optimiser: one copy (momentum), two in the bound (Adam).
_OPTIMIZER = Optimizer.MOMENTUM
_OPTIMIZER_P95 = Optimizer.ADAM
# Live at once in the backward pass: the gradient of a layer's output and that of its input.
_GRADIENT_COPIES = 2
#: From an estimate of what grows with the batch to its bound: 95 % of families that were left out
#: stay below (docs/evidence/results/predictions.md).
_P95_FACTOR = 1.65
#: Nodes of the graph that one checkpointed block holds: a transformer layer as exported.
_NODES_OF_BLOCK = 12
#: Buffers of NCCL, and the largest bucket in which ZeRO exchanges gradients (bytes).
_NCCL_BYTES, _BUCKET_BYTES = 0.25 * GIB, 1.0 * GIB
_CONVOLUTIONS = ("Conv", "ConvTranspose")


@dataclass(frozen=True)
class Allocator:
    """The allocator of a framework.

    `start_up` is what the CUDA context and the libraries take, estimate and bound, bytes.
    `growth` is what the allocator holds over what the job needs, estimate and bound.
    `decomposes`: norms, GELU and attention are several operators, each of which keeps its input.
    `gradients`: copies of the weights that gradients take at once.
    `workspace` is what the search for convolution algorithms takes, estimate and bound, bytes.
    """

    start_up: tuple[float, float]
    growth: tuple[float, float] = (1.0, 1.0)
    workspace: tuple[float, float] = (0.0, 0.0)
    decomposes: bool = False
    gradients: float = 1.0

    @property
    def in_use(self) -> Allocator:
        """What it has given out of what it holds: no start-up, no regions, no finished search."""
        return replace(
            self, start_up=(0.0, 0.0), growth=(1.0, 1.0), workspace=(0.0, self.workspace[1])
        )


#: TensorFlow and JAX run with memory growth, as Tandem configures them: each new region of their
#: best-fit allocator is twice as large as the one before, so that they hold up to twice their need.
#: TensorFlow's search for convolution algorithms may use 4 GiB (TF_CUDNN_WORKSPACE_LIMIT_IN_MB);
#: 2.6 GiB fit best what was measured. Its weight decay is a part of the loss, and has a gradient
#: besides that of the data until both are added.
ALLOCATORS = {
    # Its blocks are cut from segments of 2 to 20 MiB and reused: about a tenth is lost.
    Framework.PYTORCH: Allocator((0.7 * GIB, 1.6 * GIB), growth=(1.1, 1.1)),
    Framework.TENSORFLOW: Allocator(
        (1.5 * GIB, 2.1 * GIB),
        growth=(1.4, 2.0),
        workspace=(2.6 * GIB, 4.0 * GIB),
        decomposes=True,
        gradients=2.0,
    ),
    Framework.JAX: Allocator((1.0 * GIB, 2.0 * GIB), growth=(1.4, 2.0)),
    None: Allocator((1.1 * GIB, 2.1 * GIB), growth=(1.1, 1.1)),
}


@dataclass(frozen=True)
class Setup:
    """How a job trains, beyond its graph; None where it is not known."""

    precision: Precision = Precision.FP32
    optimizer: Optimizer | None = None
    framework: Framework | None = None
    parallelism: Parallelism | None = None
    workers: int = 1
    gradient_checkpointing: bool = False
    #: For each GPU.
    cpus: float | None = None
    #: It runs on one batch, which lies on the GPU: nothing makes an input, or waits for one.
    bare_loop: bool = False


@dataclass(frozen=True)
class Levels:
    """Memory by the formula, bytes: what is there all the time, what a step adds, the bound."""

    fixed: float
    varying: float
    p95: float
    start_up: float


def allocator_of(features: GraphFeatures, setup: Setup) -> Allocator:
    """Return how the job's framework takes memory: as stated, else that of the graph's exporter."""
    return ALLOCATORS[setup.framework or features.framework]


def formula_levels(
    features: GraphFeatures, batch: int, setup: Setup, allocator: Allocator | None = None
) -> Levels:
    """Return memory by [Horus] Eq. (2); `allocator` is that of the setup where it is not given.

    Differs: A is what training keeps of the activations, G the working set of one layer's
    gradients (G = A overstates CNNs more than twofold), P counts gradients and optimiser state,
    and start-up and allocator are those of the framework.
    """
    allocator = allocator or allocator_of(features, setup)
    scale = activation_scale(features, setup.precision)
    gradients = scale * _GRADIENT_COPIES * features.largest_activation_bytes
    known, bound = setup.optimizer or _OPTIMIZER, setup.optimizer or _OPTIMIZER_P95
    convolves = any(operator in features.op_counts for operator in _CONVOLUTIONS)
    saved = float(features.saved_activation_bytes)
    if allocator.decomposes and not convolves:
        # What other frameworks compute in one operator (norms, GELU, attention) it keeps in parts.
        saved = math.sqrt(saved * max(features.activation_bytes, saved))
    kept = scale * saved * _kept_share(features, setup)
    workspace, workspace_p95 = allocator.workspace if convolves else (0.0, 0.0)
    growth, growth_p95 = allocator.growth
    fixed = _parameters(features, setup, known, allocator) + workspace
    p95 = gpu_memory_bytes(
        batch,
        _P95_FACTOR * kept,
        _parameters(features, setup, bound, allocator),
        _P95_FACTOR * gradients,
        workspace_p95,
    )
    return Levels(
        allocator.start_up[0] + growth * fixed,
        growth * batch * (kept + gradients),
        allocator.start_up[1] + growth_p95 * p95,
        allocator.start_up[0],
    )


def _parameters(
    features: GraphFeatures, setup: Setup, optimizer: Optimizer, allocator: Allocator
) -> float:
    """Return the bytes of weights, gradients, optimiser state and what exchanges them."""
    weights, gradients, state = _WEIGHTS, allocator.gradients, optimizer.copies
    if setup.precision.half and not is_half(features):
        weights += _CAST_COPIES
    size, workers = features.parameter_bytes, max(setup.workers, 1)
    if setup.parallelism is None or workers == 1:
        return (weights + gradients + state) * size
    exchange = _NCCL_BYTES
    match setup.parallelism:
        case Parallelism.DDP:
            exchange += size  # its buckets are a copy of the gradients
        case Parallelism.ZERO_1:
            state /= workers
            exchange += min(size, _BUCKET_BYTES)
        case Parallelism.ZERO_2:
            state, gradients = state / workers, gradients / workers
            exchange += min(size, _BUCKET_BYTES)
        case _:
            state, gradients, weights = state / workers, gradients / workers, weights / workers
            # Of the layer that runs and of the next one the weights are whole.
            blocks = max(features.depth / _NODES_OF_BLOCK, 1.0)
            exchange += 2 * max(size / blocks, features.largest_tensor_bytes)
    return (weights + gradients + state) * size + exchange


def _kept_share(features: GraphFeatures, setup: Setup) -> float:
    """Return what checkpointing leaves of the activations: block inputs, and one block's own."""
    if not setup.gradient_checkpointing:
        return 1.0
    blocks = max(features.depth / _NODES_OF_BLOCK, 1.0)
    return min(1.0, 1 / _NODES_OF_BLOCK + 1 / blocks)
