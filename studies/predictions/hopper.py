"""Write docs/evidence/results/h100.md or h200.md: what one GPU shows of agent, loads and pairs.

    python -m studies.predictions.hopper {h100,h200} [--page FILE]

`h100.jsonl` is what `predictor.collect` measured there, `h100-agent.json` what
`python -m node_agent.check` found.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from predictor.interference.model import Interference
from predictor.interference.pairs import MeasuredPair
from predictor.load.model import ITERATION, MEMORY, UTILISATION, LearnedLoad, open_load
from predictor.load.predictor import Predictor
from predictor.load.sources import (
    Memory,
    Question,
    Utilisation,
    formula_memory,
    formula_utilisation,
)
from predictor.training.load_evaluation import load_table, rmsle
from predictor.training.profiles import Profile, read_measured_pairs, read_profiles, read_records
from studies.predictions import h100_mps
from tandem.contracts.prediction import InterferenceRequest
from tandem.contracts.resources import Load, Source

Floats = NDArray[np.float64]
Answer = TypeVar("Answer", Memory, Utilisation)
_FOLDER = Path(__file__).parent
#: What was measured is of one of these GPUs.
CARDS = ("h100", "h200")
#: Families of the collector that other data have by another name: to be left out together.
_FAMILIES = {
    "resnet": "ResNet", "bert": "BERT", "lstm": "LSTM", "vgg": "VGG", "mobilenet": "MobileNet",
    "inception": "Inception", "alexnet": "AlexNet", "deepspeech": "DeepSpeech2",
    "cyclegan": "CycleGAN", "a3c": "A3C", "ncf": "NCF", "efficientnet": "EfficientNet",
    "textcnn": "TextCNN", "unet": "U-Net",
}  # fmt: skip
_MILLISECONDS = 1e3


def collected(card: str) -> Path:
    """Return the file of what was measured on a card."""
    return _FOLDER / f"{card}.jsonl"


def profiles(card: str) -> list[Profile]:
    """Return the configurations that ran alone, families by the names of the other data."""
    return [
        profile.model_copy(update={"family": _FAMILIES.get(profile.family, profile.family)})
        for profile in read_profiles(collected(card))
    ]


def alone(card: str) -> dict[str, dict[str, Any]]:
    """Return the records of the configurations that ran alone, by key."""
    records = [record for _, record in read_records(collected(card))]
    return {str(r["key"]): r for r in records if r.get("kind") == "solo"}


def _header(card: str) -> dict[str, Any]:
    return next(read_records(collected(card)))[1]


def _found(card: str, what: str) -> dict[str, Any]:
    """Return what a check of the agent has found there."""
    found: dict[str, Any] = json.loads((_FOLDER / f"{card}-{what}.json").read_text())
    return found


# --- loads ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Said:
    """What is predicted of each configuration, (rows,): by figure, and the bound of memory."""

    figures: dict[str, Floats]
    memory_p95: Floats
    unlike: int  # configurations unlike all that was learned from: left to the formula


def said_of(measured: Sequence[Profile], model: LearnedLoad | None) -> Said:
    """Return what a model says of the configurations; without one, the formula."""
    memory: list[Memory] = []
    utilisation: list[Utilisation] = []
    for profile in measured:
        question = profile.question()
        memory.append(_first(question, formula_memory, model and model.memory))
        utilisation.append(_first(question, formula_utilisation, model and model.utilisation))
    return Said(
        {
            UTILISATION: np.array([found.mean for found in utilisation]),
            MEMORY: np.array([found.peak for found in memory]),
            ITERATION: np.array([_seconds(found) for found in utilisation]),
        },
        np.array([found.p95 for found in memory]),
        sum(found.out_of_distribution for found in utilisation),
    )


def _first(
    question: Question,
    formula: Callable[[Question], Answer | None],
    learned: Callable[[Question], Answer | None] | None,
) -> Answer:
    """Return the model's answer, or the formula's where it passes."""
    found = (learned(question) if learned else None) or formula(question)
    assert found is not None
    return found


def _seconds(found: Utilisation) -> float:
    assert found.step is not None
    return found.step.seconds


def load_rows(measured: Sequence[Profile]) -> list[str]:
    """Return a line for each figure and predictor: its error, and the share above its bound."""
    table = load_table(measured)
    lines = []
    for who, model in (("formula", None), ("the model that ships", open_load(None))):
        said = said_of(measured, model)
        for target, scale in ((UTILISATION, 1.0), (MEMORY, 1.0), (ITERATION, _MILLISECONDS)):
            real, found = table.measured[target] * scale, said.figures[target] * scale
            above = f"{(real > said.memory_p95).sum()} of {len(real)}" if target == MEMORY else "-"
            lines.append(
                f"| {target} | {who} | {rmsle(real, found):.2f} | "
                f"{float(np.median(found / real)):.2f} | {above} |"
            )
    return lines


def busy_rows(card: str) -> list[str]:
    """Return the formula's busy time of a step over the measured one, by precision."""
    measured, records = profiles(card), list(alone(card).values())
    busy = load_table(measured).formula
    said = busy[UTILISATION] / 100 * busy[ITERATION]
    real = np.array([record["details"]["activeS"] for record in records])
    lines = []
    for precision in ("fp32", "amp", "bf16"):
        of = np.array([profile.precision == precision for profile in measured])
        ratio = said[of] / real[of]
        low, middle, high = np.quantile(ratio, (0.25, 0.5, 0.75))
        lines.append(f"| {precision} | {of.sum()} | {low:.2f} | {middle:.2f} | {high:.2f} |")
    return lines


