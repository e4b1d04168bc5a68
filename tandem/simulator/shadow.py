"""Replays the jobs that shadow mode has recorded as Tandem would place them, and compares.

The jobs come when they came and run for as long as they ran; the cluster is the recorded one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from tandem.contracts.shadow import ShadowDay, ShadowJob, ShadowNode
from tandem.policy.catalog import Profile
from tandem.policy.job import Job
from tandem.policy.jobs import JobArrays
from tandem.policy.units import Bools, Floats
from tandem.simulator import mix
from tandem.simulator.cluster import MEMORY_GIB, Nodes
from tandem.simulator.engine import Begun, Engine, RunOptions
from tandem.simulator.jobs import TraceJob
from tandem.simulator.run import Setup, learner_of
from tandem.simulator.settings import read_profile
from tandem.simulator.world import World, plain_world

#: Jobs that are replayed, the latest: beyond it a report would take many minutes.
MOST_JOBS = 2000
#: Draws of loads from the default mix.
DRAWS = 5
_DEFAULT_MEMORY_GIB = 16.0
_BYTES_PER_GIB = 2**30
_LEAST_S = 1.0
#: A difference that counts: a container takes as long to start.
_NOTICED_S = 60.0
_OTHER_TYPE = "V100"

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Record:
    """All days of a record, put together, as of `now_s`."""

    since_s: float
    now_s: float
    missed_s: float
    dropped: int
    nodes: tuple[ShadowNode, ...]
    jobs: tuple[ShadowJob, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A record as the simulator takes it; all arrays are (jobs,).

    `compared` are the jobs that came and ended while it was recorded, `real_wait_s` and
    `real_completion_s` are of these alone. Times of the trace begin at `from_s`, and `until_s` is
    its end.
    """

    jobs: tuple[ShadowJob, ...]
    trace: tuple[TraceJob, ...]
    nodes: tuple[Nodes, ...]
    names: tuple[str, ...]
    compared: Bools
    real_wait_s: Floats
    real_completion_s: Floats
    from_s: float
    until_s: float
    too_large: int
    left_out: int


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of one simulation for the compared jobs; `saved` is in GPU-seconds."""

    wait_s: Floats
    completion_s: Floats
    saved: float
    preemptions: int


def record_of(days: Iterable[ShadowDay], count: int, now_s: float) -> Record | None:
    """Return the last `count` days of a record; None where there is none."""
    found = sorted(days, key=lambda day: day.number)
    if not found:
        return None
    newest = max(found, key=lambda day: day.saved_s)
    first = int(now_s // 86_400) - count + 1
    recent = [day for day in found if day.number >= first]
    open_before = [
        job for day in found if day.number < first for job in day.jobs.values()
        if job.ended_s is None or job.ended_s > first * 86_400
    ]  # fmt: skip
    jobs = [*open_before, *(job for day in recent for job in day.jobs.values())]
    return Record(
        since_s=max(newest.since_s, first * 86_400.0),
        now_s=max(newest.saved_s, newest.since_s),
        missed_s=newest.missed_s,
        dropped=sum(day.dropped for day in recent),
        nodes=tuple(next((day.nodes for day in reversed(found) if day.nodes), ())),
        jobs=tuple(sorted(jobs, key=lambda job: (job.arrived_s, job.id))),
    )


def replay_of(record: Record) -> Replay:
    """Return the trace of a record.

    A job that runs still is taken to run as long again, one that waits still as long as the median
    job. A job that came before the record begins with it, and is not compared.
    """
    since, now = record.since_s, record.now_s
    known = [job for job in record.jobs if job.gpus and (job.ended_s or now) > since]
    left_out = max(0, len(known) - MOST_JOBS)
    known = known[left_out:]
    if left_out:
        since = max(since, known[0].arrived_s)
    total = sum(node.gpus for node in record.nodes)
    largest = max((node.gpus for node in record.nodes), default=0)
    jobs = [job for job in known if job.gpus <= total and job.gpus_per_pod <= largest]
    lasted = [_lasted_s(job, now) for job in jobs]
    ended = [s for s, job in zip(lasted, jobs, strict=True) if job.ended_s is not None]
    usual_s = median(ended) if ended else 3600.0
    trace = []
    for job, ran_s in zip(jobs, lasted, strict=True):
        if job.ended_s is not None:
            duration_s = ran_s
        elif job.started_s is None:
            duration_s = usual_s
        else:
            duration_s = 2 * ran_s
        if job.arrived_s < since and job.started_s is not None and job.started_s < since:
            duration_s -= min(since - job.started_s, ran_s)  # what it had done by then
        trace.append(
            TraceJob(
                id=job.id,
                submit_s=max(0.0, job.arrived_s - since),
                gpus=job.gpus,
                duration_s=max(_LEAST_S, duration_s),
                gpus_per_pod=_gpus_per_pod(job),
                model=job.model or None,
                gpu_utilisation=job.utilisation_percent,
                memory_base_gib=job.memory_bytes / _BYTES_PER_GIB if job.memory_bytes else None,
            )
        )
    compared = np.array(
        [
            job.arrived_s >= since and job.ended_s is not None and job.started_s is not None
            and not job.endless
            for job in jobs
        ],
        dtype=np.bool_,
    )  # fmt: skip
    chosen = [job for job, counts in zip(jobs, compared, strict=True) if counts]
    return Replay(
        jobs=tuple(jobs),
        trace=tuple(trace),
        nodes=tuple(_nodes(node) for node in record.nodes),
        names=tuple(node.name for node in record.nodes for _ in range(node.gpus)),
        compared=compared,
        real_wait_s=np.array([max(0.0, (j.started_s or 0.0) - j.arrived_s) for j in chosen]),
        real_completion_s=np.array([(j.ended_s or 0.0) - j.arrived_s for j in chosen]),
        from_s=since,
        until_s=now,
        too_large=len(known) - len(jobs),
        left_out=left_out,
    )


def run(replay: Replay, profile: Profile, seed: int | None = None) -> Replayed:
    """Replay under a profile; with a `seed`, loads that are not declared are of the default mix.

    Without one, nothing is known of any load, so that no two jobs share a GPU. Services are taken
    to have their GPUs for themselves, and jobs that save no checkpoint are not preempted.
    """
    setup = Setup(
        replay.trace, replay.nodes, mix.FILE if seed is not None else None, seed or 0,
    )  # fmt: skip
    gpus = setup.gpus(profile.max_jobs_per_gpu)
    world = setup.world(gpus)
    believed = _as_they_are(world.believed, replay.jobs)
    declared = World(world.trace, world.truth, believed)
    learner = None if seed is None else learner_of(profile, declared)
    engine = Engine(
        replay.trace, believed, gpus, profile, world.truth, seed=setup.seed,
        options=RunOptions(learner=learner, record_decisions=True),
    )  # fmt: skip
    outcome = engine.run()
    starts: dict[str, float] = {}
    for at_s, verb, name, _ in outcome.decisions:
        if verb == "start":
            starts.setdefault(name, at_s)
    submitted = outcome.submit_s
    started = np.array([starts[job.id] for job in replay.trace])
    whole = float((outcome.gpus * outcome.duration_s).sum())
    return Replayed(
        wait_s=(started - submitted)[replay.compared],
        completion_s=(outcome.end_s - submitted)[replay.compared],
        saved=1 - outcome.busy_gpu_s / whole if whole else 0.0,
        preemptions=int(outcome.preemptions.sum()),
    )


def compare(
    record: Record, profile: str = "tandem", progress: Progress = lambda _: None
) -> dict[str, Any]:
    """Return what happened next to what Tandem would have done, as `tandem report` shows it.

    `simulated` is the scheduler that is there as the simulator plays it, first come, first served
    on whole GPUs: by what it differs from what happened, everything here may be wrong. `alone` is
    Tandem without knowledge of any load, `sharing` its draws with loads of the default mix.
    """
    replay = replay_of(record)
    document: dict[str, Any] = _head(record, replay)
    if not replay.compared.any():
        return document | {"cases": {}, "namespaces": []}
    tandem = read_profile(profile)
    progress("the scheduler that is there")
    fifo = run(replay, read_profile("fifo", ["order.blocks=false"]))
    progress("Tandem without sharing")
    alone = run(replay, tandem)
    sharing = []
    for seed in range(DRAWS):
        progress(f"Tandem with sharing, draw {seed + 1} of {DRAWS}")
        sharing.append(run(replay, tandem, seed))
    really = Replayed(replay.real_wait_s, replay.real_completion_s, 0.0, 0)
    cases = {
        "happened": [_case(really, really)],
        "simulated": [_case(fifo, really)],
        "alone": [_case(alone, really)],
        "sharing": [_case(each, really) for each in sharing],
    }
    return document | {
        "cases": {name: _between(each) for name, each in cases.items()},
        "gpusBusy": round(_busy_gpus(replay), 2),
        "namespaces": _by_namespace(replay, alone, sharing),
    }


def decide_now(record: Record, profile: str = "tandem") -> dict[str, tuple[str, ...]]:
    """Return by job what Tandem would do with it at this moment: a word, and where it applies.

    ("start", nodes ...), ("wait",), ("stop",) or ("keep",). Jobs run where they run in truth.
    """
    replay = replay_of(record)
    living = [i for i, job in enumerate(replay.jobs) if job.ended_s is None]
    jobs = [replay.jobs[i] for i in living]
    if not jobs:
        return {}
    now = record.now_s
    chosen = read_profile(profile)
    setup = Setup(tuple(replace(replay.trace[i], submit_s=0.0) for i in living), replay.nodes)
    gpus = setup.gpus(chosen.max_jobs_per_gpu)
    world = plain_world(setup.trace, gpus)
    believed = _as_they_are(world.believed, jobs)
    rows_of = _rows(jobs, replay.names)
    held = np.array([job.held_gpu_s(now) for job in jobs])
    arrived = np.array([min(0.0, job.arrived_s - now) for job in jobs])
    runs = np.array([i in rows_of for i in range(len(jobs))])
    arrays = replace(
        JobArrays.of(believed),
        arrived_s=arrived,
        waiting_since_s=arrived.copy(),
        since_s=np.zeros(len(jobs)),
        attained_at_since=held,
        service_at_since=held.copy(),
        first_started_s=np.where(runs | (held > 0), arrived, np.inf),
    )
    stays = frozenset(i for i, job in enumerate(jobs) if not job.checkpoint)
    engine = Engine(
        setup.trace, believed, gpus, chosen, world.truth,
        options=RunOptions(begun=Begun(arrays, rows_of, stays), record_decisions=True),
    )  # fmt: skip
    next(engine.steps(), None)
    found: dict[str, tuple[str, ...]] = {
        job.id: ("keep",) if i in rows_of else ("wait",) for i, job in enumerate(jobs)
    }
    for at_s, verb, name, rows in engine.outcome.decisions:
        if at_s > 0:
            break
        nodes = tuple(dict.fromkeys(replay.names[row] for row in rows))
        found[name] = ("start", *nodes) if verb == "start" else ("stop",)
    return found


def free_gpus(record: Record) -> int:
    """Return how many GPUs no recorded job has now."""
    replay = replay_of(record)
    living = [job for job in replay.jobs if job.ended_s is None]
    return len(replay.names) - sum(map(len, _rows(living, replay.names).values()))


# --- parts --------------------------------------------------------------------------------------


def _gpus_per_pod(job: ShadowJob) -> int:
    """Return how many GPUs of one node go together; 1 of a gang whose pods ask for different."""
    return 1 if job.gpus % job.gpus_per_pod else job.gpus_per_pod


def _lasted_s(job: ShadowJob, now_s: float) -> float:
    """Return for how long all GPUs of a job together have been its own."""
    return job.held_gpu_s(now_s) / job.gpus


def _nodes(node: ShadowNode) -> Nodes:
    """Return a node for the simulator: its type is the part of the product's name that is known."""
    product = node.gpu_type.upper()
    known = next((name for name in MEMORY_GIB if name in product), None)
    memory = node.memory_gib or MEMORY_GIB.get(known or "", _DEFAULT_MEMORY_GIB)
    return Nodes(1, node.gpus, known or product or _OTHER_TYPE, memory)


