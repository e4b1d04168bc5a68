"""Jobs that declare the same and come at once are predicted by one answer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from queue_builders import load

from scheduler_extender import predictions
from scheduler_extender.cluster.table import GpuKind
from scheduler_extender.predictions import HttpPredictor, without_predictor
from tandem.contracts.prediction import Feedback, Prediction
from tandem.contracts.resources import Demand

GPU = GpuKind("NVIDIA A100", 80 << 30)


class Service:
    """A predictor that knows one model, and the client of the extender."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = 0
        self.now = 100.0
        self.known = True
        monkeypatch.setattr(predictions, "time", SimpleNamespace(
            monotonic=lambda: self.now, perf_counter=lambda: self.now
        ))  # fmt: skip
        self.client = HttpPredictor("http://predictor", transport=httpx.MockTransport(self._answer))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if request.url.path != "/v1/predict":
            return httpx.Response(202)
        self.asked += 1
        said = Prediction(load=load(), explanation="by the formula")
        if not self.known:
            said = without_predictor(Demand(gpus_per_pod=1), "it knows no such model")
        return httpx.Response(200, json=said.wire())

    async def predict(self, namespace: str = "default", **declared: Any) -> Prediction:
        demand = Demand(gpus_per_pod=1, **{"model": "m", **declared})
        return await self.client.predict(namespace, demand, GPU)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    return Service(monkeypatch)


def test_the_same_is_asked_once_in_a_moment(service: Service) -> None:
    async def scenario() -> None:
        first = await service.predict()
        assert [await service.predict() for _ in range(100)] == [first] * 100
        assert service.asked == 1
        service.now += predictions.SAME_S
        await service.predict()
        assert service.asked == 2

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "other",
    [{"namespace": "b"}, {"model": "n"}, {"batch_size": 8}, {"declared_memory_bytes": 1 << 30}],
    ids=str,
)
def test_whatever_a_job_declares_makes_a_question_of_its_own(service: Service, other: Any) -> None:
    async def scenario() -> None:
        await service.predict()
        await service.predict(**other)
        assert service.asked == 2

    asyncio.run(scenario())


def test_a_model_that_is_not_known_is_asked_about_again_at_once(service: Service) -> None:
    """Its user may push it before the next job."""

    async def scenario() -> None:
        service.known = False
        await service.predict()
        service.known = True
        assert (await service.predict()).load == load()
        assert service.asked == 2

    asyncio.run(scenario())


def test_after_feedback_of_a_run_it_is_asked_anew(service: Service) -> None:
    async def scenario() -> None:
        await service.predict()
        reported = Feedback.model_construct(namespace="default", model="m")
        await service.client.tell(reported)
        await service.predict()
        assert service.asked == 2

    asyncio.run(scenario())


def test_answers_to_many_different_questions_are_not_all_kept(service: Service) -> None:
    async def scenario() -> None:
        for size in range(1, 1000):
            await service.predict(batch_size=size)
        assert len(service.client._said) <= predictions._ANSWERS_KEPT

    asyncio.run(scenario())
