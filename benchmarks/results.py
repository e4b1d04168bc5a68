"""`make results`: the figures of docs/results.md, each from a run with its seed.

Data come from TANDEM_SHARED_DATA. A cell is one profile on one trace with one seed; cells are kept
under .out/results; `--reuse` takes those that are there (after an interrupted run), `--kept` writes
the page of them alone.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.tables import data_folder, load_trace, markdown
from tandem.policy.catalog import Profile, load_profile, profile_names
from tandem.simulator.cluster import parse_cluster
from tandem.simulator.run import Setup, run_profile

ROOT = Path(__file__).parents[1]
CELLS = ROOT / ".out" / "results"
SEEDS = (0, 1, 2, 3, 4)
#: The profiles that promises are made of run with all seeds, the others with the first.
ALL_SEEDS = ("tandem", "tandem-guarded", "tiresias-l", "srtf")
CLUSTERS = {
    "philly-103959": "4x8",
    "philly-0e4a51": "6x8",
    "philly-ed69ec": "2x8",
    "muri-trace3": "8x8",
}
KNOW_THE_FUTURE = ("sjf", "srtf", "srsf", "sjf-ffs", "sjf-bsbf")
#: Slices as long as a preemption costs: no job would end.
LEFT_OUT = ("gandiva",)
#: What `tandem` is without each of its parts.
ABLATION = {
    "nothing taken away": {},
    "sharing": {"share": False},
    "preemption": {"preempt_factor": None},
    "moves": {"move_cost_s": None},
    "the best pair (order of worth instead)": {"best_pair": False},
    "the learned distribution (attained service alone)": {"learn": False},
}
INDEPENDENT = {  # FIFO, SRTF, SRSF, 2D-LAS by another group's simulator, mean JCT in seconds
    "philly-103959": (97_980, 33_224, 33_965, 43_216),
    "philly-0e4a51": (1_408_372, 205_898, 195_115, 376_415),
    "muri-trace3": (991_167, 180_116, 172_684, 312_870),
}


Cells = dict[str, dict[str, dict[int, dict[str, float]]]]  # profile -> trace -> seed -> figures


def cell(profile: Profile, name: str, trace: str, seed: int) -> dict[str, float]:
    """Run one profile on one trace with one seed; keep and return its figures."""
    matrix = data_folder() / "colocation" / "gavel-oracle-v100-p100.json"
    setup = Setup(load_trace(trace), (parse_cluster(CLUSTERS[trace]),), matrix, seed)
    figures = run_profile(setup, profile).report.as_json()
    CELLS.mkdir(parents=True, exist_ok=True)
    _path(name, trace, seed).write_text(json.dumps(figures))
    return figures


def grid(
    profiles: dict[str, Profile], seeds: Sequence[int], arguments: argparse.Namespace
) -> Cells:
    """Return the figures of all cells; with --reuse or --kept, those that are there are taken."""
    found: Cells = {name: {trace: {} for trace in CLUSTERS} for name in profiles}
    missing = []
    for name, trace, seed in product(profiles, CLUSTERS, seeds):
        path = _path(name, trace, seed)
        if (arguments.reuse or arguments.kept) and path.exists():
            found[name][trace][seed] = json.loads(path.read_text())
        else:
            missing.append((name, trace, seed))
    if arguments.kept:
        return found
    with ProcessPoolExecutor(arguments.processes) as pool:
        futures = {pool.submit(cell, profiles[key[0]], *key): key for key in missing}
        for done, future in enumerate(as_completed(futures), 1):
            name, trace, seed = futures[future]
            found[name][trace][seed] = future.result()
            print(f"{done}/{len(futures)} {name} {trace} {seed}", file=sys.stderr, flush=True)
    return found


def _path(name: str, trace: str, seed: int) -> Path:
    return CELLS / f"{name}--{trace}--{seed}.json"


def orderings() -> str:
    """Orderings against an independent simulator: no interference, no costs, one pool."""
    las = load_profile("tiresias-l").model_dump()
    las["order"]["thresholds_gpu_s"] = (3250.0, 7200.0)
    systems = [load_profile(n) for n in ("fifo", "srtf", "srsf")] + [Profile.model_validate(las)]
    rows = []
    for trace, theirs in INDEPENDENT.items():
        setup = Setup(load_trace(trace), (parse_cluster(CLUSTERS[trace]),))
        row = [f"{trace}, {CLUSTERS[trace]}"]
        for system, expected in zip(systems, theirs, strict=True):
            ours = run_profile(setup, system).report.avg_jct_s
            row.append(f"{ours:,.0f} ({ours / expected - 1:+.1%})")
        rows.append(row)
    return markdown(["trace, cluster", "FIFO", "SRTF", "SRSF", "2D-LAS, 3 queues"], rows)


def measured(arguments: argparse.Namespace) -> str:
    """All profiles with measured interference, relative to tiresias-l on the same seed."""
    names = [name for name in profile_names() if name not in LEFT_OUT]
    main = {n: load_profile(n) for n in ALL_SEEDS}
    others = {n: load_profile(n) for n in names if n not in ALL_SEEDS}
    found = grid(main, SEEDS, arguments) | grid(others, SEEDS[:1], arguments)
    rows = []
    for name in names:
        ratios = _ratios(found, name, "avg_jct_s")
        cells = [c for t in CLUSTERS for c in found[name][t].values()]
        if not cells:
            continue
        seeds = sorted({len(r) for r in ratios.values()})
        mean = _geometric_mean(ratios)
        tail = max(float(r.mean()) for r in _ratios(found, name, "p99_jct_s").values() if len(r))
        row = [
            name + (" *" if name in KNOW_THE_FUTURE else ""),
            "-".join(str(n) for n in {seeds[0]: 0, seeds[-1]: 0}),
            f"{mean:.3f}" if mean else "-",
            *(_spread(r) for r in ratios.values()),
            f"{tail:.2f}",
            f"{np.mean([c['mean_speed'] for c in cells]):.3f}",
            str(int(sum(c["ooms"] for c in cells))),
        ]
        rows.append((mean or float("inf"), row))
    rows.sort(key=lambda row: row[0])
    columns = ["profile", "seeds", "geometric mean", *CLUSTERS, "p99, worst trace", "mean speed",
               "OOMs"]  # fmt: skip
    return markdown(columns, [row for _, row in rows])


def ablation(arguments: argparse.Namespace) -> str:
    """`tandem` less each of its parts, on the first seed."""
    whole = load_profile("tandem")
    profiles = {"tiresias-l": load_profile("tiresias-l"), "tandem": whole}
    for part, change in list(ABLATION.items())[1:]:
        values = whole.model_dump()
        values["dispatch"] |= change
        profiles[f"tandem-less-{part.split()[0]}-{part.split()[-1]}"] = Profile.model_validate(
            values
        )
    found = grid(profiles, SEEDS[:1], arguments)
    rows = []
    for name, part in zip(list(found)[1:], ABLATION, strict=True):
        ratios = _ratios(found, name, "avg_jct_s")
        cells = [c for t in CLUSTERS for c in found[name][t].values()]
        speed = f"{np.mean([c['mean_speed'] for c in cells]):.3f}" if cells else "-"
        rows.append([part, *(_spread(r) for r in ratios.values()), speed])
    return markdown(["less", *CLUSTERS, "mean speed"], rows)


def _ratios(found: Cells, name: str, figure: str) -> dict[str, np.ndarray]:
    """Return a figure relative to tiresias-l's on the same seed, by trace, (seeds,)."""
    base = found["tiresias-l"]
    return {
        t: np.array([c[figure] / base[t][s][figure] for s, c in sorted(found[name][t].items())])
        for t in CLUSTERS
    }


def _geometric_mean(ratios: dict[str, np.ndarray]) -> float | None:
    if not all(len(r) for r in ratios.values()):
        return None
    return float(np.exp(np.mean([np.log(r.mean()) for r in ratios.values()])))


def _spread(values: np.ndarray) -> str:
    if len(values) == 0:
        return "-"
    return f"{values.mean():.3f}" + (f" ± {values.std():.3f}" if len(values) > 1 else "")


def main() -> None:
    """Run the sections asked for and write docs/results.md when all were."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reuse", action="store_true", help="take the cells that are there")
    parser.add_argument("--kept", action="store_true", help="write of what is there, run nothing")
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--only", help="one section, printed: " + ", ".join(SECTIONS))
    arguments = parser.parse_args()
    if arguments.only:
        print(SECTIONS[arguments.only](arguments))
        return
    text = (ROOT / "benchmarks" / "results.template.md").read_text()
    for name, section in SECTIONS.items():
        text = text.replace("{" + name + "}", section(arguments))
    (ROOT / "docs" / "results.md").write_text(text)


SECTIONS = {
    "orderings": lambda _: orderings(),
    "measured": measured,
    "ablation": ablation,
}

if __name__ == "__main__":
    main()
