"""Each kind of workload with its own controller: one test for each cell of docs/workloads.md."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import invented
import pytest
from kind_examples import (
    CHECKED,
    ENDS,
    EXAMPLES,
    GANG,
    GIVES_WAY,
    NO_GPUS,
    QUOTA,
    RETRIED,
    TOGETHER,
    WAITS,
    Example,
    Object,
    asks,
    at,
    templates,
)
from kinds_cluster import CAPPED, LENDER, KindsCluster

from controlplane import wait_until
from tandem.contracts import names

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.slow,
    pytest.mark.xdist_group("kinds"),
    pytest.mark.timeout(900),
]


def in_suite(example: Example) -> bool:
    """Say whether `make test` runs it, which builds one operator; `make operators` runs all."""
    return example.kind in ("Job", "JobSet", invented.EXAMPLE.kind)


def cell(
    name: str, *, alone: bool | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make of a test one cell of the table for each kind that has it.

    `alone`: only of kinds whose pods start one by one, or only of those whose pods do not.
    """
    examples = [
        pytest.param(
            each,
            id=each.kind,
            marks=() if in_suite(each) else (pytest.mark.operators,),
        )
        for each in (*EXAMPLES, invented.EXAMPLE)
        if name not in each.without and alone in (None, each.alone)
    ]

    def of(test: Callable[..., None]) -> Callable[..., None]:
        marked: Callable[..., None] = pytest.mark.cell(name)(test)
        return pytest.mark.parametrize("example", examples)(marked)  # type: ignore[no-any-return]

    return of


def size_of(gpujob: Object) -> int:
    return int(gpujob["spec"]["demand"]["gangSize"])


def bound(pods: list[Object]) -> list[Object]:
    return [pod for pod in pods if pod["spec"].get("nodeName")]


def run_with(cluster: KindsCluster, team: str, labels: Mapping[str, str]) -> list[Object]:
    """Return the pods that run and have these labels, with GPUs or without."""
    running = (pod for pod in cluster.pods(team) if pod["status"].get("phase") == "Running")
    wanted = labels.items()
    return [pod for pod in running if wanted <= pod["metadata"].get("labels", {}).items()]


@cell(CHECKED)
def test_a_wrong_annotation_is_refused_at_apply(cluster: KindsCluster, example: Example) -> None:
    team, objects = cluster.team(), example.objects()
    for template in filter(asks, templates(objects)):
        template["metadata"].setdefault("annotations", {})[names.MEMORY] = "lots"
    # Where the webhook is late, the API server lets custom kinds through: their pods are checked.
    wait_until(
        lambda: f"annotations[{names.MEMORY}]" in cluster.refusal(team, objects),
        "the annotation is refused",
    )


@cell(GANG, alone=False)
def test_the_gang_has_the_pods_that_ask_for_gpus(cluster: KindsCluster, example: Example) -> None:
    team = cluster.team()
    cluster.apply(team, example.objects())
    pods = cluster.await_running(team, example.gang)
    job = cluster.await_phase(team, "Running")
    assert size_of(job) == example.gang
    assert {pod["metadata"]["annotations"][names.GPU_JOB] for pod in pods} == {
        job["metadata"]["name"]
    }


@cell(GANG, alone=True)
def test_each_of_its_pods_starts_by_itself(cluster: KindsCluster, example: Example) -> None:
    team = cluster.team()
    cluster.apply(team, example.objects())
    pods = cluster.await_running(team, example.gang)
    job = cluster.await_phase(team, "Running")
    assert size_of(job) == 1
    assert {pod["metadata"]["annotations"][names.GPU_JOB] for pod in pods} == {
        job["metadata"]["name"]
    }


@cell(WAITS, alone=True)
def test_as_many_start_as_fit_and_the_others_wait_with_a_reason(
    cluster: KindsCluster, example: Example
) -> None:
    team = cluster.team()
    cluster.fill(cluster.team())
    cluster.apply(team, example.objects())
    wait_until(lambda: len(cluster.running(team)) == 2, "as many run as fit", timeout_s=240)
    wait_until(lambda: len(cluster.askers(team)) == example.gang, "all pods are there")
    wait_until(
        lambda: "GPU" in cluster.gpujob(team)["status"].get("message", ""),
        "the GPUJob says why the third one waits",
        timeout_s=60,
    )
    assert len(bound(cluster.askers(team))) == 2


