"""Operators of ONNX Runtime (domain com.microsoft) that its optimiser puts into exported graphs.

onnx itself cannot infer their shapes. `with_stand_ins` gives a copy of the graph in which each is
replaced by a standard operator of the same output shape, only for inference; FLOPs are counted on
the operators themselves (`MULTIPLY_ADD`).

Definitions: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

from predictor.graph.shapes import NodeShapes

DOMAIN = "com.microsoft"
#: Their first output is shaped like their first input.
_LIKE_INPUT = frozenset({
    "BiasAdd", "BiasGelu", "FastGelu", "Gelu", "GroupNorm", "GroupQueryAttention", "Inverse",
    "LayerNormalization", "MultiHeadAttention", "QuickGelu", "RotaryEmbedding",
    "SimplifiedLayerNormalization", "SkipGroupNorm", "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization", "BiasSoftmax", "DecoderMaskedMultiHeadAttention",
})  # fmt: skip
#: Like the standard operator of this name, but for an activation at the end.
_FUSED = {"FusedGemm": "Gemm", "FusedConv": "Conv"}
_GEMM_AND_CONV = frozenset({
    "alpha", "beta", "transA", "transB", "auto_pad", "dilations", "group", "kernel_shape", "pads",
    "strides",
})  # fmt: skip
#: Operations per output element, without multiply-adds.
PER_OUTPUT_ELEMENT = {
    "BiasGelu": 9, "FastGelu": 8, "Gelu": 8, "QuickGelu": 4, "SkipLayerNormalization": 10,
    "SkipSimplifiedLayerNormalization": 8, "SimplifiedLayerNormalization": 6,
    "EmbedLayerNormalization": 10, "LayerNormalization": 8, "BiasSoftmax": 6, "GroupNorm": 8,
}  # fmt: skip


def subgraphs(node: NodeProto) -> list[GraphProto]:
    """Return the graphs in a node's attributes (the bodies of If, Loop, Scan)."""
    found: list[GraphProto] = []
    for attribute in node.attribute:
        kind = attribute.type
        if kind == AttributeProto.GRAPH:
            found.append(attribute.g)
        elif kind == AttributeProto.GRAPHS:
            found.extend(attribute.graphs)
    return found


def uses_runtime_operators(graph: GraphProto) -> bool:
    """Say whether a graph, or a body of its control flow, has operators of ONNX Runtime."""
    waiting = [graph]
    while waiting:
        for node in waiting.pop().node:
            if node.domain == DOMAIN:
                return True
            waiting.extend(subgraphs(node))
    return False


def with_stand_ins(model: ModelProto) -> ModelProto:
    """Return the model, or a copy with stand-ins where it has operators of ours to replace."""
    if not uses_runtime_operators(model.graph):
        return model
    copy = ModelProto()
    copy.CopyFrom(model)
    waiting: list[tuple[GraphProto, Mapping[str, tuple[int, ...]]]] = [(copy.graph, {})]
    while waiting:
        graph, outer = waiting.pop()
        weights = {**outer, **{tensor.name: tuple(tensor.dims) for tensor in graph.initializer}}
        for node in graph.node:
            if node.domain == DOMAIN:
                _replace(node, weights, graph)
            waiting.extend((body, weights) for body in subgraphs(node))
    return copy


