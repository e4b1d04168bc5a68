"""Elastic jobs get smaller before others are stopped, and as large as before later."""

from __future__ import annotations

from typing import Any

import pytest
from queue_builders import raw_pod
from test_queue_controller import SHARED, Cluster, run
from test_queue_kinds import create, owned, resource_of, template, wait

from scheduler_extender.cluster.elastic import smaller
from scheduler_extender.cluster.jobs import rfc3339
from scheduler_extender.config import QueueConfig
from scheduler_extender.queue.pods.preemption import BUDGETS
from scheduler_extender.quotas.config import Quota
from tandem.contracts import names
from tandem.kube.errors import Forbidden
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import GPU_JOBS, PODS
from tandem.policy.catalog import load_profile

GPUS = 4
ELASTIC = [("PyTorchJob", "pytorchReplicaSpecs"), ("PaddleJob", "paddleReplicaSpecs")]
SETTINGS = QueueConfig(
    min_run_s=0,
    preemption_cost_s=0,
    max_preemptions_per_hour=100,
    quotas=(Quota(namespace="lender", gpus=GPUS),),
)


class Plant:
    """A cluster of four GPUs, an elastic job on them, and what plays its operator."""

    def __init__(
        self,
        kind: str = "PyTorchJob",
        replicas: str = "pytorchReplicaSpecs",
        least: int = 2,
        **cluster: Any,
    ) -> None:
        self.cluster = Cluster(**({"settings": SETTINGS} | cluster))
        self.cluster.add_node("n0", gpus=GPUS)
        self.jobs, self.field = resource_of(kind), replicas
        self.job = f"{kind.lower()}-train"
        self.made = 0
        spec = {
            "elasticPolicy": {"minReplicas": least, "maxReplicas": 5},
            replicas: {"Worker": {"replicas": GPUS, "template": template(1)}},
        }
        self.uid = create(self.cluster, self.jobs, "train", spec)

    @property
    def asked(self) -> int:
        """For how many pods the workload asks."""
        found = self.cluster.api.get(self.jobs, "train", "default")
        return int(found["spec"][self.field]["Worker"]["replicas"])

    def ask(self, pods: int) -> None:
        """Change that as its user."""
        change = {"spec": {self.field: {"Worker": {"replicas": pods}}}}
        self.cluster.api.patch(self.jobs, "train", change, "default")

    def numbers(self) -> list[int]:
        """Return the numbers of the pods that are there."""
        label = "training.kubeflow.org/replica-index"
        labels = (pod["metadata"]["labels"] for pod in self.cluster.api.list(PODS, "default"))
        return sorted(int(each[label]) for each in labels if label in each)

    def operate(self) -> None:
        """Make pods that are missing, delete those beyond the number, bind and run what may."""
        numbers = self.numbers()
        for number in set(range(self.asked)) - set(numbers):
            self.made += 1
            labels = {
                "training.kubeflow.org/replica-type": "worker",
                "training.kubeflow.org/replica-index": str(number),
            }
            notes = {names.EXCLUSIVE: "true", names.CHECKPOINT: "true"}
            name = f"w{number}"
            owned(
                self.cluster, name, self.jobs, "train", self.uid, labels=labels, annotations=notes
            )
        for number in numbers:
            if number >= self.asked:
                self.cluster.api.delete(PODS, f"w{number}", "default")

    def run_pods(self) -> None:
        """Play kube-scheduler and the kubelet."""
        for number in self.numbers():
            name = f"w{number}"
            pod = self.cluster.pod(name)
            if pod["spec"].get("schedulingGates") or pod["spec"].get("nodeName"):
                continue
            self.cluster.bind_as_planned(name)
            began = {"state": {"running": {"startedAt": rfc3339(self.cluster.now)}}}
            status = {"status": {"phase": "Running", "containerStatuses": [began]}}
            self.cluster.api.patch(PODS, name, status, "default", subresource="status")
        for pod in self.cluster.api.list(PODS, "lender"):
            if not (pod["spec"].get("schedulingGates") or pod["spec"].get("nodeName")):
                self._bind_claim(pod["metadata"]["uid"])

    def _bind_claim(self, uid: str) -> None:
        plans = (job["status"].get("plan") or {} for job in self.cluster.api.list(GPU_JOBS))
        (place,) = (each for plan in plans for each in plan.get("pods", ()) if each["uid"] == uid)
        gpus = {"tandem.gpu/visible-devices": ",".join(place["gpus"])}
        self.cluster.api.bind("lender", "claim", place["node"], uid=uid, annotations=gpus)
        running = {"status": {"phase": "Running"}}
        self.cluster.api.patch(PODS, "claim", running, "lender", subresource="status")

    async def go(self, seconds: int, *, operates: bool = True) -> None:
        """Let seconds pass."""
        for _ in range(seconds):
            if operates:
                self.operate()
            await wait(self.cluster, 1)
            self.run_pods()

    @property
    def status(self) -> dict[str, Any]:
        """What its GPUJob says."""
        return dict(self.cluster.gpujob(self.job)["status"])

    def claim(self, gpus: int) -> None:
        """Have the lender want GPUs back, by one pod."""
        body = raw_pod("claim", gpus=gpus, annotations={names.EXCLUSIVE: "true"})
        body["metadata"]["namespace"] = "lender"
        self.cluster.api.create(PODS, body)

    def claims_start(self) -> bool:
        """Say whether the lender's pod may start."""
        found = self.cluster.api.get(PODS, "claim", "lender")
        return not found["spec"].get("schedulingGates")