def both_rows() -> list[str]:
    """Return what an H200 takes over what an H100 takes: measured, and by the formula.

    Of the configurations that were measured on both: the median, and the middle half.
    """
    records = [alone(card) for card in CARDS]
    keys = [key for key in records[0] if key in records[1]]

    def ratio(kind: Callable[[dict[str, Any]], float]) -> str:
        first, second = (np.array([kind(each[key]) for key in keys]) for each in records)
        return _middle(second / first)

    formulas = []
    for card, known in zip(CARDS, records, strict=True):
        of = dict(zip(known, profiles(card), strict=True))
        formulas.append(load_table([of[key] for key in keys]).formula)
    steps = formulas[1][ITERATION] / formulas[0][ITERATION]
    busy = steps * formulas[1][UTILISATION] / formulas[0][UTILISATION]
    return [
        f"| time for which a step keeps the GPU busy | {ratio(lambda r: r['details']['activeS'])}"
        f" | {_middle(busy)} |",
        f"| time of a step | {ratio(lambda r: r['measured']['iterationS'])} | {_middle(steps)} |",
        f"| utilisation | {ratio(lambda r: r['measured']['utilisationPercent'])}"
        f" | {_middle(busy / steps)} |",
        f"| memory | {ratio(lambda r: r['measured']['memoryPeakBytes'])} | - |",
    ]


def _middle(ratio: Floats) -> str:
    low, middle, high = np.quantile(ratio, (0.25, 0.5, 0.75))
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


# --- pairs ------------------------------------------------------------------------------------


def after_a_run(load: Load, record: dict[str, Any]) -> Load:
    """Return a job's load once it has run alone: what the agent and the job say of it."""
    seen = record["measured"]
    return load.model_copy(
        update={
            "utilisation_percent": seen["utilisationPercent"],
            "utilisation_source": Source.OBSERVED,
            "iteration_s": seen["iterationS"],
        }
    )


def speeds(pairs: Sequence[MeasuredPair], load: Callable[[str, Load], Load]) -> tuple[Floats, ...]:
    """Return (pairs, 2): measured speeds, predicted ones, and their lower bounds.

    `load` returns what is known of a job by its key, given what is predicted of its graph.
    """
    pricing = Interference()
    real, said, bound = [], [], []
    for pair in pairs:
        first, second = (load(side.name, side.load) for side in (pair.first, pair.second))
        (found,) = pricing.answer(InterferenceRequest(job=first, candidates=[second])).pairs
        real.append((pair.first.speed, pair.second.speed))
        said.append((1 / (1 + found.job_slowdown), 1 / (1 + found.partner_slowdown)))
        bound.append((1 / (1 + found.job_slowdown_p95), 1 / (1 + found.partner_slowdown_p95)))
    return tuple(np.array(each) for each in (real, said, bound))


def pair_rows(card: str) -> list[str]:
    """Return a line for each thing that may be known of the jobs of a pair."""
    pairs, records = read_measured_pairs(collected(card), Predictor()), alone(card)
    ways: dict[str, Callable[[str, Load], Load]] = {
        "their graphs alone": lambda _, load: load,
        "one run of each alone": lambda key, load: after_a_run(load, records[key]),
    }
    lines = []
    for name, way in ways.items():
        real, said, bound = speeds(pairs, way)
        error, held = np.abs(real - said).mean(), (real >= bound).mean()
        rank = _rank_correlation(real.sum(axis=1), said.sum(axis=1))
        lines.append(f"| {name} | {error:.3f} | {rank:+.2f} | {held:.0%} |")
    return lines


