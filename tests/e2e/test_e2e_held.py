"""GPUs that pods hold without running: after their deletion, and before their containers start."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from controlplane_binaries import need_control_plane
from e2e_cluster import TandemCluster, job

from controlplane import ControlPlane, Node, wait_until

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.slow,
    pytest.mark.xdist_group("held"),
    pytest.mark.timeout(1800),
]

CAPPED = "held-capped"
ALONE = {"tandem.gpu/exclusive": "true"}
START_WITHIN_S = 30.0
FOR_EVER_S = 2**31 - 1


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TandemCluster]:
    """Four GPUs; one namespace may have one of them."""
    need_control_plane()
    settings: dict[str, Any] = {
        "queue": {
            "quotas": [{"namespace": CAPPED, "max_gpus": 1}],
            "start_within_s": START_WITHIN_S,
            "pull_within_s": START_WITHIN_S,
        }
    }
    with ControlPlane.start(nodes=[Node("n0", cpu=64)]) as plane:
        cluster = TandemCluster(plane, tmp_path_factory.mktemp("tandem"))
        cluster.start(gpus_per_node=4, nodes=("n0",), settings=settings)
        yield cluster


def endless(name: str, grace_s: int = 3600) -> dict[str, Any]:
    """Return a Job whose pod does not end before its grace period."""
    body = job(name, annotations={**ALONE, "kwok.tandem.gpu/ignores-sigterm": "true"})
    body["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = grace_s
    return body


def names_of(cluster: TandemCluster, namespace: str) -> set[str]:
    return {each["metadata"]["name"] for each in cluster.gpujobs(namespace)}


def delete_pod(cluster: TandemCluster, namespace: str, pod: str, grace_s: int) -> dict[str, Any]:
    """Delete a pod with a grace period of its own; return it as it then is."""
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}"
    options = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": grace_s}
    answer = cluster.plane.http.request("DELETE", path, content=json.dumps(options))
    return answer.raise_for_status().json()


def test_gpus_of_a_deleted_job_count_until_its_pods_have_ended(cluster: TandemCluster) -> None:
    cluster.namespace(CAPPED)
    cluster.apply_job(CAPPED, endless("first"))
    pod = cluster.running(CAPPED, "first")["metadata"]["name"]
    cluster.plane.kubectl("delete", "job", "-n", CAPPED, "first", "--wait=false")
    wait_until(lambda: "job-first" not in names_of(cluster, CAPPED), "its GPUJob is gone")
    cluster.apply_job(CAPPED, job("second", annotations=ALONE))
    reason = cluster.waiting_reason(CAPPED, "second")
    assert (
        f"Namespace {CAPPED} would hold more GPUs than it may (1 held, 1 more asked for, 1 allowed)"
        in reason
    )
    # A later deletion only shortens what is left, and the kubelet ends the pod by then.
    going = delete_pod(cluster, CAPPED, pod, FOR_EVER_S)["metadata"]
    assert going["deletionGracePeriodSeconds"] == 3600
    delete_pod(cluster, CAPPED, pod, 1)
    cluster.running(CAPPED, "second")
    cluster.remove(CAPPED)


def test_a_grace_period_that_a_deletion_states_is_cut(cluster: TandemCluster) -> None:
    namespace = cluster.namespace()
    refused = endless("days", FOR_EVER_S)
    with pytest.raises(Exception, match="write 3600 or less"):
        cluster.apply_job(namespace, refused)
    cluster.apply_job(namespace, endless("first"))
    pod = cluster.running(namespace, "first")["metadata"]["name"]
    delete_pod(cluster, namespace, pod, FOR_EVER_S)
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}"
    wait_until(
        lambda: cluster.read(path)["metadata"]["deletionGracePeriodSeconds"] == 3600,
        "its grace period is cut",
    )
    delete_pod(cluster, namespace, pod, 1)
    cluster.remove(namespace)


def test_a_job_whose_containers_do_not_start_gives_its_gpus_to_others(
    cluster: TandemCluster,
) -> None:
    namespace = cluster.namespace()
    never = job("never", annotations={**ALONE, "kwok.tandem.gpu/never-starts": "true"}, gpus=4)
    cluster.apply_job(namespace, never)
    wait_until(lambda: len(cluster.holders()) == 4, "it holds all GPUs")
    cluster.apply_job(namespace, job("next", annotations=ALONE, gpus=4))

    def status() -> dict[str, Any]:
        found = (e for e in cluster.gpujobs(namespace) if e["metadata"]["name"] == "job-never")
        return next((each.get("status") or {} for each in found), {})

    def queued() -> dict[str, Any] | None:
        now = status()
        return now if (now.get("phase"), now.get("reason")) == ("Queued", "NeverStarted") else None

    said = wait_until(queued, "it is queued again", timeout_s=START_WITHIN_S + 120)
    assert said["failedStarts"] == 1
    assert "Its containers did not start in time" in said["message"]
    assert "It is placed again after a pause" in said["message"]
    cluster.running(namespace, "next")
    events = cluster.read(f"/api/v1/namespaces/{namespace}/events")["items"]
    assert any(event["reason"] == "NeverStarted" for event in events)
    again = cluster.pod_of(namespace, "never")
    assert again is None or again["spec"].get("schedulingGates")
    cluster.remove(namespace)
