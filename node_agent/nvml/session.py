"""A session with NVML: its GPUs, and the errors that the driver announces."""

from __future__ import annotations

import re

import pynvml

from node_agent.nvml.binding import Binding, CallFailedError, Untyped, address, describe
from node_agent.nvml.gpu import Gpu
from node_agent.nvml.readings import NvmlGoneError
from tandem.contracts.values import GPU_ID, MAX_GPUS

#: More Xids than this in one poll are left for the next one.
_MAX_XIDS_PER_POLL = 64
_UUID = re.compile(GPU_ID)
_LONGEST_UUID = 96  # characters, as in the definition of GPUNode


class Nvml:
    """A session, opened and closed as often as need be.

    `unreadable` says of each index that could not be identified what it answered.
    """

    def __init__(self) -> None:
        self.binding = Binding()
        self.driver_version: str | None = None
        self.unreadable: dict[int, str] = {}
        self._open = False
        self._events: Untyped = None
        self._gpus: list[Gpu] = []

    def open(self) -> list[Gpu]:
        """Start a session and return its GPUs.

        Raises:
            NvmlGoneError: the library or the driver is not there.
        """
        self.close()
        try:
            self.binding.call("nvmlInit")
            self._open = True
            count = self.binding.call("nvmlDeviceGetCount")
        except CallFailedError as failed:
            self.close()
            raise NvmlGoneError(f"NVML cannot be initialised: {describe(failed.code)}") from failed
        self.driver_version = self.binding.ask("nvmlSystemGetDriverVersion")
        self._events = self.binding.ask("nvmlEventSetCreate")
        self.unreadable = {}
        if count > MAX_GPUS:
            self.unreadable[MAX_GPUS] = f"NVML counts {count} GPUs; {MAX_GPUS} are read"
        for index in range(min(count, MAX_GPUS)):
            gpu = self._identify(index)
            if gpu is not None:
                self._gpus.append(gpu)
        return list(self._gpus)

    def close(self) -> None:
        """End the session; safe to call at any time."""
        for gpu in self._gpus:
            gpu.release()
        self._gpus = []
        if self._events is not None:
            self.binding.quietly("nvmlEventSetFree", self._events)
            self._events = None
        if self._open:
            self.binding.quietly("nvmlShutdown")
            self._open = False

    def xids(self) -> list[tuple[str, int]]:
        """Return the (GPU UUID, Xid) that came since the last call; it does not wait for any.

        Raises:
            NvmlGoneError: the session has ended.
        """
        found: list[tuple[str, int]] = []
        if self._events is None:
            return found
        by_address = {gpu.address: gpu.uuid for gpu in self._gpus}
        while len(found) < _MAX_XIDS_PER_POLL:
            event = self.binding.ask("nvmlEventSetWait_v2", self._events, 0)
            if event is None:
                break
            uuid = by_address.get(address(event.device))
            if uuid is not None and event.eventType == pynvml.nvmlEventTypeXidCriticalError:
                found.append((uuid, int(event.eventData)))
        return found

    def _identify(self, index: int) -> Gpu | None:
        """Return the GPU at `index`, or None where it cannot be told; `unreadable` says why."""
        call = self.binding.call
        total: int | None = None
        numa_node = None
        try:
            handle = call("nvmlDeviceGetHandleByIndex", index)
            uuid = str(call("nvmlDeviceGetUUID", handle))
            model = str(call("nvmlDeviceGetName", handle))
            try:
                total = int(call("nvmlDeviceGetMemoryInfo", handle).total)
            except CallFailedError as failed:
                if failed.code != pynvml.NVML_ERROR_NOT_SUPPORTED:
                    raise
                numa_node = self.binding.ask("nvmlDeviceGetNumaNodeId", handle)
        except CallFailedError as failed:
            self.binding.check_gone(failed.code)
            self.unreadable[index] = describe(failed.code)
            return None
        trouble = self._identity_trouble(handle, uuid, model)
        if trouble:
            self.unreadable[index] = trouble
            return None
        if self._events is not None:
            events = pynvml.nvmlEventTypeXidCriticalError
            self.binding.quietly("nvmlDeviceRegisterEvents", handle, events, self._events)
        return Gpu(self.binding, handle, index, uuid, model, total, numa_node)

    def _identity_trouble(self, handle: Untyped, uuid: str, model: str) -> str:
        """Return why this cannot be the name and UUID of the GPU of `handle`, or ""."""
        if not _UUID.fullmatch(uuid) or len(uuid) > _LONGEST_UUID:
            return f"its UUID is {uuid[:_LONGEST_UUID]!r}"
        if not model.strip():
            return "it has no name"
        try:
            owner = self.binding.call("nvmlDeviceGetHandleByUUID", uuid)
        except CallFailedError:
            owner = None
        if owner is not None and address(owner) != address(handle):
            return f"another GPU has its UUID, {uuid}"
        if any(gpu.uuid == uuid for gpu in self._gpus):
            return f"a GPU before it has its UUID, {uuid}"
        return ""
