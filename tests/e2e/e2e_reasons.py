"""A cluster for the reasons: GPUNodes as the tests write them, and all that GPUJobs ever said."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from e2e_cluster import DEVICES, TandemCluster

from controlplane import ControlPlane, Node, wait_until
from tandem.errors import TandemError
from tandem.reasons.causes import Cause, Reason, understood

GIB = 1 << 30
HEARS_WITHIN_S = 120.0
#: Of this type the shipped model of interference knows pairs; of the other it knows none.
KNOWN, UNKNOWN = "Tesla P100-PCIE-16GB", "NVIDIA A100-SXM4-80GB"
_LEASE = "/apis/coordination.k8s.io/v1/namespaces/tandem-system/leases/tandem-scheduler"
_GPUNODES = "/apis/tandem.gpu/v1alpha1/gpunodes"
_GPUJOBS = "/apis/tandem.gpu/v1alpha1/gpujobs"
_MERGE = {"Content-Type": "application/merge-patch+json"}
GPU = dict[str, Any]
_ADMINISTRATOR = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "reasons"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                "name": "cluster-admin"},
    "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "kube-system"}],
}  # fmt: skip


def gpu(**other: Any) -> GPU:
    """Return a healthy GPU of 80 GiB with two places, but for the fields that are given."""
    return {"model": UNKNOWN, "memoryBytes": 80 * GIB, "shares": 2, "health": "Healthy", **other}


def now() -> str:
    """Return the time as a report has it."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


