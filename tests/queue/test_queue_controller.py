"""The queue controller on the API server in memory, with the live state."""

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from queue_builders import GIB, cycle, load, raw_pod

from scheduler_extender.cluster.gpu_claims import GpuClaims
from scheduler_extender.cluster.jobs import seconds
from scheduler_extender.cluster.state import ClusterState
from scheduler_extender.config import QueueConfig
from scheduler_extender.learning.config import LearningConfig
from scheduler_extender.learning.learned_state import LearnedState, believing
from scheduler_extender.predictions import without_predictor
from scheduler_extender.queue.controller import Connection, Controller, Settings
from tandem.contracts.prediction import Feedback, Prediction
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import GPU_JOBS, GPU_NODES, JOBS, NODES, PODS
from tandem.policy.catalog import Profile, load_profile

NOW = 1_800_000_000.0
KINDS = {"nodes": NODES, "gpunodes": GPU_NODES, "pods": PODS, "gpujobs": GPU_JOBS}
SHARED = {"tandem.gpu/model": "resnet50"}
WAITS = ("late", "Waiting")


class Cluster:
    """Two nodes of one 80 GiB GPU each; the controller's cycles are run by hand."""

    def __init__(
        self,
        api: MemoryCluster | None = None,
        profile: Profile | None = None,
        settings: QueueConfig | None = None,
        forecasts: bool = False,
        shares: int = 2,
        levels: tuple[str, ...] = (),
        gpu_claims: GpuClaims | None = None,
    ) -> None:
        self.now = NOW
        self.shares = shares
        self.api = api or MemoryCluster(clock=lambda: self.now)
        self.said: list[tuple[str, str, str]] = []
        self.predictions = 0
        self.learned = LearnedState()
        self.feedback: list[Feedback] = []
        self.state = ClusterState(
            now_s=self.now,
            max_jobs_per_gpu=shares,
            pairs=self.learned.pairs,
            placements=self.learned.placements,
            clock=lambda: self.now,
            topology_levels=levels,
        )
        self.controller = Controller(
            state=self.state,
            connection=Connection(
                api=self.api,
                tell=lambda regarding, reason, note, _kind: self.said.append(
                    (regarding["metadata"]["name"], reason, note)
                ),
                clock=lambda: self.now,
                gpu_claims=gpu_claims,
            ),
            profile=believing(profile or load_profile("tandem"), LearningConfig()),
            learned=self.learned,
            feedback=self.take_feedback,
            settings=Settings(queue=settings or QueueConfig(), forecasts=forecasts),
            predictor=self,
        )
        self.state.listener = self.controller
        for kind, resource in KINDS.items():
            self.api.watch(resource, lambda event, obj, kind=kind: self._event(kind, event, obj))

    async def take_feedback(self, feedback: Feedback) -> bool:
        self.feedback.append(feedback)
        return True

    async def cycle(self) -> None:
        self.loop = asyncio.get_running_loop()
        await cycle(self.controller)
        await asyncio.sleep(0)

    def _event(self, kind: str, event: str, obj: dict[str, Any]) -> None:
        """Hand an event to the loop's thread, as the feed does; writes are made in others."""
        if threading.current_thread() is threading.main_thread():
            self._apply(kind, event, obj)
        else:
            self.loop.call_soon_threadsafe(self._apply, kind, event, obj)

    def _apply(self, kind: str, event: str, obj: dict[str, Any]) -> None:
        if event == "DELETED":
            self.state.delete(kind, obj)
        else:
            self.state.upsert(kind, obj)

    async def predict(self, namespace: str, demand: Any, gpu: Any) -> Prediction:
        self.predictions += 1
        if demand.model is None:
            return without_predictor(demand, "nothing is known")
        assert gpu.memory_bytes == 80 * GIB
        return Prediction(load=load(p=0.25), explanation="by the formula")

    def add_node(self, name: str, gpus: int = 1) -> None:
        self.api.create(
            NODES,
            {
                "metadata": {"name": name},
                "status": {"allocatable": {"cpu": "8", "memory": "64Gi", "pods": "110"}},
            },
        )
        self.api.create(
            GPU_NODES,
            {
                "metadata": {"name": name},
                "status": {
                    "observedAt": "2027-01-15T08:00:00Z",  # NOW
                    "gpus": [
                        {
                            "uuid": f"GPU-{name}-{i}",
                            "index": i,
                            "model": "NVIDIA A100",
                            "memoryBytes": 80 * GIB,
                            "shares": self.shares,
                        }
                        for i in range(gpus)
                    ],
                },
            },
        )

    def gpujob(self, name: str) -> dict[str, Any]:
        return self.api.get(GPU_JOBS, name, "default")

    def pod(self, name: str) -> dict[str, Any]:
        return self.api.get(PODS, name, "default")

    def gated(self, name: str) -> bool:
        return bool(self.pod(name)["spec"].get("schedulingGates"))

    def bind_as_planned(self, name: str) -> None:
        pod = self.pod(name)
        for job in self.api.list(GPU_JOBS):
            for place in (job["status"].get("plan") or {}).get("pods", ()):
                if place["uid"] == pod["metadata"]["uid"]:
                    self.api.bind(
                        "default",
                        name,
                        place["node"],
                        uid=place["uid"],
                        annotations={"tandem.gpu/visible-devices": ",".join(place["gpus"])},
                    )
                    self.set_phase(name, "Running")
                    return
        raise AssertionError(f"{name} has no plan")

    def set_phase(self, name: str, phase: str) -> None:
        self.api.patch(PODS, name, {"status": {"phase": phase}}, "default", subresource="status")


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scenario())


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    cluster.add_node("n0")
    cluster.add_node("n1")
    return cluster


