"""Telling those that wait why: in the GPUJob and as events, as often as the API server can bear."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from scheduler_extender import lifecycle
from scheduler_extender.planning import Verdict
from scheduler_extender.pods import PodInfo
from scheduler_extender.records import Key
from scheduler_extender.registry import Gang
from scheduler_extender.writes import Writer
from tandem.policy.decision import Placement, Rejected, Waits

CHANGED_S = 5.0  # a reason or place that has merely changed is told again after this
REFRESH_S = 240.0  # a reason is told again before its event expires
PER_SECOND = 40.0  # gangs that are told something, in the long run
BURST = 80.0
_PLACES = 0.1  # a change of place by less than this part of it is not news
_PODS = 8  # pods of one gang that get an event

ToTell = dict[Key, list[Verdict]]
Chooser = Callable[[Sequence[Verdict]], ToTell]


class _Told(NamedTuple):
    at_s: float
    message: str
    position: int


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

    def chooser(self, spared: str) -> Chooser:
        """Return a function that chooses who is told now; those told nothing yet come first.

        `spared` says which gangs that run were not made to give way, and why.
        """
        now = self._clock()
        self._allowance = min(
            BURST, self._allowance + PER_SECOND * max(0.0, now - self._filled_at_s)
        )
        self._filled_at_s = now
        most, told = int(self._allowance), self._told

        def choose(verdicts: Sequence[Verdict]) -> ToTell:
            new: list[Verdict] = []
            changed: list[Verdict] = []
            more: ToTell = {}
            last: Key | None = None
            for verdict in verdicts:
                key = verdict.start.gpujob
                if key == last:
                    more.setdefault(key, []).append(verdict)
                    continue
                last = key
                said = told.get(key)
                if said is None:
                    new.append(verdict)
                elif now - said.at_s >= CHANGED_S and (
                    now - said.at_s >= REFRESH_S or _is_news(said, verdict, spared)
                ):
                    changed.append(verdict)
            return {
                verdict.start.gpujob: [verdict, *more.get(verdict.start.gpujob, ())]
                for verdict in [*new, *changed][:most]
            }

        return choose

    async def tell(
        self, gang: Gang, verdicts: Sequence[Verdict], queue: int | None, spared: str
    ) -> None:
        """Write why a gang waits into its GPUJob, and as events on the first of its pods."""
        first = verdicts[0].decision
        if gang.record is None or not isinstance(first, Waits | Rejected):
            return
        now, position = self._clock(), verdicts[0].position
        self._allowance -= 1
        known = self._told.get(gang.key)
        message = _in_full(first.message, spared)
        self._told[gang.key] = _Told(now, message, position)
        status = lifecycle.waiting(gang.record.status, "Waiting", message, position, now)
        await self._writer.write_status(gang, status.model_copy(update={"queue": queue}))
        if known is None or known.message != message or now - known.at_s >= REFRESH_S:
            pods: list[PodInfo] = [pod for verdict in verdicts for pod in verdict.start.pods]
            for pod in pods[:_PODS]:
                await self._writer.say(pod, "Waiting", message, "Warning")


def _in_full(message: str, spared: str) -> str:
    return f"{message}; not preempted: {spared}" if spared else message


def _is_news(said: _Told, verdict: Verdict, spared: str) -> bool:
    assert not isinstance(verdict.decision, Placement)
    moved = abs(verdict.position - said.position) > _PLACES * said.position
    return moved or _in_full(verdict.decision.message, spared) != said.message
