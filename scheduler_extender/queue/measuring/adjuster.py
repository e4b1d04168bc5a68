"""The adjuster of a profile (`ojpap`, `pab`) on live measurements, as the simulator runs it.

Under the profiles of Tandem, `learning/separation.py` chooses the jobs to move.

The observations are the measured slowdowns, the results are moves: a gang gives up its GPUs and
starts again where the adjuster has put it, or goes back to the queue for GPUs of its own. A move
that this process does not live to see ends as any preemption does: the order and the dispatch
place the gang.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.records import Key
from scheduler_extender.cluster.table import places_of
from scheduler_extender.planning.cluster_pipeline import ClusterPipeline
from scheduler_extender.planning.cycle_input import cycle_input_of, keep_to_domains
from scheduler_extender.planning.questions import Question, Victim
from scheduler_extender.queue.measuring.learning_loop import Learning
from scheduler_extender.queue.shared import Shared
from scheduler_extender.queue.steps.effects import WriteStatus
from tandem.contracts.resources import Phase
from tandem.policy.board import Start
from tandem.reasons.causes import Cause, Reason

log = logging.getLogger(__name__)

Place = tuple[str, str]  # node, UUID of a GPU
#: A gang that has not started at its new place by then is placed as any other.
_TARGET_S = 600.0
#: Between two looks for newcomers, for an adjuster that looks at each of them once.
_NEWCOMERS_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Repair:
    """A running gang leaves its GPUs: for `places`, or for whole GPUs where there are none."""

    key: Key
    places: frozenset[Place]
    why: Cause


@dataclass(slots=True)
class _Journey:
    """When a gang began to leave its GPUs, and how long it has taken without its wait."""

    left_s: float
    gone_s: float = 0.0
    planned_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Seen:
    """The input of the adjuster: slowdowns by gang, gangs that may be moved, costs."""

    slowdown: Mapping[Key, float]
    movable: frozenset[Key]
    cost_s: Mapping[Key, float]


class LiveAdjuster:
    """Runs on the event loop, but for `_decide`, which has a frozen picture."""

    def __init__(self, shared: Shared, learning: Learning) -> None:
        self._profile = shared.profile
        self._state = shared.state
        self._gangs = shared.gangs
        self._queue_state = shared.queue_state
        self._pending = shared.pending
        self._work = shared.work
        self._executor = shared.executor
        self._history = shared.history
        self._learning = learning
        self._clock = shared.clock
        self._next_s = -np.inf
        self._level: dict[Place, float] = {}  # the moving average of each GPU's interference
        self._moved_s: dict[Key, float] = {}
        self._targets: dict[Key, tuple[float, frozenset[Place]]] = {}
        self._journeys: dict[Key, _Journey] = {}
        self._cost_s: dict[Key, float] = {}

    def targets(self) -> dict[Key, frozenset[Place]]:
        """Return where gangs start again that are being moved."""
        return {key: places for key, (_, places) in self._targets.items()}

    def forget(self, key: Key) -> None:
        """Forget a gang that is gone."""
        for known in (self._moved_s, self._targets, self._journeys, self._cost_s):
            known.pop(key, None)

    async def step(self) -> None:
        """Let the adjuster look, where it is time to, and carry out what it decides."""
        adjust, now = self._profile.adjust, self._clock()
        if adjust is None:
            return
        self._follow(now)
        if now < self._next_s:
            return
        self._next_s = now + (adjust.every_s if adjust.repeats else _NEWCOMERS_EVERY_S)
        seen = self._seen(others_too=adjust.repeats)
        question = self._question(now, seen.movable)
        self._work.hold()
        try:
            repairs = await asyncio.to_thread(self._decide, question, seen)
        finally:
            self._work.go()
        for repair in repairs:
            gang = self._gangs.by_key.get(repair.key)
            if gang is None or self._work.busy(repair.key):
                # A status of it is being written. A newcomer has only so many looks: the next one
                # comes at once.
                self._moved_s.pop(repair.key, None)
                self._next_s = now
                continue
            if repair.places:
                self._targets[repair.key] = (now + _TARGET_S, repair.places)
                self._journeys[repair.key] = _Journey(now)
            self._work.do(repair.key, self._carry_out(gang, repair))

    async def _carry_out(self, gang: Gang, repair: Repair) -> None:
        if not repair.places and gang.record is not None:
            # It is not sent to the same place again: from now on it has its GPUs for itself.
            alone = gang.record.status.model_copy(update={"alone": True})
            await self._executor.carry_out(gang, (WriteStatus(alone),))
        if not await self._learning.move(gang, repair.why):
            self._targets.pop(repair.key, None)
            self._journeys.pop(repair.key, None)

    # --- what the adjuster sees -------------------------------------------------------------------

    def _seen(self, *, others_too: bool) -> _Seen:
        """Return what is measured; what only a job's own pods tell moves no other job."""
        slowdown, movable = {}, set()
        for key in self._queue_state.placed:
            gang = self._gangs.by_key.get(key)
            if gang is None or gang.record is None or gang.record.status.phase is not Phase.RUNNING:
                continue
            value, measured = self._learning.slowdown_of(gang)
            slowdown[key] = value if measured or not others_too else 0.0
            if not self._learning.stays(gang, gang.record):
                movable.add(key)
        return _Seen(slowdown, frozenset(movable), dict(self._cost_s))

    def _question(self, now: float, movable: frozenset[Key]) -> Question:
        nodes = self._state.nodes_picture(self._pending.shapes(), self._pending.together)
        history, queue_state = self._history.history(), self._queue_state
        placed = sorted(queue_state.placed)
        return Question(
            rank=lambda: placed,
            starts={},
            snapshot=self._state.snapshot(),
            eligible={number: nodes.eligible(number) for number in nodes.asks},
            nodes=nodes,
            arrays=queue_state.arrays(now, history),
            row_of=queue_state.row_of(),
            claims=self._state.ledger.counting(),
            going=queue_state.going(),
            victims={key: Victim(0.0, 0.0) for key in movable},
            where_of=dict(self._pending.where_of),
            history=history,
            now_s=now,
        )

    def _decide(self, question: Question, seen: _Seen) -> list[Repair]:
        """Run the adjuster on the board of the cluster; return what it has done there."""
        snapshot, adjust = question.snapshot, self._profile.adjust
        assert adjust is not None
        places = places_of(snapshot)
        inputs = cycle_input_of(question, {place: row for row, place in enumerate(places)})
        board = inputs.board
        index_of = {inputs.keys[i]: i for i in inputs.held if i not in inputs.going}
        for key, index in index_of.items():
            board.arrays.speed[index] = 1 / (1 + seen.slowdown.get(key, 0.0))
            job = replace(
                board.jobs[index],
                checkpointable=key in seen.movable,
                migration_s=seen.cost_s.get(key),
            )
            board.change(index, job)
        board.interference = np.array([self._level.get(place, 0.0) for place in places])
        board.moved_s = {
            index_of[key]: at_s for key, at_s in self._moved_s.items() if key in index_of
        }
        pipeline = ClusterPipeline(
            self._profile.rules, self._profile.scorers, self._profile.gather,
            nodes=inputs.nodes, most=inputs.most, residents=snapshot.gpus.jobs,
        )  # fmt: skip
        keep_to_domains(question, inputs, pipeline)
        adjust(board, pipeline)
        self._level = {
            places[row]: float(board.interference[row])
            for row in np.flatnonzero(board.interference).tolist()
        }
        found: dict[int, frozenset[Place]] = {}
        for action in board.take_actions():
            rows = action.rows if isinstance(action, Start) else ()
            found[action.job] = frozenset(places[row] for row in rows)
        key_of = {index: key for key, index in index_of.items()}
        self._moved_s |= {key_of[index]: at_s for index, at_s in board.moved_s.items()}
        repairs = []
        for index, to in found.items():
            key = key_of[index]
            if key not in seen.movable:
                continue
            repairs.append(Repair(key, to, _why(seen, key)))
        return repairs

    # --- what a move costs ------------------------------------------------------------------------

    def _follow(self, now: float) -> None:
        """Measure how long gangs that move take to stop and to start, without their wait."""
        for key, journey in list(self._journeys.items()):
            gang = self._gangs.by_key.get(key)
            if gang is None or gang.record is None:
                continue
            phase = gang.record.status.phase
            if phase is Phase.PREEMPTING or not journey.gone_s:
                if phase in (Phase.SUSPENDED, Phase.QUEUED, Phase.ADMITTED):
                    journey.gone_s = now
                continue
            if phase is Phase.ADMITTED and not journey.planned_s:
                journey.planned_s = now
            elif phase is Phase.RUNNING:
                started_s = now - (journey.planned_s or journey.gone_s)
                self._cost_s[key] = journey.gone_s - journey.left_s + started_s
                del self._journeys[key]
                self._targets.pop(key, None)
        self._targets = {
            key: (until_s, places)
            for key, (until_s, places) in self._targets.items()
            if now < until_s
        }


def _why(seen: _Seen, key: Key) -> Cause:
    """Return why a gang leaves its GPUs: it is slowed down there, or slows others down."""
    slowdown = seen.slowdown.get(key, 0.0)
    if slowdown:
        return Cause(Reason.SLOWED_DOWN, value=slowdown)
    return Cause(Reason.SLOWS_DOWN, seconds=seen.cost_s.get(key))
