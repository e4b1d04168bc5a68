"""True progress of running jobs: their speeds, their ends, and when memory runs out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tandem.policy.board import Board
from tandem.policy.equations.slices import slice_speed
from tandem.policy.jobs import JobArrays
from tandem.policy.ordering.base import KeyOrder
from tandem.policy.units import Floats
from tandem.simulator.events import Events, Kind
from tandem.simulator.outcome import Outcome
from tandem.simulator.truth import OOM_AT_ONCE_S, PEAK_WINDOW_S, Truth


# Paper: [Tiresias] 5.2.4, Fig. 4, 5 | cost of a preemption and its resume | test:
#   tests/simulator/test_simulator_latency.py test_a_start_holds_the_gpus_and_is_no_service |
#   live: no | reason: a cluster has the real checkpoint and its real cost; only a simulation
#   has to assume one
class Progress:
    """Keeps the rows of running jobs in `JobArrays` true, and expects what will become of them.

    `left` is what each job still has to do, in solo seconds, (jobs,). Where memory is `guarded`,
    the job that outgrew its prediction goes, in place of the one that asks last.
    """

    def __init__(
        self,
        board: Board,
        left: Floats,
        truth: Truth,
        order: KeyOrder,
        events: Events,
        outcome: Outcome,
        rng: np.random.Generator,
        *,
        guarded: bool = False,
    ) -> None:
        self.rows: dict[int, tuple[int, ...]] = {}  # of each running job
        self._began_s: dict[int, float] = {}
        self._resized_s: dict[int, float] = {}
        self.turned: set[int] = set()  # who has started or stopped since the last round
        self._starting: set[int] = set()  # those that hold their GPUs and have yet to begin
        self._free_s: dict[int, float] = {}  # when a GPU is free of who was preempted there
        self._gone_s: dict[int, float] = {}  # when a preempted job has left its GPUs
        self._board = board
        self._arrays: JobArrays = board.arrays
        self._left = left
        self._left_at_start = left.copy()
        self._truth = truth
        self._order = order
        self._events = events
        self._outcome = outcome
        self._rng = rng
        self._guarded = guarded
        # Of elastic jobs: on how many GPUs the seconds are that say what is left.
        self._size = {job: len(speeds) - 1 for job, speeds in truth.elastic_speed.items()}
        outcome.elastic_gpu_s[list(truth.elastic_speed)] = 0.0
        self._widest_node = int(np.bincount(board.gpus.node).max())
        # Where no job can slow or kill another, there are no speeds to keep up to date.
        self._sharing = (
            truth.interferes
            or bool(np.isfinite(truth.memory_gib).any())
            or truth.spread_slowdown is not None
            or bool(board.gpus.sliced.any())
        )

    def begin(self, job: int, rows: tuple[int, ...]) -> None:
        """Start a job; `refresh` sets its speed where it is not alone.

        Where a start takes time, it is not disturbed meanwhile, and attains nothing.
        """
        arrays, now = self._arrays, self._board.now_s
        arrays.running[job] = True
        self.turned.add(job)
        arrays.speed[job] = 1.0
        arrays.since_s[job] = now
        if now < arrays.first_started_s.item(job):
            arrays.first_started_s[job] = now
        self.fit(job, len(rows))
        self._left_at_start[job] = self._left[job]
        self._began_s[job] = now
        self._resized_s.pop(job, None)
        self.rows[job] = rows
        self._truth = self._truth.accumulating(job, self._board.jobs[job].accumulation_steps)
        self._events.void_job(job)
        wait_s = self._wait_s(job, rows)
        if wait_s > 0:
            arrays.speed[job] = 0.0
            self._starting.add(job)
            self._board.pinned.add(job)
            self._events.expect(now + wait_s, Kind.BEGIN, job)
        else:
            self._expect(job)

    def together(self, job: int) -> set[int]:
        """Return the jobs on whose ends the speed of `job` depends, itself included.

        Who leaves a GPU changes the speed of its neighbours, and so when they leave theirs.
        """
        found, to_see = {job}, [job]
        while to_see:
            rows = self.rows.get(to_see.pop(), ())
            neighbours = {other for row in rows for other in self._board.residents_of[row]} - found
            found |= neighbours
            to_see += neighbours
        return found

    def redraw(self, left: Floats) -> None:
        """Let jobs have had `left` to do, (jobs,) solo seconds, from the beginning of the run.

        Only at time 0, before any of them has done some of it. What preemptions added stays.
        """
        self._left[:] = left
        stops = self._outcome.preemptions + self._outcome.migrations
        for stop in range(int(stops.max(initial=0))):  # one by one, as they were added
            self._left[stops > stop] += self._truth.preemption_cost_s
        self._left_at_start[:] = self._left
        for job in self.rows.keys() - self._starting:
            self._events.void_job(job)
            self._expect(job)

    def go(self, job: int) -> None:
        """Let a job that holds its GPUs begin."""
        self.settle(job)
        self._started(job)
        self._arrays.speed[job] = 1.0
        self._expect(job)
        self.refresh(set(self.rows[job]))

    def resize(self, job: int, rows: tuple[int, ...]) -> set[int]:
        """Let a running job have other GPUs from now on; return all whose residents have changed.

        It starts anew with them, which takes `resize_cost_s`, unless it has started just now. Where
        it is still starting anew after another change, it begins with that once more.
        """
        self.settle(job)
        changed = set(self.rows[job]) ^ set(rows)
        self._board.resize(job, np.array(rows, dtype=np.int64))
        self.rows[job] = rows
        cost_s, now = self._truth.resize_cost_s, self._board.now_s
        unfinished_s = max(0.0, self._resized_s.get(job, -np.inf) + cost_s - now)
        self._redo(job, -unfinished_s)
        self.fit(job, len(rows))
        if self.has_begun(job):
            self._redo(job, cost_s)
            self._resized_s[job] = now
        self._arrays.speed[job] = self._speed(job) if self._sharing else 1.0
        self._events.void_job(job)
        self._expect(job)
        return changed

    def _redo(self, job: int, cost_s: float) -> None:
        """Let a job do nothing for a while, or for so much less."""
        self._left[job] += cost_s
        self._arrays.remaining_at_since[job] += cost_s
        self._outcome.overhead_s[job] += cost_s * self._size_speed(job)

    def fit(self, job: int, gpus: int) -> None:
        """Say in seconds alone on `gpus` GPUs what an elastic job has to do; nothing for others."""
        before = self._size.get(job)
        if before is None or before == gpus:
            return
        speeds = self._truth.elastic_speed[job]
        factor = speeds[before] / speeds[gpus]
        self._left[job] *= factor
        self._left_at_start[job] *= factor
        self._arrays.remaining_at_since[job] *= factor
        self._size[job] = gpus

    def has_begun(self, job: int) -> bool:
        """Say whether a running job started before this moment."""
        return self._board.now_s > self._began_s[job]

    def _size_speed(self, job: int) -> float:
        """Return the speed of a job alone on its GPUs, as a share of that on all that it wants."""
        size = self._size.get(job)
        return 1.0 if size is None else self._truth.elastic_speed[job][size]

    def hold_still(self) -> None:
        """Write down that those who have yet to begin have attained nothing until now."""
        for job in self._starting:
            self.settle(job)

    def _wait_s(self, job: int, rows: tuple[int, ...]) -> float:
        """Return how long it takes until a job begins that is started now."""
        latency, now = self._truth.latency, self._board.now_s
        if latency is None:
            return 0.0
        free_s = max(self._free_s.get(row, now) for row in rows)
        return max(now, free_s, self._gone_s.get(job, now)) - now + float(latency.start_s[job])

    def _started(self, job: int) -> None:
        self._starting.discard(job)
        self._board.pinned.discard(job)

    def end(self, job: int) -> set[int]:
        """End a job that has done all; return the GPUs that it leaves."""
        self.settle(job)
        self._arrays.running[job] = False
        self._events.void_job(job)
        return set(self.rows.pop(job))

    def suspend(self, job: int) -> tuple[int, ...]:
        """Stop a job that goes back to the queue; its resume costs. Return the GPUs it leaves."""
        self.settle(job)
        self._started(job)
        arrays, now = self._arrays, self._board.now_s
        self._redo(job, self._truth.preemption_cost_s)
        arrays.running[job] = False
        self.turned.add(job)
        arrays.speed[job] = 0.0
        arrays.waiting_since_s[job] = now
        self._events.void_job(job)
        executed = arrays.service_at_since.item(job) / arrays.gpus.item(job)
        self._events.expect(now + self._order.promote_after_s(executed), Kind.PROMOTE, job)
        rows = self.rows.pop(job)
        if self._truth.latency is not None:
            gone_s = now + float(self._truth.latency.release_s[job])
            self._gone_s[job] = gone_s
            self._free_s.update(dict.fromkeys(rows, gone_s))
        return rows

    def settle(self, job: int) -> None:
        """Write down what a running job has done until now."""
        arrays, now = self._arrays, self._board.now_s
        passed = now - arrays.since_s.item(job)
        done = passed * arrays.speed.item(job)
        gained = 0.0 if job in self._starting else passed * arrays.gpus.item(job)
        self._left[job] -= done
        arrays.remaining_at_since[job] -= done
        arrays.attained_at_since[job] += gained
        arrays.service_at_since[job] += gained
        arrays.since_s[job] = now
        self._outcome.run_s[job] += passed
        if job in self._size:
            self._outcome.elastic_gpu_s[job] += done * len(self.rows[job])

    def cross(self, job: int) -> float:
        """Note that a job's service has come to a threshold; return that service, GPU-seconds."""
        self.settle(job)
        # The event is due exactly at the threshold: rounding must not leave it just below.
        service = self._order.next_level_gpu_s(self._arrays.service_at_since.item(job) - 1e-6)
        self._arrays.service_at_since[job] = service
        self._expect_crossing(job)
        return service

    def refresh(self, rows: set[int]) -> None:
        """Set the speed of all jobs on `rows`, and draw when their memory will run over."""
        if not self._sharing:
            return
        jobs = {job for row in rows for job in self._board.residents_of[row]}
        for job in sorted(jobs - self._starting):
            speed = self._speed(job)
            if speed != self._arrays.speed[job]:
                self.settle(job)
                self._arrays.speed[job] = speed
                self._events.void_job(job)
                self._expect(job)
        for row in sorted(rows):
            self._events.void_row(row)
            residents = self._board.residents_of[row]
            if len(residents) < 2:
                continue
            chance = self._truth.overflow(row, residents)
            if chance > 0:
                wait = OOM_AT_ONCE_S
                if chance < 1:
                    wait += float(self._rng.geometric(chance) - self._rng.random()) * PEAK_WINDOW_S
                self._events.expect(self._board.now_s + wait, Kind.OOM, row)

    def out_of_memory(self, row: int) -> set[int]:
        """Kill the worker whose allocation failed, and with it its gang; it loses its run.

        Where memory is guarded the worker is evicted before: a job that saves its work on SIGTERM
        loses what a preemption costs, and no more.
        Return the GPUs that it leaves; none where no other job is left on the GPU.
        """
        board = self._board
        residents = board.residents_of[row]
        if len(residents) < 2:
            return set()
        victim = self._victim(row, residents)
        self.settle(victim)
        self._outcome.ooms[victim] += 1
        saves = self._guarded and board.jobs[victim].checkpointable
        lost = 0.0 if saves else self._left_at_start[victim] - self._left[victim]
        self._outcome.overhead_s[victim] += lost * self._size_speed(victim)
        self._left[victim] += lost
        capacity = float(board.gpus.memory_capacity_gib[row])
        others = besides(residents, victim)
        available = capacity - sum(board.jobs[j].memory_base_gib for j in others)
        job = board.jobs[victim]
        board.remove(victim)
        # Its need is at least what was there ([Horus] 4.2.3); it runs alone, so that no profile,
        # however blind to memory, can send it into the same wall again.
        base = max(job.memory_base_gib, available - job.memory_peak_extra_gib)
        board.change(victim, replace(job, memory_base_gib=base, exclusive=True))
        return set(self.suspend(victim))

    def _victim(self, row: int, residents: Sequence[int]) -> int:
        """Return who asks last: one of those in a peak, or the newcomer where bases do not fit."""
        memory = self._truth.memory
        if self._guarded:
            jobs = self._board.jobs
            beyond = {j: memory[j].peak_gib - jobs[j].memory_peak_gib for j in residents}
            worst = max(residents, key=lambda j: beyond[j])
            if beyond[worst] > 0:
                return worst
        room = self._truth.memory_gib[row] - sum(memory[j].base_gib for j in residents)
        if room < 0 or self._truth.overflow(row, residents) >= 1.0:
            return residents[-1]
        peaks = [memory[j].peak_extra_gib for j in residents]
        chances = np.array(peaks) * [memory[j].peak_probability for j in residents]
        return residents[int(self._rng.choice(len(residents), p=chances / chances.sum()))]

    def _speed(self, job: int) -> float:
        rows, truth, still = self.rows[job], self._truth, self._starting
        speed = min(
            (
                truth.speed(
                    job, [j for j in neighbours if j not in still] if still else neighbours, row
                )
                for row in rows
                if len(residents := self._board.residents_of[row]) > 1
                and (neighbours := besides(residents, job))
            ),
            default=1.0,
        )
        if truth.stretch is not None:
            speed /= float(truth.stretch[job])
        gpus = self._board.gpus
        if len(rows) == 1 and gpus.sliced[rows[0]]:
            busy = self._board.jobs[job].busy_share
            speed *= float(slice_speed(busy, float(gpus.compute[rows[0]])))
        if truth.spread_slowdown is not None and len(rows) > 1:
            nodes = len(np.unique(self._board.gpus.node[list(rows)]))
            if nodes > -(-len(rows) // self._widest_node):
                speed /= 1 + float(truth.spread_slowdown[job])
        return speed

    def _expect(self, job: int) -> None:
        left = max(self._left.item(job), 0.0)
        at_s = self._board.now_s + left / self._arrays.speed.item(job)
        self._events.expect(at_s, Kind.END, job)
        self._expect_crossing(job)

    def _expect_crossing(self, job: int) -> None:
        service = self._arrays.service_at_since.item(job)
        wanted = self._order.next_level_gpu_s(service) - service
        at_s = self._board.now_s + wanted / self._arrays.gpus.item(job)
        self._events.expect(at_s, Kind.CROSS, job)


def besides(residents: Sequence[int], job: int) -> list[int]:
    """Return the neighbours of one worker of `job`: workers of its own job count as others do."""
    neighbours = list(residents)
    neighbours.remove(job)
    return neighbours
