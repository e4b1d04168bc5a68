"""What one tenant's unusual objects do to all others, on a real control plane: nothing.

The API server's own rules decide here: what it validates in which request, which versions it
serves, what its policies let Tandem's account do.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from controlplane_binaries import need_control_plane
from e2e_cluster import TandemCluster, job, ungated_pod

from controlplane import ControlPlane, Node, wait_until
from tandem.contracts import names
from tandem.policy.catalog import load_profile

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.slow,
    pytest.mark.xdist_group("one-tenant"),
    pytest.mark.timeout(900),
]

CAPPED = "capped"  # a namespace that may hold one GPU
PRIVATE_GATE = "example.com/data-is-there"
WHOLE = {names.EXCLUSIVE: "true"}
SAVES = {names.CHECKPOINT: "true", **WHOLE}
PLAN_LIFE_S = 6.0
THRESHOLD_GPU_S = 4.0
MERGE = {"Content-Type": "application/merge-patch+json"}

Object = dict[str, Any]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TandemCluster]:
    """One node of two GPUs; jobs give way after two seconds on both."""
    need_control_plane()
    profile = load_profile("tiresias-l").model_dump(mode="json")
    profile["order"] |= {"thresholds_gpu_s": [THRESHOLD_GPU_S]}
    settings = {
        "profile": profile,
        "queue": {
            "plan_life_s": PLAN_LIFE_S,
            "min_run_s": 0,
            "preemption_cost_s": 0,
            "max_preemptions_per_hour": 100,
            "quotas": [{"namespace": CAPPED, "max_gpus": 1}],
        },
    }
    with ControlPlane.start(nodes=[Node("n0", cpu=64)]) as plane:
        cluster = TandemCluster(plane, tmp_path_factory.mktemp("tandem"))
        cluster.start(gpus_per_node=2, nodes=("n0",), settings=settings)
        yield cluster


# --- the API, in few words ------------------------------------------------------------------------


def pod_path(pod: Object) -> str:
    metadata = pod["metadata"]
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"


def create(cluster: TandemCluster, path: str, body: Object) -> Object:
    answer = cluster.plane.http.post(path, json=body)
    assert answer.is_success, answer.text
    return answer.json()


def patch(cluster: TandemCluster, path: str, body: Object) -> Object:
    answer = cluster.plane.http.patch(path, json=body, headers=MERGE)
    assert answer.is_success, answer.text
    return answer.json()


def status_of(cluster: TandemCluster, namespace: str, gpujob: str) -> Object:
    path = f"/apis/{names.API_VERSION}/namespaces/{namespace}/gpujobs/{gpujob}"
    answer = cluster.plane.http.get(path)
    return answer.json().get("status") or {} if answer.is_success else {}


def held_in(cluster: TandemCluster, namespace: str) -> int:
    """Count the GPUs that pods of a namespace hold, from the API server alone."""
    return sum(
        bool(pod["spec"].get("nodeName"))
        for pod in cluster.pods(namespace)
        if pod["status"].get("phase") not in ("Succeeded", "Failed")
    )


def never_more_than_one(cluster: TandemCluster, namespace: str, until: Callable[[], bool]) -> None:
    """Watch how many GPUs a namespace holds, until all of its jobs have had their turn."""

    def done() -> bool:
        assert held_in(cluster, namespace) <= 1
        return until()

    wait_until(done, f"all jobs of {namespace} have had their turn", timeout_s=180, poll_s=0.2)


def all_ended(cluster: TandemCluster, namespace: str, count: int) -> bool:
    """Let each pod that runs end; say whether so many have."""
    phases = []
    for pod in cluster.pods(namespace):
        phases.append(pod["status"].get("phase"))
        annotations = pod["metadata"].get("annotations") or {}
        if phases[-1] == "Running" and "kwok.tandem.gpu/run-duration" not in annotations:
            body = {"metadata": {"annotations": {"kwok.tandem.gpu/run-duration": "1500ms"}}}
            patch(cluster, pod_path(pod), body)
    return phases.count("Succeeded") >= count


def ungated(cluster: TandemCluster, namespace: str) -> int:
    """Count the pods from which Tandem's gate has been removed."""
    gates = [
        [gate["name"] for gate in pod["spec"].get("schedulingGates") or ()]
        for pod in cluster.pods(namespace)
    ]
    return sum(names.SCHEDULING_GATE not in each for each in gates)


