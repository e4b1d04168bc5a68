"""Other ways to price pairs where neither the type of GPU nor the families were seen.

Each learns from pairs of the other type of GPU; where families are left out as well, from pairs
without both families of the pair that is asked about. None is in use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from predictor.interference.model import PAIR_FEATURES
from predictor.interference.pairs import MeasuredPair
from predictor.load.equations import taken_turns, time_shared_speed
from predictor.training.interference import table
from predictor.training.selection import Learner
from studies.predictions import pairs as priced
from studies.predictions.interference import Matrix, measured_pairs

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

#: What is known of a pair but for the type of GPU, which was left out.
_COLUMNS = tuple(name for name in PAIR_FEATURES if not name.startswith("gpu"))
#: More of a partner never makes a job faster; a longer step than the partner's never slower.
_DIRECTION = {
    "partner_utilisation": -1, "partner_compute": -1, "partner_bandwidth": -1,
    "total_utilisation": -1, "total_bandwidth": -1, "log_step_ratio": 1,
}  # fmt: skip
_SLOWEST = 1 / 21
#: Shares of a data sheet's rates that kernels reach.
_REACHED_BANDWIDTH, _REACHED_FLOPS = 0.7, 0.5

_FORMULA = "formula (in use)"
_NOTE = """## Pairs: ways that were tried, and are not in use

Shrinkage, powers and the size of trees were fixed before the first run. `type`: learned from the
other type of GPU, on the same models. `families`: from pairs of both types without both families of
each pair. `type and families`: without either, as the models of a new cluster are. *Two resources*:
the loss of a pair is a weighted sum of the losses by busy time, FLOPs and bandwidth, of weights
that are not negative. *Half of a model*: the mean of the formula and a monotone XGBoost. Used only
where both loads are near those that were trained on, that mean loses as well: 20 to 86 % of the
pairs of a family that was left out are near. *Fitted and shrunk*: offset and slope of the formula's
logarithm, the prior (0 and 1) weighing as one type of GPU. *Products of shares*: the slowdown is a
weighted sum of the products of both jobs' shares of busy time, bandwidth and FLOPs. *Four columns*:
both utilisations and both shares of bandwidth.

