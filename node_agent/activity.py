"""When a job runs kernels and when it does not, from a GPU's samples of utilisation: pure.

[Xonar] describes a job by the lengths of these phases. A sample is the mean over a window, 1/6 s
to 1 s long; phases may be shorter than that, cycles may not be shorter than two windows: such look
like longer ones (aliasing), or like steady use.
"""

from __future__ import annotations

# Paper: [Xonar] III-A, Fig. 3 | active and idle time, from samples of a GPU's utilisation | test:
#   tests/node_agent/test_agent_activity.py test_active_to_idle_ratio | live: yes | deviation: the
#   paper clocks operations in TensorFlow, and 1/6 s is its interval for memory; samples show
#   cycles of two windows and more, and `tandem.progress.profile` measures exact times
from dataclasses import dataclass

import numpy as np

from node_agent.windows import Floats, Indices

#: Fewer samples than this say nothing.
MIN_SAMPLES = 8
#: An iteration shows when the autocorrelation at its period is at least this.
MIN_AUTOCORRELATION = 0.6
#: A period with less than this share of its harmonics is a multiple of the real one.
MIN_FUNDAMENTAL = 0.2
DIVISORS = np.array([1.0, 2.0, 3.0])
#: A cycle may not be shorter than so many windows: shorter ones look like longer ones.
MIN_WINDOWS_CYCLE = 2.0
#: In cycles, or active phases, of fewer windows than this no full one differs from others.
MIN_WINDOWS_LEVEL, MIN_WINDOWS_ACTIVE = 2.6, 1.1
#: A sample is of no activity below this share of the highest ones (or one point of percent).
IDLE_SHARE = 0.02
#: A series whose low samples are above this share of the high ones is steady: without a period,
#: and with one.
STEADY_SHARE, STEADY_PERIODIC_SHARE = 0.5, 0.85
#: Samples above this share of the highest are of full activity, give or take noise.
PLATEAU_SHARE = 0.95
#: Samples between two of activity, and phases cut in two by a window's end, that are enough.
MIN_WHOLE, MIN_CUT = 3, 8
#: A level with a larger relative error than this is not reported.
MAX_LEVEL_ERROR = 0.03


@dataclass(frozen=True, slots=True)
class Activity:
    """Mean lengths of active and idle phases in seconds, and where their ratio was read from.

    `source` is `samples` where the level of activity shows in the series, and `utilisation` where
    it does not and is taken to be 100 %. `cuda-events` are those that the
    job has recorded itself. Together the lengths are one cycle, `iteration_s`; where no cycle shows
    that is None and the lengths are per second.
    """

    active_s: float
    idle_s: float
    source: str
    iteration_s: float | None = None


@dataclass(frozen=True, slots=True)
class Phases:
    """The active phases of a series as samples `first` to before `end`, whole ones only."""

    first: Indices
    end: Indices
    #: Percent above the idle level (n,), and how long each sample's window is (n,).
    busy: Floats
    window_s: Floats
    #: When each window ended (n,).
    times: Floats


def fit_activity(times: Floats, percents: Floats) -> Activity | None:
    """Return the active and idle phases in samples of utilisation (n,), which end at `times`.

    The share of active time is the mean of the series over the level that it has in activity. None
    where there are too few samples.
    """
    if len(percents) < MIN_SAMPLES:
        return None
    iteration_s = period(times, percents)
    bottom, top = np.quantile(percents, [0.02, 0.98])
    share, source = float(percents.mean()) / 100, "utilisation"
    if bottom > max(1.0, IDLE_SHARE * top):
        # Never wholly idle: idle phases are shorter than a window, so some samples are full.
        steady = STEADY_SHARE if iteration_s is None else STEADY_PERIODIC_SHARE
        plateau = _plateau(percents)
        if bottom < steady * top and _shows(times, percents, plateau, iteration_s):
            share, source = float(percents.mean()) / plateau, "samples"
    elif top > bottom:
        phases = _phases(times, percents - bottom, top - bottom)
        level = _level(phases, top - bottom)
        if level is not None:
            share, source = _share(phases, level), "samples"
            count = len(phases.first)
            if iteration_s is None and count > 1:
                iteration_s = float(np.diff(times[phases.first[[0, -1]]])[0]) / (count - 1)
    share = min(max(share, 0.0), 1.0)
    cycle_s = iteration_s or 1.0
    return Activity(share * cycle_s, (1 - share) * cycle_s, source, iteration_s)


def _phases(times: Floats, busy: Floats, top: float) -> Phases:
    active = busy > max(1.0, IDLE_SHARE * top)
    turns = np.diff(active.astype(int))
    first, end = 1 + np.flatnonzero(turns == 1), 1 + np.flatnonzero(turns == -1)
    end = end[1:] if active[0] else end
    window_s = np.diff(times, prepend=2 * times[0] - times[1])
    return Phases(first[: len(end)], end, busy, window_s, times)


def _shows(times: Floats, percents: Floats, level: float, iteration_s: float | None) -> bool:
    """Whether `level` is that of activity: with a cycle, active phases outlast a window then.

    Where they are shorter no window is full, and by its highest samples a phase takes one window.
    """
    if iteration_s is None:
        return True
    windows = iteration_s / float(np.median(np.diff(times)))
    active = windows * float(percents.mean()) / level
    return windows >= MIN_WINDOWS_LEVEL and active >= MIN_WINDOWS_ACTIVE


