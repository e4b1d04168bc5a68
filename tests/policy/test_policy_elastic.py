"""Which elastic jobs get smaller in place of jobs that would be stopped."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import pytest

from tandem.policy.board import Board
from tandem.policy.cluster import GpuArrays
from tandem.policy.elastic import behind, giving, last_first, smaller_instead
from tandem.policy.job import Job
from tandem.policy.jobs import JobArrays


@dataclass(frozen=True)
class Step:
    """A job that gives up some GPUs."""

    job: str
    gpus: int


def steps(job: str, most: int) -> list[Step]:
    return [Step(job, gpus) for gpus in range(1, most + 1)]


def test_those_behind_are_asked_from_the_end_of_the_order() -> None:
    rank = ["a", "to", "b", "c", "d"]
    assert behind("to", rank, {"d", "a", "b"}) == ["d", "b"]
    assert behind("elsewhere", rank, {"a"}) == []
    assert last_first(rank, ["unknown", "a", "c"]) == ["c", "a", "unknown"]


def test_the_first_gives_what_is_needed_and_the_next_the_rest() -> None:
    elastic = [steps("a", 3), steps("b", 5)]
    assert giving(elastic, 2) == [Step("a", 2)]
    assert giving(elastic, 5) == [Step("a", 3), Step("b", 2)]
    assert giving(elastic, None) == [Step("a", 3), Step("b", 5)]
    assert giving(elastic, 9) == []


def test_a_job_gives_up_a_step_that_is_enough_if_it_has_one() -> None:
    assert giving([[Step("a", 2), Step("a", 4)]], 3) == [Step("a", 4)]


@pytest.mark.parametrize(
    ("enough", "expected", "looks"),
    [(1, [1], [1]), (3, [3], [1, 3]), (7, [7], [1, 3, 7]), (8, [], [1, 3, 7])],
)
def test_the_least_that_makes_a_place_goes(
    enough: int, expected: list[int], looks: list[int]
) -> None:
    # Two of the three GPUs of the start are idle, but they may not be where it has a place.
    seen: list[int] = []

    def fits(chosen: list[Step]) -> bool:
        seen.append(sum(step.gpus for step in chosen))
        return seen[-1] >= enough

    found = smaller_instead([], ["a"], {"a": steps("a", 7)}, wants=3, idle=2, fits=fits)
    assert [step.gpus for step in found] == expected
    assert seen == looks


def test_those_that_would_be_stopped_are_asked_before_those_behind() -> None:
    of = {"a": steps("a", 2), "b": steps("b", 2)}
    found = smaller_instead(["fixed", "b"], ["a", "b"], of, wants=3, idle=0, fits=lambda _: True)
    assert found == [Step("b", 2), Step("a", 1)]
    assert smaller_instead(["fixed"], [], of, wants=1, idle=0, fits=lambda _: True) == []


# --- the board ----------------------------------------------------------------------------------


def board() -> Board:
    jobs = [Job(id="a", pods=2, checkpointable=True), Job(id="b", pods=1)]
    gpus = GpuArrays.empty(np.zeros(4, dtype=np.int64), np.full(4, 16.0))
    made = Board.of(jobs, JobArrays.of(jobs), gpus)
    made.start(0, np.array([0, 1]))
    made.take_actions()
    return made


def test_a_job_that_is_resized_has_as_many_pods_as_its_gpus_make() -> None:
    made = board()
    made.resize(0, np.array([0, 1, 3]))
    assert (made.jobs[0].pods, made.arrays.gpus[0], made.empty) == (3, 3, 1)
    assert made.gpus.jobs.tolist() == [1, 1, 0, 1]
    assert made.loads.gpus.tolist() == [3, 1]
    made.resize(0, np.array([3]))
    assert made.gpus.jobs.tolist() == [0, 0, 0, 1]
    assert made.take_actions() == []  # neither a start nor a stop


def test_what_is_tried_on_a_twin_changes_nothing_on_the_board() -> None:
    made = board()
    before = {f.name: getattr(made.gpus, f.name).copy() for f in fields(GpuArrays)}
    twin = made.twin()
    twin.resize(0, np.array([0]))
    twin.start(1, np.array([2]))
    twin.pinned.add(0)
    assert twin.gpus.jobs.tolist() == [1, 0, 1, 0]
    assert made.jobs[0].pods == 2
    assert made.arrays.gpus.tolist() == [2, 1]
    assert made.rows_of[0].tolist() == [0, 1]
    assert (made.residents_of, made.empty) == ([[0], [0], [], []], 2)
    assert (made.pinned, made.actions) == (set(), [])
    for name, column in before.items():
        assert np.array_equal(getattr(made.gpus, name), column), name
