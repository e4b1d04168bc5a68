"""MIG: the slices that a GPU has. Nothing here makes or destroys one."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pynvml

from node_agent.nvml.binding import Binding, CallFailedError, Untyped
from node_agent.nvml.readings import MigSlice

#: NVIDIA's boards have at most seven slices; more are a fault of the driver.
_MOST_SLICES = 16
#: A slice is this part of its board's memory, or a multiple of it.
_MEMORY_PARTS = 8
_NAMED = re.compile(r"\bMIG ([0-9]+(?:c\.[0-9]+)?g\.[0-9]+gb\S*)$")
#: Of a board without MIG, and of a number that no slice has.
_NO_MIG = {pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}
_NO_SLICE = {pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT}


@dataclass(frozen=True, slots=True)
class FoundSlice:
    """A slice as a session finds it: its handle, and what a GPU says of itself."""

    handle: Untyped
    uuid: str
    model: str
    memory_bytes: int
    slice: MigSlice


def slice_uuids(binding: Binding, board: Untyped) -> tuple[str, ...] | None:
    """Return the UUIDs of a board's slices; none without MIG, None where they cannot be read."""
    try:
        return tuple(
            str(binding.call("nvmlDeviceGetUUID", handle)) for _, handle in _handles(binding, board)
        )
    except CallFailedError as failed:
        binding.check_gone(failed.code)
        return None


def find_slices(
    binding: Binding, board: Untyped, uuid: str, model: str, memory_bytes: int | None
) -> list[FoundSlice]:
    """Return the slices of the board `uuid`, a `model` with `memory_bytes`; none without MIG.

    Raises:
        CallFailedError: one of them could not be read.
    """
    found = []
    handles = list(_handles(binding, board))
    instances = {
        number: int(binding.call("nvmlDeviceGetGpuInstanceId", handle))
        for number, handle in handles
    }
    in_instance = Counter(instances.values())
    for number, handle in handles:
        name = str(binding.call("nvmlDeviceGetName", handle))
        total = int(binding.call("nvmlDeviceGetMemoryInfo", handle).total)
        named = _NAMED.search(name)
        if named is None:
            profile = _profile(
                binding.call("nvmlDeviceGetAttributes_v2", handle), memory_bytes or total or 1
            )
            name = f"{model} MIG {profile}"
        else:
            profile = named[1]
        found.append(
            FoundSlice(
                handle,
                str(binding.call("nvmlDeviceGetUUID", handle)),
                name,
                total,
                MigSlice(
                    profile, uuid, number, instances[number], in_instance[instances[number]] > 1
                ),
            )
        )
    return found


def _handles(binding: Binding, board: Untyped) -> Iterator[tuple[int, Untyped]]:
    """Yield number and handle of each slice; a number may be that of no slice."""
    try:
        if binding.call("nvmlDeviceGetMigMode", board)[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
            return
        most = int(binding.call("nvmlDeviceGetMaxMigDeviceCount", board))
    except CallFailedError as failed:
        if failed.code in _NO_MIG:
            return
        raise
    for number in range(min(most, _MOST_SLICES)):
        try:
            yield number, binding.call("nvmlDeviceGetMigDeviceHandleByIndex", board, number)
        except CallFailedError as failed:
            if failed.code not in _NO_SLICE:
                raise


def _profile(attributes: Untyped, board_bytes: int) -> str:
    """Return the name of a slice's profile, as drivers write it that put it into the name.

    Its memory is rounded up to a whole eighth of the board's, and that to whole GiB.
    """
    compute, of = int(attributes.computeInstanceSliceCount), int(attributes.gpuInstanceSliceCount)
    part = (int(attributes.memorySizeMB) << 20) / board_bytes
    eighths = math.ceil(part * _MEMORY_PARTS) / _MEMORY_PARTS
    size = round(eighths * math.ceil(board_bytes / 2**30))
    own = f"{of}g.{size}gb"
    return own if compute == of else f"{compute}c.{own}"
