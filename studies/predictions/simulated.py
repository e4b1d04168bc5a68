"""The simulator with what the shipped predictor says of real graphs, and with its own errors.

    python -m studies.predictions.simulated [--seeds 3] [--jobs 240]

Policies read the loads that the extender derives from the predictor's answer. Pairs are priced as
in a cluster that has measured no pair. There are two truths. On V100 and P100 the pairs and the
times of a step are **measured** (Gavel); the load model is trained again without the family of each
job, since it has learned from these. On every other type nothing was measured: there the truth is
the demo's, nine models with loads that were **chosen by hand** and a published curve.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.pages import made_by, write
from benchmarks.tables import Table, data_folder, markdown
from predictor.artifacts import serving
from predictor.interference.model import Interference
from predictor.load.model import KIND, LearnedLoad, open_predictor
from predictor.load.predictor import Predictor
from predictor.training.load_evaluation import LoadTable, fit, load_table, published_learner
from predictor.trees import in_json, stored
from scheduler_extender.cluster.jobs import policy_job
from studies.predictions import first, loads
from studies.predictions.features import features
from studies.predictions.interference import load_of
from studies.predictions.measured import GAVEL, INPUT_BOUND, P100, V100, measured
from studies.predictions.shipped import learned_from, profiles
from studies.predictions.unseen import memory_factors
from studies.profiles.workloads import measured_trace
from tandem.contracts.prediction import InterferenceRequest, PredictRequest
from tandem.contracts.resources import Demand, Load
from tandem.policy.catalog import Profile, load_profile
from tandem.policy.job import Job
from tandem.policy.units import Floats
from tandem.simulator.cluster import Nodes, gpu_arrays, parse_cluster
from tandem.simulator.engine import Engine, RunOptions
from tandem.simulator.gavel import load_matrix
from tandem.simulator.jobs import TraceJob
from tandem.simulator.report import Report, report
from tandem.simulator.run import learner_of
from tandem.simulator.truth import MemoryCourse, Truth
from tandem.simulator.world import World, with_reserved_classes
from tandem_demo.physics import slowdown

PAGE = "simulated-predictions"
TRACES = ("philly-103959", "philly-ed69ec", "philly-0e4a51", "muri-trace3")
BASE = "tiresias-l-list"
#: What they are called on the page: profile, and shares of a GPU where not the profile's own.
SYSTEMS: dict[str, tuple[str, int | None]] = {
    "tandem": ("tandem", None),
    "horus": ("horus", None),
    "ojpp": ("ojpp", None),
    "ojpp, 2 shares": ("ojpp", 2),
    "sjf-bsbf *": ("sjf-bsbf", None),
    "xonar": ("xonar", None),
}
_NODES, _NODE_GPUS, _LOAD = 4, 8, 1.0
_RESERVED = 2  # interference classes before the first kind of job: none, unknown
_MATRIX = Path("colocation") / "gavel-oracle-v100-p100.json"
_MEASURED = {"V100": V100, "P100": P100}
#: Types of GPU on which no pair was measured, by the names that NVML gives them, and their GiB.
_CHOSEN = {"T4": ("Tesla T4", 16.0), "L4": ("NVIDIA L4", 24.0), "A10": ("NVIDIA A10", 24.0)}
_CPUS = 2.0  # of a pod of the demo
_PREEMPTION_COST_S = 60.0
#: Columns of the table of outcomes.
_MEAN, _COST, _SPEED = "mean, predicted", "cost of errors", "speed, predicted"


@dataclass(frozen=True)
class Kind:
    """One kind of job on one type of GPU: what is said of it, and what is true."""

    name: str
    load: Load
    utilisation: float  # percent
    memory: MemoryCourse
    step_ratio: float  # the predicted time of a step, as a multiple of the true one


@dataclass(frozen=True)
class Workload:
    """What jobs do on a type of GPU.

    `slowdown` and `predicted` are (kinds, kinds): that of the row next to the column.

    Where a pair could not be measured `slowdown` is infinite: it is out of memory.
    """

    gpu: str
    nodes: Nodes
    truth: str
    kinds: tuple[Kind, ...]
    slowdown: Floats
    predicted: Floats


class Run(NamedTuple):
    """One run of the page."""

    gpu: str
    trace: str
    seed: int
    system: str
    predicted: bool  # or the truth


# --- what is said, and what is true ---------------------------------------------------------------


@cache
def _learned_rows() -> LoadTable:
    return load_table(profiles(learned_from(loads.known(measured(data_folder())))))


@cache
def without(family: str) -> Predictor:
    """Return the shipped predictor as it is where `family` was never measured.

    Its weights and bounds are those of the card, which were chosen by families left out.
    """
    found = serving(None, KIND)
    assert found is not None, "a model ships"
    parts, card = found
    table = _learned_rows()
    trained: dict[str, bytes] = {}
    for target in in_json(parts):
        rows = table.rows(target)
        rows = rows[table.family[rows] != family]
        learner = published_learner(target)()
        fit(learner, table.columns[rows], table.learned(target)[rows], table.balance(rows))
        trained |= stored(target, learner.get_booster())  # type: ignore[attr-defined]
    model = LearnedLoad(trained, card)
    return Predictor([model.memory], [model.utilisation])


def predicted_slowdowns(said: Sequence[Load], gpu: str) -> Floats:
    """Return (kinds, kinds): what a cycle plans with where no pair was ever measured."""
    pricing, candidates = Interference(), list(said)
    found = np.empty((len(said), len(said)))
    for own, load in enumerate(said):
        request = InterferenceRequest(job=load, candidates=candidates, gpu_model=gpu)
        for neighbour, pair in enumerate(pricing.answer(request).pairs):
            found[own, neighbour] = pair.planned[0]
    return found


def measured_workload(kind: str, seed: int) -> Workload:
    """Return Gavel's configurations on V100 or P100; memory is synthetic, drawn with `seed`.

    The peak of a configuration is what the predictor plans with for it, divided by one of the
    ratios of that bound to the measured peak of a process, of other configurations.
    """
    gpu, nodes = _MEASURED[kind], parse_cluster(f"{_NODES}x{_NODE_GPUS}:{kind}")
    matrix = load_matrix(data_folder() / _MATRIX, kind.lower())
    solo = json.loads((data_folder() / _MATRIX).read_text())[kind.lower()]
    over = np.random.default_rng(seed).choice(_memory_factors(), len(matrix.names))
    kinds = []
    for name, factor in zip(matrix.names, over.tolist(), strict=True):
        family_name, _, batch = name.partition(" (batch size ")
        model, family = GAVEL[family_name]
        request = PredictRequest(
            model=model, batch_size=int(batch.rstrip(")") or 1), gpu_model=gpu,
            gpu_memory_bytes=round(nodes.memory_gib * 2**30),
        )  # fmt: skip
        load = without(family).predict(request, features()[model], model).load
        rate = float(solo[name]["null"])
        peak = load.memory_p95_bytes / 2**30 / factor
        extra = load.memory_peak_extra_bytes / (
            load.memory_base_bytes + load.memory_peak_extra_bytes
        )
        course = MemoryCourse(peak * (1 - extra), peak * extra, load.peak_probability)
        busy = load_of(name, kind.lower(), rate)[1].utilisation_percent
        assert load.iteration_s is not None
        kinds.append(Kind(name, load, busy, course, load.iteration_s * rate))
    predicted = predicted_slowdowns([each.load for each in kinds], gpu)
    return Workload(kind, nodes, "measured pairs", tuple(kinds), matrix.slowdown, predicted)


@cache
def _memory_factors() -> Floats:
    return memory_factors(data_folder())


def chosen_workload(kind: str) -> Workload:
    """Return the demo's nine models on a type of GPU, with loads that were chosen by hand."""
    gpu, memory_gib = _CHOSEN[kind]
    jobs = first.jobs()
    said = first.loads_of(open_predictor(None), gpu, _CPUS)
    kinds = tuple(
        Kind(name, load, job.utilisation, _course(job.memory_gib, job.peak_extra_gib), 1.0)
        for (name, job), load in zip(jobs.items(), said, strict=True)
    )
    busy = [float(each.utilisation) for each in kinds]
    true = np.array([[slowdown(own, own + other) - 1 for other in busy] for own in busy])
    nodes = Nodes(_NODES, _NODE_GPUS, kind, memory_gib)
    return Workload(kind, nodes, "chosen by hand", kinds, true, predicted_slowdowns(said, gpu))


