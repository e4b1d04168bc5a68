"""The chart as Helm renders it; without Helm the tests are skipped, and say how to get it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from controlplane_binaries import program

from tandem.contracts import names

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "tandem"

#: What else the chart may make.
RETRAINING = (
    "--set", "predictor.retraining.enabled=true",
    "--set", "predictor.retraining.image=registry.example/tandem-train:1",
    "--set", "predictor.artifactsClaim=models",
)  # fmt: skip
NOTIFICATIONS = ("--set", "monitoring.notifications.enabled=true")

Object = dict[str, Any]
Helm = Callable[..., "subprocess.CompletedProcess[str]"]


def run_helm(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program("helm"), *args], capture_output=True, text=True, check=False)


def render(*args: str, kube: str = "v1.37.1") -> list[Object]:
    """Return the objects of the chart, for a cluster of a version."""
    options = ("--namespace", names.NAMESPACE, "--kube-version", kube, *args)
    answer = run_helm("template", "tandem", str(CHART), *options)
    assert answer.returncode == 0, answer.stderr
    return [document for document in yaml.safe_load_all(answer.stdout) if document]
