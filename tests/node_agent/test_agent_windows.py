"""What samples tell: memory levels, active and idle phases, periods."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node_agent.windows import (
    Ewma,
    Series,
    fit_activity,
    fit_memory,
    period,
    share_of_time,
    two_levels,
)

GIB = float(1 << 30)
WINDOW_S = 1 / 6


def memory_course(period_s, share, base, extra, seconds=60, interval_s=0.25, warm_up_s=5, seed=0):
    rng = np.random.default_rng(seed)
    times = np.cumsum(interval_s * rng.uniform(0.8, 1.2, int(seconds / interval_s)))
    phase = rng.random() * period_s
    values = base + extra * ((times + phase) % period_s < share * period_s)
    filling = times < warm_up_s
    values[filling] = np.linspace(0.02, 1, filling.sum()) * base
    return times, values


def utilisation_course(period_s, share, level=100, idle=0, seconds=60, seed=0):
    """Means over windows of a square wave, as the driver samples them."""
    ends = np.arange(1, seconds / WINDOW_S) * WINDOW_S
    phase = np.random.default_rng(seed).random() * period_s

    def active_until(t):
        t = t + phase
        return np.floor(t / period_s) * period_s * share + np.minimum(
            t % period_s, period_s * share
        )

    active = (active_until(ends) - active_until(ends - WINDOW_S)) / WINDOW_S
    return ends, np.round(idle + active * (level - idle))


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7])
@pytest.mark.parametrize("period_s", [4, 8, 12])
def test_memory_levels_after_a_minute(period_s, share):
    errors = []
    for seed in range(9):
        times, values = memory_course(period_s, share, 8 * GIB, 4 * GIB, seed=seed)
        fit = fit_memory(times, values)
        assert fit.base == pytest.approx(8 * GIB, rel=0.05)
        assert fit.extra == pytest.approx(4 * GIB, rel=0.05)
        errors.append(abs(fit.peak_probability / share - 1))
    assert np.median(errors) < 0.05


def test_memory_without_peaks_is_one_level():
    times, values = memory_course(5, 0, 8 * GIB, 0)
    fit = fit_memory(times, values + np.random.default_rng(1).normal(0, 1e7, len(values)))
    assert (fit.extra, fit.peak_probability) == (0, 0)
    assert fit.base == pytest.approx(8 * GIB, rel=0.01)


def test_too_few_samples_say_nothing():
    assert fit_memory(np.arange(3.0), np.ones(3)) is None
    assert fit_activity(np.arange(3.0), np.ones(3)) is None


def test_share_of_time_counts_whole_cycles_only():
    """Two cycles of 2 high and 8 low, cut in the middle of a third peak."""
    high = np.array([0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1], bool)
    assert share_of_time(np.arange(len(high), dtype=float), high) == pytest.approx(0.2)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
@pytest.mark.parametrize("period_s", [0.5, 0.7, 1, 2, 5, 20])
def test_active_to_idle_ratio(period_s, share):
    for seed in range(5):
        activity = fit_activity(*utilisation_course(period_s, share, seed=seed))
        assert activity.active_s / activity.idle_s == pytest.approx(share / (1 - share), rel=0.1)
        assert activity.active_s + activity.idle_s == pytest.approx(period_s, rel=0.05)


@pytest.mark.parametrize("level", [40, 90])
def test_active_level_below_full_is_taken_for_active_where_it_shows(level):
    activity = fit_activity(*utilisation_course(4, 0.5, level=level))
    assert activity.source == "samples"
    assert activity.active_s == pytest.approx(2, rel=0.1)


def test_steady_use_has_no_phases():
    times, values = utilisation_course(5, 0, idle=60)
    activity = fit_activity(times, values + np.random.default_rng(1).normal(0, 3, len(values)))
    assert activity.source == "utilisation"
    assert activity.iteration_s is None
    assert (activity.active_s, activity.idle_s) == pytest.approx((0.6, 0.4), abs=0.01)


@pytest.mark.parametrize("period_s", [1, 1.7, 4])
def test_period_by_autocorrelation(period_s):
    assert period(*utilisation_course(period_s, 0.5)) == pytest.approx(period_s, rel=0.03)


def test_noise_has_no_period():
    values = np.random.default_rng(2).random(300)
    assert period(np.arange(300.0), values) is None


@given(st.lists(st.floats(0, 100), min_size=2, max_size=40))
@settings(max_examples=100, deadline=None)
def test_two_levels_is_the_best_of_all_cuts(values):
    """The slow, obvious way: try every cut."""
    values = np.array(values)
    levels = two_levels(values, 1e-9)
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
