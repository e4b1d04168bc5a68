"""Runs one scheduling cycle: plans in a thread, then carries out the plan on the event loop."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from scheduler_extender.cluster.elastic import smaller
from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.ledger import Hold
from scheduler_extender.cluster.pods import Use
from scheduler_extender.cluster.records import Key
from scheduler_extender.planning import explaining
from scheduler_extender.planning.explaining import named
from scheduler_extender.planning.growing import grow_last
from scheduler_extender.planning.planning import Planner
from scheduler_extender.planning.questions import (
    Answer,
    GivesWay,
    Question,
    Shrinks,
    Verdict,
    Victim,
)
from scheduler_extender.queue.gangs.resizing import Resizer
from scheduler_extender.queue.metrics import QueueMetrics
from scheduler_extender.queue.order.quota_accounts import Accounts
from scheduler_extender.queue.order.reason_writer import Chooser, ReasonWriter, Why
from scheduler_extender.queue.shared import Shared
from scheduler_extender.queue.steps import lifecycle
from scheduler_extender.queue.steps.effects import WriteStatus
from scheduler_extender.quotas.grants import Turn
from scheduler_extender.quotas.round import plan_within
from scheduler_extender.quotas.shrinking import shrink_first
from tandem.contracts.resources import GPUJobStatus
from tandem.kube.errors import KubeError
from tandem.policy.cluster import Snapshot
from tandem.policy.job import Job
from tandem.reasons.causes import Cause, Reason

PLACED = "Placed"
#: Running gangs that may be preempted or moved in one round.
_VICTIMS = 100
#: kube-scheduler binds one pod after the other. A plan lives longer by this for each planned pod
#: that may come before its own last one, up to a limit: no node has refused a pod that
#: kube-scheduler has not tried yet.
_BIND_S, _BINDS_WITHIN_S = 0.2, 300.0


@dataclass(frozen=True, slots=True)
class Planned:
    """The decisions of one cycle: places, reasons to write about waiting jobs, and promotions.

    `turn` is the account of the quotas with which it began, `cpu_s` what it took its thread.
    """

    question: Question
    turn: Turn
    answer: Answer
    to_tell: dict[Key, Why]
    starving: list[Key]
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Promise:
    """GPUs (node, UUID) of a plan that is being written, and how many its pods take.

    `uses` is what they take of their nodes besides, by uid.
    """

    gpus: frozenset[tuple[str, str]]
    count: int
    uses: tuple[tuple[str, Use], ...]


class Cycles:
    """Plans what waits. All methods but `_think` run on the event loop."""

    def __init__(
        self,
        shared: Shared,
        accounts: Accounts,
        reason_writer: ReasonWriter,
        metrics: QueueMetrics,
        foresee: Callable[[Question, Answer, Turn], None],
        targets: Callable[[], dict[Key, frozenset[tuple[str, str]]]],
        slow: Callable[[], Set[Key]],
        resizer: Resizer,
    ) -> None:
        self._resizer = resizer
        self._state = shared.state
        self._gangs = shared.gangs
        self._work = shared.work
        self._queue_state = shared.queue_state
        self._pending = shared.pending
        self._executor = shared.executor
        self._preempter = shared.preempter
        self._history = shared.history
        self._accounts = accounts
        self._reason_writer = reason_writer
        self._metrics = metrics
        self._anti_affinity = shared.anti_affinity
        self._profile = shared.profile
        self._pipeline = shared.profile.pipeline()
        self._planner = Planner(shared.profile, shared.settings.reserve_after_s)
        self._settings = shared.settings
        self._clock = shared.clock
        self._targets = targets  # where gangs that are being moved start again
        self._slow = slow  # gangs whose neighbours slow them down too much
        self._foresee = foresee  # with what each round has seen and decided
        self._slice_ends_s = 0.0
        self._ripe_s = np.inf  # when the next gang has had its minimum run
        # Plans that are being written: no snapshot shows them yet.
        self._promised: dict[Key, _Promise] = {}
        # Refusals next to planned starts that failed had no reason.
        self._forgets = False
        # Gangs that were asked to give way, until what they hold shows it.
        self._asked: set[Key] = set()

    def forget_refusals(self) -> None:
        """Try every job anew in the next round, though none has left."""
        self._forgets = True

    def due(self) -> bool:
        """Say whether to plan though no job waits: a job that runs is slower than promised."""
        changed = self._queue_state.competes or self._clock() >= self._ripe_s
        return changed and bool(self._slow())

    async def plan(self, frozen: Callable[[], Question]) -> Planned:
        """Plan all starts on one snapshot, in a thread."""
        tell = self._reason_writer.chooser(self._preempter.spared_causes())
        self._work.hold()  # the picture does not change while it is planned, and writes go on
        now, began = self._clock(), time.perf_counter()
        # The thread's own frame holds what it returns until the thread has its next turn, which
        # is after ours: nothing of the plan is to outlive the cycle.
        planned: list[Planned] = []
        try:
            # A plan that is written meanwhile counts twice in this cycle, and never not at all.
            promised = {key: each.count for key, each in self._promised.items()}
            think = partial(self._think, frozen, tell, now, promised)
            await asyncio.to_thread(lambda: planned.append(think()))
        finally:
            self._work.go()
        self._metrics.planning.observe(time.perf_counter() - began)
        return planned.pop()

    def _think(
        self,
        frozen: Callable[[], Question],
        tell: Chooser,
        now_s: float,
        promised: Mapping[Key, int],
    ) -> Planned:
        """Plan, and choose about which jobs to write; in a thread, on a copy."""
        began_s = time.thread_time()
        question = frozen()
        turn = self._accounts.turn(promised)
        answer = grow_last(question, partial(self._decided, turn))
        to_tell = tell(answer.waiting, answer.explain)
        answer.forget_board()  # to free it takes milliseconds, which the event loop shall not spend
        starving = self._queue_state.starving(now_s)
        cpu_s = time.thread_time() - began_s
        return Planned(question, turn, answer, to_tell, starving, cpu_s)

    def _decided(self, turn: Turn, question: Question) -> Answer:
        answer = plan_within(question, turn, self._planner.plan)
        shrink_first(question, turn, answer, self._planner.plan)
        return answer

    def report(self, planned: Planned) -> None:
        """Promote jobs that starve, write why jobs wait, and hand the cycle to the forecasts."""
        if not self._queue_state.competes:
            # What was not to be had in this cycle is decided in the next: no place is lost by it.
            coming = [start.gpujob for start in planned.answer.waiting.coming()]
            self._queue_state.settle(self._asked, coming)
        self._promote(planned.starving)
        self._tell(planned.to_tell)
        self._foresee(planned.question, planned.answer, planned.turn)

    # --- the question -------------------------------------------------------------------------

    def freeze(self) -> Callable[[], Question]:
        """Copy what changes while we plan; return what makes a question of it, for the thread.

        The queue state and the starts do not change while the thread plans.
        """
        now = self._clock()
        if self._forgets:
            self._planner.forget_refusals()
            self._forgets = False
        history, queue_state = self._history.history(), self._queue_state
        queue_state.cross(now)
        if self._preempter.expire() or now >= min(self._slice_ends_s, self._ripe_s):
            queue_state.competes = True
        if now >= self._slice_ends_s:
            self._slice_ends_s = now + self._profile.order.slice_s
        competes, queue_state.competes = queue_state.competes, False
        preempts = self._profile.dispatch.preempts
        victims = self._victims(now) if preempts and competes else {}
        if self._state.settle_beliefs(self._jobs()):
            # What was refused, or priced, by a class may have one of its own now; a gang may be
            # spread, or kept on few nodes, that was not before.
            self._planner.forget_refusals()
            for key in self._pending.starts:
                self._work.add(key)
        picture: dict[str, Any] = {
            "starts": dict(self._pending.starts),
            "growing": frozenset(self._pending.growing),
            "joining": frozenset(self._pending.joining),
            "snapshot": self._state.snapshot(),
            "claims": self._state.ledger.counting(),
            "victims": victims,
            "elastic": self._elastic(victims),
            "where_of": dict(self._pending.where_of),
            "avoids": self._anti_affinity.all(now),
            "targets": self._targets(),
        }

        promised = {uid: use for each in self._promised.values() for uid, use in each.uses}
        nodes = self._state.nodes_picture(self._pending.shapes(), self._pending.together, promised)

        def question() -> Question:
            queue_state.line_up(now)
            arrays = queue_state.arrays(now, history)
            return Question(
                rank=lambda: queue_state.rank(arrays, now, history),
                arrays=arrays,
                row_of=queue_state.row_of(),
                eligible={number: nodes.eligible(number) for number in nodes.asks},
                capable=lambda number: nodes.capable(number) if number in nodes.asks else None,
                nodes=nodes,
                endless=frozenset(k for k in queue_state.placed if queue_state.of[k].endless),
                going=queue_state.going() if preempts else frozenset(),
                front=frozenset(queue_state.front()),
                history=history,
                now_s=now,
                needs_remaining=self._profile.dispatch.needs_remaining,
                by_work_left=self._profile.order.by_work_left,
                **picture,
            )

        return question

    def _jobs(self) -> Iterator[Job]:
        """Yield all jobs that the queue holds."""
        yield from (entry.job for entry in self._queue_state.of.values())
        starts = (each for starts in self._pending.starts.values() for each in starts)
        yield from (part.job for start in starts for part in start.parts)

    def _victims(self, now: float) -> dict[Key, Victim]:
        """Return the gangs that may be made to give way now."""
        found: dict[Key, Victim] = {}
        keys, self._ripe_s = self._queue_state.may_give_way(now)
        if slow := self._slow():
            keys.sort(key=lambda key: key not in slow)
        for key in keys:
            if len(found) == _VICTIMS or self._work.busy(key):
                # Not now: a round is to be short, and the next cycle looks at all of them.
                self._queue_state.competes = True
            if len(found) == _VICTIMS:
                break
            if self._work.busy(key) or self._preempter.spared(key):
                continue
            entry = self._queue_state.of[key]
            charge = self._settings.preemption_cost_s * entry.rate
            found[key] = Victim(entry.service(now) + entry.held(now), charge)
        return found

    def _elastic(self, victims: Iterable[Key]) -> dict[Key, list[Shrinks]]:
        """Return the sizes that the elastic gangs among `victims` may shrink to."""
        found = {}
        for key in victims:
            gang = self._gangs.by_key[key]
            if self._resizer.may_shrink(key) and (steps := smaller(gang)):
                found[key] = [Shrinks(key, s.pods, s.uids, s.gpus) for s in steps]
        return found

    # --- the answer ---------------------------------------------------------------------------

    def carry_out(self, planned: Planned) -> None:
        """Write the plans of the jobs that have a place, and ask the victims to give up theirs."""
        snapshot, answer = planned.question.snapshot, planned.answer
        placed: dict[Key, list[Verdict]] = defaultdict(list)
        for verdict in answer.placed:
            # What was overtaken while we planned is seen anew in the next cycle.
            if self._state.unchanged(snapshot, verdict.decision.rows):
                placed[verdict.start.gpujob].append(verdict)
            else:
                self.forget_refusals()
        # Those of one round know of one another, but not of plans that are still on their way.
        promised = frozenset().union(*(each.gpus for each in self._promised.values()))
        ahead = self._state.ledger.counts()[Hold.PLANNED]
        ahead += sum(len(each.uses) for each in self._promised.values())
        for key, verdicts in placed.items():
            gang = self._gangs.by_key.get(key)
            gpus = frozenset(
                (pod.node, gpu)
                for each in verdicts
                for pod in each.decision.pods
                for gpu in pod.gpu_ids
            )
            if gang is not None and not self._work.busy(key) and not gpus & promised:
                self._pending.drop(key)
                self._queue_state.place(key)
                count = sum(each.start.gpus for each in verdicts)
                uses = tuple(
                    (pod.uid, pod.on(place.node))
                    for each in verdicts
                    for pod, place in zip(each.start.all_pods, each.decision.pods, strict=True)
                )
                self._promised[key] = _Promise(gpus, count, uses)
                ahead += len(uses)
                bind_s = min((ahead - 1) * _BIND_S, _BINDS_WITHIN_S)
                life_s = self._settings.plan_life_s + bind_s
                self._work.do(key, self._write_plan(gang, verdicts, snapshot, life_s))
            else:
                self.forget_refusals()
        self._asked = {key for key in self._asked if self._work.busy(key)}
        for gives in answer.gives_way:
            self._ask_to_give_way(gives)
        for shrinks in answer.shrinks:
            self._make_smaller(shrinks)

    def _make_smaller(self, shrinks: Shrinks) -> None:
        gang = self._gangs.by_key.get(shrinks.gang)
        if gang is None or self._work.busy(shrinks.gang):
            self._queue_state.competes = True  # not now; the next cycle asks again
            return
        why = Cause(Reason.NEEDED, job=named([shrinks.to], shrinks.gang))
        self._work.do(shrinks.gang, self._resizer.shrink(gang, shrinks, why))

    def _ask_to_give_way(self, gives: GivesWay) -> None:
        gang = self._gangs.by_key.get(gives.victim)
        if gang is None or self._work.busy(gives.victim):
            self._queue_state.competes = True  # not now; the next cycle asks again
            return
        if gives.to != gives.victim:
            why = Cause(Reason.NEEDED, job=named([gives.to], gives.victim))
            self._asked.add(gives.victim)
        elif gives.too_slow:
            why = Cause(Reason.SLOWED_DOWN)
        else:
            why = Cause(Reason.FASTER_ELSEWHERE)
        self._work.do(gives.victim, self._preempter.begin(gang, why))

    async def _write_plan(
        self, gang: Gang, verdicts: Sequence[Verdict], snapshot: Snapshot, life_s: float
    ) -> None:
        """Write the plan of one GPUJob; its gates open when it is looked at again."""
        try:
            await self._plan_written(gang, verdicts, snapshot, life_s)
        except KubeError:
            self.forget_refusals()
            raise
        finally:
            self._promised.pop(gang.key, None)

    async def _plan_written(
        self, gang: Gang, verdicts: Sequence[Verdict], snapshot: Snapshot, life_s: float
    ) -> None:
        if gang.record is None:
            return
        now = self._clock()
        places = [(verdict.start.all_pods, verdict.decision) for verdict in verdicts]
        steps = max(verdict.steps for verdict in verdicts)
        status = lifecycle.with_plan(
            gang.record.status,
            gang,
            places,
            now,
            now + life_s,
            steps,
            self._state.gpu_name,
        )
        why = self._explained(verdicts[0], snapshot, status)
        status = lifecycle.decided(status, PLACED, why, now)
        planned = WriteStatus(status, before="plan-before", after="plan-after")
        await self._executor.carry_out(gang, (planned,))

    def _explained(self, verdict: Verdict, snapshot: Snapshot, status: GPUJobStatus) -> str:
        """Return why the first of its pods go where they go."""
        rows = np.array(verdict.decision.rows[: explaining.GPUS], dtype=np.int64)
        node = snapshot.gpus.node
        names = [
            self._state.gpu_name(snapshot.node_names[node[row]], snapshot.gpu_ids[row])
            for row in rows
        ]
        gpus = snapshot.gpus.take(rows)
        more = len(verdict.decision.rows) - len(rows)
        return explaining.placed(self._pipeline, verdict.start.job, gpus, names, more, status.load)

    def _promote(self, keys: Iterable[Key]) -> None:
        """Put those that have starved back into the first queue."""
        for key in keys:
            gang = self._gangs.by_key.get(key)
            if gang is None or gang.record is None or self._work.busy(key):
                continue
            self._queue_state.promote(key, self._clock())
            self._metrics.promotions.inc()
            status = lifecycle.promoted(gang.record.status, self._clock())
            self._pending.drop(key)
            self._work.do(key, self._executor.carry_out(gang, (WriteStatus(status),)))

    def _tell(self, to_tell: dict[Key, Why]) -> None:
        spared = self._preempter.spared_causes()
        for key, what in to_tell.items():
            gang = self._gangs.by_key.get(key)
            if gang is not None and gang.record is not None and not self._work.busy(key):
                queue = self._queue_state.queue_of(key, self._clock())
                # It goes on waiting meanwhile: while its reason is written, no job behind it takes
                # its place.
                self._work.do(key, self._reason_writer.tell(gang, what, queue, spared(key)))
