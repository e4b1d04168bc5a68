"""Train the load model that ships with Tandem, from published measurements.

    python -m studies.predictions.shipped DATA [--out predictor/data]

It learns what to correct of the formula's memory, utilisation and time of a step, from everything
that is measured of them, but for input-bound jobs. A time of a step gives a derived utilisation:
the formula's busy time over it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from predictor.artifacts import SHIPPED, Artifacts
from predictor.load.memory import Setup, formula_levels
from predictor.load.model import ELSEWHERE, ITERATION, MEMORY, UTILISATION
from predictor.training.load import MIN_FAMILIES_OF_TYPE, train_load
from predictor.training.load_evaluation import (
    LoadTable,
    held_out,
    held_out_corrections,
    load_table,
    published_learner,
    rmsle,
    types_of,
    weigh,
)
from predictor.training.profiles import Origin, Profile
from studies.predictions import loads
from studies.predictions.features import features
from studies.predictions.loads import Floats
from studies.predictions.measured import Measured, measured
from studies.predictions.utilisation import busy_percent, log_error
from tandem.contracts.prediction import Framework
from tandem.gpu_types import type_name

#: Below it figures are seconds, whose error of log1p says nothing.
_SECONDS = 60.0

#: Where the rows are from, as the card says it.
SOURCES = {
    "miso": "github.com/boringlee24/socc22-miso, MIT: measured SM utilisation and memory",
    "gavel": "github.com/stanford-futuredata/gavel, MIT: measured times of a step; "
    "utilisation derived",
    "pollux": "github.com/petuum/adaptdl, Apache-2.0: measured times of a step; "
    "utilisation derived",
    "salus": "github.com/SymbioticLab/Salus, Apache-2.0: measured times of a step; "
    "utilisation and memory derived",
    "carma": "github.com/itu-rad/CARMA, Apache-2.0: measured memory",
}


def learned_from(every: list[Measured]) -> list[Measured]:
    """Return the configurations whose pace is not known to be set outside of the graph."""
    return [row for row in every if not loads.is_input_bound(row)]


def profiles(rows: list[Measured]) -> list[Profile]:
    """Return the rows as profiles: what was measured, and what follows from it.

    Utilisation is derived where a time of a step was measured. Memory of `salus`, which an
    allocator had given out, is derived: by the formula's ratio of what a process takes to that.
    """
    return [
        profile.model_copy(
            update={
                "origin": Origin.DERIVED if is_derived(row) else Origin.MEASURED,
                "utilisation_percent": busy_percent(row) if has_utilisation(row) else None,
                "memory_peak_bytes": memory_of_process(row),
            }
        )
        for row, profile in zip(rows, loads.profiles(rows), strict=True)
    ]


def has_utilisation(row: Measured) -> bool:
    """Whether the utilisation of a configuration is known, measured or derived."""
    return row.utilisation is not None or row.step_s is not None


def is_derived(row: Measured) -> bool:
    """Whether the utilisation of a configuration is derived, from the time of a step."""
    return row.utilisation is None and row.step_s is not None


def memory_of_process(row: Measured) -> int | None:
    """Return the peak of a configuration's process, bytes."""
    if row.memory_bytes is None:
        return None
    if row.source != "salus":
        return round(row.memory_bytes)
    used = loads.in_use(row)
    setup = Setup(optimizer=row.optimizer, framework=Framework(row.framework))
    whole = formula_levels(features()[row.model], row.batch, setup)
    ratio = (whole.fixed + whole.varying) / (used.fixed + used.varying)
    return round(row.memory_bytes * ratio)


_NOTE = """## What ships, by type of GPU

One XGBoost model (`python -m studies.predictions.shipped DATA`) has learned what to correct of
the formula; *weight* is how much of that corrects it on a type. *Families*: each configuration is
predicted by a model that did not see its family. *And types*: nor its type of GPU, with
the weight of types without training data ({elsewhere}). The weights were chosen on these rows.
RMSLE, as the bars are: 0.45 for utilisation, 0.25 for memory. Memory of `salus` is derived from
what the allocator had given out.

| figure | type of GPU | figures | rows | families | formula | families | and types | weight |
|---|---|---|---|---|---|---|---|---|
"""
_LESS_TITLE = """
How much the error of the measured utilisations depends on what is learned from (all of what was
learned, families left out):

| learned from | rows | RMS of log(predicted / measured) |
|---|---|---|
"""


