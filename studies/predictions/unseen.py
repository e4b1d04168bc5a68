"""The simulator with models that no prediction knows, and what learning gives back.

    python -m studies.predictions.unseen DATA [--jobs 1000] [--seeds 1] [--page FILE]

Every pair is out of the domain: the policies believe what the predictor plans with where it has
the graphs alone and no learned model. Memory is predicted by its upper bound, off by as much as the
bound of a measured configuration is off (`carma`, `miso`), one drawn for each model.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import PrivateAttr

from predictor.interference.model import Interference
from predictor.load.sources import OBSERVED_MEMORY_P95_FACTOR
from studies.predictions import loads, runs
from studies.predictions.interference import load_of
from studies.predictions.measured import V100, measured
from tandem.contracts.prediction import InterferenceRequest
from tandem.contracts.resources import Source
from tandem.policy.adjust.learn import Learn
from tandem.policy.board import Board
from tandem.policy.catalog import load_profile
from tandem.policy.job import Job
from tandem.policy.pipeline import Pipeline
from tandem.policy.units import Floats
from tandem.simulator.cluster import gpu_arrays, parse_cluster
from tandem.simulator.engine import Engine, RunOptions
from tandem.simulator.gavel import PairMatrix, load_matrix
from tandem.simulator.jobs import TraceJob
from tandem.simulator.traces import read_trace
from tandem.simulator.world import World, measured_world

_MATRIX = Path("colocation") / "gavel-oracle-v100-p100.json"
_TRACE = Path("traces") / "philly-103959.csv"
_CLUSTER = "4x8"
_RESERVED = 2  # classes before the first model: empty slot, unknown
#: How much longer completion may take than with perfect predictions.
_BAR = 0.05
#: Jobs after which learning is to have brought the rest near to perfect predictions.
LEARNED = 500


@dataclass(frozen=True)
class Outcome:
    """Mean completion of all jobs and of those after `LEARNED`, seconds; kills; the error.

    Of a shorter trace the second half counts.
    """

    case: str
    all_s: float
    later_s: float
    kills: int
    error: float  # mean relative, of the time next to a neighbour that was planned with


def planned_slowdowns(names: Sequence[str], solo_steps_s: dict[str, float] | None = None) -> Floats:
    """Return (models, models): what a cycle plans with, by the formula for V100s.

    Without `solo_steps_s` only the graphs are known, and the lower bound counts. With the measured
    steps/s of each model alone, utilisation and time are measured, and the estimate counts.
    """
    pricing = Interference()
    if solo_steps_s is None:
        known = [load_of(name, "v100", None)[1] for name in names]
    else:
        measured_as = {"utilisation_source": Source.OBSERVED}
        known = [
            load_of(name, "v100", solo_steps_s[name])[1].model_copy(update=measured_as)
            for name in names
        ]
    return np.array(
        [
            [
                pair.planned[0]
                for pair in pricing.answer(InterferenceRequest(job=job, candidates=known)).pairs
            ]
            for job in known
        ]
    )


def memory_factors(data: Path) -> Floats:
    """Return bound over measured peak of every configuration that was measured as a process."""
    rows = loads.known(measured(data))
    found = [
        row
        for source in ("carma", "miso")
        for row in loads.memory([r for r in rows if r.memory_bytes and r.source == source])
    ]
    return np.array([row.bound / row.measured for row in found])


def believed_pairs(world: World) -> Floats:
    """Return a live view of what is believed of each pair of models, (models, models)."""
    table = world.believed[0].own_slowdown
    assert table is not None
    base = table.base
    assert isinstance(base, np.ndarray)
    view: Floats = base[_RESERVED:, _RESERVED:]
    return view


def outcome(
    case: str,
    trace: Sequence[TraceJob],
    matrix: PairMatrix,
    solo_steps_s: dict[str, float],
    factors: Floats,
    seed: int,
) -> Outcome:
    """Run one case: `tiresias-l`, `tandem` with perfect predictions, unseen models, and learning.

    `solo_steps_s` has what a model that has run is known to do alone; `factors` are those of
    memory, of which each model draws one.
    """
    gpus = gpu_arrays([parse_cluster(_CLUSTER)], shares=2)
    world = measured_world(trace, gpus, matrix, seed=seed, belief_error=0.0)
    believed = list(world.believed)
    view, off = believed_pairs(world), np.ones(len(matrix.names))
    if case not in ("tiresias-l", "perfect"):
        view[:] = planned_slowdowns(matrix.names)
        off = np.random.default_rng(seed).choice(factors, len(matrix.names))
        most = float(gpus.memory_capacity_gib.min())
        believed = [
            _bounded(job, off[job.interference_class - _RESERVED], most) for job in believed
        ]
    profile, options = (
        load_profile("tiresias-l" if case == "tiresias-l" else "tandem"),
        RunOptions(),
    )
    if case == "learning":
        learning = _Learning(view, matrix.names, solo_steps_s, world)
        loop = _LearnMemory.of(learning, world.believed)
        options = RunOptions(learner=loop, on_progress=learning)
    out = Engine(trace, believed, gpus, profile, world.truth, seed=seed, options=options).run()
    completion = out.end_s - out.submit_s
    later = completion[min(LEARNED, len(completion) // 2) :]
    fits = matrix.fits
    error = np.abs((1 + view[fits]) / (1 + matrix.slowdown[fits]) - 1).mean()
    return Outcome(
        case, float(completion.mean()), float(later.mean()), int(out.ooms.sum()),
        float(error),
    )  # fmt: skip


class _Learning:
    """What the predictor learns while jobs run, and what each pair is planned with then.

    As many jobs as have ended, in the order of arrival, have measured their models alone. A pair
    whose slowdown the loop has corrected was measured, and its correction stays. Every other pair
    is priced again as the service does: with what was observed of its models, also at other batch
    sizes, and with what the pairs measured so far show of the type of GPU.
    """

    def __init__(
        self, view: Floats, names: Sequence[str], solo_steps_s: dict[str, float], world: World
    ) -> None:
        self._view, self._names = view, names
        self._alone = [load_of(name, "v100", solo_steps_s[name])[1] for name in names]
        self._models = np.array([job.interference_class - _RESERVED for job in world.believed])
        self._cluster = runs.Cluster(V100)
        self._known = np.zeros(len(names), dtype=np.bool_)
        self._met = np.zeros(view.shape, dtype=np.bool_)
        self._planned, self._fed_back = view.copy(), np.full(view.shape, np.nan)

    def __call__(self, ended: int) -> None:
        """Take in the end of a job and what was measured since the one before it."""
        self._met |= self._view != self._planned
        known = self._known.copy()
        known[self._models[:ended]] = True
        shown = self._met & known & known[:, None] & (self._view != self._fed_back)
        news = np.flatnonzero(shown.any(axis=1) | (known & ~self._known))
        for own in news:
            at = np.flatnonzero(shown[own])
            neighbours = {self._names[i]: max(float(self._view[own, i]), 0.0) for i in at}
            self._cluster.ran(self._names[own], self._alone[own], neighbours)
        self._known = known
        self._fed_back[shown] = self._view[shown]
        if len(news):
            self._price_again()

    @property
    def has_run(self) -> NDArray[np.bool_]:
        """Whether a run of each job's model was measured, (jobs,)."""
        known: NDArray[np.bool_] = self._known[self._models]
        return known

    def _price_again(self) -> None:
        loads = [self._cluster.load(name) for name in self._names]
        priced = np.array(
            [[pair.planned[0] for pair in self._cluster.price(job, loads)] for job in loads]
        )
        self._planned[~self._met] = priced[~self._met]
        self._view[~self._met] = priced[~self._met]


