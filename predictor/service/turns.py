"""Uploads and parses that several namespaces want at once. Runs on the event loop.

No namespace keeps the others from pushing: uploads give way, and parses go in turns.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from predictor.errors import BusyError, GraphError, Refusal

#: Models pushed at once: each may hold a graph in memory.
PARALLEL_UPLOADS = 8
#: An upload from which nothing comes for this time has lost its client.
UPLOAD_IDLE_S = 30.0
#: An upload may take this time, and a second more for each `UPLOAD_BYTES_PER_S` that have come: one
#: byte at a time would hold its slot for ever.
UPLOAD_S, UPLOAD_BYTES_PER_S = 60.0, 64 << 10


@dataclass(eq=False)
class Upload:
    """A body that is being received. `took` notes what has come and sets the time for the rest."""

    namespace: str
    timeout: asyncio.Timeout
    started_s: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    received_bytes: int = 0
    gives_way: bool = False
    done: bool = False

    def took(self, count: int) -> None:
        """Note that so many bytes have come."""
        self.received_bytes += count
        self._allow()

    def _allow(self) -> None:
        if self.gives_way:
            return
        idle_until_s = asyncio.get_running_loop().time() + UPLOAD_IDLE_S
        allowed_s = UPLOAD_S + self.received_bytes / UPLOAD_BYTES_PER_S
        self.timeout.reschedule(min(idle_until_s, self.started_s + allowed_s))

    def end(self) -> None:
        """Note that all has come: from now on it keeps its slot."""
        self.done = True
        self.timeout.reschedule(None)

    def give_way(self) -> None:
        """End it now; it learns of it where it waits for its client."""
        self.gives_way = True
        self.timeout.reschedule(asyncio.get_running_loop().time())

    def bytes_per_s(self) -> float:
        """Return how fast it has come so far."""
        passed_s = asyncio.get_running_loop().time() - self.started_s
        return self.received_bytes / max(passed_s, 1e-3)

    def late(self) -> GraphError:
        """Return why it was given up."""
        if self.gives_way:
            words = "The upload gave way to a model of another namespace."
        else:
            words = f"The upload stood still or was slower than {UPLOAD_BYTES_PER_S >> 10} KiB/s."
        return GraphError(Refusal.TIMEOUT, words, "Push again.")


class Uploads:
    """So many at once. A namespace may have all of them until another one comes.

    Then the namespace that has most gives up the one that comes most slowly.
    """

    def __init__(self) -> None:
        self._open: list[Upload] = []

    @asynccontextmanager
    async def slot(self, namespace: str) -> AsyncIterator[Upload]:
        """Hold a slot. A body that is late or gives way ends as GraphError.

        Raises:
            BusyError: all slots are taken, and no namespace has so many more than this one.
        """
        self._make_room(namespace)
        upload = None
        try:
            async with asyncio.timeout(None) as timeout:
                upload = Upload(namespace, timeout)
                self._open.append(upload)
                upload.took(0)
                yield upload
        except TimeoutError:
            if upload is None or not timeout.expired():
                raise
            raise upload.late() from None
        finally:
            if upload in self._open:
                self._open.remove(upload)

    def _make_room(self, namespace: str) -> None:
        if len(self._open) < PARALLEL_UPLOADS:
            return
        count = Counter(upload.namespace for upload in self._open)
        coming = [each for each in self._open if not each.done]
        larger = [each for each in coming if count[each.namespace] > count[namespace] + 1]
        if not larger:
            raise BusyError(
                f"{len(self._open)} models are being pushed already.", "Try again soon."
            )
        slowest = min(larger, key=lambda each: (-count[each.namespace], each.bytes_per_s()))
        self._open.remove(slowest)
        slowest.give_way()


class Turns:
    """So many parses at once; one less for a namespace alone, so that another one finds a place.

    Of the waiting requests, that of the namespace that has fewest goes first, and of two the one
    that waited for longer.
    """

    def __init__(self, parallel: int) -> None:
        self._parallel = parallel
        self._of_one = max(1, parallel - 1)
        self._running: Counter[str] = Counter()
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def turn(self, namespace: str) -> AsyncIterator[None]:
        """Wait for a turn and hold it."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((namespace, granted))
        self._grant()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self._release(namespace)
            else:
                self._waiting = [each for each in self._waiting if each[1] is not granted]
            raise
        with self._held(namespace):
            yield

    @contextmanager
    def _held(self, namespace: str) -> Iterator[None]:
        try:
            yield
        finally:
            self._release(namespace)

    def _release(self, namespace: str) -> None:
        self._running[namespace] -= 1
        self._running += Counter()  # without those that have none left
        self._grant()

    def _grant(self) -> None:
        while self._running.total() < self._parallel:
            fit = [each for each in self._waiting if self._running[each[0]] < self._of_one]
            if not fit:
                return
            first = min(fit, key=lambda each: self._running[each[0]])
            self._waiting.remove(first)
            namespace, granted = first
            if not granted.done():
                self._running[namespace] += 1
                granted.set_result(None)
