"""Speeds of jobs on simulated GPUs. Pure: no clock, no I/O.

Alone, a job takes its `solo_s`. Next to others it is slowed down by Horus' over-commit curve f (a
ratio of execution times at the GPU's total utilisation, fitted by its authors on an RTX 2080): by
f(total) / f(own). Nothing else slows it down: no contention for memory bandwidth, PCIe or host.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tandem.policy.equations.horus import slowdown_over_commit
from tandem_demo.workload import DemoJob

FORMULA = "Horus' over-commit curve (RTX 2080): f(total utilisation) / f(own utilisation)"


def slowdown(own: float, total: float) -> float:
    """Return how much longer a job takes: (>= 1), at utilisations in percent."""
    at_total, at_own = slowdown_over_commit(np.array([total, own], dtype=np.float64))
    return float(at_total / at_own)


@dataclass(slots=True)
class Running:
    """A job at work on a GPU; `remaining_s` counts as if it were alone."""

    job: DemoJob
    gpu: str
    remaining_s: float


def advance(running: Mapping[str, Running], elapsed_s: float) -> list[str]:
    """Let the jobs run for `elapsed_s` side by side; return the keys of those that have ended."""
    total: dict[str, float] = {}
    for each in running.values():
        total[each.gpu] = total.get(each.gpu, 0.0) + each.job.utilisation
    for each in running.values():
        each.remaining_s -= elapsed_s / slowdown(each.job.utilisation, total[each.gpu])
    return [key for key, each in running.items() if each.remaining_s <= 0]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a set of jobs, in seconds of the demo's clock.

    Completion is counted from submission; makespan from the first submission to the last end.
    """

    mean_completion_s: float
    makespan_s: float

    @classmethod
    def of(cls, times: Iterable[tuple[float, float]]) -> Outcome:
        """Return the outcome of jobs given as (submitted, finished)."""
        submitted, finished = zip(*times, strict=True)
        completions = [end - start for start, end in zip(submitted, finished, strict=True)]
        return cls(sum(completions) / len(completions), max(finished) - min(submitted))


def exclusive_fifo(jobs: Sequence[DemoJob], gpus: int) -> Outcome:
    """Return the outcome of the same jobs with a GPU each, first come first served.

    Calculated, and without any time for scheduling, so that it is the best such a queue could do.
    """
    free = [0.0] * gpus
    times = []
    for job in sorted(jobs, key=lambda job: job.submit_s):
        end = max(heapq.heappop(free), job.submit_s) + job.solo_s
        heapq.heappush(free, end)
        times.append((job.submit_s, end))
    return Outcome.of(times)