| utilisations | left out | type of GPU | method | MAE of speed | rank correlation | best of 8 |
|---|---|---|---|---|---|---|
"""


class _Ways:
    def __init__(self, pairs: list[MeasuredPair], slope: float) -> None:
        self.rows = priced.rows_of(pairs)
        found = table(pairs).features
        self._columns = {name: found[:, i] for i, name in enumerate(PAIR_FEATURES)}
        self._features = np.column_stack([self._columns[name] for name in _COLUMNS])
        self._equal = time_shared_speed(self.rows.total) ** slope
        self._formula = priced.in_turns(self.rows, self._equal)
        self._total = priced.in_total(self.rows, self._formula)[0].speed
        self.ways: dict[str, Callable[[Bools, Bools], Floats]] = {
            _FORMULA: lambda _, asked: self._formula[asked],
            "two resources": self._two_resources,
            "ridge on the formula's residual": self._ridge,
            "Gaussian process on the formula's residual": self._process,
            "monotone XGBoost": self._trees,
            "half of a model": self._half,
            "time sharing, fitted and shrunk": self._fitted,
            "isotonic in total utilisation": self._isotonic,
            "products of shares": self._products,
            "monotone XGBoost, four columns": self._few_columns,
        }

    def _two_resources(self, seen: Bools, asked: Bools) -> Floats:
        from scipy.optimize import nnls

        rows, column = self.rows, self._columns
        demands = (
            rows.total,
            100 * column["total_bandwidth"] / _REACHED_BANDWIDTH,
            100 * column["total_compute"] / _REACHED_FLOPS,
        )
        losses = [-np.log(time_shared_speed(demand)) for demand in demands]
        terms = np.column_stack([*losses, np.ones(len(rows.speed))])
        weights, _ = nnls(terms[seen], -np.log(self._total[seen] / 2))
        equal = np.clip(np.exp(-(terms @ weights)), _SLOWEST, 1.0)
        own, partner = rows.loads[:, 0, 2], rows.loads[:, 1, 2]
        turned: Floats = taken_turns(equal[asked], own[asked], partner[asked])[:, 0]
        return turned

    def _residual(self, learner: Learner, seen: Bools, asked: Bools) -> Floats:
        log_formula = np.log(np.maximum(self._formula, _SLOWEST))
        log_speed = np.log(np.maximum(self.rows.speed, _SLOWEST))
        learner.fit(self._features[seen], log_speed[seen] - log_formula[seen])
        learned = np.clip(learner.predict(self._features[asked]), -1, 1)
        predicted: Floats = np.exp(log_formula[asked] + learned)
        return predicted

    def _ridge(self, seen: Bools, asked: Bools) -> Floats:
        from sklearn.linear_model import Ridge
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        return self._residual(make_pipeline(StandardScaler(), Ridge(alpha=100.0)), seen, asked)

    def _process(self, seen: Bools, asked: Bools) -> Floats:
        """Far from the pairs that were seen it is the formula."""
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        kernel = ConstantKernel(0.1) * RBF(2.0) + WhiteKernel(0.05)
        process = GaussianProcessRegressor(kernel, optimizer=None, alpha=1e-10)
        return self._residual(make_pipeline(StandardScaler(), process), seen, asked)

    def _trees(self, seen: Bools, asked: Bools) -> Floats:
        from xgboost import XGBRegressor

        learner = XGBRegressor(
            n_estimators=100, max_depth=3, learning_rate=0.08, subsample=0.8, colsample_bytree=0.7,
            min_child_weight=8, reg_lambda=8.0, random_state=0, n_jobs=1,
            monotone_constraints=tuple(_DIRECTION.get(name, 0) for name in _COLUMNS),
        )  # fmt: skip
        learner.fit(self._features[seen], self.rows.speed[seen])
        predicted: Floats = np.clip(learner.predict(self._features[asked]), _SLOWEST, 1.0)
        return predicted

    def _half(self, seen: Bools, asked: Bools) -> Floats:
        return (self._formula[asked] + self._trees(seen, asked)) / 2

    def _turned(self, equal: Floats, asked: Bools) -> Floats:
        """Return speeds in turns, `equal` (rows asked,) being those of equal parts."""
        own, partner = self.rows.loads[asked, 0, 2], self.rows.loads[asked, 1, 2]
        turned: Floats = taken_turns(np.clip(equal, _SLOWEST, 1.0), own, partner)[:, 0]
        return turned

    def _fitted(self, seen: Bools, asked: Bools) -> Floats:
        """Fit offset and slope of the formula's logarithm; the prior weighs as one type of GPU."""
        x = np.log(np.maximum(self._equal, _SLOWEST))
        y = np.log(np.maximum(self._total / 2, _SLOWEST))
        types = len(np.unique(self.rows.gpu[seen]))
        terms = np.column_stack([np.ones(int(seen.sum())), x[seen]])
        found = np.linalg.lstsq(terms, y[seen], rcond=None)[0]
        offset, slope = (types * found + np.array([0.0, 1.0])) / (types + 1)
        return self._turned(np.exp(offset + slope * x[asked]), asked)

    def _isotonic(self, seen: Bools, asked: Bools) -> Floats:
        from sklearn.isotonic import IsotonicRegression

        falling = IsotonicRegression(increasing=False, out_of_bounds="clip")
        falling.fit(self.rows.total[seen], self._total[seen] / 2)
        return self._turned(falling.predict(self.rows.total[asked]), asked)

    def _products(self, seen: Bools, asked: Bools) -> Floats:
        """Slowdown is a weighted sum of the products of both jobs' shares of each resource."""
        from scipy.optimize import nnls

        column = self._columns
        kinds = ("utilisation", "bandwidth", "compute")
        terms = np.column_stack(
            [column[f"job_{kind}"] * column[f"partner_{kind}"] for kind in kinds]
            + [np.ones(len(self.rows.speed))]
        )
        weights, _ = nnls(terms[seen], 2 / np.maximum(self._total[seen], _SLOWEST) - 1)
        return self._turned(1 / (1 + terms[asked] @ weights), asked)

    def _few_columns(self, seen: Bools, asked: Bools) -> Floats:
        """Both utilisations and both shares of bandwidth: more of any never makes a job faster."""
        from xgboost import XGBRegressor

        names = ("job_utilisation", "job_bandwidth", "partner_utilisation", "partner_bandwidth")
        few = np.column_stack([self._columns[name] for name in names])
        learner = XGBRegressor(
            n_estimators=100, max_depth=3, learning_rate=0.08, min_child_weight=8, reg_lambda=8.0,
            random_state=0, n_jobs=1, monotone_constraints=(-1,) * len(names),
        )  # fmt: skip
        learner.fit(few[seen], self.rows.speed[seen])
        predicted: Floats = np.clip(learner.predict(few[asked]), _SLOWEST, 1.0)
        return predicted

    def predicted(self, gpu: str, left_out: str) -> dict[str, Floats]:
        """Return the speeds of the rows of a type of GPU, by method."""
        rows = self.rows
        here = rows.gpu == gpu
        found = {name: np.empty(len(rows.speed)) for name in self.ways}
        cells: list[tuple[Bools, Bools]] = [(~here, here)]
        others = ~here if "type" in left_out else np.ones(len(here), dtype=np.bool_)
        if "families" in left_out:
            both = {tuple(sorted(p)) for p in zip(rows.job[here], rows.partner[here], strict=True)}
            cells = []
            for pair in sorted(both):
                asked = here & np.array(
                    [
                        tuple(sorted(p)) == pair
                        for p in zip(rows.job, rows.partner, strict=True)
                    ]
                )  # fmt: skip
                unseen = np.isin(rows.job, pair) | np.isin(rows.partner, pair)
                cells.append((others & ~unseen, asked))
        for seen, asked in cells:
            for name, way in self.ways.items():
                found[name][asked] = np.clip(way(seen, asked), _SLOWEST, 1.0)
        return {name: speeds[here] for name, speeds in found.items()}


