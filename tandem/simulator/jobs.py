"""The jobs of a trace, as they are in truth."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One row of a trace: a gang that runs for `duration_s` when it is alone on its GPUs.

    Each of its pods has `gpus_per_pod` GPUs of one node: a divisor of `gpus`.

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
