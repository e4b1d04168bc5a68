"""A session with NVML: its GPUs, and the errors that the driver announces."""

from __future__ import annotations

import pynvml

from node_agent.nvml.binding import Binding, CallFailedError, Untyped, address, describe
from node_agent.nvml.gpu import Gpu
from node_agent.nvml.readings import NvmlGoneError

#: More Xids than this in one poll are left for the next one.
_MAX_XIDS_PER_POLL = 64


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
        for index in range(count):
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
        try:
            handle = call("nvmlDeviceGetHandleByIndex", index)
            uuid = str(call("nvmlDeviceGetUUID", handle))
            model = str(call("nvmlDeviceGetName", handle))
            total = int(call("nvmlDeviceGetMemoryInfo", handle).total)
        except CallFailedError as failed:
            self.binding.check_gone(failed.code)
            self.unreadable[index] = describe(failed.code)
            return None
        if self._events is not None:
            events = pynvml.nvmlEventTypeXidCriticalError
            self.binding.quietly("nvmlDeviceRegisterEvents", handle, events, self._events)
        return Gpu(self.binding, handle, index, uuid, model, total)
