"""Orders by what a job demands: [OJPP]'s two."""

from __future__ import annotations

from typing import Literal

from tandem.policy.equations.ojpp import gregariousness
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

    The two most gregarious jobs tie with each other: the lower chance of a peak goes first.
    Source: [OJPP] Alg. 3.
    """

    kind: Literal["gregarious"] = "gregarious"

    def keys(
        self, jobs: JobArrays, rows: Ints, now_s: float, history: History
    ) -> tuple[Floats | Ints, ...]:
        """Return the gregariousness, the probability of a peak, then minus the utilisation."""
        chance = jobs.peak_probability[rows]
        return (gregariousness(chance), chance, -jobs.gpu_utilisation[rows])
