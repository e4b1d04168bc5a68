"""GPUNode: the report of a node's agent."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, computed_field

from tandem.contracts.base import NO_ENTRIES, Message, SharedEmpty
from tandem.contracts.resources.fields import Conditions
from tandem.contracts.values import (
    MAX_GPUS,
    MAX_USES,
    AgentText,
    Count,
    GpuBytes,
    GpuId,
    Label,
    Measured,
    Name,
    Percent,
    PhaseSeconds,
    Probability,
    Rate,
    Time,
    Uid,
    Word,
    first,
    last,
)

#: Latest entries of `out_of_memory`.
KEPT_OUT_OF_MEMORY = 16
Celsius = Annotated[float, Field(ge=-273.15, le=1000)]
Watts = Annotated[float, Field(ge=0, le=100_000)]
Index = Annotated[int, Field(ge=0, le=1023)]


class Health(StrEnum):
    """Whether new work may go to a GPU."""

    HEALTHY = "Healthy"
    QUARANTINED = "Quarantined"


class MemorySource(StrEnum):
    """Where the size of a GPU's memory is from, where it is not NVML."""

    SYSTEM = "System"
    UNKNOWN = "Unknown"


class PodUse(Message):
    """What one pod (or, with `foreign`, processes of no known pod) does on one GPU.

    `active_seconds` and `idle_seconds` are the mean lengths of the phases in which it runs kernels
    and in which it does not; `activity_source` says which series they were read from.
    `utilisation_percent` and `iteration_seconds` are measured; `iterations_per_second` is what the
    pod tells of itself, to be compared with nothing but its own earlier rates.
    """

    namespace: Name = ""
    pod: Name = ""
    uid: Uid = ""
    foreign: bool = False
    memory_bytes: Annotated[GpuBytes | None, Measured] = None
    memory_peak_bytes: Annotated[GpuBytes | None, Measured] = None
    memory_base_bytes: Annotated[GpuBytes | None, Measured] = None
    memory_peak_extra_bytes: Annotated[GpuBytes | None, Measured] = None
    peak_probability: Annotated[Probability | None, Measured] = None
    utilisation_percent: Annotated[Percent | None, Measured] = None
    active_seconds: Annotated[PhaseSeconds | None, Measured] = None
    idle_seconds: Annotated[PhaseSeconds | None, Measured] = None
    activity_source: Annotated[Word | None, Measured] = None
    iteration_seconds: Annotated[PhaseSeconds | None, Measured] = None
    iterations_per_second: Annotated[Rate | None, Measured] = None


class Slice(Message):
    """Of which GPU a slice of MIG is: `parent` is the GPU's UUID.

    `profile` is the slice's name at NVIDIA, such as `1g.10gb`; `number` counts the slices of a GPU.
    """

    profile: Word
    parent: GpuId
    number: Index


