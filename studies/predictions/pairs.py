"""How well pairs are priced on a type of GPU that was left out.

The speeds are measured. The utilisations are derived, since no published file has them next to the
pairs: by the formula from the graph, or by the formula with the measured time of a step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.tables import markdown
from predictor.interference import effects
from predictor.interference.model import PREDICTED_SLOPE
from predictor.interference.pairs import MeasuredPair
from predictor.load.equations import taken_turns, time_shared_speed
from predictor.training.interference import table
from predictor.training.selection import candidates
from studies.predictions.interference import Matrix, measured_pairs
from tandem.policy.equations.horus import slowdown_over_commit

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
_LEVEL = 0.95
_PARTNERS, _DRAWS, _SEED = 8, 4000, 0
#: Pairs after which what a type of GPU has shown counts as much as the formula.
_PRIOR = 8.0
#: Share of a data sheet's bandwidth that kernels reach.
_REACHED_BANDWIDTH = 0.7
#: Pairs that a type of GPU has shown, and draws of them.
_SHOWN, _ORDERS = 24, 10
_POWERS = (0.0, 0.1, 0.2, 0.3, 0.4)


@dataclass(frozen=True)
class Rows:
    """Both directions of each pair: speed, loads, the families and names of both.

    `loads` is (rows, 2, 3): utilisation (percent), share of bandwidth and time of a step (s) of the
    job and of its partner.
    """

    speed: Floats
    loads: Floats
    job: NDArray[np.str_]
    partner: NDArray[np.str_]
    names: list[tuple[str, str]]
    gpu: NDArray[np.str_]

    @property
    def total(self) -> Floats:
        """The sum of both utilisations, percent."""
        total: Floats = self.loads[:, :, 0].sum(axis=1)
        return total

    def of(self, keep: NDArray[np.bool_]) -> Rows:
        """Return some of the rows."""
        names = [self.names[i] for i in np.flatnonzero(keep)]
        return Rows(self.speed[keep], self.loads[keep], self.job[keep], self.partner[keep],
                    names, self.gpu[keep])  # fmt: skip


def rows_of(pairs: list[MeasuredPair]) -> Rows:
    """Return the pairs as columns."""
    found: list[tuple[Any, ...]] = []
    for pair in pairs:
        for a, b in ((pair.first, pair.second), (pair.second, pair.first)):
            loads = [
                (s.load.utilisation_percent, s.load.bandwidth_share, s.load.iteration_s)
                for s in (a, b)
            ]
            found.append((min(a.speed, 1.0), loads, a.family, b.family, (a.name, b.name),
                          pair.gpu_model))  # fmt: skip
    speed, loads, job, partner, names, gpu = zip(*found, strict=True)
    return Rows(np.array(speed), np.array(loads), np.array(job), np.array(partner), list(names),
                np.array(gpu))  # fmt: skip


def spearman(one: Floats, other: Floats) -> float:
    """Return the rank correlation; equal values share their mean rank. NaN for a constant."""

    def ranks(x: Floats) -> Floats:
        _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
        return (np.cumsum(counts) - (counts - 1) / 2)[inverse]

    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return float("nan")
    return float(np.corrcoef(ranks(one), ranks(other))[0, 1])


def spread(rows: Rows, predicted: Floats, keep: NDArray[np.bool_]) -> float:
    """Return the upper quantile of log(predicted / measured), each family of equal weight."""
    over = np.log(predicted[keep] / np.maximum(rows.speed[keep], 1 / 21))
    _, group, counts = np.unique(rows.job[keep], return_inverse=True, return_counts=True)
    order = np.argsort(over)
    weight = np.cumsum((1 / counts[group])[order]) / len(counts)
    return float(over[order][min(int(np.searchsorted(weight, _LEVEL)), len(over) - 1)])


def coverage(rows: Rows, predicted: Floats) -> float:
    """Return the share above the lower bound, families of either side left out of its quantile."""
    held = 0
    for family in np.unique(rows.job):
        involved = (rows.job == family) | (rows.partner == family)
        own = rows.job == family
        bound = predicted[own] * np.exp(-max(spread(rows, predicted, ~involved), 0.0))
        held += int((rows.speed[own] >= bound).sum())
    return held / len(rows.speed)


def in_total(rows: Rows, predicted: Floats) -> tuple[Rows, Floats]:
    """Return the pairs with the sum of both speeds in the place of each, measured and predicted."""
    index = {name: i for i, name in enumerate(rows.names)}
    other = np.array([index[b, a] for a, b in rows.names])
    return replace(rows, speed=rows.speed + rows.speed[other]), predicted + predicted[other]


def best_of(rows: Rows, predicted: Floats) -> float:
    """Return how far the best of eight partners by prediction gets from random to oracle."""
    both: dict[str, dict[str, tuple[float, float]]] = {}
    index = {name: i for i, name in enumerate(rows.names)}
    for (a, b), i in index.items():
        j = index[b, a]
        both.setdefault(a, {})[b] = (
            rows.speed[i] + rows.speed[j], predicted[i] + predicted[j]
        )  # fmt: skip
    rng = np.random.default_rng(_SEED)
    total = np.zeros(3)
    jobs = sorted(name for name, others in both.items() if len(others) >= _PARTNERS)
    for _ in range(_DRAWS):
        others = both[jobs[rng.integers(len(jobs))]]
        names = sorted(others)
        drawn = [others[names[i]] for i in rng.choice(len(names), _PARTNERS, replace=False)]
        true, guess = np.array(drawn).T
        best = np.flatnonzero(guess >= guess.max() - 1e-9)
        total += true.mean(), true[best].mean(), true.max()
    random, ours, oracle = total / _DRAWS
    return float((ours - random) / (oracle - random))


def in_turns(rows: Rows, equal: Floats, power: float = 0.2) -> Floats:
    """Return the speed of each row's job, where `equal` is that of equal parts of the time."""
    own: Floats = taken_turns(equal, rows.loads[:, 0, 2], rows.loads[:, 1, 2], power)[:, 0]
    return own


