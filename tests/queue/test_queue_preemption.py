"""Who gives way to whom, when, and how they come back; on the API server in memory."""

from typing import Any

import pytest
from queue_builders import raw_pod
from test_queue_controller import NOW, Cluster, run

from scheduler_extender.cluster.jobs import rfc3339
from scheduler_extender.config import QueueConfig
from scheduler_extender.planning.explaining import named
from scheduler_extender.queue.pods.preemption import BUDGETS
from scheduler_extender.verbs.answers import Verbs
from tandem.kube.errors import Conflict
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import GPU_JOBS, JOBS, NODES, PODS
from tandem.policy.catalog import Profile, load_profile

EAGER = QueueConfig(min_run_s=0, preemption_cost_s=0, max_preemptions_per_hour=100)
SAVES = {"tandem.gpu/checkpoint": "true"}


def tiresias(threshold_gpu_s: float = 100.0, **order: object) -> Profile:
    profile = load_profile("tiresias-l")
    changes = {"thresholds_gpu_s": (threshold_gpu_s,), **order}
    return profile.model_copy(update={"order": profile.order.model_copy(update=changes)})


class Training(Cluster):
    """One node of two GPUs; Jobs have one pod, and a Job controller that answers to `suspend`."""

    def __init__(
        self,
        settings: QueueConfig = EAGER,
        profile: Profile | None = None,
        api: MemoryCluster | None = None,
    ) -> None:
        super().__init__(api=api, profile=profile or tiresias(), settings=settings)
        if not self.api.list(NODES):  # otherwise it takes over from another leader
            self.add_node("n0", gpus=2)
        self.pods = 0

    def submit(self, name: str, gpus: int = 1, annotations: dict | None = None) -> None:
        self.api.create(JOBS, {"metadata": {"name": name}, "spec": {}}, "default")
        self.annotations = annotations if annotations is not None else SAVES
        self.new_pod(name, gpus, self.annotations)

    def new_pod(self, job: str, gpus: int, annotations: dict) -> str:
        self.pods += 1
        raw = raw_pod(f"{job}-{self.pods}", gpus=gpus, owner=("Job", job), annotations=annotations)
        uid = self.api.get(JOBS, job, "default")["metadata"]["uid"]
        raw["metadata"]["ownerReferences"][0]["uid"] = uid
        raw["metadata"]["creationTimestamp"] = rfc3339(self.now)
        self.api.create(PODS, raw)
        return raw["metadata"]["name"]

    async def pass_s(self, seconds: float) -> None:
        self.now += seconds
        self.state.tick(self.now)
        for _ in range(3):
            await self.cycle()
            self.kubelet()

    def kubelet(self) -> None:
        """Bind what has an open gate and let it run."""
        for pod in self.api.list(PODS):
            bound = pod["spec"].get("nodeName")
            if not bound and not pod["spec"].get("schedulingGates"):
                self.bind_as_planned(pod["metadata"]["name"])
                state = {"running": {"startedAt": rfc3339(self.now)}}
                self.api.patch(
                    PODS,
                    pod["metadata"]["name"],
                    {"status": {"phase": "Running", "containerStatuses": [{"state": state}]}},
                    "default",
                    subresource="status",
                )

    def status(self, job: str) -> dict:
        return self.gpujob(f"job-{job}")["status"]

    def suspended(self, job: str) -> bool:
        return bool(self.api.get(JOBS, job, "default")["spec"].get("suspend"))

    def pods_of(self, job: str) -> list[dict]:
        pods = self.api.list(PODS)
        return [p for p in pods if p["metadata"]["ownerReferences"][0]["name"] == job]

    async def two_gives_way(self) -> None:
        """Let `two` run for 105 s, and then have it give way to `three`."""
        self.submit("two")
        await self.pass_s(0)
        self.submit("three", gpus=2)
        await self.pass_s(105)
        await self.pass_s(1)
        assert self.status("two")["phase"] == "Preempting"

    def job_controller_deletes(self, job: str) -> None:
        for pod in self.pods_of(job):
            self.api.delete(PODS, pod["metadata"]["name"], "default")


