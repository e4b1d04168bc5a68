"""Builds helm-unittest and kube-score, which check the chart, from their Go modules."""

from __future__ import annotations

from pathlib import Path

from controlplane import gotools
from controlplane.binaries import Program

TOOLS = tuple(
    Program(name, name, module, f"{module}/cmd/{name}")
    for name, module in (
        ("helm-unittest", "github.com/helm-unittest/helm-unittest"),
        ("kube-score", "github.com/zegl/kube-score"),
    )
)
HOW_TO_GET = "`make lint-chart` builds it where there is Go, in a minute or two, once."


def find(name: str) -> Path | None:
    """Return the path of one tool, or None."""
    (tool,) = (tool for tool in TOOLS if tool.name == name)
    return gotools.find(tool)


if __name__ == "__main__":
    gotools.main(TOOLS)
