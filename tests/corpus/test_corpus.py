"""Exported graphs against the frameworks' own counts; `make corpus` writes them to .out/corpus."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from predictor.errors import GraphError
from predictor.graph.features import extract_features
from predictor.graph.model import SymbolSizes

CORPUS = Path(os.environ.get("TANDEM_CORPUS", Path(__file__).parents[2] / ".out" / "corpus"))
GRAPHS = sorted(file.stem for file in CORPUS.glob("*.onnx"))
#: Relative tolerance: parameters, FLOPs of the forward pass, bytes kept for the backward pass.
PARAMETERS, FLOPS, SAVED = 0.02, 0.05, 0.10

pytestmark = pytest.mark.skipif(not GRAPHS, reason="no graphs in .out/corpus: make corpus")


def facts_and_features(name: str):
    facts = json.loads((CORPUS / f"{name}.json").read_text())
    sizes = SymbolSizes(sequence_length=facts.get("sequence", 128))
    try:
        return facts, extract_features((CORPUS / f"{name}.onnx").read_bytes(), sizes)
    except GraphError as error:
        refused = error
    if not refused.hint:
        pytest.fail(f"refused without a way out: {refused.message}")
    pytest.skip(f"refused: {refused.message}")


@pytest.mark.parametrize("name", GRAPHS)
def test_parameters_and_flops_are_those_of_the_framework(name):
    facts, features = facts_and_features(name)
    assert features.parameters == pytest.approx(facts["parameters"], rel=PARAMETERS)
    assert features.flops == pytest.approx(facts["flops"], rel=FLOPS)


@pytest.mark.parametrize("name", GRAPHS)
def test_what_training_keeps_is_what_autograd_saves(name):
    facts, features = facts_and_features(name)
    if "saved_bytes" not in facts:
        pytest.skip("the framework does not say what it saves")
    half = 0.5 if name.endswith("-half") else 1.0
    assert features.saved_activation_bytes == pytest.approx(half * facts["saved_bytes"], rel=SAVED)


@pytest.mark.parametrize("name", GRAPHS)
def test_no_graph_is_accepted_at_a_tenth_of_its_cost(name):
    facts, features = facts_and_features(name)
    assert features.flops > facts["flops"] / 10
    assert features.saved_activation_bytes > facts.get("saved_bytes", 0) / 10
