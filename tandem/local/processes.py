"""Child processes that tests stop, kill and start again by name, and that never outlive us."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tandem.errors import TandemError

_EXEC_CHILD = Path(__file__).with_name("exec_child.py")
_LOG_TAIL_LINES = 15
#: A program that ends sooner after its start has a fault of its own: another start cannot help.
_STARTED_S = 10.0

# The kernel sends the death signal when the *thread* that forked ends, not the process, so that
# one thread which lives as long as this process starts every child.
_spawner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tandem-spawner")

#: Below Linux's ephemeral range, so that no outgoing connection takes a port between our choosing
#: it and the program's listening on it.
_PORTS = range(20_000, 32_000)
#: As long as the longest test: a program may come up minutes later, or be down between two starts.
_CLAIM_S = 3600.0


def free_port() -> int:
    """Return a loopback TCP port on which no program listens.

    A program may take minutes until it listens on its port, and does not listen while it starts
    again. So no process of this user gets a port that another one got within the last hour.
    """
    for port in random.SystemRandom().sample(_PORTS, 200):
        if not _claim(port):
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port
    raise TandemError(
        f"no free port on 127.0.0.1 between {_PORTS.start} and {_PORTS.stop - 1}",
        "Stop what listens there: `tandem controlplane down` stops a plane in the background.",
    )


def _claim(port: int) -> bool:
    """Take a port for an hour; return False where a process of this user has it already."""
    folder = Path(tempfile.gettempdir()) / f"tandem-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        given = folder / str(port)
        if given.exists() and time.time() - given.stat().st_mtime < _CLAIM_S:
            return False
        given.touch()
        return True


class Process:
    """A program with its log file, in a process group of its own.

    Start, kill, pause and restart may be called from any thread, in any order.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str | os.PathLike[str]],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        hostname: str = "",
    ) -> None:
        self.name = name
        self.argv = [os.fspath(part) for part in argv]
        self.log = log
        self._env = {**os.environ, **(env or {})}
        self._hostname = hostname
        self._popen: subprocess.Popen[bytes] | None = None
        self._starting = threading.Lock()
        self._started_s = 0.0
        self._ended_by_us = False

    def start(self) -> None:
        """Start the program, unless it runs already; output is appended to the log."""
        with self._starting:
            self._start()

    def _start(self) -> None:
        if not self.running:
            self._ended_by_us = False
            self._started_s = time.monotonic()
            self._popen = _spawner.submit(self._spawn).result()

    def start_if_it_gave_up(self) -> bool:
        """Start the program again if it came up and then ended with an error of its own.

        A kubelet does so for a container. Nothing happens to one that `kill` or `terminate`
        ended, or that a signal ended. Returns whether it was started.
        """
        with self._starting:
            gave_up = (
                (self.exit_code or 0) > 0
                and not self._ended_by_us
                and time.monotonic() - self._started_s > _STARTED_S
            )
            if gave_up:
                self._start()
            return gave_up

    def _spawn(self) -> subprocess.Popen[bytes]:
        shim = [sys.executable, "-I", "-S", str(_EXEC_CHILD), str(os.getpid()), self._hostname]
        with self.log.open("ab") as output:
            return subprocess.Popen(
                [*shim, *self.argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._env,
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        """Whether the program has been started and has not ended (a paused one runs)."""
        return self._popen is not None and self._popen.poll() is None

    @property
    def pid(self) -> int:
        """The process id; raises when the program was never started."""
        if self._popen is None:
            raise TandemError(f"{self.name} was never started")
        return self._popen.pid

    @property
    def exit_code(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        return None if self._popen is None else self._popen.poll()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the program's whole process group; nothing happens if it has ended."""
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def pause(self) -> None:
        """Stop the program where it is (SIGSTOP): it answers nothing and loses nothing."""
        self.send(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused program go on (SIGCONT)."""
        self.send(signal.SIGCONT)

    def kill(self) -> None:
        """End the program at once (SIGKILL), and wait until it is gone."""
        with self._starting:
            self._ended_by_us = True
        self.send(signal.SIGKILL)
        if self._popen is not None:
            self._popen.wait()

    def terminate(self, timeout_s: float = 10.0) -> None:
        """Ask the program to end (SIGTERM); kill it after `timeout_s`."""
        with self._starting:
            self._ended_by_us = True
        self.resume()
        self.send(signal.SIGTERM)
        if self._popen is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(timeout_s)
        self.kill()

    def restart(self) -> None:
        """Kill the program and start it again with the same arguments."""
        self.kill()
        self.start()

    def log_tail(self, lines: int = _LOG_TAIL_LINES) -> str:
        """Return the last lines of the log, or a word that there are none."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:]) or "(the log is empty)"

    def failure(self, what: str) -> TandemError:
        """Return the error that tells what happened, with the end of the log."""
        return TandemError(f"{self.name} {what}; the end of its log:\n{self.log_tail()}")
