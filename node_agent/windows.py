"""From samples to figures: pure functions on series, and the bounded series they work on.

A job's memory is described as [OJPP] does, by a level outside peaks, what a peak adds, and the
chance of being in one; its use of the GPU as [Xonar] does, by the lengths of the phases in which
it runs kernels and in which it does not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

#: Fewer samples than this say nothing about levels.
MIN_SAMPLES = 8
#: Share of the variance that two levels must explain. One level with Gaussian noise, cut at its
#: mean, explains 2/pi = 0.64, a uniform spread 0.75.
MIN_EXPLAINED = 0.85
#: Two memory levels closer than this (share of the lower one) are one.
MIN_MEMORY_STEP = 0.01
#: A GPU goes idle between its active phases when its low readings are below this share of the high.
MAX_IDLE_SHARE = 0.5
#: Warm-up ends when memory first reaches this share of the steady lower level.
WARM_SHARE = 0.95
#: An iteration shows when the autocorrelation at its period is at least this.
MIN_AUTOCORRELATION = 0.6


class Series:
    """The last `capacity` rows of (time in seconds, value); memory does not grow."""

    def __init__(self, capacity: int) -> None:
        self._rows: Floats = np.zeros((capacity, 2))
        self._count = 0

    def __len__(self) -> int:
        return min(self._count, len(self._rows))

    def append(self, time_s: float, value: float) -> None:
        """Add a row; the oldest one goes when the series is full."""
        self._rows[self._count % len(self._rows)] = time_s, value
        self._count += 1

    def clear(self) -> None:
        """Forget all rows."""
        self._count = 0

    def columns(self) -> tuple[Floats, Floats]:
        """Return (times, values), oldest first."""
        if self._count <= len(self._rows):
            rows = self._rows[: self._count]
        else:
            rows = np.roll(self._rows, -(self._count % len(self._rows)), axis=0)
        return rows[:, 0], rows[:, 1]


@dataclass(frozen=True, slots=True)
class Levels:
    """Two levels of a series: the means below and above `threshold`, and the share above."""

    low: float
    high: float
    share_high: float
    threshold: float


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """[OJPP] <gamma, delta, p>: bytes outside peaks, bytes that a peak adds, chance of a peak."""

    base: float
    extra: float
    peak_probability: float


@dataclass(frozen=True, slots=True)
class Activity:
    """Mean lengths of active and idle phases in seconds, and where their ratio was read from.

    `source` is `samples` where active phases show in the series, and `utilisation` where they are
    shorter than its resolution. Together the lengths are one cycle, `iteration_s`; where no cycle
    shows that is None and the lengths are per second.
    """

    active_s: float
    idle_s: float
    source: str
    iteration_s: float | None = None


def two_levels(values: Floats, min_step: float) -> Levels | None:
    """Cut `values` (n,) where the two sides differ most from each other and least within.

    The threshold maximises the variance between the sides (Otsu's criterion), found exactly over
    the sorted values. None where one level explains the values as well.
    """
    ordered = np.sort(values)
    n = len(ordered)
    total = ordered.var()
    if n < 2 or total == 0:
        return None
    below = np.arange(1, n)
    sums = np.cumsum(ordered)
    low = sums[:-1] / below
    high = (sums[-1] - sums[:-1]) / (n - below)
    between = below * (n - below) / n**2 * (high - low) ** 2
    cut = int(np.argmax(between))
    if between[cut] < MIN_EXPLAINED * total or high[cut] - low[cut] < min_step:
        return None
    threshold = (ordered[cut] + ordered[cut + 1]) / 2
    return Levels(float(low[cut]), float(high[cut]), float(1 - below[cut] / n), float(threshold))


def warm_up_end(values: Floats) -> int:
    """Return the index at which a job has filled its memory, from its samples (n,) in time order.

    Warm-up ends when the values first reach the lower level of their second half.
    """
    steady = np.quantile(values[len(values) // 2 :], 0.05)
    return int(np.argmax(values >= WARM_SHARE * steady))


def share_of_time(times: Floats, high: npt.NDArray[np.bool_]) -> float:
    """Return the share of time in which `high` (n,) held, over whole cycles where there is one.

    A window that ends within a cycle would count a part of a peak, or of the wait for it, too
    much. Each sample stands for the time half-way to its neighbours.
    """
    starts = np.flatnonzero(high[1:] & ~high[:-1])
    gaps = np.diff(times)
    held = gaps * (high[1:].astype(float) + high[:-1]) / 2
    if len(starts) < 2:
        return float(held.sum() / gaps.sum())
    # From the middle of the first rising edge to the middle of the last one.
    first, last = starts[0], starts[-1]
    total = gaps[first:last].sum() + (gaps[last] - gaps[first]) / 2
    return float(held[first:last].sum() / total)


def fit_memory(times: Floats, values: Floats) -> MemoryFit | None:
    """Fit base, peak extra (bytes) and peak probability to memory samples (n,) in time order.

    None where there are too few samples.
    """
    if len(values) < MIN_SAMPLES:
        return None
    begin = warm_up_end(values)
    times, values = times[begin:], values[begin:]
    levels = two_levels(values, MIN_MEMORY_STEP * float(values.mean()))
    if levels is None:
        return MemoryFit(float(values.mean()), 0.0, 0.0)
    probability = share_of_time(times, values > levels.threshold)
    return MemoryFit(levels.low, levels.high - levels.low, probability)


def fit_activity(times: Floats, percents: Floats) -> Activity | None:
    """Return the active and idle phases in samples of utilisation (n,), at their own times.

    A sample is the mean over a window, so the share of active time is the mean of the series
    between its idle and its active level. A level is read from samples between two of their own
    kind, whose windows hold no edge. Where active phases are too short to show any, utilisation
    itself is the share of time with a kernel running; idle phases too short to show are taken to
    be at zero. None where there are too few samples.
    """
    if len(percents) < MIN_SAMPLES:
        return None
    iteration_s = period(times, percents)
    share, source = float(percents.mean()) / 100, "utilisation"
    bottom, top = np.quantile(percents, [0.05, 0.95])
    high = percents > (bottom + top) / 2
    if bottom < MAX_IDLE_SHARE * top:
        inner = (high[1:-1] == high[:-2]) & (high[1:-1] == high[2:])
        cycles = max(1, int(np.count_nonzero(high[1:] & ~high[:-1])))
        active, idle = (percents[1:-1][inner & (high[1:-1] == side)] for side in (True, False))
        if len(active) >= cycles / 2:
            top = float(np.median(active))
            bottom = float(np.median(idle)) if len(idle) >= cycles / 2 else 0.0
            share, source = float(((percents - bottom) / (top - bottom)).mean()), "samples"
            share = min(max(share, 0.0), 1.0)
            step_s = float(np.median(np.diff(times)))
            iteration_s = iteration_s or step_s * len(percents) / cycles
    cycle_s = iteration_s or 1.0
    return Activity(share * cycle_s, (1 - share) * cycle_s, source, iteration_s)


def period(times: Floats, values: Floats) -> float | None:
    """Return the period in seconds of a series (n,) by its autocorrelation, if it shows one.

    The first maximum at which the series resembles itself is taken, refined by a parabola.
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
    lag = int(peaks[0]) + 1
    before, at, after = correlation[lag - 1 : lag + 2]
    bend = before - 2 * at + after
    offset = 0.5 * (before - after) / bend if bend else 0.0
    return float((lag + offset) * np.median(np.diff(times)))


@dataclass(slots=True)
class Ewma:
    """An average that halves the weight of what it knew every `half_life_s`."""

    half_life_s: float
    value: float | None = None
    _at_s: float = 0.0

    def update(self, now_s: float, sample: float) -> None:
        """Take a sample; the first one is taken as it is."""
        if self.value is None:
            self.value = sample
        else:
            kept = math.exp2(-max(0.0, now_s - self._at_s) / self.half_life_s)
            self.value = kept * self.value + (1 - kept) * sample
        self._at_s = now_s
