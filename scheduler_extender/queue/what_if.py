"""Answers what if a waiting job asked for something else, by the forecast of starts.

On the picture of the latest forecast, in a process of its own: neither a verb nor a round waits for
it. One question at a time; who asks more often waits.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from scheduler_extender.cluster.jobs import rfc3339
from scheduler_extender.cluster.records import Key
from scheduler_extender.planning.forecast_picture import Asked, picture_of
from scheduler_extender.planning.what_if import Change, ChangeError, Span, asked, changed_job
from tandem.policy.catalog import Profile

LIMIT_S = 25.0  # of one answer: the process in front waits for 30 s

Line = dict[str, Any]


class NotAskedError(Exception):
    """There is no answer: the words say why."""


class WhatIf:
    """`latest` returns the picture of the latest forecast, None before there is one.

    `node_with` returns a node with GPUs of a type, by a part of its name; None where there is none.
    """

    def __init__(
        self,
        latest: Callable[[], Asked | None],
        profile: Profile,
        preemption_cost_s: float,
        leads: Callable[[], bool],
        node_with: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        self._latest = latest
        self._profile = profile
        self._preemption_cost_s = preemption_cost_s
        self._leads = leads
        self._node_with = node_with
        self._turn = asyncio.Lock()

    @property
    def leads(self) -> bool:
        """True where this replica plans: the others have no queue to ask."""
        return self._leads()

    async def answer(self, key: Key, change: Change, gpu_type: str = "") -> Line:
        """Return when a job is expected to start and to end, now and with the change.

        `gpu_type` is that of the nodes that the change adds.

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
        async with self._turn:
            return await asyncio.to_thread(self._ask, found, key, change)

    def _ask(self, found: Asked, key: Key, change: Change) -> Line:
        picture, jobs, keys = picture_of(found, self._profile, self._preemption_cost_s)
        rows = [row for row, name in enumerate(keys) if name == key and row not in picture.rows_of]
        if not rows:
            raise NotAskedError("its pods ask for different things: nothing is forecast of it")
        new = changed_job(jobs[rows[0]], change)
        said = _child_says(b"".join(asked(picture, jobs, rows[0], change)))
        now_s = found.question.now_s
        return {
            "asOf": rfc3339(now_s),
            "now": _line(said["now"], now_s) | {"gpus": jobs[rows[0]].gpus},
            "then": _line(said["then"], now_s) | {"gpus": new.gpus},
        }


def _child_says(picture: bytes) -> dict[str, list[Span]]:
    command = [sys.executable, "-P", "-m", "scheduler_extender.planning.what_if"]
    try:
        done = subprocess.run(
            command,
            input=picture,
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )
    except subprocess.TimeoutExpired as error:
        raise NotAskedError(f"it took more than {LIMIT_S:g} s") from error
    if done.returncode != 0:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise NotAskedError(f"its process ended with {done.returncode}: {last}")
    said: dict[str, list[list[float | None]]] = json.loads(done.stdout)
    return {
        case: [(_seconds(start), _seconds(end)) for start, end in draws]
        for case, draws in said.items()
    }


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
