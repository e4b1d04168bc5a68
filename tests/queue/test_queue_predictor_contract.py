"""One contract for the predictors that the queue's tests play and for the service over HTTP."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import httpx
import pytest
from queue_builders import load
from test_queue_controller import Cluster
from test_queue_slowdowns import Predictor as Pairs

from predictor.service.app import create_app
from predictor.service.config import PredictorConfig
from predictor.service.sandbox import ParsedModel
from predictor.service.store import ClusterProfileStore
from scheduler_extender.predictions import HttpPredictor
from tandem.contracts.prediction import Prediction
from tandem.contracts.resources import Demand, GraphFeatures, Source
from tandem.kube.memory import MemoryCluster

GIB = 1 << 30
FEATURES = GraphFeatures(
    flops=1e9, parameters=10**7, parameter_bytes=4 * 10**7, activation_bytes=10**8,
    largest_tensor_bytes=10**6, tensor_skew=0.5, nodes=30, depth=30, op_counts={"Conv": 10},
    opset=17,
)  # fmt: skip


class Gpu(NamedTuple):
    model: str = "NVIDIA A100-SXM4-80GB"
    memory_bytes: int = 80 * GIB


def service() -> HttpPredictor:
    """The client of the extender, on the service in this process."""
    store = ClusterProfileStore(MemoryCluster())
    store.put("default", "resnet50", ParsedModel(FEATURES, "hash", "0" * 64, 1), "test")
    app = create_app(PredictorConfig(), store)
    return HttpPredictor("http://predictor", transport=httpx.ASGITransport(app))


@pytest.fixture(params=["double", "service"])
def predictor(request: pytest.FixtureRequest) -> Cluster | HttpPredictor:
    return Cluster() if request.param == "double" else service()


def ask(predictor: Cluster | HttpPredictor, **stated: object) -> Prediction:
    demand = Demand(gpus_per_pod=1, **stated)
    return asyncio.run(predictor.predict("default", demand, Gpu()))


def test_a_job_that_states_nothing_has_the_whole_gpu(predictor: Cluster | HttpPredictor) -> None:
    found = ask(predictor)
    assert found.load.memory_source is Source.WHOLE_GPU
    assert found.load.feature_hash == ""
    assert found.explanation


def test_a_known_model_has_a_load_by_the_formula(predictor: Cluster | HttpPredictor) -> None:
    found = ask(predictor, model="resnet50", batch_size=32)
    about = found.load
    assert about.memory_source is Source.FORMULA
    assert about.utilisation_source is Source.FORMULA
    assert 0 < about.memory_base_bytes + about.memory_peak_extra_bytes <= about.memory_p95_bytes
    assert about.memory_p95_bytes < 80 * GIB
    assert 0 <= about.peak_probability <= 1
    assert 0 < about.utilisation_percent <= about.utilisation_p95_percent <= 100
    assert found.interference is None, "no candidates were named"


def test_the_same_question_has_the_same_answer(predictor: Cluster | HttpPredictor) -> None:
    async def twice() -> list[Prediction]:
        demand = Demand(gpus_per_pod=1, model="resnet50", batch_size=32)
        return [await predictor.predict("default", demand, Gpu()) for _ in range(2)]

    first, second = asyncio.run(twice())
    assert first == second


@pytest.fixture(params=["double", "service"])
def pairs(request: pytest.FixtureRequest) -> Pairs | HttpPredictor:
    return Pairs() if request.param == "double" else service()


@pytest.mark.parametrize("candidates", [1, 3])
def test_each_candidate_has_its_pair(pairs: Pairs | HttpPredictor, candidates: int) -> None:
    asked = pairs.interference(load(), [load(base_gib=5 + n) for n in range(candidates)], Gpu())
    answer = asyncio.run(asked)
    assert answer is not None
    assert len(answer.pairs) == candidates
    assert all(pair.job_slowdown >= 0 and pair.partner_slowdown >= 0 for pair in answer.pairs)
    assert answer.source in (Source.MODEL, Source.FORMULA)


@pytest.mark.parametrize("away", ["double", "service"])
def test_a_predictor_that_is_away_says_nothing_of_pairs(away: str) -> None:
    double = Pairs()
    double.away = True
    gone = httpx.MockTransport(lambda _: httpx.Response(503))
    one = double if away == "double" else HttpPredictor("http://predictor", transport=gone)
    assert asyncio.run(one.interference(load(), [load()], Gpu())) is None
