"""The queue's plans on a node that hands GPUs over by claims, next to one that does by variables.

Kubelet, containerd, driver and agent are real on both nodes; scheduler, extender and predictor are
processes of this machine, with the rights that the chart gives them. What a container was given is
what it says itself.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from test_real_dra import DRIVER, IMAGE, MANIFEST, ROOT, image

from controlplane import ControlPlane, binaries, wait_until
from controlplane.installation import Installation
from controlplane.realnode import NodeOptions, RealNode, obstacles
from controlplane.realnode.node import on_node
from node_agent.stub import STATE_VARIABLE
from tandem.contracts import claims, names
from tandem.policy.catalog import load_profile

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.xdist_group("real"),
    pytest.mark.timeout(1200),
]

BY_CLAIMS, BY_VARIABLE = "real-0", "real-1"
GPU, OTHER_GPU = "GPU-real-0-0", "GPU-real-1-0"
SMALL = {"memory": "20Gi", "utilization": "20"}
NAMESPACE = "jobs"
#: On a node: leads `localhost`, a name in the extender's certificate, to the machine.
RELAY = """
import asyncio, sys
host, port = sys.argv[1], int(sys.argv[2])
async def copy(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()
async def relay(reader, writer):
    there, back = await asyncio.open_connection(host, port)
    await asyncio.gather(copy(reader, back), copy(there, writer), return_exceptions=True)
async def main():
    await (await asyncio.start_server(relay, "127.0.0.1", port)).serve_forever()
asyncio.run(main())
"""
#: GPU-seconds after which a job gives way to a new one.
BOUNDARY_GPU_S = 15.0


def _values() -> dict[str, Any]:
    profile = load_profile("tandem").model_dump(mode="json")
    preempting = load_profile("tiresias-l").model_dump(mode="json")
    profile |= {key: preempting[key] for key in ("order", "dispatch")}
    profile["order"] |= {"thresholds_gpu_s": [BOUNDARY_GPU_S]}
    del profile["order"]["slice_s"]
    queue = {"min_run_s": 0, "preemption_cost_s": 0, "max_preemptions_per_hour": 100}
    config = {"profile": profile, "queue": queue, "admission": {"gpu_claims": True}}
    return {"scheduler": {"extender": {"config": config}}}


class Cluster:
    """Two real nodes with one GPU each, one of each way."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane = plane
        self.installation = Installation(plane, folder, values=_values())
        self._drivers = 0
        port = urlsplit(self.installation.extender_address).port
        #: Of the extender, which agents reach from their nodes.
        self.settings = {"public": {"host": "0.0.0.0", "port": port}}
        self.installation.install(self.settings)
        self.plane.kubectl("create", "namespace", NAMESPACE)
        objects = list(yaml.safe_load_all(MANIFEST.read_text()))
        self.plane.apply([each for each in objects if each["kind"] != "DaemonSet"])
        for node in (BY_CLAIMS, BY_VARIABLE):
            account = self.installation.agent_account(node)
            machine = urlsplit(
                yaml.safe_load(account.read_text())["clusters"][0]["cluster"]["server"]
            )
            self._start(node, f"relay-{node}", "-c", RELAY, str(machine.hostname), str(port))
            self._start(node, f"agent-{node}", "-m", "node_agent", "--node", node,
                        "--kubeconfig", str(account), "--hand-over=label",
                        "--extender", self.installation.extender_address)  # fmt: skip
        self.start_driver()
        path = f"/apis/{names.API_VERSION}/gpunodes/{{}}"
        for node in (BY_CLAIMS, BY_VARIABLE):
            wait_until(
                lambda node=node: self.plane.http.get(path.format(node)).is_success,
                f"the agent of {node} has reported",
                timeout_s=120,
            )
        wait_until(self._is_published, "the node's GPUs are published", timeout_s=120)

    def _is_published(self) -> bool:
        found = self.plane.get("resourceslices")["items"]
        devices = [d for each in found for d in each["spec"].get("devices", [])]
        return bool(devices) and all(
            taint["key"] == claims.QUEUE_TAINT for d in devices for taint in d["taints"]
        )

    def node(self, name: str) -> RealNode:
        return self.plane.real_nodes[name]

    def _start(self, node: str, name: str, *argv: str) -> None:
        folder = self.node(node).folder
        environment = {
            "LD_LIBRARY_PATH": str(folder),
            STATE_VARIABLE: str(folder / "gpu-state" / "state"),
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
        }
        self.plane.run(name, on_node(folder, [sys.executable, *argv]), env=environment)

    def start_driver(self) -> None:
        self._drivers += 1
        metadata = {"name": f"driver-{self._drivers}", "namespace": names.AGENT_NAMESPACE}
        containers = [{"name": "driver", "image": "none.invalid/driver"}]
        spec = {"nodeName": BY_CLAIMS, "serviceAccountName": "tandem-dra", "containers": containers}
        self.plane.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        pod = self.plane.get("pod", metadata["name"], "-n", names.AGENT_NAMESPACE)
        account = self.plane.service_account_kubeconfig(
            names.AGENT_NAMESPACE, "tandem-dra", pod=pod
        )
        name = f"driver-{self._drivers}"
        self._start(BY_CLAIMS, name, "-m", "node_agent.dra", "--node", BY_CLAIMS,
                    "--kubeconfig", str(account))  # fmt: skip
        log = self.plane.folder / "logs" / f"{name}.log"
        wait_until(lambda: "registered" in log.read_text(), "kubelet knows it", timeout_s=120)

    @property
    def driver(self) -> Any:
        return self.plane.processes[f"driver-{self._drivers}"]

    def files(self, node: str = BY_CLAIMS) -> list[str]:
        found = self.node(node).execute("ls", "/var/run/cdi").stdout.split()
        return [name for name in found if name.startswith(DRIVER)]

    # --- ways ---------------------------------------------------------------------------------

    def label(self, way: str) -> None:
        self.plane.kubectl(
            "label", "node", BY_CLAIMS, f"{names.HAND_OVER_LABEL}={way}", "--overwrite"
        )

    def await_report(self, reason: str) -> None:
        """Wait until the agent says why the GPU takes no job; '' where it takes some."""
        path = f"/apis/{names.API_VERSION}/gpunodes/{BY_CLAIMS}"

        def said() -> bool:
            (gpu,) = self.plane.http.get(path).json()["status"]["gpus"]
            if not reason:
                return bool(gpu["shares"])
            return gpu["shares"] == 0 and gpu.get("sharesReason", "").startswith(reason)

        wait_until(said, f"the agent reports {reason or 'shares'}", timeout_s=120)

    # --- jobs ---------------------------------------------------------------------------------

    def submit(
        self, name: str, node: str = "", by: dict[str, str] | None = None, **notes: str
    ) -> None:
        """Apply a job of one GPU; `by` names a claim or a template by which it asks."""
        asks = {"claims": [{"name": "card"}]} if by else {"limits": {names.RESOURCE: 1}}
        container = {"name": "main", "image": IMAGE, "resources": asks}
        template: dict[str, Any] = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 5,
            "containers": [container],
        }
        if by:
            template["resourceClaims"] = [{"name": "card"} | by]
        if node:
            template["nodeSelector"] = {"kubernetes.io/hostname": node}
        annotations = {f"{names.GROUP}/{key}": value for key, value in (notes or SMALL).items()}
        self.plane.apply(
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": name, "namespace": NAMESPACE},
                "spec": {"template": {"metadata": {"annotations": annotations}, "spec": template}},
            }
        )

    def pod(self, name: str) -> dict[str, Any] | None:
        found = self.plane.get("pods", "-n", NAMESPACE, "-l", f"job-name={name}")["items"]
        staying = [each for each in found if "deletionTimestamp" not in each["metadata"]]
        return staying[-1] if staying else None

    def said(self, name: str) -> str:
        """Wait until a job runs, and return which GPUs its container says it was given."""

        def look() -> str:
            pod = self.pod(name)
            if pod is None or pod["status"].get("phase") != "Running":
                return ""
            return self.plane.kubectl("logs", "-n", NAMESPACE, pod["metadata"]["name"])

        visible, _ = wait_until(look, f"{name} runs", timeout_s=300).split()
        return visible

    def claim(self, name: str) -> dict[str, Any]:
        pod = self.pod(name)
        assert pod is not None
        return self.plane.get("resourceclaim", claims.claim_of(pod["spec"]), "-n", NAMESPACE)

    def status(self, name: str) -> dict[str, Any]:
        path = f"/apis/{names.API_VERSION}/namespaces/{NAMESPACE}/gpujobs/job-{name}"
        answer = self.plane.http.get(path)
        return dict(answer.json().get("status", {})) if answer.is_success else {}

    def waits(self, name: str) -> str:
        def reason() -> str:
            status = self.status(name)
            return status.get("message", "") if status.get("reason") == "Waiting" else ""

        return wait_until(reason, f"{name} says why it waits", timeout_s=60)

    def delete(self, *names_: str) -> None:
        self.plane.kubectl("delete", "job", *names_, "-n", NAMESPACE, "--wait=false")

    def await_nothing(self) -> None:
        def nothing() -> bool:
            left = self.plane.get("pods", "-n", NAMESPACE)["items"]
            found = self.plane.get("resourceclaims", "-A")["items"]
            return not left and not found and not self.files()

        wait_until(nothing, "no pod, claim or file is left", timeout_s=180)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if reason := "; ".join(obstacles()):
        pytest.skip(f"no real nodes: {reason}")
    if binaries.find("helm") is None:
        pytest.skip("no helm")
    folder = tmp_path_factory.mktemp("queue")
    options = [
        NodeOptions(BY_CLAIMS, gpus=1, labels={names.HAND_OVER_LABEL: "dra-queue"}),
        NodeOptions(BY_VARIABLE, gpus=1),
    ]
    with ControlPlane.start(real_nodes=options) as plane:
        archive = image(folder)
        for node in plane.real_nodes.values():
            node.import_image(archive)
        yield Cluster(plane, folder)


