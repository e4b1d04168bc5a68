"""What wrong predictions cost, and what of it learning gives back: studies.learning's errors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from benchmarks.tables import data_folder, load_trace, markdown
from tandem.policy.adjust.learn import Learn
from tandem.policy.catalog import Profile, load_profile
from tandem.policy.units import Floats
from tandem.simulator.cluster import parse_cluster
from tandem.simulator.report import Report
from tandem.simulator.run import Setup, run_profile

TRACES = {"philly-103959": "2x8", "philly-ed69ec": "1x8"}  # a load of about 1.05
FIRST = 250  # jobs of each trace
ERRORS = (0.25, 0.5)
BOTH = "both"
#: How the loop may learn: as it does, and otherwise.
WAYS = {
    "a look each 60 s, half its weight to the newest": Learn(),
    "a look each 20 s": Learn(every_s=20.0),
    "the newest look alone": Learn(weight_of_past=0.0),
    "a new round only when a slowdown has changed by 0.2": Learn(notable=0.2),
}
WAYS_ERROR = 0.25


def with_loop(profile: Profile, learn: Learn | None = None) -> Profile:
    """Return the profile with online learning."""
    return profile.model_copy(update={"adjust": learn or Learn()})


def errors(seeds: int) -> list[dict[str, float | str]]:
    """Run `tandem` with exact and with wrong predictions, without the loop and with it."""
    plain = load_profile("tandem")
    rows: list[dict[str, float | str]] = []
    for seed, trace in product(range(seeds), TRACES):
        for error, loop in [(0.0, False), *product(ERRORS, (False, True))]:
            profile = with_loop(plain) if loop else plain
            rows.append({"trace": trace, "seed": seed, "error": error, "loop": loop,
                         **_run(trace, seed, error, profile)})  # fmt: skip
            print(rows[-1], flush=True)
    return rows


def ways(seeds: int) -> list[dict[str, float | str]]:
    """Run `tandem` with wrong predictions and the loop in its ways."""
    plain = load_profile("tandem")
    rows: list[dict[str, float | str]] = []
    for seed, trace, (way, learn) in product(range(seeds), TRACES, WAYS.items()):
        found = _run(trace, seed, WAYS_ERROR, with_loop(plain, learn))
        rows.append({"trace": trace, "seed": seed, "way": way, **found})
        print(rows[-1], flush=True)
    return rows


def _run(trace: str, seed: int, error: float, profile: Profile) -> dict[str, float]:
    setup = Setup(
        load_trace(trace)[:FIRST],
        (parse_cluster(TRACES[trace]),),
        data_folder() / "colocation" / "gavel-oracle-v100-p100.json",
        seed,
        belief_error=error,
        learns=False,  # but for the profiles with a loop of their own
    )
    return figures(run_profile(setup, profile).report)


def figures(found: Report) -> dict[str, float]:
    """Return what is kept of a run."""
    return {
        "jct": found.avg_jct_s,
        "speed": found.mean_speed,
        "moves": found.migrations,
        "preemptions": found.preemptions,
    }


def errors_table(rows: Sequence[dict[str, float]]) -> str:
    """Return one line for each trace and error, and for both traces; means over seeds."""
    lines = []
    for trace in (*TRACES, BOTH):
        of = [row for row in rows if trace in (row["trace"], BOTH)]
        for error, loop in [(0.0, False), *product(ERRORS, (False, True))]:
            here = [row for row in of if (row["error"], row["loop"]) == (error, loop)]
            what = f"{error:.0%}" + (f", {'with the' if loop else 'no'} loop" if error else "")
            jct, speed = (_change(of, key, error, loop) for key in ("jct", "speed"))
            back = " / ".join(_back(of, key, error) for key in ("jct", "speed")) if loop else "-"
            lines.append(
                [
                    trace,
                    what,
                    f"{mean(here, 'jct'):,.0f}" + (f" ({spread(jct)})" if error else ""),
                    f"{mean(here, 'speed'):.3f}" + (f" ({spread(speed)})" if error else ""),
                    back,
                    f"{mean(here, 'moves'):,.0f}",
                    f"{mean(here, 'preemptions'):,.0f}",
                ]
            )
    columns = ["trace", "error of the predictions", "mean completion, s", "mean speed",
               "won back of completion / of speed", "moves", "preemptions"]  # fmt: skip
    return markdown(columns, lines)


def ways_table(rows: Sequence[dict[str, float]], others: Sequence[dict[str, float]]) -> str:
    """Return one line for each way; `others` are the rows of `errors`, for the same jobs."""
    exact = {(r["trace"], r["seed"]): r for r in others if r["error"] == 0}
    by_way = {"no loop": [r for r in others if r["error"] == WAYS_ERROR and not r["loop"]]}
    runs = {(r["trace"], r["seed"]) for r in rows}
    by_way["no loop"] = [r for r in by_way["no loop"] if (r["trace"], r["seed"]) in runs]
    by_way |= {way: [r for r in rows if r["way"] == way] for way in WAYS}
    lines = []
    for way, found in by_way.items():
        changes = [
            np.array([r[what] / exact[r["trace"], r["seed"]][what] - 1 for r in found])
            for what in ("jct", "speed")
        ]
        lines.append([way, *map(spread, changes), f"{mean(found, 'moves'):,.0f}"])
    return markdown(["", "mean completion", "mean speed", "moves"], lines)


def _change(rows: Sequence[dict[str, float]], what: str, error: float, loop: bool) -> Floats:
    """Return by how much each run differs from the same jobs under exact predictions."""
    exact = {(r["trace"], r["seed"]): r[what] for r in rows if r["error"] == 0}
    found = [r for r in rows if (r["error"], r["loop"]) == (error, loop)]
    return np.array([r[what] / exact[r["trace"], r["seed"]] - 1 for r in found])


def _back(rows: Sequence[dict[str, float]], what: str, error: float) -> str:
    """Return the share of an error's cost that the loop wins back.

    - where the cost is not distinguishable from none: it is less than its own standard error.
    """
    off, learned = (_change(rows, what, error, loop) for loop in (False, True))
    cost = off.mean() * (1 if what == "jct" else -1)
    if cost <= _error_of_mean(off):
        return "-"
    return f"{1 - learned.mean() / off.mean():.0%}"


def spread(changes: Floats) -> str:
    """Return the mean of relative changes, ± its standard error."""
    return f"{changes.mean():+.1%} ± {_error_of_mean(changes):.1%}"


def _error_of_mean(values: Floats) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def mean(rows: Sequence[dict[str, float]], what: str, **at: object) -> float:
    """Return the mean of a figure over the rows that are `at`."""
    return float(np.mean([r[what] for r in rows if all(r[k] == v for k, v in at.items())]))