def test_a_job_that_had_more_than_the_threshold_gives_way_to_one_that_had_nothing() -> None:
    cluster = Training()

    async def scenario() -> None:
        cluster.submit("two")
        await cluster.pass_s(0)
        assert cluster.status("two")["phase"] == "Running"
        cluster.submit("three", gpus=2)
        await cluster.pass_s(50)
        assert cluster.status("two")["phase"] == "Running"
        assert cluster.status("three")["reason"] == "Waiting"
        await cluster.pass_s(55)
        await cluster.pass_s(1)
        assert cluster.status("two")["phase"] == "Preempting"
        assert cluster.suspended("two")
        # Its GPU is not free before its pod is gone.
        await cluster.pass_s(1)
        assert cluster.status("three")["phase"] == "Queued"
        cluster.job_controller_deletes("two")
        await cluster.pass_s(1)
        assert cluster.status("three")["phase"] == "Running"
        assert cluster.status("two")["phase"] == "Suspended"
        assert not cluster.suspended("two")
        assert cluster.status("two")["attainedGpuSeconds"] == pytest.approx(108, abs=3)
        # Its new pod waits, with what it has had.
        cluster.new_pod("two", 1, SAVES)
        await cluster.pass_s(1)
        assert cluster.status("two")["queue"] == 1

    run(scenario)


def test_a_job_that_takes_the_name_of_another_begins_anew() -> None:
    cluster = Training()

    async def scenario() -> None:
        cluster.submit("two")
        await cluster.pass_s(30)
        await cluster.pass_s(30)
        former = cluster.gpujob("job-two")
        assert former["status"]["phase"] == "Running"
        cluster.api.delete(JOBS, "two", "default")
        cluster.job_controller_deletes("two")
        cluster.submit("two")
        await cluster.pass_s(0)
        await cluster.pass_s(0)
        heir = cluster.gpujob("job-two")
        owner = cluster.api.get(JOBS, "two", "default")["metadata"]["uid"]
        assert heir["spec"]["workload"]["uid"] == owner != former["spec"]["workload"]["uid"]
        assert heir["metadata"]["uid"] != former["metadata"]["uid"]
        assert heir["status"]["phase"] == "Running"
        assert heir["status"].get("attainedGpuSeconds", 0) == 0

    run(scenario)


@pytest.mark.long
def test_the_papers_three_jobs_give_way_in_turn() -> None:
    """[Tiresias] Fig. 7, boundary at four units of 25 s: two runs, three, two again, three."""
    cluster = Training(profile=tiresias(100.0))
    ran: list[tuple[float, str]] = []

    async def scenario() -> None:
        start = cluster.now
        cluster.submit("two")
        cluster.now += 1
        cluster.submit("three", gpus=2)
        last = ""
        while cluster.now < start + 400:
            await cluster.pass_s(1)
            for job in ("two", "three"):
                if cluster.suspended(job) and cluster.pods_of(job):
                    cluster.job_controller_deletes(job)
                elif not cluster.suspended(job) and not cluster.pods_of(job):
                    cluster.new_pod(job, 2 if job == "three" else 1, SAVES)
            running = [j for j in ("two", "three") if cluster.status(j)["phase"] == "Running"]
            if running and running[0] != last:
                last = running[0]
                ran.append((cluster.now - start, last))

    run(scenario)
    assert [job for _, job in ran] == ["two", "three", "two"]
    first, second, third = (at for at, _ in ran)
    assert first < 5
    assert second == pytest.approx(102, abs=6)
    assert third == pytest.approx(102 + 50 + 4, abs=8)


def test_who_does_not_save_its_state_and_who_has_just_begun_are_left_alone() -> None:
    cluster = Training(settings=EAGER.model_copy(update={"min_run_s": 300.0}))

    async def scenario() -> None:
        cluster.submit("stays", annotations={})
        cluster.submit("young")
        await cluster.pass_s(0)
        cluster.submit("new", gpus=2)
        await cluster.pass_s(200)
        await cluster.pass_s(1)
        assert not cluster.suspended("young")  # in the second queue, but not for 300 s yet
        await cluster.pass_s(150)
        await cluster.pass_s(1)
        # It alone would not make room for two: no job has to go for nothing.
        assert not cluster.suspended("young")
        assert not cluster.suspended("stays")
        cluster.submit("small")
        await cluster.pass_s(1)
        await cluster.pass_s(1)
        assert cluster.suspended("young")
        assert not cluster.suspended("stays")

    run(scenario)


