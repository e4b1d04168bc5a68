"""The sums over the nodes of a graph from which its features are made."""

from __future__ import annotations

import math
from collections import ChainMap, Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, ValueInfoProto

from predictor.errors import GraphError, Refusal
from predictor.graph import contrib
from predictor.graph.contrib import subgraphs
from predictor.graph.flops import (
    MULTIPLY_ADD,
    VIEWS,
    elementwise_flops,
    multiply_add_flops,
)
from predictor.graph.model import (
    ITEM_BYTES,
    GraphLimits,
    check_tensor,
    shape_of,
)
from predictor.graph.shapes import NodeShapes, Shape, UnknownShapeError
from predictor.graph.training import (
    ALIASES,
    RECURRENT_KEEPS,
    Fusions,
    has_no_gradient,
    hidden_values,
    saved_values,
)

_CONSTANTS = frozenset({"Constant", "ConstantOfShape"})
#: The types that weights have; wider integers are shapes and indices.
_WEIGHT_TYPES = frozenset(
    {
        TensorProto.FLOAT,
        TensorProto.DOUBLE,
        TensorProto.FLOAT16,
        TensorProto.BFLOAT16,
        TensorProto.INT8,
        TensorProto.UINT8,
    }
)
#: MaxPool keeps the place of each maximum in 64 bits.
_INDEX_BYTES = 8
#: Values of a folded BatchNormalization per channel that the convolution's bias does not hold.
_FOLDED_PER_CHANNEL = 3
#: Products of unknown shape that a refusal names.
_NAMED = 5
_RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
#: What they read of their first input is as much as they write, however large the table.
_LOOKUPS = frozenset({"Gather", "GatherElements", "GatherND", "Slice"})
_STANDARD_DOMAINS = ("", "ai.onnx")
#: Attributes that are a number, a string or a list of integers: all that counting needs.
_PLAIN = {
    AttributeProto.INT: attrgetter("i"),
    AttributeProto.INTS: attrgetter("ints"),
    AttributeProto.FLOAT: attrgetter("f"),
    AttributeProto.STRING: attrgetter("s"),
}


class _Value(NamedTuple):
    """A value of the graph; `origin` marks a constant that the file itself spells out.

    `behind` names the operator from which on no shape is known.
    """

    shape: Shape | None
    elements: float
    item_bytes: int
    size_bytes: float
    constant: bool
    origin: bool
    depth: int
    behind: str = ""


def _value(
    shape: Shape | None, item_bytes: int = 4, constant: bool = False, depth: int = 0
) -> _Value:
    elements = float(math.prod(shape)) if shape is not None else 0.0
    return _Value(shape, elements, item_bytes, elements * item_bytes, constant, False, depth)


@dataclass
class Totals:
    """Sums over a whole graph at the batch it was bound to; FLOPs, bytes, counts."""

    flops: float = 0.0
    elementwise_flops: float = 0.0
    backward_flops: float = 0.0
    parameters: int = 0
    parameter_bytes: float = 0.0
    largest_bytes: float = 0.0
    activation_bytes: float = 0.0
    saved_activation_bytes: float = 0.0
    largest_activation_bytes: float = 0.0
    bytes_moved: float = 0.0
    nodes: int = 0
    kernels: float = 0.0
    depth: int = 0
    unresolved: int = 0
    unknown_values: int = 0
    unknown_products: list[str] = field(default_factory=list)
    unknown_operators: list[str] = field(default_factory=list)
    #: Operators without a definition here that hide no product, counted by their elements.
    guessed_operators: list[str] = field(default_factory=list)
    #: Operators whose outputs have no shape although their inputs have one.
    shapeless_operators: list[str] = field(default_factory=list)
    ops: Counter[str] = field(default_factory=Counter)

    def add_parameter(self, shape: Sequence[int], item_bytes: int) -> None:
        """Count one weight tensor."""
        elements = math.prod(shape)
        self.parameters += elements
        self.parameter_bytes += float(elements) * item_bytes
        self.largest_bytes = max(self.largest_bytes, float(elements) * item_bytes)