def fitted_turns(rows: Rows, equal: Floats) -> Floats:
    """Return `in_turns` with the power that has the least error on the other type of GPU."""
    predicted = np.empty(len(equal))
    for gpu in np.unique(rows.gpu):
        here = rows.gpu == gpu
        seen, known = rows.of(~here), equal[~here]
        best = min(_POWERS, key=lambda p: np.abs(in_turns(seen, known, p) - seen.speed).mean())
        predicted[here] = in_turns(rows.of(here), equal[here], best)
    return predicted


def others(rows: Rows, slope: float) -> dict[str, Floats]:
    """Return formulas that were tried and are not in use."""
    own, partner = rows.loads[:, 0, 0] / 100, rows.loads[:, 1, 0] / 100
    bandwidth = rows.loads[:, :, 1].sum(axis=1) / _REACHED_BANDWIDTH
    fair = np.maximum(0.5, 1 - partner) / np.maximum(own, 1e-3)
    return {
        "max-min fair parts": ((1 + fair**-6.0) ** (-1 / 6)) ** slope,
        "time and bandwidth shared": (
            time_shared_speed(rows.total) * time_shared_speed(100 * bandwidth)
        )
        ** slope,
        "both busy at once, independently": 1 / (1 + slope * own * partner),
    }


def after_pairs(rows: Rows, equal: Floats, draw: int) -> tuple[Bools, dict[str, Floats]]:
    """Return which rows a type of GPU has shown, 24 of its pairs, and the speeds predicted then."""
    pairs = sorted({tuple(sorted(names)) for names in rows.names})
    chosen = np.random.default_rng(_SEED + draw).choice(len(pairs), _SHOWN, replace=False)
    seen = {pairs[i] for i in chosen}
    shown = np.array([tuple(sorted(names)) in seen for names in rows.names])
    model = [tuple(name.partition(" (")[0] for name in names) for names in rows.names]
    log_speed = np.log(np.maximum(rows.speed, 1 / 21))
    count = int(shown.sum())
    shift = (log_speed - np.log(equal))[shown].mean() * count / (count + _PRIOR)
    shifted = in_turns(rows, np.clip(equal * np.exp(shift), 1 / 21, 1.0))
    left = log_speed - np.log(shifted)
    found = effects.fitted([(*model[i], float(left[i])) for i in np.flatnonzero(shown)])
    none = effects.Effect()
    own = np.array([found.get(a, none).own + found.get(b, none).caused for a, b in model])
    return shown, {
        "nothing shown": in_turns(rows, equal),
        "the type's shift": shifted,
        "the type's shift and the models' effects (in use)": np.clip(
            shifted * np.exp(own), 1 / 21, 1.0
        ),
    }


def after_section(title: str, pairs: list[MeasuredPair], slope: float) -> list[str]:
    """Return the lines of one state of knowledge: means over draws of the pairs that were shown."""
    rows, lines = rows_of(pairs), []
    for gpu in np.unique(rows.gpu):
        here = rows.of(rows.gpu == gpu)
        equal = time_shared_speed(here.total) ** slope
        figures: dict[str, list[tuple[float, float, float]]] = {}
        for draw in range(_ORDERS):
            shown, found = after_pairs(here, equal, draw)
            left = here.of(~shown)
            for name, predicted in found.items():
                p = predicted[~shown]
                figures.setdefault(name, []).append(
                    (np.abs(p - left.speed).mean(), spearman(p, left.speed), best_of(left, p))
                )
        for name, each in figures.items():
            error, rank, best = np.mean(each, axis=0)
            lines.append(f"| {title} | {gpu} | {name} | {error:.3f} | {rank:+.2f} | {best:.0%} |")
    return lines


