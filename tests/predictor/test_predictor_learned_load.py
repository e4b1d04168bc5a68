"""A learned load: honest splits, bounds, what is published, and what the service says with it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from predictor_graphs import Builder, tensor_input
from synthetic_profiles import synthetic_profiles
from typer.testing import CliRunner

from predictor.artifacts import ArtifactError, Artifacts
from predictor.load.features import _OUTSIDE, LOAD_FEATURES, SUPPORTED, known
from predictor.load.model import KIND, LearnedLoad, open_load
from predictor.load.predictor import Predictor
from predictor.service.app import create_app
from predictor.service.config import PredictorConfig
from predictor.service.store import ClusterProfileStore
from predictor.training import load as load_training
from predictor.training.load import train_load
from predictor.training.load_evaluation import (
    bound_offset,
    family_folds,
    held_out,
    learners,
    load_table,
    published_learner,
    xgboost_learner,
)
from predictor.training.profiles import Origin, read_measured_pairs, read_profiles
from predictor.trees import Trees, stored
from tandem.cli.main import build_app
from tandem.contracts.prediction import Prediction, PredictRequest
from tandem.contracts.resources import Source
from tandem.errors import TandemError, UsageError
from tandem.kube.memory import MemoryCluster

GIB = 1 << 30


def only_published(target):
    return {"xgboost": published_learner(target)}


@pytest.fixture
def only_xgboost(monkeypatch):
    monkeypatch.setattr(load_training, "learners", only_published)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    directory = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load_training, "learners", only_published)
        train_load(synthetic_profiles(), Artifacts(directory), allow_synthetic=True)
    return directory


def ask(learned: LearnedLoad, profile, **changes) -> Prediction:
    request = PredictRequest(
        model="net", batch_size=profile.batch_size, precision=profile.precision,
        optimizer=profile.optimizer, gpu_model=profile.gpu_model,
    ).model_copy(update=changes)  # fmt: skip
    return Predictor([learned.memory], [learned.utilisation]).predict(request, profile.features)


# --- splits and bounds ------------------------------------------------------------------------


def test_no_family_is_on_both_sides():
    family = np.array([f"f{i % 13}" for i in range(200)])
    folds = family_folds(family)
    assert len(set(folds)) == 10
    for name in set(family):
        assert len(set(folds[family == name])) == 1


def test_held_out_rows_are_predicted_by_a_learner_that_never_saw_their_family():
    table = load_table(synthetic_profiles(families=10))
    seen = []

    class Spy:
        def fit(self, columns, residual):
            self.rows = {tuple(row) for row in columns}

        def predict(self, columns):
            assert not self.rows & {tuple(row) for row in columns}
            seen.append(len(columns))
            return np.zeros(len(columns))

    predicted = held_out(table, "memory", Spy, table.rows("memory"))
    assert sum(seen) == len(table.family)
    assert predicted == pytest.approx(table.formula["memory"])


def test_a_bound_reckons_with_a_family_worse_than_all():
    # Nine families of one row: 95 % of ten lies beyond the ninth, so the worst counts.
    scores = np.arange(9) / 10
    assert bound_offset(scores, np.array([str(i) for i in range(9)])) == 0.8
    # Half of a hundred families: the 51st of 101.
    many = bound_offset(np.arange(100.0), np.array([str(i) for i in range(100)]), level=0.5)
    assert many == 50
    # A family of many rows has no more weight than another.
    family = np.array(["big"] * 97 + ["a", "b", "c"])
    assert bound_offset(np.array([9.0] * 97 + [1, 2, 3]), family, level=0.5) == 3


@pytest.mark.slow
def test_bounds_hold_on_families_that_were_not_seen():
    """Calibrated on twenty families, tried on forty others (synthetic, wide noise)."""
    from predictor.training.load_evaluation import corrected

    table = load_table(synthetic_profiles(20, noise=0.2))
    rows = table.rows("memory")
    ours = held_out(table, "memory", xgboost_learner, rows)
    offset = bound_offset(np.log(table.measured["memory"] / ours), table.family)
    learner = xgboost_learner()
    learner.fit(table.columns, table.learned("memory"))
    others = load_table(synthetic_profiles(40, noise=0.2, first_family=100))
    predicted = corrected("memory", others.formula["memory"], learner.predict(others.columns))
    under = np.mean(predicted * np.exp(offset) < others.measured["memory"])
    assert under <= 0.06


@pytest.mark.slow
def test_every_candidate_learns_the_residual():
    table = load_table(synthetic_profiles(families=8))
    rows = table.rows("memory")
    wrong = np.abs(np.log(table.formula["memory"] / table.measured["memory"])).mean()
    for name, make in learners("memory").items():
        ours = held_out(table, "memory", make, rows)
        error = np.abs(np.log(ours / table.measured["memory"])).mean()
        assert error < 0.7 * wrong, name


# --- publishing -------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_is_published_says_what_it_is(trained):
    parts, card = Artifacts(trained).load(KIND)
    models = {"memory", "utilisation", "iteration"}
    assert set(parts) == {f"{name}.{form}" for name in models for form in ("ubj", "json")}
    assert card.features == list(LOAD_FEATURES)
    assert card.trained_on["synthetic"] == card.trained_on["profiles"] == 144
    assert card.details["types"] == {name: ["H200", "V100"] for name in models}
    for target, figures in card.details["held_out"].items():
        assert figures["rows"] == 144
        assert len(figures["by_family"]) == 12
        assert set(figures["by_gpu"]) == {"NVIDIA H200", "Tesla V100-SXM2-16GB"}
        assert card.errors["xgboost"][target] < card.errors["formula"][target]
    report = (trained / f"{KIND}-{card.version}.md").read_text()
    assert "synthetic: 144" in report
    assert "above the upper bound" in report
    assert (trained / f"{KIND}-{card.version}.svg").read_text().count("<circle") == 3 * 144


@pytest.mark.parametrize(
    ("profiles", "words"),
    [
        (synthetic_profiles(families=2), "too few"),
        (synthetic_profiles(), "no GPU has shown"),
    ],
)
def test_too_little_and_invented_data_are_refused(tmp_path, profiles, words):
    with pytest.raises(TandemError, match=words):
        train_load(profiles, Artifacts(tmp_path))


@pytest.mark.slow
def test_what_is_no_better_than_the_formula_is_not_published(tmp_path, only_xgboost):
    rng = np.random.default_rng(0)
    noise = []
    for profile in synthetic_profiles():
        asked = known(profile.question())
        by_formula = {
            "memory_peak_bytes": int((asked.levels.fixed + asked.levels.varying)
                                     * np.exp(rng.normal(0, 0.3))),
            "utilisation_percent": None,
            "iteration_s": None,
        }  # fmt: skip
        noise.append(profile.model_copy(update=by_formula))
    with pytest.raises(TandemError, match="no better than the formula"):
        train_load(noise, Artifacts(tmp_path), allow_synthetic=True)
    assert Artifacts(tmp_path).load(KIND) is None


@pytest.mark.slow
def test_a_worse_model_does_not_replace_the_one_that_serves(tmp_path, only_xgboost):
    artifacts = Artifacts(tmp_path)
    serving = train_load(synthetic_profiles(), artifacts, allow_synthetic=True)
    # The same law, but shown by noisy figures of other families.
    worse = synthetic_profiles(seed=5, first_family=50, noise=0.25)
    with pytest.raises(TandemError, match="The model in use"):
        train_load(worse, artifacts, allow_synthetic=True)
    assert artifacts.load(KIND)[1].version == serving.version
    # Without the figures that the old one has it cannot take its place either.
    fewer = [p.model_copy(update={"iteration_s": None}) for p in synthetic_profiles(20)]
    with pytest.raises(TandemError, match="also predicts iteration"):
        train_load(fewer, artifacts, allow_synthetic=True)
    better = train_load(synthetic_profiles(20, noise=0.02), artifacts, allow_synthetic=True)
    assert artifacts.load(KIND)[1].version == better.version
    assert artifacts.rollback(KIND) == serving.version


@pytest.mark.slow
def test_trees_answer_as_xgboost_does():
    table = load_table(synthetic_profiles())
    learner = xgboost_learner()
    learner.fit(table.columns, table.learned("memory"))
    booster = learner.get_booster()
    rows = table.columns.astype(np.float32)
    rows[::7, 3] = np.nan
    ours = Trees(bytes(booster.save_raw("json"))).predict(rows)
    assert ours == pytest.approx(booster.inplace_predict(rows, missing=np.nan), abs=1e-5)
    # A single leaf is a tree as well.
    flat = xgboost_learner().fit(table.columns, np.full(len(rows), 0.25)).get_booster()
    assert Trees(bytes(flat.save_raw("json"))).predict(rows[:1]) == pytest.approx([0.25], abs=1e-5)


# --- serving ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_model_answers_before_the_formula(trained):
    learned = open_load(trained)
    profile = next(p for p in synthetic_profiles() if p.batch_size == 16)
    load = ask(learned, profile).load
    assert (load.memory_source, load.utilisation_source) == (Source.MODEL, Source.MODEL)
    assert load.model_version == learned.version
    assert not load.out_of_distribution
    total = load.memory_base_bytes + load.memory_peak_extra_bytes
    assert total == pytest.approx(profile.memory_peak_bytes, rel=0.15)
    assert total <= load.memory_p95_bytes < 2 * total
    assert load.utilisation_percent == pytest.approx(profile.utilisation_percent, rel=0.15)
    assert load.iteration_s == pytest.approx(profile.iteration_s, rel=0.2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "words", "unlike"),
    [
        ({"gpu_model": "NVIDIA A30"}, "covers this type of GPU", False),
        ({"batch_size": 100_000, "gpu_memory_bytes": 1 << 60}, "outside", True),
    ],
)
def test_outside_its_domain_the_model_leaves_the_answer_to_the_formula(
    trained, change, words, unlike
):
    """Where the model answers, what it was not trained on is flagged; elsewhere it has no say."""
    profile = synthetic_profiles()[0]
    answer = ask(open_load(trained), profile, **change)
    request = PredictRequest(
        model="net", batch_size=profile.batch_size, precision=profile.precision,
        optimizer=profile.optimizer, gpu_model=profile.gpu_model,
    ).model_copy(update=change)  # fmt: skip
    formula = Predictor().predict(request, profile.features).load
    assert answer.load.out_of_distribution is unlike
    assert words in answer.explanation
    flagged = formula.model_copy(update={"out_of_distribution": unlike})
    assert answer.load.model_copy(update={"feature_hash": ""}) == flagged


@pytest.mark.slow
def test_operators_that_were_not_seen_are_flagged(trained):
    profile = synthetic_profiles()[0]
    strange = profile.features.model_copy(update={"op_counts": {"GRU": 50, "Conv": 50}})
    answer = ask(open_load(trained), profile.model_copy(update={"features": strange}))
    assert answer.load.out_of_distribution
    assert "operators" in answer.explanation


@pytest.mark.slow
def test_another_operator_of_a_group_that_was_seen_is_not_strange(trained):
    """The model's columns are shares of groups: to it a Gemm is a MatMul."""
    profile = next(p for p in synthetic_profiles() if "MatMul" in p.features.op_counts)
    alike = profile.features.model_copy(update={"op_counts": {"Gemm": 50, "Einsum": 50}})
    answer = ask(open_load(trained), profile.model_copy(update={"features": alike}))
    assert answer.load.utilisation_source is Source.MODEL
    assert not answer.load.out_of_distribution


