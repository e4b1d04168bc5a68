"""Why a job is where it is: a closed set of reasons, each with typed parameters.

Policies, the queue controller and the quotas return causes. `words.py` makes all sentences of them,
so that no program has to read a sentence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError, WithJsonSchema


class Reason(StrEnum):
    """The closed set: the reasons of the condition `Scheduled` of a GPUJob."""

    # What keeps a worker of the job off GPUs.
    NOT_OFFERED = "GPUNotOffered"
    CLOSED = "GPUClosed"
    PLACES_TAKEN = "PlacesTaken"
    NOT_SHARED = "HeldByExclusiveJob"
    NEEDS_WHOLE_GPU = "NeedsWholeGPU"
    SLICE = "GPUIsSlice"
    QUARANTINED = "GPUQuarantined"
    NOT_MEASURED = "GPUNotMeasured"
    MEMORY = "MemoryTooSmall"
    MEMORY_ALONE = "GPUTooSmall"
    MEMORY_UNKNOWN = "MemorySizeUnknown"
    MEMORY_PEAKS = "MemoryPeaksTooLarge"
    MEMORY_COLLISION = "MemoryPeaksCollide"
    UTILISATION = "GPUOverloaded"
    SLOWDOWN = "SlowdownTooHigh"
    BAD_NEIGHBOURS = "BadNeighbours"
    UNEQUAL_WORKERS = "UnequalWorkers"
    OWN_PODS = "HeldByItsOwnPods"
    # What keeps its pods off nodes.
    NODE_SHORT = "NodeResourceTaken"
    NODE_TOO_SMALL = "NodeTooSmall"
    NODE_HAS_FEWER = "NodeHasRoomForFewer"
    NODE_UNSUITABLE = "NodeUnsuitable"
    CLAIM_MISSING = "ClaimMissing"
    # Why it is not its turn.
    NEEDS_GPUS = "NeedsGPUs"
    NODES_TOO_SMALL = "NodesHaveTooFewGPUs"
    CLUSTER_TOO_SMALL = "TooFewGPUs"
    DOMAINS_FULL = "TopologyTaken"
    DOMAINS_TOO_SMALL = "TopologyTooSmall"
    PLACE_FREE = "PlaceFree"
    WAITING_IS_BETTER = "WaitingIsBetter"
    ROLES = "RolesDoNotFitTogether"
    BEHIND = "BehindOthers"
    NOT_LOOKED_AT = "NotLookedAtYet"
    MAKING_ROOM = "OthersGiveUpGPUs"
    OVERTAKEN = "TakenByJobsBefore"
    NOT_PREEMPTED = "OthersProtected"
    QUOTA = "QuotaUsedUp"
    QUOTA_ENDLESS = "ServiceQuotaUsedUp"
    QUOTA_TIME = "TimeQuotaUsedUp"
    QUOTA_SHARE = "ShareUsedUp"
    QUOTA_TOO_SMALL = "QuotaTooSmall"
    HELD = "Held"
    # What its own pods lack.
    BLOCKED = "Blocked"
    OTHER_GATES = "OtherSchedulingGates"
    ANNOTATIONS_TOO_LARGE = "AnnotationsTooLarge"
    TOO_MANY_ROLES = "TooManyKindsOfPods"
    GROUP_MISSING = "PodGroupMissing"
    PODS_MISSING = "PodsMissing"
    NOT_MADE = "PodsNotMade"
    CANNOT_MAKE = "PodsRefused"
    ONE_BY_ONE = "PodsMadeOneByOne"
    WORKLOAD_SUSPENDED = "WorkloadSuspended"
    GANG_INCOMPLETE = "GangIncomplete"
    NO_CONTROLLER = "PodWithoutController"
    PODS_ENDED = "PodsEnded"
    STARTING = "Starting"
    NEVER_STARTED = "NeverStarted"
    RESTS = "PlacedAgainLater"
    PLAN_EXPIRED = "PlanExpired"
    PODS_GONE = "PodsGone"
    # What has become of it.
    WAITING = "Waiting"
    QUEUED = "Queued"
    NEW_PODS = "NewPods"
    PLANNED = "Planned"
    RUNNING = "Running"
    PREEMPTING = "Preempting"
    PREEMPTION_OVERDUE = "PreemptionOverdue"
    PREEMPTED = "Preempted"
    # Why it gives up its GPUs.
    NEEDED = "NeededByOthers"
    SLOWED_DOWN = "SlowedDown"
    SLOWS_DOWN = "SlowsDownOthers"
    FASTER_ELSEWHERE = "FasterElsewhere"
    PART_WITHOUT_PLACE = "PartWithoutPlace"
    NOT_SUSPENDED = "WorkloadNotSuspended"
    NOT_RESUMED = "WorkloadNotResumed"
    # How it ended.
    COMPLETED = "Completed"
    FAILED = "Failed"


LONGEST_NAME, LONGEST = 253, 2000
Short = Annotated[str | None, Field(max_length=LONGEST_NAME)]
Long = Annotated[str | None, Field(max_length=LONGEST)]
Number = Annotated[int | None, Field(ge=0, le=2**62)]
#: Schemas take others as well: the definition of one version is there with extenders of the next.
_Known = Annotated[Reason, WithJsonSchema({"type": "string", "maxLength": 64})]
Quantity = Annotated[float | None, Field(ge=0, le=1e30, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class Cause:
    """One reason and its parameters, those that it has.

    `gpu` is one GPU as node/index, or the job's own GPUs, for readers who may know them; `gpus` and
    `nodes` count those of which the reason is true. `value` is what is there or needed, and `bound`
    what is allowed, in the unit that the reason has: GiB, a part of 1, percent or a count.
    `resource` and `amount` are a resource of a node and a quantity of Kubernetes. `job` are the
    jobs that it is about, as the owner may read them. `role` is one of its own roles, `pod` one of
    its own pods and `node` where that is; `pods` counts those that it is about, of which so many
    have `failed` or are `leaving`: they are being deleted. `seconds` is for how long. `workload` is
    what made the pods: kind and name. `detail` is what the API server, a kubelet, a controller or
    the user has written. Objects of earlier versions have whole sentences there.
    """

    reason: _Known
    gpu: Short = None
    gpus: Number = None
    nodes: Number = None
    value: Quantity = None
    bound: Quantity = None
    resource: Short = None
    amount: Short = None
    job: Long = None
    namespace: Short = None
    role: Short = None
    pod: Short = None
    node: Short = None
    pods: Number = None
    failed: Number = None
    leaving: Number = None
    seconds: Quantity = None
    workload: Short = None
    detail: Long = None

    def wire(self) -> dict[str, object]:
        """Return the JSON object as it goes over the wire; absent values are left out."""
        found: dict[str, object] = _CAUSE.dump_python(self, mode="json", exclude_none=True)
        return found

    def cut(self) -> Cause:
        """Return the same with texts of a length that an API server takes."""
        longest = {"job": LONGEST, "detail": LONGEST}
        changes = {}
        for name in _TEXTS:
            text, most = getattr(self, name), longest.get(name, LONGEST_NAME)
            if text is not None and len(text) > most:
                changes[name] = text[: most - 1] + "…"
        return replace(self, **changes) if changes else self

    def on(self, *, gpu: str | None = None, gpus: int | None = None) -> Cause:
        """Return the same of a GPU with its name, or of so many."""
        return replace(self, gpu=gpu, gpus=gpus)


_TEXTS = (
    "gpu", "resource", "amount", "job", "namespace", "role", "pod", "node", "workload", "detail"
)  # fmt: skip


def figure(value: float) -> float | None:
    """Return a figure as a cause has it; what is beyond all bounds is none."""
    return float(value) if math.isfinite(value) else None


def first_of(causes: Sequence[Cause]) -> Cause | None:
    """Return the cause that counts: the first that says more than what the job asks for."""
    said = (cause for cause in causes if cause.reason is not Reason.NEEDS_GPUS)
    return next(said, causes[0] if causes else None)


_CAUSE: TypeAdapter[Cause] = TypeAdapter(Cause)
MOST_CAUSES = 16


def _known(values: object) -> object:
    """Keep what this version understands: another version may have other reasons."""
    if not isinstance(values, list):
        return values
    return list(understood(values))


def understood(values: Iterable[object]) -> tuple[Cause, ...]:
    """Return the causes that this version understands, of values as they come from JSON."""
    found = []
    for value in values:
        with suppress(ValidationError):
            found.append(_CAUSE.validate_python(value))
    return tuple(found[:MOST_CAUSES])


Causes = Annotated[list[Cause], Field(max_length=MOST_CAUSES), BeforeValidator(_known)]
