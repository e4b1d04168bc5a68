"""[Tiresias] continuous orders by attained service, looked at again each slice."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from tandem.policy.jobs import History, JobArrays
from tandem.policy.ordering.base import KeyOrder
from tandem.policy.units import Floats, Ints

_DIGITS = 6  # services that differ by rounding alone are a tie


class Las2D(KeyOrder):
    """Least attained service, GPUs x seconds, first. Source: [Tiresias] 3.2.1."""

    kind: Literal["las_2d"] = "las_2d"
    slice_s: Annotated[float, Field(gt=0)] = 60.0

    def keys(
        self, jobs: JobArrays, rows: Ints, now_s: float, history: History
    ) -> tuple[Floats | Ints, ...]:
        """Return the attained service in GPU-seconds."""
        return (np.round(jobs.service_gpu_s(rows, now_s), _DIGITS),)


class Gittins2D(KeyOrder):
    """Highest Gittins index of the attained service first. Source: [Tiresias] 3.2.2.

    The distribution is that of the jobs that have finished; before the first, it is `Las2D`.
    """

    kind: Literal["gittins_2d"] = "gittins_2d"
    slice_s: Annotated[float, Field(gt=0)] = 60.0

    def keys(
        self, jobs: JobArrays, rows: Ints, now_s: float, history: History
    ) -> tuple[Floats | Ints, ...]:
        """Return minus the index, then the attained service in GPU-seconds."""
        service = np.round(jobs.service_gpu_s(rows, now_s), _DIGITS)
        if history.gittins is None:
            return (service,)
        return (-history.gittins(service), service)


class RoundRobin(KeyOrder):
    """Time slices: who has had the fewest goes next.

    Source: [Gandiva], as [Tiresias] 5.3 simulates it.
    """

    kind: Literal["round_robin"] = "round_robin"
    slice_s: Annotated[float, Field(gt=0)] = 60.0

    def keys(
        self, jobs: JobArrays, rows: Ints, now_s: float, history: History
    ) -> tuple[Floats | Ints, ...]:
        """Return the number of slices had so far."""
        run_s = jobs.service_gpu_s(rows, now_s) / jobs.gpus[rows]
        return (np.floor(run_s / self.slice_s + 1e-9),)