def _course(base_gib: float, extra_gib: float) -> MemoryCourse:
    return MemoryCourse(base_gib, extra_gib, 1 / 6)  # as the demo's jobs have it


def workload(kind: str, seed: int) -> Workload:
    """Return what jobs do on a type of GPU."""
    return measured_workload(kind, seed) if kind in _MEASURED else chosen_workload(kind)


# --- runs -----------------------------------------------------------------------------------------


def world(work: Workload, trace: Sequence[TraceJob], *, predicted: bool, seed: int) -> World:
    """Return a world whose jobs are drawn of the kinds with `seed`.

    Policies read what is predicted, or with `predicted` false the truth.
    """
    of = np.random.default_rng(seed).integers(len(work.kinds), size=len(trace))
    kinds = [work.kinds[i] for i in of]
    truth = Truth(
        slowdown=with_reserved_classes(work.slowdown, unknown=0.0),
        job_class=of + _RESERVED,
        memory=[kind.memory for kind in kinds],
        memory_gib=np.full(_NODES * _NODE_GPUS, work.nodes.memory_gib),
        gpu_utilisation=np.array([kind.utilisation for kind in kinds], dtype=np.float64),
        preemption_cost_s=_PREEMPTION_COST_S,
    )
    slowdowns = (
        work.predicted if predicted else np.where(np.isfinite(work.slowdown), work.slowdown, 1.0)
    )
    table = with_reserved_classes(slowdowns, unknown=np.inf)
    believed = []
    for job, kind, row in zip(trace, kinds, (of + _RESERVED).tolist(), strict=True):
        known = _as_extender(job, kind) if predicted else _as_it_is(job, kind)
        believed.append(
            replace(
                known, model=kind.name, spread_slowdown=0.0, interference_class=row,
                own_slowdown=table[row], caused_slowdown=table[:, row],
            )
        )  # fmt: skip
    return World(trace, truth, believed)


