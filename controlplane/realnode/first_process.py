"""Become the first process of a node: its namespaces, mounts and control groups; then reap.

    python -I -S first_process.py CONFIG    start a node; CONFIG is a JSON file
    python -I -S first_process.py join CONFIG PROGRAM [ARGUMENT ...]    run one on it

Run as a script, with the standard library only. The kernel ends every process of the node when
its first process ends, and the node's mounts and network go with the last process.
CONFIG: `name`, `cgroup` (path below each hierarchy), `var` (has its /var/lib and /var/log),
`shared` (seen as /srv), `disk` (file of a file system for /var/lib, or empty), `pid_file`,
`ready_file`.
"""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
PR_SET_PDEATHSIG = 1
CGROUPS = Path("/sys/fs/cgroup")
#: Where the node's own programs are under version 2.
LEAF = "init"

libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Leave namespaces of the parent."""
    if libc.unshare(flags) != 0:
        sys.exit(f"unshare: {os.strerror(ctypes.get_errno())}")


def mount(*args: str) -> None:
    """Call the program of this name."""
    subprocess.run(["mount", *args], check=True)


def hierarchies() -> dict[str, str]:
    """Return the control-group mounts: path -> options; `unified` for version 2."""
    found = {}
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, path, kind, options, *_ = line.split()
        if kind == "cgroup2":
            found[path] = "unified"
        elif kind == "cgroup":
            skipped = {"rw", "ro", "relatime", "nosuid", "nodev", "noexec"}
            names = [word for word in options.split(",") if word not in skipped]
            found[path] = ",".join(names)
    return found


def join_cgroups(group: str, leaf: str = "") -> None:
    """Make the node's control groups where they are missing, and move this process there.

    `leaf`: the group below that takes processes under version 2.
    """
    for path, kind in hierarchies().items():
        root, folder = Path(path), Path(path) / group
        folder.mkdir(parents=True, exist_ok=True)
        if "cpuset" in kind.split(","):
            for step in (folder.parent, folder):
                for name in ("cpuset.cpus", "cpuset.mems"):
                    # A fresh cpuset is empty, and takes no process.
                    if not (step / name).read_text().strip():
                        (step / name).write_text((step.parent / name).read_text())
        if root == CGROUPS:
            for step in (root, folder.parent):
                hand_down_controllers(step)
            folder = folder / leaf
        (folder / "cgroup.procs").write_text(str(os.getpid()))


def hand_down_controllers(folder: Path) -> None:
    """Let the groups below `folder` use every controller that it has (version 2)."""
    names = (folder / "cgroup.controllers").read_text().split()
    (folder / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in names))


def start(config: dict[str, Any]) -> None:
    """Enter new namespaces; the child becomes the node's first process."""
    join_cgroups(config["cgroup"])
    mounts = hierarchies()
    # The control group that the process is in becomes the root that the node sees.
    unshare(
        CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWCGROUP
    )
    if str(CGROUPS) in mounts:
        # Version 2: a group with processes cannot hand its controllers down.
        folder = CGROUPS / config["cgroup"]
        (folder / LEAF).mkdir(exist_ok=True)
        (folder / LEAF / "cgroup.procs").write_text(str(os.getpid()))
        hand_down_controllers(folder)
    child = os.fork()
    if child == 0:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        prepare(config, mounts)
        reap(config)
    Path(config["pid_file"]).write_text(str(child))
    os.waitpid(child, 0)


def prepare(config: dict[str, Any], cgroup_mounts: dict[str, str]) -> None:
    """Mount what a machine of its own has: /proc, /sys, /run, /var/lib and control groups."""
    socket.sethostname(config["name"])
    mount("--make-rprivate", "/")
    mount("-t", "proc", "proc", "/proc")
    mount("-t", "sysfs", "sysfs", "/sys")
    if cgroup_mounts.get(str(CGROUPS)) == "unified":
        mount("-t", "cgroup2", "cgroup2", str(CGROUPS))
    else:
        mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", str(CGROUPS))
        for path, kind in cgroup_mounts.items():
            Path(path).mkdir(parents=True, exist_ok=True)
            if kind == "unified":
                mount("-t", "cgroup2", "cgroup2", path)
            else:
                mount("-t", "cgroup", "-o", kind, "cgroup", path)
    # /run holds sockets and named network namespaces, which must be the node's own.
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    mount("--bind", f"{config['var']}/log", "/var/log")
    if config["disk"]:
        # The kernel frees the loop device when the last mount of it ends.
        mount("-o", "loop", config["disk"], "/var/lib")
        for name in ("kubelet", "containerd", "cni"):
            Path("/var/lib", name).mkdir(exist_ok=True)
    else:
        mount("--bind", f"{config['var']}/lib", "/var/lib")
    mount("--bind", config["shared"], "/srv")
    mount("--make-rshared", "/")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def reap(config: dict[str, Any]) -> None:
    """Wait for orphans for as long as the node lives; SIGTERM ends the node."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    Path(config["ready_file"]).touch()
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        signal.sigtimedwait({signal.SIGCHLD}, 1.0)


def join(config: dict[str, Any], argv: list[str]) -> None:
    """Become a program on the node."""
    join_cgroups(config["cgroup"], LEAF)
    pid = Path(config["pid_file"]).read_text()
    spaces = ["--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup"]
    os.execvp("nsenter", ["nsenter", "--target", pid, *spaces, "--", *argv])  # noqa: S606 - no shell


def main() -> None:
    """Read the arguments."""
    joining = sys.argv[1] == "join"
    config = json.loads(Path(sys.argv[1 + joining]).read_text())
    if joining:
        join(config, sys.argv[3:])
    else:
        start(config)


main()