def test_a_disruption_budget_is_respected_and_waiting_jobs_say_so() -> None:
    cluster = Training()
    budget = {
        "metadata": {"name": "keep"},
        "spec": {"selector": {"matchLabels": {}}},
        "status": {"disruptionsAllowed": 0},
    }
    cluster.api.create(BUDGETS, budget, "default")

    async def scenario() -> None:
        cluster.submit("old", gpus=2)
        await cluster.pass_s(0)
        cluster.submit("new")
        for _ in range(3):
            await cluster.pass_s(60)
        assert not cluster.suspended("old")
        assert "disruption budget keep allows 0 disruptions" in cluster.status("new")["message"]

    run(scenario)


def test_a_job_is_preempted_so_often_an_hour_at_most() -> None:
    settings = EAGER.model_copy(update={"max_preemptions_per_hour": 1})
    cluster = Training(settings=settings, profile=tiresias(10.0, promote_knob=None))

    async def give_way(name: str) -> bool:
        cluster.submit(name, gpus=2)
        await cluster.pass_s(60)
        await cluster.pass_s(1)
        return cluster.suspended("old")

    async def scenario() -> None:
        cluster.submit("old", gpus=2)
        await cluster.pass_s(0)
        assert await give_way("first")
        cluster.job_controller_deletes("old")
        cluster.new_pod("old", 2, SAVES)
        await cluster.pass_s(1)
        cluster.api.delete(JOBS, "first", "default")
        cluster.job_controller_deletes("first")
        await cluster.pass_s(1)
        assert cluster.status("old")["phase"] == "Running"
        assert not await give_way("second")
        cluster.now += 3600
        assert await give_way("third")

    run(scenario)


def test_one_that_starved_goes_back_to_the_first_queue() -> None:
    """[Tiresias] 3.2.3: it waits as long as it ran, then its priority service begins anew."""
    cluster = Training(profile=tiresias(100.0, promote_knob=1.0))

    async def scenario() -> None:
        cluster.submit("old", gpus=2)
        await cluster.pass_s(0)
        cluster.submit("new", gpus=2)
        await cluster.pass_s(60)
        await cluster.pass_s(1)
        assert cluster.suspended("old")
        cluster.job_controller_deletes("old")
        await cluster.pass_s(1)
        cluster.new_pod("old", 2, SAVES)
        await cluster.pass_s(30)
        assert cluster.status("old")["promotedGpuSeconds"] == 0
        await cluster.pass_s(40)
        await cluster.pass_s(1)
        promoted = cluster.status("old")
        assert promoted["promotedGpuSeconds"] == promoted["attainedGpuSeconds"] > 100

    run(scenario)


def test_held_by_an_administrator_and_moved_to_the_front() -> None:
    cluster = Training()

    async def scenario() -> None:
        cluster.submit("runs", gpus=2, annotations={})
        await cluster.pass_s(0)
        for name in ("a", "b", "c"):
            cluster.submit(name, gpus=2)
            await cluster.pass_s(1)
        cluster.api.patch(GPU_JOBS, "job-a", {"spec": {"hold": True}}, "default")
        cluster.api.patch(
            GPU_JOBS, "job-c", {"spec": {"prioritizedAt": rfc3339(cluster.now)}}, "default"
        )
        await cluster.pass_s(1)
        assert cluster.status("a")["reason"] == "Held"
        cluster.api.delete(JOBS, "runs", "default")
        cluster.job_controller_deletes("runs")
        await cluster.pass_s(1)
        assert cluster.status("c")["phase"] == "Running"
        assert cluster.status("b")["phase"] == "Queued"

    run(scenario)


def test_a_gang_that_got_only_a_part_of_its_places_is_released_whole() -> None:
    cluster = Training()
    both = {"tandem.gpu/gang-size": "2"}

    async def scenario() -> None:
        cluster.submit("pair", annotations=both)
        second = cluster.new_pod("pair", 1, both)
        await cluster.cycle()
        # The scheduler binds one of the two that were planned; the other it never gets to.
        first = cluster.pods_of("pair")[0]["metadata"]["name"]
        assert not cluster.gated(second)
        cluster.bind_as_planned(first)
        state = {"running": {"startedAt": rfc3339(cluster.now)}}
        ready = {"status": {"phase": "Running", "containerStatuses": [{"state": state}]}}
        cluster.api.patch(PODS, first, ready, "default", subresource="status")
        for _ in range(5):
            cluster.now += 10
            cluster.state.tick(cluster.now)
            await cluster.cycle()
        assert not cluster.suspended("pair")
        cluster.now += 15
        cluster.state.tick(cluster.now)
        await cluster.cycle()
        assert cluster.suspended("pair")
        assert cluster.status("pair")["phase"] == "Preempting"
        cluster.job_controller_deletes("pair")
        await cluster.pass_s(1)
        await cluster.pass_s(1)
        assert cluster.status("pair")["phase"] == "Suspended"
        assert not cluster.suspended("pair")

    run(scenario)


