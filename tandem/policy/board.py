"""The cluster and its jobs as one round changes them: operations are made here and collected."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

import numpy as np

from tandem.policy.cluster import GpuArrays, add_worker, reset_rows
from tandem.policy.job import Job
from tandem.policy.jobs import History, JobArrays
from tandem.policy.units import Bools, Floats, Ints


@dataclass(frozen=True, slots=True)
class Start:
    """A job starts, one worker on each of `rows`."""

    job: int
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """A running job is preempted: it goes back to the queue."""

    job: int


Action = Start | Stop


@dataclass(slots=True)
class Board:
    """Who runs where. Jobs are named by their row in `arrays`, which is also their handle.

    `gpus` shows the live columns read-only. A dispatcher calls `start` and `stop`; whoever owns the
    board takes the `actions` afterwards and carries them out. A job stopped and started again in
    one round has been moved.
    """

    jobs: list[Job]
    arrays: JobArrays
    gpus: GpuArrays
    columns: dict[str, Floats | Ints | Bools]
    history: History = field(default_factory=History)
    now_s: float = 0.0
    freed: int = 0  # grows whenever room is made, so that a refusal can be remembered
    rows_of: dict[int, Ints] = field(default_factory=dict)
    residents_of: list[list[int]] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    empty: int = 0  # GPUs without a resident
    predicted_speed: Floats = field(init=False)  # (jobs,) of running jobs, unless `stale`
    stale: set[int] = field(default_factory=set)  # running jobs whose neighbours have changed
    interference: Floats = field(init=False)  # (gpus,) moving average, kept by who measures it
    pinned: set[int] = field(default_factory=set)  # running jobs that must stay for now
    moved_s: dict[int, float] = field(default_factory=dict)  # when a job was last migrated

    def __post_init__(self) -> None:
        """Nobody runs yet, so nobody is slowed down."""
        self.predicted_speed = np.ones(len(self.jobs))
        self.interference = np.zeros(len(self.gpus))

    @classmethod
    def of(cls, jobs: list[Job], arrays: JobArrays, gpus: GpuArrays) -> Board:
        """Return a board on which nothing runs."""
        columns = {f.name: getattr(gpus, f.name).copy() for f in fields(GpuArrays)}
        live = GpuArrays(**{name: column.view() for name, column in columns.items()})
        return cls(
            jobs, arrays, live, columns,
            residents_of=[[] for _ in range(len(gpus))], empty=len(gpus),
        )  # fmt: skip

    def start(self, job: int, rows: Ints) -> None:
        """Put one worker of `job` on each of `rows`; a row may come more than once."""
        self.place(job, rows)
        self.actions.append(Start(job, tuple(rows.tolist())))

    def stop(self, job: int) -> None:
        """Preempt a running job."""
        self.remove(job)
        self.note_stop(job)

    def note_stop(self, job: int) -> None:
        """Record that a running job, removed already, is preempted."""
        self.actions.append(Stop(job))

    def make_exclusive(self, job: int) -> None:
        """From now on a job that waits gets whole GPUs only."""
        self.jobs[job] = replace(self.jobs[job], exclusive=True)

    def place(self, job: int, rows: Ints) -> None:
        """Add a job without recording an action."""
        listed = rows.tolist()
        if len(set(listed)) == len(listed):
            add_worker(self.columns, self.jobs[job], rows, job)
        else:
            for row in listed:
                add_worker(self.columns, self.jobs[job], np.array([row]), job)
        self.rows_of[job] = rows
        for row in listed:
            residents = self.residents_of[row]
            self.empty -= not residents
            residents.append(job)
            self.stale.update(residents)

    def remove(self, job: int) -> None:
        """Take a job off without recording an action, as when it ends."""
        rows = self.rows_of.pop(job)
        self.stale.discard(job)
        reset_rows(self.columns, rows)
        for row in dict.fromkeys(rows.tolist()):
            residents = self.residents_of[row] = [j for j in self.residents_of[row] if j != job]
            self.stale.update(residents)
            self.empty += not residents
            for other in residents:
                add_worker(self.columns, self.jobs[other], np.array([row]), other)
        self.freed += 1

    def partners(self, job: int) -> set[int]:
        """Return the jobs that share a GPU with `job`."""
        shared = {other for row in self.rows_of[job].tolist() for other in self.residents_of[row]}
        return shared - {job}

    def take_actions(self) -> list[Action]:
        """Return the actions since the last call, in order."""
        actions, self.actions = self.actions, []
        return actions