def _rank_correlation(first: Floats, second: Floats) -> float:
    """Return Spearman's; ties get places in the order of the file."""
    ranks = [np.argsort(np.argsort(each, kind="stable")) for each in (first, second)]
    return float(np.corrcoef(*ranks)[0, 1])


# --- the page ---------------------------------------------------------------------------------

_HEAD = """# What one {name} showed

Written by `python -m studies.predictions.hopper {card} --page docs/evidence/results/{card}.md`. All
figures are **measured** on one {gpu} (driver {driver}, PyTorch {torch}, CUDA {cuda}, {date}), by
the agent's checks and the collector, in {minutes} minutes. {before}

## The node agent on the real driver

`python -m node_agent.check --seconds {course}`: processes with a known course of memory and of
active phases, the agent's readings and fits, and the guard on a GPU that fills up. {stand_in}
"""
_FOUND = """
| what | seen | to be | held |
|---|---|---|---|
"""
_LOADS = """
## Loads

{rows} configurations of {models} models and {families} families, each alone for 1.5 s
(`predictor/collect`); {known} of the families are in no data that anything was adjusted to{first}.
They run on one batch, which lies on the GPU: the formula is asked for a loop without input and
without a stall between steps. The bars: RMSLE 0.45 for utilisation, 0.25 for memory. The model that
ships has learned from no {name}, and leaves {unlike} of the configurations to the formula, since
they are unlike what it has learned from.
{memory}
| figure | predicted by | RMSLE | median of predicted / measured | above p95 |
|---|---|---|---|---|
"""
_BUSY = """
The time for which a step keeps the GPU busy is too short by the formula, in each precision: the
GPU reaches less of its data sheet than the older ones that the formula was adjusted to, and the
host starts kernels more slowly. The utilisation, which is the ratio of two times, is off by less.
Measured: a step queued as a whole before it starts (`details.activeS`). Predicted / measured:

| precision | rows | 25 % | median | 75 % |
|---|---|---|---|---|
"""
_PAIRS = """
## Pairs

{pairs} pairs of {jobs} of these configurations, by time slicing (no MPS), 1.5 s each. The kernels
of two processes take turns, which is what the formula of pairs says; its two numbers are from V100s
and P100s. A pair is priced when the predictor knows of both jobs:

| known of the jobs | mean absolute error of a speed | rank correlation of total speeds | speeds above their lower bound |
|---|---|---|---|
"""  # noqa: E501
_TAIL = """
To predict full speed for every job has an error of {none:.3f}. Measured speeds: mean {mean:.2f},
lowest {low:.2f}. The two jobs of a pair together do {total:.2f} times the work of one GPU in the
mean, {least:.2f} at least. The graphs alone assume a loop with input and a stall, which these jobs
do not have: their predicted utilisations are low, so all pairs look alike.
"""
_BOTH = """
## Against an H100

The same {rows} configurations on an [H100](h100.md), a day earlier: figures of the H200 over those
of the H100, the median and the middle half.

| figure | measured | by the formula |
|---|---|---|
"""
_BOTH_TAIL = """
An H200 computes as an H100 does, and its memory is 1.4 times as fast. Of that these loops have
next to nothing: the formula takes too many of their kernels for bound by memory. Steps took longer
here, although the GPU is busy for less: the host of this machine starts kernels more slowly, so
that the utilisation is lower. What a loop makes of a GPU depends on its host, which no data sheet
says; one run on the machine does.
"""
#: Families that published data have as well.
_KNOWN = frozenset(_FAMILIES.values())

