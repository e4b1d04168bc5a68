"""What the extender keeps of the process in front: starts it, answers its beats, replaces it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
from collections.abc import Callable
from typing import Any

from scheduler_extender.serving.front import ENDS_S, FrontConfig
from scheduler_extender.serving.metrics import Metrics
from tandem.errors import TandemError

log = logging.getLogger(__name__)

_FIRST_BEAT_S = 60.0
_SILENT_S = 10.0
_AGAIN_S = 0.5
_POLL_S = 0.02


class FrontProcess:
    """The process in front; `tell` returns what each of its beats is answered with."""

    def __init__(
        self, config: FrontConfig, metrics: Metrics, tell: Callable[[], dict[str, Any]]
    ) -> None:
        self._config, self._metrics, self._tell = config, metrics, tell
        self._process: asyncio.subprocess.Process | None = None
        self._served = False
        self.serves = False

    @property
    def pid(self) -> int:
        """Its process id, 0 where there is none at the moment."""
        return self._process.pid if self._process else 0

    async def run(self) -> None:
        """Keep one running until cancelled.

        Raises:
            TandemError: it ended before it had ever served, as where a port is taken.
        """
        try:
            while True:
                await self._one()
                if not self._served:
                    raise TandemError("the public port is not served", "The log says why.")
                self._metrics.front_restarts.inc()
                await asyncio.sleep(_AGAIN_S)
        finally:
            await self._end()

    async def _one(self) -> None:
        """Run one until it ends, or is ended because it does not answer."""
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "scheduler_extender.serving.front",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(self._config.model_dump_json().encode() + b"\n")
        within_s = _FIRST_BEAT_S
        with contextlib.suppress(ConnectionError):  # it has ended
            while True:
                try:
                    # Not `wait_for`: Python 3.11's loses a cancellation that comes with a beat.
                    async with asyncio.timeout(within_s):
                        beat = await process.stdout.readline()
                except TimeoutError:
                    log.error("the process in front is silent, another one follows")
                    break
                if not beat:
                    log.error("the process in front has ended, another one follows")
                    break
                within_s = _SILENT_S
                if not self._heard(json.loads(beat)):
                    log.error("the process in front does not answer, another one follows")
                    break
                process.stdin.write(json.dumps(self._tell()).encode() + b"\n")
        await self._end(at_once=True)

    def _heard(self, beat: dict[str, Any]) -> bool:
        """Take over what it has counted; return whether its event loop turns."""
        for outcome, count in beat["admitted"].items():
            self._metrics.admissions.labels(outcome).inc(count)
        self._metrics.certificate.set(beat["certificate_ends_s"])
        self.serves = beat["serving"]
        self._served |= self.serves
        return not beat["serving"] or bool(beat["stands_still_s"] < _SILENT_S)

    async def _end(self, *, at_once: bool = False) -> None:
        process, self._process = self._process, None
        self.serves = False
        if process is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(ConnectionError, ProcessLookupError, RuntimeError):
            if at_once:
                process.kill()
            else:
                process.stdin.write(b'{"end": true}\n')
        if not await _ended(process, ENDS_S + 1):
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await _ended(process, ENDS_S)


async def _ended(process: asyncio.subprocess.Process, within_s: float) -> bool:
    """Wait until a process has ended; `Process.wait` can miss an end that comes with its pipes'."""
    for _ in range(int(within_s / _POLL_S)):
        if process.returncode is not None:
            return True
        await asyncio.sleep(_POLL_S)
    return False