def test_the_preempt_verb_says_what_the_plan_says() -> None:
    """The job that the plan stops frees a GPU for the pod by the verb as well, no other
    does."""
    cluster = Training()
    cluster.add_node("n1", gpus=2)

    async def scenario() -> None:
        cluster.submit("long", gpus=2)
        await cluster.pass_s(0)
        await cluster.pass_s(55)
        cluster.submit("young", gpus=2)
        await cluster.pass_s(1)
        cluster.submit("short")
        await cluster.pass_s(1)
        await cluster.pass_s(1)
        assert cluster.status("long")["phase"] == "Preempting"
        assert cluster.status("young")["phase"] == "Running"

    run(scenario)
    verbs = Verbs(cluster.state, tiresias().pipeline())
    (long,), (short,) = cluster.pods_of("long"), cluster.pods_of("short")
    node = long["spec"]["nodeName"]
    other = "n1" if node == "n0" else "n0"
    victims = {"Pods": [{"UID": long["metadata"]["uid"]}], "NumPDBViolations": 0}
    asked = {"Pod": short, "NodeNameToMetaVictims": {node: victims, other: {"Pods": []}}}
    assert verbs.preempt(asked) == {node: victims}
    asked = {"Pod": short, "NodeNameToMetaVictims": {node: {"Pods": []}, other: victims}}
    assert verbs.preempt(asked) == {}


class RefusesOnePlan(MemoryCluster):
    """An API server that refuses the first plan, as where somebody else has written meanwhile."""

    refused = False

    def replace(self, resource: Any, body: dict, *args: Any, **kwargs: Any) -> Any:
        if body.get("status", {}).get("phase") == "Admitted" and not self.refused:
            self.refused = True
            raise Conflict(409, "somebody was faster")
        return super().replace(resource, body, *args, **kwargs)


def test_a_plan_that_comes_to_nothing_keeps_no_job_of_the_same_demand_out() -> None:
    """What has no room next to it is refused; as it is not there after all, that is forgotten."""
    cluster = Cluster(profile=tiresias(), settings=EAGER, api=RefusesOnePlan())
    cluster.add_node("n0")

    async def scenario() -> None:
        for name in ("one", "two"):
            cluster.api.create(PODS, raw_pod(name, annotations=SAVES))
        for _ in range(4):
            await cluster.cycle()
            cluster.now += 3
            cluster.state.tick(NOW)
        assert cluster.api.refused
        phases = sorted(cluster.gpujob(f"pod-{name}")["status"]["phase"] for name in ("one", "two"))
        assert phases == ["Admitted", "Queued"]

    run(scenario)


class Namespaces(Training):
    """Jobs of two namespaces, team-a and team-b, on the GPUs of one node."""

    def create(self, name: str, namespace: str, gpus: int) -> None:
        self.api.create(JOBS, {"metadata": {"name": name}, "spec": {}}, namespace)
        raw = raw_pod(f"{name}-0", gpus=gpus, owner=("Job", name), annotations=SAVES)
        uid = self.api.get(JOBS, name, namespace)["metadata"]["uid"]
        raw["metadata"]["ownerReferences"][0]["uid"] = uid
        raw["metadata"]["namespace"] = namespace
        self.api.create(PODS, raw, namespace)

    def written_for(self, name: str, namespace: str) -> str:
        """Everything that the owner of a job can read about it: its GPUJob, and its events."""
        job = self.api.get(GPU_JOBS, f"job-{name}", namespace)
        return repr(job["status"]) + repr([each for each in self.said if each[0] == f"{name}-0"])

    def kubelet(self) -> None:
        for pod in self.api.list(PODS):
            name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
            if pod["spec"].get("nodeName") or pod["spec"].get("schedulingGates"):
                continue
            gpus = next(
                place["gpus"]
                for job in self.api.list(GPU_JOBS)
                for place in (job["status"].get("plan") or {}).get("pods", ())
                if place["uid"] == pod["metadata"]["uid"]
            )
            devices = {"tandem.gpu/visible-devices": ",".join(gpus)}
            uid = pod["metadata"]["uid"]
            self.api.bind(namespace, name, "n0", uid=uid, annotations=devices)
            state = {"running": {"startedAt": rfc3339(self.now)}}
            ready = {"status": {"phase": "Running", "containerStatuses": [{"state": state}]}}
            self.api.patch(PODS, name, ready, namespace, subresource="status")