class _LearnMemory(Learn):
    """The loop, which also plans the memory of waiting jobs with that of their model's runs.

    As the predictor does with what was observed, it plans with a tenth more than the peak.
    """

    _learning: _Learning = PrivateAttr()
    _measured: Sequence[Job] = PrivateAttr()
    _corrected: NDArray[np.bool_] = PrivateAttr()

    @classmethod
    def of(cls, learning: _Learning, measured: Sequence[Job]) -> Self:
        """Return the loop of a run; `measured` are its jobs with the memory that they take."""
        loop = cls()
        loop._learning, loop._measured = learning, measured
        loop._corrected = np.zeros(len(measured), dtype=np.bool_)
        return loop

    def __call__(self, board: Board, pipeline: Pipeline) -> bool:
        """Correct memory and predictions; say whether any has changed enough to decide anew."""
        most = float(board.gpus.memory_capacity_gib.min())
        fresh = self._learning.has_run & ~board.on_gpus & ~self._corrected
        for index in np.flatnonzero(fresh):
            peak = _bounded(self._measured[index], OBSERVED_MEMORY_P95_FACTOR, most).memory_base_gib
            board.change(index, replace(board.jobs[index], memory_base_gib=peak))
        self._corrected |= fresh
        return super().__call__(board, pipeline) or bool(fresh.any())


