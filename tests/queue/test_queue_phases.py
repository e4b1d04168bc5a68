"""Rounds fall anywhere against what they decide on: the paper's three jobs, phases drawn."""

import random

import pytest
from test_queue_controller import NOW, run
from test_queue_preemption import SAVES, Training, tiresias

from scheduler_extender.cluster.jobs import rfc3339
from scheduler_extender.config import QueueConfig
from tandem.kube.resource import JOBS, PODS

UNIT_S = 10.0
PAPER = {"one": (2, 2), "two": (1, 8), "three": (2, 6)}  # [Tiresias] Fig. 7: GPUs, units


class Drawn(Training):
    """Controller, kubelet, Job controller and clock, each a step at a time, in a drawn order."""

    def __init__(self, seed: int) -> None:
        # A little beyond four units: a job that ends exactly there must have ended.
        super().__init__(profile=tiresias(4 * UNIT_S + 6))
        self.rng = random.Random(seed)
        self.left = {name: units * UNIT_S for name, (_, units) in PAPER.items()}
        self.ended: dict[str, float] = {}
        self.began = self.now

    async def play(self) -> None:
        for name, (gpus, _) in PAPER.items():
            self.submit(name, gpus=gpus)
            self.tick(1.1)  # times of creation have a resolution of a second
        while self.left and self.now < self.began + 25 * UNIT_S:
            self.tick(self.rng.uniform(0.05, 0.8))
            for actor in self.rng.sample(("round", "kubelet", "jobs"), self.rng.randint(1, 3)):
                if actor == "round":
                    await self.cycle()
                elif actor == "kubelet":
                    self.kubelet()
                else:
                    self.job_controller()

    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.state.tick(self.now)
        for name in list(self.left):
            phases = [pod.get("status", {}).get("phase") for pod in self.pods_of(name)]
            if "Running" in phases and not self.suspended(name):
                self.left[name] -= seconds
            if self.left[name] <= 0:
                del self.left[name]
                self.ended[name] = (self.now - self.began) / UNIT_S
                self.api.delete(JOBS, name, "default")
                self.job_controller_deletes(name)

    def job_controller(self) -> None:
        for name in self.left:
            pods = self.pods_of(name)
            if self.suspended(name) and pods:
                self.job_controller_deletes(name)
            elif not self.suspended(name) and not pods:
                self.new_pod(name, PAPER[name][0], SAVES)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_the_papers_three_jobs_end_in_their_order_whenever_the_rounds_fall(seed: int) -> None:
    drawn = Drawn(seed)
    run(drawn.play)
    assert list(drawn.ended) == ["one", "two", "three"], drawn.ended


def test_who_came_to_the_second_queue_in_its_minimum_run_gives_way_after_it() -> None:
    cluster = Training(QueueConfig(min_run_s=60, preemption_cost_s=0), tiresias(100.0))

    async def scenario() -> None:
        cluster.submit("long", gpus=2)
        await cluster.pass_s(0)
        cluster.submit("short")
        for _ in range(57):
            await cluster.pass_s(1)
        assert cluster.status("long")["phase"] == "Running"
        for _ in range(6):
            await cluster.pass_s(1)
        assert cluster.status("long")["phase"] == "Preempting"

    run(scenario)


def test_news_that_comes_late_does_not_cost_a_place_in_the_list() -> None:
    cluster = Training()

    async def scenario() -> None:
        cluster.submit("holder", gpus=2)
        await cluster.pass_s(2)
        cluster.submit("early")
        held = cluster.pods_of("early")[0]
        cluster.job_controller_deletes("early")
        cluster.now += 3
        cluster.submit("late")
        await cluster.pass_s(2)
        # The same pod as before, as a watch that lags behind would tell of it.
        cluster.api.create(PODS, held)
        cluster.api.patch(
            PODS,
            held["metadata"]["name"],
            {"metadata": {"creationTimestamp": rfc3339(NOW + 2)}},
            "default",
        )
        for _ in range(8):
            await cluster.pass_s(1)
        assert [cluster.status(job)["position"] for job in ("early", "late")] == [0, 1]

    run(scenario)
