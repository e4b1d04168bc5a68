"""Write docs/evidence/results/predictions.md: predictions for families and types of GPU left out.

    python -m studies.predictions DATA [--page FILE]

DATA has `loads`, `colocation` and `pollux`, which are no part of this repository. The models are
known by name and rebuilt as graphs (`studies.predictions.workloads`); their features are in
`features.json`. The scatter plots are written to `predictions.svg` in the page's folder.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from predictor.load import spread
from predictor.load.spread import conformal
from predictor.training.load_report import scatter
from studies.predictions import fallbacks, first, loads, pairs, shipped, training, utilisation
from studies.predictions.loads import Row
from studies.predictions.measured import Measured, measured, unused

Plots = dict[str, tuple[loads.Floats, loads.Floats, loads.Floats]]

_HEAD = """# Predictions outside the training data

Written by `python -m studies.predictions DATA --page docs/evidence/results/predictions.md`. All
figures are tuning figures: the formulas were adjusted while these data were in view. They are
**measured** by others, except where a table says **derived**. The data name their models only; each
model was rebuilt (`studies/predictions/workloads.py`), exported to ONNX, and read by the code that
serves pushes. What is learned is tested on families, or types of GPU, that it did not see.

![Predicted (dots) and upper bound (ticks) over measured](predictions.svg)

| data | configurations | what was measured | on |
|---|---|---|---|
"""
_MEMORY_NOTE = """The bar is an error of 0.30 with at most 3 % above p95. `miso` is what the growing
allocator of TensorFlow held, which doubles; `salus` what it had given out, without start-up,
regions and a search for algorithms. What TensorFlow's search for convolution algorithms takes
(2.6 GiB) was chosen on `miso`; one row chooses it on the other families. Rounding the need up to
the next power of two, as the allocator's regions grow, has an error of 0.38 so chosen: the need is
not known well enough. A linear fit of what `salus` measured on weights and activations has 0.29 on
families left out.
"""
_UTILISATION_NOTE = """All rows are of an A100. The bars are 0.50 from the graph and 0.35 after one
measured run. The lines of the formula's residual are learned from these rows alone; the model that
ships is learned from more (below).
"""
_BLIND_NOTE = """`alnair`: ten configurations of Keras' ResNet-50 and MobileNet on a P100, to
which nothing was adjusted. The size of the images (32) and the optimiser
(Adam) are assumptions, the utilisation is the highest of the run. The file has other models, partly
with frozen layers, whose graphs were not rebuilt.

