"""Memory, utilisation and time of a step of model families that were left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictor.load.memory import Levels, Setup, allocator_of, formula_levels
from predictor.load.predictor import Predictor
from predictor.training.load_evaluation import rmsle
from predictor.training.profiles import Origin, Profile
from studies.predictions.features import features
from studies.predictions.measured import INPUT_BOUND, Measured
from tandem.contracts.prediction import Framework, Interval, Prediction, PredictRequest
from tandem.contracts.resources import Load, Observation
from tandem.gpu_types import find_gpu

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
GIB = 1024**3
_MEASURED_AT = "2026-01-01T00:00:00Z"


@dataclass(frozen=True)
class Row:
    """What one method says of one configuration."""

    family: str
    measured: float
    predicted: float
    bound: float


def known(rows: Sequence[Measured]) -> list[Measured]:
    """Return the configurations whose model was rebuilt."""
    return [row for row in rows if row.model in features()]


def ask(row: Measured, seen: Sequence[Observation] = ()) -> Load:
    """Return the load of a configuration, `seen` being earlier runs of the model."""
    return answer(row, seen).load


def answer(row: Measured, seen: Sequence[Observation] = ()) -> Prediction:
    """Return what the service says of a configuration."""
    gpu = find_gpu(row.gpu)
    assert gpu is not None
    request = PredictRequest(
        model=row.model, batch_size=row.batch, gpu_model=row.gpu, gpu_memory_bytes=gpu.memory_bytes,
        optimizer=row.optimizer if not seen else None, framework=row.framework,
    )  # fmt: skip
    return Predictor().predict(request, features()[row.model], row.model, seen)


def observation(row: Measured, utilisation: float | None = None) -> Observation:
    """Return a configuration as a run that was observed."""
    busy = row.utilisation if utilisation is None else utilisation
    return Observation(
        gpu_model=row.gpu, batch_size=row.batch, feature_hash=row.model, runs=1,
        memory_base_bytes=round(row.memory_bytes or GIB),
        memory_peak_bytes=round(row.memory_bytes or GIB),
        peak_probability=0, utilisation_percent=busy if busy is not None else 100,
        iterations_per_second=1 / row.step_s if row.step_s else None,
        last_observed_at=_MEASURED_AT,
    )  # fmt: skip


def memory(rows: Sequence[Measured]) -> list[Row]:
    """Return today's estimate of memory, peak and p95, against the measured peak."""
    found = []
    for row in rows:
        if row.memory_bytes is None:
            continue
        if row.source == "salus":
            levels = in_use(row)
            found.append(
                Row(row.family, row.memory_bytes, levels.fixed + levels.varying, levels.p95)
            )
            continue
        load = ask(row)
        peak = load.memory_base_bytes + load.memory_peak_extra_bytes
        found.append(Row(row.family, row.memory_bytes, peak, load.memory_p95_bytes))
    return found


def in_use(row: Measured) -> Levels:
    """Return what the allocator of a configuration's framework has given out at most."""
    setup = Setup(optimizer=row.optimizer, framework=Framework(row.framework))
    graph = features()[row.model]
    allocator = allocator_of(graph, setup).in_use
    return formula_levels(graph, row.batch, setup, allocator)


def search_left_out(rows: Sequence[Measured]) -> list[Row]:
    """Return the formula where other families say what the search for algorithms takes.

    Of 0 to 4 GiB, that with the least error on the other families counts.
    """
    family = np.array([row.family for row in rows])
    real = np.array([row.memory_bytes for row in rows], dtype=np.float64)
    sizes = np.arange(0, 4.01, 0.2) * GIB
    predicted = np.array([[_with_search(row, size) for row in rows] for size in sizes])
    error = np.log(predicted / real) ** 2
    found = []
    for at, row in enumerate(rows):
        best = int(np.argmin(error[:, family != row.family].mean(axis=1)))
        figure = float(predicted[best, at])
        found.append(Row(row.family, float(real[at]), figure, figure))
    return found


def _with_search(row: Measured, size: float) -> float:
    setup = Setup(optimizer=row.optimizer, framework=Framework(row.framework))
    graph = features()[row.model]
    allocator = allocator_of(graph, setup)
    changed = replace(allocator, workspace=(size, allocator.workspace[1]))
    levels = formula_levels(graph, row.batch, setup, changed)
    return levels.fixed + levels.varying


def utilisation(rows: Sequence[Measured]) -> list[Row]:
    """Return today's estimate of utilisation from the graph alone."""
    loads = [(row, ask(row)) for row in rows if row.utilisation is not None]
    return [
        Row(
            row.family, row.utilisation or 0, load.utilisation_percent, load.utilisation_p95_percent
        )
        for row, load in loads
    ]


