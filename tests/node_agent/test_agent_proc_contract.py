"""One contract for the `/proc` of the tests and the kernel's own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import pytest

from node_agent.attribution import Attribution, parse_cgroup
from node_agent.stub import FakeProc

UID = "11111111-2222-3333-4444-555555555555"
#: The user that the chart gives the agent.
AGENT = 59405
#: Where a cgroup may be made: the tree of v2, or that of a controller of v1.
CGROUPS = [Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup/systemd")]


class Side(Protocol):
    """Processes that a test starts and ends, and the `/proc` that shows them."""

    root: Path

    def start(self, name: str = "") -> int: ...

    def end(self, pid: int) -> None: ...


class Double:
    def __init__(self, folder: Path) -> None:
        self._proc = FakeProc(folder)
        self.root = folder
        self._pids = 0

    def start(self, name: str = "") -> int:
        self._pids += 1
        # FakeProc names every process `a (b) c`.
        self._proc.add(self._pids, None, start=100 + self._pids)
        return self._pids

    def end(self, pid: int) -> None:
        self._proc.remove(pid)


class Kernel:
    root = Path("/proc")

    def __init__(self) -> None:
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, name: str = "") -> int:
        code = "import sys; print(flush=True); sys.stdin.read()"
        if name:
            code = f"open('/proc/self/comm', 'w').write({name!r}); {code}"
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.readline()
        self._processes[process.pid] = process
        return process.pid

    def end(self, pid: int) -> None:
        self._processes.pop(pid).communicate()

    def close(self) -> None:
        for pid in list(self._processes):
            self.end(pid)


@pytest.fixture(params=["double", "kernel"])
def side(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Side]:
    if request.param == "double":
        yield Double(tmp_path / "proc")
        return
    kernel = Kernel()
    yield kernel
    kernel.close()


def test_a_process_has_one_start_time_and_another_process_a_later_one(side: Side) -> None:
    attribution = Attribution(side.root)
    first = side.start()
    second = side.start()
    begun = int(attribution._started(first))
    assert int(attribution._started(first)) == begun
    assert int(attribution._started(second)) >= begun > 0


def test_a_name_with_brackets_and_spaces_hides_no_field(side: Side) -> None:
    pid = side.start("a (b) c")
    line = (side.root / str(pid) / "stat").read_text()
    assert "(a (b) c)" in line
    assert int(Attribution(side.root)._started(pid)) > 0


def test_a_process_of_no_pod_has_no_container(side: Side) -> None:
    pid = side.start()
    text = (side.root / str(pid) / "cgroup").read_text()
    assert all(len(line.split(":", 2)) == 3 for line in text.splitlines())
    if "pod" not in text:  # the tests themselves may run in one
        assert Attribution(side.root).container(pid) is None


def test_a_process_that_ended_is_not_found(side: Side) -> None:
    attribution = Attribution(side.root)
    pid = side.start()
    attribution.container(pid)
    side.end(pid)
    with pytest.raises(ProcessLookupError):
        attribution.container(pid)


def test_the_kernel_shows_the_path_of_a_cgroup_as_the_double_does(tmp_path: Path) -> None:
    """Where cgroups may be made; otherwise the path of this process has the same form."""
    double = FakeProc(tmp_path / "proc")
    double.add(1, UID)
    expected = parse_cgroup((tmp_path / "proc/1/cgroup").read_text())
    assert expected is not None
    scope = f"cri-containerd-{1:064x}.scope"
    slice_ = f"kubepods-pod{UID.replace('-', '_')}.slice"
    tree = next((each for each in CGROUPS if (each / "cgroup.procs").exists()), None)
    folder = Path(f"{tree}/kubepods.slice") / slice_ / scope
    try:
        folder.mkdir(parents=True)
    except OSError:
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            assert number.isdecimal()
            assert path.startswith("/")
            assert controllers or number == "0"
        return
    kernel = Kernel()
    try:
        pid = kernel.start()
        (folder / "cgroup.procs").write_text(str(pid))
        assert Attribution().container(pid) == expected
    finally:
        kernel.close()
        for made in (folder, folder.parent, folder.parent.parent):
            with suppress(OSError):
                made.rmdir()


def test_this_process_is_in_the_proc_that_the_agent_reads_by_default() -> None:
    assert int(Attribution()._started(os.getpid())) > 0


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become another user")
def test_the_agent_s_user_finds_the_container_of_a_process_of_another_one() -> None:
    """What every user may read of a process is enough, and no signal comes through."""
    kernel = Kernel()
    try:
        pid = kernel.start()
        code = (
            "import os\n"
            "from node_agent.attribution import Attribution\n"
            f"os.setgroups([]); os.setgid({AGENT}); os.setuid({AGENT})\n"
            "a = Attribution()\n"
            f"a.container({pid}); a.container(1); int(a._started({pid}))\n"
            "try:\n"
            f"    os.kill({pid}, 0)\n"
            "except PermissionError:\n"
            "    print('read, not signalled')\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        assert done.stdout == "read, not signalled\n", done.stderr
    finally:
        kernel.close()
