"""Pictures of runs: completion times, queue, GPUs in use, and the table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tandem.errors import TandemError, UsageError
from tandem.simulator.run import Result

_DAY_S = 86_400


def prepare_plots(folder: Path) -> None:
    """Make the folder; raises TandemError where no pictures can be written into it."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise TandemError(
            "plots need matplotlib", "In a clone: pip install '.[plots]', or leave --plots out."
        ) from error
    mpl.use("Agg")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--plots {folder}: {error.strerror}", "Name another folder.") from error


def write_plots(results: Sequence[Result], folder: Path, suffix: str = "svg") -> list[Path]:
    """Write four pictures into `folder`, PNG or SVG; raises as `prepare_plots` does."""
    prepare_plots(folder)
    from matplotlib import pyplot as plt

    written = []

    def save(name: str) -> None:
        path = folder / f"{name}.{suffix}"
        plt.tight_layout()
        plt.savefig(path, dpi=120)
        plt.close()
        written.append(path)

    plt.figure(figsize=(7, 4.5))
    for result in results:
        times = np.sort(result.outcome.end_s - result.outcome.submit_s)
        plt.plot(times, np.arange(1, len(times) + 1) / len(times), label=result.profile)
    plt.xscale("log")
    plt.xlabel("completion time (s)")
    plt.ylabel("share of jobs")
    plt.legend()
    save("completion_times")

    for name, label in (("waiting", "jobs waiting"), ("in_use", "GPUs in use")):
        plt.figure(figsize=(7, 4.5))
        for result in results:
            days = np.array(result.outcome.times_s) / _DAY_S
            plt.step(days, getattr(result.outcome, name), where="post", label=result.profile)
        plt.xlabel("time (days)")
        plt.ylabel(label)
        plt.legend()
        save(name)

    columns = ("avg_jct_s", "p99_jct_s", "makespan_s", "preemptions", "ooms", "mean_speed")
    plt.figure(figsize=(9, 0.6 + 0.35 * len(results)))
    plt.axis("off")
    rows = [[f"{getattr(r.report, c):,.2f}" for c in columns] for r in results]
    plt.table(
        cellText=rows, rowLabels=[r.profile for r in results], colLabels=columns, loc="center"
    )
    save("table")
    return written