class GPU(Message):
    """One GPU of a node as its agent sees it, or one slice of a GPU (MIG), which has `slice`.

    The slices of a GPU have its `index`, and the GPU itself is not in the list.

    `shares` is 0 where nothing may be placed on it, and `shares_reason` says why.
    `ecc_uncorrected_errors` counts since the driver was loaded. `memory_guarded`: before its memory
    is full the agent has a pod evicted that outgrew its prediction.

    `memory_bytes` is 0 where no size is known. `memory_source` is `System` where the GPU's memory
    is the system's and has its size, `Unknown` where NVML gives none: such a GPU takes one job that
    asks for a whole GPU. `memory_foreign_bytes` is not there for jobs: it is held by processes that
    are not ours, or by none that the driver lists (`memory_unlisted_bytes` of it).

    `numa_node` is the NUMA node next to it, absent where the machine has one. GPUs of the node that
    NVLink connects have one `nvlink_domain`, the lowest index among them; it is absent of a GPU
    that has no such peer, and where NVML does not say.

    `dra_shares` is set where the node's DRA driver hands the GPU over: so many claims may share it,
    none where it is 0. `shares` is 0 then, unless the queue allocates these claims.
    """

    uuid: GpuId
    index: Index
    model: Label
    slice: Slice | None = None
    memory_bytes: GpuBytes
    memory_reserved_bytes: Annotated[GpuBytes | None, Measured] = None
    memory_used_bytes: Annotated[GpuBytes | None, Measured] = None
    memory_foreign_bytes: Annotated[GpuBytes | None, Measured] = None
    memory_unlisted_bytes: Annotated[GpuBytes | None, Measured] = None
    memory_source: Annotated[MemorySource | None, Measured] = None
    utilisation_percent: Annotated[Percent | None, Measured] = None
    utilisation_source: Annotated[Word | None, Measured] = None
    memory_activity_percent: Annotated[Percent | None, Measured] = None
    temperature_celsius: Annotated[Celsius | None, Measured] = None
    power_watts: Annotated[Watts | None, Measured] = None
    ecc_uncorrected_errors: Annotated[Count | None, Measured] = None
    mig: bool | None = None
    mps: bool | None = None
    compute_mode: Annotated[Word | None, Measured] = None
    numa_node: Annotated[Index | None, Measured] = None
    nvlink_domain: Annotated[Index | None, Measured] = None
    health: Health = Health.HEALTHY
    health_reason: AgentText = ""
    shares: Annotated[int, Field(ge=0, le=64)] = 2
    shares_reason: AgentText = ""
    dra_shares: Annotated[int | None, Field(ge=0, le=64)] = None
    memory_guarded: bool = False
    pods: Annotated[list[PodUse], Field(max_length=MAX_USES), first(MAX_USES), SharedEmpty] = (
        NO_ENTRIES
    )

    @property
    def number(self) -> str:
        """Its number on the node, as nvidia-smi and CUDA write it: `0`, of a slice `0:3`."""
        return str(self.index) if self.slice is None else f"{self.index}:{self.slice.number}"


class EvictionRequest(Message):
    """An agent asks the active controller to evict a pod that outgrew its prediction."""

    namespace: Name
    pod: Name
    uid: Uid
    gpu: GpuId
    reason: AgentText
    requested_at: Time
    memory_bytes: Annotated[GpuBytes | None, Measured] = None


class OutgrownPod(Message):
    """A pod and what it held on a GPU beyond what had been predicted for it."""

    namespace: Name
    pod: Name
    uid: Uid
    memory_bytes: GpuBytes
    predicted_bytes: GpuBytes


class OutOfMemory(Message):
    """A container that failed while its GPU was full: CUDA ran out of memory, as it seems.

    CUDA's error ends a container with a plain exit code of its own, so this is `inferred`, always.
    The pod named is the one whose container failed, `memory_bytes` the most it held while the GPU
    was full. `blamed` is the pod that had outgrown its prediction by most, which may be the same;
    absent where none had: then the predictions together were more than the GPU has.
    """

    gpu: GpuId
    namespace: Name
    pod: Name
    uid: Uid
    container: Name
    exit_code: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]
    ended_at: Time
    inferred: bool = True
    memory_bytes: Annotated[GpuBytes | None, Measured] = None
    blamed: OutgrownPod | None = None


class GPUNodeStatus(Message):
    """The report of one node's agent.

    `out_of_memory` has the latest 16, each for ten minutes.
    """

    agent_version: Label = ""
    driver_version: Label = ""
    observed_at: Time
    gpus: Annotated[list[GPU], Field(max_length=MAX_GPUS), first(MAX_GPUS), SharedEmpty] = (
        NO_ENTRIES
    )
    eviction_requests: Annotated[
        list[EvictionRequest], Field(max_length=MAX_GPUS), first(MAX_GPUS), SharedEmpty
    ] = NO_ENTRIES
    out_of_memory: Annotated[
        list[OutOfMemory],
        Field(max_length=KEPT_OUT_OF_MEMORY),
        last(KEPT_OUT_OF_MEMORY),
        SharedEmpty,
    ] = NO_ENTRIES
    conditions: Conditions = NO_ENTRIES

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
