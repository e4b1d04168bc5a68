"""Pods that are being deleted: what they hold counts, and they keep no job from other GPUs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from queue_builders import raw_pod
from test_queue_controller import NOW, SHARED, Cluster, run

from scheduler_extender.config import QueueConfig
from scheduler_extender.queue.steps.lifecycle import LEAVES_WITHIN_S
from scheduler_extender.quotas.config import Quota
from tandem.kube.errors import Unavailable
from tandem.kube.resource import GPU_JOBS, JOBS, PODS

HOLD = ["example.com/hold"]


def quotas(**more: Any) -> QueueConfig:
    return QueueConfig(quotas=(Quota(namespace="default", **more),))


def deleted(cluster: Cluster, name: str, grace_period_s: int | None = None) -> None:
    """Delete a pod whose kubelet does not end its containers, and its GPUJob as the API server."""
    cluster.api.patch(PODS, name, {"metadata": {"finalizers": HOLD}}, "default")
    cluster.api.delete(PODS, name, "default", grace_period_s=grace_period_s)


def running(cluster: Cluster, name: str, grace_s: int = 30) -> None:
    annotations = {**SHARED, "tandem.gpu/exclusive": "true"}
    body = raw_pod(name, annotations=annotations, terminationGracePeriodSeconds=grace_s)
    cluster.api.create(PODS, body)
    run(cluster.cycle)
    cluster.bind_as_planned(name)
    run(cluster.cycle)


def test_gpus_of_a_deleted_job_count_until_its_pods_end() -> None:
    cluster = Cluster(settings=quotas(max_gpus=1))
    cluster.add_node("n0", gpus=4)
    running(cluster, "first", grace_s=2**31 - 1)
    deleted(cluster, "first")
    cluster.api.delete(GPU_JOBS, "pod-first", "default")
    for name in ("second", "third"):
        cluster.api.create(PODS, raw_pod(name, annotations=SHARED))
    run(cluster.cycle)
    assert cluster.gated("second")
    assert cluster.gated("third")
    message = cluster.gpujob("pod-second")["status"]["message"]
    assert (
        "Namespace default would hold more GPUs than it may (1 held, 1 more asked for, 1 allowed)"
        in message
    )
    ((_, held, _),) = cluster.controller.accounts.figures()
    assert held == 1


def test_no_other_gpujob_is_made_for_the_pods_that_a_deleted_job_leaves() -> None:
    cluster = Cluster()
    cluster.add_node("n0", gpus=2)
    cluster.api.create(JOBS, {"metadata": {"name": "j", "namespace": "default", "uid": "uid-j"}})
    cluster.api.create(PODS, raw_pod("first", annotations=SHARED, owner=("Job", "j")))
    run(cluster.cycle)
    cluster.bind_as_planned("first")
    run(cluster.cycle)
    assert cluster.gpujob("job-j")["status"]["phase"] == "Running"
    cluster.api.delete(JOBS, "j", "default")
    cluster.api.delete(GPU_JOBS, "job-j", "default")  # the garbage collector comes here first
    for _ in range(3):
        cluster.now += 5
        run(cluster.cycle)
    assert not cluster.api.list(GPU_JOBS)
    deleted(cluster, "first")
    run(cluster.cycle)
    assert not cluster.api.list(GPU_JOBS)


def test_gpu_seconds_count_from_the_binding_and_after_the_gpujob_is_gone() -> None:
    cluster = Cluster(settings=quotas(gpus=4, gpu_seconds=1000))
    cluster.add_node("n0", gpus=4)
    running(cluster, "first", grace_s=2**31 - 1)
    cluster.set_phase("first", "Pending")
    for _ in range(3):
        cluster.now += 20
        run(cluster.cycle)
    ((_, _, used),) = cluster.controller.accounts.figures()
    assert used == 60
    deleted(cluster, "first")
    cluster.api.delete(GPU_JOBS, "pod-first", "default")
    cluster.now += 20
    run(cluster.cycle)
    ((_, _, used),) = cluster.controller.accounts.figures()
    assert used == 80


def test_a_plan_exceeds_a_quota_by_the_gpus_of_a_deleted_job() -> None:
    cluster = Cluster(settings=quotas(max_gpus=1))
    cluster.add_node("n0", gpus=4)
    running(cluster, "first")
    deleted(cluster, "first", 3600)
    cluster.api.delete(GPU_JOBS, "pod-first", "default")
    unlimited = Cluster(api=cluster.api)
    cluster.api.create(PODS, raw_pod("second", annotations=SHARED))

    async def scenario() -> None:
        cluster.loop = asyncio.get_running_loop()
        await unlimited.cycle()

    run(scenario)
    assert unlimited.gpujob("pod-second")["status"]["phase"] == "Admitted"
    (why,) = cluster.controller.accounts.exceeding_plans().values()
    assert "(2 held, 1 allowed)" in why


def test_borrowing_counts_the_gpus_of_deleted_jobs_first() -> None:
    settings = QueueConfig(
        quotas=(Quota(namespace="default", gpus=1), Quota(namespace="other", gpus=1))
    )
    cluster = Cluster(settings=settings)
    cluster.add_node("n0", gpus=2)
    running(cluster, "first")
    running(cluster, "second")
    deleted(cluster, "first", 3600)
    cluster.api.delete(GPU_JOBS, "pod-first", "default")
    run(cluster.cycle)
    turn = cluster.controller.accounts.turn()
    turn.ranked([("default", "pod-second")])
    assert turn.borrows(("default", "pod-second"))


@pytest.mark.parametrize(
    ("after_s", "may"), [(LEAVES_WITHIN_S - 1, False), (LEAVES_WITHIN_S, True)]
)
def test_a_pod_that_is_being_deleted_protects_its_gang_for_a_while(
    after_s: float, *, may: bool
) -> None:
    cluster = Cluster()
    cluster.add_node("n0", gpus=2)
    gang = {
        **SHARED,
        "tandem.gpu/checkpoint": "true",
        "tandem.gpu/gang": "g",
        "tandem.gpu/gang-size": "2",
    }
    for name in ("a", "b"):
        body = raw_pod(
            name, annotations=gang, owner=("Job", "j"), terminationGracePeriodSeconds=3600
        )
        cluster.api.create(PODS, body)
    run(cluster.cycle)
    for name in ("a", "b"):
        cluster.bind_as_planned(name)
    run(cluster.cycle)
    cluster.now = NOW + 4000  # both have had their minimum run
    deleted(cluster, "a")
    run(cluster.cycle)
    cluster.now += after_s
    cluster.state.tick(cluster.now)
    run(cluster.cycle)
    keys, _ = cluster.controller.queue_state.may_give_way(cluster.now)
    assert (("default", "gang-g") in keys) is may
    assert bool(cluster.controller.queue_state.going()) is not may


def grace_s(cluster: Cluster, name: str) -> int:
    return cluster.pod(name)["metadata"]["deletionGracePeriodSeconds"]


def test_a_long_grace_period_is_cut_to_the_longest_that_is_allowed() -> None:
    cluster = Cluster()
    cluster.add_node("n0", gpus=2)
    running(cluster, "first", grace_s=2**31 - 1)
    running(cluster, "second")
    deleted(cluster, "first")
    deleted(cluster, "second")
    run(cluster.cycle)
    assert (grace_s(cluster, "first"), grace_s(cluster, "second")) == (3600, 30)
    (note,) = [note for pod, reason, note in cluster.said if reason == "GracePeriodShortened"]
    assert "2147483647 s is cut to 3600 s" in note


def test_a_pod_that_was_deleted_longer_ago_than_that_ends_now() -> None:
    cluster = Cluster()
    cluster.add_node("n0")
    running(cluster, "first", grace_s=2**31 - 1)
    deleted(cluster, "first")
    cluster.now += 3600
    run(cluster.cycle)
    assert grace_s(cluster, "first") == 1


def test_a_pod_that_holds_gpus_long_after_its_deletion_is_reported_once() -> None:
    cluster = Cluster()
    cluster.add_node("n0")
    running(cluster, "first", grace_s=3600)
    deleted(cluster, "first")
    reported = []
    for after_s in (0, LEAVES_WITHIN_S - 1, LEAVES_WITHIN_S, LEAVES_WITHIN_S + 60):
        cluster.now = NOW + after_s
        run(cluster.cycle)
        notes = [note for _, reason, note in cluster.said if reason == "DeletionOverdue"]
        reported.append((len(notes), cluster.controller.terminations.overdue()))
    assert reported == [(0, {}), (0, {}), (1, {"default": 1}), (1, {"default": 1})]
    assert "was deleted 300 s ago and still holds 1 GPU of n0" in notes[0]
    cluster.api.patch(PODS, "first", {"metadata": {"finalizers": None}}, "default")
    assert cluster.controller.terminations.overdue() == {}


def test_a_refused_request_is_made_again_after_a_growing_pause(monkeypatch: Any) -> None:
    cluster, tried = Cluster(), list[float]()
    cluster.add_node("n0")
    running(cluster, "first", grace_s=7200)
    deleted(cluster, "first")

    def delete(*_: object, **__: object) -> None:
        tried.append(cluster.now - NOW)
        raise Unavailable(503, "busy")

    monkeypatch.setattr(cluster.api, "delete", delete)
    for _ in range(40):
        run(cluster.cycle)
        cluster.now += 1
    assert tried == [0, 5, 15, 35]
