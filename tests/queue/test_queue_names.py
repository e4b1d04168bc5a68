"""Names of GPUJobs tell workloads apart, and objects of earlier releases keep theirs."""

from __future__ import annotations

from typing import Any

import pytest
from queue_builders import create_with_owner, pod, raw_pod
from test_queue_controller import KINDS as WATCHED
from test_queue_controller import Cluster, run

from scheduler_extender.cluster.parsing import as_known, parse_pod
from scheduler_extender.cluster.pods import pod_info
from scheduler_extender.cluster.workloads import KINDS, above, gpujob_name, workload_of
from scheduler_extender.config import QueueConfig
from scheduler_extender.queue.steps.decisions import EVICT, SUSPEND, method_of
from scheduler_extender.quotas.config import Quota
from tandem.contracts import names
from tandem.kube.resource import GPU_JOBS, JOBS, PODS

VOLCANO = "batch.volcano.sh/v1alpha1"
ARGO = "argoproj.io/v1alpha1"
MPI = {names.OPERATOR_LABEL: names.MPI_OPERATOR, names.JOB_NAME_LABEL: "mpi"}


def site(settings: QueueConfig | None = None, nodes: int = 4, gpus: int = 1) -> Cluster:
    cluster = Cluster(settings=settings)
    for number in range(nodes):
        cluster.add_node(f"n{number}", gpus=gpus)
    return cluster


def test_jobs_of_one_name_and_two_groups_have_a_gpujob_each() -> None:
    cluster = site()

    async def scenario() -> None:
        create_with_owner(cluster.api, raw_pod("a", owner=("Job", "train")))
        create_with_owner(cluster.api, raw_pod("b", owner=("Job", "train"), api_version=VOLCANO))
        await cluster.cycle()
        found = {each["metadata"]["name"] for each in cluster.api.list(GPU_JOBS)}
        assert found == {"job-train", "job.batch.volcano.sh-train"}
        assert cluster.gpujob("job.batch.volcano.sh-train")["spec"]["workload"] == {
            "apiVersion": VOLCANO,
            "kind": "Job",
            "name": "train",
            "uid": "uid-train",
        }

    run(scenario)


@pytest.mark.parametrize(
    ("owner", "api_version", "name"),
    [
        (("ReplicaSet", "web"), "apps/v1", "replicaset-web"),
        (("ReplicationController", "web"), "v1", "replicationcontroller-web"),
        (("PyTorchJob", "bert"), "kubeflow.org/v1", "pytorchjob-bert"),
        (("RayCluster", "ray"), "ray.io/v1", "raycluster-ray"),
        (("StatefulSet", "web"), "apps.kruise.io/v1beta1", "statefulset.apps.kruise.io-web"),
        (("TaskRun", "step"), "tekton.dev/v1", "taskrun.tekton.dev-step"),
    ],
)
def test_the_group_is_in_the_name_where_other_groups_may_have_the_kind(
    owner: tuple[str, str], api_version: str, name: str
) -> None:
    assert gpujob_name(pod("p", owner=owner, api_version=api_version)) == name


def test_each_step_of_a_workflow_is_placed_as_it_declares_itself() -> None:
    """All steps have one owner; a later one may ask for more than the first, or not to share."""
    cluster = site(nodes=1, gpus=1)
    small = {"tandem.gpu/memory": "1Gi", "tandem.gpu/utilization": "5"}
    large = {"tandem.gpu/memory": "60Gi", "tandem.gpu/exclusive": "true"}

    async def scenario() -> None:
        for name, declared in (("first", small), ("second", large)):
            step = raw_pod(name, annotations=declared, owner=("Workflow", "w"), api_version=ARGO)
            cluster.api.create(PODS, step)
            await cluster.cycle()
            if name == "first":
                cluster.bind_as_planned(name)
        assert cluster.gated("second"), "it shares with no other"
        assert cluster.gpujob("pod-second")["spec"]["demand"]["exclusive"] is True
        assert cluster.gpujob("pod-second")["spec"]["workload"]["kind"] == "Pod"

    run(scenario)


