"""The learning loop: measures, moves, remembers. It runs on the event loop.

What it decides is pure (`sharing`, `separation`, `learned`, `remembering`); here it is fed and
carried out. What becomes of it at the end of a run is in `next_runs`. Whatever must outlive us
stands in GPUJobs or in the ConfigMap of the history.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence, Set
from dataclasses import replace
from functools import partial
from math import inf

from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.jobs import job_of
from scheduler_extender.cluster.records import GpuJobRecord, GpuNodeRecord, Key, PodRecord
from scheduler_extender.learning.config import LearningConfig
from scheduler_extender.learning.learned_state import LearnedState, NextRuns, kind_of_record
from scheduler_extender.learning.observed import GpuKey, Watch
from scheduler_extender.learning.separation import (
    Looked,
    Move,
    Obstacle,
    Resident,
    Separator,
    SharedGpu,
    blamed,
)
from scheduler_extender.learning.sharing import Sharing, notable
from scheduler_extender.planning.explaining import named
from scheduler_extender.planning.relocation import has_place
from scheduler_extender.queue.pods.memory_needs import OutOfMemories
from scheduler_extender.queue.shared import Shared
from scheduler_extender.queue.steps import lifecycle
from scheduler_extender.queue.steps.decisions import method_of
from scheduler_extender.queue.steps.effects import WriteEvent, WriteStatus
from tandem.contracts.learning import Observed
from tandem.contracts.prediction import Feedback
from tandem.contracts.resources import GPUJobStatus, Phase
from tandem.reasons.causes import Cause, Reason
from tandem.reasons.words import clause, sentence

log = logging.getLogger(__name__)

#: GPUs looked at before a verb gets its turn.
_SLICE = 50
#: The pair that was parted is believed to be at least so much over the bound.
_OVER = 1.01
MOVED, KEPT, WOULD_MOVE = "Moved", "Kept", "WouldMove"


class Learning:
    """One loop. `tell` sends the predictor what was observed of a model; True when it took it."""

    def __init__(
        self,
        shared: Shared,
        settings: LearningConfig,
        learned: LearnedState,
        tell: Callable[[Feedback], Awaitable[bool]] | None = None,
    ) -> None:
        self.pairs, self.memory = learned.pairs, learned.memory
        self.outcomes: Counter[str] = Counter(dict.fromkeys((MOVED, KEPT, WOULD_MOVE), 0))
        self.looked = Looked()
        self.worst = 0.0
        self._slow: frozenset[Key] = frozenset()
        least = shared.profile.dispatch.least_speed
        self._promised_slowdown = 1 / least - 1 if least else inf
        self._settings = settings
        self._state = state = shared.state
        self._gangs = shared.gangs
        self._work = shared.work
        self._executor = shared.executor
        self._preempter = shared.preempter
        self._anti_affinity = shared.anti_affinity
        self._pipeline = shared.profile.pipeline()
        self._clock = clock = shared.clock
        self._watch = Watch(settings.settle_s, state.gangs.runs_on)
        self._sharing = Sharing(self._watch, learned.memory)
        self._separator = Separator(settings)
        self._outofmemory = OutOfMemories(shared.executor, shared.gangs, clock)
        self._observed: dict[Key, Observed] = {}
        self.next_runs = NextRuns(learned, state, shared.writer, settings, self._observed, tell)
        self._written_s: dict[Key, float] = {}
        self._next_s = 0.0
        self._pairs_known = 0
        self._said: dict[GpuKey, str] = {}

    # --- events ---------------------------------------------------------------------------------

    def node_changed(self, record: GpuNodeRecord) -> None:
        """Take in an agent's report."""
        self._watch.take(record)
        self._outofmemory.take(record)

    def node_gone(self, record: GpuNodeRecord) -> None:
        """Forget a node."""
        self._watch.node_gone(record.name)
        self._outofmemory.node_gone(record.name)

    def pod_changed(self, record: PodRecord) -> None:
        """Take in what a container of a pod said at its end."""
        if record.pod.out_of_memory:
            self._outofmemory.take_pod(record.pod)

    def forget(self, key: Key) -> None:
        """Forget a gang that is gone."""
        self._observed.pop(key, None)
        self._written_s.pop(key, None)
        self._separator.forget(key)

    def annotated(self, gang: Gang, status: GPUJobStatus) -> GPUJobStatus:
        """Return a status that is about to be written with what has been observed since."""
        seen = self._observed.get(gang.key)
        if seen is None or (
            status.phase in (Phase.COMPLETED, Phase.FAILED)
            and (status.observed is not None and status.observed.remembered)
        ):
            return status
        return status.model_copy(update={"observed": seen})

    # --- looks ----------------------------------------------------------------------------------

    async def step(self) -> None:
        """Look, where it is time to: observe all that run, then see who must part."""
        await self._outofmemory.step()
        now = self._clock()
        if now < self._next_s:
            return
        self._next_s = now + self._settings.every_s
        gpus = await self._shared_gpus()
        self.looked = self._separator.look(gpus, self._has_place, now)
        self.worst = max((self._separator.level(gpu.at) for gpu in gpus), default=0.0)
        self._slow = frozenset(
            resident.key
            for gpu in gpus
            for resident in gpu.residents
            if (resident.slowdown or 0.0) > self._promised_slowdown and not resident.stays
        )
        if self._settings.mode != "off":
            self._act(gpus, now)
        await self._observe(now)

    def slow(self) -> Set[Key]:
        """Return the gangs that may move and that measurements show to be too slow."""
        return self._slow

    def believe(self) -> bool:
        """Let what was learned take effect; say whether there was anything."""
        if self._pairs_known == self.pairs.version:
            return False
        self._pairs_known = self.pairs.version
        self._state.settle_beliefs()
        return True

    async def _observe(self, now: float) -> None:
        """Note what is observed of each gang that runs; write what decides something."""
        for count, gang in enumerate(list(self._gangs.by_key.values())):
            if count % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
            record = gang.record
            if record is None or record.status.phase is not Phase.RUNNING:
                continue
            before = self._observed.get(gang.key) or record.status.observed
            seen = self._sharing.observed(
                gang,
                before,
                self._kinds_of_neighbours(gang),
                now,
                partial(self._predicted, gang),
                self._is_spread(gang, record),
            )
            if seen is None:
                continue
            self._observed[gang.key] = seen
            due = now - self._written_s.get(gang.key, 0.0) >= self._settings.write_every_s
            if due and notable(record.status.observed, seen) and not self._work.busy(gang.key):
                self._written_s[gang.key] = now
                self._work.do(
                    gang.key, self._executor.carry_out(gang, (WriteStatus(record.status),))
                )

    def _is_spread(self, gang: Gang, record: GpuJobRecord) -> bool | None:
        """Say whether a gang is on more nodes than it needs; None where it has a single pod.

        Nor is that known of a gang whose roles have different numbers of GPUs.
        """
        demand, holders = record.spec.demand, gang.holders()
        if demand.gang_size == 1 or len(holders) < demand.gang_size or record.spec.roles:
            return None
        nodes = {pod.node_name for pod in holders}
        widest = self._state.table.widest_node(holders[0].node_name)
        widest -= widest % demand.gpus_per_pod
        gpus = demand.gang_size * demand.gpus_per_pod
        return len(nodes) > -(-gpus // widest) if widest else None

    def _kinds_of_neighbours(self, gang: Gang) -> dict[str, str]:
        """Return the kinds of all pods that share a GPU with the gang, by uid."""
        others = {uid for each in self._sharing.watched(gang) for uid in each.others}
        return {uid: self._kind(uid) for uid in others}

    def _kind(self, uid: str) -> str:
        other = self._gangs.gang_of(uid)
        return (
            kind_of_record(other.record) if other is not None and other.record is not None else ""
        )

    async def _shared_gpus(self) -> list[SharedGpu]:
        found = []
        for count, (at, uids) in enumerate(sorted(self._watch.shared.items())):
            if count % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
            gangs = {g.key: g for g in map(self._gangs.gang_of, sorted(uids)) if g is not None}
            residents = tuple(
                replace(
                    self._sharing.resident(gang, at, self.stays(gang, gang.record)),
                    busy=self._is_busy(gang),
                )
                for _, gang in sorted(gangs.items())
                if gang.record is not None and gang.record.status.phase is Phase.RUNNING
            )
            if len(residents) > 1:
                found.append(SharedGpu(at, residents))
        return found

    def slowdown_of(self, gang: Gang) -> tuple[float, bool]:
        """Return how much a gang is slowed down now, and whether agents measured that."""
        shared = [each for each in self._sharing.watched(gang) if each.others]
        if not shared:
            return 0.0, True
        slowest = max(shared, key=lambda each: (each.busy_percent, each.at))
        resident = self._sharing.resident(gang, slowest.at, "")
        return resident.slowdown or 0.0, resident.measured

    def stays(self, gang: Gang, record: GpuJobRecord) -> str:
        """Return why a gang that runs cannot be moved, or ''."""
        if not gang.checkpoints:
            return "it saves no checkpoint"
        if not method_of(record):
            return "its owner would not create its pods again"
        return "a disruption budget protects it" if self._preempter.spared(gang.key) else ""

    def _is_busy(self, gang: Gang) -> bool:
        """Say whether something is being done about a gang: who leaves is decided when it is."""
        return self._work.busy(gang.key) or any(pod.deleting for pod in gang.holders())

    def _has_place(self, resident: Resident, gpu: SharedGpu) -> bool:
        gang = self._gangs.by_key.get(resident.key)
        if gang is None or gang.record is None:
            return False
        job = job_of("/".join(gang.key), gang.record.spec, gang.record.status)
        job = self._state.slowdowns.of(job, gang.record.status.load)
        away_from = {r.key for r in gpu.residents} - {resident.key}
        shunned = frozenset(
            pod.uid
            for key in away_from
            if (other := self._gangs.by_key.get(key)) is not None
            for pod in other.holders()
        )
        return has_place(self._state, self._pipeline, gang, job, shunned)

    # --- acts -----------------------------------------------------------------------------------

    def _act(self, gpus: list[SharedGpu], now: float) -> None:
        acts = self._settings.mode == "act"
        closed = self.looked.closed
        if acts:
            self._state.close_gpus(frozenset(closed))
        residents = {gpu.at: gpu.residents for gpu in gpus}
        said: dict[GpuKey, str] = {}
        for at, why in closed.items():
            for sufferer in residents[at]:
                slowdown = sufferer.slowdown or 0.0
                if acts and slowdown > self._bound:
                    others = [r.key for r in residents[at] if r.key != sufferer.key]
                    self._part(sufferer.key, others, others, slowdown, sufferer.measured, now)
            said[at] = obstacles_sentence(why)
            if self._said.get(at) != said[at]:
                self.outcomes[KEPT] += 1
                log.warning("neighbours not parted node=%s gpu=%s why=%s", *at, said[at])
                for resident in residents[at]:
                    kept_by = obstacles_sentence(why, resident.key)
                    gpu = self._state.gpu_name(*at)
                    note = f"runs slower on {gpu}, where no other job is placed now; {kept_by}"
                    self._decide(resident.key, KEPT, note, now)
        for move in self.looked.moves:
            gang = self._gangs.by_key.get(move.key)
            if gang is None or self._work.busy(move.key):
                continue
            cause = cause_of_move(move, self._state.gpu_name(*move.at))
            words = clause(cause)
            if not acts:
                said[move.at] = words
                if self._said.get(move.at) != words:
                    self.outcomes[WOULD_MOVE] += 1
                    log.warning("would move gpujob=%s/%s why=%s", *move.key, words)
                    self._decide(move.key, WOULD_MOVE, words, now)
                continue
            self._separator.made(move, now)
            here = [key for key in (move.key, *move.neighbours) if key != move.sufferer]
            others = here if move.sufferer == move.key else [move.key]
            self._part(move.sufferer, here, others, move.slowdown, move.measured, now)
            for key in move.neighbours:
                self._anti_affinity.apart(move.key, key, now)
            self._work.do(move.key, self.move(gang, cause))
        self._said = said

    @property
    def _bound(self) -> float:
        return self._settings.max_interference

    def _part(
        self,
        own: Key,
        here: Sequence[Key],
        others: Sequence[Key],
        slowdown: float,
        measured: bool,
        now: float,
    ) -> None:
        """Learn that `own` does not get along with those of `others` who are to blame.

        `here` are all who share its GPU.
        """
        gang = self._gangs.by_key.get(own)
        if gang is None or gang.record is None or not here:
            return
        answers = blamed([self._predicted_next_to(gang, key) for key in here], slowdown)
        for key, part in zip(here, answers, strict=True):
            other = self._gangs.by_key.get(key)
            if part > 0 and key in others and other is not None and other.record is not None:
                kinds = kind_of_record(gang.record), kind_of_record(other.record)
                part = max(part, _OVER * self._bound)
                self.pairs.part(*kinds, own[0], part, now, measured=measured)

    def _predicted(self, gang: Gang, uid: str) -> float:
        """Return how much a gang is expected to be slowed down next to a pod of another."""
        other = self._gangs.gang_of(uid)
        return float("inf") if other is None else self._predicted_next_to(gang, other.key)

    def _predicted_next_to(self, gang: Gang, key: Key) -> float:
        other = self._gangs.by_key.get(key)
        if gang.record is None or other is None or other.record is None:
            return float("inf")
        slowdowns = self._state.slowdowns
        one, another = (
            slowdowns.of(each.worker, each.status.load) for each in (gang.record, other.record)
        )
        if one.own_slowdown is None:
            return float("inf")
        return float(one.own_slowdown[another.interference_class])

    async def move(self, gang: Gang, why: Cause) -> bool:
        """Have a gang give up its GPUs and say why; False where a budget forbids it."""
        pods, words = gang.holders(), clause(why)
        if not await self._preempter.leave(gang, why):
            return False
        self.outcomes[MOVED] += 1
        log.warning("moved gpujob=%s/%s why=%s", *gang.key, words)
        note = sentence(why)
        await self._executor.carry_out(gang, [WriteEvent(p, MOVED, note, "Normal") for p in pods])
        if gang.record is not None:
            status = lifecycle.decided(gang.record.status, MOVED, words, self._clock())
            await self._executor.carry_out(gang, (WriteStatus(status),))
        return True

    def _decide(self, key: Key, what: str, why: str, now: float) -> None:
        """Write a decision into a GPUJob."""
        gang = self._gangs.by_key.get(key)
        if gang is None or gang.record is None or self._work.busy(key):
            return
        status = lifecycle.decided(gang.record.status, what, why, now)
        self._work.do(key, self._executor.carry_out(gang, (WriteStatus(status),)))


def cause_of_move(move: Move, gpu: str) -> Cause:
    """Return why a gang moves away from `gpu`, as people call it; its owner reads it."""
    suffers = move.sufferer == move.key
    return Cause(
        Reason.SLOWED_DOWN if suffers else Reason.SLOWS_DOWN,
        gpu=gpu,
        job=named(move.neighbours if suffers else [move.sufferer], move.key),
        value=move.slowdown,
        detail="measured" if move.measured else "reported by its pods",
    ).cut()


def obstacles_sentence(obstacles: Sequence[Obstacle], reader: Key | None = None) -> str:
    """Say why no job leaves a GPU, what keeps each; to an operator where no `reader` is given."""
    return "; ".join(
        each.why if each.key is None else f"{_named(each.key, reader)} stays: {each.why}"
        for each in obstacles
    )


def _named(key: Key, reader: Key | None) -> str:
    """Return what may be said of a job to the owner of another; all, to an operator."""
    return "/".join(key) if reader is None else named([key], reader)
