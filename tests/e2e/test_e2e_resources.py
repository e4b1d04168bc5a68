"""Pods that ask for what only some nodes have besides GPUs, on a real control plane."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from controlplane_binaries import need_control_plane
from e2e_cluster import TandemCluster, job

from controlplane import ControlPlane, Node, wait_until

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.slow,
    pytest.mark.xdist_group("resources"),
    pytest.mark.timeout(900),
]

HCA = "rdma/hca"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TandemCluster]:
    """Two nodes of four GPUs; one of them has one RDMA device and 100 GiB of local storage."""
    need_control_plane()
    extended = {HCA: 1, "ephemeral-storage": "100Gi"}
    with ControlPlane.start(nodes=[Node("n0", extended=extended), Node("n1")]) as plane:
        cluster = TandemCluster(plane, tmp_path_factory.mktemp("tandem"))
        cluster.start(gpus_per_node=4)
        yield cluster


def asking(name: str, resource: str, amount: str) -> dict[str, Any]:
    found = job(name, annotations={"tandem.gpu/exclusive": "true"}, gpus=1)
    resources = found["spec"]["template"]["spec"]["containers"][0]["resources"]
    for part in ("limits", "requests"):
        resources.setdefault(part, {})[resource] = amount
    return found


def status_of(cluster: TandemCluster, namespace: str, name: str) -> dict[str, Any]:
    jobs = {each["metadata"]["name"]: each for each in cluster.gpujobs(namespace)}
    return jobs.get(f"job-{name}", {}).get("status") or {}


def test_one_of_two_pods_gets_the_only_device_and_the_other_hears_of_it(
    cluster: TandemCluster,
) -> None:
    namespace = cluster.namespace()
    cluster.apply_job(namespace, asking("first", HCA, "1"))
    assert cluster.running(namespace, "first")["spec"]["nodeName"] == "n0"
    cluster.apply_job(namespace, asking("second", HCA, "1"))

    def said() -> bool:
        status = status_of(cluster, namespace, "second")
        assert not status.get("plan")
        return f"too little {HCA} is free for its pods (less than 1)" in status.get("message", "")

    wait_until(said, "the second pod's event says what it waits for")
    assert len(cluster.holders()) == 1
    cluster.let_end(namespace, "first")
    assert cluster.running(namespace, "second")["spec"]["nodeName"] == "n0"
    cluster.remove(namespace)


def test_a_pod_that_no_node_has_room_for_holds_no_gpu(cluster: TandemCluster) -> None:
    namespace = cluster.namespace()
    cluster.apply_job(namespace, asking("large", "ephemeral-storage", "500Gi"))

    def said() -> bool:
        status = status_of(cluster, namespace, "large")
        assert not status.get("plan")
        assert not cluster.holders()
        return (
            "too little ephemeral-storage for its pods even if nothing else ran (less than 500Gi in"
            in status.get("message", "")
        )

    wait_until(said, "the pod's event says what it waits for")
    pod = cluster.pod_of(namespace, "large")
    assert pod is not None
    assert pod["spec"]["schedulingGates"]
    cluster.remove(namespace)


def test_a_gang_of_which_a_quota_refuses_a_pod_hears_of_the_quota(cluster: TandemCluster) -> None:
    namespace = cluster.namespace()
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "few"},
        "spec": {"hard": {"pods": "2"}},
    }
    cluster.apply_job(namespace, quota)
    gang = job("gang", annotations={"tandem.gpu/exclusive": "true"})
    gang["spec"] |= {"completionMode": "Indexed", "completions": 3, "parallelism": 3}
    cluster.apply_job(namespace, gang)

    def said() -> str:
        status = status_of(cluster, namespace, "gang")
        return status["message"] if status.get("reason") == "PodsMissing" else ""

    message = wait_until(said, "the gang's status says which pod is missing")
    assert message.startswith("Not all of its pods exist (2 of 3 do).")
    assert "(Job gang" in message
    wait_until(lambda: "exceeded quota: few" in said(), "the controller's words are shown")
    cluster.remove(namespace)
