"""ONNX bytes -> a checked model whose symbolic sizes are bound and whose shapes are inferred."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import onnx
from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto
from onnx.defs import onnx_opset_version

from predictor.errors import GraphError, Refusal
from predictor.graph.batch import batch_axes
from predictor.graph.contrib import subgraphs, uses_runtime_operators, with_stand_ins
from predictor.graph.fixed import Mismatch, mismatch
from predictor.graph.folding import complete_shapes
from predictor.graph.shapes import Shape
from predictor.graph.symbols import OpenSizes, SymbolSizes, guessed, open_sizes

_Name = tuple[str, str, str]  # domain, name and overload of a function

#: Bytes of one element; types narrower than a byte share one and are left out.
ITEM_BYTES: dict[int, int] = {
    TensorProto.FLOAT: 4,
    TensorProto.DOUBLE: 8,
    TensorProto.FLOAT16: 2,
    TensorProto.BFLOAT16: 2,
    TensorProto.FLOAT8E4M3FN: 1,
    TensorProto.FLOAT8E4M3FNUZ: 1,
    TensorProto.FLOAT8E5M2: 1,
    TensorProto.FLOAT8E5M2FNUZ: 1,
    TensorProto.INT8: 1,
    TensorProto.UINT8: 1,
    TensorProto.INT16: 2,
    TensorProto.UINT16: 2,
    TensorProto.INT32: 4,
    TensorProto.UINT32: 4,
    TensorProto.INT64: 8,
    TensorProto.UINT64: 8,
    TensorProto.BOOL: 1,
    TensorProto.COMPLEX64: 8,
    TensorProto.COMPLEX128: 16,
}

_RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
#: The largest side of an image, or length of a sequence, that a product is searched for.
_SEARCHED = 4096
_STANDARD_DOMAINS = ("", "ai.onnx")


@dataclass(frozen=True)
class GraphLimits:
    """Limits of a graph; a graph beyond them is refused and never tried."""

    nodes: int = 200_000
    tensors: int = 400_000
    rank: int = 16
    elements_per_tensor: int = 2**40
    subgraph_depth: int = 16
    expanded_bytes: int = 2**28  # of the bodies of functions, once they stand at each call


@dataclass(frozen=True)
class InferredModel:
    """A model after shape inference; every size that could be known is a number."""

    model: ModelProto
    opset: int
    input_shapes: dict[str, Shape]
    graph_batch: int
    uses_sequence: bool
    #: Sizes that are defaults, by symbol or `input[axis]`: nothing in the graph fixes them.
    assumed_sizes: dict[str, int]
    #: Inputs whose first axis was taken for the batch although it is the time.
    misread: frozenset[str] = frozenset()


def load(graph: bytes, limits: GraphLimits) -> tuple[ModelProto, int]:
    """Parse and check the bytes of a model; return it with its opset.

    Local functions are inlined. Raises GraphError.
    """
    try:
        model = onnx.load_model_from_string(graph)
    except DecodeError:
        raise GraphError(
            Refusal.MALFORMED,
            "This is not an ONNX file: the protobuf message cannot be read.",
            "Export the model with torch.onnx.export or a like tool, and push the .onnx file.",
        ) from None
    if not model.graph.node:
        raise GraphError(Refusal.MALFORMED, "The file holds no graph, or a graph without nodes.")
    opset = max((o.version for o in model.opset_import if o.domain in _STANDARD_DOMAINS), default=0)
    if not 1 <= opset <= onnx_opset_version():
        raise GraphError(
            Refusal.UNSUPPORTED,
            f"The graph uses operator set {opset}; this predictor knows 1 to "
            f"{onnx_opset_version()}.",
            "Export with an opset in that range, or update Tandem.",
        )
    _check_size(model, limits)
    if model.functions:
        _check_expansion(model, limits)
        model = _inline(model)
        _check_size(model, limits)
    return model, opset


def infer(
    model: ModelProto, opset: int, sizes: SymbolSizes, time_major: frozenset[str] = frozenset()
) -> InferredModel:
    """Bind the symbolic sizes of `model` (changed in place) and infer every shape.

    `time_major` are inputs that are known to have the time first and the batch second.
    """
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    time_major |= _time_major_inputs(model.graph)
    guesses = {value.name for value in inputs if guessed(value)}
    bound = open_sizes(model, inputs, sizes, time_major)
    inferred = _inferred(model, bound)
    if bound.uses_default and (wrong := mismatch(inferred.graph)) is not None:
        inferred = _resized(model, bound, wrong) or _inferred(model, bound)
    if uses_runtime_operators(model.graph):
        _take_shapes(model, inferred)
    else:
        model = inferred
    shapes = {value.name: shape_of(value) for value in inputs}
    axes = {name: 1 if name in time_major else 0 for name in shapes}
    recurrent = any(node.op_type in _RECURRENT for node in model.graph.node)
    if recurrent or any(shape and shape[0] != 1 for shape in shapes.values()):
        complete(model)
        axes = _axes_of(model, shapes)
    return InferredModel(
        model=model,
        opset=opset,
        input_shapes={name: shape for name, shape in shapes.items() if shape is not None},
        graph_batch=_graph_batch(model, shapes, axes),
        uses_sequence=bound.uses_sequence,
        assumed_sizes=bound.assumed,
        misread=frozenset(
            name for name in guesses - time_major if axes.get(name) == 1 and name in axes
        ),
    )


def complete(model: ModelProto) -> None:
    """Add the shapes that integer arithmetic gives, behind operators of ONNX Runtime as well.

    `model` has been inferred and is changed in place.
    """
    inferred = with_stand_ins(model)
    complete_shapes(inferred)
    if inferred is not model:
        _take_shapes(model, inferred)


def _inferred(model: ModelProto, bound: OpenSizes) -> ModelProto:
    """Return a copy of the model with the shapes that follow from these sizes."""
    bound.apply()
    try:
        return onnx.shape_inference.infer_shapes(with_stand_ins(model), data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        raise GraphError(
            Refusal.MALFORMED,
            f"The shapes of the graph cannot be inferred: {str(error)[:200]}",
            "onnx.shape_inference.infer_shapes says the same; export the model again.",
        ) from None


def _resized(model: ModelProto, bound: OpenSizes, wrong: Mismatch) -> ModelProto | None:
    """Search for the default size with which a product fits its weight; None where none does.

    What a product reads grows with the side of the image or the length of the sequence.
    """
    kind = "image" if any(axis.by_default == "image" for axis in bound.axes) else "sequence"
    before = dict(bound.sizes)
    low, high = 1, _SEARCHED  # the answer is in [low, high]
    while low <= high:
        tried = (low + high) // 2
        bound.resize(kind, tried)
        try:
            inferred = _inferred(model, bound)
        except GraphError:
            low = tried + 1
            continue
        now = mismatch(inferred.graph)
        if now is None:
            bound.fix(kind)
            return inferred
        if now.wanted != wrong.wanted:
            break
        low, high = (low, tried - 1) if now.actual > now.wanted else (tried + 1, high)
    bound.sizes.update(before)
    return None


def _take_shapes(model: ModelProto, inferred: ModelProto) -> None:
    """Give a model, and the bodies of its control flow, the shapes that a copy of it has."""
    pairs = [(model.graph, inferred.graph)]
    while pairs:
        graph, other = pairs.pop()
        del graph.value_info[:]
        graph.value_info.extend(other.value_info)
        del graph.output[:]
        graph.output.extend(other.output)
        for node, twin in zip(graph.node, other.node, strict=True):
            pairs.extend(zip(subgraphs(node), subgraphs(twin), strict=False))


def shape_of(value: ValueInfoProto) -> Shape | None:
    """Return the shape of a tensor value; None where any of its sizes is not known."""
    kind = value.type.WhichOneof("value")
    if kind not in ("tensor_type", "sparse_tensor_type"):
        return None
    tensor = getattr(value.type, kind)
    if not tensor.HasField("shape"):
        return None
    dims = tensor.shape.dim
    sizes = tuple([dim.dim_value for dim in dims])
    # A size of zero is one that is stated, or one that is not.
    if min(sizes, default=1) <= 0 and not all(
        dim.HasField("dim_value") and dim.dim_value >= 0 for dim in dims
    ):
        return None
    return sizes


def _walk(model: ModelProto, limits: GraphLimits) -> Iterator[GraphProto]:
    """Yield every graph of the model, the bodies of its functions aside."""
    waiting = [(model.graph, 0)]
    while waiting:
        graph, depth = waiting.pop()
        if depth > limits.subgraph_depth:
            raise _over("nested graphs", limits.subgraph_depth)
        yield graph
        waiting.extend((body, depth + 1) for node in graph.node for body in subgraphs(node))


def _check_size(model: ModelProto, limits: GraphLimits) -> None:
    nodes = sum(len(function.node) for function in model.functions)
    tensors = 0
    for graph in _walk(model, limits):
        nodes += len(graph.node)
        tensors += len(graph.initializer)
        if nodes > limits.nodes:
            raise _over("nodes", limits.nodes)
        if tensors > limits.tensors:
            raise _over("weight tensors", limits.tensors)
        for tensor in graph.initializer:
            check_tensor(tensor, limits)
        texts = (*(node.op_type for node in graph.node), *(value.name for value in graph.input))
        if not all(isinstance(text, str) for text in texts):  # protobuf gives bytes instead
            raise GraphError(Refusal.MALFORMED, "A name in the graph is not text in UTF-8.")


def check_tensor(tensor: TensorProto, limits: GraphLimits) -> None:
    """Refuse a tensor whose sizes are impossible or that points out of the file."""
    if len(tensor.dims) > limits.rank:
        raise _over("axes of a tensor", limits.rank)
    if any(size < 0 for size in tensor.dims):
        raise GraphError(Refusal.MALFORMED, f"Tensor {tensor.name[:80]!r} has a negative size.")
    if math.prod(tensor.dims) > limits.elements_per_tensor:
        raise _over("elements of a tensor", limits.elements_per_tensor)
    expected = math.prod(tensor.dims) * ITEM_BYTES.get(tensor.data_type, 0)
    if tensor.raw_data and expected and len(tensor.raw_data) != expected:
        raise GraphError(
            Refusal.MALFORMED,
            f"Tensor {tensor.name[:80]!r} claims {expected:,} bytes and holds "
            f"{len(tensor.raw_data):,}.",
        )
    for entry in tensor.external_data:
        if entry.key == "location" and (
            entry.value.startswith(("/", "\\")) or ".." in re.split(r"[/\\]", entry.value)
        ):
            raise GraphError(
                Refusal.MALFORMED,
                f"Tensor {tensor.name[:80]!r} points out of the model's directory: "
                f"{entry.value[:80]!r}.",
                "Weights in files next to the model are never read; export them without a path.",
            )


def _over(what: str, limit: int) -> GraphError:
    return GraphError(Refusal.TOO_LARGE, f"The graph has more than {limit:,} {what}.")


def _check_expansion(model: ModelProto, limits: GraphLimits) -> None:
    """Count what the functions come to once they are expanded, without expanding them.

    A few functions that call one another ten times each would take all of the time and memory that
    a graph may have before their size was known.
    """
    bodies: dict[_Name, list[NodeProto]] = {}
    for function in model.functions:
        name = (function.domain, function.name, function.overload)
        bodies.setdefault(name, []).extend(function.node)
    size: dict[_Name, tuple[int, int]] = {}  # nodes and bytes, expanded
    opened: set[_Name] = set()
    stack = list(bodies)
    while stack:
        name = stack[-1]
        if name in size:
            stack.pop()
            continue
        calls = [callee for callee in _calls(bodies[name], limits) if callee in bodies]
        missing = [callee for callee in calls if callee not in size]
        if name in opened and missing:
            raise GraphError(
                Refusal.MALFORMED, "A function of the graph calls itself.", "Export it again."
            )
        opened.add(name)
        stack += missing
        if not missing:
            own = sum(len(nodes) for nodes in _bodies_of(bodies[name], limits))
            nodes = own + sum(size[callee][0] for callee in calls)
            held = sum(node.ByteSize() for node in bodies[name])
            held += sum(size[callee][1] for callee in calls)
            size[name] = min(nodes, limits.nodes + 1), min(held, limits.expanded_bytes + 1)
    graph = [size[name] for name in _calls(list(model.graph.node), limits) if name in size]
    if sum(nodes for nodes, _ in graph) > limits.nodes:
        raise _over("nodes", limits.nodes)
    if sum(held for _, held in graph) > limits.expanded_bytes:
        raise _over("bytes of functions", limits.expanded_bytes)


def _calls(nodes: list[NodeProto], limits: GraphLimits) -> list[_Name]:
    """Return what a body's nodes call, those of the graphs inside them too."""
    found = _bodies_of(nodes, limits)
    return [(node.domain, node.op_type, node.overload) for body in found for node in body]


