"""GPUNode: the report of a node's agent."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, computed_field

from tandem.contracts.base import Message
from tandem.contracts.resources.fields import Bytes, Condition, Count, Percent, Probability, Time


class Health(StrEnum):
    """Whether new work may go to a GPU."""

    HEALTHY = "Healthy"
    QUARANTINED = "Quarantined"


class PodUse(Message):
    """What one pod (or, with `foreign`, processes of nobody we know) does on one GPU.

    `active_seconds` and `idle_seconds` are the mean lengths of the phases in which it runs kernels
    and in which it does not; `activity_source` says which series they were read from.
    `utilisation_percent` and `iteration_seconds` are measured; `iterations_per_second` is what the
    pod tells of itself, to be compared with nothing but its own earlier rates.
    """

    namespace: str = ""
    pod: str = ""
    uid: str = ""
    foreign: bool = False
    memory_bytes: Bytes | None = None
    memory_peak_bytes: Bytes | None = None
    memory_base_bytes: Bytes | None = None
    memory_peak_extra_bytes: Bytes | None = None
    peak_probability: Probability | None = None
    utilisation_percent: Percent | None = None
    active_seconds: Annotated[float, Field(ge=0)] | None = None
    idle_seconds: Annotated[float, Field(ge=0)] | None = None
    activity_source: str | None = None
    iteration_seconds: Annotated[float, Field(ge=0)] | None = None
    iterations_per_second: Annotated[float, Field(ge=0)] | None = None


class GPU(Message):
    """One GPU of a node as its agent sees it.

    `shares` is 0 where nothing may be placed on it, and `shares_reason` says why.
    `ecc_uncorrected_errors` counts since the driver was loaded. `memory_guarded`: before its memory
    is full the agent has a pod evicted that outgrew its prediction.
    """

    uuid: str
    index: Count
    model: str
    memory_bytes: Bytes
    memory_reserved_bytes: Bytes | None = None
    memory_used_bytes: Bytes | None = None
    memory_foreign_bytes: Bytes | None = None
    utilisation_percent: Percent | None = None
    utilisation_source: str | None = None
    memory_activity_percent: Percent | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None
    ecc_uncorrected_errors: Count | None = None
    mig: bool | None = None
    mps: bool | None = None
    compute_mode: str | None = None
    health: Health = Health.HEALTHY
    health_reason: str = ""
    shares: Count = 2
    shares_reason: str = ""
    memory_guarded: bool = False
    pods: list[PodUse] = []


class EvictionRequest(Message):
    """An agent asks the active controller to evict a pod that outgrew its prediction."""

    namespace: str
    pod: str
    uid: str
    gpu: str
    reason: str
    requested_at: Time
    memory_bytes: Bytes | None = None


class OutgrownPod(Message):
    """A pod and what it held on a GPU beyond what had been predicted for it."""

    namespace: str
    pod: str
    uid: str
    memory_bytes: Bytes
    predicted_bytes: Bytes


class OutOfMemory(Message):
    """A container that failed while its GPU was full: CUDA ran out of memory, as it seems.

    CUDA's error ends a container with a plain exit code of its own, so this is `inferred`, always.
    The pod named is the one whose container failed, `memory_bytes` the most it held while the GPU
    was full. `blamed` is the pod that had outgrown its prediction by most, which may be the same;
    absent where none had: then the predictions together were more than the GPU has.
    """

    gpu: str
    namespace: str
    pod: str
    uid: str
    container: str
    exit_code: int
    ended_at: Time
    inferred: bool = True
    memory_bytes: Bytes | None = None
    blamed: OutgrownPod | None = None


class GPUNodeStatus(Message):
    """The report of one node's agent.

    `out_of_memory` has the latest 16, each for ten minutes.
    """

    agent_version: str = ""
    driver_version: str = ""
    observed_at: Time
    gpus: list[GPU] = []
    eviction_requests: list[EvictionRequest] = []
    out_of_memory: list[OutOfMemory] = []
    conditions: list[Condition] = []

    @computed_field  # type: ignore[prop-decorator] # pydantic's own way of writing it
    @property
    def gpu_count(self) -> Count:
        """How many GPUs the node has: a column of `kubectl get` cannot count."""
        return len(self.gpus)

    @computed_field  # type: ignore[prop-decorator] # as above
    @property
    def healthy_count(self) -> Count:
        """How many of them may take new work."""
        return sum(gpu.health is Health.HEALTHY for gpu in self.gpus)

    @computed_field  # type: ignore[prop-decorator] # as above
    @property
    def idle_count(self) -> Count:
        """How many of them take new work and are used by no process."""
        return sum(
            gpu.health is Health.HEALTHY and gpu.shares > 0 and not gpu.pods for gpu in self.gpus
        )

    @computed_field  # type: ignore[prop-decorator] # as above
    @property
    def pod_count(self) -> Count:
        """How many pods of ours use them."""
        return len({use.uid for gpu in self.gpus for use in gpu.pods if use.uid})
