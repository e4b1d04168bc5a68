"""The worth of service: worked by hand, and against sums over samples and small steps of time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.policy.equations.worth import completion_rate, runs_in_bins, with_age, with_size
from tandem.policy.jobs import History
from tandem.policy.units import Floats, Ints

SCALE_S = 500.0


def rates(run_s: list[float] | Floats, finished: list[float] | Floats, **how: float) -> Floats:
    """The worth of jobs of one GPU after jobs of one GPU."""
    run, done = np.array(run_s, dtype=float), np.array(finished, dtype=float)
    scale_s = how.setdefault("scale_s", SCALE_S)
    runs = runs_in_bins(done, np.ones(len(done), int), scale_s)
    return completion_rate(run, np.ones(len(run), int), runs, **how)


def test_without_samples_it_is_the_hazard_of_the_heavy_tail_as_worked_in_the_docstring() -> None:
    expected = pytest.approx([np.log(1.5) / 375])
    assert completion_rate(np.array([500.0]), np.ones(1, int), None).tolist() == expected
    assert completion_rate(np.array([500.0]), np.ones(1, int), None, novel=0).tolist() == expected


def test_without_samples_a_job_is_worth_less_the_longer_it_has_run() -> None:
    rate = completion_rate(np.geomspace(1, 1e6, 40), np.ones(40, int), None)
    assert (np.diff(rate) <= 1e-12).all()
    assert rate[0] > 1000 * rate[-1]


def test_runs_are_counted_in_the_bins_of_the_docstring() -> None:
    runs = runs_in_bins(np.array([400.0]), np.array([2]), SCALE_S)
    assert runs.gpus.tolist() == [2]
    assert runs.ended[:3, 0].tolist() == [0, 1, 0]
    assert runs.exposure_s[:3, 0].tolist() == [250, 150, 0]


@pytest.mark.parametrize("count", [1, 2, 7, 8, 33, 100])
def test_jobs_that_are_alike_are_worth_exactly_the_same(count: int) -> None:
    """Ties are broken by the order of arrival, not by rounding."""
    for age_s in (0.0, 250.0, 777.7):
        alike = rates(np.full(count, age_s), [100.0, 3000.0])
        assert (alike == alike[0]).all()


def test_the_age_of_a_job_adds_to_its_worth_as_worked_in_the_docstring() -> None:
    rate, age_s = np.array([1 / 500, 1 / 500, 1 / 5000]), np.array([1500.0, 0.0, 1500.0])
    assert with_age(rate, age_s, 0.5).tolist() == pytest.approx([0.004, 0.002, 0.0002 * 1.3**0.5])
    assert with_age(rate, age_s, 0.0).tolist() == rate.tolist()


def test_of_jobs_that_are_worth_about_the_same_the_older_one_is_worth_more() -> None:
    """What the history says of 5,000 and 6,000 s is too uncertain to let one of them wait on."""
    rate = np.array([1 / 5000, 1 / 6000])
    older_last = with_age(rate, np.array([7000.0, 60_000.0]), 0.5)
    assert older_last[0] < older_last[1]


def test_a_job_that_has_waited_long_is_not_worth_more_than_a_new_one_that_may_be_short() -> None:
    """So new jobs are tried at once, and short ones end soon, though old jobs wait."""
    new, old = with_age(rates([0.0, 7200.0], []), np.array([0.0, 43_200.0]), 0.5)
    assert new > 2.5 * old


def test_the_part_of_the_gpus_adds_to_the_worth_of_a_gang_as_worked_in_the_docstring() -> None:
    rate, part = np.array([1 / 500, 1 / 500]), np.array([0.5, 1 / 32])
    assert with_size(rate, part, 4.0).tolist() == pytest.approx([0.004, 0.002 * (1 + 1 / 256)])
    assert with_size(rate, part, 0.0).tolist() == rate.tolist()


def test_after_a_clock_was_set_back_a_job_counts_as_new() -> None:
    finished = [100.0, 3000.0]
    assert rates([-1.0, 50.0], finished).tolist() == rates([0.0, 50.0], finished).tolist()
    assert with_age(np.array([0.01]), np.array([-500.0]), 0.5).tolist() == [0.01]


def test_what_is_learned_first_is_not_that_all_jobs_are_short() -> None:
    """Ten jobs ended after 100 seconds, and ninety have had 5,000 and go on."""
    finished, unfinished = np.full(10, 100.0), np.full(90, 5000.0)
    with_all = rates(np.append(0.0, unfinished), finished)[0]
    assert with_all < rates([0.0], finished)[0] / 5


def test_where_all_jobs_are_alike_one_that_has_run_is_worth_more_than_a_new_one() -> None:
    """So that jobs of one length run one after the other, and do not take turns."""
    alike = np.linspace(3600.0, 3700.0, 50)
    rate = rates([0.0, 600.0, 1800.0, 3000.0], alike, novel=0.0)
    assert (np.diff(rate) > 0).all()
    assert rate[0] == pytest.approx(1 / 3650, rel=0.3)


def test_a_new_job_is_tried_for_a_short_time_though_all_jobs_before_were_long() -> None:
    """Without that, short jobs that come after long ones wait, and how short is never learned."""
    long = np.linspace(60_000.0, 80_000.0, 200)
    known, tried = (rates([0.0, 1000.0, 30_000.0], long, novel=novel) for novel in (0.0, 1 / 32))
    assert known[0] < known[2]
    assert tried[0] > 1.5 * tried[2]
    assert tried[1] < tried[2]
    assert tried[2] == pytest.approx(known[2], rel=0.01)


def test_what_a_size_has_shown_counts_for_that_size_and_what_all_have_for_a_new_one() -> None:
    """Jobs of one GPU ran for eight hours, gangs of four for thirty."""
    finished = runs_in_bins(
        np.append(np.full(60, 28_800.0), np.linspace(90_000.0, 130_000.0, 40)),
        np.append(np.ones(60, int), np.full(40, 4)),
        SCALE_S,
    )
    ages, sizes = np.array([3600.0, 72_000.0] * 3), np.array([1, 1, 4, 4, 8, 8])
    one, _, gang, late_gang, other, late_other = completion_rate(ages, sizes, finished)
    assert late_gang > gang
    assert one > other > gang
    assert late_other == pytest.approx(late_gang, rel=0.3)


def test_gangs_teach_how_long_they_ran_and_not_what_they_took() -> None:
    runs = History(np.array([800.0, 300.0]), np.array([8, 1])).runs(SCALE_S)
    assert runs.exposure_s.sum(axis=0).tolist() == [300.0, 100.0]
    assert runs.gpus.tolist() == [1, 8]
    alone = History(np.array([800.0, 300.0])).runs(SCALE_S)
    assert alone.exposure_s.sum() == 1100.0


Times = list[tuple[int, int]]  # seconds and GPUs


def slow(a: tuple[float, int], finished: Times, unfinished: Times, scale: float) -> float:
    """The index by counting in each bin, and the time spent by small steps."""
    age, gpus = a
    longest = max(run for run, _ in [a, *finished, *unfinished])
    best, survived, spent, bin_, longer = 0.0, 1.0, 0.0, 0, 1.0

    def count(low: float, high: float, size: int | None) -> tuple[int, float]:
        done = [run for run, of in finished if size in (None, of)]
        all_runs = done + [run for run, of in unfinished if size in (None, of)]
        served = sum(min(max(run - low, 0.0), high - low) for run in all_runs)
        return sum(low < run <= high or (run == 0 == low) for run in done), served

    while True:
        low, high = scale * (1.5**bin_ - 1), scale * (1.5 ** (bin_ + 1) - 1)
        width = high - low
        ended, served = count(low, high, None)
        of_all = (ended + np.log(1.5)) / (served + width)
        ended, served = count(low, high, gpus)
        of_size = (ended + 3 * width * of_all) / (served + 3 * width)
        of_novel = 1.5**-bin_ / 32
        part = of_novel / (of_novel + 31 / 32 * longer)
        longer *= np.exp(-of_size * width)
        bin_ += 1
        if high > age:
            hazard = part * np.log(1.5) / width + (1 - part) * of_size
            step = (high - max(age, low)) / 400
            for _ in range(400):
                spent += survived * (1 - np.exp(-hazard * step)) / hazard
                survived *= np.exp(-hazard * step)
            best = max(best, (1 - survived) / spent)
        if low > 4 * (longest + scale):
            return best


TIMES = st.lists(st.tuples(st.integers(0, 4000), st.sampled_from([1, 2, 8])), max_size=12)


@given(
    a=st.tuples(st.integers(0, 2000), st.sampled_from([1, 2, 8])),
    finished=TIMES, unfinished=TIMES, scale=st.integers(50, 1000),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_it_agrees_with_counting_and_small_steps(
    a: tuple[int, int], finished: Times, unfinished: Times, scale: int
) -> None:
    def columns(times: Times) -> tuple[Floats, Ints]:
        return np.array([run for run, _ in times], float), np.array([of for _, of in times], int)

    run_s, gpus = columns([a, *unfinished])
    fast = completion_rate(
        run_s, gpus, runs_in_bins(*columns(finished), scale), scale_s=scale
    )  # fmt: skip
    assert fast[0] == pytest.approx(slow(a, finished, [a, *unfinished], scale), rel=0.02)
