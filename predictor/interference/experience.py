"""Measured speeds of sharing jobs by type of GPU, against the time-sharing formula.

A type of GPU shifts all of its pairs, and each model that ran there has effects of its own on top.
Only slowdowns that the agents measured count, and only next to models whose utilisation was
measured too. Each namespace has one vote on a type of GPU, so that one tenant cannot change the
answers to others. Kept in memory: the service fills it from the stored observations at its start.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from statistics import fmean, median, pstdev
from typing import NamedTuple

from predictor.interference import effects
from predictor.interference.effects import Effect
from predictor.load.equations import taken_turns, time_shared_speed
from tandem.contracts.learning import Means, Neighbour
from tandem.gpu_types import type_name

#: Pairs after which what was shown counts as much as the formula ([OJPP] has no such figure; ours).
_PRIOR_PAIRS = 8.0
#: A namespace's latest pairs on a type of GPU that are kept.
_KEPT = 64
#: A pair further from the formula than this factor (log) counts as this far.
_FURTHEST = 1.5
#: Standard deviations of a 95 % bound, and what a type's spread may be of that of other types.
_LEVEL, _NARROWEST, _WIDEST = 1.64, 0.5, 1.5
#: Kinds of jobs whose utilisation is remembered, the one seen last at the end. Beyond it, the
#: namespace with most of them loses the one unseen for longest.
_KINDS = 10_000

_Kind = tuple[str, str]  # type of GPU, kind of job


class _Alone(NamedTuple):
    """A kind of job as it runs alone."""

    utilisation_percent: float
    iteration_s: float | None


class _Shown(NamedTuple):
    """A pair: log of measured over time-shared speed, and of what turns make of the latter."""

    ratio: float
    turns: float


class Experience:
    """Log ratios of measured speed over time-shared speed, by type of GPU and namespace."""

    def __init__(self) -> None:
        self._shown: dict[str, dict[str, dict[tuple[str, str], _Shown]]] = {}
        self._alone: dict[str, dict[_Kind, _Alone]] = {}  # by namespace
        self._namespaces_of: dict[_Kind, dict[str, None]] = {}
        self._kinds = 0  # in all namespaces
        # By type of GPU, model and namespace; fitted when it is asked for.
        self._effects: dict[str, dict[str, dict[str, Effect]]] = {}
        self._to_fit: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def add(
        self,
        namespace: str,
        kind: str,
        gpu_model: str,
        utilisation_percent: float,
        neighbours: Sequence[Neighbour],
        iteration_s: float | None = None,
    ) -> None:
        """Take in a run of `kind` and how much its neighbours slowed it down.

        A kind is a model, "@" and the configuration.
        """
        gpu = type_name(gpu_model)
        alone = _Alone(utilisation_percent, iteration_s)
        with self._lock:
            self._remember(namespace, (gpu, kind), alone)
            for neighbour in neighbours:
                other = self._as_all_saw((gpu, neighbour.kind))
                if neighbour.means is not Means.UTILISATION or other is None:
                    continue
                own = self._shown.setdefault(gpu, {}).setdefault(namespace, {})
                own.pop((kind, neighbour.kind), None)
                own[kind, neighbour.kind] = _compared(alone, other, neighbour.slowdown)
                self._to_fit.add((gpu, namespace))
                if len(own) > _KEPT:
                    del own[next(iter(own))]

    def _remember(self, namespace: str, kind: _Kind, alone: _Alone) -> None:
        own = self._alone.setdefault(namespace, {})
        self._kinds += own.pop(kind, None) is None
        own[kind] = alone
        self._namespaces_of.setdefault(kind, {})[namespace] = None
        if self._kinds <= _KINDS:
            return
        largest = max(self._alone, key=lambda name: len(self._alone[name]))
        oldest = next(iter(self._alone[largest]))
        del self._alone[largest][oldest]
        del self._namespaces_of[oldest][largest]
        if not self._namespaces_of[oldest]:
            del self._namespaces_of[oldest]
        self._kinds -= 1

    def _as_all_saw(self, kind: _Kind) -> _Alone | None:
        """Return a kind as it runs alone, the median over the namespaces in which it ran."""
        seen = [self._alone[name][kind] for name in self._namespaces_of.get(kind, ())]
        if not seen:
            return None
        times = [each.iteration_s for each in seen if each.iteration_s is not None]
        return _Alone(
            median(each.utilisation_percent for each in seen), median(times) if times else None
        )

    def effect(self, gpu_model: str | None, model: str) -> Effect:
        """Return what a model has shown on this type of GPU, on top of the shift; 0 if nothing.

        It is the median over the namespaces in which it ran.
        """
        gpu = type_name(gpu_model)
        with self._lock:
            for each in [each for each in self._to_fit if each[0] == gpu]:
                self._fit(*each)
            votes = list(self._effects.get(gpu, {}).get(model, {}).values())
        if not votes:
            return Effect()
        return Effect(median(v.own for v in votes), median(v.caused for v in votes))

    def _fit(self, gpu: str, namespace: str) -> None:
        """Fit the effects of a namespace's pairs anew."""
        self._to_fit.discard((gpu, namespace))
        by_model = self._effects.setdefault(gpu, {})
        for votes in by_model.values():
            votes.pop(namespace, None)
        shown = self._shown[gpu][namespace]
        seen = len(shown)
        shift = fmean(s.ratio for s in shown.values()) * seen / (seen + _PRIOR_PAIRS)
        left = [(_model(a), _model(b), s.ratio - s.turns - shift) for (a, b), s in shown.items()]
        for model, effect in effects.fitted(left).items():
            by_model.setdefault(model, {})[namespace] = effect

    def shift(self, gpu_model: str | None) -> float:
        """Return the log factor on time-shared speed for this type of GPU, 0 where none is known.

        It is the median over namespaces of their mean ratios, shrunk towards 0 by the number of
        pairs seen: n / (n + 8).
        """
        with self._lock:
            by_namespace = self._of(gpu_model)
            votes = [fmean(s.ratio for s in pairs.values()) for pairs in by_namespace.values()]
            seen = sum(len(pairs) for pairs in by_namespace.values())
        return median(votes) * seen / (seen + _PRIOR_PAIRS) if votes else 0.0

    def width(self, gpu_model: str | None, prior: float) -> float:
        """Return by how much the spread around the shifted formula is wider than `prior` (log).

        The spread is the root mean square of what is left of a namespace's ratios, times the 1.64
        standard deviations of a 95 % bound; the median over namespaces, shrunk as `shift` is.
        """
        with self._lock:
            by_namespace = [[s.ratio for s in p.values()] for p in self._of(gpu_model).values()]
        spreads = [_LEVEL * pstdev(ratios) / prior for ratios in by_namespace if len(ratios) > 1]
        if not spreads:
            return 1.0
        seen = sum(map(len, by_namespace))
        shown = min(max(median(spreads), _NARROWEST), _WIDEST)
        return (seen * shown + _PRIOR_PAIRS) / (seen + _PRIOR_PAIRS)

    def _of(self, gpu_model: str | None) -> dict[str, dict[tuple[str, str], _Shown]]:
        return self._shown.get(type_name(gpu_model), {})

    def pairs(self, gpu_model: str | None) -> int:
        """Return how many pairs this type of GPU has shown."""
        with self._lock:
            return sum(len(p) for p in self._of(gpu_model).values())


def _compared(own: _Alone, other: _Alone, slowdown: float) -> _Shown:
    """Compare a measured slowdown with the formula, in equal parts and in turns."""
    equal = float(time_shared_speed(own.utilisation_percent + other.utilisation_percent))
    ratio = -math.log1p(slowdown) - math.log(equal)
    turns = 0.0
    if own.iteration_s and other.iteration_s:
        turned = taken_turns([equal], [own.iteration_s], [other.iteration_s])[0, 0]
        turns = math.log(float(turned) / equal)
    return _Shown(min(max(ratio, -_FURTHEST), _FURTHEST), turns)


def _model(kind: str) -> str:
    return kind.partition("@")[0]
