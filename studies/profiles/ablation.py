"""What each clause of the default profile decides: how much changes without it.

    python -m studies.profiles.ablation            # both parts: a minute on one core
    python -m studies.profiles.ablation --write    # and ablation.json, for docs/evidence/papers.md,
                                                   # and docs/evidence/results/ablation.md

Boards: `BOARDS` random clusters at work, each decided on once by `tandem` and once without the
clause. Agents guard the memory, two jobs in three were measured before, and GPUs are of two types.
Traces: the first 240 jobs of each measured trace on 4x8 V100s, whole runs, with the models all of
whose pairs were measured; what differs early changes what is decided later. The memory course of
each job is drawn from the ranges that OJPP has published, as on
docs/evidence/results/ojpp-memory.md: the courses that other simulations draw are made so that the
peaks of nearly every measured pair fit together, and leave rules on peaks nothing to decide. A
decision is a start on its GPUs, or a stop, of one job at one time. Its share that differs is that
of the decisions that one of the two makes alone, of those of both.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pages import made_by, write
from benchmarks.tables import markdown
from studies.papers.ojpp_memory import CAPACITY_GIB, all_fit, with_courses
from studies.profiles.workloads import matrix, measured_trace
from tandem.policy.board import Board
from tandem.policy.catalog import Profile, load_profile
from tandem.policy.cluster import GpuArrays
from tandem.policy.equations.horus import GTX_1080, RTX_2080
from tandem.policy.job import UNKNOWN, Job
from tandem.policy.jobs import History, JobArrays
from tandem.simulator.cluster import gpu_arrays, parse_cluster
from tandem.simulator.engine import Engine, RunOptions
from tandem.simulator.gavel import draw_memory
from tandem.simulator.run import learner_of
from tandem.simulator.truth import MemoryCourse
from tandem.simulator.world import measured_world

KEPT = Path(__file__).with_name("ablation.json")
BOARDS = 400
TRACES = ("philly-103959", "philly-ed69ec", "philly-0e4a51", "muri-trace3")
_CLUSTER, _CLUSTER_GPUS, _JOBS, _SEED = "4x8", 32, 240, 0
_CLASSES = 8
#: GPUs of a board, and jobs for each of them; both types of GPU have their own memory.
_GPUS, _JOBS_PER_GPU, _MEMORY_GIB = (8, 16, 32), 2.5, (16.0, 24.0)
_MEASURED = 2 / 3  # of the jobs

Change = Callable[[dict[str, Any]], None]


def _without(kind: str) -> Change:
    """Return what takes the constraint `kind` out of a profile."""

    def change(profile: dict[str, Any]) -> None:
        profile["constraints"] = [c for c in profile["constraints"] if c["kind"] != kind]

    return change


def _dispatch(**values: object) -> Change:
    """Return what sets parameters of the dispatch."""

    def change(profile: dict[str, Any]) -> None:
        profile["dispatch"] |= values

    return change


def _one_queue(profile: dict[str, Any]) -> None:
    # Still looked at again when a job's service has doubled: the clause is the queues.
    profile["order"]["thresholds_gpu_s"] = [1e15]


def _no_cost(profile: dict[str, Any]) -> None:
    profile["scorers"] = []


def _all_peaks(profile: dict[str, Any]) -> None:
    for constraint in profile["constraints"]:
        if constraint["kind"] == "peak_fits":
            constraint["opportunistic"] = False


#: What `tandem` is without each clause; tags in the code (`ablation: NAME`) name them.
CLAUSES: dict[str, Change] = {
    "horus cost": _no_cost,
    "interference": _without("interference"),
    "collision": _without("memory_collision"),
    "one peak": _all_peaks,
    "all peaks": _without("peak_fits"),
    "queues": _one_queue,
    "learned index": _dispatch(learn=False),
    "preemption": _dispatch(preempt_factor=None),
    "turns": _dispatch(turn_share=None),
    "moves": _dispatch(move_cost_s=None),
    "spread": _dispatch(locality=False),
    "sharing": _dispatch(share=False),
}


def profile_without(clause: str | None) -> Profile:
    """Return `tandem`, without a clause where one is named."""
    values = load_profile("tandem").model_dump()
    if clause is not None:
        CLAUSES[clause](values)
    return Profile.model_validate(values)


# --- boards ---------------------------------------------------------------------------------------


def random_board(seed: int) -> Board:
    """Return a cluster at some moment: some jobs run where the profile allows it, others wait."""
    rng = np.random.default_rng([seed, 37])
    rows = int(rng.choice(_GPUS))
    kind = np.repeat(rng.integers(2, size=-(-rows // 4)), 4)[:rows]
    gpus = replace(
        GpuArrays.empty(np.arange(rows) // 4, np.array(_MEMORY_GIB)[kind]),
        gpu_type=kind, guarded=np.ones(rows, dtype=np.bool_),
        over_commit=np.array([GTX_1080, RTX_2080])[kind],
    )  # fmt: skip
    jobs = _random_jobs(rng, int(rows * _JOBS_PER_GPU))
    board = Board.of(jobs, JobArrays.of(jobs), gpus)
    order = load_profile("tandem").order
    arrays = board.arrays
    arrays.queue[:] = order.queues_of(arrays.service_at_since)
    pipeline = profile_without(None).pipeline()
    for job in rng.permutation(len(jobs)).tolist():
        if board.gpus.jobs.sum() >= rows:
            break
        allowed = np.flatnonzero(pipeline.allowed(jobs[job], board.gpus))
        if len(allowed) >= jobs[job].gpus and arrays.attained_at_since[job] > 0:
            board.place(job, np.sort(rng.permutation(allowed)[: jobs[job].gpus]))
            arrays.running[job] = True
            arrays.speed[job] = 1.0
    board.history = History(rng.lognormal(8.0, 1.6, 60), rng.choice([1, 1, 2, 4], 60))
    return board


def _random_jobs(rng: np.random.Generator, count: int) -> list[Job]:
    busy = rng.uniform(20, 95, _CLASSES + UNKNOWN + 1)
    # Two together take about as long as their utilisations say, and some pairs far longer.
    total = busy[:, None] + busy[None, :]
    table = np.maximum(total / 100 - 1, 0.02) * rng.lognormal(0.0, 0.6, total.shape)
    table[0] = table[:, 0] = 0.0
    table[UNKNOWN, 1:] = table[1:, UNKNOWN] = np.inf
    jobs = []
    for index in range(count):
        kind = int(rng.integers(UNKNOWN + 1, len(busy)))
        peak = float(rng.uniform(2.0, 14.0))
        pods = int(rng.choice([1, 1, 1, 1, 2, 4]))
        # One in two is new; of the others, those that are there at one moment have run for long.
        run_s = float(rng.lognormal(9.0, 1.5)) * float(rng.random() < 0.5)
        jobs.append(
            Job(
                id=f"{index:03}", pods=pods,
                memory_base_gib=peak * (base := float(rng.uniform(0.4, 0.9))),
                memory_peak_extra_gib=peak * (1 - base),
                peak_probability=float(rng.uniform(0.05, 0.6)),
                peak_measured=bool(rng.random() < _MEASURED),
                gpu_utilisation=float(busy[kind]),
                exclusive=bool(rng.random() < 0.1),
                checkpointable=True,
                queued_at_s=-run_s - float(rng.exponential(20_000.0)),
                attained_gpu_seconds=run_s * pods,
                spread_slowdown=0.3 if pods > 1 else 0.0,
                interference_class=kind, own_slowdown=table[kind], caused_slowdown=table[:, kind],
            )
        )  # fmt: skip
    return jobs


def decisions(board: Board, profile: Profile) -> list[object]:
    """Return what a profile decides on a board, which it changes."""
    if profile.order.thresholds_gpu_s[0] >= 1e15:
        board.arrays.queue[:] = 0
    waiting = np.arange(len(board.jobs))
    profile.dispatch(board, waiting, profile.pipeline(), profile.order.blocks)
    return list(board.take_actions())


def on_boards(count: int) -> dict[str, float]:
    """Return the share of decisions that differ without each clause, on `count` boards."""
    profiles = {name: profile_without(name) for name in CLAUSES}
    whole = profile_without(None)
    differ: dict[str, list[tuple[int, int]]] = {name: [] for name in CLAUSES}
    for seed in range(count):
        board = random_board(seed)
        made = decisions(_copied(board), whole)
        for name, profile in profiles.items():
            differ[name].append(_differing(made, decisions(_copied(board), profile)))
    return {name: _share(found) for name, found in differ.items()}


def _copied(board: Board) -> Board:
    new = copy.deepcopy(board, {id(board.jobs): list(board.jobs)})
    new.gpus = GpuArrays(**{name: column.view() for name, column in new.columns.items()})
    return new


def _differing(mine: Iterable[Any], other: Iterable[Any]) -> tuple[int, int]:
    """Return how many decisions one of the two makes alone, and how many both make together."""
    one, two = set(mine), set(other)
    return len(one ^ two), len(one | two)


def _share(found: list[tuple[int, int]]) -> float:
    differing, all_made = np.sum(found, axis=0).tolist()
    return differing / max(all_made, 1)


# --- traces ---------------------------------------------------------------------------------------


def run(trace: str, profile: Profile, *, published: bool = True) -> tuple[set[object], float]:
    """Return the decisions of a run, and the mean completion time in seconds.

    Memory courses are those of the published ranges, or those that other simulations draw.
    """
    gpus = gpu_arrays((parse_cluster(_CLUSTER),), shares=profile.max_jobs_per_gpu)
    gpus = replace(gpus, guarded=np.ones(len(gpus), dtype=np.bool_))
    jobs = measured_trace(trace, jobs=_JOBS, gpus=len(gpus), load=1.0)
    pairs = matrix("v100", _SEED)
    if published:
        jobs, pairs = with_courses(jobs, _SEED), all_fit(pairs)
    world = measured_world(jobs, gpus, pairs, seed=_SEED, belief_error=0.07)
    believed = [replace(job, peak_measured=True) for job in world.believed]
    engine = Engine(
        jobs, believed, gpus, profile, world.truth, seed=_SEED, guarded=True,
        options=RunOptions(learner=learner_of(profile, world), record_decisions=True),
    )  # fmt: skip
    outcome = engine.run()
    submitted = np.array([job.submit_s for job in jobs])
    return set(outcome.decisions), float((outcome.end_s - submitted).mean())


def on_trace(trace: str) -> dict[str, tuple[float, float]]:
    """Return the share of decisions that differ without each clause, and the mean over today's."""
    made, mean_s = run(trace, profile_without(None))
    found = {}
    for name in CLAUSES:
        other, other_s = run(trace, profile_without(name))
        found[name] = _share([_differing(made, other)]), other_s / mean_s
    return found


