"""Readings of NVML, and how they can fail. Absent values are None, never zero."""

from __future__ import annotations

from dataclasses import dataclass, field

from tandem.contracts.values import MAX_GPU_BYTES


class NvmlGoneError(Exception):
    """Nothing can be read: no library, no driver, or a session that has ended."""


class GpuLostError(Exception):
    """One GPU answers no more; the message says in which way."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a GPU in bytes. `used` leaves the reserved part out where that is known.

    None of them is checked: see `trouble`. `total` is the GPU's size.
    """

    used: int
    reserved: int | None
    total: int = field(default=0, compare=False)

    @property
    def trouble(self) -> str:
        """Why these figures cannot be right, or ""."""
        reserved = self.reserved or 0
        if not 0 < self.total <= MAX_GPU_BYTES:
            return f"NVML says that it has {self.total} bytes of memory"
        if reserved >= self.total:
            return f"NVML says that all of its {self.total} bytes of memory are reserved"
        if self.used > self.total:
            return f"NVML says that {self.used} of {self.total} bytes of memory are in use"
        return ""


@dataclass(frozen=True, slots=True)
class Sample:
    """Utilisation in percent over the window that ended at `time_s` (Unix time)."""

    time_s: float
    percent: float


@dataclass(frozen=True, slots=True)
class Load:
    """Utilisation of a GPU since the previous reading, in percent.

    `source` is `gpm` (share of SMs that were busy), `samples` or `rates` (share of time with a
    kernel running); `memory_activity` is the share of the memory's bandwidth in use. `samples` is
    NVML's own finer series, empty where there is none.
    """

    percent: float
    source: str
    memory_activity: float | None = None
    samples: tuple[Sample, ...] = ()


@dataclass(frozen=True, slots=True)
class Process:
    """A process on a GPU by its host PID; `memory` in bytes, None where the driver hides it."""

    pid: int
    memory: int | None
    kind: str


@dataclass(frozen=True, slots=True)
class MigSlice:
    """A MIG device: a part of the GPU `parent` (its UUID) with memory and SMs of its own.

    `profile` is its name at NVIDIA, as `1g.10gb`; `number` counts the slices of its parent, and
    `instance` names the GPU instance. `divided`: other slices are in the same GPU instance, and use
    the same memory.
    """

    profile: str
    parent: str
    number: int
    instance: int
    divided: bool = False


@dataclass(frozen=True, slots=True)
class Sensors:
    """Values that change slowly; None where the board does not report them."""

    temperature_celsius: float | None = None
    power_watts: float | None = None
    mig: bool | None = None
    compute_mode: str | None = None
    ecc_uncorrected: int | None = None
    repair_pending: bool | None = None
    repair_failed: bool | None = None
