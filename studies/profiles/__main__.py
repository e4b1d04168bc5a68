"""`make results`: the figures of docs/evidence/results.md, each from a run with its seed.

Data come from TANDEM_SHARED_DATA. A cell is one profile on one trace with one seed; cells are kept
under .out/results; `--reuse` takes those that are there (after an interrupted run), `--kept` writes
the page of them alone. `--promised` runs the profiles that promises are made of, and writes
docs/evidence/results/promised.md: a part of the page that is short enough for every change of a
profile.
"""

from __future__ import annotations

import argparse
import os
import platform
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.pages import write
from benchmarks.tables import load_trace, markdown
from studies.profiles.grid import (
    ABLATION,
    CLUSTERS,
    FREE_PREEMPTION,
    HELD_OUT,
    PROMISED,
    ROOT,
    SEEDS,
    TUNED_ON,
    Cell,
    cells,
    run_missing,
)
from studies.profiles.plain import mean_jct, parting
from tandem.policy.catalog import Profile, load_profile, profile_names
from tandem.simulator.cluster import parse_cluster
from tandem.simulator.jobs import TraceJob
from tandem.simulator.run import Setup, run_profile

TEMPLATE = Path(__file__).with_name("results.template.md")
KNOW_THE_FUTURE = ("sjf", "srtf", "srsf", "sjf-ffs", "sjf-bsbf")
INDEPENDENT = {  # FIFO, SRTF, SRSF, 2D-LAS by another group's simulator, mean JCT in seconds
    "philly-103959": (97_980, 33_224, 33_965, 43_216),
    "philly-0e4a51": (1_408_372, 205_898, 195_115, 376_415),
    "muri-trace3": (991_167, 180_116, 172_684, 312_870),
}
THRESHOLDS = (3250.0, 7200.0)


def orderings() -> str:
    """Run orderings against an independent simulator: no interference, no costs, one pool."""
    las = load_profile("tiresias-l-list").model_dump()
    las["order"]["thresholds_gpu_s"] = THRESHOLDS
    systems = [load_profile(n) for n in ("fifo", "srtf", "srsf")] + [Profile.model_validate(las)]
    rows = []
    for trace, theirs in INDEPENDENT.items():
        jobs = load_trace(trace)
        nodes = parse_cluster(CLUSTERS[trace])
        found = [run_profile(Setup(jobs, (nodes,)), s).report.avg_jct_s for s in systems]
        plain = [(job.submit_s, job.gpus, job.duration_s) for job in jobs]
        found.append(mean_jct(plain, nodes.count * nodes.gpus, "late", THRESHOLDS))
        expected = (*theirs, theirs[-1])
        figures = [
            f"{o:,.0f} ({round(o / e - 1, 3) + 0.0:+.1%})"
            for o, e in zip(found, expected, strict=True)
        ]
        rows.append([f"{trace}, {CLUSTERS[trace]}", *figures])
    columns = ["trace, cluster", "FIFO", "SRTF", "SRSF", "2D-LAS, 3 queues", "2D-LAS, demoted late"]
    return markdown(columns, rows)


def where_they_part() -> str:
    """Find the first moment at which 2D-LAS with and without late demotions runs other jobs."""
    rows = []
    for trace in INDEPENDENT:
        jobs = load_trace(trace)
        nodes = parse_cluster(CLUSTERS[trace])
        plain = [(job.submit_s, job.gpus, job.duration_s) for job in jobs]
        parted = parting(plain, nodes.count * nodes.gpus, THRESHOLDS)
        assert parted is not None
        at_s, ours, theirs = parted
        rows.append(
            [trace, f"{at_s:,.2f}", *(", ".join(_job(jobs[j]) for j in w) for w in (theirs, ours))]
        )
    return markdown(["trace", "seconds", "kept by the late one", "started by ours"], rows)


def _job(job: TraceJob) -> str:
    return f"job {job.id} ({job.gpus} GPUs, submitted at {job.submit_s:,.0f})"


def prediction_error() -> str:
    """Measure how far off the believed slowdowns are, over the seeds."""
    errors = []
    for seed in SEEDS:
        setup = Cell("tandem", "philly-ed69ec", seed).setup()
        error = setup.world(setup.gpus(shares=2)).prediction_error
        assert error is not None
        errors.append(error)
    return f"{np.mean(errors):.1%}"


