"""Compares the agent with known work on this machine's GPU: `python -m node_agent.check`.

Runs the agent's readings, fits and rules on the real driver against processes with a known course,
for about six minutes, and writes `agent-check.json` and `agent-check.md` (`--out FOLDER`). It needs
a GPU that no other process uses, and no cluster: the check makes up the pod of each process. With
`--limits`, whether the frameworks that are installed keep to a limit of memory, in place of that
(`limits-check.json` and `.md`); with `--profile`, whether `tandem.progress.profile` is right about
loops of PyTorch (`profile-check.json` and `.md`). Exit code: 0 where all held, 1 where something
did not.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from node_agent import check_limits, check_profile
from node_agent.app import stamp
from node_agent.check_load import Course, CudaLoad
from node_agent.check_report import Report
from node_agent.config import AgentSettings
from node_agent.monitor import Monitor
from node_agent.outofmemory import unix_time
from node_agent.pods import ContainerEnd, PodInfo
from node_agent.stub import FakeProc
from tandem.contracts.resources import GPU, GPUNodeStatus, PodUse

GIB = 1 << 30
MEMORY_BAR, ACTIVITY_BAR = 0.05, 0.10
#: A GPU is full, and the process that fills it has failed, within this time.
FILLED_S = 120.0
#: The check measures for this long what the readings alone take of a core.
_READ_S = 3.0
#: Period, share and level of the scripted active phases.
ACTIVITIES = [(0.5, 0.5, 1.0), (0.7, 0.3, 0.6), (1.3, 0.5, 0.6), (5.0, 0.7, 0.6)]


class Load(Protocol):
    """Runs courses on the first GPU."""

    def start(self, course: Course) -> int: ...  # noqa: D102 - see CudaLoad
    def stop(self, pid: int) -> int: ...  # noqa: D102
    def failed(self, pid: int) -> int | None: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Clock:
    """Where time comes from; tests move it by hand."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    stamp: Callable[[], str] = stamp


def uid(pid: int) -> str:
    """Return the UID of the pod that is made up for a process."""
    return f"00000000-0000-0000-0000-{pid:012d}"


class Pods(dict[str, PodInfo]):
    """The made-up pods by UID."""

    def start(self) -> None: ...  # noqa: D102 - nothing to start
    def stop(self) -> None: ...  # noqa: D102

    def find(self, uid: str) -> PodInfo | None:
        """Return the pod."""
        return self.get(uid)

    def at(self, _address: str) -> str | None:
        """Return None: these pods have no addresses."""
        return None

    def look_for(self, uids: Iterable[str]) -> None: ...  # noqa: D102 - all are known


