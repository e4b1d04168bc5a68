"""SJF-BSBF at 240 and 480 jobs, by load, and large jobs against small ones.

    python -m studies.papers.sjf_bsbf_loads [--seeds 1]

writes docs/evidence/results/sjf-bsbf-loads.md and its plots. Step times and interference are
measured, as on the page of SJF-BSBF; jobs are drawn so that as many are large as in the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchmarks import plot
from benchmarks.pages import options, publish
from benchmarks.tables import Table, less, markdown
from studies.papers.pollux import (
    APPLICATIONS,
    Application,
    PolluxJob,
    applications,
    workload,
)
from studies.papers.sjf_bsbf import measured_slowdown, run
from tandem.policy.units import Bools, Floats
from tandem.simulator.outcome import Outcome

SYSTEMS = ("fifo", "sjf", "tiresias-l", "sjf-ffs", "sjf-bsbf")
SETS = [f"{kind}-{i}" for kind in ("1.5", "realistic") for i in (1, 2, 3, 4)]
LARGE_GPUS = 4  # more than these is large
#: Share of large jobs, from the means of Table III: 1.25 = 3.50 x + 0.94 (1 - x).
LARGE_SHARE = 0.12
COUNTS = (120, 240, 360, 480)
#: The eight hours of arrival are shortened by this, so that FIFO, which neither shares nor orders,
#: has about the paper's mean at 240 jobs. Nothing else is fitted.
HOURS = 0.2
#: Tables III and IV: mean completion and mean queueing in hours, each of all, large, small.
TABLE_III = {
    "fifo": (2.34, 3.92, 2.13, 1.65, 2.17, 1.58), "sjf": (1.25, 3.50, 0.94, 0.56, 1.76, 0.39),
    "tiresias-l": (1.51, 3.48, 1.23, 0.81, 1.73, 0.68),
    "pollux": (1.04, 1.96, 0.91, 1.00, 1.21, 0.97),
    "sjf-ffs": (1.23, 4.29, 0.81, 0.18, 0.98, 0.07),
    "sjf-bsbf": (1.01, 3.38, 0.68, 0.14, 0.89, 0.03),
}  # fmt: skip
TABLE_IV = {
    "fifo": (7.52, 10.06, 7.08, 0.73, 4.06, 0.21), "sjf": (2.55, 7.00, 1.90, 1.87, 5.35, 1.35),
    "tiresias-l": (5.09, 8.25, 4.59, 4.41, 6.60, 4.04),
    "pollux": (4.69, 6.03, 4.51, 4.41, 5.03, 4.31),
    "sjf-ffs": (1.89, 8.12, 0.99, 0.73, 4.06, 0.21),
    "sjf-bsbf": (1.57, 6.13, 0.88, 0.69, 3.62, 0.21),
}  # fmt: skip


def pool(apps: dict[str, Application]) -> list[PolluxJob]:
    """Return the jobs of all eight workloads of Pollux, each under a name of its own."""
    return [
        replace(job, trace=replace(job.trace, id=f"{name}-{job.trace.id}"))
        for name in SETS
        for job in workload(name, apps)
    ]


def is_large(jobs: Sequence[PolluxJob]) -> Bools:
    """Return which jobs have more than four GPUs, (jobs,)."""
    return np.array([job.trace.gpus > LARGE_GPUS for job in jobs])


def mix(jobs: Sequence[PolluxJob], count: int, seed: int) -> list[PolluxJob]:
    """Draw jobs with their hours of arrival; as many are large as in the paper.

    A larger draw of a seed contains its smaller ones: the load grows, the jobs stay.
    """
    rng = np.random.default_rng(seed)
    large = is_large(jobs)
    orders = [rng.permutation(np.flatnonzero(kind)) for kind in (large, ~large)]
    wanted = round(LARGE_SHARE * count)
    chosen = [jobs[i] for i in (*orders[0][:wanted], *orders[1][: count - wanted])]
    sooner = [
        replace(job, trace=replace(job.trace, submit_s=HOURS * job.trace.submit_s))
        for job in chosen
    ]
    return sorted(sooner, key=lambda job: (job.trace.submit_s, job.trace.id))


def jct_s(outcome: Outcome) -> Floats:
    """Return the completion time of each job, (jobs,)."""
    times: Floats = outcome.end_s - outcome.submit_s
    return times


def by_size(
    found: dict[str, list[Outcome]],
    drawn: Sequence[Sequence[PolluxJob]],
    paper: dict[str, tuple[float, ...]],
) -> str:
    """Return Table III or IV: mean completion and queueing of all, large and small jobs, hours."""
    rows = []
    for name, published in paper.items():
        row = [name]
        for what in range(6):
            if name not in found:
                row.append(f"- / {published[what]:.2f}")
                continue
            values = []
            for outcome, jobs in zip(found[name], drawn, strict=True):
                times = jct_s(outcome) - (outcome.run_s if what >= 3 else 0.0)
                large = is_large(jobs)
                values.append(times[[np.ones_like(large), large, ~large][what % 3]].mean() / 3600)
            row.append(f"{np.mean(values):.2f} / {published[what]:.2f}")
        rows.append(row)
    columns = ["ours / paper, h", *(f"{w}, {k}" for w in ("JCT", "queueing")
                                    for k in ("all", "large", "small"))]  # fmt: skip
    return markdown(columns, rows)


def by_application(found: dict[str, list[Outcome]], drawn: Sequence[Sequence[PolluxJob]]) -> str:
    """Return the mean queueing of each application, hours."""
    apps = np.array([job.application for jobs in drawn for job in jobs])
    rows = []
    for name, outcomes in found.items():
        wait = np.concatenate([jct_s(o) - o.run_s for o in outcomes]) / 3600
        of = [wait[apps == app] for app in APPLICATIONS]
        rows.append([name, *(f"{one.mean():.2f}" if len(one) else "-" for one in of)])
    return markdown(["mean queueing, h", *APPLICATIONS], rows)


def main() -> None:
    """Run everything; write the page and its plots."""
    arguments = options(__doc__, seeds=1)
    jobs, slowdown = pool(applications(0)), measured_slowdown()
    drawn = {n: [mix(jobs, n, seed) for seed in range(arguments.seeds)] for n in COUNTS}
    found = {
        n: {name: [run(name, one, slowdown) for one in of] for name in SYSTEMS}
        for n, of in drawn.items()
    }
    mean = {
        name: [float(np.mean([jct_s(o).mean() / 3600 for o in found[n][name]])) for n in COUNTS]
        for name in SYSTEMS
    }
    plot.lines("sjf-bsbf-load", {n: (COUNTS, of) for n, of in mean.items()}, "jobs", "mean JCT, h")
    plot.distributions(
        "sjf-bsbf-jct",
        {name: np.concatenate([jct_s(o) for o in of]) for name, of in found[240].items()},
        "completion time of 240 jobs, s",
        logarithmic=True,
    )
    table_iii = by_size(found[240], drawn[240], TABLE_III)
    table_iv = by_size(found[480], drawn[480], TABLE_IV)
    publish(
        "sjf-bsbf-loads",
        PAGE,
        arguments,
        f"seeds 0 to {arguments.seeds - 1}; memory: 0",
        table_iii=table_iii,
        table_iv=table_iv,
        **words(Table(table_iii), Table(table_iv)),
        load=markdown(
            ["mean JCT, h", *(f"{n} jobs" for n in COUNTS)],
            [[name, *(f"{hours:.2f}" for hours in of)] for name, of in mean.items()],
        ),
        application=by_application(found[240], drawn[240]),
    )


def words(table_iii: Table, table_iv: Table) -> dict[str, str]:
    """Return the figures of the page's prose, from its tables."""

    def below(table: Table, name: str) -> float:
        return less(*(table.figure(each, "JCT, all") for each in ("sjf-bsbf", name)))

    return {
        "below_sjf": f"{below(table_iv, 'sjf'):.0f}",
        "below_ffs": f"{below(table_iv, 'sjf-ffs'):.0f}",
        "behind_sjf": f"{-below(table_iii, 'sjf'):.0f}",
    }