def test_a_new_pod_gets_a_gpujob_a_plan_and_an_open_gate(cluster: Cluster) -> None:
    cluster.api.create(PODS, raw_pod("p", annotations=SHARED))
    run(cluster.cycle)
    job = cluster.gpujob("pod-p")
    assert job["status"]["phase"] == "Admitted"
    assert job["status"]["load"]["memorySource"] == "formula"
    assert job["metadata"]["ownerReferences"][0]["uid"] == cluster.pod("p")["metadata"]["uid"]
    (place,) = job["status"]["plan"]["pods"]
    assert (place["node"], place["gpus"]) == ("n0", ["GPU-n0-0"])
    assert not cluster.gated("p")


def test_two_share_the_third_waits_with_its_reason_and_goes_when_one_ends(cluster: Cluster) -> None:
    async def scenario() -> None:
        for name in ("whole", "a", "b", "late"):
            annotations = {} if name == "whole" else SHARED
            cluster.api.create(PODS, raw_pod(name, annotations=annotations))
            await cluster.cycle()
            if name != "late":
                cluster.bind_as_planned(name)
        where = {name: cluster.state.pod_named("default", name).pod.devices for name in ("a", "b")}
        assert where["a"] == where["b"] == ("GPU-n1-0",)
        assert cluster.gated("late")
        status = cluster.gpujob("pod-late")["status"]
        assert (status["phase"], status["reason"]) == ("Queued", "Waiting")
        assert "all places for jobs are taken (2 of 2)" in status["message"]
        note = next(note for name, reason, note in cluster.said if (name, reason) == WAITS)
        assert "It needs 1 GPU. On some GPUs, all places for jobs are taken." in note
        assert "kubectl describe gpujob pod-late" in note
        scheduled = next(c for c in status["conditions"] if c["type"] == "Scheduled")
        assert scheduled["status"] == "False"
        cluster.set_phase("a", "Succeeded")
        await cluster.cycle()
        assert not cluster.gated("late")
        assert cluster.gpujob("pod-a")["status"]["phase"] == "Completed"

    run(scenario)


def test_the_gates_of_a_gang_open_together_or_not_at_all(cluster: Cluster) -> None:
    async def scenario() -> None:
        gang = {"tandem.gpu/gang": "g", "tandem.gpu/gang-size": "3"}
        for i in range(3):
            cluster.api.create(PODS, raw_pod(f"p{i}", annotations=gang))
            await cluster.cycle()
            assert cluster.gated(f"p{i}")
        cluster.add_node("n2")
        await cluster.cycle()
        assert not any(cluster.gated(f"p{i}") for i in range(3))
        assert len(cluster.gpujob("gang-g")["status"]["plan"]["pods"]) == 3

    run(scenario)


def test_the_pods_of_an_indexed_job_are_a_gang_and_those_of_a_plain_one_are_not(
    cluster: Cluster,
) -> None:
    async def scenario() -> None:
        for name, mode in (("plain", "NonIndexed"), ("indexed", "Indexed")):
            spec = {"parallelism": 3, "completionMode": mode, "completions": 3}
            cluster.api.create(JOBS, {"metadata": {"name": name}, "spec": spec}, "default")
            cluster.api.create(PODS, raw_pod(f"{name}-0", owner=("Job", name)))
            await cluster.cycle()
        assert cluster.gpujob("job-plain")["spec"]["demand"]["gangSize"] == 1
        assert cluster.gpujob("job-indexed")["spec"]["demand"]["gangSize"] == 3
        assert not cluster.gated("plain-0")
        assert cluster.gated("indexed-0")

    run(scenario)


