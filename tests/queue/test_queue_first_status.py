"""The first status of a GPUJob is written with what the first cycle decides of it."""

from __future__ import annotations

from typing import Any

import pytest
from queue_builders import raw_pod, settled
from test_queue_controller import SHARED, Cluster, run
from test_queue_kinds import make_ray_cluster, ray_cluster_of, resource_of, site, wait

from scheduler_extender.queue.gangs.reconcile import KEPT_S
from scheduler_extender.queue.steps.phases import Stage, stage_of
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import GPU_JOBS, PODS, Resource

KEY = ("default", "pod-p")


class Counted(MemoryCluster):
    """An API server that counts the writes of GPUJobs."""

    def __init__(self) -> None:
        super().__init__()
        self.statuses = 0

    def replace(self, resource: Resource, *args: Any, **kwargs: Any) -> Any:
        self.statuses += resource == GPU_JOBS
        return super().replace(resource, *args, **kwargs)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(Counted())


def submit(cluster: Cluster, name: str = "p", **more: Any) -> None:
    cluster.api.create(PODS, raw_pod(name, **more))


def statuses(cluster: Cluster) -> int:
    assert isinstance(cluster.api, Counted)
    return cluster.api.statuses


async def look(cluster: Cluster, after_s: float = 0.0) -> None:
    """Bring all gangs up to date, without a cycle that plans."""
    cluster.now += after_s
    cluster.state.tick(cluster.now)
    controller = cluster.controller
    controller.work.go()
    controller.work.wake()
    await settled(controller.work)
    controller.work.hold()


async def until_kept(cluster: Cluster) -> None:
    await cluster.cycle()  # there is nothing yet: it lets the events come to this loop
    submit(cluster)
    await look(cluster)
    assert cluster.gpujob("pod-p").get("status") is None


def test_a_job_with_a_place_has_its_plan_in_the_first_status(cluster: Cluster) -> None:
    async def scenario() -> None:
        cluster.add_node("n0")
        submit(cluster, annotations=SHARED)
        await cluster.cycle()
        assert statuses(cluster) == 1
        status = cluster.gpujob("pod-p")["status"]
        assert status["phase"] == "Admitted"
        assert [pod["node"] for pod in status["plan"]["pods"]] == ["n0"]
        assert {each["type"] for each in status["conditions"]} == {"Predicted", "Scheduled"}
        assert status["load"]["memorySource"] == "formula"
        assert status["queuedAt"] <= status["waitingSince"] <= status["admittedAt"]
        assert not cluster.gated("p")

    run(scenario)


def test_a_job_without_a_place_has_its_reason_in_the_first_status(cluster: Cluster) -> None:
    async def scenario() -> None:
        submit(cluster)
        await cluster.cycle()
        assert statuses(cluster) == 1
        status = cluster.gpujob("pod-p")["status"]
        assert (status["phase"], status["reason"]) == ("Queued", "Waiting")
        assert status["load"]

    run(scenario)


def test_a_status_that_no_cycle_writes_is_written_after_a_moment(cluster: Cluster) -> None:
    async def scenario() -> None:
        await until_kept(cluster)
        gang = cluster.state.gangs.by_key[KEY]
        assert stage_of(gang) is Stage.OPEN
        await look(cluster, KEPT_S / 2)
        assert statuses(cluster) == 0
        await look(cluster, KEPT_S)
        assert cluster.gpujob("pod-p")["status"]["phase"] == "Queued"
        await look(cluster, 10 * KEPT_S)
        assert statuses(cluster) == 1

    run(scenario)


def test_a_status_of_which_no_cycle_can_decide_is_written_at_once(cluster: Cluster) -> None:
    async def scenario() -> None:
        submit(cluster, annotations={"tandem.gpu/gang": "g", "tandem.gpu/gang-size": "2"})
        await cluster.cycle()
        assert cluster.gpujob("gang-g")["status"]["phase"] == "Queued"
        assert statuses(cluster) == 1

    run(scenario)


def test_who_takes_over_before_it_is_written_predicts_anew(cluster: Cluster) -> None:
    async def scenario() -> None:
        cluster.add_node("n0")
        await until_kept(cluster)
        assert isinstance(cluster.api, MemoryCluster)
        cluster.api._watchers.clear()
        second = Cluster(cluster.api)
        await second.cycle()
        assert second.predictions == 1
        assert second.gpujob("pod-p")["status"]["phase"] == "Admitted"
        assert not second.gated("p")

    run(scenario)


def test_another_version_replaces_a_status_that_is_not_written(cluster: Cluster) -> None:
    """An administrator holds the job in the moment between: its load is predicted again."""

    async def scenario() -> None:
        cluster.add_node("n0")
        await until_kept(cluster)
        cluster.api.patch(GPU_JOBS, "pod-p", {"spec": {"hold": True}}, "default")
        await cluster.cycle()
        status = cluster.gpujob("pod-p")["status"]
        assert (status["phase"], status["reason"]) == ("Queued", "Held")
        assert status["load"]
        assert cluster.gated("p")
        assert cluster.predictions == 2

    run(scenario)


def test_a_status_that_is_not_written_is_no_other_object_s(cluster: Cluster) -> None:
    """Deleted and made anew while its load was predicted, it is predicted for itself."""

    async def scenario() -> None:
        await until_kept(cluster)
        gang = cluster.state.gangs.by_key[KEY]
        before = gang.job
        cluster.api.delete(GPU_JOBS, "pod-p", "default")
        await look(cluster)
        assert gang.job.uid != before.uid
        cluster.state.keep(before, before.status, cluster.now)
        assert gang.job.uid != before.uid

    run(scenario)


def test_a_size_is_written_after_the_status_that_is_kept(cluster: Cluster) -> None:
    """Its answer has no status that was never written, and nothing is to be predicted twice."""

    async def scenario() -> None:
        await cluster.cycle()
        gang = {"tandem.gpu/gang": "g", "tandem.gpu/gang-size": "2"}
        submit(cluster, "a", annotations=gang)
        await look(cluster)
        cluster.api.patch(
            PODS, "a", {"metadata": {"annotations": {"tandem.gpu/gang-size": "3"}}}, "default"
        )
        await look(cluster)
        found = cluster.gpujob("gang-g")
        assert found["spec"]["demand"]["gangSize"] == 3
        assert found["status"]["phase"] == "Queued"
        assert cluster.predictions == 1

    run(scenario)


def test_a_job_that_carries_on_another_has_its_service_before_that_one_goes() -> None:
    """KubeRay makes a cluster of another name; the GPUJob of the first is deleted by the second."""
    cluster = site(2)

    async def scenario() -> None:
        first = ray_cluster_of(cluster, "RayJob", "r")
        await wait(cluster)
        (owner,) = cluster.gpujob(first)["metadata"]["ownerReferences"]
        cluster.api.delete(resource_of("RayCluster"), "r-x", "default")
        for index in range(2):
            cluster.api.delete(PODS, f"p{index}", "default")
        had = {"status": {"attainedGpuSeconds": 100.0}}
        cluster.api.patch(GPU_JOBS, first, had, "default", subresource="status")
        await wait(cluster)
        make_ray_cluster(cluster, owner | {"controller": True}, "r-y", "q")
        await look(cluster)
        assert cluster.gpujob("raycluster-r-y")["status"]["attainedGpuSeconds"] == 100

    run(scenario)
