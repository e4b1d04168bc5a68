"""What elastic jobs gain on Pollux' workloads, with speed-up curves from its measured steps.

    python -m studies.profiles.elastic [--seeds 2]

writes docs/evidence/results/elastic.md. Truth: the time of a step by placement and batch, measured
on T4s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.pages import options, publish
from benchmarks.tables import markdown
from studies.papers import pollux
from studies.papers.pollux import Application, PolluxJob
from tandem.policy.catalog import load_profile
from tandem.simulator.cluster import parse_cluster
from tandem.simulator.jobs import TraceJob
from tandem.simulator.outcome import Outcome
from tandem.simulator.run import Setup, run_profile

CLUSTER = "16x4:T4"
PROFILE = "tandem"
GPUS = 64
SETS = ("1.5", "realistic")
LOADS = (0.5, 1.0, 2.0)  # arrivals per time, as a multiple of the workload's
WORKLOADS = (1, 2, 3, 4)
RESIZE_COSTS_S = (0.0, 30.0, 60.0, 300.0)
_TEMPLATE = Path(__file__).with_name("elastic.template.md")
_MOST = 16  # GPUs to which a job may grow; more are measured for few numbers of GPUs
_PART = 4  # it may shrink to a quarter of what it asks for, and grow to four times as much


@dataclass(frozen=True)
class Way:
    """How elastic the jobs are."""

    name: str
    shrinks: bool
    grows: bool


WAYS = (
    Way("fixed", shrinks=False, grows=False),
    Way("may have fewer", shrinks=True, grows=False),
    Way("may have more", shrinks=False, grows=True),
    Way("both", shrinks=True, grows=True),
)


@dataclass(frozen=True)
class Found:
    """Of one run."""

    mean_s: float
    p99_s: float
    queue_s: float
    in_use: float  # mean share of the GPUs until the last job has ended, from 0 to 1
    gpu_h: float
    resizes: float  # a job
    shrinks: float  # a job
    preemptions: float  # a job
    elastic: float  # share of the jobs, from 0 to 1


def batches_per_s(app: Application, gpus: int, batch: int) -> float:
    """Return how often a second the job's own batch is trained on with so many GPUs.

    The batch stays the same, so that as many iterations lead to the same model. It is accumulated
    where it is too large for its GPUs.
    """
    steps = int(np.ceil(batch / gpus / app.largest_local))
    return 1 / app.iteration_s(gpus, batch / gpus / steps, steps)


def elastic_job(job: PolluxJob, app: Application, batch: int, way: Way) -> TraceJob:
    """Return a job of a workload as a `way` has it.

    One that may have more wants as many GPUs as train fastest, up to four times what it asks for.
    """
    asks = job.trace.gpus
    speed = {gpus: batches_per_s(app, gpus, batch) for gpus in sorted(app.local)}
    least = -(-asks // _PART) if way.shrinks else asks
    most = max(asks, min(_PART * asks, _MOST)) if way.grows else asks
    wants = max((gpus for gpus in speed if asks <= gpus <= most), key=lambda gpus: speed[gpus])
    if least == wants:
        return job.trace
    duration_s = job.trace.duration_s * speed[asks] / speed[wants]
    points = tuple((gpus, per_s) for gpus, per_s in speed.items() if least <= gpus <= wants)
    return replace(job.trace, gpus=wants, duration_s=duration_s, min_gpus=least, throughput=points)


def jobs_of(name: str, way: Way, load: float, seed: int) -> tuple[TraceJob, ...]:
    """Return the jobs of a workload, which arrive `load` times as often.

    Seed 0 has the workload as it is; with others, its jobs change places with one another.
    """
    apps = pollux.applications(0)
    batches = pollux.batches(name)
    jobs = pollux.workload(name, apps)
    found = [
        elastic_job(job, apps[job.application], batch, way)
        for job, batch in zip(jobs, batches, strict=True)
    ]
    at_s = [job.submit_s / load for job in found]
    if seed:
        order = np.random.default_rng(seed).permutation(len(found))
        found = [found[i] for i in order.tolist()]
    start = min(at_s)
    return tuple(
        replace(job, submit_s=submit_s - start) for job, submit_s in zip(found, at_s, strict=True)
    )


def run(jobs: tuple[TraceJob, ...], resize_cost_s: float = 60.0) -> Found:
    """Run the profile; no two jobs share a GPU, since nothing is known of their loads."""
    setup = Setup(jobs, (parse_cluster(CLUSTER),), resize_cost_s=resize_cost_s)
    return found_of(run_profile(setup, load_profile(PROFILE)).outcome, jobs)


def found_of(outcome: Outcome, jobs: Sequence[TraceJob]) -> Found:
    """Return the figures of a run."""
    jct = outcome.end_s - outcome.submit_s
    span = float(outcome.end_s.max() - outcome.submit_s.min())
    count = len(jobs)
    return Found(
        mean_s=float(jct.mean()),
        p99_s=float(np.percentile(jct, 99)),
        queue_s=float((jct - outcome.run_s).mean()),
        in_use=outcome.busy_gpu_s / (GPUS * span),
        gpu_h=outcome.busy_gpu_s / 3600,
        resizes=float(outcome.resizes.sum()) / count,
        shrinks=float(outcome.shrunk.sum()) / count,
        preemptions=float(outcome.preemptions.sum()) / count,
        elastic=sum(job.is_elastic for job in jobs) / count,
    )


def change(found: Sequence[Found], base: Sequence[Found], name: str) -> str:
    """Return the change of a figure in percent, in all and of each workload from least to most."""
    now, before = (np.array([getattr(one, name) for one in of]) for of in (found, base))
    each = 100 * (now / before - 1)
    return f"{100 * (now.mean() / before.mean() - 1):+.1f} ({each.min():+.0f} to {each.max():+.0f})"


def mean(found: Sequence[Found], name: str) -> float:
    """Return the mean of a figure."""
    return float(np.mean([getattr(one, name) for one in found]))


def by_way(seeds: int) -> str:
    """Return the table of all workloads, loads and ways."""
    rows = []
    for kind, load in product(SETS, LOADS):
        base: list[Found] = []
        for way in WAYS:
            found = [
                run(jobs_of(f"{kind}-{number}", way, load, seed))
                for number, seed in product(WORKLOADS, range(seeds))
            ]
            base = base or found
            changes = [change(found, base, name) for name in ("mean_s", "p99_s")]
            rows.append(
                [
                    kind, f"{load:g}", way.name, f"{mean(found, 'elastic'):.0%}",
                    f"{mean(found, 'mean_s'):,.0f}", *(changes if found is not base else "--"),
                    f"{mean(found, 'p99_s'):,.0f}", f"{mean(found, 'queue_s'):,.0f}",
                    f"{mean(found, 'in_use'):.0%}", f"{mean(found, 'gpu_h'):,.0f}",
                    f"{mean(found, 'resizes'):.2f}", f"{mean(found, 'shrinks'):.2f}",
                    f"{mean(found, 'preemptions'):.2f}",
                ]
            )  # fmt: skip
            print(rows[-1], flush=True)
    columns = [
        "workloads", "load", "jobs", "elastic", "mean, s", "mean, % of fixed (each)",
        "p99, % of fixed (each)", "p99, s", "not on GPUs, s", "GPUs in use", "GPU-hours",
        "resizes a job", "of them smaller", "preemptions a job",
    ]  # fmt: skip
    return markdown(columns, rows)


def by_cost() -> str:
    """Return the table of what starting anew costs, with the jobs that may have fewer and more."""
    rows = []
    for kind in SETS:
        names = [f"{kind}-{number}" for number in WORKLOADS]
        base = [run(jobs_of(name, WAYS[0], 1.0, 0)) for name in names]
        for cost_s in RESIZE_COSTS_S:
            found = [run(jobs_of(name, WAYS[-1], 1.0, 0), cost_s) for name in names]
            rows.append(
                [
                    kind, f"{cost_s:g}", f"{mean(found, 'mean_s'):,.0f}",
                    change(found, base, "mean_s"), f"{mean(found, 'resizes'):.2f}",
                ]
            )  # fmt: skip
            print(rows[-1], flush=True)
    columns = ["workloads", "a resize costs, s", "mean, s", "% of fixed (each)", "resizes a job"]
    return markdown(columns, rows)


def main() -> None:
    """Run everything, and write the page."""
    arguments = options(__doc__, seeds=2)
    publish(
        "elastic",
        _TEMPLATE.read_text(),
        arguments,
        f"seeds 0 to {arguments.seeds - 1} (which job arrives when)",
        ways=by_way(arguments.seeds),
        costs=by_cost(),
    )


if __name__ == "__main__":
    main()