# --- quota, queue and hold ------------------------------------------------------------------------


def test_a_private_gate_next_to_tandems_carries_no_pod_past_the_quota(
    cluster: TandemCluster,
) -> None:
    cluster.namespace(CAPPED)
    for index in range(3):
        body = job(f"gated-{index}", annotations=WHOLE)
        body["spec"]["template"]["spec"]["schedulingGates"] = [{"name": PRIVATE_GATE}]
        cluster.apply_job(CAPPED, body)
    blocked = {f"job-gated-{index}" for index in range(3)}
    wait_until(
        lambda: all(
            status_of(cluster, CAPPED, each).get("reason") == "Blocked" for each in blocked
        ),
        "their GPUJobs say what they wait for",
    )
    # By now each would have had a plan, and let it expire.
    time.sleep(3 * PLAN_LIFE_S)
    assert ungated(cluster, CAPPED) == 0
    for pod in cluster.pods(CAPPED):
        patch(
            cluster,
            pod_path(pod),
            {"spec": {"schedulingGates": [{"name": names.SCHEDULING_GATE}]}},
        )
    never_more_than_one(cluster, CAPPED, lambda: all_ended(cluster, CAPPED, 3))
    cluster.remove(CAPPED)


def test_an_unbound_volume_claim_carries_no_pod_past_the_quota(cluster: TandemCluster) -> None:
    wait_until(
        lambda: cluster.plane.http.get(f"/api/v1/namespaces/{CAPPED}").status_code == 404,
        "the namespace of the test before is gone",
        timeout_s=120,
    )
    cluster.namespace(CAPPED)
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    for index in range(3):
        body = job(f"claims-{index}", annotations=WHOLE)
        body["spec"]["template"]["spec"]["volumes"] = [volume]
        cluster.apply_job(CAPPED, body)
    # Each has its plan in turn, cannot be scheduled, and lets the plan expire with its gate open.
    wait_until(lambda: ungated(cluster, CAPPED) == 3, "all gates are open", timeout_s=180)
    assert held_in(cluster, CAPPED) == 0
    # The controller that binds claims is not part of this control plane: it would write this.
    bound = {"pv.kubernetes.io/bind-completed": "yes"}
    claim = {
        "metadata": {"name": "data", "annotations": bound},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "volumeName": "data",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    create(cluster, f"/api/v1/namespaces/{CAPPED}/persistentvolumeclaims", claim)
    storage = {
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "capacity": {"storage": "1Gi"},
            "nfs": {"server": "127.0.0.1", "path": "/data"},
            "claimRef": {"namespace": CAPPED, "name": "data"},
        },
    }
    create(cluster, "/api/v1/persistentvolumes", storage)
    never_more_than_one(cluster, CAPPED, lambda: all_ended(cluster, CAPPED, 3))
    cluster.remove(CAPPED)


# --- a change of leader ---------------------------------------------------------------------------


def another_leads(cluster: TandemCluster) -> None:
    """Start the extender anew: it takes over as another replica would."""
    extender = cluster.plane.processes["extender"]
    extender.terminate()
    extender.start()
    ready = f"{cluster.installation.verbs_url}/readyz"

    def answers() -> bool:
        try:
            return httpx.get(ready, timeout=2.0, trust_env=False).is_success
        except httpx.HTTPError:
            return False

    wait_until(answers, "the extender is ready")


def runs_a_job(cluster: TandemCluster, namespace: str, name: str) -> None:
    body = job(name, annotations=WHOLE)
    wait_until(lambda: cluster.accepts(namespace, body), "the webhook is there")
    cluster.running(namespace, name)
    cluster.let_end(namespace, name)


