"""A trained utilisation model, against the formula and simpler methods, on what was left out.

What is measured is utilisation (A100, P100) or the time of a step (V100, P100, T4). A time of a
step gives a busy share: the formula's busy time over it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from benchmarks.tables import markdown
from predictor.load.equations import training_step
from predictor.load.features import LOAD_FEATURES
from predictor.training.load_evaluation import load_table, xgboost_learner
from predictor.training.selection import Learner
from studies.predictions import loads
from studies.predictions.features import features
from studies.predictions.measured import Measured
from tandem.gpu_types import find_gpu

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
_FROM_FORMULA = tuple(name for name in LOAD_FEATURES if name.startswith("formula_"))
#: Busy shares are compared within these, percent: a recommender's is below a thousandth.
_LEAST, _MOST = 0.1, 100.0
#: Where a share is learned as its logit, it is kept this far from 0 and 100 %.
_MARGIN = 0.5


@dataclass(frozen=True)
class Shares:
    """Configurations as columns: (rows, LOAD_FEATURES), busy share and the formula's, percent.

    `learned_from` are the rows of which a model may be trained.
    """

    columns: Floats
    busy: Floats
    formula: Floats
    family: NDArray[np.str_]
    gpu: NDArray[np.str_]
    source: NDArray[np.str_]
    learned_from: Bools

    def column(self, name: str) -> Floats:
        """Return one of LOAD_FEATURES, (rows,)."""
        return self.columns[:, LOAD_FEATURES.index(name)]


def shares(every: Sequence[Measured], blind: Sequence[Measured]) -> Shares:
    """Return what was measured; nothing is learned from `blind` or from input-bound jobs."""
    rows = [r for r in every if r.utilisation is not None or r.step_s is not None]
    rows += blind
    table = load_table(loads.profiles(rows))
    return Shares(
        columns=table.columns,
        busy=np.array([busy_percent(row) for row in rows]),
        formula=table.formula["utilisation"],
        family=np.array([row.family for row in rows]),
        gpu=np.array([row.gpu for row in rows]),
        source=np.array([row.source for row in rows]),
        learned_from=np.array([row not in blind and not loads.is_input_bound(row) for row in rows]),
    )


def busy_percent(row: Measured) -> float:
    """Return the measured utilisation, else the formula's busy share of the measured step."""
    if row.utilisation is not None:
        return row.utilisation
    gpu = find_gpu(row.gpu)
    assert gpu is not None
    step = training_step(features()[row.model], row.batch, gpu, row.step_s)
    return step.utilisation_percent


_Method = Callable[[Shares, Bools, Bools], Floats]


def _constant(all_: Shares, seen: Bools, asked: Bools) -> Floats:
    return np.full(int(asked.sum()), np.exp(_log(all_.busy[seen]).mean()))


def _formula(all_: Shares, seen: Bools, asked: Bools) -> Floats:
    del seen
    return all_.formula[asked]


def _quadratic(all_: Shares, seen: Bools, asked: Bools) -> Floats:
    """Fit the logit as a quadratic of log10(FLOPs of a step over the GPU's rate)."""
    x = all_.column("log_flops") - all_.column("gpu_log_flops")
    terms = np.column_stack([np.ones_like(x), x, x * x])
    weights = np.linalg.lstsq(terms[seen], _logit(all_.busy[seen]), rcond=None)[0]
    return _share(terms[asked] @ weights)


def _learned(
    all_: Shares, seen: Bools, asked: Bools, *, make: Callable[[], Learner], of: Sequence[str],
    residual: bool,
) -> Floats:  # fmt: skip
    columns = all_.columns[:, [LOAD_FEATURES.index(name) for name in of]]
    learner = make()
    if residual:
        learner.fit(columns[seen], _log(all_.busy[seen]) - _log(all_.formula[seen]))
        factor = np.exp(np.clip(learner.predict(columns[asked]), -2, 2))
        return np.clip(all_.formula[asked] * factor, _LEAST, _MOST)
    learner.fit(columns[seen], _logit(all_.busy[seen]))
    return _share(learner.predict(columns[asked]))


def _ridge() -> Learner:
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    learner: Learner = make_pipeline(StandardScaler(), Ridge(alpha=30.0))
    return learner


