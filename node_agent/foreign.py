"""Memory in use that no listed process holds: whose is it? Pure.

A driver lists no process where a container runtime hides the PIDs, where a process has ended and
left its memory behind, or where it gives no figure. What is in use all the same is either that of
a pod of ours, whose memory the scheduler has reserved already, or of others, and then it is not
there for jobs. docs/decisions/0048 has the reasons.
"""

from __future__ import annotations

import math
from collections import deque

#: A pod is known to the agent this long after it was placed at the latest (the extender is asked
#: every 30 s); until then its memory may look like that of others.
PLACED_KNOWN_S = 60.0
#: Less than this is the driver's: contexts and page tables are in use, and in no process's figure.
NOISE_BYTES, NOISE_SHARE = 512 << 20, 1 / 64
#: What the driver reserves, where it counts that as used and does not say how much it is.
RESERVE_BYTES, RESERVE_SHARE = 1 << 30, 1 / 32


class Unlisted:
    """The unlisted memory of one GPU over time, and the part of it that is of others."""

    def __init__(self) -> None:
        self._before: int | None = None
        self._foreign: deque[tuple[float, int]] = deque()

    def forget(self) -> None:
        """Forget what was: the GPU could not be read."""
        self._before = None
        self._foreign.clear()

    def foreign(
        self, now_s: float, total: int, unlisted: int, ours: float, *, reserve_known: bool
    ) -> int:
        """Return the bytes that are of others.

        `unlisted` is what is in use and no process holds, `ours` the most that pods of ours which
        the driver does not list may hold, infinite where that is not known; `reserve_known`: what
        the driver reserves is not in `unlisted`.

        Pods explain what has come since they are there, and not what was of others before. A
        reading counts when the next one has confirmed it: a process may have ended between the
        reading of the memory and that of the processes.
        """
        if not reserve_known:
            unlisted -= min(RESERVE_BYTES, round(RESERVE_SHARE * total))
        if unlisted < min(NOISE_BYTES, NOISE_SHARE * total):
            unlisted = 0
        before, self._before = self._before, unlisted
        held = unlisted if before is None else min(unlisted, before)
        while self._foreign and self._foreign[0][0] < now_s - PLACED_KNOWN_S:
            self._foreign.popleft()
        # The least of a while: what a pod held before the agent knew it was no others' memory.
        known = min((value for _, value in self._foreign), default=0)
        beyond = 0 if math.isinf(ours) else max(0, held - int(ours))
        found = max(beyond, min(known, held)) if ours else held
        self._foreign.append((now_s, found))
        return found
