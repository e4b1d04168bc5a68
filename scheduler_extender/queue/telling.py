"""Telling those that wait why: in the GPUJob and as events, as often as the API server can bear."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from scheduler_extender.cluster.pods import PodInfo
from scheduler_extender.cluster.records import Key
from scheduler_extender.planning.questions import Waiting
from scheduler_extender.queue import lifecycle
from scheduler_extender.queue.registry import Gang
from scheduler_extender.queue.writes import Writer

CHANGED_S = 5.0  # a reason or place that has merely changed is told again after this
REFRESH_S = 240.0  # a reason is told again before its event expires
PER_SECOND = 40.0  # gangs that are told something, in the long run
BURST = 80.0
_PLACES = 0.1  # a change of place by less than this part of it is not news
_PODS = 8  # pods of one gang that get an event

Explain = Callable[[Waiting], str]


class ToTell(NamedTuple):
    """What one gang is told: the starts that wait, and why the first of them does."""

    waiting: list[Waiting]
    why: str


Chooser = Callable[[Sequence[Waiting], Explain], dict[Key, ToTell]]


class _Told(NamedTuple):
    at_s: float
    message: str
    position: int
    looked_s: float  # when it was last asked whether there was news


class Telling:
    """Who has been told what, and when. Methods run on the event loop, choosers beside it."""

    def __init__(self, writer: Writer, clock: Callable[[], float]) -> None:
        self._writer = writer
        self._clock = clock
        self._told: dict[Key, _Told] = {}
        self._allowance = BURST
        self._filled_at_s = clock()

    def forget(self, key: Key) -> None:
        """Forget a gang that is gone."""
        self._told.pop(key, None)

    def chooser(self, spared: Callable[[Key], str]) -> Chooser:
        """Return a function that chooses who is told now; those told nothing yet come first.

        `spared` says to the owner of a gang why others were not made to give way. To find out why a
        gang waits takes a search over all GPUs: only as many are asked as may be told.
        """
        now = self._clock()
        self._allowance = min(
            BURST, self._allowance + PER_SECOND * max(0.0, now - self._filled_at_s)
        )
        self._filled_at_s = now
        most, told = int(self._allowance), self._told

        def choose(waiting: Sequence[Waiting], explain: Explain) -> dict[Key, ToTell]:
            starts: dict[Key, list[Waiting]] = {}
            new: list[Key] = []
            due: list[Key] = []
            for each in waiting:
                key = each.start.gpujob
                if key in starts:
                    starts[key].append(each)
                    continue
                starts[key] = [each]
                said = told.get(key)
                if said is None:
                    new.append(key)
                elif now - max(said.at_s, said.looked_s) >= CHANGED_S:
                    due.append(key)
            due.sort(key=lambda key: told[key].looked_s)
            chosen: dict[Key, ToTell] = {}
            for key in [*new, *due][:most]:
                first = starts[key][0]
                why = explain(first)
                said = told.get(key)
                if said is not None:
                    told[key] = said._replace(looked_s=now)
                if (
                    said is None
                    or now - said.at_s >= REFRESH_S
                    or _is_news(said, first.position, _in_full(why, spared(key)))
                ):
                    chosen[key] = ToTell(starts[key], why)
            return chosen

        return choose

    async def tell(self, gang: Gang, what: ToTell, queue: int | None, spared: str) -> None:
        """Write why a gang waits into its GPUJob, and as events on the first of its pods."""
        if gang.record is None:
            return
        now, position = self._clock(), what.waiting[0].position
        self._allowance -= 1
        known = self._told.get(gang.key)
        message = _in_full(what.why, spared)
        self._told[gang.key] = _Told(now, message, position, now)
        status = lifecycle.waiting(gang.record.status, "Waiting", message, position, now)
        await self._writer.write_status(gang, status.model_copy(update={"queue": queue}))
        if known is None or known.message != message or now - known.at_s >= REFRESH_S:
            pods: list[PodInfo] = [pod for each in what.waiting for pod in each.start.pods]
            for pod in pods[:_PODS]:
                await self._writer.say(pod, "Waiting", message, "Warning")


def _in_full(message: str, spared: str) -> str:
    return f"{message}; not preempted: {spared}" if spared else message


def _is_news(said: _Told, position: int, message: str) -> bool:
    moved = abs(position - said.position) > _PLACES * said.position
    return moved or message != said.message