def _as_they_are(believed: Sequence[Job], jobs: Sequence[ShadowJob]) -> list[Job]:
    return [
        replace(
            job,
            exclusive=job.exclusive or of.exclusive or of.endless,
            checkpointable=of.checkpoint,
        )
        for job, of in zip(believed, jobs, strict=True)
    ]


def _rows(jobs: Sequence[ShadowJob], names: Sequence[str]) -> dict[int, tuple[int, ...]]:
    """Return GPUs for the jobs that run, by the nodes of their pods: the first that are free."""
    free: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        free.setdefault(name, []).append(row)
    found = {}
    for i, job in enumerate(jobs):
        rows: list[int] = []
        for run_ in job.runs.values():
            if run_.ended_s is None:
                room = free.get(run_.node, [])
                rows += room[: run_.gpus]
                del room[: run_.gpus]
        if rows and len(rows) == job.gpus:
            found[i] = tuple(rows)
        elif rows:  # of a node that is known no more, or of a gang of which a part runs
            for row in rows:
                free[names[row]].append(row)
    return found


def _busy_gpus(replay: Replay) -> float:
    """Return how many GPUs the recorded jobs had on average."""
    window_s = max(_LEAST_S, replay.until_s - replay.from_s)
    had = 0.0
    for job in replay.jobs:
        if job.started_s is not None:
            begin, end = max(job.started_s, replay.from_s), job.ended_s or replay.until_s
            had += job.gpus * max(0.0, end - begin)
    return had / window_s