@cell(WAITS, alone=False)
def test_while_not_all_fit_none_starts_and_the_reason_is_given(
    cluster: KindsCluster, example: Example
) -> None:
    team = cluster.team()
    cluster.fill(cluster.team())
    cluster.apply(team, example.objects())
    job = cluster.await_waiting(team)
    assert "GPU" in job["status"]["message"]
    wait_until(lambda: len(cluster.askers(team)) == example.gang, "all pods are there")
    assert not bound(cluster.askers(team))


@cell(TOGETHER, alone=False)
def test_once_all_fit_all_start(cluster: KindsCluster, example: Example) -> None:
    team = cluster.team()
    other = cluster.fill(cluster.team())
    cluster.apply(team, example.objects())
    cluster.await_waiting(team)
    assert not bound(cluster.askers(team))
    cluster.let_end([other])
    cluster.await_running(team, example.gang)
    cluster.await_phase(team, "Running")


@cell(GIVES_WAY)
def test_it_gives_way_to_a_share_that_others_want_back_and_resumes(
    cluster: KindsCluster, example: Example
) -> None:
    team = cluster.team()
    cluster.apply(team, example.objects())
    first = cluster.await_running(team, example.gang)
    began = cluster.await_phase(team, "Running")
    time.sleep(2)  # a run is counted in the whole seconds in which starts and ends are written
    suspended = example.path_of_suspended(team)
    version = cluster.version_of(suspended)
    other = cluster.fill(cluster.team(LENDER))
    assert not cluster.running(team)
    if not example.renewed:
        cluster.await_phase(team, "Suspended")
    events = cluster.plane.events_since(suspended, version)
    rested = [at(each["object"], example.suspend) for each in events]
    assert True in rested, "it was its owner's own field that changed"
    cluster.let_end([other])
    again = cluster.await_running(team, example.gang)
    assert not {each["metadata"]["uid"] for each in again} & {
        each["metadata"]["uid"] for each in first
    }
    job = cluster.await_phase(team, "Running")
    assert (job["metadata"]["uid"] == began["metadata"]["uid"]) is not example.renewed
    seen = [each["object"] for each in cluster.plane.events_since(cluster.gpujobs(team), version)]
    had = [
        each["status"]["attainedGpuSeconds"]
        for each in seen
        if each["metadata"]["uid"] == began["metadata"]["uid"]
        and each.get("status", {}).get("phase") == "Suspended"
    ]
    assert had, "it has waited as one that was preempted"
    assert job["status"]["attainedGpuSeconds"] >= max(had) > 0, "it keeps the service that it had"


@cell(RETRIED)
def test_after_a_failure_its_controller_makes_pods_that_start_again(
    cluster: KindsCluster, example: Example
) -> None:
    team = cluster.team()
    cluster.apply(team, example.objects())
    cluster.await_running(team, example.gang)
    cluster.await_phase(team, "Running")

    def like() -> list[Object]:
        return run_with(cluster, team, example.fails) if example.fails else cluster.running(team)

    failed = wait_until(like, "the pod that is to fail runs", timeout_s=240)[-1]
    cluster.let_end([failed], example.failure_status)

    def replaced() -> bool:
        uids = {pod["metadata"]["uid"] for pod in like()}
        whole = len(cluster.running(team)) == example.gang
        return whole and bool(uids) and failed["metadata"]["uid"] not in uids

    wait_until(replaced, "others run in place of the pod that failed", timeout_s=240)
    cluster.await_phase(team, "Running")


@cell(ENDS)
def test_it_ends_with_its_pods_and_gives_its_gpus_back(
    cluster: KindsCluster, example: Example
) -> None:
    team = cluster.team()
    cluster.apply(team, example.objects())
    cluster.await_running(team, example.gang)
    cluster.await_phase(team, "Running")
    last = wait_until(
        lambda: run_with(cluster, team, example.last),
        "the pods run by which it ends",
        timeout_s=240,
    )
    if example.halted:
        cluster.merge(example.path(team), example.name, example.halted)
    cluster.let_end(last, example.exit_status)
    cluster.await_phase(team, example.end)
    wait_until(lambda: not cluster.askers(team), "its pods end", timeout_s=240)
    cluster.fill(cluster.team(), gpus=2)


