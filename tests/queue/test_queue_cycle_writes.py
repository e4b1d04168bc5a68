"""What a cycle writes itself waits behind no gang's writes."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from queue_builders import raw_pod
from test_queue_controller import Cluster, run

from scheduler_extender.cluster.writes import CYCLE_WRITES, PARALLEL_WRITES
from tandem.contracts.names import INVENTORY
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import GPU_JOBS, GPU_NODES, PODS, Resource

NODES = 2 * CYCLE_WRITES


class Slow(MemoryCluster):
    """An API server that answers no creation of a GPUJob until it is let; `full` with so many."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.full, self.let = threading.Event(), threading.Event()

    def create(self, resource: Resource, *args: Any, **kwargs: Any) -> Any:
        if resource == GPU_JOBS:
            self.asked += 1
            if self.asked == PARALLEL_WRITES:
                self.full.set()
            self.let.wait()
        return super().create(resource, *args, **kwargs)


def noted(api: MemoryCluster) -> int:
    found = (each["metadata"].get("annotations") or {} for each in api.list(GPU_NODES))
    return sum(INVENTORY in annotations for annotations in found)


def test_a_cycle_ends_while_all_turns_of_the_gangs_are_taken() -> None:
    api = Slow()
    cluster = Cluster(api)

    async def scenario() -> None:
        loop = cluster.loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(PARALLEL_WRITES + CYCLE_WRITES + 1))
        for index in range(NODES):
            cluster.add_node(f"n{index}")
        for index in range(2 * PARALLEL_WRITES):
            api.create(PODS, raw_pod(f"p{index}"))
        controller = cluster.controller
        controller.work.go()
        try:
            await asyncio.to_thread(api.full.wait)
            assert noted(api) == 0
            await controller._run_cycle()
            assert noted(api) == NODES
            assert api.asked == PARALLEL_WRITES
        finally:
            controller.work.hold()
            api.let.set()
            await asyncio.gather(*controller.work._tasks.values(), return_exceptions=True)

    run(scenario)


def test_where_many_nodes_are_new_a_few_are_noted_each_second() -> None:
    cluster = Cluster()
    for index in range(2 * NODES + 1):
        cluster.add_node(f"n{index}")

    async def scenario() -> None:
        found = []
        for _ in range(3):
            await cluster.cycle()
            await cluster.cycle()
            found.append(noted(cluster.api))
            cluster.now += 1.0
            cluster.state.tick(cluster.now)
        assert found == [NODES, 2 * NODES, 2 * NODES + 1]

    run(scenario)
