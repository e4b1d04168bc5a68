"""What a node agent costs: CPU at 8 GPUs and 32 processes, and memory over 100,000 samples.

`python -m benchmarks.agent [--seconds 60] [--samples 100000] [--json FILE]`

The CPU is that of the real process on simulated GPUs at its default settings, reporting to a URL;
NVML's own work inside a real driver comes on top of it. Memory is that of the readings alone, run
as fast as they go.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from node_agent.stub import FakeProc, StubGpu, StubProcess, StubState, Wave, build, environment

GPUS, PROCESSES = 8, 32
GIB = 1 << 30
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


def resident_mib(pid: int) -> float:
    """Return the memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


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


def measure_memory(samples: int) -> dict[str, float]:
    """Return MiB after a tenth of `samples` readings and after all, each with its report.

    Runs in a process that sees the simulated GPUs; time is told to the monitor, not waited for.
    """
    from node_agent.config import AgentSettings
    from node_agent.monitor import Monitor

    settings = AgentSettings(node="bench", proc=Path(os.environ["TANDEM_BENCH_PROC"]))
    monitor = Monitor(settings)
    first = 0.0
    for i in range(samples):
        now = i * settings.memory_interval_s
        monitor.tick(now, "2026-01-01T00:00:00Z")
        if i % 40 == 0:
            monitor.status(now, "2026-01-01T00:00:00Z").wire()
        if i == samples // 10:
            first = resident_mib(os.getpid())
    return {"samples": samples, "early_mib": first, "late_mib": resident_mib(os.getpid())}


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
        figures = measure_cpu(library, folder, options.seconds)
        _, state = make_node(folder)
        seen = os.environ | environment(library, state) | {"TANDEM_BENCH_PROC": f"{folder}/proc"}
        command = [sys.executable, "-m", "benchmarks.agent", "--memory-only"]
        command += ["--samples", str(options.samples)]
        done = subprocess.run(command, env=seen, stdout=subprocess.PIPE, text=True, check=True)
        figures |= json.loads(done.stdout)
    print(f"node agent, {GPUS} GPUs, {PROCESSES} processes, default settings")
    print(f"  CPU               {figures['cpu_percent']:8.2f} % of a core (bar 2, stretch 0.5)")
    print(f"  memory            {figures['resident_mib']:8.1f} MiB")
    print(f"  after {figures['samples'] // 10:>7} samples {figures['early_mib']:6.1f} MiB")
    print(f"  after {figures['samples']:>7} samples {figures['late_mib']:6.1f} MiB")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
