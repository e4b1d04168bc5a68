"""Array types of the policy core. Memory is in GiB, utilisation in percent, time in seconds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

BYTES_PER_GIB = 1 << 30

#: Times and durations, in seconds, that differ by less are equal. They are sums of floats: a job
#: that is due at the moment of an arrival may be computed to end 2e-13 s later.
SAME_MOMENT_S = 1e-6
