"""The agent on a real API server, under its own account's rights."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import parse_qsl

import pytest
import yaml

from controlplane import manifests, wait_until
from node_agent.deviceplugin import refuse_with_device_plugin
from node_agent.extenderpods import ExtenderPods
from node_agent.publish import WriteError, gpu_node
from node_agent.stub import StubError, StubGpu, StubProcess, StubState, environment
from node_agent.tokens import TokenReviewer
from node_agent.writers import KubeWriter
from tandem.contracts import names
from tandem.contracts.nodepods import NodePod, NodePodList
from tandem.contracts.resources import GPU, GPUNodeStatus
from tandem.errors import TandemError
from tandem.kube.client import KubeClient
from tandem.kube.errors import Forbidden
from tandem.kube.resource import GPU_NODES, NODES

pytestmark = pytest.mark.controlplane

ROOT = Path(__file__).parents[2]
POLICY = ROOT / "helm" / "agent-policy.yaml"
GIB = 1 << 30
STAMP = "2026-01-02T03:04:05Z"


@pytest.fixture(scope="module")
def installed(control_plane):
    """The definitions, the agents' account with its rights, and two nodes with an agent's pod each.

    Returns kubeconfigs by node; their tokens are bound to the pods, as kubelet's are.
    """
    for path in sorted((ROOT / "helm/tandem/crds").glob("*.yaml")):
        control_plane.apply(path)
    control_plane.await_definitions("gpunodes.tandem.gpu", "gpujobs.tandem.gpu")
    control_plane.apply(manifests.objects(*manifests.FOUNDATIONS))
    control_plane.apply(POLICY)
    users = {}
    control_plane.add_node("agent-c")
    for node in ("agent-a", "agent-b"):
        control_plane.add_node(node)
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"agent-on-{node}", "namespace": names.AGENT_NAMESPACE},
            "spec": {
                "nodeName": node,
                "serviceAccountName": "tandem-agent",
                "containers": [{"name": "agent", "image": "x"}],
            },
        }
        control_plane.apply(pod)
        found = control_plane.get("pod", f"agent-on-{node}", "-n", names.AGENT_NAMESPACE)
        users[node] = control_plane.service_account_kubeconfig(
            names.AGENT_NAMESPACE, "tandem-agent", pod=found
        )
    yield users
    control_plane.kubectl("delete", "-f", str(POLICY))
    control_plane.kubectl("delete", "node", "agent-c", *users)
    control_plane.kubectl("delete", "gpunodes", "--ignore-not-found", *users)


@pytest.fixture
def client(installed):
    client = KubeClient.load(installed["agent-a"])
    yield client
    client.close()


def status(**changes):
    gpu = GPU(uuid="GPU-a", index=0, model="A100", memory_bytes=80 * GIB, **changes)
    return GPUNodeStatus(observed_at=STAMP, gpus=[gpu])


def test_status_is_created_replaced_and_read_back(client):
    writer = KubeWriter(client)
    assert writer.read("agent-a") is None
    writer.write("agent-a", gpu_node("agent-a", status(temperature_celsius=40)))
    writer.write("agent-a", gpu_node("agent-a", status(power_watts=70)))
    (gpu,) = writer.read("agent-a")["status"]["gpus"]
    assert gpu["powerWatts"] == 70
    assert "temperatureCelsius" not in gpu, "what is absent now does not stay from before"


def test_write_that_was_given_up_cannot_replace_a_newer_one(client):
    writer, late = KubeWriter(client), KubeWriter(client)
    late.write("agent-a", gpu_node("agent-a", status()))
    writer.write("agent-a", gpu_node("agent-a", status(power_watts=70)))
    with pytest.raises(WriteError, match="modified"):
        late.write("agent-a", gpu_node("agent-a", status(power_watts=1)))
    late.write("agent-a", gpu_node("agent-a", status(power_watts=80)))
    assert late.read("agent-a")["status"]["gpus"][0]["powerWatts"] == 80


def test_agent_of_one_node_cannot_write_another(client, installed):
    def refused(node):
        try:
            KubeWriter(client).write(node, gpu_node(node, status()))
        except WriteError as error:
            return str(error)
        return ""

    # The policy takes a moment to be in force.
    wait_until(lambda: refused("agent-c"), "the policy is in force")
    assert "own node only, which is: agent-a" in refused("agent-c")
    other = KubeClient.load(installed["agent-b"])
    KubeWriter(other).write("agent-b", gpu_node("agent-b", status()))
    other.close()
    assert "own node only" in refused("agent-b")
    assert refused("agent-a") == ""


def test_token_without_a_node_writes_nothing(control_plane, client):
    path = control_plane.service_account_kubeconfig(names.AGENT_NAMESPACE, "tandem-agent")
    loose = KubeClient.load(path)

    def refused():
        try:
            KubeWriter(loose).write("agent-a", gpu_node("agent-a", status()))
        except WriteError as error:
            return str(error)
        return ""

    wait_until(refused, "the policy is in force")
    assert "bound to no pod" in refused()
    loose.close()


def test_daemon_set_is_valid(control_plane, installed):
    (agent,) = manifests.objects("DaemonSet")
    control_plane.kubectl("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(agent))


def test_refuses_to_run_next_to_a_device_plugin(control_plane, client, installed):
    refuse_with_device_plugin(client, "agent-a")
    refuse_with_device_plugin(client, "no-such-node")
    node = ("patch", "node", "agent-b", "--subresource=status", "--type=merge", "-p")

    def offer(amounts):
        control_plane.kubectl(*node, json.dumps({"status": {"capacity": amounts}}))

    for resource, amount in (
        ("nvidia.com/gpu", "8"),
        ("nvidia.com/gpu", "1k"),
        ("nvidia.com/gpu.shared", "1000"),
        ("nvidia.com/mig-1g.5gb", "7"),
    ):
        offer({resource: amount, "nvidia.com/hostdev": "4"})
        shown = f"hands out {amount.replace('000', 'k')} {resource} through"
        with pytest.raises(TandemError, match=shown) as refusal:
            refuse_with_device_plugin(client, "agent-b")
        assert "device-plugin=false" in refusal.value.hint
        # A plugin that has gone leaves zeros.
        offer({resource: "0"})
        refuse_with_device_plugin(client, "agent-b")
    gone = ("nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb")
    offer(dict.fromkeys((*gone, "nvidia.com/hostdev")))


def test_agent_may_not_evict_or_write_nodes(client):
    with pytest.raises(Forbidden):
        client.evict(names.AGENT_NAMESPACE, "agent-on-agent-b", uid="u")
    with pytest.raises(Forbidden):
        client.patch(NODES, "agent-a", {"metadata": {"labels": {"x": "y"}}})


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/pods",
        "/api/v1/pods?fieldSelector=spec.nodeName%3Dagent-a",
        f"/api/v1/namespaces/{names.AGENT_NAMESPACE}/pods",
        f"/api/v1/namespaces/{names.AGENT_NAMESPACE}/pods/agent-on-agent-a",
        "/api/v1/secrets",
        f"/apis/{names.API_VERSION}/gpujobs",
        f"/apis/{names.API_VERSION}/namespaces/default/gpujobs/job-x",
        "/api/v1/nodes",
        "/api/v1/nodes/agent-a/proxy/pods",
    ],
)
def test_agent_may_read_no_pods_and_no_jobs(client, path):
    path, _, query = path.partition("?")
    with pytest.raises(Forbidden):
        client.request("GET", path, dict(parse_qsl(query)))


def test_field_selectors_bind_no_service_account(control_plane, installed, client):
    """Why agents ask the extender: RBAC lets an account list all pods or none (decision 37)."""
    control_plane.apply(
        [
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRole",
                "metadata": {"name": "lists-pods"},
                "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}],
            },
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": "lists-pods"},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "ClusterRole",
                    "name": "lists-pods",
                },
                "subjects": [
                    {
                        "kind": "ServiceAccount",
                        "name": "tandem-agent",
                        "namespace": names.AGENT_NAMESPACE,
                    }
                ],
            },
        ]
    )

    def listed(**query):
        try:
            found = client.request("GET", "/api/v1/pods", query)["items"]
        except Forbidden:
            return set()
        return {each["metadata"]["name"] for each in found}

    try:
        own = {"agent-on-agent-a"}
        wait_until(lambda: own <= listed(fieldSelector="spec.nodeName=agent-a"), "the right holds")
        assert "agent-on-agent-b" in listed(fieldSelector="spec.nodeName=agent-b")
        assert {"agent-on-agent-a", "agent-on-agent-b"} <= listed()
    finally:
        control_plane.kubectl("delete", "clusterrole,clusterrolebinding", "lists-pods")


def test_token_of_a_pod_says_which_pod_it_is(control_plane, namespace, client):
    control_plane.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "train", "namespace": namespace},
            "spec": {"nodeName": "agent-a", "containers": [{"name": "main", "image": "x"}]},
        }
    )
    uid = control_plane.get("pod", "train", "-n", namespace)["metadata"]["uid"]
    listed = NodePod(namespace=namespace, name="train", uid=uid, ours=True)
    pods = ExtenderPods(lambda: NodePodList(pods=[listed]).model_dump_json().encode())
    pods.refresh()
    create = ("create", "token", "default", "-n", namespace, "--bound-object-kind=Pod")
    bound = (*create, "--bound-object-name=train", f"--bound-object-uid={uid}")
    ours = control_plane.kubectl(*bound, "--audience=tandem-agent").strip()
    others = control_plane.kubectl(*bound, "--audience=something-else").strip()
    reviewer = TokenReviewer(client, pods)
    assert reviewer.pod_uid(ours, "10.0.0.1") == uid
    assert reviewer.pod_uid(others, "10.0.0.1") is None
    assert reviewer.pod_uid("nonsense", "10.0.0.1") is None
    head, claims, _ = ours.split(".")
    forged = f"{head}.{claims}.{'A' * 300}"
    assert TokenReviewer(client, pods).pod_uid(forged, "10.0.0.1") is None


@pytest.fixture
def agent(installed, stub_library, tmp_path, proc):
    """Start the agent of node agent-a on a state of the simulated GPUs."""
    started = []

    def start(state):
        state.write(tmp_path / "gpus")
        config = tmp_path / "agent.yaml"
        config.write_text(yaml.safe_dump({"node": "agent-a", "proc": str(proc.root)}))
        command = [sys.executable, "-m", "node_agent", "--config", str(config)]
        command += ["--listen", "127.0.0.1:0", "--kubeconfig", str(installed["agent-a"])]
        env = os.environ | environment(stub_library, tmp_path / "gpus")
        started.append(subprocess.Popen(command, env=env))

    yield start
    for process in started:
        process.terminate()
        assert process.wait(60) == 0


def reported(plane):
    """Return the one GPU of agent-a as it is reported; nothing before the first report."""
    answer = plane.http.get(GPU_NODES.path(name="agent-a"))
    gpus = (answer.json().get("status") or {}).get("gpus") if answer.is_success else None
    return gpus[0] if gpus else {"pods": [], "health": ""}


def test_agent_process_reports_pods_and_health(control_plane, agent, tmp_path, proc):
    uid = "00000000-1111-2222-3333-000000000007"
    state = StubState(gpus=[StubGpu("GPU-a")], processes=[StubProcess(0, 7, 4 * GIB, sm=50)])
    proc.add(7, uid)
    agent(state)
    wait_until(
        lambda: [use["uid"] for use in reported(control_plane)["pods"]] == [uid],
        "the pod is reported",
    )
    assert (reported(control_plane)["health"], reported(control_plane)["shares"]) == ("Healthy", 2)
    state.errors = [StubError("*", 15, gpu=0)]
    state.write(tmp_path / "gpus")
    wait_until(
        lambda: reported(control_plane)["health"] == "Quarantined",
        "the lost GPU is out",
    )


@pytest.mark.slow
def test_api_server_that_comes_back_sees_what_is_now_and_no_burst(control_plane, agent, tmp_path):
    state = StubState(gpus=[StubGpu("GPU-a")])
    agent(state)
    wait_until(lambda: reported(control_plane)["health"] == "Healthy", "the agent reports")
    path = GPU_NODES.path()
    version = control_plane.http.get(path).json()["metadata"]["resourceVersion"]
    server = control_plane.processes["kube-apiserver"]
    server.pause()
    try:
        for gib in range(1, 25):
            state.processes = [StubProcess(0, 7, 3 * gib * GIB)]
            state.write(tmp_path / "gpus")
            time.sleep(1)
    finally:
        server.resume()
    wait_until(
        lambda: reported(control_plane).get("memoryUsedBytes") == 72 * GIB,
        "what the agent saw last is written",
    )
    writes = control_plane.events_since(path, version)
    assert len(writes) <= 4, "a few attempts may have been under way, 24 changes are not reported"
