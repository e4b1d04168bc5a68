"""A node is moved from one way of handing GPUs over to another under a stream of jobs.

On a real control plane, with the agent, the driver's slices, and a kube-scheduler of its own for
claims by hand. No kubelet is here: what a node does with a claim is in tests/realnode.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from controlplane_binaries import need_control_plane
from e2e_cluster import BOARD, BOARD_BYTES, DEVICES, job
from test_e2e_claims import SETTINGS, ClaimsCluster

from controlplane import ControlPlane, Node, wait_until
from controlplane.installation import Installation
from node_agent.stub import StubGpu, StubState, build, environment
from tandem.contracts import claims, names

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.slow,
    pytest.mark.xdist_group("moves"),
    pytest.mark.timeout(1800),
]

MOVED = "n0"
GPUS = [f"GPU-n0-{i}" for i in range(3)]
ENVIRONMENT, DRA, DRA_QUEUE = "environment", "dra", "dra-queue"
HALF = {"tandem.gpu/memory": "10Gi", "tandem.gpu/utilization": "40"}
LIGHT = {"tandem.gpu/memory": "4Gi", "tandem.gpu/utilization": "20"}
WHOLE = {"tandem.gpu/exclusive": "true"}
#: A label is read each half minute, and what is asked of kube-scheduler settles for as long.
MOVES_WITHIN_S = 150
GONE = ("Succeeded", "Failed")


class MovedCluster(ClaimsCluster):
    """One node with three GPUs, which does as its label says."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        super().__init__(plane, folder)
        values = {"scheduler": {"extender": {"config": SETTINGS}}, "dra": {"enabled": True}}
        self.installation = Installation(plane, folder, values=values)

    def begin(self, folder: Path) -> None:
        self.label(ENVIRONMENT)
        self.installation.install()
        self._library, self._state = build(folder), folder / "gpus"
        boards = [StubGpu(gpu, name=BOARD, memory=BOARD_BYTES) for gpu in GPUS]
        StubState(gpus=boards).write(self._state)
        self.start_agent()
        self._supervise(folder)
        kubelet, cdi = folder / "kubelet", folder / "cdi"
        for each in (kubelet / "plugins", kubelet / "plugins_registry", cdi):
            each.mkdir(parents=True)
        self.plane.run(
            "driver",
            [
                sys.executable, "-m", "node_agent.dra", "--node", MOVED,
                "--kubeconfig", str(self.plane.kubeconfig()),
                "--kubelet", str(kubelet), "--cdi", str(cdi),
            ],
            env=dict(environment(self._library, self._state)),
        )  # fmt: skip
        self.plane.start_scheduler("plain-scheduler")

    def start_agent(self) -> None:
        self.installation.start_agent(
            MOVED, environment(self._library, self._state), {"shares": 2, "hand_over": "label"}
        )

    def restart_agent(self) -> None:
        self.plane.processes[f"agent-{MOVED}"].kill()
        self.start_agent()

    def label(self, way: str) -> None:
        self.plane.kubectl("label", "node", MOVED, f"{names.HAND_OVER_LABEL}={way}", "--overwrite")

    # --- what the API server says -------------------------------------------------------------

    def gpus(self) -> dict[str, dict[str, Any]]:
        status = self.read(f"/apis/{names.API_VERSION}/gpunodes/{MOVED}")["status"]
        return {gpu["uuid"]: gpu for gpu in status["gpus"]}

    def ways(self) -> dict[str, str]:
        """Return the way of each GPU that takes new pods; '' for one that takes none."""
        return {
            uuid: "" if not gpu.get("shares") and not gpu.get("draShares")
            else ENVIRONMENT if "draShares" not in gpu
            else DRA_QUEUE if gpu["shares"] else DRA
            for uuid, gpu in self.gpus().items()
        }  # fmt: skip

    def await_ways(self, *, closed: str = "", way: str) -> None:
        """Wait until all GPUs have a way, but for one that is `closed`."""
        wanted = {gpu: "" if gpu == closed else way for gpu in GPUS}
        wait_until(
            lambda: self.ways() == wanted,
            f"the GPUs have gone over to {way}",
            timeout_s=MOVES_WITHIN_S,
        )

    def devices(self) -> dict[str, list[str]]:
        """Return the taints of the devices that the driver publishes."""
        path = "/apis/resource.k8s.io/v1/resourceslices"
        return {
            device["name"]: [taint["key"] for taint in device.get("taints", [])]
            for item in self.read(path)["items"]
            for device in item["spec"].get("devices", [])
        }

    def gpu_of(self, namespace: str, job_name: str) -> str:
        annotations = self.running(namespace, job_name)["metadata"]["annotations"]
        return str(annotations[DEVICES])

    def has_devices(self, namespace: str, job_name: str) -> bool:
        claim = self.claim_of(namespace, job_name)
        assert claim is not None
        found = claims.read(claim)
        assert found is not None
        return bool(found.devices)

    # --- claims by hand -----------------------------------------------------------------------

    def by_hand(self, namespace: str, name: str) -> None:
        """Create a pod with a claim that kube-scheduler allocates, for a whole GPU."""
        requests = [{"name": "gpu", "exactly": {"deviceClassName": names.GROUP}}]
        claim = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"devices": {"requests": requests}},
        }
        container = {"name": "main", "image": "x", "resources": {"claims": [{"name": "gpu"}]}}
        spec = {
            "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
            "containers": [container],
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace},
            "spec": spec,
        }
        self.plane.apply([claim, pod])

    def device_of(self, namespace: str, name: str) -> str:
        path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"
        found = claims.read(self.read(path))
        return found.devices[0][0] if found is not None and found.devices else ""


