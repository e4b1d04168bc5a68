"""Precision, optimizer and sequence length: from the annotations to predictor and history."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from scheduler_extender.cluster.jobs import kind_of_model
from scheduler_extender.learning.run_history import feedback
from scheduler_extender.predictions import HttpPredictor
from tandem.contracts import names
from tandem.contracts.annotations import parse_demand
from tandem.contracts.learning import Observed
from tandem.contracts.resources import Demand, GPUJobSpec, Load, Source, WorkloadRef

STATED = {
    names.MODEL: "bert", names.BATCH_SIZE: "8", names.PRECISION: "bf16", names.OPTIMIZER: "adam",
    names.SEQUENCE_LENGTH: "512",
}  # fmt: skip
LOAD = Load(
    utilisation_percent=50, utilisation_p95_percent=60, memory_base_bytes=1,
    memory_peak_extra_bytes=0, peak_probability=0, memory_p95_bytes=1,
    utilisation_source=Source.FORMULA, memory_source=Source.FORMULA, feature_hash="abc",
)  # fmt: skip


def test_the_predictor_is_asked_with_what_the_annotations_state() -> None:
    asked: list[dict] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content))
        return httpx.Response(200, json={"load": LOAD.wire(), "explanation": "asked"})

    predictor = HttpPredictor("http://predictor", transport=httpx.MockTransport(answer))
    asyncio.run(predictor.predict("ml", parse_demand(STATED, 1), None))
    assert asked[0]["precision"] == "bf16"
    assert asked[0]["optimizer"] == "adam"
    assert asked[0]["sequenceLength"] == 512


def spec(demand: Demand) -> GPUJobSpec:
    owner = WorkloadRef(api_version="batch/v1", kind="Job", name="j", uid="u")
    return GPUJobSpec(workload=owner, demand=demand)


@pytest.mark.parametrize("left_out", [names.PRECISION, names.OPTIMIZER, names.SEQUENCE_LENGTH])
def test_runs_that_state_something_else_are_another_kind(left_out: str) -> None:
    less = {name: value for name, value in STATED.items() if name != left_out}
    kinds = {kind_of_model(spec(parse_demand(said, 1)), LOAD) for said in (STATED, less)}
    assert len(kinds) == 2
    plain = {names.MODEL: "bert", names.BATCH_SIZE: "8"}
    assert kind_of_model(spec(parse_demand(plain, 1)), LOAD) == "abc@8"


def test_the_predictor_learns_nothing_for_others_from_a_run_that_states_them() -> None:
    seen = Observed(
        seconds=3600, memory_base_bytes=1, memory_peak_bytes=2, solo_utilisation_percent=50,
        gpu_model="V100", at="2026-01-01T00:00:00Z",
    )  # fmt: skip
    plain = {names.MODEL: "bert", names.BATCH_SIZE: "8"}
    assert feedback("ml", parse_demand(plain, 1), seen) is not None
    for name in (names.PRECISION, names.OPTIMIZER, names.SEQUENCE_LENGTH):
        assert feedback("ml", parse_demand({**plain, name: STATED[name]}, 1), seen) is None
