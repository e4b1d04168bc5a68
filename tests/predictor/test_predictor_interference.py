"""Pricing pairs: the quadratic, a trained model, its files, and how learners are compared."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from predictor_graphs import measured_matrix
from typer.testing import CliRunner

from predictor.artifacts import SHIPPED, ArtifactError, Artifacts, serving
from predictor.interference.experience import Experience
from predictor.interference.model import (
    KIND,
    MEASURED_SPREAD,
    PAIR_FEATURES,
    PART,
    PLANNED_TOTAL_SPREAD,
    PREDICTED_SLOPE,
    PREDICTED_SPREAD,
    PREDICTED_TOTAL_SPREAD,
    Interference,
    LearnedInterference,
    LoadDomain,
    TimeSharing,
    load_features,
    open_interference,
    pair_features,
)
from predictor.interference.pairs import MeasuredJob, MeasuredPair
from predictor.load.equations import taken_turns, time_shared_speed
from predictor.service.app import create_app
from predictor.service.config import PredictorConfig
from predictor.service.store import ClusterProfileStore
from predictor.training import interference as training
from predictor.training import selection
from predictor.training.interference import read_pairs, table, train
from predictor.training.selection import (
    Pairs,
    across_gpus,
    candidates,
    choose,
    mean_absolute_error,
    random_folds,
    unseen_models,
    unseen_pairs,
)
from predictor.trees import in_json
from tandem.cli.main import build_app
from tandem.contracts.learning import Means, Neighbour
from tandem.contracts.prediction import InterferenceAnswer, InterferenceRequest
from tandem.contracts.resources import Load, PairLoad, Source
from tandem.errors import TandemError, UsageError
from tandem.kube.memory import MemoryCluster


def load(utilisation: float, compute: float | None = 0.3, bandwidth: float = 0.2) -> Load:
    return Load(
        utilisation_percent=utilisation, utilisation_p95_percent=100,
        memory_base_bytes=0, memory_peak_extra_bytes=0, peak_probability=0, memory_p95_bytes=0,
        utilisation_source=Source.FORMULA, memory_source=Source.FORMULA,
        iteration_s=0.1, compute_share=compute, bandwidth_share=bandwidth,
    )  # fmt: skip


def synthetic_pairs() -> list[MeasuredPair]:
    """Six families; two jobs slow down by how far their compute shares exceed the GPU together."""
    rng = np.random.default_rng(0)
    families = {f"net-{i}": share for i, share in enumerate(np.linspace(0.2, 0.9, 6))}
    found = []
    for gpu in ("Tesla V100-SXM2-16GB", "Tesla P100-PCIE-16GB"):
        for a, share_a in families.items():
            for b, share_b in families.items():
                speed = 1 / max(1.0, share_a + share_b) - rng.uniform(0, 0.01)
                jobs = [
                    MeasuredJob(name=f, family=f, load=load(95, compute=share), speed=speed)
                    for f, share in ((a, share_a), (b, share_b))
                ]
                found.append(MeasuredPair(gpu_model=gpu, first=jobs[0], second=jobs[1]))
    return found


def few() -> dict:
    """The whole list takes seconds; the quadratic and a small one of what is published suffice."""
    from xgboost import XGBRegressor

    return {
        "mean": selection._Mean,
        "quadratic": selection._Quadratic,
        "xgboost": lambda: XGBRegressor(n_estimators=15, max_depth=3, n_jobs=1),
    }


@pytest.fixture
def few_candidates(monkeypatch):
    monkeypatch.setattr(training, "candidates", few)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    directory = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "candidates", few)
        train(synthetic_pairs(), Artifacts(directory))
    return directory


# --- pricing ----------------------------------------------------------------------------------


def test_time_sharing_worked():
    # 60 + 100 = 160 % in total: each runs at about 1 / 1.6 of its speed; 60 % alone loses little.
    speeds = TimeSharing().speeds(observed(60), [observed(100), observed(0)], None)
    assert speeds == pytest.approx(np.array([[0.619] * 2, [0.992] * 2]), abs=0.001)
    # Of what a predicted utilisation says is lost, 0.65 counts (of the logarithm).
    predicted = TimeSharing().speeds(observed(60), [load(100), load(0)], None)
    assert predicted == pytest.approx(np.array([[0.619**0.65] * 2, [0.995] * 2]), abs=0.001)


def test_the_job_with_the_longer_step_gets_more_of_the_time():
    """Kernels take turns: at speed 0.6 each, a step of 1 s next to one of 0.1 s, worked by hand."""
    assert taken_turns(0.6, 1.0, 0.1) == pytest.approx([0.736, 0.464], abs=0.001)
    # No job runs faster than alone: what one cannot use the other gets.
    assert taken_turns(0.9, 1e6, 1e-6) == pytest.approx([1.0, 0.8])
    short, long = (load(80).model_copy(update={"iteration_s": s}) for s in (0.1, 1.0))
    ((own, partner),) = TimeSharing().speeds(long, [short], None)
    ((mirrored, other),) = TimeSharing().speeds(short, [long], None)
    assert own > partner
    assert (own, partner) == pytest.approx((other, mirrored))
    assert own + partner == pytest.approx(2 * float(time_shared_speed(160)) ** PREDICTED_SLOPE)


def test_what_was_measured_takes_the_place_of_the_busy_share_of_pairs():
    """A predicted load is priced by its `pair`; once its utilisation is measured, by itself."""
    pair = PairLoad(busy_percent=90, step_s=0.2, compute_share=0.4, bandwidth_share=0.3)
    own = load(30).model_copy(update={"pair": pair})
    alike = load(90).model_copy(
        update={"iteration_s": 0.2, "compute_share": 0.4, "bandwidth_share": 0.3}
    )
    assert load_features([own]).tolist() == load_features([alike]).tolist()
    neighbour = TimeSharing().speeds(load(80), [own, alike], None)
    assert neighbour[0].tolist() == neighbour[1].tolist()
    measured = own.model_copy(update={"utilisation_source": Source.OBSERVED})
    assert load_features([measured])[0, 0] == 30


def observed(utilisation: float) -> Load:
    return load(utilisation, None).model_copy(update={"utilisation_source": Source.OBSERVED})


def test_outside_its_domain_the_model_is_not_used_and_the_bound_counts():
    """The shipped model knows V100 and P100 only, and loads like those that it was trained on."""
    pricing = open_interference(None)
    job = load(60)
    for gpu in ("NVIDIA A100-SXM4-40GB", None, "NVIDIA Z9000"):
        answer = pricing.answer(InterferenceRequest(job=job, candidates=[load(90)], gpu_model=gpu))
        (pair,) = answer.pairs
        assert (answer.source, answer.out_of_distribution) == (Source.FORMULA, True)
        assert pair.out_of_distribution
        speed = float(time_shared_speed(150)) ** PREDICTED_SLOPE
        assert pair.job_slowdown == pair.partner_slowdown == pytest.approx(1 / speed - 1)
        assert pair.job_slowdown_p95 == pytest.approx(math.exp(PREDICTED_SPREAD) / speed - 1)
        # The sum of both speeds is planned with at its lower bound, which is above both bounds.
        total = sum(1 / (1 + slowdown) for slowdown in pair.planned)
        assert total == pytest.approx(2 * speed * math.exp(-PLANNED_TOTAL_SPREAD))
        assert total == pytest.approx(pair.total_speed_p10)
        least = 2 * speed * math.exp(-PREDICTED_TOTAL_SPREAD)
        assert pair.total_speed_p5 == pytest.approx(least)
        # An answer of an earlier version has the other bound alone.
        before = pair.model_copy(update={"total_speed_p10": None})
        assert sum(1 / (1 + s) for s in before.planned) == pytest.approx(least)
        assert pair.job_slowdown < pair.planned[0] < pair.job_slowdown_p95


@pytest.mark.parametrize("gpu", ["Tesla V100-SXM2-16GB", "Tesla V100-SXM2-32GB"])
def test_the_size_of_the_memory_makes_no_other_type_of_gpu(gpu: str):
    answer = open_interference(None).answer(
        InterferenceRequest(job=load(97, 0.49), candidates=[load(99, 0.49)], gpu_model=gpu)
    )
    assert (answer.source, answer.out_of_distribution) == (Source.MODEL, False)


@pytest.mark.parametrize(("utilisation", "step_s"), [(5, 0.1), (97, 1e4)])
def test_the_shipped_model_leaves_loads_unlike_its_own_to_the_formula(utilisation, step_s):
    """On a type of GPU that it knows: a job that is nearly idle, a step of hours."""
    strange = load(utilisation, 0.49).model_copy(update={"iteration_s": step_s})
    answer = open_interference(None).answer(
        InterferenceRequest(
            job=load(97, 0.49),
            candidates=[strange, load(99, 0.49)],
            gpu_model="Tesla V100-SXM2-16GB",
        )
    )
    far, near = answer.pairs
    assert (far.out_of_distribution, near.out_of_distribution) == (True, False)
    equal = float(time_shared_speed(97 + utilisation)) ** PREDICTED_SLOPE
    speeds = [1 / (1 + slowdown) for slowdown in (far.job_slowdown, far.partner_slowdown)]
    assert speeds == pytest.approx(taken_turns(equal, 0.1, step_s))


@pytest.mark.long
def test_a_model_without_a_domain_answers_nothing(trained):
    """Nothing says where its figures hold."""
    parts, card = serving(trained, KIND)
    details = {name: value for name, value in card.details.items() if name != "domain"}
    learned = LearnedInterference(parts, card.model_copy(update={"details": details}))
    request = InterferenceRequest(
        job=load(95, 0.2), candidates=[load(95, 0.9)], gpu_model="Tesla V100"
    )
    assert Interference(LearnedInterference(parts, card)).answer(request).source is Source.MODEL
    answer = Interference(learned).answer(request)
    assert (answer.source, answer.out_of_distribution) == (Source.FORMULA, True)


def test_measured_loads_are_planned_with_at_the_estimate_on_every_type_of_gpu():
    answer = open_interference(None).answer(
        InterferenceRequest(
            job=observed(60), candidates=[observed(90), load(90)], gpu_model="NVIDIA A100"
        )
    )
    both, one = answer.pairs
    assert not both.out_of_distribution
    assert both.planned == (both.job_slowdown, both.partner_slowdown)
    assert both.job_slowdown == pytest.approx(0.52, abs=0.01)
    assert one.out_of_distribution
    assert both.job_slowdown_p95 > both.job_slowdown
    assert sum(1 / (1 + s) for s in one.planned) == pytest.approx(one.total_speed_p10)
    assert one.planned > (one.job_slowdown, one.partner_slowdown)


def test_a_load_unlike_those_trained_on_is_out_of_the_domain():
    domain = LoadDomain(
        loads=[[50.0, 0.2, 0.1, -1.0], [90.0, 0.5, 0.4, -0.5]], scale=[20.0, 0.2, 0.2, 0.5], reach=1
    )
    near, far = [55.0, 0.3, 0.1, -1.2], [50.0, 0.2, 0.1, 2.0]
    assert domain.covers(np.array([near, far])).tolist() == [True, False]


def test_what_a_type_of_gpu_has_shown_shifts_its_estimates_and_no_others():
    """On a type that shares badly, the estimate follows; one namespace cannot move the others."""
    experience = Experience()
    pricing = Interference(None, experience)
    request = InterferenceRequest(
        job=observed(80), candidates=[observed(80)], gpu_model="NVIDIA L4"
    )
    elsewhere = request.model_copy(update={"gpu_model": "NVIDIA A30"})
    before = pricing.answer(request).pairs[0].job_slowdown
    for index in range(24):
        experience.add("team-a", f"m{index}", "NVIDIA L4", 80.0, [])
    for index in range(1, 24):
        neighbour = Neighbour(kind=f"m{index - 1}", slowdown=1.4, means=Means.UTILISATION)
        experience.add("team-a", f"m{index}", "NVIDIA L4", 80.0, [neighbour])
    shown = pricing.answer(request).pairs[0].job_slowdown
    assert before == pytest.approx(0.615, abs=0.001)
    assert 1.1 < shown < 1.4
    assert pricing.answer(elsewhere).pairs[0].job_slowdown == pytest.approx(before)


def shown(speeds: list[float], utilisation: float = 80.0) -> Experience:
    """A type of GPU on which pairs of this utilisation were seen at these speeds."""
    experience = Experience()
    experience.add("team-a", "other", "NVIDIA L4", utilisation, [])
    for index, speed in enumerate(speeds):
        neighbour = Neighbour(kind="other", slowdown=1 / speed - 1, means=Means.UTILISATION)
        experience.add("team-a", f"m{index}", "NVIDIA L4", utilisation, [neighbour])
    return experience


def test_jobs_never_measured_may_share_on_an_unknown_type_of_gpu_and_more_once_it_shares_well():
    """The default policy shares a GPU where both speeds together exceed 1.1."""

    def total(experience: Experience, utilisation: float) -> float:
        request = InterferenceRequest(
            job=load(utilisation), candidates=[load(utilisation)], gpu_model="NVIDIA L4"
        )
        (pair,) = Interference(None, experience).answer(request).pairs
        assert pair.out_of_distribution
        return sum(1 / (1 + slowdown) for slowdown in pair.planned)

    nothing, well, badly = Experience(), shown([0.85] * 12 + [0.8] * 12), shown([0.45] * 24)
    assert total(nothing, 75) > 1.1
    assert total(nothing, 99) < 1.1 < total(well, 99)
    assert total(badly, 75) < 1.1


def test_the_bound_follows_how_much_the_pairs_of_a_type_differ():
    alike, unlike = shown([0.6] * 24), shown([0.3, 0.95] * 12)
    assert alike.width("NVIDIA L4", MEASURED_SPREAD) < 0.7
    assert unlike.width("NVIDIA L4", MEASURED_SPREAD) > 1.1
    assert Experience().width("NVIDIA L4", MEASURED_SPREAD) == 1.0


def of_model(name: str, step_s: float | None = None) -> Load:
    return observed(80).model_copy(update={"feature_hash": name, "iteration_s": step_s})


def run_together(experience, team, speeds, step_s=None) -> None:
    """Every two models of `speeds`: each runs at its own speed, whatever is next to it."""
    for each in speeds:
        experience.add(team, f"{each}@32", "NVIDIA L4", 80.0, [], (step_s or {}).get(each))
    for job, speed in speeds.items():
        for other in speeds:
            if other != job:
                neighbour = Neighbour(kind=f"{other}@32", slowdown=1 / speed - 1,
                                   means=Means.UTILISATION)  # fmt: skip
                experience.add(team, f"{job}@32", "NVIDIA L4", 80.0, [neighbour],
                               (step_s or {}).get(job))  # fmt: skip


def speeds_of(experience, job, partner, gpu="NVIDIA L4") -> tuple[float, float]:
    ((own, other),) = TimeSharing(experience).speeds(job, [partner], gpu)
    return own, other


def test_a_model_that_suffered_next_to_others_is_expected_to_suffer_next_to_one_it_never_met():
    experience = Experience()
    run_together(experience, "team-a", {"soft": 0.35, "b": 0.75, "c": 0.75, "d": 0.75})
    soft, stranger = of_model("soft"), of_model("stranger")
    own, other = speeds_of(experience, soft, stranger)
    b, _ = speeds_of(experience, of_model("b"), stranger)
    two = speeds_of(experience, stranger, of_model("another"))
    assert own < 0.45
    assert b > 0.6
    assert own < two[0] < b
    # Of two models that showed nothing only the type of GPU is known; a stranger itself hardly
    # notices which of them it runs next to.
    assert (
        two[0]
        == two[1]
        == pytest.approx(float(time_shared_speed(160)) * math.exp(experience.shift("NVIDIA L4")))
    )
    assert other == pytest.approx(two[0], abs=0.06)
    assert speeds_of(experience, soft, stranger, "NVIDIA A30") == speeds_of(
        experience, stranger, soft, "NVIDIA A30"
    )


def test_what_turns_explain_is_no_effect_of_a_model():
    """A job with a long step gets more of the time: counted once, not twice."""
    step_s = {"long": 1.0, "b": 0.1, "c": 0.1}
    equal = float(time_shared_speed(160))
    experience = Experience()
    for name, step in step_s.items():
        experience.add("team-a", f"{name}@32", "NVIDIA L4", 80.0, [], step)
    for job, other in (("long", "b"), ("b", "long"), ("long", "c"), ("c", "long")):
        speed = float(taken_turns([equal], [step_s[job]], [step_s[other]])[0, 0])
        neighbour = Neighbour(kind=f"{other}@32", slowdown=1 / speed - 1, means=Means.UTILISATION)
        experience.add("team-a", f"{job}@32", "NVIDIA L4", 80.0, [neighbour], step_s[job])
    assert experience.effect("NVIDIA L4", "long").own == pytest.approx(0.0, abs=0.06)


def test_the_effects_of_a_model_are_those_of_most_namespaces_and_bounded():
    experience = Experience()
    for team in ("a", "b", "c"):
        run_together(experience, team, {"m": 0.6, "n": 0.6, "o": 0.6})
    honest = experience.effect("NVIDIA L4", "m")
    run_together(experience, "evil", {"m": 0.001, "x": 0.9, "y": 0.9})
    assert experience.effect("NVIDIA L4", "m") == pytest.approx(honest, abs=0.02)
    alone = Experience()
    run_together(alone, "evil", {"m": 0.001, "x": 0.9, "y": 0.9})
    assert abs(alone.effect("NVIDIA L4", "m").own) <= 0.7


@pytest.mark.parametrize("means", [Means.PROGRESS, Means.UTILISATION])
def test_a_namespace_cannot_poison_what_a_type_of_gpu_is_believed_to_do(means):
    experience = Experience()
    for team in ("a", "b", "c"):
        for index in range(20):
            experience.add(team, f"{team}{index}", "NVIDIA L4", 80.0, [])
            neighbour = Neighbour(kind=f"{team}0", slowdown=0.65, means=Means.UTILISATION)
            experience.add(team, f"{team}{index}", "NVIDIA L4", 80.0, [neighbour])
    honest = experience.shift("NVIDIA L4")
    for index in range(500):
        experience.add("evil", f"e{index}", "NVIDIA L4", 80.0, [])
        neighbour = Neighbour(kind="a0", slowdown=999.0, means=means)
        experience.add("evil", f"e{index}", "NVIDIA L4", 80.0, [neighbour])
    assert experience.shift("NVIDIA L4") == pytest.approx(honest, abs=0.01)


def test_a_namespace_cannot_change_how_busy_the_models_of_others_are_alone(monkeypatch):
    """Neither by runs of the same model nor by many kinds of its own."""
    monkeypatch.setattr("predictor.interference.experience._KINDS", 100)

    def shift_after(evil: int) -> float:
        experience = Experience()
        for team in ("a", "b", "c"):
            experience.add(team, "public@32", "NVIDIA L4", 80.0, [])
        for index in range(evil):
            experience.add("evil", "public@32", "NVIDIA L4", 1.0, [])
            experience.add("evil", f"e{index}", "NVIDIA L4", 1.0, [])
        for team in ("a", "b", "c"):
            neighbour = Neighbour(kind="public@32", slowdown=0.65, means=Means.UTILISATION)
            experience.add(team, f"{team}@1", "NVIDIA L4", 80.0, [neighbour])
        return experience.shift("NVIDIA L4")

    assert shift_after(0) != 0.0
    assert shift_after(500) == pytest.approx(shift_after(0))


def test_features_of_a_pair_have_their_columns():
    own, other = (load_features([each]) for each in (load(60), load(30, 0.1, 0.5)))
    (features,) = pair_features(own, other, None)
    row = dict(zip(PAIR_FEATURES, features, strict=True))
    assert (row["job_utilisation"], row["partner_bandwidth"]) == (60, 0.5)
    assert row["total_utilisation"] == 90
    assert row["total_compute"] == pytest.approx(0.4)
    assert row["log_step_ratio"] == 0


def test_without_a_trained_model_time_sharing_answers():
    answer = Interference().answer(
        InterferenceRequest(job=load(60), candidates=[load(50), load(90)])
    )
    assert answer.source is Source.FORMULA
    assert answer.out_of_distribution
    assert answer.pairs[0].job_slowdown < answer.pairs[1].job_slowdown


@pytest.mark.slow
def test_a_trained_model_answers_where_both_loads_came_from_graphs(trained):
    pricing = open_interference(trained)
    light, heavy, unknown = load(95, 0.2), load(95, 0.9), load(95, None)
    answer = pricing.answer(
        InterferenceRequest(job=light, candidates=[light, heavy], gpu_model="Tesla V100")
    )
    assert answer.source is Source.MODEL
    assert not answer.out_of_distribution
    elsewhere = InterferenceRequest(job=light, candidates=[heavy], gpu_model="NVIDIA A100")
    assert pricing.answer(elsewhere).out_of_distribution
    assert answer.pairs[0].job_slowdown < 0.1 < answer.pairs[1].job_slowdown
    both = pricing.answer(
        InterferenceRequest(job=light, candidates=[heavy, unknown], gpu_model="Tesla V100")
    )
    assert both.source is Source.FORMULA
    assert [pair.out_of_distribution for pair in both.pairs] == [False, True]
    assert pricing.answer(InterferenceRequest(job=light, candidates=[])).pairs == []


@pytest.mark.slow
def test_the_job_and_its_partner_are_not_confused(trained):
    pricing = open_interference(trained)
    light, heavy = load(95, 0.2), load(95, 0.9)
    one, other = (
        pricing.answer(
            InterferenceRequest(job=job, candidates=[neighbour], gpu_model="Tesla V100")
        ).pairs[0]
        for job, neighbour in ((light, heavy), (heavy, light))
    )
    assert one.job_slowdown == pytest.approx(other.partner_slowdown)
    assert one.partner_slowdown == pytest.approx(other.job_slowdown)


@pytest.mark.slow
def test_over_http_with_its_metric(trained):
    app = create_app(PredictorConfig(artifacts=trained), ClusterProfileStore(MemoryCluster()))
    body = InterferenceRequest(
        job=load(95), candidates=[load(95)] * 64, gpu_model="Tesla V100"
    ).wire()
    with TestClient(app) as client:
        answer = InterferenceAnswer.model_validate(
            client.post("/v1/interference", json=body).json()
        )
        assert len(answer.pairs) == 64
        counted = 'tandem_predictor_pairs_priced_total{source="model"} 64.0'
        assert counted in client.get("/metrics").text


# --- files ------------------------------------------------------------------------------------


CARD = {"features": [], "trained_on": {}, "errors": {}, "chosen": "x"}


def test_versions_follow_and_roll_back(tmp_path):
    artifacts = Artifacts(tmp_path / "new")
    assert artifacts.load(KIND) is None
    versions = [
        artifacts.publish(KIND, {f"{PART}.ubj": m}, CARD).version for m in (b"one", b"two", b"two")
    ]
    assert artifacts.load(KIND)[0] == {f"{PART}.ubj": b"two"}
    assert artifacts.rollback(KIND) == versions[0]
    assert artifacts.load(KIND)[0] == {f"{PART}.ubj": b"one"}
    with pytest.raises(ArtifactError, match="no earlier"):
        artifacts.rollback(KIND)


@pytest.mark.parametrize("damage", ["truncate", "remove", "card", "pointer"])
def test_a_damaged_model_is_never_served(tmp_path, damage):
    artifacts = Artifacts(tmp_path)
    version = artifacts.publish(KIND, {f"{PART}.ubj": b"model"}, CARD).version
    model = tmp_path / f"{KIND}-{version}.{PART}.ubj"
    match damage:
        case "truncate":
            model.write_bytes(b"mod")
        case "remove":
            model.unlink()
        case "card":
            (tmp_path / f"{KIND}-{version}.json").write_text("{")
        case _:
            (tmp_path / f"{KIND}-current.json").write_text("{}")
    with pytest.raises(ArtifactError, match="missing or damaged"):
        artifacts.load(KIND)


@pytest.mark.parametrize("step", range(3))
def test_a_kill_while_storing_leaves_the_old_model(tmp_path, monkeypatch, step):
    artifacts = Artifacts(tmp_path)
    artifacts.publish(KIND, {f"{PART}.ubj": b"old"}, CARD)
    replace, left = Path.replace, [step]

    class Killed(BaseException):
        pass

    def until(self, target):
        if left[0] == 0:
            raise Killed
        left[0] -= 1
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", until)
    with pytest.raises(Killed):
        artifacts.publish(KIND, {f"{PART}.ubj": b"new"}, CARD)
    assert artifacts.load(KIND)[0] == {f"{PART}.ubj": b"old"}
    assert not list(tmp_path.glob(".*"))


def test_a_model_of_other_features_is_refused(tmp_path):
    Artifacts(tmp_path).publish(KIND, {f"{PART}.ubj": b""}, CARD)
    with pytest.raises(ArtifactError, match="other features"):
        open_interference(tmp_path)


# --- training ---------------------------------------------------------------------------------


def test_splits_hold_out_what_they_say():
    pairs = table(synthetic_pairs())
    for train_rows, test_rows in unseen_models(pairs):
        seen = {*pairs.job[train_rows], *pairs.partner[train_rows]}
        assert len(seen) == 5
        sides = zip(pairs.job[test_rows], pairs.partner[test_rows], strict=True)
        assert all(set(side) - seen for side in sides)
    for train_rows, test_rows in unseen_pairs(pairs):
        assert not set(pairs.pair[train_rows]) & set(pairs.pair[test_rows])
    tested = np.concatenate([test for _, test in random_folds(pairs)])
    assert sorted(tested) == list(range(len(pairs.speed)))
    ((train_rows, test_rows),) = across_gpus(pairs, "Tesla V100-SXM2-16GB")
    assert set(pairs.gpu[train_rows]) == {"Tesla V100-SXM2-16GB"}
    assert set(pairs.gpu[test_rows]) == {"Tesla P100-PCIE-16GB"}


def test_the_fitted_quadratic_finds_a_quadratic():
    x = np.linspace(20, 200, 50)
    features = np.zeros((50, len(PAIR_FEATURES)))
    features[:, PAIR_FEATURES.index("total_utilisation")] = x
    names = np.array([f"m{i % 5}" for i in range(50)])
    speed = 1 - 0.1 * x / 100 - 0.05 * (x / 100) ** 2
    pairs = Pairs(features, speed, names, names, names, names)
    assert mean_absolute_error(selection._Quadratic, pairs, random_folds(pairs)) < 1e-9
    assert mean_absolute_error(selection._Mean, pairs, random_folds(pairs)) > 0.02


def test_the_choice_falls_on_unseen_models_and_ties_on_the_quadratic():
    assert choose({"forest": 0.066, "xgboost": 0.07, "quadratic": 0.07}) == "forest"
    assert choose({"forest": 0.07, "quadratic": 0.07}) == "quadratic"


@pytest.mark.slow
def test_what_is_no_better_than_the_quadratic_is_not_published(tmp_path, few_candidates):
    rng = np.random.default_rng(1)
    noise = [
        pair.model_copy(
            update={"first": pair.first.model_copy(update={"speed": s}),
                    "second": pair.second.model_copy(update={"speed": t})}
        )
        for pair in synthetic_pairs()
        for s, t in [rng.uniform(0.3, 1, 2)]
    ]  # fmt: skip
    with pytest.raises(TandemError, match="not published"):
        train(noise, Artifacts(tmp_path))
    assert Artifacts(tmp_path).load(KIND) is None


def test_too_little_data_is_refused(tmp_path):
    with pytest.raises(TandemError, match="too few"):
        train(synthetic_pairs()[:5], Artifacts(tmp_path))


@pytest.mark.slow
def test_train_and_rollback_on_the_command_line(tmp_path, few_candidates):
    file = tmp_path / "pairs.jsonl"
    file.write_text("\n".join(json.dumps(pair.wire()) for pair in synthetic_pairs()) + "\n\n")
    out = tmp_path / "artifacts"
    run = CliRunner().invoke(
        build_app(), ["train", "interference", str(file), "--out", str(out), "--json"]
    )
    assert run.exit_code == 0, run.output
    card = json.loads(run.stdout)
    assert card["trained_on"]["pairs"] == 72
    assert card["errors"]["xgboost"]["unseen_pair"] < card["errors"]["quadratic"]["unseen_pair"]
    assert Artifacts(out).load(KIND)[1].version == card["version"]
    again = CliRunner().invoke(build_app(), ["train", "rollback", "--out", str(out)])
    assert isinstance(again.exception, ArtifactError)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2: the line"),
        ('{"gpuModel": "V100"}', "line 2: first"),
        ("no shares", "lacks iterationS"),
    ],
)
def test_bad_lines_are_named(tmp_path, line, words):
    pair = synthetic_pairs()[0]
    bare = pair.first.model_copy(update={"load": load(50, None)})
    without = json.dumps(pair.model_copy(update={"first": bare}).wire())
    file = tmp_path / "pairs.jsonl"
    good = json.dumps(pair.wire())
    file.write_text(good + "\n" + (without if line == "no shares" else line))
    with pytest.raises(UsageError, match=words):
        read_pairs(file)


@pytest.mark.slow
def test_on_measured_pairs_the_published_learner_beats_the_quadratic(monkeypatch):
    matrix = measured_matrix()
    from studies.predictions.interference import measured_pairs

    pairs = table(measured_pairs(matrix, measured_solo=False))
    kept = {name: candidates()[name] for name in ("quadratic", "xgboost")}
    monkeypatch.setattr(training, "candidates", lambda: kept)
    errors = training.compare(pairs)
    assert errors["xgboost"]["unseen_pair"] < 0.5 * errors["quadratic"]["unseen_pair"]
    assert errors["xgboost"]["unseen_model"] < errors["quadratic"]["unseen_model"]


# --- what ships -------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_shipped_model_is_sound_small_and_says_what_it_knows():
    parts, card = serving(None, KIND)
    assert sum(map(len, parts.values())) < 2 << 20
    assert card.details["gpus"] == ["P100", "V100"]
    for split in ("unseen_pair", "unseen_model"):
        assert card.errors["xgboost"][split] < card.errors["quadratic"][split]
    about = (SHIPPED / "README.md").read_text()
    assert "Gavel" in about
    assert card.details["domain"]["loads"]
    known = load(97, 0.49)
    request = InterferenceRequest(job=known, candidates=[known], gpu_model="Tesla V100")
    answer = open_interference(None).answer(request)
    assert answer.source is Source.MODEL
    assert answer.model_version == f"interference/{card.version}"
    assert not answer.out_of_distribution


@pytest.mark.slow
def test_what_serves_is_the_json_that_xgboost_makes_of_the_model():
    parts, card = serving(None, KIND)
    assert card.parts.keys() == parts.keys() == {f"{PART}.ubj", f"{PART}.json"}
    old = {f"{PART}.ubj": parts[f"{PART}.ubj"]}
    assert in_json(old) == in_json(parts) == {PART: parts[f"{PART}.json"]}


@pytest.mark.slow
def test_an_artifact_of_before_the_json_still_serves(tmp_path):
    parts, card = serving(None, KIND)
    Artifacts(tmp_path).publish(
        KIND, {f"{PART}.ubj": parts[f"{PART}.ubj"]}, card.model_dump(exclude={"version", "parts"})
    )
    file = tmp_path / f"{KIND}-{card.version}.json"  # the version is the UBJSON's
    written = json.loads(file.read_text())
    written["parts"] = {PART: written["parts"].pop(f"{PART}.ubj")}
    file.write_text(json.dumps(written))
    request = InterferenceRequest(job=load(95), candidates=[load(95)], gpu_model="Tesla V100")
    assert open_interference(tmp_path).answer(request) == open_interference(None).answer(request)


def test_the_service_starts_without_xgboost():
    program = (
        "import sys\n"
        "from predictor.interference.model import open_interference\n"
        "from predictor.load.model import open_load\n"
        "import predictor.service.app\n"
        "assert open_interference(None)._learned is not None\n"
        "open_load(None)\n"
        "sys.exit('xgboost' in sys.modules or 'scipy' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.slow
def test_a_directory_of_ones_own_goes_before_what_ships(trained):
    assert serving(trained, KIND)[1].version != serving(None, KIND)[1].version
    # A directory without a model of a kind leaves it to the one that ships.
    assert serving(trained, "load") == serving(None, "load")
