"""The part of the kubelets: starts bound pods on simulated GPUs, and reports their ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tandem.contracts import names
from tandem.contracts.annotations import parse_visible_devices
from tandem.errors import TandemError
from tandem.kube.client import Object
from tandem.kube.resource import PODS
from tandem_demo.api import ApiServer
from tandem_demo.gpus import SimulatedNode
from tandem_demo.physics import Running, advance, slowdown
from tandem_demo.workload import DemoJob


@dataclass(slots=True)
class Run:
    """When and where a job ran, on the demo's clock.

    `sharing_slowdown` is the largest ratio by which neighbours have slowed it down, as calculated.
    """

    submitted_s: float
    started_s: float | None = None
    finished_s: float | None = None
    node: str = ""
    gpu: str = ""
    neighbours: set[str] = field(default_factory=set)
    sharing_slowdown: float | None = None

    @property
    def finished(self) -> bool:
        """True once it has ended."""
        return self.finished_s is not None


@dataclass(slots=True)
class Kubelets:
    """All kubelets at once: `nodes` by name, `runs` by the job's name."""

    api: ApiServer
    nodes: Mapping[str, SimulatedNode]
    jobs: Mapping[str, DemoJob]
    runs: dict[str, Run]
    max_jobs_on_a_gpu: int = 0
    _running: dict[str, Running] = field(default_factory=dict)  # by pod uid
    _last_s: float = 0.0

    def step(self, pods: list[Object], now_s: float) -> None:
        """Let time pass until `now_s`, then start what has been bound since."""
        known = {pod["metadata"]["uid"]: pod for pod in pods}
        for uid in advance(self._running, now_s - self._last_s):
            self._finish(known[uid], now_s)
        self._last_s = now_s
        for uid, pod in known.items():
            if pod["spec"].get("nodeName") and _phase(pod) == "Pending":
                self._start(uid, pod, now_s)

    def gpu_of(self, uid: str) -> str | None:
        """Return the UUID of the GPU that a pod runs on at the moment."""
        running = self._running.get(uid)
        return running.gpu if running else None

    def _start(self, uid: str, pod: Object, now_s: float) -> None:
        name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
        gpu = visible_device(pod)
        if gpu not in self.nodes[node].uuids():
            raise TandemError(
                f"Pod {name} was bound to {node} with GPU {gpu!r}, which is not there."
            )
        run, job = self.runs[name], self.jobs[name]
        self.nodes[node].start(uid, job, gpu)
        self._running[uid] = Running(job, gpu, job.solo_s)
        on_gpu = {each.job.name: each.job for each in self._running.values() if each.gpu == gpu}
        self.max_jobs_on_a_gpu = max(self.max_jobs_on_a_gpu, len(on_gpu))
        if len(on_gpu) > 1:
            total = sum(each.utilisation for each in on_gpu.values())
            for each in on_gpu.values():
                its = self.runs[each.name]
                its.neighbours |= on_gpu.keys() - {each.name}
                now = slowdown(each.utilisation, total)
                its.sharing_slowdown = max(now, its.sharing_slowdown or now)
        run.started_s, run.node, run.gpu = now_s, node, gpu
        state = {"running": {"startedAt": _now()}}
        self._report(pod, "Running", state)

    def _finish(self, pod: Object, now_s: float) -> None:
        uid = pod["metadata"]["uid"]
        run = self.runs[self._running.pop(uid).job.name]
        run.finished_s = now_s
        self.nodes[run.node].end(uid)
        started = pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
        state = {"terminated": {"exitCode": 0, "startedAt": started, "finishedAt": _now()}}
        self._report(pod, "Succeeded", state)

    def _report(self, pod: Object, phase: str, state: Object) -> None:
        container = {"name": pod["spec"]["containers"][0]["name"], "state": state}
        self.api.set_status(PODS, pod, {"phase": phase, "containerStatuses": [container]})


def visible_device(pod: Object) -> str:
    """Return the GPU that the container sees, as a kubelet resolves its environment."""
    for variable in pod["spec"]["containers"][0].get("env") or ():
        if variable["name"] == names.VISIBLE_DEVICES_ENV:
            path = variable["valueFrom"]["fieldRef"]["fieldPath"]
            annotation = path.removeprefix("metadata.annotations['").removesuffix("']")
            devices = parse_visible_devices(pod["metadata"]["annotations"].get(annotation, ""))
            if len(devices) == 1:
                return devices[0]
    raise TandemError(
        f"The container of pod {pod['metadata']['name']} does not see exactly one GPU.",
        f"Its {names.VISIBLE_DEVICES_ENV} should come from {names.VISIBLE_DEVICES}.",
    )


def _phase(pod: Object) -> str:
    phase: str = (pod.get("status") or {}).get("phase", "Pending")
    return phase


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
