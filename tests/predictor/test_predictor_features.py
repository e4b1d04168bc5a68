"""Features match the reference table, and figures derived by hand."""

from __future__ import annotations

import math

import pytest
from onnx import TensorProto, helper
from predictor_graphs import (
    FLOAT,
    INT64,
    REFERENCE,
    Builder,
    bert_base,
    light,
    lstm,
    one_node,
    resnet50,
    tensor_input,
    weight,
)

from predictor.graph.features import extract_features
from predictor.graph.symbols import SymbolSizes


def features_of(model, **sizes):
    return extract_features(model.SerializeToString(), SymbolSizes(**sizes))


@pytest.mark.parametrize("name", REFERENCE)
def test_shipped_graphs_match_the_reference_within_two_percent(name):
    features = extract_features(light(name))
    found = (
        features.parameters / 1e6,
        features.flops / 1e9,
        features.activation_bytes / 2**20,
        features.tensor_skew,
    )
    assert found == pytest.approx(REFERENCE[name], rel=0.02)
    assert features.unresolved_nodes == 0


def test_resnet50_by_hand():
    # (input channels, width, blocks, output side) of each stage; the side halves in the 3x3.
    stages = [(64, 64, 3, 56), (256, 128, 4, 28), (512, 256, 6, 14), (1024, 512, 3, 7)]
    multiply_adds = 112**2 * 64 * 3 * 49 + 2048 * 1000
    parameters = 64 * 3 * 49 + 4 * 64 + 2048 * 1000 + 1000
    for channels, width, blocks, side in stages:
        before = side if width == 64 else 2 * side
        first = before**2 * channels * width + side**2 * (9 * width**2 + 4 * width**2)
        shortcut = side**2 * channels * 4 * width
        other = side**2 * (4 * width**2 + 9 * width**2 + 4 * width**2)
        multiply_adds += first + shortcut + (blocks - 1) * other
        norms = 4 * (width + width + 4 * width)
        parameters += channels * width + 13 * width**2 + norms + channels * 4 * width + 16 * width
        parameters += (blocks - 1) * (17 * width**2 + norms)
    assert multiply_adds == 4_089_184_256  # the figure that the literature rounds to 4.09 G
    features = features_of(resnet50())
    assert features.flops == 2 * multiply_adds
    assert features.parameters == parameters == 25_610_152
    assert features.parameter_bytes == 4 * parameters
    assert features.largest_tensor_bytes == 4 * 512 * 512 * 9
    assert features.input_shapes == {"x": [1, 3, 224, 224]}
    assert features.op_counts["Conv"] == 53
    # Three nodes for each of 3 + 4 + 6 + 3 blocks' three convolutions, less a Relu, plus Add, Relu.
    assert features.depth == 4 + 16 * (3 * 3 - 1 + 2) + 3
    assert features.backward_flops == 2 * features.flops + features.elementwise_flops


@pytest.mark.parametrize("attention_operator", [False, True])
def test_bert_base_by_hand(attention_operator):
    hidden, ffn, layers, s = 768, 3072, 12, 96
    embedding = (30522 + 512 + 2) * hidden + 2 * hidden
    layer = 4 * (hidden**2 + hidden) + 2 * hidden * ffn + ffn + hidden + 4 * hidden
    parameters = embedding + layers * layer + hidden**2 + hidden
    assert parameters == 109_482_240
    projections = 2 * s * (4 * hidden**2 + 2 * hidden * ffn)
    attention = 2 * 2 * s * s * hidden
    features = features_of(bert_base(attention_operator=attention_operator), sequence_length=s)
    assert features.parameters == parameters
    assert features.flops == layers * (projections + attention) + 2 * hidden**2
    assert features.unresolved_nodes == 0
    assert features.sequence_length == s
    assert features.input_shapes == {"ids": [1, s], "types": [1, s]}


@pytest.mark.parametrize("opset", [9, 14, 22])
def test_two_layer_lstm_by_hand(opset):
    if opset == 9:  # Squeeze took its axes as an attribute then
        model = lstm(opset=9)
        for node in model.graph.node:
            if node.op_type == "Squeeze":
                del node.input[1]
                node.attribute.append(helper.make_attribute("axes", [1]))
    else:
        model = lstm(opset=opset)
    s, hidden = 50, 512
    features = features_of(model, sequence_length=s)
    assert features.parameters == 4 * hidden * (256 + hidden + 2) + 4 * hidden * (2 * hidden + 2)
    assert features.flops == 2 * s * 4 * hidden * ((256 + hidden) + (hidden + hidden))
    assert features.input_shapes == {"x": [s, 1, 256]}
    assert features.kernels == 2 * s  # one step after the other; the views cost nothing


@pytest.mark.parametrize("opset", [9, 13, 20, 26])
def test_opsets_give_the_same_features(opset):
    assert features_of(resnet50(opset)).flops == features_of(resnet50(17)).flops


def test_figures_are_per_sample_also_when_a_batch_was_exported():
    model = resnet50()
    one = features_of(model)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 16
    sixteen = features_of(model)
    assert sixteen.graph_batch == 16
    assert sixteen.flops == one.flops
    assert sixteen.activation_bytes == one.activation_bytes


def test_weights_shared_by_name_count_once_and_scalars_not_at_all():
    b = Builder()
    w = b.weight(64, 64)
    x = b.node("MatMul", b.node("MatMul", "x", w), w)
    b.weights.append(helper.make_tensor("scale", FLOAT, [], [0.5]))
    x = b.node("Mul", x, "scale")
    features = features_of(b.model([tensor_input("x", "batch", 64)], x))
    assert features.parameters == 64 * 64
    assert features.flops == 2 * 2 * 64 * 64