def methods(rows: Rows, pairs: list[MeasuredPair], slope: float) -> dict[str, Floats]:
    """Return the predicted speeds by method; what is learned saw the other type of GPU only."""
    equal = time_shared_speed(rows.total) ** slope
    sharing = in_turns(rows, equal)
    horus = 1 / slowdown_over_commit(rows.total)
    learned = {name: np.empty(len(rows.speed)) for name in ("constant", "quadratic", "xgboost")}
    features = table(pairs)
    make: dict[str, Callable[[], Any]] = candidates()
    make["constant"] = make["mean"]
    for gpu in np.unique(rows.gpu):
        here = rows.gpu == gpu
        for name, out in learned.items():
            learner = make[name]()
            learner.fit(features.features[~here], features.speed[~here])
            out[here] = np.clip(learner.predict(features.features[here]), 1 / 21, 1.0)
    return {
        "constant (other type)": learned["constant"],
        "Horus' curve": horus,
        "quadratic (other type)": learned["quadratic"],
        "XGBoost (other type)": learned["xgboost"],
        **others(rows, slope),
        "time sharing, equal parts": equal,
        "time sharing in turns, power of the other type": fitted_turns(rows, equal),
        "time sharing in turns (in use)": sharing,
    }


def section(title: str, pairs: list[MeasuredPair], slope: float) -> str:
    """Return a table for one state of knowledge."""
    rows = rows_of(pairs)
    columns = [
        "type of GPU", "method", "MAE of speed", "rank correlation", "best of 8 partners",
        "above the lower bound", "sum above its bound",
    ]  # fmt: skip
    lines = []
    found = methods(rows, pairs, slope)
    for gpu in np.unique(rows.gpu):
        here = rows.gpu == gpu
        own = rows.of(here)
        for name, predicted in found.items():
            p = predicted[here]
            rank = spearman(p, own.speed)
            lines.append([
                gpu, name, f"{np.abs(p - own.speed).mean():.3f}",
                "-" if np.isnan(rank) else f"{rank:+.2f}", f"{best_of(own, p):.0%}",
                f"{coverage(own, p):.0%}", f"{coverage(*in_total(own, p)):.0%}",
            ])  # fmt: skip
    return f"### {title}\n\n{markdown(columns, lines)}\n"


_HEAD = """## Pairs

26 configurations of 7 families, alone and in pairs, on V100 and P100 (Gavel); both directions of
each pair. The speeds are **measured**, the utilisations **derived**: no published file has measured
utilisations next to measured pairs. Each type of GPU is left out in turn: what is learned saw only
the other. "Best of 8 partners" is how far the total speed gets from a random partner (0 %) to the
best one (100 %), over 4,000 draws, seed 0. The lower bound of a family's speeds is calibrated on
pairs that the family has no part in; 95 % are meant to lie above it. A scheduling cycle plans with
the lower bound of the sum of both speeds where a pair is out of distribution.

The bars are an error of 0.08, a rank correlation of 0.5 and 60 %. "In turns": of the sum of both
speeds, the job with the longer step gets more. The power of the ratio of the steps (0.2) was chosen
on all of these pairs; one row has the power with the least error on the other type. The sum, and so
the best partner, does not depend on it. Three other formulas were tried: none is in use.
"""


_AFTER = """### After 24 pairs of the type

A type of GPU shifts all of its pairs by what it has shown, and each model that ran there has two
effects on top, on its own speed and on its partners' (`predictor/interference/effects.py`). Means
over ten draws of 24 pairs, seeds 0 to 9, on the pairs that were not drawn; most of their models
were drawn. The weight of what was shown was fixed before the first run.

| utilisations | type of GPU | what was shown | MAE of speed | rank correlation | best of 8 |
|---|---|---|---|---|---|
"""


#: What is known of the jobs, whether their steps were measured, and the power of the formula.
STATES = (
    ("From the graph alone", False, PREDICTED_SLOPE),
    ("With the measured time of a step", True, 1.0),
)


def page(matrix: Matrix) -> str:
    """Return the tables for both states of knowledge."""
    parts, after = [_HEAD], []
    for title, measured_solo, slope in STATES:
        pairs = measured_pairs(matrix, measured_solo=measured_solo)
        parts.append(section(title, pairs, slope))
        after += after_section(title.lower(), pairs, slope)
    return "\n".join([*parts, _AFTER + "\n".join(after)])