_H100_COSTS = """
A call takes, in microseconds: {costs}.
A full reading, once a second, has each of them once. {cpu}
The agent asked for the room of each list anew then, and for the utilisation by process of each GPU.
It does neither now, which leaves out half of these calls, and more where no jobs share a GPU.
The driver's samples of utilisation are {sample:.0f} ms apart (167 ms on older boards).
"""
_H200_COSTS = """
A call takes, in microseconds: {costs}.
The readings took {cpu:.1f} % of a core on an idle GPU. The driver's samples of utilisation are
{sample:.0f} ms apart.

The row that did not hold was a fault of the agent: cycles of 0.5 s are two and a half of these
windows, no window lies in an idle phase, and the agent took the windows that have an idle phase in
them for full ones. It does not any more: a level below the highest samples is none, and no cycle is
shorter than two windows. The driver's samples of this course, recorded minutes later, are a test
(`tests/node_agent/h200-samples.json`), by which the ratio is within 10 % at each length of 40, 75
and 95 samples.

## What a job's own profile says

`python -m node_agent.check --profile`: training loops of PyTorch, one after the other. What
`tandem.progress.profile` says that the GPU was busy for, next to the kernels that CUDA's own
tracing saw of the same loop, and next to NVML's utilisation.
"""
_H200_PROFILE = """
The profile measures from the first forward pass to the step, and counts a GPU that waits for the
next small kernel as busy. It is right where kernels are large, with and without waiting for data,
and too high where a loop starts many small ones. A declared utilisation that is too high lets fewer
jobs share, and harms none; once the job has run, the agent's own measurement takes its place.
Tracing itself slows the loops of small kernels down, so that it shows less than NVML.
"""
_H100_MEMORY = """
Memory is what NVML says that a process holds. The collector of that day subtracted NVML's figure of
before, with the 480 MiB that the driver reserves, from CUDA's, which is without them. These 480 MiB
were added to each figure of the file afterwards, which then is within 3.5 MiB of NVML's own.
"""


def page(card: str) -> str:
    """Return the page."""
    header, agent, name = _header(card), _found(card, "agent"), card.upper()
    measured = profiles(card)
    pairs = read_measured_pairs(collected(card), Predictor())
    families = {profile.family for profile in measured}
    real, *_ = speeds(pairs, lambda _, load: load)
    total = real.sum(axis=1)
    first = card == CARDS[0]
    lines = [
        _HEAD.format(
            card=card, name=name, gpu=header["gpu"]["model"], date=header["startedAt"][:10],
            minutes=13 if first else 12, course=37 if first else 15,
            before="Predictions are those of before: nothing\nhere had been seen." if first
            else "Predictions are those of\nbefore: nothing was learned from it.",
            stand_in="What NVML\nanswers to each call that the agent makes (codes, sizes of lists,"
            " refusals) was compared with the\nstand-in of the tests: the stand-in refuses since"
            " then what this driver refuses." if first else "", **header["versions"],
        ).rstrip(),
        *_findings(agent),
        *(_h100_costs(agent) if first else _h200_costs(agent)),
        _LOADS.format(
            name=name, rows=len(measured), models=len({p.name for p in measured}),
            families=len(families), known=len(families - _KNOWN),
            first=", and no\nfigure had been measured on a Hopper GPU" if first else "",
            memory=_H100_MEMORY if first else "",
            unlike=said_of(measured, open_load(None)).unlike,
        ).rstrip(),
        *load_rows(measured),
        _BUSY.rstrip(),
        *busy_rows(card),
        _PAIRS.format(
            pairs=len(pairs), jobs=len({s.name for p in pairs for s in (p.first, p.second)})
        ).rstrip(),
        *pair_rows(card),
        _TAIL.format(
            none=np.abs(1 - real).mean(), mean=real.mean(), low=real.min(), total=total.mean(),
            least=total.min(),
        ).rstrip(),
    ]  # fmt: skip
    if not first:
        lines += [_BOTH.format(rows=len(measured)).rstrip(), *both_rows(), _BOTH_TAIL.rstrip()]
    else:
        alone_s = {key: row["measured"]["iterationS"] for key, row in alone(card).items()}
        lines.append(h100_mps.section(alone_s))
    return "\n".join([*lines, ""])


def _findings(check: dict[str, Any]) -> list[str]:
    return [
        _FOUND.rstrip(),
        *(
            f"| {f['what']} | {f['seen']} | {f['bar']} | {'yes' if f['held'] else '**no**'} |"
            for f in check["findings"]
        ),
    ]


def _h100_costs(agent: dict[str, Any]) -> list[str]:
    return [
        _H100_COSTS.format(
            costs=_calls(agent), cpu=h100_mps.cost(), sample=agent["sample_ms"]["median"]
        ).rstrip()
    ]


def _h200_costs(agent: dict[str, Any]) -> list[str]:
    return [
        _H200_COSTS.format(
            costs=_calls(agent), cpu=agent["cpu_percent"], sample=agent["sample_ms"]["median"]
        ).rstrip(),
        *_findings(_found("h200", "profile")),
        _H200_PROFILE.rstrip(),
    ]


def _calls(agent: dict[str, Any]) -> str:
    return ", ".join(f"{name} {us}" for name, us in agent["call_us"].items())


def main() -> None:
    """Print the page, or write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("card", choices=CARDS)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    text = page(options.card)
    if options.page:
        options.page.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
