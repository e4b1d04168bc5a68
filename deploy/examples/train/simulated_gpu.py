"""A simulated GPU in place of CUDA, where `tandem controlplane up --real-nodes` provides one.

The node's simulated driver listens at a socket that the container runtime mounts into containers
with a GPU. What is claimed there shows in NVML as memory and utilisation of this process, and is
freed when the process ends. Without the socket nothing happens, as on a machine with real GPUs.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path

SOCKET = Path("/run/tandem-gpu-usage/socket")


class OutOfMemoryError(RuntimeError):
    """The GPU has less memory left than was asked for."""


class Gpu:
    """The GPUs that this container sees, numbered from 0 as CUDA numbers them."""

    def __init__(self, line: socket.socket | None) -> None:
        self._line = line
        self._answers = line.makefile() if line else None

    def use(self, memory_gib: float, percent: int, gpu: int = 0) -> str:
        """Use so much from now on, in place of what was used before; return the GPU's UUID.

        Raises OutOfMemoryError, and RuntimeError where the container has no such GPU.
        """
        if self._line is None or self._answers is None:
            return ""
        claim = {"gpu": gpu, "memory": int(memory_gib * 2**30), "sm": percent, "mem": percent // 2}
        self._line.sendall(json.dumps(claim).encode() + b"\n")
        answer = json.loads(self._answers.readline())
        if answer.get("error") == "out of memory":
            raise OutOfMemoryError(f"CUDA out of memory: {answer['free']} bytes are free")
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return str(answer["uuid"])


def connect() -> Gpu:
    """Return the container's GPUs."""
    if not SOCKET.exists():
        return Gpu(None)
    line = socket.socket(socket.AF_UNIX)
    line.connect(str(SOCKET))
    return Gpu(line)
