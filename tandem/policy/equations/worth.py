"""What a second of service to a job is worth: its expected rate of completion."""

from __future__ import annotations

import numpy as np

from tandem.policy.units import Floats


def completion_rate(
    service_gpu_s: Floats,
    finished_gpu_s: Floats,
    unfinished_gpu_s: Floats,
    *,
    scale_gpu_s: float = 500.0,
    quantum: float = 0.5,
    prior_jobs: float = 1.0,
) -> Floats:
    """Return the expected completions per GPU-second of service. Shapes: (jobs,) -> (jobs,).

    The Gittins index with a quantum in proportion to what was attained, q = quantum (a + scale),
    estimated as occurrences over exposure: of all jobs that were served beyond a, finished (n,) and
    unfinished (m,), both ascending, the completions D between a and a + q, over the service T that
    these jobs have had between a and a + q. An unfinished job counts with the service that it has
    had so far: without it, what is learned first would come from short jobs alone. A quantum that
    grows with the service never chases single samples, as the supremum does.

    Where few jobs were seen, the heavy tail (least attained service) counts, for which the rate is
    1 / (a + scale): (D + prior_jobs) / (T + prior_jobs (a + scale)).

    Worked: without samples, a = 500 and scale = 500 give 0.001. With services 800 and 1,200 of
    finished jobs, 600 of one that is not, quantum 0.5, prior 1: D = 1, T = 300 + 500 + 100, so
    2 / 1,900.

    Source: ours, after [Tiresias] 3.2.2; the estimate is the mean of a Gamma(prior_jobs,
    prior_jobs (a + scale)) prior for the rate after D events in exposure T.
    """
    quantum_gpu_s = quantum * (service_gpu_s + scale_gpu_s)
    events, exposure_gpu_s = _within(finished_gpu_s, service_gpu_s, quantum_gpu_s)
    _, more_gpu_s = _within(unfinished_gpu_s, service_gpu_s, quantum_gpu_s)
    rate: Floats = (events + prior_jobs) / (
        exposure_gpu_s + more_gpu_s + prior_jobs * (service_gpu_s + scale_gpu_s)
    )
    return rate


def _within(total: Floats, start: Floats, quantum: Floats) -> tuple[Floats, Floats]:
    """Return how many of the services `total` (n,) end in a quantum after `start` (jobs,).

    And how much of all of them lies in it. `total` is ascending.
    """
    before = np.concatenate(([0.0], np.cumsum(total)))
    k = np.searchsorted(total, start, side="right")
    i = np.searchsorted(total, start + quantum, side="right")
    served = before[i] - before[k] - (i - k) * start + (len(total) - i) * quantum
    return (i - k).astype(np.float64), np.maximum(served, 0.0)
