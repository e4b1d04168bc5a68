"""The worth of service: worked by hand, and against a sum over samples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.policy.equations.worth import completion_rate

NONE = np.zeros(0)


def test_without_samples_it_is_least_attained_service() -> None:
    assert completion_rate(np.array([500.0]), NONE, NONE, scale_gpu_s=500).tolist() == [0.001]


def test_completions_over_service_as_worked_in_the_docstring() -> None:
    rate = completion_rate(
        np.array([500.0]), np.array([800.0, 1200.0]), np.array([600.0]), prior_jobs=1.0
    )
    assert rate.tolist() == pytest.approx([2 / 1900])


def test_what_is_learned_first_is_not_that_all_jobs_are_short() -> None:
    """Ten jobs ended after 100 GPU-seconds, and ninety have had 5,000 and go on."""
    finished, unfinished = np.full(10, 100.0), np.full(90, 5000.0)
    of_new = np.zeros(1)
    with_all = completion_rate(of_new, finished, unfinished, scale_gpu_s=500)
    with_finished = completion_rate(of_new, finished, NONE, scale_gpu_s=500)
    assert with_all[0] < with_finished[0] / 10


def test_where_all_jobs_are_alike_one_that_has_run_is_worth_more_than_a_new_one() -> None:
    alike = np.linspace(3600.0, 3700.0, 50)
    new, near_its_end = completion_rate(np.array([0.0, 3000.0]), alike, NONE, scale_gpu_s=500)
    assert near_its_end > 2 * new


def slow(
    a: float, finished: list[float], unfinished: list[float], scale: float, share: float
) -> float:
    quantum, prior = share * (a + scale), 1.0
    ended = sum(a < x <= a + quantum for x in finished)
    served = sum(min(max(x - a, 0.0), quantum) for x in [*finished, *unfinished])
    return (ended + prior) / (served + prior * (a + scale))


SERVICES = st.lists(st.integers(1, 4000), max_size=12)


@given(a=st.integers(0, 2000), finished=SERVICES, unfinished=SERVICES, scale=st.integers(1, 1000))
def test_it_agrees_with_summing_over_the_samples(
    a: int, finished: list[int], unfinished: list[int], scale: int
) -> None:
    fast = completion_rate(
        np.array([float(a)]),
        np.sort(np.array(finished, dtype=float)),
        np.sort(np.array(unfinished, dtype=float)),
        scale_gpu_s=scale,
    )
    assert fast[0] == pytest.approx(slow(a, finished, unfinished, scale, 0.5))
