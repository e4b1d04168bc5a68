"""Build the control plane's programs from their Go modules, once, into the cache.

Each program is built next to its final name and renamed, so that a build which is interrupted
leaves nothing half made, and the next one goes on with the program that was due.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from controlplane import binaries
from controlplane.binaries import Program
from tandem.errors import TandemError

_POLL_S = 0.25
_ERROR_TAIL_LINES = 20


@dataclass(frozen=True)
class Step:
    """Where the build stands: `name` is number `index` (from 1) of `total`."""

    name: str
    index: int
    total: int
    elapsed_s: float
    state: str  # "building", "built", "waiting" (for another builder's lock)


Report = Callable[[Step], None]


def go() -> str | None:
    """Return the path of the Go tool, or None."""
    return shutil.which("go")


def outstanding(programs: tuple[Program, ...] = binaries.PROGRAMS) -> list[Program]:
    """Return the programs that are not in the cache yet."""
    folder = binaries.build_folder(programs)
    return [p for p in programs if not os.access(folder / p.name, os.X_OK)]


def build(report: Report, programs: tuple[Program, ...] = binaries.PROGRAMS) -> Path:
    """Build what is outstanding; return the folder. `report` is called about 4 times a second.

    Raises TandemError when there is no Go, or with the end of the compiler's output.
    """
    folder = binaries.build_folder(programs)
    if not outstanding(programs):
        return folder
    tool = go()
    if tool is None:
        raise TandemError("there is no Go on this machine", binaries.how_to_get())
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / ".lock", report):
        todo = outstanding(programs)
        for index, program in enumerate(todo, start=1):
            _build_one(tool, program, folder, report, index, len(todo))
    return folder


@contextmanager
def _locked(path: Path, report: Report) -> Iterator[None]:
    """Hold the lock file at `path`; the kernel lets go of it however the holder ends."""
    with path.open("w") as lock:
        started = time.monotonic()
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                report(Step("another build", 1, 1, time.monotonic() - started, "waiting"))
                time.sleep(_POLL_S)
        yield


def _build_one(
    tool: str, program: Program, folder: Path, report: Report, index: int, total: int
) -> None:
    started = time.monotonic()

    def tell(state: str) -> None:
        report(Step(program.name, index, total, time.monotonic() - started, state))

    partial = folder / f".{program.name}.partial"
    argv = [tool, "build", *binaries.BUILD_FLAGS, "-ldflags", binaries.ldflags(program)]
    argv += ["-tags", program.tags] if program.tags else []
    argv += ["-o", str(partial), program.package]
    with tempfile.TemporaryFile("w+") as output:
        compiler = subprocess.Popen(
            argv,
            cwd=binaries.wrapper(program),
            env={**os.environ, **binaries.BUILD_ENVIRONMENT},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            while compiler.poll() is None:
                tell("building")
                with suppress(subprocess.TimeoutExpired):
                    compiler.wait(_POLL_S)
        finally:
            compiler.kill()
            compiler.wait()
        if compiler.returncode != 0:
            output.seek(0)
            tail = "\n".join(output.read().splitlines()[-_ERROR_TAIL_LINES:])
            raise TandemError(
                f"go could not build {program.name} {binaries.version(program)}:\n{tail}",
                "Go needs to reach its module proxy (GOPROXY); what is built so far is kept.",
            )
    partial.replace(folder / program.name)
    tell("built")


def module_folder(program: Program) -> Path:
    """Return where Go keeps the module of a program, which it downloads where it is not there.

    Raises:
        TandemError: with what Go says.
    """
    for command in (
        ["mod", "download", program.module],
        ["list", "-m", "-f", "{{.Dir}}", program.module],
    ):
        answer = subprocess.run(
            [go() or "go", *command],
            cwd=binaries.wrapper(program),
            env={**os.environ, **binaries.BUILD_ENVIRONMENT},
            capture_output=True,
            text=True,
            check=False,
        )
        if answer.returncode != 0:
            raise TandemError(f"go does not find {program.module}:\n{answer.stderr.strip()}")
    return Path(answer.stdout.strip())


def fetch_promtool() -> Path | None:
    """Return promtool's path; unpack it from Debian's prometheus package where that is possible.

    Nothing is installed and nothing started. None where there is neither promtool nor apt.
    """
    found = binaries.find("promtool")
    if found or not (shutil.which("apt-get") and shutil.which("dpkg")):
        return found
    target = binaries.prometheus_folder()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        if not _download_package(Path(scratch)):
            return None
        package = next(Path(scratch).glob("prometheus_*.deb"))
        unpacked = Path(scratch) / "unpacked"
        subprocess.run(["dpkg", "-x", package, unpacked], check=True)
        shutil.rmtree(target, ignore_errors=True)
        unpacked.replace(target)
    return binaries.find("promtool")


def _download_package(folder: Path) -> bool:
    """Download the package into `folder`; refresh the package lists first if apt has none."""
    # apt drops root for downloads, and its own user must be able to write here.
    folder.chmod(0o777)

    def apt(*args: str) -> bool:
        answer = subprocess.run(
            ["apt-get", "-qq", *args], cwd=folder, capture_output=True, check=False
        )
        return answer.returncode == 0

    if apt("download", "prometheus"):
        return True
    return os.geteuid() == 0 and apt("update") and apt("download", "prometheus")