class Results:
    """The figures of all cells that are kept."""

    def __init__(self, wanted: Sequence[Cell]) -> None:
        found = {cell: cell.figures() for cell in wanted}
        self.figures = {cell: figures for cell, figures in found.items() if figures is not None}

    def on(self, gpu: str) -> Results:
        """Return the figures of the cells with that type of GPU."""
        return Results([cell for cell in self.figures if cell.gpu == gpu])

    def of(self, name: str, trace: str, less: str | None = None) -> dict[int, dict[str, float]]:
        """Return the figures by seed."""
        return {
            c.seed: f
            for c, f in self.figures.items()
            if (c.name, c.trace, c.less) == (name, trace, less)
        }

    def ratios(self, name: str, figure: str, less: str | None = None) -> dict[str, np.ndarray]:
        """Return a figure relative to tiresias-l-list's on the same seed, by trace, (seeds,)."""
        out = {}
        for trace in CLUSTERS:
            base, mine = self.of("tiresias-l-list", trace), self.of(name, trace, less)
            both = sorted(base.keys() & mine.keys())
            out[trace] = np.array([mine[s][figure] / base[s][figure] for s in both])
        return out

    def row(self, name: str, less: str | None = None) -> tuple[float | None, list[str]]:
        """Return the geometric mean over the traces, and the columns that all tables have."""
        ratios = self.ratios(name, "avg_jct_s", less)
        mean = None
        if all(len(r) for r in ratios.values()):
            mean = float(np.exp(np.mean([np.log(r.mean()) for r in ratios.values()])))
        runs = [f for trace in CLUSTERS for f in self.of(name, trace, less).values()]
        speed = f"{np.mean([run['mean_speed'] for run in runs]):.3f}" if runs else "-"
        tails = [r.mean() for r in self.ratios(name, "p99_jct_s", less).values() if len(r)]
        seeds = sorted({len(r) for r in ratios.values()})
        return mean, [
            "-".join(str(n) for n in {seeds[0]: 0, seeds[-1]: 0}),
            f"{mean:.3f}" if mean else "-",
            *(_spread(r) for r in ratios.values()),
            f"{max(tails):.2f}" if tails else "-",
            speed,
            str(int(sum(run["ooms"] for run in runs))) if runs else "-",
        ]


_COLUMNS = ["seeds", "geometric mean", *CLUSTERS, "p99, worst trace", "mean speed", "OOMs"]


def measured(results: Results, names: Sequence[str]) -> str:
    """Profiles with measured interference, relative to tiresias-l-list on the same seed."""
    rows = []
    for name in names:
        mean, columns = results.row(name)
        mark = " *" if name in KNOW_THE_FUTURE else " †" if name in FREE_PREEMPTION else ""
        rows.append((mean or float("inf"), [name + mark, *columns]))
    rows.sort(key=lambda row: row[0])
    return markdown(["profile", *_COLUMNS], [row for _, row in rows])


def bars(results: Results) -> str:
    """Hold `tandem` and `tandem-guarded` against what they have to reach."""
    mean, speeds = {}, {}
    for name in ("tandem", "tandem-guarded"):
        mean[name] = results.row(name)[0] or float("nan")
        runs = [f["mean_speed"] for t in CLUSTERS for f in results.of(name, t).values()]
        speeds[name] = float(np.mean(runs))

    def average(name: str, trace: str, figure: str = "avg_jct_s") -> float:
        found = results.ratios(name, figure)[trace]
        return float(found.mean()) if len(found) else float("nan")

    blind = [n for n in profile_names() if n not in (*KNOW_THE_FUTURE, "tandem", "tandem-guarded")]
    next_best = {t: min(blind, key=lambda n, t=t: average(n, t)) for t in CLUSTERS}  # type: ignore[misc]
    ooms = sum(f["ooms"] for t in CLUSTERS for f in results.of("tandem", t).values())
    rows = [
        ["tandem", "geometric mean", "at most 0.65 (stretch 0.58)", f"{mean['tandem']:.3f}"],
        *(
            [
                "tandem",
                f"mean on {t}",
                f"at most srtf's {average('srtf', t):.3f}; best without knowledge: "
                f"{next_best[t]}, {average(next_best[t], t):.3f}",
                f"{average('tandem', t):.3f}",
            ]
            for t in CLUSTERS
        ),
        *(
            ["tandem", f"p99 on {t}", "at most 1", f"{average('tandem', t, 'p99_jct_s'):.3f}"]
            for t in CLUSTERS
        ),
        ["tandem", "out of memory", "never", f"{ooms:.0f}"],
        ["tandem-guarded", "geometric mean", "at most 0.78", f"{mean['tandem-guarded']:.3f}"],
        ["tandem-guarded", "mean speed", "at least 0.93", f"{speeds['tandem-guarded']:.3f}"],
    ]
    return markdown(["profile", "figure", "bar", "reached"], rows)


