"""The work queue: one action at a time for each gang, a few gangs at once."""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import inf

from scheduler_extender.cluster.records import Key
from tandem.kube.errors import Conflict, Forbidden, Invalid, KubeError, NotFound, Unavailable

log = logging.getLogger(__name__)

#: How long deciding may hold the event loop before a verb gets its turn.
SLICE_S = 0.002
#: Tasks that begin in one turn of the event loop; each takes up to a millisecond until it waits.
AT_ONCE = 3
#: What has failed is tried again after this. The pause doubles with each failure in a row, up to
#: `LONGEST_S` where others may be the cause (the API server is away, somebody was faster), and to
#: `REFUSED_S` where the object itself is.
_AGAIN_S, LONGEST_S, REFUSED_S = 1.0, 8.0, 300.0
#: After so many failures in a row, changes of the object do not shorten the pause either.
_AT_ONCE_AFTER = 2


class RefusedError(Exception):
    """An action cannot be done until its object changes; its owner has been notified."""


@dataclass(slots=True)
class _Failures:
    """Failures in a row: the last error, and until when the key rests whatever happens."""

    count: int = 0
    notified: str = ""
    rests_until_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ExternalWork:
    """Work that waits for another service: it takes none of the places for decisions."""

    work: Awaitable[None]


class Waiting:
    """The keys that wait to be looked at. Namespaces take turns, so that one waits for no other's.

    Within a namespace the oldest comes first; a key that is added again keeps its place.
    """

    def __init__(self) -> None:
        self._of: dict[str, dict[Key, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: Key) -> bool:
        return key in self._of.get(key[0], ())

    def add(self, key: Key) -> None:
        """Put a key last in its namespace, if it is not there already."""
        keys = self._of.setdefault(key[0], {})
        self._count += key not in keys
        keys[key] = None

    def take(self) -> Key:
        """Remove and return the first key of the namespace whose turn it is."""
        namespace, keys = next(iter(self._of.items()))
        key = next(iter(keys))
        del keys[key], self._of[namespace]
        if keys:
            self._of[namespace] = keys  # its next turn comes after all others
        self._count -= 1
        return key


class Turns:
    """Lets a few tasks begin in each turn of the event loop.

    A task runs until it first waits. Those that are made together begin in one turn, and hold the
    loop until the last has begun.
    """

    def __init__(self) -> None:
        self._begun = 0  # in this turn
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Wait for the turn in which the caller may begin; first come, first served."""
        loop = asyncio.get_running_loop()
        if self._begun == 0:
            loop.call_soon(self._next)
        if self._begun < AT_ONCE:
            self._begun += 1
            return
        mine = loop.create_future()
        self._waiting.append(mine)
        await mine

    def _next(self) -> None:
        self._begun = 0
        while self._waiting and self._begun < AT_ONCE:
            turn = self._waiting.popleft()
            if not turn.done():  # its task may have been cancelled
                turn.set_result(None)
                self._begun += 1
        if self._begun:
            asyncio.get_running_loop().call_soon(self._next)


Step = Callable[[Key], Awaitable[None] | ExternalWork | None]
Refused = Callable[[Key, KubeError], Awaitable[None]]


class WorkQueue:
    """Keys whose picture has changed, and the tasks that write what follows.

    `step` decides, without waiting, what is to be done about a key; what it returns runs as a task,
    `parallel` of them at most; those that wait `ExternalWork` do not count. A key is not looked at
    while its task runs, and again afterwards: at once where its picture has changed, else after a
    second. After failures the pauses grow, and after a refusal that cannot change it is looked at
    when its picture changes; `refused` tells its owner of refusals, once of each.
    """

    def __init__(
        self,
        step: Step,
        clock: Callable[[], float],
        parallel: int,
        refused: Refused | None = None,
    ) -> None:
        self._step = step
        self._refused = refused
        self._failed: dict[Key, _Failures] = {}
        self._clock = clock
        self._parallel = parallel
        self._dirty = Waiting()
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._elsewhere: set[Key] = set()  # those of the tasks that take no place
        self._timers: list[tuple[float, Key]] = []
        self._due: dict[Key, float] = {}
        self._scheduled = False
        self._turns = Turns()
        self._holds = 1
        self.failures = 0

    @property
    def pending(self) -> int:
        """Keys that wait to be looked at."""
        return len(self._dirty)

    def busy(self, key: Key) -> bool:
        """Say whether something is being done about a key, has yet to be decided, or rests."""
        return key in self._tasks or key in self._dirty or self._rests_until_s(key) > self._clock()

    def add(self, key: Key) -> None:
        """Have a key looked at soon."""
        self._dirty.add(key)
        self._schedule()

    def forget(self, key: Key) -> None:
        """Forget the failures of a key that is gone."""
        self._failed.pop(key, None)

    def later(self, key: Key, at_s: float) -> None:
        """Have a key looked at at a time, or before it if it is due earlier already.

        Only the earliest time is kept: each look asks anew for what it waits for.
        """
        known = self._due.get(key)
        if known is None or at_s < known:
            self._due[key] = at_s
            heapq.heappush(self._timers, (at_s, key))

    def do(self, key: Key, work: Awaitable[object]) -> None:
        """Do this about a key now, in addition to the `parallel` others; it must not be busy."""
        self._tasks[key] = asyncio.ensure_future(self._guard(key, work, planned=True))

    def hold(self) -> None:
        """Decide nothing until `go`; what is under way goes on."""
        self._holds += 1

    def go(self) -> None:
        """Decide again."""
        self._holds -= 1
        self._schedule()

    def wake(self) -> None:
        """Take in the keys whose time has come."""
        now = self._clock()
        while self._timers and self._timers[0][0] <= now:
            at_s, key = heapq.heappop(self._timers)
            if self._due.get(key) == at_s:
                del self._due[key]
                self.add(key)

    def stop(self) -> list[asyncio.Task[None]]:
        """Cancel what is under way and return it."""
        self._holds += 1
        for task in self._tasks.values():
            task.cancel()
        return list(self._tasks.values())

    def _schedule(self) -> None:
        if self._dirty and not self._holds and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._scheduled = False
        start = time.perf_counter()
        passed_over: list[Key] = []
        while self._dirty and not self._holds and time.perf_counter() - start < SLICE_S:
            if not self._has_place():
                break
            key = self._dirty.take()
            if key in self._tasks:
                passed_over.append(key)
                continue
            if (rests_until_s := self._rests_until_s(key)) > self._clock():
                self.later(key, rests_until_s)
                continue
            try:
                work = self._step(key)
            except Exception as error:
                # A bug in one decision must not stop all others; it is counted and seen in the log.
                log.exception("gang not looked at key=%s", key)
                self.failures += 1
                self.later(key, self._clock() + self._pause_s(key, error))
                continue
            if isinstance(work, ExternalWork):
                self._elsewhere.add(key)
                work = work.work
            if work is not None:
                self._tasks[key] = asyncio.ensure_future(self._guard(key, work, planned=False))
        for key in passed_over:
            self._dirty.add(key)
        # With all hands busy, or nothing but busy keys left, the end of a task goes on.
        if self._has_place() and len(self._dirty) > len(passed_over):
            self._schedule()

    def _has_place(self) -> bool:
        return len(self._tasks) - len(self._elsewhere) < self._parallel

    async def _guard(self, key: Key, work: Awaitable[object], *, planned: bool) -> None:
        """Do it; look at the key again at once where that was planned, else when it changes."""
        pause_s: float = _AGAIN_S
        try:
            await self._turns.take()
            await work
            self._failed.pop(key, None)
            if planned:
                self._dirty.add(key)
        except asyncio.CancelledError:
            if asyncio.iscoroutine(work):
                work.close()  # it may never have begun
            raise
        except RefusedError as error:
            pause_s = self._pause_s(key, error)
        except (Conflict, NotFound) as error:
            # Somebody was faster; the watch will tell, and at the latest we look again.
            pause_s = self._pause_s(key, error)
        except KubeError as error:
            log.warning("write failed key=%s error=%r", key, str(error))
            pause_s = self._pause_s(key, error)
            if isinstance(error, Invalid | Forbidden):
                await self._tell_refused(key, error)
        except Exception as error:
            log.exception("act failed key=%s", key)
            self.failures += 1
            pause_s = self._pause_s(key, error)
        finally:
            del self._tasks[key]
            self._elsewhere.discard(key)
        if key not in self._dirty and pause_s != inf:
            self.later(key, self._clock() + pause_s)
        self._schedule()

    def _rests_until_s(self, key: Key) -> float:
        failed = self._failed.get(key)
        return failed.rests_until_s if failed is not None else 0.0

    def _pause_s(self, key: Key, error: Exception) -> float:
        """Count a failure; return after how long it is tried again, infinite where that is vain."""
        failed = self._failed.setdefault(key, _Failures())
        failed.count += 1
        others = isinstance(error, Conflict | NotFound | Unavailable)
        longest_s = LONGEST_S if others else REFUSED_S
        pause_s = min(longest_s, _AGAIN_S * 2 ** min(failed.count - 1, 30))
        if failed.count > _AT_ONCE_AFTER:
            failed.rests_until_s = self._clock() + pause_s
        return inf if isinstance(error, Invalid | RefusedError) else pause_s

    async def _tell_refused(self, key: Key, error: KubeError) -> None:
        failed = self._failed[key]
        if self._refused is None or failed.notified == str(error):
            return
        failed.notified = str(error)
        try:
            await self._refused(key, error)
        except KubeError as other:
            log.warning("refusal not reported key=%s error=%r", key, str(other))
