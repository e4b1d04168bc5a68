"""What is believed of pairs: the formula at once, the predictor's word when it has spoken."""

import asyncio

import numpy as np
import pytest
from queue_builders import load

from scheduler_extender.cluster.jobs import policy_job
from scheduler_extender.cluster.ledger import Claim
from scheduler_extender.cluster.slowdowns import CLASSES, KINDS_PER_NAMESPACE, Slowdowns
from scheduler_extender.cluster.state import ClusterState
from scheduler_extender.planning.remaining import expected_remaining_gpu_s
from scheduler_extender.predictions import Pricing
from tandem.contracts.prediction import InterferenceAnswer, PairSlowdown
from tandem.contracts.resources import Demand, Load, Source
from tandem.policy.equations.horus import slowdown_over_commit
from tandem.policy.job import Job


def graph_load(utilisation: float, step_s: float) -> Load:
    shares = {"iteration_s": step_s, "compute_share": 0.5, "bandwidth_share": 0.25}
    return load().model_copy(update={"utilisation_percent": utilisation, **shares})


def job(about: Load, model: str = "m") -> Job:
    return policy_job("default/j", Demand(gpus_per_pod=1, model=model), about)


class Predictor:
    """Says that every pair slows each other down by half and by a tenth, unless it is away."""

    def __init__(self) -> None:
        self.away = False
        self.calls: list[int] = []

    async def interference(self, one: Load, candidates: list[Load], gpu: object) -> object:
        self.calls.append(len(candidates))
        if self.away:
            return None
        pair = PairSlowdown(job_slowdown=0.5, partner_slowdown=0.1)
        return InterferenceAnswer(pairs=[pair] * len(candidates), source=Source.MODEL)


def test_without_the_predictor_the_quadratic_in_total_utilisation_holds() -> None:
    slowdowns = Slowdowns()
    light, heavy = load(), load().model_copy(update={"utilisation_percent": 90.0})
    one, other = slowdowns.of(job(light), light), slowdowns.of(job(heavy), heavy)
    expected = float(slowdown_over_commit(np.array([130.0]))[0]) - 1
    assert one.own_slowdown[other.interference_class] == pytest.approx(expected)
    assert other.own_slowdown[one.interference_class] == pytest.approx(expected)
    # Who is already there sees newcomers as well: the table is one.
    assert one.caused_slowdown[other.interference_class] == pytest.approx(expected)


def test_a_job_that_never_shares_and_one_of_a_known_class_are_left_as_they_are() -> None:
    slowdowns = Slowdowns()
    whole = job(load().model_copy(update={"memory_source": Source.WHOLE_GPU}))
    assert slowdowns.of(whole) is whole
    known = slowdowns.of(job(load()), load())
    assert slowdowns.of(known, load()) is known


def test_what_the_predictor_says_takes_effect_between_rounds_on_jobs_that_are_there() -> None:
    state, predictor = ClusterState(now_s=0.0), Predictor()
    first, second = graph_load(40, 0.1), graph_load(60, 0.2)
    one, other = state.slowdowns.of(job(first), first), state.slowdowns.of(job(second), second)
    pricing = Pricing(predictor, state.slowdowns, lambda: None, lambda: 100.0)
    before = float(other.own_slowdown[one.interference_class])
    asyncio.run(pricing.ask())
    assert other.own_slowdown[one.interference_class] == before
    assert predictor.calls == [1, 2]  # each class once, against all that are known by then
    state.settle_beliefs()
    assert other.own_slowdown[one.interference_class] == 0.5
    assert one.own_slowdown[other.interference_class] == 0.1
    assert not state.slowdowns.settle()


def test_a_pair_out_of_distribution_is_planned_with_its_upper_bound() -> None:
    class Unsure(Predictor):
        async def interference(self, one: Load, candidates: list[Load], gpu: object) -> object:
            pair = PairSlowdown(
                job_slowdown=0.5, partner_slowdown=0.1,
                job_slowdown_p95=1.5, partner_slowdown_p95=0.9, out_of_distribution=True,
            )  # fmt: skip
            return InterferenceAnswer(
                pairs=[pair] * len(candidates), source=Source.FORMULA, out_of_distribution=True
            )

    slowdowns = Slowdowns()
    first, second = graph_load(40, 0.1), graph_load(60, 0.2)
    one, other = slowdowns.of(job(first), first), slowdowns.of(job(second), second)
    asyncio.run(Pricing(Unsure(), slowdowns, lambda: None, lambda: 100.0).ask())
    slowdowns.settle()
    assert other.own_slowdown[one.interference_class] == 1.5
    assert one.own_slowdown[other.interference_class] == 0.9


def test_a_predictor_that_is_away_is_asked_again_later() -> None:
    slowdowns, predictor, now = Slowdowns(), Predictor(), [100.0]
    slowdowns.of(job(graph_load(40, 0.1)), graph_load(40, 0.1))
    pricing = Pricing(predictor, slowdowns, lambda: None, lambda: now[0])
    predictor.away = True
    asyncio.run(pricing.ask())
    asyncio.run(pricing.ask())
    assert predictor.calls == [1]
    predictor.away, now[0] = False, 131.0
    asyncio.run(pricing.ask())
    assert slowdowns.settle()


