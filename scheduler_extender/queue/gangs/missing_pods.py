"""Pods of a gang that do not exist: which object has to make them, and what it says of it."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.jobs import seconds
from scheduler_extender.cluster.records import Key
from scheduler_extender.cluster.workloads import kind_of, resource_of
from scheduler_extender.queue.shared import Shared
from scheduler_extender.queue.steps import waits
from scheduler_extender.queue.steps.effects import Owners
from tandem.contracts.resources import Phase
from tandem.kube.errors import Forbidden, NotFound
from tandem.kube.resource import CORE_EVENTS
from tandem.reasons.causes import Cause, Reason

#: A controller makes its pods one after another: of a number that has just changed nothing is said.
SETTLE_S = 5.0
#: A gang is read again after this time, doubled up to the longest; the gangs of a namespace take
#: turns of the third time, since an API server looks at all events of a namespace to find a few.
_AGAIN_S, _LONGEST_S, _TURN_S = 10.0, 300.0, 1.0
_LAST_TURN_S = 120.0  # whose turn would come later is not read: its owner is named
_OWNERS = 3  # controllers of the pods of one gang that are asked about
_EVENTS = 50
_FRESH_S = 1800.0  # the age of an event's last repetition: controllers pause for minutes
_LONGEST = 500  # characters of what a controller says
_STOPPED = ("ReplicaFailure", "Suspended", "FailureTarget")


@dataclass(slots=True)
class _Known:
    live: int  # pods that existed when that was seen first
    since_s: float
    read_s: float = 0.0  # when it is read next; 0: not settled yet
    rest_s: float = _AGAIN_S
    says: Cause | None = None


class MissingPods:
    """Says why fewer pods exist than start together. All methods run on the event loop."""

    def __init__(self, shared: Shared, owners: Owners) -> None:
        self._writer = shared.writer
        self._clock = shared.clock
        self._later = shared.work.later
        self._owners = owners
        self._known: dict[Key, _Known] = {}
        self._turn_s: dict[str, float] = {}  # by namespace, when its next turn is

    def forget(self, key: Key) -> None:
        """Forget a gang that is gone."""
        self._known.pop(key, None)

    def step(self, gang: Gang) -> Awaitable[None] | None:
        """Return what is to be read about the pods that a gang misses, if it is time."""
        known, now = self._known.get(gang.key), self._clock()
        if known is None or now < known.since_s + SETTLE_S:
            return None
        if not known.read_s:
            known.read_s = self._turn(gang.key[0], now)
        if now < known.read_s:
            self._later(gang.key, known.read_s)
            return None
        known.read_s, known.rest_s = now + known.rest_s, min(2 * known.rest_s, _LONGEST_S)
        return self._read(gang, known)

    def absent(self, gang: Gang) -> tuple[Cause, ...]:
        """Return why pods of a gang do not exist, () where none are missing or that is new."""
        if gang.job.status.phase is Phase.PREEMPTING or not waits.missing(gang):
            self._known.pop(gang.key, None)
            return ()
        now, live = self._clock(), gang.bound + gang.unbound
        known = self._known.get(gang.key)
        if known is None or known.live != live:
            known = self._known[gang.key] = _Known(live, now)
        if now < known.since_s + SETTLE_S:
            self._later(gang.key, known.since_s + SETTLE_S)
            return ()
        return waits.absent(gang, known.says)

    def _turn(self, namespace: str, now: float) -> float:
        """Return when a gang of a namespace is read: each takes a turn, none that is far away."""
        turn_s = max(now, self._turn_s.get(namespace, 0.0))
        if turn_s > now + _LAST_TURN_S:
            return now + _LONGEST_S
        self._turn_s[namespace] = turn_s + _TURN_S
        if len(self._turn_s) > 1000:
            self._turn_s = {each: at for each, at in self._turn_s.items() if at > now}
        return turn_s

    async def _read(self, gang: Gang, known: _Known) -> None:
        """Read what the controllers of the pods say, by events or conditions, as far as we may."""
        known.says = None
        for ask in (self._event, self._condition):
            with suppress(NotFound, Forbidden):
                known.says = known.says or await ask(gang)

    async def _event(self, gang: Gang) -> Cause | None:
        owners = {(pod.owner.kind, pod.owner.name) for pod in gang.live_pods() if pod.owner}
        workload = gang.job.spec.workload
        if not gang.job.spans_workloads:
            owners.add((workload.kind, workload.name))
        for kind, name in sorted(owners)[:_OWNERS]:
            events = await self._writer.call(self._events, gang.key[0], name)
            says = _latest(events, kind, self._clock())
            if says:
                return Cause(Reason.CANNOT_MAKE, workload=f"{kind} {name}", detail=says)
        return None

    def _events(self, namespace: str, name: str) -> list[dict[str, Any]]:
        pages = self._writer.api.pages(
            CORE_EVENTS, namespace, field_selector=f"involvedObject.name={name}", page_size=_EVENTS
        )
        return next(iter(pages)).items

    async def _condition(self, gang: Gang) -> Cause | None:
        record = gang.job
        workload = record.spec.workload
        if record.spans_workloads or resource_of(workload) is None:
            return None
        owner = await self._owners.get(workload, record.namespace)
        suspended: Any = owner
        for part in kind_of(workload).suspend:
            suspended = suspended.get(part) if isinstance(suspended, Mapping) else None
        if suspended is True:
            return Cause(Reason.WORKLOAD_SUSPENDED, workload=waits.called(workload))
        for condition in (owner.get("status") or {}).get("conditions") or ():
            if condition.get("type") in _STOPPED and condition.get("status") == "True":
                says = condition.get("message") or condition.get("reason") or condition["type"]
                called = waits.called(workload)
                return Cause(Reason.CANNOT_MAKE, workload=called, detail=_cut(says))
        return None


def _latest(events: list[dict[str, Any]], kind: str, now_s: float) -> str:
    """Return what the latest event says by which a controller of that kind could not make pods."""
    found = [
        (at_s, _cut(str(event.get("message") or event["reason"])))
        for event in events
        if str(event.get("reason") or "").startswith("FailedCreate")
        and (event.get("involvedObject") or {}).get("kind") == kind
        and (at_s := max(_times(event), default=0.0)) >= now_s - _FRESH_S
    ]
    return max(found, default=(0.0, ""))[1]


def _times(event: Mapping[str, Any]) -> Iterator[float]:
    series = event.get("series") or {}
    texts = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    yield from (seconds(text) for text in texts if text)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