def _enough(table: LoadTable, rows: NDArray[np.intp]) -> Callable[[NDArray[np.bool_]], bool]:
    return lambda of: len(set(table.family[rows][of])) >= MIN_FAMILIES_OF_TYPE


def by_type(every: list[Measured]) -> list[Errors]:
    """Return the errors of each figure on each type of GPU, as the model that ships is trained."""
    rows = learned_from(every)
    table = load_table(profiles(rows))
    derived = np.array([is_derived(row) for row in rows])
    used = np.array([row.source == "salus" for row in rows])
    found = []
    for target in (UTILISATION, MEMORY, ITERATION):
        at = table.rows(target)
        make = published_learner(target)
        parts = (
            held_out_corrections(table, target, make, at),
            held_out_corrections(table, target, make, at, types_too=True),
        )
        how = weigh(table, target, at, parts, _enough(table, at))
        real, types = table.measured[target][at], types_of(table)[at]
        follows = {UTILISATION: derived, MEMORY: used}.get(target, np.zeros(len(rows), np.bool_))
        kind = np.where(follows[at], "derived", "measured")
        for name in np.unique(types):
            of = types == name
            found.append(
                Errors(
                    target, str(name), str(kind[of][0]), int(of.sum()),
                    len(set(table.family[at][of])), how.weights[str(name)],
                    how.weights[ELSEWHERE],
                    *(
                        log_rms(real[of], said[of])
                        for said in (table.formula[target][at], how.inside, how.outside)
                    ),
                )
            )  # fmt: skip
    return found


def log_rms(measured: Floats, predicted: Floats) -> float:
    """Return the root mean squared error of log1p, seconds as milliseconds."""
    scale = 1000.0 if measured.max() < _SECONDS else 1.0
    return rmsle(measured * scale, predicted * scale)


@dataclass(frozen=True)
class Errors:
    """RMSLE of a figure on a type of GPU, and how much of what was learned corrects it."""

    figure: str
    gpu: str
    kind: str
    rows: int
    families: int
    weight: float
    elsewhere: float
    formula: float
    families_out: float
    types_out: float


def section(every: list[Measured]) -> str:
    """Return the errors by type of GPU, and what they depend on."""
    errors = by_type(every)
    elsewhere = ", ".join(
        f"{figure} {e.elsewhere:.0%}" for figure, e in {e.figure: e for e in errors}.items()
    )
    lines = [
        f"| {e.figure} | {e.gpu} | {e.kind} | {e.rows} | {e.families} | {e.formula:.2f} | "
        f"{e.families_out:.2f} | {e.types_out:.2f} | {e.weight:.0%} |"
        for e in errors
    ]
    rows = [row for row in learned_from(every) if has_utilisation(row)]
    table = load_table(profiles(rows))
    is_measured = np.array([row.utilisation is not None for row in rows])
    gpu = np.array([type_name(row.gpu) for row in rows])
    real, at = table.measured[UTILISATION], np.arange(len(rows))
    less = []
    for what, kept in {
        "all": np.ones(len(rows), dtype=np.bool_),
        "measured utilisations alone": is_measured,
        **{f"all but {name}": gpu != name for name in np.unique(gpu[~is_measured])},
    }.items():
        said = held_out(table, UTILISATION, published_learner(UTILISATION), at, learned_from=kept)
        error = log_error(real[is_measured], said[is_measured])
        less.append(f"| {what} | {kept.sum()} | {error:.2f} |")
    head = _NOTE.format(elsewhere=elsewhere) + "\n".join(lines)
    return "\n".join([head, _LESS_TITLE.rstrip(), *less])


def main() -> None:
    """Train, publish, and print the card's errors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=SHIPPED)
    parser.add_argument("--profiles", type=Path, help="write what is learned from there")
    options = parser.parse_args()
    rows = profiles(learned_from(loads.known(measured(options.data))))
    if options.profiles:
        options.profiles.write_text("".join(json.dumps(row.wire()) + "\n" for row in rows))
    card = train_load(
        rows,
        Artifacts(options.out),
        about={"sources": SOURCES},
    )
    print(card.model_dump_json(indent=1))


if __name__ == "__main__":
    main()
