"""Array types of the policy core. Memory is in GiB, utilisation in percent, time in seconds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

BYTES_PER_GIB = 1 << 30
