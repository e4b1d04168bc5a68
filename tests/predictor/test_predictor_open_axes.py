"""Axes of which the file does not say the size: expressions, unknown sizes, what operators fix."""

from __future__ import annotations

import pytest
from onnx import TensorProto, helper
from predictor_graphs import FLOAT, INT64, Builder, tensor_input

from predictor.errors import GraphError
from predictor.graph.features import extract_features, feature_hash
from predictor.graph.symbols import evaluate, symbols_of
from predictor.load.predictor import Predictor
from tandem.contracts.prediction import PredictRequest


def model_of(built: Builder, inputs: list, output: str, *domains: str) -> bytes:
    outputs = [helper.make_tensor_value_info(output, FLOAT, None)]
    graph = helper.make_graph(built.nodes, "g", inputs, outputs, built.weights)
    opsets = [helper.make_opsetid("", 17), *(helper.make_opsetid(name, 1) for name in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def convolution(channels: int, *axes: int | str, kernel: int = 3) -> bytes:
    """A convolution of 8 filters over an input of these axes."""
    built = Builder()
    sides = [kernel] * (len(axes) - 2)
    pads = [kernel // 2] * 2 * len(sides)
    made = built.node("Conv", "x", built.weight(8, channels, *sides), pads=pads)
    return model_of(built, [tensor_input("x", *axes)], made)


# --- expressions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("past_sequence_length + 1", 9), ("a*b", 15), ("floor(h/2)", 3), ("ceil(h / 2)", 4),
        ("(h - 1)//2 + 1", 4), ("Max(a, b)", 5), ("Mod(h, 2)", 1), ("a**2", 9), ("2*s0", 22),
        ("-a + 2*b", 7), ("FloorDiv(h, 2)", 3), ("a*b + h", 22), ("128", 128),
    ],
)  # fmt: skip
def test_an_expression_of_symbols_is_evaluated(text, value):
    sizes = {"past_sequence_length": 8, "a": 3, "b": 5, "h": 7, "s0": 11}
    assert evaluate(text, sizes) == value


@pytest.mark.parametrize(
    "text",
    [
        "h", "", "sequence.length", "unk__12", "past key", "a if b else c", "__import__('os')",
        "a.b", "a[0]", "lambda: a", "9**9**9", "2**a**a", "a/0", "(" * 150 + "a" + ")" * 150,
        "1e999", "a*" * 300 + "a", "-a", "nan", "9" * 150,
    ],
)  # fmt: skip
def test_what_is_no_expression_and_what_comes_to_no_size_has_no_value(text):
    assert evaluate(text, {"a": 3, "b": 5}) is None


def test_names_in_an_expression_are_found_once_and_functions_are_none():
    assert symbols_of("floor(h/2) + h*w") == ["h", "w"]
    assert symbols_of("sequence") == []


def decoder(mask: str, past: int | str = "past_sequence_length") -> bytes:
    """One layer of a decoder with a cache: scores over the past and the present, plus a mask."""
    built = Builder()
    heads, width = 4, 16
    keys = built.node("Concat", "past_key", "key", axis=2)
    turned = built.node("Transpose", keys, perm=[0, 1, 3, 2])
    scores = built.node("MatMul", "query", turned)
    masked = built.node("Add", scores, "mask")
    made = built.node("MatMul", built.node("Softmax", masked), keys)
    one = ["batch", heads, 1, width]
    return model_of(
        built,
        [
            tensor_input("mask", "batch", 1, 1, mask),
            tensor_input("query", *one),
            tensor_input("key", *one),
            tensor_input("past_key", "batch", heads, past, width),
        ],
        made,
    )


def test_a_decoder_with_a_cache_binds_the_mask_to_the_length_of_its_past():
    found = extract_features(decoder("past_sequence_length + 1"))
    assert found.input_shapes["past_key"] == [1, 4, 128, 16]
    assert found.input_shapes["mask"] == [1, 1, 1, 129]
    assert found.flops == 2 * (2 * 4 * 129 * 16)
    assert not found.assumed_sizes


def test_an_expression_whose_symbol_is_nowhere_alone_is_solved_for_it():
    """`2*s` is a side of 224, so `s` elsewhere is 112."""
    built = Builder()
    pooled = built.node("MaxPool", "x", kernel_shape=[2, 2], strides=[2, 2])
    made = built.node("Add", pooled, "half")
    shapes = [tensor_input("x", 1, 3, "2*s", "2*s"), tensor_input("half", 1, 3, "s", "s")]
    found = extract_features(model_of(built, shapes, made))
    assert found.input_shapes == {"x": [1, 3, 224, 224], "half": [1, 3, 112, 112]} or (
        found.input_shapes["x"][2] == 2 * found.input_shapes["half"][2]
    )


@pytest.mark.parametrize("name", ["batch-size", "N*T", "batch_size*beams"])
def test_a_leading_axis_named_by_an_expression_is_the_batch(name):
    found = extract_features(convolution(3, name, 3, 32, 32))
    assert found.input_shapes["x"][0] == 1


# --- sizes that are none -------------------------------------------------------------------------


@pytest.mark.parametrize("unknown", [0, -1])
def test_a_size_of_zero_or_minus_one_is_not_known(unknown):
    found = extract_features(convolution(3, unknown, 3, unknown, unknown))
    assert found.input_shapes["x"] == [1, 3, 224, 224]
    assert found.flops == 2 * 8 * 224 * 224 * 27
    assert found.assumed_sizes == {"x[2]": 224, "x[3]": 224}


@pytest.mark.parametrize("unknown", [0, -1])
def test_a_declared_output_of_unknown_size_is_inferred(unknown):
    built = Builder()
    built.nodes.append(helper.make_node("MatMul", ["x", built.weight(16, 4)], ["y"]))
    outputs = [helper.make_tensor_value_info("y", FLOAT, [unknown, 4])]
    inputs = [tensor_input("x", "batch", 16)]
    graph = helper.make_graph(built.nodes, "g", inputs, outputs, built.weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert extract_features(model.SerializeToString()).flops == 2 * 16 * 4


# --- what the operators fix ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("channels", "axes", "shape"),
    [
        (4, ("batch", "channels", 64, 64), [1, 4, 64, 64]),  # the latents of a diffusion model
        (80, ("batch", "mels", 3000), [1, 80, 3000]),  # the spectrogram of a speech model
        (80, ("batch", "feature_size", "frames"), [1, 80, 128]),
        (2, ("batch", None, 16, 32, 32), [1, 2, 16, 32, 32]),
    ],
)
def test_a_convolution_fixes_the_channels_of_its_input(channels, axes, shape):
    found = extract_features(convolution(channels, *axes))
    assert found.input_shapes["x"] == shape
    assert not found.assumed_sizes


def layer(op: str, *axes: int | str) -> bytes:
    built, shapes = Builder(), [tensor_input("x", *axes)]
    if op == "MatMul":
        made = built.node("MatMul", "x", built.weight(48, 8))
    elif op == "Gemm":
        made = built.node("Gemm", "x", built.weight(8, 48), transB=1)
    elif op == "LSTM":
        weights = built.weight(1, 64, 48), built.weight(1, 64, 16)
        made = built.node("LSTM", "x", *weights, hidden_size=16)
    elif op == "LayerNormalization":
        made = built.node("LayerNormalization", "x", built.weight(48), built.weight(48))
    elif op == "BatchNormalization":
        made = built.node("BatchNormalization", "x", *(built.weight(48) for _ in range(4)))
    elif op == "Add":
        made = built.node("Add", "x", built.weight(48))
    elif op == "Cast":  # through operators that keep the axes
        cast = built.node("Transpose", built.node("Cast", "x", to=FLOAT), perm=[0, 2, 1])
        made = built.node("Conv", cast, built.weight(8, 48, 3))
    else:
        made = built.node("Reshape", "x", built.ints(1, 6, 8))
    return model_of(built, shapes, made)


@pytest.mark.parametrize(
    ("op", "axes", "axis"),
    [
        ("MatMul", ("batch", 10, "width"), 2), ("Gemm", ("batch", "width"), 1),
        ("LSTM", ("seq", "batch", "width"), 2), ("LayerNormalization", ("batch", 10, "w"), 2),
        ("BatchNormalization", ("batch", "c", 20, 20), 1), ("Add", ("batch", 10, "w"), 2),
        ("Cast", ("batch", 30, "w"), 2), ("Reshape", (1, "w"), 1),
    ],
)  # fmt: skip
def test_operators_fix_the_axes_that_they_read(op, axes, axis):
    found = extract_features(layer(op, *axes))
    assert found.input_shapes["x"][axis] == 48
    assert not found.assumed_sizes


def test_an_axis_of_one_in_a_sum_fixes_nothing():
    built = Builder()
    seen = built.node("Conv", "x", built.weight(8, 3, 1, 1))
    made = built.node("Add", seen, built.weight(8, 1, 1))
    found = extract_features(model_of(built, [tensor_input("x", "n", 3, "h", "w")], made))
    assert found.assumed_sizes == {"h": 224, "w": 224}


def lenet(*sides: int | str) -> bytes:
    """A convolution and a layer that reads all of it: 8 x 28 x 28 values, so a side of 32."""
    built = Builder()
    seen = built.node("Relu", built.node("Conv", "x", built.weight(8, 1, 5, 5)))
    made = built.node("Gemm", built.node("Flatten", seen), built.weight(8 * 28 * 28, 10))
    return model_of(built, [tensor_input("x", "batch", 1, *sides)], made)


def test_the_side_of_an_image_is_that_with_which_the_flattened_layer_fits():
    found = extract_features(lenet("height", "width"))
    assert found.input_shapes["x"] == [1, 1, 32, 32]
    assert not found.assumed_sizes
    assert found.flops == extract_features(lenet(32, 32)).flops


def test_a_length_that_a_flattened_layer_fixes_is_no_free_length():
    built = Builder()
    made = built.node("Gemm", built.node("Flatten", "x"), built.weight(50 * 16, 10))
    found = extract_features(model_of(built, [tensor_input("x", "batch", "steps", 16)], made))
    assert found.input_shapes["x"] == [1, 50, 16]
    assert found.sequence_length is None


def test_a_contradiction_that_no_size_resolves_is_refused_with_what_to_do():
    built = Builder()
    seen = built.node("Conv", "x", built.weight(8, 1, 5, 5))
    made = built.node("Gemm", built.node("Flatten", seen), built.weight(8 * 28 * 28 + 1, 10))
    with pytest.raises(GraphError) as refused:
        extract_features(model_of(built, [tensor_input("x", "batch", 1, "h", "w")], made))
    assert "Gemm" in str(refused.value)
    assert "fixed shapes" in refused.value.hint


# --- what is said of a default -------------------------------------------------------------------


def predict(features, **request):
    asked = PredictRequest(batch_size=8, gpu_model="NVIDIA A100-SXM4-80GB", **request)
    return Predictor().predict(asked, features)


def test_an_assumed_size_is_named_and_widens_the_bounds():
    open_axes, closed = (
        extract_features(convolution(3, "batch", 3, *sides)) for sides in (("h", "w"), (224, 224))
    )
    assert open_axes.assumed_sizes == {"h": 224, "w": 224}
    assert feature_hash(open_axes) == feature_hash(closed)  # earlier runs of the graph still count
    assumed, stated = predict(open_axes), predict(closed)
    assert "h = 224, w = 224" in assumed.explanation
    assert assumed.load.out_of_distribution
    assert not stated.load.out_of_distribution
    assert assumed.load.memory_p95_bytes > stated.load.memory_p95_bytes
    assert assumed.load.memory_base_bytes == stated.load.memory_base_bytes
    for one, other in (
        (assumed.memory_interval_bytes, stated.memory_interval_bytes),
        (assumed.utilisation_interval_percent, stated.utilisation_interval_percent),
        (assumed.iteration_interval_s, stated.iteration_interval_s),
    ):
        assert one is not None
        assert other is not None
        assert one.low < other.low


def test_a_stated_sequence_length_is_no_assumption():
    found = extract_features(decoder("past_sequence_length + 1"))
    assert "128 is assumed" in predict(found).explanation
    assert "assumed" not in predict(found, sequence_length=128).explanation
    assert not predict(found, sequence_length=128).load.out_of_distribution


# --- operators of other domains ------------------------------------------------------------------


def branches(*nodes, weights=()) -> bytes:
    """An If whose branches hold the same nodes, as merged decoders have them; x is (1, 10, 16)."""
    bodies = []
    for name in ("then", "else"):
        inner = [
            helper.make_node(
                node.op_type, [f"{name}_{i}" if i.startswith("in_") else i for i in node.input],
                [f"{name}_{o}" for o in node.output], domain=node.domain,
                **{a.name: helper.get_attribute_value(a) for a in node.attribute},
            )
            for node in nodes
        ]  # fmt: skip
        last = inner[-1].output[0]
        outs = [helper.make_tensor_value_info(last, FLOAT, None)]
        bodies.append(helper.make_graph(inner, name, [], outs, []))
    choice = helper.make_node("If", ["cond"], ["y"], then_branch=bodies[0], else_branch=bodies[1])
    built = Builder()
    built.nodes, built.weights = [choice], list(weights)
    shapes = [tensor_input("cond", data_type=TensorProto.BOOL), tensor_input("x", 1, 10, 16)]
    return model_of(built, shapes, "y", "com.microsoft", "com.acme")


def test_operators_of_onnx_runtime_in_a_branch_count_as_at_top_level():
    nodes = [
        helper.make_node("Gelu", ["x"], ["in_a"], domain="com.microsoft"),
        helper.make_node("FusedMatMul", ["in_a", "w"], ["in_b"], domain="com.microsoft"),
        helper.make_node("MatMul", ["in_b", "v"], ["in_c"]),
    ]
    weights = [TensorProto(name="w", dims=(16, 32), data_type=FLOAT),
               TensorProto(name="v", dims=(32, 8), data_type=FLOAT)]  # fmt: skip
    found = extract_features(branches(*nodes, weights=weights))
    assert found.flops == 2 * (2 * 10 * 16 * 32 + 2 * 10 * 32 * 8)  # both branches: an upper bound
    assert found.unresolved_nodes == 0
    assert not found.unknown_operators


def test_a_custom_operator_of_declared_shape_is_named_and_flagged():
    built = Builder()
    built.nodes.append(helper.make_node("FlashThing", ["x"], ["z"], domain="com.acme"))
    made = built.node("MatMul", "z", built.weight(16, 8))
    graph = helper.make_graph(
        built.nodes, "g", [tensor_input("x", 1, 10, 16)],
        [helper.make_tensor_value_info(made, FLOAT, None)], built.weights,
        value_info=[helper.make_tensor_value_info("z", FLOAT, [1, 10, 16])],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.acme", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    found = extract_features(model.SerializeToString())
    assert found.unknown_operators == ["FlashThing (com.acme)"]
    answer = predict(found)
    assert answer.load.out_of_distribution
    assert "FlashThing (com.acme)" in answer.explanation


def test_a_refusal_names_the_operator_behind_which_the_shapes_are_unknown():
    built = Builder()
    built.nodes.append(helper.make_node("FlashThing", ["x"], ["z"], domain="com.acme"))
    made = built.node("MatMul", built.node("Relu", "z"), "x")
    with pytest.raises(GraphError) as refused:
        extract_features(model_of(built, [tensor_input("x", 16, 16)], made, "com.acme"))
    assert "MatMul" in str(refused.value)
    assert "FlashThing (com.acme)" in refused.value.hint
    assert "dynamic_axes" not in refused.value.hint


def test_a_hidden_product_is_refused_by_name_with_a_hint_for_it():
    built = Builder()
    made = built.node("PackedGemm", "x", built.weight(16, 8), domain="com.acme")
    with pytest.raises(GraphError) as refused:
        extract_features(model_of(built, [tensor_input("x", 1, 16)], made, "com.acme"))
    assert "PackedGemm (com.acme)" in str(refused.value)
    assert "PackedGemm (com.acme)" in refused.value.hint


def test_index_inputs_with_a_free_length_stay_sequences():
    built = Builder()
    made = built.node("Gather", built.weight(1000, 16), "ids")
    shape = tensor_input("ids", "batch", "sequence", data_type=INT64)
    found = extract_features(model_of(built, [shape], made))
    assert found.sequence_length == 128
    assert not found.assumed_sizes
