"""Gangs of which some pods do not exist, and every other state in which a gang does not go on."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from queue_builders import load, raw_pod
from test_queue_controller import NOW, Cluster

from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.jobs import rfc3339
from scheduler_extender.cluster.parsing import parse_gpu_job
from scheduler_extender.cluster.pods import pod_info
from scheduler_extender.queue.gangs.missing_pods import SETTLE_S
from scheduler_extender.queue.steps import lifecycle, waits
from tandem.contracts import names
from tandem.contracts.resources import (
    Demand,
    GPUJobSpec,
    GPUJobStatus,
    Phase,
    Plan,
    PodPlan,
    WorkloadRef,
)
from tandem.kube.errors import Forbidden
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import CORE_EVENTS, JOBS, PODS, Resource
from tandem.reasons.counting import counted

QUOTA = 'pods "j-3" is forbidden: exceeded quota: q, requested: pods=1, used: pods=3, limited: 3'


def member(
    cluster: Cluster, name: str, size: int = 4, owner: tuple[str, str] = ("Job", "j")
) -> None:
    notes = {names.GANG_SIZE: str(size)}
    raw = raw_pod(name, annotations=notes, owner=owner)
    for job in cluster.api.list(JOBS):
        raw["metadata"]["ownerReferences"][0]["uid"] = job["metadata"]["uid"]
    cluster.api.create(PODS, raw)


def fails(cluster: Cluster, kind: str, name: str, message: str = QUOTA, ago_s: float = 1) -> None:
    event = {
        "metadata": {"name": f"{name}.{len(cluster.api.list(CORE_EVENTS))}"},
        "involvedObject": {"kind": kind, "name": name, "namespace": "default"},
        "reason": "FailedCreate",
        "type": "Warning",
        "message": f"Error creating: {message}",
        "lastTimestamp": rfc3339(cluster.now - ago_s),
    }
    cluster.api.create(CORE_EVENTS, event, "default")


def look(cluster: Cluster, seconds: float = 0.0, times: int = 4) -> dict[str, Any]:
    async def some() -> None:
        for _ in range(times):
            cluster.now += seconds
            await cluster.cycle()

    asyncio.run(some())
    (job,) = cluster.api.list(Resource("tandem.gpu", "v1alpha1", "GPUJob", "gpujobs"))
    status: dict[str, Any] = job["status"]
    return status


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    cluster.add_node("n0", gpus=4)
    return cluster


NOT_MADE = "Its workload has not made the others (Job j). Its events say more: kubectl describe."


def says(exist: str, made_by: str) -> str:
    """Return what a gang reads that misses pods, and why."""
    missing = f"Not all of its pods exist ({exist} do). It starts when all of them exist."
    return f"{missing} {made_by}"


def test_a_pod_that_a_quota_refused_is_counted_and_the_controllers_words_are_shown(
    cluster: Cluster,
) -> None:
    for index in range(3):
        member(cluster, f"j-{index}")
    fails(cluster, "Job", "j")
    status = look(cluster, SETTLE_S)
    assert (status["phase"], status["reason"]) == ("Queued", "PodsMissing")
    assert status["message"] == (
        "Not all of its pods exist (3 of 4 do). It starts when all of them exist. Its workload"
        f" could not make the others (Job j: Error creating: {QUOTA}). It tries again by itself"
        " once that has changed."
    )
    assert any(reason == "PodsMissing" for _, reason, _ in cluster.said)
    member(cluster, "j-3")
    assert look(cluster, 1)["phase"] == "Admitted"


def test_a_controller_that_is_slow_is_named_once_it_takes_long(cluster: Cluster) -> None:
    member(cluster, "j-0", size=3)
    assert look(cluster, 1, times=2)["reason"] == "Queued"
    member(cluster, "j-1", size=3)
    assert look(cluster, SETTLE_S)["message"] == says("2 of 3", NOT_MADE)


def test_an_ordered_statefulset_hears_that_it_has_to_be_parallel(cluster: Cluster) -> None:
    member(cluster, "web-0", owner=("StatefulSet", "web"))
    message = look(cluster, SETTLE_S)["message"]
    assert message == says(
        "1 of 4",
        "Its workload makes the next pod only when the one before is ready (StatefulSet web). With"
        " podManagementPolicy: Parallel it makes all of them at once.",
    )


def test_a_statefulset_that_a_quota_stops_hears_nothing_of_its_order(cluster: Cluster) -> None:
    member(cluster, "web-0", owner=("StatefulSet", "web"))
    fails(cluster, "StatefulSet", "web")
    assert "exceeded quota" in look(cluster, SETTLE_S)["message"]


@pytest.mark.parametrize(
    ("owner", "reported"),
    [
        ({"spec": {"suspend": True}}, "Its workload is suspended (Job j)."),
        (
            {"status": {"conditions": [
                {"type": "FailureTarget", "status": "True", "message": "it has failed"}]}},
            "Its workload could not make the others (Job j: it has failed).",
        ),
        ({}, NOT_MADE),
    ],
)  # fmt: skip
def test_what_the_owner_says_of_itself_is_shown(
    cluster: Cluster, owner: dict[str, Any], reported: str
) -> None:
    cluster.api.create(JOBS, {"metadata": {"name": "j"}, **owner}, "default")
    member(cluster, "j-0", size=2)
    assert look(cluster, SETTLE_S)["message"].startswith(says("1 of 2", reported))


def test_an_event_of_long_ago_and_one_of_another_object_tell_nothing(cluster: Cluster) -> None:
    member(cluster, "j-0", size=2)
    fails(cluster, "Job", "j", ago_s=3600)
    fails(cluster, "ReplicaSet", "j")
    assert look(cluster, SETTLE_S)["message"] == says("1 of 2", NOT_MADE)


def test_without_the_right_to_read_events_the_owner_is_named() -> None:
    class Strict(MemoryCluster):
        def pages(self, resource: Resource, *args: Any, **more: Any) -> Any:
            if resource == CORE_EVENTS:
                raise Forbidden(403, "events is forbidden")
            return super().pages(resource, *args, **more)

    cluster = Cluster(Strict())
    cluster.add_node("n0")
    member(cluster, "j-0", size=2)
    assert look(cluster, SETTLE_S)["message"] == says("1 of 2", NOT_MADE)


def test_a_gang_of_many_owners_says_who_has_to_come(cluster: Cluster) -> None:
    notes = {names.GANG: "g", names.GANG_SIZE: "3"}
    cluster.api.create(PODS, raw_pod("p", annotations=notes))
    said = look(cluster, SETTLE_S)["message"]
    assert said.startswith(
        says("1 of 3", "The other pods of its gang are not created yet (gang g).")
    )


def test_gangs_of_one_namespace_take_turns_to_be_read(cluster: Cluster) -> None:
    """Each read makes an API server look at all events of a namespace."""
    reads = 0
    pages = cluster.api.pages

    def counted(resource: Resource, *args: Any, **more: Any) -> Any:
        nonlocal reads
        reads += resource == CORE_EVENTS
        return pages(resource, *args, **more)

    cluster.api.pages = counted  # type: ignore[method-assign]
    for index in range(40):
        member(cluster, f"j{index}-0", size=2, owner=("Job", f"j{index}"))

    async def some() -> None:
        for _ in range(20):
            cluster.now += 1.0
            await cluster.cycle()

    asyncio.run(some())
    assert 5 < reads <= 20


def test_a_gang_whose_pods_are_gone_says_what_it_waits_for(cluster: Cluster) -> None:
    cluster.api.create(JOBS, {"metadata": {"name": "j"}}, "default")
    for index in range(2):
        member(cluster, f"j-{index}", size=2)
    look(cluster)
    for index in range(2):
        cluster.api.delete(PODS, f"j-{index}", "default")
    status = look(cluster, 4, times=6)
    assert status["reason"] == "PodsMissing"
    assert status["message"] == says("0 of 2", NOT_MADE)


# --- no state is silent ---------------------------------------------------------------------------

STATES = ("gated", "blocked", "planned", "bound", "running", "leaving", "failed", "succeeded")
SILENT = "by the formula"  # what the prediction says: nothing about a wait
OPEN = (Phase.QUEUED, Phase.ADMITTED, Phase.RUNNING, Phase.SUSPENDED)


def drawn_pod(index: int, state: str, age_s: float, owner: str) -> Any:
    raw = raw_pod(f"p{index}", owner=(owner, "j") if owner else None, gated=state == "gated")
    raw["metadata"] |= {"uid": f"uid-p{index}", "resourceVersion": "1"}
    raw["metadata"]["creationTimestamp"] = rfc3339(NOW - age_s)
    status: dict[str, Any] = {"phase": "Pending"}
    if state == "blocked":
        raw["spec"]["schedulingGates"] = [{"name": names.SCHEDULING_GATE}, {"name": "other/gate"}]
    if state in ("bound", "running", "leaving", "failed", "succeeded"):
        raw["spec"]["nodeName"] = "n0"
    if state in ("bound", "running", "leaving"):
        scheduled = {"type": "PodScheduled", "status": "True"}
        since = {"lastTransitionTime": rfc3339(NOW - age_s)}
        status["conditions"] = [scheduled | since]
    if state in ("running", "leaving"):
        running = {"state": {"running": {"startedAt": rfc3339(NOW - 1)}}, "name": "main"}
        status |= {"phase": "Running", "containerStatuses": [running]}
    if state == "leaving":
        raw["metadata"]["deletionTimestamp"] = rfc3339(NOW + 30)
        raw["metadata"]["deletionGracePeriodSeconds"] = 30
    if state in ("failed", "succeeded"):
        status = {"phase": state.capitalize()}
    return pod_info(raw | {"status": status})


states = st.lists(st.tuples(st.sampled_from(STATES), st.floats(0, 5000)), max_size=5)


@given(
    drawn=states,
    size=st.integers(1, 5),
    phase=st.sampled_from(OPEN),
    owner=st.sampled_from(["Job", "StatefulSet", "PyTorchJob", ""]),
    plan_left_s=st.sampled_from([-10, 20]),
    rests_s=st.sampled_from([None, -5, 50]),
    hold=st.booleans(),
)
@settings(max_examples=400, deadline=None)
def test_no_state_of_a_gang_is_silent(
    drawn: list[tuple[str, float]],
    size: int,
    phase: Phase,
    owner: str,
    plan_left_s: float,
    rests_s: float | None,
    hold: bool,
) -> None:
    pods = [drawn_pod(index, *each, owner) for index, each in enumerate(drawn)]
    places = [
        PodPlan(pod=pod.name, uid=pod.uid, node="n0", gpus=["g"])
        for pod, (state, _) in zip(pods, drawn, strict=True)
        if state == "planned"
    ]
    plan = Plan(pods=places, made_at=rfc3339(NOW - 10), deadline=rfc3339(NOW + plan_left_s))
    workload = WorkloadRef(
        api_version="batch/v1", kind=owner or "Pod", name="j" if owner else "p0", uid="uid-j"
    )
    said_at_first = {
        Phase.ADMITTED: ("Planned", f"{counted(len(places), 'pod')} planned"),
        Phase.RUNNING: ("Running", f"{counted(size, 'pod')} running"),
    }.get(phase, ("Queued", SILENT))
    status = GPUJobStatus(
        phase=phase,
        reason=said_at_first[0],
        message=said_at_first[1],
        load=load(),
        queued_at=rfc3339(NOW - 6000),
        plan=plan if places or phase is Phase.ADMITTED else None,
        rests_until=None if rests_s is None else rfc3339(NOW + rests_s),
        failed_starts=0 if rests_s is None else 1,
    )
    spec = GPUJobSpec(workload=workload, demand=Demand(gpus_per_pod=1, gang_size=size), hold=hold)
    metadata = {"namespace": "default", "name": "job-j", "uid": "u", "resourceVersion": "1"}
    record = parse_gpu_job({"metadata": metadata, "spec": spec.wire(), "status": status.wire()})
    gang = Gang(("default", "job-j"), record, {pod.uid: pod for pod in pods})

    said = lifecycle.observed(gang, NOW)
    if not gang.is_live and gang.finished == len(gang.pods):
        said = waits.without_live_pods(gang, said, NOW)
    else:
        absent = waits.absent(gang) if waits.missing(gang) else ()
        said = waits.held(gang, said, NOW, absent)
    assert said.reason
    assert said.message
    gang.record = replace(record, status=said)
    if lifecycle.pods_to_start(gang, NOW) and not gang.job.spec.hold:
        return  # a cycle places it, or says which constraint of which GPUs it waits for
    assert said.message != SILENT, "nothing says what it waits for"
    if hold and said.phase in (Phase.QUEUED, Phase.SUSPENDED):
        assert said.reason == "Held"
    elif said.reason == waits.MISSING:
        live = gang.bound + gang.unbound
        assert f"{live} of " in said.message
        assert workload.name in said.message
    slow = any(state == "bound" and age_s > waits.STARTS_WITHIN_S for state, age_s in drawn)
    if (
        said.phase in (Phase.ADMITTED, Phase.RUNNING)
        and slow
        and gang.running < min(size, gang.still_to_come(size))
    ):
        assert said.reason in (waits.STARTING, waits.MISSING)
