"""Preemption: a running gang gives up its GPUs as a whole, and is resumed later.

First the intention is written (phase Preempting), then the owner is asked, then the pods' end is
awaited, then the gang is back in the queue (phase Suspended). Each step follows from what the API
server shows, so that a replica that finds a gang in the middle of it goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

from scheduler_extender import faults
from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.jobs import seconds
from scheduler_extender.cluster.pods import PodInfo
from scheduler_extender.cluster.records import Key
from scheduler_extender.cluster.writes import Writer
from scheduler_extender.config import QueueConfig
from scheduler_extender.queue.steps import decisions, lifecycle
from scheduler_extender.queue.steps.decisions import OVERDUE, OVERDUE_S, method_of
from scheduler_extender.queue.steps.effects import Executor
from tandem.contracts.resources import Phase
from tandem.kube.errors import Forbidden, Invalid, NotFound
from tandem.kube.resource import Resource
from tandem.reasons.causes import Cause, Reason
from tandem.reasons.words import clause, sentence

log = logging.getLogger(__name__)

BUDGETS = Resource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
#: What was asked for and has had no effect is asked for again, more rarely the longer it lasts.
_AGAIN_S, _LONGEST_S = 5.0, 60.0
_SPARED_S = 60.0  # a gang that a disruption budget protects is left alone for a while
_HOUR_S = 3600.0
_FOREIGN_BUDGETS = Cause(Reason.NOT_PREEMPTED, detail="those of other namespaces")


class Preempter:
    """Carries out what planning has decided. All methods run on the event loop."""

    def __init__(
        self, writer: Writer, executor: Executor, settings: QueueConfig, clock: Callable[[], float]
    ) -> None:
        self._writer = writer
        self._executor = executor
        self._settings = settings
        self._clock = clock
        self._asked_at: dict[Key, float] = {}
        self._back_at: dict[Key, float] = {}  # when a gang was last to be put back in the queue
        self._spared: dict[Key, tuple[float, Cause]] = {}
        self._expired: set[Key] = set()
        self.preemptions = 0

    def gives_way_s(self, gang: Gang) -> float:
        """Return from when on a gang may be preempted (Unix time), infinite where it may not be.

        It must run, save its state when asked to go, and have had its run; so often an hour at
        most. One that holds GPUs and has not started yet counts as running from its first Binding
        on. A pod that is being deleted may end the run by itself: it is waited for, but not for
        longer than `LEAVES_WITHIN_S`, whatever its grace period is.
        """
        record, never = gang.record, float("inf")
        if record is None or record.status.phase not in (Phase.RUNNING, Phase.ADMITTED):
            return never
        status, holders = record.status, gang.holders()
        # A gang whose containers have not started has nothing to save.
        saves = gang.checkpoints or not (gang.running or status.running_since)
        if not saves or not method_of(record):
            return never
        if gang.is_endless:
            return never
        since = status.running_since or status.started_at
        if status.phase is Phase.ADMITTED:
            since = min((pod.bound_at for pod in holders if pod.bound_at), default=None)
        if since is None or not holders:
            return never
        most = self._settings.max_preemptions_per_hour
        if most == 0:
            return never
        earliest = seconds(since) + self._settings.min_run_s
        if len(status.preempted_at) >= most:
            earliest = max(earliest, seconds(status.preempted_at[-most]) + _HOUR_S)
        return max(earliest, *(lifecycle.leaves_until_s(pod) for pod in holders))

    def spared(self, key: Key) -> bool:
        """Say whether a disruption budget protects a gang for now."""
        until_s, _ = self._spared.get(key, (0.0, None))
        return self._clock() < until_s

    def spared_causes(self) -> Callable[[Key], tuple[Cause, ...]]:
        """Return what says to the owner of a gang why others are left alone; () where none is.

        Of other namespaces it names neither budgets nor jobs. Also of those that were left alone
        until a moment ago. May be called from another thread.
        """
        now = self._clock()
        spared = [
            (key[0], why)
            for key, (until_s, why) in self._spared.items()
            if now < until_s + _AGAIN_S
        ]

        def causes_for(reader: Key) -> tuple[Cause, ...]:
            own = {why for namespace, why in spared if namespace == reader[0]}
            foreign = any(namespace != reader[0] for namespace, _ in spared)
            return (*sorted(own, key=sentence), *([_FOREIGN_BUDGETS] if foreign else []))

        return causes_for

    def expire(self) -> bool:
        """Say whether somebody's time of being spared has just ended: once each."""
        now = self._clock()
        over = {key for key, (until_s, _) in self._spared.items() if now >= until_s}
        new, self._expired = over - self._expired, over
        return bool(new)

    def forget(self, key: Key) -> None:
        """Forget a gang that is gone."""
        self._asked_at.pop(key, None)
        self._back_at.pop(key, None)
        self._spared.pop(key, None)

    async def begin(self, gang: Gang, why: Cause) -> None:
        """Write that the gang gives up its GPUs, then tell its owner, unless a budget forbids."""
        faults.reach("preempt-chosen")
        if await self.leave(gang, why):
            self.preemptions += 1

    async def leave(self, gang: Gang, why: Cause) -> bool:
        """Have a gang give up its GPUs for a reason; False where a budget forbids it."""
        if not await self.may_lose_pods(gang):
            return False
        await self.release(gang, why)
        return True

    async def may_lose_pods(self, gang: Gang) -> bool:
        """Say whether no disruption budget forbids that pods of a gang go; else it is spared."""
        try:
            budgets = await self._writer.call(self._writer.api.list, BUDGETS, gang.key[0])
            forbidden = decisions.forbidding(budgets, gang)
        except (Forbidden, NotFound, Invalid) as error:
            unread = f"those of namespace {gang.key[0]} cannot be read: {error}"
            forbidden = Cause(Reason.NOT_PREEMPTED, detail=unread).cut()
        if forbidden is not None:
            log.info("not preempted gpujob=%s/%s why=%s", *gang.key, clause(forbidden))
            self._spared[gang.key] = (self._clock() + _SPARED_S, forbidden)
            return False
        return True

    async def release(self, gang: Gang, by: Cause) -> None:
        """Have all pods of a gang go, whatever disruption budgets say of healthy ones."""
        self._back_at.pop(gang.key, None)
        await self._executor.carry_out(gang, decisions.release(gang, by, self._clock()))
        await self._ask(gang)

    async def give_up_start(self, gang: Gang, late: Sequence[PodInfo]) -> None:
        """Have the pods go whose containers did not start; see `decisions.give_up_start`."""
        await self._executor.carry_out(gang, decisions.give_up_start(gang, late, self._clock()))
        if gang.record is not None and gang.record.status.phase is Phase.PREEMPTING:
            await self._ask(gang)

    def step(self, gang: Gang) -> Awaitable[None] | None:
        """Return what is to be done about a gang in phase Preempting, if anything."""
        status, now = gang.job.status, self._clock()
        if status.reason != OVERDUE and decisions.giving_up_s(status, now) >= OVERDUE_S:
            return self._executor.carry_out(gang, decisions.report_overdue(gang, now))
        pause_s = min(max(_AGAIN_S, decisions.giving_up_s(status, now) / 4), _LONGEST_S)
        if any(not pod.deleting for pod in gang.holders()):
            due = self._asked_at.get(gang.key, 0.0) + pause_s
            return self._ask(gang) if now >= due else None
        if gang.holders():
            return None
        self._asked_at.pop(gang.key, None)
        if now < self._back_at.get(gang.key, 0.0) + _AGAIN_S:
            return None  # the job waits for nothing else, so that this pause stays short
        self._back_at[gang.key] = now
        return self._executor.carry_out(gang, decisions.come_back(gang, now))

    async def _ask(self, gang: Gang) -> None:
        self._asked_at[gang.key] = self._clock()
        await self._executor.carry_out(gang, decisions.ask(gang))

    def overdue(self, gangs: Iterable[Gang]) -> int:
        """Count the gangs that have been giving up their GPUs for too long."""
        now = self._clock()
        return sum(
            gang.record is not None
            and gang.record.status.phase is Phase.PREEMPTING
            and decisions.giving_up_s(gang.record.status, now) >= OVERDUE_S
            for gang in gangs
        )