@pytest.fixture
def cluster(whole: Cluster) -> Iterator[Cluster]:
    yield whole
    if not whole.driver.running:
        whole.start_driver()
    whole.plane.kubectl("delete", "jobs", "--all", "-n", NAMESPACE, "--wait=false")
    whole.await_nothing()


def test_two_share_one_waits_one_gives_way_and_one_comes_back(cluster: Cluster) -> None:
    for name in ("left", "right"):
        cluster.submit(name, BY_CLAIMS)
        assert cluster.said(name) == GPU
    results = [
        cluster.claim(name)["status"]["allocation"]["devices"]["results"][0]
        for name in ("left", "right")
    ]
    assert [each["device"] for each in results] == [GPU.lower()] * 2
    assert len({each["shareID"] for each in results}) == 2
    assert len(cluster.files()) == 2, "the driver has prepared both"
    cluster.submit("long", BY_CLAIMS, exclusive="true", checkpoint="true")
    print(cluster.waits("long"))
    cluster.delete("left", "right")
    assert cluster.said("long") == GPU
    pod = cluster.pod("long")
    assert pod is not None
    first = pod["metadata"]["uid"]
    time.sleep(BOUNDARY_GPU_S + 1)
    cluster.submit("short", BY_CLAIMS, exclusive="true")
    assert cluster.said("short") == GPU
    assert len(cluster.files()) == 1, "of the one that gave way nothing is left"
    cluster.delete("short")
    assert cluster.said("long") == GPU
    again = cluster.pod("long")
    assert again is not None
    assert again["metadata"]["uid"] != first


