"""The queue's pure parts: who belongs together, who starts, what becomes of a GPUJob."""

from dataclasses import replace

import numpy as np
import pytest
from queue_builders import gang, load, pod, raw_pod

from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.jobs import policy_job, rfc3339, unpredicted_load
from scheduler_extender.cluster.pods import pod_info
from scheduler_extender.cluster.workloads import (
    KINDS,
    explicit_size,
    gang_size,
    gpujob_name,
    resource_of,
    role_of,
)
from scheduler_extender.planning.planning import Planner
from scheduler_extender.planning.questions import Question, Start
from scheduler_extender.queue.steps import lifecycle
from tandem.contracts import names
from tandem.contracts.resources import Demand, Phase, Plan, PodPlan, Source, WorkloadRef
from tandem.kube.resource import Resource
from tandem.policy.catalog import load_profile
from tandem.policy.cluster import Snapshot
from tandem.policy.decision import Placement, PodPlacement
from tandem.policy.dispatch.admit import Admit
from tandem.policy.jobs import JobArrays
from tandem.policy.ordering.fifo import Fifo
from tandem.reasons.causes import Cause, Reason
from tandem.reasons.words import in_full


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({}, "pod-p"),
        ({"owner": ("Job", "train")}, "job-train"),
        ({"owner": ("Job", "train"), "annotations": {"tandem.gpu/gang": "g"}}, "gang-g"),
        ({"labels": {"scheduling.x-k8s.io/pod-group": "g"}}, "group-g"),
        ({"owner": ("Job", "x" * 250)}, None),
    ],
)
def test_a_gpujob_is_named_after_whom_its_pods_belong_to(more: dict, name: str | None) -> None:
    got = gpujob_name(pod("p", **more))
    assert len(got) <= 253
    if name is not None:
        assert got == name


@pytest.mark.parametrize(
    ("annotations", "spec", "size"),
    [
        ({}, {"parallelism": 4}, 1),
        ({}, {"parallelism": 4, "completionMode": "Indexed", "completions": 4}, 4),
        ({}, {"parallelism": 4, "completionMode": "Indexed", "completions": 2}, 2),
        ({"tandem.gpu/gang-size": "3"}, {"parallelism": 4}, 3),
    ],
)
def test_who_must_start_together(annotations: dict, spec: dict, size: int) -> None:
    workload = {"kind": "Job", "spec": spec}
    assert gang_size(pod("p", annotations=annotations), workload) == size


def test_a_pod_is_kept_without_what_is_never_read() -> None:
    raw = raw_pod("p", gpus=2, owner=("Job", "j"), nodeSelector={"a": "b"})
    raw["metadata"] |= {"uid": "u", "resourceVersion": "7", "managedFields": [{"x": 1}]}
    raw["metadata"]["annotations"] = {"tandem.gpu/gang": "g", "a": "secret"}
    raw["spec"]["containers"][0]["env"] = [{"name": "A"}]
    raw["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "500m", "memory": "1Gi"}
    raw["spec"]["initContainers"] = [
        {"name": "i", "resources": {"requests": {"cpu": "2"}}},
        {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}},
    ]
    raw["status"] = {
        "phase": "Running",
        "containerStatuses": [{"state": {"running": {"startedAt": "2026-01-01T00:00:01Z"}}}],
    }
    whole = pod_info(raw)
    assert (whole.gpus, whole.cpu, whole.memory_bytes) == (2, 2.0, 1 << 30)
    assert whole.started_at == "2026-01-01T00:00:01Z"
    assert whole.annotations == {"tandem.gpu/gang": "g"}
    assert "managedFields" not in str(whole)


def test_nothing_known_takes_the_whole_gpu_and_declared_memory_may_share() -> None:
    nothing = Demand(gpus_per_pod=1)
    assert policy_job("j", nothing, unpredicted_load(nothing)).exclusive
    declared = Demand(gpus_per_pod=1, declared_memory_bytes=12 << 30)
    job = policy_job("j", declared, unpredicted_load(declared))
    assert not job.exclusive
    assert job.memory_peak_gib == 12
    assert job.gpu_utilisation == 100


def test_constraints_see_the_upper_estimate_of_memory() -> None:
    careful = load(10, 2).model_copy(update={"memory_p95_bytes": 15 << 30})
    job = policy_job("j", Demand(gpus_per_pod=1), careful)
    assert (job.memory_base_gib, job.memory_peak_extra_gib) == (10, 5)


