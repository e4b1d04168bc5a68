"""The order of writes to the API server: some at once, and reports after what jobs wait for."""

from __future__ import annotations

import asyncio
from collections import deque

#: While others wait as well, a report gets every so many-th turn.
REPORTS_EVERY = 4


class Turns:
    """A semaphore of `count` turns with two first-in, first-out classes: writes and reports.

    A report is a write that no job waits for, such as that a job runs. All methods run on the event
    loop.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._reports: deque[asyncio.Future[None]] = deque()
        self._passed = 0

    @property
    def crowded(self) -> bool:
        """True while a write or a report waits for a turn."""
        return bool(self._waiting or self._reports)

    async def acquire(self, *, report: bool = False) -> None:
        """Wait for a turn, which ends with `release`."""
        if self._free:
            self._free -= 1
            return
        mine = asyncio.get_running_loop().create_future()
        (self._reports if report else self._waiting).append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():
                self.release()  # it came in the same moment
            raise

    def release(self) -> None:
        """End a turn: the next one begins."""
        self._passed += 1
        first, then = self._waiting, self._reports
        if self._passed % REPORTS_EVERY == 0:
            first, then = then, first
        for queue in (first, then):
            while queue:
                turn = queue.popleft()
                if not turn.done():  # the task that waited may have been cancelled
                    turn.set_result(None)
                    return
        self._free += 1
