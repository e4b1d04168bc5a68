"""The objects that the rooms of the queue share. The controller makes them once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scheduler_extender.cluster.gang_index import Gangs
from scheduler_extender.cluster.state import ClusterState
from scheduler_extender.cluster.writes import Writer
from scheduler_extender.config import QueueConfig
from scheduler_extender.learning.history_store import HistoryStore
from scheduler_extender.planning.anti_affinity import AntiAffinity
from scheduler_extender.queue.order.pending import PendingJobs
from scheduler_extender.queue.order.queue_state import QueueState
from scheduler_extender.queue.pods.preemption import Preempter
from scheduler_extender.queue.steps.effects import Executor
from scheduler_extender.queue.workqueue import WorkQueue
from tandem.policy.catalog import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """One object of each kind, used on the event loop; `clock` returns Unix time."""

    state: ClusterState
    gangs: Gangs
    work: WorkQueue
    queue_state: QueueState
    pending: PendingJobs
    writer: Writer
    executor: Executor
    preempter: Preempter
    anti_affinity: AntiAffinity
    history: HistoryStore
    profile: Profile
    settings: QueueConfig
    clock: Callable[[], float]
