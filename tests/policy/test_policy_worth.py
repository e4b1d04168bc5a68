"""The worth of service: worked by hand, and against a sum over samples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.policy.equations.worth import completion_rate


def test_without_samples_it_is_least_attained_service() -> None:
    assert completion_rate(np.array([500.0]), np.zeros(0), scale_gpu_s=500).tolist() == [0.001]


def slow(a: float, samples: list[float], scale: float, share: float, prior: float) -> float:
    quantum = share * (a + scale)
    beyond = [x for x in samples if x > a]
    heavy_tail = 1 / (a + scale)
    if not beyond:
        return heavy_tail
    ended = sum(x <= a + quantum for x in beyond)
    learned = ended / sum(min(x - a, quantum) for x in beyond)
    trust = len(beyond) / (len(beyond) + prior)
    return trust * learned + (1 - trust) * heavy_tail


@given(
    a=st.integers(0, 2000),
    samples=st.lists(st.integers(1, 4000), max_size=12),
    scale=st.integers(1, 1000),
)
def test_it_agrees_with_summing_over_the_samples(a: int, samples: list[int], scale: int) -> None:
    fast = completion_rate(
        np.array([float(a)]), np.sort(np.array(samples, dtype=float)), scale_gpu_s=scale
    )
    assert fast[0] == pytest.approx(slow(a, samples, scale, 0.5, 20.0))
