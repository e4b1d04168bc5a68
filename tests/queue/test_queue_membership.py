"""A pod belongs to one gang at a time, and what is gone holds nothing."""

from __future__ import annotations

from typing import Any

import pytest
from queue_builders import raw_pod
from test_queue_controller import Cluster, run
from test_queue_preemption import EAGER, Training

from scheduler_extender.quotas.config import Quota
from tandem.kube.resource import JOBS, PODS

QUOTAS = EAGER.model_copy(update={"quotas": (Quota(namespace="default", gpus=8, max_gpus=8),)})


def relabel(cluster: Cluster, name: str, gang: str) -> None:
    body = {"metadata": {"annotations": {"tandem.gpu/gang": gang, "tandem.gpu/gang-size": "1"}}}
    cluster.api.patch(PODS, name, body, "default")


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster(settings=QUOTAS)
    for name in ("n0", "n1", "n2"):
        cluster.add_node(name)
    return cluster


def members(cluster: Cluster) -> dict[str, set[str]]:
    gangs = cluster.controller.gangs.by_key
    return {key[1]: {each.name for each in gang.pods.values()} for key, gang in gangs.items()}


def test_a_gated_pod_stays_in_the_gang_in_which_it_was_seen_first(cluster: Cluster) -> None:
    async def scenario() -> None:
        pair = {"tandem.gpu/gang": "old", "tandem.gpu/gang-size": "2"}
        cluster.api.create(PODS, raw_pod("moves", annotations=pair))
        await cluster.cycle()
        relabel(cluster, "moves", "new")
        await cluster.cycle()
        assert members(cluster) == {"gang-old": {"moves"}}
        cluster.api.create(PODS, raw_pod("stays", annotations=pair))
        await cluster.cycle()
        assert not cluster.gated("stays")
        assert not cluster.gated("moves")
        for name in ("moves", "stays"):
            fixed = cluster.api.get(PODS, name, "default")["metadata"]["annotations"]
            assert fixed["tandem.gpu/gpu-job"] == "gang-old"

    run(scenario)


def test_a_running_pod_that_is_relabelled_counts_once_against_a_quota(cluster: Cluster) -> None:
    def held() -> int:
        ((_, held, _),) = cluster.controller.accounts.figures()
        assert cluster.controller.accounts.turn().held["default"] == held
        return held

    async def scenario() -> None:
        cluster.api.create(PODS, raw_pod("p"))
        await cluster.cycle()
        cluster.bind_as_planned("p")
        await cluster.cycle()
        assert held() == 1
        for name in ("a", "b", "c"):
            relabel(cluster, "p", name)
            await cluster.cycle()
            await cluster.cycle()
            assert held() == 1, name
        cluster.api.delete(PODS, "p", "default")
        await cluster.cycle()
        await cluster.cycle()
        assert held() == 0

    run(scenario)


def test_a_job_whose_pods_were_removed_as_it_ended_is_closed_and_holds_nothing() -> None:
    """The operators of MPIJobs and PyTorchJobs delete the pods of a job that has ended."""
    cluster = Training(QUOTAS)

    async def scenario() -> None:
        cluster.submit("cleaned", gpus=2)
        await cluster.pass_s(1)
        assert cluster.status("cleaned")["phase"] == "Running"
        cluster.job_controller_deletes("cleaned")
        await cluster.pass_s(1)
        ((_, held, _),) = cluster.controller.accounts.figures()
        assert held == 0
        assert cluster.controller.accounts.turn().held["default"] == 0
        assert cluster.status("cleaned")["phase"] == "Queued", "the Job has not ended"
        done = {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}
        cluster.api.patch(JOBS, "cleaned", done, "default")
        await cluster.pass_s(60)
        assert cluster.status("cleaned")["phase"] == "Completed"

    run(scenario)


def test_a_job_without_pods_is_asked_about_less_and_less_often() -> None:
    cluster = Training()
    read: list[float] = []
    get = cluster.api.get

    def counted(resource: Any, name: str, namespace: str | None = None) -> Any:
        if resource == JOBS:
            read.append(cluster.now)
        return get(resource, name, namespace)

    async def scenario() -> None:
        cluster.submit("paused", gpus=2)
        await cluster.pass_s(1)
        cluster.job_controller_deletes("paused")
        cluster.api.get = counted  # type: ignore[method-assign]
        for _ in range(600):
            cluster.now += 1
            cluster.state.tick(cluster.now)
            await cluster.cycle()

    run(scenario)
    assert 2 <= len(read) <= 20