class Said:
    """What the statuses of all GPUJobs have said since the beginning, by a watch."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        """Whether the watch has ended, so that nothing more is heard."""
        return self._over.is_set()

    def close(self) -> None:
        """End the watch."""
        self._over.set()
        self._thread.join()

    def statuses(self, namespace: str, name: str = "") -> list[dict[str, Any]]:
        """Return the statuses of one GPUJob, or of all of a namespace, the first ones first."""
        with self._lock:
            return [
                status
                for (where, who), all_of in self._seen.items()
                if where == namespace and name in (who, "")
                for status in all_of
            ]

    def _watch(self) -> None:
        version = "0"
        while not self._over.is_set():
            query = {"watch": "1", "resourceVersion": version, "timeoutSeconds": "5"}
            try:
                with self._plane.http.stream("GET", _GPUJOBS, params=query, timeout=20) as lines:
                    for line in lines.iter_lines():
                        version = self._note(json.loads(line)) or version
            except httpx.TransportError:
                continue

    def _note(self, event: dict[str, Any]) -> str:
        metadata = event["object"].get("metadata") or {}
        if event["type"] == "ERROR":
            return "0"
        if status := event["object"].get("status"):
            with self._lock:
                self._seen[metadata["namespace"], metadata["name"]].append(status)
        return str(metadata.get("resourceVersion") or "")


class ReasonsCluster:
    """Tandem without agents: scenarios write what these would report, and read what jobs hear."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane = plane
        self.cluster = TandemCluster(plane, folder)
        self.messages: dict[Cause, str] = {}  # in which causes were heard
        self.installation = self.cluster.installation
        self._extender: Any = None

    def start(self, settings: dict[str, Any]) -> None:
        """Install Tandem with the settings of the first scenarios."""
        self.installation.apply_manifests()
        self.installation.start_predictor()
        self._extender = self.installation.start_extender(settings)
        self._scheduler = self.installation.start_scheduler()
        self.said = Said(self.plane)
        self.plane.apply(_ADMINISTRATOR)
        self._token = self.plane.service_account_token("kube-system", "default")

    def again(self, settings: dict[str, Any]) -> None:
        """Start the extender with other settings, as an operator would."""
        self._extender.terminate()
        self._extender = self.installation.start_extender(settings)

    def node(self, name: str, *gpus: GPU, observed_at: str = "", **node: Any) -> str:
        """Create a node and report its GPUs; return its name."""
        self.plane.add_nodes([Node(name, **node)])
        head = {"apiVersion": "tandem.gpu/v1alpha1", "kind": "GPUNode", "metadata": {"name": name}}
        self.plane.http.post(_GPUNODES, json={**head, "spec": {}}).raise_for_status()
        self.report(name, *gpus, observed_at=observed_at)
        return name

    def report(self, name: str, *gpus: GPU, observed_at: str = "") -> None:
        """Report the GPUs of a node as its agent would."""
        found = [{"uuid": f"GPU-{name}-{at}", "index": at, **each} for at, each in enumerate(gpus)]
        status = {"observedAt": observed_at or now(), "gpus": found}
        path = f"{_GPUNODES}/{name}/status"
        self.plane.http.patch(path, json={"status": status}, headers=_MERGE).raise_for_status()

    @contextlib.contextmanager
    def measuring(
        self, namespace: str, node: str, *gpus: GPU, percent: Mapping[str, tuple[float, float]]
    ) -> Iterator[None]:
        """Report the pods of Jobs as the agent of their node would, twice a second.

        `percent` is what a Job gets of a GPU's time, alone and next to another.
        """
        with self.reporting(
            lambda: self.report(node, *self._measured(namespace, node, gpus, percent))
        ):
            yield

    @contextlib.contextmanager
    def reporting(self, report: Callable[[], None], every_s: float = 0.5) -> Iterator[None]:
        """Report again and again, in a thread."""
        over = threading.Event()

        def repeat() -> None:
            while not over.wait(every_s):
                with contextlib.suppress(httpx.TransportError):
                    report()

        thread = threading.Thread(target=repeat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _measured(
        self,
        namespace: str,
        node: str,
        gpus: Sequence[GPU],
        percent: Mapping[str, tuple[float, float]],
    ) -> list[GPU]:
        """Return the GPUs of a node with the pods that run on them."""
        on: dict[str, list[tuple[str, str]]] = defaultdict(list)  # job and uid by GPU
        for pod in self.cluster.pods(namespace):
            metadata = pod["metadata"]
            gpu = (metadata.get("annotations") or {}).get(DEVICES, "")
            if gpu and pod["status"].get("phase") == "Running":
                on[gpu].append((metadata["labels"]["job-name"], metadata["uid"]))
        found = []
        for at, each in enumerate(gpus):
            pods = on[f"GPU-{node}-{at}"]
            uses = [
                {"uid": uid, "memoryBytes": 8 * GIB,
                 "utilisationPercent": percent[job][len(pods) > 1]}
                for job, uid in pods
            ]  # fmt: skip
            busy = min(100.0, sum(use["utilisationPercent"] for use in uses))
            found.append({**each, "utilisationPercent": busy, "utilisationSource": "samples",
                          "pods": uses})  # fmt: skip
        return found

    def patch(self, path: str, change: dict[str, Any]) -> None:
        """Change an object as an administrator."""
        self.plane.http.patch(path, json=change, headers=_MERGE).raise_for_status()

    def hears(
        self, namespace: str, reason: Reason, name: str, where: Callable[[Cause], bool]
    ) -> Cause:
        """Return the cause of that reason, once a GPUJob of the namespace says it.

        Its sentence is in the message of the same status.
        """

        def found() -> tuple[Cause, str] | None:
            if self.said.closed:
                raise AssertionError("the tests are over")
            for status in self.said.statuses(namespace, name):
                for cause in understood(status.get("causes") or ()):
                    if cause.reason is reason and where(cause):
                        return cause, status["message"]
            return None

        def heard() -> Sequence[str]:
            return sorted(
                {
                    cause["reason"]
                    for status in self.said.statuses(namespace, name)
                    for cause in status.get("causes") or ()
                }
            )

        try:
            cause, message = wait_until(found, f"{reason} in {namespace}", timeout_s=HEARS_WITHIN_S)
        except TandemError as error:
            raise AssertionError(f"{namespace} hears {heard()} and not {reason}") from error
        self.messages[cause] = message
        return cause

    @contextlib.contextmanager
    def without_leader(self) -> Iterator[None]:
        """Stop the scheduler until its Lease has ended, and let it go on afterwards."""
        self._scheduler.pause()
        try:
            wait_until(lambda: not self._leads(), "no scheduler leads")
            yield
        finally:
            self._scheduler.resume()

    def _leads(self) -> bool:
        lease = self.cluster.read(_LEASE)["spec"]
        renewed = datetime.fromisoformat(lease["renewTime"])
        return datetime.now(UTC) - renewed <= timedelta(seconds=lease["leaseDurationSeconds"] + 1)

    def explains(self, namespace: str, pod: str, reason: Reason) -> Cause:
        """Return the cause of that reason, once the answer about a pod has it."""
        url = f"{self.installation.public_url}/v1/explain/{namespace}/{pod}"
        token = {"Authorization": f"Bearer {self._token}"}

        def found() -> tuple[Cause, str] | None:
            answer = httpx.get(url, headers=token, verify=False, trust_env=False)
            said = answer.json()
            causes = understood(said.get("causes") or ())
            return next(((each, said["message"]) for each in causes if each.reason is reason), None)

        cause, message = wait_until(found, f"{reason} is explained", poll_s=0.5)
        self.messages[cause] = message
        return cause
