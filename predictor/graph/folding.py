"""Shapes that follow from integer arithmetic in the graph, where onnx's own inference stops.

Exporters compute shapes with nodes: Shape, Gather, Concat, Where and others before an Expand or a
Reshape. This pass goes through the graph once, evaluates such nodes on small integer tensors with
numpy, and lets onnx infer each node that it left open with those values at hand. It evaluates
nothing of more than a bounded size, and no weights: they have no values here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    defs,
    helper,
    numpy_helper,
)
from onnx.shape_inference import infer_node_outputs

Array = NDArray[Any]

#: Elements of one evaluated tensor, of all together, and nodes that onnx infers one by one.
MAX_ELEMENTS = 1 << 16
_MAX_TOTAL = 1 << 23
_MAX_INFERRED = 60_000
_STANDARD_DOMAINS = ("", "ai.onnx")
_MAX_DEPTH = 8


class _UnfoldableError(Exception):
    """A node that is not evaluated: too large, or of an operator that shapes do not need."""


@dataclass
class _Budget:
    elements: int = _MAX_TOTAL
    inferred: int = _MAX_INFERRED


def complete_shapes(model: ModelProto) -> None:
    """Add to `model`, which onnx has inferred, the shapes that integer arithmetic gives.

    Types of values that stay unknown are left as they are. `model` is changed in place.
    """
    types: dict[str, TypeProto] = {}
    _Fold(model, model.graph, types, {}, _Budget(), 0).run()


@dataclass
class _Fold:
    """One graph, or the body that an If is known to run."""

    model: ModelProto
    graph: GraphProto
    types: dict[str, TypeProto]  # of every value in scope
    values: dict[str, Array]  # of small constants in scope
    budget: _Budget
    depth: int
    schemas: dict[tuple[str, str], Any] = field(default_factory=dict)

    def run(self) -> None:
        graph, types = self.graph, self.types
        declared = {v.name: v for v in (*graph.value_info, *graph.output)}
        for value in (*graph.input, *graph.value_info, *graph.output):
            if value.type.WhichOneof("value") is not None:
                types[value.name] = value.type
        for tensor in graph.initializer:
            types[tensor.name] = helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
            self._remember(tensor.name, tensor)
        for node in graph.node:
            self._node(node)
            for name in node.output:
                known = types.get(name)
                if not name or known is None:
                    continue
                if name not in declared:
                    value = graph.value_info.add(name=name)
                    value.type.CopyFrom(known)
                    declared[name] = value
                elif declared[name].type is not known:
                    declared[name].type.CopyFrom(known)

    def _node(self, node: NodeProto) -> None:
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.type == AttributeProto.TENSOR:
                    self._remember(node.output[0], attribute.t)
                    if not _known(self.types.get(node.output[0])):
                        self.types[node.output[0]] = helper.make_tensor_type_proto(
                            attribute.t.data_type, list(attribute.t.dims)
                        )
                elif attribute.name in ("value_int", "value_ints"):
                    self.values[node.output[0]] = np.array(
                        helper.get_attribute_value(attribute), dtype=np.int64
                    )
            if node.output[0] in self.values:
                self._typed(node.output[0], self.values[node.output[0]])
            return
        if node.op_type == "If":
            self._branch(node)
            return
        if not all(_known(self.types.get(name)) for name in node.output if name):
            self._infer(node)
        self._evaluate(node)

    def _infer(self, node: NodeProto) -> None:
        """Let onnx infer one node with the values that are known."""
        if self.budget.inferred <= 0 or node.domain not in _STANDARD_DOMAINS:
            return
        if not all(name in self.types for name in node.input if name):
            return
        self.budget.inferred -= 1
        key = (node.op_type, node.domain)
        if key not in self.schemas:
            version = next(
                (o.version for o in self.model.opset_import if o.domain in _STANDARD_DOMAINS), 1
            )
            try:
                self.schemas[key] = defs.get_schema(node.op_type, version, "")
            except Exception:  # onnx raises its own kind, which it does not export
                self.schemas[key] = None
        schema = self.schemas[key]
        if schema is None:
            return
        data = {
            name: numpy_helper.from_array(self.values[name])
            for name in node.input
            if name in self.values
        }
        try:
            found = infer_node_outputs(
                schema,
                node,
                {name: self.types[name] for name in node.input if name},
                data,
                opset_imports=list(self.model.opset_import),
                ir_version=self.model.ir_version,
            )
        except Exception:  # a node that contradicts itself stays unknown
            return
        for name, kind in found.items():
            if kind.WhichOneof("value") is not None and not _known(self.types.get(name)):
                self.types[name] = kind

    def _evaluate(self, node: NodeProto) -> None:
        evaluate = _EVALUATE.get(node.op_type)
        if evaluate is None or node.domain not in _STANDARD_DOMAINS:
            return
        if node.op_type in ("Shape", "Size"):
            shape = _shape(self.types.get(node.input[0]))
            if shape is None:
                return
            inputs: list[Array | None] = [np.array(shape, dtype=np.int64)]
        elif all(name in self.values for name in node.input if name):
            inputs = [self.values[name] if name else None for name in node.input]
        else:
            return
        if node.op_type not in ("Shape", "Size", "NonZero"):
            sizes = [_shape(self.types.get(name)) for name in node.output if name]
            if any(s is None or math.prod(s) > MAX_ELEMENTS for s in sizes):
                return
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        try:
            with np.errstate(all="ignore"):
                results = evaluate(inputs, attributes)
        except Exception:  # what numpy cannot make of it stays unknown
            return
        for name, result in zip(node.output, results, strict=False):
            self.budget.elements -= result.size
            if name and result.size <= MAX_ELEMENTS and self.budget.elements > 0:
                self.values[name] = result
                if not _known(self.types.get(name)):
                    self._typed(name, result)

    def _branch(self, node: NodeProto) -> None:
        """Follow the branch that a known condition takes, and give its types to the If."""
        condition = self.values.get(node.input[0]) if node.input else None
        branches = {a.name: a.g for a in node.attribute if a.type == AttributeProto.GRAPH}
        if condition is None or condition.size != 1 or self.depth >= _MAX_DEPTH:
            return
        branch = branches.get("then_branch" if bool(condition.ravel()[0]) else "else_branch")
        if branch is None:
            return
        inner = _Fold(
            self.model, branch, dict(self.types), dict(self.values), self.budget,
            self.depth + 1, self.schemas,
        )  # fmt: skip
        inner.run()
        for name, result in zip(node.output, branch.output, strict=False):
            if result.name in inner.types and not _known(self.types.get(name)):
                self.types[name] = inner.types[result.name]
            if result.name in inner.values:
                self.values[name] = inner.values[result.name]

    def _remember(self, name: str, tensor: TensorProto) -> None:
        """Keep the values of a small tensor that has them."""
        size = math.prod(tensor.dims)
        if size > MAX_ELEMENTS or tensor.data_type not in _EVALUATED_TYPES:
            return
        has = tensor.raw_data or tensor.int64_data or tensor.int32_data or tensor.float_data
        if not has and size:
            return
        try:
            self.values[name] = numpy_helper.to_array(tensor)
        except Exception:  # its sizes and its data disagree
            return

    def _typed(self, name: str, value: Array) -> None:
        self.types[name] = helper.make_tensor_type_proto(
            helper.np_dtype_to_tensor_dtype(value.dtype), list(value.shape)
        )


_EVALUATED_TYPES = frozenset(
    {TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL, TensorProto.FLOAT, TensorProto.DOUBLE}
)


def _known(kind: TypeProto | None) -> bool:
    if kind is None:
        return False
    if kind.WhichOneof("value") not in ("tensor_type", "sparse_tensor_type"):
        return kind.WhichOneof("value") is not None
    return _shape(kind) is not None


def _shape(kind: TypeProto | None) -> tuple[int, ...] | None:
    if kind is None or kind.WhichOneof("value") != "tensor_type":
        return None
    if not kind.tensor_type.HasField("shape"):
        return None
    dims = kind.tensor_type.shape.dim
    if not all(dim.HasField("dim_value") and dim.dim_value >= 0 for dim in dims):
        return None
    return tuple(dim.dim_value for dim in dims)


# --- operators on small arrays; what they return has been checked for size before ----------------

_Evaluate = Callable[[list[Any], Mapping[str, Any]], list[Array]]


def _elementwise(function: Callable[..., Any]) -> _Evaluate:
    return lambda x, _: [np.asarray(function(*x))]


def _divided(x: list[Any], _: Mapping[str, Any]) -> list[Array]:
    a, b = x
    if np.issubdtype(a.dtype, np.integer):
        if not np.all(b):
            raise _UnfoldableError
        return [np.asarray(np.trunc(a / b)).astype(a.dtype)]
    return [np.asarray(a / b)]


def _modulo(x: list[Any], a: Mapping[str, Any]) -> list[Array]:
    if not np.all(x[1]):
        raise _UnfoldableError
    return [np.asarray(np.fmod(*x) if a.get("fmod") else np.mod(*x))]


def _power(x: list[Any], _: Mapping[str, Any]) -> list[Array]:
    return [np.asarray(np.power(x[0].astype(np.float64), x[1])).astype(x[0].dtype)]


def _cast(x: list[Any], a: Mapping[str, Any]) -> list[Array]:
    if a["to"] not in _EVALUATED_TYPES:
        raise _UnfoldableError
    return [x[0].astype(helper.tensor_dtype_to_np_dtype(a["to"]))]


def _shape_of(x: list[Any], a: Mapping[str, Any]) -> list[Array]:
    return [x[0][slice(a.get("start", 0), a.get("end"))]]


def _axes(x: list[Any], a: Mapping[str, Any], index: int = 1) -> tuple[int, ...] | None:
    if len(x) > index and x[index] is not None:
        return tuple(int(v) for v in x[index].ravel())
    return tuple(a["axes"]) if "axes" in a else None


def _unsqueeze(x: list[Any], a: Mapping[str, Any]) -> list[Array]:
    axes = _axes(x, a)
    assert axes is not None
    return [np.expand_dims(x[0], axes)]


def _squeeze(x: list[Any], a: Mapping[str, Any]) -> list[Array]:
    return [np.squeeze(x[0], _axes(x, a))]


def _slice(x: list[Any], a: Mapping[str, Any]) -> list[Array]:
    data = x[0]
    if "starts" in a:
        starts, ends = a["starts"], a["ends"]
        axes, steps = a.get("axes", range(len(starts))), [1] * len(starts)
    else:
        starts, ends = x[1].ravel(), x[2].ravel()
        axes = x[3].ravel() if len(x) > 3 and x[3] is not None else range(len(starts))
        steps = x[4].ravel() if len(x) > 4 and x[4] is not None else [1] * len(starts)
    cut = [slice(None)] * data.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        first, last, stride = int(start), int(end), int(step)
        # Below -size, the end of a walk backwards means "to the very first element".
        cut[int(axis)] = slice(
            first, None if stride < 0 and last < -data.shape[int(axis)] else last, stride
        )
    return [data[tuple(cut)]]


def _gather(x: list[Any], a: Mapping[str, Any]) -> list[Array]:
    return [np.asarray(np.take(x[0], x[1].astype(np.int64), axis=a.get("axis", 0)))]


def _reshape(x: list[Any], a: Mapping[str, Any]) -> list[Array]:
    wanted = [int(v) for v in x[1].ravel()]
    if not a.get("allowzero"):
        wanted = [x[0].shape[i] if v == 0 else v for i, v in enumerate(wanted)]
    return [x[0].reshape(wanted)]


def _constant_of_shape(x: list[Any], a: Mapping[str, Any]) -> list[Array]:
    fill = numpy_helper.to_array(a["value"]).ravel()[0] if "value" in a else np.float32(0)
    return [np.full([int(v) for v in x[0].ravel()], fill)]


def _range(x: list[Any], _: Mapping[str, Any]) -> list[Array]:
    start, limit, delta = (v.ravel()[0] for v in x)
    if not delta or (limit - start) / delta > MAX_ELEMENTS:
        raise _UnfoldableError
    return [np.arange(start, limit, delta, dtype=x[0].dtype)]


def _expand(x: list[Any], _: Mapping[str, Any]) -> list[Array]:
    wanted = np.broadcast_shapes(x[0].shape, tuple(int(v) for v in x[1].ravel()))
    return [np.broadcast_to(x[0], wanted)]


def _concat(x: list[Any], a: Mapping[str, Any]) -> list[Array]:
    return [np.concatenate(x, axis=a["axis"])]


def _split(x: list[Any], a: Mapping[str, Any]) -> list[Array]:
    axis = a.get("axis", 0)
    sizes = x[1].ravel() if len(x) > 1 and x[1] is not None else a.get("split")
    if sizes is None:
        return list(np.array_split(x[0], a["num_outputs"], axis))
    return list(np.split(x[0], np.cumsum(np.asarray(sizes))[:-1], axis))


def _reduced(function: Callable[..., Any]) -> _Evaluate:
    def reduce(x: list[Any], a: Mapping[str, Any]) -> list[Array]:
        axes = _axes(x, a)
        if not axes and a.get("noop_with_empty_axes"):
            return [x[0]]
        made = function(x[0], axis=axes or None, keepdims=bool(a.get("keepdims", 1)))
        return [np.asarray(made).astype(x[0].dtype)]

    return reduce


def _transpose(x: list[Any], a: Mapping[str, Any]) -> list[Array]:
    return [np.transpose(x[0], a.get("perm"))]


def _tile(x: list[Any], _: Mapping[str, Any]) -> list[Array]:
    return [np.tile(x[0], [int(v) for v in x[1].ravel()])]


def _nonzero(x: list[Any], _: Mapping[str, Any]) -> list[Array]:
    return [np.stack(np.nonzero(x[0])).astype(np.int64)]


def _scatter_nd(x: list[Any], a: Mapping[str, Any]) -> list[Array]:
    if a.get("reduction", b"none") != b"none":
        raise _UnfoldableError
    out, at = x[0].copy(), x[1].astype(np.int64)
    out[tuple(at[..., i] for i in range(at.shape[-1]))] = x[2]
    return [out]


_EVALUATE: dict[str, _Evaluate] = {
    "Shape": _shape_of,
    "Size": lambda x, _: [np.array(math.prod(x[0].tolist()), dtype=np.int64)],
    "Identity": lambda x, _: [x[0]],
    "Cast": _cast,
    "Div": _divided,
    "Mod": _modulo,
    "Pow": _power,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Slice": _slice,
    "Gather": _gather,
    "GatherElements": lambda x, a: [np.take_along_axis(x[0], x[1], a.get("axis", 0))],
    "Reshape": _reshape,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "Expand": _expand,
    "Concat": _concat,
    "Split": _split,
    "Transpose": _transpose,
    "Tile": _tile,
    "NonZero": _nonzero,
    "ScatterND": _scatter_nd,
    "ReduceProd": _reduced(np.prod),
    "ReduceSum": _reduced(np.sum),
    "ReduceMax": _reduced(np.max),
    "ReduceMin": _reduced(np.min),
    "Max": lambda x, _: [np.asarray(np.maximum.reduce(x))],
    "Min": lambda x, _: [np.asarray(np.minimum.reduce(x))],
}
_NUMPY: dict[str, Callable[..., Any]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Neg": np.negative, "Abs": np.abs,
    "Equal": np.equal, "Greater": np.greater, "Less": np.less, "Not": np.logical_not,
    "GreaterOrEqual": np.greater_equal, "LessOrEqual": np.less_equal, "And": np.logical_and,
    "Or": np.logical_or, "Xor": np.logical_xor, "Floor": np.floor, "Ceil": np.ceil,
    "Round": np.round, "Sqrt": np.sqrt, "Sign": np.sign, "Log": np.log, "Exp": np.exp,
    "Where": np.where,
}  # fmt: skip
_EVALUATE |= {name: _elementwise(function) for name, function in _NUMPY.items()}
