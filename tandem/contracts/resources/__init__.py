"""The three custom resources: GPUJob, GPUNode, ModelProfile.

Times are RFC 3339 strings in UTC as Kubernetes writes them; memory is in bytes, utilisation in
percent (0..100). A value that could not be measured is absent, never zero.
"""

from __future__ import annotations

from tandem.contracts.resources.fields import (
    Condition,
    Framework,
    Optimizer,
    Parallelism,
    Precision,
    Source,
)
from tandem.contracts.resources.gpu_job import (
    Demand,
    ExpectedStart,
    GPUJobSpec,
    GPUJobStatus,
    Load,
    PairLoad,
    Phase,
    Plan,
    PodPlan,
    PodService,
    Preemption,
    ResourceAmount,
    Role,
    Shrunk,
    SubBatch,
    Waited,
    WorkloadRef,
)
from tandem.contracts.resources.gpu_node import (
    GPU,
    EvictionRequest,
    GPUNodeStatus,
    Health,
    MemorySource,
    OutgrownPod,
    OutOfMemory,
    PodUse,
    Slice,
)
from tandem.contracts.resources.model_profile import (
    GraphFeatures,
    ModelProfileSpec,
    ModelProfileStatus,
    Observation,
)
from tandem.contracts.values import Bytes, Count, Percent, Probability, Time

__all__ = [
    "GPU",
    "Bytes",
    "Condition",
    "Count",
    "Demand",
    "EvictionRequest",
    "ExpectedStart",
    "Framework",
    "GPUJobSpec",
    "GPUJobStatus",
    "GPUNodeStatus",
    "GraphFeatures",
    "Health",
    "Load",
    "MemorySource",
    "ModelProfileSpec",
    "ModelProfileStatus",
    "Observation",
    "Optimizer",
    "OutOfMemory",
    "OutgrownPod",
    "PairLoad",
    "Parallelism",
    "Percent",
    "Phase",
    "Plan",
    "PodPlan",
    "PodService",
    "PodUse",
    "Precision",
    "Preemption",
    "Probability",
    "ResourceAmount",
    "Role",
    "Shrunk",
    "Slice",
    "Source",
    "SubBatch",
    "Time",
    "Waited",
    "WorkloadRef",
]
