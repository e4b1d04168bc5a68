"""What a second of service to a job is worth: its expected rate of completion."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tandem.policy.units import Floats, Ints

_RATIO = 1.5  # of (time + scale) from one bin to the next
_BINS = 64  # the last one ends long after any job
_AHEAD = 6  # bins past the longest job: about ten times as long


@dataclass(frozen=True, slots=True)
class Runs:
    """How many jobs ended in each bin of running time, and how long jobs ran there, by size.

    Shapes: sizes are the different numbers of GPUs, ascending; the rest is (bins, sizes).

    Worked: of two jobs of 400 s, on one GPU and on four, each size has one that ended in the second
    bin, for a scale of 500 s.

    Source: ours, after [Tiresias] 3.2.2.
    """

    gpus: Ints  # (sizes,) ascending
    ended: Floats  # (bins, sizes)
    exposure_s: Floats  # (bins, sizes)


def runs_in_bins(run_s: Floats, gpus: Ints, scale_s: float, *, ended: bool = True) -> Runs:
    """Count jobs that ran `run_s` (jobs,) seconds on `gpus` (jobs,) GPUs each.

    Bin j is (x_j, x_j+1] with x_j = scale (1.5^j - 1). Without `ended`, the jobs go on. Shapes:
    (jobs,) -> (bins, sizes).

    Worked: scale 500, one job of 400 s: it ran 250 s in the first bin and 150 s in the second,
    where it ended.

    Source: ours, after [Tiresias] 3.2.2.
    """
    bounds_s = _bounds_s(scale_s)
    width_s = np.diff(bounds_s)
    sizes, which = np.unique(gpus, return_inverse=True)
    own = np.clip(np.searchsorted(bounds_s, run_s, side="left") - 1, 0, _BINS - 1)
    at, shape = own * len(sizes) + which, (_BINS, len(sizes))
    there = np.bincount(at, minlength=_BINS * len(sizes)).reshape(shape)
    last_s = np.minimum(run_s - bounds_s[own], width_s[own])
    within_s = np.bincount(at, weights=last_s, minlength=_BINS * len(sizes)).reshape(shape)
    longer = np.cumsum(there[::-1], axis=0)[::-1] - there
    done = there.astype(np.float64) if ended else np.zeros(shape)
    return Runs(sizes, done, within_s + longer * width_s[:, None])


def completion_rate(
    run_s: Floats,
    gpus: Ints,
    finished: Runs | None,
    *,
    scale_s: float = 500.0,
    prior_jobs: float = 1.0,
    size_prior_jobs: float = 3.0,
    novel: float = 1 / 32,
) -> Floats:
    """Return the expected completions per second of running. Shapes: (jobs,) -> (jobs,).

    Symbols: a = `run_s`, the seconds that each unfinished job has run on its `gpus`; `finished` are
    jobs that ended, with the same scale; None: nothing is learned. The answer is the Gittins index

        index(a) = max over quanta q of P(S - a <= q | S > a) / E[min(S - a, q) | S > a]

    of the time S that a job runs, learned as a hazard h that is constant in each bin. The bins are
    [x_j, x_j+1) with x_j = scale (1.5^j - 1), and the quanta end where a bin ends. In each bin the
    hazard is occurrences over exposure: completions D there, over the time T that all jobs ran
    there. An unfinished job counts with the time that it has run: without it, what is learned first
    would come from short jobs alone. Three things are known before, the second and third because
    what is learned from some jobs need not hold for others:

    - Where few jobs were seen, the heavy tail counts, whose hazard is t = 1 / (time + scale): for
      jobs of all sizes together, h_all = (D + c) / (T + c width / ln 1.5), c = prior_jobs ln 1.5.
    - Gangs of different sizes run for different times: for jobs of one size, with k =
      `size_prior_jobs`, h_size = (D + k width h_all) / (T + k width).
    - A job may be like none before: with probability e = `novel` its time has the heavy tail. After
      a it does so with w = e s_tail(a) / (e s_tail(a) + (1 - e) s_size(a)), where s is the part of
      jobs that run longer, and h = w t + (1 - w) h_size. So new jobs are tried for a short time
      though all jobs before were long.

    The maximum over quanta keeps jobs of similar length from taking turns: a new job is then worth
    what it completes per second until its end, and a job that has run is worth more.

    Worked: without samples, a = 500 and scale = 500: the bin is [250, 625), h = ln 1.5 / 375 =
    0.00108, and later bins have less.

    Source: ours, after [Tiresias] 3.2.2; the hazards are means of Gamma priors after D events in
    exposure T. Differs: time of the whole gang, not GPU-seconds: how long a job runs says more than
    what it takes; a gang of g GPUs is worth index / g per GPU-second.
    """
    bounds_s = _bounds_s(scale_s)
    sizes, size_of = np.unique(gpus, return_inverse=True)
    oldest = int(np.searchsorted(bounds_s, run_s.max(initial=0.0)))
    tail = np.log(_RATIO) / np.diff(bounds_s)
    if finished is None:
        hazard = np.repeat(tail[: oldest + _AHEAD, None], len(sizes), axis=1)
    else:
        seen = np.flatnonzero(finished.exposure_s.any(axis=1))
        count = min(max(oldest, int(seen.max(initial=-1)) + 1) + _AHEAD, _BINS)
        going = runs_in_bins(run_s, gpus, scale_s, ended=False)
        learned = _hazard(finished, going, np.diff(bounds_s), prior_jobs, size_prior_jobs)
        hazard = _with_novel(learned[:count], tail[:count], np.diff(bounds_s)[:count], novel)
    order = np.lexsort((run_s, size_of))
    ages_s, of_size = run_s[order], size_of[order]
    first = np.ones(len(order), dtype=np.bool_)
    first[1:] = (np.diff(ages_s) != 0) | (np.diff(of_size) != 0)
    index = _index(ages_s[first], of_size[first], bounds_s[: len(hazard) + 1], hazard)
    rate = np.empty(len(run_s))
    rate[order] = index[np.cumsum(first) - 1]
    return rate


def _bounds_s(scale_s: float) -> Floats:
    """Return where the bins begin and the last one ends, (bins + 1,)."""
    bounds_s: Floats = scale_s * (_RATIO ** np.arange(_BINS + 1, dtype=np.float64) - 1)
    return bounds_s


def _hazard(
    finished: Runs, going: Runs, width_s: Floats, prior_jobs: float, size_prior_jobs: float
) -> Floats:
    """Return the completions per second in each bin for the sizes of `going`, (bins, sizes)."""
    exposure_s = finished.exposure_s.sum(axis=1) + going.exposure_s.sum(axis=1)
    of_all = (finished.ended.sum(axis=1) + prior_jobs * np.log(_RATIO)) / (
        exposure_s + prior_jobs * width_s
    )
    events, served_s = np.zeros(going.ended.shape), going.exposure_s.copy()
    known = np.isin(going.gpus, finished.gpus)
    column = np.searchsorted(finished.gpus, going.gpus[known])
    events[:, known] = finished.ended[:, column]
    served_s[:, known] += finished.exposure_s[:, column]
    prior_s = size_prior_jobs * width_s[:, None]
    hazard: Floats = (events + prior_s * of_all[:, None]) / (served_s + prior_s)
    return hazard


def _with_novel(hazard: Floats, tail: Floats, width_s: Floats, novel: float) -> Floats:
    """Return the hazard (bins, sizes) of jobs of which a part `novel` has the hazard `tail`."""
    passed = _running_sum(hazard * width_s[:, None])
    longer = np.exp(-np.vstack((np.zeros(hazard.shape[1]), passed[:-1])))
    of_novel = novel * _RATIO ** -np.arange(len(tail), dtype=np.float64)[:, None]
    part = of_novel / (of_novel + (1 - novel) * longer)
    mixed: Floats = part * tail[:, None] + (1 - part) * hazard
    return mixed


def _index(ages_s: Floats, size_of: Ints, bounds_s: Floats, hazard: Floats) -> Floats:
    """Return the Gittins index of each age under the `hazard` (bins, sizes) of its size, (ages,).

    Matrices are (bins, ages), so that a sum over bins adds whole rows. Ahead of an age lies all of
    each later bin, and the rest of its own: exponentials are taken once a bin and once an age.
    """
    of_age = np.arange(len(ages_s))
    own = np.searchsorted(bounds_s, ages_s, side="right") - 1
    later = (np.arange(len(hazard))[:, None] > own).astype(np.float64)
    of_bin = hazard * np.diff(bounds_s)[:, None]
    of_own = hazard[own, size_of] * (bounds_s[own + 1] - ages_s)
    passed = later * of_bin[:, size_of]
    passed[own, of_age] = of_own
    ended = later * -np.expm1(-of_bin)[:, size_of]
    ended[own, of_age] = -np.expm1(-of_own)
    survived = _running_sum(-passed)
    survived += passed
    ended *= np.exp(survived, out=survived)
    spent_s = _running_sum(np.divide(ended, hazard[:, size_of], out=survived))
    index = _running_sum(ended)
    index /= np.maximum(spent_s, 1e-9, out=spent_s)
    best: Floats = index.max(axis=0)
    return best


def _running_sum(rows: Floats) -> Floats:
    """Add to each row all rows before it, in place: an eighth of the time of `cumsum`."""
    for row in range(1, len(rows)):
        rows[row] += rows[row - 1]
    return rows
