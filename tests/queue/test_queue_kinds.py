"""Kinds of workloads as data: those shipped, one that the test invents, and groups of others."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from queue_builders import pod, raw_pod
from test_queue_controller import Cluster, run

from scheduler_extender.admission.config import AdmissionConfig
from scheduler_extender.admission.templates import admit_owner
from scheduler_extender.cluster.jobs import rfc3339
from scheduler_extender.cluster.kinds import WorkloadKind, merged, shipped
from scheduler_extender.cluster.workloads import (
    KINDS,
    gpujob_name,
    group_of,
    is_endless,
    know,
    size_of,
    workload_of,
)
from scheduler_extender.config import ConfigError, QueueConfig, read_config
from scheduler_extender.quotas.config import Quota
from tandem.contracts import names
from tandem.contracts.placement import PlacedWith
from tandem.contracts.values import MAX_INTEGER
from tandem.kube.errors import NotFound, Unavailable
from tandem.kube.resource import GPU_JOBS, PODS, Resource
from tandem.reasons.causes import Cause, Reason

VERSION = "ml.example.com/v1"
EXPERIMENTS = Resource("ml.example.com", "v1", "Experiment", "experiments")
INVENTED: dict[str, Any] = {
    "group": "ml.example.com",
    "version": "v1",
    "kind": "Experiment",
    "plural": "experiments",
    "roles": [
        {"name": "driver", "template": ["spec", "driver", "template"]},
        {
            "each": ["spec", "groups"],
            "named_by": ["name"],
            "template": ["template"],
            "pods": ["replicas"],
        },
    ],
    "role_label": "ml.example.com/role",
    "templates": [["spec", "driver", "template"], ["spec", "groups", "*", "template"]],
    "suspend": ["spec", "paused"],
    "ended": {"at": ["status", "phase"], "completed": ["Done"], "failed": ["Broken"]},
}


@pytest.fixture
def invented() -> Iterator[None]:
    know(merged([WorkloadKind.model_validate(INVENTED)]))
    yield
    know(shipped())


def template(gpus: int, **annotations: str) -> dict[str, Any]:
    container = {"name": "main", "resources": {"limits": {"tandem.gpu/gpu": gpus} if gpus else {}}}
    return {"metadata": {"annotations": annotations}, "spec": {"containers": [container]}}


def site(*gpus: int) -> Cluster:
    cluster = Cluster()
    for number, count in enumerate(gpus):
        cluster.add_node(f"n{number}", gpus=count)
    return cluster


def create(
    cluster: Cluster, resource: Resource, name: str, spec: dict[str, Any], **more: Any
) -> str:
    body = {"metadata": {"name": name, **more}, "spec": spec}
    return str(cluster.api.create(resource, body, "default")["metadata"]["uid"])


def owned(
    cluster: Cluster, name: str, owner: Resource, owner_name: str, uid: str, **more: Any
) -> None:
    body = raw_pod(name, owner=(owner.kind, owner_name), api_version=owner.api_version, **more)
    body["metadata"]["ownerReferences"][0]["uid"] = uid
    cluster.api.create(PODS, body)


async def wait(cluster: Cluster, seconds: int = 6) -> None:
    for _ in range(seconds):
        cluster.now += 1
        cluster.state.tick(cluster.now)
        await cluster.cycle()


def resource_of(kind: str) -> Resource:
    found = KINDS[kind].resource
    assert found is not None
    return found


@pytest.fixture
def endless_jobs() -> Iterator[None]:
    know(merged([WorkloadKind(group="ml.example.com", kind="Job", endless=True)]))
    yield
    know(shipped())


def test_jobs_end_though_another_group_has_jobs_without_an_end(endless_jobs: None) -> None:
    theirs = pod("p", owner=("Job", "j"), api_version="ml.example.com/v1")
    assert is_endless(theirs)
    assert not is_endless(pod("p", owner=("Job", "j")))


# --- a kind that Tandem does not know ------------------------------------------------------------


def test_an_invented_kind_starts_whole_gives_way_by_its_own_field_and_goes_on(
    invented: None,
) -> None:
    cluster = site(4)
    saves = {"tandem.gpu/checkpoint": "true"}
    spec = {
        "driver": {"template": template(1)},
        "groups": [
            {"name": "trainers", "replicas": 2, "template": template(1)},
            {"name": "loaders", "replicas": 5, "template": template(0)},
        ],
    }

    def pods(number: int, uid: str) -> list[str]:
        made = []
        for role, count in (("driver", 1), ("trainers", 2)):
            for index in range(count):
                made.append(f"e-{number}-{role}-{index}")
                owned(cluster, made[-1], EXPERIMENTS, "e", uid, annotations=saves,
                      labels={"ml.example.com/role": role})  # fmt: skip
        return made

    async def scenario() -> None:
        uid = create(cluster, EXPERIMENTS, "e", spec)
        first = pods(0, uid)
        await wait(cluster)
        job = "experiment.ml.example.com-e"
        assert cluster.gpujob(job)["spec"]["demand"]["gangSize"] == 3, "loaders ask for no GPUs"
        for name in first:
            cluster.bind_as_planned(name)
        await wait(cluster)
        assert cluster.gpujob(job)["status"]["phase"] == "Running"
        gang = cluster.controller.gangs.by_key["default", job]
        await cluster.controller.preempter.begin(gang, Cause(Reason.NEEDED, job="the test"))
        await wait(cluster, 2)
        assert cluster.api.get(EXPERIMENTS, "e", "default")["spec"]["paused"] is True
        for name in first:
            cluster.api.delete(PODS, name, "default")
        await wait(cluster)
        assert cluster.api.get(EXPERIMENTS, "e", "default")["spec"]["paused"] is False
        second = pods(1, uid)
        await wait(cluster)
        assert not any(map(cluster.gated, second))
        for name in second:
            cluster.bind_as_planned(name)
            cluster.set_phase(name, "Succeeded")
        await wait(cluster, 10)
        assert cluster.gpujob(job)["status"]["phase"] != "Completed", "it has not said so"
        done = {"status": {"phase": "Done"}}
        cluster.api.patch(EXPERIMENTS, "e", done, "default")
        await wait(cluster, 60)
        assert cluster.gpujob(job)["status"]["phase"] == "Completed"

    run(scenario)


def test_the_templates_of_an_invented_kind_are_checked_at_apply(invented: None) -> None:
    wrong = {"tandem.gpu/memory": "12 gigs"}
    body = {
        "spec": {
            "driver": {"template": template(1, **wrong)},
            "groups": [{"template": template(1)}, {"template": template(1, **wrong)}],
        }
    }
    found = admit_owner("ml.example.com", "Experiment", body, None, AdmissionConfig())
    assert [error.field for error in found.errors] == [
        "spec.driver.template.metadata.annotations[tandem.gpu/memory]",
        "spec.groups[1].template.metadata.annotations[tandem.gpu/memory]",
    ]
    know(shipped())
    assert not admit_owner("ml.example.com", "Experiment", body, None, AdmissionConfig()).errors


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"plural": ""}, "Experiment.ml.example.com: roles needs version and plural"),
        (
            {"plural": "", "roles": [], "suspend": None, "ended": None},
            "Experiment.ml.example.com: version and plural come together",
        ),
        ({"read": False}, "Experiment.ml.example.com: roles with read: false"),
        ({"reader": "job-set"}, "reader and roles: one of them says which pods it has"),
        ({"reader": "guess"}, "kinds.0.reader"),
        ({"suspend": "spec.paused"}, "kinds.0.suspend"),
        (
            {"scale": {"replicas": ["spec", "pods"], "role": "driver", "index": "x"}},
            "Experiment.ml.example.com: scale without minimum",
        ),
        ({"roles": [{"template": ["spec"]}]}, "a role has a name, or each leads to several"),
        ({"kind": "experiment"}, "kinds.0.kind"),
        ({"suspends": ["spec"]}, "kinds.0.suspends"),
    ],
)
def test_a_wrong_entry_is_refused_at_the_start_with_its_name(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({"kinds": [INVENTED | change]}))
    with pytest.raises(ConfigError, match=r"Experiment|kinds\.0") as refused:
        read_config(path)
    assert said in str(refused.value)


def test_an_entry_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({"kinds": [INVENTED, INVENTED]}))
    with pytest.raises(ConfigError, match=r"Experiment\.ml\.example\.com is there twice"):
        read_config(path)


def test_an_entry_takes_the_place_of_the_shipped_one() -> None:
    workers = next(each for each in shipped() if each.kind == "LeaderWorkerSet")
    try:
        know(merged([workers.model_copy(update={"suspend": ("spec", "suspend")})]))
        assert KINDS["LeaderWorkerSet"].suspend == ("spec", "suspend")
    finally:
        know(shipped())
    assert KINDS["LeaderWorkerSet"].suspend == ()


# --- gangs of other systems ----------------------------------------------------------------------


def test_two_of_three_pods_of_a_ray_cluster_hold_no_gpus() -> None:
    cluster = site(2)
    ray = resource_of("RayCluster")
    spec = {
        "headGroupSpec": {"template": template(1)},
        "workerGroupSpecs": [{"groupName": "a", "replicas": 2, "template": template(1)}],
    }

    async def scenario() -> None:
        uid = create(cluster, ray, "ray", spec)
        made = {"head": "headgroup", "w0": "a", "w1": "a"}
        for name, role in made.items():
            owned(cluster, name, ray, "ray", uid, labels={"ray.io/group": role})
        await wait(cluster)
        assert all(map(cluster.gated, made))
        cluster.add_node("n9")
        await wait(cluster)
        assert not any(map(cluster.gated, made))

    run(scenario)


def test_a_pod_anew_in_a_ray_cluster_of_an_earlier_release_does_not_wait_for_the_others() -> None:
    """Its pods were placed each alone, without a role."""
    cluster = site(4)
    ray = resource_of("RayCluster")
    spec = {
        "headGroupSpec": {"template": template(1)},
        "workerGroupSpecs": [{"groupName": "a", "replicas": 3, "template": template(1)}],
    }

    async def scenario() -> None:
        uid = create(cluster, ray, "ray", spec)
        names_of = {"head": "headgroup", "w0": "a", "w1": "a", "w2": "a"}
        for name, role in names_of.items():
            owned(cluster, name, ray, "ray", uid, labels={"ray.io/group": role})
        await wait(cluster)
        for name in names_of:
            cluster.bind_as_planned(name)
            placed = PlacedWith(gpu_job="raycluster-ray").text()
            marks = {names.GPU_JOB: "raycluster-ray", names.PLACED_WITH: placed}
            change = {"metadata": {"annotations": marks}}
            cluster.api.patch(PODS, name, change, "default")
        demand = {"spec": {"demand": {"gangSize": 1}}}
        cluster.api.patch(GPU_JOBS, "raycluster-ray", demand, "default")
        await wait(cluster)
        cluster.api.delete(PODS, "w2", "default")
        owned(cluster, "w3", ray, "ray", uid, labels={"ray.io/group": "a"})
        await wait(cluster, 10)
        assert not cluster.gated("w3")

    run(scenario)


def test_the_head_of_a_ray_cluster_without_a_gpu_is_not_waited_for() -> None:
    cluster = site(4)
    ray = resource_of("RayCluster")
    group = {"groupName": "a", "replicas": 2, "numOfHosts": 2, "template": template(1)}
    spec = {"headGroupSpec": {"template": template(0)}, "workerGroupSpecs": [group]}

    async def scenario() -> None:
        uid = create(cluster, ray, "ray", spec)
        for index in range(4):
            owned(cluster, f"w{index}", ray, "ray", uid, labels={"ray.io/group": "a"})
        await wait(cluster)
        assert cluster.gpujob("raycluster-ray")["spec"]["demand"]["gangSize"] == 4
        assert not cluster.gated("w0")

    run(scenario)


@pytest.mark.parametrize(("loaders", "size"), [(0, 2), (1, 1)])
def test_a_volcano_job_starts_with_its_min_available(loaders: int, size: int) -> None:
    """What it counts includes pods without GPUs."""
    cluster = site(size)
    volcano = resource_of("Job.batch.volcano.sh")
    tasks = [
        {"name": "trainer", "replicas": 3, "template": template(1)},
        {"name": "loader", "replicas": loaders, "template": template(0)},
    ]

    async def scenario() -> None:
        uid = create(cluster, volcano, "train", {"minAvailable": 2, "tasks": tasks})
        for index in range(3):
            owned(cluster, f"t{index}", volcano, "train", uid,
                  labels={"volcano.sh/task-spec": "trainer"})  # fmt: skip
        await wait(cluster)
        job = cluster.gpujob("job.batch.volcano.sh-train")
        assert job["spec"]["demand"]["gangSize"] == size
        started = [name for name in ("t0", "t1", "t2") if not cluster.gated(name)]
        assert len(started) == size

    run(scenario)


def test_fewer_pods_of_a_volcano_job_than_its_min_available_start_none() -> None:
    cluster = site(2)
    volcano = resource_of("Job.batch.volcano.sh")
    spec = {
        "minAvailable": 3,
        "tasks": [{"name": "t", "replicas": 4, "template": template(1)}],
    }

    async def scenario() -> None:
        uid = create(cluster, volcano, "train", spec)
        for index in range(4):
            owned(cluster, f"t{index}", volcano, "train", uid)
        await wait(cluster)
        assert all(cluster.gated(f"t{index}") for index in range(4))

    run(scenario)


@pytest.mark.parametrize("least", [1, 2])
def test_no_task_of_a_volcano_job_beyond_its_min_available_waits_for_all_of_its_pods(
    least: int,
) -> None:
    cluster = site(3)
    volcano = resource_of("Job.batch.volcano.sh")
    tasks = [
        {"name": name, "replicas": count, "template": template(1)}
        for name, count in (("a", 2), ("b", 4))
    ]

    async def scenario() -> None:
        uid = create(cluster, volcano, "train", {"minAvailable": least, "tasks": tasks})
        pods = [("a", index) for index in range(2)] + [("b", index) for index in range(4)]
        for task, index in pods:
            labels = {"volcano.sh/task-spec": task}
            alone = {names.EXCLUSIVE: "true"}
            owned(
                cluster, f"{task}{index}", volcano, "train", uid, annotations=alone, labels=labels
            )
            if (task, index) == ("a", 1):
                await wait(cluster)
        await wait(cluster)
        started = [f"{task}{index}" for task, index in pods if not cluster.gated(f"{task}{index}")]
        assert len(started) == 3

    run(scenario)


ELASTIC = [("PyTorchJob", "pytorchReplicaSpecs"), ("PaddleJob", "paddleReplicaSpecs")]


@pytest.mark.parametrize(("kind", "replicas"), ELASTIC)
def test_an_elastic_job_starts_with_what_is_free_from_its_minimum_on_and_grows(
    kind: str, replicas: str
) -> None:
    cluster = site(4)
    jobs = resource_of(kind)
    spec = {
        "elasticPolicy": {"minReplicas": 2, "maxReplicas": 5},
        replicas: {"Worker": {"replicas": 5, "template": template(1)}},
    }
    workers = [f"w{index}" for index in range(5)]

    def started() -> int:
        return sum(not cluster.gated(name) for name in workers)

    async def scenario() -> None:
        uid = create(cluster, jobs, "train", spec)
        for name in workers:
            owned(cluster, name, jobs, "train", uid, annotations={names.EXCLUSIVE: "true"})
        await wait(cluster)
        job = cluster.gpujob(f"{kind.lower()}-train")
        assert job["spec"]["demand"]["gangSize"] == 2
        assert started() == 4
        cluster.add_node("later", gpus=1)
        await wait(cluster)
        assert started() == 5

    run(scenario)


def test_an_elastic_job_grows_to_what_its_quota_allows() -> None:
    cluster = Cluster(settings=QueueConfig(quotas=[Quota(namespace="default", max_gpus=3)]))
    cluster.add_node("n0", gpus=5)
    jobs = resource_of("PyTorchJob")
    spec = {
        "elasticPolicy": {"minReplicas": 2, "maxReplicas": 5},
        "pytorchReplicaSpecs": {"Worker": {"replicas": 5, "template": template(1)}},
    }
    workers = [f"w{index}" for index in range(5)]

    async def scenario() -> None:
        uid = create(cluster, jobs, "train", spec)
        for name in workers:
            owned(cluster, name, jobs, "train", uid, annotations={names.EXCLUSIVE: "true"})
        await wait(cluster, 12)
        assert sum(not cluster.gated(name) for name in workers) == 3
        assert cluster.state.ledger.bound_gpus() in ({}, {"default": 3})

    run(scenario)


@pytest.mark.parametrize(("kind", "replicas"), ELASTIC)
def test_an_elastic_job_waits_for_its_minimum(kind: str, replicas: str) -> None:
    cluster = site(1)
    jobs = resource_of(kind)
    spec = {
        "elasticPolicy": {"minReplicas": 2},
        replicas: {"Worker": {"replicas": 3, "template": template(1)}},
    }

    async def scenario() -> None:
        uid = create(cluster, jobs, "train", spec)
        for index in range(3):
            owned(cluster, f"w{index}", jobs, "train", uid)
        await wait(cluster)
        assert all(cluster.gated(f"w{index}") for index in range(3))

    run(scenario)


@pytest.mark.parametrize(
    "tasks",
    [
        5,
        [5],
        [{"name": "t", "replicas": 2, "template": 7}],
        [{"name": "t", "replicas": 2, "template": {"spec": {"containers": 3}}}],
        [{"name": "t", "replicas": 2, "template": {"spec": {"containers": [3]}}}],
        [{"template": {"metadata": "x", "spec": {"containers": [{"resources": {"limits": 4}}]}}}],
    ],
)
def test_templates_that_are_none_are_read_as_such(tasks: object) -> None:
    """Definitions of custom kinds may leave open what a template is."""
    job = {"kind": "Job", "apiVersion": "batch.volcano.sh/v1alpha1", "spec": {"tasks": tasks}}
    assert size_of(job, {""}) >= 1


def test_more_pods_than_a_gpujob_can_state_are_as_many_as_it_can() -> None:
    most = 2**31 - 1
    job = {"spec": {"parallelism": most, "template": template(1)}}
    jobs = [{"name": f"r{at}", "replicas": most, "template": job} for at in range(3)]
    job_set = {"kind": "JobSet", "spec": {"replicatedJobs": jobs}}
    assert size_of(job_set, {"r0"}) == MAX_INTEGER


@pytest.mark.parametrize(
    ("label", "group"),
    [
        (names.COSCHEDULING_GROUP_LABEL, "scheduling.x-k8s.io"),
        (names.COSCHEDULING_LEGACY_LABEL, "scheduling.sigs.k8s.io"),
    ],
)
def test_a_pod_group_starts_with_its_min_member(label: str, group: str) -> None:
    cluster = site(2)
    groups = Resource(group, "v1alpha1", "PodGroup", "podgroups")

    async def scenario() -> None:
        create(cluster, groups, "my-group", {"minMember": 4})
        for index in range(3):
            cluster.api.create(PODS, raw_pod(f"p{index}", labels={label: "my-group"}))
        await wait(cluster)
        assert all(cluster.gated(f"p{index}") for index in range(3))
        change = {"spec": {"minMember": 2}}
        cluster.api.patch(groups, "my-group", change, "default")
        await wait(cluster, 10)
        assert sum(cluster.gated(f"p{index}") for index in range(3)) == 1
        assert cluster.gpujob("group-my-group")["spec"]["demand"]["gangSize"] == 2

    run(scenario)


COSCHEDULING_GROUPS = Resource("scheduling.x-k8s.io", "v1alpha1", "PodGroup", "podgroups")
KUBERNETES_GROUPS = Resource("scheduling.k8s.io", "v1beta1", "PodGroup", "podgroups")


def grouped(name: str, group: str, **more: Any) -> dict[str, Any]:
    """Return a pod that is in a group of Kubernetes' own."""
    return raw_pod(name, schedulingGroup={"podGroupName": group}, **more)


