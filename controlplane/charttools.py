"""What checks the chart besides Helm: helm-unittest and kube-score, from their Go modules.

They are kept apart from the control plane's programs: one can be had without the others, and a new
version of one does not have Kubernetes built anew.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from controlplane import binaries
from controlplane.binaries import Program
from tandem.errors import TandemError

TOOLS = tuple(
    Program(name, name, module, f"{module}/cmd/{name}")
    for name, module in (
        ("helm-unittest", "github.com/helm-unittest/helm-unittest"),
        ("kube-score", "github.com/zegl/kube-score"),
    )
)
HOW_TO_GET = "`make lint-chart` builds it where there is Go, in a minute or two, once."


def path(tool: Program) -> Path:
    """Return where a tool is built to."""
    target = f"{sys.platform}-{platform.machine().lower()}"
    return binaries.cache_root() / f"{tool.name}-{binaries.version(tool)}-{target}" / tool.name


def find(name: str) -> Path | None:
    """Return the path of one tool, or None."""
    (tool,) = (tool for tool in TOOLS if tool.name == name)
    if os.access(path(tool), os.X_OK):
        return path(tool)
    on_path = shutil.which(name)
    return Path(on_path) if on_path else None


def build() -> None:
    """Build what is nowhere on this machine.

    Raises:
        TandemError: with the end of the compiler's output; or there is no Go.
    """
    for tool in TOOLS:
        if find(tool.name) is not None:
            continue
        go = shutil.which("go")
        if go is None:
            raise TandemError(f"no {tool.name} on this machine", "Install Go, or put it on PATH.")
        target = path(tool)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(f".{os.getpid()}")
        command = [go, "build", *binaries.BUILD_FLAGS, "-ldflags", "-s -w", "-o", str(partial)]
        answer = subprocess.run(
            [*command, tool.package],
            cwd=binaries.recipes() / tool.wrapper,
            env={**os.environ, **binaries.BUILD_ENVIRONMENT},
            capture_output=True,
            text=True,
            check=False,
        )
        if answer.returncode != 0:
            raise TandemError(f"go could not build {tool.name}:\n{answer.stderr[-2000:]}")
        partial.replace(target)


if __name__ == "__main__":
    try:
        build()
    except TandemError as error:
        sys.exit(f"error: {error.message}\n  {error.hint}".rstrip())
