"""GPUJob: what a gang asks for, what is predicted of it, where it goes, what was seen of it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from tandem.contracts.base import NO_ENTRIES, Message, Shared, SharedEmpty
from tandem.contracts.learning import Decision, Observed
from tandem.contracts.resources.fields import (
    Conditions,
    Framework,
    Optimizer,
    Parallelism,
    Precision,
    Source,
)
from tandem.contracts.values import (
    MAX_ENTRIES,
    MAX_PODS,
    MAX_RESOURCES,
    MAX_ROLES,
    Bytes,
    Count,
    Cpus,
    Figure,
    IterationSeconds,
    Label,
    Measured,
    Percent,
    PhaseSeconds,
    Positive,
    Probability,
    Reference,
    Text,
    Time,
    Word,
    last,
)
from tandem.reasons.causes import Causes


class WorkloadRef(Message):
    """The object that owns the pods of a gang (a Job, a PyTorchJob, or the bare Pod itself)."""

    api_version: Reference
    kind: Reference
    name: Reference
    uid: Reference


class Demand(Message):
    """What the user asked for and declared, per pod of the gang; from the annotations.

    `cpus` is what the pod asks for, for each of its GPUs; absent where it asks for none. The levels
    of topology are keys of nodes' labels: the pods run on nodes with one value of it, or should.
    """

    gpus_per_pod: Positive
    gang_size: Positive = 1
    model: Reference | None = None
    batch_size: Positive | None = None
    iterations: Positive | None = None
    declared_memory_bytes: Bytes | None = None
    declared_utilisation_percent: Percent | None = None
    precision: Precision | None = None
    optimizer: Optimizer | None = None
    sequence_length: Annotated[int, Field(ge=1, le=2**20)] | None = None
    framework: Framework | None = None
    parallelism: Parallelism | None = None
    gradient_checkpointing: bool = False
    exclusive: bool = False
    checkpoint: bool = False
    accumulation: bool = False
    cpus: Annotated[Cpus | None, Measured] = None
    required_topology: Reference | None = None
    preferred_topology: Reference | None = None

    @property
    def training_setup(self) -> tuple[str, ...]:
        """What is stated of how the job trains; runs that differ in it need other memory and time.

        Its framework is not among it: a model is of one framework.
        """
        said = (self.precision, self.optimizer, self.sequence_length, self.parallelism)
        stated = [str(value) for value in said if value is not None]
        return (*stated, *(["checkpointing"] if self.gradient_checkpointing else []))


class ResourceAmount(Message):
    """A resource of a node apart from GPUs, and how much of it each pod asks for.

    Memory and storage are in bytes, CPU is in `Demand.cpus`.
    """

    name: Reference
    amount: Count


class Role(Message):
    """Pods of a gang that ask for the same and declare the same.

    `pods` is how many there are, `min_pods` with how many of them the gang may start. `demand` is
    that of each pod; its `gang_size` is that of the role.
    """

    name: Reference
    pods: Positive
    min_pods: Positive
    demand: Demand
    resources: Annotated[list[ResourceAmount], Field(max_length=MAX_RESOURCES), SharedEmpty] = (
        NO_ENTRIES
    )


class PairLoad(Message):
    """What pairs of a job are priced by where nothing of it was measured.

    `busy_percent` is the share of the GPU's time that no other job can use. It is not its
    utilisation: two jobs on a GPU share the host as well, so that not all of the time in which one
    waits for the host is room for the other. `step_s` is the time of a step without its input.
    """

    busy_percent: Percent
    step_s: IterationSeconds
    compute_share: Probability
    bandwidth_share: Probability


class Load(Message):
    """The predicted (or observed) load of one worker on one GPU: [OJPP] <gamma, delta, p>.

    `memory_base_bytes` is the level outside peaks, `memory_peak_extra_bytes` what a peak adds,
    `peak_probability` the chance of being in the peak; `memory_p95_bytes` an upper bound on their
    sum that constraints use where they must be safe. `iteration_s` is the time of one training
    step, `compute_share` and `bandwidth_share` what it takes of the GPU's FLOP rate and bandwidth:
    they are known where the model's graph is, and say how jobs get into each other's way.
    `tensor_skew` is the share of the model that its largest tensor holds: who has much of it in one
    runs slower when it is spread over machines. `peaks_measured`: the course of the memory is that
    of runs, and not assumed. `active_s` and `idle_s` are measured of runs that had their GPU alone:
    for how long a phase with kernels lasts, and for how long one without ([Xonar] III-A).
    `message_bytes` is what a worker of a gang exchanges with the others each iteration. `gpu_model`
    is the type of GPU of which the figures are. `pair` is what pairs are priced by where nothing
    was measured; without it, and once something was, the figures of the load itself.
    """

    utilisation_percent: Percent
    utilisation_p95_percent: Percent
    memory_base_bytes: Bytes
    memory_peak_extra_bytes: Bytes
    peak_probability: Probability
    memory_p95_bytes: Bytes
    utilisation_source: Source
    memory_source: Source
    model_version: Label = ""
    out_of_distribution: bool = False
    feature_hash: Label = ""
    iteration_s: Annotated[IterationSeconds | None, Measured] = None
    compute_share: Annotated[Probability | None, Measured] = None
    bandwidth_share: Annotated[Probability | None, Measured] = None
    tensor_skew: Annotated[Probability | None, Measured] = None
    message_bytes: Annotated[Bytes | None, Measured] = None
    gpu_model: Label = ""
    peaks_measured: bool = False
    active_s: Annotated[PhaseSeconds | None, Measured] = None
    idle_s: Annotated[PhaseSeconds | None, Measured] = None
    pair: Annotated[PairLoad | None, Measured] = None


class SubBatch(Message):
    """The batch as submitted, run in `steps` micro-batches by gradient accumulation.

    Memory as in a Load; `stretch` is the time of an iteration as a multiple of that in one step.
    The other figures are those of a Load, of one micro-batch: by them it is priced next to others.
    """

    steps: Annotated[int, Field(ge=2, le=2**31 - 1)]
    memory_base_bytes: Bytes
    memory_peak_bytes: Bytes
    stretch: Annotated[float, Field(ge=1, le=1e9)]
    utilisation_percent: Annotated[Percent | None, Measured] = None
    iteration_s: Annotated[IterationSeconds | None, Measured] = None
    compute_share: Annotated[Probability | None, Measured] = None
    bandwidth_share: Annotated[Probability | None, Measured] = None


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

    pod: Reference
    uid: Reference
    node: Reference
    gpus: Annotated[list[Label], Field(max_length=1024)]


class Plan(Message):
    """Where a whole gang goes; written before the first gate is removed.

    `accumulation_steps` is in how many micro-batches it runs there.
    """

    pods: Annotated[list[PodPlan], Field(max_length=MAX_PODS)]
    made_at: Time
    deadline: Time
    epoch: Label = ""
    accumulation_steps: Positive = 1


class GPUJobSpec(Message):
    """Who the gang is and what it asks for; written once by the queue controller.

    Administrators may set `hold` (it is not started) and `prioritized_at` (it goes before all that
    were not moved to the front, in the order of these times). `fingerprint` stands for image,
    command and resources of its first pod: by it a job without a model is known again. `demand` is
    that of its first pod. `roles` has all of its pods where they ask for different things. `user`
    is the label tandem.gpu/user of its first pod. `suspends` is what made the workload and rests in
    its place, where there is such an object.
    """

    workload: WorkloadRef
    suspends: WorkloadRef | None = None
    demand: Annotated[Demand, Shared]
    roles: Annotated[list[Role], Field(max_length=MAX_ROLES), SharedEmpty] = NO_ENTRIES
    gang: Reference = ""
    fingerprint: Label = ""
    user: Label = ""
    hold: bool = False
    prioritized_at: Time | None = None

    @property
    def rests(self) -> WorkloadRef:
        """The workload that is suspended when the gang has to give up its GPUs."""
        return self.suspends or self.workload

    @property
    def gpus(self) -> int:
        """GPUs that the whole gang takes."""
        if self.roles:
            return sum(role.pods * role.demand.gpus_per_pod for role in self.roles)
        return self.demand.gang_size * self.demand.gpus_per_pod


class PodService(Message):
    """What of the service is that of one pod, so that no pod is counted twice.

    `gpu_seconds` are those since `started_at`, the start of its containers.
    """

    uid: Reference
    started_at: Time
    gpu_seconds: Figure


class Waited(Message):
    """For how long a gang has waited for a reason, in seconds."""

    reason: Word
    seconds: Figure


class Preemption(Message):
    """Why and how a gang gives up its GPUs: `method` is `suspend` or `evict`.

    `by` is why in words, and `causes` as data. `never_started`: the containers of its pods did not
    start in time.
    """

    by: Text
    causes: Annotated[Causes, SharedEmpty] = NO_ENTRIES
    method: Word
    requested_at: Time
    never_started: bool = False


class Shrunk(Message):
    """An elastic workload that was given fewer pods, so that another job need not be stopped.

    Its owner has said `asked`, and says `pods` since `at`. `written`: that was seen; what is there
    later is somebody else's word, and stays.
    """

    asked: Count
    pods: Count
    at: Time
    written: bool = False


class ExpectedStart(Message):
    """When a gang that waits is expected to start, as of `as_of`; a forecast, not a promise.

    Four times in five it starts between `earliest` and `latest`; without `latest`, the later end
    lies beyond what is forecast.
    """

    earliest: Time
    latest: Time | None = None
    as_of: Time


class GPUJobStatus(Message):
    """What became of the gang.

    `attained_gpu_seconds` is the lifetime service, `promoted_gpu_seconds` what it was when the job
    was last promoted: their difference orders the queue. `queue` is its queue by that service,
    `position` its place among all that wait, 0 first. `queue_key` orders the jobs of one queue: the
    time at which it came to the end of the queue, or less where it has got ahead of others.
    `causes` are the reasons with their parameters, found out at `found_at`; `message` has their
    sentences. `preempted_at` and `decisions` have the latest only. `load` is what is predicted,
    `observed` is what is measured since. `expected_start` is given of gangs that wait, where it can
    be forecast.
    `alone`: it was too slow next to other jobs, and has its GPUs for itself from then on.
    `failed_starts` counts since it last ran how often containers of its pods did not start in time;
    until `rests_until` no pod of it is placed for that reason. `pod_service` has the pods that hold
    GPUs and a few that have just ended. A pod that was bound until `folded_until`, has ended and is
    not in `pod_service` is counted to its end. `waits` has the seconds of all waits by the first
    cause that kept the gang from its GPUs; what is counted reaches until `waits_until`.
    `ended_gpu_seconds` is the lifetime service at its last end, where it has had pods again since.
    Until `counted_until` a report has the job by the GPUJob that this one carries on.
    """

    phase: Phase = Phase.QUEUED
    reason: Word = ""
    message: Text = ""
    causes: Annotated[Causes, SharedEmpty] = NO_ENTRIES
    found_at: Time | None = None
    load: Annotated[Load | None, Shared] = None
    sub_batches: Annotated[list[SubBatch], Field(max_length=64), last(64), SharedEmpty] = NO_ENTRIES
    plan: Plan | None = None
    queued_at: Time | None = None
    waiting_since: Time | None = None
    admitted_at: Time | None = None
    started_at: Time | None = None
    finished_at: Time | None = None
    running_since: Time | None = None
    attained_gpu_seconds: Figure = 0.0
    promoted_gpu_seconds: Figure = 0.0
    pod_service: Annotated[list[PodService], Field(max_length=MAX_ENTRIES), SharedEmpty] = (
        NO_ENTRIES
    )
    folded_until: Time | None = None
    ended_gpu_seconds: Figure = 0.0
    counted_until: Time | None = None
    waits: Annotated[list[Waited], Field(max_length=64), last(64), SharedEmpty] = NO_ENTRIES
    waits_until: Time | None = None
    attempts: Count = 0
    failed_starts: Count = 0
    rests_until: Time | None = None
    queue: Count | None = None
    queue_key: Time | None = None
    position: Count | None = None
    expected_start: ExpectedStart | None = None
    shrunk: Shrunk | None = None
    preemption: Preemption | None = None
    preempted_at: Annotated[list[Time], Field(max_length=4096), last(4096), SharedEmpty] = (
        NO_ENTRIES
    )
    observed: Observed | None = None
    alone: bool = False
    decisions: Annotated[list[Decision], Field(max_length=8), last(8), SharedEmpty] = NO_ENTRIES
    conditions: Conditions = NO_ENTRIES