class Check:
    """The monitor on the first GPU, with made-up pods for the processes that it starts."""

    def __init__(self, load: Load, settings: AgentSettings, course_s: float, clock: Clock) -> None:
        self.report = Report()
        self.found = self.report.found
        self.facts = self.report.facts
        self.pods = Pods()
        self._load = load
        self._clock = clock
        self._course_s = course_s
        self._settings = settings
        self._proc = FakeProc(settings.proc)
        self.monitor = Monitor(settings, pods=self.pods)

    def watch(self, seconds: float, until: Callable[[], bool] = lambda: False) -> GPUNodeStatus:
        """Read as the agent does, for `seconds` or until something holds."""
        clock, randomness = self._clock, np.random.default_rng(1)
        end = clock.now() + seconds
        while clock.now() < end and not until():
            began = clock.now()
            self.monitor.tick(began, clock.stamp())
            pause = self._settings.memory_interval_s * randomness.uniform(0.8, 1.2)
            clock.sleep(max(0.0, pause - (clock.now() - began)))
        return self.monitor.status(clock.now(), clock.stamp())

    @contextmanager
    def running(self, course: Course, name: str, predicted: int | None = None) -> Iterator[int]:
        """Run a course as a pod. The driver may name the process by another PID than ours."""
        before = self._pids()
        pid = self._load.start(course)
        seen = self._pids() - before or {pid}
        for number in seen:
            self._proc.add(number, uid(pid))
        self.pods[uid(pid)] = PodInfo("check", name, predicted_memory=predicted)
        try:
            yield pid
        finally:
            self._load.stop(pid)
            for number in seen:
                self._proc.remove(number)

    def _pids(self) -> set[int]:
        board = next(iter(self.monitor.boards.values()), None)
        if board is None or board.gpu is None:
            return set()
        return {process.pid for process in board.gpu.processes() or ()}

    # --- what is looked at --------------------------------------------------------------------

    def readings(self) -> None:
        """Look at what this board tells, at its samples, and at what the calls cost."""
        cpu_s = time.process_time()
        status = self.watch(_READ_S)
        self.facts["cpu_percent"] = 100 * (time.process_time() - cpu_s) / _READ_S
        self.found("a GPU is found", len(status.gpus), "1 or more", bool(status.gpus))
        if not status.gpus:
            return
        gpu = status.gpus[0]
        reported = {k for k, v in gpu.model_dump().items() if v is not None}
        self.facts["gpu"], self.facts["driver"] = gpu.wire(), status.driver_version
        self.facts["absent"] = sorted(set(GPU.model_fields) - reported)
        for field in ("memory_used_bytes", "memory_reserved_bytes", "utilisation_percent"):
            self.found(f"{field} is reported", field in reported, "reported", field in reported)
        self.found("the GPU is well", gpu.health_reason or "well", "well", not gpu.health_reason)
        real = next(iter(self.monitor.boards.values())).gpu
        assert real is not None
        costs = {}
        for call in (
            real.memory,
            real.processes,
            real.process_utilisation,
            real.load,
            real.sensors,
        ):
            costs[call.__name__] = round(1e6 * statistics.median(_timed(call) for _ in range(50)))
        self.facts["call_us"] = costs
        self._clock.sleep(2)
        samples = getattr(real.load(), "samples", ())
        if len(samples) > 2:
            gaps = np.diff([sample.time_s for sample in samples])
            self.facts["sample_ms"] = {
                "median": 1e3 * float(np.median(gaps)),
                "std": 1e3 * float(gaps.std()),
            }

    def memory_levels(self) -> None:
        """Compare the fit of memory with the script, next to a neighbour."""
        course = Course(base=4 * GIB, extra=2 * GIB, peak_period_s=4.0, peak_share=0.3)
        other = Course(base=3 * GIB, extra=1 * GIB, peak_period_s=6.0, peak_share=0.6)
        with self.running(course, "one"), self.running(other, "two"):
            uses = {use.pod: use for use in self.watch(self._course_s).gpus[0].pods if use.uid}
        for name, script in (("one", course), ("two", other)):
            use = uses.get(name, PodUse())
            # What the context takes for itself is no part of the script, but of the base.
            over = (use.memory_base_bytes or 0) - script.base
            self.found(
                f"{name}: base over the script's, MiB", over >> 20, "0 to 1024", 0 <= over <= GIB
            )
            self.close_to(
                f"{name}: peak extra", use.memory_peak_extra_bytes, script.extra, MEMORY_BAR
            )
            self.close_to(
                f"{name}: peak probability", use.peak_probability, script.peak_share, MEMORY_BAR
            )

    def activity(self) -> None:
        """Compare active and idle phases with the script, for a pod that is alone."""
        for period_s, share, level in ACTIVITIES:
            course = Course(base=GIB, active_period_s=period_s, active_share=share, level=level)
            with self.running(course, "alone") as pid:
                uses = self.watch(self._course_s).gpus[0].pods
            use = next((use for use in uses if use.uid == uid(pid)), PodUse())
            what = f"active to idle at {period_s} s, {share:.0%} active, level {level:.0%}"
            ratio = (
                use.active_seconds and use.idle_seconds and use.active_seconds / use.idle_seconds
            )
            self.close_to(
                f"{what} ({use.activity_source})", ratio, share / (1 - share), ACTIVITY_BAR
            )

    def guard(self) -> None:
        """Fill the GPU: the pod that outgrew its prediction is asked to go, and blamed."""
        asked: set[str] = set()
        innocent, greedy = Course(base=4 * GIB), Course(base=4 * GIB, fill=True)
        with (
            self.running(innocent, "innocent", 8 * GIB),
            self.running(greedy, "greedy", 8 * GIB) as pid,
        ):

            def over() -> bool:
                asked.update(request.pod for request in self.monitor.requests.values())
                return self._load.failed(pid) is not None

            self.watch(FILLED_S, over)
            ended_s = float(int(unix_time(self._clock.stamp())))
            end = ContainerEnd("main", self._load.failed(pid) or 0, ended_s)
            self.pods[uid(pid)] = replace(self.pods[uid(pid)], ends=(end,))
            failures = self.watch(3).out_of_memory
        self.found("who is asked to go", sorted(asked), "greedy", asked == {"greedy"})
        blamed = [one.blamed.pod for one in failures if one.blamed]
        self.found("failure put down to", blamed, "greedy", blamed == ["greedy"])

    def close_to(self, what: str, seen: float | None, script: float, bar: float) -> None:
        """Note how far a figure is from the script."""
        error = None if not seen else abs(seen / script - 1)
        text = "absent" if error is None else f"{seen:.4g}, off by {error:.1%}"
        self.found(what, text, f"{script:.4g} within {bar:.0%}", error is not None and error <= bar)


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def run(load: Load, folder: Path, course_s: float, clock: Clock = Clock()) -> bool:
    """Check everything, write the report into `folder`, and return whether all held."""
    with tempfile.TemporaryDirectory() as proc:
        settings = AgentSettings.model_validate(
            {"node": "check", "proc": proc, "guard": {"mode": "evict"}}
        )
        check = Check(load, settings, course_s, clock)
        try:
            check.readings()
            if check.monitor.boards:
                check.memory_levels()
                check.activity()
                check.guard()
        finally:
            load.close()
            check.monitor.close()
    errors = {f"{call} {code}": n for (call, code), n in check.monitor.nvml.binding.errors.items()}
    check.facts["nvml_errors"] = errors
    title = "The node agent on a real driver"
    return check.report.write(folder, "agent-check", title, "python -m node_agent.check")


def main() -> int:
    """Run on this machine's GPU."""
    parser = argparse.ArgumentParser(prog="python -m node_agent.check", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("agent-check"), help="folder of the report"
    )
    parser.add_argument("--seconds", type=float, default=61.0, help="how long each course runs")
    parser.add_argument(
        "--limits", action="store_true", help="try the frameworks' limits of memory, nothing else"
    )
    parser.add_argument(
        "--profile", action="store_true", help="try profiles of training loops, nothing else"
    )
    parser.add_argument(
        "--python", default=sys.executable, help="the interpreter that has the frameworks"
    )
    options = parser.parse_args()
    if options.limits:
        return 0 if check_limits.run(options.out, options.python) else 1
    if options.profile:
        return 0 if check_profile.run(options.out, options.python) else 1
    return 0 if run(CudaLoad(), options.out, options.seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
