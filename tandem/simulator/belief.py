"""Predictions of slowdown and memory that policies decide on, with their error."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tandem.policy.units import Bools, Floats, Ints

_RIDGE = 0.3


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted slowdowns, and how far off they are."""

    slowdown: Floats  # (models, models) of row next to column
    # Of the time next to the neighbour, over pairs not trained on; None where none was measured.
    mean_relative_error: float | None


def cross_fitted(slowdown: Floats, families: Ints, *, folds: int = 5, seed: int = 0) -> Prediction:
    """Predict each pair by a model trained without it.

    log(1 + slowdown) of a next to b = effect of a + effect of b + effect of their families, by
    ridge regression; pairs (both directions together) are dealt into `folds`, and each is predicted
    from the others. Pairs out of memory train nothing, and are predicted as any other: whether two
    fit is for the memory constraints to say.

    Shapes: slowdown (models, models), inf where out of memory; families (models,).
    """
    count = len(slowdown)
    first, second = np.triu_indices(count)
    fold = np.random.default_rng(seed).permutation(len(first)) % folds
    fold_of = np.zeros((count, count), dtype=np.int64)
    fold_of[first, second] = fold_of[second, first] = fold
    measured: Bools = np.isfinite(slowdown)
    features = _features(families)
    target = np.log1p(np.where(measured, slowdown, 0.0)).ravel()
    predicted = np.zeros(count * count)
    for part in range(folds):
        held_out = (fold_of == part).ravel()
        train = measured.ravel() & ~held_out
        x, y = features[train], target[train]
        weights = np.linalg.solve(x.T @ x + _RIDGE * np.eye(x.shape[1]), x.T @ y)
        predicted[held_out] = features[held_out] @ weights
    error = np.abs(np.exp(predicted - target) - 1)[measured.ravel()]
    out = np.maximum(np.expm1(predicted), 0.0).reshape(count, count)
    return Prediction(out, float(error.mean()) if len(error) else None)


def noisy(slowdown: Floats, relative_error: float, rng: np.random.Generator) -> Prediction:
    """Return the truth with a log-normal error of the time next to the neighbour.

    Shapes: (models, models); pairs out of memory get slowdown 1.
    """
    known = np.where(np.isfinite(slowdown), slowdown, 1.0)
    sigma = relative_error * np.sqrt(np.pi / 2)  # the mean absolute of a normal is sigma sqrt(2/pi)
    believed = (1 + known) * np.exp(rng.normal(0, sigma, size=known.shape)) - 1
    return Prediction(np.maximum(believed, 0.0), relative_error)


def _features(families: Ints) -> Floats:
    """Return one-hot models on both sides, their families together, and 1: (pairs, features)."""
    count = len(families)
    kinds = int(families.max()) + 1
    eye = np.eye(count)
    own = np.repeat(eye, count, axis=0)
    neighbour = np.tile(eye, (count, 1))
    both = np.eye(kinds * kinds)[(families[:, None] * kinds + families[None, :]).ravel()]
    return np.concatenate((own, neighbour, both, np.ones((count * count, 1))), axis=1)
