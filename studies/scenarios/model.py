"""A scenario as data: jobs on GPUs, and where they are at some moments; and its run.

It runs through the simulator's engine with a shipped profile. What decides is the profile's
`dispatch` on a board, which the scheduler extender calls as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from tandem.errors import TandemError
from tandem.policy.catalog import Profile, load_profile
from tandem.policy.job import UNKNOWN, Iteration, Job, SubBatch
from tandem.policy.jobs import History
from tandem.policy.units import Floats
from tandem.simulator.cluster import Nodes, gpu_arrays
from tandem.simulator.engine import Engine, RunOptions
from tandem.simulator.jobs import TraceJob
from tandem.simulator.truth import MemoryCourse, Truth

#: The rows for an idle GPU and for an unknown job precede those of the kinds in a prediction table.
_FIRST_KIND = UNKNOWN + 1


@dataclass(frozen=True)
class Asks:
    """A job: when it comes, what it asks for, what is predicted of a worker, how long it runs."""

    name: str
    at_s: float = 0.0
    seconds: float = 1000.0  # alone; known to the profiles that need it
    gpus: int = 1  # of the whole gang
    gpus_per_pod: int = 1
    percent: float = 20.0
    base_gib: float = 4.0
    extra_gib: float = 0.0
    p: float = 0.0
    active: float | None = None  # measured share of the time with kernels
    kind: str = ""  # for the slowdowns; '': a kind that slows no other down
    skewed: bool = True
    saves: bool = True
    migration_s: float | None = None
    halves: tuple[SubBatch, ...] = ()
    iteration: Iteration | None = None


@dataclass(frozen=True)
class Scenario:
    """What one rule of a paper decides.

    `looks` are moments, in seconds, and the jobs on each GPU by then: the GPUs in order, `-` where
    there is none, the names of those that share joined by `+`, in alphabetical order.
    """

    name: str
    profile: str
    paper: str
    section: str
    decides: str
    jobs: tuple[Asks, ...]
    looks: Mapping[float, str]
    nodes: tuple[Nodes, ...] = (Nodes(1, 1, "A100", 80.0),)
    nodes_per_rack: int | None = None
    slowdown: Mapping[tuple[str, str], float] = field(default_factory=dict)  # of a next to b
    truly: Mapping[tuple[str, str], float] = field(default_factory=dict)  # where not as predicted
    history_gpu_s: tuple[float, ...] = ()  # of jobs that ended before
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # for a short course
    steps: Mapping[str, int] = field(default_factory=dict)  # micro-batches in the end, by job


@dataclass(frozen=True)
class Seen:
    """Where the jobs are at the moments of a scenario's looks, and in how many micro-batches."""

    looks: Mapping[float, str]
    steps: Mapping[str, int]


def gpus(*per_node: int, gib: float = 80.0, kind: str = "A100") -> tuple[Nodes, ...]:
    """Return nodes with so many GPUs each."""
    return tuple(Nodes(1, count, kind, gib) for count in per_node)


def both(slowdown: float, *pairs: tuple[str, str]) -> dict[tuple[str, str], float]:
    """Return that the jobs of each pair slow each other down by so much."""
    return {each: slowdown for a, b in pairs for each in ((a, b), (b, a))}


def passes(scenario: Scenario, profile: Profile | None = None) -> bool:
    """Say whether the jobs go where the scenario says, under its own profile or another one."""
    try:
        seen = run(scenario, profile)
    except (TandemError, ArithmeticError, LookupError, ValueError, TypeError, AssertionError):
        return False  # a system with a damage may well break down
    return dict(seen.looks) == dict(scenario.looks) and seen.steps == scenario.steps


def profile_of(scenario: Scenario, profile: Profile | None = None) -> Profile:
    """Return a profile with the scenario's settings; without one, that of the scenario.

    A policy of another kind than that of the scenario's profile, and a parameter of another value,
    stay as they are: they are what a mutant is about.
    """
    own = _shipped(scenario.profile)
    chosen = own if profile is None else profile
    for part, values in scenario.settings.items():
        policy, shipped = getattr(chosen, part), getattr(own, part)
        if policy is None or policy.kind != shipped.kind:
            continue
        new = {k: v for k, v in values.items() if getattr(policy, k) == getattr(shipped, k)}
        chosen = chosen.model_copy(update={part: policy.model_copy(update=new)})
    return chosen


