"""Tandem on a control plane of its own, and an oracle that reads the API server alone."""

from __future__ import annotations

import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from controlplane import ControlPlane, Node, wait_until
from controlplane.gpus import report_gpus
from controlplane.installation import Installation
from scheduler_extender.cluster.slowdowns import Slowdowns
from studies.plane.jobs import GPUS, NODES, Gang, believed
from studies.plane.training import Training
from tandem.contracts import names
from tandem.kube.resource import GPU_JOBS
from tandem.policy.catalog import Profile
from tandem.policy.job import Job

_SETTINGS = {
    "stale_after_s": 1e6,
    "queue": {"min_run_s": 0, "preemption_cost_s": 0, "max_preemptions_per_hour": 100},
}


class Site:
    """Tandem with one profile on a control plane of its own."""

    def __init__(self, plane: ControlPlane, installation: Installation, gpus: int) -> None:
        self.plane = plane
        self.installation = installation
        self.gpus = gpus

    def namespace(self, name: str) -> str:
        """Make a namespace and wait until pods may be made in it."""
        head = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        self.plane.apply(head)
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        wait_until(lambda: self.plane.http.get(account).is_success, f"{name} is set up")
        return name

    def submit(self, namespace: str, gang: Gang) -> None:
        """Create the Job of a gang."""
        path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
        self.plane.http.post(path, json=job_of(gang)).raise_for_status()

    def preemptions(self, namespace: str) -> int:
        """Return how often gangs of a namespace were preempted."""
        answer = self.plane.http.get(GPU_JOBS.path(namespace))
        found = answer.raise_for_status().json()["items"]
        return sum(len(job.get("status", {}).get("preemptedAt") or ()) for job in found)

    def run(self, namespace: str, gangs: Sequence[Gang]) -> tuple[Training, Watching]:
        """Submit gangs at their times and follow them to the end of the last."""
        slowdowns = Slowdowns()
        jobs = {gang.name: believed(gang, slowdowns) for gang in gangs}
        with (
            Training(self.plane.http, namespace, lambda a, b: _slower(jobs, a, b)) as training,
            Watching(self.plane, namespace) as watching,
        ):
            began = time.monotonic()
            for gang in gangs:
                time.sleep(max(0.0, began + gang.arrives_s - time.monotonic()))
                training.expect(gang.name, gang.pods, gang.duration_s)
                self.submit(namespace, gang)
            total_s = sum(gang.duration_s * gang.pods for gang in gangs)
            wait_until(training.all_ended, "all have ended", timeout_s=300 + 2 * total_s)
        return training, watching


class Watching:
    """An oracle: reads pods from the API server alone, once a second."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self._plane = plane
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self.most_on_a_gpu = 0
        self.longest_partial_s = 0.0
        self._partial_since: dict[str, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Watching:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self._stop.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._stop.wait(1.0):
            try:
                answer = self._plane.http.get(self._path)
            except httpx.HTTPError:
                continue  # one question without an answer must not end what is counted
            if answer.is_success:
                self._see(answer.json()["items"])

    def _see(self, pods: list[dict[str, Any]]) -> None:
        now, holders, size_of = time.monotonic(), {}, {}
        there: dict[str, int] = defaultdict(int)
        ended: dict[str, int] = defaultdict(int)
        for pod in pods:
            annotations = pod["metadata"].get("annotations", {})
            job = pod["metadata"]["labels"]["job-name"]
            size_of[job] = int(annotations[names.GANG_SIZE])
            if pod["status"].get("phase") in ("Succeeded", "Failed"):
                ended[job] += 1
                continue
            for gpu in filter(None, annotations.get(names.VISIBLE_DEVICES, "").split(",")):
                holders[gpu] = holders.get(gpu, 0) + 1
            there[job] += bool(pod["spec"].get("nodeName"))
        self.most_on_a_gpu = max(self.most_on_a_gpu, *holders.values(), 0)
        # A gang of which some have ended already is whole with those that have not.
        partial = {job for job, have in there.items() if 0 < have < size_of[job] - ended[job]}
        self._partial_since = {j: self._partial_since.get(j, now) for j in partial}
        longest = max((now - since for since in self._partial_since.values()), default=0.0)
        self.longest_partial_s = max(self.longest_partial_s, longest)


def job_of(gang: Gang) -> dict[str, Any]:
    """Return a gang as an indexed Job."""
    annotations = {
        names.MEMORY: f"{gang.memory_gib}Gi",
        names.UTILIZATION: f"{gang.utilisation}",
        names.CHECKPOINT: "true",
        names.GANG_SIZE: f"{gang.pods}",
    }
    container = {"name": "c", "image": "train:1", "resources": {"limits": {names.RESOURCE: 1}}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": gang.name},
        "spec": {
            "completions": gang.pods,
            "parallelism": gang.pods,
            "completionMode": "Indexed",
            "template": {
                "metadata": {"annotations": annotations},
                "spec": {"restartPolicy": "Never", "containers": [container]},
            },
        },
    }


@contextmanager
def site(profile: Profile, *, nodes: int = NODES, gpus: int = GPUS) -> Iterator[Site]:
    """Start a control plane with Tandem and kwok nodes of so many GPUs each."""
    machines = [Node(f"n{index}", cpu=256, pods=400) for index in range(nodes)]
    with tempfile.TemporaryDirectory() as folder, ControlPlane.start(nodes=machines) as plane:
        installation = Installation(plane, Path(folder))
        installation.install({"profile": profile.model_dump(mode="json"), **_SETTINGS})
        report_gpus(plane.http, [node.name for node in machines], gpus, profile.max_jobs_per_gpu)
        yield Site(plane, installation, nodes * gpus)


def _slower(jobs: Mapping[str, Job], job: str, other: str) -> float:
    own = jobs[job].own_slowdown
    return 0.0 if own is None else float(own[jobs[other].interference_class])