| figure | rows | RMS of log(predicted / measured) | within a factor of 1.5 | above p95 | inside |
|---|---|---|---|---|---|"""
_INTERVAL_NOTE = """An interval is the estimate divided and multiplied by a factor. It is
conformal on families left out, of all data sets of a figure together: each family of a data set has
the same weight, and one more that is worse than all counts (`predictor/load/spread.py`). The bar is
85 to 95 % of unseen models. A family is inside or outside nearly as a whole, so that one of five
families is 20 %. After one run the logarithm is a multiple of a spread that grows with the distance
to that run. NCF is 21 of the 57 rows of `pollux`.
"""
_STEP_NOTE = """The recommender and A3C of `gavel` wait for their input or their environment.
"""


def _line(name: str, found: Sequence[Row], *, bound: bool = True) -> str:
    e = loads.errors(found)
    too_low = f"{e['too_low']:.0%}" if bound else "-"
    return f"| {name} | {len(found)} | {e['log_error']:.2f} | {e['within']:.0%} | {too_low} |"


_TITLE = (
    "| method | rows | RMS of log(predicted / measured) | within a factor of 1.5 | above p95 |\n"
    "|---|---|---|---|---|"
)


def _constant(found: Sequence[Row]) -> list[Row]:
    predicted = loads.left_out_constant(found)
    return [
        Row(row.family, row.measured, float(p), float(p))
        for row, p in zip(found, predicted, strict=True)
    ]


_Groups = dict[str, Sequence[Row]]


def families_of(groups: _Groups, without: str = "") -> dict[tuple[str, str], loads.Floats]:
    """Return log(measured / predicted) by data set and family, one family left out."""
    found: dict[tuple[str, str], loads.Floats] = {}
    for name, rows in groups.items():
        family, real, predicted, _ = loads.columns(rows)
        scores = np.log(np.maximum(real, 1e-9) / np.maximum(predicted, 1e-9))
        for each in np.unique(family):
            if each != without:
                found[name, str(each)] = scores[family == each]
    return found


def inside_of(groups: _Groups) -> dict[str, list[loads.Bools]]:
    """Return by data set and family, (rows,): whether the interval of the other families holds.

    A family is left out of all data sets at once.
    """
    inside: dict[str, list[loads.Bools]] = {name: [] for name in groups}
    every = families_of(groups)
    for family in sorted({family for _, family in every}):
        factor = conformal(list(families_of(groups, family).values()))
        for (name, each), scores in every.items():
            if each == family:
                inside[name].append(np.abs(scores) <= factor)
    return inside


def intervals(groups: _Groups) -> list[str]:
    """Return a line for each data set: how much of it the interval of the other families holds."""
    inside, lines = inside_of(groups), []
    total = [each for found in inside.values() for each in found]
    for name, found in [*inside.items(), *([("all", total)] if len(inside) > 1 else [])]:
        rows, families = np.concatenate(found).mean(), np.mean([each.mean() for each in found])
        lines.append(
            f"| {name} | {sum(map(len, found))} | {len(found)} | {rows:.0%} | {families:.0%} |"
        )
    return lines


def calibrated(every: Sequence[Measured]) -> dict[str, _Groups]:
    """Return the rows that calibrate the interval of each figure, by data set."""
    return {
        "Memory": {
            source: loads.memory([r for r in every if r.memory_bytes and r.source == source])
            for source in ("carma", "miso", "salus")
        },
        "Utilisation": {"miso": loads.utilisation([r for r in every if r.utilisation is not None])},
        "Time of a step": {
            source: loads.steps(
                [r for r in every if r.source == source and not loads.is_input_bound(r)]
            )
            for source in ("gavel", "pollux", "salus")
        },
    }


def calibrated_after_one_run(every: Sequence[Measured]) -> dict[str, _Groups]:
    """Return the same for extrapolations from one run, in units of the spread by distance."""

    def memory(source: str, used: float) -> _Groups:
        rows = [r for r in every if r.memory_bytes and r.source == source]
        return {
            source: loads.after_one_run_scores(
                rows, lambda r: r.memory_bytes,
                lambda p: (
                    p.load.memory_base_bytes + p.load.memory_peak_extra_bytes,
                    p.memory_interval_bytes,
                ),
                used,
            )
        }  # fmt: skip

    def steps(source: str, same: bool = True) -> list[Row]:
        rows = [r for r in every if r.step_s is not None and r.source == source]
        return loads.after_one_run_scores(
            rows, lambda r: r.step_s,
            lambda p: (p.load.iteration_s or 1.0, p.iteration_interval_s),
            spread.AFTER_STEP, same,
        )  # fmt: skip

    busy = [r for r in every if r.utilisation is not None]
    return {
        "Memory after one run, PyTorch": memory("carma", spread.AFTER_MEMORY),
        "Memory after one run, regions that double": memory("miso", spread.AFTER_REGIONS),
        "Utilisation after one run": {
            "miso": loads.after_one_run_scores(
                busy, lambda r: r.utilisation,
                lambda p: (p.load.utilisation_percent, p.utilisation_interval_percent),
                spread.AFTER_UTILISATION,
            )
        },
        "Time of a step after one run": {
            **{source: steps(source) for source in ("gavel", "pollux", "salus")},
            "gavel, another type of GPU": steps("gavel", same=False),
        },
    }  # fmt: skip


def _blind_section(rows: Sequence[Measured]) -> str:
    """Return how good the formulas are where nothing was adjusted."""
    lines = []
    for figure, found, factor in (
        ("memory", loads.memory(rows), spread.MEMORY),
        ("utilisation", loads.utilisation(rows), spread.UTILISATION),
    ):
        _, real, predicted, _ = loads.columns(found)
        inside = (np.abs(np.log(real / predicted)) <= factor).mean()
        lines.append(f"{_line(figure, found)} {inside:.0%} |")
    return "\n".join(["## Blind", "", _BLIND_NOTE, *lines])


#: What is in use for each figure: log of the factor, or multiple of the spread by distance.
USED = {
    "Memory": spread.MEMORY,
    "Utilisation": spread.UTILISATION,
    "Time of a step": spread.STEP,
    "Memory after one run, PyTorch": spread.AFTER_MEMORY,
    "Memory after one run, regions that double": spread.AFTER_REGIONS,
    "Utilisation after one run": spread.AFTER_UTILISATION,
    "Time of a step after one run": spread.AFTER_STEP,
}


def _interval_section(groups: dict[str, _Groups]) -> str:
    lines = []
    for figure, sets in groups.items():
        found = conformal(list(families_of(sets).values()))
        lines += [
            f"### {figure}: log {found:.2f} (in use: {USED[figure]:.2f})",
            "",
            "| data | rows | families | rows inside | inside, families of equal weight |",
            "|---|---|---|---|---|",
            *intervals(sets),
            "",
        ]
    return "\n".join(["## 90 % intervals", "", _INTERVAL_NOTE, *lines]).rstrip()


def _memory_section(every: Sequence[Measured], plots: Plots) -> str:
    lines = [_TITLE]
    for source in ("carma", "miso", "salus"):
        rows = [r for r in every if r.memory_bytes and r.source == source]
        found = loads.memory(rows)
        again = loads.after_one_run(
            rows,
            lambda r: r.memory_bytes,
            lambda said: (
                said.memory_base_bytes + said.memory_peak_extra_bytes,
                said.memory_p95_bytes,
            ),
        )
        lines += [
            _line(f"{source}: formula, from the graph", found),
            _line(f"{source}: constant (other families)", _constant(found), bound=False),
            *(
                [
                    _line(
                        f"{source}: formula, its search for algorithms from other families",
                        loads.search_left_out(rows),
                        bound=False,
                    )
                ]
                if source == "miso"
                else []
            ),
            _line(f"{source}: after one run at another batch size", again),
        ]
        plots[f"memory ({source})"] = loads.columns(found)[1:]
    return "\n".join(["## Memory", "", _MEMORY_NOTE, *lines])


def _utilisation_section(every: Sequence[Measured], plots: Plots) -> str:
    rows = [r for r in every if r.utilisation is not None]
    found = loads.utilisation(rows)
    again = loads.after_one_run(
        rows,
        lambda r: r.utilisation,
        lambda said: (said.utilisation_percent, said.utilisation_p95_percent),
    )
    plots["utilisation"] = loads.columns(found)[1:]
    lines = [
        _TITLE,
        _line("formula, from the graph", found),
        _line("constant (other families)", _constant(found), bound=False),
        _line("after one run at another batch size", again),
        training.utilisation_lines(rows),
    ]
    return "\n".join(["## Utilisation", "", _UTILISATION_NOTE, *lines])


def _step_section(every: Sequence[Measured], plots: Plots) -> str:
    lines = [_TITLE]
    for source in ("gavel", "pollux", "salus"):
        rows = [r for r in every if r.step_s is not None and r.source == source]
        lines.append(_line(f"{source}: formula, from the graph", loads.steps(rows), bound=False))
        for name, same in (("at another batch size", True), ("on another type of GPU", False)):
            again = loads.after_one_run(
                rows, lambda r: r.step_s, lambda said: (said.iteration_s or 1.0,) * 2, same
            )
            if again:
                lines.append(_line(f"{source}: after one run {name}", again, bound=False))
    rows = [r for r in every if r.step_s is not None and not loads.is_input_bound(r)]
    found = loads.steps(rows)
    plots["time of a step"] = loads.columns(found)[1:]
    lines += [
        _line("all but input-bound: formula, from the graph", found, bound=False),
        training.step_lines(rows),
    ]
    return "\n".join(["## Time of a step", "", _STEP_NOTE, *lines])


def main() -> None:
    """Print the page, or write it with its plots."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    every = loads.known(measured(options.data))
    blind = unused(options.data)
    matrix = json.loads((options.data / "colocation" / "gavel-oracle-v100-p100.json").read_text())
    plots: Plots = {}
    figures = calibrated(every) | calibrated_after_one_run(every)
    sections = [
        _HEAD + training.data_table(every),
        _memory_section(every, plots),
        _utilisation_section(every, plots),
        "### Other ways to learn it\n\n" + utilisation.section(utilisation.shares(every, blind)),
        shipped.section(every),
        first.section(matrix),
        _step_section(every, plots),
        _interval_section(figures),
        _blind_section(blind),
        pairs.page(matrix),
        fallbacks.section(matrix),
    ]
    page = "\n\n".join(sections) + "\n"
    if options.page:
        options.page.write_text(page)
        options.page.with_suffix(".svg").write_text(scatter(plots))
    print(page)


if __name__ == "__main__":
    main()
