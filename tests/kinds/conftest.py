"""Tandem on a control plane, next to the controllers of workloads."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import invented
import pytest
from controlplane_binaries import need_control_plane
from kind_examples import CELLS, EXAMPLES, Example
from kinds_cluster import NODES, KindsCluster

from controlplane import ControlPlane, Node, binaries, operators, volcano

#: Names the file that gets the outcomes of the tests that are cells of docs/workloads.md.
OUTCOMES = "TANDEM_OUTCOMES"
#: Kubernetes' PodGroup: beta since 1.37, and off unless it is asked for. A controller removes the
#: finalizer of one without pods.
GATES = ("--feature-gates=GenericWorkload=true",)
SERVED = ("--runtime-config=scheduling.k8s.io/v1beta1=true",)
_WITHOUT_GATES = ("v1.34.", "v1.36.")
_ran: dict[str, dict[str, str]] = {}


@pytest.fixture(scope="session")
def needed(request: pytest.FixtureRequest) -> list[str]:
    """The operators of the kinds whose tests are run, in order; those that are built."""
    params = (
        item.callspec.params
        for item in request.session.items
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
    )
    examples = [each["example"] for each in params if isinstance(each.get("example"), Example)]
    names = dict.fromkeys(name for example in examples for name in example.operators)
    return [name for name in names if not operators.missing([operators.by_name(name)])]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, needed: list[str]) -> Iterator[KindsCluster]:
    """One installation for all tests, which learns of the invented kind by its values."""
    need_control_plane("helm")
    nodes = [Node(name, cpu=32) for name in NODES]
    gates, served = (GATES, SERVED) if _has_gates() else ((), ())
    with ControlPlane.start(
        nodes, scheduler=True, apiserver_args=[*gates, *served], manager_args=gates
    ) as plane:
        cluster = KindsCluster(plane, tmp_path_factory.mktemp("kinds"), {"kinds": [invented.KIND]})
        experiments, volcano_jobs = invented.Controller(plane), volcano.Controller(plane)
        experiments.start()
        try:
            cluster.start(needed)
            if "volcano" in needed:
                volcano_jobs.start()
            yield cluster
        finally:
            experiments.stop()
            volcano_jobs.stop()


@pytest.fixture
def cluster(site: KindsCluster, needed: list[str], example: Example) -> Iterator[KindsCluster]:
    """The installation; the namespaces of a test are gone before the next one."""
    absent = [name for name in example.operators if name not in needed]
    if absent:
        pytest.skip(f"no operator {', '.join(absent)} is built here: `make operators` builds it")
    if example.gated and not _has_gates():
        pytest.skip(f"Kubernetes {binaries.version(_api_server())} has no {example.kind}")
    yield site
    site.remove_teams()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport]:
    """Keep what became of each cell."""
    report = yield
    marker = item.get_closest_marker("cell")
    if marker is not None and report.when == "call":
        kind = item.callspec.params["example"].kind  # type: ignore[attr-defined]
        _ran.setdefault(kind, {})[marker.args[0]] = report.outcome
    return report


def pytest_sessionfinish() -> None:
    """Write the outcomes where they are asked for; those of tests that did not run stay."""
    if path := os.environ.get(OUTCOMES):
        file = Path(path)
        known = {row["kind"]: row for row in json.loads(file.read_text())} if file.exists() else {}
        rows = [
            _row(each, known.get(each.kind, {}).get("cells", {}))
            for each in (*EXAMPLES, invented.EXAMPLE)
            if each.kind in _ran or each.kind in known
        ]
        file.write_text(json.dumps(rows, indent=1) + "\n")


def _api_server() -> binaries.Program:
    return next(each for each in binaries.PROGRAMS if each.name == "kube-apiserver")


def _has_gates() -> bool:
    return not binaries.version(_api_server()).startswith(_WITHOUT_GATES)


def _said(operator: operators.Operator) -> str:
    played = " (its definition; the tests play its controller)" if operator.definitions_only else ""
    return f"{operator.name} {binaries.version(operator.program)}{played}"


def _row(example: Example, known: dict[str, str]) -> dict[str, Any]:
    ran = known | _ran.get(example.kind, {})
    versions = map(_said, map(operators.by_name, example.operators))
    return {
        "kind": example.kind,
        "controller": ", ".join(versions) or example.controller,
        "manifest": example.file,
        "cells": {cell: example.without.get(cell) or ran.get(cell, "not run") for cell in CELLS},
    }