def test_a_launcher_with_a_gpu_starts_with_its_workers_or_not_at_all() -> None:
    cluster = site(nodes=2)
    resource = KINDS["MPIJob"].resource
    assert resource is not None

    async def scenario() -> None:
        template = {"spec": {"containers": [{"resources": {"limits": {"tandem.gpu/gpu": 1}}}]}}
        roles = {
            "Launcher": {"template": template},
            "Worker": {"replicas": 2, "template": template},
        }
        job = {"metadata": {"name": "mpi"}, "spec": {"mpiReplicaSpecs": roles}}
        uid = cluster.api.create(resource, job, "default")["metadata"]["uid"]
        for name in ("mpi-worker-0", "mpi-worker-1"):
            worker = raw_pod(name, owner=("MPIJob", "mpi"), api_version="kubeflow.org/v2beta1",
                             labels={**MPI, names.JOB_ROLE_LABEL: "worker"})  # fmt: skip
            worker["metadata"]["ownerReferences"][0]["uid"] = uid
            cluster.api.create(PODS, worker)
        launcher = {**MPI, names.JOB_ROLE_LABEL: "launcher"}
        cluster.api.create(
            PODS, raw_pod("mpi-launcher-x", owner=("Job", "mpi-launcher"), labels=launcher)
        )
        for _ in range(3):
            await cluster.cycle()
        (job,) = cluster.api.list(GPU_JOBS)
        assert job["metadata"]["name"] == "mpijob-mpi"
        assert (job["spec"]["workload"]["kind"], job["spec"]["workload"]["uid"]) == ("MPIJob", uid)
        assert job["spec"]["demand"]["gangSize"] == 3
        assert cluster.gated("mpi-worker-0"), "there are two GPUs for three pods"
        cluster.add_node("n9")
        for _ in range(2):
            await cluster.cycle()
        assert not any(map(cluster.gated, ("mpi-worker-0", "mpi-worker-1", "mpi-launcher-x")))

    run(scenario)


def test_a_label_alone_makes_no_launcher() -> None:
    assert gpujob_name(pod("p", owner=("Job", "other"), labels=MPI)) == "job-other"
    volcano = pod("p", owner=("Job", "mpi-launcher"), api_version=VOLCANO, labels=MPI)
    assert gpujob_name(volcano) == "job.batch.volcano.sh-mpi-launcher"
    grouped = pod("p", owner=("Job", "mpi-launcher"), labels={**MPI, names.JOBSET_LABEL: "set"})
    assert gpujob_name(grouped) == "jobset-set"


@pytest.mark.parametrize(
    ("owner", "api_version", "method"),
    [
        (("Job", "a"), "batch/v1", SUSPEND),
        (("ReplicaSet", "a"), "apps/v1", EVICT),
        (("LeaderWorkerSet", "a"), "leaderworkerset.x-k8s.io/v1", EVICT),
        (("RayCluster", "a"), "ray.io/v1", SUSPEND),
        (("TaskRun", "a"), "tekton.dev/v1", ""),
        (("Job", "a"), VOLCANO, ""),
        (("Private", "a"), "example.com/v1", ""),
    ],
)
def test_pods_are_evicted_only_where_somebody_makes_them_anew(
    owner: tuple[str, str], api_version: str, method: str
) -> None:
    cluster = site()

    async def scenario() -> None:
        create_with_owner(cluster.api, raw_pod("p", owner=owner, api_version=api_version))
        await cluster.cycle()
        (gang,) = cluster.controller.gangs.by_key.values()
        assert method_of(gang.job) == method

    run(scenario)


# --- objects of the release before names had groups ---------------------------------------------

EARLIER = "job-train"  # of a Volcano Job


def earlier_pod(name: str, **more: Any) -> dict[str, Any]:
    """Return a pod of a Volcano Job as the webhook and the gate of that release left it."""
    marked = {names.GPU_JOB: EARLIER, "tandem.gpu/memory": "4Gi"}
    return raw_pod(name, owner=("Job", "train"), api_version=VOLCANO, annotations=marked, **more)


