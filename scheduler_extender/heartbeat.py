"""Checks in the background whether the services that this process needs answer.

A predictor is asked for loads when jobs come: without a heartbeat, one that died in a quiet hour
would not be noticed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from prometheus_client import CollectorRegistry, Gauge

EVERY_S = 6.0
#: A miss is checked soon: one alone may be a service that is busy.
AGAIN_S = 2.0
#: Misses in a row after which a service counts as silent.
MISSES = 2


class Heartbeat:
    """Asks one service again and again; `ask` says whether it has answered in time."""

    def __init__(
        self, name: str, ask: Callable[[], Awaitable[bool]], registry: CollectorRegistry
    ) -> None:
        self.name = name
        self._ask = ask
        self._misses = 0
        self._up = Gauge(
            f"tandem_extender_{name}_up",
            f"1 while the {name} answers, 0 once it has not twice in a row.",
            registry=registry,
        )
        self._up.set(1)

    @property
    def silent(self) -> bool:
        """True once it has not answered twice in a row."""
        return self._misses >= MISSES

    async def beat(self) -> None:
        """Ask once."""
        self._misses = 0 if await self._ask() else self._misses + 1
        self._up.set(0 if self.silent else 1)

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            await self.beat()
            await asyncio.sleep(AGAIN_S if self._misses == 1 else EVERY_S)
