"""Writes why jobs wait, into GPUJobs and events, at a rate that the API server can bear."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.pods import PodInfo
from scheduler_extender.cluster.records import Key
from scheduler_extender.planning.questions import Waiting, WaitingStarts
from scheduler_extender.queue.steps import lifecycle
from scheduler_extender.queue.steps.effects import Executor, WriteEvent, WriteStatus
from tandem.reasons.causes import Cause, Reason
from tandem.reasons.words import in_full, in_general

CHANGED_S = 5.0  # a reason or place that has changed is written again after this
REFRESH_S = 240.0  # figures that have changed, while the reason has not, are written after this
EVENT_EVERY_S = 60.0  # a gang's events, where its reason has changed
#: An event is repeated, as the same event with its count raised, before it expires: after an hour.
EVENT_REFRESH_S = 1800.0
PER_SECOND = 40.0  # gangs whose GPUJob is written, in the long run
BURST = 80.0
EVENTS_PER_SECOND = 10.0  # of all gangs, in the long run
EVENTS_BURST = 100.0
NAMESPACE_EVENTS_PER_SECOND = 2.0
NAMESPACE_EVENTS_BURST = 50.0
_PLACES = 0.1  # a change of place by less than this part of it is not news
_PODS = 8  # pods of one gang that get an event
_MOST_NAMESPACES = 10_000

Explain = Callable[[Waiting], tuple[Cause, ...]]


class Why(NamedTuple):
    """The text about one gang: its waiting starts, and why the first of them waits."""

    waiting: list[Waiting]
    causes: tuple[Cause, ...]


Chooser = Callable[[WaitingStarts, Explain], dict[Key, Why]]
Spared = Callable[[Key], tuple[Cause, ...]]


class _Known(NamedTuple):
    at_s: float  # when the GPUJob was written
    message: str
    summary: str
    position: int
    looked_s: float  # when it was last asked whether there was news
    event_s: float = 0.0  # when the last of its events was written
    event: str = ""  # their note
    owed: tuple[str, ...] = ()  # uids of pods that have yet to get this event


class _Bucket:
    """Tokens that fill up by `per_second`, to `burst` at most."""

    def __init__(self, per_second: float, burst: float, now_s: float) -> None:
        self._per_second, self._burst = per_second, burst
        self.tokens, self._filled_s = burst, now_s

    def fill(self, now_s: float) -> float:
        """Return how many tokens there are now."""
        more = self._per_second * max(0.0, now_s - self._filled_s)
        self.tokens, self._filled_s = min(self._burst, self.tokens + more), now_s
        return self.tokens


class EventBudget:
    """The budget of events: of all, and of each namespace."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._all = _Bucket(EVENTS_PER_SECOND, EVENTS_BURST, clock())
        self._of: dict[str, _Bucket] = {}

    def take(self, namespace: str) -> bool:
        """Take the right to write one event; False where there is none now."""
        now = self._clock()
        if len(self._of) > _MOST_NAMESPACES:
            self._of.clear()
        of = self._of.setdefault(
            namespace, _Bucket(NAMESPACE_EVENTS_PER_SECOND, NAMESPACE_EVENTS_BURST, now)
        )
        if min(self._all.fill(now), of.fill(now)) < 1.0:
            return False
        self._all.tokens -= 1.0
        of.tokens -= 1.0
        return True


