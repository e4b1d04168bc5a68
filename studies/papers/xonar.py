"""Xonar's comparison: ten jobs, one machine; serial, pairs as they come, pairs by fit.

    python -m studies.papers.xonar [--trials 50] [--seed 0]

Synthetic throughout: the paper publishes ranges, not its 600 profiles. Nothing is fitted to its
results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.pages import options, publish
from benchmarks.tables import markdown
from studies.papers.evaluation import evaluation
from studies.papers.simulation import simulate
from tandem.policy.job import UNKNOWN, Job
from tandem.policy.units import Floats
from tandem.simulator.cluster import Nodes
from tandem.simulator.jobs import TraceJob
from tandem.simulator.outcome import Outcome
from tandem.simulator.truth import MemoryCourse, Truth
from tandem.simulator.world import with_reserved_classes

MACHINE = Nodes(1, 2, "V100", 32.0)
JOBS = 10
ITERATIONS = 100
ACTIVE_S = (0.018, 4.9)  # range published for the 600 profiles; log-uniform here
IDLE_S = (0.005, 1.8)
PEAK_GIB = (1.0, 31.0)  # a CUDA context and little more, to all but a GPU; log-uniform
SYSTEMS = {"fifo": "serial", "xonar-fifo-pairs": "unordered pairs", "xonar": "pairs by fit"}
#: Percent or seconds, as printed: 99th percentile, share of OOM; the authors' repository's means.
PAPER = {
    "fifo": ("862.6", "1317", "-"),
    "xonar-fifo-pairs": ("634.8", "1083", "15.2"),
    "xonar": ("556.0", "736", "0"),
}


def cycle_times_s(
    active: Sequence[float], idle: Sequence[float], *, cycles: int = 30
) -> tuple[float, float]:
    """Return the mean iteration time of each of two jobs that share a GPU, in seconds.

    A job is active for `active` s of GPU time, then idle for `idle` s, again and again; while both
    are active each gets half of the GPU, as time slices do. Both start active; it ends when each
    has done `cycles` iterations.
    """
    left = list(active)
    computing = [True, True]
    done = [0, 0]
    now, ended = 0.0, [0.0, 0.0]
    while min(done) < cycles:
        rate = [0.5, 0.5] if all(computing) else [1.0, 1.0]
        step = min(left[k] / rate[k] for k in (0, 1))
        now += step
        for k in (0, 1):
            left[k] -= step * rate[k]
            if left[k] > 1e-9:
                continue
            if not computing[k]:
                done[k] += 1
                ended[k] = now
            computing[k] = not computing[k]
            left[k] = active[k] if computing[k] else idle[k]
    return ended[0] / done[0], ended[1] / done[1]


@dataclass(frozen=True)
class Trial:
    """Ten jobs in their order of arrival, and what is true of them."""

    trace: tuple[TraceJob, ...]
    believed: tuple[Job, ...]
    truth: Truth


def draw(seed: int) -> Trial:
    """Draw one trial: active and idle time and peak memory of each job, all independent."""
    rng = np.random.default_rng(seed)

    def log_uniform(bounds: tuple[float, float]) -> Floats:
        drawn: Floats = np.exp(rng.uniform(*np.log(bounds), size=JOBS))
        return drawn

    active, idle, peak = log_uniform(ACTIVE_S), log_uniform(IDLE_S), log_uniform(PEAK_GIB)
    alone = active + idle
    slowdown = np.zeros((JOBS, JOBS))
    for a in range(JOBS):
        for b in range(a):
            times = cycle_times_s((active[a], active[b]), (idle[a], idle[b]))
            slowdown[a, b] = max(times[0] / alone[a] - 1, 0.0)
            slowdown[b, a] = max(times[1] / alone[b] - 1, 0.0)
    trace = tuple(TraceJob(f"j{i}", 0.0, 2, float(ITERATIONS * alone[i])) for i in range(JOBS))
    busy = 100 * active / alone
    believed = tuple(
        Job(
            id=f"j{i}",
            pods=2,
            memory_base_gib=float(peak[i]),
            gpu_utilisation=float(busy[i]),
            interference_class=UNKNOWN,
        )
        for i in range(JOBS)
    )
    truth = Truth(
        slowdown=with_reserved_classes(slowdown, unknown=0.0),
        job_class=np.arange(JOBS) + 2,
        memory=[MemoryCourse(float(gib), 0.0, 0.0) for gib in peak],
        memory_gib=np.full(MACHINE.gpus, MACHINE.memory_gib),
        gpu_utilisation=busy,
    )
    return Trial(trace, believed, truth)


def busy_s(trial: Trial) -> float:
    """Return how long one GPU computes for all jobs of a trial, however they are ordered."""
    alone = np.array([job.duration_s for job in trial.trace])
    return float((alone * trial.truth.gpu_utilisation / 100).sum())


def pairs_formed(outcome: Outcome) -> int:
    """Return how often a job was started next to another.

    All but the last start of a job ended at once, for want of memory.
    """
    last = {job: (at, n) for n, (at, _, job, _) in enumerate(outcome.decisions)}
    end = {f"j{i}": float(t) for i, t in enumerate(outcome.end_s)}
    formed = 0
    for n, (at, _, job, _) in enumerate(outcome.decisions):
        formed += any(other != job and last[other][1] < n and at < end[other] for other in last)
    return formed


def main() -> None:
    """Run all trials under the three systems, and write the page."""
    arguments = options(__doc__, trials=50, seed=0)
    seeds = range(arguments.seed, arguments.seed + arguments.trials)
    trials = [draw(seed) for seed in seeds]
    spans: dict[str, Floats] = {}
    rows = []
    for name, title in SYSTEMS.items():
        outcomes = [
            simulate(name, MACHINE, trial.trace, trial.believed, trial.truth, seed=seed)
            for seed, trial in zip(seeds, trials, strict=True)
        ]
        spans[name] = np.array([outcome.end_s.max() for outcome in outcomes])
        jobs = np.concatenate([outcome.end_s for outcome in outcomes])
        ooms = sum(int(outcome.ooms.sum()) for outcome in outcomes)
        pairs = sum(pairs_formed(outcome) for outcome in outcomes)
        oom = f"{100 * ooms / pairs:.1f} ({ooms} of {pairs})" if pairs else "-"
        mean, p99, paper_oom = PAPER[name]
        rows.append(
            [
                title,
                f"{spans[name].mean():.1f}", mean,
                f"{np.percentile(spans[name], 99):.0f}", p99,
                oom, paper_oom,
                f"{jobs.mean():.1f}",
            ]
        )  # fmt: skip
    less = {n: 100 * (1 - spans["xonar"].mean() / spans[n].mean()) for n in SYSTEMS}
    tail = {
        n: 100 * (1 - np.percentile(spans["xonar"], 99) / np.percentile(spans[n], 99))
        for n in SYSTEMS
    }
    floor = float(np.mean([busy_s(t) for t in trials]))
    columns = [
        "system", "mean, s", "authors' repository", "99th percentile, s", "paper",
        "OOM, % of pairs", "paper", "mean over jobs, s",
    ]  # fmt: skip
    publish("xonar", PAGE, arguments, f"seeds {seeds[0]} to {seeds[-1]}, one a trial",
table=markdown(columns, rows),
evaluation=evaluation("Xonar"),
why=WHY.format(
                floor=floor, floor_share=floor / spans["fifo"].mean(),
                above=spans["xonar"].mean() / floor - 1,
                pairs_above=spans["xonar-fifo-pairs"].mean() / floor - 1,
            ),
serial=less["fifo"],
pairs=less["xonar-fifo-pairs"],
serial_tail=tail["fifo"],
pairs_tail=tail["xonar-fifo-pairs"],
)  # fmt: skip


WHY = """\
However jobs are paired, a GPU computes no faster than one job: the sum of active times,
{floor:.1f} s on average, is a floor under every trial, and {floor_share:.0%} of serial here. The
authors' repository has pairs at 64 % of serial, so on this reckoning their jobs are idle more of
the time than ranges filled evenly on a logarithmic scale; their mix is not published, and none
was chosen here to meet the figure. Pairs by fit come within {above:.0%} of the floor, unordered
pairs within {pairs_above:.0%}.

