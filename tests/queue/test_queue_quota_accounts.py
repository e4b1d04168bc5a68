"""What counts as held by a gang when quotas are kept: its pods, its plan, a plan being written."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from queue_builders import gang, pod

from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.jobs import rfc3339
from scheduler_extender.config import QueueConfig
from scheduler_extender.queue.order.quota_accounts import Accounts, _stake
from scheduler_extender.quotas.config import Quota
from tandem.contracts.resources import Phase, Plan, PodPlan
from tandem.policy.job import Job


def changed_state(**changes: Any) -> Any:
    values = {"holders": (), "leaving": (), "placed": False, "job": Job(id="j", gpus_per_pod=2)}
    return SimpleNamespace(**values | changes)


def planned(*uids: str) -> dict[str, Any]:
    places = [PodPlan(pod=uid, uid=uid, node="n0", gpus=["g0", "g1"]) for uid in uids]
    return {"plan": Plan(pods=places, made_at=rfc3339(0), deadline=rfc3339(30))}


def stake(of: Gang, **changes: Any) -> tuple[int, int, int]:
    assert of.record is not None
    found = _stake(of, of.record, changed_state(**changes))
    assert found.wants == 2
    return found.held, found.leaving, int(found.endless)


RUNS = replace(pod("p", gpus=2, gated=False), node_name="n0", phase="Running")


def test_a_gang_that_waits_holds_nothing() -> None:
    assert stake(gang(pod("p", gpus=2))) == (0, 0, 0)


def test_pods_that_hold_gpus_and_pods_that_are_planned_count_once_each() -> None:
    pods = (RUNS, pod("q", gpus=2), pod("r", gpus=2))
    made = gang(*pods, phase=Phase.RUNNING, **planned("uid-p", "uid-q"))
    assert stake(made, holders=("uid-p",), placed=True) == (4, 0, 0)


def test_a_pod_that_has_ended_and_a_place_without_a_pod_do_not_count() -> None:
    done = replace(RUNS, phase="Succeeded")
    made = gang(done, phase=Phase.RUNNING, **planned("uid-p", "uid-gone"))
    assert stake(made, holders=("uid-p",)) == (0, 0, 0)


def test_a_gang_whose_plan_is_being_written_counts_with_one_start() -> None:
    assert stake(gang(pod("p", gpus=2)), placed=True) == (2, 0, 0)


def test_what_is_being_given_up_is_counted_apart() -> None:
    made = gang(RUNS, phase=Phase.PREEMPTING)
    assert stake(made, holders=("uid-p",), leaving=("uid-p", "uid-gone"), placed=True) == (2, 2, 0)


@pytest.mark.parametrize(("kind", "endless"), [("Job", 0), ("Deployment", 1), ("StatefulSet", 1)])
def test_services_are_known_by_their_kind(kind: str, endless: int) -> None:
    made = gang(RUNS, phase=Phase.RUNNING)
    assert made.record is not None
    workload = made.record.spec.workload.model_copy(update={"kind": kind})
    spec = made.record.spec.model_copy(update={"workload": workload})
    made = Gang(made.key, replace(made.record, spec=spec), made.pods)
    assert stake(made, holders=("uid-p",), placed=True) == (2, 0, endless)


@pytest.mark.parametrize(("seconds", "exceeds"), [(20.0, False), (60.0, True)])
def test_a_plan_of_a_namespace_that_has_had_its_gpu_seconds_exceeds_its_quota(
    seconds: float, *, exceeds: bool
) -> None:
    """Two GPUs that another gang of the namespace has held for that time; 100 GPU-seconds are its
    own."""
    quota = Quota(namespace="default", gpus=2, gpu_seconds=100, borrow=False)
    made = gang(pod("p", gpus=2), phase=Phase.QUEUED, **planned("uid-p"))
    now = [1_800_000_000.0]
    ledger: Any = SimpleNamespace(bound_gpus=lambda: {"default": 2})
    state: Any = SimpleNamespace(placed=[], of={})
    gangs: Any = SimpleNamespace(by_key={made.key: made})
    accounts = Accounts(QueueConfig(quotas=(quota,)), gangs, ledger, state, lambda: now[0], None)
    writer: Any = None  # nothing is kept without a namespace of our own
    asyncio.run(accounts.step(writer))
    for _ in range(3):
        now[0] += seconds / 3
        asyncio.run(accounts.step(writer))
    assert bool(accounts.exceeding_plans()) is exceeds
