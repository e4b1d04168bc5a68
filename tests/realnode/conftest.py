"""Tandem as users install it, on nodes with a kubelet: shared by all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from real_cluster import RealCluster, why_not


@pytest.fixture(scope="session")
def one_node() -> Iterator[RealCluster]:
    """Tandem installed by its chart on one real node with two simulated GPUs."""
    yield from _cluster(1)


@pytest.fixture(scope="session")
def two_nodes() -> Iterator[RealCluster]:
    """The same on two real nodes."""
    yield from _cluster(2)


def _cluster(nodes: int) -> Iterator[RealCluster]:
    if reason := why_not():
        pytest.skip(f"no real nodes: {reason}")
    with RealCluster.start(nodes) as cluster:
        yield cluster
