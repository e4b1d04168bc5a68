"""Levels of topology that come from Kueue's object, and what stays in use where it is away."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import httpx
import pytest
from extender_builders import NOW, gpu_node, node, pod

from scheduler_extender.admission.config import AdmissionConfig
from scheduler_extender.config import ExtenderConfig
from scheduler_extender.serving.app import public_app
from scheduler_extender.serving.levels import Levels, read_levels
from scheduler_extender.serving.service import running
from tandem.contracts import names
from tandem.contracts.levels import LevelsError, levels_of
from tandem.kube.errors import Forbidden
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import GPU_NODES, KUEUE_TOPOLOGIES, NODES

BLOCK, RACK, HOST = "cloud.example.com/block", "cloud.example.com/rack", "kubernetes.io/hostname"
NEW, OLD = KUEUE_TOPOLOGIES


def topology(*levels: str, name: str = "default") -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": {"levels": [{"nodeLabel": level} for level in levels]},
    }


def test_levels_are_those_of_the_object_widest_first() -> None:
    cluster = MemoryCluster()
    cluster.create(NEW, topology(BLOCK, RACK, HOST))
    assert read_levels(cluster, "default") == (BLOCK, RACK, HOST)


def test_an_older_kueue_serves_the_older_version() -> None:
    cluster = MemoryCluster()
    cluster.create(OLD, topology(BLOCK))
    assert read_levels(cluster, "default") == (BLOCK,)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({}, "nodeLabel"),
        ({"levels": None}, "nodeLabel"),
        ({"levels": [{"label": BLOCK}]}, "nodeLabel"),
        ({"levels": [BLOCK]}, "nodeLabel"),
        ({"levels": [{"nodeLabel": "a/b/c"}]}, "spec.levels"),
        ({"levels": [{"nodeLabel": 3}]}, "spec.levels"),
        ({"levels": [{"nodeLabel": BLOCK}] * 2}, "named once"),
        ({"levels": [{"nodeLabel": f"l{i}"} for i in range(17)]}, "spec.levels"),
    ],
)
def test_levels_that_cannot_be_are_an_error_in_words(spec: dict[str, Any], says: str) -> None:
    with pytest.raises(LevelsError, match=says):
        levels_of({"spec": spec})


def look(levels: Levels, cluster: MemoryCluster) -> None:
    asyncio.run(levels.look(cluster))


def test_what_was_read_last_stays_in_use(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    used: list[tuple[str, ...]] = []
    config = AdmissionConfig(topology_levels=(HOST,), topology_from="default")
    levels, cluster = Levels(config, used.append), MemoryCluster()
    look(levels, cluster)
    look(levels, cluster)
    assert (levels.current, used) == ((HOST,), [])
    (said,) = caplog.messages
    assert "topology=default" in said
    assert f"in_use={HOST}" in said
    assert "topologies.kueue.x-k8s.io" in said
    cluster.create(NEW, topology(BLOCK, RACK))
    look(levels, cluster)
    look(levels, cluster)
    assert (levels.current, used) == ((BLOCK, RACK), [(BLOCK, RACK)])
    cluster.delete(NEW, "default")
    look(levels, cluster)
    assert (levels.current, used) == ((BLOCK, RACK), [(BLOCK, RACK)])
    cluster.create(NEW, topology(BLOCK))
    look(levels, cluster)
    assert used == [(BLOCK, RACK), (BLOCK,)]
    assert len(caplog.messages) == 4, "each change is logged once"


def test_without_the_setting_nothing_is_read() -> None:
    class Closed(MemoryCluster):
        def get(self, *_: object, **__: object) -> Any:
            raise AssertionError("it was read")

    levels = Levels(AdmissionConfig(), lambda _: None)
    look(levels, Closed())
    asyncio.run(levels.follow(Closed()))
    assert levels.current == names.TOPOLOGY_LEVELS


def test_a_fault_does_not_end_the_watch(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(MemoryCluster):
        asked = 0

        def get(self, *_: object, **__: object) -> Any:
            self.asked += 1
            raise Forbidden(403, "no") if self.asked % 2 else RuntimeError("a fault")

    async def run() -> Broken:
        broken = Broken()
        levels = Levels(AdmissionConfig(topology_from="x"), lambda _: None)
        task = asyncio.create_task(levels.follow(broken, every_s=0.001))
        while broken.asked < 4:  # noqa: ASYNC110 - it is counted in a thread
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return broken

    assert asyncio.run(run()).asked >= 4


@pytest.mark.parametrize("name", ["Upper", "a b", "a/b", "-a", "a" * 254])
def test_a_name_that_no_object_has_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="topology_from"):
        AdmissionConfig(topology_from=name)


def review(level: str) -> dict[str, Any]:
    asks = pod("p")
    asks["metadata"].setdefault("annotations", {})[names.REQUIRED_TOPOLOGY] = level
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    return {
        "request": {
            "uid": "1", "operation": "CREATE", "namespace": "ml", "kind": kind, "object": asks,
        }
    }  # fmt: skip


def test_the_extender_places_and_admits_by_them() -> None:
    """At the start, and when the object has changed."""
    admission = {"topology_from": "default", "topology_levels": [HOST]}
    config = ExtenderConfig.model_validate({"api": "memory", "admission": admission})
    cluster = MemoryCluster()
    cluster.create(NEW, topology(BLOCK, RACK))
    for name in ("n0", "n1"):
        made = node(name)
        made["metadata"]["labels"] = {BLOCK: "b0", RACK: name, "other": "b0"}
        cluster.create(NODES, made)
        cluster.create(GPU_NODES, gpu_node(name, f"GPU-{name}"))

    async def refusal(client: httpx.AsyncClient, level: str) -> str:
        answer = await client.post("http://public/mutate", content=json.dumps(review(level)))
        status = answer.json()["response"].get("status") or {}
        return str(status.get("message") or "")

    async def run() -> None:
        async with running(config, cluster, clock=lambda: NOW) as service:
            await service.feed.wait_ready()
            await asyncio.sleep(0.02)
            assert len(set(service.state.gpus.rack.tolist())) == 2
            transport = httpx.ASGITransport(public_app(service))
            async with httpx.AsyncClient(transport=transport) as client:
                assert "levels of this cluster" not in await refusal(client, RACK)
                said = await refusal(client, HOST)
                assert f"the levels of this cluster are {BLOCK}, {RACK}" in said
                cluster.delete(NEW, "default")
                cluster.create(NEW, topology("other"))
                await service.levels.look(cluster)
                assert len(set(service.state.gpus.rack.tolist())) == 1
                assert "the levels of this cluster are other" in await refusal(client, RACK)
                assert "levels of this cluster" not in await refusal(client, "other")

    asyncio.run(asyncio.wait_for(run(), 30))
