"""What agents measure decides the next runs: from a node's report to a place, over the predictor.

Jobs name a model. The predictor here is the real one over what was sent to it: without the graph it
says of a kind what the scenario says, and of a kind that has run what was observed of it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from test_queue_controller import GIB, Cluster
from test_queue_preemption import EAGER, Training

from predictor.load.observed import add_run
from predictor.load.predictor import Predictor
from scheduler_extender.cluster.jobs import rfc3339
from tandem.contracts.prediction import (
    Feedback,
    InterferenceAnswer,
    PairSlowdown,
    Prediction,
    PredictRequest,
)
from tandem.contracts.resources import Demand, Load, ModelProfileStatus, Source
from tandem.kube.resource import GPU_NODES, JOBS, PODS
from tandem.policy.catalog import load_profile

A100 = "NVIDIA A100"


class Measured(Training):
    """One node of one GPU; every minute its agent reports `uses` of each kind of job."""

    def __init__(self, profile: str, *, guarded: bool, predicted: dict[str, float]) -> None:
        Cluster.__init__(self, profile=load_profile(profile), settings=EAGER)
        self.guarded = guarded
        self.predicted = predicted  # percent of the GPU by kind, by the formula
        self.uses: dict[str, dict[str, Any]] = {}
        self.observed: dict[str, ModelProfileStatus] = {}
        self.kinds: dict[str, str] = {}
        self.requests: list[dict[str, Any]] = []  # for evictions
        self.pods = 0
        self.add_node("n0", gpus=1)

    async def take_feedback(self, feedback: Feedback) -> bool:
        known = self.observed.get(feedback.model, ModelProfileStatus())
        self.observed[feedback.model] = add_run(known, feedback.model, feedback, rfc3339(self.now))
        return True

    async def predict(self, namespace: str, demand: Demand, gpu: Any, steps: int = 1) -> Prediction:
        assert demand.model is not None
        status = self.observed.get(demand.model, ModelProfileStatus())
        if status.observed:
            asked = PredictRequest(
                namespace=namespace, model=demand.model, batch_size=demand.batch_size,
                gpu_model=gpu.model, gpu_memory_bytes=gpu.memory_bytes,
            )  # fmt: skip
            return Predictor().predict(asked, None, demand.model, status.observed)
        percent = self.predicted[demand.model]
        said = Load(
            utilisation_percent=percent, utilisation_p95_percent=percent,
            memory_base_bytes=15 * GIB, memory_peak_extra_bytes=30 * GIB, peak_probability=0.25,
            memory_p95_bytes=45 * GIB, utilisation_source=Source.FORMULA,
            memory_source=Source.FORMULA, feature_hash=demand.model,
        )  # fmt: skip
        return Prediction(load=said, explanation="by the formula")

    async def interference(self, job, candidates, gpu) -> InterferenceAnswer:
        pairs = [PairSlowdown(job_slowdown=0.05, partner_slowdown=0.05) for _ in candidates]
        return InterferenceAnswer(pairs=pairs, source=Source.MODEL)

    def start(self, name: str, kind: str, *, checkpoint: bool = False) -> None:
        self.kinds[name] = kind
        asks = {"tandem.gpu/model": kind, "tandem.gpu/batch-size": "32"}
        if checkpoint:
            asks["tandem.gpu/checkpoint"] = "true"
        self.submit(name, annotations=asks)

    async def let_pass(self, seconds: float) -> None:
        for _ in range(round(seconds / 10)):
            self.report()
            await self.pass_s(10)

    async def end(self, name: str) -> None:
        (pod,) = self.pods_of(name)
        self.set_phase(pod["metadata"]["name"], "Succeeded")
        done = {"conditions": [{"type": "Complete", "status": "True"}]}
        self.api.patch(JOBS, name, {"status": done}, "default", subresource="status")
        await self.let_pass(20)

    def live(self) -> list[dict[str, Any]]:
        pods = self.api.list(PODS)
        return [pod for pod in pods if pod.get("status", {}).get("phase") == "Running"]

    def running(self) -> set[str]:
        return {pod["metadata"]["ownerReferences"][0]["name"] for pod in self.live()}

    def report(self) -> None:
        uses = []
        for pod in self.live():
            kind = self.kinds[pod["metadata"]["ownerReferences"][0]["name"]]
            uses.append({"uid": pod["metadata"]["uid"], **self.uses.get(kind, {})})
        gpu = {
            "uuid": "GPU-n0-0", "index": 0, "model": A100, "memoryBytes": 80 * GIB, "shares": 2,
            "utilisationPercent": 60.0, "memoryGuarded": self.guarded, "pods": uses,
        }  # fmt: skip
        status = {
            "observedAt": rfc3339(self.now), "gpus": [gpu], "evictionRequests": self.requests,
        }  # fmt: skip
        self.api.patch(GPU_NODES, "n0", {"status": status}, subresource="status")


def levels(peak_probability: float | None) -> dict[str, Any]:
    """A course of memory as an agent reports it: 45 GiB in peaks, 15 GiB between them."""
    fitted = {
        "memoryBaseBytes": 15 * GIB, "memoryPeakExtraBytes": 30 * GIB,
        "peakProbability": peak_probability,
    }  # fmt: skip
    course = {"memoryBytes": 15 * GIB, "memoryPeakBytes": 45 * GIB, "utilisationPercent": 40.0}
    return course | (fitted if peak_probability is not None else {})


@pytest.mark.parametrize(
    ("peak_probability", "guarded", "checkpoint", "shares"),
    [
        (0.1, True, True, True),
        (0.1, True, False, False),  # an eviction would cost the whole run
        (0.1, False, True, False),  # no agent acts before the memory is full
        (None, True, True, False),  # the chance of a peak is assumed
        (0.5, True, True, False),  # two peaks would fall together too often
    ],
)
def test_two_jobs_share_by_one_peak_where_both_were_measured_and_the_agent_guards(
    peak_probability: float | None, guarded: bool, checkpoint: bool, shares: bool
) -> None:
    """[OJPP] Eq. (3)-(5): both peaks are 99 GiB of 80 with their margin, one is 65 GiB."""
    cluster = Measured("tandem", guarded=guarded, predicted={"m": 40.0})
    cluster.uses["m"] = levels(peak_probability)

    async def scenario() -> None:
        cluster.start("first", "m", checkpoint=checkpoint)
        await cluster.let_pass(200)
        assert cluster.running() == {"first"}
        await cluster.end("first")
        cluster.start("second", "m", checkpoint=checkpoint)
        await cluster.let_pass(20)
        cluster.start("third", "m", checkpoint=checkpoint)
        await cluster.let_pass(20)
        assert cluster.running() == ({"second", "third"} if shares else {"second"})

    asyncio.run(scenario())


def test_a_job_whose_peak_has_met_another_one_shares_only_where_all_peaks_fit() -> None:
    cluster = Measured("tandem", guarded=True, predicted={"m": 40.0})
    cluster.uses["m"] = levels(0.1)

    async def scenario() -> None:
        cluster.start("first", "m", checkpoint=True)
        await cluster.let_pass(200)
        await cluster.end("first")
        for name in ("second", "third"):
            cluster.start(name, "m", checkpoint=True)
            await cluster.let_pass(20)
        assert cluster.running() == {"second", "third"}
        (pod,) = cluster.pods_of("third")
        meta = pod["metadata"]
        cluster.requests = [{
            "namespace": "default", "pod": meta["name"], "uid": meta["uid"], "gpu": "GPU-n0-0",
            "reason": "peaks have met", "requestedAt": rfc3339(cluster.now),
        }]  # fmt: skip
        await cluster.let_pass(10)
        assert cluster.running() == {"second"}
        cluster.requests = []
        cluster.new_pod("third", 1, cluster.annotations)
        await cluster.let_pass(30)
        assert cluster.running() == {"second"}
        load = cluster.status("third")["load"]
        assert load["memoryP95Bytes"] < 50 * GIB  # it needs no more than before

    asyncio.run(scenario())


@pytest.mark.parametrize(("measured", "pair"), [(False, {"head", "next"}), (True, {"head", "fit"})])
def test_the_partner_is_picked_by_measured_active_and_idle_time(
    measured: bool, pair: set[str]
) -> None:
    """[Xonar] Eq. (1): by utilisation all are alike; what the agents saw of an earlier run decides.

    The head is active for 75 % of its time, so that a partner of 25 % fits; `fit` is.
    """
    alike = dict.fromkeys(("head", "next", "fit"), 60.0)
    cluster = Measured("xonar", guarded=False, predicted=alike)
    for kind, (active, idle) in {"head": (0.3, 0.1), "next": (0.2, 0.2), "fit": (0.1, 0.3)}.items():
        cluster.uses[kind] = {
            "memoryBytes": GIB, "memoryPeakBytes": GIB, "memoryBaseBytes": GIB,
            "memoryPeakExtraBytes": 0, "peakProbability": 0.0, "utilisationPercent": 60.0,
        }  # fmt: skip
        if measured:
            cluster.uses[kind] |= {"activeSeconds": active, "idleSeconds": idle}

    async def scenario() -> None:
        for kind in alike:
            cluster.start(f"{kind}-before", kind)
            await cluster.let_pass(200)
            await cluster.end(f"{kind}-before")
        for kind in alike:
            cluster.start(kind, kind)
            cluster.now += 1
        await cluster.let_pass(20)
        assert cluster.running() == pair

    asyncio.run(scenario())