@pytest.mark.slow
def test_declared_memory_wins_upward_over_the_model(trained):
    profile = synthetic_profiles()[0]
    learned = open_load(trained)
    low = ask(learned, profile, declared_memory_bytes=1)
    high = ask(learned, profile, declared_memory_bytes=14 * GIB)
    assert low.load.memory_source is Source.MODEL
    assert high.load.memory_source is Source.DECLARED
    assert high.load.memory_base_bytes + high.load.memory_peak_extra_bytes == 14 * GIB


@pytest.mark.slow
def test_more_than_the_gpu_has_is_all_of_it(trained):
    profile = synthetic_profiles()[0]
    load = ask(open_load(trained), profile, gpu_memory_bytes=GIB // 4).load
    assert load.memory_base_bytes == load.memory_p95_bytes == GIB // 4
    assert load.out_of_distribution


@pytest.mark.slow
def test_a_part_answers_only_where_it_beats_the_formula(tmp_path, only_xgboost):
    """On the H200 the formula is right and what was measured on the V100 is noise around it."""
    rng = np.random.default_rng(1)
    given = []
    for profile in synthetic_profiles():
        asked = known(profile.question())
        if profile.gpu_model.startswith("Tesla"):
            formula = asked.levels.fixed + asked.levels.varying
            noisy = int(formula * np.exp(rng.normal(0, 0.3)))
            profile = profile.model_copy(update={"memory_peak_bytes": noisy})
        given.append(profile)
    card = train_load(given, Artifacts(tmp_path), allow_synthetic=True)
    assert card.details["types"]["memory"] == ["H200"]
    by_gpu = card.details["held_out"]["memory"]["by_gpu"]
    assert set(by_gpu) == {"NVIDIA H200"}
    learned = open_load(tmp_path)
    said = {p.gpu_model: ask(learned, p).load.memory_source for p in given if p.batch_size == 16}
    assert said == {"NVIDIA H200": Source.MODEL, "Tesla V100-SXM2-16GB": Source.FORMULA}
    # The caller may name types on which the model must not answer.
    card = train_load(given, Artifacts(tmp_path / "b"), allow_synthetic=True, not_on={"H200"})
    assert "memory" not in card.details["types"]
    assert card.details["types"]["utilisation"] == ["V100"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["residual", "share"])
def test_a_model_of_an_earlier_version_serves(tmp_path, caplog, kind):
    """Its card says nothing of types, weights and the formula, and it has fewer columns.

    It learned over the first formula of steps, the share or a factor on the formula.
    """
    profiles = synthetic_profiles()
    before = [n for n in LOAD_FEATURES if n not in _OUTSIDE]
    asked = [known(p.question(), first=True) for p in profiles]
    columns = np.array([a.columns for a in asked])[:, : len(before)]
    formula = np.array([a.step.utilisation_percent for a in asked])
    measured = np.array([p.utilisation_percent for p in profiles])
    learned = np.log((measured + 1) / (formula + 1))
    if kind == "share":
        learned = np.log(measured / (100 - measured))
    learner = xgboost_learner(names=before)
    learner.fit(columns, learned)
    details = {
        "offsets": {"utilisation": 0.2}, "low": [-99.0] * len(SUPPORTED),
        "high": [99.0] * len(SUPPORTED), "operators": ["Conv", "Relu", "MatMul"],
        "gpus": ["V100"], "families": [], "utilisation": kind,
    }  # fmt: skip
    card = {
        "features": before, "trained_on": {}, "errors": {}, "chosen": "xgboost",
        "details": details,
    }  # fmt: skip
    Artifacts(tmp_path).publish(KIND, stored("utilisation", learner.get_booster()), card)
    profile = next(p for p in synthetic_profiles() if p.gpu_model.startswith("Tesla"))
    load = ask(open_load(tmp_path), profile).load
    assert load.utilisation_source is Source.MODEL
    assert load.utilisation_percent == pytest.approx(profile.utilisation_percent, rel=0.15)
    assert "corrects an earlier formula (the first, now formula/4): train it again" in caplog.text
    elsewhere = ask(open_load(tmp_path), profile, gpu_model="NVIDIA A30").load
    assert elsewhere.utilisation_source is Source.FORMULA


@pytest.mark.slow
def test_a_type_that_was_not_trained_on_is_corrected_by_what_helps_on_types_left_out(
    tmp_path, only_xgboost
):
    given = synthetic_profiles()
    other = [p.model_copy(update={"gpu_model": "NVIDIA A100-SXM4-40GB"}) for p in given[::2]]
    card = train_load([*given, *other], Artifacts(tmp_path), allow_synthetic=True)
    for part, weights in card.details["weights"].items():
        assert set(weights) == {"A100", "H200", "V100", "elsewhere"}, part
        assert 0 <= weights["elsewhere"] <= 0.5
    if weight := card.details["weights"]["memory"]["elsewhere"]:
        answer = ask(open_load(tmp_path), given[0], gpu_model="NVIDIA A30")
        assert answer.load.memory_source is Source.MODEL
        assert f"{weight:.0%}" in answer.explanation


def convolutions() -> bytes:
    """A chain of convolutions: a graph like those that the synthetic profiles are of."""
    builder, x = Builder(), "x"
    for _ in range(30):
        weights = builder.weight(128, 128, 3, 3)
        x = builder.node("Relu", builder.node("Conv", x, weights, pads=[1] * 4))
    return builder.model([tensor_input("x", "N", 128, 28, 28)], x).SerializeToString()


@pytest.mark.slow
def test_the_service_answers_by_the_model_and_by_what_was_observed(trained):
    """observed, model, declared (upward), whole GPU, in that order."""
    app = create_app(PredictorConfig(artifacts=trained), ClusterProfileStore(MemoryCluster()))
    request = {"model": "resnet50", "batchSize": 16, "gpuModel": "Tesla V100-SXM2-16GB"}
    with TestClient(app) as client:
        client.post("/v1/models?name=resnet50", content=convolutions()).raise_for_status()
        first = client.post("/v1/predict", json=request).json()["load"]
        assert (first["memorySource"], first["utilisationSource"]) == ("model", "model")
        run = {
            "model": "resnet50", "batchSize": 16, "gpuModel": "Tesla V100-SXM2-16GB",
            "memoryBaseBytes": 5 * GIB, "memoryPeakBytes": 6 * GIB, "peakProbability": 0.2,
            "utilisationPercent": 88.0,
        }  # fmt: skip
        client.post("/v1/feedback", json=run).raise_for_status()
        assert client.post("/v1/predict", json=request).json()["load"]["memorySource"] == "observed"
        # What was observed tells of the job as it is; another precision is another question.
        other = client.post("/v1/predict", json=request | {"precision": "bf16"}).json()["load"]
        assert other["memorySource"] == "model"
        unknown = client.post("/v1/predict", json={"gpuModel": "Tesla V100"}).json()["load"]
        assert unknown["memorySource"] == "whole-gpu"


def test_a_model_of_other_features_or_a_damaged_card_is_refused(tmp_path):
    card = {"features": ["x"], "trained_on": {}, "errors": {}, "chosen": "x"}
    Artifacts(tmp_path).publish(KIND, {"memory.ubj": b""}, card)
    with pytest.raises(ArtifactError, match="other features"):
        open_load(tmp_path)
    Artifacts(tmp_path).publish(
        KIND, {"memory.ubj": b"1"}, card | {"features": list(LOAD_FEATURES)}
    )
    with pytest.raises(ArtifactError, match="card"):
        open_load(tmp_path)


# --- command line -----------------------------------------------------------------------------


def write_profiles(file: Path, profiles) -> Path:
    file.write_text("".join(json.dumps(p.wire()) + "\n" for p in profiles))
    return file


@pytest.mark.slow
def test_train_and_rollback_on_the_command_line(tmp_path, only_xgboost):
    # For the test alone they pass as measured: the command refuses what was not measured.
    given = [p.model_copy(update={"origin": Origin.MEASURED}) for p in synthetic_profiles()]
    files = [
        str(write_profiles(tmp_path / f"{name}.jsonl", part))
        for name, part in (("a", given[:70]), ("b", given[70:]))
    ]
    out = ["--out", str(tmp_path / "artifacts")]
    run = CliRunner().invoke(build_app(), ["train", "--profiles", *files, *out, "--json"])
    assert run.exit_code == 0, run.output
    assert json.loads(run.stdout)["trained_on"]["measured"] == 144
    rollback = CliRunner().invoke(build_app(), ["train", "rollback", "load", *out])
    assert isinstance(rollback.exception, ArtifactError)


def test_bad_profiles_are_named(tmp_path):
    file = write_profiles(tmp_path / "p.jsonl", synthetic_profiles()[:1])
    good = file.read_text()
    file.write_text(good + '{"kind": "solo"}\n')
    with pytest.raises(UsageError, match="line 2: name"):
        read_profiles(file)
    file.write_text(good + "[]\n" + good)
    with pytest.raises(UsageError, match="line 2: not a JSON object"):
        read_profiles(file)
    header = '{"kind": "header", "gpu": [1]}\n'
    for solo in ('"measured": [1]', '"model": []', '"model": "m"'):
        file.write_text(header + '{"kind": "solo", ' + solo + "}\n")
        with pytest.raises(UsageError, match="line 2"):
            read_profiles(file)
    for packed in ('"eA=="', '"\u00e9"', "7"):
        graph = '{"kind": "graph", "model": "m", "onnx": ' + packed + "}\n"
        file.write_text(graph + '{"kind": "solo", "model": "m"}\n')
        with pytest.raises(UsageError, match="line 2"):
            read_profiles(file)
    for pair in ('"first": []', '"slowdown": [0]', '"slowdown": ["x", 1]', '"slowdown": [-1, 0]'):
        file.write_text(
            '{"kind": "pair", "status": "ok", "first": "a", "second": "b", ' + pair + "}\n"
        )
        with pytest.raises(UsageError, match="line 1"):
            read_measured_pairs(file, Predictor())
    file.write_text(good + good[:40])  # cut off by a kill
    assert len(read_profiles(file)) == 1
    nothing = CliRunner().invoke(build_app(), ["train"])
    assert isinstance(nothing.exception, UsageError)
