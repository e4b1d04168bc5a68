"""The agent's settings; unknown keys are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Seconds = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(gt=0, le=1)]

#: Xids that a program brings on itself (NVIDIA's device plugin leaves out the same): graphics
#: exception, memory page fault, stopped processing, preemptive clean-up, video processor
#: exception, context switch timeout.
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ReportSettings(_Settings):
    """When the GPUNode is written.

    A change counts when memory differs by `memory_change` of the GPU, or utilisation by
    `utilisation_change` points. `urgent_s` is the least time between two reports when health,
    shares or eviction requests change, `min_interval_s` when anything else does.
    """

    urgent_s: Seconds = 1.0
    min_interval_s: Seconds = 10.0
    heartbeat_s: Seconds = 60.0
    memory_change: Share = 0.05
    utilisation_change: Annotated[float, Field(gt=0, le=100)] = 10.0


class HealthSettings(_Settings):
    """When a GPU is quarantined, and when it comes back.

    It comes back once it has been well for `well_for_s`; one that was lost is looked for every
    `rescan_s`. NVML that stays away for `nvml_gone_s` fails liveness, so that the agent is started
    anew.
    """

    well_for_s: Seconds = 60.0
    nvml_gone_s: Seconds = 60.0
    rescan_s: Seconds = 30.0
    application_xids: frozenset[int] = APPLICATION_XIDS


class GuardSettings(_Settings):
    """What is done when a GPU is nearly full because a pod outgrew its prediction.

    `near_full` is a share of the memory that processes may use, `tolerance` the share of its
    prediction by which a pod may exceed it. A container that fails while its GPU is used to `full`,
    or up to `failed_within_s` later, is taken to have run out of memory.
    """

    mode: Literal["off", "warn", "evict"] = "warn"
    near_full: Share = 0.95
    tolerance: Annotated[float, Field(ge=0)] = 0.05
    full: Share = 0.97
    failed_within_s: Seconds = 10.0


class MetricsSettings(_Settings):
    """What Prometheus is told.

    `node`: sums and means over the GPUs of the node, at most 20 series whatever the number of GPUs
    and jobs. `gpu`: besides, about ten series for each GPU and four for each job on one.
    """

    detail: Literal["node", "gpu"] = "node"


class AgentSettings(_Settings):
    """All settings of one agent.

    `interval_s` is the time between full readings, `memory_interval_s` between readings of memory,
    by process where it has changed; `window_s` is how far back the fits of memory look. Utilisation
    is told as an average that forgets half in `utilisation_half_life_s`.
    `canary` is the folder in which a container without GPUs has left what it saw.
    """

    node: Annotated[str, Field(min_length=1)]
    interval_s: Seconds = 1.0
    memory_interval_s: Seconds = 0.1
    window_s: Seconds = 300.0
    utilisation_half_life_s: Seconds = 10.0
    shares: Annotated[int, Field(ge=1, le=64)] = 2
    proc: Path = Path("/proc")
    canary: Path | None = None
    report: ReportSettings = ReportSettings()
    health: HealthSettings = HealthSettings()
    guard: GuardSettings = GuardSettings()
    metrics: MetricsSettings = MetricsSettings()
