"""Runs that are fed back, and what was predicted for them."""

from __future__ import annotations

import math

import pytest
from fastapi.testclient import TestClient
from predictor_graphs import light
from synthetic_profiles import synthetic_profiles

from predictor.load.predictor import Predictor
from predictor.service.app import create_app
from predictor.service.config import PredictorConfig
from predictor.service.drift import OTHER, WINDOW, Drift
from predictor.service.store import ClusterProfileStore
from tandem.contracts.prediction import Feedback, PredictRequest
from tandem.kube.memory import MemoryCluster

V100 = "Tesla V100-SXM2-16GB"
FEATURES = synthetic_profiles(families=1)[0].features


def run(
    peak: float, utilisation: float = 50, gpu: str = V100, namespace: str = "default"
) -> Feedback:
    return Feedback(
        namespace=namespace, model="net", batch_size=4, gpu_model=gpu, memory_base_bytes=0,
        memory_peak_bytes=int(peak), utilisation_percent=utilisation,
    )  # fmt: skip


def test_residuals_are_of_the_latest_runs_of_a_type():
    drift = Drift(Predictor())
    load = (
        Predictor()
        .predict(PredictRequest(model="net", batch_size=4, gpu_model=V100), FEATURES)
        .load
    )
    point = load.memory_base_bytes + load.memory_peak_extra_bytes
    assert load.memory_p95_bytes < 4 * point
    for _ in range(WINDOW):
        drift.add(run(4 * point), FEATURES)
    name, seen = drift.add(run(point, load.utilisation_percent + 10), FEATURES)
    assert name == "V100"
    assert seen.runs == WINDOW  # the oldest went
    assert seen.under_predicted == (WINDOW - 1) / WINDOW
    assert seen.memory_ratio == pytest.approx(math.exp(math.log(4) * (WINDOW - 1) / WINDOW) - 1)
    name, other = drift.add(run(point, gpu="GPU of tomorrow"), FEATURES)
    assert (name, other.runs) == (OTHER, 1)


def test_the_runs_of_one_tenant_do_not_replace_those_of_the_others():
    drift = Drift(Predictor())
    for _ in range(20):
        drift.add(run(15 << 30, namespace="honest"), FEATURES)
    for _ in range(2 * WINDOW):
        _, seen = drift.add(run(1, namespace="mallory"), FEATURES)
    assert seen.runs == WINDOW
    assert seen.under_predicted == 20 / WINDOW


def test_the_service_shows_drift_by_type_of_gpu():
    app = create_app(PredictorConfig(), ClusterProfileStore(MemoryCluster()))
    with TestClient(app) as client:
        client.post("/v1/models?name=net", content=light("squeezenet")).raise_for_status()
        # What was observed does not hide that the prediction was wrong.
        for _ in range(3):
            client.post("/v1/feedback", json=run(15 << 30).wire()).raise_for_status()
        text = client.get("/metrics").text
    assert 'tandem_predictor_feedback_total{gpu="V100"} 3.0' in text
    assert 'tandem_predictor_memory_under_predicted_ratio{gpu="V100"} 1.0' in text
    assert 'tandem_predictor_memory_residual_ratio{gpu="V100"}' in text
    assert 'tandem_predictor_utilisation_residual_ratio{gpu="V100"}' in text