def _head(record: Record, replay: Replay) -> dict[str, Any]:
    return {
        "from": replay.from_s,
        "to": replay.until_s,
        "gpus": len(replay.names),
        "jobs": len(replay.jobs),
        "compared": int(replay.compared.sum()),
        "running": sum(j.ended_s is None and j.started_s is not None for j in replay.jobs),
        "waiting": sum(j.ended_s is None and j.started_s is None for j in replay.jobs),
        "tooLarge": replay.too_large,
        "leftOut": replay.left_out + record.dropped,
        "missedSeconds": round(record.missed_s, 1),
        "types": sorted({node.gpu_type or "unknown" for node in record.nodes}),
        "declared": sum(job.memory_bytes is not None for job in replay.jobs),
    }


def _case(found: Replayed, really: Replayed) -> dict[str, float]:
    sooner = really.completion_s - found.completion_s
    return {
        "waitSeconds": float(found.wait_s.mean()),
        "medianWaitSeconds": float(np.median(found.wait_s)),
        "completionSeconds": float(found.completion_s.mean()),
        "sooner": int((sooner > _NOTICED_S).sum()),
        "later": int((sooner < -_NOTICED_S).sum()),
        "saved": found.saved,
        "preemptions": found.preemptions,
    }


def _between(cases: Sequence[dict[str, float]]) -> dict[str, list[float]]:
    """Return the least and the most of each figure over the draws."""
    return {
        name: [round(min(values), 4), round(max(values), 4)]
        for name in cases[0]
        for values in [[case[name] for case in cases]]
    }


def _by_namespace(
    replay: Replay, alone: Replayed, sharing: Sequence[Replayed]
) -> list[dict[str, Any]]:
    chosen = [job for job, counts in zip(replay.jobs, replay.compared, strict=True) if counts]
    namespaces = np.array([job.namespace for job in chosen])
    found = []
    for name in sorted(set(namespaces.tolist())):
        of = namespaces == name
        draws = [float(each.completion_s[of].mean()) for each in sharing]
        found.append(
            {
                "namespace": name,
                "jobs": int(of.sum()),
                "completionSeconds": round(float(replay.real_completion_s[of].mean()), 1),
                "aloneCompletionSeconds": round(float(alone.completion_s[of].mean()), 1),
                "sharingCompletionSeconds": [round(min(draws), 1), round(max(draws), 1)],
            }
        )
    return sorted(found, key=lambda row: (-row["jobs"], row["namespace"]))
