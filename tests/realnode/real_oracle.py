"""Which processes see which GPUs, read from the kernel and compared with the API server's pods.

Nothing here asks Tandem: the control groups say which processes belong to which pod, the
environment of each process which GPUs it sees, and the pod's annotation which GPUs it may see.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from real_cluster import DEVICES, RealCluster

from tandem.contracts import names

#: Values of NVIDIA_VISIBLE_DEVICES that name no GPU of a job; `all` is the agent's.
_NO_JOB = {"", "all", "none", "void"}
_EVERY_S = 0.25


@dataclass
class Container:
    """A container with GPUs: when its processes were first and last seen, in seconds of `time`."""

    id: str
    node: str
    pod_uid: str
    gpus: frozenset[str]
    first_s: float
    last_s: float


def visible_devices(pid: int) -> str:
    """Return the GPUs in a process's environment; empty where it has ended or names none."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    prefix = f"{names.VISIBLE_DEVICES_ENV}=".encode()
    return next((w.removeprefix(prefix).decode() for w in words if w.startswith(prefix)), "")


class Oracle:
    """Looks at all real nodes four times a second, until the end of its `with` block.

    `violations` has each GPU with more pods than shares, each exclusive job that was not alone,
    and each process that saw a GPU which is not in its pod's annotation.
    """

    def __init__(self, cluster: RealCluster, shares: int = 2) -> None:
        self.cluster, self.shares = cluster, shares
        self.containers: dict[str, Container] = {}
        self.violations: list[str] = []
        self.looks = 0
        self._pods: dict[str, dict[str, Any]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._error: Exception | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self._error:
            raise self._error

    def _watch(self) -> None:
        try:
            while not self._over.wait(_EVERY_S):
                self.look()
        except Exception as error:  # reported at the end of the block
            self._error = error

    def look(self) -> None:
        """Take one sample of all nodes."""
        now = time.time()
        on_gpu: defaultdict[str, set[str]] = defaultdict(set)
        for node in self.cluster.plane.real_nodes.values():
            for uid, container_id, pid in node.pod_processes():
                value = visible_devices(pid)
                if value in _NO_JOB:
                    continue
                gpus = frozenset(value.split(","))
                known = self.containers.setdefault(
                    container_id, Container(container_id, node.name, uid, gpus, now, now)
                )
                known.last_s = now
                if extra := gpus - self._allowed(uid):
                    self.violations.append(f"pod {uid} sees {sorted(extra)} of others")
                for gpu in gpus:
                    on_gpu[gpu].add(uid)
        for gpu, uids in on_gpu.items():
            if len(uids) > self.shares:
                self.violations.append(f"{gpu} has the pods {sorted(uids)}")
            if len(uids) > 1 and any(self._exclusive(uid) for uid in uids):
                self.violations.append(f"{gpu} is shared with an exclusive job: {sorted(uids)}")
        self.looks += 1

    def _pod(self, uid: str) -> dict[str, Any]:
        if uid not in self._pods:
            answer = self.cluster.plane.http.get("/api/v1/pods").raise_for_status().json()
            self._pods |= {
                pod["metadata"]["uid"]: pod["metadata"].get("annotations", {})
                for pod in answer["items"]
                if DEVICES in pod["metadata"].get("annotations", {})
            }
        return self._pods.get(uid, {})

    def _allowed(self, uid: str) -> set[str]:
        return set(self._pod(uid).get(DEVICES, "").split(","))

    def _exclusive(self, uid: str) -> bool:
        return self._pod(uid).get(names.EXCLUSIVE) == "true"

    # --- questions --------------------------------------------------------------------------

    def of(self, uid: str) -> list[Container]:
        """Return the containers with GPUs that a pod has had, the oldest first."""
        found = [each for each in list(self.containers.values()) if each.pod_uid == uid]
        return sorted(found, key=lambda each: each.first_s)

    def alive(self, container: Container) -> bool:
        """Return whether processes of a container were there at the last samples."""
        return time.time() - container.last_s < 4 * _EVERY_S