def test_a_plan_that_was_not_bound_in_time_is_made_anew_and_the_pod_is_woken(
    cluster: Cluster,
) -> None:
    async def scenario() -> None:
        cluster.api.create(PODS, raw_pod("p", annotations=SHARED))
        await cluster.cycle()
        first = cluster.gpujob("pod-p")["status"]
        woken = cluster.pod("p")["metadata"]["annotations"]["tandem.gpu/wake"]
        cluster.now += 31
        cluster.state.tick(cluster.now)
        await cluster.cycle()
        second = cluster.gpujob("pod-p")["status"]
        assert second["attempts"] == first["attempts"] + 1
        assert second["plan"]["deadline"] > first["plan"]["deadline"]
        assert cluster.pod("p")["metadata"]["annotations"]["tandem.gpu/wake"] > woken

    run(scenario)


def test_a_plan_lives_longer_behind_others_that_are_not_bound_yet() -> None:
    """kube-scheduler binds one pod after the other, so that the last of a burst comes late."""
    cluster = Cluster()
    for index in range(4):
        cluster.add_node(f"n{index}")

    def life_s(name: str) -> float:
        plan = cluster.gpujob(f"pod-{name}")["status"]["plan"]
        return seconds(plan["deadline"]) - seconds(plan["madeAt"])

    async def scenario() -> None:
        for name in ("a", "b", "c"):
            cluster.api.create(PODS, raw_pod(name, annotations=SHARED))
        await cluster.cycle()
        assert sorted(map(life_s, "abc")) == pytest.approx([30.0, 30.2, 30.4], abs=0.01)
        cluster.api.create(PODS, raw_pod("d", annotations=SHARED))
        await cluster.cycle()
        assert life_s("d") == pytest.approx(30.6, abs=0.01)

    run(scenario)


def test_annotations_that_came_past_the_webhook_are_reported_and_hold_no_pod_up(
    cluster: Cluster,
) -> None:
    async def scenario() -> None:
        cluster.api.create(PODS, raw_pod("bad", annotations={"tandem.gpu/memory": "lots"}))
        cluster.api.create(PODS, raw_pod("good", annotations=SHARED))
        await cluster.cycle()
        assert not cluster.gated("good")
        assert cluster.gated("bad")
        name, reason, note = cluster.said[0]
        assert (name, reason) == ("bad", "InvalidAnnotation")
        assert "tandem.gpu/memory" in note

    run(scenario)


class Dies(MemoryCluster):
    """An API server whose client is killed before, or just after, its n-th write.

    Nothing reaches it from a client that is dead.
    """

    def __init__(self, after: int, done: bool) -> None:
        super().__init__()
        self.left = after
        self.done = done
        self.dead = False

    def _may(self, write: Callable[[], Any]) -> Any:
        if self.dead:
            raise Killed
        self.left -= 1
        self.dead = self.left == 0
        if self.dead and not self.done:
            raise Killed
        answer = write()
        if self.dead:
            raise Killed
        return answer

    def create(self, *args: Any, **kwargs: Any) -> Any:
        return self._may(lambda: MemoryCluster.create(self, *args, **kwargs))

    def replace(self, *args: Any, **kwargs: Any) -> Any:
        return self._may(lambda: MemoryCluster.replace(self, *args, **kwargs))

    def patch(self, *args: Any, **kwargs: Any) -> Any:
        return self._may(lambda: MemoryCluster.patch(self, *args, **kwargs))


class Killed(Exception):  # noqa: N818 - an event, not an error
    pass


@pytest.mark.parametrize(("write", "done"), list(itertools.product(range(1, 6), (False, True))))
def test_killed_at_any_write_the_next_one_finishes_the_admission(write: int, done: bool) -> None:
    async def scenario() -> None:
        api = Dies(0, done)
        first = Cluster(api)
        first.add_node("n0", gpus=2)
        gang = {"tandem.gpu/gang": "g", "tandem.gpu/gang-size": "2"}
        for name in ("a", "b"):
            api.create(PODS, raw_pod(name, annotations=gang))
        api.left = write
        await first.cycle()
        assert api.dead
        api._watchers.clear()
        api.dead = False
        second = Cluster(api)
        for _ in range(3):
            await second.cycle()
        assert not second.gated("a")
        assert not second.gated("b")
        (job,) = api.list(GPU_JOBS)
        assert len(job["status"]["plan"]["pods"]) == 2
        assert job["status"]["phase"] == "Admitted"

    run(scenario)


def test_a_gang_is_kept_off_a_node_that_did_not_take_it_and_other_gangs_are_not(
    cluster: Cluster,
) -> None:
    def node_of(name: str) -> str:
        return str(cluster.gpujob(f"pod-{name}")["status"]["plan"]["pods"][0]["node"])

    async def scenario() -> None:
        cluster.api.create(PODS, raw_pod("p"))
        await cluster.cycle()
        refused = node_of("p")
        cluster.now += 31
        cluster.state.tick(cluster.now)
        await cluster.cycle()
        assert node_of("p") != refused
        cluster.api.create(PODS, raw_pod("q"))
        await cluster.cycle()
        assert node_of("q") == refused

    run(scenario)
