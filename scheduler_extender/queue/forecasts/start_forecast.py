"""Forecasts when pending gangs start, in a process of its own, and writes it to GPUJobs.

A forecast begins after a round, on that round's own frozen picture. It holds nothing up: what only
the event loop knows is read in slices, the picture is made in a thread, the simulator runs in a
niced process (`forecast.py`). One that fails is counted and logged; what is not confirmed any more
is withdrawn after five intervals.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TypeVar

import numpy as np

from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.jobs import rfc3339, seconds
from scheduler_extender.cluster.records import Key
from scheduler_extender.planning.forecast import packed
from scheduler_extender.planning.forecast_picture import Asked, picture_of
from scheduler_extender.planning.forecast_quotas import Quotas
from scheduler_extender.planning.questions import Answer, Question, Start
from scheduler_extender.queue.forecasts.simulating import Simulating
from scheduler_extender.queue.shared import Shared
from scheduler_extender.queue.steps.effects import WriteStatus
from tandem.contracts.resources import ExpectedStart, GPUJobStatus, Phase

log = logging.getLogger(__name__)

#: Gangs for which there is a forecast, from the front of the queue; fewer where that was too slow.
MOST, LEAST = 500, 20
LIMIT_S = 120.0  # of one forecast
AGAIN_S = 600.0  # one that has not changed is written anew after that
STALE = 5  # intervals for which one holds that is not confirmed
PER_SECOND = 20  # writes
_CHANGED_S, _CHANGED = 60.0, 0.2  # news: a change by so many seconds, and by that part of the wait
_TURNS = 5
_REST = 9.0  # after each forecast, times what it took: of a core, a tenth at most
_SLICE = 200  # gangs looked at before the event loop has its turn
_SHAPES = 20  # the same for what pods ask of nodes
_T = TypeVar("_T")
_WAITS = (Phase.QUEUED, Phase.SUSPENDED)


class StartForecast:
    """Expected starts of waiting jobs. Methods run on the event loop, `_ask` in a thread."""

    def __init__(
        self,
        shared: Shared,
        every_s: float,
        on_forecast: Callable[[float | None], None],
        simulating: Simulating,
    ) -> None:
        self._state = shared.state
        self._gangs = shared.gangs
        self._queue_state = shared.queue_state
        self._pending = shared.pending
        self._work = shared.work
        self._executor = shared.executor
        self._profile = shared.profile
        self._every_s = every_s
        self._preemption_cost_s = shared.settings.preemption_cost_s
        self._clock = shared.clock
        self._on_forecast = on_forecast  # how long one took, None where it failed
        self._simulating = simulating
        self._most = MOST
        self._next_s = shared.clock() + every_s
        self._expected: dict[Key, ExpectedStart] = {}
        self._made_s = -np.inf
        #: What the latest forecast was made of.
        self.latest: Asked | None = None
        self._task: asyncio.Task[None] | None = None

    # --- what is written --------------------------------------------------------------------------

    def annotated(self, gang: Gang, status: GPUJobStatus) -> GPUJobStatus:
        """Return a status that is about to be written with what is expected of the gang."""
        expected = self._of(gang.key, status)
        if expected == status.expected_start:
            return status
        return status.model_copy(update={"expected_start": expected})

    def _of(self, key: Key, status: GPUJobStatus) -> ExpectedStart | None:
        if status.phase not in _WAITS or not self._every_s:
            return None
        said, now = status.expected_start, self._clock()
        if self._made_s == -np.inf:  # what was said by who led before us
            holds_s = AGAIN_S + STALE * self._every_s
            return said if said and now - seconds(said.as_of) < holds_s else None
        if now - self._made_s >= STALE * self._every_s:
            return None
        expected = self._expected.get(key)
        return said if said and expected and not _is_news(said, expected, now) else expected

    async def _write(self) -> None:
        """Write what has changed, a few a second; who is busy has its turn a moment later."""
        wanted = list(self._gangs.by_key)
        for _ in range(_TURNS):
            busy = []
            for keys in _shared(wanted, _SLICE):
                for key in keys:
                    gang = self._gangs.by_key.get(key)
                    if gang is None or not self._has_news(gang):
                        continue
                    if self._work.busy(key):
                        busy.append(key)
                        continue
                    written = WriteStatus(gang.job.status)
                    self._work.do(key, self._executor.carry_out(gang, (written,)))
                    await asyncio.sleep(1 / PER_SECOND)
                await asyncio.sleep(0)
            if not busy:
                return
            wanted = busy
            await asyncio.sleep(1.0)

    def _has_news(self, gang: Gang) -> bool:
        """Say whether something else is expected of a gang than its GPUJob says."""
        if gang.record is None:
            return False
        status = gang.record.status
        return status.phase in _WAITS and self._of(gang.key, status) != status.expected_start

    # --- forecasts --------------------------------------------------------------------------------

    def look(self, question: Question, answer: Answer, quotas: Quotas) -> None:
        """Begin a forecast after a round where it is time for one and none is being made."""
        now = self._clock()
        if not self._every_s or now < self._next_s or self._task is not None:
            return
        self._next_s = now + self._every_s
        tried = chain((each.start for each in answer.placed), answer.waiting.starts)
        keys = _first_of(tried, self._most)
        starts = {key: question.starts[key] for key in keys if key in question.starts}
        # The round's own order is the queue_state', which go on.
        question = replace(question, starts=starts, rank=lambda: keys, avoids={})
        self._task = asyncio.create_task(self._foresee(question, quotas))

    def stop(self) -> list[asyncio.Task[None]]:
        """Cancel what is under way and return it."""
        tasks = [] if self._task is None else [self._task]
        for task in tasks:
            task.cancel()
        return tasks

    async def _foresee(self, question: Question, quotas: Quotas) -> None:
        try:
            began = time.perf_counter()
            try:
                self.latest = asked = await self._asked(question, quotas)
                async with self._simulating.turn:
                    began = time.perf_counter()
                    found = await asyncio.to_thread(self._ask, asked)
            except Exception as error:
                log.warning("starts not forecast error=%s", error)
                self._most = max(LEAST, self._most // 2)
                self._on_forecast(None)
            else:
                self._on_forecast(time.perf_counter() - began)
                self._most = min(MOST, 2 * self._most)
                self._expected, self._made_s = found, self._clock()
            rest_s = _REST * (time.perf_counter() - began)
            self._next_s = max(self._next_s, self._clock() + rest_s)
            await self._write()
        finally:
            self._task = None

    async def _asked(self, question: Question, quotas: Quotas) -> Asked:
        """Read what the loop alone knows."""
        all_starts = (start for starts in question.starts.values() for start in starts)
        wanted = {part.job.where for start in all_starts for part in start.parts}
        wanted |= set(question.where_of.values())
        names, nodes, most = question.snapshot.node_names, {}, {}
        gpus = np.bincount(question.snapshot.gpus.node, minlength=len(names))
        for part in _shared(list(self._pending.shapes().items()), _SHAPES):
            for number, pods in part:
                if number in wanted:
                    there = self._state.nodes.picture({number: pods}, names, self._pending.together)
                    nodes[number] = there.capable(number)
                    if (limit := there.most(number, gpus, empty=True)) is not None:
                        most[number] = limit
            await asyncio.sleep(0)
        certain: set[Key] = set()
        endless: set[Key] = set()
        for keys in _shared([*self._queue_state.placed, *question.starts], _SLICE):
            for key in keys:
                entry, gang = self._queue_state.of.get(key), self._gangs.by_key.get(key)
                if entry is None or gang is None or gang.record is None:
                    continue
                if not np.isnan(entry.left_s):
                    certain.add(key)
                if gang.is_endless:
                    endless.add(key)
            await asyncio.sleep(0)
        return Asked(question, nodes, frozenset(certain), frozenset(endless), most, quotas)

    def _ask(self, asked: Asked) -> dict[Key, ExpectedStart]:
        """Have the child say when each gang starts: of several starts of one, the first."""
        picture, jobs, keys = picture_of(asked, self._profile, self._preemption_cost_s)
        content = b"".join(packed(picture, jobs))
        said = self._simulating.says("scheduler_extender.planning.forecast", content, LIMIT_S)
        now_s = asked.question.now_s
        found: dict[Key, ExpectedStart] = {}
        for row, (earliest, latest) in sorted(said.items(), key=lambda item: item[1][0]):
            expected = ExpectedStart(
                earliest=_time(now_s + earliest),
                latest=None if latest is None else _time(now_s + latest),
                as_of=_time(now_s),
            )
            found.setdefault(keys[int(row)], expected)
        return found


def _first_of(starts: Iterable[Start], most: int) -> list[Key]:
    """Return the first gangs of `starts`, so many at most."""
    found: dict[Key, None] = {}
    for start in starts:
        if len(found) == most:
            break
        found[start.gpujob] = None
    return list(found)


def _time(unix_s: float) -> str:
    """Return a time to the second: a forecast knows no better."""
    return rfc3339(math.floor(unix_s)).replace(".000000", "")


def _is_news(said: ExpectedStart, expected: ExpectedStart, now_s: float) -> bool:
    """Say whether what is expected differs from what was said by more than a fraction of it."""
    if seconds(expected.as_of) - seconds(said.as_of) >= AGAIN_S:
        return True
    if (said.latest is None) != (expected.latest is None):
        return True
    pairs = [(said.earliest, expected.earliest)]
    if said.latest is not None and expected.latest is not None:
        pairs.append((said.latest, expected.latest))
    return any(
        abs(seconds(old) - seconds(new)) > max(_CHANGED_S, _CHANGED * (seconds(new) - now_s))
        for old, new in pairs
    )


def _shared(items: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    for at in range(0, len(items), size):
        yield items[at : at + size]
