"""Start forecasts: the simulator continues from a copy of the cluster.

`python -m scheduler_extender.planning.forecast` takes a picture on its standard input, plays it a
few times with unknown running times drawn from those of finished jobs, and answers
with JSON.
A process of its own, niced and with limits, so that neither a verb nor a round waits for it.

What it leaves out: jobs still to come, CPU and memory of nodes, borrowers that give GPUs back to
namespaces within their quotas, minimum runs, the caps on preemptions and the seconds in which pods
start and stop.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import BinaryIO

import numpy as np

from scheduler_extender.cluster.table import without_residents
from scheduler_extender.planning.cluster_pipeline import ClusterPipeline, Tries
from scheduler_extender.planning.forecast_quotas import Admission, Shares
from scheduler_extender.planning.remaining import draw_remaining_gpu_s
from tandem.policy.catalog import Profile
from tandem.policy.cluster import GpuArrays
from tandem.policy.job import EMPTY_SLOT, Job
from tandem.policy.jobs import History, JobArrays
from tandem.policy.topology import Topology
from tandem.policy.units import Bools, Floats, Ints
from tandem.simulator.engine import Begun, Engine, RunOptions
from tandem.simulator.jobs import TraceJob
from tandem.simulator.truth import MemoryCourse, Truth

#: Of nine draws and the truth, any is the least as likely as any other: the truth lies below all
#: nine one time in ten, above all nine one time in ten, and between them four times in five.
DRAWS = 9
HORIZON_S = 48 * 3600.0
#: Of data; 2,000 GPUs and 2,500 jobs take 105 MiB. The container's limit must hold the service's
#: own 600 MiB as well: a container that runs out of memory is ended as a whole.
MEMORY_BYTES = 384 * 2**20
_LEAST_LEFT_S = 1.0
_LEAST_PAUSE_S, _PAUSES = 10.0, 20  # between rounds: so many seconds, and that part of the time
_PIECE = 50  # jobs that are pickled at a time
_NO_SPEED = 1.0  # slowdown of those of which nothing is known, who never share


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The cluster at time 0: running jobs (`rows_of`), then waiting ones, in the rows of `arrays`.

    Times are relative to now. `known` are jobs of which `remaining_at_since` is no estimate,
    `endless` those that never end. `slowdown` (classes, classes) is what is believed of pairs,
    `nodes` (nodes,) by `Job.where` who could run there if they were empty, `most` of how many GPUs.
    `topology` has the domains of the nodes, `shares` the quotas. `paces` has by row how many times
    as long as drawn a job runs, where that is not 1.
    """

    profile: Profile
    gpus: GpuArrays
    arrays: JobArrays
    rows_of: Mapping[int, tuple[int, ...]]
    known: Bools  # (jobs,)
    endless: Bools  # (jobs,)
    nodes: Mapping[int, Bools]
    slowdown: Floats
    history: History
    preemption_cost_s: float
    seed: int = 0
    most: Mapping[int, Ints] = field(default_factory=dict)
    topology: Topology | None = None
    paces: Mapping[int, float] = field(default_factory=dict)
    shares: Shares | None = None


def forecast(picture: Picture, jobs: Sequence[Job]) -> dict[int, tuple[float, float]]:
    """Return by row when a job that waits starts, seconds from now: four times in five between.

    The later end is infinite where it lies beyond the horizon; who is not expected to start within
    it is left out.
    """
    if not len(picture.gpus):  # before the first agent has reported
        return {}
    rng = np.random.default_rng(picture.seed)
    draws = [_starts(picture, jobs, rng) for _ in range(DRAWS)]
    found = {}
    for job in range(len(jobs)):
        times = [draw.get(job, np.inf) for draw in draws]
        if job not in picture.rows_of and np.isfinite(min(times)):
            found[job] = (min(times), max(times))
    return found


def _pause_s(now_s: float) -> float:
    """Return how long no other round follows: the later, the less a minute matters."""
    return max(_LEAST_PAUSE_S, now_s / _PAUSES)


def draw_left_s(picture: Picture, rng: np.random.Generator) -> Floats:
    """Return one draw of the time that each job has yet to run, (jobs,), solo."""
    arrays, history = picture.arrays, picture.history
    drawn = draw_remaining_gpu_s(
        arrays.attained_at_since, history.sorted_service, rng, history.sorted_votes
    )
    for row, pace in picture.paces.items():
        drawn[row] *= pace
    left = np.where(picture.known, arrays.remaining_at_since, drawn / arrays.gpus)
    return np.where(picture.endless, 1e3 * HORIZON_S, np.maximum(left, _LEAST_LEFT_S))