@pytest.mark.parametrize(("kind", "replicas"), ELASTIC)
def test_an_elastic_job_gets_smaller_before_it_is_stopped_and_grows_back(
    kind: str, replicas: str
) -> None:
    plant = Plant(kind, replicas)

    async def scenario() -> None:
        await plant.go(8)
        assert plant.status["phase"] == "Running"
        first = {number: plant.cluster.pod(f"w{number}")["metadata"]["uid"] for number in (0, 1)}
        plant.claim(2)
        await plant.go(8)
        assert plant.asked == 2
        assert plant.numbers() == [0, 1]
        assert plant.claims_start()
        assert plant.status["phase"] == "Running"
        assert plant.status["shrunk"]["asked"] == 4
        assert not plant.status["preemptedAt"]
        assert {n: plant.cluster.pod(f"w{n}")["metadata"]["uid"] for n in first} == first
        plant.cluster.api.delete(PODS, "claim", "lender")
        await plant.go(50)
        assert plant.asked == 2, "it stays smaller for a minute"
        await plant.go(30)
        assert plant.asked == 4
        assert plant.status.get("shrunk") is None
        assert all(plant.cluster.pod(f"w{n}")["spec"].get("nodeName") for n in range(4))

    run(scenario)


@pytest.mark.long
@pytest.mark.parametrize("least", [1, 2])
def test_it_grows_into_idle_gpus_and_stops_no_other_job_for_that(least: int) -> None:
    """The other job has had more service, and would give way to a job that starts."""
    settings = QueueConfig(min_run_s=0, preemption_cost_s=0, max_preemptions_per_hour=100)
    plant = Plant(least=least, settings=settings)
    cluster = plant.cluster
    notes = {names.EXCLUSIVE: "true", names.CHECKPOINT: "true"}
    labels = {"training.kubeflow.org/replica-type": "worker"}

    async def rival(pods: int) -> None:
        spec = {plant.field: {"Worker": {"replicas": pods, "template": template(1)}}}
        uid = create(cluster, plant.jobs, "rival", spec)
        for number in range(pods):
            name = f"r{number}"
            owned(cluster, name, plant.jobs, "rival", uid, labels=labels, annotations=notes)
        await wait(cluster, 3)
        for number in range(pods):
            cluster.bind_as_planned(f"r{number}")
            began = {"state": {"running": {"startedAt": rfc3339(cluster.now)}}}
            status = {"status": {"phase": "Running", "containerStatuses": [began]}}
            cluster.api.patch(PODS, f"r{number}", status, "default", subresource="status")

    async def scenario() -> None:
        await rival(2)
        for _ in range(200):
            await wait(cluster, 60)
        await plant.go(8)
        assert plant.status["phase"] == "Running"
        assert sum(bool(cluster.pod(f"w{n}")["spec"].get("nodeName")) for n in range(4)) == 2
        await plant.go(100)
        found = cluster.gpujob("pytorchjob-rival")["status"]
        assert found["phase"] == "Running"
        assert not found["preemptedAt"]
        for number in range(2):
            cluster.api.delete(PODS, f"r{number}", "default")
        cluster.api.delete(plant.jobs, "rival", "default")
        await plant.go(20)
        assert all(cluster.pod(f"w{n}")["spec"].get("nodeName") for n in range(4))

    run(scenario)


