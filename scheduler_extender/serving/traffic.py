"""Whether a verb is being answered, so that work that can wait lets it go first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

#: kube-scheduler asks the next verb for the same pod within this time of the last answer.
_NEXT_VERB_S = 0.003
_LOOK_S = 0.001


class Traffic:
    """Counts the verbs under way on one event loop."""

    def __init__(self) -> None:
        self._verbs = 0
        self._ended_s = float("-inf")

    @contextmanager
    def verb(self) -> Iterator[None]:
        """Count a verb while it is answered."""
        self._verbs += 1
        try:
            yield
        finally:
            self._verbs -= 1
            self._ended_s = time.monotonic()

    @property
    def flows(self) -> bool:
        """Say whether a verb is under way, or one has ended so recently that the next one comes."""
        return self._verbs > 0 or time.monotonic() - self._ended_s < _NEXT_VERB_S

    async def pause(self, within_s: float) -> None:
        """Return once no verb is under way, at the latest after so many seconds."""
        until_s = time.monotonic() + within_s
        while self.flows and time.monotonic() < until_s:  # noqa: ASYNC110 - it also ends by the clock
            await asyncio.sleep(_LOOK_S)
