"""Pods of one gang that ask for different numbers of GPUs, on a real control plane."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from e2e_cluster import DEVICES, TandemCluster, job

from controlplane import ControlPlane, Node, binaries, wait_until

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
    absent = binaries.missing()
    if absent:
        pytest.skip(f"no {', '.join(absent)} on this machine. {binaries.how_to_get()}")
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


@pytest.mark.parametrize("space", [CAPPED, FREE])
def test_one_small_pod_takes_no_large_ones_past_quota_and_plan(
    cluster: TandemCluster, space: str
) -> None:
    namespace = cluster.namespace(space)
    cluster.apply_job(namespace, job("a", annotations=GANG, gpus=1))
    cluster.apply_job(namespace, job("b", annotations=GANG, gpus=8))

    def told() -> bool:
        assert given(cluster, namespace) == 0
        return status_of(cluster, namespace).get("reason") == "Blocked"

    wait_until(told, "the gang is told why it does not start")
    message = status_of(cluster, namespace)["message"]
    assert "asks for 1 GPU " in message
    assert "for 8" in message
    assert given(cluster, namespace) == 0
    cluster.remove(namespace)


def test_an_even_gang_starts(cluster: TandemCluster) -> None:
    namespace = cluster.namespace()
    for name in ("a", "b"):
        cluster.apply_job(namespace, job(name, annotations=GANG, gpus=4))
    for name in ("a", "b"):
        cluster.running(namespace, name)
    assert given(cluster, namespace) == 8
    cluster.remove(namespace)
