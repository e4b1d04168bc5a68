"""Orders by size or by what is left of it; those by time know the future."""

from __future__ import annotations

from typing import Literal

import numpy as np

from tandem.policy.jobs import History, JobArrays
from tandem.policy.ordering.base import KeyOrder
from tandem.policy.units import SAME_MOMENT_S, Floats, Ints


# Paper: [Tiresias] 3.2.1, Table 1 | SF, SRTF, SRSF | test:
#   tests/simulator/test_simulator_orderings.py test_three_jobs_by_shortest_remaining_service |
#   live: yes | deviation: remaining time is an estimate in a cluster
class Shortest(KeyOrder):
    """Least of `by` first.

    `remaining_time` is SRTF (or SJF, where running jobs are left alone); `remaining_service` is
    SRSF, GPUs x remaining time; `gpus` is smallest first (SF). Source: [Tiresias] 3.2.1, Table 1.
    Jobs whose remaining time is not known come last.
    """

    kind: Literal["shortest"] = "shortest"
    by: Literal["remaining_time", "remaining_service", "gpus"]

    @property
    def by_work_left(self) -> bool:
        """True unless the size alone decides."""
        return self.by != "gpus"

    def keys(
        self, jobs: JobArrays, rows: Ints, now_s: float, history: History
    ) -> tuple[Floats | Ints, ...]:
        """Return what is compared: microseconds, GPU-microseconds, or GPUs."""
        if self.by == "gpus":
            return (jobs.gpus[rows],)
        left = np.nan_to_num(jobs.remaining_s(rows, now_s), nan=np.inf)
        shortest = left * jobs.gpus[rows] if self.by == "remaining_service" else left
        return (np.round(shortest / SAME_MOMENT_S),)
