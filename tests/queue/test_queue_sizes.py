"""How many pods start together, as the workload, its roles and its progress say it."""

from __future__ import annotations

from typing import Any

import pytest
from queue_builders import pod, raw_pod
from test_queue_controller import Cluster, run

from scheduler_extender.cluster.workloads import KINDS, gang_size
from tandem.contracts import names
from tandem.kube.resource import JOBS, PODS

GPU: dict[str, Any] = {"spec": {"containers": [{"resources": {"limits": {"tandem.gpu/gpu": 1}}}]}}
CPU: dict[str, Any] = {"spec": {"containers": [{"resources": {"limits": {"cpu": "1"}}}]}}
NVIDIA: dict[str, Any] = {
    "spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "2"}}}]}
}
JOBSET = "jobset.sigs.k8s.io/jobset-name"
PART = "jobset.sigs.k8s.io/replicatedjob-name"


def replicated(name: str, template: dict, pods: int = 1, **more: Any) -> dict[str, Any]:
    spec = {"parallelism": pods, "completions": pods, "template": template}
    return {"name": name, "replicas": 1, "template": {"spec": spec}, **more}


@pytest.mark.parametrize(
    ("kind", "spec", "size"),
    [
        (
            "MPIJob",
            {
                "mpiReplicaSpecs": {
                    "Launcher": {"template": CPU},
                    "Worker": {"replicas": 2, "template": GPU},
                }
            },
            2,
        ),
        (
            "TFJob",
            {
                "tfReplicaSpecs": {
                    "PS": {"replicas": 2, "template": CPU},
                    "Chief": {"template": GPU},
                    "Worker": {"replicas": 3, "template": GPU},
                }
            },
            4,
        ),
        (
            "JobSet",
            {
                "replicatedJobs": [
                    replicated("init", CPU),
                    replicated("driver", CPU),
                    replicated("workers", GPU, 4),
                ]
            },
            4,
        ),
        (
            "LeaderWorkerSet",
            {
                "leaderWorkerTemplate": {
                    "size": 4,
                    "leaderTemplate": CPU,
                    "workerTemplate": GPU,
                }
            },
            3,
        ),
        ("LeaderWorkerSet", {"leaderWorkerTemplate": {"size": 4, "workerTemplate": GPU}}, 4),
        (
            "PyTorchJob",
            {
                "pytorchReplicaSpecs": {
                    "Master": {"replicas": 1, "template": NVIDIA},
                    "Worker": {"replicas": 7, "template": NVIDIA},
                }
            },
            8,
        ),
    ],
)
def test_roles_that_ask_for_no_gpus_are_not_counted(kind: str, spec: dict, size: int) -> None:
    assert gang_size(pod("p"), {"kind": kind, "spec": spec}) == size


@pytest.mark.parametrize("zero", [0, 0.0, "0", "0.0", "0m", "0k", "0Gi", "0e3", "", None])
@pytest.mark.parametrize("resource", [names.RESOURCE, names.NVIDIA_RESOURCE])
def test_a_role_whose_count_is_0_is_not_counted_however_it_is_written(
    zero: object, resource: str
) -> None:
    """Custom resources keep a quantity as its author wrote it."""
    nothing = {"spec": {"containers": [{"resources": {"limits": {resource: zero}}}]}}
    gpu = {"spec": {"containers": [{"resources": {"limits": {resource: 1}}}]}}
    for kind, spec in (
        ("MPIJob", {"mpiReplicaSpecs": {"Launcher": {"template": nothing},
                                        "Worker": {"replicas": 2, "template": gpu}}}),
        ("PyTorchJob", {"pytorchReplicaSpecs": {"Master": {"template": nothing},
                                                "Worker": {"replicas": 2, "template": gpu}}}),
        ("JobSet", {"replicatedJobs": [replicated("driver", nothing, 1),
                                       replicated("worker", gpu, 2)]}),
        ("LeaderWorkerSet", {"leaderWorkerTemplate": {"size": 3, "leaderTemplate": nothing,
                                                      "workerTemplate": gpu}}),
    ):  # fmt: skip
        assert gang_size(pod("p"), {"kind": kind, "spec": spec}) == 2, kind