def test_its_pods_do_not_share_a_gpu_with_one_another() -> None:
    """A minimum of one: each pod starts by itself."""
    cluster = Cluster()
    cluster.add_node("n0", gpus=2)
    resource, field = resource_of("PyTorchJob"), "pytorchReplicaSpecs"
    spec = {
        "elasticPolicy": {"minReplicas": 1, "maxReplicas": 4},
        field: {"Worker": {"replicas": 4, "template": template(1)}},
    }
    labels = {"training.kubeflow.org/replica-type": "worker"}

    async def scenario() -> None:
        uid = create(cluster, resource, "train", spec)
        for number in range(4):
            owned(cluster, f"w{number}", resource, "train", uid, labels=labels, annotations=SHARED)
        await wait(cluster, 10)
        assert sum(not cluster.gated(f"w{number}") for number in range(4)) == 2
        places = cluster.gpujob("pytorchjob-train")["status"]["plan"]["pods"]
        assert len({each["gpus"][0] for each in places}) == 2

    run(scenario)


@pytest.mark.parametrize(
    ("least", "claimed", "rounds", "left"),
    [(1, 1, 8, 3), (2, 2, 150, 2)],
    ids=["it gets no smaller than needed", "it does not grow while no GPU is idle"],
)
def test_it_leaves_what_another_job_claims_and_no_more(
    least: int, claimed: int, rounds: int, left: int
) -> None:
    plant = Plant(least=least)

    async def scenario() -> None:
        await plant.go(8)
        plant.claim(claimed)
        await plant.go(rounds)
        assert plant.asked == left
        assert plant.claims_start()

    run(scenario)


def test_where_its_minimum_leaves_too_little_it_gives_way_as_a_whole() -> None:
    plant = Plant(least=2)

    async def scenario() -> None:
        await plant.go(8)
        plant.claim(3)
        await plant.go(4)
        assert plant.asked == 4, "it is not made smaller as well"
        assert plant.cluster.api.get(plant.jobs, "train", "default")["spec"]["runPolicy"] == {
            "suspend": True
        }

    run(scenario)


@pytest.mark.parametrize("edit", [3, 4, 5])
def test_a_number_that_its_user_writes_stays(edit: int) -> None:
    plant = Plant(least=1)

    async def scenario() -> None:
        await plant.go(8)
        plant.claim(2)
        await plant.go(8)
        assert plant.asked == 2
        plant.ask(edit)
        await plant.go(20)
        assert plant.asked == edit
        assert plant.status.get("shrunk") is None
        plant.cluster.api.delete(PODS, "claim", "lender")
        await plant.go(100)
        assert plant.asked == edit

    run(scenario)


def test_a_smaller_number_that_its_user_writes_stays_when_gpus_are_idle() -> None:
    plant = Plant(least=1)

    async def scenario() -> None:
        await plant.go(8)
        plant.claim(2)
        await plant.go(8)
        plant.ask(1)
        plant.cluster.api.delete(PODS, "claim", "lender")
        await plant.go(100)
        assert plant.asked == 1
        assert plant.status.get("shrunk") is None

    run(scenario)


