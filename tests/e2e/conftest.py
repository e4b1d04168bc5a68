"""A whole Tandem on a real control plane: two nodes of one simulated 80 GiB GPU each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from controlplane_binaries import need_control_plane
from e2e_cluster import TandemCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TandemCluster]:
    """A control plane with Tandem installed; the namespaces are the tests' own."""
    from controlplane import ControlPlane, Node

    need_control_plane()
    folder: Path = tmp_path_factory.mktemp("tandem")
    with ControlPlane.start(nodes=[Node("n0", cpu=32), Node("n1", cpu=32)]) as plane:
        cluster = TandemCluster(plane, folder)
        cluster.start(gpus_per_node=1)
        yield cluster
