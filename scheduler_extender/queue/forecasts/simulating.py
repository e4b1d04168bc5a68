"""Processes that simulate on a picture of the cluster: forecasts of starts, and what-if.

One at a time. Each may take 384 MiB, and the limit of the container's memory holds one of them next
to the service: a container that runs out of memory is ended as a whole.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any


class SimulationError(RuntimeError):
    """A process gave no answer: the words say why."""


class Simulating:
    """The holder of `turn` may call `says`, in a thread."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self._child: subprocess.Popen[bytes] | None = None

    def says(self, module: str, picture: bytes, limit_s: float) -> dict[str, Any]:
        """Return what a module answers about a picture within so many seconds. Blocks.

        Raises:
            SimulationError: it did not answer, or was stopped.
        """
        child = self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,  # with the copies of itself that it makes, so that all end
        )
        try:
            answer, complaint = child.communicate(picture, limit_s)
        except subprocess.TimeoutExpired as error:
            raise SimulationError(f"it took more than {limit_s:.0f} s") from error
        finally:
            _end(child)
            child.wait()
            self._child = None
        if child.returncode != 0:
            last = complaint.decode(errors="replace").strip().rpartition("\n")[2]
            raise SimulationError(f"its process ended with {child.returncode}: {last}")
        said: dict[str, Any] = json.loads(answer)
        return said

    def stop(self) -> None:
        """End the process that simulates now, so that the extender ends without its answer."""
        if (child := self._child) is not None:
            _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.returncode is None:
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.killpg(child.pid, signal.SIGKILL)
