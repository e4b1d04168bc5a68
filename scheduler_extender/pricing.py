"""Requests to the predictor for slowdowns of pairs, ahead of the plans that need them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from scheduler_extender.cluster.beliefs import Beliefs
from scheduler_extender.cluster.table import GpuKind
from scheduler_extender.predictions import HttpPredictor

AGAIN_S = 30.0


class Pricing:
    """One class of loads after the other, each against all that are known. On the event loop."""

    def __init__(
        self,
        predictor: HttpPredictor,
        beliefs: Beliefs,
        gpu_kind: Callable[[], GpuKind | None],
        clock: Callable[[], float],
    ) -> None:
        self._predictor = predictor
        self._beliefs = beliefs
        self._gpu_kind = gpu_kind
        self._clock = clock
        self._again_s = 0.0
        self._task: asyncio.Task[None] | None = None

    async def ask(self) -> None:
        """Have all new classes priced; where the predictor is away, the formula holds meanwhile."""
        while self._clock() >= self._again_s:
            asked = self._beliefs.to_ask()
            if asked is None:
                return
            index, load, others, candidates = asked
            gpu = GpuKind(load.gpu_model, 0) if load.gpu_model else self._gpu_kind()
            answer = await self._predictor.interference(load, candidates, gpu)
            if answer is None:
                self._beliefs.not_said(index)
                self._again_s = self._clock() + AGAIN_S
                return
            self._beliefs.said(index, others, answer)

    def step(self) -> None:
        """Ask for what is left, beside everything else."""
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self.ask())

    def stop(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()
