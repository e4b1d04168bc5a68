"""What a node agent costs: CPU at 8 GPUs and 32 processes, and memory over 100,000 samples.

`python -m benchmarks.agent [--seconds 60] [--samples 100000] [--json FILE]`

The CPU is that of the real process on simulated GPUs at its default settings, reporting to a URL;
NVML's own work inside a real driver comes on top of it. Memory is that of the readings, fits and
reports alone, run as fast as they go with a clock of their own: 100,000 readings are 2.8 hours of
a node, and take a minute or two.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from controlplane.usage import resident_mib
from node_agent.stub import (
    LIBRARY,
    FakeProc,
    StubGpu,
    StubProcess,
    StubState,
    Wave,
    build,
    environment,
)

GPUS, PROCESSES = 8, 32
GIB = 1 << 30
#: When the simulated GPUs' time begins, Unix time in seconds.
BEGIN_S = 1_700_000_000
#: Start-up is not what a node pays for all day; counted from the first report.
SETTLE_S = 5.0
FIRST_REPORT_S = 120.0
TICK_S = os.sysconf("SC_CLK_TCK")


class _Sink(BaseHTTPRequestHandler):
    reported = threading.Event()

    def do_PUT(self) -> None:
        """Take a report and forget it."""
        self.reported.set()
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Say nothing."""


def make_node(folder: Path) -> tuple[FakeProc, Path]:
    """Write 8 GPUs with four pods of one process each, all with peaks and idle phases."""
    state, proc = StubState(), FakeProc(folder / "proc")
    state.gpus = [StubGpu(f"GPU-{i}", gpm=0.8 if i % 2 else None) for i in range(GPUS)]
    for i in range(PROCESSES):
        peaks = Wave(6_000_000 + i * 100_000, 2_000_000, i * 77_777)
        active = Wave(1_000_000 + i * 10_000, 600_000, i * 33_333)
        course = StubProcess(
            i % GPUS, 1000 + i, (4 + i % 4) * GIB, 2 * GIB, peaks, sm=20, mem=5, active=active
        )
        state.processes.append(course)
        proc.add(course.pid, f"00000000-1111-2222-3333-{i:012x}")
    state.write(folder / "gpus")
    return proc, folder / "gpus"


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK_S


def measure_cpu(library: Path, folder: Path, seconds: float) -> dict[str, float]:
    """Return percent of a core and MiB of the agent as a process."""
    proc, state = make_node(folder)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Sink) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        command = [sys.executable, "-m", "node_agent", "--node", "bench", "--report-url", url]
        command += ["--proc", str(proc.root), "--listen", "127.0.0.1:0", "--log-level", "WARNING"]
        agent = subprocess.Popen(command, env=os.environ | environment(library, state))
        try:
            if not _Sink.reported.wait(FIRST_REPORT_S):
                raise SystemExit("the agent has not reported")
            time.sleep(SETTLE_S)
            used, began = cpu_seconds(agent.pid), time.monotonic()
            time.sleep(seconds)
            used, wall = cpu_seconds(agent.pid) - used, time.monotonic() - began
            return {"cpu_percent": 100 * used / wall, "resident_mib": resident_mib(agent.pid)}
        finally:
            agent.terminate()
            agent.wait()
            server.shutdown()


def measure_memory(samples: int) -> dict[str, Any]:
    """Return MiB after each tenth of `samples` readings, and the CPU that a reading takes.

    Runs in a process that sees the simulated GPUs. Their clock and the monitor's are set, and the
    process does not wait: each reading finds what it would find a tenth of a second after the last
    one.
    """
    from node_agent.app import INTERVAL_JITTER
    from node_agent.config import AgentSettings
    from node_agent.monitor import Monitor

    tell = ctypes.CDLL(LIBRARY).tandemStubClock
    tell.argtypes = [ctypes.c_uint64]
    settings = AgentSettings(node="bench", proc=Path(os.environ["TANDEM_BENCH_PROC"]))
    monitor, jitter = Monitor(settings), random.Random(0)
    now = looked = 0.0
    mib, used = [], time.process_time()
    for i in range(1, samples + 1):
        tell(round((BEGIN_S + now) * 1e6))
        monitor.tick(now, "2026-01-01T00:00:00Z")
        if now - looked >= settings.interval_s:
            looked = now
            monitor.status(now, "2026-01-01T00:00:00Z").wire()
        if i % (samples // 10) == 0:
            mib.append(round(resident_mib(os.getpid()), 1))
        now += settings.memory_interval_s * jitter.uniform(1 - INTERVAL_JITTER, 1 + INTERVAL_JITTER)
    used = time.process_time() - used
    return {"samples": samples, "mib": mib, "loop_percent": 100 * used / now}


def main() -> None:
    """Measure, print a table, and write the figures as JSON where that is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agent")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--memory-only", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_only:
        print(json.dumps(measure_memory(options.samples)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library = build(folder)
        figures: dict[str, Any] = measure_cpu(library, folder, options.seconds)
        _, state = make_node(folder)
        seen = os.environ | environment(library, state) | {"TANDEM_BENCH_PROC": f"{folder}/proc"}
        command = [sys.executable, "-m", "benchmarks.agent", "--memory-only"]
        command += ["--samples", str(options.samples)]
        done = subprocess.run(command, env=seen, stdout=subprocess.PIPE, text=True, check=True)
        figures |= json.loads(done.stdout)
    print(f"node agent, {GPUS} GPUs, {PROCESSES} processes, default settings")
    print(f"  CPU               {figures['cpu_percent']:8.2f} % of a core (bar 2, stretch 0.5)")
    print(f"    of it the loop  {figures['loop_percent']:8.2f} %")
    print(f"  memory            {figures['resident_mib']:8.1f} MiB")
    for tenth, mib in enumerate(figures["mib"], 1):
        print(f"  after {tenth * figures['samples'] // 10:>7} samples {mib:6.1f} MiB")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
