"""What pods ask of a node besides GPUs, CPU and memory: places, limits of a node, reasons."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from queue_builders import raw_pod
from test_queue_controller import SHARED, Cluster

from scheduler_extender.config import QueueConfig
from scheduler_extender.queue.order.reason_writer import CHANGED_S
from scheduler_extender.serving.api import explanation
from scheduler_extender.verbs.answers import Verbs
from tandem.contracts import names
from tandem.kube.resource import GPU_NODES, NODES, PODS
from tandem.policy.catalog import load_profile

HCA = "rdma/hca"


class Mixed(Cluster):
    """Nodes that differ in what they have besides GPUs."""

    def node(self, name: str, gpus: int = 1, **allocatable: Any) -> None:
        self.add_node(name, gpus)
        self.allocate(name, **allocatable)

    def allocate(self, name: str, **allocatable: str) -> None:
        has = {"cpu": "8", "memory": "64Gi", "pods": "110", **allocatable}
        self.api.patch(NODES, name, {"status": {"allocatable": has}})

    def create(self, name: str, gang: int = 1, node: str = "", gpus: int = 1, **asks: Any) -> None:
        notes = {**SHARED, names.EXCLUSIVE: "true"}
        if gang > 1:
            notes |= {names.GANG: "g", names.GANG_SIZE: str(gang)}
        raw = raw_pod(name, annotations=notes, gated=not node)
        limits: dict[str, str] = {names.RESOURCE: str(gpus)} if gpus else {}
        extended = {key: value for key, value in asks.items() if "/" in key}
        raw["spec"]["containers"][0]["resources"] = {
            "limits": limits | extended,
            "requests": asks,
        }
        if node:
            raw["spec"]["nodeName"] = node
        self.api.create(PODS, raw)

    def role(self, name: str, number: int, size: int, **asks: Any) -> None:
        """Create a pod of a gang whose roles declare different amounts of memory."""
        self.create(name, gang=size, **asks)
        notes = {names.MEMORY: f"{number}Gi"}
        self.api.patch(PODS, name, {"metadata": {"annotations": notes}}, "default")

    def cycles(self, count: int = 3) -> None:
        async def some() -> None:
            for _ in range(count):
                self.now += CHANGED_S
                await self.cycle()

        asyncio.run(some())

    def status(self, job: str) -> dict[str, Any]:
        status: dict[str, Any] = self.gpujob(job)["status"]
        return status

    def planned(self, job: str) -> list[str]:
        """The nodes of its plan."""
        return [pod["node"] for pod in (self.status(job).get("plan") or {}).get("pods", [])]

    def held(self) -> int:
        return int(self.state.gpus.jobs.sum())


@pytest.fixture
def cluster() -> Mixed:
    return Mixed()


def test_of_two_pods_the_one_without_a_resource_waits_and_hears_which(cluster: Mixed) -> None:
    cluster.node("n0", gpus=2, **{HCA: "1"})
    cluster.node("n1", gpus=2)
    for name in ("a", "b"):
        cluster.create(name, **{HCA: "1"})
    cluster.cycles()
    plans = [cluster.planned(f"pod-{name}") for name in ("a", "b")]
    assert sorted(plans) == [[], ["n0"]]
    assert cluster.held() == 1
    waits = cluster.status(f"pod-{'ab'[plans.index([])]}")
    assert waits["phase"] == "Queued"
    assert f"On 1 node, too little {HCA} is free for its pods (less than 1)" in waits["message"]
    assert (
        f"On 1 node, there is too little {HCA} for its pods even if nothing else ran"
        in waits["message"]
    )


def test_the_filter_and_the_explanation_name_what_the_plan_misses(cluster: Mixed) -> None:
    cluster.node("n0", gpus=2, **{HCA: "1"})
    cluster.create("holder", gpus=0, node="n0", **{HCA: "1"})
    cluster.create("a", **{HCA: "1"})
    cluster.cycles()
    assert cluster.planned("pod-a") == []
    pipeline = load_profile("tandem").pipeline()
    asked: Any = {"Pod": cluster.pod("a"), "NodeNames": ["n0"], "Nodes": None}
    answer = json.loads(Verbs(cluster.state, pipeline).filter(asked))
    assert answer["NodeNames"] is None
    assert answer["FailedNodes"] == {"n0": f"too little {HCA} is free for its pods (less than 1)"}
    record = cluster.state.pod_named("default", "a")
    assert record is not None
    shown = explanation(cluster.state, pipeline, record)
    assert shown["nodes"][0]["reason"] == f"too little {HCA} is free for its pods (less than 1)"
    assert not shown["nodes"][0]["fits"]


def test_a_planned_pod_fits_where_it_is_planned(cluster: Mixed) -> None:
    cluster.node("n0", **{HCA: "1"})
    cluster.create("a", **{HCA: "1"})
    cluster.cycles()
    assert cluster.planned("pod-a") == ["n0"]
    pipeline = load_profile("tandem").pipeline()
    asked: Any = {"Pod": cluster.pod("a"), "NodeNames": ["n0"], "Nodes": None}
    answer = json.loads(Verbs(cluster.state, pipeline).filter(asked))
    assert answer["NodeNames"] == ["n0"]
    record = cluster.state.pod_named("default", "a")
    assert record is not None
    assert explanation(cluster.state, pipeline, record)["nodes"][0]["fits"]


@pytest.mark.parametrize(
    ("resource", "asked", "has"),
    [
        ("ephemeral-storage", "500Gi", "100Gi"),
        ("hugepages-2Mi", "1Gi", "0"),
        ("example.com/fpga", "2", "1"),
        ("cpu", "9", "8"),
        ("memory", "65Gi", "64Gi"),
    ],
)
def test_what_no_node_has_is_named_and_no_gpu_is_held_for_it(
    cluster: Mixed, resource: str, asked: str, has: str
) -> None:
    cluster.node("n0", **{resource: has})
    cluster.create("a", **{resource: asked})
    for _ in range(3):
        cluster.cycles()
        assert (cluster.planned("pod-a"), cluster.held()) == ([], 0)
    status = cluster.status("pod-a")
    short = {"reason": "NodeTooSmall", "nodes": 1, "resource": resource, "amount": asked}
    assert short in status["causes"]
    assert (
        f"too little {resource} for its pods even if nothing else ran (less than {asked} in"
        in (status["message"])
    )
    assert cluster.gated("a")
    cluster.allocate("n0", **{resource: asked})
    cluster.cycles()
    assert cluster.planned("pod-a") == ["n0"]


@pytest.mark.parametrize(
    ("asks", "by"), [({HCA: "1"}, HCA), ({"cpu": "5"}, "cpu"), ({"memory": "40Gi"}, "memory")]
)
def test_a_node_takes_no_more_pods_of_a_gang_than_it_has_room_for(
    cluster: Mixed, asks: dict[str, Any], by: str
) -> None:
    for name in ("n0", "n1"):
        cluster.node(name, gpus=4, **{HCA: "1"})
    for index in range(3):
        cluster.create(f"p{index}", gang=3, **asks)
    cluster.cycles()
    assert (cluster.planned("gang-g"), cluster.held()) == ([], 0)
    assert f"On 2 nodes, there is too little {by}" in cluster.status("gang-g")["message"]
    cluster.node("n2", gpus=4, **{HCA: "1"})
    cluster.cycles()
    assert sorted(cluster.planned("gang-g")) == ["n0", "n1", "n2"]


def test_a_gang_takes_the_gpus_that_are_free_where_a_node_holds_few_of_it(cluster: Mixed) -> None:
    cluster.node("n0", gpus=4, **{HCA: "3"})
    for index in range(3):
        cluster.create(f"other{index}")
    cluster.cycles()
    assert cluster.held() == 3
    cluster.node("n1", gpus=4, **{HCA: "1"})
    for index in range(2):
        cluster.create(f"p{index}", gang=2, **{HCA: "1"})
    cluster.cycles()
    assert sorted(cluster.planned("gang-g")) == ["n0", "n1"]


def test_two_pods_of_one_plan_do_not_both_get_what_is_left_of_a_node(cluster: Mixed) -> None:
    cluster.node("n0", gpus=4)
    for index in range(4):
        cluster.create(f"p{index}", cpu="3")
    cluster.cycles()
    plans = [cluster.planned(f"pod-p{index}") for index in range(4)]
    assert sorted(plans) == [[], [], ["n0"], ["n0"]]
    assert cluster.held() == 2


def test_a_resource_counts_from_when_a_node_first_has_it(cluster: Mixed) -> None:
    """A device plugin registers later than pods that ask for its devices come."""
    cluster.node("n0", gpus=2)
    cluster.create("holder", gpus=0, node="n0", **{HCA: "1"})
    cluster.create("a", **{HCA: "1"})
    cluster.cycles()
    cluster.allocate("n0", **{HCA: "1"})
    cluster.cycles()
    assert cluster.planned("pod-a") == []
    cluster.allocate("n0", **{HCA: "2"})
    cluster.cycles()
    assert cluster.planned("pod-a") == ["n0"]
    cluster.api.delete(PODS, "holder", "default")
    cluster.api.delete(GPU_NODES, "n0")
    cluster.api.delete(NODES, "n0")
    cluster.cycles()
    assert not cluster.state.nodes._others


@pytest.mark.parametrize("asks", [{"cpu": "5"}, {"memory": "40Gi"}, {HCA: "1"}])
def test_roles_that_do_not_fit_on_one_node_together_start_on_two(
    cluster: Mixed, asks: dict[str, str]
) -> None:
    for name in ("n0", "n1"):
        cluster.node(name, gpus=4, **{HCA: "1"})
    for number in (1, 2):
        cluster.role(f"p{number}", number, 2, **asks)
    cluster.cycles()
    assert sorted(cluster.planned("gang-g")) == ["n0", "n1"]


@pytest.mark.parametrize("reserve_after_s", [86_400.0, 1.0])
def test_roles_that_no_nodes_hold_together_keep_gpus_from_no_job(reserve_after_s: float) -> None:
    cluster = Mixed(settings=QueueConfig(reserve_after_s=reserve_after_s))
    cluster.node("n0", gpus=2)
    for number in (1, 2):
        cluster.role(f"p{number}", number, 2, cpu="5")
    cluster.cycles()
    for number in range(2):
        cluster.create(f"other{number}", cpu="1")
    cluster.cycles()
    assert cluster.planned("gang-g") == []
    assert [cluster.planned(f"pod-other{number}") for number in range(2)] == [["n0"], ["n0"]]


def test_the_reason_names_the_role_that_no_node_holds(cluster: Mixed) -> None:
    cluster.node("n0", gpus=2)
    cluster.role("p1", 1, 2)
    cluster.role("p2", 2, 2, cpu="9")
    cluster.cycles()
    assert "cpu" in cluster.status("gang-g")["message"]


def test_a_pod_that_finds_its_cpus_taken_in_the_same_round_hears_so(cluster: Mixed) -> None:
    cluster.node("n0", gpus=2, cpu="4")
    cluster.create("first", cpu="3")
    cluster.now += 1  # of two jobs of one second, threads decide which comes first
    cluster.create("second", cpu="2")
    asyncio.run(cluster.cycle())
    (cause,) = cluster.status("pod-second")["causes"]
    assert (cause["reason"], cause["resource"]) == ("TakenByJobsBefore", "cpu")
    assert cluster.status("pod-second")["message"].startswith("Jobs before it take the cpu")
