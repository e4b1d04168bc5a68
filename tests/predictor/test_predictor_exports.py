"""Graphs in the forms that exporters give them: their cost is that of the model in training."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from predictor_graphs import FLOAT, INT64, Builder, resnet50, tensor_input

from predictor.errors import GraphError, Refusal
from predictor.graph import folding
from predictor.graph.features import extract_features
from predictor.graph.model import SymbolSizes


def features_of(model, **sizes):
    return extract_features(model.SerializeToString(), SymbolSizes(**sizes))


class Exported(Builder):
    """Also makes constants with values, as exporters write them."""

    def constant(self, value, kind=np.int64) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array(value, dtype=kind), name))
        return name

    def length_of(self, x: str, axis: int) -> str:
        """The size of an axis, as a tensor of one element."""
        size = self.node("Gather", self.node("Shape", x), self.constant(axis), axis=0)
        return self.node("Unsqueeze", size, self.constant([0]))


def positions(b: Exported, ids: str) -> str:
    """Positions expanded to (batch, sequence) with the guard against -1 that HF's exports have."""
    wanted = b.node("Concat", b.length_of(ids, 0), b.length_of(ids, 1), axis=0)
    ones = b.node(
        "ConstantOfShape", b.constant([2]), value=helper.make_tensor("v", INT64, [1], [1])
    )
    minus = b.node("Mul", ones, b.constant(-1))
    wanted = b.node("Where", b.node("Equal", wanted, minus), ones, wanted)
    table = b.constant(np.arange(512)[None, :])
    cut = b.node("Slice", table, b.constant([0]), b.length_of(ids, 1), b.constant([1]))
    return b.node("Expand", cut, wanted)


def embedded(width: int = 64) -> tuple[Exported, str]:
    b = Exported()
    words = b.node("Gather", b.weight(1000, width), "ids")
    return b, b.node("Add", words, b.node("Gather", b.weight(512, width), positions(b, "ids")))


IDS = tensor_input("ids", "batch_size", "sequence_length", data_type=INT64)


def test_integer_arithmetic_before_an_expand_is_folded():
    b, x = embedded()
    y = b.node("MatMul", x, b.weight(64, 64))
    features = features_of(b.model([IDS], y), sequence_length=96)
    assert features.flops == 2 * 96 * 64 * 64
    assert features.unresolved_nodes == 0
    assert features.sequence_length == 96


def test_without_folding_the_product_is_refused_by_name(monkeypatch):
    monkeypatch.setattr("predictor.graph.features.complete_shapes", lambda _: None)
    b, x = embedded()
    y = b.node("MatMul", x, b.weight(64, 64))
    with pytest.raises(GraphError, match="MatMul 'matmul_") as refused:
        features_of(b.model([IDS], y))
    assert refused.value.refusal is Refusal.UNSUPPORTED
    assert "Export the model with fixed shapes" in refused.value.hint


def test_the_branch_that_an_if_takes_is_followed():
    """The tracing exporter writes squeeze(1) as an If on the size of the axis."""
    b = Exported()
    size = b.node("Gather", b.node("Shape", "x"), b.constant([1]), axis=0)
    condition = b.node("Equal", size, b.constant([1]))
    branches = {}
    for name, op in (("then_branch", "Squeeze"), ("else_branch", "Identity")):
        inputs = ["x", "axes"] if op == "Squeeze" else ["x"]
        made = helper.make_node(op, inputs, [name])
        out = helper.make_tensor_value_info(name, FLOAT, None)
        branches[name] = helper.make_graph([made], name, [], [out])
    b.weights.append(helper.make_tensor("axes", INT64, [1], [1]))
    y = b.node("MatMul", b.node("If", condition, **branches), b.weight(8, 4))
    features = features_of(b.model([tensor_input("x", "batch", 1, 8)], y))
    assert features.flops == 2 * 8 * 4


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        ("Expand", [[1], [1 << 40]]),
        ("Tile", [[1, 2, 3], [1 << 40]]),
        ("Range", [0, 1 << 60, 1]),
        ("ConstantOfShape", [[1 << 20, 1 << 19]]),
        ("Div", [[4], [0]]),
        ("Mod", [[4], [0]]),
        ("Reshape", [[1, 2, 3], [7, -1]]),
        ("Gather", [[1, 2], [9]]),
        ("Slice", [[1, 2], [0], [5], [7]]),
        ("Concat", [[1], [[1]]]),
    ],
)
def test_folding_evaluates_nothing_large_and_nothing_absurd(op, inputs):
    """The pass alone: what onnx's own inference makes of such nodes, the sandbox bounds."""
    b = Exported()
    attributes = {"axis": 0} if op in ("Concat", "Gather") else {}
    names = [b.constant(np.squeeze(v) if op == "Range" else v) for v in inputs]
    made = b.node(op, *names, **attributes)
    model = b.model([], b.node("Identity", made))
    fold = folding._Fold(model, model.graph, {}, {}, folding._Budget(), 0)
    fold.run()
    assert made not in fold.values


