"""From the reflectors' threads, which decode objects, to the event loop, which applies them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from scheduler_extender.cluster.records import KINDS, PARSERS, Record, parse_pod
from scheduler_extender.cluster.state import ClusterState
from tandem.kube.client import Object
from tandem.kube.reflector import EventType, Trim

log = logging.getLogger(__name__)

#: How long events may hold the loop before a verb gets its turn.
SLICE_S = 0.002


@dataclass(frozen=True, slots=True)
class _Event:
    kind: str
    gone: bool
    record: Record | None  # None: everything that was there at the start has been told


class Feed:
    """Applies events to the state on the loop on which it was made.

    `take` and `synced` may be called from any thread. `on_slice` is told how long a slice took.
    """

    def __init__(
        self,
        state: ClusterState,
        *,
        kinds: tuple[str, ...] = KINDS,
        on_slice: Callable[[float], None] = lambda _: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._state = state
        self._on_slice = on_slice
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._pending: deque[_Event] = deque()
        self._scheduled = False
        self._missing = set(kinds)
        self._ready = asyncio.Event()
        state.on_backlog = self._wake
        self.failures = 0

    @property
    def ready(self) -> bool:
        """True once all that was there at the start has been applied."""
        return self._ready.is_set()

    @property
    def pending(self) -> int:
        """Events that wait to be applied."""
        return len(self._pending)

    async def wait_ready(self) -> None:
        """Return once all that was there at the start has been applied."""
        await self._ready.wait()

    def trim(self, kind: str) -> Trim:
        """Return what a reflector of this kind keeps: who the object is, and what we read of it.

        An event after which a pod without GPUs takes the same of its node ends there: nothing of it
        comes to the event loop.
        """

        def trim(raw: Object, known: Object | None) -> Object:
            if kind == "pods":
                before = known["record"] if known is not None else None
                record: Record = parse_pod(raw, before)
                if known is not None and record is before:
                    return known
            else:
                record = PARSERS[kind](raw)
            metadata = raw["metadata"]
            kept = {key: metadata[key] for key in _IDENTITY if key in metadata}
            return {"metadata": kept, "record": record}

        return trim

    def take(self, kind: str, event: EventType, trimmed: Object) -> None:
        """Take in an event of a reflector, with an object that has been through `trim`."""
        self._put(_Event(kind, event is EventType.DELETED, trimmed["record"]))

    def put(self, kind: str, record: Record) -> None:
        """Take in an object that was read apart from the reflectors, on the loop, at once."""
        self._apply(_Event(kind, False, record))

    def synced(self, kind: str) -> None:
        """Take in that all objects of a kind have been told once."""
        self._put(_Event(kind, False, None))

    def _put(self, event: _Event) -> None:
        self._pending.append(event)
        # A benign race: at worst the drain is scheduled twice, and the second finds nothing.
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon_threadsafe(self._drain)

    def _wake(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        self._scheduled = False
        start = self._clock()

        def over() -> bool:
            return self._clock() - start >= SLICE_S

        self._state.catch_up(over)
        while self._pending and not over():
            self._apply(self._pending.popleft())
        self._on_slice(self._clock() - start)
        if self._pending or self._state.backlog:
            self._wake()

    def _apply(self, event: _Event) -> None:
        record = event.record
        if record is None:
            self._missing.discard(event.kind)
            if not self._missing:
                self._ready.set()
            return
        try:
            if event.gone:
                self._state.forget(event.kind, record.key, record.uid)
            else:
                self._state.apply(event.kind, record)
        except Exception:
            # One strange object must not blind us to all others; it is counted and logged.
            log.exception("event not applied kind=%s key=%s", event.kind, record.key)
            self.failures += 1


_IDENTITY = ("name", "namespace", "uid", "resourceVersion")
