"""What is believed of pairs: the formula at once, the predictor's word when it has spoken."""

import asyncio

import numpy as np
import pytest
from queue_builders import load

from scheduler_extender.cluster.beliefs import CLASSES, Beliefs
from scheduler_extender.cluster.jobs import policy_job
from scheduler_extender.cluster.state import ClusterState
from scheduler_extender.planning.remaining import expected_remaining_gpu_s
from scheduler_extender.pricing import Pricing
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
    beliefs = Beliefs()
    light, heavy = load(), load().model_copy(update={"utilisation_percent": 90.0})
    one, other = beliefs.of(job(light), light), beliefs.of(job(heavy), heavy)
    expected = float(slowdown_over_commit(np.array([130.0]))[0]) - 1
    assert one.own_slowdown[other.interference_class] == pytest.approx(expected)
    assert other.own_slowdown[one.interference_class] == pytest.approx(expected)
    # Who is already there sees newcomers as well: the table is one.
    assert one.caused_slowdown[other.interference_class] == pytest.approx(expected)


def test_a_job_that_never_shares_and_one_of_a_known_class_are_left_as_they_are() -> None:
    beliefs = Beliefs()
    whole = job(load().model_copy(update={"memory_source": Source.WHOLE_GPU}))
    assert beliefs.of(whole) is whole
    known = beliefs.of(job(load()), load())
    assert beliefs.of(known, load()) is known


def test_what_the_predictor_says_takes_effect_between_rounds_on_whoever_is_there() -> None:
    state, predictor = ClusterState(now_s=0.0), Predictor()
    first, second = graph_load(40, 0.1), graph_load(60, 0.2)
    one, other = state.beliefs.of(job(first), first), state.beliefs.of(job(second), second)
    pricing = Pricing(predictor, state.beliefs, lambda: None, lambda: 100.0)
    before = float(other.own_slowdown[one.interference_class])
    asyncio.run(pricing.ask())
    assert other.own_slowdown[one.interference_class] == before
    assert predictor.calls == [1, 2]  # each class once, against all that are known by then
    state.settle_beliefs()
    assert other.own_slowdown[one.interference_class] == 0.5
    assert one.own_slowdown[other.interference_class] == 0.1
    assert not state.beliefs.settle()


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

    beliefs = Beliefs()
    first, second = graph_load(40, 0.1), graph_load(60, 0.2)
    one, other = beliefs.of(job(first), first), beliefs.of(job(second), second)
    asyncio.run(Pricing(Unsure(), beliefs, lambda: None, lambda: 100.0).ask())
    beliefs.settle()
    assert other.own_slowdown[one.interference_class] == 1.5
    assert one.own_slowdown[other.interference_class] == 0.9


def test_a_predictor_that_is_away_is_asked_again_later() -> None:
    beliefs, predictor, now = Beliefs(), Predictor(), [100.0]
    beliefs.of(job(graph_load(40, 0.1)), graph_load(40, 0.1))
    pricing = Pricing(predictor, beliefs, lambda: None, lambda: now[0])
    predictor.away = True
    asyncio.run(pricing.ask())
    asyncio.run(pricing.ask())
    assert predictor.calls == [1]
    predictor.away, now[0] = False, 131.0
    asyncio.run(pricing.ask())
    assert beliefs.settle()


def test_when_there_is_no_more_room_the_utilisation_alone_counts() -> None:
    beliefs = Beliefs()
    for index in range(2 * CLASSES):
        about = graph_load(index % 101, 0.1 + index)
        beliefs.of(job(about), about)
    assert len(beliefs.models) <= CLASSES


def test_what_is_left_is_learned_from_those_that_had_more() -> None:
    finished = np.array([100.0] * 80 + [1100.0] * 20)
    assert expected_remaining_gpu_s(np.array([100.0]), finished).tolist() == [800.0]
    assert expected_remaining_gpu_s(np.array([0.0, 2000.0]), np.zeros(0)).tolist() == [500.0, 2500]
