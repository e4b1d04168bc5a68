"""Programs that are built from their Go modules one by one, each in a folder of the cache.

They are kept apart from the control plane's programs: one can be had without the others, and a new
version of one does not have Kubernetes built anew.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from controlplane import binaries
from controlplane.binaries import Program
from tandem.errors import TandemError


def path(tool: Program) -> Path:
    """Return where a tool is built to."""
    target = f"{sys.platform}-{platform.machine().lower()}"
    return binaries.cache_root() / f"{tool.name}-{binaries.version(tool)}-{target}" / tool.name


def find(tool: Program) -> Path | None:
    """Return the path of a tool: our own build, or the one on PATH; None where there is neither."""
    if os.access(path(tool), os.X_OK):
        return path(tool)
    on_path = shutil.which(tool.name)
    return Path(on_path) if on_path else None


def build(tools: Iterable[Program], flags: Sequence[str] = ()) -> None:
    """Build what is nowhere on this machine, and print each with its time.

    `flags`: further flags of `go build`.

    Raises:
        TandemError: with the end of the compiler's output; or there is no Go.
    """
    for tool in tools:
        if find(tool) is not None:
            continue
        go = shutil.which("go")
        if go is None:
            raise TandemError(f"no {tool.name} on this machine", "Install Go, or put it on PATH.")
        print(f"building {tool.name} {binaries.version(tool)}", flush=True)
        began = time.monotonic()
        target = path(tool)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(f".{os.getpid()}")
        stripped = ["-ldflags", "-s -w", "-o", str(partial)]
        answer = subprocess.run(
            [go, "build", *binaries.BUILD_FLAGS, *flags, *stripped, tool.package],
            cwd=binaries.recipes() / tool.wrapper,
            env={**os.environ, **binaries.BUILD_ENVIRONMENT},
            capture_output=True,
            text=True,
            check=False,
        )
        if answer.returncode != 0:
            raise TandemError(f"go could not build {tool.name}:\n{answer.stderr[-2000:]}")
        partial.replace(target)
        print(f"built {tool.name} in {time.monotonic() - began:.0f} s", flush=True)


def main(tools: Iterable[Program]) -> None:
    """Build them for `python -m`, or end with the reason."""
    try:
        build(tools)
    except TandemError as error:
        sys.exit(f"error: {error.message}\n  {error.hint}".rstrip())
