"""The worth of a second of service to a job: its expected rate of completion."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tandem.policy.units import Floats, Ints

_RATIO = 1.5  # of (time + scale) from one bin to the next
_BINS = 64  # the last one ends long after any job
_AHEAD = 6  # bins past the longest job: about ten times as long


@dataclass(frozen=True, slots=True)
class Runs:
    """Endings and exposure in each bin of running time, by size.

    Shapes: sizes are the different numbers of GPUs, ascending; the rest is (bins, sizes).

    Worked: of two jobs of 400 s, on one GPU and on four, each size has one that ended in the second
    bin, for a scale of 500 s.

    Source: ours, after [Tiresias] 3.2.2.
    """

    gpus: Ints  # (sizes,) ascending
    ended: Floats  # (bins, sizes)
    exposure_s: Floats  # (bins, sizes)


def runs_in_bins(run_s: Floats, gpus: Ints, scale_s: float, votes: Floats | None = None) -> Runs:
    """Count jobs that ended after `run_s` (jobs,) seconds on `gpus` (jobs,) GPUs each.

    Bin j is (x_j, x_j+1] with x_j = scale (1.5^j - 1). Shapes: (jobs,) -> (bins, sizes). `votes`
    (jobs,) is how much each job counts; None: each for one.

    Worked: scale 500, one job of 400 s: it ran 250 s in the first bin and 150 s in the second,
    where it ended.

    Source: ours, after [Tiresias] 3.2.2.
    """
    sizes, size_of = _sizes(gpus)
    bins = bins_of(scale_s)
    own = np.clip(np.searchsorted(bins.bounds_s, run_s, side="left") - 1, 0, _BINS - 1)
    ended, exposure_s = _count(run_s, own, size_of, len(sizes), bins, votes)
    return Runs(sizes, ended.astype(np.float64), exposure_s)


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
    sizes, size_of = _sizes(gpus)
    bins = bins_of(scale_s)
    run_s = np.maximum(run_s, 0.0)  # a clock that was set back
    own = np.searchsorted(bins.bounds_s, run_s, side="right") - 1
    oldest = int(np.searchsorted(bins.bounds_s, run_s.max(initial=0.0)))
    if finished is None:
        hazard = np.repeat(bins.tail[: oldest + _AHEAD, None], len(sizes), axis=1)
    else:
        seen = np.flatnonzero(finished.exposure_s.any(axis=1))
        count = min(max(oldest, int(seen.max(initial=-1)) + 1) + _AHEAD, _BINS)
        _, going_s = _count(run_s, np.minimum(own, _BINS - 1), size_of, len(sizes), bins)
        learned = _hazard(finished, sizes, going_s, bins.width_s, prior_jobs, size_prior_jobs)
        hazard = _with_novel(learned[:count], bins.tail[:count], bins.width_s[:count], novel)
    return _index(run_s, own, size_of, bins, hazard)


def with_age(rate: Floats, age_s: Floats, power: float) -> Floats:
    """Return rates of completion of jobs that arrived `age_s` ago, with what their wait adds.

    rate x (1 + age x rate)^power. Shapes: (jobs,), (jobs,) -> (jobs,). Age times rate is the time
    in the system over the time that the job is expected to need. Of jobs that are worth the same,
    the older one goes first, so what is learned wrongly of a kind of jobs delays none of them for
    long. 0 is the plain rate.

    Worked: rate 1 / 500, age 1,500 s, power 0.5: 1 / 500 x (1 + 3)^0.5 = 0.004.

    Source: ours. With power 1 and known times it is the highest response ratio next, per second.
    """
    base = 1 + np.maximum(age_s, 0.0) * rate
    if power == 0.75:  # numpy's power and C's differ in the last bit; roots are rounded exactly
        root = np.sqrt(base)
        aged: Floats = rate * (root * np.sqrt(root))
    else:
        aged = rate * base**power
    return aged


def with_size(rate: Floats, part: Floats, weight: float) -> Floats:
    """Return rates of completion with what it adds that a gang takes `part` of all GPUs.

    rate x (1 + weight x part^2). Shapes: (jobs,), (jobs,) -> (jobs,). A gang starts once it is
    worth more than all jobs in its way together. A gang of most GPUs thus waits for a moment at
    which few jobs run that are worth much, and where such jobs keep arriving, there is none. It
    displaces about as many jobs whenever it starts, so waiting gains nothing. 0 is the plain rate.

    Worked: rate 1 / 500 on half of the GPUs, weight 4: 1 / 500 x (1 + 4 x 0.25) = 0.004.

    Source: ours.
    """
    weighted: Floats = rate * (1 + weight * part * part)
    return weighted


class Bins(NamedTuple):
    """Bins of running time: where they begin and the last one ends, widths, and the heavy tail.

    Shapes: (bins + 1,) for the bounds, else (bins,).

    Worked: scale 500: the first bin is [0, 250), and its hazard in the tail ln 1.5 / 250.

    Source: ours, after [Tiresias] 3.2.2.
    """

    bounds_s: Floats  # (bins + 1,)
    width_s: Floats  # (bins,)
    tail: Floats  # (bins,) hazard


@lru_cache(maxsize=16)
def bins_of(scale_s: float) -> Bins:
    """Return the bins [x_j, x_j+1) with x_j = scale (1.5^j - 1). Shapes: as in `Bins`.

    Worked: scale 500: 0, 250, 625.

    Source: ours, after [Tiresias] 3.2.2.
    """
    bounds_s = scale_s * (_RATIO ** np.arange(_BINS + 1, dtype=np.float64) - 1)
    width_s = np.diff(bounds_s)
    return Bins(bounds_s, width_s, np.log(_RATIO) / width_s)


def _sizes(gpus: Ints) -> tuple[Ints, Ints]:
    """Return the different numbers of GPUs, ascending, and which of them each job has, (jobs,)."""
    there = np.bincount(gpus) > 0
    return np.flatnonzero(there), (np.cumsum(there) - 1)[gpus]


def _count(
    run_s: Floats,
    own: Ints,
    size_of: Ints,
    sizes: int,
    bins: Bins,
    votes: Floats | None = None,
) -> tuple[Ints | Floats, Floats]:
    """Return how many jobs are in each bin and for how long jobs ran there, (bins, sizes)."""
    at, shape = own * sizes + size_of, (_BINS, sizes)
    there = np.bincount(at, votes, minlength=_BINS * sizes).reshape(shape)
    last_s = np.minimum(run_s - bins.bounds_s[own], bins.width_s[own])
    if votes is not None:
        last_s *= votes
    within_s = np.bincount(at, weights=last_s, minlength=_BINS * sizes).reshape(shape)
    longer = np.cumsum(there[::-1], axis=0)[::-1] - there
    return there, within_s + longer * bins.width_s[:, None]


def _hazard(
    finished: Runs,
    sizes: Ints,
    going_s: Floats,
    width_s: Floats,
    prior_jobs: float,
    size_prior_jobs: float,
) -> Floats:
    """Return the completions per second in each bin for jobs of `sizes`, (bins, sizes).

    `going_s` (bins, sizes) is for how long jobs ran there that go on.
    """
    exposure_s = finished.exposure_s.sum(axis=1) + going_s.sum(axis=1)
    of_all = (finished.ended.sum(axis=1) + prior_jobs * np.log(_RATIO)) / (
        exposure_s + prior_jobs * width_s
    )
    events, served_s = np.zeros(going_s.shape), going_s.copy()
    column = np.searchsorted(finished.gpus, sizes)
    known = np.flatnonzero(column < len(finished.gpus))
    known = known[finished.gpus[column[known]] == sizes[known]]
    events[:, known] = finished.ended[:, column[known]]
    served_s[:, known] += finished.exposure_s[:, column[known]]
    prior_s = size_prior_jobs * width_s[:, None]
    hazard: Floats = (events + prior_s * of_all[:, None]) / (served_s + prior_s)
    return hazard


def _with_novel(hazard: Floats, tail: Floats, width_s: Floats, novel: float) -> Floats:
    """Return the hazard (bins, sizes) of jobs of which a part `novel` has the hazard `tail`."""
    passed = np.cumsum(hazard * width_s[:, None], axis=0)
    longer = np.exp(-np.vstack((np.zeros(hazard.shape[1]), passed[:-1])))
    of_novel = novel * _RATIO ** -np.arange(len(tail), dtype=np.float64)[:, None]
    part = of_novel / (of_novel + (1 - novel) * longer)
    mixed: Floats = part * tail[:, None] + (1 - part) * hazard
    return mixed


def _index(run_s: Floats, own: Ints, size_of: Ints, bins: Bins, hazard: Floats) -> Floats:
    """Return the Gittins index of each job under the `hazard` (bins, sizes) of its size, (jobs,).

    `own` is the bin of each job. Ahead of a job lies the rest of its bin, then whole bins: what
    those hold is the same for all jobs of a size in a bin, who need only survive until there. If u
    is the part that do, the quantum to the end of bin j has the rate

        (1 - u + u E_j) / ((1 - u) / h + u S_j)

    with E_j completions expected after the own bin and S_j seconds. Where the best rate exceeds h,
    it rises with u, and a higher rate is reached by a shorter quantum: the best j never rises with
    u. So only the quanta between the best one at the end of the bin and that at its beginning are
    compared, mostly one or two.
    """
    count, sizes = hazard.shape
    code = own * sizes + size_of
    present = np.bincount(code, minlength=count * sizes) > 0
    bin_, size = np.divmod(np.flatnonzero(present), sizes)
    kind = (np.cumsum(present) - 1)[code]  # of (bin, size), of those that are present
    later = np.arange(count) > bin_[:, None]
    of_bin = (hazard * bins.width_s[:count, None]).T[size] * later
    survived = np.exp(of_bin - np.cumsum(of_bin, axis=1))
    ended = survived * -np.expm1(-of_bin)
    spent_s = np.cumsum(ended / hazard.T[size], axis=1)
    ended = np.cumsum(ended, axis=1)
    hazard_now = hazard[bin_, size]
    at_end = np.divide(ended, spent_s, out=hazard_now[:, None].repeat(count, axis=1), where=later)
    first = at_end.argmax(axis=1)
    gone = np.expm1(-hazard_now * bins.width_s[bin_])[:, None]
    at_start = (ended * (1 + gone) - gone) / (spent_s * (1 + gone) - gone / hazard_now[:, None])
    more = np.maximum(at_start.argmax(axis=1) - first, 0)
    rest = np.expm1(-hazard_now[kind] * (bins.bounds_s[own + 1] - run_s))  # u - 1
    before_s = rest / hazard_now[kind]
    begin, ended, spent_s = kind * count, ended.ravel(), spent_s.ravel()
    best: Floats = np.zeros(len(run_s))
    for step in range(int(more.max(initial=0)) + 1):
        at = begin + (first + np.minimum(step, more))[kind]
        rate = (ended[at] * (1 + rest) - rest) / (spent_s[at] * (1 + rest) - before_s)
        # In its own bin each job has the hazard itself, and not what rounding makes of it.
        np.maximum(best, np.where(spent_s[at] > 0, rate, hazard_now[kind]), out=best)
    return best
