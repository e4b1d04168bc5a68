"""The DRA driver on a real kubelet: kube-scheduler allocates, kubelet asks, containerd gives.

Agent and driver are processes on the node, with the simulated GPUs. The driver has the rights of
deploy/manifests/dra.yaml; nothing else of Tandem is there.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml
from real_cluster import image_archives, outdated_images

from controlplane import ControlPlane, wait_until
from controlplane.realnode import NodeOptions, RealNode, images, obstacles
from controlplane.realnode.configuration import PAUSE_IMAGE
from controlplane.realnode.node import on_node
from node_agent.dra import DRIVER
from node_agent.dra.devices import QUARANTINED
from node_agent.stub import STATE_VARIABLE
from tandem.contracts import names
from tandem.errors import TandemError

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.xdist_group("real"),
    pytest.mark.timeout(900),
]

ROOT = Path(__file__).resolve().parents[2]
MANIFEST = ROOT / "deploy" / "manifests" / "dra.yaml"
NODE = "real-0"
GPUS = ("GPU-real-0-0", "GPU-real-0-1")
HALF = {"requests": {"shares": "1", "memory": "30Gi"}}
IMAGE = "tandem.local/visible:1"
#: Says which GPUs its container was given, and runs until it is asked to end.
_PROGRAM = r"""
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static void stop(int signal) { (void)signal; _exit(0); }
int main(void) {
    const char *visible = getenv("NVIDIA_VISIBLE_DEVICES"), *other = getenv("OTHER_DEVICE");
    signal(SIGTERM, stop);
    printf("%s %s\n", visible ? visible : "-", other ? other : "-");
    fflush(stdout);
    for (;;) pause();
}
"""
#: Runs the driver and kills it once the file of a claim is written and nothing is answered.
_KILLED = """
import os, signal, sys
from node_agent.dra import __main__, cdi
write = cdi.Specs.write
def killed(self, ref, environment):
    write(self, ref, environment)
    os.kill(os.getpid(), signal.SIGKILL)
