"""Tracks drift: compares what runs used with what was predicted for them.

Every run that is fed back is predicted anew as if nothing of it had been observed, and the latest
runs of each type of GPU are kept: beyond the bound, the namespace with most runs there loses its
oldest. In memory only: a restart begins anew.
"""

from __future__ import annotations

import math
import statistics
import threading
from collections import defaultdict
from dataclasses import dataclass

from predictor.load.predictor import Predictor
from tandem.contracts.prediction import Feedback, PredictRequest
from tandem.contracts.resources import GraphFeatures, Load, Source
from tandem.gpu_types import find_gpu
from tandem.policy.votes import beyond_bound

#: Runs of a type of GPU that count: enough for a share of 5 % to be seen.
WINDOW = 200
#: The label of types that the table does not have, so that labels stay few.
OTHER = "other"

#: Namespace, log of measured over predicted memory, utilisation beyond the predicted one, and
#: whether the memory was above its upper bound.
_Run = tuple[str, float, float, bool]


@dataclass(frozen=True)
class Residuals:
    """The latest runs on one type of GPU.

    `memory_ratio` and `utilisation_ratio` are means of measured over predicted, less one, and of
    measured less predicted (as a share of the GPU); `under_predicted` is the share of runs whose
    memory was above its upper bound.
    """

    runs: int
    memory_ratio: float
    utilisation_ratio: float
    under_predicted: float


class Drift:
    """Rolling residuals by type of GPU; safe to use from many threads."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self._latest: defaultdict[str, list[_Run]] = defaultdict(list)
        self._lock = threading.Lock()

    def add(self, run: Feedback, features: GraphFeatures) -> tuple[str, Residuals] | None:
        """Take in a run; returns its type of GPU and the residuals there, None if not predicted."""
        request = PredictRequest(
            model=run.model,
            batch_size=run.batch_size,
            accumulation_steps=run.accumulation_steps,
            gpu_model=run.gpu_model,
        )
        load = self._predictor.predict(request, features).load
        if Source.WHOLE_GPU in (load.memory_source, load.utilisation_source):
            return None
        gpu = find_gpu(run.gpu_model)
        name = gpu.name if gpu else OTHER
        with self._lock:
            latest = self._latest[name]
            latest.append((run.namespace, *_residual(run, load)))
            rows = ((index, each[0]) for index, each in enumerate(latest))
            for index in beyond_bound(rows, WINDOW):
                del latest[index]
            _, memory, utilisation, under = zip(*latest, strict=True)
        return name, Residuals(
            len(memory),
            math.exp(statistics.fmean(memory)) - 1,
            statistics.fmean(utilisation),
            sum(under) / len(under),
        )


def _residual(run: Feedback, load: Load) -> tuple[float, float, bool]:
    measured = max(run.memory_peak_bytes, run.memory_base_bytes)
    predicted = load.memory_base_bytes + load.memory_peak_extra_bytes
    return (
        math.log(max(measured, 1) / max(predicted, 1)),
        (run.utilisation_percent - load.utilisation_percent) / 100,
        measured > load.memory_p95_bytes,
    )
