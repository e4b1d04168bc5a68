"""What the stories say and see: jobs given by kubectl, pods read back from the API server."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import yaml

from controlplane import ControlPlane, wait_until
from controlplane.installation import Installation
from node_agent.stub import StubGpu, StubState, build, environment
from tandem.errors import TandemError

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
MODELS = {
    "resnet50": LIGHT / "light_resnet50.onnx",
    "squeezenet": LIGHT / "light_squeezenet.onnx",
    "alexnet": LIGHT / "light_bvlc_alexnet.onnx",
    "inception-v1": LIGHT / "light_inception_v1.onnx",
}
#: Three may share a GPU here, so that it is the memory that keeps the third one out.
SETTINGS = {"max_jobs_per_gpu": 3}
DEVICES = "tandem.gpu/visible-devices"
#: The shipped model of interference knows this type. On a type that it does not know, a job that
#: has never been measured shares no GPU (docs/predictor.md).
BOARD = "Tesla P100-PCIE-16GB"
#: Twice what the type has: a GPU that reports more is none to the scheduler.
BOARD_BYTES = 32 << 30


#: How the nodes hand GPUs over: `environment`, `dra-queue`, or `half` of them each way. A story
#: says the same of each (`make test` runs them by the environment).
HAND_OVER = os.environ.get("TANDEM_HAND_OVER", "environment")


class TandemCluster:
    """Tandem on a control plane, and the GPUs that its agents see."""

    def __init__(self, plane: ControlPlane, folder: Path, hand_over: str = HAND_OVER) -> None:
        self.plane = plane
        self._hand_over = hand_over
        self._by_claims = hand_over != "environment"
        config = {"admission": {"gpu_claims": True}}
        values = {"scheduler": {"extender": {"config": config}}} if self._by_claims else None
        self.installation = Installation(plane, folder, values=values)
        self._folder = folder

    def start(
        self,
        gpus_per_node: int,
        nodes: tuple[str, ...] = ("n0", "n1"),
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.installation.install(settings or SETTINGS)
        library = build(self._folder)
        for number, node in enumerate(nodes):
            state = self._folder / f"{node}.gpus"
            boards = [
                StubGpu(f"GPU-{node}-{i}", name=BOARD, memory=BOARD_BYTES)
                for i in range(gpus_per_node)
            ]
            StubState(gpus=boards).write(state)
            by_claims = self._by_claims and not (self._hand_over == "half" and number % 2)
            way = {"hand_over": "dra-queue"} if by_claims else {}
            self.installation.start_agent(node, environment(library, state), {"shares": 3} | way)

    # --- what a user does ---------------------------------------------------------------------

    def namespace(self, name: str = "", **labels: str) -> str:
        name = name or f"story-{secrets.token_hex(4)}"
        self.plane.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        )
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        wait_until(lambda: self.plane.http.get(account).is_success, f"{name} is set up")
        return name

    def remove(self, namespace: str) -> None:
        """Delete a namespace and wait until nothing of it holds a GPU."""
        self.plane.kubectl("delete", "namespace", namespace, "--wait=false")
        wait_until(lambda: not self.pods(namespace), f"the pods of {namespace} are gone")

    def tandem(self, *args: str) -> str:
        """Run the command line as a user would."""
        return subprocess.run(
            [str(Path(sys.executable).with_name("tandem")), *args],
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    def push(self, namespace: str, *models: str) -> None:
        for model in models:
            self.tandem(
                "model", "push", str(MODELS[model]), "--name", model,
                "--namespace", namespace, "--server", self.installation.predictor_url,
                "--token", self.installation.predictor_token(),
            )  # fmt: skip

    def apply_job(self, namespace: str, job: dict[str, Any]) -> None:
        self.plane.kubectl("apply", "-n", namespace, "-f", "-", stdin=yaml.safe_dump(job))

    def accepts(self, namespace: str, job: dict[str, Any]) -> bool:
        """Apply a job; False where it was refused because our webhook is not there."""
        try:
            self.apply_job(namespace, job)
        except TandemError as error:
            if "failed calling webhook" in error.message:
                return False
            raise
        return True

    def let_end(self, namespace: str, job: str) -> None:
        """Let the pod of a job come to its end, as a training run does."""
        pod = self.pod_of(namespace, job)
        assert pod is not None
        self.plane.kubectl(
            "annotate", "pod", "-n", namespace, pod["metadata"]["name"],
            "kwok.tandem.gpu/run-duration=10ms",
        )  # fmt: skip
        wait_until(
            lambda: (self.pod_of(namespace, job) or pod)["status"].get("phase") == "Succeeded",
            f"{job} has ended",
        )

    @contextlib.contextmanager
    def without_webhook(self) -> Iterator[None]:
        """Take away for a while what gives pods their gate, and what refuses pods without one."""
        kinds = [
            ("mutatingwebhookconfiguration", "tandem"),
            ("validatingadmissionpolicybinding", "tandem-pods"),
        ]
        saved = [self.plane.get(kind, name) for kind, name in kinds]
        for kind, name in kinds:
            self.plane.kubectl("delete", kind, name)
        wait_until(lambda: self._admits(ungated_pod("default", "probe", {})), "both are gone")
        try:
            yield
        finally:
            for (_, name), one in zip(kinds, saved, strict=True):
                one["metadata"] = {"name": name}
                self.plane.apply(one)

    def _admits(self, pod: dict[str, Any]) -> bool:
        """Ask whether a pod would be let through as it is."""
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods"
        return self.plane.http.post(path, params={"dryRun": "All"}, json=pod).is_success

    # --- what the API server says -------------------------------------------------------------

    def read(self, path: str, **query: str) -> dict[str, Any]:
        """Read an object or a list: without a process of kubectl's, for it is asked often."""
        answer: dict[str, Any] = self.plane.http.get(path, params=query).raise_for_status().json()
        return answer

    def pods(self, namespace: str) -> list[dict[str, Any]]:
        return self.read(f"/api/v1/namespaces/{namespace}/pods")["items"]

    def pod_of(self, namespace: str, job: str) -> dict[str, Any] | None:
        path = f"/api/v1/namespaces/{namespace}/pods"
        pods = self.read(path, labelSelector=f"job-name={job}")["items"]
        return pods[0] if pods else None

    def gpujobs(self, namespace: str) -> list[dict[str, Any]]:
        return self.read(f"/apis/tandem.gpu/v1alpha1/namespaces/{namespace}/gpujobs")["items"]

    def running(self, namespace: str, job: str, timeout_s: float = 120.0) -> dict[str, Any]:
        def now() -> dict[str, Any] | None:
            pod = self.pod_of(namespace, job)
            return pod if pod and pod["status"].get("phase") == "Running" else None

        return wait_until(now, f"the pod of {job} runs", timeout_s=timeout_s)

    def waiting_reason(self, namespace: str, job: str) -> str:
        """Return why a job waits, once its GPUJob says so."""
        name = f"job-{job}"

        def reason() -> str:
            found = (each for each in self.gpujobs(namespace) if each["metadata"]["name"] == name)
            status = next((each.get("status") or {} for each in found), {})
            return status.get("message", "") if status.get("reason") == "Waiting" else ""

        return wait_until(reason, f"{job} says why it waits")

    def holders(self) -> dict[str, list[str]]:
        """Count, from the API server alone, who holds which GPU."""
        found: dict[str, list[str]] = defaultdict(list)
        for pod in self.read("/api/v1/pods")["items"]:
            if pod["status"].get("phase") in ("Succeeded", "Failed"):
                continue
            devices = (pod["metadata"].get("annotations") or {}).get(DEVICES, "")
            for gpu in filter(None, devices.split(",")):
                found[gpu].append(pod["metadata"]["name"])
        return found


def job(
    name: str,
    *,
    annotations: dict[str, str] | None = None,
    resource: str = "tandem.gpu/gpu",
    gpus: int = 1,
    sidecar: bool = False,
) -> dict[str, Any]:
    """Return a Job as a user writes it."""
    containers: list[dict[str, Any]] = [
        {"name": "train", "image": "train:1", "resources": {"limits": {resource: gpus}}}
    ]
    if sidecar:
        containers.append({"name": "logs", "image": "logs:1"})
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "template": {
                "metadata": {"annotations": annotations or {}},
                "spec": {
                    "restartPolicy": "Never",
                    "initContainers": [{"name": "fetch", "image": "fetch:1"}],
                    "containers": containers,
                },
            }
        },
    }


def ungated_pod(namespace: str, name: str, annotations: dict[str, str]) -> dict[str, Any]:
    """Return a pod as it would stand there without our webhook."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
        "spec": {
            "schedulerName": "tandem-scheduler",
            "containers": [
                {
                    "name": "train",
                    "image": "train:1",
                    "resources": {
                        "requests": {"tandem.gpu/gpu": 1},
                        "limits": {"tandem.gpu/gpu": 1},
                    },
                }
            ],
        },
    }
