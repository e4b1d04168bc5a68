"""One gang in the queue: its service, its place and its pods, as the order reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scheduler_extender.cluster.attained_service import kept_run_s
from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.jobs import job_of, progress_of, seconds
from scheduler_extender.cluster.records import GpuJobRecord
from scheduler_extender.cluster.workloads import ENDLESS
from scheduler_extender.queue.lifecycle import ends_until_s, is_placed, planned_uids
from tandem.contracts.resources import GPUJobStatus, Load, Phase
from tandem.policy.job import Job

Believe = Callable[[Job, Load | None], Job]


@dataclass(slots=True)
class QueueEntry:
    """One gang as the order sees it. Times are Unix seconds, services GPU-seconds."""

    row: int
    job: Job
    attained: float  # lifetime, as of `since_s`
    promoted: float  # lifetime when last promoted
    rate: int  # GPUs that run, by which the service grows per second
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

    def service(self, now_s: float) -> float:
        """Return the priority service."""
        return self.attained - self.promoted + self.rate * max(0.0, now_s - self.since_s)


def entry_of(
    gang: Gang, record: GpuJobRecord, now_s: float, row: int, gives_way_s: float, believe: Believe
) -> QueueEntry:
    """Return how a gang stands now, at a row; its `next_level` is the order's to say."""
    status, spec, holders = record.status, record.spec, gang.holders()
    leaves = status.phase is Phase.PREEMPTING
    left_s, speed = progress_of(spec.demand, status, kept_run_s(gang, record, now_s))
    return QueueEntry(
        row=row,
        job=believe(job_of(f"{record.namespace}/{record.name}", spec, status), status.load),
        attained=gang.attained_gpu_s(now_s),
        promoted=status.promoted_gpu_seconds,
        rate=gang.gpus_running,
        since_s=now_s,
        placed=is_placed(gang, planned_uids(status, now_s)),
        waiting_since_s=seconds(status.waiting_since) if status.waiting_since else now_s,
        first_started_s=seconds(status.started_at) if status.started_at else np.inf,
        prioritized_s=seconds(spec.prioritized_at) if spec.prioritized_at else np.inf,
        gives_way_s=gives_way_s,
        holders=tuple(pod.uid for pod in holders),
        leaving=tuple(pod.uid for pod in holders if leaves or pod.deleting),
        ends=now_s < ends_until_s(gang),
        endless=spec.workload.kind in ENDLESS,
        left_s=left_s,
        speed=speed,
        next_level=np.inf,
        queue_key=queue_key_of(status),
    )


def queue_key_of(status: GPUJobStatus) -> float:
    """Return the key that an earlier leader has written, or else the time of arrival."""
    written = status.queue_key or status.queued_at
    return seconds(written) if written else np.inf