class ReasonWriter:
    """What was written about gangs, and when. Methods run on the event loop, choosers do not.

    A GPUJob has the reason in full, with figures. An event has the reason without figures: the same
    reason is then the same event, whose count the API server raises, whatever the figures do.
    """

    def __init__(self, executor: Executor, clock: Callable[[], float]) -> None:
        self._executor = executor
        self._clock = clock
        self._known: dict[Key, _Known] = {}
        self._allowance = _Bucket(PER_SECOND, BURST, clock())
        self._events = EventBudget(clock)

    def forget(self, key: Key) -> None:
        """Forget a gang that is gone."""
        self._known.pop(key, None)

    def overwritten(self, key: Key) -> None:
        """Note that the GPUJob of a gang says something else by now: why it waits is news again.

        Its events stay what they were.
        """
        if (known := self._known.get(key)) is not None and known.summary:
            self._known[key] = known._replace(message="", summary="")

    def chooser(self, spared: Spared) -> Chooser:
        """Return a function that chooses the gangs to write about now; new ones come first.

        `spared` says to the owner of a gang why others were not made to give way. To find out why a
        gang waits takes a search over all GPUs: only as many are asked as may be written. Among new
        ones, namespaces take turns.
        """
        now = self._clock()
        most, known = max(0, int(self._allowance.fill(now))), self._known

        def choose(waiting: WaitingStarts, explain: Explain) -> dict[Key, Why]:
            gangs = [start.gpujob for start in waiting.starts]
            keys = _to_look_at(gangs, known, now, most)
            starts: dict[Key, list[Waiting]] = {key: [] for key in keys}
            for position, key in enumerate(gangs):
                if key in starts:
                    starts[key].append(waiting[position])
            chosen: dict[Key, Why] = {}
            for key in keys:
                first = starts[key][0]
                what = Why(starts[key], explain(first))
                said = known.get(key)
                if said is not None:
                    known[key] = said._replace(looked_s=now)
                causes = _in_full(what, spared(key))
                message, summary = in_full(causes), in_general(causes)
                if (
                    said is None
                    or _is_news(said, first.position, message, summary, now)
                    or _is_event(said, summary, now)
                ):
                    chosen[key] = what
            return chosen

        return choose

    async def tell(
        self, gang: Gang, what: Why, queue: int | None, spared: tuple[Cause, ...]
    ) -> None:
        """Write why a gang waits into its GPUJob, and as events on the first of its pods."""
        if gang.record is None:
            return
        now, position = self._clock(), what.waiting[0].position
        self._allowance.tokens -= 1.0
        causes = _in_full(what, spared)
        message, summary = in_full(causes), in_general(causes)
        known = self._known.get(gang.key)
        if known is None or _is_news(known, position, message, summary, now):
            summary = summary or (known.summary if known is not None else "")
            before = known or _Known(now, message, summary, position, now)
            known = before._replace(
                at_s=now, message=message, summary=summary, position=position, looked_s=now
            )
            self._known[gang.key] = known
            status = lifecycle.waiting(gang.record.status, Reason.WAITING, causes, position, now)
            written = WriteStatus(status.model_copy(update={"queue": queue}))
            await self._executor.carry_out(gang, (written,))
        if _is_event(known, summary, now):
            events, owed = self._events_now(gang, what, known, summary)
            await self._executor.carry_out(gang, events)
            self._known[gang.key] = owed

    def _events_now(
        self, gang: Gang, what: Why, known: _Known, summary: str
    ) -> tuple[list[WriteEvent], _Known]:
        """Return the events that may be written now, and what the gang's owner knows with them."""
        pods: list[PodInfo] = [pod for each in what.waiting for pod in each.start.all_pods][:_PODS]
        if not known.owed or known.event != summary:
            uids = tuple(pod.uid for pod in pods)
            known = known._replace(event_s=self._clock(), event=summary, owed=uids)
        note = f"{summary} For figures: kubectl describe gpujob {gang.key[1]}"
        owing = [pod for pod in pods if pod.uid in known.owed]
        now = [pod for pod in owing if self._events.take(gang.key[0])]
        owed = tuple(pod.uid for pod in owing if pod not in now)
        return [WriteEvent(pod, "Waiting", note) for pod in now], known._replace(owed=owed)


def _to_look_at(
    gangs: Iterable[Key], known: Mapping[Key, _Known], now_s: float, most: int
) -> list[Key]:
    """Return `most` of the gangs: new ones in turns of their namespaces, then the oldest."""
    new: list[tuple[int, Key]] = []
    due: list[Key] = []
    looked_s: list[float] = []
    turns: dict[str, int] = {}
    each_once = {key: None for key in gangs}  # noqa: C420 - lets other threads have their turn
    for key, said in zip(each_once, map(known.get, each_once), strict=True):
        if said is None:
            turn = turns.get(key[0], 0)
            if turn < most:  # of one namespace no more can have their turn now
                new.append((turn, key))
                turns[key[0]] = turn + 1
        elif now_s - said.at_s >= CHANGED_S and now_s - said.looked_s >= CHANGED_S:
            due.append(key)
            looked_s.append(said.looked_s)
    new.sort(key=lambda each: each[0])
    found = [key for _, key in new[:most]]
    longest = np.argsort(looked_s, kind="stable")[: most - len(found)]
    return found + [due[at] for at in longest.tolist()]


def _in_full(what: Why, spared: tuple[Cause, ...]) -> tuple[Cause, ...]:
    """Return the causes, with why others are not made to give way where a cycle has found any."""
    known = not spared or any(each.reason is Reason.NOT_LOOKED_AT for each in what.causes)
    return what.causes if known else (*what.causes, *spared)


def _is_news(said: _Known, position: int, message: str, summary: str, now_s: float) -> bool:
    """Say whether a GPUJob is written: for another reason or place, at times for other figures."""
    moved = abs(position - said.position) > _PLACES * said.position
    other = bool(summary) and summary != said.summary
    return moved or other or (message != said.message and now_s - said.at_s >= REFRESH_S)


def _is_event(said: _Known, summary: str, now_s: float) -> bool:
    """Say whether events are due: for another reason, again before they expire, or still owed."""
    if not summary:
        return False
    if summary != said.event:
        return not said.event or now_s - said.event_s >= EVENT_EVERY_S
    return bool(said.owed) or now_s - said.event_s >= EVENT_REFRESH_S
