"""Builds Alertmanager and kube-state-metrics from their Go modules, for tests of notifications.

Prometheus comes from Debian's package (`controlplane.build`).
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from controlplane import binaries, build, gotools
from controlplane.binaries import Program
from tandem.errors import TandemError

_ALERTMANAGER = "github.com/prometheus/alertmanager"
_KUBE_STATE_METRICS = "k8s.io/kube-state-metrics/v2"
TOOLS = (
    Program("alertmanager", "alertmanager", _ALERTMANAGER, f"{_ALERTMANAGER}/cmd/alertmanager"),
    Program("kube-state-metrics", "kube-state-metrics", _KUBE_STATE_METRICS, _KUBE_STATE_METRICS),
)
HOW_TO_GET = "`make notifications` builds it where there is Go, in some minutes, once."


def find(name: str) -> Path | None:
    """Return the path of one tool, or None."""
    (tool,) = (tool for tool in TOOLS if tool.name == name)
    return gotools.find(tool)


def build_all() -> None:
    """Build what is nowhere on this machine.

    Raises:
        TandemError: with the end of the compiler's output; or there is no Go.
    """
    alertmanager, *others = TOOLS
    gotools.build(others)
    if gotools.find(alertmanager) is not None or build.go() is None:
        gotools.build([alertmanager])  # which says that there is no Go
        return
    with tempfile.TemporaryDirectory() as scratch:
        gotools.build([alertmanager], [f"-modfile={_with_a_page(alertmanager, Path(scratch))}"])


def _with_a_page(alertmanager: Program, scratch: Path) -> Path:
    """Return a go.mod that takes Alertmanager's module from a copy with an empty web page.

    The program embeds the files of its page, which the published module does not hold.
    """
    wrapper, copy = binaries.wrapper(alertmanager), scratch / "alertmanager"
    published = build.module_folder(alertmanager)
    shutil.copytree(published, copy, copy_function=shutil.copyfile)
    for folder in (copy, *copy.rglob("*/")):
        folder.chmod(0o755)  # the cache of modules is read-only
    page = copy / "ui" / "app" / "dist" / "empty"
    page.parent.mkdir()
    page.touch()
    shutil.copyfile(wrapper / "go.sum", scratch / "go.sum")
    replaced = f"\nreplace {alertmanager.module} => {copy}\n"
    (scratch / "go.mod").write_text((wrapper / "go.mod").read_text() + replaced)
    return scratch / "go.mod"


if __name__ == "__main__":
    try:
        build_all()
    except TandemError as error:
        sys.exit(f"error: {error.message}\n  {error.hint}".rstrip())