def test_when_there_is_no_more_room_the_utilisation_alone_counts() -> None:
    slowdowns = Slowdowns()
    for index in range(2 * CLASSES):
        about = graph_load(index % 101, 0.1 + index)
        slowdowns.of(job(about), about)
    assert len(slowdowns.models) <= CLASSES


def test_what_is_left_is_learned_from_those_that_had_more() -> None:
    finished = np.array([100.0] * 80 + [1100.0] * 20)
    assert expected_remaining_gpu_s(np.array([100.0]), finished).tolist() == [800.0]
    assert expected_remaining_gpu_s(np.array([0.0, 2000.0]), np.zeros(0)).tolist() == [500.0, 2500]


# --- room for new kinds -----------------------------------------------------------------------


def kind(number: int, namespace: str = "default") -> tuple[Job, Load]:
    about = graph_load(40, 0.1 + number / 1000)
    model = f"m{number}"
    return policy_job(f"{namespace}/j{number}", DEMAND, about, kind=model), about


DEMAND = Demand(gpus_per_pod=1, model="m")


def learned(slowdowns: Slowdowns, number: int) -> bool:
    """Learn of a new kind that it is slow next to kind 0; say whether its jobs believe that."""
    own = f"m{number}"
    for namespace in ("x", "y", "z"):
        slowdowns.pairs.enter(own, "m0", namespace, 0.3, float(number), measured=True)
    job, about = kind(number, "newcomer")
    slow, fast = slowdowns.of(job, about), slowdowns.of(*kind(0))
    slowdowns.settle()
    return float(slow.own_slowdown[fast.interference_class]) == pytest.approx(0.3)


def test_classes_that_no_job_uses_make_room_for_new_kinds_that_are_learned_of() -> None:
    slowdowns = Slowdowns()
    in_use = slowdowns.of(*kind(0)).interference_class
    for number in range(1, 3 * CLASSES):
        slowdowns.of(*kind(number, f"ns{number % 40}"))
        if slowdowns.crowded():
            assert in_use not in slowdowns.release({in_use})
    assert learned(slowdowns, 5000)
    assert len(slowdowns.models) <= CLASSES
    assert slowdowns.of(*kind(0)).interference_class == in_use


def test_one_namespace_takes_no_room_from_the_others() -> None:
    slowdowns = Slowdowns()
    slowdowns.of(*kind(0))
    held = {slowdowns.of(*kind(n, "flood")).interference_class for n in range(1, 2 * CLASSES)}
    # All of them are in use, so none is released; a new kind of another namespace has its class.
    slowdowns.release(held)
    assert slowdowns.kinds <= KINDS_PER_NAMESPACE + 1
    assert learned(slowdowns, 5000)


def test_a_class_that_is_used_again_knows_nothing_of_the_kind_before() -> None:
    slowdowns, before = Slowdowns(), Slowdowns()
    first, other = slowdowns.of(*kind(1)), slowdowns.of(*kind(2))
    asked = slowdowns.to_ask()
    assert asked is not None
    pair = PairSlowdown(job_slowdown=0.9, partner_slowdown=0.9)
    slowdowns.pairs.enter("m1", "m2", "default", 0.2, 0.0, measured=True)
    # Classes in a request that is under way are not released: its answer is about them.
    slowdowns._crowded = True
    assert not slowdowns.release(set()) & {first.interference_class}
    index, _, others, candidates = asked
    slowdowns.said(
        index, others, InterferenceAnswer(pairs=[pair] * len(candidates), source=Source.MODEL)
    )
    for number in range(3, 200):
        slowdowns.of(*kind(number))
    released = slowdowns.release({other.interference_class})
    assert first.interference_class in released
    slowdowns.settle()
    again = {slowdowns.of(*kind(300 + n)).interference_class: 300 + n for n in range(len(released))}
    assert first.interference_class in again
    number = again[first.interference_class]
    fresh = before.of(*kind(number)), before.of(*kind(2))
    expected = fresh[0].own_slowdown[fresh[1].interference_class]
    slow = slowdowns.of(*kind(number)).own_slowdown[other.interference_class]
    assert slow == pytest.approx(expected)


def test_what_a_namespace_learned_for_itself_holds_next_to_kinds_that_come_later() -> None:
    slowdowns = Slowdowns()
    slowdowns.pairs.enter("m1", "m2", "default", 0.3, 0.0, measured=False)
    first = slowdowns.of(*kind(1))
    later = slowdowns.of(*kind(2))
    slowdowns.settle()
    assert first.own_slowdown[later.interference_class] == pytest.approx(0.3)
    slowdowns.of(*kind(3))
    slowdowns.settle()
    other = slowdowns.of(*kind(3)).interference_class
    assert np.isfinite(first.own_slowdown[other])


def test_the_state_releases_only_what_no_claim_and_no_waiting_job_uses() -> None:
    state = ClusterState(now_s=0.0)
    waiting, _ = [state.slowdowns.of(*kind(n)) for n in (1, 2)]
    bound = state.slowdowns.of(*kind(3))
    state.reserve("uid", Claim("n0", ("GPU-0",), bound))
    for number in range(10, 10 + KINDS_PER_NAMESPACE):
        state.slowdowns.of(*kind(number))
    assert state.settle_beliefs([waiting])
    assert not state.slowdowns.crowded()
    kept = set(state.slowdowns._owner)
    assert {waiting.interference_class, bound.interference_class} <= kept
    assert not state.settle_beliefs([waiting])
