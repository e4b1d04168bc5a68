"""A generated workload on a real control plane, against the simulator with the same profiles.

Sixty gangs of one-GPU pods on two kwok nodes of four GPUs each come faster than they can be run.
The latencies of the control plane are measured first, on other jobs, and given to the simulator:
how long a gang of each size takes to start, and to give up its GPUs. Neighbours slow one another
down by Horus' quadratic, in both worlds; all jobs save their state, minimum run and preemption
caps are off.

    python -m studies.plane --seed 43 --seed 44 --json plane.json
    python -m studies.plane --json plane.json --page docs/evidence/plane.md

The first runs the workloads, the second writes the page of what was found.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, median
from typing import Any

from studies.plane.jobs import SIZES, THRESHOLDS_GPU_S, Gang, Latency, scaled, simulate, workload
from studies.plane.page import page
from studies.plane.site import site

SEED, LOAD = 43, 1.25
PROFILES = ("fifo", "tiresias-l", "tandem")
MEASURED_TIMES = 3
#: Where a gang may be preempted while latencies are measured, and how long the one runs for which
#: it is: it must have ended before it gets there itself.
MEASURED_AT_GPU_S, SHORT_S = 16.0, 3.0
MARGIN_S = 10.0  # for starts, so that all have come so far when it comes


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

    def __str__(self) -> str:
        """In one line."""
        return (
            f"{self.profile:<12} plane {self.plane_s:6.1f} s  simulator {self.simulator_s:6.1f} s "
            f" {self.off:+.1%}  preemptions {self.plane_preemptions}, {self.simulator_preemptions}"
            f"  partial gang {self.longest_partial_s:g} s  at most {self.most_on_a_gpu} a GPU"
            f"  load {self.load_average:g}"
        )

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


def measure(pods: int) -> tuple[float, float]:
    """Return how long a gang of so many pods takes to start and to go, where nothing else goes on.

    To measure how long it takes to go, the cluster is filled with such gangs, one of which gives
    way to a short one.
    """
    starts, extra = [], []
    after_s = MEASURED_AT_GPU_S / pods + MARGIN_S
    alone, short = (Gang("short", s, pods, SHORT_S, 70, 90) for s in (0.0, after_s))
    with site(scaled("tiresias-l", MEASURED_AT_GPU_S / THRESHOLDS_GPU_S[0])) as at:
        full = [
            Gang(f"long{index}", 0.0, pods, after_s + MARGIN_S, 70, 90)
            for index in range(at.gpus // pods)
        ]
        for index in range(MEASURED_TIMES):
            training, _ = at.run(at.namespace(f"start-{index}"), [alone])
            starts.append(training.runs["short"].completion_s - SHORT_S)
            training, _ = at.run(at.namespace(f"preempt-{index}"), [*full, short])
            extra.append(training.runs["short"].completion_s - SHORT_S)
    start_s = median(starts)
    return round(start_s, 2), round(max(0.0, median(extra) - start_s), 2)


def compare(name: str, gangs: Sequence[Gang], latency: Latency) -> Compared:
    """Run one profile in both worlds."""
    profile = scaled(name)
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
    parser.add_argument("--seed", type=int, action="append")
    parser.add_argument("--profile", action="append", choices=PROFILES)
    parser.add_argument("--planes", type=int, default=1, help="how many at once")
    parser.add_argument("--latency", type=Path, help="take it from what --json wrote earlier")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path, metavar="PAGE", help="write it from what is in --json")
    args = parser.parse_args()
    if args.page:
        args.page.write_text(page(json.loads(args.json.read_text())))
        return
    found: dict[str, Any] = {
        "command": f"--planes {args.planes}", "load": args.load,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores", "runs": [],
    }  # fmt: skip
    with ProcessPoolExecutor(args.planes, mp_context=get_context("spawn")) as pool:
        if args.latency:
            earlier = json.loads(args.latency.read_text())["latency"]
            latency = Latency(*({int(k): v for k, v in by.items()} for by in earlier.values()))
        else:
            measured = zip(*pool.map(measure, SIZES), strict=True)
            latency = Latency(*(dict(zip(SIZES, each, strict=True)) for each in measured))
        print(f"measured first: {latency}", flush=True)
        found["latency"] = asdict(latency)
        waited_for = []
        for seed in args.seed or [SEED]:
            gangs = workload(seed, args.jobs, args.load)
            waited_for += [
                (seed, pool.submit(compare, name, gangs, latency))
                for name in args.profile or PROFILES
            ]
        for seed, future in waited_for:
            one = future.result()
            print(f"seed {seed}  {one}", flush=True)
            found["runs"].append({"seed": seed, **asdict(one)})
            if args.json:
                args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