class Witness(threading.Thread):
    """Looks at pods and claims again and again, and notes what must never be."""

    def __init__(self, cluster: MovedCluster, namespace: str) -> None:
        super().__init__(daemon=True)
        self._cluster, self._namespace = cluster, namespace
        self.wrong: list[str] = []
        self.looks = 0
        self.pods_by_job: dict[str, set[str]] = defaultdict(set)
        #: The ways by which pods have had each GPU, in the order in which they came.
        self.seen: dict[str, list[str]] = defaultdict(list)
        self._stopping = threading.Event()

    def run(self) -> None:
        while not self._stopping.wait(0.1):
            self.look()

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    def look(self) -> None:
        pods = self._cluster.pods(self._namespace)
        by_name = {each["metadata"]["name"]: each for each in self._cluster.claims(self._namespace)}
        ways, held = defaultdict(set), defaultdict(list)
        for pod in pods:
            metadata, node = pod["metadata"], pod["spec"].get("nodeName")
            self.pods_by_job[metadata["labels"]["job-name"]].add(metadata["uid"])
            claim = by_name.get(claims.claim_of(pod["spec"]))
            if not node or pod["status"].get("phase") in GONE or claim is None:
                continue
            gpus = metadata["annotations"][DEVICES].split(",")
            found = claims.read(claim)
            if found is None and self._has_ended(metadata):
                continue  # between the two reads, and Kubernetes has taken its claim back
            by_claims = found is not None and bool(found.devices)
            if found != claims.planned(metadata["uid"], node, gpus, by_claims=by_claims):
                self.wrong.append(f"{metadata['name']} has {gpus}, and its claim gives {found}")
            for gpu in gpus:
                way = DRA_QUEUE if by_claims else ENVIRONMENT
                ways[gpu].add(way)
                held[gpu].append(metadata["name"])
                if self.seen[gpu][-1:] != [way]:
                    self.seen[gpu].append(way)
        self.wrong += [
            f"{gpu} has {sorted(found)}" for gpu, found in ways.items() if len(found) > 1
        ]
        self.wrong += [f"{gpu} has {pods}" for gpu, pods in held.items() if len(pods) > 2]
        self.looks += 1

    def _has_ended(self, metadata: dict[str, Any]) -> bool:
        now = {each["metadata"]["uid"]: each for each in self._cluster.pods(self._namespace)}
        pod = now.get(metadata["uid"])
        return pod is None or pod["status"].get("phase") in GONE


class Stream(threading.Thread):
    """Submits a job every second or so; each runs for five seconds."""

    def __init__(self, cluster: MovedCluster, namespace: str) -> None:
        super().__init__(daemon=True)
        self._cluster, self._namespace = cluster, namespace
        self.names: list[str] = []
        self._stopping = threading.Event()

    def run(self) -> None:
        while not self._stopping.wait(1.0):
            name = f"stream-{len(self.names)}"
            notes = LIGHT | {"kwok.tandem.gpu/run-duration": "5s"}
            self._cluster.submit(self._namespace, name, annotations=notes)
            self.names.append(name)

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    def finished(self) -> list[str]:
        """Return the names of the jobs that have completed."""
        path = f"/apis/batch/v1/namespaces/{self._namespace}/jobs"
        items = self._cluster.read(path)["items"]
        return [each["metadata"]["name"] for each in items if each["status"].get("succeeded")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MovedCluster]:
    need_control_plane()
    folder = tmp_path_factory.mktemp("moves")
    with ControlPlane.start(nodes=[Node(MOVED, cpu=64)]) as plane:
        cluster = MovedCluster(plane, folder)
        cluster.begin(folder)
        yield cluster


@pytest.fixture
def namespace(cluster: MovedCluster) -> Iterator[str]:
    name = cluster.namespace()
    yield name
    cluster.remove(name)
    cluster.label(ENVIRONMENT)
    cluster.await_ways(way=ENVIRONMENT)


@pytest.fixture
def witness(cluster: MovedCluster, namespace: str) -> Iterator[Witness]:
    witness = Witness(cluster, namespace)
    witness.start()
    yield witness
    witness.stop()


@pytest.fixture
def stream(cluster: MovedCluster, namespace: str) -> Iterator[Stream]:
    stream = Stream(cluster, namespace)
    stream.start()
    yield stream
    stream.stop()