def _level(phases: Phases, top: float) -> float | None:
    """Return the utilisation in active phases, above that in idle ones; None if it does not show.

    A sample between two of activity is whole, unless an idle phase without a window of its own lies
    there: then others are higher, up to `top`. Where phases are too short for that, the ends of
    windows cut most of them in two: a phase of which the part x falls into the first window began
    at its end less x / level. All began at a multiple of the period, which gives the level.
    """
    inner = [phases.busy[a + 1 : b - 1] for a, b in zip(phases.first, phases.end, strict=True)]
    whole = np.concatenate(inner) if inner else np.zeros(0)
    if len(whole) >= MIN_WHOLE:
        level = _plateau(whole)
        return level if level >= PLATEAU_SHARE * top else None
    cut = phases.first[phases.end - phases.first == 2]
    if len(cut) < MIN_CUT:
        return None
    ends, part = phases.times[cut], phases.busy[cut] * phases.window_s[cut]
    starts = phases.times[phases.first]
    period_s = (starts[-1] - starts[0]) / (len(starts) - 1)
    cycle = np.round((ends - ends[0]) / period_s)
    terms = np.stack([np.ones(len(cut)), cycle, part], axis=1)
    answer, _, rank, _ = np.linalg.lstsq(terms, ends, rcond=None)
    if rank < 3 or answer[2] <= 0:
        return None
    # NVML rounds to whole percents; no residual can be smaller than that makes it.
    rounding_s = 0.3 * answer[2] * float(np.mean(phases.window_s))
    rest = ends - terms @ answer
    variance = max(float(rest @ rest) / (len(cut) - 3), rounding_s**2)
    error = float(np.sqrt(np.linalg.inv(terms.T @ terms)[2, 2] * variance) / answer[2])
    return min(1 / float(answer[2]), 100.0) if error <= MAX_LEVEL_ERROR else None


def _plateau(values: Floats) -> float:
    """Return the level that the highest of `values` have in common; at least a third are there."""
    quarter, most = np.quantile(values, [0.25, 0.75])
    if quarter >= (2 * PLATEAU_SHARE - 1) * most:  # they nearly all have
        return float(np.median(values))
    return float(np.median(values[values >= PLATEAU_SHARE * np.quantile(values, 5 / 6)]))


def _share(phases: Phases, level: float) -> float:
    """Return the share of active time, over whole cycles where there is one."""
    if len(phases.first) < 2:
        return float(phases.busy @ phases.window_s / (level * phases.window_s.sum()))
    first, last = phases.first[0], phases.first[-1]
    active_s = phases.busy * phases.window_s / level
    starts = [phases.times[i] - active_s[i] for i in (first, last)]
    return float(active_s[first:last].sum() / (starts[1] - starts[0]))


def period(times: Floats, values: Floats) -> float | None:
    """Return the period in seconds of a series (n,) by its autocorrelation, if it shows one.

    The first maximum at which the series resembles itself is taken. Where a period is no whole
    number of samples that may be a multiple of it, which the spectrum tells: it has nothing there.
    """
    n = len(values)
    centred = values - values.mean()
    power = float(centred @ centred)
    if n < 2 * MIN_SAMPLES or power == 0:
        return None
    spectrum = np.fft.rfft(centred, 2 * n)
    raw = np.fft.irfft(np.abs(spectrum) ** 2)[: n // 2]
    # Each lag has fewer pairs than the one before; without this, long periods look weaker.
    correlation = raw / power * (n / (n - np.arange(n // 2)))
    peaks = np.flatnonzero(
        (correlation[1:-1] >= correlation[:-2])
        & (correlation[1:-1] > correlation[2:])
        & (correlation[1:-1] >= MIN_AUTOCORRELATION)
    )
    if len(peaks) == 0:
        return None
    lag = _summit(correlation, int(peaks[0]) + 1)
    # What is off by a part of a sample after one period is off by that over many later on.
    cycles = 2
    while round(cycles * lag) + 2 < len(correlation):
        at = round(cycles * lag)
        if at < 1:  # the parabola of a series that is almost flat may lie anywhere
            break
        at += int(np.argmax(correlation[at - 1 : at + 2])) - 1
        if not 1 <= at < len(correlation) - 1 or correlation[at] < MIN_AUTOCORRELATION / 2:
            break
        lag = _summit(correlation, at) / cycles
        cycles *= 2
    window_s = float(np.median(np.diff(times)))
    found_s = lag * window_s
    divisors = DIVISORS[(DIVISORS == 1) | (found_s / DIVISORS >= MIN_WINDOWS_CYCLE * window_s)]
    waves = np.exp(-2j * np.pi * times / (found_s / divisors[:, None]))
    strengths = np.abs((waves * centred).sum(axis=1))
    if strengths[0] < MIN_FUNDAMENTAL * strengths.max():
        found_s /= divisors[np.argmax(strengths)]
    return float(found_s)


def _summit(values: Floats, at: int) -> float:
    """Return where the parabola through the value at an index and its neighbours has its summit."""
    before, here, after = values[at - 1 : at + 2]
    bend = before - 2 * here + after
    return float(at + (0.5 * (before - after) / bend if bend < 0 else 0.0))