@cache
def _shipped(name: str) -> Profile:
    return load_profile(name)


def run(scenario: Scenario, profile: Profile | None = None) -> Seen:
    """Run a scenario to its last look."""
    chosen = profile_of(scenario, profile)
    engine = engine_of(scenario, chosen)
    last = max(scenario.looks)
    for now_s in engine.steps():
        if now_s > last:
            break
    outcome = engine.outcome
    ended = {job.name: outcome.end_s[i] for i, job in enumerate(scenario.jobs)}
    looks = {}
    for at_s in scenario.looks:
        on: dict[str, tuple[int, ...]] = {}
        for when_s, verb, name, rows in outcome.decisions:
            if when_s > at_s:
                break
            on[name] = rows if verb == "start" else ()
        there = {name: rows for name, rows in on.items() if not ended[name] <= at_s}
        looks[at_s] = picture(there, sum(each.count * each.gpus for each in scenario.nodes))
    jobs = {job.id: job for job in engine.board.jobs}
    steps = {name: jobs[name].accumulation_steps for name in scenario.steps}
    return Seen(looks, steps)


def picture(rows_of: Mapping[str, Sequence[int]], count: int) -> str:
    """Return the jobs on each GPU, as in `Scenario.looks`."""
    on: list[list[str]] = [[] for _ in range(count)]
    for name in sorted(rows_of):
        for row in rows_of[name]:
            on[row].append(name)
    return " ".join("+".join(names) or "-" for names in on)


def engine_of(scenario: Scenario, profile: Profile) -> Engine:
    """Return the simulator of a scenario under a profile."""
    trace = [TraceJob(job.name, job.at_s, job.gpus, job.seconds) for job in scenario.jobs]
    cluster = gpu_arrays(
        scenario.nodes, shares=profile.max_jobs_per_gpu, nodes_per_rack=scenario.nodes_per_rack
    )
    kinds = sorted({job.kind for job in scenario.jobs})
    of_kind = {kind: _FIRST_KIND + i for i, kind in enumerate(kinds)}
    predicted = _table(of_kind, scenario.slowdown)
    believed = [_job(job, of_kind[job.kind], predicted) for job in scenario.jobs]
    truth = Truth(
        slowdown=_table(of_kind, {**scenario.slowdown, **scenario.truly}),
        job_class=np.array([job.interference_class for job in believed]),
        memory=[MemoryCourse(0.0, 0.0, 0.0)] * len(believed),
        memory_gib=np.full(len(cluster), np.inf),
        gpu_utilisation=np.array([job.gpu_utilisation for job in believed]),
    )
    history = History(np.array(scenario.history_gpu_s)) if scenario.history_gpu_s else None
    options = RunOptions(history=history, record_decisions=True)
    return Engine(trace, believed, cluster, profile, truth, options=options)


def _job(asked: Asks, kind: int, table: Floats) -> Job:
    return Job(
        id=asked.name,
        pods=asked.gpus // asked.gpus_per_pod,
        gpus_per_pod=asked.gpus_per_pod,
        memory_base_gib=asked.base_gib,
        memory_peak_extra_gib=asked.extra_gib,
        peak_probability=asked.p,
        gpu_utilisation=asked.percent,
        active_share=asked.active,
        checkpointable=asked.saves,
        queued_at_s=asked.at_s,
        remaining_s=asked.seconds,
        skewed=asked.skewed,
        interference_class=kind,
        own_slowdown=table[kind],
        caused_slowdown=table[:, kind],
        sub_batches=asked.halves,
        iteration=asked.iteration,
        migration_s=asked.migration_s,
    )


def _table(of_kind: Mapping[str, int], slowdown: Mapping[tuple[str, str], float]) -> Floats:
    """Return the slowdown of each class (row) next to each (column), (classes, classes)."""
    size = _FIRST_KIND + len(of_kind)
    table = np.zeros((size, size))
    table[UNKNOWN, 1:] = table[1:, UNKNOWN] = np.inf
    for (one, other), value in slowdown.items():
        if one in of_kind and other in of_kind:
            table[of_kind[one], of_kind[other]] = value
    return table
