"""A generated workload on a real control plane, against the simulator with the same profiles.

Sixty gangs of one-GPU pods on two kwok nodes of four GPUs each come faster than they can be run.
The latencies of the control plane are measured first, on other jobs, and given to the simulator:
how long a gang of each size takes to start, and to give up its GPUs. Neighbours slow one another
down by Horus' quadratic, in both worlds; all jobs save their state, minimum run and preemption
caps are off.

    python -m benchmarks.plane --seed 43 --json 43.json
    python -m benchmarks.plane --page docs/plane.md 43.json 44.json

The first runs the workload of a seed, the second writes the page of what was found.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median

from benchmarks.plane_jobs import SIZES, THRESHOLDS_GPU_S, Gang, Latency, scaled, simulate, workload
from benchmarks.plane_page import page
from benchmarks.plane_site import Site, site
from tandem.policy.catalog import Profile

SEED, LOAD = 43, 1.25
PROFILES = ("fifo", "tiresias-l", "tandem")
MEASURED_TIMES = 3
#: Where a gang may be preempted while latencies are measured, and how long the one runs for which
#: it is: it must have ended before it gets there itself.
MEASURED_AT_GPU_S, SHORT_S = 24.0, 3.0


@dataclass(frozen=True)
class Completion:
    """One job in both worlds, seconds from its submission to its end."""

    name: str
    pods: int
    duration_s: float
    plane_s: float
    simulator_s: float


@dataclass(frozen=True)
class Compared:
    """One profile in both worlds."""

    profile: str
    jobs: Sequence[Completion]
    plane_preemptions: int  # moves among them
    simulator_preemptions: int
    longest_partial_s: float
    most_on_a_gpu: int
    load_average: float  # of the machine, when it had ended

    @property
    def plane_s(self) -> float:
        """Mean completion on the control plane."""
        return fmean(job.plane_s for job in self.jobs)

    @property
    def simulator_s(self) -> float:
        """Mean completion in the simulator."""
        return fmean(job.simulator_s for job in self.jobs)

    @property
    def off(self) -> float:
        """By how much the control plane differs from the simulator."""
        return self.plane_s / self.simulator_s - 1


def measure_latency(at: Site) -> Latency:
    """Return how long gangs of each size take to start and to go, on a cluster that is else empty.

    A gang of many pods is there, and gone, later than one of few. To measure how long it takes to
    go, the cluster is filled with gangs of one size, one of which gives way to a short one.
    """
    start_s, release_s = {}, {}
    for pods in SIZES:
        starts, extra = [], []
        after_s = MEASURED_AT_GPU_S / pods + 4.0
        full = [
            Gang(f"long{index}", 0.0, pods, after_s + 8.0, 70, 90)
            for index in range(at.gpus // pods)
        ]
        short = Gang("short", after_s, pods, SHORT_S, 70, 90)
        for index in range(MEASURED_TIMES):
            alone = Gang("one", 0.0, pods, SHORT_S, 70, 90)
            training, _ = at.run(at.namespace(f"start-{pods}-{index}"), [alone])
            starts.append(training.runs["one"].completion_s - SHORT_S)
            training, _ = at.run(at.namespace(f"preempt-{pods}-{index}"), [*full, short])
            extra.append(training.runs["short"].completion_s - SHORT_S)
        start_s[pods] = round(median(starts), 2)
        release_s[pods] = round(max(0.0, median(extra) - median(starts)), 2)
    return Latency(start_s, release_s)


def measuring() -> Profile:
    """Return the profile under which a gang is preempted as soon as latencies can be measured."""
    return scaled("tiresias-l", MEASURED_AT_GPU_S / THRESHOLDS_GPU_S[0])


def compare(name: str, gangs: Sequence[Gang], latency: Latency, scale: float = 1.0) -> Compared:
    """Run one profile in both worlds."""
    profile = scaled(name, scale)
    simulated = simulate(gangs, profile, latency)
    ends_s = (simulated.end_s - simulated.submit_s).tolist()
    with site(profile) as at:
        training, watching = at.run(at.namespace("workload"), gangs)
        preemptions = at.preemptions("workload")
    jobs = [
        Completion(
            gang.name, gang.pods, gang.duration_s,
            round(training.runs[gang.name].completion_s, 2), round(ends_s[index], 2),
        )
        for index, gang in enumerate(gangs)
    ]  # fmt: skip
    return Compared(
        name, jobs, preemptions, int((simulated.preemptions + simulated.migrations).sum()),
        round(watching.longest_partial_s, 1), watching.most_on_a_gpu, round(os.getloadavg()[1], 1),
    )  # fmt: skip


def main() -> None:
    """Measure the latencies, then each profile; or write the page of what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--load", type=float, default=LOAD)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--profile", action="append", choices=PROFILES)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path, metavar="PAGE")
    parser.add_argument(
        "results", nargs="*", type=Path, help="with --page: what --json has written"
    )
    args = parser.parse_args()
    if args.page:
        args.page.write_text(page([json.loads(each.read_text()) for each in args.results]))
        return
    gangs = workload(args.seed, args.jobs, args.load)
    with site(measuring()) as at:
        latency = measure_latency(at)
    print(f"{len(gangs)} jobs, load {args.load:g}, seed {args.seed}, {platform.machine()}")
    print(f"measured first: {latency}", flush=True)
    rows = []
    for name in args.profile or PROFILES:
        one = compare(name, gangs, latency)
        print(
            f"{name:<12} plane {one.plane_s:7.1f} s  simulator {one.simulator_s:7.1f} s "
            f" {one.off:+.1%}  preemptions {one.plane_preemptions}, {one.simulator_preemptions}"
            f"  partial gang {one.longest_partial_s:g} s  at most {one.most_on_a_gpu} a GPU",
            flush=True,
        )
        mean = {"plane_s": one.plane_s, "simulator_s": one.simulator_s}
        rows.append(asdict(one) | {key: round(value, 2) for key, value in mean.items()})
    if args.json:
        machine = f"{platform.machine()}, {os.cpu_count()} cores"
        found = {"seed": args.seed, "load": args.load, "machine": machine, "profiles": rows}
        args.json.write_text(json.dumps(found | {"latency": asdict(latency)}, indent=1))


if __name__ == "__main__":
    main()
