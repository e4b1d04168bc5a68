"""ONNX bytes -> GraphFeatures, per sample. Definitions and their check: docs/predictor.md."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace

import numpy as np

from predictor.errors import GraphError, Refusal
from predictor.graph.model import GraphLimits, InferredModel, complete, infer, load
from predictor.graph.sequence import FURTHER_LENGTHS, scaling
from predictor.graph.symbols import SymbolSizes
from predictor.graph.totals import Totals, sum_over_graphs
from tandem.contracts.resources import Framework, GraphFeatures
from tandem.policy.equations.tiresias import tensor_skew

_MAX_FLOPS = 1e21
_MAX_BYTES = 2.0**62
_REMARKS = ("unknownOperators", "assumedSizes")

#: What an exporter's name of itself contains.
_PRODUCERS = {
    "torch": Framework.PYTORCH,
    "jax": Framework.JAX,
    "tf2onnx": Framework.TENSORFLOW,
    "keras": Framework.TENSORFLOW,
    "tensorflow": Framework.TENSORFLOW,
}


def extract_features(
    graph: bytes, sizes: SymbolSizes | None = None, limits: GraphLimits | None = None
) -> GraphFeatures:
    """Return the features of an ONNX model given as bytes, with or without its weights.

    Raises GraphError. Never opens a file: weights in files next to the model count by their shapes.
    """
    sizes, limits = sizes or SymbolSizes(), limits or GraphLimits()
    features = _extract(graph, sizes, limits)
    if features.sequence_length is None:
        return features
    try:
        longer = [
            _extract(graph, replace(sizes, sequence_length=times * sizes.sequence_length), limits)
            for times in FURTHER_LENGTHS
        ]
    except GraphError:  # such as a table of positions that ends before
        return features
    return features.model_copy(update={"sequence_scaling": scaling([features, *longer])})


def feature_hash(features: GraphFeatures) -> str:
    """Return the hash by which features are compared and logged: sha256 of canonical JSON.

    What is only said about the figures is left out: it would part a graph from its earlier runs.
    """
    figures = {key: value for key, value in features.wire().items() if key not in _REMARKS}
    text = json.dumps(figures, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _extract(graph: bytes, sizes: SymbolSizes, limits: GraphLimits) -> GraphFeatures:
    model, opset = load(graph, limits)
    inferred = infer(model, opset, sizes)
    if inferred.misread:
        model, opset = load(graph, limits)
        inferred = infer(model, opset, sizes, inferred.misread)
    totals = sum_over_graphs(inferred.model.graph, limits)
    if totals.unknown_values:
        complete(inferred.model)
        totals = sum_over_graphs(inferred.model.graph, limits)
    largest_figure = max(totals.activation_bytes, totals.bytes_moved, totals.parameter_bytes)
    if totals.flops > _MAX_FLOPS or largest_figure > _MAX_BYTES:
        raise GraphError(Refusal.TOO_LARGE, "The sizes in the graph are impossibly large.")
    if not totals.nodes:
        raise GraphError(Refusal.UNSUPPORTED, "The graph holds constants only: nothing runs.")
    if totals.unknown_operators:
        named = ", ".join(totals.unknown_operators)
        raise GraphError(
            Refusal.UNSUPPORTED,
            f"The cost of {_operators(totals.unknown_operators)} is not known.",
            f"Push the graph as its framework exported it, before a runtime fused or quantised its "
            f"operators into {named}.",
        )
    if totals.unknown_products:
        raise GraphError(
            Refusal.UNSUPPORTED,
            f"The shapes of {', '.join(totals.unknown_products)} are not known, so its cost is "
            "not either.",
            _hint_for_shapes(totals),
        )
    if totals.unresolved * 2 > totals.nodes:
        raise GraphError(
            Refusal.UNSUPPORTED,
            f"The shapes of {totals.unresolved} of the graph's {totals.nodes} nodes are unknown.",
            _hint_for_shapes(totals),
        )
    return _features(inferred, totals, sizes)


def _operators(names: list[str]) -> str:
    return f"the operator{'s' if len(names) > 1 else ''} {', '.join(names)}"


def _hint_for_shapes(totals: Totals) -> str:
    """Say what would make the unknown shapes known: it depends on the operator they lie behind."""
    shapeless = totals.shapeless_operators
    foreign = [name for name in shapeless if name.endswith(")")]
    if foreign:
        return (
            f"They lie behind {_operators(foreign)}, which this predictor does not know: declare "
            "the shapes of its outputs in the file (graph.value_info), or push the graph as its "
            "framework exported it."
        )
    behind = f"They lie behind {_operators(shapeless)}. " if shapeless else ""
    return (
        f"{behind}Export the model with fixed shapes (torch.onnx.export without dynamic_axes, "
        "batch 1), or with dynamo=True."
    )


def _features(inferred: InferredModel, totals: Totals, sizes: SymbolSizes) -> GraphFeatures:
    batch = inferred.graph_batch
    skew = 0.0  # of a model without parameters, which has nothing to exchange
    if totals.parameter_bytes:
        largest, total = np.array(totals.largest_bytes), np.array(totals.parameter_bytes)
        skew = float(tensor_skew(largest, total))
    return GraphFeatures(
        flops=totals.flops / batch,
        backward_flops=totals.backward_flops / batch,
        elementwise_flops=totals.elementwise_flops / batch,
        parameters=totals.parameters,
        parameter_bytes=math.ceil(totals.parameter_bytes),
        activation_bytes=math.ceil(totals.activation_bytes / batch),
        saved_activation_bytes=math.ceil(totals.saved_activation_bytes / batch),
        largest_activation_bytes=math.ceil(totals.largest_activation_bytes / batch),
        largest_tensor_bytes=math.ceil(totals.largest_bytes),
        tensor_skew=skew,
        nodes=totals.nodes,
        kernels=math.ceil(totals.kernels),
        depth=totals.depth,
        op_counts=dict(sorted(totals.ops.items())),
        opset=inferred.opset,
        input_shapes={name: list(shape) for name, shape in inferred.input_shapes.items()},
        graph_batch=batch,
        sequence_length=sizes.sequence_length if inferred.uses_sequence else None,
        bytes_moved=totals.bytes_moved / batch,
        unresolved_nodes=totals.unresolved,
        unknown_operators=totals.guessed_operators,
        assumed_sizes=dict(sorted(inferred.assumed_sizes.items())),
        framework=_framework(inferred.model.producer_name),
    )


def _framework(producer: str) -> Framework | None:
    """Return the framework of a graph by the exporter's name of itself."""
    name = producer.lower()[:64]
    for part, framework in _PRODUCERS.items():
        if part in name:
            return framework
    return None