def test_a_job_goes_to_the_other_way_where_the_first_is_full(cluster: Cluster) -> None:
    cluster.submit("whole", BY_CLAIMS, exclusive="true")
    assert cluster.said("whole") == GPU
    cluster.submit("next", exclusive="true")
    assert cluster.said("next") == OTHER_GPU
    allocation = cluster.claim("next")["status"]["allocation"]
    assert not allocation["devices"].get("results"), "the node alone"
    assert cluster.files(BY_VARIABLE) == []
    cluster.delete("whole")
    cluster.submit("third", exclusive="true")
    assert cluster.said("third") == GPU


def test_driver_kubelet_containerd_and_extender_restart_under_a_running_job(
    cluster: Cluster,
) -> None:
    cluster.submit("stays", BY_CLAIMS)
    assert cluster.said("stays") == GPU
    before = cluster.pod("stays")
    cluster.driver.kill()
    cluster.start_driver()
    cluster.node(BY_CLAIMS).restart("containerd")
    cluster.node(BY_CLAIMS).restart("kubelet")
    cluster.plane.processes["extender"].kill()
    cluster.installation.start_extender(cluster.settings)
    cluster.submit("next", BY_CLAIMS)
    assert cluster.said("next") == GPU
    after = cluster.pod("stays")
    assert before is not None
    assert after is not None
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    (status,) = after["status"]["containerStatuses"]
    assert status["restartCount"] == 0


