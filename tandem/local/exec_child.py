"""Become another program that dies with the process that started it.

    python -I -S exec_child.py PARENT_PID HOSTNAME PROGRAM [ARGUMENT ...]

Run as a script, alone: it must start within milliseconds. An empty HOSTNAME keeps the machine's;
any other gives the program a UTS namespace of its own (kube-scheduler puts its host name into
its Lease, so that two pairs on one machine need two names).
"""

import ctypes
import os
import signal
import socket
import sys

PR_SET_PDEATHSIG = 1
CLONE_NEWUTS = 0x04000000
CLONE_NEWUSER = 0x10000000


def main() -> None:
    """Set the death signal and the host name, then exec."""
    parent, hostname, *argv = sys.argv[1:]
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != int(parent):
            sys.exit("the process that started this one has died")
        if hostname:
            flags = CLONE_NEWUTS if os.geteuid() == 0 else CLONE_NEWUTS | CLONE_NEWUSER
            if libc.unshare(flags) != 0:
                reason = os.strerror(ctypes.get_errno())
                sys.exit(f"cannot give {argv[0]} the host name {hostname}: {reason}")
            socket.sethostname(hostname)
    elif hostname:
        sys.exit("a host name of its own needs Linux")
    os.execvp(argv[0], argv)  # noqa: S606 - the argv comes from our own code, and no shell is wanted


main()
