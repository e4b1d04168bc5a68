"""How many series the extender has: as many for one node as for five hundred."""

from __future__ import annotations

import asyncio

import httpx
from extender_builders import NOW, gpu_job, gpu_node, node, pod

from scheduler_extender.config import ExtenderConfig
from scheduler_extender.serving.app import verbs_app
from scheduler_extender.serving.service import running
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import GPU_JOBS, GPU_NODES, NODES, PODS


async def series(nodes: int, jobs: int) -> set[str]:
    """Return the names and labels that are exposed once every verb was answered well and badly."""
    cluster = MemoryCluster()
    for number in range(nodes):
        name = f"n{number}"
        cluster.create(NODES, node(name))
        cluster.create(GPU_NODES, gpu_node(name, *(f"GPU-{number}-{i}" for i in range(8))))
    for number in range(jobs):
        cluster.create(GPU_JOBS, gpu_job(f"j{number}"), "ml")
        cluster.create(PODS, pod(f"p{number}"), "ml")
    config = ExtenderConfig.model_validate({"api": "memory", "leader": {"always": True}})
    async with running(config, cluster, clock=lambda: NOW) as service:
        await service.feed.wait_ready()
        while len(service.state.gpu_nodes()) < nodes:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.01)
        asked = {"Pod": cluster.create(PODS, pod("asked"), "ml"), "NodeNames": ["n0"]}
        binding = {"PodName": "asked", "PodNamespace": "ml", "PodUID": "u", "Node": "n0"}
        preempted = {"Pod": asked["Pod"], "NodeNameToMetaVictims": {}}
        transport = httpx.ASGITransport(verbs_app(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://verbs") as client:
            for verb, body in (
                ("filter", asked),
                ("prioritize", asked),
                ("bind", binding),
                ("preempt", preempted),
            ):
                assert (await client.post(f"/{verb}", json=body)).status_code == 200
                assert (await client.post(f"/{verb}", content=b"{")).status_code == 400
            text = (await client.get("/metrics")).text
    return {line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")}


def test_they_do_not_grow_with_nodes_or_jobs() -> None:
    few, many = asyncio.run(series(1, 1)), asyncio.run(series(500, 200))
    assert many == few
    assert len(few) < 300
    print(f"{len(many)} series of an extender at 500 nodes of eight GPUs")
