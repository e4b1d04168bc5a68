"""Tandem, installed by its chart, next to the controllers of workloads."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kind_examples import Object, asks

from controlplane import ControlPlane, operators, wait_until
from controlplane.installation import Installation
from node_agent.stub import StubGpu, StubState, build, environment
from tandem.contracts import names
from tandem.errors import TandemError

NODES, GPUS_PER_NODE = ("n0", "n1"), 2
#: The namespace whose jobs may have all GPUs back from those that others have borrowed.
LENDER = "lender"
#: The namespace that may hold one GPU.
CAPPED = "capped"
QUEUE = {
    "min_run_s": 0,
    "preemption_cost_s": 0,
    "max_preemptions_per_hour": 100,
    "quotas": [
        {"namespace": LENDER, "gpus": len(NODES) * GPUS_PER_NODE},
        {"namespace": CAPPED, "max_gpus": 1},
    ],
}


class KindsCluster:
    """Nodes of two simulated GPUs each, and Tandem with these settings of its extender."""

    def __init__(self, plane: ControlPlane, folder: Path, config: Object) -> None:
        self.plane = plane
        self._folder = folder
        values = {"scheduler": {"extender": {"config": {"queue": QUEUE} | config}}}
        self.installation = Installation(plane, folder, values=values)
        self._teams: set[str] = set()

    def start(
        self, started: Iterable[str], nodes: Iterable[str] = NODES, hand_over: str = "environment"
    ) -> None:
        """Start operators, then Tandem with an agent on each node."""
        operators.start(self.plane, started)
        self.installation.install()
        library = build(self._folder)
        for node in nodes:
            state = self._folder / f"{node}.gpus"
            boards = [StubGpu(uuid=f"GPU-{node}-{index}") for index in range(GPUS_PER_NODE)]
            StubState(gpus=boards).write(state)
            settings = {"report_interval_s": 1.0, "hand_over": hand_over}
            self.installation.start_agent(node, environment(library, state), settings)

    def team(self, name: str = "") -> str:
        """Make the namespace of a tenant."""
        name = name or f"team-{secrets.token_hex(3)}"
        self.plane.kubectl("create", "namespace", name)
        self._teams.add(name)
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        wait_until(lambda: self.plane.http.get(account).is_success, f"{name} is set up")
        return name

    def remove_teams(self) -> None:
        """Delete the namespaces of tenants and wait until they are gone."""
        for name in self._teams:
            self.plane.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")
        for name in self._teams:
            self.plane.await_gone(name)
        self._teams.clear()

    def apply(self, namespace: str, objects: Iterable[Object]) -> None:
        """Apply objects as a user of the namespace would.

        An operator may refuse the last one until it has seen those before.
        """
        *before, last = _placed(namespace, objects)
        if not before:
            self.plane.apply(last)
            return
        self.plane.apply(before)
        wait_until(lambda: self._takes(last), f"{last['kind']} is taken", timeout_s=60)

    def merge(self, path: str, name: str, change: Object) -> None:
        """Merge a change into an object of the list at `path`, as a user would."""
        merge = {"Content-Type": "application/merge-patch+json"}
        answer = self.plane.http.patch(f"{path}/{name}", json=change, headers=merge)
        answer.raise_for_status()

    def _takes(self, manifest: Object) -> bool:
        try:
            self.plane.apply(manifest)
        except TandemError as error:
            if "denied the request" in error.message:
                return False
            raise
        return True

    def refusal(self, namespace: str, objects: Iterable[Object]) -> str:
        """Return why objects would be refused, '' where they would be taken."""
        listed = "\n---\n".join(json.dumps(each) for each in _placed(namespace, objects))
        try:
            self.plane.kubectl("apply", "--dry-run=server", "-f", "-", stdin=listed)
        except TandemError as error:
            return error.message
        return ""

    def pods(self, namespace: str) -> list[Object]:
        """Return the pods of a namespace that are not on their way out."""
        found = self._read(f"/api/v1/namespaces/{namespace}/pods")["items"]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def askers(self, namespace: str) -> list[Object]:
        """Return those of them that ask for GPUs and have not ended."""
        ended = ("Succeeded", "Failed")
        live = (pod for pod in self.pods(namespace) if pod["status"].get("phase") not in ended)
        return [pod for pod in live if asks(pod)]

    def running(self, namespace: str) -> list[Object]:
        """Return the pods that ask for GPUs and run."""
        return [pod for pod in self.askers(namespace) if pod["status"].get("phase") == "Running"]

    def await_running(self, namespace: str, number: int) -> list[Object]:
        """Wait until so many pods with GPUs run, and return them."""

        def all_run() -> list[Object]:
            found = self.running(namespace)
            return found if len(found) == number == len(self.askers(namespace)) else []

        return wait_until(all_run, f"{number} pods with GPUs of {namespace} run", timeout_s=240)

    def let_end(self, pods: Iterable[Object], status: int = 0) -> None:
        """Let pods that run end with an exit status."""
        for pod in pods:
            where = pod["metadata"]
            self.plane.kubectl(
                "annotate", "pod", "-n", where["namespace"], where["name"],
                f"kwok.tandem.gpu/exit-code={status}", "kwok.tandem.gpu/run-duration=10ms",
            )  # fmt: skip

    def gpujobs(self, namespace: str) -> str:
        """Return where the API server has the GPUJobs of a namespace."""
        return f"/apis/{names.API_VERSION}/namespaces/{namespace}/gpujobs"

    def gpujob(self, namespace: str) -> Object:
        """Return the GPUJob of a namespace, the last one of several, empty where there is none."""
        found = self._read(self.gpujobs(namespace))["items"]
        return max(found, key=lambda each: each["metadata"]["creationTimestamp"], default={})

    def await_phase(self, namespace: str, phase: str) -> Object:
        """Wait until the GPUJob of a namespace is in a phase, and return it."""

        def there() -> Object:
            found = self.gpujob(namespace)
            return found if found.get("status", {}).get("phase") == phase else {}

        return wait_until(there, f"the GPUJob of {namespace} is {phase}", timeout_s=240)

    def await_waiting(self, namespace: str) -> Object:
        """Wait until the GPUJob of a namespace says why it waits, and return it."""

        def waiting() -> Object:
            found = self.gpujob(namespace)
            status = found.get("status", {})
            return found if status.get("reason") == "Waiting" and status.get("message") else {}

        what = f"the GPUJob of {namespace} says why it waits"
        return wait_until(waiting, what, timeout_s=240)

    def version_of(self, path: str) -> str:
        """Return the resource version of a list as it is now."""
        return str(self._read(path)["metadata"]["resourceVersion"])

    def fill(self, namespace: str, gpus: int = 2) -> Object:
        """Run a job of one pod that takes whole GPUs; return the pod."""
        container: dict[str, Any] = {
            "name": "fill",
            "image": "fill:1",
            "resources": {"limits": {names.RESOURCE: gpus}},
        }
        spec = {"restartPolicy": "Never", "containers": [container]}
        template = {"metadata": {"annotations": {names.EXCLUSIVE: "true"}}, "spec": spec}
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "fill"},
            "spec": {"template": template},
        }
        self.apply(namespace, [job])
        (pod,) = self.await_running(namespace, 1)
        return pod

    def _read(self, path: str) -> Any:
        return self.plane.http.get(path).raise_for_status().json()


def _placed(namespace: str, objects: Iterable[Object]) -> list[Object]:
    return [{**each, "metadata": {**each["metadata"], "namespace": namespace}} for each in objects]