def _replace(node: NodeProto, weights: Mapping[str, tuple[int, ...]], graph: GraphProto) -> None:
    """Turn a node into a standard one of the same output shape; leave it where there is none."""
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    first = node.input[0] if node.input else ""
    weight = weights.get(node.input[1]) if len(node.input) > 1 else None
    if node.op_type in _LIKE_INPUT and first:
        _become(node, "Identity", [first])
    elif node.op_type in _FUSED:
        kept = [a for a in node.attribute if a.name in _GEMM_AND_CONV]
        op_type, inputs = _FUSED[node.op_type], list(node.input)[:3]
        _become(node, op_type, inputs)
        node.attribute.extend(kept)
    elif node.op_type == "FusedMatMul":
        left = "...ki" if attributes.get("transA") else "...ik"
        right = "...jk" if attributes.get("transB") else "...kj"
        if weight is not None and len(weight) == 2:  # inference wants equal axes in the dots
            right = right.removeprefix("...")
        _become(node, "Einsum", list(node.input)[:2])
        node.attribute.append(helper.make_attribute("equation", f"{left},{right}->...ij"))
    elif node.op_type == "EmbedLayerNormalization" and len(node.input) > 2:
        _become(node, "Gather", [node.input[2], first])
    elif node.op_type in ("Attention", "MatMulNBits"):
        if node.op_type == "MatMulNBits":
            inner, outer = attributes.get("K", 0), attributes.get("N", 0)
        elif weight is not None and len(weight) == 2:
            sizes = attributes.get("qkv_hidden_sizes")
            inner, outer = weight[0], sizes[2] if sizes and len(sizes) > 2 else weight[1] // 3
        else:
            return
        if min(inner, outer) <= 0:
            return
        # A weight of the right shape and no values: inference reads no more of it.
        name = f"{node.output[0]}/stand-in"
        graph.initializer.append(
            TensorProto(name=name, dims=(inner, outer), data_type=TensorProto.FLOAT)
        )
        _become(node, "MatMul", [first, name])


def _become(node: NodeProto, op_type: str, inputs: list[str]) -> None:
    outputs = list(node.output)[:1]  # the others are rare, and no other node needs their shapes
    node.Clear()
    node.op_type = op_type
    node.input.extend(inputs)
    node.output.extend(outputs)


def _attention(node: NodeShapes) -> float:
    """Project to Q, K and V, then Q K^T and the weighted sum: input (B, S, D), weight (D, 3 D')."""
    batch, length, width = node.input(0)
    projected = node.input(1)[-1]
    value = node.output()[-1]
    return float(2 * batch * length * (width * projected + 2 * length * value))


def _multi_head(node: NodeShapes) -> float:
    """Q K^T and the weighted sum; keys and values may be as long as another sequence."""
    query = node.input(0)
    keys = node.optional_input(1) or query
    length = keys[1] if len(keys) == 3 else keys[-2]
    return float(4 * query[0] * query[1] * length * query[-1])


def _fused_matmul(node: NodeShapes) -> float:
    inner = node.input(0)[-2 if node.attributes.get("transA") else -1]
    return 2.0 * math.prod(node.output()) * inner


def _gemm(node: NodeShapes) -> float:
    return (
        2.0 * math.prod(node.output()) * node.input(0)[0 if node.attributes.get("transA") else -1]
    )


def _packed_matmul(node: NodeShapes) -> float:
    inner: int = node.attributes.get("K", 0)
    return 2.0 * math.prod(node.output()) * inner


def _convolution(node: NodeShapes) -> float:
    return 2.0 * math.prod(node.output()) * math.prod(node.input(1)[1:])


MULTIPLY_ADD: dict[str, Callable[[NodeShapes], float]] = {
    "Attention": _attention,
    "MultiHeadAttention": _multi_head,
    "GroupQueryAttention": _multi_head,
    "DecoderMaskedMultiHeadAttention": _multi_head,
    "FusedMatMul": _fused_matmul,
    "FusedGemm": _gemm,
    "FusedConv": _convolution,
    "MatMulNBits": _packed_matmul,
}
#: Operators that are counted by their definitions.
KNOWN = frozenset({*_LIKE_INPUT, *_FUSED, *MULTIPLY_ADD, *PER_OUTPUT_ELEMENT})
_STANDARD_DOMAINS = ("", "ai.onnx")


def defines(node: NodeProto) -> bool:
    """Say whether the cost of an operator is known: a standard one, or one of those here."""
    if node.domain in _STANDARD_DOMAINS:
        return True
    return node.domain == DOMAIN and node.op_type in KNOWN
