"""Pods that work on one thing are never on one GPU, whenever they come: NCCL refuses two ranks."""

from __future__ import annotations

import pytest
from queue_builders import raw_pod
from test_queue_controller import SHARED, Cluster, run

from scheduler_extender.cluster.jobs import rfc3339
from tandem.contracts import names
from tandem.kube.resource import JOBS, NODES, PODS

GANG = SHARED | {names.GANG: "g", names.GANG_SIZE: "3"}


class Running:
    """A gang of three pods on three nodes of one GPU that two pods may share."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        for index in range(3):
            self.cluster.add_node(f"n{index}")

    async def start(self) -> None:
        for name in ("a", "b", "c"):
            self.cluster.api.create(PODS, raw_pod(name, annotations=GANG))
        await self.go(3)
        for name in ("a", "b", "c"):
            self.run_pod(name)
        await self.go(3)

    async def go(self, seconds: int) -> None:
        for _ in range(seconds):
            self.cluster.now += 1
            self.cluster.state.tick(self.cluster.now)
            await self.cluster.cycle()

    def run_pod(self, name: str) -> None:
        """Play kube-scheduler and the kubelet."""
        self.cluster.bind_as_planned(name)
        began = {"state": {"running": {"startedAt": rfc3339(self.cluster.now)}}}
        status = {"status": {"phase": "Running", "containerStatuses": [began]}}
        self.cluster.api.patch(PODS, name, status, "default", subresource="status")

    def node(self, name: str) -> str:
        return str(self.cluster.pod(name)["spec"]["nodeName"])

    def replace(self, *names: str) -> None:
        """Lose pods with their nodes; their controller makes others."""
        for name in names:
            self.cordon(self.node(name))
            self.cluster.api.delete(PODS, name, "default")
            self.cluster.api.create(PODS, raw_pod(f"{name}2", annotations=GANG))

    def cordon(self, node: str, on: bool = True) -> None:
        self.cluster.api.patch(NODES, node, {"spec": {"unschedulable": on}})

    def planned(self) -> dict[str, str]:
        plan = self.cluster.gpujob("gang-g")["status"].get("plan") or {}
        return {each["pod"]: each["node"] for each in plan.get("pods", ())}


def test_a_replacement_waits_rather_than_to_share_with_its_own_gang() -> None:
    gang = Running()

    async def scenario() -> None:
        await gang.start()
        lost = gang.node("c")
        gang.replace("c")
        await gang.go(40)
        assert gang.cluster.gated("c2")
        assert "c2" not in gang.planned()
        causes = gang.cluster.gpujob("gang-g")["status"]["causes"]
        assert [each["reason"] for each in causes] == ["NeedsGPUs", "HeldByItsOwnPods"]
        assert causes[1]["gpus"] == 2
        gang.cordon(lost, on=False)
        await gang.go(10)
        assert not gang.cluster.gated("c2")
        assert gang.planned()["c2"] == lost

    run(scenario)


def test_two_replacements_do_not_share_with_one_another() -> None:
    gang = Running()

    async def scenario() -> None:
        await gang.start()
        lost = gang.node("b")
        gang.replace("b", "c")
        gang.cordon(lost, on=False)
        await gang.go(40)
        places = {name: node for name, node in gang.planned().items() if name in ("b2", "c2")}
        assert list(places.values()) == [lost]

    run(scenario)


@pytest.mark.parametrize("pods", [2, 4])
def test_pods_that_work_each_for_itself_share(pods: int) -> None:
    cluster = Cluster()
    cluster.add_node("n0")
    cluster.add_node("n1")

    async def scenario() -> None:
        spec = {"parallelism": pods, "completions": pods}
        cluster.api.create(JOBS, {"metadata": {"name": "j"}, "spec": spec}, "default")
        cluster.api.patch(NODES, "n1", {"spec": {"unschedulable": pods == 2}})
        for index in range(pods):
            body = raw_pod(f"p{index}", owner=("Job", "j"), annotations=SHARED)
            cluster.api.create(PODS, body)
        for _ in range(6):
            cluster.now += 1
            await cluster.cycle()
        assert not any(cluster.gated(f"p{index}") for index in range(pods))

    run(scenario)
