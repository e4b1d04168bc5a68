"""The pod of real processes, in control groups that the kernel keeps.

Version 1 and version 2 differ in what /proc/PID/cgroup looks like. Each test runs on every version
that this machine has mounted, with the paths of both cgroup drivers.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.realnode.site import remove_cgroup
from node_agent.attribution import Attribution, Container

UID = "0a1b2c3d-1111-2222-3333-444455556666"
OTHER_UID = "ffffffff-1111-2222-3333-444455556666"
ID = "ab" * 32
CGROUPS = Path("/sys/fs/cgroup")
LAYOUTS = {
    "cgroupfs": f"kubepods/burstable/pod{UID}/{ID}",
    "systemd": "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod"
    + UID.replace("-", "_")
    + f".slice/cri-containerd-{ID}.scope",
}
#: A main process with a thread, a child, and a grandchild whose parent has ended; it prints the
#: numbers of all, by what they are.
FAMILY = """
import os, threading, time
started = threading.Event()
thread = threading.Thread(target=lambda: (started.set(), time.sleep(60)), daemon=True)
thread.start()
started.wait()
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
reading, writing = os.pipe()
middle = os.fork()
if middle == 0:
    orphan = os.fork()
    if orphan == 0:
        time.sleep(60)
        os._exit(0)
    os.write(writing, str(orphan).encode())
    os._exit(0)
os.waitpid(middle, 0)
orphan = int(os.read(reading, 20))
print("main", os.getpid(), "thread", thread.native_id, "child", child, "orphan", orphan, flush=True)
time.sleep(60)
"""


def mounts() -> dict[str, Path]:
    """Return a hierarchy of each version that can be written to."""
    found = {}
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, path, kind, options, *_ = line.split()
        if kind == "cgroup2":
            found["v2"] = Path(path)
        elif kind == "cgroup" and "pids" in options.split(","):
            found["v1"] = Path(path)
    return {version: path for version, path in found.items() if os.access(path, os.W_OK)}


@pytest.fixture(params=["v1", "v2"])
def root(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A group in one hierarchy; it is removed with all that runs below it."""
    path = mounts().get(request.param)
    if path is None or os.geteuid() != 0:
        pytest.skip(f"no real nodes: no control groups of {request.param} that can be written to")
    group = path / f"tandem-test-{secrets.token_hex(4)}"
    group.mkdir()
    yield group
    remove_cgroup(group)


def start(group: Path, code: str) -> subprocess.Popen[str]:
    """Start Python in a group, as a container runtime does: it joins before it runs a program."""
    group.mkdir(parents=True, exist_ok=True)
    join = 'echo $$ > "$0" && exec "$@"'
    procs = str(group / "cgroup.procs")
    return subprocess.Popen(
        ["sh", "-c", join, procs, sys.executable, "-I", "-S", "-c", code],
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_threads_and_forks_belong_to_the_pod(root: Path, layout: str) -> None:
    process = start(root / LAYOUTS[layout], FAMILY)
    words = process.stdout.readline().split()
    family = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    assert family.keys() == {"main", "thread", "child", "orphan"}
    attribution = Attribution()
    found = {what: attribution.container(pid) for what, pid in family.items()}
    assert found == dict.fromkeys(family, Container(UID, ID))


def test_a_program_that_is_executed_in_a_container_belongs_to_the_pod(root: Path) -> None:
    group = root / LAYOUTS["cgroupfs"]
    start(group, "import time; time.sleep(60)")
    executed = start(group, "import time; print(flush=True); time.sleep(60)")
    executed.stdout.readline()
    assert Attribution().container(executed.pid) == Container(UID, ID)


def test_processes_of_the_host_belong_to_no_pod(root: Path) -> None:
    service = start(
        root / "system.slice" / "train.service", "import time; print(flush=True); time.sleep(60)"
    )
    service.stdout.readline()
    attribution = Attribution()
    assert attribution.container(os.getpid()) is None
    assert attribution.container(service.pid) is None


def test_a_group_that_a_tenant_makes_below_its_own_names_no_other_pod(root: Path) -> None:
    group = root / LAYOUTS["cgroupfs"] / f"pod{OTHER_UID}" / ("cd" * 32)
    inner = start(group, "import time; print(flush=True); time.sleep(60)")
    inner.stdout.readline()
    assert Attribution().container(inner.pid) == Container(UID, ID)


def test_a_process_that_has_ended_and_is_not_reaped_is_still_found_or_gone(root: Path) -> None:
    process = start(root / LAYOUTS["cgroupfs"], "print(flush=True)")
    process.stdout.readline()
    deadline = time.monotonic() + 10
    stat = Path(f"/proc/{process.pid}/stat")
    while ") Z " not in stat.read_text() and time.monotonic() < deadline:
        time.sleep(0.01)
    attribution = Attribution()
    zombie = attribution.container(process.pid)
    assert zombie in (None, Container(UID, ID)), "never another pod's"
    process.wait()
    with pytest.raises(ProcessLookupError):
        attribution.container(process.pid)