def test_a_node_goes_to_claims_and_back_under_a_stream_of_jobs(
    cluster: MovedCluster, namespace: str, witness: Witness, stream: Stream
) -> None:
    for new, old in ((DRA_QUEUE, ENVIRONMENT), (ENVIRONMENT, DRA_QUEUE)):
        long = f"long-{new}"
        cluster.submit(namespace, long, annotations=HALF)
        held = cluster.gpu_of(namespace, long)
        assert cluster.has_devices(namespace, long) == (old == DRA_QUEUE)
        cluster.label(new)
        cluster.await_ways(closed=held, way=new)
        gpu = cluster.gpus()[held]
        assert gpu["sharesReason"].startswith(f"it moves from {old} to {new}: ")
        # Extender and agent die in the middle: nothing that is needed is in their memory.
        cluster.fault.write_text("bind-reserved")
        wait_until(lambda: not cluster.fault.exists(), "the extender was killed", timeout_s=60)
        cluster.restart_agent()
        cluster.await_ready()
        cluster.submit(namespace, f"next-{new}", annotations=HALF)
        assert cluster.gpu_of(namespace, f"next-{new}") != held
        assert cluster.has_devices(namespace, f"next-{new}") == (new == DRA_QUEUE)
        assert held not in {gpu for gpu, way in cluster.ways().items() if way}
        before = len(stream.finished())
        wait_until(lambda n=before: len(stream.finished()) >= n + 5, "jobs go on", timeout_s=120)
        pod = cluster.pod_of(namespace, long)
        assert pod is not None
        assert pod["status"]["phase"] == "Running"
        cluster.let_end(namespace, long)
        cluster.await_ways(way=new)
        cluster.let_end(namespace, f"next-{new}")
    stream.stop()
    wait_until(lambda: set(stream.finished()) >= set(stream.names), "all have ended", timeout_s=120)
    witness.stop()
    print(f"{len(stream.names)} jobs, {witness.looks} looks, ways seen: {dict(witness.seen)}")
    assert witness.wrong == []
    stopped = {name: len(pods) for name, pods in witness.pods_by_job.items() if len(pods) > 1}
    assert not stopped, "no job was stopped and started anew"
    assert set(witness.seen) == set(GPUS)


def test_what_is_planned_gets_its_claim_anew_for_the_way_that_the_gpu_has_then(
    cluster: MovedCluster, namespace: str
) -> None:
    """Its pod cannot be scheduled for a reason of its own, so that it is planned all the time."""
    body = job("planned", annotations=LIGHT)
    template = body["spec"]["template"]["spec"]
    template["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "missing"}}]
    cluster.apply_job(namespace, body)
    for way in (ENVIRONMENT, DRA_QUEUE, ENVIRONMENT):
        cluster.label(way)
        cluster.await_ways(way=way)

        def allocated(devices: bool = way == DRA_QUEUE) -> bool:
            claim = cluster.claim_of(namespace, "planned")
            found = claims.read(claim) if claim is not None else None
            return found is not None and bool(found.devices) == devices

        wait_until(allocated, f"its claim is allocated for {way}", timeout_s=60, poll_s=0.05)


@pytest.mark.parametrize("queue", [ENVIRONMENT, DRA_QUEUE])
def test_between_the_queue_and_kube_scheduler(
    cluster: MovedCluster, namespace: str, queue: str
) -> None:
    cluster.label(queue)
    cluster.await_ways(way=queue)
    cluster.submit(namespace, "queued", annotations=WHOLE)
    held = cluster.gpu_of(namespace, "queued")
    cluster.label(DRA)
    cluster.await_ways(closed=held, way=DRA)
    free = {gpu.lower(): [] for gpu in GPUS if gpu != held}
    wait_until(lambda: cluster.devices() == free, "kube-scheduler may allocate the free GPUs")
    hands = cluster.namespace()
    for name in ("first", "second", "third"):
        cluster.by_hand(hands, name)
    wait_until(
        lambda: (
            {cluster.device_of(hands, n) for n in ("first", "second", "third")} - {""} == set(free)
        ),
        "claims by hand have the free GPUs",
        timeout_s=60,
    )
    time.sleep(5)
    left = next(n for n in ("first", "second", "third") if not cluster.device_of(hands, n))
    cluster.submit(namespace, "waits", annotations=LIGHT)
    print(cluster.waiting_reason(namespace, "waits"))
    cluster.let_end(namespace, "queued")
    wait_until(
        lambda: cluster.device_of(hands, left) == held.lower(),
        "the GPU of the queue's job has gone over",
        timeout_s=60,
    )
    cluster.plane.kubectl("delete", "pod", left, "-n", hands, "--grace-period=0", "--force")
    cluster.plane.kubectl("delete", "resourceclaim", left, "-n", hands)
    cluster.label(queue)
    wait_until(lambda: not cluster.devices(), "nothing more is allocated", timeout_s=60)
    cluster.running(namespace, "waits", timeout_s=MOVES_WITHIN_S)
    assert cluster.gpu_of(namespace, "waits") == held
    assert cluster.has_devices(namespace, "waits") == (queue == DRA_QUEUE)
    ways = cluster.ways()
    assert ways == {gpu: queue if gpu == held else "" for gpu in GPUS}
    cluster.plane.kubectl("delete", "namespace", hands, "--wait=false")
    cluster.await_ways(way=queue)
