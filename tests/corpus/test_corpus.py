"""Exported graphs against the frameworks' own counts; `make corpus` writes them to .out/corpus."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from studies.corpus.compare import compared

CORPUS = Path(os.environ.get("TANDEM_CORPUS", Path(__file__).parents[2] / ".out" / "corpus"))
GRAPHS = sorted(file.stem for file in CORPUS.glob("*.onnx"))

pytestmark = pytest.mark.skipif(not GRAPHS, reason="no graphs in .out/corpus: make corpus")


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_costs_what_its_framework_counts_or_is_refused_with_a_way_out(name):
    graph = compared(CORPUS, name)
    assert not graph.nearly_free
    if graph.refusal:
        assert graph.way_out, f"refused without a way out: {graph.refusal}"
        pytest.skip(f"refused: {graph.refusal}")
    if graph.outside and graph.limit:
        pytest.xfail(graph.limit)
    assert not graph.outside, graph.ratios
