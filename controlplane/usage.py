"""Resources that a service uses: its process and every process that it started."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tandem.local.processes import Process

_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


@dataclass(frozen=True)
class Usage:
    """Resident memory in MiB, open descriptors and threads, summed over the processes.

    A page that two processes share counts twice, so the memory is an upper bound of what a
    container with these processes is charged for.
    """

    resident_mib: float = 0.0
    descriptors: int = 0
    threads: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.resident_mib + other.resident_mib,
            self.descriptors + other.descriptors,
            self.threads + other.threads,
        )


def usage(process: Process) -> Usage:
    """Return what a process and its descendants take now; one that ends meanwhile counts 0."""
    total = Usage()
    for pid in _family(process.pid):
        with contextlib.suppress(OSError):
            total += _of(pid)
    return total


def resident_mib(pid: int) -> float:
    """Return the resident memory of one process in MiB; raises OSError where there is none."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_MIB


def _of(pid: int) -> Usage:
    folder = Path(f"/proc/{pid}")
    return Usage(resident_mib(pid), _entries(folder / "fd"), _entries(folder / "task"))


def _entries(folder: Path) -> int:
    return sum(1 for _ in folder.iterdir())


def _family(pid: int) -> Iterable[int]:
    """Yield a process and its descendants: /proc lists the children of each thread."""
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):
            for child in (task / "children").read_text().split():
                yield from _family(int(child))


class Peaks:
    """Samples services in a thread and keeps the largest memory of each, in MiB."""

    def __init__(self, services: dict[str, Process], every_s: float = 0.5) -> None:
        self._services, self._every_s = services, every_s
        self.resident_mib = dict.fromkeys(services, 0.0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Peaks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._over.wait(self._every_s):
            for name, process in self._services.items():
                now = usage(process).resident_mib
                self.resident_mib[name] = max(self.resident_mib[name], now)
