"""The chart installed on a control plane with one node of eight simulated GPUs."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

from controlplane import ControlPlane, wait_until
from controlplane.installation import Installation
from node_agent.stub import FakeProc, StubGpu, StubProcess, StubState, build, environment
from tandem.contracts import names
from tandem.errors import TandemError

_PID = 4242
#: A certificate is replaced within half a minute instead of a quarter of an hour.
VALUES = {"scheduler": {"extender": {"config": {"certificate": {"look_s": 2.0}}}}}


class ChartCluster:
    """Tandem installed by Helm; the services run with the settings and accounts of the chart."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane = plane
        self.folder = folder
        self.installation = Installation(plane, folder, values=VALUES)
        self._gpus = [StubGpu(uuid=f"GPU-n0-{index}") for index in range(8)]
        self._proc = FakeProc(folder / "proc")
        self.teams: set[str] = set()

    def start(self) -> None:
        self.installation.install()
        StubState(gpus=self._gpus).write(self.folder / "gpus")
        library = environment(build(self.folder), self.folder / "gpus")
        settings = {"proc": str(self._proc.root), "report_interval_s": 1.0}
        self.installation.start_agent("n0", library, settings)

    def team(self) -> str:
        """Make a namespace of a tenant."""
        name = f"team-{secrets.token_hex(3)}"
        self.plane.kubectl("create", "namespace", name)
        self.teams.add(name)
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        wait_until(lambda: self.plane.http.get(account).is_success, f"{name} is set up")
        return name

    def remove_teams(self, teams: set[str]) -> None:
        """Delete these namespaces of tenants, without waiting for their objects."""
        self.teams -= teams
        for team in teams:
            self.plane.kubectl("delete", "namespace", team, "--wait=false", "--ignore-not-found")

    def submit(
        self, namespace: str, name: str, memory: str = "8Gi", seconds: float | None = None
    ) -> None:
        """Submit a job of one GPU; it ends by itself after `seconds`, if given."""
        self.plane.apply(self._job(namespace, name, memory, seconds))

    def await_webhook(self, namespace: str) -> None:
        """Wait until the API server can call the webhook: its process may be being replaced."""
        job = json.dumps(self._job(namespace, "not-created", "8Gi", None))

        def answers() -> bool:
            try:
                self.plane.kubectl("apply", "--dry-run=server", "-f", "-", stdin=job)
            except TandemError:
                return False
            return True

        wait_until(answers, "the webhook answers", timeout_s=120)

    def _job(self, namespace: str, name: str, memory: str, seconds: float | None) -> dict[str, Any]:
        annotations = {names.MEMORY: memory}
        if seconds is not None:
            annotations["kwok.tandem.gpu/run-duration"] = f"{seconds}s"
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "template": {
                    "metadata": {"annotations": annotations},
                    "spec": {
                        "restartPolicy": "Never",
                        "containers": [
                            {
                                "name": "train",
                                "image": "train:1",
                                "resources": {"limits": {names.RESOURCE: 1}},
                            }
                        ],
                    },
                }
            },
        }

    def pod_of(self, namespace: str, job: str) -> dict[str, Any]:
        pods = self.plane.get("pods", "-n", namespace, "-l", f"job-name={job}")["items"]
        return pods[0] if pods else {"status": {}, "spec": {}}

    def runs(self, namespace: str, job: str) -> bool:
        return self.pod_of(namespace, job)["status"].get("phase") == "Running"

    def await_run(self, namespace: str, job: str) -> dict[str, Any]:
        wait_until(lambda: self.runs(namespace, job), f"{job} runs")
        return self.pod_of(namespace, job)

    def keep_busy(self, pod: dict[str, Any]) -> None:
        """Let a process of the pod use its GPU from now on."""
        gpu = pod["metadata"]["annotations"][names.VISIBLE_DEVICES]
        index = [board.uuid for board in self._gpus].index(gpu)
        self._proc.add(_PID, pod["metadata"]["uid"])
        process = StubProcess(index, _PID, 4 << 30, sm=60)
        StubState(gpus=self._gpus, processes=[process]).write(self.folder / "gpus")
