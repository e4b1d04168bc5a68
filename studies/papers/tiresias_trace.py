"""Tiresias on Philly traces: Table 1, Table 5, and the thresholds, queues and knobs of Fig. 14, 15.

    python -m studies.papers.tiresias_trace [--jobs 1934]

writes docs/evidence/results/tiresias-trace.md and its plot. Placement and preemption cost nothing,
as in the paper's own simulator. Tiresias-L and Tiresias-G have the same threshold everywhere.
"""

from __future__ import annotations

from benchmarks import plot
from benchmarks.pages import options, publish
from benchmarks.tables import Table, load_trace, markdown
from studies.papers.tiresias import jct_s, relative
from tandem.policy.catalog import Profile, load_profile
from tandem.policy.units import Floats
from tandem.simulator.cluster import parse_cluster
from tandem.simulator.run import Setup, run_profile

#: Table 5, relative to Tiresias-L: mean, median, 95th percentile.
PAPER_TRACE = {
    "yarn-cs": (2.41, 30.85, 1.25), "best-effort": (1.50, 9.03, 1.08), "srtf": (1.00, 1.00, 0.84),
    "gandiva": (2.00, 2.59, 2.08), "tiresias-g": (0.97, 1.00, 0.85),
}  # fmt: skip
#: Table 1, relative to SRSF.
PAPER_TABLE_1 = {"smallest-first": (1.52, 1.20, 3.45), "srtf": (1.03, 1.01, 1.55)}
PHILLY = {"philly-103959": "4x8", "philly-0e4a51": "6x8"}
HOUR = 3600.0
#: Fig. 14 and 15: thresholds in GPU-hours, numbers of queues, knobs of promotion.
THRESHOLDS = ((0.5,), (1.0,), (2.0,), (1.0, 2.0), (1.0, 2.0, 4.0))
KNOBS = (8.0,)


def with_order(name: str, **changes: object) -> Profile:
    """Return a profile with other values of its order."""
    values = load_profile(name).model_dump()
    values["order"] |= changes
    return Profile.model_validate(values)


def at_an_hour(name: str) -> Profile:
    """Return a profile as on the trace: Tiresias' threshold is an hour, for L and for G."""
    if name.startswith("tiresias"):
        return with_order(name, thresholds_gpu_s=(HOUR,))
    return load_profile(name)


def philly(jobs: int) -> tuple[str, str]:
    """Table 5 and Table 1 on three Philly clusters; draws Fig. 13 on the first."""
    table_5 = {name: [name] for name in PAPER_TRACE}
    table_1 = {name: [name] for name in PAPER_TABLE_1}
    samples: dict[str, Floats] = {}
    for trace, cluster in PHILLY.items():
        setup = Setup(load_trace(trace)[:jobs], (parse_cluster(cluster),))
        wanted = ["tiresias-l", "srsf", "smallest-first", *PAPER_TRACE]
        jct = {name: jct_s(run_profile(setup, at_an_hour(name)).outcome) for name in wanted}
        for table, base in ((table_5, "tiresias-l"), (table_1, "srsf")):
            for name, row in table.items():
                figures = relative(jct[name], jct[base])
                row.append(" / ".join(f"{f:.2f}" for f in figures))
        if not samples:
            samples = {n: of for n, of in jct.items() if n not in ("srsf", "smallest-first")}
    plot.distributions("tiresias-jct", samples, "completion time, s", logarithmic=True)
    columns = ["mean / median / 95th percentile", *PHILLY, "paper"]
    found = []
    for table, papers in ((table_5, PAPER_TRACE), (table_1, PAPER_TABLE_1)):
        rows = [[*row, " / ".join(f"{p:.2f}" for p in papers[n])] for n, row in table.items()]
        found.append(markdown(columns, rows))
    return found[0], found[1]


