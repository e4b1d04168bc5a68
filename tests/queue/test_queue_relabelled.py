"""Labels and owners that change on pods that live: no GPUJob more, and none for another pod."""

from __future__ import annotations

import json
from typing import Any

import pytest
from queue_builders import GIB, create_with_owner, raw_pod
from test_queue_controller import SHARED, Cluster, run

from tandem.contracts import names
from tandem.contracts.placement import PlacedWith, parse_placed_with
from tandem.kube.errors import Invalid, KubeError
from tandem.kube.resource import GPU_JOBS, PODS

GROUP = "scheduling.x-k8s.io/pod-group"


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    cluster.add_node("n0")
    cluster.add_node("n1")
    return cluster


def relabel(cluster: Cluster, name: str, group: str) -> None:
    cluster.api.patch(PODS, name, {"metadata": {"labels": {GROUP: group}}}, "default")


def marks(cluster: Cluster, name: str) -> tuple[str | None, PlacedWith | None]:
    found = cluster.pod(name)["metadata"]["annotations"]
    return found.get(names.GPU_JOB), parse_placed_with(found.get(names.PLACED_WITH, ""))


@pytest.mark.parametrize("runs", [True, False], ids=["running", "waiting"])
def test_forty_labels_make_one_gpujob_and_one_prediction(cluster: Cluster, runs: bool) -> None:
    async def scenario() -> None:
        gate = {"name": "example.com/data"}
        body = raw_pod("p", annotations=SHARED)
        if not runs:
            body["spec"]["schedulingGates"].append(gate)
        cluster.api.create(PODS, body)
        await cluster.cycle()
        if runs:
            cluster.bind_as_planned("p")
        for number in range(40):
            relabel(cluster, "p", f"g{number}")
            await cluster.cycle()
        assert [each["metadata"]["name"] for each in cluster.api.list(GPU_JOBS)] == ["pod-p"]
        assert cluster.predictions == 1

    run(scenario)


def test_a_relabelled_exclusive_pod_keeps_its_gpu_for_itself(cluster: Cluster) -> None:
    small = {"tandem.gpu/memory": "1Mi", "tandem.gpu/utilization": "1"}

    async def scenario() -> None:
        for name in ("whole", "other"):
            alone = {"tandem.gpu/exclusive": "true", "tandem.gpu/memory": "70Gi"}
            cluster.api.create(PODS, raw_pod(name, annotations=alone))
            await cluster.cycle()
            cluster.bind_as_planned(name)
        decoy = {GROUP: "decoy"}
        cluster.api.create(PODS, raw_pod("decoy", annotations=small, labels=decoy))
        await cluster.cycle()
        assert "group-decoy" in {each["metadata"]["name"] for each in cluster.api.list(GPU_JOBS)}
        relabel(cluster, "whole", "decoy")
        relabel(cluster, "other", "decoy")
        cluster.api.create(PODS, raw_pod("victim", annotations=small))
        for _ in range(3):
            await cluster.cycle()
        assert cluster.gated("victim")
        assert cluster.gated("decoy")

    run(scenario)


def test_pods_that_an_earlier_version_bound_are_marked_once(cluster: Cluster) -> None:
    async def scenario() -> None:
        cluster.api.create(PODS, raw_pod("p", annotations=SHARED))
        await cluster.cycle()
        cluster.bind_as_planned("p")
        bare = {names.GPU_JOB: None, names.PLACED_WITH: None}
        cluster.api.patch(PODS, "p", {"metadata": {"annotations": bare}}, "default")
        restarted = Cluster(api=cluster.api)
        for kind, resource in (("gpunodes", "gpunodes"), ("nodes", "nodes")):
            for each in cluster.state._objects.of(resource).values():
                restarted.state.apply(kind, each)
        for each in cluster.api.list(GPU_JOBS):
            restarted.state.upsert("gpujobs", each)
        restarted.state.upsert("pods", cluster.pod("p"))
        for _ in range(3):
            await restarted.cycle()
        gpujob, placed = marks(restarted, "p")
        assert gpujob == "pod-p"
        assert placed is not None
        assert (placed.memory_base_bytes, placed.memory_bytes) == (10 * GIB, 12 * GIB)
        version = restarted.pod("p")["metadata"]["resourceVersion"]
        for _ in range(3):
            await restarted.cycle()
        assert restarted.pod("p")["metadata"]["resourceVersion"] == version

    run(scenario)


def test_a_pod_on_whole_gpus_is_marked_again_once_its_need_is_known(cluster: Cluster) -> None:
    async def scenario() -> None:
        cluster.api.create(PODS, raw_pod("p"))
        await cluster.cycle()
        cluster.bind_as_planned("p")
        for _ in range(3):
            await cluster.cycle()
        assert marks(cluster, "p")[1] == PlacedWith(gpu_job="pod-p", exclusive=True)
        job = cluster.gpujob("pod-p")
        load = job["status"]["load"] | {
            "memoryBaseBytes": GIB, "memoryP95Bytes": GIB, "memorySource": "formula",
        }  # fmt: skip
        cluster.api.patch(
            GPU_JOBS, "pod-p", {"status": {"load": load}}, "default", subresource="status"
        )
        for _ in range(3):
            await cluster.cycle()
        placed = marks(cluster, "p")[1]
        assert placed is not None
        assert placed.memory_bytes == GIB
        assert placed.exclusive is None

    run(scenario)


def test_a_pod_that_cannot_be_marked_is_tried_once(cluster: Cluster) -> None:
    refused: list[dict[str, Any]] = []

    async def scenario() -> None:
        cluster.api.create(PODS, raw_pod("p", annotations=SHARED))
        await cluster.cycle()
        cluster.bind_as_planned("p")
        patch = cluster.api.patch

        def refusing(
            resource: Any, name: str, body: dict[str, Any], *args: Any, **more: Any
        ) -> Any:
            if names.PLACED_WITH in json.dumps(body):
                refused.append(body)
                error: KubeError = Invalid(422, "too long")
                raise error
            return patch(resource, name, body, *args, **more)

        cluster.api.patch = refusing  # type: ignore[method-assign]
        for number in range(5):
            relabel(cluster, "p", f"g{number}")
            await cluster.cycle()

    run(scenario)
    assert len(refused) == 1


def test_another_owner_of_a_running_pod_does_not_replace_its_gpujob(cluster: Cluster) -> None:
    async def scenario() -> None:
        create_with_owner(cluster.api, raw_pod("p", annotations=SHARED, owner=("Job", "j")))
        await cluster.cycle()
        cluster.bind_as_planned("p")
        await cluster.cycle()
        uid = cluster.gpujob("job-j")["metadata"]["uid"]
        for other in ("j", "k"):
            reference = raw_pod("q", owner=("Job", other))["metadata"]["ownerReferences"][0]
            changed = {"ownerReferences": [reference | {"uid": "another"}]}
            cluster.api.patch(PODS, "p", {"metadata": changed}, "default")
            for _ in range(3):
                await cluster.cycle()
            assert cluster.gpujob("job-j")["metadata"]["uid"] == uid

    run(scenario)