def test_a_gang_starts_with_its_size_and_then_the_rest_alone() -> None:
    pods = [pod(f"p{i}") for i in range(3)]
    assert lifecycle.pods_to_start(gang(*pods[:1], size=2), 0) == []
    assert lifecycle.pods_to_start(gang(*pods, size=2), 0) == [pods[:2]]
    plan = Plan(
        pods=[PodPlan(pod=f"p{i}", uid=f"uid-p{i}", node="n0", gpus=["a"]) for i in (0, 1)],
        made_at=rfc3339(0),
        deadline=rfc3339(30),
    )
    placed = gang(*pods, size=2, phase=Phase.ADMITTED, plan=plan)
    assert lifecycle.pods_to_start(placed, 0) == [[pods[2]]]
    assert lifecycle.pods_to_start(gang(*pods), 0) == [[p] for p in pods]


def test_who_has_succeeded_is_not_waited_for_when_a_gang_was_stopped_as_it_ended() -> None:
    done = [replace(pod(f"p{i}", gated=False), node_name="n0", phase="Succeeded") for i in (0, 1)]
    back = [pod("p2"), pod("p3")]
    stopped = gang(*done, *back, size=4, phase=Phase.SUSPENDED)
    assert lifecycle.pods_to_start(stopped, 0) == [back]
    runs = [replace(each, node_name="n0", phase="Running", gates=()) for each in back]
    assert (
        lifecycle.observed(gang(*done, *runs, size=4, phase=Phase.ADMITTED), 0).phase == "Running"
    )


def test_a_replacement_in_a_running_gang_starts_alone() -> None:
    bound = replace(pod("p0", gated=False), node_name="n0", phase="Running")
    new = pod("p1")
    assert lifecycle.pods_to_start(gang(bound, new, size=2, phase=Phase.RUNNING), 0) == [[new]]


def test_a_pod_under_a_plan_that_holds_is_not_planned_again_until_it_expires() -> None:
    waiting = pod("p0")
    plan = Plan(
        pods=[PodPlan(pod="p0", uid="uid-p0", node="n0", gpus=["a"])],
        made_at=rfc3339(0),
        deadline=rfc3339(30),
    )
    planned = gang(waiting, phase=Phase.ADMITTED, plan=plan)
    assert lifecycle.pods_to_start(planned, 10) == []
    assert lifecycle.observed(planned, 10) is planned.record.status
    assert lifecycle.pods_to_start(planned, 30) == [[waiting]]
    expired = lifecycle.observed(planned, 30)
    assert (expired.phase, expired.reason, expired.plan) == (Phase.QUEUED, "PlanExpired", None)


def test_a_new_plan_keeps_the_places_of_pods_still_on_their_way() -> None:
    first, second = pod("p0"), pod("p1")
    plan = Plan(
        pods=[
            PodPlan(pod="p0", uid="uid-p0", node="n0", gpus=["a"]),
            PodPlan(pod="old", uid="uid-old", node="n0", gpus=["b"]),
        ],
        made_at=rfc3339(0),
        deadline=rfc3339(30),
    )
    group = gang(first, second, phase=Phase.ADMITTED, plan=plan)
    place = Placement("j", (PodPlacement("n1", ("c",), (2,)),))
    status = lifecycle.with_plan(group.record.status, group, [([second], place)], 5, 35)
    assert [(p.uid, p.gpus) for p in status.plan.pods] == [("uid-p0", ["a"]), ("uid-p1", ["c"])]
    assert (status.phase, status.attempts) == (Phase.ADMITTED, 1)
    assert (status.reason, status.message) == (
        "Planned",
        "Its pods have GPUs, and are about to start (1 pod on n1/c).",
    )
    assert (status.plan.made_at, status.plan.deadline) == (rfc3339(5), rfc3339(35))
    assert (status.admitted_at, status.position) == (rfc3339(5), None)
    (scheduled,) = status.conditions
    assert (scheduled.type, scheduled.status, scheduled.reason) == ("Scheduled", "True", "Planned")


NO_ROOM, STILL_NONE = [Cause(Reason.PLACES_TAKEN, gpus=1)], [Cause(Reason.PLACES_TAKEN, gpus=2)]


def test_who_waits_has_waited_since_it_began_to_and_keeps_its_phase() -> None:
    first = lifecycle.waiting(gang(pod("p")).record.status, Reason.WAITING, NO_ROOM, 3, 100)
    assert (first.phase, first.waiting_since, first.position) == (Phase.QUEUED, rfc3339(100), 3)
    again = lifecycle.waiting(first, Reason.WAITING, STILL_NONE, 2, 160)
    assert again.waiting_since == rfc3339(100)
    (scheduled,) = again.conditions
    assert (scheduled.status, scheduled.message) == ("False", in_full(STILL_NONE))
    assert scheduled.last_transition_time == rfc3339(100)
    for phase in (Phase.RUNNING, Phase.SUSPENDED):
        kept = gang(pod("p"), phase=phase).record.status
        assert lifecycle.waiting(kept, Reason.WAITING, NO_ROOM, None, 100).phase is phase


