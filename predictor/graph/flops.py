"""Floating-point operations of one forward pass of a node; a multiply-add counts as two.

Two figures are kept apart. Multiply-add operators (convolutions, matrix products, attention,
recurrent cells) are what FLOP counts of the literature mean, and what tensor cores run. The rest
(activations, normalisation, pooling) is bound by memory and counted by the element.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from predictor.graph import contrib
from predictor.graph.shapes import NodeShapes, Shape, UnknownShapeError


def _axis(shape: Shape, index: int) -> int:
    try:
        return shape[index]
    except IndexError:
        raise UnknownShapeError from None


def _convolution(weight: int) -> Callable[[NodeShapes], float]:
    """2 |out| prod(w[1:]), w being (out channels, in channels per group, kernel...)."""
    return lambda node: 2.0 * math.prod(node.output()) * math.prod(node.input(weight)[1:])


def _transposed_convolution(node: NodeShapes) -> float:
    """2 |in| prod(w[1:]), w being (in channels, out channels per group, kernel...)."""
    return 2.0 * math.prod(node.input(0)) * math.prod(node.input(1)[1:])


def _gemm(node: NodeShapes) -> float:
    inner = _axis(node.input(0), 0 if node.attributes.get("transA") else -1)
    return 2.0 * math.prod(node.output()) * inner


def _matmul(node: NodeShapes) -> float:
    return 2.0 * math.prod(node.output()) * _axis(node.input(0), -1)


def _recurrent(node: NodeShapes) -> float:
    """Each step multiplies by W and R of every direction and gate: 2 seq batch (|W| + |R|)."""
    x = node.input(0)
    steps_and_batch = _axis(x, 0) * _axis(x, 1)
    return 2.0 * steps_and_batch * (math.prod(node.input(1)) + math.prod(node.input(2)))


def _attention(node: NodeShapes) -> float:
    """Q K^T and the weighted sum of V: 2 B Hq Sq Skv (Dk + Dv).

    Q, K, V are (B, S, H * D) with the heads as attributes, or (B, H, S, D). K and V of the past
    (inputs 4 and 5) lengthen Skv.
    """
    q, k, v = node.input(0), node.input(1), node.input(2)
    past = node.optional_input(4)
    if len(q) == 3:
        heads = node.attributes.get("q_num_heads", 1)
        kv_heads = node.attributes.get("kv_num_heads", heads)
        batch, queries, keys = q[0], q[1], _axis(k, 1)
        depth: float = q[2] / max(heads, 1) + _axis(v, 2) / max(kv_heads, 1)
    elif len(q) == 4:
        batch, heads, queries = q[0], q[1], q[2]
        keys, depth = _axis(k, 2), q[3] + _axis(v, 3)
    else:
        raise UnknownShapeError
    keys += _axis(past, 2) if past else 0
    return float(2 * batch * heads * queries * keys * depth)


def _einsum(node: NodeShapes) -> float:
    """2 x the product of all distinct indices; an ellipsis stands for the output's extra axes."""
    equation = node.attributes.get("equation", b"").decode("utf-8", "replace").replace(" ", "")
    terms = equation.split("->")[0].split(",")
    if len(terms) != len(node.inputs):
        raise UnknownShapeError
    sizes: dict[str, int] = {}
    extra: Shape = ()
    for position, term in enumerate(terms):
        shape = node.input(position)
        before, dots, after = term.partition("...")
        if len(shape) < len(before) + len(after) or (not dots and len(shape) != len(before)):
            raise UnknownShapeError
        end = len(shape) - len(after)
        for letter, size in zip(before + after, shape[: len(before)] + shape[end:], strict=True):
            sizes[letter] = max(sizes.get(letter, 1), size)
        broadcast = shape[len(before) : end]
        extra = max(extra, broadcast, key=math.prod)
    return 2.0 * math.prod(sizes.values()) * math.prod(extra) * max(len(terms) - 1, 0)


#: What counts the multiply-adds of each operator that has them.
MULTIPLY_ADD: dict[str, Callable[[NodeShapes], float]] = {
    "Conv": _convolution(1),
    "ConvInteger": _convolution(1),
    "DeformConv": _convolution(1),
    "QLinearConv": _convolution(3),
    "ConvTranspose": _transposed_convolution,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "QLinearMatMul": _matmul,
    "Attention": _attention,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
    "Einsum": _einsum,
} | {f"{contrib.DOMAIN}.{name}": count for name, count in contrib.MULTIPLY_ADD.items()}

#: Nodes that change the shape or the name and move nothing (Dropout: in inference).
VIEWS = frozenset(
    {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout", "Shape", "Size"}
)
#: Nodes that move data and compute nothing.
_MOVES = VIEWS | frozenset(
    {
        "Cast", "CastLike", "Compress", "Concat", "Constant", "ConstantOfShape", "DepthToSpace",
        "Expand", "EyeLike", "Gather", "GatherElements", "GatherND", "OneHot", "Pad", "Range",
        "ReverseSequence", "Scatter", "ScatterElements", "ScatterND", "Slice", "SpaceToDepth",
        "Split", "Tile", "Transpose", "Upsample",
    }
)  # fmt: skip
#: Operations per output element, for those that do more than one.
_PER_OUTPUT_ELEMENT = {
    "Softmax": 5, "LogSoftmax": 5, "BatchNormalization": 2, "InstanceNormalization": 8,
    "LayerNormalization": 8, "GroupNormalization": 8, "RMSNormalization": 6,
    "LpNormalization": 4, "MeanVarianceNormalization": 8, "LRN": 10, "Gelu": 8, "Mish": 5,
    "HardSwish": 3, "Swish": 2,
}  # fmt: skip
_PER_OUTPUT_ELEMENT |= {f"{contrib.DOMAIN}.{k}": v for k, v in contrib.PER_OUTPUT_ELEMENT.items()}
_GLOBAL = ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool", "ArgMax", "ArgMin", "TopK")
_WINDOWED = ("MaxPool", "AveragePool", "LpPool")


def multiply_add_flops(node: NodeShapes) -> float:
    """Return the FLOPs of a multiply-add operator, 0 for any other; raises UnknownShapeError."""
    count = MULTIPLY_ADD.get(node.op_type)
    return count(node) if count else 0.0


def elementwise_flops(node: NodeShapes) -> float:
    """Return the FLOPs of any operator but a multiply-add; raises UnknownShapeError."""
    op = node.op_type
    if op in _MOVES or op in MULTIPLY_ADD:
        return 0.0
    if op in _GLOBAL or op.startswith("Reduce"):
        return float(math.prod(node.input(0)))
    per_element = _PER_OUTPUT_ELEMENT.get(op, 1)
    if op in _WINDOWED:
        per_element = math.prod(node.attributes.get("kernel_shape", ()))
    return float(math.prod(node.output())) * per_element