def steps(rows: Sequence[Measured]) -> list[Row]:
    """Return today's time of a step from the graph alone, seconds."""
    found = []
    for row in rows:
        if row.step_s is not None:
            seconds = ask(row).iteration_s or 1.0
            found.append(Row(row.family, row.step_s, seconds, seconds))
    return found


def after_one_run(
    rows: Sequence[Measured], figure: Callable[[Measured], float | None],
    said: Callable[[Load], tuple[float, float]], same_gpu: bool = True,
) -> list[Row]:  # fmt: skip
    """Return estimates after one run of the model at another batch size, or on another GPU.

    The run is that of the next smaller batch size, else the next larger one; on another type of
    GPU, that of the same batch size.
    """
    return [
        Row(row.family, figure(row) or 0.0, *said(ask(row, [observation(near)])))
        for row, near in near_runs(rows, figure, same_gpu)
    ]


def near_runs(
    rows: Sequence[Measured], figure: Callable[[Measured], float | None], same_gpu: bool
) -> list[tuple[Measured, Measured]]:
    """Return each configuration that has the figure with the run of its model that is nearest."""
    found = []
    for row in rows:
        if figure(row) is None:
            continue
        others = [
            o for o in rows
            if (o.model, o.source) == (row.model, row.source) and figure(o) is not None
            and ((o.gpu == row.gpu and o.batch != row.batch) if same_gpu
                 else (o.gpu != row.gpu and o.batch == row.batch))
        ]  # fmt: skip
        if others:
            found.append(
                (
                    row,
                    min(
                        others,
                        key=lambda o: (o.batch > row.batch, abs(np.log(o.batch / row.batch))),
                    ),
                )
            )
    return found


def after_one_run_scores(
    rows: Sequence[Measured], figure: Callable[[Measured], float | None],
    said: Callable[[Prediction], tuple[float, Interval | None]], used: float,
    same_gpu: bool = True,
) -> list[Row]:  # fmt: skip
    """Return log(measured / predicted) after one run, in units of the spread by distance.

    `used` is the multiple of that spread that makes the interval. The rows have exp(score) as what
    was measured and 1 as what was predicted, so that what calibrates the formula calibrates this.
    """
    found = []
    for row, near in near_runs(rows, figure, same_gpu):
        mean, interval = said(answer(row, [observation(near)]))
        assert interval is not None
        unit = float(np.log(mean / interval.low)) / used
        score = float(np.log((figure(row) or 0.0) / mean)) / unit
        found.append(Row(row.family, float(np.exp(score)), 1.0, 1.0))
    return found


def profiles(rows: Sequence[Measured]) -> list[Profile]:
    """Return the configurations as profiles to learn from."""
    return [
        Profile(
            name=f"{row.model} {row.batch}", family=row.family, origin=Origin.MEASURED,
            features=features()[row.model], batch_size=row.batch, optimizer=row.optimizer,
            framework=row.framework, gpu_model=row.gpu, utilisation_percent=row.utilisation,
            iteration_s=row.step_s,
            memory_peak_bytes=None if row.memory_bytes is None else round(row.memory_bytes),
        )
        for row in rows
    ]  # fmt: skip


def columns(found: Sequence[Row]) -> tuple[Any, Floats, Floats, Floats]:
    """Return families, measured, predicted and bounds."""
    return (
        np.array([r.family for r in found]),
        np.array([r.measured for r in found]),
        np.array([r.predicted for r in found]),
        np.array([r.bound for r in found]),
    )


def left_out_constant(found: Sequence[Row]) -> Floats:
    """Return for each row the geometric mean of the other families."""
    family, measured, _, _ = columns(found)
    logs = np.log(np.maximum(measured, 1e-9))
    return np.array([float(np.exp(logs[family != own].mean())) for own in family])


def errors(found: Sequence[Row]) -> dict[str, float]:
    """Return RMSLE, the share above the bound, the share within a factor of 1.5."""
    _, measured, predicted, bound = columns(found)
    ratio = np.abs(np.log(np.maximum(predicted, 1e-9) / np.maximum(measured, 1e-9)))
    return {
        "rmsle": rmsle(measured, predicted),
        "log_error": float(np.sqrt((ratio**2).mean())),
        "too_low": float((measured > bound * 1.0001).mean()),
        "within": float((ratio <= np.log(1.5)).mean()),
        "over": float(np.median(bound / measured)),
    }


def is_input_bound(row: Measured) -> bool:
    """Whether the pace of a configuration is known to be set outside of its graph."""
    return row.family in INPUT_BOUND
