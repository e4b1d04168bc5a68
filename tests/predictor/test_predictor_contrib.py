"""Graphs with operators of ONNX Runtime: shapes behind them are known, and their FLOPs counted."""

from __future__ import annotations

import pytest
from onnx import TensorProto, helper
from predictor_graphs import tensor_input, weight

from predictor.graph.features import extract_features

BATCH, SEQUENCE, WIDTH = 1, 128, 64
MS = {"domain": "com.microsoft"}


def features(nodes, weights, inputs=None, outputs=("out",)):
    graph = helper.make_graph(
        nodes, "g", inputs or [tensor_input("x", BATCH, SEQUENCE, WIDTH)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs], weights,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return extract_features(helper.make_model(graph, opset_imports=opsets).SerializeToString())


def test_a_fused_transformer_layer_counts_as_its_parts():
    nodes = [
        helper.make_node("Attention", ["x", "wa", "ba"], ["a"], num_heads=4, **MS),
        helper.make_node("SkipLayerNormalization", ["x", "a", "g", "b"], ["n"], **MS),
        helper.make_node("MatMul", ["n", "w1"], ["h"]),
        helper.make_node("BiasGelu", ["h", "b1"], ["i"], **MS),
        helper.make_node("FusedMatMul", ["i", "w2"], ["j"], transB=1, **MS),
        helper.make_node("SkipLayerNormalization", ["n", "j", "g", "b"], ["out"], **MS),
    ]
    weights = [
        weight("wa", WIDTH, 3 * WIDTH), weight("ba", 3 * WIDTH), weight("g", WIDTH),
        weight("b", WIDTH), weight("w1", WIDTH, 4 * WIDTH), weight("b1", 4 * WIDTH),
        weight("w2", WIDTH, 4 * WIDTH),
    ]  # fmt: skip
    found = features(nodes, weights)
    projections = 2 * SEQUENCE * WIDTH * 3 * WIDTH
    attention = 2 * 2 * SEQUENCE * SEQUENCE * WIDTH
    feed_forward = 2 * 2 * SEQUENCE * WIDTH * 4 * WIDTH
    assert found.flops == projections + attention + feed_forward
    assert found.unresolved_nodes == 0
    assert (
        found.parameters == WIDTH * (3 * WIDTH) + 3 * WIDTH + 2 * WIDTH + 8 * WIDTH**2 + 4 * WIDTH
    )
    assert found.op_counts["SkipLayerNormalization"] == 2
    # Everything written: four of the width, two of four times the width.
    assert found.activation_bytes == 4 * SEQUENCE * WIDTH * (4 + 2 * 4)


def test_embedding_rotary_and_heads_with_packed_weights():
    nodes = [
        helper.make_node(
            "EmbedLayerNormalization", ["ids", "", "words", "places", "", "g", "b"], ["x"], **MS
        ),
        helper.make_node("RotaryEmbedding", ["x", "pos", "cos", "sin"], ["r"], **MS),
        helper.make_node("MultiHeadAttention", ["r", "x", "x"], ["m"], num_heads=4, **MS),
        helper.make_node(
            "MatMulNBits", ["m", "q", "s"], ["out"], K=WIDTH, N=32, bits=4, block_size=32, **MS
        ),
    ]
    weights = [
        weight("words", 1000, WIDTH), weight("places", 512, WIDTH), weight("g", WIDTH),
        weight("b", WIDTH), weight("cos", 512, 8), weight("sin", 512, 8),
        weight("q", 32, 2, 16, data_type=TensorProto.UINT8), weight("s", 64),
    ]  # fmt: skip
    inputs = [
        tensor_input("ids", BATCH, SEQUENCE, data_type=TensorProto.INT32),
        tensor_input("pos", BATCH, SEQUENCE, data_type=TensorProto.INT64),
    ]
    found = features(nodes, weights, inputs)
    assert found.unresolved_nodes == 0
    assert found.flops == 4 * SEQUENCE * SEQUENCE * WIDTH + 2 * SEQUENCE * WIDTH * 32


@pytest.mark.parametrize("op_type", ["FusedGemm", "Gemm"])
def test_a_fused_activation_changes_no_count(op_type):
    extra = {"activation": "Relu", **MS} if op_type == "FusedGemm" else {}
    node = helper.make_node(op_type, ["x", "w"], ["out"], transB=1, **extra)
    found = features([node], [weight("w", 10, WIDTH)], [tensor_input("x", 8, WIDTH)])
    assert found.flops * found.graph_batch == 2 * 8 * WIDTH * 10


def test_an_unknown_operator_leaves_its_shape_unknown():
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("SomethingNew", ["r"], ["out"], **MS),
    ]
    found = features(nodes, [weight("w", WIDTH, WIDTH)])
    assert found.unresolved_nodes == 1
    assert found.flops == 2 * SEQUENCE * WIDTH * WIDTH


@pytest.mark.parametrize("length", [64, 256, 1024])
def test_another_sequence_length_is_exact(length):
    """One layer read with an open sequence, against the same layer exported at that length."""
    from predictor.graph.sequence import at_sequence

    nodes = [
        helper.make_node("Attention", ["x", "wa", "ba"], ["a"], num_heads=4, **MS),
        helper.make_node("MatMul", ["a", "w"], ["out"]),
    ]
    weights = [
        weight("wa", WIDTH, 3 * WIDTH), weight("ba", 3 * WIDTH), weight("w", WIDTH, WIDTH),
    ]  # fmt: skip
    opened = features(nodes, weights, [tensor_input("x", "batch", "sequence", WIDTH)])
    assert opened.sequence_length == 128
    fixed = features(nodes, weights, [tensor_input("x", 1, length, WIDTH)])
    found, remark = at_sequence(opened, length)
    assert not remark
    for name in ("flops", "bytes_moved", "activation_bytes", "saved_activation_bytes", "kernels"):
        assert getattr(found, name) == pytest.approx(getattr(fixed, name))
    assert at_sequence(fixed, 7)[1].startswith("the graph fixes")