cdi.Specs.write = killed
sys.exit(__main__.main())
"""
#: Serves the claims of another driver, which has one device.
OTHER = "devices.example.com"
_OTHER = f"""
import signal, sys
from pathlib import Path
import node_agent.dra
node_agent.dra.DRIVER = "{OTHER}"
from node_agent.dra import cdi, driver, services
from tandem.kube.client import KubeClient
driver.VISIBLE_DEVICES = "OTHER_DEVICE"
client, specs = KubeClient.load(Path(sys.argv[1])), cdi.Specs(cdi.FOLDER)
own = driver.Driver("{NODE}", client, specs, cdi.Toolkit([]), lambda: {{"thing": "THING-1"}})
services.Services(own, services.KUBELET, lambda why_not: print("registered", why_not)).start()
signal.pause()
"""


def image(folder: Path) -> Path:
    program, source, archive = folder / "visible", folder / "visible.c", folder / "visible.tar"
    source.write_text(_PROGRAM)
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler
    subprocess.run([compiler, "-O2", "-static", "-o", program, source], check=True)
    images.write_archive(archive, IMAGE, {"visible": program}, ["/visible"])
    return archive


class Dra:
    """A plane with one real node, the agent on it, and the driver."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.node: RealNode = plane.real_nodes[NODE]
        self._driver = 0
        self.account = self._give_rights()

    def _give_rights(self) -> Path:
        """Apply the manifest; return the kubeconfig of a driver's pod on the node."""
        self.plane.kubectl("create", "namespace", names.AGENT_NAMESPACE)
        objects = list(yaml.safe_load_all(MANIFEST.read_text()))
        (daemons,) = [each for each in objects if each["kind"] == "DaemonSet"]
        self.plane.apply([each for each in objects if each is not daemons])
        # Valid, as users would apply it; its image is not on the node.
        dry = yaml.safe_dump(daemons)
        self.plane.kubectl("apply", "--dry-run=server", "-f", "-", stdin=dry)
        containers = [{"name": "driver", "image": PAUSE_IMAGE}]
        spec = {"nodeName": NODE, "serviceAccountName": "tandem-dra", "containers": containers}
        metadata = {"name": "driver", "namespace": names.AGENT_NAMESPACE}
        self.plane.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        pod = self.plane.get("pod", "driver", "-n", names.AGENT_NAMESPACE)
        return self.plane.service_account_kubeconfig(names.AGENT_NAMESPACE, "tandem-dra", pod=pod)

    # --- the node ---------------------------------------------------------------------------

    def start_program(self, name: str, *argv: str) -> None:
        """Start a Python program on the node, with the simulated GPUs."""
        folder = self.node.folder
        environment = {
            "LD_LIBRARY_PATH": str(folder),
            STATE_VARIABLE: str(folder / "gpu-state" / "state"),
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
        }
        self.plane.run(name, on_node(folder, [sys.executable, *argv]), env=environment)

    def start_agent(self) -> None:
        options = ["--kubeconfig", str(self.plane.kubeconfig()), "--hand-over=label"]
        self.start_program("agent", "-m", "node_agent", "--node", NODE, *options)

    def start_driver(self, *program: str) -> None:
        """Start a driver, of this program where one is given."""
        self._driver += 1
        options = ["--node", NODE, "--kubeconfig", str(self.account)]
        self.start_program(
            f"driver-{self._driver}", *(program or ("-m", "node_agent.dra")), *options
        )

    def start_driver_that_kills_itself(self) -> None:
        """Put it in place of the running one, and wait until kubelet knows it."""
        self.driver.kill()
        self.start_driver("-c", _KILLED)
        log = self.plane.folder / "logs" / f"driver-{self._driver}.log"
        wait_until(lambda: "registered" in log.read_text(), "kubelet knows it", timeout_s=120)

    @property
    def driver(self) -> Any:
        return self.plane.processes[f"driver-{self._driver}"]

    def files(self) -> list[str]:
        """Return the files of claims on the node."""
        found = self.node.execute("ls", "/var/run/cdi").stdout.split()
        return [name for name in found if name.startswith(DRIVER)]

    # --- the cluster ------------------------------------------------------------------------

    def slice(self) -> dict[str, Any] | None:
        """Return the driver's slice of the node, None where there is none."""
        found = self.plane.get("resourceslices")["items"]
        ours = [each for each in found if each["spec"]["driver"] == DRIVER]
        assert len(ours) <= 1
        return ours[0] if ours else None

    def await_slice(self) -> dict[str, Any]:
        return wait_until(self.slice, "the node's GPUs are published", timeout_s=120)

    def template(self, name: str, device_class: str = DRIVER, **request: Any) -> None:
        requests = [{"name": "gpu", "exactly": {"deviceClassName": device_class, **request}}]
        self.plane.apply(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaimTemplate",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"spec": {"devices": {"requests": requests}}},
            }
        )

    def pod(self, name: str, *templates: str) -> None:
        """Create a pod with a claim of each template; its container has all of them."""
        claims = [{"name": each, "resourceClaimTemplateName": each} for each in templates]
        has = {"claims": [{"name": each} for each in templates]}
        container = {"name": "main", "image": IMAGE, "resources": has}
        self.plane.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {
                    "resourceClaims": claims,
                    "containers": [container],
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": 5,
                },
            }
        )

    def phase(self, name: str) -> str:
        return str(self.plane.get("pod", name)["status"].get("phase"))

    def is_refused(self, name: str) -> bool:
        """Whether kube-scheduler has found no node for a pod."""
        conditions = self.plane.get("pod", name)["status"].get("conditions", [])
        return any(c["type"] == "PodScheduled" and c["status"] == "False" for c in conditions)

    def await_said(self, name: str) -> list[str]:
        """Wait until a pod runs, and return what it was given by our driver and by the other."""

        def said() -> str:
            return self.plane.kubectl("logs", name) if self.phase(name) == "Running" else ""

        # Kubelet tries a pod again a minute and a quarter after its driver did not answer.
        return wait_until(said, f"pod {name} runs", timeout_s=300).split()

    def await_running(self, name: str) -> str:
        """Wait until a pod runs, and return which GPUs its container says it was given."""
        visible, other = self.await_said(name)
        assert other == "-"
        return visible

    def claims(self) -> list[dict[str, Any]]:
        return list(self.plane.get("resourceclaims")["items"])

    def await_killed(self) -> None:
        killed = self.driver
        wait_until(lambda: not killed.running, "the driver is killed", timeout_s=300)

    def await_nothing(self) -> None:
        """Wait until no claim and no file of one is left."""
        wait_until(lambda: not self.claims() and not self.files(), "nothing is left", timeout_s=300)


Node = TypeVar("Node", bound=Dra)


