"""How many ended runs are kept for the time axis of their GPUs, and for how long.

A run takes about 600 bytes in the extender: 0.2 MiB in a cluster of 40 GPUs, and 6 MiB in one of
5,000 nodes.
"""

from __future__ import annotations

#: A run that ended longer ago is of no use to a person who looks at a GPU now.
RUNS_KEPT_S = 86_400.0
_PER_GPU, _LEAST, _MOST = 8, 100, 10_000


def most_runs(gpus: int) -> int:
    """Return how many ended runs are kept in a cluster with so many GPUs."""
    return min(_MOST, max(_LEAST, _PER_GPU * gpus))
