"""What asking for a rack is worth: gangs that prefer or require one, on four traces.

    python -m studies.profiles.racks [--seeds 5] [--jobs 400]

writes docs/evidence/results/racks.md. Truth: Gavel's rates on V100s, which know nodes and no racks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np

from benchmarks.pages import options, publish
from benchmarks.tables import data_folder, load_trace, markdown
from studies.profiles.grid import CLUSTERS
from tandem.policy.catalog import load_profile
from tandem.simulator.cluster import RACK, parse_cluster, racks
from tandem.simulator.engine import Engine, RunOptions
from tandem.simulator.jobs import TraceJob
from tandem.simulator.run import Setup, learner_of

PROFILES = ("tandem", "tiresias-l", "fifo")
NODES_PER_RACK = 2
_NODE_GPUS = 8
ASKS = ("nothing", "preferred", "required")
#: Where asking keeps less than this of the GPU-seconds together, a quotient says nothing.
_LEAST_KEPT = 0.01


class Found(NamedTuple):
    """Of one run: mean completion times (s), and shares of what gangs held, from 0 to 1."""

    jct_s: float
    gang_jct_s: float
    across_racks: float  # of the GPU-seconds of gangs that fit a rack
    starts_across: float  # of their starts


def asking(jobs: Sequence[TraceJob], how: str) -> tuple[TraceJob, ...]:
    """Return the jobs, of which the gangs that fit a rack ask for one."""
    preferred = RACK if how == "preferred" else None
    required = RACK if how == "required" else None
    return tuple(
        replace(job, preferred_topology=preferred, required_topology=required)
        if fits_a_rack(job)
        else job
        for job in jobs
    )


def fits_a_rack(job: TraceJob) -> bool:
    """Return whether a job is a gang that one rack can hold."""
    return 1 < job.gpus <= NODES_PER_RACK * _NODE_GPUS


def run(profile_name: str, name: str, how: str, jobs_of: int, seed: int) -> Found:
    """Run a profile on the first jobs of a trace."""
    profile = load_profile(profile_name)
    nodes = (parse_cluster(f"{CLUSTERS[name]}:V100/{NODES_PER_RACK}"),)
    jobs = asking(load_trace(name)[:jobs_of], how)
    truth = data_folder() / "colocation" / "gavel-simulation-v100-p100.json"
    setup = Setup(jobs, nodes, truth, seed)
    gpus = setup.gpus(profile.max_jobs_per_gpu)
    world = setup.world(gpus)
    run_options = RunOptions(
        record_decisions=True, learner=learner_of(profile, world), topology=racks(nodes)
    )
    outcome = Engine(
        jobs, world.believed, gpus, profile, world.truth, seed=seed, options=run_options
    ).run()
    of = {job.id: job for job in jobs if fits_a_rack(job)}
    ends = [(float(t), "end", job.id, ()) for t, job in zip(outcome.end_s, jobs, strict=True)]
    held = np.zeros(2)  # in one rack, across racks
    starts = np.zeros(2)
    began: dict[str, tuple[float, int]] = {}
    for now, verb, job_id, rows in sorted(
        [*outcome.decisions, *ends], key=lambda one: (one[0], one[1] == "start")
    ):
        if job_id not in of:
            continue
        if job_id in began:
            since, apart = began.pop(job_id)
            held[apart] += (now - since) * of[job_id].gpus
        if verb == "start":
            apart = int(len(np.unique(gpus.rack[list(rows)])) > 1)
            began[job_id] = (now, apart)
            starts[apart] += 1
    jct = outcome.end_s - outcome.submit_s
    gangs = np.array([fits_a_rack(job) for job in jobs])
    return Found(
        float(jct.mean()),
        float(jct[gangs].mean()) if gangs.any() else float("nan"),
        float(held[1] / max(held.sum(), 1e-9)),
        float(starts[1] / max(starts.sum(), 1)),
    )


def main() -> None:
    """Run everything, and write the page."""
    arguments = options(__doc__, seeds=5, jobs=400)
    rows = []
    for name, profile in product(CLUSTERS, PROFILES):
        jobs = load_trace(name)[: arguments.jobs]
        gangs = sum(fits_a_rack(job) for job in jobs) / len(jobs)
        if not gangs:
            continue
        found = {
            how: np.mean(
                [run(profile, name, how, arguments.jobs, seed) for seed in range(arguments.seeds)],
                axis=0,
            )
            for how in ASKS
        }
        base = found["nothing"]
        for how in ASKS:
            jct, gang_jct, across, starts = found[how]
            kept = base[2] - across  # the share of GPU-seconds that no longer crosses racks
            cost = gang_jct / base[1] - 1
            even = "-" if kept < _LEAST_KEPT else f"{max(cost / kept, 0):.0%}"
            rows.append(
                [
                    f"{name}, {CLUSTERS[name]}", f"{gangs:.0%}", profile, how, f"{jct:,.0f}",
                    f"{100 * (jct / base[0] - 1):+.1f}", f"{100 * cost:+.1f}", f"{starts:.1%}",
                    f"{across:.1%}", "-" if how == "nothing" else even,
                ]
            )  # fmt: skip
            print(rows[-1], flush=True)
    columns = [
        "trace, cluster", "gangs", "profile", "a rack is", "mean, s", "all jobs, %", "gangs, %",
        "starts across racks", "GPU-seconds across racks", "pays from",
    ]  # fmt: skip
    publish(
        "racks",
        PAGE,
        arguments,
        f"seeds 0 to {arguments.seeds - 1}",
        jobs=arguments.jobs,
        nodes=NODES_PER_RACK,
        table=markdown(columns, rows),
    )


PAGE = """# Racks

{made_by}

The first {jobs} jobs of each trace, in racks of {nodes} nodes. *Gangs* are jobs of several GPUs
that fit a rack: they ask for nothing, prefer a rack, or require one
([jobs](../../jobs.md)). Traces without gangs are left out. Mean completion time in seconds; the
change against asking for nothing, of all jobs and of the gangs; the share of the gangs' starts,
and of their GPU-seconds, on more than one rack.

{table}

No data say what it costs to cross racks: Gavel's rates, by which gangs are slowed down here, know
one node and several. So asking for a rack pays here only as far as it keeps a gang to fewer nodes
as well: in `fifo` and `tiresias-l`, which put gangs wherever GPUs are free. `tandem` prices each
node that a gang needs too many, and keeps gangs together without being asked. A rack that is
preferred is sought among empty GPUs alone, of which `tiresias-l` has few: it plans by taking GPUs
from others. *Pays from* is **derived**: by how much crossing racks has to slow a gang down for the
change of the gangs' completion time to be made up for, which is that change over the share of
GPU-seconds that no longer crosses racks. At 0 % asking costs gangs nothing; `-` where it keeps less
than 1 % of the GPU-seconds together.

The slowdown of pairs and of gangs on more nodes than they need is measured, as on
[locality.md](locality.md); models, memory and utilisation are drawn with the seed. A preemption or
a move costs 60 s.
"""

if __name__ == "__main__":
    main()
