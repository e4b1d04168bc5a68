"""Profiles in, a trained model of loads out, or the reason why none was published.

`train_load` is what to call with rows of observations, wherever they come from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from predictor.artifacts import Artifacts, Card
from predictor.interference import Floats
from predictor.load_evaluation import (
    FORMULA,
    PUBLISHED,
    TARGETS,
    LoadTable,
    bound_offset,
    corrected,
    cross_bounds,
    held_out,
    learners,
    load_table,
    log_of,
    rmsle,
    xgboost_learner,
)
from predictor.load_features import LOAD_FEATURES, SUPPORTED
from predictor.load_model import KIND, UTILISATION
from predictor.load_report import held_out_figures, markdown, scatter
from predictor.profiles import Origin, Profile
from predictor.trees import in_json, stored
from tandem.errors import TandemError

MIN_PROFILES = 60
MIN_FAMILIES = 8
#: Held-out rows below which an older model is not compared on them.
_MIN_COMPARED = 10
_TIE = 1.02


def train_load(
    profiles: Sequence[Profile], artifacts: Artifacts, *, allow_synthetic: bool = False
) -> Card:
    """Train on all profiles and publish what beats the formula, and the model that serves.

    Each of memory, utilisation and iteration time counts by itself: a part that is no better than
    the formula on held-out families is left out. Raises TandemError when none is, when the model
    that serves is better, when there is too little data, or when the data was made up.
    """
    _check_data(profiles, allow_synthetic=allow_synthetic)
    table = load_table(profiles)
    errors: dict[str, dict[str, float]] = {}
    figures: dict[str, dict[str, Any]] = {}
    parts: dict[str, bytes] = {}
    offsets: dict[str, float] = {}
    plots = {}
    out_of_fold: dict[str, Floats] = {}
    for target in TARGETS:
        rows = table.rows(target)
        if len(rows) < MIN_PROFILES or len(set(table.family[rows])) < MIN_FAMILIES:
            continue
        measured, formula = table.measured[target][rows], table.formula[target][rows]
        errors.setdefault(FORMULA, {})[target] = rmsle(measured, formula)
        for name, make in learners().items():
            predicted = held_out(table, target, make, rows)
            errors.setdefault(name, {})[target] = rmsle(measured, predicted)
            if name == PUBLISHED:
                ours = predicted
        if errors[PUBLISHED][target] >= errors[FORMULA][target]:
            continue
        upper = table.utilisation_p95[rows] if target == UTILISATION else measured
        scores = log_of(target, upper) - log_of(target, ours)
        family = table.family[rows]
        bounds = corrected(target, ours, cross_bounds(scores, family))
        offsets[target] = bound_offset(scores, family)
        figures[target] = held_out_figures(
            measured, upper, ours, bounds, family, table.gpu[rows], rmsle
        )
        plots[target] = (measured, ours, bounds)
        learner: Any = xgboost_learner()
        learner.fit(table.columns[rows], table.residual(target)[rows])
        parts |= stored(target, learner.get_booster())
        out_of_fold[target] = np.full(len(profiles), np.nan)
        out_of_fold[target][rows] = ours
    if not parts:
        raise TandemError(
            "On families that were left out, the trained model is no better than the formula, "
            f"so it was not published: {_in_words(errors)}.",
            "Measure more configurations, of more families.",
        )
    _check_against_serving(artifacts, table, out_of_fold, errors)
    card = {
        "features": list(LOAD_FEATURES),
        "trained_on": dict(Counter(p.gpu_model for p in profiles))
        | dict(Counter(p.origin.value for p in profiles))
        | {"profiles": len(profiles), "families": len(set(table.family))},
        "errors": errors,
        "chosen": PUBLISHED,
        "details": _details(profiles, table, offsets) | {"held_out": figures},
    }
    report = {"md": markdown(card, list(out_of_fold)), "svg": scatter(plots)}
    return artifacts.publish(KIND, parts, card, report)


def _details(
    profiles: Sequence[Profile], table: LoadTable, offsets: dict[str, float]
) -> dict[str, Any]:
    supported = table.columns[:, [LOAD_FEATURES.index(name) for name in SUPPORTED]]
    gpus = {q.gpu.name for q in (p.question() for p in profiles) if q.gpu is not None}
    return {
        "offsets": offsets,
        "low": supported.min(axis=0).round(4).tolist(),
        "high": supported.max(axis=0).round(4).tolist(),
        "operators": sorted({op for p in profiles for op in p.features.op_counts}),
        "gpus": sorted(gpus),
        "families": sorted(set(table.family.tolist())),
    }


def _check_data(profiles: Sequence[Profile], *, allow_synthetic: bool) -> None:
    families = {profile.family for profile in profiles}
    if len(profiles) < MIN_PROFILES or len(families) < MIN_FAMILIES:
        raise TandemError(
            f"{len(profiles)} profiles of {len(families)} families are too few to learn from.",
            f"Measure at least {MIN_PROFILES} configurations of {MIN_FAMILIES} families.",
        )
    if not allow_synthetic and any(p.origin is Origin.SYNTHETIC for p in profiles):
        raise TandemError(
            "Some profiles are synthetic: a model of them would serve figures that nobody "
            "measured.",
            "Train on what `tandem profile collect` measured.",
        )


def _check_against_serving(
    artifacts: Artifacts,
    table: LoadTable,
    out_of_fold: dict[str, Floats],
    errors: dict[str, dict[str, float]],
) -> None:
    """Refuse to replace a model that is better.

    On families that it never saw both are judged alike. Where there are none, its own report
    stands against the new one's.
    """
    serving = artifacts.load(KIND)
    if serving is None:
        return
    import xgboost

    parts, card = serving
    models = in_json(parts)
    lacking = sorted(models.keys() - out_of_fold.keys())
    if lacking or card.features != list(LOAD_FEATURES):
        if card.features != list(LOAD_FEATURES):
            return  # made for another version of Tandem: it cannot serve
        raise TandemError(
            f"The model that serves ({card.version}) also predicts {', '.join(lacking)}, which "
            "the new one does not, so the new one was not published.",
            "Measure the missing figures too.",
        )
    unseen = ~np.isin(table.family, card.details.get("families", []))
    for target, model in models.items():
        measured, ours = table.measured[target], out_of_fold[target]
        compared = np.flatnonzero(unseen & np.isfinite(ours))
        if len(compared) >= _MIN_COMPARED:
            booster = xgboost.Booster({"nthread": 1})
            booster.load_model(bytearray(model))
            learned = booster.inplace_predict(table.columns[compared].astype(np.float32))
            old = corrected(target, table.formula[target][compared], learned)
            theirs = rmsle(measured[compared], old)
            new = rmsle(measured[compared], ours[compared])
            where = f"{len(compared)} profiles of families that it was not trained on"
        else:
            theirs, new = card.errors[PUBLISHED][target], errors[PUBLISHED][target]
            where = "the families that each was tested on"
        if new > _TIE * theirs:
            raise TandemError(
                f"The model that serves ({card.version}) predicts {target} better (RMSLE "
                f"{theirs:.3f} against {new:.3f}, on {where}), so the new one was not published.",
                "Train on its profiles and the new ones together.",
            )


def _in_words(errors: dict[str, dict[str, float]]) -> str:
    if not errors:
        return "no figure was measured often enough"
    return ", ".join(
        f"{target} {errors[PUBLISHED][target]:.3f} against {error:.3f}"
        for target, error in errors[FORMULA].items()
    )
