"""The API server's objects as records."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scheduler_extender.cluster.pods import PodInfo
from scheduler_extender.cluster.table import GpuFacts, GpuKind
from tandem.contracts import names
from tandem.contracts.resources import (
    GPUJobSpec,
    GPUJobStatus,
    GPUNodeStatus,
    PodPlan,
)
from tandem.kube.reflector import Identified
from tandem.policy.job import Job
from tandem.policy.units import BYTES_PER_GIB

Raw = Mapping[str, Any]
Key = tuple[str, str]  # (namespace, name)
_LONGEST_STEPS = 10  # digits


@dataclass(frozen=True, slots=True)
class Record(Identified):
    """The fields of every object."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    #: Namespace ('' where there is none) and name: one object for all tables that have it.
    key: Key = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Make the key."""
        object.__setattr__(self, "key", (self.namespace, self.name))

    @property
    def version(self) -> int:
        """The resourceVersion as the number that it is; an object without one is always new."""
        return int(self.resource_version) if self.resource_version.isdigit() else -1


@dataclass(frozen=True, slots=True)
class NodeRecord(Record):
    """The fields of a node that kube-scheduler's plugins filter by."""

    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[tuple[str, str, str], ...] = ()  # (key, value, effect), those that keep pods off
    unschedulable: bool = False
    cpu: float = 0.0  # cores
    memory_bytes: int = 0
    pods: int = 0
    amounts: Mapping[str, int] = field(default_factory=dict)  # of the other resources


class KeptReport:
    """The report of an agent, in the form that it has while its event is followed, and later.

    As a message a report takes thirty times the memory of its JSON, compressed; later readers are
    few. To compress it takes 10 us, to read it 0.1 ms.
    """

    __slots__ = ("_packed", "_status")

    def __init__(self, status: GPUNodeStatus) -> None:
        self._packed = zlib.compress(status.json_bytes(), 1)
        self._status: GPUNodeStatus | None = status

    @property
    def json(self) -> bytes:
        """The report as JSON."""
        return zlib.decompress(self._packed)

    @property
    def status(self) -> GPUNodeStatus:
        """The report as a message."""
        return self._status or GPUNodeStatus.model_validate_json(self.json)

    def followed(self) -> None:
        """Keep the JSON alone."""
        self._status = None


@dataclass(frozen=True, slots=True)
class GpuNodeRecord(Record):
    """The report of a node's agent. `shares` of a GPU is not yet capped by our configuration.

    `inventory` says which GPUs the node is known to have, '' before that is noted. `changed` names
    those that are not as they are known: until an operator agrees nothing new runs on the node.
    `named` has UUID, number and type of all that the report names. `by_claims`: its GPUs are handed
    over by ResourceClaims, which give them to no pod without one.
    """

    observed_at_s: float
    gpus: tuple[GpuFacts, ...]
    kept: KeptReport = field(compare=False)
    named: tuple[tuple[str, str, GpuKind], ...]
    inventory: str = ""
    changed: tuple[tuple[str, str], ...] = ()
    created_s: float = 0.0
    by_claims: bool = False

    @property
    def status(self) -> GPUNodeStatus:
        """The whole report; see `KeptReport`."""
        return self.kept.status

    def capacity_bytes(self, gpu: str) -> int:
        """Return the memory that a GPU has for jobs, 0 where the GPU is not in the report."""
        return int(next((g.capacity_gib * BYTES_PER_GIB for g in self.gpus if g.uuid == gpu), 0.0))

    def gpu_name(self, gpu: str) -> str:
        """Return a GPU as people call it, node/index; by its UUID where it is not in the report."""
        number = next((number for uuid, number, _ in self.named if uuid == gpu), gpu)
        return f"{self.name}/{number}"


@dataclass(frozen=True, slots=True)
class GpuJobRecord(Record):
    """A gang, and what the ledger needs of it."""

    spec: GPUJobSpec
    status: GPUJobStatus
    worker: Job
    plan_deadline_s: float = 0.0
    measured: bool = False  # the memory of its worker was measured, and not only predicted
    #: Since when its status is known here alone (Unix time); None where it is written.
    unwritten_since_s: float | None = None

    @property
    def spans_workloads(self) -> bool:
        """True for gangs that their users have named: their pods may have several owners."""
        return self.name.startswith(("gang-", "group-", "podgroup-"))

    def steps(self, uid: str, annotations: Mapping[str, str]) -> int:
        """Return in how many micro-batches a pod runs: as it was bound, else as it is planned."""
        bound = annotations.get(names.ACCUMULATION_STEPS, "")
        if bound.isdecimal() and len(bound) <= _LONGEST_STEPS:
            return int(bound)
        plan = self.status.plan
        planned = plan is not None and any(pod.uid == uid for pod in plan.pods)
        return plan.accumulation_steps if plan is not None and planned else 1

    @property
    def plan(self) -> tuple[PodPlan, ...]:
        """The places of its pods, as planned."""
        return tuple(self.status.plan.pods) if self.status.plan else ()


@dataclass(frozen=True, slots=True)
class PodRecord(Record):
    """A pod of any scheduler; `gpujob` names the GPUJob of one that asks for GPUs of ours."""

    pod: PodInfo
    gpujob: Key = ("", "")

    @property
    def ours(self) -> bool:
        """True when it asks for GPUs of ours."""
        return self.pod.gpus > 0

    @property
    def bound(self) -> bool:
        """True when it has a node and may still run there."""
        return bool(self.pod.node_name) and not self.pod.finished
