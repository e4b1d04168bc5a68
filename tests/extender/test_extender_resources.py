"""What a pod asks of its node and what nodes have, as kube-scheduler counts it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from extender_builders import gpu_node, node, pod
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_extender.cluster.nodes import NodeBook
from scheduler_extender.cluster.parsing import parse_node
from scheduler_extender.cluster.pods import pod_info
from scheduler_extender.cluster.state import ClusterState

HCA, FPGA = "rdma/hca", "example.com/fpga"


def asking(**more: Any) -> dict[str, Any]:
    found = pod("p")
    found["spec"] |= more
    return found


def container(**requests: str) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": requests}}


def sidecar(**requests: str) -> dict[str, Any]:
    return container(**requests) | {"restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("more", "cpu", "amounts"),
    [
        ({}, 1.0, {}),
        ({"containers": [container(cpu="1", **{HCA: "1"})] * 2}, 2.0, {HCA: 2}),
        ({"containers": [container(**{HCA: "0"})]}, 0.0, {}),
        ({"initContainers": [container(cpu="3", **{HCA: "2"})]}, 3.0, {HCA: 2}),
        ({"initContainers": [container(cpu="1"), container(cpu="1")]}, 1.0, {}),
        ({"initContainers": [sidecar(cpu="1", **{HCA: "1"})]}, 2.0, {HCA: 1}),
        ({"initContainers": [sidecar(cpu="2"), container(cpu="2")]}, 4.0, {}),
        ({"initContainers": [container(cpu="2"), sidecar(cpu="2")]}, 3.0, {}),
        ({"overhead": {"cpu": "500m", "ephemeral-storage": "1Ki"}}, 1.5,
         {"ephemeral-storage": 1024}),
        ({"resources": {"requests": {"cpu": "7"}}}, 7.0, {}),
        ({"resources": {"requests": {"hugepages-2Mi": "4Mi"}}}, 1.0, {"hugepages-2Mi": 4 << 20}),
    ],
)  # fmt: skip
def test_a_pod_asks_for_what_kube_scheduler_counts(
    more: dict[str, Any], cpu: float, amounts: dict[str, int]
) -> None:
    raw = asking(**more)
    if "containers" in more:
        raw["spec"]["containers"] = [
            *more["containers"],
            {"name": "gpu", "resources": {"limits": {"tandem.gpu/gpu": "1"}}},
        ]
    found = pod_info(raw)
    assert (found.cpu, dict(found.amounts)) == (cpu, amounts)


def test_a_limit_alone_is_a_request() -> None:
    raw = asking()
    raw["spec"]["containers"][0]["resources"]["limits"] |= {HCA: "2", "memory": "1Ki"}
    found = pod_info(raw)
    assert (found.memory_bytes, found.amounts) == (1024, ((HCA, 2),))


def test_a_pod_of_very_many_resources_fits_nowhere_and_takes_little_to_keep() -> None:
    many = {f"example.com/r{index}": "1" for index in range(5000)}
    raw = asking(containers=[container(**many), *asking()["spec"]["containers"]])
    found = pod_info(raw)
    assert len(found.amounts) == 65
    state = ClusterState(now_s=0)
    state.upsert("nodes", node("n0"))
    state.upsert("gpunodes", gpu_node("n0", "g0"))
    assert not state.eligible_nodes(found).any()


RESOURCES = (HCA, FPGA, "ephemeral-storage", "hugepages-2Mi")
amounts = st.dictionaries(st.sampled_from(RESOURCES), st.integers(0, 3))
changes = st.lists(
    st.one_of(
        st.tuples(st.just("node"), st.sampled_from("ab"), st.none() | amounts),
        st.tuples(st.just("pod"), st.integers(0, 3), st.sampled_from(["", "a", "b"]), amounts),
    ),
    max_size=20,
)


@given(events=changes, asked=amounts)
@settings(max_examples=200, deadline=None)
def test_sums_by_node_are_those_of_the_pods_that_are_there(events: list, asked: dict) -> None:
    book = NodeBook()
    nodes: dict[str, dict[str, int]] = {}
    pods: dict[str, tuple[str, dict[str, int]]] = {}
    for kind, name, *rest in events:
        if kind == "node":
            has = rest[0]
            nodes.pop(name, None)
            if has is not None:
                nodes[name] = has
            raw = node(name)
            raw["status"]["allocatable"] |= {key: str(of) for key, of in (has or {}).items()}
            book.put(name, None if has is None else parse_node(raw))
            continue
        where, takes = rest
        raw = pod(f"p{name}", node_name=where)
        raw["spec"]["containers"][0]["resources"]["requests"] |= {
            key: str(of) for key, of in takes.items()
        }
        info = pod_info(raw)
        book.use(info.uid, info.takes)
        pods[info.uid] = where, dict(info.amounts)
    raw = pod("new")
    raw["spec"]["containers"][0]["resources"]["requests"] |= {
        key: str(of) for key, of in asked.items()
    }
    new = pod_info(raw)
    for name in "ab":
        picture = book.picture({0: (new,)}, (name,), {0: 1})
        has = nodes.get(name)
        free = {
            key: (has or {}).get(key, 0)
            - sum(takes.get(key, 0) for where, takes in pods.values() if where == name)
            for key in asked
        }
        short = [key for key, of in asked.items() if of and free[key] < of]
        assert picture.eligible(0).tolist() == [has is not None and not short]
        lacking = picture.lacking(0)[0]
        assert (lacking is not None) == (has is None or bool(short))
        assert has is None or not short or (lacking is not None and lacking.resource in short)
        most = picture.most(0, np.array([4]))
        if has is not None and all(free[key] >= 4 * of for key, of in asked.items() if of):
            assert most is None
        elif has is not None:
            assert most is not None
            assert most[0] == min(max(free[key] // of, 0) for key, of in asked.items() if of)


@given(seed=st.integers(0, 10_000))
@settings(max_examples=50, deadline=None)
def test_room_is_taken_whole_or_not_at_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    state = ClusterState(now_s=0)
    for name in ("a", "b"):
        raw = node(name, cpu="4")
        raw["status"]["allocatable"] |= {HCA: str(rng.integers(3))}
        state.upsert("nodes", raw)
        state.upsert("gpunodes", gpu_node(name, f"g-{name}"))
    infos = []
    for index in range(6):
        raw = pod(f"p{index}", cpu=str(rng.integers(1, 3)))
        raw["spec"]["containers"][0]["resources"]["requests"] |= {HCA: str(rng.integers(2))}
        infos.append(pod_info(raw))
    room = state.nodes_picture(dict(enumerate((info,) for info in infos))).room()
    taken: dict[int, list] = {0: [], 1: []}
    for info in infos:
        at = int(rng.integers(2))
        if not room.take([(info, at)]):
            taken[at].append(info)
    for at, name in enumerate(("a", "b")):
        record = state.nodes.get(name)
        assert record is not None
        assert sum(info.cpu for info in taken[at]) <= record.cpu
        assert sum(dict(info.amounts).get(HCA, 0) for info in taken[at]) <= record.amounts[HCA]
    left = state.nodes_picture({0: (infos[0],)}).room()
    assert left.take([(infos[0], 0)] * 9), "nine do not fit"
    alone = state.nodes_picture({0: (infos[0],)}).room()
    assert left.take([(infos[0], 0)]) == alone.take([(infos[0], 0)]), "and none of them was taken"