@pytest.mark.parametrize("written", [False, True], ids=["before the field", "after the field"])
def test_the_next_leader_goes_on_with_what_was_begun(
    written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader is killed between the note in the GPUJob and that its field was seen."""
    plant = Plant()

    async def scenario() -> None:
        await plant.go(8)
        patch = MemoryCluster.patch

        class Killed(BaseException):
            pass

        def dies(self: MemoryCluster, resource: Any, *args: Any, **more: Any) -> Any:
            if resource != plant.jobs:
                return patch(self, resource, *args, **more)
            if written:
                patch(self, resource, *args, **more)
            raise ConnectionError("killed")

        plant.claim(2)
        monkeypatch.setattr(MemoryCluster, "patch", dies)
        await plant.go(3, operates=False)
        monkeypatch.undo()
        assert plant.asked == (2 if written else 4)
        assert plant.status["shrunk"] == plant.status["shrunk"] | {"asked": 4, "pods": 2}
        assert not plant.status["shrunk"].get("written")
        plant.cluster.api._watchers.clear()
        now, plant.cluster = plant.cluster.now, Cluster(plant.cluster.api, settings=SETTINGS)
        plant.cluster.now = now
        await plant.go(10)
        assert plant.asked == 2
        assert plant.status["shrunk"]["written"] is True
        assert plant.numbers() == [0, 1]
        assert plant.claims_start()
        assert plant.status["phase"] == "Running"

    run(scenario)


def test_growing_is_begun_once_more_where_a_leader_was_killed_between_its_two_writes() -> None:
    plant = Plant()

    async def scenario() -> None:
        await plant.go(8)
        plant.claim(2)
        await plant.go(8)
        shrunk = plant.status["shrunk"]
        plant.cluster.api.delete(PODS, "claim", "lender")
        plant.ask(4)  # as growing does first
        await plant.go(20)
        assert shrunk["pods"] == 2
        assert plant.asked == 4
        assert plant.status.get("shrunk") is None

    run(scenario)


def test_a_change_of_the_workload_meanwhile_is_a_conflict_and_nothing_is_overwritten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant = Plant()

    async def scenario() -> None:
        await plant.go(8)
        patch, edits = MemoryCluster.patch, [True]

        def edited(self: MemoryCluster, resource: Any, *args: Any, **more: Any) -> Any:
            if resource == plant.jobs and edits:
                edits.pop()
                change = {"spec": {plant.field: {"Worker": {"replicas": 2}}}}
                patch(self, resource, "train", change, "default")
            return patch(self, resource, *args, **more)

        monkeypatch.setattr(MemoryCluster, "patch", edited)
        plant.claim(1)
        await plant.go(20)
        assert not edits
        assert plant.asked == 2
        assert plant.claims_start()
        assert plant.status.get("shrunk") is None

    run(scenario)


def test_a_disruption_budget_keeps_it_as_large_as_it_is() -> None:
    plant = Plant()
    budget = {
        "metadata": {"name": "keep"},
        "spec": {"selector": {"matchLabels": {"training.kubeflow.org/replica-type": "worker"}}},
        "status": {"disruptionsAllowed": 0},
    }

    async def scenario() -> None:
        await plant.go(8)
        plant.cluster.api.create(BUDGETS, budget, "default")
        plant.claim(2)
        await plant.go(20)
        assert plant.asked == 4
        assert not plant.claims_start()

    run(scenario)


def test_where_its_number_cannot_be_changed_it_gives_way_as_a_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant = Plant()

    async def scenario() -> None:
        await plant.go(8)
        patch = MemoryCluster.patch

        def refuses(
            self: MemoryCluster, resource: Any, name: str, body: Any, *more: Any, **named: Any
        ) -> Any:
            if resource == plant.jobs and plant.field in body["spec"]:
                raise Forbidden(403, "another webhook forbids it")
            return patch(self, resource, name, body, *more, **named)

        monkeypatch.setattr(MemoryCluster, "patch", refuses)
        plant.claim(2)
        await plant.go(8)
        assert plant.asked == 4
        assert plant.status.get("shrunk") is None
        assert plant.status["phase"] == "Preempting"

    run(scenario)


def test_a_minimum_that_its_user_has_raised_meanwhile_is_kept() -> None:
    plant = Plant()

    async def scenario() -> None:
        await plant.go(8)
        raised = {"spec": {"elasticPolicy": {"minReplicas": 4}}}
        plant.cluster.api.patch(plant.jobs, "train", raised, "default")
        plant.claim(2)
        await plant.go(8)
        assert plant.asked == 4
        assert plant.status["phase"] == "Preempting", "it gives way as a whole"

    run(scenario)


def test_pods_that_its_controller_does_not_delete_are_evicted() -> None:
    plant = Plant()

    async def scenario() -> None:
        await plant.go(8)
        plant.claim(2)
        await plant.go(20, operates=False)
        assert plant.asked == 2
        assert plant.numbers() == [0, 1, 2, 3]
        await plant.go(120, operates=False)
        assert plant.numbers() == [0, 1]
        assert plant.claims_start()

    run(scenario)


def test_a_job_that_is_not_elastic_stays_where_an_elastic_one_can_make_the_room() -> None:
    plant = Plant()
    plant.cluster.add_node("n1", gpus=1)

    async def scenario() -> None:
        notes = {names.EXCLUSIVE: "true", names.CHECKPOINT: "true"}
        plant.cluster.api.create(PODS, raw_pod("rigid", annotations=notes))
        await plant.go(3)
        plant.cluster.bind_as_planned("rigid")
        began = [{"state": {"running": {"startedAt": rfc3339(plant.cluster.now)}}}]
        status = {"status": {"containerStatuses": began}}
        plant.cluster.api.patch(PODS, "rigid", status, "default", subresource="status")
        await plant.go(8)
        plant.claim(1)
        await plant.go(10)
        assert plant.claims_start()
        assert plant.asked == 3
        assert plant.cluster.gpujob("pod-rigid")["status"]["phase"] == "Running"

    run(scenario)


def test_by_the_order_alone_those_behind_get_smaller() -> None:
    """No quotas: [Tiresias] preempts who has had most, for a job that is new."""
    plant = Plant(
        profile=load_profile("tiresias-l"), settings=SETTINGS.model_copy(update={"quotas": ()})
    )

    async def scenario() -> None:
        await plant.go(8)
        plant.cluster.now += 40_000  # it has had so much that it is in the last queue
        await plant.go(3)
        plant.claim(2)
        await plant.go(10)
        assert plant.asked == 2
        assert plant.claims_start()
        assert plant.status["phase"] == "Running"

    run(scenario)


def test_it_makes_room_for_another_job_of_its_namespace_under_a_cap() -> None:
    capped = SETTINGS.model_copy(update={"quotas": (Quota(namespace="default", max_gpus=GPUS),)})
    plant = Plant(settings=capped, profile=load_profile("tiresias-l"))
    plant.cluster.add_node("n1", gpus=2)

    async def scenario() -> None:
        await plant.go(8)
        plant.cluster.now += 40_000  # it is in the last queue
        await plant.go(3)
        notes = {names.EXCLUSIVE: "true"}
        plant.cluster.api.create(PODS, raw_pod("new", gpus=2, annotations=notes))
        await plant.go(10)
        assert plant.asked == 2
        assert not plant.cluster.gated("new")
        assert plant.status["phase"] == "Running"

    run(scenario)


def test_the_steps_of_a_gang_keep_its_minimum_and_the_lowest_numbers() -> None:
    plant = Plant(least=2)

    async def scenario() -> None:
        await plant.go(8)
        gang = plant.cluster.controller.gangs.by_key["default", plant.job]
        steps = smaller(gang)
        assert [(each.pods, each.gpus) for each in steps] == [(3, 1), (2, 2)]
        assert steps[-1].uids == {
            plant.cluster.pod(name)["metadata"]["uid"] for name in ("w2", "w3")
        }

    run(scenario)
