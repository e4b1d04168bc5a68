"""The table of phases: each row is what its function does, and docs/queueing.md prints it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from queue_builders import gang, is_transition, load, pod

from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.jobs import rfc3339
from scheduler_extender.queue.steps import lifecycle
from scheduler_extender.queue.steps.phases import (
    CLOSED,
    OPEN,
    TRANSITIONS,
    Stage,
    Transition,
    stage_of,
    tables,
)
from tandem.contracts.prediction import Prediction
from tandem.contracts.resources import GPUJobStatus, Phase, Plan, PodPlan, Preemption
from tandem.reasons.causes import Cause, Reason

NOW = 1_800_000_000.0
PAGE = Path(__file__).resolve().parents[2] / "docs" / "queueing.md"
RUNS = replace(pod("p0", gated=False), node_name="n0", phase="Running")


def plan(deadline_s: float) -> Plan:
    place = PodPlan(pod="p0", uid="uid-p0", node="n0", gpus=["g0"])
    return Plan(made_at=rfc3339(NOW), deadline=rfc3339(deadline_s), pods=[place])


NEVER = Cause(Reason.NEVER_STARTED, pod="p0")


def result(row: Transition, of: Phase) -> GPUJobStatus:
    """Return what the function of a row makes of a gang in phase `of` to which the row applies."""
    some = gang(pod("p0"), phase=of, queued_at=rfc3339(NOW))
    status = some.record.status
    match row.function, row.reason:
        case lifecycle.queued, _:
            said = Prediction(load=load(), explanation="by the formula")
            return lifecycle.queued(status, said, (), rfc3339(NOW), rfc3339(NOW), NOW)
        case lifecycle.observed, "Running":
            return lifecycle.observed(gang(RUNS, phase=of), NOW)
        case lifecycle.observed, "PlanExpired":
            return lifecycle.observed(gang(pod("p0"), phase=of, plan=plan(NOW - 1)), NOW)
        case lifecycle.observed, _:
            return lifecycle.observed(gang(phase=of), NOW)
        case lifecycle.with_plan, _:
            return lifecycle.with_plan(status, some, [], NOW, NOW + 30)
        case lifecycle.waiting, _:
            return lifecycle.waiting(status, Reason.WAITING, [Cause(Reason.NOT_LOOKED_AT)], 0, NOW)
        case lifecycle.never_started, _:
            return lifecycle.never_started(status, NEVER, "evict", NOW)
        case lifecycle.rested, _:
            status = lifecycle.never_started(status, NEVER, "evict", NOW)
            return lifecycle.rested(status, NOW)
        case lifecycle.preempting, _:
            return lifecycle.preempting(status, Cause(Reason.NEEDED), "evict", NOW)
        case lifecycle.suspended, _:
            asked = Preemption(by="another job", method="evict", requested_at=rfc3339(NOW))
            return lifecycle.suspended(status.model_copy(update={"preemption": asked}), NOW)
        case lifecycle.ended, _:
            return lifecycle.ended(some, row.to is Phase.FAILED, NOW)
        case _:
            return row.function(status, NOW)


CASES = [(row, of) for row in TRANSITIONS for of in row.of or (Phase.QUEUED,)]


@pytest.mark.parametrize(("row", "of"), CASES, ids=[f"{of}-{row.reason}" for row, of in CASES])
def test_the_function_of_each_row_makes_its_phase_and_its_reason(
    row: Transition, of: Phase
) -> None:
    after = result(row, of)
    assert (after.phase, after.reason) == (row.to, row.reason)


def test_a_closed_gpujob_comes_back_in_one_way_only() -> None:
    back = [row for row in TRANSITIONS if set(row.of) & set(CLOSED)]
    assert [row.to for row in back] == [Phase.QUEUED]
    assert not is_transition(Phase.COMPLETED, Phase.RUNNING)
    assert not is_transition(Phase.PREEMPTING, Phase.RUNNING)
    assert {*OPEN, *CLOSED} == set(Phase)


ENDED = replace(RUNS, phase="Succeeded")
QUEUED_AT = {"queued_at": rfc3339(NOW)}
STAGES: list[tuple[Stage, Gang]] = [
    (Stage.GONE, Gang(("default", "job-j"))),
    (Stage.NEW, Gang(("default", "job-j"), None, {"uid-p": pod("p")})),
    (Stage.REPLACED, gang(pod("p", owner=("Job", "other")))),
    (Stage.REVIVED, gang(pod("p", owner=("Job", "j")), phase=Phase.COMPLETED)),
    (Stage.CLOSED, gang(phase=Phase.FAILED)),
    (Stage.UNPREDICTED, gang(pod("p", owner=("Job", "j")))),
    (Stage.PREEMPTING, gang(phase=Phase.PREEMPTING, **QUEUED_AT)),
    (Stage.ENDING, gang(ENDED, phase=Phase.RUNNING, **QUEUED_AT)),
    (Stage.OPEN, gang(pod("p", owner=("Job", "j")), **QUEUED_AT)),
]


@pytest.mark.parametrize(("stage", "at"), STAGES, ids=[stage.name for stage, _ in STAGES])
def test_a_gang_is_at_one_stage(stage: Stage, at: Gang) -> None:
    assert stage_of(at) is stage


def test_each_stage_has_an_example() -> None:
    assert [stage for stage, _ in STAGES] == list(Stage)


def test_the_page_of_the_queue_prints_the_tables() -> None:
    assert tables() in PAGE.read_text(), (
        "docs/queueing.md: print the tables with python -m scheduler_extender.queue.steps.phases"
    )


def test_new_pods_of_a_job_that_ran_are_in_the_queue_until_a_cycle_says_more():
    status = lifecycle.observed(gang(pod("p0"), phase=Phase.RUNNING), NOW)
    assert status.phase is Phase.QUEUED
    assert [cause.reason for cause in status.causes] == [Reason.QUEUED]
