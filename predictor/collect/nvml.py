"""The GPU's own figures, read from the driver's library by ctypes; absent where it is not.

The agents read NVML through NVIDIA's binding. Here nothing but PyTorch can be counted on, so the
few calls that are needed are declared by hand. Every figure may be missing: a call that this
driver, board or container does not support leaves its field out of the record.
"""

from __future__ import annotations

import ctypes
import threading
import time
from ctypes import Structure, byref, c_char, c_char_p, c_double, c_int, c_uint, c_ulonglong
from dataclasses import dataclass, field
from typing import Any

_NAMES = ("libnvidia-ml.so.1", "/usr/local/nvidia/lib64/libnvidia-ml.so.1")
_GPU_UTILIZATION_SAMPLES = 1
_MAX_SAMPLES = 4096
_POLL_S = 0.02
#: A sample tells of up to the last sixth of a second: those that begin before the run are left out.
_SAMPLE_WINDOW_S = 1 / 6
#: GPM's numbers of what is recorded, percent each.
_GPM_METRICS = {
    "graphicsActivePercent": 1,
    "smActivePercent": 2,
    "smOccupancyPercent": 3,
    "tensorActivePercent": 5,
    "dramActivePercent": 10,
}
_GPM_ROWS = 512  # more than any version of the library knows
_TEXT_BYTES = 96


