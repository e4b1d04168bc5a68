"""Pods of one gang that ask for different numbers of GPUs, on a real control plane."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from controlplane_binaries import need_control_plane
from e2e_cluster import DEVICES, TandemCluster, job

from controlplane import ControlPlane, Node, wait_until

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.slow,
    pytest.mark.xdist_group("uneven"),
    pytest.mark.timeout(900),
]

CAPPED, FREE = "capped", "free"
GANG = {"tandem.gpu/gang": "g", "tandem.gpu/gang-size": "2"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TandemCluster]:
    """Two nodes of eight GPUs; one namespace may hold two GPUs."""
    need_control_plane()
    settings = {"queue": {"quotas": [{"namespace": CAPPED, "max_gpus": 2}]}}
    with ControlPlane.start(nodes=[Node("n0", cpu=64), Node("n1", cpu=64)]) as plane:
        cluster = TandemCluster(plane, tmp_path_factory.mktemp("tandem"))
        cluster.start(gpus_per_node=8, settings=settings)
        yield cluster


def given(cluster: TandemCluster, namespace: str) -> int:
    """Count the GPUs that the pods of a namespace were given."""
    devices = (
        (pod["metadata"].get("annotations") or {}).get(DEVICES, "")
        for pod in cluster.pods(namespace)
    )
    return sum(len([gpu for gpu in text.split(",") if gpu]) for text in devices)


def status_of(cluster: TandemCluster, namespace: str) -> dict[str, Any]:
    jobs = {each["metadata"]["name"]: each for each in cluster.gpujobs(namespace)}
    return jobs.get("gang-g", {}).get("status") or {}


def test_pods_of_different_sizes_start_together_within_the_quota(cluster: TandemCluster) -> None:
    capped, free = cluster.namespace(CAPPED), cluster.namespace(FREE)
    for namespace in (capped, free):
        cluster.apply_job(namespace, job("a", annotations=GANG, gpus=1))
        cluster.apply_job(namespace, job("b", annotations=GANG, gpus=8))
    for name in ("a", "b"):
        cluster.running(free, name)
    assert given(cluster, free) == 9

    def said() -> bool:
        assert given(cluster, capped) == 0
        return "(9 asked for, 2 allowed)" in str(status_of(cluster, capped).get("message"))

    wait_until(said, "the gang in the capped namespace says why it does not start")
    for namespace in (capped, free):
        cluster.remove(namespace)


def test_an_even_gang_starts(cluster: TandemCluster) -> None:
    namespace = cluster.namespace()
    for name in ("a", "b"):
        cluster.apply_job(namespace, job(name, annotations=GANG, gpus=4))
    for name in ("a", "b"):
        cluster.running(namespace, name)
    assert given(cluster, namespace) == 8
    cluster.remove(namespace)