def _horus() -> Learner:
    """[Horus] learns utilisation from Table 3 alone, without constraints."""
    return xgboost_learner(names=_TABLE_3)


_TABLE_3 = tuple(name for name in LOAD_FEATURES if name not in _FROM_FORMULA)
_MONOTONE = partial(xgboost_learner, monotone=True)
CONSTANT, FORMULA = "constant", "formula"
METHODS: dict[str, _Method] = {
    CONSTANT: _constant,
    FORMULA: _formula,
    "quadratic in log of FLOPs": _quadratic,
    "Horus' learner, on its Table 3": partial(
        _learned, make=_horus, of=_TABLE_3, residual=False
    ),
    "XGBoost of the share, monotone": partial(
        _learned, make=_MONOTONE, of=LOAD_FEATURES, residual=False
    ),
    "XGBoost, monotone, on the formula's residual": partial(
        _learned, make=_MONOTONE, of=LOAD_FEATURES, residual=True
    ),
    "linear, on the formula's residual": partial(
        _learned, make=_ridge, of=LOAD_FEATURES, residual=True
    ),
}  # fmt: skip


def left_out(all_: Shares, method: _Method, group: NDArray[np.str_]) -> Floats:
    """Return the busy share of each row, (rows,), learned from the rows of other groups."""
    predicted = np.empty(len(all_.busy))
    for each in np.unique(group):
        asked = group == each
        predicted[asked] = method(all_, all_.learned_from & ~asked, asked)
    return predicted


def log_error(measured: Floats, predicted: Floats) -> float:
    """Return the RMS of log(predicted / measured), shares of 0.1 % at least."""
    return float(np.sqrt(((_log(predicted) - _log(measured)) ** 2).mean()))


def _log(percent: Floats) -> Floats:
    return np.log(np.clip(percent, _LEAST, _MOST))


def _logit(percent: Floats) -> Floats:
    share = np.clip(percent, _MARGIN, 100 - _MARGIN) / 100
    return np.log(share / (1 - share))


def _share(logit: Floats) -> Floats:
    return 100 / (1 + np.exp(-logit))


_SETS = {
    "miso": "miso (A100), measured",
    "alnair": "alnair (P100), measured",
    "gavel": "gavel (V100, P100), derived",
    "pollux": "pollux (T4), derived",
    "salus": "salus (P100), derived",
}
_NOTE = """Ways to learn utilisation from all of these data; each figure is of families,
or types of GPU, that a model did not see. `alnair` was never trained on. **Derived**: the formula's
busy time over the measured time of a step. Input-bound jobs are left out. RMS of log(predicted /
measured), shares of 0.1 % at least; seed 0.
"""


def section(all_: Shares) -> str:
    """Return the table of errors, and which methods beat the formula."""
    from threadpoolctl import threadpool_limits

    counted = {
        source: (all_.source == source) & (all_.learned_from | (source == "alnair"))
        for source in _SETS
    }
    errors: dict[tuple[str, str], list[float]] = {}
    with threadpool_limits(1):  # the tables are small: threads would only wait for one another
        for what, group in (("families", all_.family), ("types of GPU", all_.gpu)):
            for name, method in METHODS.items():
                predicted = left_out(all_, method, group)
                found = [log_error(all_.busy[at], predicted[at]) for at in counted.values()]
                errors[what, name] = found
    rows = [[*key, *(f"{error:.2f}" for error in found)] for key, found in errors.items()]
    table = markdown(["left out", "method", *_SETS.values()], rows)
    return "\n".join([_NOTE, table, "", _verdict(errors)])


def _verdict(errors: dict[tuple[str, str], list[float]]) -> str:
    """Say of each method how often it beats the formula."""
    lines, always = [], []
    for name in METHODS:
        if name in (FORMULA, CONSTANT):
            continue
        better = {
            what: sum(np.array(errors[what, name]) < np.array(errors[what, FORMULA]))
            for what in ("families", "types of GPU")
        }
        lines.append(
            f"- {name}: better than the formula on {better['families']} of {len(_SETS)} data sets "
            f"with families left out, on {better['types of GPU']} with types of GPU left out."
        )
        if min(better.values()) == len(_SETS):
            always.append(name)
    which = f"Always better: {', '.join(always)}." if always else "None is always better."
    return "\n".join([*lines, "", f"{which} What ships corrects the formula in part:"])
