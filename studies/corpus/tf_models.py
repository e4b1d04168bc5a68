"""Keras models, as tf2onnx writes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf2onnx

_MODELS = ("ResNet50", "MobileNetV2", "DenseNet121", "EfficientNetB0", "VGG16", "InceptionV3")


def entries() -> list[tuple[str, str, Callable[[], tuple[bytes, dict[str, Any]]]]]:
    """Return name, exporter and what writes each graph."""
    found: list[tuple[str, str, Callable[[], tuple[bytes, dict[str, Any]]]]] = [
        (f"keras-{name.lower()}", "tf2onnx", lambda n=name: _application(n))  # type: ignore[misc]
        for name in _MODELS
    ]
    return [*found, ("keras-lstm", "tf2onnx", _recurrent)]


def _application(name: str) -> tuple[bytes, dict[str, Any]]:
    model = getattr(tf.keras.applications, name)(weights=None)
    return _written(model, model.input_shape[1:])


def _recurrent() -> tuple[bytes, dict[str, Any]]:
    layers = [tf.keras.layers.LSTM(128, return_sequences=True), tf.keras.layers.Dense(64)]
    model = tf.keras.Sequential([tf.keras.Input((50, 32)), *layers])
    return _written(model, (50, 32))


def _written(model: Any, shape: tuple[int, ...]) -> tuple[bytes, dict[str, Any]]:
    @tf.function(input_signature=[tf.TensorSpec((None, *shape), tf.float32, name="x")])
    def forward(x: Any) -> Any:
        return model(x, training=False)

    proto, _ = tf2onnx.convert.from_function(
        forward, input_signature=forward.input_signature, opset=17
    )
    one = tf.function(lambda x: model(x, training=False)).get_concrete_function(
        tf.TensorSpec((1, *shape), tf.float32)
    )
    from tensorflow.python.framework.convert_to_constants import (
        convert_variables_to_constants_v2_as_graph,
    )

    _, graph = convert_variables_to_constants_v2_as_graph(one)
    with tf.Graph().as_default() as counted:
        tf.compat.v1.import_graph_def(graph, name="")
        options = tf.compat.v1.profiler.ProfileOptionBuilder.float_operation()
        options["output"] = "none"
        # TensorFlow's count has element operations too: the products alone are added up here.
        flops = _products(counted)
    return proto.SerializeToString(), {
        "parameters": model.count_params(), "flops": flops, "family": model.name,
    }  # fmt: skip


def _products(graph: Any) -> float:
    total = 0.0
    for op in graph.get_operations():
        if op.type in ("Conv2D", "DepthwiseConv2dNative", "MatMul", "BatchMatMulV2"):
            out = op.outputs[0].shape.num_elements() or 0
            weight = op.inputs[1].shape.as_list()
            if op.type == "Conv2D":
                inner = weight[0] * weight[1] * weight[2]
            elif op.type == "MatMul":
                inner = weight[1] if op.get_attr("transpose_b") else weight[0]
            elif op.type == "DepthwiseConv2dNative":
                inner = weight[0] * weight[1]
            else:
                inner = weight[-2]
            total += 2.0 * out * inner
    return total
