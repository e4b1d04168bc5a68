"""A predictor that does not answer holds up no job, and is noticed when it answers again."""

import asyncio
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry
from queue_builders import load, raw_pod, settled
from test_queue_controller import Cluster, run

from scheduler_extender import predictions, predictor_token
from scheduler_extender.predictions import HttpPredictor, PredictorMetrics, without_predictor
from scheduler_extender.queue.gangs import load_prediction
from tandem.contracts.prediction import Prediction
from tandem.contracts.resources import Demand, Source
from tandem.kube.resource import GPU_JOBS, PODS

DEMAND = Demand(gpus_per_pod=1, model="m", declared_memory_bytes=1 << 30)


class Hanging(Cluster):
    """The predictor takes every request, and answers the later ones only when it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs = False
        self.asked = 0
        self.let_go = asyncio.Event()

    async def predict(self, namespace: str, demand: Any, gpu: Any) -> Prediction:
        self.asked += 1
        if self.hangs and demand.model != "new":
            await self.let_go.wait()
        if demand.model == "new":
            return Prediction(load=load(), explanation="by the formula")
        return without_predictor(demand, "the predictor does not answer", away=True)

    def has_load(self, name: str) -> bool:
        job = self.state.gpu_jobs().get(("default", name))
        return job is not None and job.status.load is not None


def test_a_new_job_is_seen_while_hundreds_are_asked_about_again() -> None:
    async def scenario() -> None:
        cluster = Hanging()
        cluster.add_node("n0")
        cluster.loop = asyncio.get_running_loop()
        declared = {"tandem.gpu/model": "unknown"}
        for index in range(60):
            cluster.api.create(PODS, raw_pod(f"waits{index}", annotations=declared))
        await cluster.cycle()
        cluster.hangs = True
        cluster.now += load_prediction.PREDICT_AGAIN_S + 1
        cluster.state.tick(cluster.now)
        work = cluster.controller.work
        work.go()
        work.wake()
        for _ in range(20):
            await asyncio.sleep(0.005)
        cluster.api.create(PODS, raw_pod("new", annotations={"tandem.gpu/model": "new"}))
        for _ in range(200):
            await asyncio.sleep(0.005)
            if cluster.has_load("pod-new"):
                break
        assert cluster.has_load("pod-new")
        # Those that are asked about again do not ask all at once, and each has its turn.
        waiting = cluster.asked
        cluster.let_go.set()
        await settled(work)
        assert waiting < 60 + 1 + 10
        assert cluster.asked >= 120

    run(scenario)


def test_a_job_may_be_deleted_while_the_predictor_is_asked_about_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        cluster = Hanging()
        cluster.add_node("n0")
        cluster.loop = asyncio.get_running_loop()
        cluster.hangs = True
        work = cluster.controller.work
        work.go()
        cluster.api.create(PODS, raw_pod("brief", annotations={"tandem.gpu/model": "unknown"}))
        for _ in range(400):
            await asyncio.sleep(0.005)
            if cluster.asked:
                break
        assert cluster.asked
        cluster.api.delete(PODS, "brief", "default")
        cluster.api.delete(GPU_JOBS, "pod-brief", "default")
        await asyncio.sleep(0.05)
        cluster.let_go.set()
        await settled(work)
        assert not cluster.api.list(GPU_JOBS)

    run(scenario)
    assert [line.message for line in caplog.records if line.levelname == "ERROR"] == []


class Service(httpx.AsyncBaseTransport):
    """A predictor that answers, refuses or hangs, as `does` says."""

    def __init__(self) -> None:
        self.does = "hang"
        self.tokens: list[str] = []
        self.requests = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests += 1
        self.tokens.append(request.headers.get("authorization", ""))
        if self.does == "hang":
            await asyncio.sleep(3600)
        if self.does == "refuse":
            return httpx.Response(422, json={"error": "no"})
        answer = Prediction(load=load(), explanation="by the formula")
        return httpx.Response(200, json=answer.wire())


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictions, "TIMEOUT_S", 0.02)
    monkeypatch.setattr(predictions, "PROBE_EVERY_S", 0.02)


def outcomes(registry: CollectorRegistry) -> dict[str, float]:
    name = "tandem_extender_predictor_requests_total"
    kinds = ("answered", "refused", "failed", "skipped")
    return {each: registry.get_sample_value(name, {"outcome": each}) or 0.0 for each in kinds}


def test_after_a_few_requests_without_an_answer_no_job_waits_until_a_probe_is_answered(
    quick: None,
) -> None:
    service, registry = Service(), CollectorRegistry()

    async def scenario() -> None:
        predictor = HttpPredictor(
            "http://predictor", transport=service, metrics=PredictorMetrics(registry)
        )
        for _ in range(predictions.OPEN_AFTER):
            said = await predictor.predict("ns", DEMAND, None)
            assert said.load.memory_source is Source.DECLARED
        assert registry.get_sample_value("tandem_extender_predictor_circuit_open") == 1
        before = service.requests
        for _ in range(100):
            said = await predictor.predict("ns", DEMAND, None)
            assert "does not answer" in said.explanation
            assert said.away
            assert await predictor.interference(load(), [load()], None) is None
        # Half-open: the probe is one request at a time, in the background.
        assert service.requests - before <= 1
        assert outcomes(registry)["skipped"] == 200
        service.does = "answer"
        for _ in range(500):
            if not registry.get_sample_value("tandem_extender_predictor_circuit_open"):
                break
            await asyncio.sleep(0.01)
        said = await predictor.predict("ns", DEMAND, None)
        assert said.load.memory_source is Source.FORMULA
        await predictor.aclose()

    asyncio.run(scenario())


def test_a_predictor_that_refuses_is_there_so_no_tenant_can_shut_it_off_for_others(
    quick: None,
) -> None:
    service, registry = Service(), CollectorRegistry()
    service.does = "refuse"

    async def scenario() -> None:
        predictor = HttpPredictor(
            "http://predictor", transport=service, metrics=PredictorMetrics(registry)
        )
        for _ in range(3 * predictions.OPEN_AFTER):
            await predictor.predict("ns", DEMAND, None)
        service.does = "answer"
        said = await predictor.predict("ns", DEMAND, None)
        assert said.load.memory_source is Source.FORMULA
        await predictor.aclose()

    asyncio.run(scenario())


def test_the_token_is_read_anew_when_kubelet_has_renewed_it(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    path, now = tmp_path / "token", [0.0]
    path.write_text("first\n")
    clock = SimpleNamespace(monotonic=lambda: now[0], perf_counter=lambda: 0.0)
    monkeypatch.setattr(predictor_token, "time", clock)
    service = Service()
    service.does = "answer"

    async def scenario() -> None:
        token = predictor_token.token_of_file(path)
        predictor = HttpPredictor("http://predictor", token=token, transport=service)
        await predictor.predict("one", DEMAND, None)
        path.write_text("second\n")
        await predictor.predict("two", DEMAND, None)
        now[0] += 61
        await predictor.predict("three", DEMAND, None)
        await predictor.aclose()

    asyncio.run(scenario())
    assert service.tokens == ["Bearer first", "Bearer first", "Bearer second"]
