"""Tiresias' Fig. 3 and 12: what consolidation is worth, by model and on its 480-job workload.

    python -m studies.papers.tiresias_placement [--seeds 3]

writes docs/evidence/results/tiresias-placement.md and its plots. Measured: [Gavel]'s consolidated
and unconsolidated rates on V100s, and [Pollux]' step times by placement.
"""

from __future__ import annotations

import ast
import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import plot
from benchmarks.pages import options, publish
from benchmarks.tables import Table, data_folder, markdown, spread
from studies.papers.pollux import APPLICATIONS
from studies.papers.pollux import folder as pollux_folder
from studies.papers.simulation import simulate
from studies.papers.tiresias import TESTBED, workload
from tandem.policy.catalog import Profile, load_profile
from tandem.policy.equations.tiresias import spread_price
from tandem.policy.job import Job
from tandem.policy.units import Floats
from tandem.simulator.outcome import Outcome
from tandem.simulator.spread import SpreadTable, load_spread, spread_slowdowns, stem
from tandem.simulator.truth import MemoryCourse, Truth

#: Skew of the ten models of Table 6; each has 48 of the 480 jobs.
SKEW = {
    "VGG19": 0.715, "VGG16": 0.743, "VGG11": 0.773, "AlexNet": 0.610, "ResNet152": 0.039,
    "ResNet101": 0.053, "ResNet50": 0.092, "Inception4": 0.036, "Inception3": 0.086,
    "GoogLeNet": 0.146,
}  # fmt: skip
PACK_LIMIT = 0.5
HURT = (
    0.1  # a measured model that loses more of its speed is called skewed: no file has its tensors
)
PAPER_MOST, PAPER_LIMITED = 1.67, 30


def gavel() -> Path:
    """Return the file of consolidated and unconsolidated rates."""
    return data_folder() / "colocation" / "gavel-simulation-v100-p100.json"


def gavel_rates(gpus: int) -> dict[str, float]:
    """Return rate spread over rate consolidated of each model, the median over its batches."""
    tables = json.loads(gavel().read_text())
    near, apart = tables["v100"], tables["v100_unconsolidated"]
    found: dict[str, list[float]] = {}
    for key in near.keys() & apart.keys():
        name, count = ast.literal_eval(key)
        if count == gpus and near[key]["null"] > 0:
            found.setdefault(stem(name), []).append(apart[key]["null"] / near[key]["null"])
    return {name: float(np.median(of)) for name, of in sorted(found.items())}


def pollux_rates(near: str, apart: str) -> dict[str, float]:
    """Return rate on placement `apart` over rate on `near`, the median over local batches.

    A placement has one digit a node: "4" is four GPUs of one node, "1111" one of each of four.
    """
    found = {}
    for name in APPLICATIONS:
        times: dict[str, dict[str, float]] = {}
        with (pollux_folder() / name / "placements.csv").open(newline="") as file:
            for row in csv.DictReader(file):
                times.setdefault(row["placement"], {})[row["local_bsz"]] = float(row["step_time"])
        both = times[near].keys() & times[apart].keys()
        found[name] = float(np.median([times[near][b] / times[apart][b] for b in both]))
    return found


@dataclass(frozen=True)
class Gangs:
    """The 480 jobs, and what is true of each when it is spread."""

    model: tuple[str, ...]
    skewed: tuple[bool, ...]  # as the placement sees it
    slowdown: Floats  # (jobs,) on more nodes than needed


def of_table_6(sizes: Sequence[int], rng: np.random.Generator) -> Gangs:
    """Give each of the ten models 48 jobs; what spreading costs is our price by skew."""
    names = np.array(list(SKEW))[rng.permutation(len(sizes)) % len(SKEW)]
    skew = np.array([SKEW[name] for name in names])
    slowdown = spread_price(skew, np.array(sizes))
    return Gangs(tuple(names), tuple((skew > PACK_LIMIT).tolist()), slowdown)


def of_gavel(table: SpreadTable, sizes: Sequence[int], rng: np.random.Generator) -> Gangs:
    """Draw a measured configuration for each job; what spreading costs is measured."""
    names = sorted({name for name, _ in table.slowdown})
    drawn = [names[i] for i in rng.integers(len(names), size=len(sizes))]
    true, _ = spread_slowdowns(table, drawn, sizes)
    return Gangs(tuple(drawn), tuple((true > HURT).tolist()), true)


def at_random() -> Profile:
    """Return `tiresias-l` without its placement: GPUs by a hash of job and GPU."""
    values = load_profile("tiresias-l").model_dump()
    values |= {"gather": {"kind": "best_scored"}, "scorers": [{"kind": "shuffled"}]}
    return Profile.model_validate(values)


def run(profile: Profile, gangs: Gangs, seed: int) -> Outcome:
    """Run the 480 jobs of a seed."""
    trace, count = workload(seed), len(gangs.model)
    gpus = TESTBED.count * TESTBED.gpus
    truth = Truth(
        slowdown=np.zeros((2, 2)),
        job_class=np.ones(count, dtype=np.int64),
        memory=[MemoryCourse(0.0, 0.0, 0.0)] * count,
        memory_gib=np.full(gpus, np.inf),
        gpu_utilisation=np.full(count, 100.0),
        spread_slowdown=gangs.slowdown,
    )
    believed = [
        Job(id=job.id, pods=job.gpus, queued_at_s=job.submit_s, skewed=skewed)
        for job, skewed in zip(trace, gangs.skewed, strict=True)
    ]
    return simulate(profile, TESTBED, trace, believed, truth, seed=seed)