def too_large(namespace: str, name: str, annotations: dict[str, str]) -> Object:
    """Return an ungated pod that is never placed: it waits for more GPUs than there are."""
    pod = ungated_pod(namespace, name, annotations)
    pod["spec"]["containers"][0]["resources"] = {
        part: {names.RESOURCE: 8} for part in ("requests", "limits")
    }
    return pod


def late_binding(cluster: TandemCluster, pod: Object) -> httpx.Response:
    """Send the Binding that an earlier leader has sent for this pod as it then was."""
    metadata = {
        key: pod["metadata"][key] for key in ("name", "namespace", "uid", "resourceVersion")
    }
    target = {"apiVersion": "v1", "kind": "Node", "name": "n0"}
    return cluster.plane.http.post(
        f"{pod_path(pod)}/binding", json={"metadata": metadata, "target": target}
    )


def test_a_pod_without_room_for_annotations_keeps_no_replica_from_leading(
    cluster: TandemCluster,
) -> None:
    full, others = cluster.namespace(), cluster.namespace()
    notes = {"example.com/notes": "x" * (names.ANNOTATION_BYTES - len("example.com/notes"))}
    with cluster.without_webhook():
        pods = f"/api/v1/namespaces/{full}/pods"
        created = create(cluster, pods, too_large(full, "full", notes))
    another_leads(cluster)
    runs_a_job(cluster, others, "other")
    # The pod itself waits, is not reached by what an earlier leader sent, and says why.
    answer = late_binding(cluster, created)
    assert answer.status_code == 409, answer.text
    now = cluster.read(pod_path(created))
    assert "nodeName" not in now["spec"]
    assert names.EPOCH in now["metadata"]["labels"]
    wait_until(
        lambda: status_of(cluster, full, "pod-full").get("reason") == "Blocked",
        "its GPUJob says that there is no room",
    )
    cluster.remove(full)
    cluster.remove(others)


@contextlib.contextmanager
def frozen_pods(cluster: TandemCluster, namespace: str) -> Iterator[None]:
    """Have a policy of somebody else refuse every update of the pods of a namespace."""
    base = "/apis/admissionregistration.k8s.io/v1"
    rules = [
        {
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "resources": ["pods"],
            "operations": ["UPDATE"],
        }
    ]
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    policy = {
        "metadata": {"name": "frozen"},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": rules, "namespaceSelector": selector},
            "validations": [{"expression": "false", "message": "pods are frozen"}],
        },
    }
    binding = {
        "metadata": {"name": "frozen"},
        "spec": {"policyName": "frozen", "validationActions": ["Deny"]},
    }
    create(cluster, f"{base}/validatingadmissionpolicies", policy)
    create(cluster, f"{base}/validatingadmissionpolicybindings", binding)
    try:
        yield
    finally:
        for kind in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
            cluster.plane.http.delete(f"{base}/{kind}/frozen").raise_for_status()


def test_a_pod_that_takes_no_change_at_all_is_evicted_and_keeps_no_replica_from_leading(
    cluster: TandemCluster,
) -> None:
    frozen, others = cluster.namespace(), cluster.namespace()
    with cluster.without_webhook():
        pod = create(cluster, f"/api/v1/namespaces/{frozen}/pods", too_large(frozen, "rigid", {}))

    with frozen_pods(cluster, frozen):

        def refused() -> bool:
            body = {"metadata": {"labels": {"probe": str(time.time_ns())}}}
            answer = cluster.plane.http.patch(pod_path(pod), json=body, headers=MERGE)
            return answer.status_code in (403, 422)

        wait_until(refused, "the policy is in force")
        another_leads(cluster)
        wait_until(lambda: not cluster.pods(frozen), "the pod has been evicted")
        runs_a_job(cluster, others, "other")
    cluster.remove(frozen)
    cluster.remove(others)


