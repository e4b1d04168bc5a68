"""What memory does over time: levels, peaks, and the series that they are read from."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node_agent.activity import fit_activity
from node_agent.windows import (
    ChangeSeries,
    Ewma,
    Series,
    fit_memory,
    share_of_time,
    two_levels,
)

GIB = float(1 << 30)


def peaks(period_s, share, base, extra, *, seconds=61.0, interval_s=0.1, warm_up_s=5.0, seed=0):
    """Memory that fills up and then has peaks at a fixed period, read as the agent reads it."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(interval_s * rng.uniform(0.8, 1.2, round(1.3 * seconds / interval_s)))
    times = times[times < seconds]
    phase = rng.random() * period_s
    values = base + extra * ((times + phase) % period_s < share * period_s)
    filling = times < warm_up_s
    values[filling] = np.linspace(0.02, 1, filling.sum()) * base
    return changes(times, values)


def changes(times, values):
    series = ChangeSeries(300, 3000)
    before = times[0]
    for now, value in zip(times, values, strict=True):
        series.take(before, now, value)
        before = now
    return series.changes(times[-1])


@pytest.mark.parametrize("share", [0.15, 0.3, 0.5, 0.7, 0.85])
@pytest.mark.parametrize("period_s", [2, 3.3, 6, 10, 19])
def test_memory_levels_after_a_minute(period_s, share):
    """Within 5 % of the script, every time."""
    for seed in range(20):
        fit = fit_memory(peaks(period_s, share, 8 * GIB, 4 * GIB, seed=seed))
        assert fit.base == pytest.approx(8 * GIB, rel=0.05)
        assert fit.extra == pytest.approx(4 * GIB, rel=0.05)
        assert fit.peak_probability == pytest.approx(share, rel=0.05), seed


def test_peaks_without_a_fixed_period():
    """Their share of the time is as good as the samples: many peaks, 5 %."""
    rng = np.random.default_rng(3)
    times = np.cumsum(0.1 * rng.uniform(0.8, 1.2, 2900))
    ends = np.cumsum(np.stack([rng.uniform(1, 5, 80), rng.uniform(1, 3, 80)]).T.ravel())
    high = np.searchsorted(ends, times) % 2 == 1
    fit = fit_memory(changes(times, 8 * GIB + 4 * GIB * high))
    assert fit.peak_probability == pytest.approx(high.mean(), rel=0.05)


def test_memory_without_peaks_is_one_level():
    noise = np.random.default_rng(1).normal(0, 1e7, 600)
    fit = fit_memory(changes(np.arange(600) / 10, 8 * GIB + noise))
    assert (fit.extra, fit.peak_probability) == (0, 0)
    assert fit.base == pytest.approx(8 * GIB, rel=0.01)


def test_memory_that_never_changes():
    assert fit_memory(changes(np.arange(600) / 10, np.full(600, 8 * GIB))).base == 8 * GIB


def test_too_few_samples_say_nothing():
    assert fit_memory(changes(np.arange(3.0) / 10, np.ones(3))) is None
    assert fit_memory(ChangeSeries(300, 10).changes(5.0)) is None
    assert fit_activity(np.arange(3.0), np.ones(3)) is None


def test_share_of_time_counts_whole_cycles_only():
    """Two cycles of 2 high and 8 low, cut in the middle of a third peak."""
    high = np.array([0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1], float)
    found = changes(np.arange(len(high), dtype=float), high)
    assert share_of_time(found, found.values > 0.5) == pytest.approx(0.2, abs=0.001)


def test_changes_leave_out_what_is_older_than_the_window():
    series = ChangeSeries(10, 100)
    for now, value in [(0, 1), (1, 2), (15, 3), (16, 3)]:
        series.take(now - 0.1, now, value)
    found = series.changes(20)
    assert found.values.tolist() == [2, 3]
    assert found.durations.tolist() == pytest.approx([4.95, 5.05])


@given(st.lists(st.floats(0, 100), min_size=2, max_size=40))
@settings(max_examples=100)
def test_two_levels_is_the_best_of_all_cuts(values):
    """The slow, obvious way: try every cut."""
    values = np.array(values)
    levels = two_levels(values, np.ones(len(values)), 1e-9)
    if levels is None:
        return
    high = values > levels.threshold
    within = values[high].var() * high.mean() + values[~high].var() * (~high).mean()
    for cut in np.unique(values)[1:]:
        above = values >= cut
        other = values[above].var() * above.mean() + values[~above].var() * (~above).mean()
        assert within <= other + 1e-6 * values.var()
    assert levels.share_high == pytest.approx(high.mean())


def test_series_keeps_the_latest_in_order():
    series = Series(3)
    for i in range(5):
        series.append(float(i), float(10 * i))
    times, values = series.columns()
    assert (times.tolist(), values.tolist()) == ([2, 3, 4], [20, 30, 40])
    assert len(series) == 3
    series.clear()
    assert len(series.columns()[0]) == 0


def test_ewma_halves_what_it_knew_each_half_life():
    average = Ewma(half_life_s=10)
    average.update(0, 100)
    average.update(10, 0)
    assert average.value == pytest.approx(50)
    average.update(30, 0)
    assert average.value == pytest.approx(12.5)
