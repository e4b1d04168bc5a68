"""What OJPP's opportunistic memory gains: room for one peak against room for the peaks of all.

    python -m studies.papers.ojpp_memory [--trials 3] [--seed 0]

writes docs/evidence/results/ojpp-memory.md: placements by OJPP's own rules, and `tandem` on a
trace, whose agents have measured the peaks and guard the memory, or have not. Slowdowns are
[Gavel]'s; memory is drawn, since no file measures the courses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.pages import options, publish
from benchmarks.tables import Table, less, load_trace, markdown, spread
from studies.papers.ojpp import DEVICE_GIB, WIDE, WORKLOADS, Workload, measure, place
from studies.papers.ojpp_measured import GPUS, pairs, workloads
from tandem.policy.catalog import Profile, load_profile
from tandem.policy.constraints.memory import PeakFits
from tandem.simulator.cluster import gpu_arrays, parse_cluster
from tandem.simulator.engine import Engine
from tandem.simulator.gavel import PairMatrix
from tandem.simulator.jobs import TraceJob
from tandem.simulator.outcome import Outcome
from tandem.simulator.world import measured_world

TRACE = "philly-103959"
#: (cluster, first jobs of the trace): hardly any queue, some, and one that never ends.
LOADS = (("4x8:V100", 250), ("2x8:P100", 150), ("1x8:P100", 60))
CAPACITY_GIB = 16.0
#: Rows and columns of the page that its prose takes figures from.
OURS, ALONE = "all of OJPP's bounds", "collisions alone (C-Greedy)"
ONE_PEAK, ALL_PEAKS = "one peak counts", "all peaks count"
SAVED, NEEDED, EVERY, OVER = (
    "devices saved, %", "bases and one peak, most, %", "all peaks, most, %",
    "over the memory, % of the time",
)  # fmt: skip
MEAN = "mean completion, s"


@dataclass(frozen=True)
class Memory:
    """What counting one peak instead of all of them saves, and whether memory stays within."""

    saved: float  # devices, percent of one a worker
    performance: float  # percent
    needed: float  # largest sum of bases and one peak on a device, percent of its memory
    all_peaks: float  # largest sum of all peaks, percent
    over: float  # share of the time in which a device would exceed its memory, percent, mean


def all_peaks(profile: Profile) -> Profile:
    """Return the profile with room for the peaks of all instead of one, and no chance to bound."""
    kept = [c for c in profile.constraints if not c.kind.startswith("memory_")]
    return profile.model_copy(update={"constraints": (*kept, PeakFits())})


def memory(profile: Profile, drawn: Sequence[Workload], seed: int) -> Memory:
    """Place all workloads; sample the memory courses of each device 1,000 times."""
    rng = np.random.default_rng(seed)
    boards = [place(w, profile) for w in drawn]
    over, one, every = [], 0.0, 0.0
    for board in boards:
        gpus, jobs = board.gpus, board.jobs
        one = max(one, float((gpus.memory_base_gib + gpus.memory_peak_extra_gib).max()))
        every = max(every, float((gpus.memory_base_gib + gpus.memory_peak_sum_gib).max()))
        for row in np.flatnonzero(gpus.jobs > 0).tolist():
            there = [jobs[j] for j in board.residents_of[row]]
            extra = np.array([job.memory_peak_extra_gib for job in there])
            chance = np.array([job.peak_probability for job in there])
            peaks = rng.random((1000, len(there))) < chance
            base = sum(job.memory_base_gib for job in there)
            over.append(float((base + peaks @ extra > DEVICE_GIB + 1e-9).mean()))
    found = [measure(board, w.truth) for board, w in zip(boards, drawn, strict=True)]
    saved = 100 * float(
        np.mean([1 - m.devices / w.workers for m, w in zip(found, drawn, strict=True)])
    )
    performance = 100 / (1 + float(np.mean([m.slowdown for m in found])))
    share = 100 / DEVICE_GIB
    return Memory(saved, performance, share * one, share * every, 100 * float(np.mean(over)))


def opportunistic(gpu: str, seeds: Sequence[int]) -> dict[str, Memory]:
    """Return OJPP with one peak counted ([OJPP] Eq. 3) and with all, by what is bounded besides."""
    drawn = [w for kind in WORKLOADS for w in workloads(kind, gpu, seeds)]
    found = {}
    for title, profile in (
        (OURS, load_profile("ojpp")),
        (ALONE, load_profile("c-greedy")),
    ):
        found[f"{title}: {ONE_PEAK}"] = memory(profile, drawn, seeds[0])
        found[f"{title}: {ALL_PEAKS}"] = memory(all_peaks(profile), drawn, seeds[0])
    return found


def all_fit(matrix: PairMatrix) -> PairMatrix:
    """Drop the models that fail next to most, until every pair of the matrix was measured."""
    while not matrix.fits.all():
        worst = int(np.argmin(matrix.fits.sum(axis=1)))
        matrix = matrix.only([name for i, name in enumerate(matrix.names) if i != worst])
    return matrix


def with_courses(trace: Sequence[TraceJob], seed: int) -> tuple[TraceJob, ...]:
    """Return the jobs with memory courses from OJPP's ranges, as shares of a GPU."""
    rng = np.random.default_rng([seed, 2])
    jobs = []
    for job in trace:
        base, extra, chance = (rng.uniform(*of) for of in (WIDE.base, WIDE.extra, WIDE.chance))
        jobs.append(
            replace(
                job,
                memory_base_gib=CAPACITY_GIB * base,
                memory_peak_gib=CAPACITY_GIB * min(base + extra, 0.95),
                peak_probability=chance,
            )
        )
    return tuple(jobs)


