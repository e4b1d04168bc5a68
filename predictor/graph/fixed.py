"""Infers the open axes of a graph's inputs from its operators.

A convolution fixes the channels of what it reads, a product the axis that it sums over, a norm the
axes of its scale, a sum with a table those of the table. onnx carries the symbols of the inputs
through the graph (its symbolic shape inference); here they are held against the weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, ValueInfoProto, helper

from predictor.graph.contrib import subgraphs, with_stand_ins

#: A size, or the key of an axis that is open.
Dim = int | str | None
#: (input, axis) -> its key while it is open, its size otherwise.
OpenAxes = Mapping[tuple[str, int], int | str]

_CONVOLUTIONS = frozenset({"Conv", "ConvInteger", "ConvTranspose", "DeformConv", "QLinearConv"})
_POOLS = frozenset({"MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool"})
_CHANNEL_NORMS = frozenset({"BatchNormalization", "InstanceNormalization"})
_TRAILING_NORMS = frozenset({"LayerNormalization", "RMSNormalization"})
_BROADCAST = frozenset({"Add", "Sub", "Mul", "Div", "PRelu", "Where", "Pow", "Max", "Min", "Sum"})
#: What is learned in one pass may say more in the next, such as the product of a reshape.
_PASSES = 3


@dataclass
class Fixed:
    """Sizes by the key of their axis, and the keys of axes along which kernels slide."""

    sizes: dict[str, int] = field(default_factory=dict)
    spatial: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Mismatch:
    """A product whose inner sizes differ: `actual` follows from the inputs, `wanted` is fixed."""

    actual: int
    wanted: int


def fixed_sizes(model: ModelProto, axes: OpenAxes) -> Fixed:
    """Return what the operators fix of the open axes; `model` is left as it is."""
    found, axes = Fixed(), dict(axes)
    spatial: set[str] = set()
    for _ in range(_PASSES):
        copy = _with_symbols(model, axes)
        try:
            inferred = onnx.shape_inference.infer_shapes(copy, data_prop=True)
        except onnx.shape_inference.InferenceError:  # said when the sizes are bound
            break
        facts = _Facts(frozenset(key for key in axes.values() if isinstance(key, str)))
        facts.walk(inferred.graph, {})
        spatial |= facts.spatial
        new = {key: size for key, size in facts.sizes.items() if key not in found.sizes}
        found.sizes |= new
        if not new:
            break
        axes = {at: new.get(key, key) if isinstance(key, str) else key for at, key in axes.items()}
        if not any(isinstance(key, str) for key in axes.values()):
            break
    found.spatial = frozenset(spatial)
    return found


def mismatch(graph: GraphProto) -> Mismatch | None:
    """Return the first product of an inferred graph whose inner sizes contradict one another."""
    dims = _dims_of(graph, {})
    for node in graph.node:
        for inner, wanted in _inner(node, dims):
            if isinstance(inner, int) and isinstance(wanted, int) and inner != wanted:
                return Mismatch(inner, wanted)
    return None


def _with_symbols(model: ModelProto, axes: Mapping[tuple[str, int], int | str]) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(with_stand_ins(model))
    for value in copy.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            known = axes.get((value.name, axis))
            if isinstance(known, str):
                dim.dim_param = known
            elif known is not None:
                dim.dim_value = known
    # What the file declares of other values uses symbols of its own.
    del copy.graph.value_info[:]
    for value in copy.graph.output:
        if value.type.WhichOneof("value") == "tensor_type":
            value.type.tensor_type.ClearField("shape")
    return copy


class _Facts:
    """Equations between open axes and sizes, gathered node by node; the first of an axis counts."""

    def __init__(self, keys: frozenset[str]) -> None:
        self._keys = keys
        self.sizes: dict[str, int] = {}
        self.spatial: set[str] = set()

    def walk(self, graph: GraphProto, outer: Mapping[str, Sequence[Dim]]) -> None:
        dims = _dims_of(graph, outer)
        for node in graph.node:
            self._node(node, dims)
            for body in subgraphs(node):
                self.walk(body, dims)

    def _equal(self, one: Dim, other: Dim) -> None:
        for open_axis, size in ((one, other), (other, one)):
            if not isinstance(open_axis, str) or not isinstance(size, int):
                continue
            if size > 0 and open_axis in self._keys:
                self.sizes.setdefault(open_axis, size)

    def _node(self, node: NodeProto, dims: Mapping[str, Sequence[Dim]]) -> None:
        op, ins = node.op_type, [dims.get(name) for name in node.input]
        first = ins[0] if ins else None
        if first is None:
            return
        for inner, wanted in _inner(node, dims):
            self._equal(inner, wanted)
        if op in _CONVOLUTIONS or op in _POOLS:
            self.spatial.update(d for d in first[2:] if isinstance(d, str) and len(first) > 3)
        second = ins[1] if len(ins) > 1 else None
        if op in _CHANNEL_NORMS and second and len(first) > 1:
            self._equal(first[1], second[0])
        elif op in _TRAILING_NORMS and second:
            for one, other in zip(reversed(first), reversed(second), strict=False):
                self._equal(one, other)
        elif op in _BROADCAST:
            self._broadcast(ins)
        elif op == "Concat":
            self._concat(node, ins)
        elif op in ("Reshape", "Flatten"):
            self._reshape(first, dims.get(node.output[0]) if node.output else None)

    def _broadcast(self, ins: Sequence[Sequence[Dim] | None]) -> None:
        known = [shape for shape in ins if shape is not None]
        for one, other in pairwise(known):
            for a, b in zip(reversed(one), reversed(other), strict=False):
                if 1 not in (a, b):  # an axis of one is repeated, so it fixes nothing
                    self._equal(a, b)

    def _concat(self, node: NodeProto, ins: Sequence[Sequence[Dim] | None]) -> None:
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        known = [shape for shape in ins if shape is not None]
        for one, other in pairwise(known):
            if len(one) == len(other) and one:
                for at, (a, b) in enumerate(zip(one, other, strict=True)):
                    if at != axis % len(one):
                        self._equal(a, b)

    def _reshape(self, before: Sequence[Dim], after: Sequence[Dim] | None) -> None:
        """Elements are as many after as before: one open axis among known ones follows."""
        if after is None:
            return
        for one, other in ((before, after), (after, before)):
            open_axes = [d for d in one if not isinstance(d, int)]
            if len(open_axes) == 1 and all(isinstance(d, int) for d in other):
                total = math.prod(d for d in other if isinstance(d, int))
                rest = math.prod(d for d in one if isinstance(d, int))
                if rest > 0 and total % rest == 0:
                    self._equal(open_axes[0], total // rest)


def _inner(node: NodeProto, dims: Mapping[str, Sequence[Dim]]) -> Iterator[tuple[Dim, Dim]]:
    """Yield the pairs of sizes that an operator with a weight needs to be equal."""
    op, ins = node.op_type, [dims.get(name) for name in node.input]
    at = 3 if op == "QLinearConv" else 1
    first, weight = ins[0] if ins else None, ins[at] if len(ins) > at else None
    if not first or not weight:
        return
    plain: dict[str, Any] = {
        a.name: helper.get_attribute_value(a)
        for a in node.attribute
        if a.type in (AttributeProto.INT, AttributeProto.INTS)
    }
    if op in _CONVOLUTIONS and len(first) > 2 and len(weight) > 2:
        if op == "ConvTranspose":
            yield first[1], weight[0]
        elif isinstance(weight[1], int):
            yield first[1], weight[1] * max(int(plain.get("group", 1)), 1)
    elif op in ("MatMul", "MatMulInteger"):
        yield first[-1], weight[-2] if len(weight) > 1 else weight[0]
    elif op == "Gemm" and len(first) == 2 and len(weight) == 2:
        yield first[0 if plain.get("transA") else 1], weight[1 if plain.get("transB") else 0]
    elif op in ("LSTM", "GRU", "RNN") and len(first) == 3 and len(weight) == 3:
        yield first[2], weight[2]


def _dims_of(graph: GraphProto, outer: Mapping[str, Sequence[Dim]]) -> dict[str, Sequence[Dim]]:
    dims = dict(outer)
    for value in (*graph.input, *graph.value_info, *graph.output):
        shape = _dims(value)
        if shape is not None:
            dims[value.name] = shape
    for tensor in graph.initializer:
        dims[tensor.name] = list(tensor.dims)
    for node in graph.node:
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.type == AttributeProto.TENSOR and node.output:
                    dims[node.output[0]] = list(attribute.t.dims)
    return dims


def _dims(value: ValueInfoProto) -> list[Dim] | None:
    tensor = value.type.tensor_type
    if value.type.WhichOneof("value") != "tensor_type" or not tensor.HasField("shape"):
        return None
    return [
        dim.dim_value if dim.HasField("dim_value") else (dim.dim_param or None)
        for dim in tensor.shape.dim
    ]
