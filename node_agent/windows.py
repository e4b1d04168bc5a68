"""Memory over time: pure functions on the changes of a reading, and a bounded series.

A job's memory is described as [OJPP] does, by a level outside peaks, what a peak adds, and the
chance of being in one.
"""

from __future__ import annotations

# Paper: [OJPP] 3.2, Fig. 2 | memory course <gamma, delta, p> of a worker | test:
#   tests/node_agent/test_agent_windows.py test_peaks_without_a_fixed_period | live: yes
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.intp]

#: A shorter time says nothing about levels.
MIN_OBSERVED_S = 2.0
#: Share of the variance that two levels must explain. One level with Gaussian noise, cut at its
#: mean, explains 2/pi = 0.64, a uniform spread 0.75.
MIN_EXPLAINED = 0.85
#: Two memory levels closer than this (share of the lower one) are one.
MIN_MEMORY_STEP = 0.01
#: Warm-up ends when memory first reaches this share of the steady lower level.
WARM_SHARE = 0.95
#: A reading is made a little after the time that is noted for it: the moment of a change is known
#: no better than to this; the second where the agent had to wait for the CPU.
SLACKS_S = (0.01, 0.05)
#: Periods that are tried between the shortest and the longest that fit the changes.
PERIODS_TRIED = 33


class Series:
    """The last `capacity` rows of (time in seconds, value); memory does not grow."""

    def __init__(self, capacity: int, columns: int = 2) -> None:
        self._rows: Floats = np.zeros((capacity, columns))
        self._count = 0

    def __len__(self) -> int:
        return min(self._count, len(self._rows))

    def append(self, *row: float) -> None:
        """Add a row; the oldest one goes when the series is full."""
        self._rows[self._count % len(self._rows)] = row
        self._count += 1

    def clear(self) -> None:
        """Forget all rows."""
        self._count = 0

    def columns(self) -> tuple[Floats, ...]:
        """Return the columns, oldest row first."""
        if self._count <= len(self._rows):
            rows = self._rows[: self._count]
        else:
            rows = np.roll(self._rows, -(self._count % len(self._rows)), axis=0)
        return tuple(rows.T)


@dataclass(frozen=True, slots=True)
class Changes:
    """A reading that is taken often and changes seldom, as its changes (n,) in time order.

    `values[i]` was read first at `after_s[i]`, and the value before it last at `before_s[i]`: the
    change came in between. The last value holds until `until_s`.
    """

    before_s: Floats
    after_s: Floats
    values: Floats
    until_s: float

    @property
    def durations(self) -> Floats:
        """The duration of each value, from the middle of one change to that of the next."""
        return np.diff((self.before_s + self.after_s) / 2, append=self.until_s)

    def since(self, index: int) -> Changes:
        """Return the changes from one of them on."""
        cut = slice(index, None)
        return Changes(self.before_s[cut], self.after_s[cut], self.values[cut], self.until_s)


class ChangeSeries:
    """The changes of a reading within the last `window_s`, the last `capacity` of them at most."""

    def __init__(self, window_s: float, capacity: int) -> None:
        self._window_s = window_s
        self._rows = Series(capacity, columns=3)
        self._value: float | None = None

    def take(self, before_s: float, now_s: float, value: float) -> None:
        """Take a reading; the one before it was made at `before_s`."""
        if self._value is None:
            before_s = now_s
        if value != self._value:
            self._value = value
            self._rows.append(before_s, now_s, value)

    def changes(self, until_s: float) -> Changes:
        """Return what is known, the last reading having been made at `until_s`."""
        before, after, values = self._rows.columns()
        begin_s = until_s - self._window_s
        first = max(0, int(np.searchsorted(after, begin_s, side="right")) - 1)
        cut = slice(first, None)
        return Changes(
            np.maximum(before[cut], begin_s),
            np.maximum(after[cut], begin_s),
            values[cut].copy(),
            until_s,
        )


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


def two_levels(values: Floats, weights: Floats, min_step: float) -> Levels | None:
    """Cut `values` (n,) where the two sides differ most from each other and least within.

    The threshold maximises the variance between the sides (Otsu's criterion), found exactly over
    the sorted values, each counted by its weight. None where one level explains them as well.
    """
    order = np.argsort(values)
    ordered, weight = values[order], weights[order]
    total_weight = weight.sum()
    if len(ordered) < 2 or total_weight <= 0 or ordered[0] == ordered[-1]:
        return None
    below = np.cumsum(weight)[:-1]
    sums = np.cumsum(weight * ordered)
    mean = sums[-1] / total_weight
    total = float((weight * (ordered - mean) ** 2).sum() / total_weight)
    above = total_weight - below
    with np.errstate(divide="ignore", invalid="ignore"):  # a side without weight is no side
        low, high = sums[:-1] / below, (sums[-1] - sums[:-1]) / above
        between = below * above / total_weight**2 * (high - low) ** 2
    between = np.nan_to_num(between)
    cut = int(np.argmax(between))
    if between[cut] < MIN_EXPLAINED * total or not high[cut] - low[cut] >= min_step:
        return None
    share = float(above[cut] / total_weight)
    threshold = (ordered[cut] + ordered[cut + 1]) / 2
    return Levels(float(low[cut]), float(high[cut]), share, float(threshold))


