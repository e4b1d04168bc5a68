"""A preemption ends, whatever version, rights and health the owner of the pods has."""

from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry
from queue_builders import raw_pod
from test_queue_controller import NOW, run
from test_queue_preemption import EAGER, SAVES, Training, tiresias

from scheduler_extender.cluster.jobs import rfc3339
from scheduler_extender.queue.figures import QueueFigures
from scheduler_extender.queue.metrics import QueueMetrics
from scheduler_extender.queue.steps.decisions import has_ended
from tandem.kube.errors import Forbidden, KubeError
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import PODS, Resource

#: The MPI operator serves v2beta1; the training operator served v1.
NEW = Resource("kubeflow.org", "v2beta1", "MPIJob", "mpijobs")
OLD = Resource("kubeflow.org", "v1", "MPIJob", "mpijobs")


class Strange(MemoryCluster):
    """An API server that refuses, or drops the fields of, patches of workloads."""

    def __init__(self, refuses: KubeError | None = None, drops_fields: bool = False) -> None:
        super().__init__(clock=lambda: NOW)
        self.refuses, self.drops_fields = refuses, drops_fields

    def patch(self, resource, name, body, namespace=None, **more):
        if resource.group == "kubeflow.org":
            if self.refuses:
                raise self.refuses
            if self.drops_fields:
                body = {"metadata": body["metadata"]}
        return super().patch(resource, name, body, namespace, **more)


class Mpi(Training):
    """One node of two GPUs, and an MPIJob that has them and is to give way to a Job."""

    def __init__(
        self,
        stored: Resource = NEW,
        refers_to: Resource = NEW,
        api: MemoryCluster | None = None,
    ) -> None:
        super().__init__(settings=EAGER, profile=tiresias(), api=api)
        self.stored, self.refers_to = stored, refers_to

    def submit_mpi(self, replicas: int = 1) -> None:
        body = {
            "metadata": {"name": "mpi"},
            "spec": {"mpiReplicaSpecs": {"Worker": {"replicas": replicas}}},
        }
        owner = self.api.create(self.stored, body, "default")
        raw = raw_pod("mpi-worker-0", gpus=2, owner=("MPIJob", "mpi"), annotations=SAVES)
        raw["metadata"]["ownerReferences"][0] |= {
            "apiVersion": self.refers_to.api_version,
            "uid": owner["metadata"]["uid"],
        }
        raw["metadata"]["creationTimestamp"] = rfc3339(self.now)
        self.api.create(PODS, raw)

    def mpi_status(self) -> dict:
        return self.gpujob("mpijob-mpi")["status"]

    def mpi_suspended(self) -> bool:
        spec = self.api.get(self.stored, "mpi", "default")["spec"]
        return bool(spec.get("runPolicy", {}).get("suspend"))

    async def preempt(self) -> None:
        """Let the MPIJob run, and a Job come that it has to give way to."""
        self.submit_mpi()
        await self.pass_s(0)
        assert self.mpi_status()["phase"] == "Running"
        self.submit("new", gpus=2)
        await self.pass_s(60)
        await self.pass_s(1)

    def exists(self, pod: str) -> bool:
        return any(each["metadata"]["name"] == pod for each in self.api.list(PODS))


@pytest.mark.parametrize(
    ("stored", "refers_to"), [(NEW, NEW), (OLD, OLD), (NEW, OLD)], ids=["new", "old", "upgraded"]
)
def test_the_owner_is_suspended_and_resumed_at_the_version_that_is_served(
    stored: Resource, refers_to: Resource
) -> None:
    cluster = Mpi(stored, refers_to)

    async def scenario() -> None:
        await cluster.preempt()
        assert cluster.mpi_status()["phase"] == "Preempting"
        assert cluster.mpi_suspended()
        cluster.api.delete(PODS, "mpi-worker-0", "default")
        await cluster.pass_s(1)
        assert cluster.mpi_status()["phase"] == "Suspended"
        assert not cluster.mpi_suspended()
        assert cluster.status("new")["phase"] == "Running"

    run(scenario)


def owner_gone(cluster: Mpi) -> None:
    cluster.api.delete(cluster.stored, "mpi", "default")


@pytest.mark.parametrize(
    ("settings", "before"),
    [
        ({"refuses": Forbidden(403, "mpijobs is forbidden")}, lambda _: None),
        ({"drops_fields": True}, lambda _: None),
        ({}, owner_gone),
    ],
    ids=["no-right", "no-such-field", "owner-gone"],
)
def test_pods_whose_owner_cannot_be_suspended_are_evicted(
    settings: dict, before: Callable[[Mpi], None]
) -> None:
    cluster = Mpi(api=Strange(**settings))

    async def scenario() -> None:
        cluster.submit_mpi()
        await cluster.pass_s(0)
        before(cluster)
        cluster.submit("new", gpus=2)
        for _ in range(3):
            await cluster.pass_s(60)
        assert not cluster.exists("mpi-worker-0")
        assert cluster.mpi_status()["phase"] == "Suspended"
        assert cluster.status("new")["phase"] == "Running"

    run(scenario)


def test_pods_that_a_suspended_owner_does_not_stop_are_evicted_and_it_is_resumed() -> None:
    """Its operator is down, say."""
    cluster = Mpi()

    async def scenario() -> None:
        await cluster.preempt()
        await cluster.pass_s(30)
        assert cluster.exists("mpi-worker-0")
        await cluster.pass_s(30)
        await cluster.pass_s(5)
        assert not cluster.exists("mpi-worker-0")
        assert cluster.mpi_status()["phase"] == "Suspended"
        assert not cluster.mpi_suspended()

    run(scenario)