def _as_extender(job: TraceJob, kind: Kind) -> Job:
    """Return the job as the extender makes it of the predicted load."""
    demand = Demand(gpus_per_pod=1, gang_size=job.gpus, checkpoint=True)
    made = policy_job(job.id, demand, kind.load, queued_at_s=job.submit_s)
    return replace(made, remaining_s=job.duration_s * kind.step_ratio)


def _as_it_is(job: TraceJob, kind: Kind) -> Job:
    return Job(
        id=job.id, pods=job.gpus, queued_at_s=job.submit_s, checkpointable=True,
        memory_base_gib=kind.memory.base_gib, memory_peak_extra_gib=kind.memory.peak_extra_gib,
        peak_probability=kind.memory.peak_probability, gpu_utilisation=kind.utilisation,
        remaining_s=job.duration_s,
    )  # fmt: skip


def profile_of(system: str) -> Profile:
    """Return the profile of a system of the page."""
    if system == BASE:
        return load_profile(BASE)
    name, shares = SYSTEMS[system]
    profile = load_profile(name)
    return profile if shares is None else profile.model_copy(update={"max_jobs_per_gpu": shares})


def run(
    work: Workload, trace: tuple[TraceJob, ...], system: str, *, predicted: bool, seed: int
) -> Report:
    """Run one system; it learns from pairs that run, as in a cluster."""
    started = time.perf_counter()
    profile = profile_of(system)
    gpus = gpu_arrays([work.nodes], shares=profile.max_jobs_per_gpu)
    here = world(work, trace, predicted=predicted, seed=seed)
    options = RunOptions(learner=learner_of(profile, here))
    outcome = Engine(
        trace, here.believed, gpus, profile, here.truth, seed=seed, options=options
    ).run()
    return report(outcome, here.truth, len(gpus), time.perf_counter() - started)


def runs(gpu: str, seed: int, jobs: int) -> dict[Run, Report]:
    """Run everything that the page shows of a type of GPU with a seed."""
    work, found = workload(gpu, seed), {}
    for name in TRACES:
        trace = measured_trace(name, jobs=jobs, gpus=_NODES * _NODE_GPUS, load=_LOAD)
        for system, predicted in [(BASE, False), *product(SYSTEMS, (True, False))]:
            key = Run(gpu, name, seed, system, predicted)
            found[key] = run(work, trace, system, predicted=predicted, seed=seed)
    return found


# --- the page -------------------------------------------------------------------------------------


