"""Measured effects of each model next to others: its own slowdown, and theirs.

Of a measured pair, the logarithm of measured over predicted speed is the sum of two effects, one of
the job and one of its partner. Each is the mean of what the other leaves, shrunk towards 0 by the
number of its pairs: n / (n + 1).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

#: Pairs after which what a model has shown counts as much as the formula.
_PRIOR_PAIRS = 1.0
#: Rounds in which own and caused effects are fitted in turn; they change little after the second.
_ROUNDS = 3
#: No effect is larger (log): a factor of 2 in speed.
_LARGEST = 0.7


class Effect(NamedTuple):
    """Logarithms of speed: of the model next to others, and of others next to it."""

    own: float = 0.0
    caused: float = 0.0


def fitted(shown: Sequence[tuple[str, str, float]]) -> dict[str, Effect]:
    """Return the effects of each model from (job's model, partner's model, log ratio of speeds)."""
    own: dict[str, float] = {}
    caused: dict[str, float] = {}
    for _ in range(_ROUNDS):
        own = _means([(job, left - caused.get(other, 0.0)) for job, other, left in shown])
        caused = _means([(other, left - own.get(job, 0.0)) for job, other, left in shown])
    return {
        model: Effect(_bounded(own.get(model, 0.0)), _bounded(caused.get(model, 0.0)))
        for model in own.keys() | caused.keys()
    }


def _means(values: Sequence[tuple[str, float]]) -> dict[str, float]:
    by_model: defaultdict[str, list[float]] = defaultdict(list)
    for model, value in values:
        by_model[model].append(value)
    return {model: sum(left) / (len(left) + _PRIOR_PAIRS) for model, left in by_model.items()}


def _bounded(effect: float) -> float:
    return min(max(effect, -_LARGEST), _LARGEST)
