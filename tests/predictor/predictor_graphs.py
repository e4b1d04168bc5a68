"""Graphs that the predictor's tests build by hand, and the ones that the onnx package ships."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64

#: millions of parameters, GFLOPs, MiB of activations per image, skew
REFERENCE = {
    "resnet50": (25.61, 8.18, 143, 0.092),
    "vgg19": (143.67, 39.26, 119, 0.715),
    "densenet121": (8.15, 5.67, 306, 0.126),
    "squeezenet": (1.24, 0.70, 27, 0.414),
    "bvlc_alexnet": (61.0, 1.31, 6.9, 0.619),
    "zfnet512": (87.3, 2.96, 18, 0.865),
    "shufflenet": (1.42, 0.25, 54, 0.383),
    "inception_v1": (7.0, 2.86, 39, 0.146),
    "inception_v2": (11.2, 4.04, 80.7, 0.091),
}


def measured_data() -> Path:
    """The directory of published measurements; skips the test where it is not at hand."""
    root = os.environ.get("TANDEM_SHARED_DATA")
    folder = Path(root) if root else Path(__file__).parents[2].parent / "shared" / "data"
    if not (folder / "colocation" / "gavel-oracle-v100-p100.json").exists():
        pytest.skip("no measured steps: set TANDEM_SHARED_DATA to a directory that has them")
    return folder


def measured_matrix() -> dict:
    """Solo and pairwise steps/s on V100 and P100."""
    file = measured_data() / "colocation" / "gavel-oracle-v100-p100.json"
    return json.loads(file.read_text())


def light(name: str) -> bytes:
    """Return one of the onnx package's graphs."""
    return (LIGHT / f"light_{name}.onnx").read_bytes()


def weight(name: str, *dims: int, data_type: int = FLOAT) -> TensorProto:
    """A weight that has a shape and no values, as in a graph whose weights were stripped."""
    return TensorProto(name=name, dims=dims, data_type=data_type)


def tensor_input(name: str, *dims: int | str, data_type: int = FLOAT):
    return helper.make_tensor_value_info(name, data_type, list(dims))


class Builder:
    """Collects nodes and weights; each method returns the name of what it makes."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []

    def node(self, op: str, *inputs: str, outputs: int = 1, **attributes) -> str:
        names = [f"{op.lower()}_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return names[0]

    def weight(self, *dims: int) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(weight(name, *dims))
        return name

    def ints(self, *values: int) -> str:
        name = f"i{len(self.weights)}"
        self.weights.append(helper.make_tensor(name, INT64, [len(values)], values))
        return name

    def model(self, inputs, output: str, opset: int = 17) -> ModelProto:
        result = helper.make_tensor_value_info(output, FLOAT, None)
        graph = helper.make_graph(self.nodes, "g", inputs, [result], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def resnet50(opset: int = 17) -> ModelProto:
    """ResNet-50 with the stride on the 3x3 convolution (v1.5), symbolic batch."""
    b = Builder()

    def convolution(x: str, cin: int, cout: int, kernel: int, stride: int, relu: bool = True):
        pad = kernel // 2
        x = b.node(
            "Conv", x, b.weight(cout, cin, kernel, kernel),
            kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4,
        )  # fmt: skip
        x = b.node("BatchNormalization", x, *(b.weight(cout) for _ in range(4)))
        return b.node("Relu", x) if relu else x

    x = convolution("x", 3, 64, 7, 2)
    x = b.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            step = stride if block == 0 else 1
            y = convolution(x, channels, width, 1, 1)
            y = convolution(y, width, width, 3, step)
            y = convolution(y, width, 4 * width, 1, 1, relu=False)
            if block == 0:
                x = convolution(x, channels, 4 * width, 1, step, relu=False)
            x = b.node("Relu", b.node("Add", x, y))
            channels = 4 * width
    x = b.node("Flatten", b.node("GlobalAveragePool", x))
    x = b.node("Gemm", x, b.weight(1000, 2048), b.weight(1000), transB=1)
    return b.model([tensor_input("x", "N", 3, 224, 224)], x, opset)


def bert_base(*, attention_operator: bool = False) -> ModelProto:
    """BERT-base with its pooler; batch and sequence are symbolic, and read by Shape nodes."""
    b = Builder()
    hidden, heads, layers, ffn = 768, 12, 12, 3072

    def dense(x: str, n_in: int, n_out: int) -> str:
        return b.node("Add", b.node("MatMul", x, b.weight(n_in, n_out)), b.weight(n_out))

    def norm(x: str) -> str:
        return b.node("LayerNormalization", x, b.weight(hidden), b.weight(hidden))

    words = b.node("Gather", b.weight(30522, hidden), "ids")
    types = b.node("Gather", b.weight(2, hidden), "types")
    shape = b.node("Shape", "ids")
    batch = b.node("Gather", shape, b.ints(0))
    length = b.node("Gather", shape, b.ints(1))
    positions = b.node("Slice", b.weight(512, hidden), b.ints(0), length, b.ints(0))
    x = norm(b.node("Add", b.node("Add", words, types), positions))
    split = b.node("Concat", batch, length, b.ints(heads), b.ints(hidden // heads), axis=0)
    merged = b.node("Concat", batch, length, b.ints(hidden), axis=0)
    for _ in range(layers):
        q, k, v = (dense(x, hidden, hidden) for _ in range(3))
        if attention_operator:
            mixed = b.node("Attention", q, k, v, q_num_heads=heads, kv_num_heads=heads)
        else:
            q, k, v = (
                b.node("Transpose", b.node("Reshape", t, split), perm=perm)
                for t, perm in ((q, [0, 2, 1, 3]), (k, [0, 2, 3, 1]), (v, [0, 2, 1, 3]))
            )
            scores = b.node("Softmax", b.node("MatMul", q, k), axis=-1)
            mixed = b.node("Transpose", b.node("MatMul", scores, v), perm=[0, 2, 1, 3])
            mixed = b.node("Reshape", mixed, merged)
        x = norm(b.node("Add", x, dense(mixed, hidden, hidden)))
        inner = b.node("Relu", dense(x, hidden, ffn))
        x = norm(b.node("Add", x, dense(inner, ffn, hidden)))
    first = b.node("Gather", x, b.ints(0), axis=1)
    first = b.node("Squeeze", first, b.ints(1))
    pooled = b.node("Tanh", b.node("Gemm", first, b.weight(hidden, hidden), b.weight(hidden)))
    inputs = [tensor_input(n, "batch", "sequence", data_type=INT64) for n in ("ids", "types")]
    return b.model(inputs, pooled, 23 if attention_operator else 17)


def lstm(*, opset: int = 14) -> ModelProto:
    """Two LSTM layers, 256 -> 512 -> 512, time first; sequence and batch are symbolic."""
    b = Builder()
    x, width, hidden = "x", 256, 512
    for _ in range(2):
        x = b.node(
            "LSTM", x, b.weight(1, 4 * hidden, width), b.weight(1, 4 * hidden, hidden),
            b.weight(1, 8 * hidden), hidden_size=hidden, outputs=3,
        )  # fmt: skip
        x = b.node("Squeeze", x, b.ints(1))
        width = hidden
    return b.model([tensor_input("x", "seq_len", "batch", 256)], x, opset)


def one_node(node: NodeProto, *inputs, weights: tuple[TensorProto, ...] = ()) -> bytes:
    """A model of a single node, as bytes."""
    outputs = [onnx.ValueInfoProto(name=o) for o in node.output if o]
    graph = helper.make_graph([node], "g", list(inputs), outputs, list(weights))
    return helper.make_model(graph).SerializeToString()


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Damage a file in one of the ways that files and attackers do."""
    out = bytearray(data)
    match rng.randrange(5):
        case 0:
            del out[rng.randrange(len(out)) :]
        case 1:
            for _ in range(rng.randint(1, 32)):
                out[rng.randrange(len(out))] = rng.randrange(256)
        case 2:
            start = rng.randrange(len(out))
            del out[start : start + rng.randint(1, 4096)]
        case 3:
            start, end = sorted(rng.randrange(len(out)) for _ in range(2))
            out[start:start] = out[start : min(end, start + 65536)]
        case _:
            # A length or a size that claims much more than there is.
            start = rng.randrange(len(out))
            out[start : start + 5] = bytes([0xFF] * 4 + [rng.randrange(0x80)])
    return bytes(out)