def on_a_real_node(make: Callable[[ControlPlane], Node], folder: Path) -> Iterator[Node]:
    """Yield what `make` makes of a plane with one node of two GPUs, with agent and driver."""
    if reason := "; ".join(obstacles()):
        pytest.skip(f"no real nodes: {reason}")
    options = NodeOptions(NODE, gpus=2, labels={names.HAND_OVER_LABEL: "dra"})
    with ControlPlane.start(scheduler=True, real_nodes=[options]) as plane:
        plane.apply(ROOT / "helm" / "tandem" / "crds" / "gpunodes.yaml")
        plane.await_definitions("gpunodes.tandem.gpu")
        cluster = make(plane)
        cluster.node.import_image(image(folder))
        cluster.start_agent()
        cluster.start_driver()
        yield cluster


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dra]:
    yield from on_a_real_node(Dra, tmp_path_factory.mktemp("image"))


@pytest.fixture
def dra(plane: Dra) -> Iterator[Dra]:
    """The cluster with a driver that runs, a claim for half a GPU, and no pod."""
    plane.await_slice()
    plane.template("half", capacity=HALF)
    yield plane
    if not plane.driver.running:
        plane.start_driver()
    plane.plane.kubectl("delete", "pods", "--all", "--timeout=120s")
    plane.await_nothing()


def test_pods_share_a_gpu_and_their_claims_say_so(dra: Dra) -> None:
    devices = {each["name"]: each for each in dra.await_slice()["spec"]["devices"]}
    assert sorted(devices) == ["gpu-real-0-0", "gpu-real-0-1"]
    first = devices["gpu-real-0-0"]
    assert first["attributes"]["uuid"] == {"string": "GPU-real-0-0"}
    assert first["attributes"]["driverVersion"] == {"version": "580.65.6"}
    assert first["attributes"]["resource.kubernetes.io/pciBusID"] == {"string": "0000:01:00.0"}
    assert first["capacity"]["shares"]["value"] == "2"
    assert first["capacity"]["memory"]["value"] == "80Gi"
    pods = [f"half-{number}" for number in range(3)]
    for name in pods:
        dra.pod(name, "half")
    given = sorted(dra.await_running(name) for name in pods)
    # Two on one GPU, by their shares; the third on the other.
    assert set(given) == set(GPUS)
    results = [each["status"]["allocation"]["devices"]["results"][0] for each in dra.claims()]
    assert sorted(each["device"] for each in results) == [uuid.lower() for uuid in given]
    assert all(each["shareID"] for each in results)
    assert all(each["consumedCapacity"] == {"shares": "1", "memory": "30Gi"} for each in results)
    described = dra.plane.kubectl("describe", "resourceclaims")
    assert all(name in described for name in pods), "who shares"
    assert len(dra.files()) == 3


def test_the_api_server_takes_what_the_page_says(dra: Dra) -> None:
    page = (ROOT / "docs" / "handover.md").read_text()
    by_queue, by_scheduler = re.findall(r"(?s)```yaml\n(.*?)```", page)
    for block in (by_queue, by_scheduler):
        dra.plane.kubectl("apply", "--dry-run=server", "-f", "-", stdin=block)


def test_a_claim_that_says_nothing_has_the_whole_gpu_and_frees_it(dra: Dra) -> None:
    dra.template("whole")
    dra.pod("whole", "whole")
    whole = dra.await_running("whole")
    for name in ("half-0", "half-1"):
        dra.pod(name, "half")
    assert whole not in {dra.await_running(name) for name in ("half-0", "half-1")}
    dra.pod("waits", "half")
    wait_until(lambda: dra.is_refused("waits"), "it waits", timeout_s=120)
    dra.plane.kubectl("delete", "pod", "whole", "--timeout=120s")
    assert dra.await_running("waits") == whole


def test_killed_between_file_and_answer_the_pod_starts_after_the_restart(dra: Dra) -> None:
    dra.start_driver_that_kills_itself()
    dra.pod("killed", "half")
    dra.await_killed()
    assert len(dra.files()) == 1
    assert dra.phase("killed") == "Pending"
    dra.start_driver()
    assert dra.await_running("killed") in GPUS
    assert len(dra.files()) == 1


def test_killed_and_its_pod_deleted_nothing_is_left(dra: Dra) -> None:
    dra.start_driver_that_kills_itself()
    dra.pod("killed", "half")
    dra.await_killed()
    assert len(dra.files()) == 1
    dra.plane.kubectl("delete", "pod", "killed", "--wait=false")
    dra.start_driver()
    dra.await_nothing()


