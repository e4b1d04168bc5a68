"""Files that are broken or meant to break something: refused with a reason, and nothing else."""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import textwrap
import time
from collections import Counter

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from predictor_graphs import (
    FLOAT,
    INT64,
    REFERENCE,
    Builder,
    distort,
    light,
    mutate,
    one_node,
    resnet50,
    split_around_weights,
    tensor_input,
    weight,
)
from repeated_faults import record, times
from seeds import SEED

from predictor.errors import GraphError, Refusal, SandboxUnavailableError
from predictor.graph.features import extract_features
from predictor.graph.model import GraphLimits
from predictor.graph.skim import Skimmer
from predictor.service.sandbox import Sandbox, SandboxLimits


def skim(data: bytes, chunk: int = 1 << 16, limit: int = 1 << 26) -> bytes:
    skimmer = Skimmer(limit)
    for start in range(0, len(data), chunk):
        skimmer.feed(data[start : start + chunk])
    return skimmer.finish()


def heavy(side: int) -> bytes:
    """A small graph with much weight, half of it inside a Constant node."""
    values = bytes(4 * side * side)
    inside = helper.make_tensor("c", FLOAT, [side, side], values, raw=True)
    weights = helper.make_tensor("w", FLOAT, [side, side], values, raw=True)
    nodes = [
        helper.make_node("Constant", [], ["c"], value=inside),
        helper.make_node("MatMul", ["x", "c"], ["h"]),
        helper.make_node("MatMul", ["h", "w"], ["y"]),
    ]
    result = helper.make_tensor_value_info("y", FLOAT, None)
    graph = helper.make_graph(nodes, "g", [tensor_input("x", "batch", side)], [result], [weights])
    return helper.make_model(graph).SerializeToString()


# --- skimming ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REFERENCE)
def test_a_graph_without_large_tensors_comes_through_unchanged(name):
    assert skim(light(name)) == light(name)


@pytest.mark.parametrize("chunk", [1, 4096, 1 << 24])
def test_weights_are_dropped_and_features_stay(chunk):
    data = heavy(side=100 if chunk == 1 else 1024)  # byte by byte is slow
    skimmed = skim(data, chunk)
    assert len(skimmed) < 1024 < len(data) // 64
    assert extract_features(skimmed) == extract_features(data)


@settings(max_examples=25)
@given(st.lists(st.integers(1, 5000), min_size=1, max_size=30))
def test_where_chunks_end_makes_no_difference(sizes):
    data = light("squeezenet")
    skimmer, start = Skimmer(1 << 20), 0
    for size in sizes:
        skimmer.feed(data[start : start + size])
        start += size
    skimmer.feed(data[start:])
    assert skimmer.finish() == data


def test_half_a_gibibyte_of_weights_streams_by_in_flat_memory():
    before, after = split_around_weights(512 << 20)
    skimmer, zeros = Skimmer(1 << 20), bytes(1 << 20)
    skimmer.feed(before)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(512):
        skimmer.feed(zeros)
    skimmer.feed(after)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak
    assert skimmer.file_bytes > 512 << 20
    assert grown_kib < 8 * 1024
    assert extract_features(skimmer.finish()).parameters == (512 << 20) // 4


