"""Finds the batch axis of each input by following the axes through the graph.

Operators say what an axis cannot be: the time of a recurrent layer, channels and sides of a
convolution, the axis that a product sums over, the one that a Softmax or a norm works along.
Convolutions and recurrent layers also say which axis is the batch. Where nothing is said, it is the
leading axis, unless that was ruled out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnx import GraphProto, NodeProto, helper

Shape = tuple[int, ...]
_Axis = tuple[str, int]  # an axis of an input of the graph
_Labels = tuple[frozenset[_Axis], ...]
_NONE: frozenset[_Axis] = frozenset()

_LEADING = frozenset({
    "Conv", "ConvTranspose", "BatchNormalization", "MaxPool", "AveragePool", "GlobalAveragePool",
    "GlobalMaxPool", "InstanceNormalization", "LpPool", "QLinearConv", "ConvInteger",
})  # fmt: skip
_RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
_SAME = frozenset({
    "Identity", "Cast", "Dropout", "Relu", "Sigmoid", "Tanh", "Erf", "Sqrt", "Exp", "Neg", "Clip",
    "Gelu", "LeakyRelu", "Elu", "HardSwish", "HardSigmoid", "Softplus", "Abs", "Reciprocal", "Log",
    "Not", "IsNaN", "Softmax", "LogSoftmax", "LayerNormalization", "QuantizeLinear", "Round",
    "DequantizeLinear", "BatchNormalization", "InstanceNormalization", "GroupNormalization",
    "RMSNormalization", "Floor", "Ceil", "Sin", "Cos",
})  # fmt: skip
_BROADCAST = frozenset({
    "Add", "Sub", "Mul", "Div", "Pow", "Where", "Equal", "Less", "Greater", "And", "Or", "Max",
    "Min", "LessOrEqual", "GreaterOrEqual", "PRelu", "Mod", "Sum",
})  # fmt: skip


@dataclass
class _Flow:
    shapes: Mapping[str, Shape]
    constants: frozenset[str]
    labels: dict[str, _Labels]
    batch: set[_Axis] = field(default_factory=set)
    other: set[_Axis] = field(default_factory=set)

    def of(self, name: str) -> _Labels:
        found = self.labels.get(name)
        return found if found is not None else tuple(_NONE for _ in self.shapes.get(name, ()))

    def is_other(self, name: str, *axes: int) -> None:
        labels = self.of(name)
        for axis in axes:
            if -len(labels) <= axis < len(labels) and len(labels[axis]) == 1:
                self.other |= labels[axis]

    def is_batch(self, name: str, axis: int) -> None:
        labels = self.of(name)
        if axis < len(labels) and len(labels[axis]) == 1:
            self.batch |= labels[axis]


def batch_axes(
    graph: GraphProto, inputs: Sequence[str], shapes: Mapping[str, Shape]
) -> dict[str, int]:
    """Return the batch axis of each input that has one; `shapes` has every shape that is known."""
    constants = frozenset(t.name for t in graph.initializer)
    flow = _Flow(
        shapes,
        constants,
        {n: tuple(frozenset({(n, a)}) for a in range(len(shapes.get(n, ())))) for n in inputs},
    )
    for node in graph.node:
        _follow(node, flow)
    found = {}
    for name in inputs:
        axes = [(name, axis) for axis in range(len(shapes.get(name, ())))]
        said = [axis for axis in axes if axis in flow.batch]
        if said:
            found[name] = said[0][1]
        elif axes and axes[0] not in flow.other:
            found[name] = 0
    return found


def _follow(node: NodeProto, flow: _Flow) -> None:
    if not node.input or not node.output:
        return
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if not _follow_layer(node, attributes, flow):
        _follow_shape(node, attributes, flow)


def _follow_layer(node: NodeProto, attributes: Mapping[str, Any], flow: _Flow) -> bool:
    """Follow an operator that says which axis is the batch; False for any other."""
    op, first, out = node.op_type, node.input[0], node.output[0]
    rank = len(flow.shapes.get(first, ()))
    if op in _LEADING and rank > 2:
        flow.is_batch(first, 0)
        flow.is_other(first, *range(1, rank))
        _set(flow, out, (flow.of(first)[0], *(_NONE for _ in flow.shapes.get(out, ())[1:])))
        if op in _SAME:
            _set(flow, out, flow.of(first))
    elif op == "Scan":
        for name in node.input[len(node.input) - max(attributes.get("num_scan_inputs", 0), 0) :]:
            flow.is_other(name, 0)
            flow.is_batch(name, 1)
    elif op in _RECURRENT:
        time, batch = (1, 0) if attributes.get("layout") else (0, 1)
        flow.is_other(first, time, 2)
        flow.is_batch(first, batch)
        labels = flow.of(first)
        if len(labels) == 3 and not attributes.get("layout"):
            _set(flow, out, (labels[0], _NONE, labels[1], _NONE))
    else:
        return False
    return True


def _follow_shape(node: NodeProto, attributes: Mapping[str, Any], flow: _Flow) -> None:
    """Follow an operator that keeps, joins, moves or removes axes."""
    op, ins, first, out = node.op_type, node.input, node.input[0], node.output[0]
    if op in _SAME:
        _same(op, attributes, first, out, flow)
    elif op in _BROADCAST:
        _broadcast(ins, out, flow)
    elif op == "Transpose":
        labels = flow.of(first)
        order = attributes.get("perm", range(len(flow.shapes.get(first, ())))[::-1])
        if len(labels) == len(order):
            _set(flow, out, tuple(labels[axis] for axis in order))
    elif op in ("MatMul", "Gemm"):
        _product(op, attributes, ins, out, flow)
    elif op.startswith("Reduce"):
        axes = attributes.get("axes", ())
        flow.is_other(first, *axes)
        if attributes.get("keepdims", 1):
            _set(flow, out, flow.of(first))
    elif op == "Gather":
        _gather(attributes.get("axis", 0), ins, out, flow)
    elif op == "Concat":
        _concat(attributes.get("axis", 0), ins, out, flow)
    elif op in ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Expand", "Slice", "Split", "Pad"):
        _reshape(first, list(node.output), flow)


def _same(op: str, attributes: Mapping[str, Any], first: str, out: str, flow: _Flow) -> None:
    if op in ("Softmax", "LogSoftmax"):
        flow.is_other(first, attributes.get("axis", -1))
    elif op in ("LayerNormalization", "RMSNormalization"):
        flow.is_other(first, *range(attributes.get("axis", -1), 0))
    _set(flow, out, flow.of(first))


def _concat(axis: int, ins: Sequence[str], out: str, flow: _Flow) -> None:
    for name in ins:
        flow.is_other(name, axis)
    shape = flow.shapes.get(out, ())
    labels = flow.of(next((n for n in ins if n in flow.labels), ins[0]))
    if len(labels) == len(shape):
        axis %= max(len(shape), 1)
        _set(flow, out, (*labels[:axis], _NONE, *labels[axis + 1 :]))


def _set(flow: _Flow, name: str, labels: _Labels) -> None:
    if len(labels) == len(flow.shapes.get(name, ())):
        flow.labels[name] = labels


def _broadcast(ins: Sequence[str], out: str, flow: _Flow) -> None:
    shape = flow.shapes.get(out, ())
    joined = [set[_Axis]() for _ in shape]
    for name in ins:
        own = flow.shapes.get(name, ())
        labels = flow.of(name)
        start = len(shape) - len(own)
        if start < 0:
            return
        for axis, (size, label) in enumerate(zip(own, labels, strict=True)):
            if size == shape[start + axis]:
                joined[start + axis] |= label
    for name in ins:
        # A table of weights along an axis (positions, channels) rules it out as the batch.
        own = flow.shapes.get(name, ()) if name in flow.constants else ()
        for axis, size in enumerate(own):
            if size > 1:
                flow.other |= joined[len(shape) - len(own) + axis]
    _set(flow, out, tuple(frozenset(each) for each in joined))


def _product(
    op: str, attributes: Mapping[str, object], ins: Sequence[str], out: str, flow: _Flow
) -> None:
    left, right = flow.of(ins[0]), flow.of(ins[1]) if len(ins) > 1 else ()
    if op == "Gemm":
        contracted = 0 if attributes.get("transA") else 1
        flow.is_other(ins[0], contracted)
        if len(left) == 2:
            _set(flow, out, (left[1 - contracted], _NONE))
        return
    flow.is_other(ins[0], -1)
    flow.is_other(ins[1], -2 if len(right) > 1 else -1)
    shape = flow.shapes.get(out, ())
    if len(left) == len(shape):
        leads = list(left[:-2])
        if len(right) == len(left):
            leads = [a | b for a, b in zip(leads, right[:-2], strict=True)]
        last = right[-1] if len(right) > 1 and ins[1] not in flow.constants else _NONE
        _set(flow, out, (*leads, left[-2], last) if len(left) > 1 else left)


def _gather(axis: int, ins: Sequence[str], out: str, flow: _Flow) -> None:
    data, indices = flow.of(ins[0]), flow.of(ins[1]) if len(ins) > 1 else ()
    if ins[0] in flow.constants or not any(data):
        axis %= max(len(data), 1)
        _set(flow, out, (*data[:axis], *indices, *data[axis + 1 :]))
        return
    flow.is_other(ins[0], axis)
    axis %= max(len(data), 1)
    _set(flow, out, (*data[:axis], *indices, *data[axis + 1 :]))


def _reshape(name: str, outs: Sequence[str], flow: _Flow) -> None:
    """Follow axes that a change of shape leaves whole, from both ends."""
    labels = flow.of(name)
    before = flow.shapes.get(name, ())
    for out in outs:
        after = flow.shapes.get(out, ())
        if len(labels) != len(before):
            return
        found = [_NONE for _ in after]
        i = j = 0
        while i < len(before) and j < len(after):
            if before[i] == after[j]:
                found[j] = labels[i]
                i, j = i + 1, j + 1
            elif after[j] == 1:
                j += 1
            elif before[i] == 1:
                i += 1
            else:
                break
        i, j = len(before) - 1, len(after) - 1
        while i >= 0 and j >= 0 and before[i] == after[j] and not found[j] and before[i] != 1:
            found[j] = labels[i]
            i, j = i - 1, j - 1
        _set(flow, out, tuple(found))