def test_running_pods_keep_gpujob_gpus_service_and_quota_through_an_upgrade() -> None:
    quota = Quota(namespace="default", gpus=4, max_gpus=4)
    before = site(QueueConfig(quotas=(quota,)))

    async def earlier_release() -> None:
        create_with_owner(before.api, earlier_pod("p"))
        await before.cycle()
        before.bind_as_planned("p")
        started = {"state": {"running": {"startedAt": "2027-01-15T08:00:00Z"}}, "name": "main"}
        before.api.patch(
            PODS, "p", {"status": {"containerStatuses": [started]}}, "default", subresource="status"
        )
        for _ in range(3):
            before.now += 60
            before.state.tick(before.now)
            await before.cycle()

    run(earlier_release)
    held = before.state.ledger.counting()
    served = before.gpujob(EARLIER)["status"]["attainedGpuSeconds"]
    assert served > 0

    after = Cluster(before.api, settings=QueueConfig(quotas=(quota,)))
    after.now = before.now

    async def later_release() -> None:
        for kind, resource in WATCHED.items():
            for each in after.api.list(resource):
                after.state.upsert(kind, each)
        after.state.tick(after.now)
        await after.cycle()
        assert [each["metadata"]["name"] for each in after.api.list(GPU_JOBS)] == [EARLIER]
        assert after.state.ledger.counting().keys() == held.keys()
        record = after.state.pod_named("default", "p")
        assert record is not None
        assert record.gpujob == ("default", EARLIER)
        assert workload_of(record.pod).kind == "Job"
        assert after.gpujob(EARLIER)["status"]["attainedGpuSeconds"] >= served
        ((_, of_quota, _),) = after.controller.accounts.figures()
        assert of_quota == 1

    run(later_release)


def test_a_new_pod_of_a_workload_joins_the_gpujob_that_it_has_from_before() -> None:
    cluster = site()

    async def scenario() -> None:
        create_with_owner(cluster.api, earlier_pod("old"))
        await cluster.cycle()
        cluster.bind_as_planned("old")
        await cluster.cycle()
        named = {names.GPU_JOB: "job.batch.volcano.sh-train", "tandem.gpu/memory": "4Gi"}
        new = raw_pod("new", owner=("Job", "train"), api_version=VOLCANO, annotations=named)
        create_with_owner(cluster.api, new)
        for _ in range(6):
            cluster.now += 2
            cluster.state.tick(cluster.now)
            await cluster.cycle()
        assert [each["metadata"]["name"] for each in cluster.api.list(GPU_JOBS)] == [EARLIER]
        assert cluster.pod("new")["metadata"]["annotations"][names.GPU_JOB] == EARLIER
        assert not cluster.gated("new")

    run(scenario)


def test_a_job_of_that_name_in_batch_is_not_joined_by_pods_of_volcano() -> None:
    cluster = site()

    async def scenario() -> None:
        cluster.api.create(JOBS, {"metadata": {"name": "train"}, "spec": {}}, "default")
        create_with_owner(cluster.api, raw_pod("a", owner=("Job", "train")))
        await cluster.cycle()
        other = raw_pod("b", owner=("Job", "train"), api_version=VOLCANO)
        other["metadata"]["ownerReferences"][0]["uid"] = "uid-other"
        create_with_owner(cluster.api, other)
        for _ in range(2):
            await cluster.cycle()
        found = {each["metadata"]["name"] for each in cluster.api.list(GPU_JOBS)}
        assert found == {"job-train", "job.batch.volcano.sh-train"}

    run(scenario)


def test_an_annotation_leads_to_the_earlier_gpujob_of_the_same_owner_alone() -> None:
    def read(gpujob: str, version: str) -> Any:
        raw = raw_pod("p", owner=("Job", "train"), api_version=VOLCANO,
                      annotations={names.GPU_JOB: gpujob})  # fmt: skip
        raw["metadata"] |= {"uid": "u", "resourceVersion": version}
        return parse_pod(raw)

    now = read("job.batch.volcano.sh-train", "1")
    assert as_known(read(EARLIER, "2"), now).gpujob == ("default", EARLIER)
    for other in ("job-others", "gang-train", "pod-p"):
        assert as_known(read(other, "2"), now).gpujob == now.gpujob
    back = as_known(read("job.batch.volcano.sh-train", "2"), read(EARLIER, "1"))
    assert back.gpujob == ("default", EARLIER), "and never back"


def test_the_launcher_and_the_steps_of_an_earlier_release_keep_their_owners() -> None:
    marked = {names.GPU_JOB: "job-mpi-launcher"}
    launcher = pod("p", owner=("Job", "mpi-launcher"), labels=MPI, annotations=marked)
    assert gpujob_name(launcher) == "job-mpi-launcher"
    assert above(launcher) is None
    assert workload_of(launcher).name == "mpi-launcher"
    step = raw_pod("s", owner=("Workflow", "w"), api_version=ARGO,
                   annotations={names.GPU_JOB: "workflow-w"})  # fmt: skip
    step["metadata"] |= {"uid": "u", "resourceVersion": "1"}
    assert workload_of(pod_info(step)).kind == "Workflow"