def _bounded(job: Job, factor: float, most: float) -> Job:
    """Return a job with the upper bound of its memory in place of what it is."""
    peak = min((job.memory_base_gib + job.memory_peak_extra_gib) * factor, most)
    return replace(job, memory_base_gib=peak, memory_peak_extra_gib=0.0, peak_probability=0.0)


def section(found: Sequence[Sequence[Outcome]], jobs: int) -> str:
    """Return the section of the page; `found` has the cases of each seed."""
    lines = [_NOTE.format(jobs=jobs, seeds=len(found))]
    for index, case in enumerate(CASES):
        of_case = [cases[index] for cases in found]
        apart = [
            run.later_s / cases[CASES.index("perfect")].later_s - 1
            for run, cases in zip(of_case, found, strict=True)
        ]
        lines.append(
            f"| {case} | {np.mean([r.all_s for r in of_case]):,.0f} | "
            f"{np.mean([r.later_s for r in of_case]):,.0f} | {np.mean(apart):+.1%} | "
            f"{_range(apart)} | {sum(r.kills for r in of_case)} | "
            f"{np.mean([r.error for r in of_case]):.0%} |"
        )
    return "\n".join(lines) + "\n"


def _range(apart: Sequence[float]) -> str:
    """Return the least and the most, and in how many seeds the bar holds."""
    within = sum(each <= _BAR for each in apart)
    return f"{min(apart):+.1%} to {max(apart):+.1%} | {within} of {len(apart)}"


CASES = ("tiresias-l", "perfect", "unseen", "learning")
_NOTE = """## Unseen models in the simulator

{seeds} seed(s) from 0, the first {jobs} jobs of the Philly trace 103959 on 4 x 8 GPUs, models
drawn from Gavel's V100 matrix, memory **synthetic**. *Unseen*: every pair is planned with the lower
bound of time sharing from the graphs alone, and memory with an upper bound that is as far off as a
measured one. *Learning*: measured slowdowns correct the predictions while jobs run. Once models
have run, every pair that was not measured is priced again as the service does (what was observed of
its models, what the type of GPU has shown), and memory is planned with what was observed and a
tenth more. The bars: not worse than `tiresias-l`, no kill, and within 5 % of perfect predictions
after 500 jobs. Means over the seeds; the difference to perfect predictions is that of the jobs
after the 500th: mean, least and most, and the seeds in which it is 5 % at most. The error is that
of the time next to a neighbour in the end.

| case | mean completion, s | after the 500th job, s | to perfect | range | within 5 % | killed for memory | error |
|---|---|---|---|---|---|---|---|"""  # noqa: E501
_HEAD = """# Predictions in use: unseen models, and what learning gives back

Written by `python -m studies.predictions.unseen DATA --seeds 24 --page
docs/evidence/results/unseen-models.md`.
Simulated time does not depend on the machine. How good single predictions are:
[predictions.md](predictions.md).
"""


def main() -> None:
    """Print the page, or write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    trace = read_trace(options.data / _TRACE, strict=True).jobs[: options.jobs]
    matrix = load_matrix(options.data / _MATRIX)
    factors = memory_factors(options.data)
    table = json.loads((options.data / _MATRIX).read_text())["v100"]
    solo = {name: float(table[name]["null"]) for name in matrix.names}
    found = []
    for seed in range(options.seeds):
        found.append([outcome(case, trace, matrix, solo, factors, seed) for case in CASES])
        print(found[-1], flush=True)
    matrices = json.loads((options.data / _MATRIX).read_text())
    text = "\n".join([_HEAD, section(found, options.jobs), runs.section(matrices, 260, 3)])
    if options.page:
        options.page.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
