"""The clauses of the default profile, each in a scenario that it decides; and how often they do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError

from scheduler_extender.config import ExtenderConfig
from studies.profiles.ablation import CLAUSES, on_boards, profile_without
from tandem.policy.board import Board, Start
from tandem.policy.catalog import Profile, load_profile
from tandem.policy.cluster import GpuArrays
from tandem.policy.job import Job
from tandem.policy.jobs import JobArrays

A, B = 2, 3  # classes of interference after empty slot and unknown


def a_job(
    name: str, kind: int = A, *, own: float = 0.1, caused: float = 0.1, **more: object
) -> Job:
    """A job that is slowed down by `own` next to any other, and slows each down by `caused`."""
    return Job(
        id=name, interference_class=kind, checkpointable=True,
        own_slowdown=np.array([0.0, np.inf, own, own]),
        caused_slowdown=np.array([0.0, np.inf, caused, caused]),
        **({"memory_base_gib": 4.0, "gpu_utilisation": 40.0} | more),
    )  # fmt: skip


def a_board(jobs: list[Job], memory_gib: list[float], *, shares: int = 2) -> Board:
    gpus = GpuArrays.empty(np.arange(len(memory_gib)), np.array(memory_gib), shares=shares)
    return Board.of(jobs, JobArrays.of(jobs), gpus)


def starts(board: Board, profile: Profile) -> dict[str, tuple[int, ...]]:
    """Let a profile decide; return who starts where, in order."""
    profile.dispatch(board, np.arange(len(board.jobs)), profile.pipeline(), False)
    found = [action for action in board.take_actions() if isinstance(action, Start)]
    return {board.jobs[action.job].id: action.rows for action in found}


def bounded(bound: float) -> Profile:
    return ExtenderConfig(interference_bound=bound).profile


@pytest.mark.parametrize("harmed", ["resident", "newcomer"])
@pytest.mark.parametrize(("bound", "joins"), [(1.0, False), (2.0, True)])
def test_no_job_on_a_gpu_is_slowed_down_beyond_the_bound(
    harmed: str, bound: float, joins: bool
) -> None:
    slowed = {"caused": 1.2, "own": 0.0} if harmed == "resident" else {"own": 1.2, "caused": 0.0}
    board = a_board([a_job("there"), a_job("new", B, **slowed)], [16.0])
    board.place(0, np.array([0]))
    board.arrays.running[0] = True
    pipeline = bounded(bound).pipeline()
    assert pipeline.allowed(board.jobs[1], board.gpus).tolist() == [joins]
    assert (starts(board, bounded(bound)) == {"new": (0,)}) is joins


def test_a_profile_without_the_constraint_has_no_bound_to_set() -> None:
    with pytest.raises(ValidationError, match="tandem-guarded has no constraint interference"):
        ExtenderConfig(profile="tandem-guarded", interference_bound=0.5)


def test_of_empty_gpus_the_one_that_costs_least_is_taken_as_the_verbs_score_it() -> None:
    profile = load_profile("tandem")
    board = a_board([a_job("whole", exclusive=True)], [16.0, 32.0, 24.0])
    score = profile.pipeline().score(board.jobs[0], board.gpus)
    assert starts(board, profile) == {"whole": (int(np.argmax(score)),)}
    assert np.argmax(score) == 1


def test_next_to_partners_of_equal_worth_the_busier_gpu_is_left_alone() -> None:
    jobs = [
        a_job("busy", gpu_utilisation=90.0),
        a_job("idle", gpu_utilisation=20.0),
        a_job("new", B),
    ]
    board = a_board(jobs, [16.0, 16.0])
    for row in (0, 1):
        board.place(row, np.array([row]))
        board.arrays.running[row] = True
    profile = load_profile("tandem")
    assert starts(board, profile) == {"new": (1,)}


def test_the_cost_counts_the_memory_of_all_residents() -> None:
    two = a_board([a_job("new")], [32.0])
    gpus = two.gpus
    for name in ("a", "b"):
        gpus = gpus.with_job(a_job(name, memory_peak_extra_gib=4.0), [0])
    (cost,) = load_profile("horus").scorers
    with_one = cost(a_job("new"), gpus)
    # 4 + 4 twice, and 4 of the newcomer: 20 of 32 GiB at 120 % utilisation.
    ratio = 1.24431 - 0.00515 * 120 + 5e-5 * 120**2
    assert with_one == pytest.approx(1 / (1 + 0.5 * 20 / 32 + 0.5 * ratio))


def test_jobs_of_the_first_queue_go_first_and_none_is_preempted_for_a_later_queue() -> None:
    old = a_job("demoted", queued_at_s=-1e6)
    board = a_board([old, a_job("new")], [16.0], shares=1)
    board.arrays.queue[0] = 1
    profile = load_profile("tandem")
    assert starts(board, profile) == {"new": (0,)}
    assert board.rate[0] > board.rate[1], "worth alone would have chosen the other"
    ranked = profile.dispatch.in_order(board, np.array([0, 1]))
    assert [board.jobs[i].id for i in ranked.tolist()] == ["new", "demoted"]
    for queue, gives_way in ((0, False), (1, True)):
        board = a_board([a_job("there"), a_job("waits", queued_at_s=-1e7)], [16.0], shares=1)
        board.place(0, np.array([0]))
        board.arrays.running[0] = True
        board.arrays.queue[:] = queue, 1
        without_turns = profile.dispatch.model_copy(update={"turn_share": None})
        assert (
            bool(starts(board, profile.model_copy(update={"dispatch": without_turns}))) is gives_way
        )


def test_worth_inside_a_queue_needs_a_dispatch_that_says_it() -> None:
    values = load_profile("tandem").model_dump()
    with pytest.raises(ValidationError, match=r"order.within: worth"):
        Profile.model_validate(values | {"dispatch": {"kind": "preempt"}})


def test_in_a_queue_a_place_is_looked_at_again_when_the_service_has_doubled() -> None:
    order = load_profile("tandem").order
    ends = [order.next_level_gpu_s(service) for service in (0.0, 499.9, 500.0, 7e3, 8e3, 16e3)]
    assert ends == [500.0, 500.0, 1000.0, 8e3, 10e3, 32e3]
    for service in 500.0 * 2.0 ** np.arange(40):
        assert service < order.next_level_gpu_s(service) <= 2 * service


@pytest.mark.parametrize(("strict", "allowed"), [(False, True), (True, False)])
def test_a_strict_bound_holds_also_where_the_peaks_fit_together(
    strict: bool, allowed: bool
) -> None:
    (collision,) = (c for c in load_profile("tandem").constraints if c.kind == "memory_collision")
    bound = collision.model_copy(update={"strict": strict})
    peaks = {"memory_peak_extra_gib": 1.0, "peak_probability": 0.5}
    gpus = GpuArrays.empty(np.array([0]), np.array([80.0])).with_job(a_job("there", **peaks), [0])
    assert bound(a_job("new", **peaks), gpus).tolist() == [allowed]


@pytest.mark.long
def test_each_clause_decides_something_on_random_boards() -> None:
    named = ("horus cost", "interference", "collision", "queues")
    found = on_boards(200)
    assert {name: found[name] for name in named if found[name] < 0.01} == {}
    assert found.keys() == CLAUSES.keys()


def test_without_a_clause_the_rest_of_the_profile_is_as_it_is() -> None:
    whole = profile_without(None)
    assert whole == load_profile("tandem")
    assert (
        replace(profile_without("horus cost").pipeline(), scorers=whole.scorers) == whole.pipeline()
    )
