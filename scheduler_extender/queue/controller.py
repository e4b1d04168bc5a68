"""The queue controller: one GPUJob per gang, a plan for those that fit, a reason for the others.

It holds no state that the API server does not have: what it knows is the
state, fed by events; what it decides goes out as writes with resourceVersions. Killed at any
point, another one goes on from what was written: a plan without open gates has its gates opened,
open gates without a valid plan are planned again, a gang on its way out of its GPUs comes back.

Only gangs whose picture has changed are looked at (`WorkQueue`); planning runs in a thread on
frozen copies (`planning.py`), and what comes out of it is written gang by gang.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field, replace
from itertools import islice

from scheduler_extender.accounting.past import Past
from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.gpu_claims import ClaimRecord, GpuClaims
from scheduler_extender.cluster.records import GpuJobRecord, GpuNodeRecord, Key, PodRecord, Record
from scheduler_extender.cluster.state import ClusterState
from scheduler_extender.cluster.turns import Turns
from scheduler_extender.cluster.ways import Ways
from scheduler_extender.cluster.writes import CYCLE_WRITES, Tell, Writer
from scheduler_extender.config import QueueConfig
from scheduler_extender.learning.config import LearningConfig
from scheduler_extender.learning.history_store import HistoryStore
from scheduler_extender.learning.learned_state import LearnedState, observing
from scheduler_extender.planning.anti_affinity import AntiAffinity
from scheduler_extender.predictions import HttpPredictor, Pricing
from scheduler_extender.queue.collector import collector_paused
from scheduler_extender.queue.cycles import Cycles
from scheduler_extender.queue.forecasts.simulating import Simulating
from scheduler_extender.queue.forecasts.start_forecast import StartForecast
from scheduler_extender.queue.forecasts.what_if import WhatIf
from scheduler_extender.queue.gangs.load_prediction import LoadPrediction
from scheduler_extender.queue.gangs.other_batch import OtherBatch
from scheduler_extender.queue.gangs.reconcile import Reconciler
from scheduler_extender.queue.measuring.adjuster import LiveAdjuster
from scheduler_extender.queue.measuring.learning_loop import Learning
from scheduler_extender.queue.metrics import QueueMetrics
from scheduler_extender.queue.order.pending import PendingJobs
from scheduler_extender.queue.order.queue_state import QueueState
from scheduler_extender.queue.order.quota_accounts import Accounts
from scheduler_extender.queue.order.reason_writer import ReasonWriter
from scheduler_extender.queue.pods.claims import ClaimAllocator
from scheduler_extender.queue.pods.evictions import Evictions
from scheduler_extender.queue.pods.gates import Gates
from scheduler_extender.queue.pods.inventories import Inventories
from scheduler_extender.queue.pods.preemption import Preempter
from scheduler_extender.queue.pods.terminations import Terminations
from scheduler_extender.queue.shared import Shared
from scheduler_extender.queue.steps import lifecycle, waits
from scheduler_extender.queue.steps.effects import Executor
from scheduler_extender.queue.steps.phases import CLOSED
from scheduler_extender.queue.workqueue import ExternalWork, WorkQueue
from tandem.contracts import names
from tandem.contracts.prediction import Feedback
from tandem.contracts.resources import GPUJobStatus, Phase
from tandem.kube.api import ClusterApi
from tandem.kube.errors import KubeError
from tandem.policy.catalog import Profile
from tandem.reasons.causes import Reason

log = logging.getLogger(__name__)

STALE_AFTER_S = 150.0  # an agent's report that is older says nothing of now
IDLE_CYCLE_S = 1.0  # a cycle runs at least this often, and soon after a change
SETTLE_S = 0.02  # changes come in bursts; one cycle takes them together
#: Finished jobs from which a Gittins order learns: enough for the tail of a distribution, and few
#: enough to follow a change of the workload.
HISTORY_JOBS = 1000
_PARALLEL = 16
_LOOKED_AT = 8  # pods of a gang, for the type of its GPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The API server as the controller uses it.

    `tell` records an event. `clock` returns Unix time. `term` names the term in which we lead, ''
    where we do not; `take_over` fences off the leader of the term before. `namespace` is where the
    history is kept; None: in memory alone. `gpu_claims` has the ResourceClaims of the cluster where
    plans allocate them.
    """

    api: ClusterApi
    tell: Tell
    clock: Callable[[], float]
    term: Callable[[], str] = lambda: "always"
    take_over: Callable[[str], Awaitable[None]] | None = None
    namespace: str | None = None
    gpu_claims: GpuClaims | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of an operator. A report older than `stale_after_s` (seconds) asks for nothing.

    `max_grace_s` is the most that a pod with GPUs may take to end after its deletion, in seconds.
    """

    queue: QueueConfig = field(default_factory=QueueConfig)
    learning: LearningConfig = field(default_factory=LearningConfig)
    stale_after_s: float = STALE_AFTER_S
    max_grace_s: int = names.MAX_GRACE_S
    forecasts: bool = False


_NOT_OF_CYCLES = (waits.BLOCKED, waits.MISSING, "PlanExpired")
#: What cycles find out, and what takes its place for as long as containers start slowly.
_OF_CYCLES = (Reason.WAITING, waits.STARTING)


class Controller:
    """Admission in the order of the profile. All methods run on the event loop."""

    def __init__(
        self,
        *,
        state: ClusterState,
        profile: Profile,
        predictor: HttpPredictor,
        connection: Connection,
        settings: Settings | None = None,
        learned: LearnedState | None = None,
        feedback: Callable[[Feedback], Awaitable[bool]] | None = None,
        metrics: QueueMetrics | None = None,
    ) -> None:
        chosen, clock = settings or Settings(), connection.clock
        learned = learned or LearnedState(state.slowdowns.pairs, state.slowdowns.placements)
        self._state, self.gangs = state, state.gangs
        self.metrics = metrics or QueueMetrics()
        self._changed = asyncio.Event()
        self.slowdowns = state.slowdowns
        self._pricing = Pricing(predictor, state.slowdowns, state.gpu_kind, clock)
        writer = Writer(
            connection.api, state, connection.tell, clock, self._annotated, self._may_write
        )
        executor = Executor(writer, clock)
        # A cycle waits for what it writes itself. In a burst hundreds of gangs wait for their turn
        # to write, so that its own writes have turns of their own.
        own = replace(writer, turns=Turns(CYCLE_WRITES))
        shared = Shared(
            state=state,
            gangs=state.gangs,
            work=WorkQueue(self._step, clock, _PARALLEL, self._refused),
            queue_state=QueueState(profile.order, state.slowdowns.of),
            pending=PendingJobs(self._changed.set, state.slowdowns.of),
            writer=writer,
            executor=executor,
            preempter=Preempter(writer, executor, chosen.queue, clock),
            anti_affinity=AntiAffinity(),
            history=HistoryStore(connection.namespace, HISTORY_JOBS, learned.kept()),
            profile=profile,
            settings=chosen.queue,
            clock=clock,
        )
        self.work = shared.work
        self.queue_state = shared.queue_state
        self._pending = shared.pending
        self._anti_affinity = shared.anti_affinity
        self._writer, self._own_writer = shared.writer, own
        self.preempter = shared.preempter
        self.history = shared.history
        self.past = Past(connection.namespace, state.gangs, self._gpu_type, clock)
        self.learning = Learning(shared, observing(profile, chosen.learning), learned, feedback)
        load_prediction = LoadPrediction(
            shared, predictor, self._pricing, self.learning.next_runs.earlier
        )
        self._reconciler = Reconciler(shared, load_prediction)
        self.evictions = Evictions(
            own, Executor(own, clock), self.gangs, clock, chosen.stale_after_s
        )
        self.terminations = Terminations(own, clock, chosen.max_grace_s)
        self.inventories = Inventories(own, clock)
        self._gpu_claims = connection.gpu_claims
        self.claims = ClaimAllocator(writer, state, self._gpu_claims, clock)
        self.ways = Ways(state, self._gpu_claims, lambda: self.leads)
        if self._gpu_claims is not None:
            self._gpu_claims.changed = self._claim_changed
        self.gates = Gates(executor, self.gangs, clock, is_given=self.claims.is_given)
        self._reason_writer = ReasonWriter(executor, clock)
        self.accounts = Accounts(
            chosen.queue,
            self.gangs,
            state.ledger,
            self.queue_state,
            clock,
            connection.namespace,
        )
        every_s = chosen.queue.expected_start_every_s if chosen.forecasts else 0.0
        self._simulating = Simulating()
        on_forecast = self.metrics.forecast
        self._start_forecast = StartForecast(shared, every_s, on_forecast, self._simulating)
        self.what_if = WhatIf(
            lambda: self._start_forecast.latest,
            profile,
            chosen.queue.preemption_cost_s,
            lambda: self.leads,
            self._simulating,
            self._node_with,
            OtherBatch(state, predictor).load,
        )
        self.adjuster = LiveAdjuster(shared, self.learning)
        self.cycles = Cycles(
            shared,
            self.accounts,
            self._reason_writer,
            self.metrics,
            foresee=self._start_forecast.look,
            targets=self.adjuster.targets,
            slow=self.learning.slow,
            resizer=self._reconciler.resizer,
        )
        self._clock = clock
        self._term = connection.term
        self._take_over = connection.take_over
        self._leads_in = ""  # the term for which nothing decided before can take effect
        self._runs = False  # by itself, not cycle by cycle at another's word
        self.caught_up = asyncio.Event()  # all that was there when we began has been looked at

    def _gpu_type(self, gang: Gang) -> str:
        """Return the type of the GPUs on which a gang is or was, '' where no pod of it says so."""
        pods = gang.holders() or gang.pods.values()
        pod = next((pod for pod in islice(pods, _LOOKED_AT) if pod.devices), None)
        if pod is None:
            return ""
        report = self._state.gpu_nodes().get(("", pod.node_name))
        named = report.named if report is not None else ()
        return next((kind.model for uuid, _, kind in named if uuid in pod.devices), "")

    def _node_with(self, gpu_type: str) -> str | None:
        """Return a node with GPUs of a type, by a part of its name in any case."""
        return next(
            (
                report.name
                for report in self._state.gpu_nodes().values()
                if any(gpu_type.lower() in kind.model.lower() for _, _, kind in report.named)
            ),
            None,
        )

    def _annotated(self, gang: Gang, status: GPUJobStatus) -> GPUJobStatus:
        """Return a status that is about to be written with what is known of the gang."""
        status = self.learning.annotated(gang, status)
        status = self._start_forecast.annotated(gang, status)
        return self.queue_state.annotated(gang.key, status)

    def _may_write(self) -> bool:
        return not self._runs or self.leads

    # --- events -------------------------------------------------------------------------------

    def observe(self, record: Record, gangs: Collection[Key]) -> None:
        """Take in an object that the state has accepted, and which gangs it has changed."""
        for key in gangs:
            self.work.add(key)
        match record:
            case PodRecord():
                if not record.ours and not gangs:
                    return  # the next cycle at its time takes in what it leaves of its node
                self.terminations.pod_changed(record)
                self.learning.pod_changed(record)
                self.past.pod_changed(record.pod)
                self._look_at_ways(record.pod.node_name)
            case GpuJobRecord():
                self.past.take(self.gangs.by_key[record.key])
            case GpuNodeRecord():
                mixed = self._look_at_ways(record.name)
                if not mixed and self._has_others(record):
                    self.claims.close_taken()
                self.evictions.node_changed(record)
                self.inventories.node_changed(record)
                self.learning.node_changed(record)
        self._changed.set()

    def forget(self, record: Record, gangs: Collection[Key]) -> None:
        """Take in that an object is gone, and which gangs that has changed."""
        for key in gangs:
            self.work.add(key)
        match record:
            case PodRecord():
                if not record.ours and not gangs:
                    return
                self.terminations.pod_gone(record)
                self.claims.forget(record.pod)
                self._look_at_ways(record.pod.node_name)
                self.past.pod_gone(record.pod)
            case GpuJobRecord():
                if not self.gangs.of_maker(record.spec.suspends, record.key):
                    self.history.take_killed(record)  # else another carries it on
            case GpuNodeRecord():
                self.evictions.node_gone(record)
                self.inventories.node_gone(record.name)
                self._look_at_ways(record.name)
                self.learning.node_gone(record)
        self._changed.set()

    def _claim_changed(self, record: ClaimRecord, gone: bool) -> None:
        """Take in that a claim is another than before, or gone."""
        for key in self.claims.gangs_of(record):
            self.work.add(key)
            self._changed.set()
        pod = self._state.pod(record.owner)
        if pod is not None and pod.ours and pod.pod.node_name:
            self._look_at_ways(pod.pod.node_name)
        if record.gpus is None or gone:
            self._close_taken()

    def _close_taken(self) -> None:
        """Close the GPUs that claims of others have, and mixed ones; some may be free again."""
        if self.claims.close_taken():
            self.queue_state.competes = True
            self.cycles.forget_refusals()
            for key in list(self._pending.starts):
                self.work.add(key)
            self._changed.set()

    def _has_others(self, record: GpuNodeRecord) -> bool:
        """Say whether a node that gives GPUs to jobs may have some that claims of others have."""
        if self._gpu_claims is None:
            return False
        return record.by_claims or record.name in self.claims.nodes_of_others

    def _look_at_ways(self, node: str) -> bool:
        """Close the GPUs of a node that pods have by another way than new ones would.

        Return whether that has changed something.
        """
        if self._gpu_claims is None or not node:
            return False
        for gang in self.ways.changed(node):
            self.work.add(gang)
        known = {at for at in self.claims.mixed if at[0] == node}
        mixed = self.ways.mixed(node)
        if mixed == known:
            return False
        self.claims.mixed = (self.claims.mixed - known) | mixed
        self._close_taken()
        return True

    # --- cycles -------------------------------------------------------------------------------

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
                planning_s = 0.0
                try:
                    if await self._leading():
                        planning_s = await self._run_cycle()
                except KubeError as error:
                    log.warning("cycle broken off error=%s", error)
                except Exception:
                    # A bug in one cycle must not stop admission for ever; it is seen in the log.
                    log.exception("cycle failed")
                    self.work.failures += 1
                if not self.work.pending:
                    self.caught_up.set()
                # A quarter of the time at most is for planning: the verbs need theirs.
                rest_s = max(SETTLE_S, 3 * planning_s)
        finally:
            self._pricing.stop()
            self._simulating.stop()
            await asyncio.gather(
                *self.work.stop(),
                *self._start_forecast.stop(),
                *self.past.stop(),
                return_exceptions=True,
            )

    @property
    def leads(self) -> bool:
        """True while our pod holds the Lease and no write of an earlier leader can succeed."""
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
        self.history.read_again()
        self.past.read_again()
        self.queue_state.begin_term(self._written)
        for key in self.claims.begin_term():
            self.work.add(key)
        self.gates.withdrawn = self.accounts.exceeding_plans()
        self._leads_in = term
        self.work.go()
        return True

    def _written(self, key: Key) -> GPUJobStatus | None:
        gang = self.gangs.by_key.get(key)
        return gang.record.status if gang is not None and gang.record is not None else None

    async def _run_cycle(self) -> float:
        """Run one scheduling cycle, from top to bottom; return the CPU time of planning in seconds.

        Each gang whose pods or GPUJob have changed is brought up to date in its own task (`_step`).
        A part that fails ends alone (`_apart`): one bad request, pod or ConfigMap stops no other.
        """
        # 1. Look again at the gangs whose time has come, and ask for the slowdowns of new pairs.
        self.work.wake()
        self._pricing.step()
        # 2. Evict the pods that node agents name, because their GPU's memory is about to end.
        await self._apart("evictions", self.evictions.step())
        # Then bound the grace periods of deleted pods, and report those that hold GPUs for long.
        await self._apart("terminations", self.terminations.step())
        # 3. Take in what agents measured, and move jobs that slow each other down.
        await self._apart("learning", self.learning.step())
        # 4. Let the profile's adjuster move jobs, where it has one.
        await self._apart("repairs", self.adjuster.step())
        # 5. Where a slowdown was learned, every refusal may be wrong now: ask for all places anew.
        if self.learning.believe():
            self.queue_state.competes = True
            self.cycles.forget_refusals()
            for key in list(self._pending.starts):
                self.work.add(key)
        # 6. Save what outlives GPUJobs: the history, learned pairs, the quotas' GPU-seconds, what
        #    jobs have had of GPUs, and which GPUs a new node has.
        await self._apart("inventories", self.inventories.step())
        await self._apart("history", self.history.save(self._own_writer, self._clock()))
        await self._apart("quotas", self.accounts.step(self._own_writer))
        self.past.look(self._own_writer)
        if not self._pending.starts and not self.cycles.due():
            return 0.0
        with collector_paused():
            # 7. Plan what waits on one frozen snapshot, in a thread (`plan_within`, `Planner`).
            began = time.perf_counter()
            frozen = self.cycles.freeze()
            spent_s = time.perf_counter() - began
            planned = await self.cycles.plan(frozen)
            began = time.perf_counter()
            # 8. Write the plans, whose gates open next, and ask victims to give up their GPUs.
            self.cycles.carry_out(planned)
            # 9. Promote jobs that starve, write to each other job why it waits, forecast starts.
            self.cycles.report(planned)
            spent_s += planned.cpu_s + time.perf_counter() - began
            del frozen, planned  # freed before the collector would visit them
        return spent_s

    async def _apart(self, what: str, part: Awaitable[None]) -> None:
        """Carry out a part of a round; where it fails, the others go on, and the next round too."""
        try:
            await part
        except KubeError as error:
            log.warning("part of a cycle broken off part=%s error=%s", what, error)
        except Exception:
            log.exception("part of a cycle failed part=%s", what)
            self.work.failures += 1

    def waiting_by_queue(self) -> dict[int, int]:
        """Return how many jobs wait in each queue of the order, 0 first."""
        return self.queue_state.waiting_by_queue(self._clock())

    def waits(self) -> tuple[float, float]:
        """Return the longest wait in seconds, of all that wait and of those that were preempted."""
        now = self._clock()
        waiting = [each for each in self.queue_state.of.values() if not each.placed]
        preempted = [each for each in waiting if each.attained > each.promoted]
        return (
            max((now - each.waiting_since_s for each in waiting), default=0.0),
            max((now - each.waiting_since_s for each in preempted), default=0.0),
        )

    # --- one gang -----------------------------------------------------------------------------

    def _step(self, key: Key) -> Awaitable[None] | ExternalWork | None:
        """Decide what is to be done about a gang; where nothing is, note what it wants."""
        self._pending.drop(key)
        gang = self.gangs.by_key.get(key)
        if gang is None or gang.record is None:
            self.queue_state.drop(key)
            if gang is None:
                self._forget(key)
                return None
        work = self._reconciler.step(gang)
        if work is not None or gang.record is None:
            return work
        if gang.record.status.phase in CLOSED:
            self.queue_state.drop(key)
            self.history.take(gang.record)
            return self.learning.next_runs.end(gang)
        work = self.claims.step(gang) or self.gates.step(gang)
        if work is not None:
            return work
        self._note(gang, gang.record)
        if gang.key not in self._pending.starts and (kept := self._reconciler.write_kept(gang)):
            return kept
        return self._reconciler.read(gang)

    async def _refused(self, key: Key, error: KubeError) -> None:
        """Tell the owner of a gang what the API server refuses to take."""
        gang = self.gangs.by_key.get(key)
        if gang is None or not gang.is_live:
            return
        what = f"GPUJob {key[1]}" if gang.record is not None else f"a GPUJob {key[1]} for it"
        note = f"The API server refuses {what}: {error}"
        await self._writer.say(gang.first(), "Refused", note, "Warning")

    def _note(self, gang: Gang, record: GpuJobRecord) -> None:
        """Note where a gang stands and which of its pods want a place."""
        now = self._clock()
        if record.status.plan is not None:
            end_s = lifecycle.plan_ends_s(record.status)
            if end_s > now:
                self.work.later(gang.key, end_s)
        if (rests_s := lifecycle.rests_until_s(record.status)) > now:
            self.work.later(gang.key, rests_s)
        for pod in gang.holders() if gang.leaving else ():
            if (leaves_s := lifecycle.leaves_until_s(pod)) > now:
                self.work.later(gang.key, leaves_s)
        if record.status.load is None:
            return
        known = self.queue_state.of.get(gang.key)
        if (ends_s := lifecycle.ends_until_s(gang)) > now:
            self.work.later(gang.key, ends_s)
        elif known is not None and known.ends:
            # A part of it stays: the GPUs that were kept free next to it are open to all jobs
            # again.
            self.queue_state.competes = True
            self.cycles.forget_refusals()
        self.queue_state.put(gang, now, self.preempter.gives_way_s(gang))
        if record.status.phase is Phase.RUNNING:
            self._anti_affinity.runs(gang.key)
        if record.status.reason in _NOT_OF_CYCLES:
            # What a cycle finds out is news once that is over, though it has been said before.
            self._reason_writer.forget(gang.key)
        elif record.status.reason not in _OF_CYCLES:
            self._reason_writer.overwritten(gang.key)
        if (rests_s := self._anti_affinity.rests_until_s(gang.key)) > now:
            self.work.later(gang.key, rests_s)  # at each look: an earlier one takes its place
        else:
            self._pending.note(gang, record, now)

    def _forget(self, key: Key) -> None:
        self.work.forget(key)
        self._reconciler.forget(key)
        self.preempter.forget(key)
        self._reason_writer.forget(key)
        self.learning.forget(key)
        self.adjuster.forget(key)
        self._pending.forget(key)
        self._anti_affinity.forget(key)