def test_half_precision_weights_take_half_the_bytes():
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    data_type = TensorProto.FLOAT16
    model = one_node(
        node,
        tensor_input("x", 1, 32, data_type=data_type),
        weights=(weight("w", 32, 8, data_type=data_type),),
    )
    features = extract_features(model)
    assert (features.parameters, features.parameter_bytes) == (256, 512)


def x(*dims):
    return tensor_input("x", *dims)


OPERATORS = {
    "grouped convolution": (
        helper.make_node("Conv", ["x", "w"], ["y"], group=8, pads=[1] * 4, kernel_shape=[3, 3]),
        x(1, 32, 10, 10), (weight("w", 64, 4, 3, 3),), 2 * 64 * 100 * 4 * 9,
    ),
    "transposed convolution": (
        helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2], kernel_shape=[2, 2]),
        x(1, 16, 8, 8), (weight("w", 16, 4, 2, 2),), 2 * 16 * 64 * 4 * 4,
    ),
    "gemm of transposed A": (
        helper.make_node("Gemm", ["x", "w"], ["y"], transA=1),
        x(20, 3), (weight("w", 20, 7),), 2 * 3 * 7 * 20,
    ),
    "batched matmul": (
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        x(1, 6, 5, 4), (weight("w", 6, 4, 3),), 2 * 6 * 5 * 3 * 4,
    ),
    "gru in both directions": (
        helper.make_node("GRU", ["x", "w", "r"], ["y"], hidden_size=8, direction="bidirectional"),
        x(7, 1, 5), (weight("w", 2, 24, 5), weight("r", 2, 24, 8)), 2 * 7 * 2 * 24 * (5 + 8),
    ),
    "einsum of a batched product": (
        helper.make_node("Einsum", ["x", "w"], ["y"], equation="bij,jk->bik"),
        x(1, 4, 5), (weight("w", 5, 6),), 2 * 4 * 5 * 6,
    ),
    "einsum with an ellipsis": (
        helper.make_node("Einsum", ["x", "w"], ["y"], equation="...ij,jk->...ik"),
        x(1, 3, 4, 5), (weight("w", 5, 6),), 2 * 3 * 4 * 5 * 6,
    ),
    "activation only": (helper.make_node("Relu", ["x"], ["y"]), x(1, 10), (), 0),
}  # fmt: skip


@pytest.mark.parametrize("case", OPERATORS)
def test_flops_of_an_operator_by_its_definition(case):
    node, graph_input, weights, expected = OPERATORS[case]
    assert extract_features(one_node(node, graph_input, weights=weights)).flops == expected


def test_grouped_query_attention_with_a_past():
    # B 1, queries 4, past 12, so keys 16; 8 heads of depth 32 share 2 heads of keys and values.
    node = helper.make_node("Attention", ["q", "k", "v", "", "pk", "pv"], ["y", "nk", "nv"])
    inputs = [tensor_input("q", 1, 8, 4, 32), tensor_input("k", 1, 2, 4, 32)]
    inputs += [tensor_input("v", 1, 2, 4, 32)]
    inputs += [tensor_input(n, 1, 2, 12, 32) for n in ("pk", "pv")]
    assert extract_features(one_node(node, *inputs)).flops == 2 * 8 * 4 * 16 * (32 + 32)


def test_body_of_a_scan_counts_once_a_step():
    step = helper.make_node("MatMul", ["row", "w"], ["out"])
    body = helper.make_graph(
        [step],
        "body",
        [helper.make_tensor_value_info("row", FLOAT, [1, 8])],
        [helper.make_tensor_value_info("out", FLOAT, [1, 8])],
    )
    node = helper.make_node("Scan", ["x"], ["y"], body=body, num_scan_inputs=1)
    model = one_node(node, x(30, 1, 8), weights=(weight("w", 8, 8),))
    assert extract_features(model).flops == 30 * 2 * 8 * 8


def test_functions_of_a_model_are_expanded():
    function = helper.make_function(
        "local", "Twice", ["a"], ["b"],
        [helper.make_node("MatMul", [a, "a"], [b]) for a, b in (("a", "t"), ("t", "b"))],
        [helper.make_opsetid("", 17)],
    )  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("Twice", ["x"], ["y"], domain="local")],
        "g", [x(1, 4, 4)], [helper.make_tensor_value_info("y", FLOAT, None)],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    model = helper.make_model(graph, functions=[function], opset_imports=opsets)
    assert features_of(model).flops == 2 * 2 * 4**3


def test_nodes_of_unknown_shape_are_counted_and_do_not_stop_the_rest():
    b = Builder()
    found = b.node("NonZero", "x")  # how many there are depends on the data
    gathered = b.node("Relu", b.node("Cast", found, to=FLOAT))
    y = b.node("MatMul", "x", b.weight(16, 16))
    for _ in range(4):
        y = b.node("Relu", y)
    b.node("Add", y, gathered)
    features = features_of(b.model([tensor_input("x", "batch", 16)], y))
    assert features.flops == 2 * 16 * 16
    assert 0 < features.unresolved_nodes < features.nodes / 2


def test_symbols_can_be_given_sizes_by_name():
    b = Builder()
    y = b.node("MatMul", "x", b.weight(16, 16))
    model = b.model([tensor_input("x", "batch", "frames", 16)], y)
    features = features_of(model, named={"frames": 9})
    assert features.flops == 2 * 9 * 16 * 16
    assert math.isclose(features_of(model).flops / features.flops, 128 / 9)


def test_index_inputs_are_no_parameters():
    b = Builder()
    y = b.node("Gather", b.weight(100, 8), "ids")
    features = features_of(b.model([tensor_input("ids", "batch", 5, data_type=INT64)], y))
    assert features.parameters == 800
    # A lookup reads what it writes, not the whole table.
    assert features.bytes_moved == 2 * 5 * 8 * 4
