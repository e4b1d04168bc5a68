"""Limits the number of jobs on a GPU, and keeps some jobs alone."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from tandem.policy.cluster import GpuArrays
from tandem.policy.columns import Demands
from tandem.policy.job import Job
from tandem.policy.ports import Policy
from tandem.policy.units import Bools, Ints
from tandem.reasons.causes import Cause, Reason


# Paper: [Horus] 4.3; [SJF-BSBF] V-B2; [Xonar] II-B | cap on the jobs of a GPU: two | test:
#   tests/papers/test_papers_scenarios.py test_the_rule_decides | live: yes | deviation: the
#   number is that of the shares that a node's agent offers, two by default
class Shares(Policy):
    """A GPU holds at most its number of shares ([SJF-BSBF]: two), and at most `at_most` jobs."""

    has_figures: ClassVar[bool] = True
    kind: Literal["shares"] = "shares"
    at_most: Annotated[int, Field(ge=1)] | None = None

    def __call__(self, job: Job, gpus: GpuArrays) -> Bools:
        """Return (gpus,), True where a share is free."""
        return gpus.jobs < self._offered(gpus)

    def each(self, jobs: Demands, gpus: GpuArrays) -> Bools:
        """Return (gpus,): the same for every job."""
        return gpus.jobs < self._offered(gpus)

    def compiled(self) -> dict[str, float]:
        """Return the fields of a compiled cycle that stand for this constraint."""
        bound = {} if self.at_most is None else {"at_most": self.at_most}
        return {"needs_shares": 1, **bound}

    def cause(self, job: Job, gpus: GpuArrays, row: int) -> Cause:
        """Say why `row` may not take `job`."""
        if gpus.shares[row] == 0:
            return Cause(Reason.NOT_OFFERED)
        taken, offered = int(gpus.jobs[row]), int(self._offered(gpus)[row])
        reason = Reason.CLOSED if taken > offered else Reason.PLACES_TAKEN
        return Cause(reason, value=taken, bound=offered)

    def reasons(self, job: Job, gpus: GpuArrays) -> Ints | None:
        """Return (gpus,): nothing is offered, more jobs run than places, or all are taken."""
        closed = gpus.jobs > self._offered(gpus)
        if gpus.shares.all() and not closed.any():
            return None
        return np.where(gpus.shares == 0, 0, np.where(closed, 1, 2))

    def _offered(self, gpus: GpuArrays) -> Ints:
        return gpus.shares if self.at_most is None else np.minimum(gpus.shares, self.at_most)


class Exclusive(Policy):
    """Jobs that never share need an empty GPU, and keep it to themselves."""

    kind: Literal["exclusive"] = "exclusive"

    def __call__(self, job: Job, gpus: GpuArrays) -> Bools:
        """Return (gpus,), True where neither side would be made to share."""
        return gpus.jobs == 0 if job.exclusive else ~gpus.exclusive

    def each(self, jobs: Demands, gpus: GpuArrays) -> Bools:
        """Return the same for many jobs, (jobs, gpus)."""
        return np.where(jobs.exclusive, gpus.jobs == 0, ~gpus.exclusive)

    def compiled(self) -> dict[str, float]:
        """Return the fields of a compiled cycle that stand for this constraint."""
        return {"needs_exclusive": 1}

    def cause(self, job: Job, gpus: GpuArrays, row: int) -> Cause:
        """Say why `row` may not take `job`."""
        if gpus.exclusive[row]:
            return Cause(Reason.NOT_SHARED)
        return Cause(Reason.NEEDS_WHOLE_GPU, value=int(gpus.jobs[row]))

    def reasons(self, job: Job, gpus: GpuArrays) -> Ints | None:
        """Return (gpus,): the job there shares with none, or the new one does not."""
        return gpus.exclusive.astype(np.int64) if gpus.exclusive.any() else None
