"""Requests that make no sense: whatever is sent, the answer is never a 5xx."""

from __future__ import annotations

import json

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from predictor_graphs import light

from predictor.service.app import create_app
from predictor.service.config import PredictorConfig
from predictor.service.store import ClusterProfileStore
from tandem.contracts.prediction import Feedback, PredictRequest
from tandem.contracts.resources import Load
from tandem.kube.memory import MemoryCluster

EXTREMES = st.sampled_from(
    [None, True, "", "m", "x" * 300, "\x00", "../..", [], {}, 0, 1, -1, 0.5, 99, 100, 2**31, 2**63,
     10**40, 10**400, 5e-324, 1e308, float("inf"), float("nan")]
)  # fmt: skip


def fields_of(message) -> list[str]:
    return [field.alias for field in message.model_fields.values()]


def objects(message):
    """JSON objects with some of a message's fields, most of them nonsense."""
    return st.dictionaries(st.sampled_from(fields_of(message)), EXTREMES)


SOUND = {
    "utilisationPercent": 50, "utilisationP95Percent": 60, "memoryBaseBytes": 1,
    "memoryPeakExtraBytes": 1, "peakProbability": 0.1, "memoryP95Bytes": 2,
    "utilisationSource": "formula", "memorySource": "formula", "iterationS": 0.1,
    "computeShare": 0.5, "bandwidthShare": 0.5,
}  # fmt: skip
LOADS = objects(Load).map(lambda changed: SOUND | changed)
MODEL = {"model": "m", "batchSize": 4, "gpuModel": "T4"}
RUN = MODEL | {"memoryBaseBytes": 1, "memoryPeakBytes": 2, "utilisationPercent": 3}
BODIES = {
    "/v1/predict": objects(PredictRequest) | objects(PredictRequest).map(lambda c: MODEL | c),
    "/v1/predict:batch": st.fixed_dictionaries({"requests": st.lists(objects(PredictRequest))}),
    "/v1/feedback": objects(Feedback).map(lambda changed: RUN | changed),
    "/v1/interference": st.fixed_dictionaries(
        {"job": LOADS, "candidates": st.lists(LOADS, max_size=3), "gpuModel": EXTREMES}
    ),
}


@pytest.fixture(scope="module")
def client():
    app = create_app(PredictorConfig(), ClusterProfileStore(MemoryCluster()))
    with TestClient(app) as client:
        assert client.post("/v1/models?name=m", content=light("vgg19")).is_success
        yield client


@pytest.mark.parametrize("path", BODIES)
@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_body_gets_a_5xx(client, path, data):
    body = json.dumps(data.draw(BODIES[path]))
    answer = client.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code < 500
    if not answer.is_success:
        assert answer.json()["error"]


@pytest.mark.parametrize(
    ("field", "value", "status"),
    [
        ("batchSize", 10**400, 422),
        ("batchSize", 10**18, 422),
        ("batchSize", 2**31 - 1, 200),
        ("declaredMemoryBytes", 10**400, 422),
        ("declaredMemoryBytes", 2**63 - 1, 200),
        ("declaredUtilisationPercent", float("nan"), 422),
    ],
)
def test_numbers_beyond_what_can_be_stored_are_refused(client, field, value, status):
    body = json.dumps(MODEL | {field: value})
    answer = client.post("/v1/predict", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == status, answer.text


@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(
    method=st.sampled_from(["GET", "DELETE", "POST", "PUT"]),
    parts=st.lists(st.text(max_size=20), max_size=4),
)
def test_no_path_gets_a_5xx(client, method, parts):
    from urllib.parse import quote

    path = "/v1/" + "/".join(quote(part, safe="") for part in ["models", *parts])
    assert client.request(method, path).status_code < 500
