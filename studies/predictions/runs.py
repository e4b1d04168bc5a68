"""What 200 runs of mixed models teach about a type of GPU that no learned model knows.

    python -m studies.predictions.runs DATA [--runs 260] [--seeds 3]

Two models at a time run next to each other, drawn from Gavel's pairs of one type of GPU. Each run
is predicted before it is fed back, as the service and the scheduler do: observed loads, loads
extrapolated from other batch sizes, what the type of GPU has shown, and pairs that met before.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.tables import markdown
from predictor.interference.experience import Experience
from predictor.interference.model import Interference
from predictor.interference.pairs import MeasuredJob, MeasuredPair
from predictor.load.observed import add_run
from predictor.load.predictor import Predictor
from studies.predictions.features import features
from studies.predictions.interference import Matrix, measured_pairs
from studies.predictions.loads import Floats
from studies.predictions.measured import GAVEL, P100, V100
from tandem.contracts.learning import Means, Neighbour
from tandem.contracts.prediction import (
    Feedback,
    InterferenceRequest,
    PairSlowdown,
    PredictRequest,
)
from tandem.contracts.resources import Load, ModelProfileStatus

_BOARDS = {"v100": V100, "p100": P100}
_GIB = 1024**3
_AT = "2026-01-01T00:00:00Z"
#: Runs of the first day, and those after which errors are to have halved.
FIRST, TAUGHT = 30, 200

_NOTE = f"""Gavel's pairs of one type of GPU in random order, no learned model; each run is
predicted before it is fed back (`python -m studies.predictions.runs DATA`). Means over {{seeds}}
orders of {{runs}} runs. The speeds are **measured**, the utilisations **derived** from measured
steps without noise. A pair that met before counts as it was measured, and after {TAUGHT} runs every
configuration has run once. The bar: after {TAUGHT} runs at most half of the errors of the first
{FIRST}.
"""


class Cluster:
    """What the predictor and the scheduler remember of a type of GPU."""

    def __init__(self, board: str) -> None:
        self._board = board
        self._experience = Experience()
        self._pricing = Interference(None, self._experience)
        self._observed: dict[str, ModelProfileStatus] = {}
        self._met: dict[tuple[str, str], tuple[float, float]] = {}

    def load(self, name: str) -> Load:
        """Return the predicted load of a configuration."""
        model, batch = _model(name)
        request = PredictRequest(model=model, batch_size=batch, gpu_model=self._board)
        seen = self._observed.get(model)
        return (
            Predictor()
            .predict(request, features()[model], model, seen.observed if seen else ())
            .load
        )

    def speeds(self, first: str, second: str) -> tuple[float, float]:
        """Return the speeds of both next to each other, as measured before or as predicted."""
        if (first, second) in self._met:
            return self._met[first, second]
        (pair,) = self.price(self.load(first), [self.load(second)])
        return 1 / (1 + pair.job_slowdown), 1 / (1 + pair.partner_slowdown)

    def price(self, job: Load, candidates: list[Load]) -> list[PairSlowdown]:
        """Return what the service says of a job next to each candidate."""
        request = InterferenceRequest(job=job, candidates=candidates, gpu_model=self._board)
        return self._pricing.answer(request).pairs

    def feed_back(self, pair: MeasuredPair) -> None:
        """Take in what both runs have shown."""
        for side, other in ((pair.first, pair.second), (pair.second, pair.first)):
            self.ran(side.name, side.load, {other.name: max(1 / side.speed - 1, 0.0)})
        self._met[pair.first.name, pair.second.name] = (
            min(pair.first.speed, 1.0), min(pair.second.speed, 1.0)
        )  # fmt: skip

    def ran(self, name: str, alone: Load, slowdowns: Mapping[str, float] | None = None) -> None:
        """Take in a run, as it is alone, and its measured slowdown next to each neighbour."""
        model, batch = _model(name)
        used, step_s = alone.utilisation_percent, alone.iteration_s
        assert step_s is not None
        run = Feedback(
            model=model, batch_size=batch, gpu_model=self._board, memory_base_bytes=_GIB,
            memory_peak_bytes=_GIB, utilisation_percent=used, iterations_per_second=1 / step_s,
        )  # fmt: skip
        status = self._observed.get(model, ModelProfileStatus())
        self._observed[model] = add_run(status, model, run, _AT)
        neighbours = [
            Neighbour(
                kind="{}@{}".format(*_model(other)), slowdown=slowdown, means=Means.UTILISATION
            )
            for other, slowdown in (slowdowns or {}).items()
        ]
        self._experience.add("team", f"{model}@{batch}", self._board, used, neighbours, step_s)


def _model(name: str) -> tuple[str, int]:
    family, _, rest = name.partition(" (batch size ")
    return GAVEL[family][0], int(rest.rstrip(")") or 1)


def errors(pairs: list[MeasuredPair], board: str, runs: int, seed: int) -> Floats:
    """Return (runs, 2): error of the utilisations (log) and of the speeds of each run's pair."""
    rng = np.random.default_rng(seed)
    cluster, found = Cluster(board), []
    for index in rng.integers(len(pairs), size=runs):
        pair = pairs[int(index)]
        sides = (pair.first, pair.second)
        busy = [_off(cluster.load(side.name), side) for side in sides]
        said = cluster.speeds(pair.first.name, pair.second.name)
        speed = [abs(s - min(side.speed, 1.0)) for s, side in zip(said, sides, strict=True)]
        found.append((np.mean(busy), np.mean(speed)))
        cluster.feed_back(pair)
    return np.array(found)


def _off(load: Load, side: MeasuredJob) -> float:
    return abs(math.log(max(load.utilisation_percent, 0.1) / side.load.utilisation_percent))


def section(matrix: Matrix, runs: int, seeds: int) -> str:
    """Return the section of the page."""
    lines = [
        "## Learning on a type of GPU that no model knows",
        "",
        _NOTE.format(seeds=seeds, runs=runs),
    ]
    columns = ["type of GPU", "what", f"first {FIRST} runs", f"after {TAUGHT} runs", "share"]
    rows = []
    for gpu, board in _BOARDS.items():
        pairs = [p for p in measured_pairs(matrix, measured_solo=True) if p.gpu_model == gpu]
        found = np.mean([errors(pairs, board, runs, seed) for seed in range(seeds)], axis=0)
        for at, what in enumerate(("utilisation, log", "speed of a pair")):
            first, taught = found[:FIRST, at].mean(), found[TAUGHT:, at].mean()
            rows.append([gpu, what, f"{first:.3f}", f"{taught:.3f}", f"{taught / first:.0%}"])
    return "\n".join([*lines, markdown(columns, rows)]) + "\n"


def main() -> None:
    """Print the section."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--runs", type=int, default=260)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    matrix = json.loads((options.data / "colocation" / "gavel-oracle-v100-p100.json").read_text())
    print(section(matrix, options.runs, options.seeds))


if __name__ == "__main__":
    main()
