"""What a second of service to a job is worth: its expected rate of completion."""

from __future__ import annotations

import numpy as np

from tandem.policy.equations.gittins import fixed_quantum_index
from tandem.policy.units import Floats


def completion_rate(
    service_gpu_s: Floats,
    finished_gpu_s: Floats,
    *,
    scale_gpu_s: float = 500.0,
    quantum: float = 0.5,
    prior_jobs: float = 20.0,
) -> Floats:
    """Return the expected completions per GPU-second of service. Shapes: (jobs,) -> (jobs,).

    The Gittins index with a quantum in proportion to what was attained, q = quantum (a + scale),
    on the services of finished jobs (n,), ascending. A quantum that grows with the service never
    chases single samples, as the supremum does. Where few samples lie beyond a, the estimate is
    drawn towards 1 / (a + scale), the rate under a heavy tail (least attained service), with the
    weight of `prior_jobs` samples.

    Worked: without samples, a = 500 and scale = 500 give 0.001.

    Source: ours, after [Tiresias] 3.2.2.
    """
    heavy_tail = 1 / (service_gpu_s + scale_gpu_s)
    if len(finished_gpu_s) == 0:
        return heavy_tail
    learned = fixed_quantum_index(
        finished_gpu_s, service_gpu_s, quantum * (service_gpu_s + scale_gpu_s)
    )
    beyond = len(finished_gpu_s) - np.searchsorted(finished_gpu_s, service_gpu_s, side="right")
    trust = beyond / (beyond + prior_jobs)
    rate: Floats = trust * learned + (1 - trust) * heavy_tail
    return rate
