"""Profiles in, a trained model of loads out, or the reason why none was published.

`train_load` is what to call with rows of observations, wherever they come from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictor.artifacts import Artifacts, Card
from predictor.interference.model import Floats
from predictor.load.features import LOAD_FEATURES, SUPPORTED
from predictor.load.model import ELSEWHERE, KIND, UTILISATION
from predictor.load.sources import FORMULA_VERSION
from predictor.load.spread import conformal
from predictor.training.load_evaluation import (
    FORMULA,
    PUBLISHED,
    SEED,
    TARGETS,
    TIE,
    LoadTable,
    bound_offset,
    bounded,
    corrected,
    cross_bounds,
    fit,
    held_out,
    held_out_corrections,
    learners,
    load_table,
    log_of,
    published_learner,
    rmsle,
    types_of,
    weigh,
)
from predictor.training.load_report import held_out_figures, markdown, scatter
from predictor.training.profiles import Origin, Profile
from predictor.trees import in_json, stored
from tandem.errors import TandemError

MIN_PROFILES = 60
MIN_FAMILIES = 8
#: Profiles and families of a type of GPU below which it is like any other type.
MIN_OF_TYPE = 10
MIN_FAMILIES_OF_TYPE = 4
#: Held-out rows below which an older model is not compared on them.
_MIN_COMPARED = 10


def train_load(
    profiles: Sequence[Profile], artifacts: Artifacts, *, allow_synthetic: bool = False,
    not_on: Collection[str] = (), about: Mapping[str, Any] | None = None,
) -> Card:  # fmt: skip
    """Train on all profiles and publish what beats the formula, and the model that serves.

    Each of memory, utilisation and iteration time counts by itself. How much of it corrects the
    formula on a type of GPU `weigh` says, by held-out families and types; on `not_on` it is
    nothing. A part that corrects nothing on any type is left out. Raises TandemError when all are,
    when the model that serves is better, when there is too little data, or when the data was made
    up. `about` is written to the card.
    """
    _check_data(profiles, allow_synthetic=allow_synthetic)
    table = load_table(profiles)
    errors: dict[str, dict[str, float]] = {}
    trained: dict[str, _Part] = {}
    for target in TARGETS:
        rows = table.rows(target)
        if len(rows) < MIN_PROFILES or len(set(table.family[rows])) < MIN_FAMILIES:
            continue
        measured, formula = table.measured[target][rows], table.formula[target][rows]
        errors.setdefault(FORMULA, {})[target] = rmsle(measured, formula)
        for name, make in learners(target).items():
            if name != PUBLISHED:
                each = held_out(table, target, make, rows)
                errors.setdefault(name, {})[target] = rmsle(measured, each)
        make_ours = published_learner(target)
        corrections = (
            held_out_corrections(table, target, make_ours, rows),
            held_out_corrections(table, target, make_ours, rows, types_too=True),
        )
        found = weigh(table, target, rows, corrections, _enough_in(table, rows), not_on)
        errors.setdefault(PUBLISHED, {})[target] = rmsle(measured, found.inside)
        if any(found.weights.values()):
            trained[target] = _Part(
                found.weights,
                _in_all_rows(found.inside, rows, len(profiles)),
                _in_all_rows(found.outside, rows, len(profiles)),
            )
    if not trained:
        raise TandemError(
            "On families that were left out, the trained model is no better than the formula, "
            f"so it was not published: {_in_words(errors)}.",
            "Measure more configurations, of more families.",
        )
    _check_against_serving(
        artifacts, table, {target: part.held_out for target, part in trained.items()}, errors
    )
    parts: dict[str, bytes] = {}
    calibrated: dict[str, dict[str, Any]] = {}
    plots = {}
    for target, part in trained.items():
        calibrated[target], plots[target] = _calibrated(table, target, part)
        learner: Any = published_learner(target)()
        rows = table.rows(target)
        fit(learner, table.columns[rows], table.learned(target)[rows], table.balance(rows))
        parts |= stored(target, learner.get_booster())
    card = {
        "features": list(LOAD_FEATURES),
        "trained_on": dict(Counter(p.gpu_model for p in profiles))
        | dict(Counter(p.origin.value for p in profiles))
        | {"profiles": len(profiles), "families": len(set(table.family))},
        "errors": errors,
        "chosen": PUBLISHED,
        "details": _details(profiles, table)
        | {"types": {target: part.types for target, part in trained.items()}}
        | {"weights": {target: part.weights for target, part in trained.items()}}
        | {
            name: {target: figures[name] for target, figures in calibrated.items()}
            for name in (
                "offsets",
                "spreads",
                "held_out",
                "offsets_elsewhere",
                "spreads_elsewhere",
                "elsewhere",
            )
        }
        | dict(about or {}),
    }
    report = {"md": markdown(card, list(trained)), "svg": scatter(plots)}
    return artifacts.publish(KIND, parts, card, report)


@dataclass(frozen=True)
class _Part:
    """A figure that the model corrects: by how much, and what it says of what it did not see.

    `held_out` (profiles,) is predicted of each profile without its family, `elsewhere` without its
    type of GPU too; NaN where not measured.
    """

    weights: dict[str, float]
    held_out: Floats
    elsewhere: Floats

    @property
    def types(self) -> list[str]:
        """The types of GPU that were trained on and on which it corrects the formula."""
        return sorted(name for name, w in self.weights.items() if w and name != ELSEWHERE)


def _in_all_rows(figures: Floats, rows: NDArray[np.intp], count: int) -> Floats:
    found = np.full(count, np.nan)
    found[rows] = figures
    return found


def _enough_in(table: LoadTable, rows: NDArray[np.intp]) -> Callable[[NDArray[np.bool_]], bool]:
    """Return whether some of the rows are enough to say anything of the next family."""
    return lambda of: bool(
        of.sum() >= MIN_OF_TYPE and len(set(table.family[rows][of])) >= MIN_FAMILIES_OF_TYPE
    )


def _calibrated(
    table: LoadTable, target: str, part: _Part
) -> tuple[dict[str, Any], tuple[Floats, Floats, Floats]]:
    """Return offset, spread and figures of a part, and what its plot shows.

    All are of families that were left out, on the types on which it corrects the formula; those
    `elsewhere` of families and types that were left out.
    """
    every = np.flatnonzero(np.isfinite(part.held_out))
    here = every[np.isin(types_of(table)[every], part.types)] if part.types else every
    found, plot = _bounds(table, target, here, part.held_out[here])
    other, _ = _bounds(table, target, every, part.elsewhere[every])
    found |= {f"{name}_elsewhere": other[name] for name in ("offsets", "spreads")}
    return found | {"elsewhere": other["held_out"]}, plot


def _bounds(
    table: LoadTable, target: str, rows: NDArray[np.intp], ours: Floats
) -> tuple[dict[str, Any], tuple[Floats, Floats, Floats]]:
    measured, family = table.measured[target][rows], table.family[rows]
    upper = table.utilisation_p95[rows] if target == UTILISATION else measured
    scores = log_of(target, upper) - log_of(target, ours)
    bounds = bounded(target, ours, cross_bounds(scores, family))
    off = np.log(np.maximum(measured, 1e-9) / np.maximum(ours, 1e-9))
    by_family = {name: off[family == name] for name in set(family.tolist())}
    inside = [
        (np.abs(of) <= conformal([f for other, f in by_family.items() if other != name])).mean()
        for name, of in by_family.items()
    ]
    figures = held_out_figures(
        measured, upper, ours, bounds,
        {"formula": table.formula[target][rows], "family": family, "gpu": table.gpu[rows]}, rmsle,
    )  # fmt: skip
    found = {
        "offsets": bound_offset(scores, family),
        "spreads": round(conformal(list(by_family.values())), 4),
        "held_out": figures | {"inside_interval": round(float(np.mean(inside)), 4)},
    }
    return found, (measured, ours, bounds)


def _details(profiles: Sequence[Profile], table: LoadTable) -> dict[str, Any]:
    supported = table.columns[:, [LOAD_FEATURES.index(name) for name in SUPPORTED]]
    gpus = {q.gpu.name for q in (p.question() for p in profiles) if q.gpu is not None}
    return {
        "utilisation": "odds",
        "formula": FORMULA_VERSION,
        "seed": SEED,
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
            "Some profiles are synthetic: a model of them would serve figures that no GPU "
            "has shown.",
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
            f"The model in use ({card.version}) also predicts {', '.join(lacking)}, which "
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
            kind = str(card.details.get("utilisation", "residual"))
            old = corrected(target, table.formula[target][compared], learned, kind=kind)
            theirs = rmsle(measured[compared], old)
            new = rmsle(measured[compared], ours[compared])
            where = f"{len(compared)} profiles of families that it was not trained on"
        else:
            theirs, new = card.errors[PUBLISHED][target], errors[PUBLISHED][target]
            where = "the families that each was tested on"
        if new > TIE * theirs:
            raise TandemError(
                f"The model in use ({card.version}) predicts {target} better (RMSLE "
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
