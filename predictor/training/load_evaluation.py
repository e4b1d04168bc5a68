"""Profiles as a table, candidates, honest splits and bounds for a learned load.

Everything that is claimed of a model is claimed of architecture families that were left out when it
was trained: random folds flatter. Needs the `train` extra (scikit-learn).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictor.interference.model import Floats
from predictor.load.features import LOAD_FEATURES, known
from predictor.load.model import (
    ELSEWHERE,
    ITERATION,
    MEMORY,
    UTILISATION,
    learned_percent,
    share_logit,
)
from predictor.training.profiles import Profile
from predictor.training.selection import Learner
from tandem.gpu_types import type_name

Strings = NDArray[np.str_]
TARGETS = (MEMORY, UTILISATION, ITERATION)
#: The candidate that is published, since it can be stored as data; and what it has to beat.
PUBLISHED = "xgboost"
FORMULA = "formula"
#: How sure the upper bounds are to be, on families that were not seen.
BOUND_LEVEL = 0.95
_RISING = ("log_batch", "log_flops")
#: How much of what was learned may correct the formula: all, none, or one of these parts.
WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
#: Errors that differ by less are taken for equal.
TIE = 1.02
#: A measured share is kept this far from 100 %, where its odds are infinite.
_MOST_PERCENT = 99.5
#: So few types say nothing of the next one; and the formula counts at least as much there.
_LEAST_TYPES, _MOST_ELSEWHERE = 2, 0.5
_FOLDS = 10
#: Of everything that is drawn: the same rows give the same model.
SEED = 0


@dataclass(frozen=True)
class LoadTable:
    """Profiles as columns; NaN where a profile lacks a figure.

    `columns` (rows, LOAD_FEATURES); by target, (rows,): `measured` and `formula`, bytes, percent
    and seconds; `utilisation_p95` (rows,) percent; `family`, `gpu` (rows,) names.
    """

    columns: Floats
    measured: dict[str, Floats]
    formula: dict[str, Floats]
    utilisation_p95: Floats
    family: Strings
    gpu: Strings

    def learned(self, target: str) -> Floats:
        """Return what is learned: log of measured over formula; of utilisation, of their odds."""
        measured, formula = self.measured[target], self.formula[target]
        if target == UTILISATION:
            return share_logit(measured, _MOST_PERCENT) - share_logit(formula)
        return np.asarray(np.log(measured) - np.log(formula), dtype=float)

    def balance(self, rows: NDArray[np.intp]) -> Floats:
        """Return the weight of each row, (rows,), in training: one of many counts less.

        The weight is one over the root of the number of rows of its family on its type of GPU.
        """
        kinds = np.array([f"{f} {g}" for f, g in zip(self.family, self.gpu, strict=True)])[rows]
        _, group, counts = np.unique(kinds, return_inverse=True, return_counts=True)
        weights = 1 / np.sqrt(counts[group])
        return np.asarray(weights * len(rows) / weights.sum(), dtype=float)

    def rows(self, target: str) -> NDArray[np.intp]:
        """Return the rows that have the target."""
        return np.flatnonzero(np.isfinite(self.measured[target]))


def load_table(profiles: Sequence[Profile]) -> LoadTable:
    """Return the profiles as a table."""
    columns, formula = [], []
    for profile in profiles:
        asked = known(profile.question())
        assert asked is not None
        columns.append(asked.columns)
        total = asked.levels.fixed + asked.levels.varying
        formula.append((total, asked.step.utilisation_percent, asked.step.seconds))
    by_target = dict(zip(TARGETS, np.array(formula, dtype=float).T, strict=True))
    return LoadTable(
        columns=np.array(columns, dtype=float),
        measured={
            MEMORY: _figures(p.memory_peak_bytes for p in profiles),
            UTILISATION: _figures(p.utilisation_percent for p in profiles),
            ITERATION: _figures(p.iteration_s for p in profiles),
        },
        formula=by_target,
        utilisation_p95=_figures(
            p.utilisation_percent
            if p.utilisation_p95_percent is None
            else p.utilisation_p95_percent
            for p in profiles
        ),
        family=np.array([p.family for p in profiles]),
        gpu=np.array([p.gpu_model for p in profiles]),
    )


def learners(target: str) -> dict[str, Callable[[], Learner]]:
    """Return every candidate by name; all learn the same of a target, from the same columns."""
    from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return {
        "linear": lambda: make_pipeline(StandardScaler(), Ridge(alpha=3.0)),
        "forest": lambda: RandomForestRegressor(
            100, min_samples_leaf=3, max_features=0.5, random_state=SEED, n_jobs=1
        ),
        "hist-gradient-boosting": lambda: HistGradientBoostingRegressor(
            max_iter=150, learning_rate=0.06, min_samples_leaf=8, l2_regularization=2.0,
            random_state=SEED,
        ),
        PUBLISHED: published_learner(target),
    }  # fmt: skip


def published_learner(target: str) -> Callable[[], Learner]:
    """Return what is published of a target."""
    del target
    return xgboost_learner


def xgboost_learner(*, monotone: bool = False, names: Sequence[str] = LOAD_FEATURES) -> Learner:
    """Return the learner that is published: squared error on logarithms, small and smooth trees.

    `monotone`: what it learns never falls with the batch size or the FLOPs of a step; `names` are
    those of its columns.
    """
    from xgboost import XGBRegressor

    rising = tuple(int(monotone and name in _RISING) for name in names)
    learner: Learner = XGBRegressor(
        n_estimators=200, max_depth=4, learning_rate=0.06, subsample=0.8, colsample_bytree=0.6,
        min_child_weight=4, reg_lambda=4.0, random_state=SEED, n_jobs=1,
        monotone_constraints=rising if monotone else None,
    )  # fmt: skip
    return learner


def family_folds(family: Strings) -> NDArray[np.intp]:
    """Return the fold of each row, (rows,): all rows of a family are in one, and families many."""
    names, group = np.unique(family, return_inverse=True)
    fold_of = np.random.default_rng(SEED).permutation(len(names)) % min(_FOLDS, len(names))
    return np.asarray(fold_of[group], dtype=np.intp)


def types_of(table: LoadTable) -> Strings:
    """Return the type of GPU of each row, (rows,)."""
    return np.array([type_name(gpu) for gpu in table.gpu])


def held_out(
    table: LoadTable, target: str, make: Callable[[], Learner], rows: NDArray[np.intp],
    *, learned_from: NDArray[np.bool_] | None = None,
) -> Floats:  # fmt: skip
    """Return the predictions of `rows`, (rows,), each by a learner that never saw its family.

    `learned_from` (rows,) says which of them a learner may see; all where it is not given.
    """
    folds = family_folds(table.family[rows])
    learned = held_out_corrections(
        table, target, make, rows, learned_from=learned_from, folds=folds
    )
    return corrected(target, table.formula[target][rows], learned)


def held_out_corrections(
    table: LoadTable, target: str, make: Callable[[], Learner], rows: NDArray[np.intp],
    *, learned_from: NDArray[np.bool_] | None = None, types_too: bool = False,
    folds: NDArray[np.intp] | None = None,
) -> Floats:  # fmt: skip
    """Return what learners that never saw its family say of each row, (rows,), logarithms.

    With `types_too` a learner has not seen the row's type of GPU either. `folds` (rows,) leave
    several families out at once; without them each is left out by itself.
    """
    allowed = np.ones(len(rows), dtype=np.bool_) if learned_from is None else learned_from
    columns, wanted = table.columns[rows], table.learned(target)[rows]
    if folds is None:
        folds = np.unique(table.family[rows], return_inverse=True)[1]
    kinds = types_of(table)[rows] if types_too else np.full(len(rows), "")
    learned = np.zeros(len(rows))
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):  # the tables are small: threads would only wait for one another
        for fold in np.unique(folds):
            for kind in np.unique(kinds[folds == fold]):
                asked = (folds == fold) & (kinds == kind)
                seen = allowed & (folds != fold) & ((kinds != kind) | (not types_too))
                if seen.any():
                    learner = make()
                    fit(learner, columns[seen], wanted[seen], table.balance(rows[seen]))
                    learned[asked] = learner.predict(columns[asked])
    return learned


def fit(learner: Learner, columns: Floats, wanted: Floats, balance: Floats) -> None:
    """Let a learner learn; one that weighs its rows by `balance` (rows,)."""
    weighs: Any = learner
    if hasattr(learner, "get_booster"):
        weighs.fit(columns, wanted, sample_weight=balance)
    else:
        weighs.fit(columns, wanted)


def corrected(
    target: str, formula: Floats, learned: Floats, weight: float | Floats = 1.0, kind: str = "odds"
) -> Floats:
    """Return the figures of a formula, corrected by as much of what was learned as `weight` says.

    `kind` is what was learned of utilisation: the odds over the formula's, or what cards of earlier
    versions have, the share's own (`share`) or a factor (`residual`).
    """
    if target == UTILISATION:
        return learned_percent(formula, learned, weight, kind)
    return np.asarray(formula * np.exp(weight * np.clip(learned, -3, 3)), dtype=float)


@dataclass(frozen=True)
class Weighing:
    """The weight of the learned correction on each type of GPU and `ELSEWHERE`.

    `inside` and `outside` (rows,) are the figures so predicted: of families left out, and of
    families and types left out.
    """

    weights: dict[str, float]
    inside: Floats
    outside: Floats


def weigh(
    table: LoadTable, target: str, rows: NDArray[np.intp], corrections: tuple[Floats, Floats],
    enough: Callable[[NDArray[np.bool_]], bool], not_on: Collection[str] = (),
) -> Weighing:  # fmt: skip
    """Return the weights of what was learned; `corrections` are of families left out, and of both.

    A weight is the one of `WEIGHTS` with the least squared error on what learners did not see. For
    a type of GPU that is half the error there (families left out, and types too) and half that of
    all types (families left out): few families say little. For other types it is the mean error of
    types left out, and the weight is one half at most. Where the error is more than a tie above the
    formula's, the weight is less, or 0; on `not_on` it is 0. `enough` says whether some of the rows
    say anything of the next family; a type of which they say too little is like one left out.
    """
    by_family, by_both = corrections
    formula, types = table.formula[target][rows], types_of(table)[rows]
    wanted = log_of(target, table.measured[target][rows])
    known = [str(name) for name in np.unique(types) if enough(types == name)]

    def errors(learned: Floats) -> dict[str, Floats]:
        """Return the mean squared error by type, (weights,)."""
        said = [corrected(target, formula, learned, weight) for weight in WEIGHTS]
        off = np.array([(log_of(target, each) - wanted) ** 2 for each in said])
        return {name: off[:, types == name].mean(axis=1) for name in known}

    def best(error: Floats, own: Floats, most: float = 1.0) -> float:
        allowed = (own <= own[0] * TIE**2) & (np.array(WEIGHTS) <= most)
        return WEIGHTS[int(np.where(allowed, error, np.inf).argmin())]

    weights: dict[str, float] = {}
    one, both = errors(by_family), errors(by_both)
    if known:
        pooled = np.mean([one[name] for name in known], axis=0)
        for name in known:
            own = (one[name] + both[name]) / 2
            weights[name] = 0.0 if name in not_on else best(own + pooled, own)
    weights[ELSEWHERE] = 0.0
    if len(known) > _LEAST_TYPES:
        pooled = np.mean([both[name] for name in known], axis=0)
        weights[ELSEWHERE] = best(pooled, pooled, _MOST_ELSEWHERE)
    inside = np.array([weights.get(str(name), weights[ELSEWHERE]) for name in types])
    return Weighing(
        weights,
        corrected(target, formula, by_family, inside),
        corrected(target, formula, by_both, weights[ELSEWHERE]),
    )


def bounded(target: str, figures: Floats, offsets: Floats) -> Floats:
    """Return figures times exp(`offsets`); percent are shifted by one."""
    if target == UTILISATION:
        return np.clip((figures + 1) * np.exp(offsets) - 1, 0, 100)
    return figures * np.exp(offsets)


def rmsle(measured: Floats, predicted: Floats) -> float:
    """Return the root mean squared error of log1p."""
    return float(np.sqrt(np.mean((np.log1p(predicted) - np.log1p(measured)) ** 2)))


def bound_offset(scores: Floats, family: Strings, level: float = BOUND_LEVEL) -> float:
    """Return the log factor that a share `level` of an unseen family's rows stay below.

    `scores` (rows,) = log(measured / predicted) of rows that were held out with their family; each
    family has the same weight, and one more that is worse than all is reckoned with: split
    conformal prediction with families for observations.
    """
    names, group, counts = np.unique(family, return_inverse=True, return_counts=True)
    order = np.argsort(scores)
    weight = np.cumsum((1.0 / counts[group])[order]) / (len(names) + 1)
    index = int(np.searchsorted(weight, level))
    return float(scores[order][min(index, len(scores) - 1)])


def cross_bounds(scores: Floats, family: Strings) -> Floats:
    """Return the offset for each row, (rows,), as the families of the other folds give it."""
    folds = family_folds(family)
    offsets = np.empty(len(scores))
    for fold in np.unique(folds):
        seen = folds != fold
        offsets[folds == fold] = max(bound_offset(scores[seen], family[seen]), 0.0)
    return offsets


def log_of(target: str, figures: Floats) -> Floats:
    """Return the logarithms in which a target is learned; percent are shifted by one."""
    return np.log(figures + 1.0) if target == UTILISATION else np.log(figures)


def _figures(figures: Iterable[float | None]) -> Floats:
    return np.array([np.nan if f is None else f for f in figures], dtype=float)
