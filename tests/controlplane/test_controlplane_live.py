"""What a real control plane on kwok does, so that the tests that stand on it may rely on it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from controlplane import ControlPlane, Node, binaries, wait_until
from tandem.errors import TandemError
from tandem.local import processes

pytestmark = pytest.mark.controlplane

NODE = "kwok-lifecycle"


@pytest.fixture(scope="module", autouse=True)
def node(control_plane: ControlPlane) -> Iterator[str]:
    control_plane.add_nodes([Node(NODE, labels={"pool": NODE}, cpu=8, memory="32Gi", pods=20)])
    yield NODE
    control_plane.kubectl("delete", "node", NODE)


def pod_spec() -> dict[str, Any]:
    return {
        "nodeSelector": {"pool": NODE},
        "restartPolicy": "Never",
        "containers": [{"name": "main", "image": "none"}],
    }


def pod(name: str, **annotations: str) -> dict[str, Any]:
    marks = {f"kwok.tandem.gpu/{key.replace('_', '-')}": v for key, v in annotations.items()}
    metadata = {"name": name, "annotations": marks}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec()}


def job(name: str, annotations: dict[str, str], **spec: Any) -> dict[str, Any]:
    template = {"metadata": {"annotations": annotations}, "spec": pod_spec()}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"template": template, **spec},
    }


def create(plane: ControlPlane, namespace: str, manifest: dict[str, Any]) -> None:
    plane.kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(manifest))


def phase(plane: ControlPlane, namespace: str, name: str) -> str:
    status: str = plane.get("pod", name, "-n", namespace)["status"]["phase"]
    return status


def wait_phase(plane: ControlPlane, namespace: str, name: str, wanted: str) -> None:
    wait_until(lambda: phase(plane, namespace, name) == wanted, f"pod {name} is {wanted}")


def test_is_the_version_that_is_pinned(control_plane: ControlPlane) -> None:
    server = next(p for p in binaries.PROGRAMS if p.name == "kube-apiserver")
    if binaries.find(server.name).parent != binaries.build_folder():
        pytest.skip("kube-apiserver is not our own build, so its version is whatever it is")
    answer = json.loads(control_plane.kubectl("version", "-o", "json"))
    assert answer["serverVersion"]["gitVersion"] == binaries.version(server)


def test_an_account_may_do_what_rbac_grants_it_and_no_more(
    control_plane: ControlPlane, namespace: str
) -> None:
    control_plane.kubectl("create", "serviceaccount", "reader", "-n", namespace)
    reader = control_plane.service_account_kubeconfig(namespace, "reader")
    with pytest.raises(TandemError, match=r"pods is forbidden.*reader"):
        control_plane.kubectl("get", "pods", "-n", namespace, kubeconfig=reader)

    control_plane.kubectl(
        *("create", "rolebinding", "reader", "--clusterrole=view", "-n", namespace),
        f"--serviceaccount={namespace}:reader",
    )
    control_plane.kubectl("get", "pods", "-n", namespace, kubeconfig=reader)
    with pytest.raises(TandemError, match="forbidden"):
        control_plane.kubectl("create", "configmap", "c", "-n", namespace, kubeconfig=reader)


def test_a_user_without_bindings_may_do_nothing(control_plane: ControlPlane) -> None:
    with pytest.raises(TandemError, match='User "mallory" cannot list resource "nodes"'):
        control_plane.kubectl("get", "nodes", kubeconfig=control_plane.kubeconfig("mallory"))


def test_a_token_bound_to_a_pod_names_its_node(control_plane: ControlPlane, namespace: str) -> None:
    create(control_plane, namespace, pod("agent"))
    wait_phase(control_plane, namespace, "agent", "Running")
    agent = control_plane.get("pod", "agent", "-n", namespace)
    user = control_plane.service_account_kubeconfig(namespace, "default", pod=agent)
    whoami = json.loads(control_plane.kubectl("auth", "whoami", "-o", "json", kubeconfig=user))
    extra = whoami["status"]["userInfo"]["extra"]
    assert extra["authentication.kubernetes.io/node-name"] == [NODE]


def test_a_token_for_an_account_that_is_not_there_is_a_clear_error(
    control_plane: ControlPlane, namespace: str
) -> None:
    with pytest.raises(TandemError, match=f"no token for service account {namespace}/absent"):
        control_plane.service_account_token(namespace, "absent")


def test_a_job_runs_to_its_end(control_plane: ControlPlane, namespace: str) -> None:
    short = {"kwok.tandem.gpu/run-duration": "300ms"}
    create(control_plane, namespace, job("train", short, completions=2, parallelism=2))
    control_plane.kubectl(
        "wait", "job/train", "-n", namespace, "--for=condition=Complete", "--timeout=120s"
    )
    pods = control_plane.get("pods", "-n", namespace)["items"]
    assert [p["status"]["phase"] for p in pods] == ["Succeeded"] * 2
    assert {p["spec"]["nodeName"] for p in pods} == {NODE}


def test_a_pod_ends_with_the_exit_code_of_its_annotation(
    control_plane: ControlPlane, namespace: str
) -> None:
    create(control_plane, namespace, pod("bad", run_duration="100ms", exit_code="3"))
    wait_phase(control_plane, namespace, "bad", "Failed")
    status = control_plane.get("pod", "bad", "-n", namespace)["status"]
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3


def test_a_deleted_pod_checkpoints_then_fails_then_is_gone(
    control_plane: ControlPlane, namespace: str
) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    version = control_plane.http.get(path).json()["metadata"]["resourceVersion"]
    create(control_plane, namespace, pod("saves", checkpoint_delay="2s"))
    wait_phase(control_plane, namespace, "saves", "Running")
    control_plane.kubectl("delete", "pod/saves", "-n", namespace, "--grace-period=60")

    pods = [e["object"] for e in control_plane.events_since(path, version)]
    phases = [p["status"]["phase"] for p in pods]
    assert sorted(set(phases), key=phases.index) == ["Pending", "Running", "Failed"]
    ended = pods[phases.index("Failed")]
    deleted_at = datetime.fromisoformat(ended["metadata"]["deletionTimestamp"]) - timedelta(
        seconds=60
    )
    terminated = ended["status"]["containerStatuses"][0]["state"]["terminated"]
    # Both times are cut to whole seconds.
    assert datetime.fromisoformat(terminated["finishedAt"]) - deleted_at >= timedelta(seconds=1)


def test_an_evicted_pod_is_replaced_only_after_it_has_failed(
    control_plane: ControlPlane, namespace: str
) -> None:
    saving = {"kwok.tandem.gpu/checkpoint-delay": "500ms"}
    ignore = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    manifest = job(
        *("train", saving), podReplacementPolicy="Failed", podFailurePolicy={"rules": [ignore]}
    )
    create(control_plane, namespace, manifest)

    def running() -> str:
        items = control_plane.get("pods", "-n", namespace)["items"]
        return next((p["metadata"]["name"] for p in items if p["status"]["phase"] == "Running"), "")

    first = wait_until(running, "the job runs")
    path = f"/api/v1/namespaces/{namespace}/pods"
    version = control_plane.http.get(path).json()["metadata"]["resourceVersion"]
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": first, "namespace": namespace},
    }
    control_plane.http.post(f"{path}/{first}/eviction", json=eviction).raise_for_status()
    wait_until(lambda: running() not in ("", first), "a replacement runs")

    events = control_plane.events_since(path, version)
    failed = [
        e["object"]["metadata"]["name"] == first and e["object"]["status"]["phase"] == "Failed"
        for e in events
    ].index(True)
    added = [e["type"] for e in events].index("ADDED")
    assert failed < added, "the replacement was made while the first pod was still alive"
    assert control_plane.get("job", "train", "-n", namespace)["status"].get("failed", 0) == 0


@pytest.mark.parametrize("name", ["kube-apiserver", "etcd"])
def test_a_killed_server_comes_back_with_its_data(
    control_plane: ControlPlane, namespace: str, name: str
) -> None:
    control_plane.kubectl("create", "configmap", "kept", "-n", namespace, "--from-literal=a=b")
    process = control_plane.processes[name]
    before = process.pid
    process.kill()
    assert not process.running
    process.start()
    control_plane.wait_ready()
    assert process.pid != before
    assert control_plane.get("configmap", "kept", "-n", namespace)["data"] == {"a": "b"}


def test_a_paused_scheduler_binds_nothing_until_it_is_resumed(
    control_plane: ControlPlane, namespace: str
) -> None:
    scheduler = control_plane.processes["kube-scheduler"]
    scheduler.pause()
    try:
        create(control_plane, namespace, pod("waits"))
        with pytest.raises(TandemError, match="without success until pod waits is bound"):
            wait_until(
                lambda: control_plane.get("pod", "waits", "-n", namespace)["spec"].get("nodeName"),
                "pod waits is bound",
                timeout_s=1,
            )
    finally:
        scheduler.resume()
    wait_phase(control_plane, namespace, "waits", "Running")


def electing(namespace: str) -> dict[str, Any]:
    """Return a configuration of a kube-scheduler that holds the Lease `elected`."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {
            "leaderElect": True,
            "resourceNamespace": namespace,
            "resourceName": "elected",
            "leaseDuration": "3s",
            "renewDeadline": "2s",
            "retryPeriod": "500ms",
        },
    }