def _bodies_of(nodes: list[NodeProto], limits: GraphLimits) -> Iterator[list[NodeProto]]:
    """Yield a body, and the bodies of the graphs inside its nodes."""
    stack = [(nodes, 0)]
    while stack:
        body, depth = stack.pop()
        if depth > limits.subgraph_depth:
            raise _over("nested graphs", limits.subgraph_depth)
        yield body
        stack += [(list(graph.node), depth + 1) for node in body for graph in subgraphs(node)]


def _inline(model: ModelProto) -> ModelProto:
    from onnx.inliner import inline_local_functions

    try:
        return inline_local_functions(model)
    except (RuntimeError, ValueError, DecodeError):
        raise GraphError(
            Refusal.MALFORMED, "The functions of the graph cannot be expanded."
        ) from None


def _time_major_inputs(graph: GraphProto) -> frozenset[str]:
    """Return the values whose leading axis is time.

    Those are what a recurrent node of layout 0 reads, and what a Scan goes through.
    """
    found: set[str] = set()
    for node in graph.node:
        op_type = node.op_type
        if op_type not in _RECURRENT and op_type != "Scan":
            continue
        attributes = {attribute.name: attribute.i for attribute in node.attribute}
        if op_type == "Scan":
            scanned = max(attributes.get("num_scan_inputs", 0), 0)
            found.update(node.input[len(node.input) - scanned :])
        elif attributes.get("layout") != 1:
            found.update(node.input[:1])
    return frozenset(found)


def _graph_batch(model: ModelProto, inputs: dict[str, Shape | None], axes: dict[str, int]) -> int:
    """Return the batch that the graph was exported with: the size of every input's batch axis.

    Inputs of batch 1 (positions, a mask for all) agree with every batch.
    """
    sizes = {shape[axes[name]] for name, shape in inputs.items() if shape and name in axes}
    sizes = sizes - {1} or sizes
    if len(sizes) != 1 or 0 in sizes:
        return 1
    batch = sizes.pop()
    ends = [shape for value in model.graph.output if (shape := shape_of(value))]
    return batch if all(batch in shape or not shape for shape in ends) else 1


def _axes_of(model: ModelProto, inputs: dict[str, Shape | None]) -> dict[str, int]:
    shapes = {name: shape for name, shape in inputs.items() if shape is not None}
    for tensor in model.graph.initializer:
        shapes[tensor.name] = tuple(tensor.dims)
    for value in (*model.graph.value_info, *model.graph.output):
        shape = shape_of(value)
        if shape is not None:
            shapes[value.name] = shape
    return batch_axes(model.graph, list(inputs), shapes)
