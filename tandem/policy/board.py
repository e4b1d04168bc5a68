"""The cluster and its jobs as one round changes them: operations are made here and collected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np

from tandem.policy.cluster import LOAD_COLUMNS, GpuArrays, add_worker, reset_rows
from tandem.policy.columns import JobColumns
from tandem.policy.equations.slices import slice_speed
from tandem.policy.job import Job
from tandem.policy.jobs import History, JobArrays
from tandem.policy.units import Bools, Floats, Ints


class Start(NamedTuple):
    """A job starts, one worker on each of `rows`."""

    job: int
    rows: tuple[int, ...]


class Stop(NamedTuple):
    """A running job is preempted: it goes back to the queue.

    `too_slow`: its neighbours slow it down more than the profile allows. Such a job is preempted
    even if no other job takes its GPUs.
    """

    job: int
    too_slow: bool = False


Action = Start | Stop


@dataclass(frozen=True, slots=True)
class Aside:
    """A running job taken off for a trial, and how everything was before."""

    job: int
    rows: Ints
    columns: dict[str, Floats | Ints | Bools]
    residents_of: dict[int, list[int]]
    empty: int
    concerned: Ints  # the job and those on its GPUs
    predicted_speed: Floats  # of those
    stale: set[int]  # of those


class RowPool:
    """The GPUs of each running job in one array: `held` (jobs,) of them from `at` (jobs,) on."""

    def __init__(self, jobs: int, room: int) -> None:
        self.at = np.zeros(jobs, dtype=np.int64)
        self.held = np.zeros(jobs, dtype=np.int64)
        self.rows = np.zeros(room, dtype=np.int64)
        self._end = 0

    def put(self, job: int, rows: Ints, rows_of: dict[int, Ints]) -> None:
        """Write the GPUs of `job`; `rows_of` has those of all running jobs, this one included."""
        if self._end + len(rows) > len(self.rows):
            total = sum(len(held) for held in rows_of.values())
            self.rows = np.zeros(4 * total + 64, dtype=np.int64)
            self._end = 0
            for other, held in rows_of.items():
                self._append(other, held)
            return
        self._append(job, rows)

    def _append(self, job: int, rows: Ints) -> None:
        end = self._end + len(rows)
        self.rows[self._end : end] = rows
        self.at[job], self.held[job] = self._end, len(rows)
        self._end = end


@dataclass(slots=True)
class Board:
    """Who runs where. Jobs are named by their row in `arrays`, which is also their handle.

    `gpus` shows the live columns read-only. A dispatcher calls `start` and `stop`; the owner of the
    board takes the `actions` afterwards and carries them out. A job stopped and started again in
    one round has been moved.
    """

    jobs: list[Job]
    arrays: JobArrays
    gpus: GpuArrays
    columns: dict[str, Floats | Ints | Bools]
    history: History = field(default_factory=History)
    now_s: float = 0.0
    # Demands for which there is no room until somebody leaves; clear it where GPUs are added.
    refused: set[tuple[object, ...]] = field(default_factory=set)
    rows_of: dict[int, Ints] = field(default_factory=dict)
    residents_of: list[list[int]] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    empty: int = 0  # GPUs without a resident
    predicted_speed: Floats = field(init=False)  # (jobs,) of running jobs, unless `stale`
    stale: set[int] = field(default_factory=set)  # running jobs whose neighbours have changed
    interference: Floats = field(init=False)  # (gpus,) moving average, kept by who measures it
    pinned: set[int] = field(default_factory=set)  # running jobs that must stay for now
    moved_s: dict[int, float] = field(default_factory=dict)  # when a job was last migrated
    changed: Bools = field(init=False)  # (gpus,) where jobs came or went since a dispatcher looked
    untried: Bools = field(init=False)  # (gpus,) likewise, since preempting there was looked at
    seen_rate: Floats = field(init=False)  # (jobs,) worth when a dispatcher looked; NaN: not yet
    seen_queue: Ints = field(init=False)  # (jobs,) queue when a dispatcher looked
    rate: Floats = field(init=False)  # (jobs,) worth now of those it looks at
    # (jobs,) speed of running jobs as a share of that on whole GPUs of the fewest nodes
    spread_speed: Floats = field(init=False)
    on_gpus: Bools = field(init=False)  # (jobs,) those in `rows_of`
    pool: RowPool = field(init=False)
    compiled: object = None  # what `compiled.cycle` keeps of this board
    known_loads: JobColumns | None = None  # of `jobs`, where the owner of the board has them
    _widest: int | None = None  # GPUs of the widest node

    def __post_init__(self) -> None:
        """No job runs yet, so none is slowed down."""
        self.predicted_speed = np.ones(len(self.jobs))
        self.interference = np.zeros(len(self.gpus))
        self.changed = np.ones(len(self.gpus), dtype=np.bool_)
        self.untried = self.changed.copy()
        self.seen_rate = np.full(len(self.jobs), np.nan)
        self.seen_queue = np.zeros(len(self.jobs), dtype=np.int64)
        self.rate = np.zeros(len(self.jobs))
        self.spread_speed = np.ones(len(self.jobs))
        self.on_gpus = np.zeros(len(self.jobs), dtype=np.bool_)
        self.on_gpus[list(self.rows_of)] = True
        self.pool = RowPool(len(self.jobs), 4 * len(self.gpus) + 64)
        for job, rows in self.rows_of.items():
            self.pool.put(job, rows, self.rows_of)
            self._note_spread(job, rows)
            if self.spread_speed[job] < 1:
                self.stale.add(job)

    @classmethod
    def of(cls, jobs: list[Job], arrays: JobArrays, gpus: GpuArrays) -> Board:
        """Return a board on which nothing runs."""
        columns = {f.name: getattr(gpus, f.name).copy() for f in fields(GpuArrays)}
        return cls(
            jobs, arrays, _shown(columns), columns,
            residents_of=[[] for _ in range(len(gpus))], empty=len(gpus),
        )  # fmt: skip

    def twin(self) -> Board:
        """Return a board on which all is as here, and what is tried there changes nothing here.

        A dispatcher that has looked at nothing yet looks at everything on it.
        """
        columns = {name: column.copy() for name, column in self.columns.items()}
        twin = Board(
            list(self.jobs), replace(self.arrays, gpus=self.arrays.gpus.copy()),
            _shown(columns), columns,
            history=self.history,
            now_s=self.now_s,
            refused=set(self.refused),
            rows_of=dict(self.rows_of),
            residents_of=[list(residents) for residents in self.residents_of],
            empty=self.empty,
            stale=set(self.rows_of),
            pinned=set(self.pinned),
            moved_s=dict(self.moved_s),
            known_loads=JobColumns(self.jobs, self.known_loads),
        )  # fmt: skip
        twin.interference[:] = self.interference
        return twin

    @property
    def loads(self) -> JobColumns:
        """The loads of `jobs` as columns; made when they are first asked for."""
        if self.known_loads is None:
            self.known_loads = JobColumns(self.jobs)
        return self.known_loads

    def change(self, job: int, to: Job) -> None:
        """Replace what is believed of a job that is on no GPU."""
        self.jobs[job] = to
        self.seen_rate[job] = np.nan
        if self.known_loads is not None:
            self.known_loads.set(job, to)

    def relearned(self) -> None:
        """Note that the tables of predictions have been corrected in place."""
        self.stale.update(self.rows_of)
        self.changed[:] = True
        if self.known_loads is not None:
            self.known_loads.forget_tables()

    def start(self, job: int, rows: Ints) -> None:
        """Put one worker of `job` on each of `rows`; a row may come more than once."""
        self.place(job, rows)
        self.actions.append(Start(job, tuple(rows.tolist())))

    def stop(self, job: int, *, too_slow: bool = False) -> None:
        """Preempt a running job; `too_slow` is the reason of the action (`Stop`)."""
        self.remove(job)
        self.note_stop(job, too_slow=too_slow)

    def note_stop(self, job: int, *, too_slow: bool = False) -> None:
        """Record that a running job, removed already, is preempted."""
        self.actions.append(Stop(job, too_slow))

    def make_exclusive(self, job: int) -> None:
        """From now on a job that waits gets whole GPUs only."""
        self.change(job, replace(self.jobs[job], exclusive=True))

    def place(self, job: int, rows: Ints) -> None:
        """Add a job without recording an action."""
        add_worker(self.columns, self.jobs[job], rows, job)
        self.rows_of[job] = rows
        self.pool.put(job, rows, self.rows_of)
        self.on_gpus[job] = True
        self._note_spread(job, rows)
        self.changed[rows] = True
        self.stale.add(job)
        for row in rows.tolist():
            residents = self.residents_of[row]
            self.empty -= not residents
            self.stale.update(residents)
            residents.append(job)

    def remove(self, job: int) -> None:
        """Take a job off without recording an action, as when it ends."""
        rows = self.rows_of.pop(job)
        self.on_gpus[job] = False
        self.refused.clear()
        self.changed[rows] = True
        self.stale.discard(job)
        reset_rows(self.columns, rows)
        left: dict[tuple[int, int], list[int]] = {}  # (slot, job): its rows
        for row in dict.fromkeys(rows.tolist()):
            if len(self.residents_of[row]) == 1:
                self.residents_of[row] = []
                self.empty += 1
                continue
            residents = self.residents_of[row] = [j for j in self.residents_of[row] if j != job]
            self.stale.update(residents)
            self.empty += not residents
            for slot, other in enumerate(residents):
                left.setdefault((slot, other), []).append(row)
        # Slot by slot, so that on each row those who stay are added in the order in which they are.
        for slot, other in sorted(left):
            add_worker(self.columns, self.jobs[other], np.array(left[slot, other]), other)

    def exchange(self, job: int, rows: Ints) -> None:
        """Let a job have other GPUs of its nodes: it is alone on those that it leaves.

        Those that it gets instead are empty.
        """
        before, after = set(self.rows_of[job].tolist()), set(rows.tolist())
        left = np.array(sorted(before - after), dtype=np.int64)
        got = np.array(sorted(after - before), dtype=np.int64)
        reset_rows(self.columns, left)
        add_worker(self.columns, self.jobs[job], got, job)
        for row in left.tolist():
            self.residents_of[row] = []
        for row in got.tolist():
            self.residents_of[row] = [job]
        self.changed[left] = self.changed[got] = True
        self.rows_of[job] = rows
        self.pool.put(job, rows, self.rows_of)

    def resize(self, job: int, rows: Ints) -> None:
        """Let a running job have `rows` instead, with as many pods as these make."""
        of = self.jobs[job]
        self.remove(job)
        self.change(job, replace(of, pods=len(rows) // of.gpus_per_pod))
        self.arrays.gpus[job] = len(rows)
        self.place(job, rows)

    def set_aside(self, job: int) -> Aside:
        """Take a running job off to see what could be done without it; `put_back` undoes it."""
        rows = self.rows_of[job]
        concerned = [job, *self.partners(job)]
        aside = Aside(
            job,
            rows,
            {name: self.columns[name][rows] for name in LOAD_COLUMNS},
            {row: self.residents_of[row] for row in rows.tolist()},
            self.empty,
            np.array(concerned),
            self.predicted_speed[concerned],
            self.stale.intersection(concerned),
        )
        self.remove(job)
        return aside

    def put_back(self, aside: Aside) -> None:
        """Undo `set_aside`, exactly; nothing else may have changed since on those GPUs."""
        for name, values in aside.columns.items():
            self.columns[name][aside.rows] = values
        self.rows_of[aside.job] = aside.rows
        self.pool.put(aside.job, aside.rows, self.rows_of)
        self.on_gpus[aside.job] = True
        self._note_spread(aside.job, aside.rows)
        for row, residents in aside.residents_of.items():
            self.residents_of[row] = residents
        self.empty = aside.empty
        self.predicted_speed[aside.concerned] = aside.predicted_speed
        self.stale.difference_update(aside.concerned.tolist())
        self.stale |= aside.stale

    def fewest_nodes(self, job: int) -> int:
        """Return on how many nodes the gang must be at least, nodes being as large as the widest.

        A gang on no more nodes than that is not spread.
        """
        of = self.jobs[job]
        if self._widest is None:
            whole = self.gpus.node[~self.gpus.sliced]
            self._widest = int(np.bincount(whole).max(initial=1))
        return -(-of.pods // max(self._widest // of.gpus_per_pod, 1))

    def _note_spread(self, job: int, rows: Ints) -> None:
        slowdown, row = self.jobs[job].spread_slowdown, rows[0]
        if len(rows) == 1 and self.gpus.sliced[row]:
            busy = self.jobs[job].busy_share
            self.spread_speed[job] = slice_speed(busy, float(self.gpus.compute[row]))
            return
        if slowdown == 0:
            self.spread_speed[job] = 1.0
            return
        spread = len(rows) > 1 and len(np.unique(self.gpus.node[rows])) > self.fewest_nodes(job)
        self.spread_speed[job] = 1 / (1 + slowdown) if spread else 1.0

    def partners(self, job: int) -> set[int]:
        """Return the jobs that share a GPU with `job`."""
        shared: set[int] = set()
        for row in self.rows_of[job].tolist():
            shared.update(self.residents_of[row])
        shared.discard(job)
        return shared

    def adopt(self, actions: list[int], touched: Ints) -> None:
        """Take over what a compiled cycle did: its columns are written already.

        `actions` are (kind, job, count, rows...) one after the other, as in share.c; `touched` are
        the GPUs where jobs came or went.
        """
        at = 0
        while at < len(actions):
            kind, job, count = actions[at : at + 3]
            at += 3 + count
            if kind:
                del self.rows_of[job]
                self.refused.clear()
                self.note_stop(job, too_slow=kind == 2)
            else:
                rows = tuple(actions[at - count : at])
                held = self.rows_of[job] = np.array(rows, dtype=np.int64)
                self.pool.put(job, held, self.rows_of)
                self.actions.append(Start(job, rows))
        residents = self.columns["residents"][touched].tolist()
        for row, there in zip(touched.tolist(), residents, strict=True):
            self.residents_of[row] = [job for job in there if job >= 0]
        self.empty = len(self.gpus) - int(np.count_nonzero(self.columns["jobs"]))

    def take_actions(self) -> list[Action]:
        """Return the actions since the last call, in order."""
        actions, self.actions = self.actions, []
        return actions


def _shown(columns: Mapping[str, Any]) -> GpuArrays:
    """Return the live columns, by name, as those who may not write them see them."""
    return GpuArrays(**{name: column.view() for name, column in columns.items()})