def warm_up_end(changes: Changes) -> int:
    """Return the index of the change with which a job has filled its memory.

    Warm-up ends when the values first reach the lower level of the second half of the time.
    """
    begin_s = changes.until_s - changes.durations.sum() / 2
    ends = changes.until_s - np.cumsum(changes.durations[::-1])[::-1] + changes.durations
    late = np.minimum(changes.durations, np.maximum(ends - begin_s, 0))
    order = np.argsort(changes.values)
    reached = np.cumsum(late[order]) >= 0.05 * late.sum()
    steady = changes.values[order][np.argmax(reached)]
    return int(np.argmax(changes.values >= WARM_SHARE * steady))


def fit_memory(changes: Changes) -> MemoryFit | None:
    """Fit base, peak extra (bytes) and peak probability to the changes of a pod's memory.

    None where it was watched for too short a time.
    """
    if len(changes.values) == 0 or changes.until_s - changes.after_s[0] < MIN_OBSERVED_S:
        return None
    warm = warm_up_end(changes)
    changes = changes.since(warm)
    mean = float(changes.values @ changes.durations / changes.durations.sum())
    levels = two_levels(changes.values, changes.durations, MIN_MEMORY_STEP * mean)
    if levels is None:
        return MemoryFit(mean, 0.0, 0.0)
    high = changes.values > levels.threshold
    if warm and not high[0] and high.any():
        # How long the lower level had held before the first peak, the filling hides.
        first = int(np.argmax(high))
        changes, high = changes.since(first), high[first:]
    probability = share_of_time(changes, high)
    return MemoryFit(levels.low, levels.high - levels.low, probability)


def share_of_time(changes: Changes, high: Bools) -> float:
    """Return the share of time in which `high` (n,) held, over whole cycles where there is one.

    A window that ends within a cycle would count a part of a peak, or of the wait for it, too
    much. Peaks that come at a fixed period are known more finely than they were sampled, since
    every one of them narrows down where the others began and ended.
    """
    rises = 1 + np.flatnonzero(high[1:] & ~high[:-1])
    falls = 1 + np.flatnonzero(~high[1:] & high[:-1])
    edges = max(rises, falls, key=len)
    if len(edges) < 2:
        return float(changes.durations[high].sum() / changes.durations.sum())
    for slack_s in SLACKS_S:
        share = _share_of_period(changes, rises, falls, slack_s)
        if share is not None:
            return share
    cycles = changes.durations[edges[0] : edges[-1]]
    return float(cycles[high[edges[0] : edges[-1]]].sum() / cycles.sum())


def _share_of_period(
    changes: Changes, rises: Indices, falls: Indices, slack_s: float
) -> float | None:
    """Return the share of a fixed period that is high; None where no fixed period fits.

    Each change lies in a known interval. With a period P and a first rise r, all rises lie at
    r + k P, so P and r are in a small polygon; the same goes for the falls. The mean of
    (fall - rise) / P over all that is possible is returned.
    """
    if len(rises) == 0 or len(falls) == 0:
        return None
    low, high = changes.before_s - slack_s, changes.after_s + slack_s
    middle = (low + high) / 2
    more = max(rises, falls, key=len)
    period_s = float(np.median(np.diff(middle[more])))
    # The first fall is that of cycle -1 where it comes before the first rise.
    groups = [
        (edges, np.round((middle[edges] - middle[edges[0]]) / period_s)) for edges in (rises, falls)
    ]
    if falls[0] < rises[0]:
        groups[1] = (falls, groups[1][1] - 1)
    spans = [
        ((low[e[-1]] - high[e[0]]) / (k[-1] - k[0]), (high[e[-1]] - low[e[0]]) / (k[-1] - k[0]))
        for e, k in groups
        if k[-1] > k[0]
    ]
    shortest, longest = max(s for s, _ in spans), min(s for _, s in spans)
    for _ in range(2):  # the second time only between those that fit
        periods = np.linspace(shortest, longest, PERIODS_TRIED)
        room, first = np.ones(PERIODS_TRIED), []
        for edges, k in groups:
            earliest = (low[edges] - periods[:, None] * k).max(axis=1)
            latest = (high[edges] - periods[:, None] * k).min(axis=1)
            room = room * np.maximum(latest - earliest, 0)
            first.append((earliest + latest) / 2)
        fits = np.flatnonzero(room)
        if len(fits) == 0 or periods[0] <= 0:
            return None
        shortest = periods[max(fits[0] - 1, 0)]
        longest = periods[min(fits[-1] + 1, PERIODS_TRIED - 1)]
    share = np.clip((first[1] - first[0]) / periods, 0, 1)
    return float(room @ share / room.sum())


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
