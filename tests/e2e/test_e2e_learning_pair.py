"""The models of the story of bad neighbours are predicted to get along, however long it takes."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from e2e_cluster import BOARD, MODELS

from predictor.interference.model import open_interference
from predictor.load.predictor import Predictor
from predictor.service.sandbox import Sandbox
from tandem.contracts.prediction import InterferenceRequest, PredictRequest
from tandem.contracts.resources import Load
from tandem.policy.equations.turns import shares_well

BATCHES = {"alexnet": 32, "inception-v1": 16}


@pytest.fixture(scope="module")
def loads() -> dict[str, Load]:
    found = {}
    with Sandbox() as sandbox:
        for model, batch in BATCHES.items():
            graph = sandbox.parse_file([MODELS[model].read_bytes()])
            asked = PredictRequest(
                namespace="team-a", model=model, batch_size=batch, gpu_model=BOARD,
                gpu_memory_bytes=16 << 30,
            )  # fmt: skip
            found[model] = Predictor().predict(asked, graph.features, graph.feature_hash).load
    return found


@pytest.mark.parametrize("worth", [0.1, 1.0, 10.0])
@pytest.mark.parametrize(("newcomer", "resident"), list(product(BATCHES, BATCHES)))
def test_each_of_the_models_joins_each_whatever_the_two_have_attained(
    loads: dict[str, Load], newcomer: str, resident: str, worth: float
) -> None:
    """`worth` is the newcomer's rate of completion as a multiple of the resident's."""
    asked = InterferenceRequest(job=loads[newcomer], candidates=[loads[resident]], gpu_model=BOARD)
    (pair,) = open_interference(None).answer(asked).pairs
    assert not pair.out_of_distribution
    own, caused = (1 / (1 + slowdown) for slowdown in pair.planned)
    lost = np.array(1 - caused)
    one = np.array(1.0)
    assert shares_well(worth, own, lost, lost, one, one)
