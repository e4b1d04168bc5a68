"""Profiles in cells of traces x matrices x loads x errors x seeds.

    python -m studies.profiles.cells [--grid small|medium|full|gain|windows|fresh] [--write]

A cell that was run is kept as JSON under .out/cells, so that a grid may be run over many sessions:
each call runs what is missing, the first seed of all cells first, and may be stopped at any time.
With `--write`, docs/evidence/results/cells.md is written from what is kept; for the grid `windows`,
other parts of the measured traces than their first jobs, it is docs/evidence/results/windows.md,
and for the grid `fresh`, larger cells with seeds on which nothing was chosen,
docs/evidence/results/fresh.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.drawn import SHAPES, drawn_trace
from benchmarks.pages import made_by, write
from benchmarks.plot import lines
from benchmarks.tables import markdown
from studies.profiles.workloads import matrix, measured_trace
from tandem.policy.catalog import Profile, load_profile
from tandem.simulator.cluster import gpu_arrays, parse_cluster
from tandem.simulator.engine import Engine, RunOptions
from tandem.simulator.report import report
from tandem.simulator.run import learner_of
from tandem.simulator.world import measured_world

KEPT = Path(__file__).parents[2] / ".out" / "cells"
MEASURED = ("philly-103959", "philly-ed69ec", "philly-0e4a51", "muri-trace3")
#: Profiles that know no durations, apart from `srtf`.
PROFILES = ("tiresias-l-list", "srtf", "tandem", "tandem-guarded", "horus", "c-greedy", "las-order")
#: What leave-one-out chooses among: the knobs of `tandem` that have no unit of a trace.
CANDIDATES: dict[str, dict[str, Any]] = {
    "tandem": {},
    "tandem min_gain=0": {"min_gain": 0.0},
    "tandem aging=0": {"aging": 0.0},
    "tandem gang_weight=0": {"gang_weight": 0.0},
    "tandem turn_share=none": {"turn_share": None},
    "tandem preempt_factor=2.5": {"preempt_factor": 2.5},
    "tandem preempt_factor=5": {"preempt_factor": 5.0},
}
PROMISED_SPEED = 0.73
#: What two jobs on a GPU do together, in units of what one does alone.
GAINS = tuple(f"{total:.1f}" for total in np.arange(0.9, 1.75, 0.1))
UNKNOWING = ("tiresias-l-list", "horus", "c-greedy", "las-order")  # of durations
WITHIN, MOST_P99 = 1.02, 1.05
GAIN_PROFILES = ("tandem", "tiresias-l-list", "srtf", "sjf-bsbf")


#: Load and error of the prediction, by grid; then cluster, jobs and seeds.
_CONDITIONS = {
    "small": [(1.0, 0.07)],
    "medium": [(1.0, 0.07), (1.0, 0.25), (1.5, 0.07), (0.6, 0.07)],
    "full": list(product((0.6, 1.0, 1.5), (0.0, 0.07, 0.25, 0.5))),
}
_SIZES = {
    "small": ("2x8", 120, range(1)),
    "medium": ("4x8", 240, range(5)),
    "full": ("8x8", 400, range(5)),
    "fresh": ("8x8", 400, range(10, 13)),
}
_TITLES = {
    "windows": "Windows of traces",
    "fresh": "Cells that nothing was chosen on",
}
_CHOSEN = """Two settings of `tandem`, `aging` and `turn_share`, were chosen on the runs of
[cells](cells.md) and [windows](windows.md)
([decision 88](../../decisions/0088-age-counts-for-more-turns-for-less.md)). [Cells that nothing was
chosen on](fresh.md) are larger and have other seeds."""
#: Parts of traces, and jobs.
_WINDOWS = (
    *((f"philly-ed69ec@{k}", 300) for k in range(3)),
    *((f"philly-103959@{k}", 300) for k in range(5)),
    *((f"philly-0e4a51@{k}", 300) for k in range(4)),
    *((f"muri-trace3@{k}", 300) for k in range(3)),
    ("philly-ed69ec", 480), ("philly-ed69ec", 600), ("philly-103959", 600), ("muri-trace3", 480),
    *((kind, 300) for kind in SHAPES),
    *((f"pollux-1.5-{k}", 240) for k in range(1, 5)),
    *((f"pollux-realistic-{k}", 160) for k in range(1, 5)),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cell:
    """One profile in one cell with one seed. `error` is relative; None: a cross-fitted model."""

    profile: str
    trace: str
    matrix: str
    load: float
    error: float | None
    seed: int
    cluster: str
    jobs: int

    @property
    def path(self) -> Path:
        """Where its figures are kept."""
        name = "--".join(str(part).replace(" ", "_") for part in asdict(self).values())
        return KEPT / f"{name}.json"

    @property
    def where(self) -> tuple[object, ...]:
        """What it shares with the other profiles of its cell."""
        return (self.trace, self.matrix, self.load, self.error, self.seed, self.cluster, self.jobs)

    def figures(self) -> dict[str, float] | None:
        """Return what is kept, or None."""
        return json.loads(self.path.read_text()) if self.path.exists() else None


def profile_of(name: str) -> Profile:
    """Return a shipped profile, a candidate, or `las-order`: `tandem` that never shares."""
    if name == "las-order":
        changes: dict[str, Any] = {"share": False, "learn": False, "aging": 0.0, "gang_weight": 0.0}
    elif name in CANDIDATES:
        changes = CANDIDATES[name]
    else:
        return load_profile(name)
    profile = load_profile("tandem")
    return profile.model_copy(update={"dispatch": profile.dispatch.model_copy(update=changes)})


def run(cell: Cell) -> dict[str, float]:
    """Run one cell; return its figures."""
    profile = profile_of(cell.profile)
    gpus = gpu_arrays((parse_cluster(cell.cluster),), shares=profile.max_jobs_per_gpu)
    draw = {"jobs": cell.jobs, "gpus": len(gpus), "load": cell.load}
    if cell.trace in SHAPES:
        trace = drawn_trace(cell.trace, cell.seed, **draw)  # type: ignore[arg-type]
    else:
        trace = measured_trace(cell.trace, **draw)  # type: ignore[arg-type]
    world = measured_world(
        trace, gpus, matrix(cell.matrix, cell.seed), seed=cell.seed, belief_error=cell.error
    )
    started = time.process_time()
    engine = Engine(
        trace, world.believed, gpus, profile, world.truth, seed=cell.seed,
        options=RunOptions(learner=learner_of(profile, world)),
    )  # fmt: skip
    outcome = engine.run()
    spent = time.process_time() - started
    found = report(outcome, world.truth, len(gpus), spent)
    speed = (outcome.duration_s + outcome.overhead_s) / outcome.run_s
    return {
        **found.as_json(),
        "slow_share": float((speed < PROMISED_SPEED).mean()),
        "cpu_s": spent,
        "rounds": outcome.rounds,
    }


def keep(cell: Cell) -> Cell:
    """Run one cell and keep its figures; an interrupted run leaves no half of a cell."""
    partial = cell.path.with_suffix(".partial")
    partial.write_text(json.dumps(run(cell)))
    partial.rename(cell.path)
    return cell


def cells(grid: str) -> Iterator[Cell]:
    """Yield the cells of a grid, seed by seed."""
    names = (*PROFILES, *(name for name in CANDIDATES if name != "tandem" and grid != "fresh"))
    if grid == "gain":
        for seed, total, name in product(range(3), GAINS, GAIN_PROFILES):
            yield Cell(name, "heavy", f"gain-{total}", 1.1, 0.07, seed, "2x8", 200)
        return
    if grid == "windows":
        for load, kind, (trace, jobs) in product((1.0, 1.5), ("nothing", "v100"), _WINDOWS):
            for name in PROFILES:
                yield Cell(name, trace, kind, load, 0.07, 0, "4x8", jobs)
        return
    small = grid == "small"
    traces = ("heavy", "light", "gangs", *MEASURED[:2]) if small else (*SHAPES, *MEASURED)
    matrices = ("v100", "nothing") if small else ("v100", "p100", "nothing", "gain-1.5", "bully")
    cluster, jobs, seeds = _SIZES[grid]
    conditions = _CONDITIONS["medium" if grid == "fresh" else grid]
    for seed, (load, error) in product(seeds, conditions):
        for kind, trace, name in product(matrices, traces, names):
            yield Cell(name, trace, kind, load, error, seed, cluster, jobs)


Relative = dict[tuple[str, tuple[object, ...]], float]


def relative(wanted: Sequence[Cell], figure: str) -> Relative:
    """Return a figure over that of `tiresias-l-list` in the same cell, by profile and cell."""
    base = {cell.where: cell.figures() for cell in wanted if cell.profile == "tiresias-l-list"}
    found = {}
    for cell in wanted:
        mine, other = cell.figures(), base.get(cell.where)
        if mine is not None and other is not None:
            found[cell.profile, cell.where] = mine[figure] / other[figure]
    return found


def geometric(values: Sequence[float]) -> float:
    """Return the geometric mean; not a number where there is nothing."""
    return float(np.exp(np.mean(np.log(values)))) if len(values) else float("nan")


def left_out(mean: Relative, part: int) -> list[list[str]]:
    """Return, for each trace (part 0) or matrix (1), what the choice made without it comes to."""
    rows = []
    for value in dict.fromkeys(where[part] for _, where in mean):

        def over(name: str, *, inside: bool, value: object = value) -> float:
            some = [v for (n, w), v in mean.items() if n == name and (w[part] == value) == inside]
            return geometric(some)

        known = [name for name in CANDIDATES if not np.isnan(over(name, inside=False))]
        if not known:
            continue
        chosen = min(known, key=lambda name: over(name, inside=False))
        best = min(known, key=lambda name: over(name, inside=True))
        own, least = over(chosen, inside=True), over(best, inside=True)
        rows.append([str(value), chosen, f"{own:.3f}", best, f"{own / least - 1:+.1%}"])
    return rows


def gains() -> str:
    """Return the table of the grid `gain`, and draw it; nothing where it was not run."""
    wanted = list(cells("gain"))
    mean = relative(wanted, "avg_jct_s")
    found = {
        (name, total): [v for (n, at), v in mean.items() if (n, at[1]) == (name, f"gain-{total}")]
        for name, total in product(GAIN_PROFILES, GAINS)
    }
    if not all(found.values()):
        return ""
    speeds = [float(total) for total in GAINS]
    lines(
        "cells-gain",
        {
            name: (speeds, [geometric(found[name, total]) for total in GAINS])
            for name in GAIN_PROFILES
        },
        "speed of two jobs on a GPU, relative to one alone",
        "mean completion / tiresias-l-list",
    )
    rows = [
        [total, *(f"{geometric(found[name, total]):.3f}" for name in GAIN_PROFILES)]
        for total in GAINS
    ]
    first = wanted[0]
    return (
        "## By what sharing gains\n\n"
        "Each pair of jobs together is so many times as fast as one job alone (`gain-1.2`: 1.2\n"
        f"times). Trace `{first.trace}`, {first.jobs} jobs on {first.cluster} GPUs at load "
        f"{first.load:g}, error {first.error:.0%}; geometric mean\nof "
        f"{len({cell.seed for cell in wanted})} seeds. `srtf` and `sjf-bsbf` know the durations.\n"
        "\n"
        + markdown(["speed of a pair", *GAIN_PROFILES], rows)
        + "\n\n![Mean completion time by what sharing gains](cells-gain.svg)"
    )


def _place(where: tuple[object, ...]) -> tuple[object, ...]:
    """Return the cell without its seed: trace, matrix, load, error and jobs."""
    return (*where[:4], where[6])


def over_seeds(found: Relative) -> Relative:
    """Return the geometric mean over the seeds of each profile and cell."""
    by_place: dict[tuple[str, tuple[object, ...]], list[float]] = {}
    for (name, where), value in found.items():
        by_place.setdefault((name, _place(where)), []).append(value)
    return {key: geometric(values) for key, values in by_place.items()}


def short(mean: Relative, late: Relative) -> list[list[str]]:
    """Return the cells in which a profile of ours misses a bar, with the figures over all seeds."""
    mean, late = over_seeds(mean), over_seeds(late)
    rows = []
    for name in ("tandem", "tandem-guarded"):
        for place in (at for n, at in mean if n == name):
            least = min(mean[other, place] for other in UNKNOWING if (other, place) in mean)
            own, tail = mean[name, place], late[name, place]
            if own > WITHIN * least or tail > MOST_P99:
                trace, kind, load, error, jobs = place
                cell = [str(trace), str(kind), f"{load:g}", f"{error:.0%}", str(jobs)]
                rows.append([name, *cell, f"{own / least:.3f}", f"{tail:.2f}"])
    return rows


def page(grid: str, wanted: Sequence[Cell]) -> str:
    """Return the page of what is kept, of seeds with which every profile of a cell has run."""
    first = min(cell.seed for cell in wanted)
    all_of = len({cell.profile for cell in wanted})
    has_run = Counter(cell.where for cell in wanted if cell.figures() is not None)
    count, wanted = len(wanted), [cell for cell in wanted if has_run[cell.where] == all_of]
    mean, late = relative(wanted, "avg_jct_s"), relative(wanted, "p99_jct_s")
    names = list(dict.fromkeys(cell.profile for cell in wanted))
    in_cell = over_seeds(mean)
    places = list(dict.fromkeys(place for _, place in in_cell))
    table, kept = [], [cell for cell in wanted if cell.figures() is not None]
    for place in places:
        row = [*map(str, place[:2]), f"{place[2]:g}", f"{place[3]:.0%}", str(place[4])]
        for name in names:
            found = in_cell.get((name, place))
            row.append("-" if found is None else f"{found:.3f}")
        table.append(row)
    overall = []
    for name in names:
        mine = [cell.figures() or {} for cell in kept if cell.profile == name]
        if not mine:
            continue
        overall.append([
            name,
            f"{geometric([v for (n, _), v in mean.items() if n == name]):.3f}",
            f"{max((v for (n, _), v in mean.items() if n == name), default=np.nan):.3f}",
            f"{max((v for (n, _), v in late.items() if n == name), default=np.nan):.2f}",
            f"{np.mean([each['mean_speed'] for each in mine]):.3f}",
            f"{max(each['slow_share'] for each in mine):.1%}",
            f"{sum(each['preemptions'] for each in mine):,.0f}",
            f"{sum(each['ooms'] for each in mine):.0f}",
        ])  # fmt: skip
    chosen = [] if grid in _TITLES else [
        "## Chosen without the trace, or the matrix, that it is judged on",
        "For each trace and each matrix, the candidate that is best in all other cells, its mean\n"
        "there, and how much worse that is than the candidate that is best there.",
        markdown(["left out", "chosen", "mean", "best there", "worse by"],
                 left_out(mean, 0) + left_out(mean, 1)),
    ]  # fmt: skip
    made = made_by(f"python -m studies.profiles.cells --grid {grid} --write", f"seeds from {first}")
    return "\n\n".join([
        f"# {_TITLES.get(grid, 'Cells')}",
        f"{made} "
        f"{len(kept)} of {count} runs of the grid are in it, seed by seed.\n\n"
        "Mean completion time relative to `tiresias-l-list` on the same jobs, cluster and seed.\n"
        "Traces\n"
        "`heavy`, `light`, `bursts` and `gangs` are drawn; the others are the first jobs of\n"
        "measured traces, or those after k times as many (`@k`), or Pollux' workloads with its\n"
        "measured times of a step (`pollux-`). Arrivals are stretched to the load. `nothing` is a\n"
        "matrix on which a pair is as fast as one job after the other. `srtf` knows the\n"
        "durations; `las-order` is `tandem` that never shares, learns nothing, and has no weight\n"
        "for age and size. The error is that of the predicted time next to another job.",
        *([] if grid == "fresh" else [_CHOSEN]),
        markdown(["trace", "matrix", "load", "error", "jobs", *names], table),
        "## Over all cells",
        markdown(
            ["profile", "geometric mean", "worst run", "p99, worst run", "mean speed",
             "jobs below 73 % of solo speed, worst run", "preemptions", "OOMs"],
            overall,
        ),
        *chosen,
        "## Where our profiles fall short",
        f"Cells in which the mean is more than {WITHIN - 1:.0%} above the least of "
        f"{', '.join(f'`{name}`' for name in UNKNOWING)},\nor the 99th percentile above "
        f"{MOST_P99:g} times that of `tiresias-l-list`.",
        markdown(
            ["profile", "trace", "matrix", "load", "error", "jobs", "mean / least", "p99"],
            short(mean, late),
        ),
        "" if grid in _TITLES else gains(),
        "Measurements of single decisions of the order are in [order.md](order.md).",
    ]) + "\n"  # fmt: skip


def main() -> None:
    """Run what is missing of a grid, and write the page where asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grid", choices=(*_SIZES, "gain", "windows"), default="small")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--write", action="store_true")
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="stop after so many; 0: run nothing"
    )
    arguments = parser.parse_args()
    wanted = list(cells(arguments.grid))
    end = time.monotonic() + 60 * arguments.minutes
    KEPT.mkdir(parents=True, exist_ok=True)
    missing = [cell for cell in wanted if not cell.path.exists() and arguments.minutes > 0]
    with ProcessPoolExecutor(arguments.processes) as pool:
        for done, cell in enumerate(pool.map(keep, missing), 1):
            print(f"{done}/{len(missing)} {cell}", file=sys.stderr, flush=True)
            if time.monotonic() > end:
                pool.shutdown(wait=False, cancel_futures=True)
                break
    if arguments.write:
        write(
            arguments.grid if arguments.grid in _TITLES else "cells", page(arguments.grid, wanted)
        )


if __name__ == "__main__":
    main()
