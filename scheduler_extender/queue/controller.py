"""The queue controller: one GPUJob per gang, a plan for those that fit, a reason for the others.

It holds no state that the API server does not have: what it knows comes in by events (the
registry and the state), what it decides goes out as writes with resourceVersions. Killed at any
point, another one goes on from what was written: a plan without open gates has its gates opened,
open gates without a valid plan are planned again, a gang on its way out of its GPUs comes back.

Only gangs whose picture has changed are looked at (`WorkQueue`); planning runs beside the event
loop on frozen copies (`planning.py`), and what comes out of it is written gang by gang.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from scheduler_extender.cluster.records import GpuJobRecord, GpuNodeRecord, Key, PodRecord, Record
from scheduler_extender.config import LearningConfig, QueueConfig
from scheduler_extender.learning.books import Books, observing
from scheduler_extender.learning.history import Learned
from scheduler_extender.learning.loop import Learning
from scheduler_extender.planning.avoiding import Avoiding
from scheduler_extender.predictions import Predictor
from scheduler_extender.pricing import Pricing
from scheduler_extender.queue import lifecycle
from scheduler_extender.queue.cluster_view import ClusterView
from scheduler_extender.queue.evictions import Evictions
from scheduler_extender.queue.forecasts import Forecasts
from scheduler_extender.queue.foresight import Foresight
from scheduler_extender.queue.gates import Gates
from scheduler_extender.queue.metrics import QueueMetrics
from scheduler_extender.queue.preemption import Preempter
from scheduler_extender.queue.reconcile import Reconciler
from scheduler_extender.queue.registry import Gang, Registry
from scheduler_extender.queue.repairs import Repairs
from scheduler_extender.queue.rounds import Rounds
from scheduler_extender.queue.standing import Standings
from scheduler_extender.queue.telling import Telling
from scheduler_extender.queue.waiters import Waiters
from scheduler_extender.queue.work import Elsewhere, WorkQueue
from scheduler_extender.queue.writes import Tell, Writer
from scheduler_extender.quotas.accounts import Accounts
from scheduler_extender.quotas.config import Quota
from tandem.contracts.prediction import Feedback
from tandem.contracts.resources import GPUJobStatus, Phase
from tandem.kube.api import ClusterApi
from tandem.kube.errors import KubeError
from tandem.policy.catalog import Profile

log = logging.getLogger(__name__)

STALE_AFTER_S = 150.0  # an agent's report that is older says nothing of now
IDLE_CYCLE_S = 1.0  # a cycle runs at least this often, and soon after a change
SETTLE_S = 0.02  # changes come in bursts; one cycle takes them together
_PARALLEL = 16
_OPEN = (Phase.QUEUED, Phase.ADMITTED, Phase.RUNNING, Phase.PREEMPTING, Phase.SUSPENDED)


class Controller:
    """Admission in the order of the profile. All methods run on the event loop."""

    def __init__(
        self,
        *,
        state: ClusterView,
        api: ClusterApi,
        profile: Profile,
        predictor: Predictor,
        tell: Tell,
        clock: Callable[[], float],
        term: Callable[[], str] = lambda: "always",
        take_over: Callable[[str], Awaitable[None]] | None = None,
        settings: QueueConfig | None = None,
        learned: Learned | None = None,
        books: Books | None = None,
        learning: LearningConfig | None = None,
        feedback: Callable[[Feedback], Awaitable[bool]] | None = None,
        metrics: QueueMetrics | None = None,
        stale_after_s: float = STALE_AFTER_S,
        forecasts: bool = False,
    ) -> None:
        settings = settings or QueueConfig()
        self.work = WorkQueue(self._step, clock, _PARALLEL)
        self.registry = Registry(self.work.add, clock)
        self.standings = Standings(profile.order, state.beliefs.of)
        self.metrics = metrics or QueueMetrics()
        self._changed = asyncio.Event()
        self._waiters = Waiters(self._changed.set, state.beliefs.of)
        self._avoiding = Avoiding()
        self._writer = Writer(api, state, tell, clock)
        self._preempter = Preempter(self._writer, settings, clock)
        self._pricing = Pricing(predictor, state.beliefs, state.gpu_kind, clock)
        self._beliefs = state.beliefs
        self._books = books or Books(pairs=state.beliefs.pairs)
        self.learning = Learning(
            settings=observing(profile, learning or LearningConfig()),
            books=self._books,
            state=state,
            registry=self.registry,
            work=self.work,
            writer=self._writer,
            preempter=self._preempter,
            avoiding=self._avoiding,
            pipeline=profile.pipeline(),
            clock=clock,
            tell=feedback,
        )
        foresight = Foresight(
            self._writer,
            predictor,
            self._pricing,
            state,
            clock,
            self.work.later,
            self.learning.next_runs.earlier,
            self.work.add,
        )
        self._reconciler = Reconciler(
            self._writer,
            foresight,
            self._preempter,
            self._avoiding,
            settings,
            clock,
            self.work.later,
        )
        self.evictions = Evictions(self._writer, self.registry, clock, stale_after_s)
        self.gates = Gates(self._writer, self.registry, clock)
        self._telling = Telling(self._writer, clock)
        self._learned = learned or Learned(None, settings.history_jobs)
        self._accounts = Accounts(
            settings, self.registry, self.standings, clock, self._learned.namespace
        )
        self._forecasts = Forecasts(
            state=state,
            registry=self.registry,
            standings=self.standings,
            waiters=self._waiters,
            work=self.work,
            writer=self._writer,
            profile=profile,
            every_s=settings.expected_start_every_s if forecasts else 0.0,
            preemption_cost_s=settings.preemption_cost_s,
            clock=clock,
            told=self.metrics.forecast,
        )
        self.repairs = Repairs(
            profile=profile,
            state=state,
            registry=self.registry,
            standings=self.standings,
            waiters=self._waiters,
            work=self.work,
            writer=self._writer,
            learned=self._learned,
            learning=self.learning,
            clock=clock,
        )
        self.rounds = Rounds(
            state=state,
            registry=self.registry,
            work=self.work,
            standings=self.standings,
            waiters=self._waiters,
            writer=self._writer,
            preempter=self._preempter,
            learned=self._learned,
            accounts=self._accounts,
            telling=self._telling,
            avoiding=self._avoiding,
            metrics=self.metrics,
            profile=profile,
            settings=settings,
            clock=clock,
            foresee=self._forecasts.look,
            targets=self.repairs.targets,
        )
        self._clock = clock
        self._term = term
        self._take_over = take_over
        self._leads_in = ""  # the term for which nothing decided before can take effect
        self._runs = False  # by itself, not cycle by cycle at another's word
        annotate = self._writer.annotate
        self._writer.annotate = lambda gang, status: self.standings.annotated(
            gang.key, annotate(gang, status)
        )
        self._writer.may_write = lambda: not self._runs or self.leads
        self.caught_up = asyncio.Event()  # all that was there when we began has been looked at
        self.metrics.watch(self)

    # --- events -------------------------------------------------------------------------------

    def observe(self, record: Record) -> None:
        """Take in an object that the state has accepted."""
        match record:
            case PodRecord():
                self.registry.observe(record)
                self.learning.pod_changed(record)
            case GpuJobRecord():
                self.registry.observe(record)
            case GpuNodeRecord():
                self.evictions.node_changed(record)
                self.learning.node_changed(record)
        self._changed.set()

    def forget(self, record: Record) -> None:
        """Take in that an object is gone."""
        match record:
            case PodRecord():
                self.registry.forget(record)
            case GpuJobRecord():
                self.registry.forget(record)
                self._learned.take_killed(record)
            case GpuNodeRecord():
                self.evictions.node_gone(record)
                self.learning.node_gone(record)
        self._changed.set()

    # --- rounds -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until cancelled. A failed cycle is logged, and the next one tries again."""
        rest_s = SETTLE_S
        self._runs = True
        try:
            while True:
                try:
                    async with asyncio.timeout(IDLE_CYCLE_S):
                        await self._changed.wait()
                except TimeoutError:
                    pass
                await asyncio.sleep(rest_s)
                self._changed.clear()
                began = time.perf_counter()
                try:
                    if await self._leading():
                        await self._round()
                except KubeError as error:
                    log.warning("cycle broken off error=%s", error)
                except Exception:
                    # A bug in one cycle must not stop admission for ever; it is seen in the log.
                    log.exception("cycle failed")
                    self.work.failures += 1
                if not self.work.pending:
                    self.caught_up.set()
                # A quarter of the time at most is for planning: the verbs need theirs.
                rest_s = max(SETTLE_S, 3 * (time.perf_counter() - began))
        finally:
            self._pricing.stop()
            await asyncio.gather(*self.work.stop(), *self._forecasts.stop(), return_exceptions=True)

    @property
    def leads(self) -> bool:
        """True while our pod holds the Lease and nobody else's acts can take effect any more."""
        return self._leads_in != "" and self._leads_in == self._term()

    def look_again(self) -> None:
        """Begin the next round at once."""
        self._changed.set()

    async def _leading(self) -> bool:
        """Go into each term by fencing off the one before it; say whether we lead."""
        term = self._term()
        if term == self._leads_in:
            return term != ""
        if self._leads_in:
            self._leads_in = ""
            self.work.hold()
        if not term:
            return False
        if self._take_over is not None:
            await self._take_over(term)
        if self._term() != term:
            return False
        self._learned.read_again()
        self.standings.begin_term(self._written)
        self.gates.withdrawn = self._accounts.exceeding_plans()
        self._leads_in = term
        self.work.go()
        return True

    def _written(self, key: Key) -> GPUJobStatus | None:
        gang = self.registry.gangs.get(key)
        return gang.record.status if gang is not None and gang.record is not None else None

    async def cycle(self) -> None:
        """Bring every gang up to date, plan what waits, and carry it out to its end.

        What `run` does bit by bit, for whoever wants one round without a clock.
        """
        self.work.go()
        try:
            self.work.wake()
            await self.work.settled()
            await self._round()
            await self.work.settled()
        finally:
            self.work.hold()

    async def _round(self) -> None:
        self.work.wake()
        self._pricing.step()
        # One request, pod or ConfigMap that cannot be dealt with must not end planning for all.
        await self._apart("evictions", self.evictions.step())
        await self._apart("learning", self.learning.step())
        await self._apart("repairs", self.repairs.step())
        if self.learning.believe():
            self.rounds.forget_refusals()
            for key in list(self._waiters.starts):
                self.work.add(key)
        await self._apart("history", self._learned.save(self._writer, self._clock()))
        await self._apart("quotas", self._accounts.step(self._writer))
        if self._waiters.starts:
            await self.rounds.plan()

    async def _apart(self, what: str, part: Awaitable[None]) -> None:
        """Carry out a part of a round; where it fails, the others go on, and the next round too."""
        try:
            await part
        except KubeError as error:
            log.warning("part of a cycle broken off part=%s error=%s", what, error)
        except Exception:
            log.exception("part of a cycle failed part=%s", what)
            self.work.failures += 1

    @property
    def kinds(self) -> int:
        """How many kinds of jobs have a class of interference of their own."""
        return self._beliefs.kinds

    @property
    def history(self) -> Learned:
        """What is kept of finished jobs, and whether that was saved."""
        return self._learned

    @property
    def preemptions(self) -> int:
        """How many gangs were told to give way."""
        return self._preempter.preemptions

    @property
    def overdue_preemptions(self) -> int:
        """How many gangs have been giving up their GPUs for too long."""
        return self._preempter.overdue(self.registry.gangs.values())

    @property
    def quotas(self) -> list[tuple[Quota, int, float]]:
        """Each named namespace's quota, the GPUs that it holds, its GPU-seconds in the window."""
        return self._accounts.figures()

    def waits(self) -> tuple[float, float]:
        """Return the longest wait in seconds, of all that wait and of those that were preempted."""
        now = self._clock()
        waiting = [each for each in self.standings.of.values() if not each.placed]
        preempted = [each for each in waiting if each.attained > each.promoted]
        return (
            max((now - each.waiting_since_s for each in waiting), default=0.0),
            max((now - each.waiting_since_s for each in preempted), default=0.0),
        )

    # --- one gang -----------------------------------------------------------------------------

    def _step(self, key: Key) -> Awaitable[None] | Elsewhere | None:
        """Decide what is to be done about a gang; where nothing is, note what it wants."""
        self._waiters.drop(key)
        gang = self.registry.gangs.get(key)
        if gang is None or gang.record is None:
            self.standings.drop(key)
            if gang is None:
                self._forget(key)
                return None
        work = self._reconciler.step(gang)
        if work is not None or gang.record is None:
            return work
        if gang.record.status.phase not in _OPEN:
            self.standings.drop(key)
            self._learned.take(gang.record)
            return self.learning.next_runs.end(gang)
        work = self.gates.step(gang)
        if work is not None:
            return work
        self._note(gang, gang.record)
        return None

    def _note(self, gang: Gang, record: GpuJobRecord) -> None:
        """Note where a gang stands and which of its pods want a place."""
        now = self._clock()
        if record.status.plan is not None:
            end_s = lifecycle.plan_ends_s(record.status)
            if end_s > now:
                self.work.later(gang.key, end_s)
        if record.status.load is None:
            return
        known = self.standings.of.get(gang.key)
        if (ends_s := lifecycle.ends_until_s(gang)) > now:
            self.work.later(gang.key, ends_s)
        elif known is not None and known.ends:
            # A part of it stays: what was kept free beside it is anybody's again.
            self.standings.competes = True
            self.rounds.forget_refusals()
        self.standings.put(gang, now, self._preempter.gives_way_s(gang))
        if record.status.phase is Phase.RUNNING:
            self._avoiding.runs(gang.key)
        if not self._avoiding.rests(gang.key, now):
            self._waiters.note(gang, record, now)

    def _forget(self, key: Key) -> None:
        self._reconciler.forget(key)
        self._preempter.forget(key)
        self._telling.forget(key)
        self.learning.forget(key)
        self.repairs.forget(key)
        self._waiters.forget(key)
        self._avoiding.forget(key)

    def move_apart(self, key: Key, why: str, neighbour: Key | None = None) -> bool:
        """Have a running gang give up its GPUs and plan it anew, not beside `neighbour` again.

        `why` completes "gives up its GPUs: ...". Minimum run, cap per hour and disruption budgets
        hold as for any preemption. False where it may not go, or not now: ask again later.
        """
        gang = self.registry.gangs.get(key)
        if gang is None or self.work.busy(key) or self._preempter.spared(key):
            return False
        if self._clock() < self._preempter.gives_way_s(gang):
            return False
        if neighbour is not None:
            self._avoiding.apart(key, neighbour, self._clock())
        self.work.do(key, self._preempter.begin(gang, why))
        return True