@pytest.mark.parametrize("budget", [False, True], ids=["gives-way", "protected"])
def test_neither_side_of_a_preemption_reads_the_names_of_another_namespace(budget: bool) -> None:
    cluster = Namespaces()
    if budget:
        protects = {
            "metadata": {"name": "secret-budget"},
            "spec": {"selector": {"matchLabels": {}}},
            "status": {"disruptionsAllowed": 0},
        }
        cluster.api.create(BUDGETS, protects, "team-a")

    async def scenario() -> None:
        cluster.create("secret-old", "team-a", gpus=2)
        await cluster.pass_s(0)
        cluster.create("secret-new", "team-b", gpus=2)
        old = new = ""
        for _ in range(20):
            await cluster.pass_s(8)
            old += cluster.written_for("secret-old", "team-a")
            new += cluster.written_for("secret-new", "team-b")
        assert "secret-new" not in old
        assert "team-b" not in old
        assert "secret-old" not in new
        assert "secret-budget" not in new
        assert "team-a" not in new
        if budget:
            assert "protected by disruption budgets (those of other namespaces)" in new
        else:
            assert "Another job goes before it (a job of another namespace)." in old
            assert "Other jobs give up GPUs for it (a job of another namespace)" in new

    run(scenario)


def test_jobs_of_ones_own_namespace_are_named_and_others_counted() -> None:
    reader = ("a", "reader")
    assert named([("a", "x")], reader) == "a/x"
    assert named([("a", "x"), ("a", "y")], reader) == "a/x and a/y"
    assert named([("b", "x")], reader) == "a job of another namespace"
    mixed = [("b", "x"), ("a", "x"), ("c", "y")]
    assert named(mixed, reader) == "a/x and 2 jobs of other namespaces"


def test_demoted_jobs_keep_their_places_in_the_queue_after_a_change_of_leader() -> None:
    """Each is demoted in turn, in another order than that of their names and of their arrival."""
    cluster = Training(profile=tiresias(100.0, within="list"))

    def in_order(training: Training) -> list[str]:
        now, history = training.now, training.controller.history.history()
        queue_state = training.controller.queue_state
        queue_state.line_up(now)
        return [key[1] for key in queue_state.rank(queue_state.arrays(now, history), now, history)]

    async def has_its_run(name: str) -> None:
        """Let a job run beyond the threshold, and then be preempted for good."""
        cluster.api.patch(GPU_JOBS, f"job-{name}", {"spec": {"hold": False}}, "default")
        await cluster.pass_s(1)
        assert cluster.status(name)["phase"] == "Running"
        await cluster.pass_s(60)
        cluster.api.patch(GPU_JOBS, f"job-{name}", {"spec": {"hold": True}}, "default")
        cluster.job_controller_deletes(name)
        cluster.new_pod(name, 2, SAVES)
        await cluster.pass_s(1)

    async def scenario() -> None:
        cluster.submit("runs", gpus=2, annotations={})
        await cluster.pass_s(1)
        for name in ("alpha", "bravo", "charlie"):
            cluster.submit(name, gpus=2)
            await cluster.pass_s(1)
            cluster.api.patch(GPU_JOBS, f"job-{name}", {"spec": {"hold": True}}, "default")
        cluster.api.delete(JOBS, "runs", "default")
        cluster.job_controller_deletes("runs")
        for name in ("charlie", "alpha", "bravo"):
            await has_its_run(name)
        waiting = [each for each in in_order(cluster) if each != "job-runs"]
        # Who ran last got ahead of those that wait; neither names nor arrival say so.
        assert waiting == ["job-bravo", "job-alpha", "job-charlie"]
        successor = Training(profile=tiresias(100.0, within="list"), api=cluster.api)
        successor.now, successor.loop = cluster.now, cluster.loop
        assert await successor.controller._leading()
        successor.controller.work.hold()
        await successor.pass_s(0)
        assert [each for each in in_order(successor) if each != "job-runs"] == waiting

    run(scenario)
