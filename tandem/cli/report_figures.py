"""Figures of a row that the table and the HTML page of a report share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Figures of a row in GPU-seconds, in the order in which they are printed.
FIGURES = ("asked", "held", "used", "saved", "lost")
#: Of these, what follows from predictions is apart.
PREDICTED = ("used", "saved", "lost")


def hours(row: Mapping[str, Any], figure: str) -> float:
    """Return a figure of a row in GPU-hours, its predicted part included."""
    predicted = row[f"{figure}PredictedGpuSeconds"] if figure in PREDICTED else 0.0
    return float(row[f"{figure}GpuSeconds"] + predicted) / 3600


def predicted_hours(row: Mapping[str, Any], figure: str) -> float:
    """Return what of a figure follows from predictions, in GPU-hours."""
    return float(row[f"{figure}PredictedGpuSeconds"]) / 3600


def waits_of(total: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return why jobs waited, in words, and for how many seconds; the longest first."""
    if "waits" in total:
        return [(each["words"], each["seconds"]) for each in total["waits"]]
    # An extender of an earlier version has the words of conditions alone.
    return [(reason or "unknown", s) for reason, s in total["waitSecondsByReason"].items()]


def neighbours_of(job: Mapping[str, Any]) -> list[str]:
    """Return the models that were next to a job, and how much slower it was next to each."""
    named = job.get("neighbourModels") or [None] * len(job["neighbours"])
    return [
        f"{model or 'another model'} {slower:.0%}"
        for model, (_, slower) in zip(named, job["neighbours"], strict=True)
    ]
