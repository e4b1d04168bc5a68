"""All gangs in the order of the profile: service, queue, rank.

The order itself is the policy core's, the same object as in the simulator; here is only what it
asks for, kept gang by gang in columns as events change it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

import numpy as np

from scheduler_extender.cluster import elastic
from scheduler_extender.cluster.attained_service import kept_run_s
from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.jobs import job_of, progress_of, rfc3339, seconds
from scheduler_extender.cluster.records import GpuJobRecord, Key
from scheduler_extender.planning.remaining import expected_remaining_gpu_s
from scheduler_extender.queue.steps.lifecycle import (
    ends_until_s,
    is_placed,
    leaves_soon,
    planned_uids,
)
from tandem.contracts.resources import GPUJobStatus, Load, Phase
from tandem.policy.job import Job
from tandem.policy.jobs import History, JobArrays
from tandem.policy.ordering.base import KeyOrder
from tandem.policy.units import Bools, Floats

Believe = Callable[[Job, Load | None], Job]


@dataclass(slots=True)
class QueueEntry:
    """One gang as the order sees it. Times are Unix seconds, services GPU-seconds."""

    row: int
    job: Job
    attained: float  # lifetime, as of `since_s`
    promoted: float  # lifetime when last promoted
    rate: int  # GPUs that run, by which the service grows per second
    held_rate: int  # GPUs that are bound and do not run yet, and
    held_offset: float  # the GPU-seconds that they have been held are rate * now - offset
    since_s: float
    placed: bool  # holds GPUs, or has a plan
    waiting_since_s: float
    first_started_s: float
    prioritized_s: float  # moved to the front then; infinite if never
    gives_way_s: float  # may be preempted from then on; infinite if never
    holders: tuple[str, ...]  # uids of the pods that hold its GPUs
    leaving: tuple[str, ...]  # those of them that are on their way out
    ends: bool  # some of its pods have just done their work
    endless: bool  # of a kind that has no end of its own
    left_s: float  # work left as of `since_s`, in seconds of a run alone; NaN where not known
    speed: float  # as measured, a share of that of a run alone
    next_level: float  # priority service at which its place changes
    queue_key: float  # orders the gangs of one queue; like a time in Unix seconds

    @property
    def is_new(self) -> bool:
        """True where it has never run."""
        return not self.placed and not self.attained

    @property
    def is_promoted(self) -> bool:
        """True where it was promoted and has not run since."""
        return not self.placed and self.attained > 0 and self.attained == self.promoted

    @property
    def leaves(self) -> bool:
        """True where all that it holds is being given up."""
        return bool(self.holders) and len(self.leaving) == len(self.holders)

    def held(self, now_s: float) -> float:
        """Return the GPU-seconds for which its GPUs have been held by pods that do not run yet."""
        return max(0.0, self.held_rate * now_s - self.held_offset)

    def service(self, now_s: float) -> float:
        """Return the priority service."""
        return self.attained - self.promoted + self.rate * max(0.0, now_s - self.since_s)


def entry_of(
    gang: Gang, record: GpuJobRecord, now_s: float, row: int, gives_way_s: float, believe: Believe
) -> QueueEntry:
    """Return how a gang stands now, at a row; its `next_level` is the order's to say."""
    status, spec, holders = record.status, record.spec, gang.holders()
    leaves = status.phase is Phase.PREEMPTING
    fewer = {pod.uid for pod in elastic.going(gang)} if status.shrunk is not None else ()
    starting = [pod for pod in gang.starting() if pod.bound_at]
    job = job_of(f"{record.namespace}/{record.name}", spec, status)
    if spec.roles:
        job = replace(job, pods=spec.gpus, gpus_per_pod=1)
    left_s, speed = progress_of(spec.demand, status, kept_run_s(gang, record, now_s))
    return QueueEntry(
        row=row,
        job=believe(job, status.load),
        attained=gang.attained_gpu_s(now_s),
        promoted=status.promoted_gpu_seconds,
        rate=gang.gpus_running,
        held_rate=sum(pod.gpus for pod in starting),
        held_offset=sum(pod.gpus * seconds(pod.bound_at) for pod in starting),
        since_s=now_s,
        placed=is_placed(gang, planned_uids(status, now_s)),
        waiting_since_s=seconds(status.waiting_since) if status.waiting_since else now_s,
        first_started_s=seconds(status.started_at) if status.started_at else np.inf,
        prioritized_s=seconds(spec.prioritized_at) if spec.prioritized_at else np.inf,
        gives_way_s=gives_way_s,
        holders=tuple(pod.uid for pod in holders),
        leaving=tuple(
            pod.uid for pod in holders if leaves or pod.uid in fewer or leaves_soon(pod, now_s)
        ),
        ends=now_s < ends_until_s(gang),
        endless=gang.is_endless,
        left_s=left_s,
        speed=speed,
        next_level=np.inf,
        queue_key=queue_key_of(status),
    )