@pytest.mark.parametrize(
    "worker",
    [
        {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpumem": "3000"}}}]}},
        {"spec": {"containers": [{"resources": {"limits": {"volcano.sh/vgpu-number": 1}}}]}},
        {"metadata": {"annotations": {"gpu-memory": "2000"}}, "spec": {"containers": [{}]}},
    ],
)
def test_roles_that_ask_in_another_system_s_words_are_counted(worker: dict) -> None:
    replicas = {
        "Master": {"template": {"spec": {"containers": [{}]}}},
        "Worker": {"replicas": 3, "template": worker},
    }
    job = {"kind": "PyTorchJob", "spec": {"pytorchReplicaSpecs": replicas}}
    assert gang_size(pod("p"), job) == 3


def test_roles_that_are_created_later_are_not_waited_for() -> None:
    set_ = {
        "kind": "JobSet",
        "spec": {
            "replicatedJobs": [
                replicated("first", GPU, 2),
                replicated("second", GPU, 4, dependsOn=[{"name": "first", "status": "Ready"}]),
            ]
        },
    }
    assert gang_size(pod("p", labels={PART: "first"}), set_) == 2
    assert gang_size(pod("p", labels={PART: "second"}), set_) == 6
    for part in set_["spec"]["replicatedJobs"]:
        part.pop("dependsOn", None)
    assert gang_size(pod("p", labels={PART: "first"}), set_) == 6
    set_["spec"]["startupPolicy"] = {"startupPolicyOrder": "InOrder"}
    assert gang_size(pod("p", labels={PART: "first"}), set_) == 2
    group = {"size": 4, "workerTemplate": GPU}
    leads = {"kind": "LeaderWorkerSet", "spec": {"leaderWorkerTemplate": group}}
    leads["spec"]["startupPolicy"] = "LeaderReady"
    worker = "leaderworkerset.sigs.k8s.io/worker-index"
    assert gang_size(pod("p", labels={worker: "0"}), leads) == 1
    assert gang_size(pod("p", labels={worker: "2"}), leads) == 4


@pytest.mark.parametrize(
    ("policy", "size"), [(None, 3), ("AtStartup", 3), ("WaitForWorkersReady", 2)]
)
@pytest.mark.parametrize("version", ["v1", "v2beta1"])
def test_the_launcher_of_an_mpijob_is_waited_for_unless_it_comes_after_the_workers(
    version: str, policy: str | None, size: int
) -> None:
    replicas = {"Launcher": {"template": GPU}, "Worker": {"replicas": 2, "template": GPU}}
    mpi_job = {
        "apiVersion": f"kubeflow.org/{version}",
        "kind": "MPIJob",
        "spec": {"mpiReplicaSpecs": replicas, "launcherCreationPolicy": policy},
    }
    worker = pod("p", labels={"training.kubeflow.org/replica-type": "worker"})
    assert gang_size(worker, mpi_job) == size


class Sized(Cluster):
    """Four nodes of one GPU; the test writes the workloads and plays their controllers."""

    def __init__(self) -> None:
        super().__init__()
        for index in range(4):
            self.add_node(f"n{index}")

    def owned(self, name: str, owner: str, **labels: str) -> None:
        raw = raw_pod(name, owner=("Job", owner), labels=labels)
        self.api.create(PODS, raw)

    async def wait(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.now += 1
            self.state.tick(self.now)
            await self.cycle()

    def job(self, name: str, pods: int, **status: Any) -> None:
        spec = {"parallelism": pods, "completions": pods, "completionMode": "Indexed"}
        body = {"metadata": {"name": name}, "spec": spec, "status": status}
        self.api.create(JOBS, body, "default")

    def size(self, name: str) -> int:
        return self.gpujob(name)["spec"]["demand"]["gangSize"]


def test_an_indexed_job_scaled_while_it_waits_starts_with_its_new_size() -> None:
    cluster = Sized()

    async def scenario() -> None:
        cluster.job("train", 8)
        for index in range(2):
            cluster.owned(f"p{index}", "train")
        await cluster.wait(5)
        assert cluster.gated("p0")
        cluster.api.patch(JOBS, "train", {"spec": {"parallelism": 2, "completions": 2}}, "default")
        await cluster.wait(20)
        assert not cluster.gated("p0")
        assert not cluster.gated("p1")
        assert cluster.size("job-train") == 2

    run(scenario)


def test_an_indexed_job_that_grew_while_it_waits_does_not_start_in_part() -> None:
    cluster = Sized()

    async def scenario() -> None:
        cluster.job("train", 2)
        cluster.owned("p0", "train")
        await cluster.wait(5)
        cluster.api.patch(JOBS, "train", {"spec": {"parallelism": 5, "completions": 5}}, "default")
        for index in range(1, 5):
            cluster.owned(f"p{index}", "train")
        await cluster.wait(5)
        assert cluster.size("job-train") == 5
        assert all(cluster.gated(f"p{index}") for index in range(5)), "there are four GPUs"
        cluster.add_node("n4")
        await cluster.wait(5)
        assert not any(cluster.gated(f"p{index}") for index in range(5))

    run(scenario)


def test_pods_that_succeeded_and_were_deleted_are_not_waited_for() -> None:
    cluster = Sized()

    async def scenario() -> None:
        cluster.job("train", 4, succeeded=2)
        for index in (2, 3):
            cluster.owned(f"p{index}", "train")
        await cluster.wait(5)
        assert not cluster.gated("p2")
        assert not cluster.gated("p3")

    run(scenario)


def test_a_stated_size_that_changes_on_gated_pods_counts() -> None:
    cluster = Sized()

    async def scenario() -> None:
        gang = {"tandem.gpu/gang": "g", "tandem.gpu/gang-size": "3"}
        for index in range(2):
            cluster.api.create(PODS, raw_pod(f"p{index}", annotations=gang))
        await cluster.wait(2)
        assert cluster.gated("p0")
        for index in range(2):
            change = {"metadata": {"annotations": {"tandem.gpu/gang-size": "2"}}}
            cluster.api.patch(PODS, f"p{index}", change, "default")
        await cluster.wait(2)
        assert not cluster.gated("p0")
        assert not cluster.gated("p1")

    run(scenario)


def test_the_pods_of_a_later_role_start_together_next_to_those_that_run() -> None:
    cluster = Sized()
    resource = KINDS["JobSet"].resource
    assert resource is not None

    async def scenario() -> None:
        parts = [
            replicated("first", GPU, 1),
            replicated("second", GPU, 3, dependsOn=[{"name": "first", "status": "Ready"}]),
        ]
        cluster.api.create(
            resource, {"metadata": {"name": "set"}, "spec": {"replicatedJobs": parts}}, "default"
        )
        cluster.owned("first-0", "set-first-0", **{JOBSET: "set", PART: "first"})
        await cluster.wait(2)
        assert not cluster.gated("first-0"), "the second role cannot exist yet"
        cluster.bind_as_planned("first-0")
        await cluster.wait(1)
        for index in range(2):
            cluster.owned(f"second-{index}", "set-second-0", **{JOBSET: "set", PART: "second"})
        await cluster.wait(5)
        assert cluster.gated("second-0"), "its third pod is still to come"
        cluster.owned("second-2", "set-second-0", **{JOBSET: "set", PART: "second"})
        await cluster.wait(5)
        assert not any(cluster.gated(f"second-{index}") for index in range(3))
        assert cluster.size("jobset-set") == 4

    run(scenario)


def test_a_waiting_gang_reads_its_workload_less_and_less_often() -> None:
    cluster = Sized()
    reads: list[float] = []
    get = cluster.api.get

    def counted(resource: Any, name: str, namespace: str | None = None) -> Any:
        if resource == JOBS:
            reads.append(cluster.now)
        return get(resource, name, namespace)

    async def scenario() -> None:
        cluster.job("train", 8)
        cluster.owned("p0", "train")
        cluster.api.get = counted  # type: ignore[method-assign]
        await cluster.wait(600)

    run(scenario)
    assert 3 <= len(reads) <= 25
