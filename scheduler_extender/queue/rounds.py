"""One round of admission: ask for a plan beside the event loop, and carry out what came of it."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from scheduler_extender import faults
from scheduler_extender.cluster.records import Key
from scheduler_extender.config import QueueConfig
from scheduler_extender.learning.history import Learned
from scheduler_extender.planning import explaining
from scheduler_extender.planning.avoiding import Avoiding
from scheduler_extender.planning.naming import named
from scheduler_extender.planning.planning import Planner
from scheduler_extender.planning.questions import Answer, GivesWay, Question, Verdict, Victim
from scheduler_extender.queue import lifecycle
from scheduler_extender.queue.cluster_view import ClusterView
from scheduler_extender.queue.metrics import QueueMetrics
from scheduler_extender.queue.preemption import Preempter
from scheduler_extender.queue.registry import Gang, Registry
from scheduler_extender.queue.standing import Standings
from scheduler_extender.queue.telling import Chooser, Telling, ToTell
from scheduler_extender.queue.waiters import Waiters
from scheduler_extender.queue.work import WorkQueue
from scheduler_extender.queue.writes import Writer
from scheduler_extender.quotas.accounts import Accounts
from scheduler_extender.quotas.round import plan_within
from tandem.contracts.resources import GPUJobStatus
from tandem.kube.errors import KubeError
from tandem.policy.catalog import Profile
from tandem.policy.cluster import Snapshot
from tandem.policy.dispatch.best_sharing import BestSharing
from tandem.policy.job import Job

PLACED = "Placed"
#: Running gangs that may be preempted or moved in one round.
_VICTIMS = 100


class Rounds:
    """Plans what waits. All methods but `_think` run on the event loop."""

    def __init__(
        self,
        *,
        state: ClusterView,
        registry: Registry,
        work: WorkQueue,
        standings: Standings,
        waiters: Waiters,
        writer: Writer,
        preempter: Preempter,
        learned: Learned,
        accounts: Accounts,
        telling: Telling,
        avoiding: Avoiding,
        metrics: QueueMetrics,
        profile: Profile,
        settings: QueueConfig,
        clock: Callable[[], float],
        foresee: Callable[[Question, Answer], None] = lambda _question, _answer: None,
        targets: Callable[[], dict[Key, frozenset[tuple[str, str]]]] = dict,
    ) -> None:
        self._state = state
        self._registry = registry
        self._work = work
        self._standings = standings
        self._waiters = waiters
        self._writer = writer
        self._preempter = preempter
        self._learned = learned
        self._accounts = accounts
        self._telling = telling
        self._metrics = metrics
        self._avoiding = avoiding
        self._profile = profile
        self._pipeline = profile.pipeline()
        self._planner = Planner(profile, settings.reserve_after_s)
        self._settings = settings
        self._clock = clock
        self._targets = targets  # where gangs that are being moved start again
        self._foresee = foresee  # with what each round has seen and decided
        self._slice_ends_s = 0.0
        self._ripe_s = np.inf  # when the next gang has had its minimum run
        # GPUs (node, UUID) of plans that are being written: no snapshot shows them yet.
        self._promised: dict[Key, frozenset[tuple[str, str]]] = {}
        # What was refused beside starts that came to nothing was refused for no reason.
        self._forgets = False
        # Gangs that were asked to give way, until what they hold shows it.
        self._asked: set[Key] = set()

    def forget_refusals(self) -> None:
        """Try everybody anew in the next round, though nobody has left."""
        self._forgets = True

    async def plan(self) -> None:
        """Plan all starts on one snapshot, beside the loop, and carry out what came out."""
        asked = self._picture()
        tell = self._telling.chooser(self._preempter.told_of_spared())
        self._work.hold()  # what is being planned stands still, what is being written goes on
        began = time.perf_counter()
        try:
            question, answer, to_tell, starving, coming = await asyncio.to_thread(
                self._think, asked, tell, self._clock()
            )
        finally:
            self._work.go()
        self._metrics.planned(time.perf_counter() - began)
        self._carry_out(question.snapshot, answer)
        if not self._standings.competes:
            # What was not to be had in this round is decided in the next: no place is lost by it.
            self._standings.settle(self._asked, coming)
        self._promote(starving)
        self._tell(to_tell)
        self._foresee(question, answer)

    def _think(
        self, asked: Callable[[], Question], tell: Chooser, now_s: float
    ) -> tuple[Question, Answer, dict[Key, ToTell], list[Key], list[Key]]:
        """Plan, and choose who is told of it; in a thread, on what stands still meanwhile."""
        question = asked()
        answer = plan_within(question, self._accounts.turn(), self._planner.plan)
        told = tell(answer.waiting, answer.explain, answer.summarise)
        coming = [each.start.gpujob for each in answer.waiting if each.coming]
        return question, answer, told, self._standings.starving(now_s), coming

    # --- the question -------------------------------------------------------------------------

    def _picture(self) -> Callable[[], Question]:
        """Take down what changes while we plan; return what makes a question of it.

        The latter is for the thread: standings and starts stand still meanwhile.
        """
        now = self._clock()
        if self._forgets:
            self._planner.forget_refusals()
            self._forgets = False
        history, standings = self._learned.history(), self._standings
        standings.cross(now)
        if self._preempter.expire() or now >= min(self._slice_ends_s, self._ripe_s):
            standings.competes = True
        if now >= self._slice_ends_s:
            self._slice_ends_s = now + self._profile.order.slice_s
        competes, standings.competes = standings.competes, False
        preempts = self._profile.dispatch.preempts
        if self._state.settle_beliefs(self._jobs()):
            # What was refused, or priced, by a class may have one of its own now.
            self._planner.forget_refusals()
            for key in self._waiters.starts:
                self._work.add(key)
        picture: dict[str, Any] = {
            "starts": dict(self._waiters.starts),
            "snapshot": self._state.snapshot(),
            "claims": self._state.claims(),
            "victims": self._victims(now) if preempts and competes else {},
            "where_of": dict(self._waiters.where_of),
            "avoids": self._avoiding.all(now),
            "targets": self._targets(),
        }

        nodes = self._state.nodes_picture(self._waiters.shapes())

        def question() -> Question:
            standings.line_up(now)
            arrays = standings.arrays(now, history)
            return Question(
                rank=lambda: standings.rank(arrays, now, history),
                arrays=arrays,
                row_of={key: standing.row for key, standing in standings.of.items()},
                eligible={number: nodes.eligible(number) for number in nodes.asks},
                capable=lambda number: nodes.capable(number) if number in nodes.asks else None,
                endless=frozenset(k for k in standings.placed if standings.of[k].endless),
                going=standings.going() if preempts else frozenset(),
                front=frozenset(standings.front()),
                competes=competes,
                history=history,
                now_s=now,
                needs_remaining=isinstance(self._profile.dispatch, BestSharing),
                by_work_left=self._profile.order.by_work_left,
                **picture,
            )

        return question

    def _jobs(self) -> Iterator[Job]:
        """Yield all jobs that the queue holds."""
        yield from (standing.job for standing in self._standings.of.values())
        yield from (each.job for starts in self._waiters.starts.values() for each in starts)

    def _victims(self, now: float) -> dict[Key, Victim]:
        """Return who may be made to give way now."""
        found: dict[Key, Victim] = {}
        keys, self._ripe_s = self._standings.may_give_way(now)
        for key in keys:
            if len(found) == _VICTIMS or self._work.busy(key):
                # Not now: a round is to be short, and the next cycle looks at all of them.
                self._standings.competes = True
            if len(found) == _VICTIMS:
                break
            if self._work.busy(key) or self._preempter.spared(key):
                continue
            standing = self._standings.of[key]
            charge = self._settings.preemption_cost_s * standing.rate
            found[key] = Victim(standing.service(now), charge)
        return found

    # --- the answer ---------------------------------------------------------------------------

    def _carry_out(self, snapshot: Snapshot, answer: Answer) -> None:
        placed: dict[Key, list[Verdict]] = defaultdict(list)
        for verdict in answer.placed:
            # What was overtaken while we planned is seen anew in the next cycle.
            if self._state.unchanged(snapshot, verdict.decision.rows):
                placed[verdict.start.gpujob].append(verdict)
            else:
                self.forget_refusals()
        # Those of one round know of one another, but not of plans that are still on their way.
        promised = frozenset().union(*self._promised.values())
        for key, verdicts in placed.items():
            gang = self._registry.gangs.get(key)
            gpus = frozenset(
                (pod.node, gpu)
                for each in verdicts
                for pod in each.decision.pods
                for gpu in pod.gpu_ids
            )
            if gang is not None and not self._work.busy(key) and not gpus & promised:
                self._waiters.drop(key)
                self._standings.place(key)
                self._promised[key] = gpus
                self._work.do(key, self._write_plan(gang, verdicts, snapshot))
            else:
                self.forget_refusals()
        self._asked = {key for key in self._asked if self._work.busy(key)}
        for gives in answer.gives_way:
            self._ask_to_give_way(gives)

    def _ask_to_give_way(self, gives: GivesWay) -> None:
        gang = self._registry.gangs.get(gives.victim)
        if gang is None or self._work.busy(gives.victim):
            self._standings.competes = True  # not now; the next cycle asks again
            return
        why = "runs faster elsewhere"
        if gives.to != gives.victim:
            why = f"{named([gives.to], gives.victim)} needs them"
        if gives.to != gives.victim:
            self._asked.add(gives.victim)
        self._work.do(gives.victim, self._preempter.begin(gang, why))

    async def _write_plan(
        self, gang: Gang, verdicts: Sequence[Verdict], snapshot: Snapshot
    ) -> None:
        """Write the plan of one GPUJob; its gates open when it is looked at again."""
        try:
            await self._plan_written(gang, verdicts, snapshot)
        except KubeError:
            self.forget_refusals()
            raise
        finally:
            self._promised.pop(gang.key, None)

    async def _plan_written(
        self, gang: Gang, verdicts: Sequence[Verdict], snapshot: Snapshot
    ) -> None:
        if gang.record is None:
            return
        now = self._clock()
        places = [(verdict.start.pods, verdict.decision) for verdict in verdicts]
        steps = max(verdict.steps for verdict in verdicts)
        status = lifecycle.with_plan(
            gang.record.status, gang, places, now, now + self._settings.plan_life_s, steps
        )
        why = self._explained(verdicts[0], snapshot, status)
        status = lifecycle.decided(status, PLACED, why, now)
        faults.reach("plan-before")
        await self._writer.write_status(gang, status)
        faults.reach("plan-after")

    def _explained(self, verdict: Verdict, snapshot: Snapshot, status: GPUJobStatus) -> str:
        """Return why the first of its pods go where they go."""
        rows = np.array(verdict.decision.rows[: explaining.GPUS], dtype=np.int64)
        node = snapshot.gpus.node
        names = [f"{snapshot.node_names[node[row]]}/{snapshot.gpu_ids[row]}" for row in rows]
        gpus = snapshot.gpus.take(rows)
        more = len(verdict.decision.rows) - len(rows)
        return explaining.placed(self._pipeline, verdict.start.job, gpus, names, more, status.load)

    def _promote(self, keys: Iterable[Key]) -> None:
        """Put those that have starved back into the first queue."""
        for key in keys:
            gang = self._registry.gangs.get(key)
            if gang is None or gang.record is None or self._work.busy(key):
                continue
            self._standings.promote(key, self._clock())
            self._metrics.promoted()
            status = lifecycle.promoted(gang.record.status, self._clock())
            self._waiters.drop(key)
            self._work.do(key, self._writer.write_status(gang, status))

    def _tell(self, to_tell: dict[Key, ToTell]) -> None:
        spared = self._preempter.told_of_spared()
        for key, what in to_tell.items():
            gang = self._registry.gangs.get(key)
            if gang is not None and gang.record is not None and not self._work.busy(key):
                queue = self._standings.queue_of(key, self._clock())
                # It waits on meanwhile: nobody behind it is to have its place because it is told.
                self._work.do(key, self._telling.tell(gang, what, queue, spared(key)))