def test_driver_kubelet_and_containerd_restart_under_a_running_pod(dra: Dra) -> None:
    dra.pod("stays", "half")
    gpu = dra.await_running("stays")
    dra.driver.kill()
    dra.start_driver()
    before = dra.await_slice()["metadata"]["uid"]
    dra.node.restart("containerd")
    dra.node.restart("kubelet")

    def is_new() -> bool:
        # Kubelet deletes the slices of its node when it starts.
        found = dra.slice()
        return found is not None and found["metadata"]["uid"] != before

    wait_until(is_new, "the slice is published anew", timeout_s=120)
    dra.pod("next", "half")
    assert dra.await_running("next") in GPUS
    assert dra.await_running("stays") == gpu
    (status,) = dra.plane.get("pod", "stays")["status"]["containerStatuses"]
    assert status["restartCount"] == 0


def test_a_claim_of_another_driver_in_the_same_pod_works(dra: Dra) -> None:
    dra.start_program("other", "-c", _OTHER, str(dra.plane.kubeconfig()))
    log = dra.plane.folder / "logs" / "other.log"
    wait_until(lambda: "registered" in log.read_text(), "kubelet knows it", timeout_s=120)
    device_class = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": OTHER},
        "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{OTHER}"'}}]},
    }
    published = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "theirs"},
        "spec": {
            "driver": OTHER,
            "nodeName": NODE,
            "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "thing", "attributes": {"uuid": {"string": "THING-1"}}}],
        },
    }
    dra.plane.apply([device_class, published])
    dra.template("thing", OTHER)
    dra.pod("both", "half", "thing")
    gpu, other = dra.await_said("both")
    assert gpu in GPUS
    assert other == "THING-1"
    assert len(dra.files()) == 1, "nothing of ours for their claim"


def test_a_driver_writes_the_slice_of_its_own_node_alone(dra: Dra) -> None:
    theirs = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "elsewhere"},
        "spec": {
            "driver": DRIVER,
            "nodeName": "another",
            "pool": {"name": "another", "generation": 1, "resourceSliceCount": 1},
            "devices": [],
        },
    }
    text = yaml.safe_dump(theirs)
    with pytest.raises(TandemError, match="of its own node"):
        dra.plane.kubectl("create", "-f", "-", stdin=text, kubeconfig=dra.account)
    with pytest.raises(TandemError, match="forbidden"):
        dra.plane.kubectl("get", "resourceclaims", "-A", kubeconfig=dra.account)


def test_a_quarantined_gpu_takes_no_new_pod(dra: Dra) -> None:
    state = dra.node.folder / "gpu-state" / "state"
    fresh = state.with_name("state.sick")
    fresh.write_text(state.read_text().replace("failure=0", "failure=1", 1))
    fresh.replace(state)

    def taints() -> dict[str, Any]:
        devices = (dra.slice() or {"spec": {}})["spec"].get("devices", [])
        return {each["name"]: each.get("taints") for each in devices}

    wait_until(lambda: taints().get("gpu-real-0-0"), "the faulty GPU has a taint", timeout_s=120)
    assert taints()["gpu-real-0-1"] is None
    (taint,) = taints()["gpu-real-0-0"]
    assert (taint["key"], taint["effect"]) == (QUARANTINED, "NoSchedule")
    for name in ("half-0", "half-1"):
        dra.pod(name, "half")
        assert dra.await_running(name) == "GPU-real-0-1"


def test_the_manifest_runs_the_driver_from_the_agents_image(dra: Dra) -> None:
    if outdated := outdated_images("agent"):
        pytest.skip(f"no real nodes: {outdated}")
    (archive,) = [path for path in image_archives() if path.name == "tandem-agent.tar"]
    dra.driver.terminate()
    dra.node.import_image(archive)
    static = Path("/etc/cdi")
    was_there = static.exists()
    daemons = ("daemonset/tandem-dra", "-n", names.AGENT_NAMESPACE)
    dra.plane.apply(MANIFEST)
    try:
        dra.plane.kubectl("rollout", "status", *daemons, "--timeout=180s")

        def is_registered() -> bool:
            return "registered with kubelet" in dra.plane.kubectl("logs", *daemons)

        wait_until(is_registered, "kubelet knows the driver", timeout_s=120)
        dra.pod("half", "half")
        assert dra.await_running("half") in GPUS
        dra.plane.kubectl("delete", "pod", "half", "--timeout=120s")
        dra.await_nothing()
    finally:
        dra.plane.kubectl("delete", *daemons, "--wait", "--timeout=120s")
        if not was_there and static.exists():
            static.rmdir()
