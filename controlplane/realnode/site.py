"""The network and the control groups of one plane with real nodes, and what a killed one left.

A plane takes one of a few numbers. Bridge, addresses and control groups carry the number, and a
locked file says that a living process uses it. A guard process removes what a killed plane leaves,
and gives the number back afterwards. Where the guard was killed as well, the process that takes
the number removes what is left.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

from tandem.errors import TandemError

CGROUPS = Path("/sys/fs/cgroup")
#: Each plane has sixteen /24 networks of pods, one for each of its nodes.
MAX_PLANES = MAX_NODES = 16

_INTERFACES = Path("/sys/class/net")
_LOCKS = Path("/run/tandem")
_REMOVAL_S = 10.0
_POLL_S = 0.05


def ip(*args: str, check: bool = True) -> str:
    """Run `ip` and return what it prints; with `check`, raise TandemError when it fails."""
    answer = subprocess.run(["ip", *args], capture_output=True, text=True, check=False)
    if check and answer.returncode:
        raise TandemError(f"ip {' '.join(args)}: {answer.stderr.strip()}")
    return answer.stdout


class Site:
    """One number, and the bridge in this machine's network namespace that it names.

    `address` is the machine's own address on the bridge: the API server listens there.
    """

    def __init__(self) -> None:
        self.number, self._lock = _take_number()
        self.bridge = f"tandem{self.number}"
        self.address = f"10.213.{self.number}.1"
        first = self.number * MAX_NODES
        self.service_cidr = f"10.214.{first}.0/20"
        self.pod_cidr = f"10.215.{first}.0/20"
        self.dns_address = f"10.214.{first}.10"
        #: The first address of the range is that of the Service `kubernetes`.
        self.api_service_address = f"10.214.{first}.1"
        self.cgroup = f"tandem-{self.number}"
        self._guard: subprocess.Popen[bytes] | None = None
        self.remove()
        ip("link", "add", self.bridge, "type", "bridge")
        ip("address", "add", f"{self.address}/24", "dev", self.bridge)
        ip("link", "set", self.bridge, "up")

    def node_address(self, index: int) -> str:
        """Return the address of node number `index`."""
        return f"10.213.{self.number}.{10 + index}"

    def node_pod_cidr(self, index: int) -> str:
        """Return the network of the pods of node number `index`."""
        return f"10.215.{self.number * MAX_NODES + index}.0/24"

    def route(self, cidr: str, address: str) -> None:
        """Reach `cidr` by the node that has `address`; the route goes with the bridge."""
        ip("route", "replace", cidr, "via", address, "dev", self.bridge)

    def guard(self, folder: Path) -> None:
        """Start the process that removes everything, and `folder`, when this process ends.

        It holds the lock as well, so that no other plane takes the number before.
        """
        self._guard = subprocess.Popen(
            [sys.executable, "-P", __file__, self.bridge, self.cgroup, str(folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,  # a signal from the terminal must not end it
            pass_fds=[self._lock.fileno()],
        )

    def remove(self) -> None:
        """Remove the bridge with its routes, and the control groups; may be called twice."""
        _remove(self.bridge, self.cgroup)

    def close(self) -> None:
        """Remove everything and give the number back; may be called twice."""
        if self._lock.closed:
            return  # the number may be another plane's by now
        self.remove()
        if self._guard is not None:
            self._guard.communicate()
        self._lock.close()


def _remove(bridge: str, cgroup: str) -> None:
    # The kernel removes the network of an ended node only when its last TCP connection has timed
    # out, and the node's port of the bridge with it: minutes later.
    with contextlib.suppress(FileNotFoundError):
        for port in (_INTERFACES / bridge / "brif").iterdir():
            ip("link", "delete", port.name, check=False)
    ip("link", "delete", bridge, check=False)
    for hierarchy in cgroup_hierarchies():
        remove_cgroup(hierarchy / cgroup)


def _take_number() -> tuple[int, IO[str]]:
    _LOCKS.mkdir(parents=True, exist_ok=True)
    for number in range(MAX_PLANES):
        lock = (_LOCKS / f"site-{number}.lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        return number, lock
    raise TandemError(f"{MAX_PLANES} planes with real nodes run on this machine already")


def cgroup_hierarchies() -> list[Path]:
    """Return the mount points of the control groups: one under v2, one a controller under v1."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    folders = [entry for entry in sorted(CGROUPS.iterdir()) if entry.is_dir()]
    return [entry for entry in folders if (entry / "cgroup.procs").exists()]


def remove_cgroup(group: Path) -> None:
    """Kill what runs in a control group, and remove it with all groups below.

    Raises TandemError when a process stays for ten seconds.
    """
    deadline = time.monotonic() + _REMOVAL_S
    while group.exists():
        for folder, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(OSError):
                for pid in (Path(folder) / "cgroup.procs").read_text().split():
                    os.kill(int(pid), 9)
            with contextlib.suppress(OSError):
                Path(folder).rmdir()
        if group.exists() and time.monotonic() > deadline:
            raise TandemError(f"the control group {group} cannot be removed")
        time.sleep(_POLL_S if group.exists() else 0)


def _main() -> None:
    """Wait until the process at the other end of the pipe has ended; remove what it left."""
    sys.stdin.buffer.read()
    bridge, cgroup, folder = sys.argv[1:]
    _remove(bridge, cgroup)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _main()