def engine_of(picture: Picture, jobs: Sequence[Job], left: Floats) -> Engine:
    """Return the simulator on a copy of the picture, with the running times of one draw.

    `left` is what `draw_left_s` returns.
    """
    arrays = picture.arrays
    trace = [
        TraceJob(str(i), 0.0, job.gpus, float(seconds))
        for i, (job, seconds) in enumerate(zip(jobs, left, strict=True))
    ]
    return Engine(
        trace, jobs, without_residents(picture.gpus), picture.profile, _truth(picture, jobs),
        options=RunOptions(
            history=picture.history,
            begun=Begun(
                replace(arrays, **{f.name: getattr(arrays, f.name).copy() for f in fields(arrays)}),
                picture.rows_of,
                frozenset(i for i, job in enumerate(jobs) if not job.checkpointable),
            ),
            pipeline=ClusterPipeline(
                picture.profile.rules, picture.profile.scorers, picture.profile.gather,
                nodes=picture.nodes, most=picture.most, tries=Tries(sys.maxsize),
                residents=np.full(len(picture.gpus), np.iinfo(np.int64).max),  # keep no refusal
            ),
            record_decisions=True,
            pause_s=_pause_s,
            topology=picture.topology,
            admit=None if picture.shares is None else Admission(
                picture.shares, [job.namespace for job in jobs], [job.gpus for job in jobs],
                picture.endless,
            ),
        ),
    )  # fmt: skip


def _starts(picture: Picture, jobs: Sequence[Job], rng: np.random.Generator) -> dict[int, float]:
    """Return when each job that waits starts if running times are as drawn."""
    engine = engine_of(picture, jobs, draw_left_s(picture, rng))
    starts: dict[int, float] = {}
    decisions, seen = engine.outcome.decisions, 0
    for now_s in engine.steps():
        for at_s, verb, name, _ in decisions[seen:]:
            if verb == "start" and int(name) not in picture.rows_of:
                starts.setdefault(int(name), at_s)
        seen = len(decisions)
        if now_s > HORIZON_S or len(starts) + len(picture.rows_of) == len(jobs):
            break
    return {job: at_s for job, at_s in starts.items() if at_s <= HORIZON_S}


def _truth(picture: Picture, jobs: Sequence[Job]) -> Truth:
    """Return physics in which what is believed is true; memory suffices where it was allowed."""
    slowdown = np.where(np.isinf(picture.slowdown), _NO_SPEED, picture.slowdown)
    return Truth(
        slowdown=slowdown,
        job_class=np.array([job.interference_class for job in jobs], dtype=np.int64),
        memory=[MemoryCourse(0.0, 0.0, 0.0)] * len(jobs),
        memory_gib=np.full(len(picture.gpus), np.inf),
        gpu_utilisation=np.array([job.gpu_utilisation for job in jobs]),
        preemption_cost_s=picture.preemption_cost_s,
        sub_batches=[{each.steps: each for each in job.sub_batches} for job in jobs],
    )


# --- between the two processes ------------------------------------------------------------------


def packed(picture: Picture, jobs: Sequence[Job]) -> Iterator[bytes]:
    """Yield a picture and its jobs in pieces, none of which holds other threads up for long.

    The table of slowdowns stands for what jobs have of it.
    """
    yield pickle.dumps(picture)
    for at in range(0, len(jobs), _PIECE):
        part = [
            job if job.experience else replace(job, own_slowdown=None, caused_slowdown=None)
            for job in jobs[at : at + _PIECE]
        ]
        yield pickle.dumps(part)
    yield pickle.dumps([])


def unpacked(stream: BinaryIO) -> tuple[Picture, list[Job]]:
    """Return what was packed."""
    picture: Picture = pickle.load(stream)  # noqa: S301 - from the process that started us
    jobs: list[Job] = []
    while part := pickle.load(stream):  # noqa: S301 - as above
        jobs += part
    table = picture.slowdown
    return picture, [
        job
        if job.experience or job.interference_class == EMPTY_SLOT or job.exclusive
        else replace(
            job,
            own_slowdown=table[job.interference_class],
            caused_slowdown=table[:, job.interference_class],
        )
        for job in jobs
    ]


def main() -> int:
    """Answer with `{row: [earliest, latest]}`, `latest` null beyond the horizon."""
    os.nice(19)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    found = forecast(*unpacked(sys.stdin.buffer))
    answer = {
        job: (earliest, latest if np.isfinite(latest) else None)
        for job, (earliest, latest) in found.items()
    }
    json.dump(answer, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
