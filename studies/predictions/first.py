"""What first predictions do to sharing: their spread, and which pairs may share unmeasured.

Two truths. The pairs of Gavel are **measured** (V100, P100): there each type of GPU counts as one
on which no model was trained. On every other type nothing was measured: there the truth is the
demo's, nine models with utilisations that were **chosen by hand** and a published curve.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import NDArray

from benchmarks.tables import Table, tables_of
from predictor.graph.features import extract_features
from predictor.interference.model import Interference
from predictor.interference.pairs import MeasuredPair
from predictor.load.model import open_predictor
from predictor.load.predictor import Predictor
from studies.predictions.interference import Matrix, measured_pairs
from tandem.contracts.prediction import InterferenceRequest, PairSlowdown, PredictRequest
from tandem.contracts.resources import GraphFeatures, Load
from tandem.policy.catalog import load_profile
from tandem_demo.physics import slowdown
from tandem_demo.workload import JOBS, DemoJob, graph_files

Floats = NDArray[np.float64]

TYPES = ("Tesla V100-SXM2-16GB", "Tesla T4", "NVIDIA L4", "NVIDIA A10", "NVIDIA GeForce RTX 4090")
_HALF = 50.0  # percent of the pairs that gain
#: CPUs of a pod of the demo, and of one that asks for none.
CPUS: tuple[float | None, ...] = (2.0, None)
_GAVEL = {"v100": "V100", "p100": "P100"}


@cache
def graphs() -> dict[str, GraphFeatures]:
    """Return the features of the demo's models."""
    return {name: extract_features(file.read_bytes()) for name, file in graph_files().items()}


def jobs() -> dict[str, DemoJob]:
    """Return the demo's first job of each model."""
    found: dict[str, DemoJob] = {}
    for job in JOBS:
        found.setdefault(job.model, job)
    return found


def loads_of(predictor: Predictor, gpu: str, cpus: float | None) -> list[Load]:
    """Return what is predicted of the demo's models on a type of GPU."""
    return [
        predictor.predict(
            PredictRequest(model=name, batch_size=job.batch_size, gpu_model=gpu, cpus=cpus),
            graphs()[name],
            name,
        ).load
        for name, job in jobs().items()
    ]


def spread_of(percent: Sequence[float]) -> float:
    """Return the interquartile range."""
    low, high = np.quantile(np.asarray(percent, dtype=np.float64), (0.25, 0.75))
    return float(high - low)


@dataclass(frozen=True)
class Shared:
    """Pairs by their true sum of speeds, (pairs,), and by what a cycle would plan with.

    `slower` (pairs, 2) is how many times as long the jobs of a pair take.
    """

    true_total: Floats
    planned_total: Floats
    slower: Floats

    @property
    def may_share(self) -> NDArray[np.bool_]:
        """Whether the default policy may let them share."""
        share = load_profile("tandem").dispatch
        return np.asarray(self.planned_total >= 1 + float(getattr(share, "min_gain", 0.1)))

    @property
    def gain(self) -> NDArray[np.bool_]:
        """Whether sharing is truly worth what the default policy asks of it."""
        share = load_profile("tandem").dispatch
        return np.asarray(self.true_total >= 1 + float(getattr(share, "min_gain", 0.1)))


def _planned(pair: PairSlowdown) -> float:
    own, partner = pair.planned
    return 1 / (1 + own) + 1 / (1 + partner)


def demo_pairs(predictor: Predictor, gpu: str, cpus: float | None) -> Shared:
    """Return the demo's 45 pairs on a type of GPU that no model of pairs knows."""
    names, pricing = list(jobs()), Interference()
    loads = dict(zip(names, loads_of(predictor, gpu, cpus), strict=True))
    true, planned, slower = [], [], []
    for one, other in combinations_with_replacement(names, 2):
        request = InterferenceRequest(job=loads[one], candidates=[loads[other]], gpu_model=gpu)
        planned.append(_planned(pricing.answer(request).pairs[0]))
        own, partner = jobs()[one].utilisation, jobs()[other].utilisation
        both = [slowdown(each, own + partner) for each in (own, partner)]
        true.append(sum(1 / each for each in both))
        slower.append(both)
    return Shared(np.array(true), np.array(planned), np.array(slower))


