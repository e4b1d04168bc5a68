"""Weights of namespaces in what all have taught, and the order of forgetting.

What decides about the jobs of all tenants must not follow the one that ends the most jobs.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Iterable, Sequence
from statistics import median_low
from typing import TypeVar

import numpy as np

from tandem.policy.units import Floats

#: Samples that suffice to know a distribution: up to here, each sample of a namespace counts fully.
ENOUGH = 30

_Key = TypeVar("_Key", bound=Hashable)


def votes(namespaces: Sequence[str]) -> Floats | None:
    """Return how much each sample counts, (samples,), at most 1; None where all count fully.

    The samples of a namespace count for at most as many as the median namespace has, and for at
    least `ENOUGH`. A tenant that ends thousands of jobs thus counts as any other tenant, and one
    job in a new namespace takes nothing from what the others have taught.

    Worked: namespaces with 900, 100 and 2 samples: the median has 100, so that each of the 900
    counts for 1/9.
    """
    counts = Counter(namespaces)
    most = max(ENOUGH, median_low(counts.values())) if counts else 0
    if all(count <= most for count in counts.values()):
        return None
    weight = {name: min(1.0, most / count) for name, count in counts.items()}
    return np.array([weight[name] for name in namespaces])


def beyond_bound(rows: Iterable[tuple[_Key, str]], most: int) -> list[_Key]:
    """Return which rows to forget so that at most `most` stay.

    `rows` are (key, namespace), those that are worth least first. The namespace that has most rows
    loses its first one, again and again; of two that have as many, the one whose row comes first.
    So a namespace loses nothing while it has at most its even share.
    """
    of: defaultdict[str, deque[tuple[int, _Key]]] = defaultdict(deque)
    count = 0
    for count, (key, namespace) in enumerate(rows, 1):
        of[namespace].append((count, key))
    forgotten = []
    for _ in range(count - most):
        largest = max(of.values(), key=lambda held: (len(held), -held[0][0] if held else 0))
        forgotten.append(largest.popleft()[1])
    return forgotten
