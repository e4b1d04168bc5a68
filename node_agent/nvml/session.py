"""A session with NVML: its GPUs, and the errors that the driver announces."""

from __future__ import annotations

import re

import pynvml

from node_agent.nvml.binding import Binding, CallFailedError, Untyped, address, describe
from node_agent.nvml.gpu import Gpu
from node_agent.nvml.readings import NvmlGoneError
from node_agent.nvml.slices import find_slices, slice_uuids
from tandem.contracts.values import GPU_ID, MAX_GPUS

#: More Xids than this in one poll are left for the next one.
_MAX_XIDS_PER_POLL = 64
_UUID = re.compile(GPU_ID)
_LONGEST_UUID = 96  # characters, as in the definition of GPUNode


class Nvml:
    """A session, opened and closed as often as need be.

    `unreadable` says of each index that could not be identified what it answered. A GPU that has
    slices of MIG is none itself: they are.
    """

    def __init__(self) -> None:
        self.binding = Binding()
        self.driver_version: str | None = None
        self.unreadable: dict[int, str] = {}
        self._open = False
        self._events: Untyped = None
        self._gpus: list[Gpu] = []
        #: Handles of the GPUs that were identified, and the UUIDs of the slices of each.
        self._boards: list[tuple[Untyped, tuple[str, ...]]] = []

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
            self._gpus += self._identify(index)
        if len(self._gpus) > MAX_GPUS:
            self.unreadable[MAX_GPUS] = f"with their slices GPUs are more than {MAX_GPUS}"
            del self._gpus[MAX_GPUS:]
        return list(self._gpus)

    def close(self) -> None:
        """End the session; safe to call at any time."""
        for gpu in self._gpus:
            gpu.release()
        self._gpus, self._boards = [], []
        if self._events is not None:
            self.binding.quietly("nvmlEventSetFree", self._events)
            self._events = None
        if self._open:
            self.binding.quietly("nvmlShutdown")
            self._open = False

    def slices_changed(self) -> bool:
        """Say whether a GPU has other slices than when the session was opened.

        Raises:
            NvmlGoneError: the session has ended.
        """
        now = [(slice_uuids(self.binding, handle), before) for handle, before in self._boards]
        return any(uuids is not None and uuids != before for uuids, before in now)

    def xids(self) -> list[tuple[str, int]]:
        """Return the (GPU UUID, Xid) that came since the last call; it does not wait for any.

        An Xid of a GPU that has slices is one of each slice, unless it names the GPU instance.

        Raises:
            NvmlGoneError: the session has ended.
        """
        found: list[tuple[str, int]] = []
        if self._events is None:
            return found
        while len(found) < _MAX_XIDS_PER_POLL:
            event = self.binding.ask("nvmlEventSetWait_v2", self._events, 0)
            if event is None:
                break
            if event.eventType == pynvml.nvmlEventTypeXidCriticalError:
                of = self._gpus_of(address(event.device), int(event.gpuInstanceId))
                found += [(gpu.uuid, int(event.eventData)) for gpu in of]
        return found

    def _gpus_of(self, board: int, instance: int) -> list[Gpu]:
        """Return the GPU at an address, or its slices: those of a GPU instance if it has some."""
        gpus = [gpu for gpu in self._gpus if gpu.address == board]
        named = [gpu for gpu in gpus if gpu.slice is not None and gpu.slice.instance == instance]
        return named or gpus

    def _identify(self, index: int) -> list[Gpu]:
        """Return the GPU at `index` or its slices, none where they cannot be read.

        `unreadable` says why.
        """
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
            slices = find_slices(self.binding, handle, uuid, model, total)
        except CallFailedError as failed:
            self.binding.check_gone(failed.code)
            self.unreadable[index] = describe(failed.code)
            return []
        trouble = self._identity_trouble(handle, uuid, model) or self._slice_trouble(
            [found.uuid for found in slices]
        )
        if trouble:
            self.unreadable[index] = trouble
            return []
        self._boards.append((handle, tuple(found.uuid for found in slices)))
        if self._events is not None:
            events = pynvml.nvmlEventTypeXidCriticalError
            self.binding.quietly("nvmlDeviceRegisterEvents", handle, events, self._events)
        if not slices:
            return [Gpu(self.binding, handle, index, uuid, model, total, numa_node)]
        return [
            Gpu(
                self.binding,
                found.handle,
                index,
                found.uuid,
                found.model,
                found.memory_bytes,
                part=(found.slice, handle),
            )
            for found in slices
        ]

    def _slice_trouble(self, uuids: list[str]) -> str:
        """Return why these cannot be the UUIDs of the slices of one GPU, or ""."""
        known = {gpu.uuid for gpu in self._gpus}
        for number, uuid in enumerate(uuids):
            if not _UUID.fullmatch(uuid) or len(uuid) > _LONGEST_UUID:
                return f"the UUID of its slice {number} is {uuid[:_LONGEST_UUID]!r}"
            if uuid in known or uuid in uuids[:number]:
                return f"two slices have the UUID {uuid}"
        return ""

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
