"""GPM: how many of a GPU's SMs and how much of its memory's bandwidth are in use (Hopper on)."""

from __future__ import annotations

from collections.abc import Callable

import pynvml

from node_agent.nvml.binding import Binding, Untyped
from node_agent.nvml.readings import GpuLostError, NvmlGoneError


class Gpm:
    """Activity between two snapshots; keeps the last one. `ask` calls the binding on the GPU.

    With `instance`, that of a GPU instance of MIG: the GPU is its parent.
    """

    def __init__(
        self, binding: Binding, ask: Callable[..., Untyped], instance: int | None = None
    ) -> None:
        self._binding = binding
        self._ask = ask
        self._instance = instance
        self._supported: bool | None = None
        self._before: Untyped = None
        self._query = pynvml.c_nvmlGpmMetricsGet_t()

    def activity(self) -> tuple[float, float | None] | None:
        """Return (SM, DRAM) activity in percent since the last call; None the first time.

        None too where the board has no GPM, or a call fails.
        """
        if self._supported is None:
            support = self._ask("nvmlGpmQueryDeviceSupport")
            if support is None:
                return None
            self._supported = bool(support.isSupportedDevice)
        if not self._supported:
            return None
        after = self._snapshot()
        if after is None:
            return None
        before, self._before = self._before, after
        if before is None:
            return None
        try:
            return self._between(before, after)
        finally:
            self._binding.quietly("nvmlGpmSampleFree", before)

    def release(self) -> None:
        """Give the snapshot back."""
        if self._before is not None:
            self._binding.quietly("nvmlGpmSampleFree", self._before)
            self._before = None

    def _snapshot(self) -> Untyped:
        sample = self._binding.ask("nvmlGpmSampleAlloc")
        if sample is None:
            return None
        try:
            if self._instance is None:
                taken = self._ask("nvmlGpmSampleGet", sample)
            else:
                taken = self._ask("nvmlGpmMigSampleGet", self._instance, sample)
        except (GpuLostError, NvmlGoneError):
            self._binding.quietly("nvmlGpmSampleFree", sample)
            raise
        if taken is None:
            self._binding.quietly("nvmlGpmSampleFree", sample)
        return taken

    def _between(self, before: Untyped, after: Untyped) -> tuple[float, float | None] | None:
        query = self._query
        query.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        query.sample1, query.sample2 = before, after
        query.numMetrics = 2
        query.metrics[0].metricId = pynvml.NVML_GPM_METRIC_SM_UTIL
        query.metrics[1].metricId = pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL
        if self._binding.ask("nvmlGpmMetricsGet", query) is None:
            return None
        sm, dram = (_percent(row) for row in query.metrics[:2])
        return None if sm is None else (sm, dram)


def _percent(row: Untyped) -> float | None:
    # A comparison with NaN is false, so that one is absent as well.
    valid = row.nvmlReturn == pynvml.NVML_SUCCESS and 0 <= row.value <= 100
    return float(row.value) if valid else None
