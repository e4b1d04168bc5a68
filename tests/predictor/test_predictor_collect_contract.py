"""One contract for the backend that the collector's tests play and for PyTorch on a CPU."""

from __future__ import annotations

from typing import Any

import pytest
from fake_backend import FakeBackend

from predictor.collect.catalog import PLAIN, Model

MODEL: Model = next(model for model in PLAIN if model.name == "a3c")
CONFIG = {"model": "a3c", "batch": 16, "sequence": None, "precision": "fp32", "optimizer": "sgd"}
TIMES = {"startedAt", "endedAt", "iterations", "iterationS", "iterationMeanS"}
#: Of a GPU alone, which a CPU does not have.
MEMORY = {"allocatedPeakBytes", "reservedPeakBytes", "reservedBytes", "deviceUsedBytes"}
OF_A_GPU = {"activeS", "memoryCourse"}


@pytest.fixture(params=["double", "torch"])
def backend(request: pytest.FixtureRequest) -> Any:
    if request.param == "double":
        return FakeBackend("cpu")
    pytest.importorskip("torch", reason="no PyTorch: it is in no lock file")
    from predictor.collect.torch_backend import TorchBackend

    return TorchBackend("cpu")


def test_the_header_names_the_device_and_the_versions(backend: Any) -> None:
    found = backend.info()
    assert set(found) == {"gpu", "versions", "libraries", "uuid"}
    assert {"model", "memoryBytes"} <= set(found["gpu"])
    assert "torch" in found["versions"]
    assert isinstance(found["libraries"], list)
    assert isinstance(found["uuid"], str)


def test_a_model_is_described_by_the_features_of_its_layers(backend: Any) -> None:
    layers = backend.describe(MODEL, None)["layers"]
    assert set(layers) == set(FakeBackend("cpu").describe(MODEL, None)["layers"])
    counts = layers["opCounts"]
    assert all(value >= 0 for value in layers.values() if not isinstance(value, dict))
    assert sum(counts.values()) > 0
    assert all(isinstance(shape, list) for shape in layers["inputShapes"].values())


def test_steps_are_timed_within_the_time_that_is_given(backend: Any) -> None:
    assert set(backend.prepare(MODEL, CONFIG)) <= MEMORY
    found = backend.measure(0.05)
    assert set(found) >= TIMES
    assert set(found) <= TIMES | MEMORY
    assert found["endedAt"] > found["startedAt"]
    assert found["iterations"] >= 1
    assert found["iterationS"] > 0
    assert found["iterationMeanS"] > 0
    assert set(backend.details()) <= OF_A_GPU