def test_running_jobs_go_on_while_their_node_goes_to_the_environment_and_back(
    cluster: Cluster,
) -> None:
    cluster.submit("by-claim", BY_CLAIMS)
    assert cluster.said("by-claim") == GPU
    before = cluster.pod("by-claim")
    cluster.label("environment")
    cluster.await_report("it moves from dra-queue to environment")
    cluster.submit("by-variable", BY_CLAIMS)
    print(cluster.waits("by-variable"))
    cluster.node(BY_CLAIMS).restart("containerd")
    cluster.node(BY_CLAIMS).restart("kubelet")
    cluster.driver.kill()
    cluster.start_driver()
    after = cluster.pod("by-claim")
    assert before is not None
    assert after is not None
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert [each["restartCount"] for each in after["status"]["containerStatuses"]] == [0]
    assert len(cluster.files()) == 1, "what is prepared for it stays"
    cluster.delete("by-claim")
    assert cluster.said("by-variable") == GPU
    assert cluster.files() == []
    assert not cluster.claim("by-variable")["status"]["allocation"]["devices"].get("results")
    before = cluster.pod("by-variable")
    cluster.label("dra-queue")
    cluster.await_report("it moves from environment to dra-queue")
    cluster.submit("again", BY_CLAIMS)
    print(cluster.waits("again"))
    after = cluster.pod("by-variable")
    assert before is not None
    assert after is not None
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["status"]["phase"] == "Running"
    cluster.delete("by-variable")
    assert cluster.said("again") == GPU
    assert len(cluster.files()) == 1
    cluster.await_report("")


def test_pods_that_ask_by_claims_of_users_share_the_gpu_in_the_queues_order(
    cluster: Cluster,
) -> None:
    requests = [{"name": "any", "exactly": {"deviceClassName": names.QUEUE_CLASS}}]
    spec = {"devices": {"requests": requests}}
    metadata = {"name": "by-hand", "namespace": NAMESPACE}
    version = {"apiVersion": "resource.k8s.io/v1", "metadata": metadata}
    claim = version | {"kind": "ResourceClaim", "spec": spec}
    template = version | {"kind": "ResourceClaimTemplate", "spec": {"spec": spec}}
    cluster.plane.apply([claim, template])
    try:
        cluster.submit("template", BY_CLAIMS, {"resourceClaimTemplateName": "by-hand"})
        cluster.submit("claim", BY_CLAIMS, {"resourceClaimName": "by-hand"})
        assert [cluster.said(name) for name in ("template", "claim")] == [GPU, GPU]
        uids = {cluster.pod(name)["metadata"]["uid"] for name in ("template", "claim")}
        reserved = [cluster.claim(name)["status"]["reservedFor"] for name in ("template", "claim")]
        assert {each["uid"] for (each,) in reserved} == uids
        cluster.delete("claim")

        def free() -> bool:
            found = cluster.plane.get("resourceclaim", "by-hand", "-n", NAMESPACE)
            return "allocation" not in found.get("status", {})

        wait_until(free, "the user's claim is free again", timeout_s=120)
    finally:
        cluster.plane.kubectl(
            "delete", "resourceclaim/by-hand", "resourceclaimtemplate/by-hand", "-n", NAMESPACE,
            "--wait=false",
        )  # fmt: skip


def test_a_claim_of_the_other_class_gets_no_gpu_of_the_queue(cluster: Cluster) -> None:
    requests = [{"name": "gpu", "exactly": {"deviceClassName": DRIVER}}]
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "by-hand", "namespace": NAMESPACE},
        "spec": {"devices": {"requests": requests}},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "by-hand", "namespace": NAMESPACE},
        "spec": {
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "by-hand"}],
            "containers": [
                {"name": "main", "image": IMAGE, "resources": {"claims": [{"name": "gpu"}]}}
            ],
        },
    }
    cluster.plane.start_scheduler("plain-scheduler")
    cluster.plane.apply([body, pod])
    try:

        def refused() -> bool:
            found = cluster.plane.get("pod", "by-hand", "-n", NAMESPACE)["status"]
            conditions = found.get("conditions", [])
            return any(c["type"] == "PodScheduled" and c["status"] == "False" for c in conditions)

        wait_until(refused, "kube-scheduler finds no device for it", timeout_s=120)
        cluster.submit("job", BY_CLAIMS)
        assert cluster.said("job") == GPU
        found = cluster.plane.get("resourceclaim", "by-hand", "-n", NAMESPACE)
        assert "allocation" not in found.get("status", {})
    finally:
        cluster.plane.kubectl("delete", "pod/by-hand", "resourceclaim/by-hand", "-n", NAMESPACE)
        cluster.plane.processes["plain-scheduler"].terminate()
