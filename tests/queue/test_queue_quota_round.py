"""A round within quotas, on a plan that is played: who may be tried, and who gives back GPUs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from queue_builders import pod

from scheduler_extender.cluster.ledger import Claim
from scheduler_extender.cluster.records import Key
from scheduler_extender.planning.questions import (
    Answer,
    GivesWay,
    Question,
    Start,
    Verdict,
    Victim,
)
from scheduler_extender.quotas.config import Quota
from scheduler_extender.quotas.grants import Stake, Turn
from scheduler_extender.quotas.round import plan_within
from tandem.policy.cluster import Snapshot
from tandem.policy.decision import Placement
from tandem.policy.job import Job
from tandem.policy.jobs import JobArrays
from tandem.reasons.causes import Cause, Reason
from tandem.reasons.words import clause


class Round:
    """Gangs in order as (namespace/name, GPUs), of which some run; and a cluster of `gpus` GPUs.

    `obeys`: the plan that is played places only what it was offered and what fits.
    """

    def __init__(
        self,
        *gangs: tuple[str, int],
        gpus: int,
        runs: Mapping[str, float] | None = None,
        quotas: tuple[Quota, ...] = (),
        asked: tuple[str, ...] = (),
        obeys: bool = True,
        may_go: bool = True,
        charge_gpu_s: float = 0.0,
    ) -> None:
        self.size = {key_of(name): count for name, count in gangs}
        self.running = [key_of(name) for name in runs or {}]
        self.gpus, self.obeys, self.asked = gpus, obeys, asked
        self.seen: list[Question] = []
        keys = list(self.size)
        jobs = {key: Job(id="/".join(key), gpus_per_pod=n) for key, n in self.size.items()}
        self.starts = {
            key: (Start(key, job, (pod(key[1]),)),)
            for key, job in jobs.items()
            if key not in self.running
        }
        arrays = JobArrays.of(list(jobs.values()))
        service = {key_of(name): gpu_s for name, gpu_s in (runs or {}).items()}
        victims = {key: Victim(service[key], charge_gpu_s) for key in self.running}
        self.question = Question(
            rank=lambda: keys,
            starts=self.starts,
            snapshot=Snapshot.from_rows([("n", "a", 80.0)]),
            eligible={0: np.ones(1, dtype=bool)},
            arrays=arrays,
            row_of={key: row for row, key in enumerate(keys)},
            claims={f"uid-{key[1]}": Claim("n", ("a",), jobs[key]) for key in self.running},
            victims=victims if may_go else {},
        )
        stakes = {
            key: Stake(held=n if key in self.running else 0, wants=n, endless=False)
            for key, n in self.size.items()
        }
        self.answer = plan_within(self.question, Turn(quotas, stakes), self.plan)

    def plan(self, question: Question) -> Answer:
        """Give away what is free, in order."""
        self.seen.append(question)
        answer = Answer(lambda _: (Cause(Reason.PLACES_TAKEN),))
        going = {key for key in self.running if f"uid-{key[1]}" in question.going}
        free = self.gpus - sum(self.size[key] for key in self.running if key not in going)
        offered = question.starts if self.obeys else self.starts
        for key in question.rank():
            for start in offered.get(key, ()):
                if self.size[key] <= free or not self.obeys:
                    free -= self.size[key]
                    answer.placed.append(Verdict(start, Placement(start.job.id, ())))
                else:
                    answer.waiting.add(start)
        if len(self.seen) == 1:
            answer.gives_way += [GivesWay(key_of(name), key_of(name)) for name in self.asked]
        return answer

    @property
    def placed(self) -> list[str]:
        return ["/".join(verdict.start.gpujob) for verdict in self.answer.placed]

    @property
    def waiting(self) -> dict[str, str]:
        return {
            "/".join(each.start.gpujob): " ".join(map(clause, each.causes))
            for each in self.answer.waiting
        }

    @property
    def gives_way(self) -> list[tuple[str, str]]:
        return [("/".join(each.victim), "/".join(each.to)) for each in self.answer.gives_way]


def key_of(name: str) -> Key:
    namespace, _, own = name.partition("/")
    return namespace, own


A, B = Quota(namespace="a", gpus=2), Quota(namespace="b", gpus=2)


def test_without_quotas_the_plan_is_asked_as_it_is() -> None:
    made = Round(("a/1", 1), ("a/2", 1), gpus=1)
    assert made.seen == [made.question]
    assert made.placed == ["a/1"]
    assert made.waiting == {"a/2": ""}


def test_who_keeps_within_a_share_is_placed_before_who_would_borrow() -> None:
    made = Round(("a/1", 1), ("a/2", 1), ("a/3", 1), ("b/1", 1), gpus=3, quotas=(A, B))
    assert made.placed == ["a/1", "a/2", "b/1"]
    assert list(made.waiting) == ["a/3"]


def test_who_is_over_a_cap_is_not_offered_and_its_status_says_why() -> None:
    capped = Quota(namespace="a", max_gpus=2)
    made = Round(("a/1", 2), ("a/2", 1), ("b/1", 1), gpus=4, quotas=(capped,))
    assert made.placed == ["a/1", "b/1"]
    assert "2 held, 1 more asked for, 2 allowed" in made.waiting["a/2"]
    assert key_of("a/2") not in made.seen[0].starts


def test_a_plan_that_gives_away_more_than_a_cap_is_corrected() -> None:
    capped = Quota(namespace="a", max_gpus=2)
    made = Round(("a/1", 2), ("a/2", 1), ("b/1", 1), gpus=4, quotas=(capped,), obeys=False)
    assert made.placed == ["a/1", "b/1"]
    assert "2 held, 1 more asked for, 2 allowed" in made.waiting["a/2"]


def test_one_that_fits_under_a_cap_starts_where_one_before_it_finds_no_place() -> None:
    """The first is as large as the cap and than the cluster; it keeps the others from nothing."""
    capped = Quota(namespace="a", max_gpus=3)
    made = Round(("a/large", 3), ("a/small", 1), gpus=2, quotas=(capped,))
    assert made.placed == ["a/small"]
    assert made.waiting == {"a/large": ""}


def test_the_last_of_those_that_borrow_gives_way_and_no_more_than_needed() -> None:
    runs = {"a/1": 0.0, "a/2": 0.0, "a/3": 0.0, "a/4": 0.0}
    gangs = [(name, 1) for name in runs]
    made = Round(*gangs, ("b/1", 1), gpus=4, runs=runs, quotas=(A, B))
    assert made.gives_way == [("a/4", "b/1")]
    assert made.waiting["b/1"] == ("other jobs give up GPUs for it (a job of another namespace)")
    assert [waiting.coming for waiting in made.answer.waiting] == [True]
    # The second plan was made as if the victim were gone, and asks no others to go.
    assert made.seen[-1].going == {"uid-4"}
    assert made.seen[-1].victims == {}


def test_two_claims_take_back_from_two() -> None:
    runs = {"a/1": 0.0, "a/2": 0.0, "a/3": 0.0, "a/4": 0.0}
    gangs = [(name, 1) for name in runs]
    made = Round(*gangs, ("b/1", 1), ("b/2", 1), gpus=4, runs=runs, quotas=(A, B))
    assert made.gives_way == [("a/4", "b/1"), ("a/3", "b/2")]


def test_one_that_was_asked_to_go_already_is_not_asked_again() -> None:
    runs = {"a/1": 0.0, "a/2": 0.0, "a/3": 0.0, "a/4": 0.0}
    gangs = [(name, 1) for name in runs]
    made = Round(*gangs, ("b/1", 1), gpus=4, runs=runs, quotas=(A, B), asked=("a/4",))
    assert made.gives_way == [("a/4", "a/4"), ("a/3", "b/1")]


def test_no_job_gives_way_to_one_that_would_not_fit_then() -> None:
    runs = {"a/1": 0.0, "a/2": 0.0, "a/3": 0.0}
    gangs = [(name, 1) for name in runs]
    # The claim is covered by the one that borrows, but the GPUs would be too few.
    large = Round(*gangs, ("b/1", 2), gpus=3, runs=runs, quotas=(A, B))
    assert large.gives_way == []
    assert large.waiting == {"b/1": ""}


def test_within_a_share_no_job_gives_way_and_who_borrows_takes_nothing_back() -> None:
    runs = {"a/1": 0.0, "a/2": 0.0}
    gangs = [(name, 1) for name in runs]
    assert Round(*gangs, ("b/1", 1), gpus=2, runs=runs, quotas=(A, B)).gives_way == []
    more = {**runs, "a/3": 0.0}
    made = Round(*((name, 1) for name in more), ("c/1", 1), gpus=3, runs=more, quotas=(A, B))
    assert made.gives_way == []


def test_those_that_may_not_be_preempted_do_not_give_way() -> None:
    runs = {"a/1": 0.0, "a/2": 0.0, "a/3": 0.0}
    gangs = [(name, 1) for name in runs]
    made = Round(*gangs, ("b/1", 1), gpus=3, runs=runs, quotas=(A, B), may_go=False)
    assert made.gives_way == []


@pytest.mark.parametrize(
    ("service_gpu_s", "gives_way"), [(500.0, True), (100.0, True), (99.0, False)]
)
def test_over_a_cap_a_lesser_one_of_the_same_namespace_gives_way_where_it_pays(
    service_gpu_s: float, gives_way: bool
) -> None:
    capped = Quota(namespace="a", max_gpus=1)
    made = Round(
        ("a/new", 1), ("a/old", 1), ("b/old", 1), gpus=3,
        runs={"a/old": service_gpu_s, "b/old": 9999.0}, quotas=(capped,), charge_gpu_s=100.0,
    )  # fmt: skip
    assert made.gives_way == ([("a/old", "a/new")] if gives_way else [])


def test_over_a_cap_one_that_is_before_in_the_order_does_not_give_way() -> None:
    capped = Quota(namespace="a", max_gpus=1)
    made = Round(
        ("a/old", 1), ("a/new", 1), gpus=3, runs={"a/old": 9999.0}, quotas=(capped,)
    )  # fmt: skip
    assert made.gives_way == []


def test_no_job_gives_way_where_that_does_not_make_room_under_the_cap() -> None:
    """One is before the claim in the order, so that only the other could go."""
    capped = Quota(namespace="a", max_gpus=3)
    runs = {"a/first": 9999.0, "a/last": 9999.0}
    made = Round(
        ("a/first", 2), ("a/new", 3), ("a/last", 1), gpus=9, runs=runs, quotas=(capped,)
    )  # fmt: skip
    assert made.gives_way == []
