"""The DRA driver, started again as often as it is killed, at the point that a file names.

    python dra_restarted.py FAULT --node NODE --kubeconfig FILE ...

Each start is a fork of a process that has imported what the driver is made of, and no more.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from node_agent.dra import cdi, driver, slices
from node_agent.dra.__main__ import main

PR_SET_PDEATHSIG = 1
#: Where the driver dies, with what is patched for it: before or after a call.
POINTS: dict[str, tuple[Any, str, bool]] = {
    "publish-before": (slices.SlicePublisher, "_write", False),
    "publish-after": (slices.SlicePublisher, "_write", True),
    "prepare-asked": (driver.Driver, "prepare", False),
    "file-begun": (cdi.Specs, "write", False),
    "file-half-written": (os, "fsync", True),
    "file-written": (cdi.Specs, "write", True),
    "prepared": (driver.Driver, "prepare", True),
    "unprepare-asked": (driver.Driver, "unprepare", False),
    "file-removed": (cdi.Specs, "remove", True),
    "unprepared": (driver.Driver, "unprepare", True),
}


def patch(fault: Path) -> None:
    """Have this process die at the point that `fault` names; the file is gone then."""

    def reach(point: str) -> None:
        if fault.exists() and fault.read_text() == point:
            fault.unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    def wrapped(point: str, call: Callable[..., Any], after: bool) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not after:
                reach(point)
            answer = call(*args, **kwargs)
            if after:
                reach(point)
            return answer

        return wrapper

    for point, (owner, name, after) in POINTS.items():
        setattr(owner, name, wrapped(point, getattr(owner, name), after))


def start(fault: Path) -> int:
    """Return the process id of a new driver, which ends with us."""
    us = os.getpid()
    pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        patch(fault)
        os._exit(main() if os.getppid() == us else 1)
    return pid


if __name__ == "__main__":
    wanted = Path(sys.argv.pop(1))
    while True:
        _, status = os.waitpid(start(wanted), 0)
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            sys.exit(os.waitstatus_to_exitcode(status))
