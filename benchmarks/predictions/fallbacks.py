"""Other ways to price pairs where neither the type of GPU nor the families were seen.

Each learns from pairs of the other type of GPU; where families are left out as well, from pairs
without both families of the pair that is asked about. None is in use.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from benchmarks.interference import Matrix, measured_pairs
from benchmarks.predictions import pairs as priced
from predictor.equations import taken_turns, time_shared_speed
from predictor.interference import PAIR_FEATURES
from predictor.pairs import MeasuredPair
from predictor.selection import Learner
from predictor.training import table

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

_NOTE = """## Pairs: ways that were tried, and are not in use

Shrinkage, powers and the size of trees were fixed before the first run. `type`: learned from the
other type of GPU, on the same models. `type and families`: also without both families of each pair,
as the models of a new cluster are. *Two resources*: the loss of a pair is a weighted sum of the
losses by busy time, FLOPs and bandwidth, of weights that are not negative. *Half of a model*: the
mean of the formula and a monotone XGBoost. Used only where both loads are near those that were
trained on, that mean loses as well: 20 to 86 % of the pairs of a family that was left out are near.
Where families are left out, none of them chooses better partners than the formula on both types of
GPU, and the formula stays in use.

| utilisations | left out | type of GPU | method | MAE of speed | rank correlation | best of 8 |
|---|---|---|---|---|---|---|
"""


class _Ways:
    def __init__(self, pairs: list[MeasuredPair], slope: float) -> None:
        self.rows = priced.rows_of(pairs)
        found = table(pairs).features
        self._columns = {name: found[:, i] for i, name in enumerate(PAIR_FEATURES)}
        self._features = np.column_stack([self._columns[name] for name in _COLUMNS])
        self._formula = priced.in_turns(self.rows, time_shared_speed(self.rows.total) ** slope)
        self._total = priced.in_total(self.rows, self._formula)[0].speed
        self.ways: dict[str, Callable[[Bools, Bools], Floats]] = {
            "formula (in use)": lambda _, asked: self._formula[asked],
            "two resources": self._two_resources,
            "ridge on the formula's residual": self._ridge,
            "Gaussian process on the formula's residual": self._process,
            "monotone XGBoost": self._trees,
            "half of a model": self._half,
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

    def predicted(self, gpu: str, *, families: bool) -> dict[str, Floats]:
        """Return the speeds of the rows of a type of GPU, by method."""
        rows = self.rows
        here = rows.gpu == gpu
        found = {name: np.empty(len(rows.speed)) for name in self.ways}
        cells: list[tuple[Bools, Bools]] = [(~here, here)]
        if families:
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
                cells.append((~here & ~unseen, asked))
        for seen, asked in cells:
            for name, way in self.ways.items():
                found[name][asked] = np.clip(way(seen, asked), _SLOWEST, 1.0)
        return {name: speeds[here] for name, speeds in found.items()}


def section(matrix: Matrix) -> str:
    """Return a line for each state of knowledge, what was left out, type of GPU and method."""
    from threadpoolctl import threadpool_limits

    made = []
    with threadpool_limits(1):  # the tables are small: threads would only wait for one another
        for title, measured_solo, slope in priced.STATES:
            ways = _Ways(measured_pairs(matrix, measured_solo=measured_solo), slope)
            for left_out in ("type", "type and families"):
                for gpu in np.unique(ways.rows.gpu):
                    own = ways.rows.of(ways.rows.gpu == gpu)
                    for name, p in ways.predicted(gpu, families=left_out != "type").items():
                        made.append(
                            f"| {title.lower()} | {left_out} | {gpu} | {name} | "
                            f"{np.abs(p - own.speed).mean():.3f} | "
                            f"{priced.spearman(p, own.speed):+.2f} | "
                            f"{priced.best_of(own, p):.0%} |"
                        )
    return _NOTE + "\n".join(made)
