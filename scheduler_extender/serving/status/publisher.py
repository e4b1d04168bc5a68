"""Keeps a `Cluster` up to date while a page is open, and gives readers the views they ask for.

The extender answers a question for changes once there are some, so that a reader sees the first
change after a quiet time at once. A view that goes on changing is sent again after a while, which
is longer the more readers there are. All readers of the same view in the same scope share one
answer, made once for each change. The views are computed in one thread, so that the event loop that
serves other clients stays free.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic_core import to_json

from scheduler_extender.serving.fair import BusyError, FairWorker
from scheduler_extender.serving.status.model import Cluster
from scheduler_extender.serving.status.objects import Scope
from scheduler_extender.serving.status.views import (
    BadQueryError,
    MissingError,
    Query,
    document,
    revision_of,
)

#: The extender is asked for changes at most this often.
EVERY_S = 0.05
#: The extender answers after this time even where nothing has changed.
_WAIT_S = 0.8
#: What was read from the extender less than this ago is good enough for one answer.
_FRESH_S = 1.0
#: The longest time between two rounds: to take in the whole cluster takes seconds, once.
_LONGEST_PAUSE_S = 2.0
#: After a question that failed, the next one waits for so many times `EVERY_S`.
_AFTER_FAILURE = 20
#: Views are sent to all readers together at most this often, and to each at most every 2 EVERY_S.
_SENDS_PER_S = 50.0
#: Computing views takes at most this part of the time, whatever readers ask for.
_SHARE = 0.25
#: Answers that are kept for readers that ask again; about 40 KiB each.
_KEPT = 256
_CHUNK_BYTES = 2**20
#: Views of one client that may wait to be computed.
_WAITING = 16
#: Without it, a verb that finds both processors busy waits until the kernel's time slice ends.
_NICE = 10
#: Without a reader for this time, what is known of the cluster is dropped.
_IDLE_S = 600.0
#: More than 5,000 nodes and 40,000 pods need; a bound on what a fault of ours can take.
_MOST_BYTES = 256 * 2**20

_Result = TypeVar("_Result")
#: Yields lines of `Changes.pieces` about what has changed since a version; where nothing has, it
#: waits for a change for so many seconds at most.
Source = Callable[[str, float], AsyncIterator[bytes]]
Spot = tuple[Scope, Query]
_ROUNDS = ""  # who is charged for views that readers follow


class AwayError(Exception):
    """There is no answer now; the text says why."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A view as JSON; `revision` is the `revision_of` it for which it was computed.

    `missing` and `wrong` say why there is no view: no such object, or a query without meaning.
    """

    content: bytes
    revision: int = field(compare=False)  # two answers that say the same are equal
    missing: str = ""
    wrong: str = ""


@dataclass(eq=False, slots=True)
class _Watched:
    """A view that readers follow: `revision` is the last that was looked at for it."""

    answer: Answer
    revision: int
    sent_s: float
    readers: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Publisher:
    """Views for readers, on the running event loop; `source` tells what has changed."""

    def __init__(
        self,
        source: Source,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._every_s = every_s
        self._fresh_for_s = min(_FRESH_S, 20 * every_s)
        self._clock = clock
        self._cluster = Cluster()
        self._worker = FairWorker(_WAITING, nice=_NICE)
        self._fresh_s = float("-inf")
        self._refreshing: asyncio.Task[None] | None = None
        self._kept: OrderedDict[Spot, Answer] = OrderedDict()
        self._watched: dict[Spot, _Watched] = {}
        self._rounds: asyncio.Task[None] | None = None
        self._used_s = 0.0  # CPU time spent on views in the current round
        self.computed = 0

    @property
    def readers(self) -> int:
        """How many readers follow a view."""
        return sum(each.readers for each in self._watched.values())

    async def get(self, client: str, scope: Scope, query: Query) -> Answer:
        """Return a view of at most a second ago; `client` is charged for the time that it takes.

        Raises:
            AwayError: the extender does not answer, or the client asks for too much at once.
        """
        await self._refresh()
        return await self._answer(client, (scope, query))

    async def compute(self, client: str, work: Callable[[Cluster], _Result]) -> _Result:
        """Return what `work` makes of the cluster, in the thread that owns it.

        Raises:
            AwayError: the extender does not answer, or the client asks for too much at once.
        """
        await self._refresh()
        return await self._run(client, lambda: work(self._cluster))

    @asynccontextmanager
    async def follow(
        self, client: str, scope: Scope, query: Query
    ) -> AsyncIterator[Callable[[float], Awaitable[Answer | None]]]:
        """Follow a view: give a function that returns the view when it has changed.

        Its first call returns at once; each later one after at most so many seconds, with None
        where nothing has changed. A reader that is slow misses what came in between.

        Raises:
            AwayError: as in `get`.
        """
        first = await self.get(client, scope, query)
        spot = (scope, query)
        known = _Watched(first, first.revision, float("-inf"))
        watched = self._watched.setdefault(spot, known)
        watched.readers += 1
        sent: Answer | None = None

        async def next_one(within_s: float) -> Answer | None:
            nonlocal sent
            if sent != watched.answer:
                sent = watched.answer
                return sent
            try:
                async with asyncio.timeout(within_s):
                    await watched.changed.wait()
            except TimeoutError:
                return None
            sent = watched.answer
            return sent

        try:
            yield next_one
        finally:
            watched.readers -= 1
            if watched.readers == 0 and self._watched.get(spot) is watched:
                del self._watched[spot]

    async def close(self) -> None:
        """End what runs."""
        tasks = [task for task in (self._rounds, self._refreshing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- inside -------------------------------------------------------------------------------

    def _keep_rounds(self) -> None:
        if self._rounds is None or self._rounds.done():
            self._rounds = asyncio.create_task(self._follow_changes())

    async def _follow_changes(self) -> None:
        """Compute each followed view anew once something has changed, while there are readers.

        Without readers nothing is asked of the extender, and after a while nothing is remembered.
        """
        while self._refreshing or self._watched or self._clock() - self._fresh_s < _IDLE_S:
            await asyncio.sleep(self._pause_s())
            self._used_s = 0.0
            if not self._watched:
                continue
            try:
                await self._take(self._until_due_s())
            except AwayError:
                # Readers keep what they have until the extender answers again.
                await asyncio.sleep(_AFTER_FAILURE * self._every_s)
            else:
                await self._renew()
        self._cluster = Cluster()
        self._kept.clear()
        self._fresh_s = float("-inf")

    def _pause_s(self) -> float:
        """Return for how long nothing is computed: many readers are sent a view rarely anyway."""
        wanted_s = max(self._used_s / _SHARE, self.readers / _SENDS_PER_S / 4)
        return max(self._every_s, min(wanted_s, _LONGEST_PAUSE_S))

    async def _renew(self) -> None:
        """Compute the views that may have changed and are due; wake readers of those that have."""
        for spot, watched in list(self._watched.items()):
            if not self._is_behind(spot, watched) or self._due_s(watched) > self._clock():
                continue
            answer = await self._answer(_ROUNDS, spot)
            watched.revision = answer.revision
            if answer != watched.answer:
                watched.answer, watched.sent_s = answer, self._clock()
                changed, watched.changed = watched.changed, asyncio.Event()
                changed.set()

    def _is_behind(self, spot: Spot, watched: _Watched) -> bool:
        return watched.revision != revision_of(self._cluster, spot[1])

    def _due_s(self, watched: _Watched) -> float:
        """Return when a view may be sent again."""
        return watched.sent_s + max(2 * self._every_s, self.readers / _SENDS_PER_S)

    def _until_due_s(self) -> float:
        """Return for how long the extender may wait for a change: a view may have one already."""
        behind = [each for spot, each in self._watched.items() if self._is_behind(spot, each)]
        due_s = min((self._due_s(each) for each in behind), default=float("inf"))
        return min(_WAIT_S, max(0.0, due_s - self._clock()))

    async def _answer(self, client: str, spot: Spot) -> Answer:
        known = self._kept.get(spot)
        if known is not None and known.revision == revision_of(self._cluster, spot[1]):
            self._kept.move_to_end(spot)
            return known
        answer = await self._run(client, lambda: _made(self._cluster, spot))
        self.computed += 1
        self._kept[spot] = answer
        self._kept.move_to_end(spot)
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return answer

    async def _refresh(self) -> None:
        """Take in what has changed, unless that was done less than a second ago."""
        if self._clock() - self._fresh_s < self._fresh_for_s:
            return
        await self._take(0.0)
        self._keep_rounds()

    async def _take(self, wait_s: float) -> None:
        """Take in what has changed; one question is under way at a time."""
        if self._refreshing is None:
            self._refreshing = asyncio.create_task(self._take_changes(wait_s))
            self._refreshing.add_done_callback(self._refreshed)
        # A reader that goes away ends it for no other reader.
        await asyncio.shield(self._refreshing)

    def _refreshed(self, task: asyncio.Task[None]) -> None:
        self._refreshing = None
        if not task.cancelled():
            task.exception()  # each reader has been given it

    async def _take_changes(self, wait_s: float) -> None:
        pending, size = bytearray(), 0
        async for piece in self._source(self._cluster.version, wait_s):
            pending += piece
            size += len(piece)
            if size > _MOST_BYTES:
                raise AwayError(f"the changes are over {_MOST_BYTES} bytes")
            if len(pending) >= _CHUNK_BYTES:
                whole = pending.rfind(b"\n") + 1
                await self._apply(bytes(pending[:whole]))
                del pending[:whole]
        await self._apply(bytes(pending))
        self._fresh_s = self._clock()

    async def _apply(self, lines: bytes) -> None:
        if lines:
            await self._run(_ROUNDS, lambda: self._cluster.apply(lines))

    async def _run(self, client: str, work: Callable[[], _Result]) -> _Result:
        def timed() -> tuple[_Result, float]:
            began = time.thread_time()  # CPU: a busy machine makes no view dearer
            return work(), time.thread_time() - began

        try:
            result: tuple[_Result, float] = await self._worker.run(client, timed, 0)
        except BusyError as error:
            raise AwayError("this client has too many views under way") from error
        self._used_s += result[1]
        return result[0]


def _made(cluster: Cluster, spot: Spot) -> Answer:
    revision = revision_of(cluster, spot[1])
    try:
        content: Any = document(cluster, *spot)
    except MissingError as error:
        return Answer(b"null", revision, missing=str(error))
    except BadQueryError as error:
        return Answer(b"null", revision, wrong=str(error))
    # In ASCII: some clients take U+2028 for the end of a line.
    return Answer(to_json(content, ensure_ascii=True), revision)
