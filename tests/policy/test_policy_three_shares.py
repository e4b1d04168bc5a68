"""Three and more jobs on one GPU: every resident counts, not only the first."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.policy.adjust.learn import Learn
from tandem.policy.board import Board, Start
from tandem.policy.catalog import Profile, load_profile
from tandem.policy.cluster import GpuArrays
from tandem.policy.dispatch.valuation import Valuation
from tandem.policy.job import Job
from tandem.policy.jobs import JobArrays
from tandem.policy.units import Floats

KNOWN = 2  # classes before the first model


def table(pairs: dict[tuple[int, int], float], models: int) -> Floats:
    """Slowdown of each model next to each, 0.05 where `pairs` says nothing."""
    found = np.full((models + KNOWN, models + KNOWN), np.inf)
    found[KNOWN:, KNOWN:] = 0.05
    found[:, 0] = found[0, :] = 0.0
    for (own, other), slowdown in pairs.items():
        found[own + KNOWN, other + KNOWN] = slowdown
    return found


def jobs_of(models: list[int], slowdown: Floats, gpus: list[int] | None = None) -> list[Job]:
    return [
        Job(
            id=f"j{i}", pods=gpus[i] if gpus else 1, memory_base_gib=1.0, gpu_utilisation=30.0,
            checkpointable=True, queued_at_s=float(i), interference_class=model + KNOWN,
            own_slowdown=slowdown[model + KNOWN], caused_slowdown=slowdown[:, model + KNOWN],
        )
        for i, model in enumerate(models)
    ]  # fmt: skip


def board_of(jobs: list[Job], rows: dict[int, list[int]], gpus: int, shares: int = 3) -> Board:
    """A board on which `rows` run, in the order of their numbers."""
    cluster = GpuArrays.empty(np.arange(gpus) // 4, np.full(gpus, 80.0), shares=shares)
    board = Board.of(jobs, JobArrays.of(jobs), cluster)
    for job, at in rows.items():
        board.place(job, np.array(at))
        board.arrays.running[job] = True
        board.arrays.speed[job] = 1.0
    return board


def starts(board: Board, profile: Profile) -> dict[int, tuple[int, ...]]:
    profile.dispatch(board, np.arange(len(board.jobs)), profile.pipeline(), False)
    return {a.job: a.rows for a in board.take_actions() if isinstance(a, Start)}


@pytest.mark.parametrize("profile", ["tandem", "tandem-guarded"])
def test_a_job_does_not_join_a_gpu_whose_second_resident_it_slows_down_tenfold(
    profile: str,
) -> None:
    # Model 2 runs well next to model 0 and at a tenth of its speed next to model 1.
    slowdown = table({(1, 2): 9.0, (2, 1): 9.0}, 3)
    board = board_of(jobs_of([0, 1, 2], slowdown), {0: [0], 1: [0]}, gpus=1)
    assert starts(board, load_profile(profile)) == {}


def test_each_of_three_keeps_the_promised_speed() -> None:
    # Each pair costs 0.3, which the bar of 0.73 allows; the third would make it 0.6 for each.
    slowdown = table({(a, b): 0.3 for a in range(3) for b in range(3)}, 3)
    board = board_of(jobs_of([0, 1, 2], slowdown), {0: [0]}, gpus=1)
    assert starts(board, load_profile("tandem-guarded")) == {1: (0,)}


def test_a_third_joins_where_all_three_get_along() -> None:
    board = board_of(jobs_of([0, 1, 2], table({}, 3)), {0: [0], 1: [0]}, gpus=1)
    assert starts(board, load_profile("tandem-guarded")) == {2: (0,)}


def test_a_slow_job_does_not_move_to_the_free_share_of_its_own_gpu() -> None:
    # GPU 0 holds two that slow each other down and has a third share; GPU 1 is empty.
    slowdown = table({(0, 1): 2.0, (1, 0): 2.0}, 2)
    board = board_of(jobs_of([0, 1], slowdown), {0: [0], 1: [0]}, gpus=2)
    moved = starts(board, load_profile("tandem"))
    assert list(moved.values()) == [(1,)]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), shares=st.integers(2, 4))
def test_the_gain_of_a_place_is_what_all_there_yield_more(seed: int, shares: int) -> None:
    """Against trial: place the job, add up what all yield, and take it off again."""
    rng = np.random.default_rng(seed)
    models, gpus = 4, 3
    slowdown = table({}, models)
    slowdown[KNOWN:, KNOWN:] = rng.choice([0.05, 0.4, 2.0, 9.0, np.inf], (models, models))
    count = int(rng.integers(1, gpus * shares))
    jobs = jobs_of(rng.integers(models, size=count + 1).tolist(), slowdown)
    places = rng.permutation(np.repeat(np.arange(gpus), shares))[:count]
    board = board_of(jobs, {i: [int(at)] for i, at in enumerate(places)}, gpus, shares)
    rate = rng.uniform(0.1, 1.0, len(jobs))
    pipeline = load_profile("tandem").pipeline()
    bar = float(rng.choice([0.0, 0.5, 0.73]))
    valuation = Valuation(board, rate, pipeline, shares=True, min_speed=bar)

    def speeds() -> dict[int, float]:
        found = {}
        for job, (row,) in board.rows_of.items():
            others = [o for o in board.residents_of[row] if o != job]
            own = slowdown[jobs[job].interference_class]
            found[job] = 1 / (1 + sum(own[jobs[o].interference_class] for o in others))
        return found

    newcomer = count
    before = sum(rate[job] * speed for job, speed in speeds().items())
    rows = valuation.open_rows()
    assert rows.tolist() == [r for r in range(gpus) if len(board.residents_of[r]) < shares]
    offers = valuation.offers(np.array([newcomer]), rows)
    for at, row in enumerate(rows.tolist()):
        fits = bool(pipeline.allowed(jobs[newcomer], board.gpus)[row])
        board.place(newcomer, np.array([row]))
        after = speeds()
        alone = len(board.residents_of[row]) == 1
        keeps = alone or all(after[job] >= bar for job in board.residents_of[row])
        moves = after[newcomer] > 0
        gain = sum(rate[job] * speed for job, speed in after.items()) - before
        board.remove(newcomer)
        assert offers.allowed[0, at] == (fits and keeps and moves)
        found = rate[newcomer] * offers.speed[0, at] - offers.loss[0, at]
        assert found == pytest.approx(gain)


def test_a_gang_is_as_slow_as_its_slowest_worker_among_all_that_share_with_it() -> None:
    slowdown = table({(0, 1): 0.2, (0, 2): 0.3, (0, 3): 0.4}, 4)
    jobs = jobs_of([0, 1, 2, 3], slowdown, gpus=[2, 1, 1, 1])
    board = board_of(jobs, {0: [0, 1], 1: [0], 2: [0], 3: [1]}, gpus=2)
    valuation = Valuation(
        board, np.ones(4), load_profile("tandem").pipeline(), shares=True, min_speed=0.0
    )
    assert valuation.speed(np.array([0]))[0] == pytest.approx(1 / 1.5)
    assert valuation.speed_without(0, 2) == pytest.approx(1 / 1.4)


def test_what_three_measure_together_is_shared_out_over_the_pairs() -> None:
    slowdown = table({(0, 1): 0.1, (0, 2): 0.3}, 3)
    jobs = [replace(job) for job in jobs_of([0, 1, 2], slowdown)]
    board = board_of(jobs, {0: [0], 1: [0], 2: [0]}, gpus=1)
    board.arrays.speed[0] = 1 / 1.8  # twice the slowdown that was predicted
    board.arrays.speed[[1, 2]] = 1 / 1.1  # as predicted
    Learn(weight_of_past=0.0)(board, load_profile("tandem").pipeline())
    assert slowdown[KNOWN, KNOWN + 1] == pytest.approx(0.2)
    assert slowdown[KNOWN, KNOWN + 2] == pytest.approx(0.6)
    for one, other in combinations((1, 2), 2):
        assert slowdown[KNOWN + one, KNOWN + other] == pytest.approx(0.05)
    # The sums on the GPU follow, so that the next choice is made by them.
    assert board.gpus.resident_slowdown[0].tolist() == pytest.approx([0.8, 0.1, 0.1])
