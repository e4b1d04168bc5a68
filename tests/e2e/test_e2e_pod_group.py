"""Kubernetes' own PodGroup on an API server that has it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from controlplane_binaries import need_control_plane
from e2e_cluster import TandemCluster, job

from controlplane import ControlPlane, Node, binaries, wait_until

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.slow,
    pytest.mark.xdist_group("pod-group"),
    pytest.mark.timeout(900),
]
#: Beta since 1.37, and off unless it is asked for.
GATES = ["--feature-gates=GenericWorkload=true", "--runtime-config=scheduling.k8s.io/v1beta1=true"]
EARLIER = ("v1.34.", "v1.36.")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TandemCluster]:
    """Two nodes of one GPU, and an API server with the feature gate."""
    need_control_plane()
    server = next(each for each in binaries.PROGRAMS if each.name == "kube-apiserver")
    if (version := binaries.version(server)).startswith(EARLIER):
        pytest.skip(f"no PodGroup in Kubernetes {version}")
    nodes = [Node("n0", cpu=32), Node("n1", cpu=32)]
    with ControlPlane.start(nodes=nodes, apiserver_args=GATES) as plane:
        cluster = TandemCluster(plane, tmp_path_factory.mktemp("tandem"))
        cluster.start(gpus_per_node=1)
        yield cluster


def group(cluster: TandemCluster, namespace: str, name: str, policy: dict[str, Any]) -> None:
    cluster.plane.apply(
        {
            "apiVersion": "scheduling.k8s.io/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"schedulingPolicy": policy},
        }
    )


def member(name: str, of: str) -> dict[str, Any]:
    """Return a Job of one whole GPU whose pod is in a group."""
    found = job(name, annotations={"tandem.gpu/exclusive": "true"})
    found["spec"]["template"]["spec"]["schedulingGroup"] = {"podGroupName": of}
    return found


def sizes(cluster: TandemCluster, namespace: str) -> dict[str, int]:
    return {
        each["metadata"]["name"]: each["spec"]["demand"]["gangSize"]
        for each in cluster.gpujobs(namespace)
    }


def test_the_pods_of_a_group_start_once_there_are_as_many_as_it_says(
    cluster: TandemCluster,
) -> None:
    namespace = cluster.namespace()
    group(cluster, namespace, "pair", {"gang": {"minCount": 2}})
    cluster.apply_job(namespace, member("first", "pair"))
    wait_until(lambda: sizes(cluster, namespace) == {"podgroup-pair": 2}, "the gang is known")
    pod = cluster.pod_of(namespace, "first")
    assert pod is not None
    assert pod["metadata"]["annotations"]["tandem.gpu/gpu-job"] == "podgroup-pair"
    assert not pod["spec"].get("nodeName"), "one of two does not start"
    cluster.apply_job(namespace, member("second", "pair"))
    for name in ("first", "second"):
        cluster.running(namespace, name)
    assert len(cluster.holders()) == 2
    cluster.remove(namespace)


def test_pods_wait_for_a_group_that_is_created_after_them(cluster: TandemCluster) -> None:
    namespace = cluster.namespace()
    cluster.apply_job(namespace, member("first", "late"))

    def said() -> bool:
        jobs = cluster.gpujobs(namespace)
        return any(
            cause["reason"] == "PodGroupMissing" and cause["workload"] == "PodGroup late"
            for each in jobs
            for cause in each.get("status", {}).get("causes", ())
        )

    wait_until(said, "the pod's event says that its group does not exist")
    group(cluster, namespace, "late", {"gang": {"minCount": 2}})
    wait_until(
        lambda: sizes(cluster, namespace) == {"podgroup-late": 2},
        "the group is found",
        timeout_s=180,
    )
    pod = cluster.pod_of(namespace, "first")
    assert pod is not None
    assert not pod["spec"].get("nodeName"), "one of two does not start"
    cluster.apply_job(namespace, member("second", "late"))
    for name in ("first", "second"):
        cluster.running(namespace, name)
    cluster.remove(namespace)


def test_the_pods_of_a_basic_group_start_each_alone(cluster: TandemCluster) -> None:
    namespace = cluster.namespace()
    group(cluster, namespace, "loose", {"basic": {}})
    for name in ("first", "second"):
        cluster.apply_job(namespace, member(name, "loose"))
        cluster.running(namespace, name)
    assert sizes(cluster, namespace) == {"podgroup-loose": 1}
    cluster.remove(namespace)
