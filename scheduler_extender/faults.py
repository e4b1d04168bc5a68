"""Points at which a test may kill or stop the process, to test how the others continue.

Off unless `TANDEM_FAULT` is set: to `POINT`, `POINT:N` for the N-th time that it is reached, and
`POINT:N:stop` to be stopped (SIGSTOP) there instead of killed; or to `@FILE`, a file that may hold
any of these at any time and vanishes when it has had its effect. SIGKILL is what it says: nothing
is flushed, nothing is closed.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

VARIABLE = "TANDEM_FAULT"

POINTS = (
    "gpujob-create-before", "gpujob-create-after",
    "enqueue-before", "enqueue-after",
    "plan-before", "plan-after",
    "gate-before", "gate-nominated", "gate-after",
    "bind-reserved", "bind-sent",
    "preempt-chosen", "preempting-written", "preempt-asked", "preempt-gone", "preempt-resumed",
    "suspended-written",
    "end-before", "end-after",
    "service-before", "service-after",
)  # fmt: skip

#: Reached where claims are allocated (`admission.gpu_claims`).
CLAIM_POINTS = (
    "claim-create-before", "claim-create-after",
    "claim-allocate-before", "claim-allocate-after",
    "claim-clear-before", "claim-clear-after",
)  # fmt: skip

_setting = os.environ.get(VARIABLE, "")
_file = Path(_setting[1:]) if _setting.startswith("@") else None
_reached: dict[str, int] = {}  # wanted fault -> how often its point was reached
_lock = threading.Lock()


def reach(point: str) -> None:
    """Die or stop here if this is the point and the time that was asked for."""
    if not _setting:
        return
    with _lock:
        wanted = _wanted()
        name, _, rest = wanted.partition(":")
        if name != point:
            return
        times, _, how = rest.partition(":")
        _reached[wanted] = _reached.get(wanted, 0) + 1
        if _reached[wanted] != int(times or 1):
            return
        if _file is not None:
            _file.unlink()
            _reached.clear()
        os.kill(os.getpid(), signal.SIGSTOP if how == "stop" else signal.SIGKILL)


def _wanted() -> str:
    if _file is None:
        return _setting
    try:
        return _file.read_text().strip()
    except FileNotFoundError:
        return ""
