"""Writes tandem/simulator/mix.json, the default mix of `tandem simulate --truth mix`.

    python -m studies.profiles.mix

Its configurations are those whose pairs the shipped interference model was trained on, of both
types of GPU. Their rates alone are those of the card; in pairs, those that the model gives.
"""

from __future__ import annotations

import json
import math
from itertools import pairwise

import numpy as np

from predictor.artifacts import serving
from predictor.interference.model import KIND, LearnedInterference, pair_features
from predictor.interference.stored import opened
from tandem.gpu_types import find_gpu
from tandem.simulator.mix import FILE

#: The batch sizes of the card's loads, in its order, by type of GPU and family.
_SMALL: list[tuple[str, tuple[int, ...]]] = [
    ("A3C", (4,)),
    ("CycleGAN", (1,)),
    ("LM", (10, 20, 40, 5, 80)),
    ("Recommendation", (1024, 2048, 4096, 512, 8192)),
    ("ResNet-18", (128, 16, 256, 32, 64)),
]
_TRANSFORMER = ("Transformer", (128, 16, 256, 32, 64))
_ORDER = {
    "P100": [*_SMALL, ("ResNet-50", (128, 16, 32, 64)), _TRANSFORMER],
    "V100": [*_SMALL, ("ResNet-50", (16, 32, 64)), _TRANSFORMER, ("ResNet-50", (128,))],
}


def tables() -> dict[str, dict[str, dict[str, object]]]:
    """Return the rates of each configuration alone and next to each other, steps/s, by GPU type."""
    found = serving(None, KIND)
    assert found is not None, "a model ships"
    parts, card = found
    trees = opened(parts, "speed")
    LearnedInterference(parts, card)  # its columns are the present ones
    loads = np.array(card.details["domain"]["loads"])
    made = {}
    for kind, rows in zip(_ORDER, np.split(loads, len(_ORDER)), strict=True):
        gpu = find_gpu(kind)
        names = _names(kind, rows)
        count = len(names)
        own = np.repeat(np.arange(count), count)
        partner = np.tile(np.arange(count), count)
        features = pair_features(rows[own], rows[partner], gpu).astype(np.float32)
        speed = trees.predict(features).clip(0.05, 1.0).reshape(count, count)
        alone = 10 ** -rows[:, 3]
        made[kind.lower()] = {
            name: {"null": _rate(alone[i])}
            | {
                other: [_rate(alone[i] * speed[i, j]), _rate(alone[j] * speed[j, i])]
                for j, other in enumerate(names)
            }
            for i, name in enumerate(names)
        }
    return made


def _names(kind: str, rows: np.ndarray) -> list[str]:
    """Return the names of the configurations; a larger batch of a family has a longer step."""
    known = [(family, batch) for family, batches in _ORDER[kind] for batch in batches]
    found = sorted(zip(known, rows[:, 3].tolist(), strict=True))
    for ((family, _), step), ((next_family, _), next_step) in pairwise(found):
        if family == next_family and next_step < step:
            raise ValueError(f"the loads of {family} on {kind} are in another order")
    return [f"{family} (batch size {batch})" for family, batch in known]


def _rate(value: float) -> float:
    return round(float(value), 4 - math.floor(math.log10(value)))


if __name__ == "__main__":
    FILE.write_text(json.dumps(tables(), indent=None, separators=(",", ":")) + "\n")
