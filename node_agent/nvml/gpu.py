"""The readings of one GPU."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pynvml

from node_agent.nvml.binding import Binding, CallFailedError, Untyped, address
from node_agent.nvml.gpm import Gpm
from node_agent.nvml.readings import (
    GpuLostError,
    Load,
    Memory,
    MigSlice,
    Process,
    Sample,
    Sensors,
)
from tandem.contracts.values import MAX_GPU_BYTES

#: Codes after which one GPU answers no more.
_LOST = {
    pynvml.NVML_ERROR_GPU_IS_LOST: "the GPU is lost",
    pynvml.NVML_ERROR_RESET_REQUIRED: "the GPU requires a reset",
    pynvml.NVML_ERROR_GPU_NOT_FOUND: "the GPU is no longer found",
}
_COMPUTE_MODES = {
    pynvml.NVML_COMPUTEMODE_DEFAULT: "Default",
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD: "ExclusiveThread",
    pynvml.NVML_COMPUTEMODE_PROHIBITED: "Prohibited",
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: "ExclusiveProcess",
}
#: The member of a sample's union for each type of value.
_VALUE_FIELDS = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
}
_LISTS = {
    "compute": "nvmlDeviceGetComputeRunningProcesses_v3",
    "mps": "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "graphics": "nvmlDeviceGetGraphicsRunningProcesses_v3",
}
#: Rows of a time later than this much from now are no readings: what is asked for next is what
#: came after the last one, and nothing would come any more.
_FUTURE_US = 86_400_000_000
#: NVML writes the domain with eight digits, the kernel with four.
_PCI_ADDRESS = re.compile(r"(?:0000)?([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")
#: What an NVLink to a switch leads to: all GPUs of the node that have such a link.
SWITCH = "switch"
#: Rows of one answer that are read.
_MOST_SAMPLES = 4096


class Gpu:
    """One GPU of a session; identity is read once, everything else at each call.

    A slice of MIG is one as well. Memory and processes are its own; sensors, and whether it is
    lost, are those of its parent: `part` is the slice, and the parent's handle.

    Every reading raises `GpuLostError` when the GPU answers no more, and `NvmlGoneError` when
    nothing does.
    """

    def __init__(
        self,
        binding: Binding,
        handle: Untyped,
        index: int,
        uuid: str,
        model: str,
        total: int | None,
        numa_node: int | None = None,
        part: tuple[MigSlice, Untyped] | None = None,
    ) -> None:
        self.index = index
        self.uuid = uuid
        self.model = model
        #: None where NVML does not tell, and then the node of the system's memory that is its own.
        self.memory_bytes = total
        self.numa_node = numa_node
        self.slice: MigSlice | None = None if part is None else part[0]
        self._board: Untyped = handle if part is None else part[1]
        self.address = address(self._board)
        self._binding = binding
        self._handle = handle
        self._last_sample_us = 0
        self._last_process_us = 0
        self._kinds: set[str] = set()
        instance = None if self.slice is None else self.slice.instance
        self._gpm = Gpm(binding, self._ask_board, instance)

    def memory(self) -> Memory | None:
        """Return the memory in use; the older call is asked where the newer one is missing."""
        info = self._ask("nvmlDeviceGetMemoryInfo", pynvml.nvmlMemory_v2)
        if info is not None:
            return Memory(int(info.used), int(info.reserved), int(info.total))
        info = self._ask("nvmlDeviceGetMemoryInfo")
        return None if info is None else Memory(int(info.used), None, int(info.total))

    def processes(self, *, all_kinds: bool = True) -> tuple[Process, ...] | None:
        """Return the processes, each PID once, with all the memory that it holds on the GPU.

        The rows of one list are different memory: contexts of one process, or the MIG instances
        that it is on. They are added up, and one without a figure makes the sum unknown. Different
        lists say the same memory again (a process that computes and draws is in two), so the
        largest sum counts.

        With `all_kinds` false, graphics and MPS clients are asked for only where the last full
        reading found some. None: the driver does not tell.
        """
        found: dict[int, Process] = {}
        for kind, call in _LISTS.items():
            if kind != "compute" and not all_kinds and kind not in self._kinds:
                continue
            rows = self._list(call)
            if rows is None and kind == "compute":
                return None
            for pid, memory in _by_pid(rows or ()).items():
                if pid in found:
                    known = [m for m in (memory, found[pid].memory) if m is not None]
                    memory = max(known, default=None)
                if memory is not None and self.memory_bytes and memory > self.memory_bytes:
                    memory = None
                found[pid] = Process(pid, memory, kind)
            (self._kinds.add if rows else self._kinds.discard)(kind)
        return tuple(found.values())

    def process_utilisation(self) -> dict[int, float] | None:
        """Return percent of the GPU's time by PID since the last call; who is missing was idle."""
        rows = self._process_rows()
        if rows is None:
            return None
        busy: dict[int, list[float]] = {}
        latest = _latest_us()
        for row in rows:
            if row.timeStamp > latest:
                continue
            # Drivers leave rows that were never filled: PID 0, or a percentage out of range.
            if row.pid and row.timeStamp > self._last_process_us and row.smUtil <= 100:
                busy.setdefault(int(row.pid), []).append(float(row.smUtil))
        stamps = [int(row.timeStamp) for row in rows if row.timeStamp <= latest]
        self._last_process_us = max([self._last_process_us, *stamps])
        return {pid: sum(values) / len(values) for pid, values in busy.items()}

    def load(self) -> Load | None:
        """Return how busy the GPU was: by GPM, else by NVML's samples, else by its rates."""
        samples = self._samples()
        activity = self._gpm.activity()
        if activity is not None:
            return Load(activity[0], "gpm", activity[1], samples)
        if samples:
            mean = sum(sample.percent for sample in samples) / len(samples)
            return Load(mean, "samples", samples=samples)
        rates = self._ask("nvmlDeviceGetUtilizationRates")
        if rates is None or rates.gpu > 100:
            return None
        return Load(float(rates.gpu), "rates")

    def pci_address(self) -> str | None:
        """Return its address on the PCI bus as the kernel writes it, or None: `0000:3b:00.0`."""
        return _pci_address(self._ask_board("nvmlDeviceGetPciInfo"))

    def nvlink_peers(self) -> frozenset[str]:
        """Return what its active NVLinks lead to: addresses of GPUs on the PCI bus, or `SWITCH`.

        Empty where NVML does not tell, and of a slice: no NVLink reaches one.
        """
        if self.slice is not None:
            return frozenset()
        peers = set()
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
            try:
                active = self._link("nvmlDeviceGetNvLinkState", link)
            except CallFailedError as failed:
                self._binding.check_gone(failed.code)
                if failed.code == pynvml.NVML_ERROR_NOT_SUPPORTED:
                    continue  # a board may lack some of its links
                break  # it has no link of this number, or the driver knows no links
            if active == pynvml.NVML_FEATURE_ENABLED:
                peers.add(self._peer(link))
        return frozenset(peers - {""})

    def _peer(self, link: int) -> str:
        """Return what an active link leads to, or "" where it is no GPU, switch or known."""
        kind = self._ask_link("nvmlDeviceGetNvLinkRemoteDeviceType", link)
        if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            return SWITCH
        if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_IBMNPU:
            return ""
        # Drivers before 450 have no call for the type: an address that is a GPU's is enough.
        return _pci_address(self._ask_link("nvmlDeviceGetNvLinkRemotePciInfo", link)) or ""

    def sensors(self) -> Sensors:
        """Return modes, temperature, power and the state of memory repair.

        Of a slice they are those of its parent. The power is left out: sums would count it again
        for each slice.
        """
        ask = self._ask_board
        temperature = ask("nvmlDeviceGetTemperatureV", pynvml.NVML_TEMPERATURE_GPU)
        if temperature is None:
            temperature = ask("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU)
        power = ask("nvmlDeviceGetPowerUsage") if self.slice is None else None
        mig = ask("nvmlDeviceGetMigMode")
        ecc = ask(
            "nvmlDeviceGetTotalEccErrors",
            pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            pynvml.NVML_VOLATILE_ECC,
        )
        rows = ask("nvmlDeviceGetRemappedRows")
        # Boards before Ampere retire pages where later ones remap rows.
        pending = ask("nvmlDeviceGetRetiredPagesPendingStatus") if rows is None else rows[2]
        return Sensors(
            temperature_celsius=None if temperature is None else float(temperature),
            power_watts=None if power is None else power / 1000,
            mig=None if mig is None else mig[0] == pynvml.NVML_DEVICE_MIG_ENABLE,
            compute_mode=_COMPUTE_MODES.get(ask("nvmlDeviceGetComputeMode")),
            ecc_uncorrected=None if ecc is None else int(ecc),
            repair_pending=None if pending is None else bool(pending),
            repair_failed=None if rows is None else bool(rows[3]),
        )

    def release(self) -> None:
        """Give back what the readings hold in the driver."""
        self._gpm.release()

    def _call(self, name: str, handle: Untyped, *arguments: object) -> Untyped:
        return self._of_this_gpu(lambda: self._binding.call(name, handle, *arguments))

    def _of_this_gpu(self, call: Callable[[], Untyped]) -> Untyped:
        try:
            return call()
        except CallFailedError as failed:
            if failed.code in _LOST:
                raise GpuLostError(_LOST[failed.code]) from failed
            raise

    def _ask(self, name: str, *arguments: object) -> Untyped:
        return self._ask_of(self._handle, name, *arguments)

    def _ask_board(self, name: str, *arguments: object) -> Untyped:
        return self._ask_of(self._board, name, *arguments)

    def _ask_of(self, handle: Untyped, name: str, *arguments: object) -> Untyped:
        try:
            return self._call(name, handle, *arguments)
        except CallFailedError as failed:
            self._binding.check_gone(failed.code)
            return None

    def _link(self, name: str, link: int) -> Untyped:
        """Ask about a link; to have fewer links than the newest boards is no failure."""
        refusals = (pynvml.NVML_ERROR_INVALID_ARGUMENT,)
        return self._of_this_gpu(
            lambda: self._binding.call(name, self._handle, link, refusals=refusals)
        )

    def _ask_link(self, name: str, link: int) -> Untyped:
        try:
            return self._link(name, link)
        except CallFailedError as failed:
            self._binding.check_gone(failed.code)
            return None

    def _list(self, name: str) -> Untyped:
        """Ask for a list; once more where it grew between its sizing and its filling."""
        code = pynvml.NVML_SUCCESS
        for _ in range(2):
            try:
                return self._binding.rows(name, self._handle, pynvml.c_nvmlProcessInfo_v3_t)
            except CallFailedError as failed:
                code = failed.code
            if code != pynvml.NVML_ERROR_INSUFFICIENT_SIZE:
                break
        if code in _LOST:
            raise GpuLostError(_LOST[code])
        self._binding.check_gone(code)
        return None

    def _process_rows(self) -> Untyped:
        """Return rows of utilisation; "no rows", in either of its two forms, is an empty list."""
        for _ in range(2):  # a process may start between sizing and filling
            try:
                rows = self._of_this_gpu(
                    lambda: self._binding.utilisation(self._handle, self._last_process_us)
                )
                return rows[:_MOST_SAMPLES]
            except CallFailedError as failed:
                if failed.code in (pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND):
                    return []
                if failed.code != pynvml.NVML_ERROR_INSUFFICIENT_SIZE:
                    self._binding.check_gone(failed.code)
                    return None
        return None

    def _samples(self) -> tuple[Sample, ...]:
        try:
            answer = self._of_this_gpu(
                lambda: self._binding.samples(self._handle, self._last_sample_us)
            )
        except CallFailedError as failed:
            self._binding.check_gone(failed.code)
            return ()
        if answer[0] not in _VALUE_FIELDS:
            return ()
        field = _VALUE_FIELDS[answer[0]]
        found = []
        latest = _latest_us()
        for row in answer[1][-_MOST_SAMPLES:]:
            percent = float(getattr(row.sampleValue, field))
            if self._last_sample_us < row.timeStamp <= latest and 0 <= percent <= 100:
                self._last_sample_us = int(row.timeStamp)
                found.append(Sample(row.timeStamp / 1e6, percent))
        return tuple(found)


def _pci_address(info: Untyped) -> str | None:
    """Return the address in an answer of the binding, as the kernel writes it."""
    if info is None:
        return None
    try:
        # The binding decodes texts by itself, depending on its version.
        text = info.busId.decode() if isinstance(info.busId, bytes) else str(info.busId)
    except UnicodeDecodeError:
        return None
    found = _PCI_ADDRESS.fullmatch(text.lower())
    return found[1] if found else None


def _by_pid(rows: Untyped) -> dict[int, int | None]:
    """Return what the rows of one list say of each PID together."""
    found: dict[int, int | None] = {}
    for row in rows:
        memory = int(row.usedGpuMemory)
        before = found.get(row.pid, 0)
        known = before is not None and memory <= MAX_GPU_BYTES  # larger: not available, or a fault
        found[int(row.pid)] = before + memory if known and before is not None else None
    return found


def _latest_us() -> float:
    return time.time() * 1e6 + _FUTURE_US
