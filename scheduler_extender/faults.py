"""Points at which a test may have the process killed, to see that the next one goes on from there.

Off unless `TANDEM_FAULT` names a point, as `POINT` or `POINT:N` for the N-th time that it is
reached. SIGKILL is what it says: nothing is flushed, nothing is closed.
"""

from __future__ import annotations

import os
import signal
import threading

VARIABLE = "TANDEM_FAULT"

POINTS = (
    "gpujob-create-before", "gpujob-create-after",
    "enqueue-before", "enqueue-after",
    "plan-before", "plan-after",
    "gate-before", "gate-after",
    "bind-reserved", "bind-sent",
    "preempt-chosen", "preempting-written", "preempt-asked", "preempt-gone", "preempt-resumed",
    "suspended-written",
    "end-before", "end-after",
    "service-before", "service-after",
)  # fmt: skip

_wanted, _, _times = os.environ.get(VARIABLE, "").partition(":")
_left = int(_times or 1)
_lock = threading.Lock()


def reach(point: str) -> None:
    """Die here if this is the point and the time that was asked for."""
    global _left
    if point != _wanted:
        return
    with _lock:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
