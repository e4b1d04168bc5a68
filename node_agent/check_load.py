"""Processes with a scripted course on a real GPU: by the driver's own library, without a toolkit.

`python -m node_agent.check_load COURSE` (JSON) runs until a command ends it: it holds memory, with
peaks at a fixed period, and runs a kernel that waits for the GPU's clock, in phases.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

#: How long a process may take to start and to get its first memory.
READY_S = 60.0
#: Within an active phase, kernels run for a share of each slice.
SLICE_S = 0.005
#: One thread that reads the GPU's clock until so many nanoseconds have passed.
KERNEL = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry wait(.param .u64 nanoseconds) {
  .reg .u64 %rd<5>;
  .reg .pred %p;
  ld.param.u64 %rd1, [nanoseconds];
  mov.u64 %rd2, %globaltimer;
AGAIN:
  mov.u64 %rd3, %globaltimer;
  sub.u64 %rd4, %rd3, %rd2;
  setp.lt.u64 %p, %rd4, %rd1;
  @%p bra AGAIN;
  ret;
}
"""


@dataclass(frozen=True, slots=True)
class Course:
    """The load of a process: memory in bytes, periods in seconds, shares from 0 to 1.

    With `fill` it takes all the memory that is left, a part at a time, and fails when there is no
    more.
    """

    base: int
    extra: int = 0
    peak_period_s: float = 4.0
    peak_share: float = 0.0
    active_period_s: float = 1.0
    active_share: float = 0.0
    level: float = 1.0
    fill: bool = False


class CudaLoad:
    """Runs courses as processes of their own on the first GPU."""

    def __init__(self) -> None:
        self._running: dict[int, subprocess.Popen[str]] = {}

    def start(self, course: Course) -> int:
        """Start a course; return its PID once it holds its base memory."""
        command = [sys.executable, "-m", "node_agent.check_load", json.dumps(asdict(course))]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._running[process.pid] = process
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"no load on the GPU: exit code {process.wait(READY_S)}")
        return process.pid

    def stop(self, pid: int) -> int:
        """End a course, or wait for the end of one that fails; return its exit code."""
        process = self._running.pop(pid)
        process.terminate()
        return process.wait(READY_S)

    def failed(self, pid: int) -> int | None:
        """Return the exit code of a course that has ended by itself."""
        return self._running[pid].poll()

    def close(self) -> None:
        """End all courses."""
        for pid in list(self._running):
            self.stop(pid)


class _Driver:
    """The few calls of libcuda that are needed."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        context, module, device = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
        self.call("cuModuleLoadData", ctypes.byref(module), KERNEL)
        self._wait = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(self._wait), module, b"wait")

    def call(self, name: str, *arguments: object) -> None:
        """Call the driver; raise MemoryError where it has no more memory."""
        code = getattr(self._cuda, name)(*arguments)
        if code == 2:
            raise MemoryError(name)
        if code:
            raise RuntimeError(f"{name} answered {code}")

    def allocate(self, size: int) -> ctypes.c_uint64:
        """Return the address of so many bytes of the GPU's memory."""
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address

    def free(self, address: ctypes.c_uint64) -> None:
        """Give memory back."""
        self.call("cuMemFree_v2", address)

    def busy(self, seconds: float) -> None:
        """Keep the GPU busy for `seconds`, and wait for it."""
        nanoseconds = ctypes.c_uint64(int(seconds * 1e9))
        values = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(nanoseconds), ctypes.c_void_p))
        self.call("cuLaunchKernel", self._wait, 1, 1, 1, 1, 1, 1, 0, None, values, None)
        self.call("cuCtxSynchronize")


def run(course: Course) -> None:
    """Do what the course says, for good."""
    driver = _Driver()
    # The context takes memory of its own, which the agent's readings count: no part of the base.
    held = [driver.allocate(course.base)]
    print("ready", flush=True)
    while course.fill:
        held.append(driver.allocate(256 << 20))
        time.sleep(0.005)
    began, peak = time.monotonic(), None
    while True:
        at = time.monotonic() - began
        wanted = at % course.peak_period_s < course.peak_share * course.peak_period_s
        if wanted and peak is None and course.extra:
            peak = driver.allocate(course.extra)
        elif not wanted and peak is not None:
            driver.free(peak)
            peak = None
        left_s = course.active_share * course.active_period_s - at % course.active_period_s
        busy_s = min(SLICE_S * course.level, max(left_s, 0.0))
        if busy_s > 0:
            driver.busy(busy_s)
        rest_s = SLICE_S - (time.monotonic() - began - at)
        if busy_s < SLICE_S * course.level or course.level < 1:
            time.sleep(max(rest_s, 0.0))


if __name__ == "__main__":
    run(Course(**json.loads(sys.argv[1])))