_EXTREMES = (-(2**63), -1, 0, 1, 3, 2**31 - 1, 2**31, 2**40, 2**63 - 1)
_OPERATORS = (
    "Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "LSTM", "GRU", "Attention", "MaxPool",
    "Reshape", "Expand", "Tile", "Range", "ConstantOfShape", "Resize", "Pad", "Concat", "Slice",
    "Split", "Gather", "Loop", "Scan", "If", "NonZero", "Softmax", "ReduceSum", "Unsqueeze",
)  # fmt: skip


def distort(data: bytes, rng: random.Random) -> bytes:
    """Return a file that is still a graph, of which a few things make no sense."""
    model = onnx.load_model_from_string(data)
    graph = model.graph
    for _ in range(rng.randint(1, 6)):
        node = rng.choice(graph.node)
        match rng.randrange(8):
            case 0:
                node.op_type = rng.choice(_OPERATORS)
            case 1:
                for attribute in node.attribute:
                    if attribute.ints:
                        attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(_EXTREMES)
                    attribute.i = rng.choice(_EXTREMES)
            case 2:
                node.input[:] = rng.sample(list(node.input) * 3 + ["", "nowhere"], 3)
            case 3:
                other = rng.choice(graph.node)
                node.input.append(rng.choice(other.output))
            case 4:
                graph.node.remove(node)
            case 5:
                tensor = rng.choice(graph.initializer)
                if tensor.dims:
                    tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(_EXTREMES)
            case 6:
                tensor = rng.choice(graph.initializer)
                values = [rng.choice(_EXTREMES) for _ in range(rng.randint(1, 5))]
                tensor.CopyFrom(helper.make_tensor(tensor.name, INT64, [len(values)], values))
            case _:
                dim = rng.choice(graph.input).type.tensor_type.shape.dim.add()
                dim.dim_value = rng.choice(_EXTREMES)
    return model.SerializeToString()


def split_around_weights(size: int) -> tuple[bytes, bytes]:
    """A file in two parts, between which `size` bytes of weights belong."""
    raw_data, graph_field, weights_field = 9, 7, 5

    def field(number: int, payload_size: int) -> bytes:
        return _varint(number << 3 | 2) + _varint(payload_size)

    tensor = weight("w", size // 4 // 1024, 1024).SerializeToString()
    node = helper.make_node("MatMul", ["w", "x"], ["y"])
    model = helper.make_model(helper.make_graph([node], "g", [tensor_input("x", 1024, 1)], []))
    graph = model.graph.SerializeToString()
    model.ClearField("graph")
    tensor += field(raw_data, size)
    weights = field(weights_field, len(tensor) + size) + tensor
    head = field(graph_field, len(graph) + len(weights) + size) + graph + weights
    return head, model.SerializeToString()


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
