"""Train the model of utilisation that ships with Tandem, from published measurements.

    python -m benchmarks.predictions.shipped DATA [--out predictor/data]

Everything that is measured of utilisation or of the time of a step is learned from, but for
input-bound jobs. A time of a step gives a derived share: the formula's busy time over it. The model
answers on the types of GPU on which it beats the formula on families that were left out. Where
pairs were measured on such a type, it must not choose worse partners than the formula does.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.interference import Matrix, measured_pairs
from benchmarks.predictions import loads
from benchmarks.predictions.loads import Floats
from benchmarks.predictions.measured import GAVEL, Measured, measured
from benchmarks.predictions.pairs import best_of, in_turns, rows_of, spearman
from benchmarks.predictions.utilisation import busy_percent, log_error
from predictor.artifacts import SHIPPED, Artifacts
from predictor.equations import time_shared_speed
from predictor.interference import PREDICTED_SLOPE
from predictor.load_evaluation import held_out, load_table, published_learner
from predictor.load_model import KIND, UTILISATION
from predictor.load_training import train_load
from predictor.profiles import Origin, Profile
from tandem.gpu_types import type_name

#: Where the rows are from, as the card says it.
SOURCES = {
    "miso": "github.com/boringlee24/socc22-miso, MIT: measured SM utilisation",
    "gavel": "github.com/stanford-futuredata/gavel, MIT: derived from measured times of a step",
    "pollux": "github.com/petuum/adaptdl, Apache-2.0: derived from measured times of a step",
    "salus": "github.com/SymbioticLab/Salus, Apache-2.0: derived from measured times of a step",
}


def learned_from(every: list[Measured]) -> list[Measured]:
    """Return the configurations of which utilisation is known and not set by an input pipeline."""
    known = [row for row in every if row.utilisation is not None or row.step_s is not None]
    return [row for row in known if not loads.is_input_bound(row)]


def profiles(rows: list[Measured]) -> list[Profile]:
    """Return the rows as profiles of nothing but utilisation, measured or derived."""
    return [
        profile.model_copy(
            update={
                "origin": Origin.MEASURED if row.utilisation is not None else Origin.DERIVED,
                "utilisation_percent": busy_percent(row),
                "memory_peak_bytes": None,
                "iteration_s": None,
            }
        )
        for row, profile in zip(rows, loads.profiles(rows), strict=True)
    ]


@dataclass(frozen=True)
class Partners:
    """How pairs of a type of GPU are priced by the utilisations of one method."""

    gpu: str
    method: str
    error: float  # mean absolute, of speed
    rank: float
    best: float


def partners(every: list[Measured], matrix: Matrix) -> list[Partners]:
    """Return how the measured pairs are priced by the formula's and by the model's utilisations.

    Of input-bound jobs as well: from their graphs nobody knows that they are. The model that
    predicts a job never saw its family.
    """
    rows = learned_from(every)
    asked = [row for row in every if row.source == "gavel"]
    everything = [*rows, *[row for row in asked if loads.is_input_bound(row)]]
    table = load_table(profiles(everything))
    learned = held_out(
        table, UTILISATION, published_learner(UTILISATION), np.arange(len(everything)),
        learned_from=np.arange(len(everything)) < len(rows),
    )  # fmt: skip
    said = {
        "formula": table.formula[UTILISATION], "model": learned,
    }  # fmt: skip
    index = {
        (type_name(row.gpu), row.model, row.batch): at
        for at, row in enumerate(everything)
        if row.source == "gavel"
    }
    priced = rows_of(measured_pairs(matrix, measured_solo=False))
    found = []
    for gpu in np.unique(priced.gpu):
        here = priced.of(priced.gpu == gpu)
        for method, percent in said.items():
            total = np.array(
                [
                    sum(percent[index[type_name(gpu), *_model(name)]] for name in names)
                    for names in here.names
                ]
            )
            speed: Floats = in_turns(here, time_shared_speed(total) ** PREDICTED_SLOPE)
            found.append(
                Partners(
                    type_name(gpu), method, float(np.abs(speed - here.speed).mean()),
                    spearman(speed, here.speed), best_of(here, speed),
                )
            )  # fmt: skip
    return found


def _model(name: str) -> tuple[str, int]:
    family, _, rest = name.partition(" (batch size ")
    return GAVEL[family][0], int(rest.rstrip(")") or 1)


def worse_partners(found: list[Partners]) -> set[str]:
    """Return the types of GPU on which the model's utilisations choose worse partners."""
    best = {(each.gpu, each.method): each.best for each in found}
    return {gpu for gpu, method in best if best[gpu, "model"] < best[gpu, "formula"]}


