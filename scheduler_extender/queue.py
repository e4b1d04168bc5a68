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
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol

from scheduler_extender import faults, lifecycle
from scheduler_extender.config import QueueConfig
from scheduler_extender.evictions import Evictions
from scheduler_extender.gates import Gates
from scheduler_extender.history import Learned
from scheduler_extender.jobs import job_of
from scheduler_extender.ledger import Claim
from scheduler_extender.planning import (
    Answer,
    Ask,
    GivesWay,
    Question,
    Start,
    Verdict,
    Victim,
    plan_cycle,
)
from scheduler_extender.pods import PodInfo
from scheduler_extender.predictions import GpuKind, Predictor
from scheduler_extender.preemption import Preempter
from scheduler_extender.queue_metrics import QueueMetrics
from scheduler_extender.reconcile import Reconciler
from scheduler_extender.records import GpuJobRecord, GpuNodeRecord, Key, PodRecord, Record
from scheduler_extender.refusals import Refusals
from scheduler_extender.registry import Gang, Registry
from scheduler_extender.standing import Standings
from scheduler_extender.telling import Chooser, Telling, ToTell
from scheduler_extender.work import WorkQueue
from scheduler_extender.writes import Tell, Writer
from tandem.contracts.resources import Phase
from tandem.kube.api import ClusterApi
from tandem.kube.errors import KubeError
from tandem.policy.catalog import Profile
from tandem.policy.cluster import Snapshot
from tandem.policy.decision import Placement
from tandem.policy.units import Bools

log = logging.getLogger(__name__)

STALE_AFTER_S = 150.0  # an agent's report that is older says nothing of now
IDLE_CYCLE_S = 1.0  # a cycle runs at least this often, and soon after a change
SETTLE_S = 0.02  # changes come in bursts; one cycle takes them together
_PARALLEL = 16
_SHAPES = 500  # what pods ask of a node, in so many ways, before those of no use are dropped
_OPEN = (Phase.QUEUED, Phase.ADMITTED, Phase.RUNNING, Phase.PREEMPTING, Phase.SUSPENDED)


