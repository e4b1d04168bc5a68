"""What is read from NVML, and how reading can fail. Absent values are None, never zero."""

from __future__ import annotations

from dataclasses import dataclass


class NvmlGoneError(Exception):
    """Nothing can be read: no library, no driver, or a session that has ended."""


class GpuLostError(Exception):
    """One GPU answers no more; the message says in which way."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a GPU in bytes. `used` leaves the reserved part out where that is known."""

    used: int
    reserved: int | None


@dataclass(frozen=True, slots=True)
class Sample:
    """Utilisation in percent over the window that ended at `time_s` (Unix time)."""

    time_s: float
    percent: float


@dataclass(frozen=True, slots=True)
class Load:
    """How busy a GPU was since the reading before, in percent.

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
class Sensors:
    """What changes slowly; None where the board does not tell."""

    temperature_celsius: float | None = None
    power_watts: float | None = None
    mig: bool | None = None
    compute_mode: str | None = None
    ecc_uncorrected: int | None = None
    repair_pending: bool | None = None
    repair_failed: bool | None = None
