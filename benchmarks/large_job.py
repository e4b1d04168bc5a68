"""One Job with thousands of pods: for how long its pods hold the event loop at once.

The controller and the state over the API server in memory, in one process. Each callback of the
loop is timed by the CPU time of its thread, so that other load on the machine does not count. First
the pods wait for GPUs, then they run; in both cases single pods change.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
from asyncio import events
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from scheduler_extender.cluster.feed import Feed
from scheduler_extender.cluster.jobs import rfc3339
from scheduler_extender.cluster.parsing import PARSERS
from scheduler_extender.cluster.state import ClusterState
from scheduler_extender.predictions import without_predictor
from scheduler_extender.queue.controller import Connection, Controller
from tandem.contracts import names
from tandem.contracts.prediction import Prediction
from tandem.contracts.resources import Demand
from tandem.kube.memory import MemoryCluster
from tandem.kube.reflector import EventType
from tandem.kube.resource import GPU_JOBS, GPU_NODES, JOBS, NODES, PODS
from tandem.policy.catalog import load_profile

KINDS = {"nodes": NODES, "gpunodes": GPU_NODES, "gpujobs": GPU_JOBS, "pods": PODS}
GIB, GPUS = 1 << 30, 8
CHANGES = 20


@contextmanager
def longest() -> Iterator[list[float]]:
    """Collect the CPU time of each callback of the loop, in seconds."""
    times: list[float] = []
    inner = events.Handle._run

    def timed(handle: Any) -> None:  # noqa: ANN401 - asyncio's own
        began = time.thread_time()
        inner(handle)
        times.append(time.thread_time() - began)

    events.Handle._run = timed  # type: ignore[method-assign] # for the time of this measurement
    try:
        yield times
    finally:
        events.Handle._run = inner  # type: ignore[method-assign]


class Bench:
    """A cluster of nodes of eight GPUs, and one Job."""

    def __init__(self, pods: int) -> None:
        self.api = MemoryCluster()
        self.state = ClusterState(now_s=time.time(), clock=time.time)
        self.pods = pods
        self.controller = Controller(
            state=self.state,
            connection=Connection(api=self.api, tell=lambda *_: None, clock=time.time),
            profile=load_profile("tandem"),
            predictor=self,  # type: ignore[arg-type] # only predict is asked
        )
        self.state.listener = self.controller

    async def predict(self, namespace: str, demand: Demand, gpu: object) -> Prediction:
        """Answer as without a predictor."""
        return without_predictor(demand, "declared")

    async def prepare(self) -> None:
        """Create the Job and its pods, which wait."""
        self.feed = feed = Feed(self.state)

        def follow(kind: str, event: EventType, obj: dict[str, Any]) -> None:
            # As a reflector does: read in the thread that received it, applied on the loop.
            feed.take(kind, event, {"record": PARSERS[kind](obj)})

        for kind, resource in KINDS.items():
            self.api.watch(resource, lambda event, obj, kind=kind: follow(kind, event, obj))
        size = {"cpu": "256", "memory": "4Ti", "pods": "110"}
        for node in range(-(-self.pods // GPUS)):
            name = f"n{node:04}"
            self.api.create(NODES, {"metadata": {"name": name}, "status": {"allocatable": size}})
        self.uid = self.api.create(JOBS, {"metadata": {"name": "big"}, "spec": {}}, "default")[
            "metadata"
        ]["uid"]
        for index in range(self.pods):
            self.api.create(PODS, self.pod(index))
        await self.settle()

    async def settle(self) -> None:
        """Return when all events have been applied and the controller has nothing to do."""
        for _ in range(3):
            while self.feed.pending or self.state.backlog:
                await asyncio.sleep(0)
            await self.cycle()

    async def cycle(self) -> None:
        """Run one scheduling cycle, and carry it out to its end."""
        work = self.controller.work
        work.go()
        try:
            work.wake()
            await self._done()
            await self.controller._run_cycle()
            await self._done()
        finally:
            work.hold()

    async def _done(self) -> None:
        """Return when nothing is to be done about any gang, timers apart."""
        work = self.controller.work
        while work.pending or work._tasks:
            if work._tasks:
                await asyncio.wait(work._tasks.values(), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)

    def pod(self, index: int) -> dict[str, Any]:
        """Return a pod of the Job."""
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "big", "uid": self.uid}
        limits = {names.RESOURCE: 1}
        return {
            "metadata": {
                "name": f"big-{index:05}",
                "namespace": "default",
                "annotations": {names.MEMORY: "8Gi"},
                "ownerReferences": [owner | {"controller": True}],
            },
            "spec": {
                "schedulingGates": [{"name": names.SCHEDULING_GATE}],
                "containers": [{"name": "c", "resources": {"limits": limits}}],
            },
        }

    async def change(self, body: dict[str, Any]) -> list[float]:
        """Change one pod after another; return the times of the callbacks."""
        with longest() as times:
            for index in range(CHANGES):
                await asyncio.to_thread(self.api.patch, PODS, f"big-{index:05}", body, "default")
                await self.cycle()
        return times

    def bind_all(self) -> None:
        """Let all pods run, each on a GPU of its own."""
        now = rfc3339(time.time())
        for first in range(0, self.pods, GPUS):
            gpus = [
                {"uuid": f"GPU-{i}", "index": i, "model": "A", "memoryBytes": 80 * GIB, "shares": 1}
                for i in range(first, first + GPUS)
            ]
            node = {"name": f"n{first // GPUS:04}"}
            status = {"observedAt": now, "gpus": gpus}
            self.api.create(GPU_NODES, {"metadata": node, "status": status})
        running = {"running": {"startedAt": now}}
        for index in range(self.pods):
            name = f"big-{index:05}"
            pod = self.api.patch(PODS, name, {"spec": {"schedulingGates": None}}, "default")
            chosen = {names.VISIBLE_DEVICES: f"GPU-{index}"}
            uid = pod["metadata"]["uid"]
            node = f"n{index // GPUS:04}"
            self.api.bind("default", name, node, uid=uid, annotations=chosen)
            status = {"phase": "Running", "containerStatuses": [{"state": running}]}
            self.api.patch(PODS, name, {"status": status}, "default", subresource="status")


async def measure(pods: int) -> None:
    """Print the longest and the sum of the loop's callbacks, for a change of one pod."""
    bench = Bench(pods)
    await bench.prepare()
    gc.collect()
    gc.freeze()  # as the extender does when the cluster has been read
    print("| pods | state | longest callback ms | loop time for a change ms |\n|---|---|---|---|")
    for state in ("waiting", "running"):
        if state == "running":
            bench.bind_all()
            with longest() as times:
                await bench.settle()
            print(f"| {pods} | to running | {1e3 * max(times):.1f} | |")
        times = await bench.change({"metadata": {"labels": {"round": state}}})
        total = 1e3 * sum(times) / CHANGES
        print(f"| {pods} | {state} | {1e3 * max(times):.1f} | {total:.1f} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=2000)
    asyncio.run(measure(parser.parse_args().pods))


if __name__ == "__main__":
    main()
