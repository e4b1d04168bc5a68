"""Errors of the formulas: 90 % intervals that hold for families that were left out.

An interval is the estimate divided and multiplied by a factor. Split conformal prediction gives the
factor: the score of a configuration is the absolute logarithm of measured over predicted, families
are exchanged in place of configurations, and one more family that is worse than all counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tandem.contracts.prediction import Interval

Floats = NDArray[np.float64]

#: How much of an unseen family's configurations an interval is to contain.
LEVEL = 0.9
#: log of the factor of the formulas, from all families of the published measurements, for each data
#: set its own (docs/evidence/results/predictions.md): memory 22, utilisation 8, time of a step 14.
MEMORY, UTILISATION, STEP = 0.70, 1.23, 1.09
#: After a run at another batch size or on another type of GPU: multiples of the spread by distance
#: that bounds an extrapolation. Memory of allocators whose regions double jumps with them.
AFTER_MEMORY, AFTER_REGIONS, AFTER_UTILISATION, AFTER_STEP = 0.62, 3.27, 1.91, 2.68
#: What was observed of a configuration and what its next run uses.
OBSERVED = 0.10


def conformal(families: Sequence[Floats], level: float = LEVEL) -> float:
    """Return the log of the factor that contains `level` of the rows of an unseen family.

    `families` has an array of log(measured / predicted) for each family; all have equal weight.
    """
    scores = np.abs(np.concatenate(families))
    weights = np.concatenate([np.full(len(rows), 1 / len(rows)) for rows in families])
    order = np.argsort(scores)
    reached = np.cumsum(weights[order]) / (len(families) + 1)
    return float(scores[order][min(int(np.searchsorted(reached, level)), len(scores) - 1)])


def interval(mean: float, spread: float | None, most: float | None = None) -> Interval | None:
    """Return the interval around an estimate; none without a spread. `most` is what there is."""
    if spread is None:
        return None
    high = mean * math.exp(spread)
    return Interval(low=mean * math.exp(-spread), high=high if most is None else min(high, most))
