"""The memory limit of a job that may share its GPU."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.contracts.limits import MARGIN, memory_fraction, parse_memory_fraction


def test_the_worked_number() -> None:
    assert memory_fraction(10, 80) == "0.1375"


@given(st.floats(0.001, 2000), st.floats(0.1, 2000))
def test_a_limit_is_at_least_the_peak_with_its_margin_or_all_of_the_gpu(
    peak_gib: float, total_gib: float
) -> None:
    fraction = parse_memory_fraction(memory_fraction(peak_gib, total_gib))
    assert fraction is not None
    wanted = min(1.0, peak_gib * (1 + MARGIN) / total_gib)
    assert wanted - 1e-6 <= fraction <= min(1.0, wanted + 1e-4 + 1e-6)


@pytest.mark.parametrize(("peak_gib", "total_gib"), [(0, 80), (10, 0), (float("nan"), 80)])
def test_there_is_no_limit_where_a_size_is_not_known(peak_gib: float, total_gib: float) -> None:
    assert memory_fraction(peak_gib, total_gib) == ""


@pytest.mark.parametrize("text", ["", "x", "0", "-1", "1.01", "nan", "inf", "1e400"])
def test_what_is_no_fraction_is_no_limit(text: str) -> None:
    assert parse_memory_fraction(text) is None