def test_a_gang_runs_once_as_many_pods_run_as_must_start_together() -> None:
    runs = [replace(pod(f"p{i}", gated=False), node_name="n0", phase="Running") for i in (0, 1)]
    half = gang(runs[0], pod("p1"), size=2, phase=Phase.ADMITTED)
    assert lifecycle.observed(half, 50).phase is Phase.ADMITTED
    whole = gang(*runs, size=2, phase=Phase.ADMITTED, waiting_since=rfc3339(10), position=4)
    status = lifecycle.observed(whole, 50)
    assert (status.phase, status.waiting_since, status.position) == (Phase.RUNNING, None, None)
    assert (status.started_at, status.running_since) == (rfc3339(50), rfc3339(50))
    # One that comes back has started before.
    back = gang(*runs, size=2, phase=Phase.SUSPENDED, started_at=rfc3339(5))
    status = lifecycle.observed(back, 50)
    assert (status.started_at, status.running_since) == (rfc3339(5), rfc3339(50))


@pytest.mark.parametrize("phase", [Phase.COMPLETED, Phase.FAILED, Phase.PREEMPTING])
def test_pods_that_run_change_nothing_of_a_gang_that_has_ended_or_is_preempted(
    phase: Phase,
) -> None:
    runs = replace(pod("p", gated=False), node_name="n0", phase="Running")
    group = gang(runs, phase=phase)
    assert lifecycle.observed(group, 50) is group.record.status


@pytest.mark.parametrize("phase", [Phase.ADMITTED, Phase.RUNNING])
def test_a_gang_is_not_back_in_the_queue_while_its_pods_terminate(phase: Phase) -> None:
    going = replace(pod("p", gated=False), node_name="n0", phase="Pending", deleting=True)
    group = gang(going, phase=phase)
    assert lifecycle.observed(group, 50) is group.record.status
    gone = lifecycle.observed(gang(pod("q"), phase=phase, waiting_since=rfc3339(7)), 50)
    assert (gone.phase, gone.waiting_since) == (Phase.QUEUED, rfc3339(7))
    assert lifecycle.observed(gang(pod("q"), phase=phase), 50).waiting_since == rfc3339(50)


def test_a_preemption_gives_up_the_plan_and_is_remembered_with_those_before() -> None:
    plan = Plan(pods=[], made_at=rfc3339(0), deadline=rfc3339(30))
    before = [rfc3339(n) for n in range(100)]
    status = gang(pod("p"), phase=Phase.RUNNING, plan=plan, preempted_at=before).record.status
    why = Cause(Reason.NEEDED, job="default/new")
    written = lifecycle.preempting(status, why, "suspend", 500)
    assert (written.phase, written.plan) == (Phase.PREEMPTING, None)
    assert written.preempted_at == [*before[1:], rfc3339(500)]
    assert written.preemption.by == "Another job goes before it (default/new)."
    assert written.preemption.causes == [why]
    assert written.preemption.requested_at == rfc3339(500)
    back = lifecycle.suspended(written, 520)
    assert (back.phase, back.preemption, back.waiting_since) == (
        Phase.SUSPENDED, None, rfc3339(520),
    )  # fmt: skip
    assert back.preempted_at == written.preempted_at


@pytest.mark.parametrize("held", [{"hold": True}, {}])
def test_a_gang_on_hold_or_preempted_starts_nothing(held: dict) -> None:
    group = gang(pod("p"), phase=Phase.QUEUED if held else Phase.PREEMPTING)
    spec = group.record.spec.model_copy(update=held)
    group = Gang(group.key, replace(group.record, spec=spec), group.pods)
    assert lifecycle.pods_to_start(group, 0) == []


def start(name: str, job_load=None, gpus: int = 1, queued: float = 0, pods: int = 1) -> Start:
    job = policy_job(
        name,
        Demand(gpus_per_pod=gpus, gang_size=pods),
        job_load or load(),
        queued_at_s=queued,
    )
    return Start(("default", name), job, tuple(pod(f"{name}-{i}") for i in range(pods)))