@cell(QUOTA, alone=False)
def test_all_its_gpus_count_in_the_quota(cluster: KindsCluster, example: Example) -> None:
    team = cluster.team(CAPPED)
    cluster.apply(team, example.objects())
    asked = f"({example.gang} asked for, 1 allowed)"
    wait_until(
        lambda: asked in cluster.gpujob(team).get("status", {}).get("message", ""),
        "its message names the quota",
        timeout_s=240,
    )
    assert not bound(cluster.askers(team))


@cell(QUOTA, alone=True)
def test_each_of_its_pods_counts_in_the_quota(cluster: KindsCluster, example: Example) -> None:
    team = cluster.team(CAPPED)
    cluster.apply(team, example.objects())
    wait_until(lambda: len(cluster.running(team)) == 1, "one runs", timeout_s=240)
    wait_until(
        lambda: "1 allowed" in cluster.gpujob(team)["status"].get("message", ""),
        "the message names the quota",
        timeout_s=240,
    )
    assert len(bound(cluster.askers(team))) == 1


@cell(NO_GPUS)
def test_roles_without_gpus_run_next_to_the_gang_and_are_not_waited_for(
    cluster: KindsCluster, example: Example
) -> None:
    team = cluster.team()
    cluster.fill(cluster.team())
    cluster.apply(team, example.objects())
    job = cluster.await_waiting(team)

    def others() -> list[Object]:
        found = [pod for pod in cluster.pods(team) if not asks(pod)]
        return [pod for pod in found if pod["status"].get("phase") == "Running"]

    (free, *_) = wait_until(others, "what asks for no GPUs runs", timeout_s=240)
    assert names.GPU_JOB not in (free["metadata"].get("annotations") or {})
    assert size_of(job) == example.gang
    assert not bound(cluster.askers(team))


def elastic(example: Example, least: int, number: int) -> Object:
    """Return the example's workload with one role of `number` pods, of which `least` may start."""
    (workload,) = example.objects()
    (specs,) = (value for key, value in workload["spec"].items() if key.endswith("ReplicaSpecs"))
    workers = specs["Worker"]
    specs.clear()
    specs["Worker"] = {**workers, "replicas": number}
    workload["spec"]["elasticPolicy"] = {"minReplicas": least, "maxReplicas": number}
    return workload


of_elastic_kinds = pytest.mark.parametrize(
    "example",
    [
        pytest.param(each, id=each.kind)
        for each in EXAMPLES
        if each.kind in ("PyTorchJob", "PaddleJob")
    ],
)


@pytest.mark.operators
@of_elastic_kinds
def test_an_elastic_job_starts_with_its_minimum_and_grows(
    cluster: KindsCluster, example: Example
) -> None:
    team = cluster.team()
    other = cluster.fill(cluster.team())
    cluster.apply(team, [elastic(example, least=2, number=4)])
    wait_until(lambda: len(cluster.running(team)) == 2, "as many run as fit", timeout_s=240)
    job = cluster.await_phase(team, "Running")
    assert size_of(job) == 2
    assert len(cluster.askers(team)) == 4
    cluster.let_end([other])
    cluster.await_running(team, 4)
    assert cluster.await_phase(team, "Running")["metadata"]["uid"] == job["metadata"]["uid"]


@pytest.mark.operators
@of_elastic_kinds
def test_an_elastic_job_gets_smaller_for_another_and_grows_back(
    cluster: KindsCluster, example: Example
) -> None:
    team = cluster.team()
    cluster.apply(team, [elastic(example, least=2, number=4)])
    first = cluster.await_running(team, 4)
    version = cluster.version_of(example.path(team))
    other = cluster.fill(cluster.team(LENDER))
    stayed = cluster.await_running(team, 2)
    assert {pod["metadata"]["uid"] for pod in stayed} < {pod["metadata"]["uid"] for pod in first}
    job = cluster.await_phase(team, "Running")
    assert (job["status"]["shrunk"]["asked"], job["status"]["shrunk"]["pods"]) == (4, 2)
    cluster.let_end([other])
    cluster.await_running(team, 4)
    wait_until(lambda: "shrunk" not in cluster.gpujob(team)["status"], "it is as large as before")
    events = cluster.plane.events_since(example.path(team), version)
    rested = {at(each["object"], example.suspend) for each in events}
    assert True not in rested, "it was not stopped"
    assert not cluster.gpujob(team)["status"].get("preemptedAt")
