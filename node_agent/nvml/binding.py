"""One way to call NVIDIA's binding, whatever it raises.

Traps that end here: `NVMLLibraryMismatchError` (the driver lacks a symbol) is not an `NVMLError`;
a list without rows can raise an `NVMLError` whose value is 0; a missing library shows up as an
error code of the first call; a name that is no UTF-8, or a count of rows that cannot be, ends in
whatever Python raises while it reads that.
"""

from __future__ import annotations

import ctypes
import logging
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, TypeAlias

import pynvml

from node_agent.nvml.readings import NvmlGoneError

log = logging.getLogger(__name__)

#: A handle or an answer of the binding, which is published without types.
Untyped: TypeAlias = Any

#: Codes after which nothing at all can be read until NVML is initialised again.
_GONE = {
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
}
#: What is no failure: the board does not have it, the driver is older, nothing happened.
_EXPECTED = {
    pynvml.NVML_SUCCESS,
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NOT_FOUND,
    pynvml.NVML_ERROR_TIMEOUT,
}
#: No GPU has more processes or keeps more samples than this: such a count is a fault of the driver.
MOST_ROWS = 8192


class CallFailedError(Exception):
    """A call answered `code`; never leaves `node_agent.nvml`."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Binding:
    """Calls into `pynvml`; `errors` counts the failed ones by (call, code)."""

    def __init__(self) -> None:
        self.errors: Counter[tuple[str, int]] = Counter()
        #: Rows that the driver has room for, by call and address of the GPU's handle. To ask for
        #: them each time doubles the driver's work.
        self._rooms: dict[tuple[str, int], int] = {}

    def call(self, name: str, *arguments: object, refusals: Collection[int] = ()) -> Untyped:
        """Call the binding's function `name`; `refusals` are codes that are no failure of it.

        Raises:
            CallFailedError: whatever went wrong, as NVML's code.
        """
        return self._checked(name, lambda: getattr(pynvml, name)(*arguments), refusals)

    def _checked(
        self, name: str, call: Callable[[], Untyped], refusals: Collection[int] = ()
    ) -> Untyped:
        try:
            return call()
        except pynvml.NVMLError as error:
            code = int(error.value)
        except pynvml.NVMLLibraryMismatchError:
            code = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
        except Exception as error:
            log.warning("nvml answer not understood call=%s error=%r", name, error)
            code = pynvml.NVML_ERROR_UNKNOWN
        if code not in _EXPECTED and code not in refusals:
            self.errors[name, code] += 1
        raise CallFailedError(code)

    def ask(self, name: str, *arguments: object) -> Untyped:
        """Call the binding; what fails is absent (None).

        Raises:
            NvmlGoneError: the code says so, and NVML as a whole confirms it.
        """
        try:
            return self.call(name, *arguments)
        except CallFailedError as failed:
            self.check_gone(failed.code)
            return None

    def rows(self, name: str, handle: Untyped, row: Untyped) -> Untyped:
        """Call a list of processes by the binding's function pointer; return rows of type `row`.

        The binding's own call allocates and unpacks as many rows as the driver says there are,
        and a kubelet lets its nodes promise memory that they do not have.

        Raises:
            CallFailedError: as `call`; too many rows are an unknown error.
        """
        return self._checked(name, lambda: _list(name, handle, row))

    def utilisation(self, handle: Untyped, since_us: int) -> Untyped:
        """Return the processes' utilisation since `since_us`; bounded as `rows`.

        Raises:
            CallFailedError: as `rows`; no rows are a code of their own, NVML_SUCCESS or another.
        """
        return self._checked(_UTILISATION, lambda: self._utilisation(handle, since_us))

    def samples(self, handle: Untyped, since_us: int) -> tuple[int, Untyped]:
        """Return the type of value and the samples of utilisation since `since_us`, as `rows`.

        Raises:
            CallFailedError: as `rows`.
        """
        found: tuple[int, Untyped] = self._checked(
            _SAMPLES, lambda: self._samples(handle, since_us)
        )
        return found

    def quietly(self, name: str, *arguments: object) -> None:
        """Call the binding where a failure changes nothing for us: giving things back."""
        try:
            self.call(name, *arguments)
        except CallFailedError as failed:
            log.debug("nvml call=%s code=%d", name, failed.code)

    def _utilisation(self, handle: Untyped, since_us: int) -> Untyped:
        function, since = pynvml._nvmlGetFunctionPointer(_UTILISATION), ctypes.c_ulonglong(since_us)

        def call(count: Untyped, rows: Untyped) -> int:
            return int(function(handle, rows, count, since))

        return self._filled(_UTILISATION, handle, call, pynvml.c_nvmlProcessUtilizationSample_t)

    def _samples(self, handle: Untyped, since_us: int) -> tuple[int, Untyped]:
        function, since = pynvml._nvmlGetFunctionPointer(_SAMPLES), ctypes.c_ulonglong(since_us)
        kind, value_type = pynvml.NVML_GPU_UTILIZATION_SAMPLES, ctypes.c_uint(0)

        def call(count: Untyped, rows: Untyped) -> int:
            return int(function(handle, kind, since, ctypes.byref(value_type), count, rows))

        found = self._filled(_SAMPLES, handle, call, pynvml.c_nvmlSample_t)
        return value_type.value, found

    def _filled(
        self, name: str, handle: Untyped, call: Callable[[Untyped, Untyped], int], row: Untyped
    ) -> Untyped:
        """Return the rows of a call, in as much room as sufficed last time.

        Raises:
            pynvml.NVMLError: the call's answer; NVML_SUCCESS where a sizing call has no rows.
        """
        key = name, address(handle)
        known = self._rooms.pop(key, None)
        room = known or _room(call)
        try:
            found = _filled(call, row, room)
        except pynvml.NVMLError as error:
            if known and error.value == pynvml.NVML_ERROR_INSUFFICIENT_SIZE:
                return self._filled(name, handle, call, row)
            if error.value == pynvml.NVML_ERROR_NOT_FOUND:
                self._rooms[key] = room
            raise
        self._rooms[key] = room
        return found

    def check_gone(self, code: int) -> None:
        """Raise NvmlGoneError if `code` means it and NVML's simplest call agrees.

        One call that answers "uninitialised" while others work is that call's own trouble.
        """
        if code not in _GONE:
            return
        try:
            self.call("nvmlDeviceGetCount")
        except CallFailedError as failed:
            if failed.code in _GONE:
                raise NvmlGoneError(f"NVML is gone: {describe(failed.code)}") from failed


_UTILISATION = "nvmlDeviceGetProcessUtilization"
_SAMPLES = "nvmlDeviceGetSamples"


def _list(name: str, handle: Untyped, row: Untyped) -> Untyped:
    function = pynvml._nvmlGetFunctionPointer(name)

    def call(count: Untyped, rows: Untyped) -> int:
        return int(function(handle, count, rows))

    sized, count = _sized(call)
    if sized == pynvml.NVML_SUCCESS:
        return ()
    return _filled(call, row, 2 * count + 5)  # more than there are: some may start meanwhile


def _sized(call: Callable[[Untyped, Untyped], int]) -> tuple[int, int]:
    """Return the answer's code and the count of rows, which `call(count, None)` asks for."""
    count = ctypes.c_uint(0)
    code = call(ctypes.byref(count), None)
    if code not in (pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_INSUFFICIENT_SIZE):
        raise pynvml.NVMLError(code)
    if count.value > MOST_ROWS:
        raise ValueError(f"{count.value} rows")
    return code, count.value


def _room(call: Callable[[Untyped, Untyped], int]) -> int:
    """Return for how many rows to make room: twice what the driver says, and some."""
    sized, count = _sized(call)
    if sized == pynvml.NVML_SUCCESS and not count:
        raise pynvml.NVMLError(sized)
    return 2 * count + 5


def _filled(call: Callable[[Untyped, Untyped], int], row: Untyped, room: int) -> Untyped:
    """Return the rows that `call(count, rows)` fills in."""
    found, count = (row * room)(), ctypes.c_uint(room)
    code = call(ctypes.byref(count), found)
    if code != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(code)
    if count.value > room:
        raise ValueError(f"{count.value} rows where {room} have room")
    return found[: count.value]


def address(handle: Untyped) -> int:
    """Return the address in a handle: two handles are of one GPU when it is the same."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def describe(code: int) -> str:
    """Return NVML's words for `code`, without asking the library (that could fail as well)."""
    return str(pynvml.NVMLError._errcode_to_string.get(code, f"NVML error {code}"))
