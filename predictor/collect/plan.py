"""The plan of measurements, in order: pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from predictor.collect.catalog import MODELS, Model

PRECISIONS = ("fp32", "amp", "bf16")
OPTIMIZERS = ("sgd", "momentum", "adam")
#: How many configurations of each model are planned.
VARIANTS = 8
#: The share of the GPU's memory that jobs on it may take together by their solo peaks.
_SHARED_MEMORY = 0.85


@dataclass(frozen=True)
class Configuration:
    """One model as it is trained."""

    model: str
    batch: int
    precision: str
    optimizer: str
    sequence: int | None = None

    @property
    def key(self) -> str:
        """Its name in files."""
        length = f"s{self.sequence}|" if self.sequence else ""
        return f"{self.model}|b{self.batch}|{length}{self.precision}|{self.optimizer}"


def available(libraries: Iterable[str], pattern: str = "") -> list[Model]:
    """Return the models that can be built, plain ones first; `pattern` must be in their names."""
    found = [m for library in ("", *libraries) for m in MODELS[library]]
    return [m for m in found if re.search(pattern, m.name)]


def solo(models: Sequence[Model], variants: int = VARIANTS) -> Iterator[Configuration]:
    """Yield configurations, all models' first ones first: a run that is cut short has many models.

    Batches, precisions and optimisers take turns with different periods, so that each meets each.
    """
    seen = set()
    for variant in range(variants):
        for place, model in enumerate(models):
            batches = len(model.batches)
            lengths = model.sequences or (None,)
            made = Configuration(
                model.name,
                model.batches[(variant + place) % batches],
                PRECISIONS[(variant + variant // batches + place // batches) % 3],
                OPTIMIZERS[(2 * variant + variant // 3 + place) % 3],
                lengths[(variant // 2 + place) % len(lengths)],
            )
            if made.key not in seen:
                seen.add(made.key)
                yield made


def pair_key(first: str, second: str) -> str:
    """Return the name of an unordered pair."""
    return " + ".join(sorted((first, second)))


def next_group(
    memory_bytes: Mapping[str, int],
    families: Mapping[str, str],
    done: set[str],
    capacity: int,
    size: int,
) -> list[str]:
    """Return configurations to hold on the GPU together, so that many new pairs can be measured.

    Greedy: the one with the most partners not yet tried, then the one that fits next to it and adds
    the most new pairs, families not in the group first. Empty when nothing is left.
    """
    left = {
        key: sum(pair_key(key, other) not in done for other in memory_bytes) for key in memory_bytes
    }
    group: list[str] = []
    free = capacity * _SHARED_MEMORY
    while len(group) < size:
        best = max(
            (key for key in memory_bytes if key not in group and memory_bytes[key] <= free),
            key=lambda key: (
                sum(pair_key(key, other) not in done for other in group),
                families[key] not in {families[other] for other in group},
                left[key],
                -memory_bytes[key],
            ),
            default=None,
        )
        if best is None:
            break
        group.append(best)
        free -= memory_bytes[best]
    return group if any(True for _ in new_pairs(group, done)) else []


def new_pairs(group: Sequence[str], done: set[str]) -> Iterator[tuple[str, str]]:
    """Yield the pairs within a group that were not tried; none of a configuration with itself."""
    for first, second in combinations(group, 2):
        if pair_key(first, second) not in done:
            yield first, second