# --- preemption -----------------------------------------------------------------------------------


def mpi_definition(version: str, *, suspends: bool) -> Object:
    """Return the definition of MPIJobs, at one version, with or without a field to suspend them."""
    policy: Object = {"type": "object", "properties": {"cleanPodPolicy": {"type": "string"}}}
    if suspends:
        policy["properties"]["suspend"] = {"type": "boolean"}
    spec = {"type": "object", "properties": {"runPolicy": policy}}
    schema = {"type": "object", "properties": {"spec": spec}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "mpijobs.kubeflow.org"},
        "spec": {
            "group": "kubeflow.org",
            "names": {"kind": "MPIJob", "plural": "mpijobs", "singular": "mpijob"},
            "scope": "Namespaced",
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


@pytest.mark.parametrize(
    ("refers_to", "suspends"),
    [("v2beta1", True), ("v1", True), ("v2beta1", False)],
    ids=["served", "no-longer-served", "no-suspend"],
)
def test_a_preemption_of_a_job_of_another_version_ends(
    cluster: TandemCluster, refers_to: str, suspends: bool
) -> None:
    plane, namespace = cluster.plane, cluster.namespace()
    plane.apply(mpi_definition("v2beta1", suspends=suspends))
    plane.await_definitions("mpijobs.kubeflow.org")
    path = f"/apis/kubeflow.org/v2beta1/namespaces/{namespace}/mpijobs"
    body = {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": {"name": "mpi"}}
    wait_until(lambda: plane.http.get(path).is_success, "MPIJobs are served")
    owner = create(cluster, path, body | {"spec": {"runPolicy": {"cleanPodPolicy": "None"}}})
    reference = {
        "apiVersion": f"kubeflow.org/{refers_to}",
        "kind": "MPIJob",
        "name": "mpi",
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }
    pod = job("mpi-worker-0", annotations=SAVES, gpus=2)["spec"]["template"]
    pod["metadata"] |= {"name": "mpi-worker-0", "ownerReferences": [reference]}
    created = create(cluster, f"/api/v1/namespaces/{namespace}/pods", pod)

    def phase() -> str:
        return str(status_of(cluster, namespace, "mpijob-mpi").get("phase"))

    def suspended() -> bool:
        spec = cluster.read(f"{path}/mpi")["spec"]
        return bool(spec["runPolicy"].get("suspend"))

    def gone() -> bool:
        return plane.http.get(pod_path(created)).status_code == 404

    wait_until(lambda: phase() == "Running", "the MPIJob runs")
    time.sleep(THRESHOLD_GPU_S / 2 + 1)
    cluster.apply_job(namespace, job("new", annotations=WHOLE, gpus=2))
    if suspends:
        wait_until(suspended, "the MPIJob is suspended")
        assert phase() == "Preempting"
        plane.http.delete(pod_path(created)).raise_for_status()  # as its operator does
    wait_until(gone, "its pod is gone")
    cluster.running(namespace, "new")
    wait_until(lambda: phase() == "Suspended", "the MPIJob is back in the queue")
    assert not suspended()
    plane.kubectl("delete", "crd", "mpijobs.kubeflow.org")
    cluster.remove(namespace)


# --- nodes ----------------------------------------------------------------------------------------


def test_the_report_of_a_deleted_node_is_removed_and_that_of_a_node_that_is_away_is_not(
    cluster: TandemCluster,
) -> None:
    """The last test of this module: it deletes the node."""
    plane = cluster.plane
    report = f"/apis/{names.API_VERSION}/gpunodes/n0"
    (owner,) = cluster.read(report)["metadata"]["ownerReferences"]
    assert owner["uid"] == cluster.read("/api/v1/nodes/n0")["metadata"]["uid"]
    plane.processes["agent-n0"].terminate()
    time.sleep(5)
    assert plane.http.get(report).is_success
    plane.kubectl("delete", "node", "n0")
    wait_until(lambda: plane.http.get(report).status_code == 404, "the GPUNode is gone")
