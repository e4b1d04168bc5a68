"""Orders by what a job demands: [OJPP]'s two."""

from __future__ import annotations

from typing import Literal

from tandem.policy.jobs import History, JobArrays
from tandem.policy.ordering.base import KeyOrder
from tandem.policy.units import Floats, Ints


class Decreasing(KeyOrder):
    """Greatest demand first, by predicted utilisation. Source: [OJPP] Alg. 1 (best-fit)."""

    kind: Literal["decreasing"] = "decreasing"

    def keys(
        self, jobs: JobArrays, rows: Ints, now_s: float, history: History
    ) -> tuple[Floats | Ints, ...]:
        """Return minus the utilisation."""
        return (-jobs.gpu_utilisation[rows],)


class Gregarious(KeyOrder):
    """Lowest gregariousness first, max over queued q of collision(i, q); ties by demand.

    A pair's collision is p_i p_q, so the order is that of the peak probability.
    Source: [OJPP] Alg. 3.
    """

    kind: Literal["gregarious"] = "gregarious"

    def keys(
        self, jobs: JobArrays, rows: Ints, now_s: float, history: History
    ) -> tuple[Floats | Ints, ...]:
        """Return the probability of a peak, then minus the utilisation."""
        return (jobs.peak_probability[rows], -jobs.gpu_utilisation[rows])
