"""The page of what `studies.plane` has found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

BAR, BETWEEN = 0.10, 0.30
CLOSE_S = 5.0

_TEMPLATE = Path(__file__).with_name("plane.template.md")


def page(found: Mapping[str, Any]) -> str:
    """Return the page of what was measured, as `--json` has written it."""
    runs = found["runs"]
    seeds = list(dict.fromkeys(run["seed"] for run in runs))
    return _TEMPLATE.read_text().format(
        command=" ".join([found["command"], *(f"--seed {seed}" for seed in seeds)]),
        load=found["load"],
        bar=BAR,
        between=BETWEEN,
        close=CLOSE_S,
        latencies="\n".join(
            f"| {pods} | {start_s:.2f} | {found['latency']['release_s'][pods]:.2f} |"
            for pods, start_s in found["latency"]["start_s"].items()
        ),
        rows="\n".join(_row(run) for run in runs),
        conditions=" ".join(_condition(seed, runs) for seed in seeds),
        machine=found["machine"],
    )


def _row(run: Mapping[str, Any]) -> str:
    plane_s, simulator_s = _means_s(run)
    off = plane_s / simulator_s - 1
    differences = [abs(job["plane_s"] - job["simulator_s"]) for job in run["jobs"]]
    cells = (
        f"{run['seed']}",
        f"`{run['profile']}`",
        f"{plane_s:.1f}",
        f"{simulator_s:.1f}",
        f"{off:+.1%}{'' if abs(off) <= BAR else ', outside the bar'}",
        f"{run['plane_preemptions']}, {run['simulator_preemptions']}",
        f"{sum(d <= CLOSE_S for d in differences)} of {len(differences)}",
        f"{median(differences):.1f}",
        f"{run['longest_partial_s']:g}",
        f"{run['most_on_a_gpu']}",
        f"{run['load_average']:g}",
    )
    return f"| {' | '.join(cells)} |"


def _condition(seed: int, runs: Sequence[Mapping[str, Any]]) -> str:
    simulated = {run["profile"]: _means_s(run)[1] for run in runs if run["seed"] == seed}
    if not {"fifo", "tiresias-l"} <= simulated.keys():
        return ""
    less = 1 - simulated["tiresias-l"] / simulated["fifo"]
    return (
        f"Seed {seed}: by the simulator the mean of `tiresias-l` is {less:.0%} less than that of"
        f" `fifo`."
    )


def _means_s(run: Mapping[str, Any]) -> tuple[float, float]:
    """Return the mean completion on the control plane and in the simulator."""
    return fmean(job["plane_s"] for job in run["jobs"]), fmean(
        job["simulator_s"] for job in run["jobs"]
    )
