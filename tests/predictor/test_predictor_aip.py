"""[OJPP] 4.2, AIP: the kind of model with the least error is published, and serves as data."""

from __future__ import annotations

import numpy as np
import pytest
from test_predictor_interference import load, synthetic_pairs

from predictor.artifacts import Artifacts
from predictor.interference.model import KIND, PART, LearnedInterference
from predictor.interference.stored import STORABLE, opened, parts_of
from predictor.training import interference as training
from predictor.training import selection
from predictor.training.interference import table, train
from predictor.training.selection import candidates
from tandem.gpu_types import find_gpu

KINDS = [kind for kind in STORABLE if kind != "xgboost"]


class Broken:
    """Predicts what no GPU shows."""

    def fit(self, X, y):  # noqa: N803 - scikit-learn's names
        pass

    def predict(self, X):  # noqa: N803 - scikit-learn's names
        return np.zeros(len(X))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_stored_learner_predicts_as_scikit_learn_does(kind: str) -> None:
    rng = np.random.default_rng(0)
    rows, figures = rng.normal(size=(150, 6)).astype(np.float32), rng.uniform(0.3, 1, 150)
    learner = candidates()[kind]()
    learner.fit(rows, figures)
    model = opened(parts_of(PART, learner), PART)
    # Points that it has learned, and others.
    asked = np.concatenate((rows, rng.normal(size=(150, 6)).astype(np.float32)))
    assert model.predict(asked) == pytest.approx(learner.predict(asked), abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_kind_with_the_least_error_on_unseen_models_is_published_and_serves(
    tmp_path, monkeypatch, kind: str
) -> None:
    """The others are broken, so that this one is the best; the quadratic is the bar."""
    every = candidates()
    kept = {name: every[name] if name == kind else Broken for name in STORABLE}
    kept["quadratic"] = selection._Mean
    monkeypatch.setattr(training, "candidates", lambda: kept)
    card = train(synthetic_pairs(), Artifacts(tmp_path))
    assert card.chosen == kind
    parts, stored_card = Artifacts(tmp_path).load(KIND)
    served = LearnedInterference(parts, stored_card)
    pairs = table(synthetic_pairs())
    learner = every[kind]()
    learner.fit(pairs.features, pairs.speed)
    gpu = find_gpu("Tesla V100-SXM2-16GB")
    speeds = served.speeds(load(60), [load(30), load(90)], gpu)
    assert speeds.shape == (2, 2)
    assert np.isfinite(speeds).all()
    known = pairs.features.astype(np.float32)  # of equal ones, k-nn takes either
    assert opened(parts, PART).predict(known) == pytest.approx(learner.predict(known), abs=0.01)


@pytest.mark.long
def test_what_is_not_storable_is_compared_and_not_published(tmp_path, monkeypatch) -> None:
    every = candidates()
    kept = {
        "quadratic": selection._Mean, "forest": every["k-nn"], "linear": every["linear"],
        "k-nn": Broken,
    }  # fmt: skip
    monkeypatch.setattr(training, "candidates", lambda: kept)
    card = train(synthetic_pairs(), Artifacts(tmp_path))
    assert card.chosen == "linear"
    assert "forest" in card.errors
