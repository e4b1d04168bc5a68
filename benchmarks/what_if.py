"""What-if against what then happens: `python -m benchmarks.what_if [--jobs 200] [--time]`.

The simulator is the world. Each time, a cluster at work is made: running jobs whose lifetimes are
drawn from a heavy-tailed distribution and of which each has had a part, and a queue. The history
has 1,000 lifetimes of the same distribution, as the extender knows it. For one waiting job, the
what-if says between which times it starts and ends with a change; then the cluster goes on with the
true lifetimes and the change made, and the true start and end are compared.

With `--time`, how long an answer takes at 2,000 GPUs with the first 500 waiting jobs, of which
alone a forecast is made in a cluster, and the CPU time of its process.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from benchmarks.forecast import a_picture
from scheduler_extender.planning.forecast import Picture, draw_left_s
from scheduler_extender.planning.what_if import AskedJob, Change, Span, asked, changed, spans
from tandem.policy.job import Job
from tandem.policy.jobs import History
from tandem.policy.units import Floats

_MEAN_LOG, _SPREAD_LOG = 7.5, 1.2  # of lifetimes, in GPU-seconds
CHANGES = (Change(), Change(gpus=1), Change(gpus=2), Change(gpus=4), Change(shares=False))


def lifetimes(count: int, rng: np.random.Generator, *, at_work: bool = False) -> Floats:
    """Return lifetime services of jobs, in GPU-seconds.

    Of those `at_work` at some moment, long ones are more: each counts by its length.
    """
    shift = _SPREAD_LOG**2 if at_work else 0.0
    return np.exp(rng.normal(_MEAN_LOG + shift, _SPREAD_LOG, count))


def cases(count: int, profile: str, seed: int) -> Iterator[tuple[Span, Span, Span]]:
    """Yield intervals of start and end with a change, and what then happened."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        picture, jobs = a_picture(profile, 16, 24, seed=seed * 10_000 + number)
        running = len(picture.rows_of)
        whole = lifetimes(len(jobs), rng)
        whole[:running] = lifetimes(running, rng, at_work=True)
        had = np.where(np.arange(len(jobs)) < running, rng.random(len(jobs)) * whole, 0.0)
        arrays = replace(picture.arrays, attained_at_since=had.copy(), service_at_since=had.copy())
        picture = replace(
            picture,
            arrays=arrays,
            history=History(lifetimes(1000, rng)),
            seed=int(rng.integers(2**31)),
        )
        row = int(rng.integers(running, len(jobs)))
        change = CHANGES[int(rng.integers(len(CHANGES)))]
        said = spans(*changed(picture, jobs, row, change), row)
        yield (
            (min(s for s, _ in said), max(s for s, _ in said)),
            (min(e for _, e in said), max(e for _, e in said)),
            _truth(picture, jobs, row, change, whole - had),
        )


def _truth(picture: Picture, jobs: list[Job], row: int, change: Change, left_gpu_s: Floats) -> Span:
    """Return when the job starts and ends with the true lifetimes, and all decisions made."""
    arrays = replace(picture.arrays, remaining_at_since=left_gpu_s / picture.arrays.gpus)
    known = replace(picture, arrays=arrays, known=np.ones(len(jobs), dtype=np.bool_))
    then, jobs = changed(known, jobs, row, change)
    left_s = draw_left_s(then, np.random.default_rng(0))
    return AskedJob(then, jobs, row, left_s, to_the_end=True).span()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--profiles", nargs="*", default=["tandem", "fifo"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--time", action="store_true")
    arguments = parser.parse_args()
    if arguments.time:
        for profile in arguments.profiles:
            _time(profile)
        return
    for profile in arguments.profiles:
        found = Counter[str]()
        for start, end, (true_start, true_end) in cases(arguments.jobs, profile, arguments.seed):
            right = start[0] <= true_start <= start[1]
            found["start"] += right
            if start[1] > 0:  # who starts at once says nothing about the interval
                found["waits"] += 1
                found["start of those"] += right
            found["end"] += end[0] <= true_end <= end[1]
        jobs, waits = arguments.jobs, max(1, found["waits"])
        said = [
            f"of {jobs} jobs the start in its interval for {found['start'] / jobs:.1%}",
            f"the end for {found['end'] / jobs:.1%}",
            f"of {waits} that do not start at once {found['start of those'] / waits:.1%}",
        ]
        print(f"{profile}: {', '.join(said)}")


def _time(profile: str) -> None:
    picture, jobs = a_picture(profile, 2000, 500, seed=0)
    for position in (0, 250, 499):
        row = len(picture.rows_of) + position
        began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        content = b"".join(asked(picture, jobs, row, Change(gpus=2)))
        command = [sys.executable, "-m", "scheduler_extender.planning.what_if"]
        done = subprocess.run(command, input=content, capture_output=True, check=True)
        took_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        draws = len(json.loads(done.stdout)["then"])
        print(f"{profile}, position {position}: {took_s:.1f} s, {cpu_s:.1f} of CPU, {draws} draws")


if __name__ == "__main__":
    main()
