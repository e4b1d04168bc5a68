"""The jobs of a trace, as they are in truth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One row of a trace: a gang that runs for `duration_s` when it is alone on its GPUs.

    Each of its pods has `gpus_per_pod` GPUs of one node: a divisor of `gpus`.

    An elastic job has `min_gpus` below `gpus`: it starts with as many, and has up to `gpus` while
    they are idle. `throughput` has (GPUs, work per second) in any unit, from `min_gpus` to `gpus`;
    between two points it is on a line. Without it, throughput is proportional to the GPUs.

    What a trace leaves out is None, and drawn by the truth where it is needed.
    """

    id: str
    submit_s: float
    gpus: int
    duration_s: float
    model: str | None = None
    batch_size: int | None = None
    gpu_utilisation: float | None = None  # percent of one GPU
    memory_base_gib: float | None = None  # of one worker
    memory_peak_gib: float | None = None
    peak_probability: float | None = None
    iterations: int | None = None
    iteration_s: float | None = None
    gpus_per_pod: int = 1
    required_topology: str | None = None
    preferred_topology: str | None = None
    min_gpus: int | None = None
    throughput: tuple[tuple[int, float], ...] = ()

    @property
    def is_elastic(self) -> bool:
        """True where it may run on fewer GPUs than it wants."""
        return self.min_gpus is not None and self.min_gpus < self.gpus

    @property
    def least_gpus(self) -> int:
        """GPUs without which it does not run."""
        return self.gpus if self.min_gpus is None else min(self.min_gpus, self.gpus)

    def speed_with(self, gpus: int) -> float:
        """Return its speed on so many GPUs, as a share of that on all that it wants."""
        if gpus == self.gpus:
            return 1.0
        if not self.throughput:
            return gpus / self.gpus
        at, work_per_s = zip(*self.throughput, strict=True)
        on_these, on_all = np.interp([gpus, self.gpus], at, work_per_s)
        return float(on_these / on_all)
