"""What a second of service to a job is worth: its expected rate of completion."""

from __future__ import annotations

import numpy as np

from tandem.policy.units import Floats

_RATIO = 1.5  # of (time + scale) from one bin to the next
_AHEAD = 6  # bins past the longest job: about ten times as long


def completion_rate(
    run_s: Floats,
    finished_s: Floats,
    unfinished_s: Floats,
    *,
    scale_s: float = 500.0,
    prior_jobs: float = 1.0,
    finished_sums_s: Floats | None = None,
) -> Floats:
    """Return the expected completions per second of running. Shapes: (jobs,) -> (jobs,).

    Symbols: a = `run_s`, the seconds that a job has run; n finished jobs ran `finished_s` (n,) and
    m unfinished jobs have run `unfinished_s` (m,), both ascending. Callers that
    keep the sums of the first 0 to n of `finished_s` pass them as `finished_sums_s` (n + 1,). The
    answer is the Gittins index

        index(a) = max over quanta q of P(S - a <= q | S > a) / E[min(S - a, q) | S > a]

    of the time S that a job runs, learned as a hazard h that is constant in each bin. The bins are
    [x_j, x_j+1) with x_j = scale (1.5^j - 1), and the quanta end where a bin ends. In each bin the
    hazard is occurrences over exposure: completions D there, over the time T that all jobs ran
    there. An unfinished job counts with the time that it has run: without it, what is learned first
    would come from short jobs alone. Where few jobs were seen, the heavy tail counts, whose hazard
    is 1 / (time + scale): h = (D + c) / (T + c width / ln 1.5), c = prior_jobs ln 1.5.

    The maximum over quanta keeps jobs of similar length from taking turns: a new job is then worth
    what it completes per second until its end, and a job that has run is worth more.

    Worked: without samples, a = 500 and scale = 500: the bin is [250, 625), h = ln 1.5 / 375 =
    0.00108, and later bins have less.

    Source: ours, after [Tiresias] 3.2.2; the hazard is the mean of a Gamma(c, c width / ln 1.5)
    prior after D events in exposure T. Differs: time of the whole gang, not GPU-seconds: how long a
    job runs says more than what it takes; a gang of g GPUs is worth index / g per GPU-second.
    """
    longest_s = max(float(each.max(initial=0.0)) for each in (run_s, finished_s, unfinished_s))
    count = int(np.ceil(np.log(longest_s / scale_s + 1) / np.log(_RATIO))) + _AHEAD
    powers = np.asarray(_RATIO ** np.arange(count + 1), dtype=np.float64)
    bounds_s = scale_s * (powers - 1)
    hazard = _hazard(bounds_s, finished_s, finished_sums_s, unfinished_s, prior_jobs)
    ages_s, which = np.unique(run_s, return_inverse=True)
    rate: Floats = _index(ages_s, bounds_s, hazard)[which]
    return rate


def _index(ages_s: Floats, bounds_s: Floats, hazard: Floats) -> Floats:
    """Return the Gittins index of each age under a `hazard` (bins,) in each bin, (ages,).

    Matrices are (bins, ages), so that a sum over bins adds whole rows. Ahead of an age lies all of
    each later bin, and the rest of its own: exponentials are taken once a bin and once an age.
    """
    of_age = np.arange(len(ages_s))
    own = np.searchsorted(bounds_s, ages_s, side="right") - 1
    later = (np.arange(len(hazard))[:, None] > own).astype(np.float64)
    of_bin = hazard * np.diff(bounds_s)
    of_own = hazard[own] * (bounds_s[own + 1] - ages_s)
    passed = later * of_bin[:, None]
    passed[own, of_age] = of_own
    ended = later * -np.expm1(-of_bin)[:, None]
    ended[own, of_age] = -np.expm1(-of_own)
    survived = _running_sum(-passed)
    survived += passed
    ended *= np.exp(survived, out=survived)
    spent_s = _running_sum(np.divide(ended, hazard[:, None], out=survived))
    index = _running_sum(ended)
    index /= np.maximum(spent_s, 1e-9, out=spent_s)
    best: Floats = index.max(axis=0)
    return best


def _running_sum(rows: Floats) -> Floats:
    """Add to each row all rows before it, in place: an eighth of the time of `cumsum`."""
    for row in range(1, len(rows)):
        rows[row] += rows[row - 1]
    return rows


def _sums(ascending: Floats) -> Floats:
    """Return the sums of the first 0 to n values, (n + 1,)."""
    return np.concatenate(([0.0], np.cumsum(ascending)))


def _hazard(
    bounds_s: Floats,
    finished_s: Floats,
    finished_sums_s: Floats | None,
    unfinished_s: Floats,
    prior_jobs: float,
) -> Floats:
    """Return the completions per second in each bin, (bins,); `bounds_s` is (bins + 1,)."""
    width_s = np.diff(bounds_s)
    if finished_sums_s is None:
        finished_sums_s = _sums(finished_s)
    events, exposure_s = _within(finished_s, finished_sums_s, bounds_s[:-1], width_s)
    _, more_s = _within(unfinished_s, _sums(unfinished_s), bounds_s[:-1], width_s)
    rate: Floats = (events + prior_jobs * np.log(_RATIO)) / (
        exposure_s + more_s + prior_jobs * width_s
    )
    return rate


def _within(total: Floats, before: Floats, start: Floats, width: Floats) -> tuple[Floats, Floats]:
    """Return how many of the times `total` (n,) end in each bin (bins,), and the time in it.

    `total` is ascending; `before` (n + 1,) are its sums.
    """
    k = np.searchsorted(total, start, side="right")
    i = np.searchsorted(total, start + width, side="right")
    served = before[i] - before[k] - (i - k) * start + (len(total) - i) * width
    return (i - k).astype(np.float64), np.maximum(served, 0.0)
