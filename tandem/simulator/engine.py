"""Discrete events on a heap: owns the time and the seed, and drives the policies of a profile."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tandem.errors import TandemError
from tandem.policy.adjust.learn import Learn
from tandem.policy.board import Board, Start
from tandem.policy.catalog import Profile
from tandem.policy.cluster import GpuArrays, Links
from tandem.policy.elastic import SMALLER_FOR_S
from tandem.policy.job import Job
from tandem.policy.jobs import History, JobArrays
from tandem.policy.links import connect
from tandem.policy.ordering.ranking import state_of
from tandem.policy.pipeline import Pipeline
from tandem.policy.topology import Topology
from tandem.policy.units import Bools, Floats, Ints
from tandem.reasons.counting import counted
from tandem.simulator.elastic import ElasticJobs, act
from tandem.simulator.events import Events, Kind
from tandem.simulator.jobs import TraceJob
from tandem.simulator.kept import KeptJobs
from tandem.simulator.outcome import Outcome
from tandem.simulator.progress import Progress
from tandem.simulator.truth import Truth

#: Times that a round is decided where there are elastic jobs: who has just started may grow.
_AGAIN = 4
_RELEARN = 1.1  # the distribution of finished jobs is learned anew when it has grown by a tenth


@dataclass(frozen=True, slots=True)
class Begun:
    """A cluster at work that a run begins with at time 0, in place of an empty one.

    `arrays` has the jobs as they are then, none of them marked as running; `rows_of` says where
    those run that do, a worker on each row. `stays` are jobs that are not stopped once they run.
    """

    arrays: JobArrays
    rows_of: Mapping[int, tuple[int, ...]]
    stays: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a run that most runs leave at their defaults.

    `history` has the service of jobs that ended before the run; the run adds its own. With `begun`,
    jobs of the trace may run at time 0. `pipeline` replaces the profile's. `learner` takes the
    place of an adjuster in a profile that has none; it corrects the predictions of `believed` where
    they stand. `on_progress` gets the number of ended jobs at each end. `record_decisions` fills
    `Outcome.decisions`. `topology` has the domains of the nodes; without it, no job may require a
    level. `links` says how the GPUs of a node are connected. `pause_s` says, by the time of a
    round, for how many seconds no other one follows: what happens in between is decided on
    together. Without it, each change is decided on at once. `admit` takes the ranked jobs and which
    jobs run, and yields the jobs that each dispatch of a round may try, in order; without it there
    is one, of all. Jobs of the trace are elastic only without `begun`.
    """

    history: History | None = None
    begun: Begun | None = None
    pipeline: Pipeline | None = None
    learner: Learn | None = None
    on_progress: Callable[[int], None] | None = None
    record_decisions: bool = False
    pause_s: Callable[[float], float] | None = None
    topology: Topology | None = None
    links: Links | None = None
    admit: Callable[[Ints, Bools], Iterator[Ints]] | None = None


