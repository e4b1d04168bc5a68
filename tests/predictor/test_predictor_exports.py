"""Graphs in the forms that exporters give them: their cost is that of the model in training."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from predictor_graphs import FLOAT, INT64, Builder, resnet50, tensor_input

from predictor.errors import GraphError, Refusal
from predictor.graph import folding
from predictor.graph.features import extract_features
from predictor.graph.symbols import SymbolSizes


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
    monkeypatch.setattr("predictor.graph.features.complete", lambda _: None)
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


def test_gelu_by_tanh_reads_its_input_alone():
    b = Exported()
    x = b.node("MatMul", "x", b.weight(64, 64))
    number = [b.constant(v, np.float32) for v in (0.044715, 0.7978845, 1.0, 0.5)]
    cube = b.node("Mul", x, b.node("Mul", x, x))
    inner = b.node("Mul", b.node("Add", x, b.node("Mul", number[0], cube)), number[1])
    y = b.node("Mul", x, b.node("Add", b.node("Tanh", inner), number[2]))
    y = b.node("MatMul", b.node("Mul", number[3], y), b.weight(64, 32))
    features = features_of(b.model([tensor_input("x", "batch", 32, 64)], y))
    assert features.saved_activation_bytes == 4 * 32 * 64 * 3
    assert features.kernels == 3


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


@pytest.mark.parametrize("scale", ["before", "fused", "after", "none"])
def test_attention_keeps_queries_keys_values_and_its_output(scale):
    """The fused operator computes scores anew in the backward pass; a graph shows them as a tensor.

    Exporters scale both of its factors. A model that writes attention out keeps Softmax' output.
    """
    b = Exported()
    q, k, v = (
        b.node("Transpose", b.node("Reshape", b.node("MatMul", "x", b.weight(64, 64)),
               b.constant([0, 0, 4, 16])), perm=perm)
        for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    )  # fmt: skip
    if scale == "before":
        q, k = (b.node("Mul", each, b.constant(0.5, np.float32)) for each in (q, k))
    if scale == "after":
        scores = b.node("Div", b.node("MatMul", q, k), b.constant(4.0, np.float32))
    elif scale == "fused":
        scores = b.node("FusedMatMul", q, k, domain=RUNTIME, alpha=0.25)
    else:
        scores = b.node("MatMul", q, k)
    mixed = b.node("MatMul", b.node("Softmax", scores, axis=-1), v)
    mixed = b.node("Reshape", b.node("Transpose", mixed, perm=[0, 2, 1, 3]), b.constant([0, 0, 64]))
    y = b.node("MatMul", mixed, b.weight(64, 64))
    model = b.model([tensor_input("x", "batch", 128, 64)], y)
    model.opset_import.append(helper.make_opsetid(RUNTIME, 1))
    features = features_of(model)
    softmax = 4 * 4 * 128 * 128 if scale in ("after", "none") else 0
    # x, q, k, v and the mixture.
    assert features.saved_activation_bytes == 4 * 128 * 64 * 5 + softmax
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


RUNTIME = "com.microsoft"


def trained_block(activation: str) -> tuple[Exported, str]:
    """A convolution, a norm and an activation as they train, and a product that reads them."""
    b = Exported()
    x = b.node("Conv", "x", b.weight(8, 3, 3, 3), kernel_shape=[3, 3], pads=[1] * 4)
    x = b.node("BatchNormalization", x, *(b.weight(8) for _ in range(4)))
    limits = [b.constant(v, np.float32) for v in (0, 6)] if activation == "Clip" else []
    return b, b.node(activation, x, *limits)


def finished(b: Exported, x: str):
    y = b.node("Conv", x, b.weight(4, 8, 1, 1), kernel_shape=[1, 1])
    return b.model([tensor_input("x", "batch", 3, 32, 32)], y)


def same_cost(found, trained) -> bool:
    """Whether a graph costs what another does; a bias of the convolution is all that it adds."""
    return (
        found.flops == trained.flops
        and found.saved_activation_bytes == trained.saved_activation_bytes
        and found.parameters == pytest.approx(trained.parameters, abs=8)
    )


@pytest.mark.parametrize("activation", ["Relu", "Clip"])
def test_a_norm_that_torch_export_folded_counts_although_the_weight_keeps_its_name(activation):
    b = Exported()
    x = b.node("Conv", "x", b.weight(8, 3, 3, 3), kernel_shape=[3, 3], pads=[1] * 4)
    rule = b.nodes[-1].metadata_props.add()
    rule.key = "pkg.onnxscript.rewriter.rule_name"
    rule.value = "RemoveOptionalBiasFromConv, FuseBatchNormIntoConv"
    limits = [b.constant(v, np.float32) for v in (0, 6)] if activation == "Clip" else []
    x = b.node(activation, x, *limits)
    found = features_of(finished(b, x))
    assert same_cost(found, features_of(finished(*trained_block(activation))))


@pytest.mark.parametrize("activation", ["Relu", "Clip"])
def test_an_activation_that_onnx_runtime_fused_keeps_what_it_keeps_alone(activation):
    b = Exported()
    weight = TensorProto(name="onnx::Conv_7", dims=[8, 3, 3, 3], data_type=FLOAT)
    b.weights += [weight, TensorProto(name="onnx::Conv_8", dims=[8], data_type=FLOAT)]
    x = b.node(
        "FusedConv", "x", "onnx::Conv_7", "onnx::Conv_8", domain=RUNTIME, activation=activation,
        kernel_shape=[3, 3], pads=[1] * 4,
    )  # fmt: skip
    model = finished(b, x)
    model.opset_import.append(helper.make_opsetid(RUNTIME, 1))
    assert same_cost(features_of(model), features_of(finished(*trained_block(activation))))


def test_a_dynamically_quantised_convolution_keeps_what_the_original_keeps():
    b = Exported()
    weight = TensorProto(name="onnx::Conv_7_quantized", dims=[8, 3, 3, 3], data_type=3)
    b.weights.append(weight)
    x = b.node("DynamicQuantizeLinear", "x", outputs=3)
    scale, zero = b.nodes[-1].output[1:]
    x = b.node(
        "ConvInteger", x, "onnx::Conv_7_quantized", zero, b.constant(0, np.int8),
        kernel_shape=[3, 3], pads=[1] * 4,
    )  # fmt: skip
    x = b.node("Cast", x, to=FLOAT)
    x = b.node("Mul", x, b.node("Mul", scale, b.constant(0.1, np.float32)))
    x = b.node("Relu", b.node("Add", x, b.weight(1, 8, 1, 1)))
    assert same_cost(features_of(finished(b, x)), features_of(finished(*trained_block("Relu"))))


def quantised_and_back(b: Exported, x: str) -> str:
    scale, zero = b.constant(0.1, np.float32), b.constant(0, np.int8)
    return b.node("DequantizeLinear", b.node("QuantizeLinear", x, scale, zero), scale, zero)


def test_a_statically_quantised_convolution_keeps_what_the_original_keeps():
    b = Exported()
    b.weights.append(TensorProto(name="q", dims=[8, 3, 3, 3], data_type=TensorProto.INT8))
    b.nodes.append(
        helper.make_node(
            "DequantizeLinear",
            ["q", b.constant(0.1, np.float32), b.constant(0, np.int8)],
            ["onnx::Conv_7_DequantizeLinear_Output"],
        )
    )
    x = b.node(
        "Conv", quantised_and_back(b, "x"), "onnx::Conv_7_DequantizeLinear_Output",
        kernel_shape=[3, 3], pads=[1] * 4,
    )  # fmt: skip
    x = quantised_and_back(b, b.node("Relu", x))
    assert same_cost(features_of(finished(b, x)), features_of(finished(*trained_block("Relu"))))


@pytest.mark.parametrize("domain", [RUNTIME, "com.microsoft.nchwc"])
def test_an_unknown_product_of_another_domain_is_refused_by_name(domain):
    """Accepted at no cost it would look nearly free."""
    b = Exported()
    x = b.node("MatMul", "x", b.weight(64, 64))
    for _ in range(4):
        x = b.node("Relu", x)
    y = b.node("DynamicQuantizeMatMul", x, b.weight(64, 4096), b.weight(1), domain=domain)
    model = b.model([tensor_input("x", "batch", 64)], y)
    model.opset_import.append(helper.make_opsetid(domain, 1))
    with pytest.raises(GraphError, match="DynamicQuantizeMatMul") as refused:
        features_of(model)
    assert refused.value.refusal is Refusal.UNSUPPORTED
    assert "before" in refused.value.hint


def test_shape_arithmetic_is_folded_behind_an_operator_of_onnx_runtime():
    b, x = embedded()
    x = b.node("FusedMatMul", x, b.weight(64, 64), domain=RUNTIME, alpha=0.5)
    y = b.node("MatMul", x, b.weight(64, 32))
    model = b.model([IDS], y)
    model.opset_import.append(helper.make_opsetid(RUNTIME, 1))
    features = features_of(model, sequence_length=96)
    assert features.flops == 2 * 96 * 64 * (64 + 32)


def test_the_waves_of_positions_have_no_gradient_and_are_read_for_none():
    """Of a rotation by cos and sin only the waves are kept, not what is rotated."""
    b = Exported()
    x = b.node("MatMul", "x", b.weight(64, 64))
    angles = b.node("Mul", "positions", b.weight(64))
    turned = b.node("Add", b.node("Mul", x, b.node("Cos", angles)),
                    b.node("Mul", b.node("Neg", x), b.node("Sin", angles)))  # fmt: skip
    y = b.node("MatMul", turned, b.weight(64, 32))
    inputs = [tensor_input("x", "batch", 32, 64), tensor_input("positions", 1, 32, 64)]
    features = features_of(b.model(inputs, y))
    # Inputs of both products, both waves, and the positions, whose factor looks like a weight.
    assert features.saved_activation_bytes == 4 * 32 * 64 * 5


def test_a_product_with_a_weight_keeps_what_the_weight_is_trained_by():
    b = Exported()
    x = b.node("MatMul", "x", b.weight(64, 64))
    y = b.node("MatMul", b.node("Mul", x, b.weight(64)), b.weight(64, 32))
    features = features_of(b.model([tensor_input("x", "batch", 32, 64)], y))
    assert features.saved_activation_bytes == 4 * 32 * 64 * 3


@pytest.mark.parametrize("fused", [False, True])
def test_a_norm_of_a_sum_keeps_the_sum_once(fused):
    b = Exported()
    x = b.node("MatMul", "x", b.weight(64, 64))
    if fused:
        scale = (b.weight(64), b.weight(64))
        y = b.node("SkipLayerNormalization", x, "x", *scale, domain=RUNTIME)
    else:
        y = b.node("LayerNormalization", b.node("Add", x, "x"), b.weight(64), b.weight(64))
    model = b.model([tensor_input("x", "batch", 32, 64)], b.node("MatMul", y, b.weight(64, 32)))
    model.opset_import.append(helper.make_opsetid(RUNTIME, 1))
    assert features_of(model).saved_activation_bytes == 4 * 32 * 64 * 3
