"""The part of the cluster state that the queue controller reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from scheduler_extender.cluster.beliefs import Beliefs
from scheduler_extender.cluster.gangs import Gangs
from scheduler_extender.cluster.ledger import Claim
from scheduler_extender.cluster.nodes import NodesPicture
from scheduler_extender.cluster.pods import PodInfo
from scheduler_extender.cluster.records import Record
from scheduler_extender.predictions import GpuKind
from tandem.policy.cluster import Snapshot
from tandem.policy.job import Job
from tandem.policy.units import Bools


class ClusterView(Protocol):
    """The cluster as the event loop knows it."""

    @property
    def beliefs(self) -> Beliefs:
        """How jobs get along with one another."""
        ...

    @property
    def gangs(self) -> Gangs:
        """The GPUJobs with their pods."""
        ...

    def snapshot(self) -> Snapshot:
        """Return a frozen picture, plans and assignments included."""
        ...

    def unchanged(self, snapshot: Snapshot, rows: Iterable[int]) -> bool:
        """Return True where nothing has changed on `rows` of `snapshot` since it was taken."""
        ...

    def eligible_nodes(self, pod: PodInfo) -> Bools:
        """Return (nodes,), False where the pod cannot run for reasons of its own."""
        ...

    def nodes_picture(self, pods: Mapping[int, PodInfo]) -> NodesPicture:
        """Return what decides on which nodes of a snapshot `pods` could run, by number."""
        ...

    def capable_nodes(self, pod: PodInfo, names: tuple[str, ...]) -> Bools:
        """Return (nodes,) for `names`, False where the pod could not run if nothing else did."""
        ...

    def claims(self) -> Mapping[str, Claim]:
        """Return who holds which GPUs, by pod uid; a copy."""
        ...

    def settle_beliefs(self, held: Iterable[Job] | None = None) -> bool:
        """Let what the predictor has said since the last round take effect.

        Classes that no job uses are released where room is short and `held` names all jobs that are
        held elsewhere. True where some were, or where gangs are kept on few nodes by another skew.
        """
        ...

    def gpu_kind(self, pod: PodInfo | None = None) -> GpuKind | None:
        """Return the commonest type of GPU on the nodes where a pod may run, else on all."""
        ...

    def widest_node(self, like: str) -> int:
        """Return the most GPUs of a node of the type of GPU that node `like` has; 0 without any."""
        ...

    def close_gpus(self, gpus: frozenset[tuple[str, str]]) -> None:
        """Let these GPUs (node, UUID), and no others, take nobody beside those who are there."""
        ...

    def apply(self, kind: str, record: Record) -> None:
        """Take in an object as the API server has it."""
        ...