The 99th percentile of fifty trials is nearly the longest of them, and a trial is long because
long jobs were drawn: that holds under every system, so little can be won there. In the paper a
failed pair also costs more, since both jobs start again.

Reproduced: the order of the three, no failure with fit, failures near the published share without
it. Not reproduced: the size of the gain.
"""
PAGE = """# Xonar: pairs by active and idle time

{made_by}

Ten jobs arrive together on one machine with two V100s of 32 GiB; each has a worker on both GPUs
and runs 100 iterations. As in the paper's own measurements, the figure of a trial is the time
until all ten have ended; the last column is the mean completion time of a job.

{table}

Pairs by fit against serial: {serial:.1f} % less on average (paper: up to 43.6 %),
{serial_tail:.1f} % at the 99th percentile (44.1 %). Against unordered pairs: {pairs:.1f} %
(paper: up to 13.7 %) and {pairs_tail:.1f} % (32 %).

{evaluation}

## What is synthetic

- The paper gives the ranges of its 600 profiles, not the profiles. Active time is drawn
  log-uniform from its 18 ms to 4.9 s, idle time from its 5 ms to 1.8 s, independent of each
  other.
- Peak memory is log-uniform from 1 to 31 GiB, independent of both. The share of pairs that run
  out of memory follows from that alone.
- Next to each other, two jobs compute on half of the GPU each while both are active, and
  undisturbed while one is idle: their iterations are simulated phase by phase, and their
  slowdowns are what comes out. Start-up and contention for caches or for the host are left out.
- Out of memory, the job started last is lost and runs again, alone; the paper stops both. The
  share is of pairs formed.

## What differs from the paper, and why

{why}"""

if __name__ == "__main__":
    main()