def sweeps(jobs: int) -> str:
    """Table of Fig. 14 and 15: thresholds, queues and promotion, of L and of G."""
    setup = Setup(load_trace("philly-103959")[:jobs], (parse_cluster("4x8"),))
    settings: list[tuple[str, dict[str, object]]] = [
        (
            f"K = {len(hours) + 1}: {', '.join(f'{h:g}' for h in hours)} h",
            {"thresholds_gpu_s": tuple(h * HOUR for h in hours)},
        )
        for hours in THRESHOLDS
    ]
    settings += [
        (f"K = 2: 1 h, PROMOTEKNOB {knob:g}",
         {"thresholds_gpu_s": (HOUR,), "promote_knob": knob})
        for knob in KNOBS
    ]  # fmt: skip
    rows: list[list[str]] = [[title] for title, _ in settings]
    for name in ("tiresias-l", "tiresias-g"):
        outcomes = [run_profile(setup, with_order(name, **of)).outcome for _, of in settings]
        base = jct_s(outcomes[1])
        for row, outcome in zip(rows, outcomes, strict=True):
            times = jct_s(outcome)
            row.append(" / ".join(f"{f:.2f}" for f in relative(times, base)))
            row += [f"{times.max() / base.max():.2f}", f"{outcome.preemptions.sum():,}"]
    columns = ["setting"]
    for name in ("L", "G"):
        columns += [f"{name}: mean / median / 95th", "longest", "preemptions"]
    return markdown(columns, rows)


def main() -> None:
    """Write docs/evidence/results/tiresias-trace.md."""
    arguments = options(__doc__, jobs=1934)
    jobs = arguments.jobs
    table_5, table_1 = philly(jobs)
    settings = sweeps(jobs)
    publish(
        "tiresias-trace",
        PAGE,
        arguments,
        "no seed",
        table_5=table_5,
        table_1=table_1,
        sweeps=settings,
        jobs=jobs,
        **words(Table(table_5), Table(table_1), Table(settings)),
    )


def words(table_5: Table, table_1: Table, settings: Table) -> dict[str, str]:
    """Return the figures of the page's prose, from its tables."""

    def each(name: str, at: int = 0) -> list[float]:
        return table_5.across(name, PHILLY, at)

    mean, promoted = "L: mean / median / 95th", "K = 2: 1 h, PROMOTEKNOB 8"
    more_queues = [row for row in settings.rows if row.startswith(("K = 3", "K = 4"))]
    return {
        "yarn": " and ".join(f"{value:.1f}" for value in each("yarn-cs")),
        "best_effort": " and ".join(f"{value:.1f}" for value in each("best-effort")),
        "gandiva": " and ".join(f"{100 * (1 - value):.0f}" for value in each("gandiva")),
        "gandiva_median": " and ".join(f"{value:.1f}" for value in each("gandiva", 1)),
        "srtf": f"{max(100 * abs(v - 1) for v in table_1.across('srtf', PHILLY)):.0f}",
        "promotion": f"{100 * abs(settings.figure(promoted, mean, 2) - 1):.0f}",
        "queues": f"{max(100 * (1 - settings.figure(row, mean)) for row in more_queues):.0f}",
    }


PAGE = """# Tiresias on traces

{made_by}

Up to {jobs} jobs of each of two virtual clusters of the same company as the paper's trace, which
is private, at loads of their own. Placement and preemption cost nothing. L and G have the same
threshold, an hour.

## Schedulers (Table 5, Fig. 13)

Relative to Tiresias-L:

{table_5}

![Completion times on philly-103959](tiresias-jct.svg)

Reproduced: YARN-CS behind Tiresias-L by {yarn} times on average (paper: 2.41), best-effort by
{best_effort} (1.50), both by far more in the median and by little in the tail; L and G alike. Not
reproduced: SRTF level with Tiresias-L. These clusters are loaded throughout, so that it pays to
know the durations. The medians are ratios to jobs that hardly wait, so that they grow with the
load. Not reproduced either: Gandiva at twice Tiresias-L. Here its mean is {gandiva} % shorter,
while its median is {gandiva_median} times as long (paper: 2.59).

Table 1, relative to SRSF:

{table_1}

Reproduced: smallest-first is the last by far, and SRTF within {srtf} % of SRSF on average.

## Thresholds, queues and promotion (Fig. 14, 15)

philly-103959, 4x8; relative to K = 2 with one hour of the same system. Nothing is promoted where no
knob is named.

{sweeps}

Reproduced: half an hour is slightly worse than an hour; L and G hardly differ, whatever the
setting; promotion changes the 95th percentile by {promotion} %, and not the longest. Different:
more queues gain up to {queues} % of the mean, where the paper has 1 %.
"""


if __name__ == "__main__":
    main()