def lease_path(namespace: str) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/elected"


def lease_holder(plane: ControlPlane, namespace: str) -> str:
    found = plane.http.get(lease_path(namespace))
    identity = found.json()["spec"]["holderIdentity"] if found.is_success else ""
    return str(identity).split("_")[0]


def test_a_scheduler_that_loses_its_lease_is_started_again(
    control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As its kubelet does: a busy machine must not leave a plane without a scheduler."""
    monkeypatch.setattr(processes, "_STARTED_S", 0.0)
    process = control_plane.start_scheduler(
        "lone",
        config=electing(namespace),
        kubeconfig=control_plane.kubeconfig(),
        hostname="lone",
        wait=False,
    )
    try:
        wait_until(lambda: lease_holder(control_plane, namespace) == "lone", "it is elected")
        first = process.pid
        body = {"spec": {"holderIdentity": "thief", "renewTime": "2100-01-01T00:00:00.000000Z"}}
        control_plane.http.patch(
            lease_path(namespace),
            json=body,
            headers={"content-type": "application/merge-patch+json"},
        ).raise_for_status()
        wait_until(lambda: process.pid != first and process.running, "it is started again")
        control_plane.http.delete(lease_path(namespace)).raise_for_status()
        wait_until(lambda: lease_holder(control_plane, namespace) == "lone", "it leads again")
    finally:
        control_plane.processes.pop("lone").kill()


def test_two_schedulers_under_host_names_of_their_own_elect_one(
    control_plane: ControlPlane, namespace: str
) -> None:
    config = electing(namespace)

    def holder() -> str:
        return lease_holder(control_plane, namespace)

    admin = control_plane.kubeconfig()
    for name in ("left", "right"):
        control_plane.start_scheduler(
            name, config=config, kubeconfig=admin, hostname=name, wait=False
        )
    try:
        leader = wait_until(holder, "one is elected")
        other = {"left": "right", "right": "left"}[leader]
        control_plane.processes[leader].kill()
        wait_until(lambda: holder() == other, f"{other} takes over")
    finally:
        for name in ("left", "right"):
            control_plane.processes.pop(name).kill()


def test_up_status_and_down_at_the_command_line(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    def tandem(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [Path(sys.executable).with_name("tandem"), "controlplane", *args],
            capture_output=True,
            text=True,
            env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
        )

    try:
        up = json.loads(tandem("up", "--nodes", "1", "--no-scheduler", "--json").stdout)
        nodes = control_plane.kubectl("get", "nodes", kubeconfig=Path(up["kubeconfig"]))
        assert "node-0" in nodes
        assert up["url"] != control_plane.url
        again = tandem("up", "--nodes", "5", "--json")
        assert json.loads(again.stdout) == up
        assert "runs already" in again.stderr
        os.kill(up["processes"]["kwok"]["pid"], signal.SIGKILL)
        wait_until(
            lambda: (
                not json.loads(tandem("status", "--json").stdout)["processes"]["kwok"]["running"]
            ),
            "status tells that kwok has ended",
        )
    finally:
        assert tandem("down").stderr == "Stopped.\n"
    assert tandem("status").returncode == 1
    assert not Path(up["folder"]).exists()
    assert not Path(up["kubeconfig"]).exists()


def test_a_node_that_kubectl_made_becomes_ready(control_plane: ControlPlane) -> None:
    control_plane.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "by-hand"}})
    control_plane.kubectl("wait", "node/by-hand", "--for=condition=Ready", "--timeout=120s")
    control_plane.kubectl("delete", "node", "by-hand")


def test_a_node_that_is_there_already_is_a_clear_error(control_plane: ControlPlane) -> None:
    with pytest.raises(TandemError, match=f'node {NODE} was refused: nodes "{NODE}" already'):
        control_plane.add_node(NODE)


def test_a_program_that_does_not_start_is_an_error_with_the_end_of_its_log(
    control_plane: ControlPlane,
) -> None:
    with pytest.raises(TandemError, match="kube-apiserver ended with status 1") as caught:
        ControlPlane.start(apiserver_args=["--no-such-flag"])
    assert "unknown flag: --no-such-flag" in caught.value.message


def test_a_definition_is_awaited_though_it_is_not_there_yet(control_plane: ControlPlane) -> None:
    names = {"kind": "Late", "plural": "lates", "singular": "late"}
    version = {"name": "v1", "served": True, "storage": True}
    version["schema"] = {"openAPIV3Schema": {"type": "object"}}
    spec = {"group": "controlplane.test", "names": names, "scope": "Cluster", "versions": [version]}
    late = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "lates.controlplane.test"},
        "spec": spec,
    }
    apply = threading.Timer(0.5, control_plane.apply, [late])
    apply.start()
    try:
        control_plane.await_definitions("lates.controlplane.test")
    finally:
        apply.join()
        control_plane.kubectl("delete", "crd", "lates.controlplane.test")
