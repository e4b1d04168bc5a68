"""Checks whether this machine can run real nodes, and if not, why."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

from controlplane import binaries
from controlplane.realnode.site import CGROUPS, cgroup_hierarchies
from tandem.errors import TandemError

#: Debian's packages of the programs that a node calls and that are not built from Go modules.
PACKAGES = {"runc": "runc", "nft": "nftables", "ip": "iproute2", "nsenter": "util-linux"}
_CAP_SYS_ADMIN, _CAP_NET_ADMIN = 21, 12
_CONTROLLERS = ("cpu", "memory", "pids")


def obstacles() -> list[str]:
    """Return every reason for which no real node can start here, in words; none when it can."""
    found = unsuitable()
    missing = [name for name in binaries.NODE_REQUIRED if binaries.find(name) is None]
    if missing:
        found.append(f"{', '.join(missing)} not built (`tandem controlplane build --real-nodes`)")
    if packages := missing_packages():
        found.append(f"packages not installed: {' '.join(packages)}")
    return found


def missing_packages() -> list[str]:
    """Return Debian's packages of the programs that are not installed."""
    return [package for name, package in PACKAGES.items() if shutil.which(name) is None]


def install(packages: Sequence[str]) -> None:
    """Install Debian's packages; raise TandemError where apt is not there or fails."""
    if shutil.which("apt-get") is None:
        raise TandemError(f"no apt-get to install {' '.join(packages)}", "Install them by hand.")
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    for argv in (["apt-get", "-qq", "update"], command):
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            raise TandemError(f"{' '.join(argv)}: {done.stderr.strip()}")


def unsuitable() -> list[str]:
    """Return why the machine itself cannot run a real node, whatever is built or installed."""
    if sys.platform != "linux":
        return ["real nodes need Linux"]
    if os.geteuid() != 0:
        return ["real nodes need root"]
    found = []
    if not (_has_capability(_CAP_SYS_ADMIN) and _has_capability(_CAP_NET_ADMIN)):
        found.append("real nodes need CAP_SYS_ADMIN and CAP_NET_ADMIN")
    lacking = [name for name in _CONTROLLERS if not _controller(name)]
    if lacking:
        found.append(f"no writable control groups for {', '.join(lacking)}")
    return found


def _has_capability(number: int) -> bool:
    # PR_CAPBSET_READ: a capability outside the bounding set cannot be had by any child.
    return bool(ctypes.CDLL(None).prctl(23, number, 0, 0, 0) == 1)


def _controller(name: str) -> bool:
    if not CGROUPS.is_dir():
        return False
    if cgroup_hierarchies() == [CGROUPS]:
        known = (CGROUPS / "cgroup.controllers").read_text().split()
        return name in known and os.access(CGROUPS / "cgroup.procs", os.W_OK)
    return os.access(CGROUPS / name / "cgroup.procs", os.W_OK)