def sum_over_graphs(graph: GraphProto, limits: GraphLimits) -> Totals:
    """Sum over the graph and the bodies of its control flow, each as often as it runs.

    Every branch of an If counts, since which of them runs is not known: an upper bound.
    """
    totals = Totals()
    waiting: list[tuple[GraphProto, float, ChainMap[str, _Value]]] = [(graph, 1.0, ChainMap())]
    while waiting:
        body, runs, outer = waiting.pop()
        walk = _Walk(body, runs, outer, limits, totals)
        for node in body.node:
            walk.add(node)
            bodies = subgraphs(node)
            if bodies:
                times = runs * walk.trips(node)
                waiting.extend((inner, times, walk.values) for inner in bodies)
        walk.finish()
    return totals


class _Walk:
    """Goes through one graph in order, knowing every value made so far."""

    def __init__(
        self,
        graph: GraphProto,
        runs: float,
        outer: ChainMap[str, _Value],
        limits: GraphLimits,
        totals: Totals,
    ) -> None:
        self._runs = runs
        self._limits = limits
        self._totals = totals
        self._declared = {value.name: value for value in (*graph.value_info, *graph.output)}
        self._fusions = Fusions(graph)
        self._saved: set[str] = set()
        self._storage: dict[str, str] = {}  # the value whose storage a value shares
        self._fixed: set[str] = set()  # values without a gradient
        self._quantised: set[str] = set()  # in 8 bits where training has 32
        self._own: dict[str, _Value] = {}
        self.values = outer.new_child(self._own)
        for tensor in graph.initializer:  # checked when the graph was loaded
            self._own[tensor.name] = self._weight(tensor, tensor.dims)
        for sparse in graph.sparse_initializer:
            check_tensor(sparse.values, limits)
            self._own[sparse.values.name] = self._weight(sparse.values, sparse.dims)
        for value in graph.input:
            if value.name not in self._own:
                self._own[value.name] = _value(*_declared_tensor(value))
                if not outer:  # in a body, a state has one
                    self._fixed.add(value.name)

    def add(self, node: NodeProto) -> None:
        """Count one node and note what it makes."""
        totals, runs = self._totals, self._runs
        op_type = node.op_type
        totals.ops[op_type[:64]] += 1
        read = [self._read(node, name) if name else None for name in node.input]
        inputs = [value for value in read if value is not None]
        constant = all(v.constant for v in inputs) and (bool(inputs) or op_type in _CONSTANTS)
        depth = max((v.depth for v in inputs), default=0)
        if constant and op_type in _CONSTANTS:
            self._make(node.output, [self._constant(node, inputs)])
            return
        depth = 0 if constant else depth + 1
        names = list(node.output)
        outputs = [self._output(name, constant, depth) for name in names]
        if any(value.shape is None for value in outputs):
            outputs = self._behind(node, inputs, outputs)
        self._make(names, outputs)
        made = [value if name else None for value, name in zip(outputs, names, strict=True)]
        totals.nodes += not constant
        totals.depth = max(totals.depth, depth)
        size = sum(value.size_bytes for value in made if value is not None)
        totals.activation_bytes += size * runs
        totals.largest_activation_bytes = max(totals.largest_activation_bytes, size)
        key = names[0] if names else ""
        if not constant:
            self._keep(node, key, read)
            if op_type not in VIEWS and key not in self._fusions.absorbed:
                taken = size if op_type in _LOOKUPS else sum(v.size_bytes for v in inputs)
                totals.bytes_moved += (taken + size) * runs
        self._count_flops(node, constant, _shapes(read), _shapes(made))

    def _behind(
        self, node: NodeProto, inputs: Sequence[_Value], outputs: Sequence[_Value]
    ) -> list[_Value]:
        """Note the operator behind which the outputs that have no shape lie."""
        behind = next((value.behind for value in inputs if value.behind), "")
        if not behind:
            behind = _operator_name(node)
            _append(self._totals.shapeless_operators, behind)
        return [v if v.shape is not None else v._replace(behind=behind) for v in outputs]

    def finish(self) -> None:
        """Add up what training keeps, each storage once."""
        for name in self._saved:
            value = self.values.get(name)
            if value is not None and not value.constant:
                size = value.size_bytes * (4 if name in self._quantised else 1)
                self._totals.saved_activation_bytes += size * self._runs

    def _keep(self, node: NodeProto, key: str, read: Sequence[_Value | None]) -> None:
        """Note what the backward pass of a node reads."""
        totals, runs, op = self._totals, self._runs, node.op_type
        fixed = [
            name in self._fixed or (value is not None and value.constant and value.elements <= 1)
            for name, value in zip(node.input, read, strict=True)
        ]
        if op in ALIASES and node.input:
            base = self._storage.get(node.input[0], node.input[0])
            # Only the first output of a quantiser is its input; the others are scales.
            for name in node.output[:1] if op == "DynamicQuantizeLinear" else node.output:
                self._storage[name] = base
        elif op == "Cast" and _same_size(read, self._own.get(key)):
            self._storage[key] = self._storage.get(node.input[0], node.input[0])
        elif op.startswith("QLinear"):
            self._quantised.update(node.output)
        if has_no_gradient(node, fixed):
            self._fixed.update(node.output)
            return
        made = self._own.get(key)
        if key in self._fusions.folded and made is not None:
            self._add_folded_norm(made)
        if key in self._fusions.absorbed:
            return
        group = self._fusions.keeps.get(key)
        if group is None:
            group = tuple(saved_values(node, fixed))
        for name in group:
            if name:
                self._saved.add(self._storage.get(name, name))
        if made is None:
            return
        totals.saved_activation_bytes += hidden_values(node) * made.size_bytes * runs
        if op in RECURRENT_KEEPS:
            totals.saved_activation_bytes += RECURRENT_KEEPS[op] * made.size_bytes * runs
        elif op == "MaxPool":
            totals.saved_activation_bytes += _INDEX_BYTES * made.elements * runs

    def _add_folded_norm(self, made: _Value) -> None:
        """Count the norm that an exporter folded into the operator that makes `made`."""
        totals, runs = self._totals, self._runs
        if made.shape and len(made.shape) > 1:
            # In 8 bits the graph holds the copy of an inference; training has 32.
            item_bytes = 4 if made.item_bytes == 1 else made.item_bytes
            size = made.elements * item_bytes
            totals.saved_activation_bytes += size * runs
            totals.bytes_moved += 2 * size * runs
            totals.elementwise_flops += 2 * made.elements * runs
            totals.kernels += runs
            totals.add_parameter((_FOLDED_PER_CHANNEL * made.shape[1],), item_bytes)

    def trips(self, node: NodeProto) -> float:
        """Return how often a body runs: the length that a Scan reads, otherwise once."""
        if node.op_type != "Scan":
            return 1.0
        scanned = next((a.i for a in node.attribute if a.name == "num_scan_inputs"), 0)
        if not 0 < scanned <= len(node.input):
            return 1.0
        shape = self.values[node.input[-scanned]].shape
        return float(shape[0]) if shape else 1.0

    def _count_flops(
        self,
        node: NodeProto,
        constant: bool,
        read: list[Shape | None],
        made: list[Shape | None],
    ) -> None:
        totals, runs = self._totals, self._runs
        op_type, domain = node.op_type, node.domain
        shapes = NodeShapes(
            op_type if domain in _STANDARD_DOMAINS else f"{domain}.{op_type}",
            read,
            made,
            {a.name: value(a) for a in node.attribute if (value := _PLAIN.get(a.type))},
        )
        if not contrib.defines(node):
            if self._hides_product(node):
                _append(totals.unknown_operators, _operator_name(node))
                return
            _append(totals.guessed_operators, _operator_name(node))
        try:
            multiply_adds = multiply_add_flops(shapes)
            others = elementwise_flops(shapes)
        except UnknownShapeError:
            totals.unresolved += not constant
            if shapes.op_type in MULTIPLY_ADD and len(totals.unknown_products) < _NAMED:
                totals.unknown_products.append(f"{op_type} {(node.name or node.output[0])[:60]!r}")
            return
        totals.flops += multiply_adds * runs
        totals.elementwise_flops += others * runs
        # Backward, a multiply-add operator makes a gradient for its input and one for its weight.
        totals.backward_flops += (2 * multiply_adds + others) * runs
        absorbed = bool(node.output) and node.output[0] in self._fusions.absorbed
        if op_type not in VIEWS and not constant and not absorbed:
            steps = shapes.input(0)[0] if op_type in _RECURRENT else 1
            totals.kernels += steps * runs

    def _hides_product(self, node: NodeProto) -> bool:
        """Say whether an operator without a definition here reads a weight of two or more axes."""
        read = [self.values.get(name) for name in node.input]
        return any(v is not None and v.constant and len(v.shape or ()) > 1 for v in read)

    def _read(self, node: NodeProto, name: str) -> _Value:
        known = self._own.get(name)  # nearly always: chained maps are slow
        if known is not None:
            return known
        try:
            return self.values[name]
        except KeyError:
            raise GraphError(
                Refusal.MALFORMED,
                f"Node {(node.name or node.op_type)[:80]!r} reads {name[:80]!r}, which nothing "
                "before it makes: the nodes are out of order, or form a cycle.",
            ) from None

    def _make(self, names: Sequence[str], outputs: Sequence[_Value]) -> None:
        own = self._own
        for name, value in zip(names, outputs, strict=False):
            if not name:
                continue
            if name in own:
                raise GraphError(Refusal.MALFORMED, f"The value {name[:80]!r} is made twice.")
            own[name] = value

    def _output(self, name: str, constant: bool, depth: int) -> _Value:
        declared = self._declared.get(name)
        if declared is None:
            self._totals.unknown_values += 1
            return _value(None, constant=constant, depth=depth)
        shape, item_bytes = _declared_tensor(declared)
        made = _value(shape, item_bytes, constant, depth)
        if made.elements > self._limits.elements_per_tensor:
            raise GraphError(
                Refusal.TOO_LARGE,
                f"The value {name[:80]!r} has more than "
                f"{self._limits.elements_per_tensor:,} elements.",
            )
        self._totals.unknown_values += shape is None
        return made

    def _weight(self, tensor: TensorProto, dims: Sequence[int]) -> _Value:
        item_bytes = ITEM_BYTES.get(tensor.data_type, 1)
        # Scalars are the constants of a formula, not what training learns.
        if tensor.data_type in _WEIGHT_TYPES and tensor.dims:
            self._totals.add_parameter(tensor.dims, item_bytes)
        return _value(tuple(dims), item_bytes, constant=True)._replace(origin=True)

    def _constant(self, node: NodeProto, inputs: Sequence[_Value]) -> _Value:
        """Note a Constant, or the weights that a ConstantOfShape makes of a spelled-out shape."""
        tensors = [a.t for a in node.attribute if a.type == AttributeProto.TENSOR]
        if node.op_type == "Constant":
            if tensors:
                check_tensor(tensors[0], self._limits)
                return self._weight(tensors[0], tensors[0].dims)
            value = self._output(node.output[0] if node.output else "", True, 0)
            return value._replace(constant=True, origin=True)
        made = self._output(node.output[0] if node.output else "", True, 0)
        data_type = tensors[0].data_type if tensors else TensorProto.FLOAT
        if data_type in _WEIGHT_TYPES and made.shape and all(v.origin for v in inputs):
            self._totals.add_parameter(made.shape, ITEM_BYTES[data_type])
        return made


def _operator_name(node: NodeProto) -> str:
    """Return an operator's name for people, with its domain where it is not a standard one."""
    name = node.op_type[:60]
    return name if node.domain in _STANDARD_DOMAINS else f"{name} ({node.domain[:40]})"


def _append(names: list[str], name: str) -> None:
    if name not in names and len(names) < _NAMED:
        names.append(name)


def _same_size(read: Sequence[_Value | None], made: _Value | None) -> bool:
    """Say whether a cast is none: a framework returns the tensor itself."""
    return made is not None and read[0] is not None and read[0].item_bytes == made.item_bytes


def _declared_tensor(value: ValueInfoProto) -> tuple[Shape | None, int]:
    return shape_of(value), ITEM_BYTES.get(value.type.tensor_type.elem_type, 4)


def _shapes(values: list[_Value | None]) -> list[Shape | None]:
    return [value.shape if value is not None else None for value in values]
