"""Traces and matrices that are drawn with seeds: what no measurement has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tandem.policy.units import Floats
from tandem.simulator.gavel import PairMatrix
from tandem.simulator.jobs import TraceJob

MODELS = 12  # of a matrix that is drawn
_NOISE = 0.03  # of a drawn slowdown: no two models are quite alike


@dataclass(frozen=True, slots=True)
class Shape:
    """A kind of workload: how long jobs run, how they come, how large gangs are."""

    durations: Callable[[np.random.Generator, int], Floats]
    bursts: int = 0  # arrivals come together at so many moments; 0: evenly
    gang_sizes: tuple[int, ...] = (1, 2, 4, 8)
    gang_shares: tuple[float, ...] = (0.7, 0.12, 0.1, 0.08)


def _heavy(rng: np.random.Generator, count: int) -> Floats:
    """Log-normal with a spread of e^1.8: the longest tenth is nine tenths of the work."""
    return np.exp(rng.normal(7.5, 1.8, count)).clip(30, 1e6)


def _light(rng: np.random.Generator, count: int) -> Floats:
    """Between half an hour and an hour and a half: no job is much longer than another."""
    return rng.uniform(1800, 5400, count)


SHAPES = {
    "heavy": Shape(_heavy),
    "light": Shape(_light),
    "bursts": Shape(_heavy, bursts=6),
    "gangs": Shape(_heavy, gang_sizes=(1, 4, 16, 32, 64), gang_shares=(0.6, 0.2, 0.12, 0.06, 0.02)),
}


def drawn_trace(kind: str, seed: int, *, jobs: int, gpus: int, load: float) -> tuple[TraceJob, ...]:
    """Return a trace of `SHAPES` that offers `load` times what `gpus` can do while jobs arrive."""
    shape = SHAPES[kind]
    rng = np.random.default_rng([seed, list(SHAPES).index(kind)])
    size = np.minimum(rng.choice(shape.gang_sizes, size=jobs, p=shape.gang_shares), gpus)
    duration = shape.durations(rng, jobs)
    span = float((size * duration).sum()) / gpus / load
    submit = rng.uniform(0, span, jobs)
    if shape.bursts:
        moments = np.sort(rng.uniform(0, span, shape.bursts))
        submit = moments[rng.integers(shape.bursts, size=jobs)] + rng.uniform(0, 60, jobs)
    order = np.argsort(submit, kind="stable")
    return tuple(
        TraceJob(str(i), float(submit[j]), int(size[j]), float(duration[j]))
        for i, j in enumerate(order.tolist())
    )


def drawn_matrix(kind: str, seed: int) -> PairMatrix:
    """Return a matrix that is drawn.

    `nothing`: two together are as fast as one after the other. `gain-1.35`: each pair together is
    1.35 times as fast as one job alone. `bully`: pairs gain 1.5, but one class slows all others to
    a quarter and hardly feels them.
    """
    rng = np.random.default_rng([seed, 1000])
    total = {"nothing": 1.0, "bully": 1.5}.get(kind) or float(kind.removeprefix("gain-"))
    # Unequal pairs: what the one gets more, the other gets less.
    tilt = rng.normal(0, 0.08, (MODELS, MODELS))
    speed = total / 2 + (tilt - tilt.T) / 2
    slowdown = 1 / np.clip(speed, 0.05, 1.0) - 1
    if kind == "bully":
        slowdown[:, 0] = 3.0
        slowdown[0, :] = 0.1
    slowdown *= np.exp(rng.normal(0, _NOISE, slowdown.shape))
    return PairMatrix(tuple(f"model {i}" for i in range(MODELS)), slowdown)
