"""Selects the learner that predicts interference best: candidates, honest splits, and a choice.

[OJPP] chooses by mean absolute error among linear regression, SVR, a decision tree and k nearest
neighbours; forest and XGBoost are added, and Horus' quadratic fitted to the same pairs is the bar.
The choice is made on models that training has not seen: random folds flatter every learner.

Needs the `train` extra (scikit-learn).
"""

from __future__ import annotations

# Paper: [Horus] 4.1, Table 4; [OJPP] 4.5 | regressors, chosen by their error (AIP) | test:
#   tests/predictor/test_predictor_aip.py
#   test_the_kind_with_the_least_error_on_unseen_models_is_published_and_serves | live: yes |
#   deviation: published is only what beats the quadratic; a forest is compared and not stored
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from predictor.interference.model import PAIR_FEATURES, Floats

Ints = NDArray[np.intp]
QUADRATIC = "quadratic"
_FOLDS = 5
_SEED = 0


class Learner(Protocol):
    """A regressor as scikit-learn defines it."""

    def fit(self, X: Floats, y: Floats) -> object:  # noqa: N803 - scikit-learn's names
        """Learn from rows."""
        ...

    def predict(self, X: Floats) -> Floats:  # noqa: N803 - scikit-learn's names
        """Return one figure a row."""
        ...


@dataclass(frozen=True)
class Pairs:
    """Measured pairs, one row for each job with each partner.

    `features` (rows, PAIR_FEATURES); `speed` (rows,) = t_solo / t_colocated, in (0, 1];
    `job`, `partner`, `gpu` (rows,) names of architecture families and of the GPU's type;
    `pair` (rows,) names the unordered pair of configurations.
    """

    features: Floats
    speed: Floats
    job: NDArray[np.str_]
    partner: NDArray[np.str_]
    pair: NDArray[np.str_]
    gpu: NDArray[np.str_]

    def __post_init__(self) -> None:
        rows = len(self.speed)
        assert self.features.shape == (rows, len(PAIR_FEATURES))
        assert all(len(c) == rows for c in (self.job, self.partner, self.pair, self.gpu))


class _Mean:
    def fit(self, X: Floats, y: Floats) -> None:  # noqa: N803 - scikit-learn's names
        del X
        self._mean = float(y.mean())

    def predict(self, X: Floats) -> Floats:  # noqa: N803 - scikit-learn's names
        return np.full(len(X), self._mean)


class _Quadratic:
    """[Horus] Eq. (9)-(10), a quadratic in total utilisation, fitted to the pairs."""

    _column = PAIR_FEATURES.index("total_utilisation")

    def fit(self, X: Floats, y: Floats) -> None:  # noqa: N803 - scikit-learn's names
        self._coefficients = np.linalg.lstsq(self._terms(X), y, rcond=None)[0]

    def predict(self, X: Floats) -> Floats:  # noqa: N803 - scikit-learn's names
        return self._terms(X) @ self._coefficients

    def _terms(self, rows: Floats) -> Floats:
        x = rows[:, self._column] / 100.0
        return np.column_stack([np.ones_like(x), x, x * x])


def candidates() -> dict[str, Callable[[], Learner]]:
    """Return every candidate by name, the quadratic and the plain mean included."""
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.linear_model import Ridge
    from sklearn.neighbors import KNeighborsRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVR
    from sklearn.tree import DecisionTreeRegressor

    def scaled(learner: Any) -> Learner:  # noqa: ANN401 - scikit-learn has no types
        pipeline: Learner = make_pipeline(StandardScaler(), learner)
        return pipeline

    return {
        "mean": _Mean,
        QUADRATIC: _Quadratic,
        "linear": lambda: scaled(Ridge(alpha=1.0)),
        "svr": lambda: scaled(SVR(C=1.0, epsilon=0.02)),
        "tree": lambda: DecisionTreeRegressor(min_samples_leaf=8, random_state=_SEED),
        "k-nn": lambda: scaled(KNeighborsRegressor(n_neighbors=7, weights="distance")),
        "forest": lambda: RandomForestRegressor(
            200, min_samples_leaf=3, max_features=0.5, random_state=_SEED, n_jobs=1
        ),
        "xgboost": _xgboost,
    }


def _xgboost() -> Learner:
    from xgboost import XGBRegressor

    learner: Learner = XGBRegressor(
        n_estimators=150, max_depth=4, learning_rate=0.08, subsample=0.8, colsample_bytree=0.7,
        min_child_weight=4, reg_lambda=4.0, random_state=_SEED, n_jobs=1,
    )  # fmt: skip
    return learner


def random_folds(pairs: Pairs) -> Iterator[tuple[Ints, Ints]]:
    """Split rows at random: what flatters."""
    order = np.random.default_rng(_SEED).permutation(len(pairs.speed))
    yield from _folds(order % _FOLDS)


def unseen_pairs(pairs: Pairs) -> Iterator[tuple[Ints, Ints]]:
    """Hold out pairs of configurations, in both directions and on every type of GPU."""
    names, group = np.unique(pairs.pair, return_inverse=True)
    fold_of = np.random.default_rng(_SEED).permutation(len(names)) % _FOLDS
    yield from _folds(fold_of[group])


def unseen_models(pairs: Pairs) -> Iterator[tuple[Ints, Ints]]:
    """Hold out each family in turn: no row of the training set has it on either side."""
    for family in np.unique(pairs.job):
        involved = (pairs.job == family) | (pairs.partner == family)
        yield np.flatnonzero(~involved), np.flatnonzero(involved)


def across_gpus(pairs: Pairs, trained_on: str) -> Iterator[tuple[Ints, Ints]]:
    """Train on one type of GPU, test on the others."""
    seen = pairs.gpu == trained_on
    yield np.flatnonzero(seen), np.flatnonzero(~seen)


def mean_absolute_error(
    make: Callable[[], Learner], pairs: Pairs, splits: Iterator[tuple[Ints, Ints]]
) -> float:
    """Return the mean absolute error of speed over all held-out rows."""
    errors = []
    for train, test in splits:
        learner = make()
        learner.fit(pairs.features[train], pairs.speed[train])
        predicted = np.clip(learner.predict(pairs.features[test]), 0.0, 1.0)
        errors.append(np.abs(predicted - pairs.speed[test]))
    return float(np.concatenate(errors).mean())


def choose(unseen_model_error: dict[str, float]) -> str:
    """Return the candidate with the least error on unseen models; ties go to the quadratic."""
    return min(unseen_model_error, key=lambda name: (unseen_model_error[name], name != QUADRATIC))


def _folds(fold_of: NDArray[np.int64]) -> Iterator[tuple[Ints, Ints]]:
    for fold in range(_FOLDS):
        yield np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold)