def collisions_by_model() -> dict[str, float]:
    """Return what the bound on collisions decides, by trace, where courses are drawn by model."""
    found = {}
    for trace in TRACES:
        made, other = (
            run(trace, profile_without(clause), published=False)[0]
            for clause in (None, "collision")
        )
        found[trace] = _share([_differing(made, other)])
    return found


def table(boards: dict[str, float], traces: dict[str, dict[str, tuple[float, float]]]) -> str:
    """Return what was found as a table."""
    rows = []
    for name in CLAUSES:
        of = [traces[trace][name] for trace in traces]
        figures = [f"{share:.1%} ({mean:.3f})" for share, mean in of]
        rows.append([name, f"{boards[name]:.1%}", *figures])
    return markdown(["without", f"{BOARDS} boards", *traces], rows)


def peaks_that_meet() -> dict[str, str]:
    """Return how many pairs have what a bound on collisions decides on, by the courses of jobs."""
    drawn = draw_memory(matrix("v100", _SEED), CAPACITY_GIB, np.random.default_rng(_SEED))
    trace = measured_trace(TRACES[0], jobs=_JOBS, gpus=_CLUSTER_GPUS, load=1.0)
    published = [
        MemoryCourse(
            job.memory_base_gib or 0.0,
            (job.memory_peak_gib or 0.0) - (job.memory_base_gib or 0.0),
            job.peak_probability or 0.0,
        )
        for job in with_courses(trace, _SEED)
    ]
    found = {}
    for name, courses in (("drawn", drawn), ("published", published)):
        one, two = np.triu_indices(len(courses), 1)
        base, extra, chance = (
            np.array([getattr(course, field) for course in courses])
            for field in ("base_gib", "peak_extra_gib", "peak_probability")
        )
        room = CAPACITY_GIB - base[one] - base[two]
        peak = np.maximum(extra[one], extra[two]) <= room
        meets = peak & (extra[one] + extra[two] > room)
        bound = next(
            each.max_collision_probability
            for each in profile_without(None).constraints
            if each.kind == "memory_collision"
        )
        over = meets & (chance[one] * chance[two] > bound)
        found |= {f"{name}_meets": f"{meets.mean():.0%}", f"{name}_over": f"{over.mean():.1%}"}
    return found