def test_folding_stops_at_its_budget():
    b, x = embedded()
    model = b.model([IDS], x)
    fold = folding._Fold(model, model.graph, {}, {}, folding._Budget(elements=0), 0)
    fold.run()
    given = {tensor.name for tensor in model.graph.initializer}
    assert fold.values.keys() <= given


def folded_resnet50():
    """ResNet-50 as exported for inference: each norm is folded into the convolution before it."""
    model = resnet50()
    graph = model.graph
    kept, renamed = [], {}
    for number, node in enumerate(graph.node):
        if node.op_type == "BatchNormalization":
            conv = kept[-1]
            bias = f"onnx::Conv_{number}b"
            channels = next(t.dims[0] for t in graph.initializer if t.name == conv.input[1])
            graph.initializer.append(TensorProto(name=bias, dims=[channels], data_type=FLOAT))
            weight = next(t for t in graph.initializer if t.name == conv.input[1])
            weight.name = f"onnx::Conv_{number}"
            conv.input[:] = [conv.input[0], weight.name, bias]
            renamed[node.output[0]] = conv.output[0]
            continue
        copy = type(node)()
        copy.CopyFrom(node)
        copy.input[:] = [renamed.get(name, name) for name in copy.input]
        kept.append(copy)
    norms = {
        n for node in graph.node if node.op_type == "BatchNormalization" for n in node.input[1:]
    }
    weights = [t for t in graph.initializer if t.name not in norms]
    del graph.node[:]
    graph.node.extend(kept)
    del graph.initializer[:]
    graph.initializer.extend(weights)
    return model


def test_a_norm_that_the_exporter_folded_costs_what_it_costs_in_training():
    trained, exported = features_of(resnet50()), features_of(folded_resnet50())
    assert "BatchNormalization" not in exported.op_counts
    assert exported.flops == trained.flops
    assert exported.parameters == trained.parameters
    assert exported.saved_activation_bytes == trained.saved_activation_bytes
    assert exported.kernels == trained.kernels
    assert exported.elementwise_flops == pytest.approx(trained.elementwise_flops, rel=0.01)


def normalised(b: Exported, x: str, decomposed: bool) -> str:
    if not decomposed:
        return b.node("LayerNormalization", x, b.weight(64), b.weight(64))
    centred = b.node("Sub", x, b.node("ReduceMean", x, axes=[-1]))
    square = b.node("Pow", centred, b.constant(2.0, np.float32))
    variance = b.node("Add", b.node("ReduceMean", square, axes=[-1]), b.constant(1e-5, np.float32))
    y = b.node("Div", centred, b.node("Sqrt", variance))
    return b.node("Add", b.node("Mul", y, b.weight(64)), b.weight(64))


def gelu(b: Exported, x: str, decomposed: bool) -> str:
    if not decomposed:
        return b.node("Gelu", x)
    erf = b.node("Erf", b.node("Div", x, b.constant(1.4142, np.float32)))
    y = b.node("Mul", x, b.node("Add", erf, b.constant(1.0, np.float32)))
    return b.node("Mul", y, b.constant(0.5, np.float32))


