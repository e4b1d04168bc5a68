"""Starts, asks and ends the processes of configurations."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
_TAIL = 300
_END_S = 5.0
#: Until PyTorch is imported, on a machine with much else to do.
_START_S = 180.0


class Failed(Exception):  # noqa: N818 - an outcome to record, not an error of ours
    """A process did not do what it was asked; `status` is oom, error, crashed or timeout."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Worker:
    """One process; ask it, then end it."""

    def __init__(self, backend: str, device: str) -> None:
        path = os.pathsep.join(p for p in (str(_ROOT), os.environ.get("PYTHONPATH")) if p)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "predictor.collect.worker", backend, device],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            env=os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        self._answers: queue.Queue[bytes] = queue.Queue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self._greeted = False

    def ask(self, timeout_s: float, **question: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
        """Return the answer; raises Failed, after which the process is to be ended."""
        self.tell(**question)
        return self.hear(timeout_s)

    def tell(self, **question: Any) -> None:  # noqa: ANN401 - JSON
        """Ask without waiting for the answer."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # hear() says why
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()

    def hear(self, timeout_s: float) -> dict[str, Any]:
        """Return the answer to the last question; raises Failed."""
        if not self._greeted:  # it says first that it is there
            self._next(_START_S)
            self._greeted = True
        answer = self._next(timeout_s)
        if "ok" not in answer:
            raise Failed(answer["status"], answer["error"])
        found: dict[str, Any] = answer["ok"]
        return found

    def end(self) -> None:
        """End the process, whatever it is at."""
        self._process.kill()
        self._process.wait(_END_S)
        self._listener.join(_END_S)
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()

    def _next(self, timeout_s: float) -> dict[str, Any]:
        try:
            line = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            raise Failed("timeout", f"no answer in {timeout_s:.0f} s") from None
        if not line:
            self._process.wait(_END_S)
            self._errors.seek(0)
            last = self._errors.read()[-_TAIL:].decode("utf-8", "replace")
            raise Failed("crashed", f"ended with code {self._process.returncode}: {last}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError):  # closed by end()
            for line in self._process.stdout:
                self._answers.put(line)
        self._answers.put(b"")


class Pool:
    """Keeps some processes warm: importing PyTorch takes seconds, and their turn is short."""

    def __init__(self, backend: str, device: str, size: int) -> None:
        self._backend, self._device = backend, device
        self._size = size
        self._warm: list[Worker] = []

    def take(self) -> Worker:
        """Return a warm process and start the next."""
        worker = self._warm.pop(0) if self._warm else Worker(self._backend, self._device)
        self.fill()
        return worker

    def fill(self) -> None:
        """Start as many processes as are to be warm."""
        while len(self._warm) < self._size:
            self._warm.append(Worker(self._backend, self._device))

    def close(self) -> None:
        """End all that wait."""
        while self._warm:
            self._warm.pop().end()