def cycle(starts: list[Start], order: Fifo, *rows: tuple[str, str, float]) -> dict[str, object]:
    snapshot = Snapshot.from_rows(list(rows))
    ranked = order([start.job for start in starts], 0)
    question = Question(
        rank=lambda: [starts[index].gpujob for index in ranked],
        starts={start.gpujob: (start,) for start in starts},
        snapshot=snapshot,
        eligible={0: np.ones(len(snapshot.node_names), dtype=bool)},
        arrays=JobArrays.of([start.job for start in starts]),
        row_of={start.gpujob: row for row, start in enumerate(starts)},
    )
    answer = Planner(
        load_profile("tandem").model_copy(update={"order": order, "dispatch": Admit()})
    ).plan(question)
    placed: dict[str, object] = {v.start.job.id: v.decision for v in answer.placed}
    return placed | {w.start.job.id: answer.explain(w) for w in answer.waiting}


def test_earlier_jobs_take_their_place_first_and_later_ones_see_what_is_left() -> None:
    whole = unpredicted_load(Demand(gpus_per_pod=1))
    assert whole.memory_source is Source.WHOLE_GPU
    decisions = cycle(
        [start("late", whole, queued=2), start("early", whole, queued=1)], Fifo(), ("n", "a", 80)
    )
    assert isinstance(decisions["early"], Placement)
    late = decisions["late"]
    assert isinstance(late, tuple)
    assert late[1] == Cause(Reason.NOT_SHARED, gpus=1)


def test_a_job_that_does_not_fit_is_skipped_over_unless_the_order_blocks() -> None:
    whole = unpredicted_load(Demand(gpus_per_pod=1))
    starts = [start("first", whole), start("big", gpus=2, queued=1), start("small", queued=2)]
    gpus = ("n", "a", 80), ("n", "b", 80)
    assert isinstance(cycle(starts, Fifo(), *gpus)["small"], Placement)
    blocked = cycle(starts, Fifo(blocks=True), *gpus)["small"]
    assert blocked == (Cause(Reason.BEHIND, job="default/big"),)
    # A job that the cluster could not hold if it were empty blocks no other.
    assert isinstance(cycle(starts[1:], Fifo(blocks=True), gpus[0])["small"], Placement)


def test_alike_jobs_behind_one_that_was_refused_are_refused_with_it() -> None:
    starts = [start(f"j{i}", gpus=2, queued=i) for i in range(3)]
    decisions = cycle(starts, Fifo(), ("n", "a", 80))
    assert set(decisions) == {"j0", "j1", "j2"}
    assert len(set(decisions.values())) == 1


@pytest.mark.parametrize(
    ("stated", "size"), [("3", 3), ("1", 1), ("0", None), ("-2", None), ("two", None), ("", None)]
)
def test_a_stated_size_is_a_number_of_at_least_one(stated: str, size: int | None) -> None:
    assert explicit_size(pod("p", annotations={names.GANG_SIZE: stated})) == size


@pytest.mark.parametrize(
    ("labels", "role"),
    [
        ({}, ""),
        ({names.REPLICATED_JOB_LABEL: "Leader"}, "Leader"),
        ({names.REPLICA_TYPE_LABEL: "Worker"}, "worker"),
        ({names.JOB_ROLE_LABEL: "Master"}, "master"),
        ({names.LEADER_WORKER_SET_WORKER_LABEL: "0"}, "leader"),
        ({names.LEADER_WORKER_SET_WORKER_LABEL: "3"}, "worker"),
    ],
)
def test_the_role_of_a_pod_is_read_off_the_label_of_its_operator(labels: dict, role: str) -> None:
    assert role_of(pod("p", labels=labels)) == role


def test_the_jobs_of_kubeflow_are_served_under_their_plurals() -> None:
    kubeflow = [
        kind for kind in KINDS.values() if kind.resource and kind.resource.group == "kubeflow.org"
    ]
    assert len(kubeflow) == 6
    for kind in kubeflow:
        assert kind.resource.plural == kind.resource.kind.lower() + "s"
        assert KINDS[kind.resource.kind] is kind


@pytest.mark.parametrize(
    ("api_version", "kind", "resource"),
    [
        ("kubeflow.org/v1", "MPIJob", Resource("kubeflow.org", "v1", "MPIJob", "mpijobs")),
        (
            "kubeflow.org/v2beta1",
            "MPIJob",
            Resource("kubeflow.org", "v2beta1", "MPIJob", "mpijobs"),
        ),
        ("kubeflow.org/v1", "JAXJob", Resource("kubeflow.org", "v1", "JAXJob", "jaxjobs")),
        ("example.com/v1", "MPIJob", None),
        ("kubeflow.org/v1", "Unheard", None),
    ],
)
def test_a_workload_is_looked_up_in_its_own_group_at_the_version_its_pods_refer_to(
    api_version: str, kind: str, resource: Resource | None
) -> None:
    workload = WorkloadRef(api_version=api_version, kind=kind, name="w", uid="u")
    assert resource_of(workload) == resource
