"""The work that a running job has left: by its iterations, or by its time at its measured speed."""

from __future__ import annotations

import numpy as np
import pytest
from queue_builders import load
from test_queue_controller import run
from test_queue_learning import MODEL, SAVES, Sharing
from test_queue_preemption import Training

from scheduler_extender.cluster.jobs import progress_of
from scheduler_extender.config import QueueConfig
from tandem.contracts.learning import Means, Observed, ObservedSlowdown, Reference
from tandem.contracts.prediction import Prediction
from tandem.contracts.resources import Demand, GPUJobStatus, SubBatch
from tandem.policy.catalog import load_profile
from tandem.policy.jobs import History

SLOW = ObservedSlowdown(value=0.6, means=Means.UTILISATION, reference=Reference.SOLO)
DEMAND = Demand(gpus_per_pod=1, iterations=1000)


def status(iteration_s: float = 1.0, **observed: object) -> GPUJobStatus:
    about = load().model_copy(update={"iteration_s": iteration_s})
    seen = Observed(at="2026-01-01T00:00:00Z", **observed)  # type: ignore[arg-type]
    return GPUJobStatus(load=about, observed=seen)


def test_after_a_thousand_seconds_at_a_slowdown_of_1_6_there_are_375_seconds_left() -> None:
    left, speed = progress_of(DEMAND, status(slowdown=SLOW, slowed_seconds=375.0), ran_s=1000.0)
    assert left == 375.0
    assert speed == 1 / 1.6


def test_what_the_pods_tell_of_iterations_counts_before_the_time_that_has_passed() -> None:
    shown = status(iterations_done=400.0, solo_iterations_per_second=0.5, slowdown=SLOW)
    left, speed = progress_of(DEMAND, shown, ran_s=1000.0)
    assert left == 600 * 2.0  # the time of an iteration is as measured, not as predicted
    assert speed == 1 / 1.6


def test_accumulation_makes_each_iteration_longer() -> None:
    ways = [SubBatch(steps=2, memory_base_bytes=0, memory_peak_bytes=0, stretch=1.25)]
    runs = status(accumulation_steps=2, solo_iterations_per_second=0.8)
    left, speed = progress_of(DEMAND, runs.model_copy(update={"sub_batches": ways}), ran_s=0.0)
    assert left == 1000.0  # of the batch as submitted, one iteration takes a second
    assert speed == pytest.approx(0.8)


class Timed(Sharing):
    """Jobs state their iterations; an iteration is predicted to take a second."""

    async def predict(self, namespace, demand, gpu) -> Prediction:
        found = await super().predict(namespace, demand, gpu)
        load = found.load.model_copy(update={"iteration_s": 1.0})
        return found.model_copy(update={"load": load})

    def left_s(self, job: str) -> float:
        queue_state = self.controller.queue_state
        arrays = queue_state.arrays(self.now, History())
        row = queue_state.of["default", f"job-{job}"].row
        return float(arrays.remaining_s(np.array([row]), self.now)[0])


@pytest.mark.parametrize("tells", [False, True])
def test_a_job_next_to_another_has_the_work_left_that_it_has_not_done(tells: bool) -> None:
    cluster = Timed()
    cluster.percent = {"a": 56.25, "b": 80.0}
    if tells:
        cluster.rates = {"a": 2 / 1.6}  # iterations per second; 2 when it is alone

    async def scenario() -> None:
        takes = {"tandem.gpu/iterations": "2000"}
        cluster.submit("c", annotations={"tandem.gpu/exclusive": "true"})
        await cluster.live(10)
        cluster.submit("a", annotations=SAVES | takes)
        await cluster.live(100)
        cluster.submit("b", annotations=MODEL)
        await cluster.live(480)
        assert cluster.gpu_of("a") == cluster.gpu_of("b")
        done_s = 100 + 480 / 1.6
        work_s = 1000 if tells else 2000  # half a second an iteration, as it tells
        assert cluster.left_s("a") == pytest.approx(work_s - done_s, abs=25)

    run(scenario)


def test_a_job_without_a_checkpoint_begins_anew_with_its_new_pods() -> None:
    cluster = Timed()

    async def scenario() -> None:
        cluster.submit("a", annotations=MODEL | {"tandem.gpu/iterations": "2000"})
        await cluster.live(100)
        assert cluster.left_s("a") == pytest.approx(1900, abs=15)
        cluster.job_controller_deletes("a")
        cluster.new_pod("a", 1, MODEL | {"tandem.gpu/iterations": "2000"})
        await cluster.live(20)
        assert cluster.left_s("a") == pytest.approx(1980, abs=15)

    run(scenario)


class Shortest(Training):
    """Two GPUs on one node, the shortest remaining time first; an iteration takes a second."""

    def __init__(self) -> None:
        settings = QueueConfig(min_run_s=0, preemption_cost_s=60, max_preemptions_per_hour=100)
        super().__init__(settings, load_profile("srtf"))

    async def predict(self, namespace, demand, gpu) -> Prediction:
        found = await super().predict(namespace, demand, gpu)
        load = found.load.model_copy(update={"iteration_s": 1.0})
        return found.model_copy(update={"load": load})


def test_preemption_is_weighed_by_the_work_left_where_the_order_is_by_it() -> None:
    """`short` has had more service than `long` when it comes again, and has far less to do."""
    cluster = Shortest()
    names = {"short": "1000", "brief": "100", "long": "9000"}

    def asks(name: str) -> dict[str, str]:
        return SAVES | {"tandem.gpu/model": "m", "tandem.gpu/iterations": names[name]}

    async def scenario() -> None:
        cluster.submit("short", gpus=2, annotations=asks("short"))
        await cluster.pass_s(0)
        for _ in range(8):
            await cluster.pass_s(100)
        cluster.submit("brief", gpus=2, annotations=asks("brief"))
        await cluster.pass_s(1)
        await cluster.pass_s(1)
        assert cluster.status("short")["phase"] == "Preempting"
        cluster.job_controller_deletes("short")
        await cluster.pass_s(1)
        await cluster.pass_s(1)
        assert cluster.status("brief")["phase"] == "Running"
        cluster.submit("long", gpus=2, annotations=asks("long"))
        await cluster.pass_s(1)
        cluster.set_phase(cluster.pods_of("brief")[0]["metadata"]["name"], "Succeeded")
        await cluster.pass_s(1)
        await cluster.pass_s(1)
        assert cluster.status("long")["phase"] == "Running"
        cluster.new_pod("short", 2, asks("short"))
        await cluster.pass_s(1)
        await cluster.pass_s(1)
        assert cluster.status("long")["phase"] == "Preempting"

    run(scenario)