PAGE = """# SJF-BSBF: loads, large and small jobs

{made_by}

Step times, iterations, interference and memory are those of [SJF-BSBF](sjf-bsbf.md). The jobs are
drawn from Pollux' eight workloads, with their applications, sizes, batches and hours of arrival,
so that 12 % have more than 4 GPUs: the share that follows from the means of the paper's Table III.
Which jobs the paper drew is not public. The hours of arrival are shortened to a fifth, so that FIFO
has about the paper's mean at 240 jobs; nothing else is fitted. A larger draw contains the smaller.

## 240 and 480 jobs, large and small (Table III, IV, Fig. 5)

On 16 x 4 GPUs; large jobs have more than 4 GPUs. 240 jobs:

{table_iii}

480 jobs in the same time:

{table_iv}

![Completion times of 240 jobs](sjf-bsbf-jct.svg)

Reproduced: FIFO, SJF and Tiresias come in the paper's order at both loads, and near its means; only
FIFO at 240 jobs is fitted. At 480 jobs SJF-BSBF has the shortest mean, {below_sjf} % below SJF
(paper: 38 %) and {below_ffs} % below first fit (17 %). The two sharing policies have the least
queueing.

Not reproduced: SJF-BSBF ahead at 240 jobs, where it is {behind_sjf} % behind SJF, and first fit
ahead of SJF. Gavel's pairs disturb each other more than the paper's, which are a picture, so that
small jobs lose by sharing what they save in the queue. Large jobs fare better here. The paper's row
of FIFO's queueing at 480 jobs is that of SJF-FFS, a slip of the table.

By application (Fig. 5b), 240 jobs; the draw has hardly any job of ImageNet:

{application}

## Load (Fig. 6a)

{load}

![Mean completion by load](sjf-bsbf-load.svg)

Reproduced: the more jobs, the more SJF-BSBF gains on every other policy. The crossing with SJF is
near 240 jobs; in the paper SJF-BSBF leads at all loads. Pollux is quoted, not run.
"""

if __name__ == "__main__":
    main()
