"""The planned node is nominated: what the real kube-scheduler makes of it when the node changes.

The extender is stopped between the nomination of a pod and the removal of its gate, so that the
cluster is another one when kube-scheduler sees the pod.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from controlplane_binaries import need_control_plane
from e2e_cluster import DEVICES, TandemCluster, job
from e2e_pairs import stopped

from controlplane import ControlPlane, Node, wait_until
from scheduler_extender.faults import VARIABLE
from tandem.local.processes import Process

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.slow,
    pytest.mark.xdist_group("nomination"),
    pytest.mark.timeout(1200),
]

NODES = ("n0", "n1")
CPU = 8
WHOLE = {"tandem.gpu/exclusive": "true"}
PLAN_LIFE_S = 8.0


class Site:
    """Two nodes of one GPU, and an extender that stops or dies where the fault file says."""

    def __init__(self, cluster: TandemCluster, settings: dict[str, Any]) -> None:
        self.cluster, self.plane = cluster, cluster.plane
        self.fault = cluster.plane.folder / "fault"
        self._settings = settings

    def start(self, plan_life_s: float = PLAN_LIFE_S) -> None:
        settings = self._settings | {"queue": {"plan_life_s": plan_life_s}}
        self.cluster.installation.start_extender(settings, env={VARIABLE: f"@{self.fault}"})

    @property
    def extender(self) -> Process:
        return self.plane.processes["extender"]

    def nominated(self, namespace: str, name: str) -> str:
        pod = self.cluster.pod_of(namespace, name)
        return pod["status"].get("nominatedNodeName", "") if pod is not None else ""

    def until_nominated(self, namespace: str, name: str, how: str = "stop") -> str:
        """Submit a job; stop or kill the extender once its pod is nominated; return the node."""
        self.fault.write_text(f"gate-nominated:1:{how}" if how == "stop" else "gate-nominated")
        self.cluster.apply_job(namespace, asking(name))
        if how == "stop":
            wait_until(lambda: stopped(self.extender), "the extender is stopped", timeout_s=60)
        else:
            wait_until(lambda: not self.extender.running, "the extender died", timeout_s=60)
        node = self.nominated(namespace, name)
        assert node in NODES
        pod = self.cluster.pod_of(namespace, name)
        assert pod is not None
        assert pod["spec"]["schedulingGates"], "the gate is closed still"
        return node


def asking(name: str, cpu: int = 2) -> dict[str, Any]:
    found = job(name, annotations=WHOLE)
    container = found["spec"]["template"]["spec"]["containers"][0]
    container["resources"]["requests"] = {"cpu": cpu, "tandem.gpu/gpu": 1}
    return found


def other(node: str) -> str:
    return next(each for each in NODES if each != node)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    need_control_plane()
    settings = {"stale_after_s": 3600, "queue": {"plan_life_s": PLAN_LIFE_S}}
    with ControlPlane.start(nodes=[Node(name, cpu=CPU) for name in NODES]) as plane:
        cluster = TandemCluster(plane, tmp_path_factory.mktemp("tandem"))
        cluster.start(gpus_per_node=1, nodes=NODES, settings=settings)
        site = Site(cluster, settings)
        plane.processes["extender"].kill()
        site.start()
        yield site


@pytest.fixture
def namespace(site: Site) -> Iterator[str]:
    name = site.cluster.namespace()
    yield name
    site.fault.unlink(missing_ok=True)
    if not site.extender.running:
        site.start()
    os.kill(site.extender.pid, signal.SIGCONT)
    site.cluster.remove(name)
    site.plane.await_gone(name)


def events_of(site: Site, namespace: str, version: str) -> list[dict[str, Any]]:
    """Return all states of the pods of a namespace since a version, in their order."""
    events = site.plane.events_since(f"/api/v1/namespaces/{namespace}/pods", version)
    return [event["object"] for event in events]


def now(site: Site, namespace: str) -> str:
    listed = site.cluster.read(f"/api/v1/namespaces/{namespace}/pods")
    return str(listed["metadata"]["resourceVersion"])


def test_a_pod_is_nominated_before_its_gate_opens_and_the_binding_ends_that(
    site: Site, namespace: str
) -> None:
    version = now(site, namespace)
    site.cluster.apply_job(namespace, asking("train"))
    pod = site.cluster.running(namespace, "train")
    states = [
        (
            bool(state["spec"].get("schedulingGates")),
            state["status"].get("nominatedNodeName", ""),
            state["spec"].get("nodeName", ""),
        )
        for state in events_of(site, namespace, version)
    ]
    node = pod["spec"]["nodeName"]
    path = list(dict.fromkeys(states))
    assert path == [(True, "", ""), (True, node, ""), (False, node, ""), (False, "", node)]


def cordon(site: Site, node: str) -> None:
    site.plane.kubectl("cordon", node)


def taint(site: Site, node: str) -> None:
    site.plane.kubectl("taint", "node", node, "example.com/broken=:NoSchedule")


def fill(site: Site, node: str) -> None:
    """Let a pod of lower priority, which no scheduler placed, take all CPU of a node."""
    site.plane.apply(
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "low"},
            "value": -10,
        }
    )
    resources = {"requests": {"cpu": str(CPU)}}
    site.plane.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "filler", "namespace": "default"},
            "spec": {
                "nodeName": node,
                "priorityClassName": "low",
                "containers": [{"name": "c", "image": "c:1", "resources": resources}],
            },
        }
    )


def restore(site: Site, node: str) -> None:
    """Let a node be as it was."""
    site.plane.kubectl("delete", "pod", "-n", "default", "filler", "--ignore-not-found")
    site.plane.kubectl("uncordon", node)
    taints = {"spec": {"taints": None}}
    merge = {"Content-Type": "application/merge-patch+json"}
    site.plane.http.patch(f"/api/v1/nodes/{node}", json=taints, headers=merge).raise_for_status()


@pytest.mark.parametrize("change", [cordon, taint, fill], ids=lambda f: f.__name__)
def test_a_pod_whose_nominated_node_does_not_do_any_more_goes_to_another(
    site: Site, namespace: str, change: Any
) -> None:
    node = site.until_nominated(namespace, "train")
    change(site, node)
    try:
        os.kill(site.extender.pid, signal.SIGCONT)
        pod = site.cluster.running(namespace, "train")
        assert pod["spec"]["nodeName"] == other(node)
        assert pod["metadata"]["annotations"][DEVICES] == f"GPU-{other(node)}-0"
        assert not site.nominated(namespace, "train")
        if change is fill:
            filler = site.plane.get("pod", "-n", "default", "filler")
            assert "deletionTimestamp" not in filler["metadata"], "no pod is preempted for it"
    finally:
        restore(site, node)


def test_the_next_leader_opens_the_gate_of_a_pod_that_was_nominated(
    site: Site, namespace: str
) -> None:
    site.extender.kill()
    site.start(plan_life_s=600)  # however long the next one takes to begin
    node = site.until_nominated(namespace, "train", "kill")
    site.start()
    pod = site.cluster.running(namespace, "train")
    assert pod["spec"]["nodeName"] == node


def test_a_nomination_of_an_old_plan_is_replaced_by_that_of_the_next(
    site: Site, namespace: str
) -> None:
    node = site.until_nominated(namespace, "train", "kill")
    version = now(site, namespace)
    (gpujob,) = site.cluster.gpujobs(namespace)
    deadline = gpujob["status"]["plan"]["deadline"]
    cordon(site, node)
    try:
        wait_until(
            lambda: past(deadline),
            "the plan has expired",
            timeout_s=10 * PLAN_LIFE_S,
        )
        site.start()
        pod = site.cluster.running(namespace, "train")
        assert pod["spec"]["nodeName"] == other(node)
        opened = [
            state["status"].get("nominatedNodeName", "")
            for state in events_of(site, namespace, version)
            if not state["spec"].get("schedulingGates") and not state["spec"].get("nodeName")
        ]
        assert set(opened) == {other(node)}
    finally:
        restore(site, node)


def test_a_nomination_ends_when_a_plan_expires_without_a_binding(
    site: Site, namespace: str
) -> None:
    """kube-scheduler reserves the CPU of a nominated node for the pod until then."""
    claim = asking("train")
    claim["spec"]["template"]["spec"]["volumes"] = [
        {"name": "data", "persistentVolumeClaim": {"claimName": "not-there"}}
    ]
    version = now(site, namespace)
    site.cluster.apply_job(namespace, claim)

    def cleared() -> bool:
        seen = [
            state["status"].get("nominatedNodeName", "")
            for state in events_of(site, namespace, version)
        ]
        return "" in seen[next((i for i, each in enumerate(seen) if each), len(seen)) :]

    wait_until(cleared, "the nomination was made and taken back", timeout_s=10 * PLAN_LIFE_S)


def test_what_a_pod_is_created_with_nominates_nothing(site: Site, namespace: str) -> None:
    """The status at creation, and in a write of the pod itself, is dropped by the API server."""
    body = asking("train")["spec"]["template"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "annotations": WHOLE},
        "spec": body["spec"],
        "status": {"nominatedNodeName": "n1"},
    }
    path = f"/api/v1/namespaces/{namespace}/pods"
    created = site.plane.http.post(path, json=pod).raise_for_status().json()
    assert "nominatedNodeName" not in created["status"]


def test_a_pod_whose_nominated_node_is_deleted_goes_to_another(site: Site, namespace: str) -> None:
    """The last test: with the node goes its agent's pod, by whose token the agent reports."""
    node = site.until_nominated(namespace, "train")
    site.plane.kubectl("delete", "node", node)
    os.kill(site.extender.pid, signal.SIGCONT)
    assert site.cluster.running(namespace, "train")["spec"]["nodeName"] == other(node)


def past(deadline: str) -> bool:
    return datetime.now(UTC) > datetime.fromisoformat(deadline)
