"""Builds the tools that publish a release, and those of its tests, from their Go modules."""

from __future__ import annotations

import sys
from pathlib import Path

from controlplane import gotools
from controlplane.binaries import Program
from tandem.errors import TandemError

_COSIGN = "github.com/sigstore/cosign/v3"
_CRANE = "github.com/google/go-containerregistry"
_KREW = "sigs.k8s.io/krew"
#: `crane` pushes images and reads what a registry has; `cosign` signs.
TOOLS = (
    Program("crane", "crane", _CRANE, f"{_CRANE}/cmd/crane"),
    Program("cosign", "cosign", _COSIGN, f"{_COSIGN}/cmd/cosign"),
)
#: A registry as a process, and what installs a plugin of kubectl.
TEST_TOOLS = (
    Program("registry", "registry", "github.com/distribution/distribution/v3", "."),
    Program("krew", "krew", _KREW, f"{_KREW}/cmd/krew"),
)
HOW_TO_GET = "`make release-tools` builds it where there is Go, once."


def find(name: str) -> Path | None:
    """Return the path of one tool, or None."""
    (tool,) = (tool for tool in (*TOOLS, *TEST_TOOLS) if tool.name == name)
    return gotools.find(tool)


def require(name: str) -> Path:
    """Return the path of one tool; raise a TandemError that says how to get it."""
    found = find(name)
    if found is None:
        raise TandemError(f"no {name} on this machine", HOW_TO_GET)
    return found


if __name__ == "__main__":
    gotools.main((*TOOLS, *(TEST_TOOLS if "--tests" in sys.argv else ())))
