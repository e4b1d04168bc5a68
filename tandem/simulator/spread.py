"""Measured cost of spreading a gang over nodes: [Gavel]'s consolidated and unconsolidated rates."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tandem.errors import UsageError
from tandem.files import read_json
from tandem.policy.units import Floats
from tandem.simulator.gavel import rate

_SUFFIX = "_unconsolidated"
_LONGEST = 512  # characters of a name that are read as Python writes a tuple


@dataclass(frozen=True, slots=True)
class SpreadTable:
    """Slowdown of each model on each number of GPUs when it is on more nodes than it needs."""

    slowdown: Mapping[tuple[str, int], float]  # by model and GPUs, clipped at 0

    def of(self, model: str, gpus: int) -> float:
        """Return what is true of a gang; 0 for one GPU.

        The number of GPUs is the smallest measured one that is no smaller, else the largest. A
        model that was not measured has the median of those that were.
        """
        size = self._size(gpus)
        if size is None:
            return 0.0
        found = self.slowdown.get((model, size))
        return self._median(size, ()) if found is None else found

    def predicted(self, model: str, gpus: int) -> float:
        """Return what is predicted of a gang without its own measurement.

        The geometric mean, of the time, over the other batch sizes of the model; without any, the
        median of the other models.
        """
        size = self._size(gpus)
        if size is None:
            return 0.0
        kin = [
            np.log1p(value)
            for (name, n), value in self.slowdown.items()
            if n == size and name != model and stem(name) == stem(model)
        ]
        return float(np.expm1(np.mean(kin))) if kin else self._median(size, (model,))

    def _size(self, gpus: int) -> int | None:
        sizes = sorted({n for _, n in self.slowdown})
        if gpus < 2 or not sizes:
            return None
        return next((n for n in sizes if n >= gpus), sizes[-1])

    def _median(self, size: int, without: Sequence[str]) -> float:
        values = [v for (name, n), v in self.slowdown.items() if n == size and name not in without]
        return float(np.median(values)) if values else 0.0


def stem(name: str) -> str:
    """Return the name of a model without its batch size: ResNet-50 (batch size 16) and (32)."""
    return name.strip("('").split(" (")[0]


def load_spread(path: Path, gpu: str) -> SpreadTable | None:
    """Read the rates of gangs under `GPU` and `GPU_unconsolidated`; None where there are none.

    The file is that of the pairs: `{gpu: {"('model', GPUs)": {"null": steps/s}}}`. `load_matrix`
    has found the pairs of `gpu` readable. Raises UsageError where the gangs are not.
    """
    tables = {str(kind).lower(): table for kind, table in read_json(path).items()}
    near, apart = tables.get(gpu.lower()), tables.get(gpu.lower() + _SUFFIX)
    if near is None or apart is None:
        return None
    found: dict[tuple[str, int], float] = {}
    try:
        for key in near.keys() & apart.keys():
            name, gpus = model_and_gpus(key)
            if gpus < 2:
                continue
            together, spread = rate(near[key]["null"]), rate(apart[key]["null"])
            if together > 0 and spread > 0:
                found[name, gpus] = max(together / spread - 1, 0.0)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path} has no table of gangs for {gpu!r}: {error!r}",
            f'Wanted: {{"{gpu}{_SUFFIX}": {{"(\'model\', 2)": {{"null": steps/s}}}}}}.',
        ) from error
    return SpreadTable(found) if found else None


def model_and_gpus(key: str) -> tuple[str, int]:
    """Return model and GPUs of a name such as `('a', 2)`; any other one is of a model alone."""
    found = None
    with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        found = ast.literal_eval(key) if key.startswith("(") and len(key) < _LONGEST else None
    match found:
        case (str(name), int(gpus)) if not isinstance(gpus, bool):
            return name, gpus
    return key, 0


def spread_slowdowns(
    table: SpreadTable, models: Sequence[str], gpus: Sequence[int]
) -> tuple[Floats, Floats]:
    """Return what is true of each gang, and what is predicted of it, (jobs,) both.

    `models` are names as the matrix of pairs has them, with or without the number of GPUs.
    """
    names = [model_and_gpus(name)[0] for name in models]
    true = np.array([table.of(name, n) for name, n in zip(names, gpus, strict=True)])
    predicted = np.array([table.predicted(name, n) for name, n in zip(names, gpus, strict=True)])
    return true, predicted