@dataclass(frozen=True)
class _Line:
    """One method on one type of GPU; `state` and `left_out` as in the table."""

    state: str
    left_out: str
    gpu: str
    method: str
    error: float
    rank: float
    best: float

    def __str__(self) -> str:
        return (
            f"| {self.state} | {self.left_out} | {self.gpu} | {self.method} | {self.error:.3f} | "
            f"{self.rank:+.2f} | {self.best:.0%} |"
        )


def section(matrix: Matrix) -> str:
    """Return a line for each state of knowledge, what was left out, type of GPU and method."""
    from threadpoolctl import threadpool_limits

    made: list[_Line] = []
    with threadpool_limits(1):  # the tables are small: threads would only wait for one another
        for title, measured_solo, slope in priced.STATES:
            ways = _Ways(measured_pairs(matrix, measured_solo=measured_solo), slope)
            for left_out in ("type", "families", "type and families"):
                for gpu in np.unique(ways.rows.gpu):
                    own = ways.rows.of(ways.rows.gpu == gpu)
                    for name, p in ways.predicted(gpu, left_out).items():
                        error = float(np.abs(p - own.speed).mean())
                        rank, best = priced.spearman(p, own.speed), priced.best_of(own, p)
                        made.append(_Line(title.lower(), left_out, gpu, name, error, rank, best))
    return _NOTE + "\n".join([*map(str, made), "", _verdict(made), "", _noise(ways.rows)])


def _verdict(made: list[_Line]) -> str:
    """Say which methods are better than the formula on every type of GPU, in error and partners."""
    formula = {(m.state, m.left_out, m.gpu): m for m in made if m.method == _FORMULA}
    lines = []
    for left_out in ("type", "families", "type and families"):
        better: dict[str, int] = {}
        of = [m for m in made if m.left_out == left_out and m.method != _FORMULA]
        for m in of:
            bar = formula[m.state, m.left_out, m.gpu]
            better[m.method] = better.get(m.method, 0) + (m.error < bar.error and m.best > bar.best)
        cases = len(of) // len(better)
        most = max(better, key=lambda name: better[name])
        lines.append(
            f"- {left_out} left out: the best of them ({most}) has the smaller error and the "
            f"better partners in {better[most]} of {cases} cases."
        )
    return "\n".join([*lines, "", "One that is better in all cases would be in use; none is."])


def _noise(rows: priced.Rows) -> str:
    """Return what no formula of the loads can be better than, as far as the data show it."""
    at = {(gpu, *names): i for i, (gpu, names) in enumerate(zip(rows.gpu, rows.names, strict=True))}
    other = [
        abs(rows.speed[i] - rows.speed[j])
        for (gpu, *names), i in at.items()
        if gpu == "v100" and (j := at.get(("p100", *names))) is not None
    ]
    return (
        "How well a pair could be known: on the other type of GPU the same pair of the same "
        f"configurations runs at a speed that differs by {np.mean(other):.3f} in the mean "
        f"({len(other)} sides of pairs). So a type of GPU that was left out is not predicted "
        "to within the bar of 0.08 even by a measurement of the very pair on the other type. No "
        "pair was measured twice, so that the noise of one measurement is not known."
    )
