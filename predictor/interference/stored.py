"""Trained learners as data: `tandem train` publishes them, and no service needs scikit-learn.

XGBoost's model is stored as it writes it (`trees`). Of the learners of [OJPP]'s AIP, linear
regression, SVR, a decision tree and k nearest neighbours, it is their figures in JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from predictor.trees import Trees, in_json, stored

Floats = NDArray[np.float64]

#: The candidates that can be published.
STORABLE = ("xgboost", "linear", "svr", "tree", "k-nn")


class Model(Protocol):
    """Predicts a figure for each row."""

    def predict(self, rows: Any) -> Floats:  # noqa: ANN401 - float32 or float64
        """Return a figure for each of `rows`, (rows, features) -> (rows,)."""
        ...


def parts_of(name: str, learner: Any) -> dict[str, bytes]:  # noqa: ANN401 - no types
    """Return a trained learner as parts of an artifact; it is one of `STORABLE`."""
    if hasattr(learner, "get_booster"):
        return stored(name, learner.get_booster())
    return {f"{name}.json": json.dumps(_figures(learner)).encode()}


def opened(parts: Mapping[str, bytes], name: str) -> Model:
    """Return the model of that name among the parts of an artifact."""
    text = parts.get(f"{name}.json")
    figures = json.loads(text) if text is not None else {}
    form = figures.pop("form", None)
    if form is None:
        return Trees(in_json(parts)[name])
    return _FORMS[form](**{key: np.array(value) for key, value in figures.items()})


def _figures(learner: Any) -> dict[str, object]:  # noqa: ANN401 - scikit-learn has no types
    """Return what a learner has learned, by the names of the constructors below."""
    if hasattr(learner, "tree_"):
        tree = learner.tree_
        return {
            "form": "tree",
            "left": tree.children_left.tolist(),
            "right": tree.children_right.tolist(),
            "feature": tree.feature.tolist(),
            "threshold": tree.threshold.tolist(),
            "value": tree.value.ravel().tolist(),
        }
    scaler, last = (step for _, step in learner.steps)
    scale = {"mean": scaler.mean_.tolist(), "scale": scaler.scale_.tolist()}
    if hasattr(last, "support_vectors_"):
        return scale | {
            "form": "svr",
            "vectors": last.support_vectors_.tolist(),
            "weights": last.dual_coef_.ravel().tolist(),
            "gamma": float(last._gamma),
            "intercept": float(last.intercept_[0]),
        }
    if hasattr(last, "n_neighbors"):
        return scale | {
            "form": "k-nn",
            "points": last._fit_X.tolist(),
            "figures": last._y.tolist(),
            "neighbours": int(last.n_neighbors),
        }
    return scale | {
        "form": "linear",
        "weights": last.coef_.tolist(),
        "intercept": float(last.intercept_),
    }


class _Scaled:
    def __init__(self, mean: Floats, scale: Floats) -> None:
        self._mean, self._scale = mean, scale

    def _rows(self, rows: Floats) -> Floats:
        scaled: Floats = (np.asarray(rows, dtype=np.float64) - self._mean) / self._scale
        return scaled


class _Linear(_Scaled):
    def __init__(self, weights: Floats, intercept: Floats, **scale: Floats) -> None:
        super().__init__(**scale)
        self._weights, self._intercept = weights, intercept

    def predict(self, rows: Floats) -> Floats:
        figure: Floats = self._rows(rows) @ self._weights + self._intercept
        return figure


class _Svr(_Scaled):
    """Sums of Gaussians around support vectors."""

    def __init__(
        self, vectors: Floats, weights: Floats, gamma: Floats, intercept: Floats, **scale: Floats
    ) -> None:
        super().__init__(**scale)
        self._vectors, self._weights = vectors, weights
        self._gamma, self._intercept = gamma, intercept

    def predict(self, rows: Floats) -> Floats:
        squared = _squared_distances(self._rows(rows), self._vectors)
        figure: Floats = np.exp(-self._gamma * squared) @ self._weights + self._intercept
        return figure


class _Nearest(_Scaled):
    """The mean of the nearest points, weighted by the inverse of their distance."""

    def __init__(
        self, points: Floats, figures: Floats, neighbours: Floats, **scale: Floats
    ) -> None:
        super().__init__(**scale)
        self._points, self._figures, self._count = points, figures, int(neighbours)

    def predict(self, rows: Floats) -> Floats:
        distance = np.sqrt(_squared_distances(self._rows(rows), self._points))
        near = np.argsort(distance, axis=1, kind="stable")[:, : self._count]
        near_distance = np.take_along_axis(distance, near, axis=1)
        same = near_distance < 1e-9  # a point itself counts alone
        weight = np.where(
            same.any(axis=1, keepdims=True), same, 1 / np.maximum(near_distance, 1e-9)
        )
        figure: Floats = (weight * self._figures[near]).sum(axis=1) / weight.sum(axis=1)
        return figure


class _Tree:
    """A tree whose leaves have no children (-1)."""

    def __init__(
        self, left: Floats, right: Floats, feature: Floats, threshold: Floats, value: Floats
    ) -> None:
        self._left, self._right, self._feature = left, right, feature
        self._threshold, self._value = threshold, value

    def predict(self, rows: Floats) -> Floats:
        at = np.zeros(len(rows), dtype=np.intp)
        rows = np.asarray(rows, dtype=np.float32)  # as scikit-learn compares them
        every = np.arange(len(rows))
        while (inner := self._left[at] >= 0).any():
            goes_left = rows[every, np.maximum(self._feature[at], 0)] <= self._threshold[at]
            at = np.where(inner, np.where(goes_left, self._left[at], self._right[at]), at)
        figure: Floats = self._value[at]
        return figure


def _squared_distances(rows: Floats, points: Floats) -> Floats:
    """Return (rows, points)."""
    squares: Floats = ((rows[:, None, :] - points[None, :, :]) ** 2).sum(axis=2)
    return squares


_FORMS: dict[str, type[Model]] = {
    "linear": _Linear,
    "svr": _Svr,
    "tree": _Tree,
    "k-nn": _Nearest,
}