@pytest.mark.parametrize(
    ("data", "refusal"),
    [
        (light("vgg19")[:-100], Refusal.MALFORMED),
        (b"not an onnx file at all", Refusal.MALFORMED),
        (b"\x00" * 64, Refusal.MALFORMED),
        (b"\xff" * 64, Refusal.MALFORMED),
        (b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", Refusal.MALFORMED),  # 2^62 bytes to come
    ],
)
def test_what_is_no_protobuf_is_refused_while_it_streams(data, refusal):
    with pytest.raises(GraphError) as caught:
        skim(data, limit=1 << 20)
    assert caught.value.refusal in (refusal, Refusal.TOO_LARGE)


def test_a_graph_over_the_limit_is_refused_early():
    with pytest.raises(GraphError, match="larger than 1000 bytes") as caught:
        skim(light("vgg19"), limit=1000)
    assert caught.value.refusal is Refusal.TOO_LARGE


# --- graphs -----------------------------------------------------------------------------------


def _relu(*edges: tuple[str, str], inputs=None) -> bytes:
    nodes = [helper.make_node("Relu", [a], [b]) for a, b in edges]
    result = helper.make_tensor_value_info(edges[-1][1], FLOAT, None)
    graph = helper.make_graph(nodes, "g", inputs or [tensor_input("x", 1, 4)], [result])
    return helper.make_model(graph).SerializeToString()


def _external(location: str) -> bytes:
    tensor = weight("w", 4, 4)
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", location
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    return one_node(node, tensor_input("x", 1, 4), weights=(tensor,))


def _nested(depth: int) -> bytes:
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [], [])
    for _ in range(depth):
        node = helper.make_node("If", ["c"], ["y"], then_branch=graph, else_branch=graph)
        del node.attribute[1]
        graph = helper.make_graph([node], "g", [], [])
    graph.input.extend([tensor_input("x", 1), tensor_input("c", data_type=TensorProto.BOOL)])
    return helper.make_model(graph).SerializeToString()


def _claim(*dims: int, **values) -> bytes:
    tensor = TensorProto(name="w", dims=dims, data_type=FLOAT, **values)
    return one_node(helper.make_node("Relu", ["w"], ["y"]), weights=(tensor,))


def _huge_product() -> bytes:
    b = Builder()
    y = b.node("Expand", "x", b.ints(*[2**31 - 1] * 4))
    return b.model([tensor_input("x", 1, 1, 1, 1)], y).SerializeToString()


def _future_opset() -> bytes:
    model = resnet50()
    model.opset_import[0].version = 999
    return model.SerializeToString()


def _unknown_operator(imported: str) -> bytes:
    graph = helper.make_graph(
        [helper.make_node("Secret", ["x"], ["y"], domain="evil")],
        "g",
        [tensor_input("x", 1, 4)],
        [onnx.ValueInfoProto(name="y")],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(imported, 1)]
    return helper.make_model(graph, opset_imports=opsets).SerializeToString()


def _recursive_function() -> bytes:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    call = helper.make_node("F", ["a"], ["b"], domain="local")
    function = helper.make_function("local", "F", ["a"], ["b"], [call], opsets)
    node = helper.make_node("F", ["x"], ["y"], domain="local")
    result = helper.make_tensor_value_info("y", FLOAT, None)
    graph = helper.make_graph([node], "g", [tensor_input("x", 1, 4)], [result])
    model = helper.make_model(graph, functions=[function], opset_imports=opsets)
    return model.SerializeToString()