def test_a_group_of_kubernetes_own_starts_with_its_min_count() -> None:
    cluster = site(2)

    async def scenario() -> None:
        policy = {"schedulingPolicy": {"gang": {"minCount": 4}}}
        create(cluster, KUBERNETES_GROUPS, "mine", policy)
        for index in range(3):
            cluster.api.create(PODS, grouped(f"p{index}", "mine"))
        await wait(cluster)
        assert all(cluster.gated(f"p{index}") for index in range(3))
        assert cluster.gpujob("podgroup-mine")["spec"]["demand"]["gangSize"] == 4
        change = {"spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}}
        cluster.api.patch(KUBERNETES_GROUPS, "mine", change, "default")
        await wait(cluster, 10)
        assert sum(cluster.gated(f"p{index}") for index in range(3)) == 1

    run(scenario)


def test_a_group_of_kubernetes_own_is_read_at_the_version_that_is_served() -> None:
    """1.36 serves v1alpha2 alone."""
    cluster = site(2)

    async def scenario() -> None:
        served = replace(KUBERNETES_GROUPS, version="v1alpha2")
        create(cluster, served, "mine", {"schedulingPolicy": {"gang": {"minCount": 3}}})
        for index in range(2):
            cluster.api.create(PODS, grouped(f"p{index}", "mine"))
        await wait(cluster)
        assert all(cluster.gated(f"p{index}") for index in range(2))
        change = {"spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}}
        cluster.api.patch(served, "mine", change, "default")
        await wait(cluster, 10)
        assert not any(cluster.gated(f"p{index}") for index in range(2))

    run(scenario)


def labelled(name: str, group: str) -> dict[str, Any]:
    return raw_pod(name, labels={names.COSCHEDULING_GROUP_LABEL: group})


LATE = [
    pytest.param(COSCHEDULING_GROUPS, labelled, lambda least: {"minMember": least}, id="label"),
    pytest.param(
        KUBERNETES_GROUPS,
        grouped,
        lambda least: {"schedulingPolicy": {"gang": {"minCount": least}}},
        id="field",
    ),
]


@pytest.mark.parametrize(("groups", "member", "spec"), LATE)
def test_pods_wait_for_a_group_that_is_created_after_them(
    groups: Resource,
    member: Callable[[str, str], dict[str, Any]],
    spec: Callable[[int], dict[str, Any]],
) -> None:
    cluster = site(3)

    async def scenario() -> None:
        create(cluster, groups, "other", spec(1))
        cluster.api.create(PODS, member("p0", "mine"))
        await wait(cluster, 20)
        assert cluster.gated("p0")
        (job,) = cluster.api.list(GPU_JOBS)
        assert job["status"]["reason"] == Reason.BLOCKED
        assert job["status"]["causes"] == [
            {"reason": Reason.GROUP_MISSING, "workload": "PodGroup mine"}
        ]
        create(cluster, groups, "mine", spec(3))
        cluster.api.create(PODS, member("p1", "mine"))
        await wait(cluster, 60)
        assert cluster.gated("p0"), "two of three"
        assert cluster.gated("p1")
        (job,) = cluster.api.list(GPU_JOBS)
        assert job["status"]["reason"] == Reason.PODS_MISSING
        cluster.api.create(PODS, member("p2", "mine"))
        await wait(cluster, 10)
        assert not any(cluster.gated(f"p{index}") for index in range(3))

    run(scenario)


@pytest.mark.parametrize(("groups", "member", "spec"), LATE)
def test_a_leader_that_begins_reads_groups_before_their_pods_start(
    groups: Resource,
    member: Callable[[str, str], dict[str, Any]],
    spec: Callable[[int], dict[str, Any]],
) -> None:
    """What is read is not written down: the next leader knows a GPUJob of one pod only."""
    cluster = site(3)

    async def scenario() -> None:
        create(cluster, groups, "other", spec(1))
        cluster.api.create(PODS, member("p0", "mine"))
        await wait(cluster)
        cluster.api._watchers.clear()
        second = Cluster(cluster.api)
        second.now = cluster.now
        await wait(second, 20)
        assert second.gated("p0")
        create(second, groups, "mine", spec(1))
        await wait(second, 60)
        assert not second.gated("p0")

    run(scenario)


def test_pods_with_the_label_of_a_kind_that_is_not_served_start_each_alone() -> None:
    """No group can come where the API server has no such kind."""
    cluster = site(1)

    def absent(resource: Resource, name: str, namespace: str | None = None) -> dict[str, Any]:
        if resource.plural == "podgroups":
            raise NotFound(404, "404 page not found")
        return read(resource, name, namespace)

    read, cluster.api.get = cluster.api.get, absent  # type: ignore[method-assign]

    async def scenario() -> None:
        cluster.api.create(PODS, labelled("p0", "mine"))
        await wait(cluster)
        assert not cluster.gated("p0")

    run(scenario)


@pytest.mark.parametrize(("groups", "member", "spec"), LATE)
def test_no_pod_starts_while_its_group_cannot_be_read(
    groups: Resource,
    member: Callable[[str, str], dict[str, Any]],
    spec: Callable[[int], dict[str, Any]],
) -> None:
    cluster = site(3)
    down = [False]

    def away(resource: Resource, name: str, namespace: str | None = None) -> dict[str, Any]:
        if resource == groups and down[0]:
            raise Unavailable(503, "not now")
        return read(resource, name, namespace)

    read, cluster.api.get = cluster.api.get, away  # type: ignore[method-assign]

    async def scenario() -> None:
        create(cluster, groups, "other", spec(1))
        cluster.api.create(PODS, member("p0", "mine"))
        await wait(cluster)
        down[0] = True
        await wait(cluster, 10)
        assert cluster.gated("p0")

    run(scenario)


def test_the_pods_of_a_basic_group_start_each_alone() -> None:
    cluster = site(2)

    async def scenario() -> None:
        create(cluster, KUBERNETES_GROUPS, "loose", {"schedulingPolicy": {"basic": {}}})
        for index in range(3):
            cluster.api.create(PODS, grouped(f"p{index}", "loose"))
        await wait(cluster, 10)
        assert sum(cluster.gated(f"p{index}") for index in range(3)) == 1

    run(scenario)


def test_groups_of_several_kinds_with_one_name_are_different_gangs() -> None:
    known = pod("a", schedulingGroup={"podGroupName": "g"})
    others = pod("b", labels={names.COSCHEDULING_GROUP_LABEL: "g"})
    ours = pod("c", annotations={names.GANG: "g"}, schedulingGroup={"podGroupName": "h"})
    assert [gpujob_name(each) for each in (known, others, ours)] == [
        "podgroup-g",
        "group-g",
        "gang-g",
    ]


def test_no_label_says_that_a_pod_is_in_a_group_of_kubernetes_own() -> None:
    key = names.POD_GROUP_FIELD
    assert not re.fullmatch(r"([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", key)


def test_a_grouped_pod_that_an_earlier_version_admitted_stays_in_its_gpujob() -> None:
    known = pod(
        "a",
        owner=("Job", "j"),
        annotations={names.GPU_JOB: "job-j"},
        schedulingGroup={"podGroupName": "g"},
    )
    assert gpujob_name(known) == "job-j"
    assert workload_of(known).kind == "Job"
    assert group_of(known) is None


def ray_cluster_of(cluster: Cluster, kind: str, name: str, *, shuts_down: bool = True) -> str:
    """Create a workload of a kind of Ray's, its cluster of two workers, and their pods."""
    above = Resource("ray.io", "v1", kind, f"{kind.lower()}s")
    reference = {
        "apiVersion": above.api_version,
        "kind": kind,
        "name": name,
        "uid": create(cluster, above, name, {"shutdownAfterJobFinishes": shuts_down}),
        "controller": True,
    }
    return make_ray_cluster(cluster, reference, f"{name}-x", "p")


def make_ray_cluster(cluster: Cluster, owner: dict[str, Any], name: str, pods: str) -> str:
    """Create a RayCluster of two workers that `owner` has made, and its pods."""
    ray_cluster = resource_of("RayCluster")
    workers = {"groupName": "workers", "replicas": 2, "template": template(1)}
    spec = {"headGroupSpec": {"template": template(0)}, "workerGroupSpecs": [workers]}
    uid = create(cluster, ray_cluster, name, spec, ownerReferences=[owner])
    for index in range(2):
        owned(
            cluster,
            f"{pods}{index}",
            ray_cluster,
            name,
            uid,
            annotations={names.CHECKPOINT: "true"},
            labels={"ray.io/group": "workers"},
        )
    return f"raycluster-{name}"


async def preempted_ray_job(cluster: Cluster, **more: Any) -> str:
    """Let a RayJob of two pods run, and preempt it; return its GPUJob."""
    job = ray_cluster_of(cluster, "RayJob", "r", **more)
    await wait(cluster)
    assert cluster.gpujob(job)["spec"]["demand"]["gangSize"] == 2
    for index in range(2):
        cluster.bind_as_planned(f"p{index}")
    await wait(cluster)
    gang = cluster.controller.gangs.by_key["default", job]
    await cluster.controller.preempter.begin(gang, Cause(Reason.NEEDED, job="the test"))
    await wait(cluster, 2)
    return job


def test_of_a_ray_job_the_ray_job_is_suspended_and_not_the_cluster_below_it() -> None:
    cluster = site(2)

    async def scenario() -> None:
        await preempted_ray_job(cluster)
        assert cluster.api.get(resource_of("RayJob"), "r", "default")["spec"]["suspend"] is True
        assert "suspend" not in cluster.api.get(resource_of("RayCluster"), "r-x", "default")["spec"]

    run(scenario)


def test_a_ray_job_that_kuberay_would_end_is_not_suspended() -> None:
    cluster = site(2)

    async def scenario() -> None:
        job = await preempted_ray_job(cluster, shuts_down=False)
        assert "suspend" not in cluster.api.get(resource_of("RayJob"), "r", "default")["spec"]
        assert cluster.gpujob(job)["status"]["phase"] == "Suspended"
        assert not cluster.api.list(PODS, "default")

    run(scenario)


@pytest.mark.parametrize("restarted", [False, True], ids=["", "by the next leader"])
def test_a_ray_job_that_deletes_its_cluster_to_rest_keeps_its_service(restarted: bool) -> None:
    """KubeRay makes a cluster of another name once it is resumed."""
    cluster = site(2)

    async def scenario() -> None:
        nonlocal cluster
        job = ray_cluster_of(cluster, "RayJob", "r")
        await wait(cluster)
        (owner,) = cluster.gpujob(job)["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"]) == ("RayJob", "r")
        held = {"spec": {"hold": True, "prioritizedAt": "2026-01-01T00:00:00Z"}}
        for index in range(2):
            cluster.bind_as_planned(f"p{index}")
            began = {"state": {"running": {"startedAt": rfc3339(cluster.now)}}}
            status = {"status": {"containerStatuses": [began]}}
            cluster.api.patch(PODS, f"p{index}", status, "default", subresource="status")
        await wait(cluster)
        gang = cluster.controller.gangs.by_key["default", job]
        await cluster.controller.preempter.begin(gang, Cause(Reason.NEEDED, job="the test"))
        await wait(cluster, 2)
        cluster.api.delete(resource_of("RayCluster"), "r-x", "default")
        for index in range(2):
            cluster.api.delete(PODS, f"p{index}", "default")
        await wait(cluster)
        assert cluster.api.get(resource_of("RayJob"), "r", "default")["spec"]["suspend"] is False
        had = cluster.gpujob(job)
        assert had["status"]["phase"] == "Suspended"
        assert had["status"]["attainedGpuSeconds"] > 0
        cluster.api.patch(GPU_JOBS, job, held, "default")
        if restarted:
            cluster.api._watchers.clear()
            now, cluster = cluster.now, Cluster(cluster.api)
            cluster.now = now
            await wait(cluster)
        make_ray_cluster(cluster, owner | {"controller": True}, "r-y", "q")
        await wait(cluster, 10)
        (job_now,) = cluster.api.list(GPU_JOBS, "default")
        assert job_now["metadata"]["name"] == "raycluster-r-y"
        assert job_now["spec"]["hold"] is True, "what was asked for its first cluster holds"
        assert job_now["spec"]["prioritizedAt"] == held["spec"]["prioritizedAt"]
        for field in ("attainedGpuSeconds", "preemptedAt", "queuedAt", "startedAt"):
            assert job_now["status"][field] == had["status"][field]
        assert not cluster.controller.history.history().service_gpu_s.size, "it has not ended"

    run(scenario)


@pytest.mark.parametrize(("said", "phase"), [("Complete", "Completed"), ("Failed", "Failed")])
def test_the_gpujob_of_a_ray_job_that_has_ended_is_closed_when_its_cluster_is_gone(
    said: str, phase: str
) -> None:
    cluster = site(2)

    async def scenario() -> None:
        job = ray_cluster_of(cluster, "RayJob", "r")
        await wait(cluster)
        assert cluster.gpujob(job)["spec"]["suspends"]["kind"] == "RayJob"
        cluster.api.delete(resource_of("RayCluster"), "r-x", "default")
        for index in range(2):
            cluster.api.delete(PODS, f"p{index}", "default")
        await wait(cluster)
        assert cluster.gpujob(job)["status"]["phase"] == "Queued", "it may make another"
        done = {"status": {"jobDeploymentStatus": said}}
        cluster.api.patch(resource_of("RayJob"), "r", done, "default")
        await wait(cluster, 90)
        status = cluster.gpujob(job)["status"]
        assert status["phase"] == phase
        assert "RayJob r" in status["message"], "its cluster is gone"

    run(scenario)


def test_the_gpujob_of_a_ray_job_that_is_gone_goes_with_its_cluster() -> None:
    cluster = site(2)

    async def scenario() -> None:
        ray_cluster_of(cluster, "RayJob", "r")
        await wait(cluster)
        cluster.api.delete(resource_of("RayCluster"), "r-x", "default")
        cluster.api.delete(resource_of("RayJob"), "r", "default")
        for index in range(2):
            cluster.api.delete(PODS, f"p{index}", "default")
        await wait(cluster)
        assert not cluster.api.list(GPU_JOBS, "default")

    run(scenario)


def test_the_cluster_of_a_ray_service_has_no_end_and_never_gives_way() -> None:
    cluster = site(2)

    async def scenario() -> None:
        job = ray_cluster_of(cluster, "RayService", "s")
        await wait(cluster)
        assert cluster.gpujob(job)["spec"]["demand"]["exclusive"] is True
        for index in range(2):
            cluster.bind_as_planned(f"p{index}")
        await wait(cluster)
        gang = cluster.controller.gangs.by_key["default", job]
        assert gang.is_endless
        assert cluster.controller.preempter.gives_way_s(gang) == float("inf")

    run(scenario)


def test_a_ray_cluster_alone_is_suspended_itself() -> None:
    cluster = site(2)
    ray_cluster = resource_of("RayCluster")

    async def scenario() -> None:
        workers = {"groupName": "workers", "replicas": 2, "template": template(1)}
        uid = create(cluster, ray_cluster, "c", {"workerGroupSpecs": [workers]})
        for index in range(2):
            owned(cluster, f"p{index}", ray_cluster, "c", uid, labels={"ray.io/group": "workers"})
        await wait(cluster)
        for index in range(2):
            cluster.bind_as_planned(f"p{index}")
        await wait(cluster)
        gang = cluster.controller.gangs.by_key["default", "raycluster-c"]
        await cluster.controller.preempter.begin(gang, Cause(Reason.NEEDED, job="the test"))
        await wait(cluster, 2)
        assert cluster.api.get(ray_cluster, "c", "default")["spec"]["suspend"] is True

    run(scenario)


def test_of_a_train_job_the_train_job_is_suspended_and_not_the_job_set_below_it() -> None:
    cluster = site(2)
    train_job, job_set, jobs = map(resource_of, ("TrainJob", "JobSet", "Job"))

    async def scenario() -> None:
        top = create(cluster, train_job, "t", {})
        part = {"name": "node", "template": {"spec": {"parallelism": 2, "template": template(1)}}}
        reference = {
            "apiVersion": train_job.api_version,
            "kind": "TrainJob",
            "name": "t",
            "uid": top,
            "controller": True,
        }
        create(cluster, job_set, "t", {"replicatedJobs": [part]}, ownerReferences=[reference])
        labels = {names.JOBSET_LABEL: "t", names.REPLICATED_JOB_LABEL: "node"}
        for index in range(2):
            owned(cluster, f"p{index}", jobs, "t-node-0", "uid-j", labels=labels)
        await wait(cluster)
        assert cluster.gpujob("jobset-t")["spec"]["suspends"]["kind"] == "TrainJob"
        for index in range(2):
            cluster.bind_as_planned(f"p{index}")
        await wait(cluster)
        gang = cluster.controller.gangs.by_key["default", "jobset-t"]
        await cluster.controller.preempter.begin(gang, Cause(Reason.NEEDED, job="the test"))
        await wait(cluster, 2)
        assert cluster.api.get(train_job, "t", "default")["spec"]["suspend"] is True
        assert "suspend" not in cluster.api.get(job_set, "t", "default")["spec"]
        for index in range(2):
            cluster.api.delete(PODS, f"p{index}", "default")
        await wait(cluster)
        assert cluster.api.get(train_job, "t", "default")["spec"]["suspend"] is False

    run(scenario)
