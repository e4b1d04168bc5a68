"""A few rows through boosted trees, in numpy: as fast as XGBoost's own call, without its import.

All trees are walked at once, one level a step: a handful of small array operations for any rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float32]


def stored(name: str, booster: Any) -> dict[str, bytes]:  # noqa: ANN401 - XGBoost has no types
    """Return a model as parts of an artifact: UBJSON, and the same in JSON, which serves."""
    return {f"{name}.{form}": bytes(booster.save_raw(form)) for form in ("ubj", "json")}


def in_json(parts: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the models among the parts of an artifact, by name.

    An artifact may be older than its JSON: then XGBoost makes it here, which takes seconds.
    """
    names = dict.fromkeys(part.rpartition(".")[0] for part in parts)
    return {name: parts.get(f"{name}.json") or _converted(parts[f"{name}.ubj"]) for name in names}


def _converted(ubjson: bytes) -> bytes:
    import xgboost

    booster = xgboost.Booster()
    booster.load_model(bytearray(ubjson))
    return bytes(booster.save_raw("json"))


class Trees:
    """The trees of a model for regression, as XGBoost writes it in JSON.

    Each is filled up to the depth of the deepest, so that the nodes of a level are an array and
    the children of its node n are 2n and 2n + 1 of the next: `_levels` has the feature, the value
    and where a missing figure goes, of all trees' nodes, and `_leaves` what they end in.
    """

    def __init__(self, model: bytes) -> None:
        learner = json.loads(model)["learner"]
        trees = learner["gradient_booster"]["model"]["trees"]
        sizes = [len(tree["left_children"]) for tree in trees]
        at = np.cumsum([0, *sizes], dtype=np.intp)[:-1]  # the roots, all nodes side by side

        def column(name: str, kind: type) -> NDArray[Any]:
            return np.concatenate([np.array(tree[name], dtype=kind) for tree in trees])

        left, right = (column(f"{side}_children", np.intp) for side in ("left", "right"))
        leaf, first = left < 0, np.repeat(at, sizes)
        own = np.arange(len(leaf))
        # A leaf leads to itself, whichever way: so short trees are filled up.
        children = np.where(leaf, own, np.stack([left, right]) + first).T
        feature = np.where(leaf, 0, column("split_indices", np.intp))
        value = column("split_conditions", np.float32)
        missing_right = ~column("default_left", np.bool_)
        self._levels = []
        while not leaf[at].all():
            self._levels.append((feature[at], value[at], missing_right[at]))
            at = children[at].ravel()
        self._leaves = value[at]
        self._trees = len(trees)
        self._base = float(learner["learner_model_param"]["base_score"].strip("[]"))

    def predict(self, rows: Rows) -> NDArray[np.float64]:
        """Return a figure for each row, (rows,), of rows (rows, features); NaN is missing."""
        flat = rows.ravel()
        some_missing = bool(np.isnan(flat).any())
        # One entry for each tree and row. What makes it fast: `take` on flat arrays, without a look
        # at bounds ("wrap"; no index is out of them), and tree by tree, so that nodes are near.
        first = np.tile(np.arange(len(rows)) * rows.shape[1], self._trees)
        at = np.repeat(np.arange(self._trees), len(rows))
        for feature, value, missing_right in self._levels:
            figure = flat.take(feature.take(at, mode="wrap") + first, mode="wrap")
            right = figure >= value.take(at, mode="wrap")
            if some_missing:
                right |= np.isnan(figure) & missing_right.take(at, mode="wrap")
            at *= 2
            at += right
        leaves = self._leaves.take(at).reshape(self._trees, len(rows))
        return np.asarray(leaves.sum(axis=0, dtype=np.float64) + self._base)
