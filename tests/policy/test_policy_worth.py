"""The worth of service: worked by hand, and against sums over samples and small steps of time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.policy.equations.worth import completion_rate
from tandem.policy.jobs import History

NONE = np.zeros(0)


def test_without_samples_it_is_the_hazard_of_the_heavy_tail_as_worked_in_the_docstring() -> None:
    rate = completion_rate(np.array([500.0]), NONE, NONE, scale_s=500)
    assert rate.tolist() == pytest.approx([np.log(1.5) / 375])


def test_without_samples_a_job_is_worth_less_the_longer_it_has_run() -> None:
    rate = completion_rate(np.geomspace(1, 1e6, 40), NONE, NONE)
    assert (np.diff(rate) <= 1e-12).all()
    assert rate[0] > 1000 * rate[-1]


def test_what_is_learned_first_is_not_that_all_jobs_are_short() -> None:
    """Ten jobs ended after 100 seconds, and ninety have had 5,000 and go on."""
    finished, unfinished = np.full(10, 100.0), np.full(90, 5000.0)
    of_new = np.zeros(1)
    with_all = completion_rate(of_new, finished, unfinished)
    with_finished = completion_rate(of_new, finished, NONE)
    assert with_all[0] < with_finished[0] / 5


def test_where_all_jobs_are_alike_one_that_has_run_is_worth_more_than_a_new_one() -> None:
    """So that jobs of one length run one after the other, and do not take turns."""
    alike = np.linspace(3600.0, 3700.0, 50)
    at = np.array([0.0, 600.0, 1800.0, 3000.0])
    rate = completion_rate(at, alike, NONE)
    assert (np.diff(rate) > 0).all()
    assert rate[0] == pytest.approx(1 / 3650, rel=0.3)


def test_gangs_teach_how_long_they_ran_and_not_what_they_took() -> None:
    history = History(np.array([800.0, 300.0]), np.array([8, 1]))
    assert history.sorted_run_s.tolist() == [100.0, 300.0]
    assert History(np.array([800.0, 300.0])).sorted_run_s.tolist() == [300.0, 800.0]


def slow(a: float, finished: list[float], unfinished: list[float], scale: float) -> float:
    """The index by counting in each bin, and the time spent by small steps."""
    longest = max([a, *finished, *unfinished])
    best, survived, spent, bin_ = 0.0, 1.0, 0.0, 0
    while True:
        low, high = scale * (1.5**bin_ - 1), scale * (1.5 ** (bin_ + 1) - 1)
        bin_ += 1
        if high > a:
            ended = sum(low < x <= high for x in finished)
            served = sum(min(max(x - low, 0.0), high - low) for x in [*finished, *unfinished])
            hazard = (ended + np.log(1.5)) / (served + high - low)
            step = (high - max(a, low)) / 400
            for _ in range(400):
                spent += survived * (1 - np.exp(-hazard * step)) / hazard
                survived *= np.exp(-hazard * step)
            best = max(best, (1 - survived) / spent)
        if low > 4 * (longest + scale):
            return best


TIMES = st.lists(st.integers(1, 4000), max_size=12)


@given(a=st.integers(0, 2000), finished=TIMES, unfinished=TIMES, scale=st.integers(50, 1000))
@settings(max_examples=40, deadline=None)
def test_it_agrees_with_counting_and_small_steps(
    a: int, finished: list[int], unfinished: list[int], scale: int
) -> None:
    fast = completion_rate(
        np.array([float(a)]),
        np.sort(np.array(finished, dtype=float)),
        np.sort(np.array(unfinished, dtype=float)),
        scale_s=scale,
    )
    assert fast[0] == pytest.approx(slow(a, finished, unfinished, scale), rel=0.02)