@pytest.mark.parametrize("decomposed", [False, True])
def test_norms_and_gelu_keep_the_same_whether_or_not_they_are_decomposed(decomposed):
    b = Exported()
    x = normalised(b, "x", decomposed)
    x = gelu(b, b.node("MatMul", x, b.weight(64, 256)), decomposed)
    x = b.node("MatMul", x, b.weight(256, 64))
    features = features_of(b.model([tensor_input("x", "batch", 32, 64)], x, opset=20))
    # The input of the norm, that of each product, and that of GELU.
    assert features.saved_activation_bytes == 4 * 32 * (64 + 64 + 256 + 256)
    assert features.kernels == 4


def test_attention_keeps_queries_keys_values_and_its_output():
    """Frameworks compute scores anew in the backward pass; a graph shows them as a tensor."""
    b = Exported()
    q, k, v = (
        b.node("Transpose", b.node("Reshape", b.node("MatMul", "x", b.weight(64, 64)),
               b.constant([0, 0, 4, 16])), perm=perm)
        for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    )  # fmt: skip
    scores = b.node("Div", b.node("MatMul", q, k), b.constant(4.0, np.float32))
    mixed = b.node("MatMul", b.node("Softmax", scores, axis=-1), v)
    mixed = b.node("Reshape", b.node("Transpose", mixed, perm=[0, 2, 1, 3]), b.constant([0, 0, 64]))
    y = b.node("MatMul", mixed, b.weight(64, 64))
    features = features_of(b.model([tensor_input("x", "batch", 128, 64)], y))
    assert features.saved_activation_bytes == 4 * 128 * 64 * 5  # x, q, k, v and the mixture
    assert features.activation_bytes > 2 * 4 * 4 * 128 * 128  # what is written is counted apart


def language_model(*shape):
    """Embedding, LSTM and decoder, time first: no input names its batch axis."""
    b = Exported()
    x = b.node("Gather", b.weight(1000, 32), "ids")
    x = b.node(
        "LSTM", x, b.weight(1, 256, 32), b.weight(1, 256, 64), b.weight(1, 512),
        hidden_size=64, outputs=3,
    )  # fmt: skip
    x = b.node("Squeeze", x, b.constant([1]))
    return b.model(
        [tensor_input("ids", *shape, data_type=INT64)], b.node("MatMul", x, b.weight(64, 1000))
    )


@pytest.mark.parametrize(("shape", "batch"), [((35, 1), 1), ((35, 8), 8), ((35, 35), 35)])
def test_the_batch_of_a_time_first_model_is_found_by_data_flow(shape, batch):
    features = features_of(language_model(*shape))
    assert features.graph_batch == batch
    assert features.flops == 2 * 35 * (256 * 32 + 256 * 64 + 64 * 1000)


def test_unnamed_axes_are_bound_by_data_flow():
    features = features_of(language_model("s0", "s1"), sequence_length=50)
    assert features.input_shapes == {"ids": [50, 1]}
    assert features.sequence_length == 50


@pytest.mark.parametrize("quantised", [False, True])
def test_a_quantised_convolution_counts_as_its_original(quantised):
    b = Exported()
    x, w = "x", b.weight(8, 3, 3, 3)
    if quantised:
        scale, zero = b.constant(0.1, np.float32), b.constant(0, np.int8)
        x = b.node("DequantizeLinear", b.node("QuantizeLinear", x, scale, zero), scale, zero)
        weight = TensorProto(name="q", dims=[8, 3, 3, 3], data_type=TensorProto.INT8)
        b.weights[:] = [t for t in b.weights if t.name != w] + [weight]
        w = b.node("DequantizeLinear", "q", scale, zero)
    y = b.node("Conv", x, w, kernel_shape=[3, 3], pads=[1] * 4)
    features = features_of(b.model([tensor_input("x", "batch", 3, 32, 32)], y))
    assert features.flops == 2 * 32 * 32 * 8 * 27
    assert features.parameters == 8 * 27
