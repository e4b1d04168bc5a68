"""Builds the kernel in C into the package; without a C compiler, Tandem is built without it.

The compiler is the machine's own, or comes as a wheel from PyPI (`ziglang`): then nothing has to
be installed but Python packages. The library uses no header of Python, so one wheel fits every
version of Python on a platform.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

FOLDER = Path("tandem/policy/compiled")
SOURCE = "share.c"
LIBRARY = "_share.so"
#: No -ffast-math, no -march=native, no fused operations: every machine decides the same. And clang
#: would replace pow(x, 0.5) by a root and pow(2, x) by exp2, where gcc calls pow.
FLAGS = (
    *("-std=c99", "-O3", "-g0", "-fPIC", "-shared", "-fno-math-errno", "-ffp-contract=off"),
    *("-fno-builtin-pow", "-fno-builtin-exp", "-fno-builtin-log"),
)
#: A compiler may lack the headers of libc, or build for another machine than this one.
PROBE = "#include <math.h>\ndouble tandem_probe(double x) { return exp(x); }\n"
#: Of the C library that ziglang links against: Debian 10 and all that is newer can load it.
GLIBC = (2, 28)


class Compiler(NamedTuple):
    """A command that compiles C, and the platform tag of wheels with what it builds."""

    name: str
    command: tuple[str, ...]
    tag: str


class NoKernelError(Exception):
    """No kernel can be built here; Tandem works without."""


class RejectedError(Exception):
    """A compiler works but does not take our source."""


class KernelHook(BuildHookInterface[BuilderConfig]):
    """Compiles the kernel next to its source, for wheels and for editable installs."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the kernel; in a wheel, include it and name the platform."""
        try:
            compiler = build(Path(self.root, FOLDER))
        except NoKernelError as why:
            self.app.display_warning(f"Tandem is built without its kernel in C, so slower: {why}")
            return
        except RejectedError as error:
            self.app.abort(f"{error}\n(TANDEM_COMPILED=0 builds Tandem without its kernel in C.)")
        if version == "standard":
            build_data["artifacts"].append(f"/{(FOLDER / LIBRARY).as_posix()}")
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{compiler.tag}"


def build(folder: Path) -> Compiler:
    """Compile the source in `folder` into a library next to it; return what compiled it.

    An earlier library is removed in any case. Raises NoKernelError and RejectedError.
    """
    try:
        (folder / LIBRARY).unlink(missing_ok=True)
        if os.environ.get("TANDEM_COMPILED") == "0":
            raise NoKernelError("TANDEM_COMPILED is 0")
        # In this folder, because systems may forbid to run what is below /tmp.
        with tempfile.TemporaryDirectory(prefix=".build-", dir=folder) as made:
            compiler = working_compiler(Path(made))
            built = compile_kernel(compiler, folder / SOURCE, Path(made))
            built.replace(folder / LIBRARY)
    except OSError as error:
        raise NoKernelError(str(error)) from error
    return compiler


def working_compiler(scratch: Path) -> Compiler:
    """Return the first compiler whose library can be loaded here; raise NoKernelError."""
    if sys.platform not in ("linux", "darwin"):
        raise NoKernelError(f"not supported on {sys.platform}")
    probe, library = scratch / "probe.c", scratch / "probe.so"
    probe.write_text(PROBE)
    tried = []
    for compiler in compilers():
        tried.append(compiler.name)
        if compiles(compiler, probe, library, scratch) is None:
            return compiler
    said = f"{', '.join(tried)} cannot build a library" if tried else "no C compiler was found"
    raise NoKernelError(f"{said} (install gcc or clang, or the package ziglang of PyPI)")


def compilers() -> Iterator[Compiler]:
    """Yield what may be a compiler: the one of $CC, those of the system, the one of PyPI."""
    tags = [*platform_tags()]
    # What the system's compiler builds is promised to load on systems such as this one, not on
    # older ones: `linux_x86_64`, and on macOS the name with this version.
    own = next((tag for tag in tags if tag.startswith("linux_")), tags[0])
    for words in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        command = shlex.split(words)
        if command and shutil.which(command[0]):
            yield Compiler(words, tuple(command), own)
    if importlib.util.find_spec("ziglang"):
        arch = {"arm64": "aarch64"}.get(platform.machine(), platform.machine())
        # Without a target it would compile for the very processor of this machine.
        if sys.platform == "linux":
            target = f"{arch}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"
            tag = f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{arch}"
        else:
            target, tag = f"{arch}-macos", own
        yield Compiler("ziglang", (sys.executable, "-m", "ziglang", "cc", "-target", target), tag)


def compile_kernel(compiler: Compiler, source: Path, scratch: Path) -> Path:
    """Return the library built from `source`, which knows its source; raise RejectedError."""
    digest = hashlib.sha256()
    for part in sorted([*source.parent.glob("*.c"), *source.parent.glob("*.h")]):
        digest.update(part.read_bytes())
    built = scratch / LIBRARY
    said = compiles(
        compiler, source, built, scratch, f'-DTANDEM_SOURCE="{digest.hexdigest()[:16]}"'
    )
    if said is not None:
        raise RejectedError(f"{compiler.name} does not compile {source}:\n{said}")
    return built


def compiles(
    compiler: Compiler, source: Path, library: Path, scratch: Path, *flags: str
) -> str | None:
    """Compile and load a library; return None, or what the compiler or the loader said."""
    cache = str(scratch / "cache")
    done = subprocess.run(
        [*compiler.command, *FLAGS, *flags, "-o", str(library), str(source), "-lm"],
        env={**os.environ, "ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        return done.stdout.strip()
    try:
        ctypes.CDLL(str(library))
    except OSError as error:
        return str(error)
    return None
