"""Finds the jobs that fit when jobs are taken in order and those that do not fit are skipped."""

from __future__ import annotations

import numpy as np

from tandem.policy.units import Bools, Ints


def fits_in_order(wanted: Ints, free: int) -> Bools:
    """Return (jobs,), True for each job that is taken: in order, skipping what does not fit.

    The same as walking the jobs one by one, in a few steps over arrays: all up to the first that
    does not fit are taken at once, then all that are too large for what is left are dropped.
    """
    taken = np.zeros(len(wanted), dtype=np.bool_)
    left, sizes = np.arange(len(wanted)), wanted
    while free > 0 and len(left):
        total = sizes.cumsum()
        count = int(total.searchsorted(free, side="right"))
        taken[left[:count]] = True
        free -= int(total[count - 1]) if count else 0
        small = (sizes[count:] <= free).nonzero()[0] + count
        left, sizes = left[small], sizes[small]
    return taken