class Engine:
    """One run of one profile on one trace.

    `believed` are the jobs as the policies see them, in the order of `trace`. Where memory is
    `guarded`, an agent measures it: a job that exceeds its predicted memory is stopped before a
    neighbour fails.
    """

    def __init__(
        self,
        trace: Sequence[TraceJob],
        believed: Sequence[Job],
        gpus: GpuArrays,
        profile: Profile,
        truth: Truth,
        *,
        seed: int = 0,
        guarded: bool = False,
        options: RunOptions = RunOptions(),
    ) -> None:
        history, begun = options.history, options.begun
        self.trace = trace
        self.profile = profile
        self._on_progress = options.on_progress
        self._record = options.record_decisions
        self._pause_s = options.pause_s
        self._admit = options.admit or _all
        self._links = options.links
        self._paused_until_s = -np.inf
        self._postponed = False
        self._adjust = profile.adjust or options.learner
        self._order = profile.order
        self._elastic = ElasticJobs(trace if begun is None else (), believed)
        jobs = self._elastic.jobs
        self._kept = KeptJobs.of(jobs, options.topology, options.pipeline or profile.pipeline())
        self._pipeline = self._kept.pipeline
        self._arrays = _job_arrays(jobs) if begun is None else begun.arrays
        self._state = state_of(self._order, self._arrays)
        self._begun = begun or Begun(self._arrays, {})
        self._board = Board.of(jobs, self._arrays, gpus)
        if history is not None:
            self._board.history = history
        known = self._board.history
        self._finished: list[float] = known.service_gpu_s.tolist()
        self._finished_gpus: list[int] = (
            [1] * len(self._finished) if known.gpus is None else known.gpus.tolist()
        )
        self._finished_namespaces = list(known.namespaces or [""] * len(self._finished))
        self._gpus = len(gpus)
        self._learned = 0
        self._ended = 0
        self._ticking = False
        self._adjusting = False
        self._waiting = 0
        left = np.array([job.duration_s for job in trace], dtype=np.float64)
        sizes = self._arrays.gpus
        if self._elastic:
            sizes = np.array([job.gpus for job in trace], dtype=np.int64)
            truth = replace(truth, elastic_speed=self._elastic.speeds)
        self.outcome = Outcome.before(self._arrays.arrived_s[: len(trace)], sizes, left)
        self._events = Events(len(trace), len(gpus))
        self._progress = Progress(
            self._board,
            left,
            truth,
            self._order,
            self._events,
            self.outcome,
            np.random.default_rng(seed),
            guarded=guarded,
        )
        for job in self._elastic.speeds:
            self._progress.fit(job, int(self._arrays.gpus[job]))

    @property
    def board(self) -> Board:
        """The cluster and its jobs as the run has them now; not to be changed."""
        return self._board

    def run(self) -> Outcome:
        """Run until all jobs have ended; raises TandemError if some never can."""
        for _ in self.steps():
            pass
        stuck = np.flatnonzero(np.isnan(self.outcome.end_s))
        if len(stuck):
            names = ", ".join(self.trace[i].id for i in stuck[:10].tolist())
            raise TandemError(
                f"{self.profile.name}: {counted(len(stuck), 'job')} never got a place: {names}",
                "Each constraint of the profile must allow every job on an empty cluster.",
            )
        return self.outcome

    def conclude(self, job: int) -> None:
        """Decide on nothing more, between two steps; only what the end of `job` depends on happens.

        An adjuster still acts: with one, all goes on but the rounds.
        """
        self._paused_until_s = math.inf
        if self._adjust is None:
            self._events.keep(self._progress.together(job))

    def redraw(self, durations_s: Floats) -> None:
        """Give the jobs other durations, (jobs,), after the step of time 0.

        The run is from then on as if it had begun with them: what is decided at time 0 does not
        depend on them.
        """
        self.outcome.duration_s[:] = durations_s
        self._progress.redraw(durations_s)

    def steps(self) -> Iterator[float]:
        """Run from event to event; yield the time of each once it has been dealt with."""
        self._go_on()
        for index, job in enumerate(self.trace):
            if index not in self._begun.rows_of:
                self._events.expect(job.submit_s, Kind.ARRIVE, index)
        while self._events:
            now = self._events.next_s
            self._account(now)
            self._board.now_s = now
            self._progress.hold_still()
            changed = False
            for kind, index in self._events.due(now):
                changed |= self._handle(kind, index)
            if changed or (self._postponed and now >= self._paused_until_s):
                self._round_or_postpone(now)
            yield now

    def _round_or_postpone(self, now_s: float) -> None:
        if now_s >= self._paused_until_s:
            self._postponed = False
            if self._pause_s is not None:
                self._paused_until_s = now_s + self._pause_s(now_s)
            self._round()
        elif not self._postponed:
            self._postponed = True
            self._events.expect(self._paused_until_s, Kind.ROUND)

    def _go_on(self) -> None:
        """Take in what runs already, and when those that were preempted are to be promoted."""
        arrays, begun = self._arrays, self._begun
        for job, rows in begun.rows_of.items():
            self._add(job)
            self._board.place(job, np.array(rows, dtype=np.int64))
            self._progress.begin(job, rows)
        self._progress.refresh({row for rows in begun.rows_of.values() for row in rows})
        self._board.pinned.update(begun.stays & begun.rows_of.keys())
        self._pipeline = self._kept.stay(self._board, begun.rows_of)
        for job in np.flatnonzero((arrays.attained_at_since > 0) & ~arrays.running).tolist():
            wait_s = self._order.promote_after_s(
                float(arrays.service_at_since[job] / arrays.gpus[job])
            )
            at_s = max(0.0, float(arrays.waiting_since_s[job]) + wait_s)
            self._events.expect(at_s, Kind.PROMOTE, job)

    # --- events -------------------------------------------------------------------------------

    def _handle(self, kind: Kind, index: int) -> bool:
        """Handle one event; say whether the jobs or the room have changed."""
        if kind is Kind.ARRIVE:
            self._add(index)
            self._waiting += 1
        elif kind is Kind.ROUND:
            return False
        elif kind is Kind.GROW:
            return True
        elif kind is Kind.TICK:
            self._ticking = False
        elif kind is Kind.ADJUST:
            return self._look_again()
        elif kind is Kind.OOM:
            left = self._progress.out_of_memory(index)
            self._waiting += bool(left)
            self._give_back_pods()
            self._progress.refresh(left)
            return bool(left)
        elif kind is Kind.END:
            self._end(index)
        elif kind is Kind.BEGIN:
            self._progress.go(index)
        elif kind is Kind.CROSS:
            service = self._progress.cross(index)
            self._state.cross(index, service)
            self._arrays.queue[index] = self._order.queue_of(service) or 0
        else:
            self._arrays.service_at_since[index] = 0.0
            self._arrays.queue[index] = 0
            self._arrays.waiting_since_s[index] = self._board.now_s
            self._state.promote(index, self._arrays.running)
        return True

    def _add(self, index: int) -> None:
        service = float(self._arrays.service_at_since[index])
        self._state.add(index, service)
        self._arrays.queue[index] = self._order.queue_of(service) or 0

    def _end(self, index: int) -> None:
        left = self._progress.end(index)
        self.outcome.end_s[index] = self._board.now_s
        self._ended += 1
        self._finished.append(float(self._arrays.attained_at_since[index]))
        self._finished_gpus.append(int(self._arrays.gpus[index]))
        self._finished_namespaces.append(self._board.jobs[index].namespace)
        self._state.remove(index)
        self._board.remove(index)
        self._board.pinned.discard(index)
        self._progress.refresh(left)
        if self._on_progress is not None:
            self._on_progress(self._ended)
        if len(self._finished) >= self._learned * _RELEARN:
            self._learned = len(self._finished)
            self._board.history = History(
                np.array(self._finished),
                np.array(self._finished_gpus),
                tuple(self._finished_namespaces),
            )

    def _look_again(self) -> bool:
        """Let the profile's adjuster repair what has been placed, and learn."""
        adjust = self._adjust
        assert adjust is not None
        self._adjusting = False
        relearned = adjust(self._board, self._pipeline)
        changed = self._carry_out() or relearned
        if adjust.repeats and (self._board.gpus.jobs > 1).any():
            self._expect_adjustment(adjust.every_s)
        return changed

    # --- rounds -------------------------------------------------------------------------------

    def _round(self) -> None:
        self.outcome.rounds += 1
        now = self._board.now_s
        dispatch = self.profile.dispatch
        for _ in range(max(self._kept.tries, _AGAIN if self._elastic else 1)):
            ranked = self._state.rank(self._arrays, now, self._board.history)
            if self._elastic:
                ranked = self._elastic.with_pods(ranked, self._board, self._progress.settle)
            self._pipeline = self._kept.choose(self._board, ranked, self._elastic.joins)
            acted = False
            for tried in self._admit(ranked, self._arrays.running):
                if not dispatch.preempts:
                    tried = tried[~self._arrays.running[tried]]
                if self._elastic.runs_on(self._board):
                    acted |= self._decide_with_elastic(tried)
                else:
                    self._dispatch(self._board, tried)
                acted |= self._carry_out()
            self._state.settle(self._arrays.running, self._progress.turned)
            self._progress.turned.clear()
            if not acted:
                break
        if self._waiting and math.isfinite(self._order.slice_s) and not self._ticking:
            self._ticking = True
            self._events.expect(now + self._order.slice_s, Kind.TICK)
        used = self._used()
        self.outcome.max_gpus_used = max(self.outcome.max_gpus_used, used)
        self.outcome.times_s.append(now)
        self.outcome.waiting.append(self._waiting)
        self.outcome.in_use.append(used)

    def _dispatch(self, board: Board, ranked: Ints) -> None:
        self.profile.dispatch(board, ranked, self._pipeline, self._order.blocks)

    def _decide_with_elastic(self, ranked: Ints) -> bool:
        """Decide on copies of the board, then act on it; say whether a job has got smaller."""
        board = self._board
        before = int(self.outcome.shrunk.sum())
        act(board, self._elastic.decide(board, ranked, self._dispatch, self._resize))
        return int(self.outcome.shrunk.sum()) > before

    def _resize(self, job: int, rows: tuple[int, ...]) -> None:
        """Let a running elastic job have other GPUs."""
        grows = len(rows) > len(self._progress.rows[job])
        touched = self._progress.resize(job, rows)
        if grows:
            self.outcome.grown[job] += self._progress.has_begun(job)
        else:
            self.outcome.shrunk[job] += 1
            self._events.expect(self._board.now_s + SMALLER_FOR_S, Kind.GROW, job)
        self._progress.refresh(touched)
        self._note_decision("grow" if grows else "shrink", job, rows)

    def _note_decision(self, verb: str, job: int, rows: tuple[int, ...]) -> None:
        if self._record:
            now = self._board.now_s
            self.outcome.decisions.append((now, verb, self.trace[job].id, rows))

    def _grow(self, pods: Mapping[int, tuple[int, ...]]) -> None:
        """Let pods that have started be those of their jobs, one row with the others."""
        more: dict[int, tuple[int, ...]] = {}
        for pod, rows in pods.items():
            self._board.remove(pod)
            job = self._elastic.joins[pod]
            more[job] = (*more.get(job, ()), *rows)
        for job, rows in more.items():
            if job in self._progress.rows:
                self._resize(job, (*self._progress.rows[job], *rows))

    def _give_back_pods(self) -> None:
        """Let elastic jobs that have been stopped ask for their least again."""
        for job in self._elastic.larger(self._board):
            self._board.change(job, self._elastic.least(job, self._board.jobs[job]))
            self._arrays.gpus[job] = self._board.jobs[job].gpus
            self._progress.fit(job, self._board.jobs[job].gpus)

    def _carry_out(self) -> bool:
        """Do in truth what the policies have decided on the board; say whether that was anything.

        Who has started is looked at once more by the profile's adjuster, a while later.
        """
        connect(self._board, self._links, self._pipeline)
        actions = self._board.take_actions()
        touched: set[int] = set()
        stopped: set[int] = set()
        pods: dict[int, tuple[int, ...]] = {}  # that started, of elastic jobs that run
        for action in actions:
            rows: tuple[int, ...] = ()
            if action.job in self._elastic.joins:
                pods.pop(action.job, None)
                if isinstance(action, Start):
                    pods[action.job] = action.rows
                continue
            if isinstance(action, Start):
                rows = action.rows
                self._progress.begin(action.job, rows)
                self._waiting -= 1
                if action.job in self._begun.stays:
                    self._board.pinned.add(action.job)
                touched.update(rows)
                if action.job in stopped:
                    self.outcome.migrations[action.job] += 1
                    self.outcome.preemptions[action.job] -= 1
            else:
                stopped.add(action.job)
                self.outcome.preemptions[action.job] += 1
                touched.update(self._progress.suspend(action.job))
                self._waiting += 1
            self._note_decision("start" if rows else "stop", action.job, rows)
        self._grow(pods)
        self._give_back_pods()
        self._progress.refresh(touched)
        adjust = self._adjust
        if (
            adjust is not None
            and any(isinstance(action, Start) for action in actions)
            and not (adjust.repeats and self._adjusting)
        ):
            self._expect_adjustment(adjust.every_s)
        return bool(actions)

    def _expect_adjustment(self, every_s: float) -> None:
        self._adjusting = True
        self._events.expect(self._board.now_s + every_s, Kind.ADJUST)

    def _used(self) -> int:
        return self._gpus - self._board.empty

    def _account(self, now_s: float) -> None:
        self.outcome.busy_gpu_s += self._used() * (now_s - self._board.now_s)


def _all(ranked: Ints, _: Bools) -> Iterator[Ints]:
    yield ranked


def _job_arrays(jobs: Sequence[Job]) -> JobArrays:
    """Return the live table: nothing runs yet."""
    arrays = JobArrays.of(jobs)
    count = len(jobs)
    return replace(
        arrays,
        service_at_since=np.zeros(count),
        attained_at_since=np.zeros(count),
        first_started_s=np.full(count, np.inf),
    )
