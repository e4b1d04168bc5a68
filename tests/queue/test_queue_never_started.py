"""Pods that hold GPUs while their containers do not start: released, rested, charged, preempted."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from queue_builders import create_with_owner, pod, raw_pod
from test_queue_controller import NOW, SHARED, Cluster, run

from scheduler_extender.cluster.jobs import rfc3339, seconds
from scheduler_extender.cluster.pods import PodInfo, pod_info
from scheduler_extender.config import QueueConfig
from scheduler_extender.queue.steps.lifecycle import LONGEST_REST_S, REST_S, starts_by_s
from tandem.kube.errors import NotFound
from tandem.kube.resource import JOBS, PODS

START_S, PULL_S = 600.0, 3600.0
ALONE = {**SHARED, "tandem.gpu/exclusive": "true"}


def status_of(cluster: Cluster, name: str = "pod-p") -> dict[str, Any]:
    return cluster.gpujob(name)["status"]


def placed(cluster: Cluster, name: str, state: dict[str, Any] | None = None, **more: Any) -> None:
    """Create a pod, and have it bound; its containers do not start."""
    body = raw_pod(name, annotations=more.pop("annotations", ALONE), **more)
    create_with_owner(cluster.api, body)
    run(cluster.cycle)
    bind(cluster, name, state)


def bind(cluster: Cluster, name: str, state: dict[str, Any] | None = None) -> None:
    cluster.bind_as_planned(name)
    status = {"phase": "Pending", **(state or {})}
    cluster.api.patch(PODS, name, {"status": status}, "default", subresource="status")
    run(cluster.cycle)


def gone(cluster: Cluster, name: str) -> bool:
    try:
        cluster.pod(name)
    except NotFound:
        return True
    return False


def pass_s(cluster: Cluster, seconds: float) -> None:
    cluster.now += seconds
    cluster.state.tick(cluster.now)
    run(cluster.cycle)


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    cluster.add_node("n0")
    return cluster


def test_a_pod_whose_containers_do_not_start_gives_up_its_gpus(cluster: Cluster) -> None:
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "x" * 10_000}}
    placed(cluster, "p", {"containerStatuses": [{"name": "main", "state": waiting}]})
    pass_s(cluster, START_S - 1)
    assert not gone(cluster, "p")
    pass_s(cluster, 1)
    assert gone(cluster, "p")
    (note,) = [note for name, reason, note in cluster.said if reason == "NeverStarted"]
    assert note == (
        "Its containers did not start in time (p on n0 for 600 s: container main:"
        " ImagePullBackOff). Its GPUs go to others meanwhile; kubectl describe pod says what is"
        " wrong."
    )
    cluster.api.create(PODS, raw_pod("late", annotations=ALONE))
    run(cluster.cycle)
    assert not cluster.gated("late")


def test_it_is_queued_again_and_rests_for_longer_each_time(cluster: Cluster) -> None:
    owned: dict[str, Any] = {"owner": ("ReplicaSet", "r")}
    rests = []
    for attempt in range(8):
        name = f"p{attempt}"
        cluster.api.create(PODS, raw_pod(name, annotations=ALONE, **owned))
        run(cluster.cycle)
        if attempt:
            assert cluster.gated(name), "it rests"
            pass_s(cluster, rests[-1] - 1)
            assert cluster.gated(name)
            pass_s(cluster, 1)
        bind(cluster, name)
        pass_s(cluster, START_S)
        run(cluster.cycle)
        assert gone(cluster, name)
        for _ in range(3):
            pass_s(cluster, 0)
        status = status_of(cluster, "replicaset-r")
        assert (status["phase"], status["reason"]) == ("Queued", "NeverStarted")
        assert status["failedStarts"] == attempt + 1
        rests.append(seconds(status["restsUntil"]) - cluster.now)
    assert rests == [min(REST_S * 2**n, LONGEST_REST_S) for n in range(8)]
    cluster.api.create(PODS, raw_pod("last", annotations=ALONE, **owned))
    pass_s(cluster, rests[-1])
    bind(cluster, "last")
    cluster.set_phase("last", "Running")
    run(cluster.cycle)
    status = status_of(cluster, "replicaset-r")
    assert (status["phase"], status["failedStarts"]) == ("Running", 0)
    assert "restsUntil" not in status


def test_a_job_is_suspended_and_resumed_and_the_next_leader_lets_it_rest(cluster: Cluster) -> None:
    spec = {"parallelism": 1, "completions": 1, "suspend": False}
    made = cluster.api.create(JOBS, {"metadata": {"name": "j"}, "spec": spec}, "default")
    body = raw_pod("p", annotations=ALONE, owner=("Job", "j"))
    body["metadata"]["ownerReferences"][0]["uid"] = made["metadata"]["uid"]
    cluster.api.create(PODS, body)
    run(cluster.cycle)
    bind(cluster, "p")
    pass_s(cluster, START_S)
    assert cluster.api.get(JOBS, "j", "default")["spec"]["suspend"] is True
    cluster.api.delete(PODS, "p", "default")
    for _ in range(3):
        pass_s(cluster, 1)
    assert cluster.api.get(JOBS, "j", "default")["spec"]["suspend"] is False
    status = status_of(cluster, "job-j")
    assert (status["phase"], status["reason"]) == ("Queued", "NeverStarted")
    assert "preemptedAt" not in status or not status["preemptedAt"]
    body["metadata"]["name"] = "q"
    cluster.api.create(PODS, body)
    another = Cluster(api=cluster.api)
    another.now = cluster.now
    another.state.tick(another.now)

    async def scenario() -> None:
        cluster.loop = asyncio.get_running_loop()
        await another.cycle()

    run(scenario)
    assert another.gated("q")


def test_in_a_job_that_runs_only_the_pods_go_that_did_not_start() -> None:
    cluster = Cluster()
    cluster.add_node("n0", gpus=3)
    owned: dict[str, Any] = {"owner": ("ReplicaSet", "r")}
    for name in ("a", "b"):
        placed(cluster, name, **owned)
    cluster.set_phase("a", "Running")
    run(cluster.cycle)
    pass_s(cluster, START_S)
    assert not gone(cluster, "a")
    assert gone(cluster, "b")
    status = status_of(cluster, "replicaset-r")
    assert (status["phase"], status["failedStarts"]) == ("Running", 1)
    cluster.api.create(PODS, raw_pod("c", annotations=ALONE, **owned))
    run(cluster.cycle)
    assert cluster.gated("c")
    pass_s(cluster, REST_S)
    pass_s(cluster, 0)  # its service is written first
    assert not cluster.gated("c")


def test_a_gang_of_which_a_part_does_not_start_is_released_as_a_whole() -> None:
    cluster = Cluster()
    cluster.add_node("n0", gpus=2)
    gang = {**ALONE, "tandem.gpu/gang": "g", "tandem.gpu/gang-size": "2"}
    for name in ("a", "b"):
        cluster.api.create(PODS, raw_pod(name, annotations=gang))
    run(cluster.cycle)
    for name in ("a", "b"):
        bind(cluster, name)
    cluster.set_phase("a", "Running")
    pass_s(cluster, START_S)
    assert gone(cluster, "a")
    assert gone(cluster, "b")


def test_gpus_that_are_held_before_the_start_can_be_taken_for_another() -> None:
    """Though the job saves no checkpoint: there is nothing to save."""
    cluster = Cluster(settings=QueueConfig(min_run_s=300.0))
    cluster.add_node("n0")
    placed(cluster, "p", owner=("Job", "j"))
    key = ("default", "job-j")
    pass_s(cluster, 299)
    assert cluster.controller.queue_state.may_give_way(cluster.now)[0] == []
    pass_s(cluster, 1)
    assert cluster.controller.queue_state.may_give_way(cluster.now)[0] == [key]
    assert cluster.controller.cycles._victims(cluster.now)[key].service_gpu_s == 300
    cluster.set_phase("p", "Running")
    run(cluster.cycle)
    assert cluster.controller.queue_state.may_give_way(cluster.now)[0] == []


@pytest.mark.parametrize(
    ("status", "waits_for", "pulling"),
    [
        ({}, "its kubelet has not started it", False),
        (
            {
                "containerStatuses": [
                    {"name": "c", "state": {"waiting": {"reason": "ContainerCreating"}}}
                ]
            },
            "its images are being pulled",
            True,
        ),
        (
            {
                "conditions": [{"type": "PodReadyToStartContainers", "status": "False"}],
                "containerStatuses": [
                    {"name": "c", "state": {"waiting": {"reason": "ContainerCreating"}}}
                ],
            },
            "its volumes or its network are not ready",
            False,
        ),
        (
            {
                "containerStatuses": [
                    {"name": "c", "state": {"waiting": {"reason": "ErrImagePull"}}}
                ]
            },
            "container c: ErrImagePull",
            False,
        ),
        (
            {
                "initContainerStatuses": [
                    {"name": "side", "state": {"running": {"startedAt": "2027-01-15T08:00:01Z"}}},
                    {"name": "fetch", "state": {"running": {"startedAt": "2027-01-15T08:01:00Z"}}},
                ],
                "containerStatuses": [
                    {"name": "c", "state": {"waiting": {"reason": "PodInitializing"}}}
                ],
            },
            "its init container fetch is running",
            False,
        ),
        (
            {
                "initContainerStatuses": [
                    {"name": "side", "state": {"running": {"startedAt": "2027-01-15T08:00:01Z"}}}
                ],
                "containerStatuses": [
                    {"name": "c", "state": {"waiting": {"reason": "PodInitializing"}}}
                ],
            },
            "its images are being pulled",
            True,
        ),
    ],
)
def test_what_a_pod_waits_for_is_read_from_its_status(
    status: dict[str, Any], waits_for: str, *, pulling: bool
) -> None:
    raw = raw_pod("p", gated=False, nodeName="n0")
    raw["spec"]["initContainers"] = [{"name": "side", "restartPolicy": "Always"}, {"name": "fetch"}]
    found = pod_info(raw | {"status": {"phase": "Pending", **status}})
    assert (found.waits_for, found.pulling) == (waits_for, pulling)
    running = pod_info(raw | {"status": {**status, "phase": "Running"}})
    assert (running.waits_for, running.pulling) == ("", False)


def starting(**more: Any) -> PodInfo:
    return replace(pod("p", gated=False), node_name="n0", bound_at=rfc3339(NOW), **more)


@pytest.mark.parametrize(
    ("it", "after_s"),
    [
        (starting(), START_S),
        (starting(pulling=True), PULL_S),
        (starting(prepared_at=rfc3339(NOW + 1000)), 1000 + START_S),
        (starting(prepared_at=rfc3339(NOW + 3500)), PULL_S),
        (replace(starting(), bound_at=""), float("inf")),
    ],
)
def test_a_pod_has_longer_while_an_image_is_pulled_and_never_longer_than_that(
    it: PodInfo, after_s: float
) -> None:
    assert starts_by_s(it, START_S, PULL_S) - NOW == after_s