def queue_key_of(status: GPUJobStatus) -> float:
    """Return the key that an earlier leader has written, or else the time of arrival."""
    written = status.queue_key or status.queued_at
    return seconds(written) if written else np.inf


_COLUMNS = (
    "gpus", "gpus_per_pod", "interference_class", "placed", "arrived_s", "attained", "promoted",
    "rate", "since_s", "waiting_since_s", "first_started_s", "gpu_utilisation", "memory_gib",
    "peak_probability", "left_s", "speed", "next_level", "gives_way_s", "queue_key",
    "prioritized_s", "held_rate", "held_offset",
)  # fmt: skip
_LEAST_LEFT_S = 1.0
#: More than any cluster has; a sum over millions of jobs still fits an integer of 64 bits.
_MOST_GPUS = 2.0**40
_KEY_STEP_S = 1e-3  # between the keys of two neighbours in a queue of which one got ahead


class QueueState:
    """All open gangs in the order's memory. Rows stay a gang's own as long as it is here.

    `competes`: something has happened for which running jobs may have to give way. `believe` says
    how a job gets along with others.
    """

    def __init__(self, order: KeyOrder, believe: Believe = lambda job, _: job) -> None:
        self.order = order
        self.of: dict[Key, QueueEntry] = {}
        self.placed: set[Key] = set()
        self.competes = True
        self._believe = believe
        self._latest_s = -np.inf  # arrival of the latest that was taken in
        self._overtaken_s = np.inf  # of the earliest that was taken in after a later one
        self._restores = False  # the lists are to be put in the order of the keys
        self._state = order.state()
        self._leaving: set[Key] = set()  # all that they hold is being given up
        self._row_of: dict[Key, int] = {}
        self._rows: list[Key | None] = []
        self._free: list[int] = []
        self._columns: dict[str, Floats] = {name: np.zeros(64) for name in _COLUMNS}

    def put(self, gang: Gang, now_s: float, gives_way_s: float) -> None:
        """Take in a gang as it is now."""
        record = gang.job
        known = self.of.get(gang.key)
        row = known.row if known else self._row(gang.key)
        entry = entry_of(gang, record, now_s, row, gives_way_s, self._believe)
        for here, group in ((entry.placed, self.placed), (entry.leaves, self._leaving)):
            group.add(gang.key) if here else group.discard(gang.key)
        self.of[gang.key] = entry
        self._row_of[gang.key] = row
        if known is None:
            service = entry.service(now_s)
            entry.next_level = self.order.next_level_gpu_s(service)
            self._state.add(entry.row, service)
            self._restores = self._restores or record.status.queue_key is not None
            self.competes = True
            if entry.is_new and entry.job.queued_at_s < self._latest_s:
                self._overtaken_s = min(self._overtaken_s, entry.job.queued_at_s)
            self._latest_s = max(self._latest_s, entry.job.queued_at_s)
        else:
            # A promotion counts from when it was decided, a threshold until `cross` has seen it.
            entry.promoted = max(entry.promoted, known.promoted)
            entry.next_level = known.next_level
            entry.queue_key = known.queue_key
            if (known.placed and not entry.placed) or entry.gives_way_s < known.gives_way_s:
                self.competes = True
        self._write(entry)

    def drop(self, key: Key) -> None:
        """Forget a gang that has ended."""
        entry = self.of.pop(key, None)
        if entry is None:
            return
        del self._row_of[key]
        self.placed.discard(key)
        self._leaving.discard(key)
        self._columns["placed"][entry.row] = self._columns["attained"][entry.row] = 0
        self._columns["prioritized_s"][entry.row] = np.inf
        self._state.remove(entry.row)
        self._rows[entry.row] = None
        self._free.append(entry.row)
        self.competes = True

    def place(self, key: Key) -> None:
        """Note that a gang has just been given a place."""
        self.of[key].placed = True
        self._columns["placed"][self.of[key].row] = 1
        self.placed.add(key)

    def cross(self, now_s: float) -> None:
        """Demote those whose service has come to a threshold."""
        of, service = self._columns, self._service(now_s)
        crossed = (of["placed"] > 0) & (of["rate"] > 0) & (service >= of["next_level"])
        for row in np.flatnonzero(crossed).tolist():
            entry = self.of[self._key(row)]
            entry.next_level = self.order.next_level_gpu_s(service[row])
            of["next_level"][row] = entry.next_level
            self._state.cross(row, service[row])
            self._set_queue_key(entry, now_s)
            self.competes = True

    def may_give_way(self, now_s: float) -> tuple[list[Key], float]:
        """Return the jobs that may be preempted now, most service first, and when the next may.

        GPUs that are held before the containers run count for that as service does.
        """
        of = self._columns
        service = self._service(now_s)
        service += np.maximum(0.0, of["held_rate"] * now_s - of["held_offset"])
        placed = of["placed"] > 0
        ripe = np.flatnonzero(placed & (of["gives_way_s"] <= now_s))
        ripe = ripe[np.argsort(-service[ripe], kind="stable")]
        soon = of["gives_way_s"][placed & (of["gives_way_s"] > now_s)]
        return [self._key(row) for row in ripe.tolist()], float(soon.min(initial=np.inf))

    def starving(self, now_s: float) -> list[Key]:
        """Return those that were preempted and have waited for as long as promotes them."""
        of = self._columns
        preempted = np.flatnonzero((of["placed"] == 0) & (of["attained"] > of["promoted"]))
        found = {key for row in preempted.tolist() if self._starves(key := self._key(row), now_s)}
        return [key for key in self.of if key in found] if found else []

    def _starves(self, key: Key, now_s: float) -> bool:
        entry = self.of[key]
        after_s = self.order.promote_after_s(entry.service(now_s) / entry.job.gpus)
        return now_s - entry.waiting_since_s >= after_s

    def promote(self, key: Key, now_s: float) -> None:
        """Put a gang back into the first queue, its priority service at nothing."""
        entry = self.of[key]
        entry.promoted = entry.attained
        entry.next_level = self.order.next_level_gpu_s(0.0)
        self._columns["promoted"][entry.row] = entry.promoted
        self._columns["next_level"][entry.row] = entry.next_level
        self._state.promote(entry.row, self._columns["placed"][: len(self._rows)] > 0)
        self._set_queue_key(entry, now_s)
        self._follow()
        self.competes = True

    def begin_term(self, written: Callable[[Key], GPUJobStatus | None]) -> None:
        """Order the gangs that are known by what an earlier leader has written of them."""
        for key, entry in self.of.items():
            status = written(key)
            if status is not None:
                self._set_queue_key(entry, queue_key_of(status))
        self._restores = bool(self.of)

    def annotated(self, key: Key, status: GPUJobStatus) -> GPUJobStatus:
        """Return a status that is about to be written, with what orders the gang in its queue."""
        entry = self.of.get(key)
        if entry is None or not self._state.queues:
            return status
        if status.finished_at is not None or not np.isfinite(entry.queue_key):
            return status.model_copy(update={"queue_key": None})
        return status.model_copy(update={"queue_key": rfc3339(entry.queue_key)})

    def line_up(self, now_s: float) -> None:
        """Put gangs in the order of their keys, which need not be that of the news of them.

        GPUJobs of many that come at once are made side by side; a new leader reads them by name.
        """
        if self._restores:
            ordered = sorted(self.of.values(), key=lambda each: each.queue_key)
            self._state.restore(
                np.array([each.row for each in ordered], dtype=np.int64),
                np.array([each.service(now_s) for each in ordered]),
                [each.row for each in ordered if each.is_promoted],
            )
            self._overtaken_s = np.inf
        self._restores = False
        if self._overtaken_s == np.inf:
            return
        behind = [
            each
            for each in self.of.values()
            if each.is_new and each.job.queued_at_s > self._overtaken_s
        ]
        for entry in sorted(behind, key=lambda each: each.job.queued_at_s):
            self._state.cross(entry.row, 0.0)
        self._overtaken_s = np.inf

    def rank(self, arrays: JobArrays, now_s: float, history: History) -> list[Key]:
        """Return all gangs, first to be tried first; those moved to the front before all others."""
        ranked = self._state.rank(arrays, now_s, history)
        front = sorted(self.front(), key=lambda key: self.of[key].prioritized_s)
        if front:
            ranked = ranked[self._columns["prioritized_s"][ranked] == np.inf]
        keys = (self._rows[row] for row in ranked.tolist())
        return [*front, *(key for key in keys if key is not None)]

    def front(self) -> list[Key]:
        """Return those that an administrator has moved to the front."""
        if not (self._columns["prioritized_s"][: len(self._rows)] < np.inf).any():
            return []
        return [key for key, entry in self.of.items() if entry.prioritized_s < np.inf]

    def row_of(self) -> dict[Key, int]:
        """Return the row of each gang; a copy."""
        return self._row_of.copy()

    def going(self) -> frozenset[str]:
        """Return the uids of the pods that are giving up their GPUs, or are about to."""
        placed = (self.of[key] for key in self.placed)
        return frozenset(uid for s in placed for uid in (s.holders if s.ends else s.leaving))

    def queue_of(self, key: Key, now_s: float) -> int | None:
        """Return the queue that a gang is in, 0 first; None where the order has none."""
        entry = self.of.get(key)
        return None if entry is None else self.order.queue_of(entry.service(now_s))

    def waiting_by_queue(self, now_s: float) -> dict[int, int]:
        """Return how many gangs wait in each queue, 0 first; nothing where the order has none."""
        if self.order.queue_of(0.0) is None:
            return {}
        rows = [entry.row for entry in self.of.values() if not entry.placed]
        last = self.order.queue_of(float("inf")) or 0
        queues = self.order.queues_of(self._service(now_s)[rows])
        return dict(enumerate(np.bincount(queues, minlength=last + 1).tolist()))

    def settle(self, asked: Collection[Key], coming: Iterable[Key]) -> None:
        """Let the order note which jobs have a place after a round, as the round has decided.

        Jobs that are giving up their GPUs, or were `asked` to, have none any more; jobs that wait
        for them alone, `coming`, have theirs already.
        """
        placed = self._columns["placed"][: len(self._rows)] > 0
        placed[[self.of[key].row for key in (*asked, *self._leaving) if key in self.of]] = False
        placed[[self.of[key].row for key in coming if key in self.of]] = True
        self._state.settle(placed)
        self._follow()

    def _follow(self) -> None:
        """Let the keys ascend in each queue: who runs, or is promoted, gets ahead of others.

        Only the keys of those that got ahead change, and they become less than those behind them.
        """
        for rows in self._state.queues:
            keys = self._columns["queue_key"][rows]
            steps = _KEY_STEP_S * np.arange(len(keys))
            least = np.minimum.accumulate((keys - steps)[::-1])[::-1] + steps
            for index in np.flatnonzero(least < keys - _KEY_STEP_S / 2).tolist():
                self._set_queue_key(self.of[self._key(rows[index])], float(least[index]))

    def _set_queue_key(self, entry: QueueEntry, key: float) -> None:
        entry.queue_key = key
        self._columns["queue_key"][entry.row] = key

    def arrays(self, now_s: float, history: History) -> JobArrays:
        """Return all gangs as the policies see them, by row, as of now."""
        column = {name: values[: len(self._rows)].copy() for name, values in self._columns.items()}
        running: Bools = column["placed"].astype(np.bool_)
        passed = np.maximum(now_s - column["since_s"], 0.0)
        service = column["attained"] - column["promoted"] + column["rate"] * passed
        attained = service + column["promoted"]
        gpus = np.minimum(column["gpus"], _MOST_GPUS).astype(np.int64)
        expected = expected_remaining_gpu_s(attained, history.sorted_service, history.sorted_votes)
        learned = expected / gpus
        speed = np.where(running, column["speed"], 0.0)
        progress = np.where(column["rate"] > 0, speed * passed, 0.0)
        left = np.maximum(column["left_s"] - progress, _LEAST_LEFT_S)
        if np.isfinite(self.order.slice_s):
            # Decisions are made once a slice: what differs by less than half of one (the time in
            # which pods start and stop, the clocks of nodes) is a tie.
            step = self.order.slice_s * gpus / 2
            service = np.round(service / step) * step
        return JobArrays(
            gpus=gpus,
            gpus_per_pod=np.minimum(column["gpus_per_pod"], gpus).astype(np.int64),
            arrived_s=column["arrived_s"],
            running=running,
            speed=speed,
            since_s=np.full(len(gpus), now_s),
            attained_at_since=attained,
            service_at_since=service,
            remaining_at_since=np.where(np.isnan(left), learned, left),
            waiting_since_s=column["waiting_since_s"],
            first_started_s=column["first_started_s"],
            gpu_utilisation=column["gpu_utilisation"],
            memory_gib=column["memory_gib"],
            peak_probability=column["peak_probability"],
            interference_class=column["interference_class"].astype(np.int64),
            queue=self.order.queues_of(service),
        )

    def _service(self, now_s: float) -> Floats:
        """Return the priority service by row."""
        of = self._columns
        passed_s = np.maximum(now_s - of["since_s"], 0.0)
        return of["attained"] - of["promoted"] + of["rate"] * passed_s

    def _key(self, row: int) -> Key:
        key = self._rows[row]
        assert key is not None
        return key

    def _row(self, key: Key) -> int:
        if self._free:
            row = self._free.pop()
            self._rows[row] = key
            return row
        self._rows.append(key)
        if len(self._rows) > len(self._columns["gpus"]):
            more = len(self._rows)
            self._columns = {
                name: np.concatenate((values, np.zeros(more)))
                for name, values in self._columns.items()
            }
        return len(self._rows) - 1

    def _write(self, entry: QueueEntry) -> None:
        job = entry.job
        values = (
            job.gpus, job.gpus_per_pod, job.interference_class, entry.placed, job.queued_at_s,
            entry.attained, entry.promoted, entry.rate, entry.since_s, entry.waiting_since_s,
            entry.first_started_s, job.gpu_utilisation, job.memory_peak_gib,
            job.peak_probability, entry.left_s, entry.speed, entry.next_level,
            entry.gives_way_s, entry.queue_key, entry.prioritized_s,
            entry.held_rate, entry.held_offset,
        )  # fmt: skip
        for name, value in zip(_COLUMNS, values, strict=True):
            self._columns[name][entry.row] = value
