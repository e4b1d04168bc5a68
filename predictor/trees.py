"""A few rows through boosted trees, in numpy: XGBoost's own call costs a millisecond each time.

All trees are walked at once, one level a step: a handful of small array operations for a row.
"""

from __future__ import annotations

import json
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float32]


class Trees:
    """The trees of a model that XGBoost stored (UBJSON), for regression."""

    def __init__(self, model: bytes) -> None:
        import xgboost  # takes seconds, and most services have no use for it

        booster = xgboost.Booster({"nthread": 1})
        booster.load_model(bytearray(model))
        learner = json.loads(booster.save_raw("json"))["learner"]
        stored = learner["gradient_booster"]["model"]["trees"]
        sizes = [len(tree["left_children"]) for tree in stored]
        self._roots = np.array([0, *accumulate(sizes)][:-1], dtype=np.intp)

        def column(name: str) -> list[float]:
            return [value for tree in stored for value in tree[name]]

        offset = np.repeat(self._roots, sizes)
        left = np.array(column("left_children"), dtype=np.intp)
        right = np.array(column("right_children"), dtype=np.intp)
        own = np.arange(len(offset))
        leaf = left < 0
        # A leaf leads to itself, so that short trees wait for the deep ones.
        self._left = np.where(leaf, own, left + offset)
        self._right = np.where(leaf, own, right + offset)
        self._feature = np.array(column("split_indices"), dtype=np.intp)
        self._value = np.array(column("split_conditions"), dtype=np.float32)
        self._default_left = np.array(column("default_left"), dtype=np.bool_)
        self._base = float(learner["learner_model_param"]["base_score"].strip("[]"))
        depth, at = 0, self._roots
        while not leaf[at].all():
            at = np.concatenate([self._left[at], self._right[at]])
            at, depth = np.unique(at), depth + 1
        self._depth = depth

    def predict(self, rows: Rows) -> NDArray[np.float64]:
        """Return a figure for each row, (rows,), of rows (rows, features)."""
        at = np.broadcast_to(self._roots, (len(rows), len(self._roots)))
        every = np.arange(len(rows))[:, None]
        for _ in range(self._depth):
            x = rows[every, self._feature[at]]
            goes_left = (x < self._value[at]) | (np.isnan(x) & self._default_left[at])
            at = np.where(goes_left, self._left[at], self._right[at])
        return np.asarray(self._value[at].sum(axis=1, dtype=np.float64) + self._base)
