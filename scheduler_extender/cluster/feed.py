"""From the reflectors' threads, which decode objects, to the event loop, which applies them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scheduler_extender.cluster.objects import KINDS
from scheduler_extender.cluster.parsing import PARSERS, parse_pod
from scheduler_extender.cluster.records import Record
from scheduler_extender.cluster.state import ClusterState
from tandem.contracts.values import MAX_GPUS, MAX_USES
from tandem.kube.client import Object
from tandem.kube.reflector import EventType, Trim

log = logging.getLogger(__name__)

#: How long events may hold the loop before a verb gets its turn.
SLICE_S = 0.002


#: What reports of one node may have, a second and at once: entries of their lists. An agent reports
#: once a second at most; twice the largest report that the definition allows may come at once.
_REPORT = 16  # a report without entries costs as much as so many
_ENTRIES_PER_S, _MOST_ENTRIES = 256.0, 2.0 * (_REPORT + MAX_GPUS * (1 + MAX_USES))


class _Budget:
    """Rate limits of nodes' reports. An agent that writes without end costs no more than this."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}  # entries left, and as of when

    def allows(self, node: str, raw: Object) -> bool:
        """Spend what reading a report costs; False where its node has spent too much of late."""
        now = self._clock()
        left, since = self._left.get(node, (_MOST_ENTRIES, now))
        left = min(_MOST_ENTRIES, left + _ENTRIES_PER_S * (now - since)) - _entries(raw)
        if left < 0:
            return False
        self._left[node] = (left, now)
        return True

    def forget(self, node: str) -> None:
        """Forget a node."""
        self._left.pop(node, None)


def _entries(raw: Object) -> int:
    status = raw.get("status") or {}
    gpus = (status.get("gpus") or ())[:MAX_GPUS]
    return _REPORT + len(gpus) + sum(len(gpu.get("pods") or ()) for gpu in gpus)


@dataclass(frozen=True, slots=True)
class _Event:
    kind: str
    gone: bool
    record: Record | None  # None: the first list of the kind is complete


class Feed:
    """Applies events to the state on the loop on which it was made.

    `take` and `synced` may be called from any thread. `on_slice` is called with the time that a
    slice took.
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
        self._budget = _Budget(clock)
        self.failures = 0
        self.reports_passed_over = 0

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
        """Return what a reflector of this kind keeps: what we read of an object, a record.

        An event after which a pod without GPUs takes the same of its node ends there: nothing of it
        comes to the event loop.
        """

        def trim(raw: Object, known: Any) -> Record:  # noqa: ANN401 - of that kind
            if (held := self._state.held(kind, raw)) is not None:
                return held
            return parse_pod(raw, known) if kind == "pods" else PARSERS[kind](raw)

        def trim_report(raw: Object, known: Record | None) -> Record:
            if not self._budget.allows(raw["metadata"]["name"], raw) and known is not None:
                self.reports_passed_over += 1
                return known  # as if it had not been written; the next one may be read
            return trim(raw, known)

        return trim_report if kind == "gpunodes" else trim

    def take(self, kind: str, event: EventType, record: Record) -> None:
        """Take in an event of a reflector, with what `trim` has made of the object."""
        if kind == "gpunodes" and event is EventType.DELETED:
            self._budget.forget(record.name)
        self._put(_Event(kind, event is EventType.DELETED, record))

    def put(self, kind: str, record: Record) -> None:
        """Take in an object that was read apart from the reflectors, on the loop, at once."""
        self._apply(_Event(kind, False, record))

    def synced(self, kind: str) -> None:
        """Take in that the first list of a kind is complete."""
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