_PAGE = """# What each clause of the default profile decides

{made_by}

The part of the decisions that change without a clause of `tandem`, and in brackets the mean
completion time without it, relative to that with it. Boards are random clusters at work, of GPUs of
two types, each decided on once. Traces are runs of the first {jobs} jobs on {cluster} V100s with
measured pairs, predicted with an error of 7 %; what changes early changes what is decided later.
Memory is guarded (`guard.mode: evict`), as it is not by default, and peaks are measured.

{table}

Removing a clause that another clause implies changes nothing: *all peaks* next to *one peak*, and
*spread* where a gang runs at the same speed on any nodes.

The bound on collisions decides where room for one peak suffices and not for both. Jobs of the
traces have memory courses from the ranges that OJPP has published ([memory](ojpp-memory.md)):
{published_meets} of all pairs of jobs are such, and of {published_over} of all pairs the chance
that peaks meet is over the bound. The courses that the other pages draw, by model, are made to
agree with which pairs could be measured: {drawn_meets} of the pairs of models are such, and
{drawn_over} are over the bound. With these courses the bound decides {by_model}.

Where the mean is below 1.000 without a clause, these jobs end sooner without it. {longer}
With `guard.mode: warn`, which is the default, all peaks must fit, and neither of the two rules on
one peak acts.
"""


