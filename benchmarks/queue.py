"""What a long queue costs: the time of a cycle, and how long it keeps the event loop from others.

One process, as the extender is: the live state, the queue controller with its planning thread, and
an API server in memory. All GPUs are taken; each second some jobs end and others come. A probe on
the same loop measures how late it is woken, and how long `filter` takes as kube-scheduler asks it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import platform
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from scheduler_extender.cluster.jobs import rfc3339
from scheduler_extender.cluster.parsing import PARSERS
from scheduler_extender.cluster.records import PodRecord
from scheduler_extender.cluster.state import ClusterState
from scheduler_extender.config import QueueConfig
from scheduler_extender.predictions import without_predictor
from scheduler_extender.queue.controller import Connection, Controller, Settings
from scheduler_extender.verbs.answers import Verbs
from tandem.contracts.prediction import Prediction
from tandem.contracts.resources import Demand
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import GPU_JOBS, GPU_NODES, NODES, PODS, Resource
from tandem.policy.catalog import load_profile

GIB = 1 << 30
KINDS: dict[str, Resource] = {
    "nodes": NODES, "gpunodes": GPU_NODES, "gpujobs": GPU_JOBS, "pods": PODS,
}  # fmt: skip
SWITCH_S = 0.0005  # as the extender is run
CYCLE_BAR_S, LAG_BAR_S, VERB_BAR = 0.5, 0.005, 1.5


@dataclass(frozen=True)
class Measured:
    """What was measured at one size; `lag` is how late the loop came to a timer."""

    profile: str
    gpus: int
    queued: int
    demands: int
    cycles: int
    plan_p50_s: float
    plan_p99_s: float
    plan_max_s: float
    question_max_s: float
    carry_out_max_s: float
    lag_p50_s: float
    lag_p99_s: float
    lag_max_s: float
    idle_lag_p99_s: float
    filter_p50_s: float
    filter_p99_s: float
    idle_filter_p50_s: float
    idle_filter_p99_s: float


class _Bench:
    def __init__(
        self, profile: str, gpus: int, queued: int, demands: int, forecast_every_s: float
    ) -> None:
        self.api = MemoryCluster()
        self.state = ClusterState(now_s=time.time(), clock=time.time)
        self.loop = asyncio.get_running_loop()
        self.demands = demands
        self.queued = queued
        self.controller = Controller(
            state=self.state,
            connection=Connection(api=self.api, tell=lambda *_: None, clock=time.time),
            profile=load_profile(profile),
            predictor=self,
            settings=Settings(
                queue=QueueConfig(expected_start_every_s=forecast_every_s), forecasts=True
            ),
        )
        self.state.listener = self.controller
        self.verbs = Verbs(self.state, load_profile(profile).pipeline())
        self.plans: list[float] = []
        self.questions: list[float] = []
        self.carried: list[float] = []
        self.gpus = gpus
        self.nodes = [f"n{i:04}" for i in range(gpus // 8)]

    async def predict(self, namespace: str, demand: Demand, gpu: object) -> Prediction:
        return without_predictor(demand, "declared")

    async def aclose(self) -> None: ...

    def fill(self) -> None:
        """Make nodes, running jobs on every GPU, and the queue; all known to the state."""
        now = rfc3339(time.time())
        for name in self.nodes:
            size = {"cpu": "256", "memory": "2Ti", "pods": "500"}
            node: dict[str, Any] = {"metadata": {"name": name}, "status": {"allocatable": size}}
            gpus = [
                {
                    "uuid": f"GPU-{name}-{i}",
                    "index": i,
                    "model": "NVIDIA A100",
                    "memoryBytes": 80 * GIB,
                    "shares": 2,
                }
                for i in range(8)
            ]
            self.api.create(NODES, node)
            self.api.create(
                GPU_NODES,
                {"metadata": {"name": name}, "status": {"observedAt": now, "gpus": gpus}},
            )
        for index in range(self.gpus):
            node_name = self.nodes[index // 8]
            self.add_job(f"r{index:05}", 70, f"GPU-{node_name}-{index % 8}", node_name)
        for index in range(self.queued):
            self.add_job(f"q{index:05}", 12 + index % self.demands / 1000)
        for kind, resource in KINDS.items():
            for obj in self.api.list(resource):
                record = PARSERS[kind](obj)
                self.state.apply(kind, record)
            self.api.watch(resource, lambda event, obj, kind=kind: self._tell(kind, event, obj))

    def add_job(self, name: str, memory_gib: float, gpu: str = "", node: str = "") -> None:
        """Make a pod and its GPUJob: running on a GPU, or in the queue."""
        now = rfc3339(time.time())
        memory = int(memory_gib * GIB)
        container = {"name": "c", "resources": {"limits": {"tandem.gpu/gpu": 1}}}
        pod: dict[str, Any] = {
            "metadata": {"name": name, "annotations": {"tandem.gpu/memory": f"{memory}"}},
            "spec": {"containers": [container]},
            "status": {"phase": "Pending"},
        }
        if gpu:
            pod["metadata"]["annotations"]["tandem.gpu/visible-devices"] = gpu
            pod["spec"]["nodeName"] = node
            state = {"running": {"startedAt": now}}
            pod["status"] = {"phase": "Running", "containerStatuses": [{"state": state}]}
        else:
            pod["spec"]["schedulingGates"] = [{"name": "tandem.gpu/queue"}]
        created = self.api.create(PODS, pod)
        demand = Demand(gpus_per_pod=1, declared_memory_bytes=memory, checkpoint=True)
        load = without_predictor(demand, "").load
        self.api.create(
            GPU_JOBS,
            {
                "metadata": {"name": f"pod-{name}"},
                "spec": {
                    "workload": {
                        "apiVersion": "v1",
                        "kind": "Pod",
                        "name": name,
                        "uid": created["metadata"]["uid"],
                    },
                    "demand": demand.wire(),
                },
                "status": {
                    "phase": "Running" if gpu else "Queued",
                    "queuedAt": now,
                    "load": load.wire(),
                },
            },
        )

    def _tell(self, kind: str, event: str, obj: dict[str, Any]) -> None:
        # As the feed does: read in the thread that received it, applied on the loop.
        record = PARSERS[kind](obj)
        self.loop.call_soon_threadsafe(self._apply, kind, event == "DELETED", record)

    def _apply(self, kind: str, gone: bool, record: Any) -> None:  # noqa: ANN401 - any record
        if gone:
            self.state.forget(kind, record.key, record.uid)
        else:
            self.state.apply(kind, record)

    def time_parts(self) -> None:
        """Have the controller's parts timed."""
        cycles = self.controller.cycles
        for name, times in (("freeze", self.questions), ("carry_out", self.carried)):
            inner = getattr(cycles, name)

            def timed(*args: object, inner: Any = inner, times: list[float] = times) -> object:  # noqa: ANN401 - any method
                began = time.perf_counter()
                try:
                    return inner(*args)
                finally:
                    times.append(time.perf_counter() - began)

            setattr(cycles, name, timed)
        planned = self.controller.metrics.planning.observe
        self.controller.metrics.planning.observe = lambda s: (self.plans.append(s), planned(s))  # type: ignore[method-assign,assignment] # also kept

    async def probe(self, seconds: float) -> tuple[list[float], list[float]]:
        """Return how late the loop was, and how long `filter` took, over some seconds."""
        lags, filters = [], []
        pods = [record for record in self.state.pods() if isinstance(record, PodRecord)]
        waiting = self.api.get(PODS, pods[-1].name, "default")
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            due = time.perf_counter() + 0.005
            await asyncio.sleep(0.005)
            lags.append(max(0.0, time.perf_counter() - due))
            began = time.perf_counter()
            self.verbs.filter({"Pod": waiting, "NodeNames": self.nodes})
            filters.append(time.perf_counter() - began)
        return lags, filters

    async def churn(self, per_s: float) -> None:
        """Let running jobs end and new ones come."""
        for index in range(self.gpus):
            await asyncio.sleep(1 / per_s)
            done = {"status": {"phase": "Succeeded"}}
            await asyncio.to_thread(
                self.api.patch, PODS, f"r{index:05}", done, "default", subresource="status"
            )
            await asyncio.to_thread(self.add_job, f"n{index:05}", 12.0)