class Figures:
    """All reports, by run."""

    def __init__(self, reports: dict[Run, Report]) -> None:
        self._reports = reports
        self.seeds = sorted({run.seed for run in reports})
        self.types = list(dict.fromkeys(run.gpu for run in reports))

    def ratio(self, gpu: str, system: str, figure: str, *, predicted: bool) -> dict[str, float]:
        """Return a figure over that of `BASE` on the same jobs, mean over the seeds, by trace."""
        found = {}
        for trace in TRACES:
            each = [
                getattr(self._reports[Run(gpu, trace, seed, system, predicted)], figure)
                / getattr(self._reports[Run(gpu, trace, seed, BASE, False)], figure)
                for seed in self.seeds
            ]
            found[trace] = float(np.mean(each))
        return found

    def mean(self, gpu: str, system: str, *, predicted: bool) -> float:
        """Return the geometric mean over the traces of the ratio of completion times."""
        ratios = self.ratio(gpu, system, "avg_jct_s", predicted=predicted)
        return float(np.exp(np.mean(np.log(list(ratios.values())))))

    def every(self, gpu: str, system: str, *, predicted: bool) -> list[Report]:
        """Return the reports of a system on a type of GPU."""
        return [
            found
            for run, found in self._reports.items()
            if (run.gpu, run.system, run.predicted) == (gpu, system, predicted)
        ]


def outcomes(figures: Figures) -> str:
    """Return the table of outcomes."""
    rows = []
    for gpu, system in product(figures.types, SYSTEMS):
        said, true = (figures.mean(gpu, system, predicted=each) for each in (True, False))
        tails = figures.ratio(gpu, system, "p99_jct_s", predicted=True)
        every = figures.every(gpu, system, predicted=True)
        speed, at_best = (
            np.mean([run.mean_speed for run in figures.every(gpu, system, predicted=each)])
            for each in (True, False)
        )
        rows.append(
            [
                gpu, system, f"{said:.3f}", f"{true:.3f}", f"{said / true - 1:+.1%}",
                f"{max(tails.values()):.2f}", f"{speed:.3f}", f"{at_best:.3f}",
                str(sum(each.ooms for each in every)),
            ]
        )  # fmt: skip
    columns = [
        "type of GPU", "system", _MEAN, "mean, true", _COST, "p99, worst trace", _SPEED,
        "speed, true", "OOMs",
    ]  # fmt: skip
    return markdown(columns, rows)


def findings(found: Table) -> str:
    """Return what the table of outcomes says, in words."""
    types = list(dict.fromkeys(row.partition(", ")[0] for row in found.rows))
    blind = [system for system in SYSTEMS if not system.endswith("*")]
    least = []
    for gpu in types:
        means = {system: found.figure(f"{gpu}, {system}", _MEAN) for system in blind}
        best = min(means, key=means.__getitem__)
        least.append(f"{best} on {gpu} ({means[best]:.3f})")

    def of(system: str, column: str, form: str) -> str:
        each = ((gpu, found.figure(f"{gpu}, {system}", column)) for gpu in types)
        return ", ".join(f"{figure:{form}} on {gpu}" for gpu, figure in each)

    return textwrap.fill(
        f"Least mean of those that know no durations: {', '.join(least)}. What the predictor's"
        f" errors cost `tandem`, in percent: {of('tandem', _COST, '+.1f')}. Its jobs that ran out"
        f" of memory: {of('tandem', 'OOMs', '.0f')}. Speed of a job under `ojpp`, which shares only"
        " what adds up to a GPU by predicted utilisation (1.000 where it shares nothing):"
        f" {of('ojpp', _SPEED, '.3f')}.",
        100,
    )


def errors(works: Sequence[Workload]) -> str:
    """Return how far what is said is from what is true, by type of GPU."""
    rows = []
    for work in works:
        kinds = work.kinds
        busy = [np.log(k.load.utilisation_percent / k.utilisation) for k in kinds]
        computing = [off for k, off in zip(kinds, busy, strict=True) if not waits_for_input(k)]
        step = [np.log(k.step_ratio) for k in kinds]
        bound = [k.load.memory_p95_bytes / 2**30 / k.memory.peak_gib for k in kinds]
        known = np.isfinite(work.slowdown)
        off = np.abs((1 + work.predicted[known]) / (1 + work.slowdown[known]) - 1)
        total, true = (1 / (1 + table) for table in (work.predicted, work.slowdown))
        gain = (true + true.T >= 1.1) & known
        may = (total + total.T >= 1.1)[gain].mean() if gain.any() else float("nan")
        bounds = np.array([k.load.memory_p95_bytes / 2**30 for k in kinds])
        fits = bounds[:, None] + bounds <= work.nodes.memory_gib
        failed = np.triu(~known)
        has_steps = work.gpu in _MEASURED
        rows.append(
            [
                work.gpu, work.truth, str(len(kinds)), f"{_rms(busy):.2f}",
                f"{_rms(computing):.2f}",
                f"{_rms(step):.2f}" if has_steps else "-", f"{np.median(bound):.2f}",
                f"{off.mean():.0%}", f"{gain[known].mean():.0%}", f"{may:.0%}",
                f"{failed.sum()}", f"{(failed & ~fits).sum()}",
            ]
        )  # fmt: skip
    columns = [
        "type of GPU", "truth", "kinds of jobs", "utilisation, log", "but of input-bound",
        "time of a step, log",
        "bound of memory over peak", "pairs, time", "pairs that gain", "of these may share",
        "pairs out of memory", "of these predicted",
    ]  # fmt: skip
    return markdown(columns, rows)


