"""When the workload of a gang without live pods is read, to see whether it has ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.records import Key
from scheduler_extender.queue import decisions
from scheduler_extender.queue.effects import Executor

_AGAIN_S = 2.0  # a workload without pods that has not ended is read again; doubled each time
_LONGEST_S = 60.0


@dataclass(slots=True)
class _Read:
    """When the workload of a gang without live pods is read: first, and next (Unix time)."""

    since_s: float
    pods: int  # of the gang when it was read last
    next_s: float = field(default=0.0)


class Completion:
    """How gangs end. All methods run on the event loop."""

    def __init__(
        self, executor: Executor, clock: Callable[[], float], later: Callable[[Key, float], None]
    ) -> None:
        self._executor = executor
        self._clock = clock
        self._later = later
        self._without_pods: dict[Key, _Read] = {}

    def forget(self, key: Key) -> None:
        """Forget a gang that is gone, or that has pods again."""
        self._without_pods.pop(key, None)

    def step(self, gang: Gang) -> Awaitable[None] | None:
        """Return what is to be done about a gang whose pods have all ended or are gone, if any."""
        now = self._clock()
        read = self._without_pods.setdefault(gang.key, _Read(now, len(gang.pods)))
        if read.pods != len(gang.pods):
            read.pods, read.next_s = len(gang.pods), now
        if now < read.next_s and not gang.gone:
            self._later(gang.key, read.next_s)
            return None
        read.next_s = now + min(max(_AGAIN_S, now - read.since_s), _LONGEST_S)
        self._later(gang.key, read.next_s)
        return self._executor.carry_out(gang, decisions.end(gang, now))
