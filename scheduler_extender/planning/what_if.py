"""What if a waiting job asked for something else: its start and its end, now and then.

`python -m scheduler_extender.planning.what_if` takes a picture, the row of a job and a change on
its standard input. It answers with the start and end of the job in each draw, as JSON, now and with
the change. The draws are those of the forecast of starts (`forecast.py`), with the same numbers
in both cases: what differs between them follows from the change and not from chance. What happens
at time 0 does not depend on a draw: it is simulated once, and each draw goes on from a copy.
"""

from __future__ import annotations

import gc
import json
import math
import os
import pickle
import resource
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from scheduler_extender.planning.forecast import (
    DRAWS,
    HORIZON_S,
    MEMORY_BYTES,
    Picture,
    draw_left_s,
    engine_of,
    packed,
    unpacked,
)
from scheduler_extender.planning.forecast_quotas import Limits, Shares
from tandem.policy.catalog import Profile
from tandem.policy.job import Job
from tandem.policy.topology import Topology
from tandem.policy.units import Floats
from tandem.reasons.counting import counted

#: An answer that takes longer is not waited for: the process ends.
_CPU_S = 30

Span = tuple[float, float]  # start and end, seconds from now; infinite beyond the horizon


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherLoad:
    """The load of one worker at another batch size; the names are those of `Job`.

    `iteration_s` is the time of an iteration at the batch size of now and at the other one, `pace`
    that of an item at the other one over that of now.
    """

    memory_base_gib: float
    memory_peak_extra_gib: float
    peak_probability: float
    peak_measured: bool
    gpu_utilisation: float
    active_share: float | None
    iteration_s: tuple[float, float]
    pace: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A changed request of a job; None: unchanged. `gpus` is that of the whole gang.

    `load` is that of another batch size; a memory that is asked for counts more. `limits` are those
    of its namespace, `profile` that of the cluster. `nodes` more nodes join it, empty and like that
    of the index `like`.
    """

    gpus: int | None = None
    load: OtherLoad | None = None
    memory_gib: float | None = None
    shares: bool | None = None
    limits: Limits | None = None
    profile: Profile | None = None
    nodes: int = 0
    like: int = 0


class ChangeError(ValueError):
    """A change that this job cannot have; the words say why."""


def changed_job(job: Job, change: Change) -> Job:
    """Return the job as it asks for something else.

    Raises:
        ChangeError: it cannot.
    """
    if change.gpus is not None and job.pods == 1:
        job = replace(job, gpus_per_pod=change.gpus, gang_gpus=change.gpus)
    elif change.gpus is not None:
        if change.gpus % job.gpus_per_pod:
            words = f"each of its pods asks for {job.gpus_per_pod}"
            raise ChangeError(f"{change.gpus} GPUs are no whole number of pods: {words}")
        pods = change.gpus // job.gpus_per_pod
        job = replace(job, pods=pods, gang_gpus=change.gpus)
    if (load := change.load) is not None:
        job = replace(
            job,
            memory_base_gib=load.memory_base_gib,
            memory_peak_extra_gib=load.memory_peak_extra_gib,
            peak_probability=load.peak_probability,
            peak_measured=load.peak_measured,
            gpu_utilisation=load.gpu_utilisation,
            active_share=load.active_share,
            sub_batches=(),  # those that are known are of the batch of now
            iteration=None,
        )
    if change.memory_gib is not None:
        job = replace(job, memory_base_gib=change.memory_gib, memory_peak_extra_gib=0.0)
    if change.shares is not None:
        if change.shares and not job.memory_base_gib:
            raise ChangeError("nothing is known of its memory: say how much it needs as well")
        job = replace(job, exclusive=not change.shares)
    return job


def changed(
    picture: Picture, jobs: Sequence[Job], row: int, change: Change
) -> tuple[Picture, list[Job]]:
    """Return the picture in which the job in `row` asks for something else.

    Its work is the same: on twice as many GPUs it takes half the time, and at another batch size it
    has as many items.

    Raises:
        ChangeError: it cannot.
    """
    job, arrays = jobs[row], picture.arrays
    new = changed_job(job, change)
    columns = {
        name: getattr(arrays, name).copy()
        for name in (
            "gpus", "gpus_per_pod", "memory_gib", "peak_probability", "gpu_utilisation",
            "remaining_at_since",
        )
    }  # fmt: skip
    columns["gpus"][row], columns["gpus_per_pod"][row] = new.gpus, new.gpus_per_pod
    columns["memory_gib"][row] = new.memory_peak_gib
    columns["peak_probability"][row] = new.peak_probability
    columns["gpu_utilisation"][row] = new.gpu_utilisation
    pace = 1.0 if change.load is None else change.load.pace
    columns["remaining_at_since"][row] *= pace * job.gpus / new.gpus
    picture = replace(
        picture,
        arrays=replace(arrays, **columns),
        profile=picture.profile if change.profile is None else change.profile,
        paces={} if pace == 1 else {row: pace},
    )
    if change.limits is not None:
        known = picture.shares or Shares({each.namespace: Limits() for each in jobs})
        shares = known.with_limits(job.namespace, change.limits)
        picture = replace(picture, shares=shares)
    if change.nodes:
        picture = with_nodes(picture, change.nodes, change.like)
    return picture, [*jobs[:row], new, *jobs[row + 1 :]]


def never_fits(picture: Picture, job: Job) -> str:
    """Return why a job has no place even when no other job runs; "" where it may have one.

    Only what is certain: GPUs of a pod, of all pods, and memory, on the nodes where its pods may
    run.
    """
    gpus, may = picture.gpus, picture.nodes.get(job.where)
    rows = np.arange(len(gpus)) if may is None else np.flatnonzero(may[gpus.node])
    counts = np.bincount(gpus.node[rows])
    most = int(counts.max(initial=0))
    if job.gpus_per_pod > most:
        return (
            f"a pod asks for {counted(job.gpus_per_pod, 'GPU')}, and no node has more than {most}"
        )
    room = int((counts // job.gpus_per_pod).sum())
    if job.pods > room:
        return f"{counted(job.pods, 'pod')} of {job.gpus_per_pod}: nodes have room for {room}"
    largest = float(gpus.memory_capacity_gib[rows].max())
    if job.memory_peak_gib > largest:
        return f"it needs {job.memory_peak_gib:.1f} GiB, and no GPU has more than {largest:.1f} GiB"
    return ""


def with_nodes(picture: Picture, count: int, like: int) -> Picture:
    """Return the picture with `count` more nodes like the one of index `like`, and empty."""
    gpus = picture.gpus
    rows = np.flatnonzero(gpus.node == like)
    domains = 0 if picture.topology is None else len(picture.topology.domain)
    known = max(int(gpus.node.max()) + 1, domains, *(len(each) for each in picture.nodes.values()))
    all_rows = np.concatenate([np.arange(len(gpus)), np.tile(rows, count)])
    added = np.arange(len(all_rows)) >= len(gpus)
    more = gpus.take(all_rows)

    def longer(of_nodes: np.ndarray) -> np.ndarray:
        padded = np.zeros(known + count, dtype=of_nodes.dtype)
        padded[: len(of_nodes)] = of_nodes
        padded[known:] = of_nodes[like]
        return padded

    return replace(
        picture,
        gpus=replace(
            more,
            node=np.concatenate([gpus.node, np.repeat(known + np.arange(count), len(rows))]),
            place=np.concatenate([gpus.place, np.tile(np.arange(len(rows)), count)]),
            healthy=more.healthy | added,
            fresh=more.fresh | added,
        ),
        nodes={where: longer(each) for where, each in picture.nodes.items()},
        most={where: longer(each) for where, each in picture.most.items()},
        topology=picture.topology and _with_nodes(picture.topology, known, count, like),
    )


def _with_nodes(topology: Topology, known: int, count: int, like: int) -> Topology:
    """Return the topology of `known` nodes and `count` more, in the domains of the node `like`."""
    domain = np.full((known + count, len(topology.levels)), -1, dtype=np.int64)
    domain[: len(topology.domain)] = topology.domain
    domain[known:] = topology.domain[like]
    return Topology(topology.levels, domain)


def spans(picture: Picture, jobs: Sequence[Job], row: int) -> list[Span]:
    """Return start and end of the waiting job in `row`, in each draw."""
    if not len(picture.gpus):  # before the first agent has reported
        return [(math.inf, math.inf)] * DRAWS
    rng = np.random.default_rng(picture.seed)
    left = [draw_left_s(picture, rng) for _ in range(DRAWS)]
    run = AskedJob(picture, jobs, row, left[0])
    run.step()  # time 0 is the same in all draws: they go on from there
    return [in_a_copy(partial(run.span, each)) for each in left]


class AskedJob:
    """The job in `row` in the simulation of one draw, in which jobs have yet to run `left_s`.

    Once it has started, nothing else is decided on, unless `to_the_end`: its neighbours end, but no
    other job joins it or takes its place.
    """

    def __init__(
        self,
        picture: Picture,
        jobs: Sequence[Job],
        row: int,
        left_s: Floats,
        *,
        to_the_end: bool = False,
    ) -> None:
        self._row, self._to_the_end = row, to_the_end
        self._start_s, self._seen = math.inf, 0
        self._engine = engine_of(picture, jobs, left_s)
        self._steps = self._engine.steps()

    def step(self) -> bool:
        """Simulate the next event; say whether the job can yet start or end within the horizon."""
        now_s = next(self._steps, math.inf)
        outcome = self._engine.outcome
        if self._start_s == math.inf:
            new = (each for each in outcome.decisions[self._seen :] if each[1] == "start")
            starts = (at_s for at_s, _, name, _ in new if int(name) == self._row)
            self._start_s = next(starts, math.inf)
            self._seen = len(outcome.decisions)
            self._conclude()
        return now_s <= HORIZON_S and math.isnan(outcome.end_s[self._row])

    def span(self, redrawn_left_s: Floats | None = None) -> Span:
        """Simulate until it has ended; return its start and end.

        After the first step it may go on with the times of another draw.
        """
        if redrawn_left_s is not None:
            self._engine.redraw(redrawn_left_s)
            self._conclude()
        while self.step():
            pass
        end_s = float(self._engine.outcome.end_s[self._row])
        return self._start_s, end_s if end_s <= HORIZON_S else math.inf

    def _conclude(self) -> None:
        if self._start_s < math.inf and not self._to_the_end:
            self._engine.conclude(self._row)


def in_a_copy(work: Callable[[], Span]) -> Span:
    """Return what `work` returns in a copy of this process, which stays as it is.

    So a simulation is copied with all that it has in memory, that of the compiled cycle included.

    Raises:
        ChildProcessError: the copy gave no answer.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            gc.freeze()  # a collection would write to, and so copy, all that is shared
            os.write(writer, struct.pack("dd", *work()))
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        said = stream.read()
    os.waitpid(child, 0)
    if not said:
        raise ChildProcessError("a draw has not been simulated to its end")
    start_s, end_s = struct.unpack("dd", said)
    return start_s, end_s


# --- between the two processes ------------------------------------------------------------------


def asked(picture: Picture, jobs: Sequence[Job], row: int, change: Change) -> Iterator[bytes]:
    """Yield what the process is asked, in pieces that hold no other thread up for long."""
    yield pickle.dumps((row, change))
    yield from packed(picture, jobs)


def main() -> int:
    """Answer with `{"now": [[start, end], ...], "then": ...}`, null beyond the horizon.

    The memory of the process and of a copy of it, of which there is one at a time, is bounded: the
    container's limit holds both next to the service.
    """
    os.nice(5)
    each = MEMORY_BYTES // 2
    resource.setrlimit(resource.RLIMIT_DATA, (each, each))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
    row, change = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the process that started us
    picture, jobs = unpacked(sys.stdin.buffer)
    found = {
        "now": spans(picture, jobs, row),
        "then": spans(*changed(picture, jobs, row, change), row),
    }
    said = {
        case: [[t if math.isfinite(t) else None for t in span] for span in draws]
        for case, draws in found.items()
    }
    json.dump(said, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
