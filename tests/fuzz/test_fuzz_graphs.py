"""ONNX graphs at the predictor: damaged bytes, and graphs of which a few things make no sense."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator

import onnx
import pytest
from fuzz_batch import WATCHDOG, Batch
from mutators import changed_bytes
from onnx import TensorProto, helper
from predictor_graphs import FLOAT, Builder, distort, light, mutate, tensor_input

from predictor.errors import GraphError, Refusal
from predictor.graph.features import extract_features, feature_hash
from predictor.service.sandbox import ParsedModel, Sandbox, SandboxLimits
from tandem.contracts.resources import GraphFeatures

pytestmark = [pytest.mark.slow, WATCHDOG]


def small_transformer() -> bytes:
    """A layer of attention with symbolic batch and sequence, and an expression of them."""
    b = Builder()
    wide = b.node("MatMul", "x", b.weight(64, 192))
    q, k, v = (
        b.node("Slice", wide, b.ints(64 * i), b.ints(64 * i + 64), b.ints(2)) for i in range(3)
    )
    scores = b.node("MatMul", q, b.node("Transpose", k, perm=[0, 2, 1]))
    mixed = b.node("MatMul", b.node("Softmax", scores, axis=-1), v)
    out = b.node("Add", mixed, "x")
    out = b.node("Add", out, b.node("Concat", "past", "last", axis=1))
    inputs = [
        tensor_input("x", "batch", "sequence + 1", 64),
        tensor_input("past", "batch", "sequence", 64),
        tensor_input("last", "batch", 1, 64),
    ]
    return b.model(inputs, out).SerializeToString()


def small_branch() -> bytes:
    """A convolution under a condition, and a loop."""
    b = Builder()
    y = b.node("Conv", "x", b.weight(8, 3, 3, 3), pads=[1, 1, 1, 1])
    body = helper.make_graph(
        [helper.make_node("Relu", [y], ["r"])],
        "then",
        [],
        [helper.make_tensor_value_info("r", FLOAT, None)],
    )
    other = helper.make_graph(
        [helper.make_node("Sigmoid", [y], ["s"])],
        "else",
        [],
        [helper.make_tensor_value_info("s", FLOAT, None)],
    )
    z = b.node("If", "c", then_branch=body, else_branch=other)
    pooled = b.node("GlobalAveragePool", z)
    inputs = [tensor_input("x", "n", 3, "h", "w"), tensor_input("c", data_type=TensorProto.BOOL)]
    return b.model(inputs, pooled).SerializeToString()


def adjust(data: bytes, rng: random.Random) -> bytes:
    """Return a graph that means something else: other sizes, another order, other names."""
    model = onnx.load_model_from_string(data)
    graph = model.graph
    for _ in range(rng.randint(1, 4)):
        dims = [d for v in graph.input for d in v.type.tensor_type.shape.dim]
        match rng.randrange(5):
            case 0 if dims:
                rng.choice(dims).dim_value = rng.choice((-1, 0, 1, 3, 7, 64, 224))
            case 1 if dims:
                names = (
                    "batch",
                    "N",
                    "sequence",
                    "h",
                    "past + 1",
                    "a*b",
                    "floor(h/2)",
                    "",
                    "1",
                    "(",
                )
                rng.choice(dims).dim_param = rng.choice(names)
            case 2:
                model.producer_name = rng.choice(("pytorch", "tf2onnx", "x" * 300, "\x00", "jax"))
            case 3:
                weights = [t for t in graph.initializer if t.dims and not t.raw_data]
                if weights:
                    tensor = rng.choice(weights)
                    tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice((1, 2, 64, 65, 192))
            case _:
                node = rng.choice(graph.node)
                node.domain = rng.choice(("", "ai.onnx", "com.microsoft", "custom"))
    return model.SerializeToString()


#: Small ones are read in a few milliseconds, so that most cases are of them.
SMALL = (small_transformer(), small_branch())
LIGHT = tuple(light(name) for name in ("squeezenet", "vgg19", "bvlc_alexnet", "zfnet512"))
DAMAGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    adjust,
    adjust,
    mutate,
    changed_bytes,
    distort,
)


def check(parsed: ParsedModel, data: bytes) -> None:
    """Check that figures are finite and agree, and are the same when they are read again."""
    found = parsed.features
    text = json.dumps(found.wire(), allow_nan=False)
    assert GraphFeatures.model_validate_json(text) == found
    assert feature_hash(found) == parsed.feature_hash
    assert parsed.file_bytes == len(data)
    assert found.nodes > 0
    assert 0 <= found.tensor_skew <= 1
    figures = (found.flops, found.bytes_moved, found.backward_flops, found.elementwise_flops)
    assert all(math.isfinite(figure) and figure >= 0 for figure in figures)
    assert found.largest_tensor_bytes <= found.parameter_bytes
    assert found.depth <= found.nodes
    # The weights are left out on the way: that, and names, make no difference.
    model = onnx.load_model_from_string(data)
    for index, node in enumerate(model.graph.node):
        node.name, node.doc_string = f"n{index}", "x"
    tensors = sorted(model.graph.initializer, key=lambda tensor: repr(tensor.name), reverse=True)
    del model.graph.initializer[:]
    model.graph.initializer.extend(tensors)
    assert feature_hash(extract_features(model.SerializeToString())) == parsed.feature_hash


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(SandboxLimits(parallel=1)) as started:
        started.parse_file([LIGHT[0]])
        yield started


def test_damaged_graphs_are_refused_with_a_reason_or_understood(sandbox: Sandbox) -> None:
    server = sandbox._server
    assert server is not None
    for data in SMALL:
        check(sandbox.parse_file([data]), data)

    def case(rng: random.Random) -> str:
        sound = rng.choice(SMALL) if rng.random() < 0.8 else rng.choice(LIGHT)
        damage = rng.choice(DAMAGES)
        data = sound
        for _ in range(rng.choice((1, 1, 2))):
            try:
                data = damage(data, rng)
            except (ValueError, IndexError):  # nothing is left of it that could be changed so
                break
        chunk = rng.choice((1 << 20, 1000, 7))
        try:
            parsed = sandbox.parse_file([data[i : i + chunk] for i in range(0, len(data), chunk)])
        except GraphError as error:
            refused = error
        else:
            check(parsed, data)
            return "understood"
        assert refused.message
        assert "Traceback" not in refused.message
        assert refused.refusal is not Refusal.CRASHED, refused.message
        return f"refused: {refused.refusal}"

    Batch("graphs at the predictor", 60).run(case)
    assert sandbox._server is server
    assert server.poll() is None
