"""Measured co-location ([Gavel]'s throughput oracles) as the truth about pairs of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tandem.errors import TandemError, UsageError
from tandem.files import read_json
from tandem.policy.equations.horus import slowdown
from tandem.policy.units import Bools, Floats
from tandem.simulator.truth import MemoryCourse

_WANTED = 'Wanted: {"v100": {"model a": {"null": solo, "model b": [a\'s, b\'s]}}}, steps/s.'
_MOST_STEPS_S = 1e12
#: Room that pairs without a measurement lack at least, and measured ones have, GiB.
_MARGIN_GIB = 0.2


@dataclass(frozen=True, slots=True)
class PairMatrix:
    """Slowdown of each one-GPU configuration next to each other one, measured."""

    names: tuple[str, ...]
    slowdown: Floats  # (models, models) of row next to column, clipped at 0; inf: out of memory

    @property
    def fits(self) -> Bools:
        """True where the pair has been measured, (models, models)."""
        return np.isfinite(self.slowdown)

    def only(self, names: Sequence[str]) -> PairMatrix:
        """Return the matrix of some of its models, in the order of `names`."""
        at = [self.names.index(name) for name in names]
        return PairMatrix(tuple(names), self.slowdown[np.ix_(at, at)])


def load_matrix(path: Path, gpu: str = "v100") -> PairMatrix:
    """Read `{gpu: {a: {"null": solo, b: [a's, b's]}}}`, rates in steps/s; 0 is out of memory.

    `gpu` is the GPU type, whatever its case. Raises TandemError: where the file has no figures for
    that type, naming the types that it has; where the file is something else, naming file and
    field.
    """
    read = read_json(path, _WANTED)
    if not isinstance(read, dict):
        raise UsageError(f"{path} is no table of pair throughputs", _WANTED)
    tables = {str(kind).lower(): table for kind, table in read.items()}
    if gpu.lower() not in tables:
        available = ", ".join(sorted(tables)) or "none"
        raise TandemError(
            f"{path} has no pair throughputs for the GPU type {gpu!r}; it has: {available}",
            "Name one of these types in --cluster, such as 4x8:V100 or 4x8:K80-12G.",
        )
    try:
        table = tables[gpu.lower()]
        names = tuple(name for name in table if not name.startswith("(") or name.endswith(", 1)"))
        found = np.full((len(names), len(names)), np.inf)
        for i, name in enumerate(names):
            solo = rate(table[name]["null"])
            for j, other in enumerate(names):
                own, theirs = map(rate, table[name].get(other, (0, 0)))
                if own > 0 and theirs > 0:
                    if not solo:
                        raise ValueError(f"{name} runs in a pair, and has no rate alone")
                    # Rates, so times are upside down. They are capped in the file, and noisy:
                    # no neighbour speeds a job up.
                    found[i, j] = slowdown(np.array(solo), np.array(own))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path} is no table of pair throughputs for {gpu!r}: {error!r}", _WANTED
        ) from error
    if not names:
        raise UsageError(f"{path} names no model for {gpu!r}", _WANTED)
    # A pair is out of memory on both sides or on none.
    found[np.isinf(found.T)] = np.inf
    return PairMatrix(names, found)


def rate(value: object) -> float:
    """Return a rate in steps/s; raises ValueError for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("a rate of steps is a number from 0 on")
    if not 0 <= value <= _MOST_STEPS_S:
        raise ValueError(f"a rate of steps is from 0 to {_MOST_STEPS_S:g}")
    return float(value)


def load_matrices(path: Path, gpu_types: Sequence[str]) -> list[PairMatrix]:
    """Read the matrix of each GPU type, with the models that all of them have, in one order.

    Raises TandemError as `load_matrix` does, and where no model has been measured on all types.
    """
    found = [load_matrix(path, kind) for kind in gpu_types]
    common = [name for name in found[0].names if all(name in other.names for other in found)]
    if not common:
        raise UsageError(
            f"{path} has no model that was measured on all of {', '.join(gpu_types)}",
            "Simulate one GPU type at a time.",
        )
    return [matrix.only(common) for matrix in found]


def draw_memory(
    matrix: PairMatrix, capacity_gib: float, rng: np.random.Generator
) -> list[MemoryCourse]:
    """Draw a memory course for each model, consistent with which pairs could be measured.

    Synthetic: the files have no memory. Peaks start at 1-3 GiB, larger for models that fail next to
    many, and are moved until each pair that is out of memory exceeds the capacity with both peaks,
    and as many measured ones as possible stay within it (all cannot: the file's zeros, some of them
    unmeasured, obey no threshold). The level outside peaks is 60-90 % of the peak, the chance of a
    peak 0.05-0.3.
    """
    count = len(matrix.names)
    bad = ~matrix.fits
    # Models that fail next to many are the large ones.
    large = bad.sum(axis=1) / max(int(bad.sum(axis=1).max()), 1)
    peak = rng.uniform(1.0, 3.0, size=count) + 0.7 * capacity_gib * large
    step = 0.5
    for _ in range(400):
        total = peak[:, None] + peak[None, :]
        short = np.where(bad, np.maximum(capacity_gib + _MARGIN_GIB - total, 0), 0)
        over = np.where(~bad, np.maximum(total - capacity_gib + _MARGIN_GIB, 0), 0)
        if not short.any() and not over.any():
            break
        step *= 0.99
        peak += step * (short.max(axis=1) - 0.5 * over.max(axis=1))
        peak = peak.clip(0.5, capacity_gib - _MARGIN_GIB)
    for i, j in zip(*np.nonzero(np.triu(bad)), strict=True):
        lacking = capacity_gib + _MARGIN_GIB - peak[i] - peak[j]
        if lacking > 0:
            smaller = i if peak[i] < peak[j] else j
            peak[smaller] += lacking
    level = rng.uniform(0.6, 0.9, size=count)
    chance = rng.uniform(0.05, 0.3, size=count)
    return [
        MemoryCourse(float(p * f), float(p * (1 - f)), float(c))
        for p, f, c in zip(peak, level, chance, strict=True)
    ]


def draw_utilisation(matrix: PairMatrix, rng: np.random.Generator) -> Floats:
    """Return a GPU utilisation for each model in percent, (models,).

    Synthetic: what a model does to its neighbours on average, ranked, spread over 25-95 %, with
    noise of 5 points. A model that disturbs much is one that uses the GPU much.
    """
    fits = matrix.fits
    measured = fits.sum(axis=0)
    caused = np.where(fits, matrix.slowdown, 0.0).sum(axis=0)
    # A model that fits next to none is a large one: it ranks last.
    harm = np.where(measured > 0, caused / np.maximum(measured, 1), np.inf)
    rank = np.argsort(np.argsort(harm)) / max(len(harm) - 1, 1)
    drawn: Floats = (25 + 70 * rank + rng.normal(0, 5, size=len(harm))).clip(5, 100)
    return drawn
