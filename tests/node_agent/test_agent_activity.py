"""Active and idle phases from samples of utilisation, also where they are shorter than these."""

import json
from pathlib import Path

import numpy as np
import pytest

from node_agent.activity import fit_activity, period

#: As on real boards, see `StubGpu.window_us`.
WINDOW_S = 0.1676
#: What an H200's driver answered, with windows of 0.2 s, while courses of 20 s ran.
MEASURED = json.loads((Path(__file__).parent / "h200-samples.json").read_text())["series"]


def course(period_s, share, level=100.0, idle=0.0, seconds=60, seed=0, window_s=WINDOW_S):
    """Means over windows of a square wave, rounded to whole percents as the driver does."""
    ends = np.arange(1, seconds / window_s) * window_s
    phase = np.random.default_rng(seed).random() * period_s

    def active_until(t):
        t = t + phase
        return np.floor(t / period_s) * period_s * share + np.minimum(
            t % period_s, period_s * share
        )

    active = (active_until(ends) - active_until(ends - window_s)) / window_s
    return ends, np.round(idle + active * (level - idle))


@pytest.mark.parametrize("level", [100, 60, 40])
@pytest.mark.parametrize("share", [0.2, 0.3, 0.5, 0.7, 0.85])
@pytest.mark.parametrize("period_s", [0.5, 0.55, 0.6, 0.8, 1, 1.3, 2, 5, 20])
def test_active_to_idle_ratio(period_s, share, level):
    """Within 10 % of the script, whatever the utilisation in active phases is."""
    for seed in range(5):
        activity = fit_activity(*course(period_s, share, level, seed=seed))
        assert activity.source == "samples"
        assert activity.active_s / activity.idle_s == pytest.approx(share / (1 - share), rel=0.1)
        assert activity.active_s + activity.idle_s == pytest.approx(period_s, rel=0.05)


def test_what_cannot_be_known_is_said():
    """Windows in step with the period cut all phases at the same place: any level is possible."""
    times, percents = course(0.5, 0.3, 60, window_s=0.5 / 3, seed=2)
    activity = fit_activity(times, percents)
    assert activity.source == "utilisation", "the level is taken to be 100 %"
    assert activity.active_s / (activity.active_s + activity.idle_s) == pytest.approx(
        0.18, abs=0.01
    )


@pytest.mark.parametrize("samples", [40, 75, 95])
@pytest.mark.parametrize("series", MEASURED, ids=lambda series: f"{series['period_s']}s")
def test_the_samples_of_a_real_board(series, samples):
    """Two windows and a half are a cycle of the first: no phase has a full window of its own."""
    times, percents = (np.array(series[column], float) for column in ("times_s", "percents"))
    share = series["active_share"]
    for first in range(len(times) - samples):
        taken = slice(first, first + samples)
        activity = fit_activity(times[taken], percents[taken])
        assert activity.active_s / activity.idle_s == pytest.approx(share / (1 - share), rel=0.1)


@pytest.mark.parametrize("window_s", [1 / 6, 0.2, 0.25])
@pytest.mark.parametrize("period_s", [0.5, 0.55, 0.6, 0.8, 1, 1.3, 2, 5])
def test_a_level_that_does_not_show_is_not_read(period_s, window_s):
    """Where windows and cycles are in step no sample may be full; the highest is no level then."""
    for share in (0.2, 0.3, 0.5, 0.7, 0.85):
        for level in (100, 60, 40):
            for seed in range(5):
                times, percents = course(period_s, share, level, seed=seed, window_s=window_s)
                activity = fit_activity(times, percents)
                ratio = activity.active_s / activity.idle_s
                true = share if activity.source == "samples" else share * level / 100
                assert ratio == pytest.approx(true / (1 - true), rel=0.12)


def test_phases_that_no_sample_can_show():
    activity = fit_activity(*course(0.02, 0.5))
    assert activity.source == "utilisation"


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7])
def test_phases_that_vary(share):
    """Iterations of 0.7 s, give or take 3 %, with a level that wavers: still within 10 %."""
    rng = np.random.default_rng(5)
    starts = np.cumsum(0.7 * (1 + 0.03 * rng.standard_normal(100)))
    edges = np.stack([starts, starts + 0.7 * share]).T.ravel()
    active_s = np.concatenate([[0], np.cumsum(np.diff(edges) * (np.arange(199) % 2 == 0))])
    ends = np.arange(1, 60 / WINDOW_S) * WINDOW_S
    mean = np.diff(np.interp(ends, edges, active_s), prepend=0) / WINDOW_S
    percents = np.round(70 * mean * (1 + 0.01 * rng.standard_normal(len(ends))))
    activity = fit_activity(ends, percents)
    assert activity.source == "samples"
    assert activity.active_s / activity.idle_s == pytest.approx(share / (1 - share), rel=0.1)


def test_steady_use_has_no_phases():
    times, values = course(5, 0, idle=60)
    activity = fit_activity(times, values + np.random.default_rng(1).normal(0, 3, len(values)))
    assert activity.source == "utilisation"
    assert activity.iteration_s is None
    assert (activity.active_s, activity.idle_s) == pytest.approx((0.6, 0.4), abs=0.01)


@pytest.mark.parametrize("period_s", [0.55, 0.6, 1, 1.7, 4])
def test_period_by_autocorrelation(period_s):
    assert period(*course(period_s, 0.5)) == pytest.approx(period_s, rel=0.02)


def test_noise_has_no_period():
    values = np.random.default_rng(2).random(300)
    assert period(np.arange(300.0), values) is None
