"""Answers what if a waiting job asked for something else, by the forecast of starts.

On the picture of the latest forecast, in a process of its own: neither a verb nor a round waits for
it. One question at a time, and none while a forecast is made: the limit of the container's memory
holds one such process next to the service.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from scheduler_extender.cluster.jobs import rfc3339
from scheduler_extender.cluster.records import Key
from scheduler_extender.planning.forecast_picture import Asked, picture_of
from scheduler_extender.planning.what_if import (
    Change,
    ChangeError,
    OtherLoad,
    Span,
    asked,
    changed,
    never_fits,
)
from scheduler_extender.queue.forecasts.simulating import Simulating, SimulationError
from tandem.policy.catalog import Profile
from tandem.policy.job import Job
from tandem.policy.units import BYTES_PER_GIB

LIMIT_S = 25.0  # of one answer, its turn included: the process in front waits for 30 s

_MODULE = "scheduler_extender.planning.what_if"

Line = dict[str, Any]


class NotAskedError(Exception):
    """There is no answer: the words say why."""


class WhatIf:
    """`latest` returns the picture of the latest forecast, None before there is one.

    `node_with` returns a node with GPUs of a type, by a part of its name; None where there is none.
    `at_batch_size` returns the load of a job at another batch size, or raises ChangeError.
    """

    def __init__(
        self,
        latest: Callable[[], Asked | None],
        profile: Profile,
        preemption_cost_s: float,
        leads: Callable[[], bool],
        simulating: Simulating,
        node_with: Callable[[str], str | None],
        at_batch_size: Callable[[Key, int], Awaitable[OtherLoad]],
    ) -> None:
        self._latest = latest
        self._profile = profile
        self._preemption_cost_s = preemption_cost_s
        self._leads = leads
        self._node_with = node_with
        self._at_batch_size = at_batch_size
        self._simulating = simulating
        self._answers: set[asyncio.Task[Line]] = set()

    @property
    def leads(self) -> bool:
        """True where this replica plans: the others have no queue to ask."""
        return self._leads()

    async def answer(
        self, key: Key, change: Change, gpu_type: str = "", batch_size: int | None = None
    ) -> Line:
        """Return when a job is expected to start and to end, now and with the change.

        `gpu_type` is that of the nodes that the change adds, `batch_size` that of each GPU.

        Raises:
            NotAskedError: nothing is forecast of this job.
            ChangeError: it cannot ask for that.
        """
        found = self._latest()
        if found is None:
            raise NotAskedError("there is no forecast yet: the first one comes within minutes")
        if key not in found.question.starts:
            raise NotAskedError(
                "nothing is forecast of it: it does not wait, is new, or is too far back in the "
                "queue"
            )
        if change.nodes:
            node, names = self._node_with(gpu_type), found.question.snapshot.node_names
            if node not in names:
                raise ChangeError(f"no node has GPUs of a type {gpu_type!r}")
            change = replace(change, like=names.index(node))
        if batch_size is not None:
            change = replace(change, load=await self._at_batch_size(key, batch_size))
        # A reader that goes away does not end the process, which keeps its turn until it has ended.
        answer = asyncio.create_task(self._in_turn(found, key, change))
        self._answers.add(answer)
        answer.add_done_callback(self._answers.discard)
        return await asyncio.shield(answer)

    async def _in_turn(self, found: Asked, key: Key, change: Change) -> Line:
        until_s = time.monotonic() + LIMIT_S
        try:
            await asyncio.wait_for(self._simulating.turn.acquire(), LIMIT_S)
        except TimeoutError as error:
            words = "a forecast is being made, or others ask as well: try again in a minute"
            raise NotAskedError(words) from error
        try:
            return await asyncio.to_thread(self._ask, found, key, change, until_s)
        finally:
            self._simulating.turn.release()

    def _ask(self, found: Asked, key: Key, change: Change, until_s: float) -> Line:
        picture, jobs, keys = picture_of(found, self._profile, self._preemption_cost_s)
        rows = [row for row, name in enumerate(keys) if name == key and row not in picture.rows_of]
        if not rows:
            raise NotAskedError("its pods ask for different things: nothing is forecast of it")
        then, with_change = changed(picture, jobs, rows[0], change)
        now_s, row = found.question.now_s, rows[0]
        cases = {"now": (picture, jobs[row]), "then": (then, with_change[row])}
        content = b"".join(asked(picture, jobs, rows[0], change))
        try:
            said = self._simulating.says(_MODULE, content, max(0.0, until_s - time.monotonic()))
        except SimulationError as error:
            raise NotAskedError(str(error)) from error
        loads = _loads(change, *(job for _, job in cases.values()))
        return {"asOf": rfc3339(now_s)} | {
            case: _line(_spans(said[case]), now_s)
            | {"gpus": job.gpus}
            | ({"never": why} if (why := never_fits(there, job)) else {})
            | load
            for (case, (there, job)), load in zip(cases.items(), loads, strict=True)
        }


def _loads(change: Change, *jobs: Job) -> list[Line]:
    """Return what a worker of each job uses, where the change is one of the batch size."""
    if change.load is None:
        return [{} for _ in jobs]
    return [
        {
            "memoryBytes": round(job.memory_peak_gib * BYTES_PER_GIB),
            "utilisationPercent": job.gpu_utilisation,
            "iterationSeconds": iteration_s,
        }
        for job, iteration_s in zip(jobs, change.load.iteration_s, strict=True)
    ]


def _spans(said: Sequence[Sequence[float | None]]) -> list[Span]:
    return [(_seconds(start), _seconds(end)) for start, end in said]


def _seconds(time_s: float | None) -> float:
    return math.inf if time_s is None else time_s


def _line(draws: Sequence[Span], now_s: float) -> Line:
    """Return between which times it starts and ends four times in five, of nine draws."""
    return {
        name: {"earliest": _time(min(times), now_s), "latest": _time(max(times), now_s)}
        for name, times in (("start", [s for s, _ in draws]), ("end", [e for _, e in draws]))
    }


def _time(time_s: float, now_s: float) -> str | None:
    """Return a time to the second; None beyond what is forecast."""
    if not math.isfinite(time_s):
        return None
    return rfc3339(math.floor(now_s + time_s)).replace(".000000", "")
