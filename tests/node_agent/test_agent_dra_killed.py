"""The DRA driver killed (SIGKILL) at its steps, on a real API server, asked as kubelet asks.

`make test` kills it a few times, `make chaos` 200 times. A kubelet tries what was not answered
again: here at once, so that what is lost by a kill would be seen, and what is left over.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import pytest
from controlplane_binaries import need_control_plane
from dra_restarted import POINTS
from repeated_faults import times
from seeds import SEED
from test_agent_dra import Kubelet

from controlplane import ControlPlane, wait_until
from node_agent.dra import DRIVER
from node_agent.dra.messages import DRA
from tandem.contracts import claims, names
from tandem.local.processes import Process

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.slow,
    pytest.mark.xdist_group("dra-killed"),
    pytest.mark.timeout(3600),
]

ROOT = Path(__file__).resolve().parents[2]
NODE = "n0"
GPUS = ("GPU-A", "GPU-B")
PATH = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
KILLS = times(len(POINTS), 200)


class KilledDriver(Kubelet):
    """A driver of its own process, and the kubelet's side of its sockets."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane = plane
        self.folder = folder / "kubelet"
        self.cdi = folder / "cdi"
        self.fault = folder / "fault"
        self.endpoint = self.folder / "plugins" / DRIVER / "dra.sock"
        self.services = self
        self._memory = 0
        self._claims = 0
        self.report()
        program = Path(__file__).with_name("dra_restarted.py")
        self.process: Process = plane.run(
            "driver",
            [
                sys.executable, str(program), str(self.fault), "--node", NODE,
                "--kubeconfig", str(plane.kubeconfig()),
                "--kubelet", str(self.folder), "--cdi", str(self.cdi),
            ],
            env={"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        wait_until(self.is_published, "the GPUs are published", timeout_s=60)

    def report(self) -> None:
        """Write a report that is another than before, so that the slice has to be."""
        self._memory += 1
        gpus = [
            {
                "uuid": uuid, "index": index, "model": "NVIDIA A100", "shares": 2, "draShares": 2,
                "memoryBytes": (80 << 30) + (self._memory << 20), "health": "Healthy", "pods": [],
            }
            for index, uuid in enumerate(GPUS)
        ]  # fmt: skip
        url = f"/apis/{names.API_VERSION}/gpunodes"
        body: dict[str, Any] = {
            "apiVersion": names.API_VERSION, "kind": "GPUNode", "metadata": {"name": NODE},
        }  # fmt: skip
        self.plane.http.post(url, json=body)
        status = {"observedAt": "2026-01-01T00:00:00Z", "gpus": gpus}
        answer = self.plane.http.patch(
            f"{url}/{NODE}/status",
            json={"status": status},
            headers={"Content-Type": "application/merge-patch+json"},
        )
        assert answer.is_success, answer.text

    def is_published(self) -> bool:
        """Whether there is one slice, with what the newest report says."""
        found = self.plane.http.get("/apis/resource.k8s.io/v1/resourceslices").json()["items"]
        assert len(found) <= 1
        wanted = f"{(80 << 10) + self._memory}Mi"
        devices = found[0]["spec"].get("devices", []) if found else []
        assert len(devices) in (0, 2)
        return bool(devices) and all(d["capacity"]["memory"]["value"] == wanted for d in devices)

    def allocated_claim(self, *gpus: str) -> Any:
        """Make a claim as the plan allocates it, and return how kubelet names it."""
        self._claims += 1
        name, uid = f"c{self._claims}", f"pod-{self._claims}"
        body = claims.body(name, "default", name, uid, len(gpus))
        del body["metadata"]["ownerReferences"], body["metadata"]["finalizers"]
        made = self.plane.http.post(PATH, json=body).raise_for_status().json()
        capacity = {gpu.lower(): {"shares": "1", "memory": "1Gi"} for gpu in gpus}
        wanted = claims.planned(uid, NODE, gpus, by_claims=True)
        status = {"allocation": claims.written(wanted, capacity, "2026-01-01T00:00:00Z")}
        self.plane.http.patch(
            f"{PATH}/{name}/status",
            json={"status": status},
            headers={"Content-Type": "application/merge-patch+json"},
        ).raise_for_status()
        return DRA["Claim"](namespace="default", name=name, uid=made["metadata"]["uid"])

    def end(self, claim: Any) -> None:
        self.plane.http.delete(f"{PATH}/{claim.name}").raise_for_status()

    def again(self, ask: Any, claim: Any) -> Any:
        """Ask until the driver answers without an error, as kubelet does."""

        def answered() -> Any:
            try:
                answer = ask(claim)[claim.uid]
            except grpc.RpcError:
                return None
            return None if answer.error else answer

        return wait_until(answered, "the driver answers", timeout_s=60)


@pytest.fixture(scope="module")
def driver() -> Iterator[KilledDriver]:
    need_control_plane()
    with TemporaryDirectory(prefix="dra-") as folder, ControlPlane.start() as plane:
        plane.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        plane.apply(ROOT / "helm" / "tandem" / "crds" / "gpunodes.yaml")
        plane.await_definitions("gpunodes.tandem.gpu")
        yield KilledDriver(plane, Path(folder))


def test_nothing_is_lost_and_nothing_is_left(driver: KilledDriver) -> None:
    print(f"seed {SEED}: {KILLS} kills")
    rng = random.Random(SEED)
    points = [list(POINTS)[index % len(POINTS)] for index in range(KILLS)]
    rng.shuffle(points)
    prepared: dict[str, tuple[Any, str]] = {}  # by uid: the claim, and the GPU that it gives
    killed = Counter[str]()

    def check() -> None:
        assert driver.files() == sorted(f"{DRIVER}-claim-{uid}.json" for uid in prepared)
        for uid, (_, gpu) in prepared.items():
            given = driver.environment(f"{DRIVER}/claim={uid}")
            assert given == {"NVIDIA_VISIBLE_DEVICES": gpu}, "a GPU that is not its own"

    for point in points:
        driver.fault.write_text(point)
        gpu = rng.choice(GPUS)
        if point.startswith("publish"):
            driver.report()
        elif "unprepare" in point or point == "file-removed":
            if not prepared:
                driver.fault.unlink()
                claim = driver.allocated_claim(gpu)
                driver.again(driver.prepare, claim)
                prepared[claim.uid] = claim, gpu
                driver.fault.write_text(point)
            uid = rng.choice(sorted(prepared))
            claim, _ = prepared.pop(uid)
            driver.again(driver.unprepare, claim)
            driver.end(claim)
        else:
            claim = driver.allocated_claim(gpu)
            answer = driver.again(driver.prepare, claim)
            assert [d.device_name for d in answer.devices] == [gpu.lower()]
            prepared[claim.uid] = claim, gpu
        wait_until(lambda: not driver.fault.exists(), f"it is killed at {point}", timeout_s=60)
        killed[point] += 1
        wait_until(driver.is_published, "the newest report is published", timeout_s=60)
        check()
        if len(prepared) > 4:
            claim, _ = prepared.pop(rng.choice(sorted(prepared)))
            driver.again(driver.unprepare, claim)
            driver.end(claim)
    for uid in sorted(prepared):
        claim, _ = prepared.pop(uid)
        driver.again(driver.unprepare, claim)
    check()
    assert driver.files() == []
    assert killed.total() == KILLS
    print(dict(killed))
