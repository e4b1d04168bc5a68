"""What each type of GPU has shown so far of jobs that share it, against the time-sharing formula.

Only slowdowns that the agents measured count, and only next to models whose utilisation was
measured too. Each namespace has one vote on a type of GPU, so that one tenant cannot move what the
others are told. Kept in memory: the service fills it from the stored observations at its start.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from statistics import fmean, median, pstdev

from predictor.equations import time_shared_speed
from predictor.gpus import type_name
from tandem.contracts.learning import Means, Neighbour

#: Pairs after which what was shown counts as much as the formula ([OJPP] has no such figure; ours).
_PRIOR_PAIRS = 8.0
#: A namespace's latest pairs on a type of GPU that are kept.
_KEPT = 64
#: A pair further from the formula than this factor (log) counts as this far.
_FURTHEST = 1.5
#: Standard deviations of a 95 % bound, and what a type's spread may be of that of other types.
_LEVEL, _NARROWEST, _WIDEST = 1.64, 0.5, 1.5
#: Kinds of jobs whose utilisation is remembered, the one seen last at the end.
_KINDS = 10_000

_Kind = tuple[str, str]  # type of GPU, kind of job


class Experience:
    """Log ratios of measured speed over time-shared speed, by type of GPU and namespace."""

    def __init__(self) -> None:
        self._ratios: dict[str, dict[str, dict[tuple[str, str], float]]] = {}
        self._utilisation: dict[_Kind, float] = {}
        self._lock = threading.Lock()

    def add(
        self,
        namespace: str,
        kind: str,
        gpu_model: str,
        utilisation_percent: float,
        neighbours: Sequence[Neighbour],
    ) -> None:
        """Take in a run of `kind` and how much its neighbours slowed it down."""
        gpu = type_name(gpu_model)
        with self._lock:
            self._utilisation.pop((gpu, kind), None)
            self._utilisation[gpu, kind] = utilisation_percent
            if len(self._utilisation) > _KINDS:
                del self._utilisation[next(iter(self._utilisation))]
            for neighbour in neighbours:
                other = self._utilisation.get((gpu, neighbour.kind))
                if neighbour.means is not Means.UTILISATION or other is None:
                    continue
                formula = float(time_shared_speed(utilisation_percent + other))
                ratio = -math.log1p(neighbour.slowdown) - math.log(formula)
                ratio = min(max(ratio, -_FURTHEST), _FURTHEST)
                own = self._ratios.setdefault(gpu, {}).setdefault(namespace, {})
                own.pop((kind, neighbour.kind), None)
                own[kind, neighbour.kind] = ratio
                if len(own) > _KEPT:
                    del own[next(iter(own))]

    def shift(self, gpu_model: str | None) -> float:
        """Return the log factor on time-shared speed for this type of GPU, 0 where none is known.

        It is the median over namespaces of their mean ratios, shrunk towards 0 by the number of
        pairs seen: n / (n + 8).
        """
        with self._lock:
            by_namespace = self._of(gpu_model)
            votes = [fmean(pairs.values()) for pairs in by_namespace.values()]
            seen = sum(len(pairs) for pairs in by_namespace.values())
        return median(votes) * seen / (seen + _PRIOR_PAIRS) if votes else 0.0

    def width(self, gpu_model: str | None, prior: float) -> float:
        """Return by how much the spread around the shifted formula is wider than `prior` (log).

        The spread is the root mean square of what is left of a namespace's ratios, times the 1.64
        standard deviations of a 95 % bound; the median over namespaces, shrunk as `shift` is.
        """
        with self._lock:
            by_namespace = [list(p.values()) for p in self._of(gpu_model).values()]
        spreads = [_LEVEL * pstdev(ratios) / prior for ratios in by_namespace if len(ratios) > 1]
        if not spreads:
            return 1.0
        seen = sum(map(len, by_namespace))
        shown = min(max(median(spreads), _NARROWEST), _WIDEST)
        return (seen * shown + _PRIOR_PAIRS) / (seen + _PRIOR_PAIRS)

    def _of(self, gpu_model: str | None) -> dict[str, dict[tuple[str, str], float]]:
        return self._ratios.get(type_name(gpu_model), {})

    def pairs(self, gpu_model: str | None) -> int:
        """Return how many pairs this type of GPU has shown."""
        with self._lock:
            return sum(len(p) for p in self._of(gpu_model).values())
