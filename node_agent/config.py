"""The agent's settings; unknown keys are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from tandem.settings import Section

Seconds = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(gt=0, le=1)]

#: Xids that a program brings on itself (NVIDIA's device plugin leaves out the same): graphics
#: exception, memory page fault, stopped processing, preemptive clean-up, video processor
#: exception, context switch timeout.
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})


#: Settings that were removed, and what an operator does instead.
REMOVED = {
    "report": "report_interval_s (10) takes the place of report.min_interval_s; urgent reports and"
    " heartbeats follow from it, and the other keys are constants",
    "health.well_for_s": "it is twice health.rescan_s",
    "health.nvml_gone_s": "it is twice health.rescan_s",
    "window_s": "it is a constant (300 s); leave it out",
    "guard.tolerance": "it is a constant (0.05); leave it out",
    "guard.full": "it is a constant (0.97); leave it out",
    "guard.failed_within_s": "it is a constant (10 s); leave it out",
}


class HealthSettings(Section):
    """When a GPU is quarantined, and when it comes back.

    A GPU that was lost is looked for every `rescan_s`. A GPU comes back once it has been well for
    `well_for_s`. NVML that stays away for as long fails liveness, so that the agent is started
    anew. Xids in `application_xids` say nothing about the GPU.
    """

    rescan_s: Seconds = 30.0
    application_xids: frozenset[int] = APPLICATION_XIDS

    @property
    def well_for_s(self) -> float:
        """The time of two looks, in seconds: one look may fall into a moment of calm."""
        return 2 * self.rescan_s


class GuardSettings(Section):
    """The memory guard: its action when a GPU is nearly full because a pod outgrew its prediction.

    `near_full` is a share of the memory that processes may use.
    """

    mode: Literal["off", "warn", "evict"] = "warn"
    near_full: Share = 0.95


class MetricsSettings(Section):
    """The agent's metrics endpoint.

    `node`: sums and means over the GPUs of the node, at most 20 series whatever the number of GPUs
    and jobs. `gpu`: besides, about ten series for each GPU and four for each job on one.
    """

    detail: Literal["node", "gpu"] = "node"


class AgentSettings(Section):
    """All settings of one agent.

    `interval_s` is the time between full readings, `memory_interval_s` between readings of memory,
    by process where it has changed. Utilisation is reported as an average that forgets half in
    `utilisation_half_life_s`. `report_interval_s` is the
    least time between two reports when figures change (`publish.Rhythm`). `proc` and `sys` are
    where the kernel tells of processes, and of the NUMA nodes of devices.
    `canary` is the folder in which a container without GPUs has left what it saw.
    `hand_over` says how GPUs reach containers: by a variable in their environment, or by the DRA
    driver of the node (`node_agent.dra`), which then hands over all of them: `dra` to claims that
    kube-scheduler allocates, `dra-queue` to jobs of Tandem's queue. `label`: as the Node's label
    `tandem.gpu/hand-over` says, `environment` without one. A GPU that has pods by another way goes
    over when these have ended.
    """

    node: Annotated[str, Field(min_length=1)]
    interval_s: Seconds = 1.0
    memory_interval_s: Seconds = 0.1
    utilisation_half_life_s: Seconds = 10.0
    shares: Annotated[int, Field(ge=1, le=64)] = 2
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    canary: Path | None = None
    hand_over: Literal["environment", "dra", "dra-queue", "label"] = "environment"
    report_interval_s: Seconds = 10.0
    health: HealthSettings = HealthSettings()
    guard: GuardSettings = GuardSettings()
    metrics: MetricsSettings = MetricsSettings()
