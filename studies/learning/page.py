"""The page of studies.learning, and its two pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pages import FOLDER, made_by
from benchmarks.tables import markdown
from studies.learning import errors, history, repair

TEMPLATE = Path(__file__).with_name("learning.template.md")

Kept = Callable[[str], Any]


def page(kept: Kept) -> str:
    """Return the page; draws its pictures into the same folder."""
    runs, courses = kept("history"), kept("repair")
    history.history_plot(runs, FOLDER / "learning-history.svg")
    repair_plot(courses, FOLDER / "learning-repair.svg")
    seeds = {name: len({row.get("seed") for row in kept(name)}) for name in ("errors", "history")}
    liars = len({row["seed"] for row in kept("liars")})
    made = made_by(
        "python -m studies.learning --only SECTION",
        f"seeds from 0: {seeds['errors']} for wrong predictions, {seeds['history']} for the"
        f" history, {liars} for liars, {courses[0]['trials']} for the repair",
    )
    values = {
        "made": made,
        "errors": errors.errors_table(kept("errors")),
        "ways": errors.ways_table(kept("ways"), kept("errors")),
        "ways_error": f"{errors.WAYS_ERROR:.0%}",
        "ways_runs": str(len(kept("ways")) // len(errors.WAYS)),
        "jobs": f"{history.JOBS:,}",
        "models": str(history.MODELS),
        "history": history.history_table(runs),
        "liars_share": f"{history.LIARS:.0%}",
        "liars_jobs": str(history.LIARS_JOBS),
        "lie": f"{history.LIE:.0%}",
        "liars": history.liars_table(kept("liars")),
        "trials": str(courses[0]["trials"]),
        "disturbed_at": str(repair.DISTURBED_AT),
        "drift_at": str(repair.DRIFT_AT),
        "drift": " ± ".join(map(str, repair.DRIFT)),
        "bound": str(repair.BOUND),
        "repair": repair_table(courses),
    }
    text = TEMPLATE.read_text()
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def repair_table(courses: Sequence[dict[str, Any]]) -> str:
    """Return interference before and after the rise, and what the repair took."""
    at = repair.DRIFT_AT
    rows = [
        [
            each["system"],
            f"{each['course'][at - 1]:.3f}",
            f"{each['course'][at]:.3f}",
            f"{each['course'][-1]:.3f}",
            f"{each['over'][at]:.0%}",
            f"{each['over'][-1]:.0%}",
            f"{each['early_moves']:.1f}",
            f"{each['moved_gib'] / each['held_gib']:.1%}",
            f"{each['devices']:.1f}",
        ]
        for each in courses
    ]
    columns = ["", "interference before the rise", "at it", "in the end",
               "devices over the bound, at it", "in the end", "moves before it",
               "memory moved, of what is held", "devices"]  # fmt: skip
    return markdown(columns, rows)


def repair_plot(courses: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the mean interference of devices in use over the looks."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    mpl.rcParams["svg.hashsalt"] = "tandem"
    plt.figure(figsize=(7, 4))
    for each in courses:
        plt.plot(100 * np.array(each["course"]), marker="o", label=each["system"])
    plt.axhline(100 * repair.BOUND, color="grey", linestyle=":", label="bound")
    plt.xlabel("look")
    plt.ylabel("mean interference of devices in use, %")
    plt.ylim(bottom=0)
    plt.legend()
    plt.tight_layout()
    plt.savefig(path, metadata={"Date": None})
    plt.close()
