"""The remaining time of a job: what the job states, else what finished jobs teach."""

from __future__ import annotations

import numpy as np

from tandem.policy.units import Floats

SCALE_GPU_S = 500.0  # service at which a new job is expected to have run half
_PRIOR_JOBS = 20.0  # weight of the heavy tail, in finished jobs


def expected_remaining_gpu_s(
    service_gpu_s: Floats, finished_gpu_s: Floats, votes: Floats | None = None
) -> Floats:
    """Return the expected service still to come. Shapes: (jobs,), (finished,) ascending -> (jobs,).

    `votes` (finished,) is how much each finished job counts; None: each for one.

    The mean of what the finished jobs with more service than `a` had beyond it; where those are
    few, drawn towards a + scale, as under a heavy tail, with the weight of 20 samples.

    Worked: finished 100 (80 times) and 1,100 (20 times), a = 100: 20 samples of 1,000 and a prior
    of 600, both alike: 800.
    """
    heavy_tail = service_gpu_s + SCALE_GPU_S
    if len(finished_gpu_s) == 0:
        return heavy_tail
    at = np.searchsorted(finished_gpu_s, service_gpu_s, side="right")
    count = _count(finished_gpu_s, votes)
    beyond = count[-1] - count[at]
    served = finished_gpu_s if votes is None else votes * finished_gpu_s
    tail = np.append(np.cumsum(served[::-1])[::-1], 0.0)[at]
    there = at < len(finished_gpu_s)
    learned = np.where(there, tail / np.where(there, beyond, 1.0) - service_gpu_s, 0.0)
    trust = beyond / (beyond + _PRIOR_JOBS)
    expected: Floats = trust * learned + (1 - trust) * heavy_tail
    return expected


def draw_remaining_gpu_s(
    service_gpu_s: Floats,
    finished_gpu_s: Floats,
    rng: np.random.Generator,
    votes: Floats | None = None,
) -> Floats:
    """Return one draw of the service still to come, from what has the mean above. Shapes as above.

    That of a finished job with more service; or, with the weight of 20 samples, from the heavy tail
    P(more than r) = (b / (b + r))^2 with b = a + scale, whose mean is b.
    """
    at = np.searchsorted(finished_gpu_s, service_gpu_s, side="right")
    count = _count(finished_gpu_s, votes)
    beyond = count[-1] - count[at]
    weight, which, chance = rng.random((3, len(service_gpu_s)))
    drawn: Floats = (service_gpu_s + SCALE_GPU_S) * (1 / np.sqrt(1 - chance) - 1)
    known = weight < beyond / (beyond + _PRIOR_JOBS)
    sample = np.searchsorted(count, (count[at] + which * beyond)[known], side="right") - 1
    drawn[known] = finished_gpu_s[sample] - service_gpu_s[known]
    return drawn


def _count(finished_gpu_s: Floats, votes: Floats | None) -> Floats:
    """Return how many the first k finished jobs count for, (finished + 1,)."""
    each = np.ones(len(finished_gpu_s)) if votes is None else votes
    return np.concatenate(([0.0], np.cumsum(each)))
