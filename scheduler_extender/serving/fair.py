"""One thread for the work of many clients: the client that has used least goes first.

The work of one client may be of several parts, such as the namespaces whose objects the API server
sends to be reviewed. The parts of a client take turns by the same rule.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Work = Callable[[], Any]
_HALVED_S = 5.0  # after this time, use counts half
_BYTES_PER_S = 20e6  # what is expected of a review before it has been judged
_FORGOTTEN_S = 1e-4


@dataclass(slots=True)
class _Order:
    work: Work
    expected_s: float
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


class BusyError(Exception):
    """The client has as much work waiting as it may have."""


class FairWorker:
    """Runs work in one thread, outside of the event loop.

    Each client is charged the time that its work took; the client that was charged least goes next,
    and of its parts the one that was charged least. So a client that sends little does not wait
    behind one that sends much. `waiting`: pieces of work of one client that may wait. `nice`: the
    increment of nice(2) for the thread, by which the kernel prefers other threads and processes.
    """

    def __init__(
        self, waiting: int, clock: Callable[[], float] = time.perf_counter, nice: int = 0
    ) -> None:
        self._waiting = waiting
        self._clock = clock
        self._nice = nice
        self._orders: dict[str, dict[str, deque[_Order]]] = {}  # by client and part
        self._used_s: dict[tuple[str, ...], float] = {}  # of a client; of a client and its part
        self._halved_at = clock()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="judge", daemon=True)
        self._thread.start()

    async def run(self, client: str, work: Work, size: int, part: str = "") -> Any:  # noqa: ANN401 - what the work returns
        """Return what the work returns; `size` is in bytes.

        Raises:
            BusyError: the client has too much work waiting.
        """
        loop = asyncio.get_running_loop()
        order = _Order(work, size / _BYTES_PER_S, loop.create_future(), loop)
        with self._changed:
            parts = self._orders.setdefault(client, {})
            if sum(map(len, parts.values())) >= self._waiting:
                raise BusyError
            parts.setdefault(part, deque()).append(order)
            self._changed.notify()
        return await order.future

    def next(self) -> tuple[str, str, _Order]:
        """Return client, part and the order that is next; wait for one."""
        with self._changed:
            while not self._orders:
                self._changed.wait()
            first = {client: self._first(client) for client in self._orders}
            client = min(first, key=lambda name: self._due(first[name][1], name))
            part, order = first[client]
            queue = self._orders[client][part]
            queue.popleft()
            if not queue:
                del self._orders[client][part]
            if not self._orders[client]:
                del self._orders[client]
            return client, part, order

    def _first(self, client: str) -> tuple[str, _Order]:
        heads = {part: queue[0] for part, queue in self._orders[client].items()}
        part = min(heads, key=lambda name: self._due(heads[name], client, name))
        return part, heads[part]

    def _due(self, order: _Order, *whose: str) -> float:
        return self._used_s.get(whose, 0.0) + order.expected_s

    def charge(self, client: str, part: str, seconds: float) -> None:
        """Note what a part of a client has used."""
        with self._changed:
            for whose in ((client,), (client, part)):
                self._used_s[whose] = self._used_s.get(whose, 0.0) + seconds
            if self._clock() - self._halved_at > _HALVED_S:
                self._halved_at = self._clock()
                halves = {name: used / 2 for name, used in self._used_s.items()}
                self._used_s = {n: used for n, used in halves.items() if used > _FORGOTTEN_S}

    def _run(self) -> None:
        if self._nice:  # Linux applies it to this thread alone
            thread = threading.get_native_id()
            now = os.getpriority(os.PRIO_PROCESS, thread)
            os.setpriority(os.PRIO_PROCESS, thread, now + self._nice)
        while True:
            client, part, order = self.next()
            if order.future.cancelled():
                continue
            start = self._clock()
            try:
                result, error = order.work(), None
            except BaseException as raised:  # it belongs to the caller that awaits the work
                result, error = None, raised
            self.charge(client, part, self._clock() - start)
            order.loop.call_soon_threadsafe(_settle, order.future, result, error)
            del order, result


def _settle(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
