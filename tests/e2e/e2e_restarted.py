"""The extender, started again as often as it is killed: what a kubelet does, but at once.

    python e2e_restarted.py DEATHS --config FILE

Each start is a fork of a process that has imported what the extender is made of and done nothing
else: on a busy machine the imports take longer than all the rest. `DEATHS` is a file that gets a
line for each SIGKILL. Any other end of the extender is ours too.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

from scheduler_extender.__main__ import main

PR_SET_PDEATHSIG = 1


def start() -> int:
    """Return the process id of a new extender, which ends with us."""
    us = os.getpid()
    pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os._exit(main() if os.getppid() == us else 1)
    return pid


if __name__ == "__main__":
    deaths = Path(sys.argv.pop(1))
    while True:
        _, status = os.waitpid(start(), 0)
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            sys.exit(os.waitstatus_to_exitcode(status))
        with deaths.open("a") as lines:
            lines.write("killed\n")
