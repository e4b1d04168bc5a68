"""One moment of a run, put together from what the API server holds and the kubelets do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tandem.contracts.resources import GPU, GPUJobStatus, GPUNodeStatus, Phase, Source
from tandem.kube.client import Object
from tandem.reasons.causes import Reason, first_of
from tandem.reasons.words import briefly
from tandem_demo.gpus import SimulatedNode
from tandem_demo.kubelet import Kubelets, Run
from tandem_demo.scheduler import Scheduler
from tandem_demo.workload import GIB, DemoJob


@dataclass(frozen=True, slots=True)
class GpuRow:
    """A GPU as its agent last reported it, and the jobs that run on it."""

    name: str  # node/index
    report: GPU | None
    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job; `phase` is None before it is submitted.

    `predicted_gib` is the bound on its memory that is planned with, None for a whole GPU.
    """

    job: DemoJob
    phase: Phase | None
    where: str
    running_s: float | None
    reason: str
    predicted_gib: float | None = None


@dataclass(frozen=True, slots=True)
class View:
    """The rows of the tables."""

    now_s: float
    gpus: tuple[GpuRow, ...]
    jobs: tuple[JobRow, ...]


class Viewer:
    """Makes views, and remembers what was predicted and measured of each job.

    Memory is in GiB. A slowdown is a ratio of times, the largest that was measured next to others.
    """

    def __init__(self, nodes: Mapping[str, SimulatedNode], jobs: Mapping[str, DemoJob]) -> None:
        self.predicted_gib: dict[str, float] = {}
        self.measured_gib: dict[str, float] = {}
        self.measured_slowdown: dict[str, float] = {}
        self._jobs = jobs
        self._place = {
            uuid: (node.name, index)
            for node in nodes.values()
            for index, uuid in enumerate(node.uuids())
        }

    def place(self, uuid: str) -> str:
        """Return `node/index` of a GPU."""
        node, index = self._place[uuid]
        return f"{node}/{index}"

    def view(
        self,
        now_s: float,
        pods: list[Object],
        gpu_jobs: list[Object],
        gpu_nodes: list[Object],
        kubelets: Kubelets,
        scheduler: Scheduler,
    ) -> View:
        """Return what is to be seen now."""
        reports = {
            gpu.uuid: gpu
            for node in gpu_nodes
            for gpu in GPUNodeStatus.model_validate(node["status"]).gpus
        }
        on_gpu: dict[str, list[str]] = {}
        reasons: dict[str, str] = {}
        names = {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in pods}
        for uid, name in names.items():
            gpu = kubelets.gpu_of(uid)
            if gpu is not None:
                on_gpu.setdefault(gpu, []).append(name)
            reasons[name] = scheduler.reasons.get(uid, "")
        statuses = {
            each["spec"]["workload"]["name"]: GPUJobStatus.model_validate(each.get("status") or {})
            for each in gpu_jobs
        }
        self._remember(names, statuses, reports.values())
        return View(
            now_s,
            tuple(
                GpuRow(self.place(uuid), reports.get(uuid), tuple(on_gpu.get(uuid, ())))
                for uuid in self._place
            ),
            tuple(
                self._row(job, statuses.get(name), reasons.get(name, ""), kubelets.runs, now_s)
                for name, job in self._jobs.items()
            ),
        )

    def _remember(
        self,
        names: Mapping[str, str],
        statuses: Mapping[str, GPUJobStatus],
        gpus: Iterable[GPU],
    ) -> None:
        for name, status in statuses.items():
            if status.load is not None and status.load.memory_source is not Source.WHOLE_GPU:
                self.predicted_gib[name] = status.load.memory_p95_bytes / GIB
            if status.observed is not None and status.observed.neighbours:
                worst = max(each.slowdown for each in status.observed.neighbours)
                self.measured_slowdown[name] = 1 + worst
        for use in (use for gpu in gpus for use in gpu.pods):
            if use.uid in names and use.memory_peak_bytes:
                name, peak = names[use.uid], use.memory_peak_bytes / GIB
                self.measured_gib[name] = max(peak, self.measured_gib.get(name, 0.0))

    def _row(
        self,
        job: DemoJob,
        status: GPUJobStatus | None,
        refused: str,
        runs: Mapping[str, Run],
        now_s: float,
    ) -> JobRow:
        run, predicted = runs.get(job.name), self.predicted_gib.get(job.name)
        if run is None:
            return JobRow(job, None, "", None, "")
        if run.started_s is not None:
            end = now_s if run.finished_s is None else run.finished_s
            phase = Phase.RUNNING if run.finished_s is None else Phase.COMPLETED
            where, ran_s = self.place(run.gpu), end - run.started_s
            return JobRow(job, phase, where, ran_s, "", predicted)
        if status is None:
            return JobRow(job, Phase.QUEUED, "", None, "")
        cause = first_of(status.causes)
        is_new = cause is not None and cause.reason is Reason.QUEUED  # not looked at yet
        reason = refused or ("" if is_new else briefly(status.causes))
        return JobRow(job, status.phase, "", None, reason, predicted)
