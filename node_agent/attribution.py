"""Whose process is it? From a host PID to the container and the pod, by its cgroup.

The PIDs that the driver reports are the host's, so the agent shares the host's PID namespace.
Kubelet puts a pod's UID into the path of its cgroups, in one of these forms:

- cgroupfs driver: `/kubepods/burstable/pod<uid>/<container id>`
- systemd driver: `.../kubepods-burstable-pod<uid>.slice/cri-containerd-<container id>.scope`, with
  `_` for `-` in the UID (`crio-`, `docker-` with other runtimes)
- containerd's own driver for systemd: `...-pod<uid>.slice:cri-containerd:<container id>`

Static pods have a UID of 32 digits without dashes. A path may begin with `/..` where the reader
has a cgroup namespace of its own, and goes on below the container where that runs a manager.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

# The outermost pod counts: what stands below a container could be named by its tenant.
_POD = re.compile(
    r"(?:^|[/-])pod(?P<uid>[0-9a-f]{8}(?P<dash>[-_])(?:[0-9a-f]{4}(?P=dash)){3}[0-9a-f]{12}|[0-9a-f]{32})"
    r"(?:\.slice)?(?:[/:](?P<rest>.*))?$"
)
_CONTAINER = re.compile(r"(?:^|[-:])(?P<id>[0-9a-f]{64})(?:\.scope)?$")


@dataclass(frozen=True, slots=True)
class Container:
    """The pod of a process, and its container where the path names it."""

    pod_uid: str
    container_id: str | None = None


def parse_cgroup(text: str) -> Container | None:
    """Return the container in the text of a `/proc/PID/cgroup`; None for a process of no pod.

    With cgroup v1 there is a line for each hierarchy (the first that names a pod is taken), with
    v2 one line, `0::PATH`.
    """
    for line in text.splitlines():
        path = line.split(":", 2)[-1]
        match = _POD.search(path)
        if match is None:
            continue
        first = (match["rest"] or "").split("/", 1)[0]
        container = _CONTAINER.search(first)
        return Container(match["uid"].replace("_", "-"), container and container["id"])
    return None


class Attribution:
    """Finds the container of each process, and remembers it by (PID, start time).

    The start time tells a PID that was used again. `proc` is the host's /proc.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = str(proc)
        self._known: dict[int, tuple[bytes, Container | None]] = {}

    def container(self, pid: int) -> Container | None:
        """Return the container of `pid`, or None where it belongs to no pod.

        Raises:
            ProcessLookupError: there is no such process (any more).
        """
        started = self._started(pid)
        known = self._known.get(pid)
        if known is not None and known[0] == started:
            return known[1]
        found = parse_cgroup(self._read(pid, "cgroup").decode(errors="replace"))
        # Between the two readings the PID may have passed to another process.
        if self._started(pid) != started:
            raise ProcessLookupError(pid)
        self._known[pid] = (started, found)
        return found

    def remembered(self, pid: int) -> Container | None:
        """Return the same without a look at whether the PID is still that process.

        Cheaper, and right as long as `container` was asked a moment ago.
        """
        known = self._known.get(pid)
        return self.container(pid) if known is None else known[1]

    def keep_only(self, pids: set[int]) -> None:
        """Forget every process that is not among `pids`."""
        for pid in self._known.keys() - pids:
            del self._known[pid]

    def _started(self, pid: int) -> bytes:
        # Field 22; the second one is a name in brackets that may hold anything.
        return self._read(pid, "stat").rpartition(b")")[2].split()[19]

    def _read(self, pid: int, name: str) -> bytes:
        try:
            with open(f"{self._proc}/{pid}/{name}", "rb", buffering=0) as file:  # noqa: PTH123 - many times a second, and Path costs three times as much
                text: bytes = file.read()
        except FileNotFoundError as error:
            raise ProcessLookupError(pid) from error
        if not text:  # the process ended while it was read
            raise ProcessLookupError(pid)
        return text
