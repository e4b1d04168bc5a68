"""Each system of the papers decides its scenario as no other profile does; in memory."""

from __future__ import annotations

import asyncio
from dataclasses import fields

import pytest
from paper_scenarios import (
    BOARD,
    SCENARIOS,
    Ends,
    Known,
    Look,
    Pass,
    Scenario,
    Seen,
    Slow,
    Submit,
)
from queue_builders import GIB, gang
from test_queue_controller import Cluster
from test_queue_preemption import Training

from scheduler_extender.cluster.jobs import rfc3339
from scheduler_extender.cluster.parsing import parse_gpu_job
from scheduler_extender.config import QueueConfig
from tandem.contracts.prediction import InterferenceAnswer, Prediction
from tandem.contracts.resources import Phase
from tandem.kube.resource import GPU_NODES, JOBS, PODS
from tandem.policy.catalog import profile_names

SETTINGS = QueueConfig(min_run_s=0, preemption_cost_s=0, max_preemptions_per_hour=100)
#: `tiresias-l` with another rule inside a queue, and with promotion of jobs that starve: variants
#: of the same system, which decide a short course as it does.
VARIANTS = ("tiresias-l-list", "tiresias-l-promote")
OTHERS = [name for name in profile_names() if name not in VARIANTS]


class Course(Training):
    """One node; Jobs answer to `suspend`, agents report what pods take and how slow they are."""

    def __init__(self, scenario: Scenario, profile: str) -> None:
        self.scenario = scenario
        chosen = scenario.profile(profile)
        Cluster.__init__(self, profile=chosen, settings=SETTINGS, shares=chosen.max_jobs_per_gpu)
        self.add_node("n0", gpus=scenario.gpus)
        self.pods = 0
        self.asks: dict[str, Submit] = {}
        self.slow: dict[str, Slow] = {}
        self.reported_s = self.now
        known = gang(phase=Phase.COMPLETED).record
        for number, service in enumerate(scenario.history):
            status = known.status.model_copy(update={"attained_gpu_seconds": service})
            meta = {"namespace": "x", "name": f"h{number}", "uid": f"h{number}"}
            raw = {"metadata": meta, "spec": known.spec.wire(), "status": status.wire()}
            self.controller.history.take(parse_gpu_job(raw))

    async def predict(self, namespace, demand, gpu, steps: int = 1) -> Prediction:
        return self.scenario.load(demand.model, steps)

    async def interference(self, job, candidates, gpu) -> InterferenceAnswer:
        return self.scenario.price(job, candidates)

    async def parts(self) -> Look | None:
        """Go through the course; return the first look that shows another picture."""
        for event in self.scenario.course:
            match event:
                case Submit():
                    self.asks[event.name] = event
                    self.submit(event.name, annotations=event.annotations)
                case Ends():
                    (pod,) = self.pods_of(event.job)
                    self.set_phase(pod["metadata"]["name"], "Succeeded")
                    done = {"conditions": [{"type": "Complete", "status": "True"}]}
                    self.api.patch(
                        JOBS, event.job, {"status": done}, "default", subresource="status"
                    )
                case Slow():
                    self.slow[event.job] = event
                case Known():
                    await self.let_pass(40)
                case Pass():
                    await self.let_pass(event.seconds)
                case Look() if self.seen() != event.under():
                    return event
        return None

    async def let_pass(self, seconds: float) -> None:
        step_s = 1.0 if seconds <= 100 else 5.0
        for _ in range(round(seconds / step_s)):
            self.report()
            await self.pass_s(step_s)
            for job in self.asks:
                if self.suspended(job):
                    self.job_controller_deletes(job)
                elif not self.pods_of(job) and self.status(job).get("phase") == "Suspended":
                    self.new_pod(job, 1, self.asks[job].annotations)
            await self.pass_s(0)

    def placed(self) -> dict[str, list[dict]]:
        found: dict[str, list[dict]] = {}
        for pod in self.api.list(PODS):
            gpu = (pod["metadata"].get("annotations") or {}).get("tandem.gpu/visible-devices")
            if gpu and pod["status"].get("phase") == "Running":
                found.setdefault(gpu, []).append(pod["metadata"])
        return found

    def seen(self) -> Seen:
        return frozenset(
            frozenset(meta["ownerReferences"][0]["name"] for meta in pods)
            for pods in self.placed().values()
        )

    def report(self) -> None:
        """Agents report each five seconds, where anything is measured; else once a minute."""
        measures = any(isinstance(event, Slow) for event in self.scenario.course)
        every_s = 5.0 if measures else 60.0
        if self.now - self.reported_s < every_s:
            return
        self.reported_s = self.now
        placed, gpus = self.placed(), []
        for index in range(self.scenario.gpus):
            uuid, uses = f"GPU-n0-{index}", []
            for meta in placed.get(uuid, []):
                job = meta["ownerReferences"][0]["name"]
                kind = self.scenario.kinds[self.asks[job].kind]
                slow = self.slow.get(job)
                here = {meta["ownerReferences"][0]["name"] for meta in placed[uuid]}
                slower = 1 + slow.slowdown if slow is not None and slow.neighbour in here else 1.0
                uses.append({
                    "uid": meta["uid"], "memoryBytes": GIB,
                    "utilisationPercent": kind.percent / slower, "iterationsPerSecond": 1 / slower,
                })  # fmt: skip
            model, memory = BOARD
            gpus.append({
                "uuid": uuid, "index": index, "model": model, "memoryBytes": memory,
                "shares": self.shares, "utilisationPercent": 100.0 if uses else 0.0, "pods": uses,
            })  # fmt: skip
        status = {"observedAt": rfc3339(self.now), "gpus": gpus}
        self.api.patch(GPU_NODES, "n0", {"status": status}, subresource="status")


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.system)
def test_only_this_system_decides_like_this(scenario: Scenario) -> None:
    """The paper's section is the scenario's."""
    alike = [name for name in OTHERS if asyncio.run(Course(scenario, name).parts()) is None]
    assert alike == [scenario.system], scenario.section


@pytest.mark.long
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.system)
def test_the_nearest_other_profile_decides_as_is_said_of_it(scenario: Scenario) -> None:
    """On the control plane only this one is tried besides the scenario's own."""
    course = Course(scenario, scenario.nearest)
    parted = asyncio.run(course.parts())
    assert parted is not None
    assert course.seen() == parted.under(nearest=True)


def test_a_scenario_shares_its_course_with_that_of_the_nearest_system_up_to_where_they_part() -> (
    None
):
    """So the runs of both on the control plane show where the two part."""
    by_system = {scenario.system: scenario for scenario in SCENARIOS}
    for one in SCENARIOS:
        other = by_system.get(one.nearest)
        if other is None:
            continue
        at = next(i for i, e in enumerate(one.course) if isinstance(e, Look) and e.instead)
        mine, theirs = one.course[at], other.course[at]
        assert isinstance(mine, Look)
        assert isinstance(theirs, Look)
        assert one.course[:at] == other.course[:at]
        assert (mine.gpus, mine.instead) == (theirs.instead, theirs.gpus)
        names = {"system", "section", "nearest", "course"}
        for field in fields(Scenario):
            if field.name not in names:
                assert getattr(one, field.name) == getattr(other, field.name)
