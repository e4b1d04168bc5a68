"""The page of what `benchmarks.plane` has found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

BAR, BETWEEN = 0.10, 0.30
CLOSE_S = 5.0

_TEMPLATE = Path(__file__).with_name("plane.template.md")


def page(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the page of some runs, each as `--json` has written it."""
    commands = "\n".join(f"    python -m benchmarks.plane --seed {r['seed']}" for r in results)
    return _TEMPLATE.read_text().format(
        commands=commands,
        bar=BAR,
        between=BETWEEN,
        close=CLOSE_S,
        latencies="\n".join(_latencies(result) for result in results),
        rows="\n".join(_row(result, one) for result in results for one in result["profiles"]),
        conditions=" ".join(_condition(result) for result in results),
        machine=" and ".join(sorted({result["machine"] for result in results})),
    )


def _latencies(result: Mapping[str, Any]) -> str:
    values = [", ".join(f"{s:.2f}" for s in each.values()) for each in result["latency"].values()]
    return f"| {result['seed']} | {' | '.join(values)} |"


def _row(result: Mapping[str, Any], one: Mapping[str, Any]) -> str:
    off = one["plane_s"] / one["simulator_s"] - 1
    differences = [abs(job["plane_s"] - job["simulator_s"]) for job in one["jobs"]]
    cells = (
        f"{result['seed']}, {result['load']:g}",
        f"`{one['profile']}`",
        f"{one['plane_s']:.1f}",
        f"{one['simulator_s']:.1f}",
        f"{off:+.1%}{'' if abs(off) <= BAR else ', outside the bar'}",
        f"{one['plane_preemptions']}, {one['simulator_preemptions']}",
        f"{sum(d <= CLOSE_S for d in differences)} of {len(differences)}",
        f"{median(differences):.1f}",
        f"{one['longest_partial_s']:g}",
        f"{one['most_on_a_gpu']}",
        f"{one['load_average']:g}",
    )
    return f"| {' | '.join(cells)} |"


def _condition(result: Mapping[str, Any]) -> str:
    simulated = {one["profile"]: one["simulator_s"] for one in result["profiles"]}
    if not {"fifo", "tiresias-l"} <= simulated.keys():
        return ""
    less = 1 - simulated["tiresias-l"] / simulated["fifo"]
    return (
        f"Seed {result['seed']}: by the simulator the mean of `tiresias-l` is {less:.0%} less than"
        f" that of `fifo`."
    )
