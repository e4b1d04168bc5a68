"""Use of one GPU by one pod, over time."""

from __future__ import annotations

from node_agent.activity import Activity, fit_activity
from node_agent.config import AgentSettings
from node_agent.nvml import Sample
from node_agent.pods import PodInfo
from node_agent.progress import Pace
from node_agent.windows import ChangeSeries, Ewma, MemoryFit, Series, fit_memory
from tandem.contracts.resources import PodUse

#: How far back the fits of memory look: peaks that come once in some minutes are seen.
WINDOW_S = 300.0
#: The fits are made again when they are older than this.
FIT_EVERY_S = 10.0
#: Samples of utilisation that activity is read from: 1/6 s to 1 s each.
ACTIVITY_SAMPLES = 600


class Tenant:
    """The windows of one pod on one GPU. `last_seen_s` is when it last had a process there."""

    def __init__(self, uid: str, settings: AgentSettings, memory_changes: int) -> None:
        self.uid = uid
        self.memory: int | None = None
        self.memory_peak: int | None = None
        self.last_seen_s = 0.0
        self.utilisation = Ewma(settings.utilisation_half_life_s)
        self._memory = ChangeSeries(WINDOW_S, memory_changes)
        self._activity = Series(ACTIVITY_SAMPLES)
        self._last_sample_s = 0.0
        self._fitted_s = float("-inf")
        self._memory_fit: MemoryFit | None = None
        self._activity_fit: Activity | None = None

    def take_memory(self, before_s: float, now_s: float, memory: int | None) -> None:
        """Take the memory (bytes) that its processes hold together; None where a part is hidden.

        The reading before was at `before_s`.
        """
        self.last_seen_s = now_s
        self.memory = memory
        if memory is not None:
            self.memory_peak = max(memory, self.memory_peak or 0)
            self._memory.take(before_s, now_s, memory)

    def has_left(self) -> None:
        """Note that it has no process any more; what was observed of it stays."""
        self.memory = 0
        self.forget_utilisation()

    def forget_utilisation(self) -> None:
        """Note that its part of the GPU's load is not known."""
        self.utilisation = Ewma(self.utilisation.half_life_s)

    def take_samples(self, samples: tuple[Sample, ...]) -> None:
        """Take the GPU's own samples: this pod is alone on it, so they are its own."""
        for sample in samples:
            # A new session with NVML tells its whole buffer again.
            if sample.time_s > self._last_sample_s:
                self._last_sample_s = sample.time_s
                self._activity.append(sample.time_s, sample.percent)

    def share_gpu(self) -> None:
        """Note that others run on the GPU: its samples say nothing about this pod alone."""
        self._activity.clear()

    def use(
        self,
        now_s: float,
        info: PodInfo | None,
        *,
        foreign: bool,
        pace: Pace | None,
    ) -> PodUse:
        """Return what is reported of the pod."""
        if now_s - self._fitted_s >= FIT_EVERY_S:
            self._fitted_s = now_s
            self._memory_fit = fit_memory(self._memory.changes(self.last_seen_s))
            self._activity_fit = fit_activity(*self._activity.columns())
        memory, activity = self._memory_fit, self._activity_fit or self._shared_activity()
        own = pace.activity if pace is not None else None
        if own is not None:  # of its own iterations the job knows more than any sample shows
            activity = Activity(*own, "cuda-events", sum(own))
        return PodUse(
            namespace=info.namespace if info else "",
            pod=info.name if info else "",
            uid=self.uid,
            foreign=foreign,
            memory_bytes=self.memory,
            memory_peak_bytes=self.memory_peak,
            memory_base_bytes=None if memory is None else round(memory.base),
            memory_peak_extra_bytes=None if memory is None else round(memory.extra),
            peak_probability=None if memory is None else round(memory.peak_probability, 4),
            utilisation_percent=_rounded(self.utilisation.value),
            active_seconds=None if activity is None else round(activity.active_s, 3),
            idle_seconds=None if activity is None else round(activity.idle_s, 3),
            activity_source=None if activity is None else activity.source,
            iteration_seconds=None if activity is None else _rounded(activity.iteration_s, 3),
            iterations_per_second=pace.iterations_per_s if pace is not None else None,
        )

    def _shared_activity(self) -> Activity | None:
        """Next to others only the process's own utilisation shows it, and that too coarsely."""
        if self.utilisation.value is None:
            return None
        share = self.utilisation.value / 100
        return Activity(share, 1 - share, "process-utilisation")


def _rounded(value: float | None, digits: int = 1) -> float | None:
    return None if value is None else round(value, digits)
