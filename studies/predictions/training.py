"""A learned utilisation and a learned time of a step, by family folds, against the formula."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from predictor.load.model import ITERATION, UTILISATION
from predictor.training.load_evaluation import held_out, learners, load_table
from studies.predictions import loads
from studies.predictions.measured import Measured

_WHAT = {
    "gavel": ("time of a step", "V100 and P100, alone"),
    "pollux": ("time of a step", "T4, one worker"),
    "miso": ("SM utilisation, memory in use", "A100 40GB, TensorFlow with memory growth"),
    "salus": ("peak of TensorFlow's allocator, time of a step", "P100, TensorFlow"),
    "carma": ("peak memory of the process", "A100 40GB, PyTorch"),
}


def data_table(rows: Sequence[Measured]) -> str:
    """Return a line for each source."""
    counts = Counter(row.source for row in rows)
    return "\n".join(
        f"| {source} | {counts[source]} | {what} | {how} |" for source, (what, how) in _WHAT.items()
    )


def _learned(rows: Sequence[Measured], target: str, scale: float) -> str:
    table = load_table(loads.profiles(rows))
    at = table.rows(target)
    real = np.log(table.measured[target][at] * scale)
    lines = []
    for name, make in learners(target).items():
        predicted = np.maximum(held_out(table, target, make, at), 1e-9)
        ratio = np.abs(np.log(predicted * scale) - real)
        lines.append(
            f"| {name} on the formula's residual, families left out | {len(at)} | "
            f"{np.sqrt((ratio**2).mean()):.2f} | {(ratio <= np.log(1.5)).mean():.0%} | - |"
        )
    return "\n".join(lines)


def utilisation_lines(rows: Sequence[Measured]) -> str:
    """Return a line for each learner of utilisation."""
    return _learned(rows, UTILISATION, 1.0)


def step_lines(rows: Sequence[Measured]) -> str:
    """Return a line for each learner of the time of a step."""
    return _learned(rows, ITERATION, 1.0)