def longer_with(traces: dict[str, dict[str, tuple[float, float]]]) -> str:
    """Say by how much clauses lengthen the mean by more than a hundredth, over the traces."""
    found = []
    for name in CLAUSES:
        mean = float(np.exp(np.mean([np.log(of[name][1]) for of in traces.values()])))
        if mean < 0.99:
            found.append(f"{name} {100 * (1 / mean - 1):.1f} %")
    return f"By the geometric mean over the traces, clauses cost: {', '.join(found) or 'nothing'}."


def main() -> None:
    """Print both parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    boards = on_boards(BOARDS)
    traces = {trace: on_trace(trace) for trace in TRACES}
    print(table(boards, traces))
    if arguments.write:
        kept = {
            "boards": {name: round(share, 4) for name, share in boards.items()},
            "traces": {
                trace: {name: round(share, 4) for name, (share, _) in of.items()}
                for trace, of in traces.items()
            },
        }
        KEPT.write_text(json.dumps(kept, indent=1) + "\n")
        write(
            "ablation",
            _PAGE.format(
                made_by=made_by("python -m studies.profiles.ablation --write", f"seed {_SEED}"),
                jobs=_JOBS,
                cluster=_CLUSTER,
                table=table(boards, traces),
                longer=longer_with(traces),
                by_model=", ".join(
                    f"{share:.1%} on {trace}" for trace, share in collisions_by_model().items()
                ),
                **peaks_that_meet(),
            ),
        )


if __name__ == "__main__":
    main()
