"""The outcome of one run, job by job and over time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import numpy as np

from tandem.policy.units import Floats, Ints


@dataclass(slots=True)
class Outcome:
    """The outcome, job by job and over time."""

    submit_s: Floats
    end_s: Floats
    gpus: Ints
    duration_s: Floats
    run_s: Floats  # (jobs,) wall time on GPUs
    overhead_s: Floats  # (jobs,) solo seconds redone: resumes, work lost to OOM
    preemptions: Ints
    migrations: Ints  # (jobs,) moves: stopped and started elsewhere at once
    ooms: Ints
    grown: Ints  # (jobs,) times that an elastic job got more GPUs while it ran
    shrunk: Ints  # (jobs,) times that it gave some up and went on
    # (jobs,) GPU-seconds of the work of elastic jobs, at the sizes that they had; NaN of others
    elastic_gpu_s: Floats
    busy_gpu_s: float = 0.0  # GPUs with at least one job, over time
    max_gpus_used: int = 0
    rounds: int = 0
    times_s: list[float] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    in_use: list[int] = field(default_factory=list)
    decisions: list[tuple[float, str, str, tuple[int, ...]]] = field(default_factory=list)

    @property
    def resizes(self) -> Ints:
        """Times that each job got another number of GPUs while it ran, (jobs,)."""
        return self.grown + self.shrunk

    @classmethod
    def before(cls, submit_s: Floats, gpus: Ints, duration_s: Floats) -> Self:
        """Return the outcome when nothing has happened yet."""
        count = len(duration_s)
        return cls(
            submit_s=submit_s,
            end_s=np.full(count, np.nan),
            gpus=gpus,
            duration_s=duration_s.copy(),
            run_s=np.zeros(count),
            overhead_s=np.zeros(count),
            preemptions=np.zeros(count, dtype=np.int64),
            migrations=np.zeros(count, dtype=np.int64),
            ooms=np.zeros(count, dtype=np.int64),
            grown=np.zeros(count, dtype=np.int64),
            shrunk=np.zeros(count, dtype=np.int64),
            elastic_gpu_s=np.full(count, np.nan),
        )