async def measure(
    profile: str, gpus: int, queued: int, demands: int, seconds: float, forecast_every_s: float
) -> Measured:
    """Measure one size."""
    sys.setswitchinterval(SWITCH_S)
    bench = _Bench(profile, gpus, queued, demands, forecast_every_s)
    bench.fill()
    gc.collect()
    gc.freeze()
    idle_lags, idle_filters = await bench.probe(seconds / 2)
    bench.time_parts()
    tasks = [
        asyncio.create_task(bench.controller.run()),
        asyncio.create_task(bench.churn(per_s=5.0)),
    ]
    # A start is measured apart: here the queue has been read already.
    while not bench.plans or bench.controller.work.pending:
        await asyncio.sleep(0.1)
    gc.freeze()  # as the extender does when the queue has been read
    lags, filters = await bench.probe(seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

    def at(values: list[float], percentile: float) -> float:
        return round(float(np.percentile(values, percentile)), 5)

    return Measured(
        profile, gpus, queued, demands, len(bench.plans),
        at(bench.plans, 50), at(bench.plans, 99), at(bench.plans, 100),
        at(bench.questions, 100), at(bench.carried, 100),
        at(lags, 50), at(lags, 99), at(lags, 100), at(idle_lags, 99),
        at(filters, 50), at(filters, 99), at(idle_filters, 50), at(idle_filters, 99),
    )  # fmt: skip


def main() -> None:
    """Measure and print; `--json` for machines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=2000)
    parser.add_argument("--queued", type=int, default=10_000)
    parser.add_argument("--demands", type=int, default=20, help="distinct demands in the queue")
    parser.add_argument("--profile", default="tandem")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--forecast-every-s", type=float, default=5.0, help="0: none")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    asked = (args.profile, args.gpus, args.queued, args.demands, args.seconds)
    found = asyncio.run(measure(*asked, args.forecast_every_s))
    if args.json:
        print(json.dumps({"machine": platform.machine(), **asdict(found)}))
        return
    print(f"{found.queued} queued, {found.gpus} GPUs, {found.demands} demands, {found.profile}")
    rows = {
        "cycle (s), p50, p99": (found.plan_p50_s, found.plan_p99_s, CYCLE_BAR_S),
        "on the loop (s), question, carrying out": (
            found.question_max_s,
            found.carry_out_max_s,
            "",
        ),
        "loop lag (s), p99, max": (found.lag_p99_s, found.lag_max_s, LAG_BAR_S),
        "loop lag without the controller (s), p99": (found.idle_lag_p99_s, "", ""),
        "filter (s), p50, p99": (found.filter_p50_s, found.filter_p99_s, ""),
        "filter without (s), p50, p99": (found.idle_filter_p50_s, found.idle_filter_p99_s, ""),
        "filter, ratio": (round(found.filter_p50_s / found.idle_filter_p50_s, 2), "", VERB_BAR),
    }
    for name, (first, second, bar) in rows.items():
        print(f"  {name:<42} {first:>9} {second:>9}   bar {bar}")


if __name__ == "__main__":
    main()
