"""The chart: rendered, and installed on a control plane."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from controlplane_binaries import need_control_plane
from helm_cluster import ChartCluster
from helm_render import NOTIFICATIONS, RETRAINING, Helm, Object, render, run_helm


@pytest.fixture(scope="session")
def helm() -> Helm:
    return run_helm


@pytest.fixture(scope="session")
def rendered() -> list[Object]:
    """The chart with all that it may make, where the Prometheus operator is installed."""
    return render("--api-versions", "monitoring.coreos.com/v1", *RETRAINING, *NOTIFICATIONS)


@pytest.fixture
def cluster(installed: ChartCluster) -> Iterator[ChartCluster]:
    """The chart on a real control plane; the jobs of a test leave the GPUs when it ends."""
    before = set(installed.teams)
    yield installed
    installed.remove_teams(installed.teams - before)


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChartCluster]:
    """One installation for all tests; the last tests to use it uninstall it."""
    from controlplane import ControlPlane, Node

    need_control_plane("helm")
    with ControlPlane.start(nodes=[Node("n0", cpu=32)]) as plane:
        found = ChartCluster(plane, tmp_path_factory.mktemp("chart"))
        found.start()
        yield found
