"""A few rows through boosted trees, in numpy: as fast as XGBoost's own call, without its import.

All trees are walked at once, one level a step: a handful of small array operations for a row.
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

    Nodes of all trees lie one after the other; `_next` holds both children of each, left and right.
    """

    def __init__(self, model: bytes) -> None:
        learner = json.loads(model)["learner"]
        trees = learner["gradient_booster"]["model"]["trees"]
        sizes = [len(tree["left_children"]) for tree in trees]
        self._roots = np.cumsum([0, *sizes], dtype=np.intp)[:-1]

        def column(name: str, kind: type) -> NDArray[Any]:
            return np.concatenate([np.array(tree[name], dtype=kind) for tree in trees])

        children = np.stack(
            [column("left_children", np.intp), column("right_children", np.intp)], axis=1
        )
        leaf = children[:, 0] < 0
        own = np.arange(len(leaf))
        # A leaf leads to itself, so that short trees wait for the deep ones.
        children = np.where(
            leaf[:, None], own[:, None], children + np.repeat(self._roots, sizes)[:, None]
        )
        self._next = children.ravel()
        self._feature = column("split_indices", np.intp)
        self._value = column("split_conditions", np.float32)
        self._missing_right = ~column("default_left", np.bool_)
        self._base = float(learner["learner_model_param"]["base_score"].strip("[]"))
        depth, at = 0, self._roots
        while not leaf[at].all():
            at, depth = np.unique(children[at]), depth + 1
        self._depth = depth

    def predict(self, rows: Rows) -> NDArray[np.float64]:
        """Return a figure for each row, (rows,), of rows (rows, features); NaN is missing."""
        flat = rows.ravel()
        some_missing = bool(np.isnan(flat).any())
        # One entry for each tree and row. What makes it fast: `take` on flat arrays, without a look
        # at bounds ("wrap"; no index is out of them), and tree by tree, so that nodes are near.
        first = np.tile(np.arange(len(rows)) * rows.shape[1], len(self._roots))
        at = np.repeat(self._roots, len(rows))
        for _ in range(self._depth):
            figure = flat.take(self._feature.take(at, mode="wrap") + first, mode="wrap")
            right = figure >= self._value.take(at, mode="wrap")
            if some_missing:
                right |= np.isnan(figure) & self._missing_right.take(at, mode="wrap")
            at = self._next.take(2 * at + right, mode="wrap")
        leaves = self._value.take(at).reshape(len(self._roots), len(rows))
        return np.asarray(leaves.sum(axis=0, dtype=np.float64) + self._base)
