"""Profiles as a table, candidates, honest splits and bounds for a learned load.

Everything that is claimed of a model is claimed of architecture families that were left out when it
was trained: random folds flatter. Needs the `train` extra (scikit-learn).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from predictor.interference import Floats
from predictor.load_features import LOAD_FEATURES, known
from predictor.load_model import ITERATION, MEMORY, UTILISATION, share_percent
from predictor.profiles import Profile
from predictor.selection import Learner

Strings = NDArray[np.str_]
TARGETS = (MEMORY, UTILISATION, ITERATION)
#: The candidate that is published, since it can be stored as data; and what it has to beat.
PUBLISHED = "xgboost"
FORMULA = "formula"
#: How sure the upper bounds are to be, on families that were not seen.
BOUND_LEVEL = 0.95
_RISING = ("log_batch", "log_flops")
#: A share is kept this far from 0 and 100 %, where its logit is infinite.
_MARGIN_PERCENT = 0.5
_FOLDS = 10
_SEED = 0


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
        """Return what is learned: log of measured over formula; of utilisation, the logit."""
        measured = self.measured[target]
        if target == UTILISATION:
            share = np.clip(measured, _MARGIN_PERCENT, 100 - _MARGIN_PERCENT) / 100
            return np.asarray(np.log(share / (1 - share)), dtype=float)
        return np.log(measured) - np.log(self.formula[target])

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
            100, min_samples_leaf=3, max_features=0.5, random_state=_SEED, n_jobs=1
        ),
        "hist-gradient-boosting": lambda: HistGradientBoostingRegressor(
            max_iter=150, learning_rate=0.06, min_samples_leaf=8, l2_regularization=2.0,
            random_state=_SEED,
        ),
        PUBLISHED: published_learner(target),
    }  # fmt: skip


def published_learner(target: str) -> Callable[[], Learner]:
    """Return what is published of a target: only utilisation is known to rise with the work."""
    return partial(xgboost_learner, monotone=target == UTILISATION)


def xgboost_learner(*, monotone: bool = False, names: Sequence[str] = LOAD_FEATURES) -> Learner:
    """Return the learner that is published: squared error on logarithms, small and smooth trees.

    `monotone`: what it learns never falls with the batch size or the FLOPs of a step; `names` are
    those of its columns.
    """
    from xgboost import XGBRegressor

    rising = tuple(int(monotone and name in _RISING) for name in names)
    learner: Learner = XGBRegressor(
        n_estimators=200, max_depth=4, learning_rate=0.06, subsample=0.8, colsample_bytree=0.6,
        min_child_weight=4, reg_lambda=4.0, random_state=_SEED, n_jobs=1,
        monotone_constraints=rising if monotone else None,
    )  # fmt: skip
    return learner


def family_folds(family: Strings) -> NDArray[np.intp]:
    """Return the fold of each row, (rows,): all rows of a family are in one, and families many."""
    names, group = np.unique(family, return_inverse=True)
    fold_of = np.random.default_rng(_SEED).permutation(len(names)) % min(_FOLDS, len(names))
    return np.asarray(fold_of[group], dtype=np.intp)


def held_out(
    table: LoadTable, target: str, make: Callable[[], Learner], rows: NDArray[np.intp],
    *, learned_from: NDArray[np.bool_] | None = None,
) -> Floats:  # fmt: skip
    """Return the predictions of `rows`, (rows,), each by a learner that never saw its family.

    `learned_from` (rows,) says which of them a learner may see; all where it is not given.
    """
    allowed = np.ones(len(rows), dtype=np.bool_) if learned_from is None else learned_from
    columns, wanted = table.columns[rows], table.learned(target)[rows]
    folds = family_folds(table.family[rows])
    learned = np.empty(len(rows))
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):  # the tables are small: threads would only wait for one another
        for fold in np.unique(folds):
            learner = make()
            seen = allowed & (folds != fold)
            learner.fit(columns[seen], wanted[seen])
            learned[folds == fold] = learner.predict(columns[folds == fold])
    return corrected(target, table.formula[target][rows], learned)


def corrected(target: str, formula: Floats, learned: Floats, *, share: bool = True) -> Floats:
    """Return the figures that were learned: of utilisation the share, else a factor on the formula.

    Without `share` utilisation is a factor as well, as cards of earlier versions have it.
    """
    if target == UTILISATION and share:
        return share_percent(learned)
    return bounded(target, formula, np.clip(learned, -3, 3))


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
