"""Features of the load model: the graph, the configuration, the GPU, and the formula."""

from __future__ import annotations

# Paper: [Horus] 4.1, Table 3 | features of the ONNX graph | test:
#   tests/predictor/test_predictor_learned_load.py test_every_candidate_learns_the_residual |
#   live: yes
import math
from dataclasses import dataclass

from predictor.load.equations import (
    COMPILED,
    Step,
    host_of,
    input_cpu_seconds,
    input_cpus,
    training_step,
)
from predictor.load.memory import Levels, formula_levels
from predictor.load.sources import Question, question_step
from tandem.contracts.prediction import Optimizer
from tandem.contracts.resources import GraphFeatures
from tandem.gpu_types import UNKNOWN_GPU

#: The columns that say what is asked; sizes are logarithms (base 10) of figures of a whole step.
_ASKED = (
    "log_batch", "log_flops", "log_elementwise_flops", "log_bytes_moved", "log_activation_bytes",
    "log_saved_activation_bytes", "log_largest_activation_bytes", "log_parameter_bytes",
    "log_kernels", "log_depth", "log_intensity", "tensor_skew", "half_precision",
    "optimizer_copies",
)  # fmt: skip
_FORMULA = ("log_memory", "log_busy_s", "log_step_s", "log_utilisation", "compute_share")
#: What sets the pace outside of the GPU: the host, and the input of a sample on the CPUs asked for.
_OUTSIDE = ("log_launch_s", "log_stall_s", "log_decode_s", "log_cpus", "input_per_busy")
_GPU = ("gpu_log_flops", "gpu_log_bandwidth", "gpu_log_memory")

#: Operators of [Horus] Table 3 and their like, by what they do; columns are shares of all nodes.
_GROUPS = {
    "convolution": ("Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "DeformConv"),
    "matmul": ("MatMul", "Gemm", "Einsum", "MatMulInteger", "QLinearMatMul", "FusedMatMul"),
    "recurrent": ("LSTM", "GRU", "RNN", "Scan", "Loop"),
    "attention": ("Attention", "MultiHeadAttention", "Softmax"),
    "normalisation": (
        "BatchNormalization", "LayerNormalization", "GroupNormalization", "InstanceNormalization",
        "RMSNormalization", "SimplifiedLayerNormalization", "ReduceMean", "LRN",
    ),
    "pooling": ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"),
    "moving": ("Reshape", "Transpose", "Concat", "Split", "Slice", "Gather", "Pad", "Flatten"),
}  # fmt: skip
#: Beyond this the input sets the pace, however long it takes.
_MOST_INPUT = 20.0
_GROUP_OF = {op: group for group, ops in _GROUPS.items() for op in ops}

LOAD_FEATURES = (
    *_ASKED,
    *(f"{group}_share" for group in _GROUPS),
    *_GPU,
    *(f"formula_{name}" for name in _FORMULA),
    *_OUTSIDE,
)
#: Those that must lie within what was trained on, or the answer is out of distribution.
SUPPORTED = tuple(name for name in _ASKED if name.startswith("log_"))


@dataclass(frozen=True)
class Known:
    """A question with a graph and a batch: its columns, and what the formula makes of it."""

    features: GraphFeatures
    columns: list[float]  # in the order of LOAD_FEATURES
    levels: Levels
    step: Step


def known(question: Question, *, first: bool = False) -> Known | None:
    """Return what there is to learn from or to predict from; None without graph or batch.

    `first` takes the first formula of steps, over which models of earlier versions were trained.
    """
    features, batch = question.features, question.batch_size
    if features is None or batch is None:
        return None
    gpu, precision = question.gpu or UNKNOWN_GPU, question.precision
    # An optimiser that is not named counts as one of many copies: memory must be safe.
    optimizer = question.setup.optimizer or Optimizer.ADAM
    levels = formula_levels(features, batch, question.setup)
    # The columns have the loop that a job has: what a bare one shows of a GPU holds for jobs.
    host, cpus = host_of(features, question.setup.framework), input_cpus(question.setup.cpus)
    step = question_step(question)
    if first:
        step = training_step(features, batch, gpu, precision=precision, host=COMPILED)
    assert step is not None
    decode_s = input_cpu_seconds(features)
    flops = batch * (features.flops + features.backward_flops)
    moved = max(batch * features.bytes_moved, 1.0)
    columns = [
        math.log10(batch),
        _log(flops),
        _log(batch * features.elementwise_flops),
        _log(moved),
        _log(batch * features.activation_bytes),
        _log(batch * features.saved_activation_bytes),
        _log(batch * features.largest_activation_bytes),
        _log(features.parameter_bytes),
        _log(features.kernels),
        _log(features.depth),
        _log(flops / moved),
        features.tensor_skew,
        float(precision.half),
        float(optimizer.copies),
        *_shares(features.op_counts),
        math.log10(gpu.flops(precision)),
        math.log10(gpu.bandwidth),
        math.log10(question.gpu_memory_bytes or gpu.memory_bytes),
        _log(levels.fixed + levels.varying),
        math.log10(step.busy_seconds),
        math.log10(step.seconds),
        math.log10(max(step.utilisation_percent, 1e-3)),
        step.compute_share,
        math.log10(host.launch_s),
        math.log10(host.stall_s),
        math.log10(decode_s + 1e-6),
        math.log10(cpus),
        min(batch * decode_s / cpus / step.busy_seconds, _MOST_INPUT),
    ]
    return Known(features, columns, levels, step)


def kind_of(operator: str) -> str:
    """Return what the columns tell of an operator: its group, else the operator itself."""
    return _GROUP_OF.get(operator, operator)


def _shares(op_counts: dict[str, int]) -> list[float]:
    counts = dict.fromkeys(_GROUPS, 0)
    total = 0
    for op, count in op_counts.items():
        total += count
        group = _GROUP_OF.get(op)
        if group is not None:
            counts[group] += count
    return [count / max(total, 1) for count in counts.values()]


def _log(figure: float) -> float:
    return math.log10(figure + 1.0)
