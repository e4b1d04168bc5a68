"""All jobs as arrays: what an order sorts by, as of any moment between two changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

import numpy as np

from tandem.policy.equations.gittins import GittinsIndex
from tandem.policy.equations.tiresias import attained_service_gpu_s
from tandem.policy.equations.worth import Runs, runs_in_bins
from tandem.policy.job import Job
from tandem.policy.units import Bools, Floats, Ints
from tandem.policy.votes import votes


@dataclass(frozen=True, kw_only=True)
class JobArrays:
    """One row a job. Between two changes a running job's service and work are straight lines.

    The owner of the arrays (the simulator, the queue controller) writes a row when its job starts,
    stops or changes speed; policies read them as of `now_s` through the methods.
    """

    gpus: Ints  # (jobs,) GPUs of the whole gang
    gpus_per_pod: Ints  # (jobs,)
    arrived_s: Floats  # (jobs,) time of submission
    running: Bools  # (jobs,)
    speed: Floats  # (jobs,) progress per second as a share of solo speed; 0 where not running
    since_s: Floats  # (jobs,) when the row was last written
    attained_at_since: Floats  # (jobs,) lifetime service in GPU-seconds
    service_at_since: Floats  # (jobs,) priority service in GPU-seconds: reset on promotion
    remaining_at_since: Floats  # (jobs,) solo seconds of work left; NaN where not known
    waiting_since_s: Floats  # (jobs,) when it last began to wait
    first_started_s: Floats  # (jobs,) infinite where it never ran
    gpu_utilisation: Floats  # (jobs,) predicted, percent of one GPU
    memory_gib: Floats  # (jobs,) predicted peak, of one worker
    peak_probability: Floats  # (jobs,) predicted chance of being in the memory peak
    interference_class: Ints  # (jobs,) row of the table of predictions
    queue: Ints  # (jobs,) queue of the order, 0 first; 0 where the order has none

    def __len__(self) -> int:
        return len(self.gpus)

    @classmethod
    def of(cls, jobs: Sequence[Job]) -> Self:
        """Return the arrays of waiting jobs, each column an array of its own."""
        count = len(jobs)
        # Numbers without fractions at the start must not keep fractions out later.
        attained = np.array([job.attained_gpu_seconds for job in jobs], dtype=np.float64)
        arrived = np.array([job.queued_at_s for job in jobs], dtype=np.float64)
        left = [np.nan if job.remaining_s is None else job.remaining_s for job in jobs]
        return cls(
            gpus=np.array([job.gpus for job in jobs], dtype=np.int64),
            gpus_per_pod=np.array([job.gpus_per_pod for job in jobs], dtype=np.int64),
            arrived_s=arrived,
            running=np.zeros(count, dtype=np.bool_),
            speed=np.zeros(count),
            since_s=arrived.copy(),
            attained_at_since=attained,
            service_at_since=attained.copy(),
            remaining_at_since=np.array(left, dtype=np.float64),
            waiting_since_s=arrived.copy(),
            first_started_s=np.where(attained > 0, arrived, np.inf),
            gpu_utilisation=np.array([job.gpu_utilisation for job in jobs]),
            memory_gib=np.array([job.memory_peak_gib for job in jobs]),
            peak_probability=np.array([job.peak_probability for job in jobs]),
            interference_class=np.array([job.interference_class for job in jobs], dtype=np.int64),
            queue=np.zeros(count, dtype=np.int64),
        )

    def attained_gpu_s(self, rows: Ints, now_s: float) -> Floats:
        """Return the lifetime service in GPU-seconds, (rows,)."""
        return self.attained_at_since[rows] + self._gained_gpu_s(rows, now_s)

    def service_gpu_s(self, rows: Ints, now_s: float) -> Floats:
        """Return the priority service in GPU-seconds, (rows,)."""
        return self.service_at_since[rows] + self._gained_gpu_s(rows, now_s)

    def remaining_s(self, rows: Ints, now_s: float) -> Floats:
        """Return the work left in seconds of a solo run, (rows,); NaN where not known."""
        left: Floats = self.remaining_at_since[rows] - self.speed[rows] * (
            now_s - self.since_s[rows]
        )
        return left

    def _gained_gpu_s(self, rows: Ints, now_s: float) -> Floats:
        since = attained_service_gpu_s(self.gpus[rows], now_s - self.since_s[rows])
        gained: Floats = np.where(self.running[rows], since, 0.0)
        return gained


@dataclass(frozen=True)
class History:
    """Samples of finished jobs: their total service, GPU-seconds, and the GPUs of each gang.

    All are (jobs,). Without `gpus`, each job had one GPU; without `namespaces`, all are of one.
    """

    service_gpu_s: Floats = field(default_factory=lambda: np.zeros(0))
    gpus: Ints | None = None
    namespaces: Sequence[str] = ()
    _runs: dict[float, Runs] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def votes(self) -> Floats | None:
        """The weight of each job, (jobs,); None where each counts fully."""
        return votes(self.namespaces)

    @cached_property
    def sorted_service(self) -> Floats:
        """The samples in ascending order."""
        return np.sort(self.service_gpu_s)

    @cached_property
    def sorted_votes(self) -> Floats | None:
        """The weight of each of the sorted samples; None where each counts fully."""
        order = np.argsort(self.service_gpu_s, kind="stable")
        return None if self.votes is None else self.votes[order]

    def runs(self, scale_s: float) -> Runs:
        """Return the running times of the jobs, in bins of a scale, by their GPUs."""
        if scale_s not in self._runs:
            gpus = np.ones(len(self.service_gpu_s), int) if self.gpus is None else self.gpus
            run_s = self.service_gpu_s / gpus
            self._runs[scale_s] = runs_in_bins(run_s, gpus, scale_s, self.votes)
        return self._runs[scale_s]

    @cached_property
    def gittins(self) -> GittinsIndex | None:
        """The index of that distribution; None before the first job has finished."""
        service = self.service_gpu_s
        return GittinsIndex.of(service, self.votes) if len(service) else None