def ablation(results: Results) -> str:
    """`tandem` less each of its parts, on the seeds that all of them have been run with."""
    every = [set(results.of("tandem", trace, part)) for trace in CLUSTERS for part in ABLATION]
    alike = Results([cell for cell in results.figures if cell.seed in set.intersection(*every)])
    rows = [["nothing taken away", *alike.row("tandem")[1]]]
    rows += [[part, *alike.row("tandem", part)[1]] for part in ABLATION]
    return markdown(["less", *_COLUMNS], rows)


def provenance(results: Results, command: str = "python -m studies.profiles") -> str:
    """Say where the cells come from: command, machine, commits."""
    commits = Counter(str(figures["commit"]) for figures in results.figures.values())
    states = ", ".join(f"{commit} ({count} runs)" for commit, count in commits.most_common())
    hours = sum(figures["wall_s"] for figures in results.figures.values()) / 3600
    return (
        f"{len(results.figures)} runs by `{command}`, {hours:.1f} hours of one "
        f"process in all; {platform.system()} {platform.machine()}, {os.cpu_count()} cores shared "
        f"with other work, Python {platform.python_version()}, numpy {np.__version__}. "
        f"Commit: {states}."
    )


def _spread(values: np.ndarray) -> str:
    if len(values) == 0:
        return "-"
    return f"{values.mean():.3f}" + (f" ± {values.std():.3f}" if len(values) > 1 else "")


_PROMISED = """# The promised profiles at the present code

{provenance}

The profiles that promises are made of, and what they are compared with, on the traces, clusters and
draws of [results](../results.md), which has the columns explained, and the other profiles. There a
run of all profiles takes hours, so that its rows may be of an earlier commit; the last line says
which. Relative to `tiresias-l-list` on the same seed; `*` knows the durations.

## V100, on which the profiles were tuned

{tuned}

## P100, on which none was

{held_out}
"""


def write_promised(every: Results) -> None:
    """Write docs/evidence/results/promised.md."""
    write(
        "promised",
        _PROMISED.format(
            provenance=provenance(every, "python -m studies.profiles --promised"),
            tuned=measured(every.on(TUNED_ON), PROMISED),
            held_out=measured(every.on(HELD_OUT), PROMISED),
        ),
    )


def main() -> None:
    """Run what is asked for and write docs/evidence/results.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reuse", action="store_true", help="take the cells that are there")
    parser.add_argument("--kept", action="store_true", help="write of what is there, run nothing")
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many, from 0")
    parser.add_argument("--promised", action="store_true", help="the promised profiles alone")
    parser.add_argument("--note", default="", help="what else is to be known of these runs")
    arguments = parser.parse_args()
    wanted = cells(SEEDS[: arguments.seeds])
    if arguments.promised:
        wanted = [cell for cell in wanted if cell.name in PROMISED and cell.less is None]
    if not arguments.kept:
        run_missing(wanted, processes=arguments.processes, reuse=arguments.reuse)
    every = Results(wanted)
    if arguments.promised:
        write_promised(every)
        return
    results, held_out = every.on(TUNED_ON), every.on(HELD_OUT)
    text = TEMPLATE.read_text()
    for name, section in {
        "orderings": orderings(),
        "where_they_part": where_they_part(),
        "prediction_error": prediction_error(),
        "measured": measured(results, profile_names()),
        "held_out": measured(held_out, PROMISED),
        "bars": bars(results),
        "ablation": ablation(results),
        "provenance": f"{provenance(every)} {arguments.note}".rstrip(),
    }.items():
        text = text.replace("{" + name + "}", section)
    (ROOT / "docs" / "evidence" / "results.md").write_text(text)


if __name__ == "__main__":
    main()
