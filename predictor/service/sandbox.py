"""Parses graphs of strangers in child processes that can do nothing but compute.

A fork server (`predictor.service.sandbox_worker`) imports onnx once and forks a child for each
graph, so a parse costs no start-up and each child dies with whatever a graph did to it. A child has
limits on memory, CPU and wall time, sits in an empty directory that it cannot write, and may open
no file and no socket (RLIMIT_NOFILE is zero): it reads the graph from the one connection it was
given, and writes its answer there.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Annotated

from pydantic import Field

from predictor.errors import GraphError, Refusal, SandboxUnavailableError
from predictor.graph.skim import Skimmer
from tandem.contracts.resources import GraphFeatures
from tandem.settings import Section

log = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 20
_START_TIMEOUT_S = 30.0
_MAX_ANSWER_BYTES = 8 << 20
#: Beyond the child's own wall limit, before we stop listening to it.
_GRACE_S = 2.0


class SandboxLimits(Section):
    """The limits of one parse."""

    memory_bytes: Annotated[int, Field(gt=0)] = 1 << 30
    cpu_s: Annotated[int, Field(gt=0)] = 10
    wall_s: Annotated[float, Field(gt=0)] = 15.0
    graph_bytes: Annotated[int, Field(gt=0)] = 32 << 20
    parallel: Annotated[int, Field(gt=0)] = 2


@dataclass(frozen=True)
class ParsedModel:
    """A file that was read to its end: its features, its hash and its size."""

    features: GraphFeatures
    feature_hash: str
    file_sha256: str
    file_bytes: int


class Sandbox:
    """A fork server and the way to it; safe to use from many threads, and as a context manager."""

    def __init__(self, limits: SandboxLimits | None = None) -> None:
        self._limits = limits or SandboxLimits()
        self._free = threading.BoundedSemaphore(self._limits.parallel)
        self._lock = threading.Lock()
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    @property
    def limits(self) -> SandboxLimits:
        """The limits of each parse."""
        return self._limits

    def start(self) -> None:
        """Start the fork server now, instead of at the first graph."""
        with self._lock:
            self._running()

    def parse_file(self, chunks: Iterable[bytes]) -> ParsedModel:
        """Return the features of an ONNX file that comes in chunks; its weights are not kept.

        Raises GraphError.
        """
        skimmer = Skimmer(self._limits.graph_bytes)
        for chunk in chunks:
            skimmer.feed(chunk)
        return self.parse_skimmed(skimmer)

    def parse_skimmed(self, skimmer: Skimmer) -> ParsedModel:
        """Return the features of a file that was fed to `skimmer`; raises GraphError."""
        features, digest = self._parse(skimmer.finish())
        return ParsedModel(features, digest, skimmer.file_sha256, skimmer.file_bytes)

    def close(self) -> None:
        """Stop the fork server; parses under way end with an error."""
        with self._lock:
            if self._control is not None:
                self._control.close()  # the fork server ends when its connection does
                self._control = None
            if self._server is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._server.wait(timeout=_GRACE_S)
                self._end_server()
                self._server = None
            if self._directory is not None:
                Path(self._directory.name).chmod(0o700)
                self._directory.cleanup()
                self._directory = None

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _parse(self, graph: bytes) -> tuple[GraphFeatures, str]:
        with self._free:
            answer = self._ask(graph)
        if "error" in answer:
            refusal = Refusal(str(answer["refusal"]))
            raise GraphError(refusal, str(answer["error"]), str(answer["hint"]))
        return GraphFeatures.model_validate(answer["features"]), str(answer["hash"])

    def _ask(self, graph: bytes) -> dict[str, object]:
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                self._hand_over(theirs)
            deadline = time.monotonic() + self._limits.wall_s + _GRACE_S
            ours.settimeout(self._limits.wall_s + _GRACE_S)
            try:
                # A child that died stops reading; why it did comes back all the same.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    ours.sendall(struct.pack("!Q", len(graph)))
                    ours.sendall(graph)
                answer = _receive_answer(ours, deadline)
            except TimeoutError:
                raise GraphError(
                    Refusal.TIMEOUT,
                    f"Reading the graph took longer than {self._limits.wall_s:.0f} s.",
                    "Push a smaller or simpler graph, or raise the predictor's limit.",
                ) from None
        if answer is None:
            raise GraphError(
                Refusal.CRASHED,
                "The process that reads graphs ended without an answer.",
                "Push the model again; if that fails too, the graph is at fault.",
            )
        return answer

    def _hand_over(self, connection: socket.socket) -> None:
        """Give the fork server a connection to read a graph from."""
        with self._lock:
            try:
                socket.send_fds(self._running(), [b"g"], [connection.fileno()])
            except ConnectionError:  # it ended a moment ago
                self._end_server()
                socket.send_fds(self._running(), [b"g"], [connection.fileno()])

    def _end_server(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.wait()

    def _running(self) -> socket.socket:
        """Return the connection to a fork server that lives; the lock must be held."""
        if self._control is not None and self._server is not None and self._server.poll() is None:
            return self._control
        if self._server is not None:
            log.warning("fork server ended code=%s, starting another", self._server.returncode)
        if self._control is not None:
            self._control.close()
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(prefix="tandem-sandbox-")
            Path(self._directory.name).chmod(0o500)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        limits = self._limits
        with theirs:
            self._server = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "predictor.service.sandbox_worker",
                    str(theirs.fileno()),
                    str(limits.memory_bytes),
                    str(limits.cpu_s),
                    str(limits.wall_s),
                    str(limits.graph_bytes),
                ],
                pass_fds=[theirs.fileno()],
                cwd=self._directory.name,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                process_group=0,  # an interrupt at the terminal is for us to handle
            )
        self._control = ours
        ours.settimeout(_START_TIMEOUT_S)
        try:
            ready = ours.recv(16)
        except OSError:
            ready = b""
        if ready != b"ready":
            self._end_server()
            raise SandboxUnavailableError(
                "The process that reads graphs does not start.", "The predictor's log says why."
            )
        return ours


def _environment() -> dict[str, str]:
    """Give the fork server what Python needs to find its modules, and no secret of ours."""
    kept = ("PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "LANG")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    # One thread: a process that forks must not have others.
    return environment | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def _receive_answer(connection: socket.socket, deadline: float) -> dict[str, object] | None:
    """Return the answer: a length of 8 bytes, then JSON. None when the other side ended early."""
    received = bytearray()
    size = 8
    while len(received) < size:
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            chunk = connection.recv(_CHUNK_BYTES)
        except ConnectionResetError:
            return None
        if not chunk:
            return None
        received += chunk
        if size == 8 and len(received) >= 8:
            size = 8 + struct.unpack_from("!Q", received)[0]
            if size > _MAX_ANSWER_BYTES:
                raise GraphError(Refusal.TOO_LARGE, "The graph has too many kinds of operators.")
    answer: dict[str, object] = json.loads(received[8:size])
    return answer
