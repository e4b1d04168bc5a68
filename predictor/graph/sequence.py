"""Features at another sequence length, from the quadratics that were fitted when it was pushed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tandem.contracts.resources import GraphFeatures

#: What depends on the length of a sequence: linearly, or (attention) as its square.
_SCALED = (
    "flops", "backward_flops", "elementwise_flops", "bytes_moved",
    "activation_bytes", "saved_activation_bytes", "largest_activation_bytes", "kernels",
)  # fmt: skip
_FLOPS = frozenset(_SCALED[:4])
#: A graph is also read at these multiples of the first length, to fit the quadratics.
FURTHER_LENGTHS = (2, 4)


def scaling(samples: Sequence[GraphFeatures]) -> dict[str, list[float]]:
    """Return [c0, c1, c2] of each feature through its figures at three lengths.

    Sums over a graph's nodes are quadratics in the length, so three lengths give them exactly; the
    largest activation is a maximum, and comes near.
    """
    lengths = [float(s.sequence_length or 0) for s in samples]
    return {
        name: _quadratic(lengths, [float(getattr(s, name)) for s in samples]) for name in _SCALED
    }


def at_sequence(features: GraphFeatures, length: int) -> tuple[GraphFeatures, str]:
    """Return the features at a length, and a remark where the graph does not say them."""
    if length == features.sequence_length:
        return features, ""
    if not features.sequence_scaling:
        return features, "the graph fixes its shapes, so the sequence length makes no difference"
    changed: dict[str, object] = {"sequence_length": length}
    for name, (c0, c1, c2) in features.sequence_scaling.items():
        if name in _SCALED:
            figure = max(c0 + c1 * length + c2 * length * length, 0.0)
            changed[name] = figure if name in _FLOPS else math.ceil(figure)
    return features.model_copy(update=changed), ""


def _quadratic(x: Sequence[float], y: Sequence[float]) -> list[float]:
    """Return the coefficients of the quadratic through three points (Newton's form)."""
    first = (y[1] - y[0]) / (x[1] - x[0])
    second = ((y[2] - y[1]) / (x[2] - x[1]) - first) / (x[2] - x[0])
    return [
        y[0] - first * x[0] + second * x[0] * x[1],
        first - second * (x[0] + x[1]),
        second,
    ]
