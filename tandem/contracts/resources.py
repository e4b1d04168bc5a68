"""The three custom resources: GPUJob, GPUNode, ModelProfile.

Times are RFC 3339 strings in UTC as Kubernetes writes them; memory is in bytes, utilisation in
percent (0..100). A value that could not be measured is absent, never zero.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, computed_field

from tandem.contracts.base import Message
from tandem.contracts.learning import Decision, Neighbour, Observed

Percent = Annotated[float, Field(ge=0, le=100)]
Probability = Annotated[float, Field(ge=0, le=1)]
Bytes = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]
Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


class Condition(Message):
    """A condition as Kubernetes defines it (metav1.Condition)."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: Time
    observed_generation: int | None = None


class Source(StrEnum):
    """Where a predicted figure comes from, best first."""

    OBSERVED = "observed"
    MODEL = "model"
    FORMULA = "formula"
    DECLARED = "declared"
    WHOLE_GPU = "whole-gpu"


# --- GPUJob -----------------------------------------------------------------------------------


class WorkloadRef(Message):
    """The object that owns the pods of a gang (a Job, a PyTorchJob, or the bare Pod itself)."""

    api_version: str
    kind: str
    name: str
    uid: str


class Demand(Message):
    """What the user asked for and declared, per pod of the gang; from the annotations."""

    gpus_per_pod: Annotated[int, Field(ge=1)]
    gang_size: Annotated[int, Field(ge=1)] = 1
    model: str | None = None
    batch_size: Annotated[int, Field(ge=1)] | None = None
    iterations: Annotated[int, Field(ge=1)] | None = None
    declared_memory_bytes: Bytes | None = None
    declared_utilisation_percent: Percent | None = None
    exclusive: bool = False
    checkpoint: bool = False
    accumulation: bool = False


class Load(Message):
    """The predicted (or observed) load of one worker on one GPU: [OJPP] <gamma, delta, p>.

    `memory_base_bytes` is the level outside peaks, `memory_peak_extra_bytes` what a peak adds,
    `peak_probability` the chance of being in the peak; `memory_p95_bytes` an upper bound on their
    sum that constraints use where they must be safe. `iteration_s` is the time of one training
    step, `compute_share` and `bandwidth_share` what it takes of the GPU's FLOP rate and bandwidth:
    they are known where the model's graph is, and say how jobs get into each other's way.
    `tensor_skew` is the share of the model that its largest tensor holds: who has much of it in one
    runs slower when it is spread over machines.
    """

    utilisation_percent: Percent
    utilisation_p95_percent: Percent
    memory_base_bytes: Bytes
    memory_peak_extra_bytes: Bytes
    peak_probability: Probability
    memory_p95_bytes: Bytes
    utilisation_source: Source
    memory_source: Source
    model_version: str = ""
    out_of_distribution: bool = False
    feature_hash: str = ""
    iteration_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    compute_share: Probability | None = None
    bandwidth_share: Probability | None = None
    tensor_skew: Probability | None = None


class SubBatch(Message):
    """The batch as submitted, run in `steps` micro-batches by gradient accumulation.

    Memory as in a Load; `stretch` is the time of an iteration as a multiple of that in one step.
    """

    steps: Annotated[int, Field(ge=2)]
    memory_base_bytes: Bytes
    memory_peak_bytes: Bytes
    stretch: Annotated[float, Field(ge=1, allow_inf_nan=False)]


class Phase(StrEnum):
    """Where a gang is on its way."""

    QUEUED = "Queued"
    ADMITTED = "Admitted"
    RUNNING = "Running"
    PREEMPTING = "Preempting"
    SUSPENDED = "Suspended"
    COMPLETED = "Completed"
    FAILED = "Failed"


class PodPlan(Message):
    """The place of one pod: the node and the UUIDs of its GPUs."""

    pod: str
    uid: str
    node: str
    gpus: list[str]


class Plan(Message):
    """Where a whole gang goes; written before the first gate is removed.

    `accumulation_steps` is in how many micro-batches it runs there.
    """

    pods: list[PodPlan]
    made_at: Time
    deadline: Time
    epoch: str = ""
    accumulation_steps: Annotated[int, Field(ge=1)] = 1


class GPUJobSpec(Message):
    """Who the gang is and what it asks for; written once by the queue controller.

    Administrators may set `hold` (it is not started) and `prioritized_at` (it goes before all that
    were not moved to the front, in the order of these times). `fingerprint` stands for image,
    command and resources of its first pod: by it a job without a model is known again.
    """

    workload: WorkloadRef
    demand: Demand
    gang: str = ""
    fingerprint: str = ""
    hold: bool = False
    prioritized_at: Time | None = None


class PodService(Message):
    """What of the service is that of one pod, so that no pod is counted twice.

    `gpu_seconds` are those since `started_at`, the start of its containers.
    """

    uid: str
    started_at: Time
    gpu_seconds: Annotated[float, Field(ge=0)]


