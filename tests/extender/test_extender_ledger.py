"""The ledger: who holds which GPU, and by which of several reasons."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from extender_builders import NOW, gpu_node

from scheduler_extender.cluster.ledger import Claim, Hold, Ledger
from scheduler_extender.cluster.state import ClusterState
from tandem.policy.job import Job

SMALL = Job(id="small", memory_base_gib=10, gpu_utilisation=20)
LARGE = Job(id="large", memory_base_gib=40, gpu_utilisation=60)
CLAIMS = {
    Hold.PLANNED: Claim("n0", ("a",), SMALL),
    Hold.RESERVED: Claim("n0", ("b",), SMALL),
    Hold.BOUND: Claim("n0", ("c",), SMALL),
}


@pytest.fixture
def state() -> ClusterState:
    made = ClusterState(now_s=NOW)
    made.upsert("gpunodes", gpu_node("n0", "a", "b", "c"))
    return made


@pytest.fixture
def ledger(state: ClusterState) -> Ledger:
    return state.ledger


def jobs(state: ClusterState) -> list[int]:
    return state.gpus.jobs[state.table.rows("n0")].tolist()


@pytest.mark.parametrize("order", list(itertools.permutations(Hold)))
def test_the_strongest_reason_counts_in_whatever_order_they_come(
    state: ClusterState, ledger: Ledger, order: tuple[Hold, ...]
) -> None:
    for hold in order:
        ledger.put("p", hold, CLAIMS[hold])
        ledger.check()
    assert ledger.held("p") == (Hold.BOUND, CLAIMS[Hold.BOUND])
    assert ledger.counting() == {"p": CLAIMS[Hold.BOUND]}
    assert ledger.counts() == {Hold.PLANNED: 0, Hold.RESERVED: 0, Hold.BOUND: 1}
    assert [list(ledger.holders("n0", gpu)) for gpu in "abc"] == [[], [], ["p"]]
    assert jobs(state) == [0, 0, 1]


@pytest.mark.parametrize("order", list(itertools.permutations(Hold)))
def test_when_a_reason_is_gone_the_strongest_that_is_left_counts(
    state: ClusterState, ledger: Ledger, order: tuple[Hold, ...]
) -> None:
    for hold, claim in CLAIMS.items():
        ledger.put("p", hold, claim)
    left = dict(CLAIMS)
    for hold in order:
        ledger.put("p", hold, None)
        del left[hold]
        ledger.check()
        strongest = max(left, default=None)
        assert ledger.held("p") == (None if strongest is None else (strongest, left[strongest]))
        assert jobs(state) == [int(hold is strongest) for hold in Hold]
        assert ledger.claim("p", hold) is None
    assert ledger.counting() == {}


def test_a_pod_with_several_reasons_for_one_gpu_counts_there_once(
    state: ClusterState, ledger: Ledger
) -> None:
    for hold in Hold:
        ledger.put("p", hold, Claim("n0", ("a",), SMALL))
    assert jobs(state) == [1, 0, 0]
    assert state.gpus.memory_base_gib[state.table.rows("n0")].tolist() == [10, 0, 0]
    ledger.put("p", Hold.BOUND, None)
    assert jobs(state) == [1, 0, 0]


def test_what_a_pod_holds_follows_a_change_of_its_claim(
    state: ClusterState, ledger: Ledger
) -> None:
    ledger.put("p", Hold.PLANNED, Claim("n0", ("a", "b"), SMALL))
    ledger.put("q", Hold.BOUND, Claim("n0", ("b",), LARGE))
    assert jobs(state) == [1, 2, 0]
    ledger.put("p", Hold.PLANNED, Claim("n0", ("b", "c"), SMALL))
    assert jobs(state) == [0, 2, 1]
    memory = state.gpus.memory_base_gib[state.table.rows("n0")].tolist()
    assert memory == [0, 50, 10]
    ledger.check()


def test_dropping_a_pod_takes_back_all_its_claims_and_no_other_s(
    state: ClusterState, ledger: Ledger
) -> None:
    for hold, claim in CLAIMS.items():
        ledger.put("p", hold, claim)
    ledger.put("q", Hold.PLANNED, Claim("n0", ("c",), LARGE))
    ledger.drop("p")
    assert ledger.held("p") is None
    assert jobs(state) == [0, 0, 1]
    ledger.drop("p")
    assert list(ledger.holders("n0", "c")) == ["q"]
    ledger.check()


def test_gpus_as_they_would_be_without_some_pods_leave_the_rest_as_they_are(
    state: ClusterState, ledger: Ledger
) -> None:
    ledger.put("p", Hold.BOUND, Claim("n0", ("a", "b"), SMALL))
    ledger.put("q", Hold.PLANNED, Claim("n0", ("b",), LARGE))
    rows = state.table.rows("n0")
    assert ledger.without(rows, frozenset({"p"})).jobs.tolist() == [0, 1, 0]
    assert ledger.without(rows, frozenset({"q"})).jobs.tolist() == [1, 1, 0]
    assert ledger.without(rows, frozenset({"p", "q"})).jobs.tolist() == [0, 0, 0]
    assert ledger.without(rows, frozenset()).jobs.tolist() == jobs(state) == [1, 2, 0]
    assert ledger.without(rows, frozenset({"p"})).memory_base_gib.tolist() == [0, 40, 0]


def test_a_claim_on_a_gpu_that_is_not_there_counts_when_it_appears(
    state: ClusterState, ledger: Ledger
) -> None:
    ledger.put("p", Hold.BOUND, Claim("n1", ("x",), LARGE))
    assert jobs(state) == [0, 0, 0]
    state.upsert("gpunodes", gpu_node("n1", "x"))
    assert state.gpus.jobs[state.table.rows("n1")].tolist() == [1]
    ledger.check()


def test_gpus_of_two_nodes_with_the_same_uuid_are_two_gpus(
    state: ClusterState, ledger: Ledger
) -> None:
    state.upsert("gpunodes", gpu_node("n1", "a"))
    ledger.put("p", Hold.BOUND, Claim("n1", ("a",), LARGE))
    assert jobs(state) == [0, 0, 0]
    assert list(ledger.holders("n1", "a")) == ["p"]
    assert list(ledger.holders("n0", "a")) == []


def test_a_job_keeps_its_handle_while_one_of_its_pods_holds_gpus(ledger: Ledger) -> None:
    ledger.put("p", Hold.BOUND, Claim("n0", ("a",), SMALL))
    handle = ledger._handles["small"]
    ledger.put("q", Hold.BOUND, Claim("n0", ("b",), SMALL))
    ledger.drop("p")
    assert ledger._handles["small"] == handle
    ledger.put("q", Hold.BOUND, Claim("n0", ("c",), SMALL))
    assert ledger._handles["small"] == handle
    ledger.drop("q")
    assert "small" not in ledger._handles
    ledger.put("r", Hold.BOUND, Claim("n0", ("a",), LARGE))
    assert ledger._handles["large"] != handle


def test_the_residents_of_a_gpu_are_the_jobs_that_hold_it(
    state: ClusterState, ledger: Ledger
) -> None:
    ledger.put("p", Hold.BOUND, Claim("n0", ("b",), SMALL))
    ledger.put("q", Hold.PLANNED, Claim("n0", ("b",), LARGE))
    row = state.table.rows("n0")[1]
    residents = state.gpus.residents[row]
    assert set(residents[residents >= 0].tolist()) == set(ledger._handles.values())
    assert set(ledger._handles) == {"small", "large"}
    assert np.isclose(state.gpus.memory_base_gib[row], 50)


def test_each_change_of_what_is_held_shows_in_the_rows_that_it_concerns(
    state: ClusterState, ledger: Ledger
) -> None:
    taken = state.snapshot()
    ledger.put("p", Hold.BOUND, Claim("n0", ("a",), SMALL))
    assert not state.unchanged(taken, [0])
    assert state.unchanged(taken, [1, 2])
    later = state.snapshot()
    ledger.put("p", Hold.BOUND, Claim("n0", ("a",), SMALL))
    assert state.unchanged(later, [0, 1, 2]), "nothing has changed"
    ledger.drop("p")
    assert not state.unchanged(later, [0])
