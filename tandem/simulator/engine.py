"""Discrete events on a heap: owns the time and the seed, and drives the policies of a profile."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

import numpy as np

from tandem.errors import TandemError
from tandem.policy.board import Board, Start
from tandem.policy.catalog import Profile
from tandem.policy.cluster import GpuArrays
from tandem.policy.job import Job
from tandem.policy.jobs import History, JobArrays
from tandem.policy.units import Floats, Ints
from tandem.simulator.jobs import TraceJob
from tandem.simulator.truth import OOM_AT_ONCE_S, PEAK_WINDOW_S, Truth

_RELEARN = 1.1  # the distribution of finished jobs is learned anew when it has grown by a tenth


class _Kind(IntEnum):
    END = 0
    ARRIVE = 1
    CROSS = 2
    PROMOTE = 3
    OOM = 4
    TICK = 5
    ADJUST = 6


@dataclass(slots=True)
class Outcome:
    """What happened, job by job and over time."""

    submit_s: Floats
    end_s: Floats
    gpus: Ints
    duration_s: Floats
    run_s: Floats  # (jobs,) wall time on GPUs
    overhead_s: Floats  # (jobs,) solo seconds redone: resumes, work lost to OOM
    preemptions: Ints
    migrations: Ints  # (jobs,) moves: stopped and started elsewhere at once
    ooms: Ints
    busy_gpu_s: float = 0.0  # GPUs with at least one job, over time
    max_gpus_used: int = 0
    rounds: int = 0
    times_s: list[float] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    in_use: list[int] = field(default_factory=list)
    decisions: list[tuple[float, str, str, tuple[int, ...]]] = field(default_factory=list)


class Engine:
    """One run of one profile on one trace.

    `believed` are the jobs as the policies see them, in the order of `trace`. `history` is what
    jobs that ended before taught; it stands beside what this run teaches.
    """

    def __init__(
        self,
        trace: Sequence[TraceJob],
        believed: Sequence[Job],
        gpus: GpuArrays,
        profile: Profile,
        truth: Truth,
        *,
        history: History | None = None,
        seed: int = 0,
        on_progress: Callable[[int], None] | None = None,
        record_decisions: bool = False,
    ) -> None:
        self.trace = trace
        self.profile = profile
        self.truth = truth
        self._rng = np.random.default_rng(seed)
        self._on_progress = on_progress
        self._record = record_decisions
        self._order = profile.order
        self._state = self._order.state()
        self._pipeline = profile.pipeline()
        self._dispatch = profile.dispatch
        self._adjust = profile.adjust
        self._arrays = _job_arrays(trace, believed)
        self._board = Board.of(list(believed), self._arrays, gpus)
        if history is not None:
            self._board.history = history
        self._left = np.array([job.duration_s for job in trace], dtype=np.float64)
        self._left_at_start = self._left.copy()
        self._version = [0] * len(trace)
        self._row_version = [0] * len(gpus)
        self._heap: list[tuple[float, int, int, int]] = []
        self._finished: list[float] = [] if history is None else history.service_gpu_s.tolist()
        self._learned = 0
        self._ended = 0
        self._ticking = False
        self._adjusting = False
        self._waiting = 0
        self._rows: dict[int, tuple[int, ...]] = {}
        self._widest_node = int(np.bincount(gpus.node).max())
        self._now = 0.0
        # Where nobody can slow or kill anybody, there are no speeds to keep up to date.
        self._sharing = (
            truth.interferes
            or bool(np.isfinite(truth.memory_gib).any())
            or truth.spread_slowdown is not None
        )
        count = len(trace)
        self.outcome = Outcome(
            submit_s=self._arrays.arrived_s,
            end_s=np.full(count, np.nan),
            gpus=self._arrays.gpus,
            duration_s=self._left.copy(),
            run_s=np.zeros(count),
            overhead_s=np.zeros(count),
            preemptions=np.zeros(count, dtype=np.int64),
            migrations=np.zeros(count, dtype=np.int64),
            ooms=np.zeros(count, dtype=np.int64),
        )

    def run(self) -> Outcome:
        """Run until all jobs have ended; raises TandemError if some never can."""
        for index, job in enumerate(self.trace):
            self._heap.append((job.submit_s, _Kind.ARRIVE, index, 0))
        heapq.heapify(self._heap)
        while self._heap:
            now = self._heap[0][0]
            self._account(now)
            self._now = self._board.now_s = now
            changed = False
            while self._heap and self._heap[0][0] == now:
                _, kind, index, version = heapq.heappop(self._heap)
                changed |= self._handle(_Kind(kind), index, version)
            if changed:
                self._round()
        stuck = np.flatnonzero(np.isnan(self.outcome.end_s))
        if len(stuck):
            names = ", ".join(self.trace[i].id for i in stuck[:10].tolist())
            raise TandemError(
                f"{self.profile.name}: {len(stuck)} job(s) never got a place: {names}",
                "Each constraint of the profile must allow every job on an empty cluster.",
            )
        return self.outcome

    # --- events -------------------------------------------------------------------------------

    def _handle(self, kind: _Kind, index: int, version: int) -> bool:
        """Handle one event; say whether the jobs or the room have changed."""
        if kind is _Kind.ARRIVE:
            self._state.add(index, 0.0)
            self._waiting += 1
            return True
        if kind is _Kind.TICK:
            self._ticking = False
            return True
        if kind is _Kind.ADJUST:
            assert self._adjust is not None
            self._adjusting = False
            relearned = self._adjust(self._board, self._pipeline)
            changed = self._carry_out() or relearned
            if self._adjust.repeats and (self._board.gpus.jobs > 1).any():
                self._expect_adjustment(self._adjust.every_s)
            return changed
        if kind is _Kind.OOM:
            return self._row_version[index] == version and self._out_of_memory(index)
        if self._version[index] != version:
            return False
        if kind is _Kind.END:
            self._end(index)
        elif kind is _Kind.CROSS:
            self._settle(index)
            # The event is due exactly at the threshold: rounding must not leave it just below.
            service = self._order.next_level_gpu_s(
                float(self._arrays.service_at_since[index]) - 1e-6
            )
            self._arrays.service_at_since[index] = service
            self._state.cross(index, service)
            self._expect_crossing(index)
        else:
            self._arrays.service_at_since[index] = 0.0
            self._arrays.waiting_since_s[index] = self._now
            self._state.cross(index, 0.0)
        return True

    def _end(self, index: int) -> None:
        self._settle(index)
        self.outcome.end_s[index] = self._now
        self._ended += 1
        self._finished.append(float(self._arrays.attained_at_since[index]))
        self._state.remove(index)
        self._board.remove(index)
        self._arrays.running[index] = False
        self._version[index] += 1
        self._refresh(set(self._rows.pop(index)))
        if self._on_progress is not None:
            self._on_progress(self._ended)
        if len(self._finished) >= self._learned * _RELEARN:
            self._learned = len(self._finished)
            self._board.history = History(np.array(self._finished))

    def _out_of_memory(self, row: int) -> bool:
        """Kill the worker whose allocation failed, and with it its gang. It loses its run."""
        residents = self._board.residents_of[row]
        if len(residents) < 2:
            return False
        # Whoever asks last fails: any of those in a peak, or the newcomer where bases do not fit.
        room = self.truth.memory_gib[row] - sum(self.truth.memory[j].base_gib for j in residents)
        together = self.truth.overflow(row, residents) >= 1.0
        victim = residents[-1]
        if room >= 0 and not together:
            peaks = [self.truth.memory[j].peak_extra_gib for j in residents]
            chances = np.array(peaks) * [self.truth.memory[j].peak_probability for j in residents]
            victim = residents[int(self._rng.choice(len(residents), p=chances / chances.sum()))]
        self._settle(victim)
        self.outcome.ooms[victim] += 1
        lost = self._left_at_start[victim] - self._left[victim]
        self.outcome.overhead_s[victim] += lost
        self._left[victim] += lost
        others = _besides(residents, victim)
        capacity = float(self._board.gpus.memory_capacity_gib[row])
        available = capacity - sum(self._board.jobs[j].memory_base_gib for j in others)
        job = self._board.jobs[victim]
        self._board.remove(victim)
        # Its need is at least what was there ([Horus] 4.4); it runs alone, so that no profile,
        # however blind to memory, can send it into the same wall again.
        base = max(job.memory_base_gib, available - job.memory_peak_extra_gib)
        self._board.jobs[victim] = replace(job, memory_base_gib=base, exclusive=True)
        rows = self._rows.pop(victim)
        self._suspend(victim)
        self._refresh(set(rows))
        return True

    # --- rounds -------------------------------------------------------------------------------

    def _round(self) -> None:
        self.outcome.rounds += 1
        ranked = self._state.rank(self._arrays, self._now, self._board.history)
        if not self._dispatch.preempts:
            ranked = ranked[~self._arrays.running[ranked]]
        self._dispatch(self._board, ranked, self._pipeline, self._order.blocks)
        self._carry_out()
        self._state.settle(self._arrays.running)
        if self._waiting and np.isfinite(self._order.slice_s) and not self._ticking:
            self._ticking = True
            heapq.heappush(self._heap, (self._now + self._order.slice_s, _Kind.TICK, 0, 0))
        used = len(self._board.gpus) - self._board.empty
        self.outcome.max_gpus_used = max(self.outcome.max_gpus_used, used)
        self.outcome.times_s.append(self._now)
        self.outcome.waiting.append(self._waiting)
        self.outcome.in_use.append(used)

    def _carry_out(self) -> bool:
        """Do in truth what the policies have decided on the board; say whether that was anything.

        Who has started is looked at once more by the profile's adjuster, a while later.
        """
        actions = self._board.take_actions()
        touched: set[int] = set()
        stopped: set[int] = set()
        for action in actions:
            if isinstance(action, Start):
                self._begin(action.job, action.rows)
                touched.update(action.rows)
                if action.job in stopped:
                    self.outcome.migrations[action.job] += 1
                    self.outcome.preemptions[action.job] -= 1
            else:
                stopped.add(action.job)
                touched.update(self._stop(action.job))
            if self._record:
                rows = action.rows if isinstance(action, Start) else ()
                verb = "start" if isinstance(action, Start) else "stop"
                self.outcome.decisions.append((self._now, verb, self.trace[action.job].id, rows))
        self._refresh(touched)
        adjust = self._adjust
        started = any(isinstance(action, Start) for action in actions)
        if adjust is not None and started and not (adjust.repeats and self._adjusting):
            self._expect_adjustment(adjust.every_s)
        return bool(actions)

    def _expect_adjustment(self, every_s: float) -> None:
        self._adjusting = True
        heapq.heappush(self._heap, (self._now + every_s, _Kind.ADJUST, 0, 0))

    def _begin(self, index: int, rows: tuple[int, ...]) -> None:
        arrays = self._arrays
        arrays.running[index] = True
        arrays.speed[index] = 1.0
        arrays.since_s[index] = self._now
        arrays.first_started_s[index] = min(arrays.first_started_s[index], self._now)
        self._left_at_start[index] = self._left[index]
        self._rows[index] = rows
        self.truth = self.truth.accumulating(index, self._board.jobs[index].accumulation_steps)
        self._waiting -= 1
        self._version[index] += 1
        self._expect_end(index)
        self._expect_crossing(index)

    def _stop(self, index: int) -> tuple[int, ...]:
        """Preempt; the board has done it already. Returns the rows that were left."""
        self._settle(index)
        self.outcome.preemptions[index] += 1
        rows = self._rows.pop(index)
        self._suspend(index)
        return rows

    def _suspend(self, index: int) -> None:
        """Put a job that has left its GPUs back in the queue; its resume will cost."""
        arrays = self._arrays
        cost = self.truth.preemption_cost_s
        self._left[index] += cost
        arrays.remaining_at_since[index] += cost
        self.outcome.overhead_s[index] += cost
        arrays.running[index] = False
        arrays.speed[index] = 0.0
        arrays.waiting_since_s[index] = self._now
        self._waiting += 1
        self._version[index] += 1
        executed = float(arrays.service_at_since[index] / arrays.gpus[index])
        self._push(self._now + self._order.promote_after_s(executed), _Kind.PROMOTE, index)

    # --- progress -----------------------------------------------------------------------------

    def _settle(self, index: int) -> None:
        """Write down what a running job has done until now."""
        arrays = self._arrays
        passed = self._now - float(arrays.since_s[index])
        done = passed * float(arrays.speed[index])
        gained = passed * int(arrays.gpus[index])
        self._left[index] -= done
        arrays.remaining_at_since[index] -= done
        arrays.attained_at_since[index] += gained
        arrays.service_at_since[index] += gained
        arrays.since_s[index] = self._now
        self.outcome.run_s[index] += passed

    def _refresh(self, rows: set[int]) -> None:
        """Set the speed of all jobs on `rows`, and draw when their memory will run over."""
        if not self._sharing:
            return
        jobs = {job for row in rows for job in self._board.residents_of[row]}
        for job in sorted(jobs):
            speed = self._true_speed(job)
            if speed != self._arrays.speed[job]:
                self._settle(job)
                self._arrays.speed[job] = speed
                self._version[job] += 1
                self._expect_end(job)
                self._expect_crossing(job)
        for row in sorted(rows):
            self._row_version[row] += 1
            residents = self._board.residents_of[row]
            if len(residents) < 2:
                continue
            chance = self.truth.overflow(row, residents)
            if chance > 0:
                wait = OOM_AT_ONCE_S
                if chance < 1:
                    wait += float(self._rng.geometric(chance) - self._rng.random()) * PEAK_WINDOW_S
                version = self._row_version[row]
                heapq.heappush(self._heap, (self._now + wait, _Kind.OOM, row, version))

    def _true_speed(self, job: int) -> float:
        rows = self._rows[job]
        speed = min(
            (
                self.truth.speed(job, _besides(residents, job))
                for row in rows
                if len(residents := self._board.residents_of[row]) > 1
            ),
            default=1.0,
        )
        if self.truth.stretch is not None:
            speed /= float(self.truth.stretch[job])
        spread = self.truth.spread_slowdown
        if spread is not None and len(rows) > 1:
            nodes = len(np.unique(self._board.gpus.node[list(rows)]))
            if nodes > -(-len(rows) // self._widest_node):
                speed /= 1 + float(spread[job])
        return speed

    def _expect_end(self, index: int) -> None:
        left = max(float(self._left[index]), 0.0)
        self._push(self._now + left / float(self._arrays.speed[index]), _Kind.END, index)

    def _expect_crossing(self, index: int) -> None:
        service = float(self._arrays.service_at_since[index])
        wanted = self._order.next_level_gpu_s(service) - service
        self._push(self._now + wanted / int(self._arrays.gpus[index]), _Kind.CROSS, index)

    def _push(self, at_s: float, kind: _Kind, index: int) -> None:
        if at_s != float("inf"):
            heapq.heappush(self._heap, (at_s, kind, index, self._version[index]))

    def _account(self, now_s: float) -> None:
        used = len(self._board.gpus) - self._board.empty
        self.outcome.busy_gpu_s += used * (now_s - self._now)


def _besides(residents: Sequence[int], job: int) -> list[int]:
    """Return the neighbours of one worker of `job`: workers of its own job count as others do."""
    neighbours = list(residents)
    neighbours.remove(job)
    return neighbours


def _job_arrays(trace: Sequence[TraceJob], believed: Sequence[Job]) -> JobArrays:
    """Return the live table: nothing runs yet."""
    arrays = JobArrays.of(believed)
    count = len(trace)
    return replace(
        arrays,
        service_at_since=np.zeros(count),
        attained_at_since=np.zeros(count),
        first_started_s=np.full(count, np.inf),
    )