class Preemption(Message):
    """Why and how a running gang gives up its GPUs: `method` is `suspend` or `evict`."""

    by: str
    method: str
    requested_at: Time


class GPUJobStatus(Message):
    """What became of the gang.

    `attained_gpu_seconds` is the lifetime service, `promoted_gpu_seconds` what it was when the job
    was last promoted: their difference orders the queue. `queue` is its queue by that service,
    `position` its place among all that wait, 0 first. `preempted_at` and `decisions` have the
    latest only. `load` is what is predicted, `observed` what is measured since.
    """

    phase: Phase = Phase.QUEUED
    reason: str = ""
    message: str = ""
    load: Load | None = None
    sub_batches: list[SubBatch] = []
    plan: Plan | None = None
    queued_at: Time | None = None
    waiting_since: Time | None = None
    admitted_at: Time | None = None
    started_at: Time | None = None
    finished_at: Time | None = None
    running_since: Time | None = None
    attained_gpu_seconds: Annotated[float, Field(ge=0)] = 0.0
    promoted_gpu_seconds: Annotated[float, Field(ge=0)] = 0.0
    pod_service: list[PodService] = []
    attempts: Count = 0
    queue: Count | None = None
    position: Count | None = None
    preemption: Preemption | None = None
    preempted_at: list[Time] = []
    observed: Observed | None = None
    decisions: Annotated[list[Decision], Field(max_length=8)] = []
    conditions: list[Condition] = []


# --- GPUNode ----------------------------------------------------------------------------------


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
    `ecc_uncorrected_errors` counts since the driver was loaded.
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
    def pod_count(self) -> Count:
        """How many pods of ours use them."""
        return len({use.uid for gpu in self.gpus for use in gpu.pods if use.uid})


# --- ModelProfile -----------------------------------------------------------------------------


class GraphFeatures(Message):
    """What a model graph says before anything has run ([Horus] Table 3).

    All figures are per sample (batch 1), forward pass unless named otherwise; a multiply-add
    counts as two FLOPs. `flops` counts the multiply-add operators, `elementwise_flops` the others;
    `activation_bytes` all that nodes write, `saved_activation_bytes` what training keeps of it for
    the backward pass; `kernels` the nodes that start work on the GPU; `graph_batch` the batch that
    the graph was exported with; `unresolved_nodes` those whose shapes could not be known. Where
    the graph leaves a sequence open, figures are those of `sequence_length`, and
    `sequence_scaling` has the coefficients [c0, c1, c2] of those that are quadratics in it.
    """

    flops: Annotated[float, Field(ge=0)]
    parameters: Count
    parameter_bytes: Bytes
    activation_bytes: Bytes
    largest_tensor_bytes: Bytes
    tensor_skew: Probability
    nodes: Count
    depth: Count
    op_counts: dict[str, int]
    opset: Count
    input_shapes: dict[str, list[int]] = {}
    bytes_moved: Annotated[float, Field(ge=0)] = 0.0
    backward_flops: Annotated[float, Field(ge=0)] = 0.0
    elementwise_flops: Annotated[float, Field(ge=0)] = 0.0
    saved_activation_bytes: Bytes = 0
    largest_activation_bytes: Bytes = 0
    kernels: Count = 0
    graph_batch: Annotated[int, Field(ge=1)] = 1
    sequence_length: Count | None = None
    sequence_scaling: dict[str, Annotated[list[float], Field(min_length=3, max_length=3)]] = {}
    unresolved_nodes: Count = 0


class ModelProfileSpec(Message):
    """The features of a pushed graph; never its weights."""

    features: GraphFeatures
    feature_hash: str
    file_sha256: str
    file_bytes: Bytes
    producer: str = ""


class Observation(Message):
    """What runs of a model at one batch size on one type of GPU were seen to use.

    `feature_hash` is that of the graph that ran: another graph pushed under the same name is not
    taken for it. Memory in the peak is the highest of all runs, the rest a moving average.
    `iterations_per_second` is what its pods told while alone, `neighbours` the latest beside which
    it ran and how much it was slowed down.
    """

    gpu_model: str
    batch_size: Annotated[int, Field(ge=1)]
    feature_hash: str
    runs: Annotated[int, Field(ge=1)]
    memory_base_bytes: Bytes
    memory_peak_bytes: Bytes
    peak_probability: Probability
    utilisation_percent: Percent
    iterations_per_second: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    neighbours: Annotated[list[Neighbour], Field(max_length=8)] = []
    last_observed_at: Time


class ModelProfileStatus(Message):
    """What was observed of this model since: how often in all, and the latest of each kind."""

    observations: Count = 0
    last_observed_at: Time | None = None
    observed: Annotated[list[Observation], Field(max_length=64)] = []