def run(
    trace: Sequence[TraceJob], cluster: str, *, measured: bool, seed: int, saves: bool = True
) -> Outcome:
    """Run `tandem` where agents have measured the peaks and guard the memory, or have not.

    An eviction by the guard is counted as a failure of memory in the outcome: the worker goes
    before the GPU runs over, and its gang starts again, alone. With `saves` it goes on from where
    it was, as a job does that saves a checkpoint on SIGTERM; without, it starts from scratch.
    """
    profile = load_profile("tandem")
    nodes = parse_cluster(cluster)
    gpus = gpu_arrays([nodes], shares=profile.max_jobs_per_gpu)
    gpus = replace(gpus, guarded=np.full(len(gpus), measured))
    world = measured_world(trace, gpus, all_fit(pairs(nodes.gpu_type.lower())), seed=seed)
    believed = [replace(job, peak_measured=measured) for job in world.believed]
    return Engine(trace, believed, gpus, profile, world.truth, seed=seed, guarded=saves).run()


#: What `tandem` counts: title, whether peaks are measured and guarded, whether evicted jobs save.
WAYS = (
    ("all peaks", False, True),
    ("one peak, evicted jobs save their work", True, True),
    ("one peak, evicted jobs lose their run", True, False),
)


def on_trace(seeds: Sequence[int]) -> str:
    """Return the table of `tandem` with one peak counted and with all."""
    rows = []
    for cluster, count in LOADS:
        for title, measured, saves in WAYS:
            jobs = load_trace(TRACE)[:count]
            found = [
                run(with_courses(jobs, seed), cluster, measured=measured, seed=seed, saves=saves)
                for seed in seeds
            ]
            jct = np.mean([float((o.end_s - o.submit_s).mean()) for o in found])
            wait = np.mean([float((o.end_s - o.submit_s - o.run_s).mean()) for o in found])
            lost = np.mean([float(o.overhead_s.sum()) / 3600 for o in found])
            evicted = np.mean([o.ooms.sum() for o in found])
            rows.append(
                [f"{cluster}, {count} jobs", title, f"{jct:,.0f}", f"{wait:,.0f}", f"{evicted:.1f}",
                 f"{lost:,.1f}"]
            )  # fmt: skip
    columns = [
        "cluster", "`tandem` counts", MEAN, "of it not on GPUs, s", "evictions", "work redone, h",
    ]  # fmt: skip
    return markdown(columns, rows)


