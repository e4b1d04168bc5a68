"""The remaining time of a job: what the job states, else what finished jobs teach."""

from __future__ import annotations

import numpy as np

from tandem.policy.units import Floats

SCALE_GPU_S = 500.0  # service at which a new job is expected to have run half
_PRIOR_JOBS = 20.0  # weight of the heavy tail, in finished jobs


def expected_remaining_gpu_s(service_gpu_s: Floats, finished_gpu_s: Floats) -> Floats:
    """Return the expected service still to come. Shapes: (jobs,), (finished,) ascending -> (jobs,).

    The mean of what the finished jobs with more service than `a` had beyond it; where those are
    few, drawn towards a + scale, as under a heavy tail, with the weight of 20 samples.

    Worked: finished 100 (80 times) and 1,100 (20 times), a = 100: 20 samples of 1,000 beside a
    prior of 600, both alike: 800.
    """
    heavy_tail = service_gpu_s + SCALE_GPU_S
    if len(finished_gpu_s) == 0:
        return heavy_tail
    at = np.searchsorted(finished_gpu_s, service_gpu_s, side="right")
    beyond = len(finished_gpu_s) - at
    tail = np.append(np.cumsum(finished_gpu_s[::-1])[::-1], 0.0)[at]
    learned = np.where(beyond > 0, tail / np.maximum(beyond, 1) - service_gpu_s, 0.0)
    trust = beyond / (beyond + _PRIOR_JOBS)
    expected: Floats = trust * learned + (1 - trust) * heavy_tail
    return expected


def draw_remaining_gpu_s(
    service_gpu_s: Floats, finished_gpu_s: Floats, rng: np.random.Generator
) -> Floats:
    """Return one draw of the service still to come, from what has the mean above. Shapes as above.

    That of a finished job with more service; or, with the weight of 20 samples, from the heavy tail
    P(more than r) = (b / (b + r))^2 with b = a + scale, whose mean is b.
    """
    at = np.searchsorted(finished_gpu_s, service_gpu_s, side="right")
    beyond = len(finished_gpu_s) - at
    weight, which, chance = rng.random((3, len(service_gpu_s)))
    drawn: Floats = (service_gpu_s + SCALE_GPU_S) * (1 / np.sqrt(1 - chance) - 1)
    known = weight < beyond / (beyond + _PRIOR_JOBS)
    sample = (at + which * beyond).astype(np.int64)[known]
    drawn[known] = finished_gpu_s[sample] - service_gpu_s[known]
    return drawn