def improvement(gangs: Gangs, seed: int) -> tuple[Floats, float]:
    """Return training time at random over Tiresias-L of each gang, and the same of mean JCTs."""
    placed, random = run(load_profile("tiresias-l"), gangs, seed), run(at_random(), gangs, seed)
    several = placed.gpus > 1
    ratio: Floats = (random.run_s / placed.run_s)[several]
    jct = (random.end_s - random.submit_s).mean() / (placed.end_s - placed.submit_s).mean()
    return ratio, float(jct)


def gangs_of(kind: str, seed: int) -> Gangs:
    """Return the models of a seed's jobs: of Table 6, or measured."""
    sizes, rng = [job.gpus for job in workload(seed)], np.random.default_rng([seed, 4])
    if kind == "Table 6":
        return of_table_6(sizes, rng)
    table = load_spread(gavel(), "v100")
    assert table is not None
    return of_gavel(table, sizes, rng)


def figure_12(seeds: Sequence[int]) -> str:
    """Return the table of Fig. 12, and draw it."""
    rows, samples = [], {}
    for kind in ("Table 6", "Gavel, measured"):
        found = [improvement(gangs_of(kind, seed), seed) for seed in seeds]
        ratio = np.concatenate([one[0] for one in found])
        samples[kind] = ratio
        share = [np.mean(ratio >= limit) for limit in (1.1, 1.3)]
        rows.append(
            [kind, f"{ratio.mean():.2f}", f"{np.percentile(ratio, 90):.2f}", f"{ratio.max():.2f}",
             *(f"{100 * s:.0f}" for s in share), f"{100 * np.mean(ratio < 1):.0f}",
             f"{np.mean([one[1] for one in found]):.2f}"]
        )  # fmt: skip
    rows.append(["paper", "-", "-", f"{PAPER_MOST}", "-", "-", f"< {PAPER_LIMITED}", "-"])
    plot.distributions("tiresias-placement-gain", samples, "training time, random over Tiresias-L")
    columns = ["models", "mean", "90th percentile", "most", "1.1 or more, %", "1.3 or more, %",
               "below 1, %", "mean JCT"]  # fmt: skip
    return markdown(columns, rows)


def rates_table(rates: Mapping[str, Mapping[str, float]]) -> str:
    """Return one row a model with the rate of each placement."""
    names = sorted({name for of in rates.values() for name in of})
    return markdown(
        ["rate over consolidated", *rates],
        [
            [name, *(f"{of[name]:.2f}" if name in of else "-" for of in rates.values())]
            for name in names
        ],
    )


def main() -> None:
    """Run everything; write the page and its plots."""
    arguments = options(__doc__, seeds=3)
    seeds = range(arguments.seeds)
    rates = {f"{n} GPUs": gavel_rates(n) for n in (2, 4, 8)}
    pollux = {
        "4 on 2 nodes": pollux_rates("4", "22"),
        "4 on 4 nodes": pollux_rates("4", "1111"),
        "8 on 4 nodes, not 2": pollux_rates("44", "2222"),
    }
    plot.bars(
        "tiresias-placement-rates",
        sorted(rates["8 GPUs"]),
        {n: [of.get(m, np.nan) for m in sorted(rates["8 GPUs"])] for n, of in rates.items()},
        "rate over consolidated (V100)",
    )
    by_model = rates_table(rates)
    publish(
        "tiresias-placement",
        PAGE,
        arguments,
        f"seeds 0 to {len(seeds) - 1} (Fig. 12)",
        gavel=by_model,
        **words(Table(by_model)),
        pollux=rates_table(pollux),
        figure_12=figure_12(seeds),
    )


def words(rates: Table) -> dict[str, str]:
    """Return the figures of the page's prose, from the table of Gavel's rates."""
    return {
        "language": spread(rates.across("LM"), ".2f"),
        "resnet": spread(rates.across("ResNet-50"), ".2f"),
    }


PAGE = """# Tiresias: consolidation

{made_by}

## By model (Fig. 3)

The paper runs four jobs of 8 workers on eight servers of 4 GPUs, with TensorFlow's parameter
servers: random placement slows down the VGG family and AlexNet, whose largest tensor holds most
of the model, and hardly the others. Its values are a picture. No public measurement has those
models by placement; these have others, with all-reduce.

Gavel on V100s, the median over batch sizes; spread is Gavel's *unconsolidated*:

{gavel}

![Rates by model](tiresias-placement-rates.svg)

Pollux' six applications on nodes of four GPUs of 2080 Ti class, the median over local batches:

{pollux}

As in the paper, it depends on the model: spread, the language model with its large embedding keeps
{language} of its rate, and ResNet-50 {resnet}. On Pollux' network of lower speed
four GPUs always lose on two nodes. Not as in the paper: eight GPUs are faster on four nodes than on
two, since four network cards serve them; the simulator knows only together and spread.

## Gain by placement (Fig. 12)

Tiresias-L with its placement, and with GPUs at random, on the 480 jobs of
[Tiresias](tiresias.md) and 15 x 4 GPUs. The ratio of the training times (on GPUs) of each gang.

- *Table 6*: the paper's ten models with 48 jobs each and their printed skews. What spreading costs
  is a model, our price 2 S (1 - 1 / n) of skew S on n GPUs ([equations](../../equations.md)).
- *Gavel, measured*: each job is a measured configuration, with its measured loss on its number of
  GPUs (8 above 8). It counts as skewed where it loses more than a tenth, since no file has tensors.

{figure_12}

![Distribution of the gain](tiresias-placement-gain.svg)

Reproduced: placement by skew shortens the training of gangs, by more than half for some, and few
gangs lose by it. Our most is above the paper's 1.67: on *Table 6* because the price is a model, on
*Gavel* because its rates on 8 V100s of one node are up to ten times those over a network.

A gang counts as spread where it is on more nodes than it needs; how many more makes no difference.
Preemptions are free, as in the paper's simulator.
"""

if __name__ == "__main__":
    main()