def test_a_pod_that_does_not_go_is_reported_and_counted() -> None:
    cluster = Mpi()
    registry = CollectorRegistry()
    QueueMetrics(registry).watch(QueueFigures(cluster.controller))

    def overdue() -> float | None:
        return registry.get_sample_value("tandem_queue_preemptions_overdue")

    async def scenario() -> None:
        cluster.submit_mpi()
        await cluster.pass_s(0)
        # Something else keeps it from being removed: a finalizer, or a node that is away.
        cluster.api.patch(
            PODS, "mpi-worker-0", {"metadata": {"finalizers": ["example.com/keep"]}}, "default"
        )
        cluster.submit("new", gpus=2)
        await cluster.pass_s(60)
        await cluster.pass_s(1)
        assert cluster.mpi_status()["reason"] == "Preempting"
        assert overdue() == 0
        for _ in range(6):
            await cluster.pass_s(60)
        status = cluster.mpi_status()
        assert (status["phase"], status["reason"]) == ("Preempting", "PreemptionOverdue")
        assert "still hold GPUs" in status["message"]
        assert "(1 pod after 300 s, 1 being deleted)" in status["message"]
        assert ("mpi-worker-0", "PreemptionOverdue", status["message"]) in cluster.said
        scheduled = next(c for c in status["conditions"] if c["type"] == "Scheduled")
        assert scheduled["reason"] == "PreemptionOverdue"
        assert overdue() == 1
        cluster.api.patch(PODS, "mpi-worker-0", {"metadata": {"finalizers": None}}, "default")
        await cluster.pass_s(1)
        await cluster.pass_s(1)
        assert cluster.mpi_status()["phase"] == "Suspended"
        assert overdue() == 0

    run(scenario)


def test_a_gang_whose_owner_cannot_be_resumed_is_not_back_in_the_queue_until_it_can() -> None:
    api = Strange()
    cluster = Mpi(api=api)

    async def scenario() -> None:
        await cluster.preempt()
        api.refuses = Forbidden(403, "mpijobs is forbidden")
        cluster.api.delete(PODS, "mpi-worker-0", "default")
        await cluster.pass_s(1)
        assert cluster.mpi_status()["phase"] == "Preempting"
        assert cluster.mpi_suspended()
        for _ in range(6):
            await cluster.pass_s(60)
        status = cluster.mpi_status()
        assert (status["phase"], status["reason"]) == ("Preempting", "PreemptionOverdue")
        assert status["message"].startswith(
            "It gave up its GPUs, and its workload could not be resumed (MPIJob "
        )
        api.refuses = None
        await cluster.pass_s(5)
        assert cluster.mpi_status()["phase"] == "Suspended"
        assert not cluster.mpi_suspended()

    run(scenario)


@pytest.mark.parametrize(("condition", "phase"), [("Succeeded", "Completed"), ("Failed", "Failed")])
def test_a_job_that_ended_while_it_gave_up_its_gpus_is_not_resumed(
    condition: str, phase: str
) -> None:
    cluster = Mpi()

    async def scenario() -> None:
        await cluster.preempt()
        ended = {"status": {"conditions": [{"type": condition, "status": "True"}]}}
        cluster.api.patch(NEW, "mpi", ended, "default")
        cluster.api.delete(PODS, "mpi-worker-0", "default")
        await cluster.pass_s(1)
        assert cluster.mpi_status()["phase"] == phase
        assert cluster.mpi_suspended()

    run(scenario)


@pytest.mark.parametrize(
    ("conditions", "ended"),
    [
        (None, ""),
        ([{"type": "Complete", "status": "False"}], ""),
        ([{"type": "Suspended", "status": "True"}], ""),
        ([{"type": "Suspended", "status": "True"}, {"type": "Failed", "status": "True"}], "Failed"),
        ([{"type": "Complete", "status": "True"}], "Complete"),
        ([{"type": "Completed", "status": "True"}], "Completed"),
        ([{"type": "Succeeded", "status": "True"}], "Succeeded"),
    ],
)
def test_a_workload_has_ended_by_a_condition_that_is_true(
    conditions: list[dict] | None, ended: str
) -> None:
    assert has_ended({"status": {"conditions": conditions}}) == ended
    assert has_ended({}) == ""


@pytest.mark.parametrize("refers_to", [NEW, OLD], ids=["new", "upgraded"])
def test_a_job_of_another_version_has_its_size_and_its_end(refers_to: Resource) -> None:
    cluster = Mpi(NEW, refers_to)

    async def scenario() -> None:
        cluster.submit_mpi(replicas=2)
        await cluster.pass_s(0)
        assert cluster.gpujob("mpijob-mpi")["spec"]["demand"]["gangSize"] == 2
        cluster.api.patch(PODS, "mpi-worker-0", {"status": {"phase": "Succeeded"}}, "default")
        condition = {"type": "Succeeded", "status": "True"}
        cluster.api.patch(NEW, "mpi", {"status": {"conditions": [condition]}}, "default")
        await cluster.pass_s(1)
        await cluster.pass_s(5)
        assert cluster.mpi_status()["phase"] == "Completed"

    run(scenario)
