"""The chart's own unit tests by helm-unittest, and kube-score's opinion of what it renders."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml
from helm_render import CHART, Object, render

from controlplane import charttools

#: What kube-score asks for and we do not do, each with the reason.
ACCEPTED = {
    "container-image-pull-policy": "IfNotPresent, for images by version or digest",
    "container-ephemeral-storage-request-and-limit": "nothing is written but to sized volumes",
    "container-resources": "no limit of CPU: throttling would cost the verbs their latency",
    "deployment-replicas": "the predictor may be away: no job waits for it; attached, one acts",
    "deployment-strategy": "attached to a scheduler, two extenders must never act at once",
    "deployment-has-host-podantiaffinity": "spread by topologySpreadConstraints instead",
    "pod-probes-identical": "no Service leads to agents: readiness says in 10 s that one hangs",
}


def tool(name: str) -> Path:
    found = charttools.find(name)
    if found is None:
        pytest.skip(f"no {name} on this machine. {charttools.HOW_TO_GET}")
    return found


def test_the_charts_own_tests_pass() -> None:
    command = [tool("helm-unittest"), "--strict", str(CHART)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.parametrize(
    "mode", ["", "scheduler.attach.enabled=true", "webhook.certManager.enabled=true", "mode=shadow"]
)
def test_kube_score_finds_nothing_that_is_not_accepted(mode: str) -> None:
    program = tool("kube-score")
    objects: list[Object] = [
        found
        for found in (render("--set", mode) if mode else render())
        if "." not in found["apiVersion"].partition("/")[0]
        or found["apiVersion"].partition("/")[0].endswith(".k8s.io")
    ]
    answer = subprocess.run(
        [program, "score", "--output-format", "json", "--kubernetes-version", "v1.30", "-"],
        input=yaml.safe_dump_all(objects),
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(answer.stdout)
    assert found, answer.stderr
    wrong = {
        (one["object_name"], check["check"]["id"]): [c["summary"] for c in check["comments"] or ()]
        for one in found
        for check in one["checks"]
        if not check["skipped"] and check["grade"] < 7 and check["check"]["id"] not in ACCEPTED
    }
    assert wrong == {}