_NOTE = """### What ships, by type of GPU

The monotone XGBoost model of the share (`python -m benchmarks.predictions.shipped DATA`), in ten
folds of families: each configuration is predicted by a model that did not see its family. RMS of
log(predicted / measured or derived). *Better*: in how many families. Pairs are Gavel's measured
ones, priced from the graphs alone, input-bound jobs included. The model answers on the types of GPU
on which its error is less than the formula's and on which its utilisations do not choose worse
partners: {types}. On every other type the formula answers.

| type of GPU | shares | rows | families | formula | model | better |
|---|---|---|---|---|---|---|
"""
_PARTNERS_TITLE = """
| type of GPU | utilisations of | MAE of pairs' speed | rank correlation | best of 8 partners |
|---|---|---|---|---|
"""


_LESS_TITLE = """
How much the error of the measured utilisations depends on what is learned from:

| learned from | rows | error of the measured utilisations |
|---|---|---|
"""


def section(every: list[Measured], matrix: Matrix) -> str:
    """Return the errors by type of GPU, what they mean for pairs, and where the model answers."""
    rows = learned_from(every)
    table = load_table(profiles(rows))
    at = np.arange(len(rows))
    make = published_learner(UTILISATION)
    ours = held_out(table, UTILISATION, make, at)
    real, formula = table.measured[UTILISATION], table.formula[UTILISATION]
    gpu, lines = np.array([type_name(row.gpu) for row in rows]), []
    is_measured = np.array([row.utilisation is not None for row in rows])
    for name in np.unique(gpu):
        of = gpu == name
        families = np.unique(table.family[of])
        better = sum(
            log_error(real[one], ours[one]) < log_error(real[one], formula[one])
            for one in (of & (table.family == family) for family in families)
        )
        kind = "measured" if is_measured[of].all() else "derived"
        lines.append(
            f"| {name} | {kind} | {of.sum()} | {len(families)} | "
            f"{log_error(real[of], formula[of]):.2f} | {log_error(real[of], ours[of]):.2f} | "
            f"{better} of {len(families)} |"
        )
    priced = [
        f"| {p.gpu} | the {p.method} | {p.error:.3f} | {p.rank:+.2f} | {p.best:.0%} |"
        for p in partners(every, matrix)
    ]
    found = Artifacts(SHIPPED).load(KIND)
    types = found[1].details["types"][UTILISATION] if found else ["none"]
    less = []
    for what, kept in {
        "all": np.ones(len(rows), dtype=np.bool_),
        "measured utilisations alone": is_measured,
        **{f"all but {name}": gpu != name for name in np.unique(gpu[~is_measured])},
    }.items():
        said = held_out(table, UTILISATION, make, at, learned_from=kept)
        error = log_error(real[is_measured], said[is_measured])
        less.append(f"| {what} | {kept.sum()} | {error:.2f} |")
    head = _NOTE.format(types=", ".join(types)) + "\n".join(lines)
    return "\n".join([head, _PARTNERS_TITLE.rstrip(), *priced, _LESS_TITLE.rstrip(), *less])


def main() -> None:
    """Train, publish, and print the card's errors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=SHIPPED)
    options = parser.parse_args()
    every = loads.known(measured(options.data))
    matrix = json.loads((options.data / "colocation" / "gavel-oracle-v100-p100.json").read_text())
    pairs = partners(every, matrix)
    worse = worse_partners(pairs)
    about = {
        "sources": SOURCES,
        "partners": [each.__dict__ for each in pairs],
        "worse_partners_on": sorted(worse),
    }
    card = train_load(
        profiles(learned_from(every)), Artifacts(options.out), not_on=worse, about=about
    )
    print(card.model_dump_json(indent=1))


if __name__ == "__main__":
    main()