def waits_for_input(kind: Kind) -> bool:
    """Whether the pace of a kind of job is known to be set outside of its graph."""
    measured_as = GAVEL.get(kind.name.partition(" (")[0])
    return measured_as is not None and measured_as[1] in INPUT_BOUND


def _rms(values: Sequence[float]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


_TEXT = """# The shipped predictor in the simulator

{made_by} {count} runs.

The other pages of results tell policies the truth with an error that the papers, or measurements of
others, give. Here policies read what the **shipped predictor** says of real graphs before any
of the jobs has run, by the function with which the extender makes a job of a predicted load, and
pairs are priced as on a type of GPU on which none of them was ever measured. What runs then is
another matter:

- V100 and P100: Gavel's 26 configurations of seven models, with **measured** pairs and times of a
  step; utilisation is **derived** from these. The load model has learned from these configurations,
  so it is trained again for each job without its family; the model of pairs that ships has learned
  from these pairs, so it is left out. Memory is **synthetic**: what the predictor plans with, off
  by as much as it is off on other configurations whose process was measured.
- T4, L4 and A10: no pairs were measured there. Nine models of the demo, whose loads were
  **chosen by hand**, slow one another down by Horus' over-commit curve. How long a job takes is
  known there as well as its user says it.

The first {jobs} jobs of each of four traces ({traces}) on {nodes} nodes of {gpus} GPUs, arrivals
stretched to a load of {load:g}, kinds of jobs drawn with the seed. Agents warn and evict no pod, as
the chart has it, and no job lets its batch be split. Measured slowdowns of pairs that run correct
the predictions of `tandem`, as in a cluster; utilisation and memory stay as first predicted to the
end, which a cluster measures after some minutes.

## Errors

Utilisation and time of a step: root mean square of log(predicted / true). Pairs: mean relative
error of the time next to a neighbour that is planned with (the bound that nine in ten pairs exceed
in speed, so that it is high on purpose). *May share*: of the pairs that truly gain a tenth of a
GPU, those that are planned to. *Out of memory*: pairs of which Gavel's file has no rates; they fail
here, though the file does not say whether they ran out of memory or were left out. *Predicted* are
those whose bounds of memory do not fit together; the others are what can fail below. Seed 0.

{errors}

## Outcomes

Mean completion time relative to `{base}`, which shares nothing and predicts nothing, on the same
jobs: geometric mean over the traces of the means over the seeds. *Predicted* and *true* say what
the policies read. `*` knows how many iterations a job has; their time is predicted.

{outcomes}

{findings}
"""


def _of(jobs: int, which: tuple[str, int]) -> dict[Run, Report]:
    return runs(*which, jobs)


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=240)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    types = [*_MEASURED, *_CHOSEN]
    made: dict[Run, Report] = {}
    with ProcessPoolExecutor(options.processes) as pool:
        for found in pool.map(partial(_of, options.jobs), product(types, range(options.seeds))):
            made |= found
            print(*next(iter(found))[:3], file=sys.stderr, flush=True)
    table = outcomes(Figures(made))
    command = f"python -m studies.predictions.simulated --seeds {options.seeds}"
    if options.jobs != parser.get_default("jobs"):
        command += f" --jobs {options.jobs}"
    write(
        PAGE,
        _TEXT.format(
            made_by=made_by(command, f"seeds 0 to {options.seeds - 1}"),
            count=len(made),
            jobs=options.jobs,
            traces=", ".join(TRACES),
            nodes=_NODES,
            gpus=_NODE_GPUS,
            load=_LOAD,
            errors=errors([workload(kind, 0) for kind in types]),
            base=BASE,
            outcomes=table,
            findings=findings(Table(table)),
        ),
    )


if __name__ == "__main__":
    main()
