"""The simulator with models that no prediction knows, and what learning gives back.

    python -m benchmarks.predictions.unseen DATA [--jobs 1000] [--seeds 1] [--page FILE]

Every pair is out of the domain: the policies are told what the predictor plans with where it has
the graphs alone and no learned model. Memory is told as its upper bound, off by as much as the
bound of a measured configuration is off (`carma`, `miso`), one drawn for each model.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.interference import load_of
from benchmarks.predictions import loads, runs
from benchmarks.predictions.measured import measured
from predictor.interference import Interference
from tandem.contracts.prediction import InterferenceRequest
from tandem.contracts.resources import Source
from tandem.policy.adjust.learn import Learn
from tandem.policy.catalog import load_profile
from tandem.policy.job import Job
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
_RESERVED = 2  # classes before the first model: nobody, unknown
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


def told(world: World) -> Floats:
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
    view, off = told(world), np.ones(len(matrix.names))
    if case not in ("tiresias-l", "perfect"):
        view[:] = planned_slowdowns(matrix.names)
        off = np.random.default_rng(seed).choice(factors, len(matrix.names))
        most = float(gpus.memory_capacity_gib.min())
        believed = [
            _bounded(job, off[job.interference_class - _RESERVED], most) for job in believed
        ]
    on_progress = None
    if case == "learning":
        on_progress = _measured_by(view, planned_slowdowns(matrix.names, solo_steps_s), world)
    profile = load_profile("tiresias-l" if case == "tiresias-l" else "tandem")
    if case == "learning":
        profile = profile.model_copy(update={"adjust": Learn()})
    out = Engine(
        trace,
        believed,
        gpus,
        profile,
        world.truth,
        seed=seed,
        options=RunOptions(on_progress=on_progress),
    ).run()
    completion = out.end_s - out.submit_s
    later = completion[min(LEARNED, len(completion) // 2) :]
    fits = matrix.fits
    error = np.abs((1 + view[fits]) / (1 + matrix.slowdown[fits]) - 1).mean()
    return Outcome(
        case, float(completion.mean()), float(later.mean()), int(out.ooms.sum()),
        float(error),
    )  # fmt: skip


def _measured_by(view: Floats, estimate: Floats, world: World) -> Callable[[int], None]:
    """Return what follows the end of jobs: pairs of two measured models count by the estimate.

    As many jobs as have ended, in the order of arrival, have measured their models. What the loop
    has learned of a pair stays.
    """
    unseen = view.copy()
    models = np.array([job.interference_class - _RESERVED for job in world.believed])

    def note(ended: int) -> None:
        known = np.zeros(len(view), dtype=bool)
        known[models[:ended]] = True
        fresh = known[:, None] & known[None, :] & (view == unseen)
        view[fresh] = estimate[fresh]

    return note


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
            f"{run.later_s / cases[CASES.index('perfect')].later_s - 1:+.1%}"
            for run, cases in zip(of_case, found, strict=True)
        ]
        lines.append(
            f"| {case} | {np.mean([r.all_s for r in of_case]):,.0f} | "
            f"{np.mean([r.later_s for r in of_case]):,.0f} | {', '.join(apart)} | "
            f"{sum(r.kills for r in of_case)} | {np.mean([r.error for r in of_case]):.0%} |"
        )
    return "\n".join(lines) + "\n"


CASES = ("tiresias-l", "perfect", "unseen", "learning")
_NOTE = """## Unseen models in the simulator

{seeds} seed(s) from 0, the first {jobs} jobs of the Philly trace 103959 on 4 x 8 GPUs, models
drawn from Gavel's V100 matrix, memory **synthetic**. *Unseen*: every pair is planned with the lower
bound of time sharing from the graphs alone, and memory with an upper bound that is as far off as a
measured one. *Learning*: measured slowdowns correct the predictions while jobs run, and pairs of
models that have run are planned with the estimate of their measured utilisations; the memory is not
learned. The bars: not worse than `tiresias-l`, no kill, and within 5 % of perfect predictions after
500 jobs. Means over the seeds; the difference to perfect predictions, of the jobs after the 500th,
is that of each seed. The error is that of the time next to a neighbour in the end.

| case | mean completion, s | after the 500th job, s | to perfect | killed for memory | error |
|---|---|---|---|---|---|"""
_HEAD = """# Predictions in use: unseen models, and what learning gives back

Written by `python -m benchmarks.predictions.unseen DATA --page docs/results/unseen-models.md`.
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
