"""Random pairs for [SJF-BSBF] Theorem 1, and a replay of both choices with the true times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Pair:
    """What is true, and what is predicted: seconds alone, and times next to one another."""

    left_s: tuple[float, float]  # of the first when the second comes, of the second
    ratio: tuple[float, float]  # time of an iteration next to the other one, over that alone
    said_ratio: tuple[float, float]
    said_iteration_s: tuple[float, float]  # the true one is a second


def drawn(rng: np.random.Generator, error: float) -> Pair:
    """Return a random pair; the mean of |N(0, s)| is 0.8 s."""
    left = np.exp(rng.uniform(np.log(200), np.log(20_000), 2))
    ratio = rng.uniform(1.05, 2.5, 2)
    said = np.maximum(1.0, ratio / (1 + rng.normal(0, error / 0.8, 2)))
    iteration = np.exp(rng.normal(0, error / 0.8, 2))
    figures = (left.round(), ratio, said, iteration)
    return Pair(*((float(a), float(b)) for a, b in figures))


def replayed_mean_s(pair: Pair, *, shares: bool) -> float:
    """Return the mean completion time from the second's arrival on, event by event."""
    left, ends, now = list(pair.left_s), [0.0, 0.0], 0.0
    running = {0, 1} if shares else {0}
    while running or left[1] > 0:
        running = running or {1}
        speed = {job: 1 / pair.ratio[job] if len(running) == 2 else 1.0 for job in running}
        step = min(left[job] / speed[job] for job in running)
        now += step
        for job in sorted(running):
            left[job] -= step * speed[job]
            if left[job] <= 1e-9:
                left[job], ends[job] = 0.0, now
                running = running - {job}
    return sum(ends) / 2
