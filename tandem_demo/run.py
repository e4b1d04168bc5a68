"""A run of the demo, from starting the services to the result."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tandem.contracts.resources import Phase
from tandem.errors import TandemError
from tandem.kube.client import Object
from tandem.kube.resource import GPU_JOBS, GPU_NODES, NODES, PODS
from tandem.local.waiting import wait_until
from tandem_demo.api import ApiServer
from tandem_demo.gpus import SimulatedNode
from tandem_demo.kubelet import Kubelets, Run
from tandem_demo.result import Counts, Result, collect
from tandem_demo.scheduler import Scheduler
from tandem_demo.services import START_TIMEOUT_S, Services
from tandem_demo.view import View, Viewer
from tandem_demo.workload import JOBS, NAMESPACE, graph_files

TICK_S = 0.1
#: Real time in which nothing runs and nothing changes, after which the run is given up.
STUCK_S = 60.0

Say = Callable[[str], None]
Show = Callable[[View], None]
Keep = Callable[[Result, str], None]


def simulated_nodes(gpus: int, folder: Path) -> dict[str, SimulatedNode]:
    """Return two nodes that share the GPUs (one node for one GPU), by name."""
    counts = [gpus - gpus // 2, gpus // 2]
    return {
        name: SimulatedNode(name, count, folder / name)
        for name, count in zip(("node-a", "node-b"), counts, strict=True)
        if count
    }


def run(
    gpus: int,
    speed: float,
    folder: Path,
    say: Say,
    show: Show,
    page: Say = lambda _: None,
    keep: Keep = lambda _, __: None,
) -> Result:
    """Run all jobs on simulated GPUs; `say` gets what happens, `show` gets each moment.

    `page` is given the address of the status page once it is served. `keep` is given the result and
    the address while the services still run; they end when it returns.

    Raises TandemError if a service fails or the jobs get stuck.
    """
    began_s = time.monotonic()
    nodes = simulated_nodes(gpus, folder)
    graphs = graph_files()
    services = Services(folder, nodes)
    say("Starting the extender and the predictor")
    with services, contextlib.ExitStack() as stack:
        page(services.page_url)
        api = ApiServer(services.api_url)
        stack.callback(api.close)
        for node in nodes.values():
            api.create(NODES, node.manifest())
        services.start_agents()
        say(f"Pushing {len(graphs)} graphs of the onnx package to the predictor")
        for name, file in graphs.items():
            push(file, name, services.predictor_url)
        wait_until(lambda: _reported(api) == gpus, "the agents report", timeout_s=START_TIMEOUT_S)
        scheduler = Scheduler.of(services.verbs_url)
        stack.callback(scheduler.close)
        session = _Session(api, services, scheduler, nodes, speed, say, show)
        session.run()
        session.end()
        result = collect(
            JOBS,
            session.kubelets.runs,
            session.viewer,
            gpus=gpus,
            speed=speed,
            counts=Counts(
                max_jobs_on_a_gpu=session.kubelets.max_jobs_on_a_gpu,
                bindings=scheduler.bound,
                refusals=scheduler.refused,
                wall_s=time.monotonic() - began_s,
            ),
        )
        keep(result, services.page_url)
        return result


def push(file: Path, name: str, predictor_url: str) -> None:
    """Push a graph by running `tandem model push` in this process."""
    from tandem.cli.main import build_app

    arguments = ["model", "push", str(file), "--name", name, "--namespace", NAMESPACE]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        build_app()([*arguments, "--server", predictor_url, "--json"], standalone_mode=False)


def _reported(api: ApiServer) -> int:
    return sum(len(node["status"].get("gpus") or ()) for node in api.list(GPU_NODES))


class _Session:
    """The time from the first submission to the last end."""

    def __init__(
        self,
        api: ApiServer,
        services: Services,
        scheduler: Scheduler,
        nodes: Mapping[str, SimulatedNode],
        speed: float,
        say: Say,
        show: Show,
    ) -> None:
        jobs = {job.name: job for job in JOBS}
        self.viewer = Viewer(nodes, jobs)
        self.kubelets = Kubelets(api, nodes, jobs, {})
        self._api = api
        self._services = services
        self._scheduler = scheduler
        self._nodes = list(nodes)
        self._speed = speed
        self._say = say
        self._show = show
        self._to_submit = sorted(JOBS, key=lambda job: job.submit_s)
        self._said: set[tuple[str, Phase | None]] = set()
        self._last_s = 0.0

    def run(self) -> None:
        """Let time pass until every job has finished."""
        began_s = moved_s = time.monotonic()
        progress: object = None
        while self._to_submit or not all(run.finished for run in self.kubelets.runs.values()):
            real_s = time.monotonic()
            try:
                view = self._tick((real_s - began_s) * self._speed)
            except TandemError:
                self._services.check()  # the log of a service that has died says more
                raise
            self._show(view)
            now = [row.phase for row in view.jobs]
            if now != progress or Phase.RUNNING in now:
                progress, moved_s = now, real_s
            elif real_s - moved_s > STUCK_S:
                raise _stuck(view)
            self._services.check()
            time.sleep(max(0.0, TICK_S - (time.monotonic() - real_s)))

    def end(self) -> None:
        """Let the extender write what has become of the last jobs."""

        def written() -> bool:
            statuses = [each.get("status") or {} for each in self._api.list(GPU_JOBS)]
            return all(each.get("phase") == Phase.COMPLETED for each in statuses)

        wait_until(written, "all GPUJobs are completed", timeout_s=START_TIMEOUT_S, poll_s=TICK_S)
        self._view(self._last_s, self._api.list(PODS))

    def _tick(self, now_s: float) -> View:
        while self._to_submit and self._to_submit[0].submit_s <= now_s:
            job = self._to_submit.pop(0)
            self._api.create(PODS, job.pod())
            self.kubelets.runs[job.name] = Run(submitted_s=job.submit_s)
        pods = self._api.list(PODS)
        self.kubelets.step(pods, now_s)
        self._scheduler.step(pods, self._nodes, time.monotonic())
        view = self._view(now_s, pods)
        self._tell(view)
        return view

    def _view(self, now_s: float, pods: list[Object]) -> View:
        self._last_s = now_s
        return self.viewer.view(
            now_s,
            pods,
            self._api.list(GPU_JOBS),
            self._api.list(GPU_NODES),
            self.kubelets,
            self._scheduler,
        )

    def _tell(self, view: View) -> None:
        """Say what is new: each start and each end, and why a job waits, the first time it does."""
        for row in view.jobs:
            name = row.job.name
            together = [other for gpu in view.gpus for other in gpu.jobs if name in gpu.jobs]
            others = " and ".join(other for other in together if other != name)
            news = {
                Phase.RUNNING: f"started on {row.where}" + (f" next to {others}" if others else ""),
                Phase.COMPLETED: f"finished after {row.running_s or 0:.1f} s",
                Phase.QUEUED: f"waits: {row.reason}" if row.reason else "",
            }
            text = news.get(row.phase, "") if row.phase else ""
            if text and (name, row.phase) not in self._said:
                self._said.add((name, row.phase))
                self._say(f"{view.now_s:5.1f} s  {name} {text}")


def _stuck(view: View) -> TandemError:
    waiting = [f"{row.job.name}: {row.reason}" for row in view.jobs if row.reason]
    return TandemError(
        f"Nothing has been running for {STUCK_S:.0f} s. Waiting: {'; '.join(waiting)}",
        "Run again with --keep-logs DIR and look at the services' logs there.",
    )
