"""The model of loads that ships: where it answers, what it is, and what happens without it."""

from __future__ import annotations

import logging
import shutil

import pytest
from fastapi.testclient import TestClient
from predictor_graphs import measured_data

from benchmarks.predictions import shipped
from benchmarks.predictions.loads import features, known
from benchmarks.predictions.measured import A100, T4, V100, measured
from predictor.app import create_app
from predictor.artifacts import SHIPPED, Artifacts, serving
from predictor.config import PredictorConfig
from predictor.load import Predictor
from predictor.load_model import KIND, open_predictor
from predictor.store import ClusterProfileStore
from tandem.contracts.prediction import PredictRequest
from tandem.contracts.resources import Source
from tandem.kube.memory import MemoryCluster

ASKED = PredictRequest(model="bert-base-512", batch_size=4, gpu_model=A100)
MIB = 1 << 20


def said(predictor: Predictor, request: PredictRequest = ASKED):
    return predictor.predict(request, features()[request.model])


def test_it_answers_where_it_beats_the_formula_and_the_formula_elsewhere():
    predictor = open_predictor(None)
    answer = said(predictor)
    assert answer.load.utilisation_source is Source.MODEL
    assert answer.load.memory_source is Source.FORMULA
    assert answer.load.model_version == f"formula/2 load/{serving(None, KIND)[1].version}"
    assert not answer.load.out_of_distribution
    low, high = (
        answer.utilisation_interval_percent.low, answer.utilisation_interval_percent.high
    )  # fmt: skip
    assert low < answer.load.utilisation_percent < high <= 100
    for gpu in (V100, T4, "NVIDIA H100 80GB HBM3", "A card of tomorrow", None):
        request = ASKED.model_copy(update={"gpu_model": gpu})
        elsewhere, formula = said(predictor, request), said(Predictor(), request)
        assert elsewhere.load == formula.load
        assert elsewhere.load.utilisation_source is Source.FORMULA
        assert "does not answer on this GPU" in elsewhere.explanation


def test_its_card_says_what_it_is():
    parts, card = serving(None, KIND)
    types = card.details["types"]["utilisation"]
    assert types
    for gpu, figures in card.details["held_out"]["utilisation"]["by_gpu"].items():
        assert figures["rmsle"] < figures["formula"], gpu
    assert not set(types) & set(card.details["worse_partners_on"])
    assert card.trained_on["measured"] > 0
    assert card.trained_on["derived"] > 0
    assert all("MIT" in text or "Apache" in text for text in card.details["sources"].values())
    assert sum(len(part) for part in parts.values()) < 2 * MIB


@pytest.mark.parametrize("damage", ["sha256", "missing", "card"])
def test_without_it_the_formula_answers_and_the_log_says_why(tmp_path, caplog, damage):
    shutil.copytree(SHIPPED, tmp_path / "data")
    version = Artifacts(SHIPPED).load(KIND)[1].version
    model = tmp_path / "data" / f"{KIND}-{version}.utilisation.json"
    match damage:
        case "sha256":
            model.write_bytes(model.read_bytes().replace(b"1", b"2", 1))
        case "missing":
            model.unlink()
        case _:
            (tmp_path / "data" / f"{KIND}-{version}.json").write_text("{}")
    with caplog.at_level(logging.WARNING):
        predictor = open_predictor(tmp_path / "data")
    assert said(predictor) == said(Predictor())
    assert "learned load model is not used, the formula answers" in caplog.text
    assert "missing or damaged" in caplog.text
    app = create_app(
        PredictorConfig(artifacts=tmp_path / "data"), ClusterProfileStore(MemoryCluster())
    )
    with TestClient(app) as client:
        assert client.get("/readyz").status_code == 200


def test_a_setting_turns_it_off(caplog):
    with caplog.at_level(logging.INFO):
        assert said(open_predictor(None, learned=False)) == said(Predictor())
    assert "disabled" in caplog.text
    assert PredictorConfig().learned_load


@pytest.mark.slow
def test_the_command_makes_it_again_from_the_data(tmp_path, monkeypatch):
    data = measured_data()
    monkeypatch.setattr("sys.argv", ["shipped", str(data), "--out", str(tmp_path)])
    shipped.main()
    made, ships = Artifacts(tmp_path).load(KIND)[1], serving(None, KIND)[1]
    assert made.trained_on == ships.trained_on
    for name in ("types", "worse_partners_on", "families", "sources"):
        assert made.details[name] == ships.details[name], name
    ours, theirs = (card.details["held_out"]["utilisation"] for card in (made, ships))
    assert ours["rmsle"] == pytest.approx(theirs["rmsle"], rel=0.1)


@pytest.mark.slow
def test_nothing_is_learned_from_input_bound_jobs_and_derived_shares_say_so():
    rows = shipped.learned_from(known(measured(measured_data())))
    assert not {"A3C", "Auto-encoder"} & {row.family for row in rows}
    for row, profile in zip(rows, shipped.profiles(rows), strict=True):
        assert profile.origin == ("derived" if row.utilisation is None else "measured")
        assert profile.memory_peak_bytes is None
    assert {row.source for row in rows} == set(shipped.SOURCES)
