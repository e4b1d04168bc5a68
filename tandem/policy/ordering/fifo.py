"""First come, first served."""

from __future__ import annotations

from typing import Literal

from tandem.policy.jobs import History, JobArrays
from tandem.policy.ordering.base import KeyOrder
from tandem.policy.units import Floats, Ints


# Paper: [Tiresias] App. A | YARN-CS: FIFO with head-of-line blocking | test:
#   tests/simulator/test_simulator_orderings.py test_the_engine_agrees_with_the_plain_simulator
#   | live: yes
class Fifo(KeyOrder):
    """By time of arrival. With `blocks`, head-of-line blocking."""

    kind: Literal["fifo"] = "fifo"

    def keys(
        self, jobs: JobArrays, rows: Ints, now_s: float, history: History
    ) -> tuple[Floats | Ints, ...]:
        """Return the time of arrival."""
        return (jobs.arrived_s[rows],)
