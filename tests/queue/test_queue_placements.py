"""The skew above which gangs are kept on few nodes, learned from how fast they ran ([Tiresias])."""

from __future__ import annotations

from typing import Any

import pytest
from queue_builders import GIB, load, raw_pod
from test_queue_controller import Cluster, run

from scheduler_extender.cluster.jobs import rfc3339
from scheduler_extender.cluster.pair_slowdowns import PACK_LIMIT, PlacementHistory
from tandem.contracts.prediction import Prediction
from tandem.kube.resource import GPU_NODES, PODS
from tandem.policy.catalog import load_profile

SKEW = {"even": 0.1, "middling": 0.3}
GPUS = {"n0": 1, "n1": 1, "n2": 2}


class Gangs(Cluster):
    """Nodes of one, one and two GPUs; gangs of two pods tell how fast they are."""

    def __init__(self) -> None:
        super().__init__(profile=load_profile("tiresias-l"))
        for name, gpus in GPUS.items():
            self.add_node(name, gpus=gpus)
        self.rates: dict[str, float] = {}  # iterations per second, by gang

    async def predict(self, namespace: str, demand: Any, gpu: Any) -> Prediction:
        known = {"tensor_skew": SKEW.get(demand.model), "feature_hash": str(demand.model)}
        about = load().model_copy(update=known)
        return Prediction(load=about, explanation="by its graph")

    async def start(self, gang: str, model: str) -> set[str]:
        """Start a gang; return its nodes."""
        wants = {"tandem.gpu/gang": gang, "tandem.gpu/gang-size": "2"}
        wants |= {"tandem.gpu/model": model, "tandem.gpu/batch-size": "32"}
        for index in range(2):
            self.api.create(PODS, raw_pod(f"{gang}-{index}", annotations=wants))
        await self.cycle()  # where the limit is new, the gang is looked at anew
        await self.cycle()
        for index in range(2):
            self.bind_as_planned(f"{gang}-{index}")
        await self.cycle()
        return {self.pod(f"{gang}-{index}")["spec"]["nodeName"] for index in range(2)}

    async def run_for(self, seconds: int) -> None:
        """Let time pass in steps of ten seconds, with a report of each agent."""
        for _ in range(seconds // 10):
            self.now += 10
            self.state.tick(self.now)
            for node in GPUS:
                self._report(node)
            await self.cycle()

    def _report(self, node: str) -> None:
        gpus = []
        for index in range(GPUS[node]):
            uuid = f"GPU-{node}-{index}"
            uses = [
                {
                    "uid": pod["metadata"]["uid"],
                    "memoryBytes": GIB,
                    "memoryPeakBytes": GIB,
                    "utilisationPercent": 50.0,
                    "iterationsPerSecond": self.rates.get(
                        pod["metadata"]["name"].partition("-")[0], 1.0
                    ),
                }
                for pod in self.api.list(PODS)
                if (pod["metadata"].get("annotations") or {}).get("tandem.gpu/visible-devices")
                == uuid
                and pod["status"]["phase"] == "Running"
            ]
            gpus.append(
                {"uuid": uuid, "index": index, "model": "NVIDIA A100", "shares": 2,
                 "memoryBytes": 80 * GIB, "utilisationPercent": 50.0, "pods": uses}
            )  # fmt: skip
        status = {"observedAt": rfc3339(self.now), "gpus": gpus}
        self.api.patch(GPU_NODES, node, {"status": status}, subresource="status")

    async def end(self, gang: str) -> None:
        """End both workers, the second one 20 s after the first."""
        for index in range(2):
            self.set_phase(f"{gang}-{index}", "Succeeded")
            await self.run_for(20)
        await self.cycle()

    async def one_run(self, gang: str, model: str, rate: float) -> set[str]:
        self.rates[gang] = rate
        nodes = await self.start(gang, model)
        await self.run_for(120)
        await self.end(gang)
        return nodes


def test_the_pack_limit_is_learned_from_gangs_that_ran_spread_and_on_few_nodes() -> None:
    """[Tiresias] 3.3.2: both models are below the limit at first; the middling one is hurt."""
    cluster = Gangs()

    async def scenario() -> None:
        for model, spread_rate in (("even", 1.95), ("middling", 1.0)):
            assert await cluster.one_run(f"{model}spread", model, spread_rate) == {"n0", "n1"}
            for single in ("single0", "single1"):
                cluster.api.create(PODS, raw_pod(single, annotations={}))
                await cluster.cycle()
                cluster.bind_as_planned(single)
            assert await cluster.one_run(f"{model}close", model, 2.0) == {"n2"}
            for single in ("single0", "single1"):
                cluster.api.delete(PODS, single, "default")
            await cluster.cycle()
        assert cluster.learned.placements.limit("default") == pytest.approx(0.2)
        assert await cluster.one_run("next", "middling", 2.0) == {"n2"}
        assert await cluster.one_run("last", "even", 2.0) == {"n0", "n1"}
        assert cluster.learned.placements.limit("other") == PACK_LIMIT

    run(scenario)


def test_a_gang_that_waits_is_planned_by_what_was_learned_meanwhile() -> None:
    cluster = Gangs()

    async def scenario() -> None:
        others = [f"other{index}" for index in range(4)]
        for name in others:
            cluster.api.create(PODS, raw_pod(name, annotations={}))
            await cluster.cycle()
            cluster.bind_as_planned(name)
        wants = {"tandem.gpu/gang": "waits", "tandem.gpu/gang-size": "2"}
        for index in range(2):
            annotations = wants | {"tandem.gpu/model": "middling", "tandem.gpu/batch-size": "32"}
            cluster.api.create(PODS, raw_pod(f"waits-{index}", annotations=annotations))
        await cluster.cycle()
        assert not cluster.gpujob("gang-waits")["status"].get("plan")
        for skew, spread_rate in ((0.1, 2.0), (0.3, 1.0)):
            of = ("default", str(skew), "NVIDIA A100", 2)
            cluster.learned.placements.enter(of, skew, 2.0, cluster.now, spread=False)
            cluster.learned.placements.enter(of, skew, spread_rate, cluster.now, spread=True)
        await cluster.cycle()
        for name in others:
            cluster.api.delete(PODS, name, "default")
        await cluster.cycle()
        plan = cluster.gpujob("gang-waits")["status"]["plan"]
        assert {pod["node"] for pod in plan["pods"]} == {"n2"}

    run(scenario)


def filled(namespaces: int = 1, kinds: int = 1) -> PlacementHistory:
    history = PlacementHistory()
    for namespace in range(namespaces):
        for kind in range(kinds):
            for spread in (False, True):
                of = (f"n{namespace}", f"kind-{kind}", "NVIDIA A100", 8)
                rate = 2.0 if not spread else 2.0 / (1 + (kind % 2))
                history.enter(of, 0.1 + 0.2 * (kind % 2), rate, 100 * namespace + kind,
                              spread=spread)  # fmt: skip
    return history


def test_what_was_learned_of_placements_comes_back_and_the_newer_of_two_counts() -> None:
    history = filled(kinds=2)
    again = PlacementHistory()
    again.merge(history.stored())
    assert again.stored() == history.stored()
    assert again.limit("n0") == history.limit("n0") == pytest.approx(0.2)
    version = again.version
    again.merge(history.stored())
    assert again.version == version
    history.enter(("n0", "kind-1", "NVIDIA A100", 8), 0.3, 2.0, 1000, spread=True)
    again.merge(history.stored())
    assert again.stored() == history.stored()


@pytest.mark.slow
def test_one_namespace_takes_no_room_from_the_others_and_all_is_bounded() -> None:
    history = filled(kinds=40)
    assert len(history.stored()) == 16
    history = filled(namespaces=60, kinds=16)
    assert len(history.stored()) == 500
    history.shed(499)
    assert len(history.stored()) == 1
    assert history.stored()[0][:2] == ["n59", "kind-15"]