class _Memory(Structure):
    _fields_ = [("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]


class _Rates(Structure):
    _fields_ = [("gpu", c_uint), ("memory", c_uint)]


class _Sample(Structure):
    _fields_ = [("time_us", c_ulonglong), ("value", c_uint), ("padding", c_uint)]


class _GpmSupport(Structure):
    _fields_ = [("version", c_uint), ("supported", c_uint)]


class _GpmMetric(Structure):
    _fields_ = [("id", c_uint), ("result", c_int), ("value", c_double), ("texts", c_char_p * 3)]


class _GpmGet(Structure):
    _fields_ = [
        ("version", c_uint), ("count", c_uint), ("first", ctypes.c_void_p),
        ("second", ctypes.c_void_p), ("rows", _GpmMetric * _GPM_ROWS),
    ]  # fmt: skip


@dataclass
class Window:
    """Readings while something ran; percent and bytes."""

    utilisation: list[float] = field(default_factory=list)
    memory_used_bytes: list[int] = field(default_factory=list)
    gpm: dict[str, float] = field(default_factory=dict)
    source: str = ""


class Nvml:
    """One GPU as the driver sees it; `open_nvml` gives None where there is no driver."""

    def __init__(self, library: ctypes.CDLL, uuid: str) -> None:
        self._library = library
        self._device = ctypes.c_void_p()
        wanted = uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
        if not uuid or not self._call(
            "nvmlDeviceGetHandleByUUID", wanted.encode(), byref(self._device)
        ):
            self._call("nvmlDeviceGetHandleByIndex_v2", 0, byref(self._device))
        support = _GpmSupport(1, 0)
        self._has_gpm = (
            self._call("nvmlGpmQueryDeviceSupport", self._device, byref(support))
            and support.supported != 0
        )

    def driver_version(self) -> str | None:
        """Return the driver's version."""
        text = (c_char * _TEXT_BYTES)()
        known = self._call("nvmlSystemGetDriverVersion", text, _TEXT_BYTES)
        return text.value.decode() if known else None

    def memory_used_bytes(self) -> int | None:
        """Return what is taken of the GPU's memory by everybody."""
        memory = _Memory()
        known = self._call("nvmlDeviceGetMemoryInfo", self._device, byref(memory))
        return int(memory.used) if known else None

    def utilisation_percent(self) -> int | None:
        """Return the share of time with a kernel running, over the driver's own window."""
        rates = _Rates()
        known = self._call("nvmlDeviceGetUtilizationRates", self._device, byref(rates))
        return int(rates.gpu) if known else None

    def samples(self, since_us: int) -> list[tuple[int, int]]:
        """Return (time in us since 1970, percent) from the driver's ring of samples."""
        kind, count = c_int(), c_uint(_MAX_SAMPLES)
        rows = (_Sample * _MAX_SAMPLES)()
        known = self._call(
            "nvmlDeviceGetSamples", self._device, _GPU_UTILIZATION_SAMPLES, c_ulonglong(since_us),
            byref(kind), byref(count), rows,
        )  # fmt: skip
        if not known:
            return []
        kept = rows[: min(count.value, _MAX_SAMPLES)]
        return [(int(row.time_us), int(row.value)) for row in kept]

    def gpm_sample(self) -> Any:  # noqa: ANN401 - a handle of the library
        """Return a snapshot of the board's counters; None without GPM."""
        sample = ctypes.c_void_p()
        if not self._has_gpm or not self._call("nvmlGpmSampleAlloc", byref(sample)):
            return None
        if self._call("nvmlGpmSampleGet", self._device, sample):
            return sample
        self._call("nvmlGpmSampleFree", sample)
        return None

    def gpm_between(self, first: Any, second: Any) -> dict[str, float]:  # noqa: ANN401 - as above
        """Return GPM's figures between two snapshots, and give these back."""
        found = {}
        if first is not None and second is not None:
            get = _GpmGet(1, len(_GPM_METRICS), first, second)
            for row, number in zip(get.rows, _GPM_METRICS.values(), strict=False):
                row.id = number
            if self._call("nvmlGpmMetricsGet", byref(get)):
                for row, name in zip(get.rows, _GPM_METRICS, strict=False):
                    if row.result == 0 and 0 <= row.value <= 100:
                        found[name] = round(float(row.value), 2)
        for sample in (first, second):
            if sample is not None:
                self._call("nvmlGpmSampleFree", sample)
        return found

    def _call(self, name: str, *arguments: Any) -> bool:  # noqa: ANN401 - C's
        """Call the library; False where it does not know the function, or refuses."""
        try:
            return int(getattr(self._library, name)(*arguments)) == 0
        except AttributeError:
            return False


def open_nvml(uuid: str) -> Nvml | None:
    """Return the GPU of that UUID, or the first one; None where NVML cannot be had."""
    for name in _NAMES:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        if library.nvmlInit_v2() == 0 if hasattr(library, "nvmlInit_v2") else (
            library.nvmlInitWithFlags(0) == 0
        ):  # fmt: skip
            return Nvml(library, uuid)
    return None


class Watch:
    """Watches the GPU while a `with` block runs; `window` holds what was seen after it."""

    def __init__(self, gpu: Nvml | None) -> None:
        self._gpu = gpu
        self.window = Window()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def __enter__(self) -> Watch:
        if self._gpu is not None:
            self._from_us = int((time.time() + _SAMPLE_WINDOW_S) * 1e6)
            self._gpm = self._gpu.gpm_sample()
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        gpu, window = self._gpu, self.window
        if gpu is None:
            return
        until_us = int(time.time() * 1e6)
        window.gpm = gpu.gpm_between(self._gpm, gpu.gpm_sample())
        self._stop.set()
        self._thread.join()
        samples = [
            float(percent)
            for at_us, percent in gpu.samples(self._from_us)
            if self._from_us <= at_us <= until_us and percent <= 100
        ]
        if samples:
            window.utilisation, window.source = samples, "samples"
        elif window.utilisation:
            # The first readings tell of the time before.
            window.utilisation = window.utilisation[int(_SAMPLE_WINDOW_S / _POLL_S) :]
            window.source = "rates"

    def _poll(self) -> None:
        assert self._gpu is not None
        while not self._stop.wait(_POLL_S):
            used, busy = self._gpu.memory_used_bytes(), self._gpu.utilisation_percent()
            if used is not None:
                self.window.memory_used_bytes.append(used)
            if busy is not None:
                self.window.utilisation.append(float(busy))
