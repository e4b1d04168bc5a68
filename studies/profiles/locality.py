"""What the price of spreading is worth: `tandem` with and without it on four traces.

    python -m studies.profiles.locality [--seeds 5] [--jobs 400]

writes docs/evidence/results/locality.md. Truth: Gavel's consolidated and unconsolidated rates on
V100s.
"""

from __future__ import annotations

import numpy as np

from benchmarks.pages import options, publish
from benchmarks.tables import data_folder, load_trace, markdown
from studies.profiles.grid import CLUSTERS
from tandem.policy.catalog import Profile, load_profile
from tandem.simulator.cluster import parse_cluster
from tandem.simulator.engine import Engine, RunOptions
from tandem.simulator.jobs import TraceJob
from tandem.simulator.run import Setup, learner_of


def without_locality() -> Profile:
    """Return `tandem` for which it does not matter where the workers of a gang are."""
    values = load_profile("tandem").model_dump()
    values["dispatch"]["locality"] = False
    return Profile.model_validate(values)


def run(
    profile: Profile, jobs: tuple[TraceJob, ...], cluster: str, seed: int
) -> tuple[float, float, float]:
    """Return the mean completion time in seconds, and how much gangs ran spread.

    First the share of gangs that were ever started on more nodes than they need, then the share of
    the GPU-seconds of gangs that they spent so.
    """
    truth = data_folder() / "colocation" / "gavel-simulation-v100-p100.json"
    setup = Setup(jobs, (parse_cluster(cluster),), truth, seed)
    gpus = setup.gpus(profile.max_jobs_per_gpu)
    world = setup.world(gpus)
    engine = Engine(
        jobs,
        world.believed,
        gpus,
        profile,
        world.truth,
        seed=seed,
        options=RunOptions(record_decisions=True, learner=learner_of(profile, world)),
    )
    outcome = engine.run()
    widest = int(np.bincount(gpus.node).max())
    index = {job.id: i for i, job in enumerate(jobs)}
    began: dict[str, tuple[float, bool]] = {}
    near = spread = 0.0
    gangs, split = sum(job.gpus > 1 for job in jobs), set[str]()
    ends = [(float(t), "end", jobs[i].id, ()) for i, t in enumerate(outcome.end_s)]
    for now, verb, name, rows in sorted(
        [*outcome.decisions, *ends], key=lambda one: (one[0], one[1] == "start")
    ):
        size = jobs[index[name]].gpus
        if name in began:
            since, apart = began.pop(name)
            served = (now - since) * size
            near, spread = near + served * (not apart), spread + served * apart
        if verb == "start" and size > 1:
            nodes = len(np.unique(gpus.node[list(rows)]))
            began[name] = (now, nodes > -(-size // widest))
            if began[name][1]:
                split.add(name)
    jct = outcome.end_s - outcome.submit_s
    return float(jct.mean()), len(split) / max(gangs, 1), spread / max(near + spread, 1e-9)


def main() -> None:
    """Run everything, and write the page."""
    arguments = options(__doc__, seeds=5, jobs=400)
    rows = []
    for name, cluster in CLUSTERS.items():
        jobs = tuple(load_trace(name)[: arguments.jobs])
        gangs = sum(job.gpus > 1 for job in jobs) / len(jobs)
        found = [
            [run(profile, jobs, cluster, seed) for seed in range(arguments.seeds)]
            for profile in (load_profile("tandem"), without_locality())
        ]
        mean = [np.mean([one[0] for one in each]) for each in found]
        split = [np.mean([one[1] for one in each]) for each in found]
        share = [np.mean([one[2] for one in each]) for each in found]
        rows.append(
            [
                f"{name}, {cluster}", f"{gangs:.0%}", f"{mean[0]:,.0f}", f"{mean[1]:,.0f}",
                f"{100 * (1 - mean[0] / mean[1]):.1f}", f"{split[0]:.1%}", f"{split[1]:.1%}",
                f"{share[0]:.1%}", f"{share[1]:.1%}",
            ]
        )  # fmt: skip
        print(rows[-1], flush=True)
    columns = [
        "trace, cluster", "gangs", "with, s", "without, s", "less, %",
        "gangs split, with", "without", "gang GPU-seconds spread, with", "without",
    ]  # fmt: skip
    publish(
        "locality",
        PAGE,
        arguments,
        f"seeds 0 to {arguments.seeds - 1}",
        jobs=arguments.jobs,
        table=markdown(columns, rows),
    )


PAGE = """# Locality

{made_by}

`tandem` with and without a price of spreading (`dispatch.locality`), on the first {jobs} jobs of
each trace. Mean completion time in seconds. A gang is split if it was ever started on more nodes
than it needs; the last columns are the share of the GPU-seconds of gangs that they spent so.

{table}

Where no gang of a trace is split without the price either, the price changes nothing.

Measured: the slowdown of each gang on more nodes than it needs (rate on one node over the rate
spread, V100s, 2, 4 and 8 GPUs; the next larger size counts, 8 above it; never below 0), and the
slowdown of pairs, both from Gavel's simulation file. Models that were not measured with several
GPUs have the median of those that were. Drawn with the seed, as on [results.md](../results.md):
the model of each job, memory and utilisation. The policy knows what other batch sizes of the
model say, never the measurement itself. A preemption or a move costs 60 s.
"""

if __name__ == "__main__":
    main()