def words(placements: Table, trace: Table) -> dict[str, str]:
    """Return the figures of the page's prose, from its tables."""

    def saved(gpu: str, bounds: str, peaks: str) -> float:
        return placements.figure(f"{gpu.upper()}, {bounds}: {peaks}", SAVED)

    every, *one = (title for title, _, _ in WAYS)
    longer = {
        way: [
            -less(trace.figure(f"{cluster}, {count} jobs, {way}", MEAN),
                  trace.figure(f"{cluster}, {count} jobs, {every}", MEAN))
            for cluster, count in LOADS
        ]
        for way in one
    }  # fmt: skip
    return {
        "times": " and ".join(
            f"{saved(gpu, ALONE, ONE_PEAK) / saved(gpu, ALONE, ALL_PEAKS):.1f} times as many on"
            f" {gpu.upper()}s"
            for gpu in GPUS
        ),
        "points": " and ".join(
            f"{saved(gpu, OURS, ONE_PEAK) - saved(gpu, OURS, ALL_PEAKS):.1f} points more on"
            f" {gpu.upper()}s"
            for gpu in GPUS
        ),
        "needed": f"{max(placements.figure(row, NEEDED) for row in placements.rows):.0f}",
        "all_peaks": f"{max(placements.figure(row, EVERY) for row in placements.rows):.0f}",
        "over": f"{max(placements.figure(row, OVER) for row in placements.rows):.1f}",
        "saved": spread(longer[one[0]], "+.1f"),
        "lost": spread(longer[one[1]], "+.1f"),
    }


def main() -> None:
    """Run everything, and write the page."""
    arguments = options(__doc__, trials=3, seed=0)
    seeds = range(arguments.seed, arguments.seed + arguments.trials)
    peaks = markdown(
        ["GPU", "bounds", SAVED, "performance, %", NEEDED, EVERY, OVER],
        [
            [gpu.upper(), name, f"{m.saved:.1f}", f"{m.performance:.2f}", f"{m.needed:.0f}",
             f"{m.all_peaks:.0f}", f"{m.over:.2f}"]
            for gpu in GPUS
            for name, m in opportunistic(gpu, seeds).items()
        ],
    )  # fmt: skip
    trace = on_trace(seeds[:2])
    publish(
        "ojpp-memory",
        PAGE,
        arguments,
        f"seeds {seeds[0]} to {seeds[-1]} above, {seeds[0]} to {seeds[1]} on the trace",
        peaks=peaks,
        trace=trace,
        **words(Table(peaks), Table(trace)),
    )


PAGE = """# Opportunistic memory

{made_by}

[OJPP] Eq. (3) asks for the bases of all workers of a GPU and for one peak; the usual rule asks for
the peaks of all. Eq. (5) bounds the chance that two peaks fall together by 0.1.

## Placements by OJPP's rules

Four workloads on [measured pairs](ojpp-measured.md); the memory course of each worker is sampled
1,000 times a device, peaks independent.

{peaks}

Devices that one peak saves, against all peaks: {times} where collisions alone are bounded. Within
all of OJPP's bounds, interference and balance leave less to gain: {points}. Bases and one peak take
{needed} % of the memory at most, the peaks of all up to {all_peaks} %; a device would exceed it
{over} % of the time at most, where the bound allows 10 %.

## `tandem` on a trace

The first jobs of philly-103959; slowdowns measured by Gavel, among the models all of whose pairs
were measured; the memory course of each job drawn from OJPP's ranges (base 10-30 % of a GPU, a peak
10-62 % more, chance 0.05-0.3). Two jobs a GPU at most. Each worker is in its peak or not anew each
minute; before a GPU would run over, the guard evicts a worker, whose gang starts again, alone. With
all peaks counted, and with one, no GPU exceeds its memory: with one, by the evictions.

{trace}

With one peak counted, mean completion changes by {saved} % where evicted jobs save their work, and
by {lost} % where they start from scratch. Where two peaks can collide, they do within hours; then
the evicted job has a GPU alone. The bound holds for one moment, and a job of many hours meets
thousands of them. So opportunistic memory suits short jobs, and jobs that save on SIGTERM.
"""

if __name__ == "__main__":
    main()