def gavel_pairs(pairs: Sequence[MeasuredPair]) -> Shared:
    """Return measured pairs, priced as on a type of GPU that no model of pairs knows."""
    pricing = Interference()
    true, planned, slower = [], [], []
    for pair in pairs:
        sides = pair.first, pair.second
        request = InterferenceRequest(job=sides[0].load, candidates=[sides[1].load])
        planned.append(_planned(pricing.answer(request).pairs[0]))
        speeds = [min(side.speed, 1.0) for side in sides]
        true.append(sum(speeds))
        slower.append([1 / speed for speed in speeds])
    return Shared(np.array(true), np.array(planned), np.array(slower))


_NOTE = """## First predictions and sharing

Nine models of the demo, as its pods ask (2 CPUs) and without a word on CPUs. Their "true"
utilisations were **chosen by hand** (34 to 74 %, interquartile range {chosen:.0f} points): no GPU
ran them. The bar: the range of the predictions is within a factor of two of that.

| type of GPU | CPUs | lowest, median, highest | interquartile range | formula alone |
|---|---|---|---|---|
"""
_SHARE_NOTE = """
Pairs of which nothing was measured, on a type of GPU that no model of pairs knows. *May share*: of
the pairs that truly gain a tenth of a GPU, those that the default policy (`min_gain`) lets share.
The bar is a half. The bound that goes with it: nine of ten such pairs run at least as fast together
as they are planned with. *Harm* is measured on those that may share: gain less than a tenth, lose
(the sum of speeds is below 1), and how many times as long the slower job of a pair takes. Of the
demo's pairs on types without measurements, the truth is the demo's own curve.

| truth | type of GPU | CPUs | pairs | truly gain | may share of these | gain less | lose | slower, median | slower, 95 % |
|---|---|---|---|---|---|---|---|---|---|
"""  # noqa: E501


def _line(truth: str, gpu: str, cpus: str, shared: Shared) -> str:
    may, gain = shared.may_share, shared.gain
    worst = shared.slower.max(axis=1)[may]
    less, lose = (
        (float((shared.true_total[may] < bar).mean()) if may.any() else 0.0) for bar in (1.1, 1.0)
    )
    slower = np.quantile(worst, (0.5, 0.95)) if may.any() else (1.0, 1.0)
    return (
        f"| {truth} | {gpu} | {cpus} | {len(may)} | {gain.mean():.0%} | "
        f"{may[gain].mean():.0%} | {less:.0%} | {lose:.0%} | {slower[0]:.2f} | {slower[1]:.2f} |"
    )


def section(matrix: Matrix) -> str:
    """Return the spread of the demo's predictions, and which pairs may share."""
    shipped, formula = open_predictor(None), Predictor()
    chosen = spread_of([job.utilisation for job in jobs().values()])
    lines, pairs = [], []
    for gpu in TYPES:
        for cpus in CPUS:
            said, bare = (
                [load.utilisation_percent for load in loads_of(p, gpu, cpus)]
                for p in (shipped, formula)
            )
            asked = "-" if cpus is None else f"{cpus:.0f}"
            low, middle, high = np.quantile(said, (0, 0.5, 1))
            lines.append(
                f"| {gpu} | {asked} | {low:.0f}, {middle:.0f}, {high:.0f} % | "
                f"{spread_of(said):.0f} | {spread_of(bare):.0f} |"
            )
            pairs.append(_line("demo", gpu, asked, demo_pairs(shipped, gpu, cpus)))
    every = measured_pairs(matrix, measured_solo=False)
    for name, gpu in _GAVEL.items():
        here = gavel_pairs([pair for pair in every if pair.gpu_model == name])
        pairs.append(_line("measured (Gavel)", gpu, "-", here))
    head = _NOTE.format(chosen=chosen) + "\n".join(lines)
    share = _SHARE_NOTE + "\n".join(pairs)
    (spreads,), (shares,) = tables_of(head), tables_of(share)
    return f"{head}\n{share}\n\n{outside(spreads, shares, chosen)}"


def outside(spreads: Table, shares: Table, chosen: float) -> str:
    """Return where the bars of both tables are not met, in words."""
    wide = [
        f"{row} ({found:.0f})"
        for row in spreads.rows
        if not chosen / 2 <= (found := spreads.figure(row, "interquartile range")) <= 2 * chosen
    ]
    few = [
        f"{row} ({found:.0f} %)"
        for row in shares.rows
        if (found := shares.figure(row, "may share of these")) < _HALF
    ]
    return textwrap.fill(
        f"Not within a factor of two of {chosen:.0f} points (type of GPU, CPUs):"
        f" {'; '.join(wide) or 'none'}. Fewer than half of the pairs that gain may share:"
        f" {'; '.join(few) or 'none'}.",
        100,
    )
