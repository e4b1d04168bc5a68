"""Simulated GPUs: a stand-in for `libnvidia-ml.so.1`, and the file and the /proc that drive it.

The real binding (`pynvml`) loads the library by its name, so a test on simulated GPUs
starts a process with `environment(library, state)` and nothing else changes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tandem.errors import TandemError

SOURCE = Path(__file__).with_name("nvml_stub.c")
LIBRARY = "libnvidia-ml.so.1"
#: Names the state file; the library reads it again whenever it is replaced.
STATE_VARIABLE = "TANDEM_NVML_STUB_STATE"
#: The soname makes a process that has loaded the file by its path find it by its name as well.
_FLAGS = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-pthread"]
_FLAGS += [f"-Wl,-soname,{LIBRARY}"]


def build(cache_dir: Path) -> Path:
    """Return the library's path, compiled once per version of its source under `cache_dir`.

    Raises TandemError where there is no C compiler or it fails.
    """
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    library = cache_dir / f"nvml-stub-{digest}" / LIBRARY
    if library.exists():
        return library
    compiler = shutil.which(os.environ.get("CC", "gcc")) or shutil.which("cc")
    if compiler is None:
        raise TandemError(
            "Simulated GPUs need a C compiler, and none was found.",
            "Install gcc, or name a compiler in the environment variable CC.",
        )
    library.parent.mkdir(parents=True, exist_ok=True)
    fresh = library.with_name(f"{LIBRARY}.{os.getpid()}")
    done = subprocess.run(
        [compiler, *_FLAGS, "-o", str(fresh), str(SOURCE)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise TandemError("The simulated NVML library did not compile.", done.stderr.strip())
    fresh.replace(library)
    return library


def environment(library: Path, state: Path) -> dict[str, str]:
    """Return the variables that make a process see the GPUs of `state` (add them to its own)."""
    others = os.environ.get("LD_LIBRARY_PATH")
    path = f"{library.parent}:{others}" if others else str(library.parent)
    return {"LD_LIBRARY_PATH": path, STATE_VARIABLE: str(state)}


@dataclass(frozen=True)
class Wave:
    """A square wave: high for the first `high_us` of each `period_us`, shifted by `phase_us`."""

    period_us: int = 0
    high_us: int = 0
    phase_us: int = 0

    def words(self, prefix: str) -> str:
        """Return the wave as words of the state file; a wave without a period is always high."""
        if not self.period_us:
            return ""
        values = {"period_us": self.period_us, "high_us": self.high_us, "phase_us": self.phase_us}
        return "".join(f" {prefix}{name}={value}" for name, value in values.items())


@dataclass(frozen=True)
class StubGpu:
    """A board. `None` means that it does not support the reading.

    `memory` None: a board with unified memory, and `numa_node` is where its memory is. `unlisted`
    is memory in use, in bytes, that no process of the lists holds.
    """

    uuid: str
    name: str = "NVIDIA A100-SXM4-80GB"
    memory: int | None = 80 << 30
    reserved: int = 600 << 20
    mig: int | None = 0
    mode: int | None = 0
    temperature: int | None = 40
    power_mw: int | None = 70_000
    #: SM activity as a share of utilisation; None: a board without GPM (before Hopper).
    gpm: float | None = None
    #: Row remapping waiting for a reset, and row remapping that failed.
    pending: int | None = 0
    failure: int | None = 0
    ecc: int | None = 0
    #: Length of a utilisation sample: 1/6 s, a little more on real boards (the time stamps in
    #: https://github.com/NVIDIA/go-nvml/issues/51 are 167.4 to 169.8 ms apart).
    window_us: int = 167_600
    unlisted: int = 0
    numa_node: int | None = None
    #: Its NVLinks, active or not; 0: a board without NVLink.
    nvlinks: int = 0

    def line(self) -> str:
        """Return the board as a line of the state file."""
        names = (
            "memory", "mig", "mode", "temperature", "power_mw", "gpm", "pending", "failure", "ecc",
            "numa_node",
        )  # fmt: skip
        values = ((name, getattr(self, name)) for name in names)
        optional = "".join(f" {name}={value}" for name, value in values if value is not None)
        return (
            f"gpu uuid={self.uuid} reserved={self.reserved} unlisted={self.unlisted}"
            f" window_us={self.window_us} nvlinks={self.nvlinks}{optional} name={self.name}"
        )


@dataclass(frozen=True)
class StubSlice:
    """A MIG device of the board `gpu`, which has `mig` 1: compute instance 0 of an instance.

    `compute` of the `of` compute slices of GPU instance `instance` are its own (`of` None: all).
    """

    gpu: int
    uuid: str
    instance: int
    name: str = "NVIDIA A100-SXM4-80GB MIG 1g.10gb"
    memory: int = 9728 << 20
    reserved: int = 16 << 20
    compute: int = 1
    of: int | None = None
    sms: int = 14
    compute_instance: int = 0

    def line(self) -> str:
        """Return the slice as a line of the state file."""
        return (
            f"slice gpu={self.gpu} uuid={self.uuid} gi={self.instance} ci={self.compute_instance}"
            f" memory={self.memory} reserved={self.reserved} compute={self.compute}"
            f" of={self.of or self.compute} sms={self.sms} name={self.name}"
        )


@dataclass(frozen=True)
class StubLink:
    """An active NVLink: the link number `link` of GPU `gpu` leads to `peer`.

    `peer` is the index of a GPU, or the number of a switch or an NPU.
    """

    gpu: int
    link: int
    peer: int
    to: Literal["gpu", "switch", "npu"] = "gpu"

    def line(self) -> str:
        """Return the link as a line of the state file."""
        return f"nvlink gpu={self.gpu} link={self.link} to={self.to} peer={self.peer}"


@dataclass(frozen=True)
class StubProcess:
    """A process on a GPU: memory `memory` plus `extra` in peaks, `sm` percent while active."""

    gpu: int
    pid: int
    memory: int | None = None
    extra: int = 0
    peaks: Wave = field(default_factory=Wave)
    sm: int = 0
    mem: int = 0
    active: Wave = field(default_factory=Wave)
    kind: Literal["compute", "graphics", "mps"] = "compute"
    #: GPU instance of MIG.
    instance: int = -1

    def line(self) -> str:
        """Return the process as a line of the state file."""
        memory = "none" if self.memory is None else self.memory
        return (
            f"process gpu={self.gpu} pid={self.pid} kind={self.kind} memory={memory}"
            f" extra={self.extra} sm={self.sm} mem={self.mem} instance={self.instance}"
            f"{self.peaks.words('')}{self.active.words('sm_')}"
        )


@dataclass(frozen=True)
class StubError:
    """`call` (or all, `*`) on GPU `gpu` (or all, None) answers `code`.

    `when` picks one half of a call in two steps: the one that asks for the size, or the one that
    fills the rows.
    """

    call: str
    code: int
    gpu: int | None = None
    when: Literal["any", "size", "fill"] = "any"

    def line(self) -> str:
        """Return the error as a line of the state file."""
        gpu = -1 if self.gpu is None else self.gpu
        return f"error call={self.call} gpu={gpu} code={self.code} when={self.when}"


@dataclass(frozen=True)
class StubGarble:
    """Bytes over an argument of a call that succeeds: what a broken driver answers.

    `out` is the argument's name in the C source, `offset` where in it the bytes go.
    """

    call: str
    out: str
    data: bytes
    gpu: int | None = None
    offset: int = 0
    when: Literal["any", "size", "fill"] = "any"

    def line(self) -> str:
        """Return the bytes as a line of the state file."""
        gpu = -1 if self.gpu is None else self.gpu
        return (
            f"garble call={self.call} gpu={gpu} out={self.out} offset={self.offset}"
            f" hex={self.data.hex()} when={self.when}"
        )


@dataclass(frozen=True)
class StubXid:
    """An Xid event on a GPU; `seq` grows from event to event, each is delivered once."""

    gpu: int
    code: int
    seq: int
    #: The GPU instance of MIG that it is of; -1: it is the GPU's.
    instance: int = -1

    def line(self) -> str:
        """Return the event as a line of the state file."""
        return f"xid gpu={self.gpu} code={self.code} seq={self.seq} instance={self.instance}"


@dataclass
class StubState:
    """All that the simulated driver knows. `clock_us` freezes its clock (Unix time)."""

    gpus: list[StubGpu] = field(default_factory=list)
    processes: list[StubProcess] = field(default_factory=list)
    errors: list[StubError] = field(default_factory=list)
    garbles: list[StubGarble] = field(default_factory=list)
    xids: list[StubXid] = field(default_factory=list)
    driver: str = "580.65.06"
    clock_us: int | None = None
    slices: list[StubSlice] = field(default_factory=list)
    links: list[StubLink] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Replace the state file at once, so that no reader sees half of it."""
        lines = [f"driver version={self.driver}"] if self.driver else []
        if self.clock_us is not None:
            lines.append(f"clock us={self.clock_us}")
        lines += [gpu.line() for gpu in self.gpus]
        lines += [one.line() for one in self.slices]
        lines += [link.line() for link in self.links]
        lines += [process.line() for process in self.processes]
        lines += [error.line() for error in self.errors]
        lines += [garble.line() for garble in self.garbles]
        lines += [xid.line() for xid in self.xids]
        fresh = path.with_name(path.name + ".new")
        fresh.write_text("\n".join(lines) + "\n")
        fresh.replace(path)


class FakeProc:
    """A /proc with the two files that attribution reads, for processes that do not exist."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    def add(self, pid: int, pod_uid: str | None, start: int = 1, cgroup: str | None = None) -> None:
        """Let `pid` be a process of the pod (of none, with None), started at tick `start`.

        `cgroup` replaces the whole text of the cgroup file.
        """
        if cgroup is None:
            slice_uid = (pod_uid or "").replace("-", "_")
            scope = f"cri-containerd-{pid:064x}.scope"
            cgroup = (
                f"0::/kubepods.slice/kubepods-pod{slice_uid}.slice/{scope}\n"
                if pod_uid
                else "0::/system.slice/some.service\n"
            )
        folder = self.root / str(pid)
        folder.mkdir(exist_ok=True)
        (folder / "cgroup").write_text(cgroup)
        fields = " ".join(["0"] * 18)
        (folder / "stat").write_text(f"{pid} (a (b) c) S {fields} {start} 0 0\n")

    def remove(self, pid: int) -> None:
        """Let the process be gone."""
        shutil.rmtree(self.root / str(pid), ignore_errors=True)