HOSTILE = {
    "cycle": (_relu(("b", "a"), ("a", "b")), Refusal.MALFORMED, "cycle"),
    "undefined input": (_relu(("nowhere", "y")), Refusal.MALFORMED, "'nowhere'"),
    "value made twice": (_relu(("x", "y"), ("x", "y")), Refusal.MALFORMED, "twice"),
    "empty graph": (
        helper.make_model(helper.make_graph([], "g", [], [])).SerializeToString(),
        Refusal.MALFORMED, "no graph",
    ),
    "only constants": (
        one_node(helper.make_node("Constant", [], ["c"], value_float=1.0)),
        Refusal.UNSUPPORTED, "nothing runs",
    ),
    "weights in the parent directory": (_external("../w.bin"), Refusal.MALFORMED, "points out"),
    "weights at an absolute path": (_external("/etc/passwd"), Refusal.MALFORMED, "points out"),
    "weights at a windows path": (_external("a\\..\\b"), Refusal.MALFORMED, "points out"),
    "nested too deep": (_nested(30), Refusal.TOO_LARGE, "nested graphs"),
    "2 GiB claimed, 4 bytes held": (
        _claim(2**29, raw_data=b"abcd"), Refusal.MALFORMED, "claims 2,147,483,648 bytes",
    ),
    "impossible sizes": (_claim(2**40, 2**40), Refusal.TOO_LARGE, "elements"),
    "negative size": (_claim(-5), Refusal.MALFORMED, "negative"),
    "too many axes": (_claim(*[1] * 100), Refusal.TOO_LARGE, "axes"),
    "product of sizes overflows": (_huge_product(), Refusal.TOO_LARGE, "elements"),
    "opset of the future": (_future_opset(), Refusal.UNSUPPORTED, "operator set 999"),
    "input without a shape": (
        _relu(("x", "y"), inputs=[helper.make_tensor_value_info("x", FLOAT, None)]),
        Refusal.UNSUPPORTED, "no shape",
    ),
    "unknown operators": (_unknown_operator("evil"), Refusal.UNSUPPORTED, "unknown"),
    "unknown domain": (_unknown_operator(""), Refusal.MALFORMED, "cannot be inferred"),
    "function that calls itself": (
        _recursive_function(), Refusal.MALFORMED, "A function of the graph calls itself",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_graph_is_refused_with_its_reason(case, sandbox):
    data, refusal, words = HOSTILE[case]
    with pytest.raises(GraphError, match=words) as caught:
        sandbox.parse_file([data])
    assert caught.value.refusal is refusal


def test_weights_next_to_the_model_count_by_their_shapes_and_are_never_read(sandbox):
    assert sandbox.parse_file([_external("weights.bin")]).features.parameters == 16


def test_too_many_nodes_are_refused():
    with pytest.raises(GraphError, match="more than 10 nodes"):
        extract_features(light("squeezenet"), limits=GraphLimits(nodes=10))


def calling(levels: int, callees: int, body: str = "Relu", **attributes: object) -> bytes:
    """A model of functions, each of which calls the one before it so often."""
    functions = []
    for level in range(levels):
        callee = [helper.make_node(body, ["a"], ["b"], **attributes)]
        if level:
            callee = [
                helper.make_node(f"F{level - 1}", ["a" if i == 0 else f"t{i}"],
                                 ["b" if i == callees - 1 else f"t{i + 1}"], domain="local")
                for i in range(callees)
            ]  # fmt: skip
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
        functions.append(helper.make_function("local", f"F{level}", ["a"], ["b"], callee, opsets))
    graph = helper.make_graph(
        [helper.make_node(f"F{levels - 1}", ["x"], ["y"], domain="local")],
        "g",
        [tensor_input("x", 1, 4)],
        [helper.make_tensor_value_info("y", FLOAT, [1, 4])],
    )
    model = helper.make_model(graph, functions=functions, opset_imports=opsets)
    return model.SerializeToString()


@pytest.mark.parametrize(
    ("bomb", "words"),
    [
        (calling(12, 10), "more than 200,000 nodes"),
        (calling(400, 2), "more than 200,000 nodes"),
        (calling(5, 10, "Relu", doc="x" * 100_000), "bytes of functions"),
        (calling(2, 3, "F1", domain="local"), "calls itself"),
    ],
    ids=["wide", "deep", "heavy", "endless"],
)
def test_functions_that_call_one_another_ever_wider_are_refused_before_they_are_expanded(
    bomb: bytes, words: str, monkeypatch
) -> None:
    """To find out by expanding them took all of the time that a graph may have, 10 s of CPU."""
    monkeypatch.setattr("predictor.graph.model._inline", None)
    with pytest.raises(GraphError, match=words):
        extract_features(bomb)


def test_functions_that_are_used_as_such_are_expanded() -> None:
    assert extract_features(calling(3, 4)).op_counts == {"Relu": 16}


# --- the sandbox ------------------------------------------------------------------------------


def test_a_parse_that_takes_too_long_is_ended():
    with Sandbox(SandboxLimits(wall_s=0.005)) as hasty, pytest.raises(GraphError) as caught:
        hasty.parse_file([light("densenet121")])
    assert caught.value.refusal is Refusal.TIMEOUT


@pytest.mark.slow
def test_a_parse_that_takes_too_much_memory_is_ended():
    limits = SandboxLimits(memory_bytes=170 << 20)
    b = Builder()
    y = "x"
    for _ in range(40_000):
        y = b.node("Relu", y)
    data = b.model([tensor_input("x", 1, 4)], y).SerializeToString()
    with Sandbox(limits) as tight, pytest.raises(GraphError) as caught:
        tight.parse_file([data])
    assert caught.value.refusal in (Refusal.MEMORY, Refusal.CRASHED)


def test_the_service_survives_its_fork_server(sandbox):
    with Sandbox() as own:
        own.parse_file([light("vgg19")])
        server = own._server
        server.kill()
        server.wait()
        assert own.parse_file([light("vgg19")]).features.parameters > 143e6
        assert own._server.pid != server.pid


def test_a_fork_server_that_ends_in_between_is_noticed(monkeypatch):
    with Sandbox() as own:
        own.start()
        server = own._server
        server.kill()
        server.wait()
        # As if it had ended just after we looked.
        polls = iter([None])
        monkeypatch.setattr(server, "poll", lambda: next(polls, -9))
        assert own.parse_file([light("vgg19")]).features.parameters > 143e6


def test_a_fork_server_that_does_not_start_is_explained(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/true")
    with pytest.raises(SandboxUnavailableError, match="does not start"), Sandbox() as own:
        own.start()


def test_a_child_can_open_neither_file_nor_socket_and_forks_into_limits():
    script = textwrap.dedent("""
        import resource, socket
        from predictor.service.sandbox_worker import _limit
        _limit(1 << 30, 10, 5.0)
        for forbidden in (lambda: open("/etc/passwd"), socket.socket, lambda: open("/tmp/x", "w")):
            try:
                forbidden()
            except OSError as error:
                print(error.errno)
        print(resource.getrlimit(resource.RLIMIT_AS)[1], resource.getrlimit(resource.RLIMIT_CPU)[0])
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    too_many_open_files = "24"
    assert done.stdout.split() == [too_many_open_files] * 3 + [str(1 << 30), "10"], done.stderr


def _try_damaged(sandbox: Sandbox, damage, count: int, seed: str) -> dict[str, float]:
    """Return how often each thing happened, and the longest parse in seconds."""
    rng = random.Random(seed)
    sandbox.parse_file([light("vgg19")])
    server = sandbox._server.pid
    outcomes: Counter[str] = Counter()
    names = sorted(REFERENCE)
    longest = 0.0
    for index in range(count):
        data = damage(light(names[index % len(names)]), rng)
        began = time.monotonic()
        try:
            sandbox.parse_file([data])
            outcomes["understood"] += 1
        except GraphError as error:
            outcomes[error.refusal] += 1
        longest = max(longest, time.monotonic() - began)
    print(f"seed {seed}: {dict(outcomes)}")
    assert outcomes["understood"] < count / 2
    assert sandbox._server.pid == server
    return {**outcomes, "longest_s": round(longest, 1)}


@pytest.mark.long
@pytest.mark.parametrize(("damage", "count"), [(mutate, 90), (distort, 30)])
def test_damaged_graphs_never_harm_the_service(sandbox, damage, count):
    _try_damaged(sandbox, damage, count, seed="1")


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("damage", [mutate, distort])
def test_many_damaged_graphs_never_harm_the_service(damage):
    """Some hundreds, or 5,000 of each kind in `make chaos`."""
    count = times(300, 5000)
    before_mib = largest_child_mib()
    with Sandbox() as sandbox:
        figures = _try_damaged(sandbox, damage, count, SEED)
    assert largest_child_mib() <= max(before_mib, 1024)
    what = f"files damaged by {damage.__name__}"
    record("11", what, count, **figures, largest_child_mib=largest_child_mib())


def largest_child_mib() -> int:
    """The most memory that any of our children and theirs held, of those that have ended."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024


def test_int64_weights_are_kept_when_small():
    data = one_node(
        helper.make_node("Reshape", ["x", "shape"], ["y"]),
        tensor_input("x", 1, 6),
        weights=(helper.make_tensor("shape", INT64, [2], [2, 3]),),
    )
    assert extract_features(skim(data)).activation_bytes == 24
