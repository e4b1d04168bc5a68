"""Preemption: a running gang gives up its GPUs as a whole, and is resumed later.

First the intention is written (phase Preempting), then the owner is told, then the pods' end is
awaited, then the gang is back in the queue (phase Suspended). Each step follows from what the API
server shows, so that whoever finds a gang in the middle of it goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from scheduler_extender import faults
from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.jobs import seconds
from scheduler_extender.cluster.pods import PodInfo
from scheduler_extender.cluster.records import GpuJobRecord, Key
from scheduler_extender.cluster.selectors import selects
from scheduler_extender.cluster.workloads import ENDLESS, Kind, kind_of
from scheduler_extender.cluster.writes import Writer
from scheduler_extender.config import QueueConfig
from scheduler_extender.queue import lifecycle
from scheduler_extender.queue.owners import Owners
from tandem.contracts.resources import Phase
from tandem.kube.errors import Forbidden, Invalid, NotFound, TooManyRequests
from tandem.kube.resource import Resource

log = logging.getLogger(__name__)

BUDGETS = Resource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
SUSPEND, EVICT = "suspend", "evict"
_AGAIN_S = 5.0  # what was asked for and has had no effect is asked for again
_SPARED_S = 60.0  # a gang that a disruption budget protects is left alone for a while
_HOUR_S = 3600.0
_FOREIGN_BUDGETS = "disruption budgets of other namespaces protect their jobs"
#: An owner that has not stopped its pods for so long is not waited for: they are evicted.
SUSPEND_WITHIN_S = 60.0
#: A gang that holds its GPUs for so long after it was told to go is reported.
OVERDUE_S = 300.0
OVERDUE = "PreemptionOverdue"
_PODS_TOLD = 8  # pods of one gang that get an event
_ENDED = ("Complete", "Completed", "Succeeded", "Failed")


class Preempter:
    """Carries out what planning has decided. All methods run on the event loop."""

    def __init__(self, writer: Writer, settings: QueueConfig, clock: Callable[[], float]) -> None:
        self._writer = writer
        self._settings = settings
        self._clock = clock
        self._owners = Owners(writer)
        self._asked_at: dict[Key, float] = {}
        self._spared: dict[Key, tuple[float, str]] = {}
        self._expired: set[Key] = set()
        self.preemptions = 0

    def gives_way_s(self, gang: Gang) -> float:
        """Return from when on a gang may be preempted (Unix time), infinite where it may not be.

        It must run, save its state when told to go, and have had its run; so often an hour at most.
        """
        record, never = gang.record, float("inf")
        if record is None or record.status.phase is not Phase.RUNNING:
            return never
        status, holders = record.status, gang.holders()
        if not record.spec.demand.checkpoint or not method_of(record):
            return never
        if record.spec.workload.kind in ENDLESS:
            return never
        since = status.running_since or status.started_at
        if since is None or not holders or any(pod.deleting for pod in holders):
            return never
        most = self._settings.max_preemptions_per_hour
        if most == 0:
            return never
        earliest = seconds(since) + self._settings.min_run_s
        if len(status.preempted_at) >= most:
            earliest = max(earliest, seconds(status.preempted_at[-most]) + _HOUR_S)
        return earliest

    def spared(self, key: Key) -> str:
        """Return why a gang is left alone for now, or ''."""
        until_s, why = self._spared.get(key, (0.0, ""))
        return why if self._clock() < until_s else ""

    def told_of_spared(self) -> Callable[[Key], str]:
        """Return what says to the owner of a gang why others are left alone; '' where none is.

        Of other namespaces it names neither budgets nor jobs. Also of those that were left alone
        until a moment ago. May be called beside the event loop.
        """
        now = self._clock()
        spared = [
            (key[0], why)
            for key, (until_s, why) in self._spared.items()
            if now < until_s + _AGAIN_S
        ]

        def told(reader: Key) -> str:
            own = {why for namespace, why in spared if namespace == reader[0]}
            foreign = any(namespace != reader[0] for namespace, _ in spared)
            return "; ".join([*sorted(own), *([_FOREIGN_BUDGETS] if foreign else [])])

        return told

    def expire(self) -> bool:
        """Say whether somebody's time of being spared has just ended: once each."""
        now = self._clock()
        over = {key for key, (until_s, _) in self._spared.items() if now >= until_s}
        new, self._expired = over - self._expired, over
        return bool(new)

    def forget(self, key: Key) -> None:
        """Forget a gang that is gone."""
        self._asked_at.pop(key, None)
        self._spared.pop(key, None)

    async def begin(self, gang: Gang, why: str) -> None:
        """Write that the gang gives up its GPUs, then tell its owner, unless a budget forbids."""
        record = gang.record
        assert record is not None
        faults.reach("preempt-chosen")
        if await self.leave(gang, why):
            self.preemptions += 1

    async def leave(self, gang: Gang, why: str) -> bool:
        """Have a gang give up its GPUs for a reason; False where a budget forbids it."""
        try:
            forbidden = await self._forbidden(gang)
        except (Forbidden, NotFound, Invalid) as error:
            forbidden = f"disruption budgets of namespace {gang.key[0]} cannot be read: {error}"
        if forbidden:
            log.info("not preempted gpujob=%s/%s why=%s", *gang.key, forbidden)
            self._spared[gang.key] = (self._clock() + _SPARED_S, forbidden)
            return False
        await self.release(gang, why)
        return True

    async def release(self, gang: Gang, by: str) -> None:
        """Have all pods of a gang go, whatever disruption budgets say of healthy ones."""
        record = gang.record
        assert record is not None
        method = method_of(record)
        log.info("preempting gpujob=%s/%s method=%s by=%s", *gang.key, method, by)
        await self._writer.write_status(
            gang, lifecycle.preempting(record.status, by, method, self._clock())
        )
        faults.reach("preempting-written")
        await self._ask(gang)

    def step(self, gang: Gang) -> Awaitable[None] | None:
        """Return what is to be done about a gang in phase Preempting, if anything."""
        if self._is_overdue(gang):
            return self._report(gang)
        staying = [pod for pod in gang.holders() if not pod.deleting]
        if staying:
            due = self._asked_at.get(gang.key, 0.0) + _AGAIN_S
            return self._ask(gang) if self._clock() >= due else None
        return None if gang.holders() else self._come_back(gang)

    def _is_overdue(self, gang: Gang) -> bool:
        """Say whether a gang has not come back for too long, which has not been reported yet."""
        assert gang.record is not None
        status = gang.record.status
        return status.reason != OVERDUE and self._for_s(gang) >= OVERDUE_S

    def _for_s(self, gang: Gang) -> float:
        """Return for how long a gang has been giving up its GPUs, in seconds."""
        assert gang.record is not None
        preemption = gang.record.status.preemption
        return self._clock() - seconds(preemption.requested_at) if preemption else 0.0

    def overdue(self, gangs: Iterable[Gang]) -> int:
        """Count the gangs that have been giving up their GPUs for too long."""
        return sum(
            gang.record is not None
            and gang.record.status.phase is Phase.PREEMPTING
            and self._for_s(gang) >= OVERDUE_S
            for gang in gangs
        )

    async def _report(self, gang: Gang) -> None:
        """Report that a gang still holds GPUs, or could not be put back in the queue."""
        record = gang.record
        assert record is not None
        held = gang.holders()
        going = sum(pod.deleting for pod in held)
        message = (
            f"was told to give up its GPUs more than {OVERDUE_S:.0f} s ago, and {len(held)} pod(s)"
            f" still hold them; {going} of these are being deleted"
            if held
            else f"gave up its GPUs, but its {record.spec.workload.kind} cannot be resumed"
        )
        log.warning("preemption overdue gpujob=%s/%s held=%d", *gang.key, len(held))
        status, now = record.status, self._clock()
        conditions = lifecycle.with_condition(
            status.conditions, lifecycle.SCHEDULED, False, OVERDUE, message, now
        )
        changes = {"reason": OVERDUE, "message": message, "conditions": conditions}
        await self._writer.write_status(gang, status.model_copy(update=changes))
        for pod in held[:_PODS_TOLD]:
            await self._writer.say(pod, OVERDUE, message, "Warning")

    async def _ask(self, gang: Gang) -> None:
        record = gang.record
        assert record is not None
        self._asked_at[gang.key] = self._clock()
        preemption = record.status.preemption
        suspends = preemption is not None and preemption.method == SUSPEND
        if suspends:
            why = await self._owners.suspend(record, True)
            if why:
                await self._evict_instead(gang, why)
                suspends = False
        if not suspends or self._for_s(gang) >= SUSPEND_WITHIN_S:
            # A gang goes as a whole: those on their way to a node too.
            going = [pod for pod in gang.live_pods() if not pod.gated]
            await asyncio.gather(*(self._evict(pod) for pod in going))
        faults.reach("preempt-asked")

    async def _evict_instead(self, gang: Gang, why: str) -> None:
        """Write that the owner of a gang cannot be suspended, so that its pods are evicted."""
        assert gang.record is not None
        status = gang.record.status
        assert status.preemption is not None
        log.warning("owner not suspended gpujob=%s/%s why=%s", *gang.key, why)
        message = (
            f"gives up its GPUs: {status.preemption.by}; its pods are evicted, because its"
            f" {gang.record.spec.workload.kind} cannot be suspended: {why}"
        )
        preemption = status.preemption.model_copy(update={"method": EVICT})
        changes = {"preemption": preemption, "message": message}
        await self._writer.write_status(gang, status.model_copy(update=changes))

    async def _evict(self, pod: PodInfo) -> None:
        try:
            await self._writer.call(self._writer.api.evict, pod.namespace, pod.name, uid=pod.uid)
        except NotFound:
            return
        except TooManyRequests as error:
            await self._writer.say(pod, "NotPreempted", str(error), "Warning")

    async def _come_back(self, gang: Gang) -> None:
        """Put a gang whose pods are gone back in the queue; its owner makes new ones."""
        record = gang.record
        assert record is not None
        faults.reach("preempt-gone")
        preemption = record.status.preemption
        if preemption is not None and preemption.method == SUSPEND:
            try:
                owner = await self._owners.get(record)
            except NotFound:
                owner = {}  # the garbage collector takes the GPUJob with it
            if has_ended(owner):
                failed = has_ended(owner) == "Failed"
                ended = lifecycle.ended(gang, failed, self._clock())
                await self._writer.write_status(gang, ended)
                return
            why = await self._owners.suspend(record, False) if owner else ""
            if why:
                log.warning("owner not resumed gpujob=%s/%s why=%s", *gang.key, why)
                return  # tried again, and reported when it lasts
        faults.reach("preempt-resumed")
        await self._writer.write_status(gang, lifecycle.suspended(record.status, self._clock()))
        faults.reach("suspended-written")
        self._asked_at.pop(gang.key, None)

    async def _forbidden(self, gang: Gang) -> str:
        """Return which disruption budget forbids that all pods of the gang go, or ''."""
        budgets = await self._writer.call(self._writer.api.list, BUDGETS, gang.key[0])
        pods = gang.holders()
        for budget in budgets:
            selector = (budget.get("spec") or {}).get("selector")
            hit = sum(selects(selector, pod.labels) for pod in pods)
            allowed = int((budget.get("status") or {}).get("disruptionsAllowed") or 0)
            if hit > allowed:
                name = budget["metadata"]["name"]
                return (
                    f"disruption budget {name} allows {allowed} disruption(s),"
                    f" {hit} pod(s) of {gang.key[1]} would have to go"
                )
        return ""


def method_of(record: GpuJobRecord) -> str:
    """Return how a gang is made to give up its GPUs, '' if it never is.

    By its owner where that can rest: it makes new pods at once when it is resumed, while after an
    eviction a Job waits for longer each time. A gang named by its users may have many owners.
    """
    kind: Kind = kind_of(record.spec.workload)
    if kind.suspend and not record.spans_workloads:
        return SUSPEND
    return EVICT if kind.restarts else ""


def has_ended(owner: Mapping[str, Any]) -> str:
    """Return the condition by which a workload has ended, or ''."""
    for condition in (owner.get("status") or {}).get("conditions") or ():
        if condition.get("type") in _ENDED and condition.get("status") == "True":
            return str(condition["type"])
    return ""