class ClusterView(Protocol):
    """What the controller reads of the live state."""

    def snapshot(self) -> Snapshot:
        """Return a frozen picture, plans and assignments included."""
        ...

    def unchanged(self, snapshot: Snapshot, rows: Iterable[int]) -> bool:
        """Return True where nothing has changed on `rows` of `snapshot` since it was taken."""
        ...

    def eligible_nodes(self, pod: PodInfo) -> Bools:
        """Return (nodes,), False where the pod cannot run for reasons of its own."""
        ...

    def claims(self) -> Mapping[str, Claim]:
        """Return who holds which GPUs, by pod uid; a copy."""
        ...

    def gpu_kind(self) -> GpuKind | None:
        """Return the commonest type of GPU."""
        ...

    def apply(self, kind: str, record: Record) -> None:
        """Take in an object as the API server has it."""
        ...


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
        metrics: QueueMetrics | None = None,
        stale_after_s: float = STALE_AFTER_S,
    ) -> None:
        settings = settings or QueueConfig()
        self.work = WorkQueue(self._step, clock, _PARALLEL)
        self.registry = Registry(self.work.add, clock)
        self.standings = Standings(profile.order)
        self.metrics = metrics or QueueMetrics()
        self._state = state
        self._writer = Writer(api, self.registry, state, tell, clock)
        self._preempter = Preempter(self._writer, settings, clock)
        self._reconciler = Reconciler(
            self._writer, predictor, state, self._preempter, settings, clock, self.work.later
        )
        self.evictions = Evictions(self._writer, self.registry, clock, stale_after_s)
        self._gates = Gates(self._writer, clock)
        self._telling = Telling(self._writer, clock)
        self._learned = learned or Learned(None, settings.history_jobs)
        self._profile = profile
        self._pipeline = profile.pipeline()
        self._settings = settings
        self._clock = clock
        self._term = term
        self._take_over = take_over
        self._leads_in = ""  # the term for which nothing decided before can take effect
        self._changed = asyncio.Event()
        self.caught_up = asyncio.Event()  # all that was there when we began has been looked at
        self._starts: dict[Key, tuple[Start, ...]] = {}
        self._shapes: dict[Ask, PodInfo] = {}  # what pods ask of a node -> one that asks for it
        self._refusals = Refusals()
        self._competes = True  # something happened for which running jobs may have to give way
        self._slice_ends_s = 0.0
        self.metrics.watch(self)

    # --- events -------------------------------------------------------------------------------

    def observe(self, record: Record) -> None:
        """Take in an object that is there; called for every event, before or after the state."""
        match record:
            case PodRecord():
                self.registry.pod_changed(record)
            case GpuJobRecord():
                self.registry.job_changed(record)
            case GpuNodeRecord():
                self.evictions.node_changed(record)
        self._changed.set()

    def forget(self, record: Record) -> None:
        """Take in that an object is gone."""
        match record:
            case PodRecord():
                self.registry.pod_gone(record.uid)
            case GpuJobRecord():
                self.registry.job_gone(record.key, record.uid)
            case GpuNodeRecord():
                self.evictions.node_gone(record)
        self._changed.set()

    # --- rounds -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until cancelled. A failed cycle is logged, and the next one tries again."""
        rest_s = SETTLE_S
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
            await asyncio.gather(*self.work.stop(), return_exceptions=True)

    @property
    def leads(self) -> bool:
        """True while our pod holds the Lease and nobody else's acts can take effect any more."""
        return self._leads_in != "" and self._leads_in == self._term()

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
        self._leads_in = term
        self.work.go()
        return True

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
        await self.evictions.step()
        await self._learned.save(self._writer, self._clock())
        if self._starts:
            await self._plan()

    @property
    def preemptions(self) -> int:
        """How many gangs were told to give way."""
        return self._preempter.preemptions

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

    def _step(self, key: Key) -> Awaitable[None] | None:
        """Decide what is to be done about a gang; where nothing is, note what it wants."""
        self._starts.pop(key, None)
        gang = self.registry.gangs.get(key)
        if gang is None or gang.record is None:
            self._close(key)
            if gang is None:
                self._forget(key)
                return None
        work = self._reconciler.step(gang)
        if work is not None or gang.record is None:
            return work
        if gang.record.status.phase not in _OPEN:
            self._close(key)
            self._learned.take(gang.record)
            return None
        work = self._gates.step(gang)
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
        if self.standings.put(gang, now, self._preempter.gives_way_s(gang)):
            self._competes = True
        starts = []
        for pods in lifecycle.pods_to_start(gang, now):
            job_id = f"{record.namespace}/{record.name}"
            if len(pods) == 1:
                job_id += f"#{pods[0].name}"
            job = job_of(job_id, record.spec, record.status, pods=len(pods))
            starts.append(Start.of(gang.key, job, pods))
        if starts:
            if len(self._shapes) > _SHAPES:
                self._shapes = {
                    each.shape: each.pods[0] for known in self._starts.values() for each in known
                }
            self._shapes |= {start.shape: start.pods[0] for start in starts}
            self._starts[gang.key] = tuple(starts)
            self._changed.set()

    def _close(self, key: Key) -> None:
        if self.standings.drop(key):
            self._competes = True

    def _forget(self, key: Key) -> None:
        self._reconciler.forget(key)
        self._preempter.forget(key)
        self._telling.forget(key)

    def _promote(self, keys: Iterable[Key]) -> None:
        """Put those that have starved back into the first queue."""
        for key in keys:
            gang = self.registry.gangs.get(key)
            if gang is None or gang.record is None or self.work.busy(key):
                continue
            self.standings.promote(key)
            self.metrics.promoted()
            self._competes = True
            status = lifecycle.promoted(gang.record.status, self._clock())
            self._starts.pop(key, None)
            self.work.do(key, self._writer.write_status(gang, status))

    # --- planning -----------------------------------------------------------------------------

    async def _plan(self) -> None:
        """Plan all starts on one snapshot, beside the loop, and carry out what came out."""
        question = self._question()
        tell = self._telling.chooser(self._preempter.all_spared())
        self.work.hold()  # what is being planned stands still, what is being written goes on
        began = time.perf_counter()
        try:
            answer, to_tell, starving = await asyncio.to_thread(
                self._think, question, tell, self._clock()
            )
        finally:
            self.work.go()
        self.metrics.planned(time.perf_counter() - began)
        self._carry_out(question.snapshot, answer)
        if question.competes and not self._competes:
            # A round of the order is over; in between, a place in a list is nobody's yet.
            self.standings.settle()
        self._promote(starving)
        self._tell(to_tell)

    def _think(
        self, question: Question, tell: Chooser, now_s: float
    ) -> tuple[Answer, ToTell, list[Key]]:
        """Plan, and choose who is told of it; in a thread, on what stands still meanwhile."""
        answer = plan_cycle(question, self._pipeline, self._refusals)
        return answer, tell(answer.waiting), self.standings.starving(now_s)

    def _question(self) -> Question:
        now = self._clock()
        history = self._learned.history()
        changed = [self.standings.cross(now), self._preempter.expire(), self._competes]
        competes = any(changed)
        self._competes = False
        if now >= self._slice_ends_s:
            competes = True
            self._slice_ends_s = now + self._profile.order.slice_s
        standings = self.standings
        preempts = self._profile.dispatch.preempts
        going = frozenset(
            uid for key in standings.placed for uid in standings.of[key].leaving if preempts
        )
        victims = self._victims(now) if preempts and competes else {}
        return Question(
            rank=lambda: standings.rank(now, history),
            starts=dict(self._starts),
            snapshot=self._state.snapshot(),
            eligible={
                shape: self._state.eligible_nodes(pod) for shape, pod in self._shapes.items()
            },
            blocks=self._profile.order.blocks,
            claims=self._state.claims() if victims or going else {},
            going=going,
            competes=competes,
            victims=victims,
            service=lambda key: standings.of[key].service(now),
        )

    def _victims(self, now: float) -> dict[Key, Victim]:
        """Return who may be made to give way now."""
        found = {}
        for key in self.standings.placed:
            standing = self.standings.of[key]
            if now < standing.gives_way_s or self._preempter.spared(key):
                continue
            if self.work.busy(key):
                self._competes = True  # not now; the next cycle looks at all of them
                continue
            found[key] = Victim(
                key,
                standing.holders,
                standing.service(now),
                self._settings.preemption_cost_s * standing.rate,
            )
        return found

    def _tell(self, to_tell: ToTell) -> None:
        spared = self._preempter.all_spared()
        for key, verdicts in to_tell.items():
            gang = self.registry.gangs.get(key)
            if gang is not None and gang.record is not None and not self.work.busy(key):
                queue = self.standings.queue_of(key, self._clock())
                self._starts.pop(key, None)
                self.work.do(key, self._telling.tell(gang, verdicts, queue, spared))

    def _carry_out(self, snapshot: Snapshot, answer: Answer) -> None:
        placed: dict[Key, list[Verdict]] = defaultdict(list)
        for verdict in answer.placed:
            decision = verdict.decision
            # What was overtaken while we planned is seen anew in the next cycle.
            if isinstance(decision, Placement) and self._state.unchanged(snapshot, decision.rows):
                placed[verdict.start.gpujob].append(verdict)
        for key, verdicts in placed.items():
            gang = self.registry.gangs.get(key)
            if gang is not None and not self.work.busy(key):
                self._starts.pop(key, None)
                self.standings.place(key)
                self.work.do(key, self._write_plan(gang, verdicts))
        for gives in answer.gives_way:
            self._ask_to_give_way(gives)

    def _ask_to_give_way(self, gives: GivesWay) -> None:
        gang = self.registry.gangs.get(gives.victim)
        if gang is None or self.work.busy(gives.victim):
            self._competes = True  # not now; the next cycle asks again
            return
        self.work.do(gives.victim, self._preempter.begin(gang, "/".join(gives.to)))

    async def _write_plan(self, gang: Gang, verdicts: Sequence[Verdict]) -> None:
        """Write the plan of one GPUJob; its gates open when it is looked at again."""
        if gang.record is None:
            return
        now = self._clock()
        places = [
            (verdict.start.pods, verdict.decision)
            for verdict in verdicts
            if isinstance(verdict.decision, Placement)
        ]
        status = lifecycle.with_plan(
            gang.record.status, gang, places, now, now + self._settings.plan_life_s
        )
        faults.reach("plan-before")
        await self._writer.write_status(gang, status)
        faults.reach("plan-after")
