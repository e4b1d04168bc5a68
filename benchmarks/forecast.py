"""How long a forecast of starts takes: `python -m benchmarks.forecast [--gpus N] [--waiting N]`.

All GPUs are in use, so many jobs wait, models are drawn from a matrix on which pairs gain 1.4. The
CPU seconds are those of all nine draws, in one process, as the forecast's own process has them.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import numpy as np

from benchmarks.drawn import drawn_matrix
from scheduler_extender.planning.forecast import Picture, forecast
from tandem.policy.catalog import load_profile
from tandem.policy.cluster import GpuArrays
from tandem.policy.job import Job
from tandem.policy.jobs import History, JobArrays
from tandem.policy.units import Floats

_SIZES, _SHARES = (1, 2, 4, 8), (0.70, 0.12, 0.10, 0.08)
_GIB = 80.0


def _jobs(count: int, first: int, rng: np.random.Generator, table: Floats) -> list[Job]:
    found = []
    for index in range(first, first + count):
        kind = int(rng.integers(1, len(table)))
        found.append(
            Job(
                id=f"default/{index}",
                pods=int(rng.choice(_SIZES, p=_SHARES)),
                memory_base_gib=float(rng.uniform(5, 25)),
                peak_probability=0.1,
                memory_peak_extra_gib=2.0,
                checkpointable=True,
                interference_class=kind,
                own_slowdown=table[kind],
                caused_slowdown=table[:, kind],
                gpu_utilisation=50.0,
            )
        )
    return found


def a_picture(profile: str, gpus: int, waiting: int, seed: int) -> tuple[Picture, list[Job]]:
    """Return a cluster whose GPUs each have one job, and a queue."""
    rng = np.random.default_rng(seed)
    measured = drawn_matrix("gain-1.4", seed).slowdown
    table = np.zeros((len(measured) + 1, len(measured) + 1))
    table[1:, 1:] = measured
    running, rows_of, at = [], {}, 0
    arrays = GpuArrays.empty(np.arange(gpus) // 8, np.full(gpus, _GIB), shares=2)
    for job in _jobs(gpus, 0, rng, table):
        if at + job.gpus > gpus:
            break
        rows_of[len(running)] = tuple(range(at, at + job.gpus))
        running.append(job)
        at += job.gpus
    jobs = [*running, *_jobs(waiting, len(running), rng, table)]
    attained_s = np.exp(rng.normal(7.5, 1.8, len(jobs)))
    attained_s[len(running) :] = 0.0
    live = JobArrays.of(jobs)
    live = replace(
        live,
        arrived_s=np.linspace(-7200.0, -1.0, len(jobs)),
        attained_at_since=attained_s * live.gpus,
        service_at_since=attained_s * live.gpus,
    )
    return Picture(
        profile=load_profile(profile),
        gpus=arrays,
        arrays=live,
        rows_of=rows_of,
        known=np.zeros(len(jobs), dtype=np.bool_),
        endless=np.zeros(len(jobs), dtype=np.bool_),
        nodes={},
        slowdown=table,
        history=History(np.exp(rng.normal(7.5, 1.8, 1000))),
        preemption_cost_s=60.0,
        seed=seed,
    ), jobs


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=2000)
    parser.add_argument("--waiting", type=int, default=2000)
    parser.add_argument("--profiles", nargs="*", default=["tandem", "tiresias-l"])
    arguments = parser.parse_args()
    for profile in arguments.profiles:
        picture, jobs = a_picture(profile, arguments.gpus, arguments.waiting, seed=0)
        started = time.process_time()
        found = forecast(picture, jobs)
        cpu_s = time.process_time() - started
        print(
            f"{profile}: {arguments.gpus} GPUs, {len(picture.rows_of)} running, "
            f"{arguments.waiting} waiting jobs: {cpu_s:.1f} s of CPU, {len(found)} forecasts"
        )


if __name__ == "__main__":
    main()
