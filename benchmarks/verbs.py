"""Latency of filter + prioritize over HTTP, memory and cold start of the extender.

Three processes: a recorded API server, the extender exactly as it is run in a cluster, and one
serial client that speaks as kube-scheduler does (one kept connection, filter, then prioritize for
the nodes that filter returned). A request's time runs from its first byte sent to the last byte of
the answer.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from rich.progress import track

from benchmarks.recorded_api import PLANNED, node_name, waiting_pod
from tandem.cli.output import err, out, print_table

ROOT = Path(__file__).parent.parent

_TURN = 50

#: (nodes, pods per node) -> bar and stretch for p50 and p99 of filter + prioritize, ms
BARS = {(5000, 8): ((8, 20), (4, 10)), (1000, 8): ((2.5, 8), (1.5, 4))}
MEMORY_BAR_MIB, COLD_START_BAR_S, GROWTH_BAR = (600, 350), (30, 15), (1.1, 1.0)


@dataclass(frozen=True)
class Cell:
    """What was measured at one size; times in ms, `cold_start_s` from exec to ready."""

    nodes: int
    pods: int
    requests: int
    filter_p50_ms: float
    filter_p99_ms: float
    prioritize_p50_ms: float
    prioritize_p99_ms: float
    sum_p50_ms: float
    sum_p99_ms: float
    refused_p50_ms: float
    server_cpu_ms: float  # per pair of verbs, user and system; what a busy machine cannot distort
    rss_mib: float
    cold_start_s: float


class Client:
    """One kept connection, without a library whose time would count."""

    def __init__(self, port: int, timeout_s: float = 30) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def post(self, path: str, body: bytes) -> tuple[bytes, float]:
        """Send a request; return the body of the answer, and how long it took in seconds."""
        request = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode() + body
        start = time.perf_counter()
        self._socket.sendall(request)
        received = self._socket.recv(1 << 20)
        while b"\r\n\r\n" not in received:
            received += self._socket.recv(1 << 20)
        head, _, first = received.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head.lower())
        assert length is not None
        parts, missing = [first], int(length[1]) - len(first)
        while missing > 0:
            parts.append(self._socket.recv(min(missing, 1 << 20)))
            missing -= len(parts[-1])
        took = time.perf_counter() - start
        if not head.startswith(b"HTTP/1.1 200"):
            sys.exit(f"{path}: {head.splitlines()[0].decode()} {b''.join(parts)[:300]!r}")
        return b"".join(parts), took


@contextmanager
def recorded_api(
    nodes: int, pods_per_node: int, seed: int, reports_per_s: float = 0.0, *, hami: bool = False
) -> Iterator[int]:
    """Run the recorded API server; yield its port."""
    api = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.recorded_api", "--nodes", str(nodes),
         "--pods-per-node", str(pods_per_node), "--seed", str(seed),
         "--reports-per-s", str(reports_per_s), *(["--hami"] if hami else [])],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True,
    )  # fmt: skip
    assert api.stdin is not None
    assert api.stdout is not None
    try:
        yield int(api.stdout.readline())
    finally:
        api.stdin.close()
        api.kill()
        api.wait()


@contextmanager
def extender(api_port: int, *, public_port: int = 0) -> Iterator[tuple[int, int, float]]:
    """Run the extender on an API server; yield its port, pid and cold start in s."""
    with tempfile.TemporaryDirectory() as folder:
        verbs_port, *others = free_ports(1 if public_port else 2)
        public_port = public_port or others[0]
        config = _write_config(Path(folder), api_port, verbs_port, public_port)
        start = time.perf_counter()
        log = Path(folder, "log")
        with log.open("w") as file:
            server = subprocess.Popen(
                [sys.executable, "-m", "scheduler_extender", "--config", str(config)],
                cwd=ROOT,
                stderr=file,
            )
        try:
            _wait_ready(verbs_port, server, log)
            yield verbs_port, server.pid, time.perf_counter() - start
        finally:
            server.terminate()
            server.wait(20)


def free_ports(count: int) -> list[int]:
    """Return ports that no process listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _write_config(folder: Path, api_port: int, verbs_port: int, public_port: int) -> Path:
    """Write a kubeconfig of the recorded API server and the extender's configuration."""
    write_kubeconfig(folder / "kubeconfig", api_port)
    config = {
        "kubeconfig": str(folder / "kubeconfig"),
        "verbs": {"port": verbs_port},
        "public": {"host": "127.0.0.1", "port": public_port},
    }
    (folder / "config.yaml").write_text(json.dumps(config))
    return folder / "config.yaml"


def write_kubeconfig(file: Path, api_port: int) -> None:
    """Write how the recorded API server is reached."""
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{api_port}"}}],
        "users": [{"name": "u", "user": {"token": "none"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    }
    file.write_text(json.dumps(kubeconfig))


def _wait_ready(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 180
    while server.poll() is None and time.monotonic() < until:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
                connection.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                if connection.recv(64).startswith(b"HTTP/1.1 200"):
                    return
        except OSError:
            pass
        time.sleep(0.05)
    sys.exit(f"the extender ended, or was not ready in time:\n{log.read_text()[-2000:]}")


class Asked(Protocol):
    """What is asked questions and keeps how long the answers took."""

    def ask(self, number: int) -> None:
        """Ask the question of this number."""

    def forget(self) -> None:
        """Begin anew: what came before was to warm up."""


class Measured:
    """One extender, and the times of its answers so far."""

    def __init__(
        self, nodes: int, pods_per_node: int, seed: int, stack: ExitStack, *, shuffled: bool = False
    ) -> None:
        self._order = random.Random(seed) if shuffled else None
        self._nodes, self._pods = nodes, nodes * pods_per_node
        self._names = [node_name(index) for index in range(nodes)]
        api = stack.enter_context(recorded_api(nodes, pods_per_node, seed))
        port, self._pid, self._cold_start_s = stack.enter_context(extender(api))
        self._client = Client(port)
        self._pairs: list[tuple[float, float]] = []
        self._refused: list[float] = []
        self._cpu_s = 0.0

    def ask(self, number: int) -> None:
        """Ask filter and prioritize of another pod, and filter of one that no GPU takes."""
        which = number % PLANNED
        if self._order is not None:
            self._order.shuffle(self._names)
        before = cpu_s(self._pid)
        filtered, first = self._client.post("/filter", body(f"ask-{which}", self._names))
        left = json.loads(filtered)["NodeNames"] or self._names
        _, second = self._client.post("/prioritize", body(f"ask-{which}", left))
        self._cpu_s += cpu_s(self._pid) - before
        self._pairs.append((first, second))
        if number % 10 == 0:
            big = body(f"big-{which}", self._names)
            self._refused.append(self._client.post("/filter", big)[1])

    def forget(self) -> None:
        """Begin anew: what came before was to warm up."""
        self._pairs, self._refused, self._cpu_s = [], [], 0.0

    def cell(self) -> Cell:
        """Return the figures."""
        filters, priorities = np.array(self._pairs).T * 1e3
        return Cell(
            self._nodes,
            self._pods,
            len(self._pairs),
            *percentiles(filters),
            *percentiles(priorities),
            *percentiles(filters + priorities),
            round(float(np.median(self._refused)) * 1e3, 2),
            round(self._cpu_s / len(self._pairs) * 1e3, 2),
            rss_mib(self._pid),
            round(self._cold_start_s, 2),
        )


def measure(
    nodes: int, pods_per_node: list[int], requests: int, seed: int, *, shuffled: bool = False
) -> list[Cell]:
    """Measure one number of nodes at several numbers of pods.

    The extenders are asked in turns of 50, so that their ratio does not depend on what else the
    machine does at the moment.
    """
    with ExitStack() as stack:
        measured = [Measured(nodes, pods, seed, stack, shuffled=shuffled) for pods in pods_per_node]
        ask_in_turns(measured, requests, _TURN, f"{nodes} nodes")
        return [each.cell() for each in measured]


def ask_in_turns(asked: Sequence[Asked], requests: int, turn: int, label: str) -> None:
    """Warm all up with a turn of questions each, then ask each `requests`, a turn at a time."""
    for each in asked:
        for number in range(turn):
            each.ask(number)
        each.forget()
    for start in track(range(0, requests, turn), label, console=err):
        for each in asked:
            for number in range(start, min(start + turn, requests)):
                each.ask(turn + number)


def body(name: str, nodes: list[str]) -> bytes:
    """Return what kube-scheduler sends to both verbs."""
    return question(waiting_pod(name), nodes)


def question(pod: dict[str, Any], nodes: list[str]) -> bytes:
    """Return what kube-scheduler sends to an extender's verb about a pod and nodes by name."""
    pod["metadata"]["uid"] = f"{pod['metadata']['name']}-uid"
    asked = {"Pod": pod, "Nodes": None, "NodeNames": nodes}
    return json.dumps(asked, separators=(",", ":")).encode()  # as Go writes it


def percentiles(values: np.ndarray) -> tuple[float, float]:
    """Return the median and the 99th percentile."""
    p50, p99 = np.percentile(values, (50, 99))
    return round(float(p50), 2), round(float(p99), 2)


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mib(pid: int) -> float:
    """Return the memory that a process holds, in MiB."""
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    assert found is not None
    return round(int(found[1]) / 1024, 1)


def machine(source: Path = ROOT) -> dict[str, object]:
    """Say what the figures were measured on, and which commit of `source` they measure."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=source, capture_output=True, text=True
    ).stdout.strip()
    cpuinfo = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = re.search(r"model name\s*: (.+)", cpuinfo)
    return {
        "cpu": model[1] if model else platform.processor(),
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "commit": commit,
    }


def report(cells: list[Cell]) -> None:
    """Print the figures and the bars."""
    rows: list[tuple[str, ...]] = [
        ("p50", *(f"{cell.sum_p50_ms}" for cell in cells)),
        ("p99", *(f"{cell.sum_p99_ms}" for cell in cells)),
    ]
    for word, which in (("bar", 0), ("stretch", 1)):
        bars = [BARS.get((cell.nodes, cell.pods // cell.nodes)) for cell in cells]
        rows.append(
            (word, *("-" if bar is None else "{} / {}".format(*bar[which]) for bar in bars))
        )
    rows += [
        ("filter", *(f"{cell.filter_p50_ms}" for cell in cells)),
        ("prioritize", *(f"{cell.prioritize_p50_ms}" for cell in cells)),
        ("refused", *(f"{cell.refused_p50_ms}" for cell in cells)),
        ("CPU", *(f"{cell.server_cpu_ms}" for cell in cells)),
        ("MiB", *(f"{cell.rss_mib:.0f}" for cell in cells)),
        ("start s", *(f"{cell.cold_start_s}" for cell in cells)),
    ]
    # A size is a column, so that no figure is cut on a terminal of 80 columns.
    sizes = (f"{cell.nodes:,} x {cell.pods // cell.nodes}" for cell in cells)
    print_table(
        "filter + prioritize over HTTP, one serial client; ms", ("nodes x pods", *sizes), rows
    )
    out.print(
        "p50 and p99 are of the sum; filter, prioritize and refused (a pod that no GPU takes) are "
        "medians; CPU is the server's per pair"
    )
    for nodes, ratio in growth(cells).items():
        out.print(
            f"cost with pods against none at {nodes:,} nodes: x {ratio} "
            f"(bar x {GROWTH_BAR[0]}, stretch x {GROWTH_BAR[1]})"
        )
    out.print(
        f"bars at 5,000 nodes and 40,000 pods: memory {MEMORY_BAR_MIB[0]} MiB (stretch "
        f"{MEMORY_BAR_MIB[1]}), cold start {COLD_START_BAR_S[0]} s (stretch {COLD_START_BAR_S[1]})"
    )


def growth(cells: list[Cell]) -> dict[int, float]:
    """Return, by number of nodes, p50 with the most pods over p50 with none."""
    found = {}
    for nodes in sorted({cell.nodes for cell in cells}):
        by_pods = {cell.pods: cell.sum_p50_ms for cell in cells if cell.nodes == nodes}
        if 0 in by_pods and len(by_pods) > 1:
            found[nodes] = round(by_pods[max(by_pods)] / by_pods[0], 2)
    return found


def main() -> None:
    """Measure all sizes asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000, 5000])
    parser.add_argument("--pods-per-node", type=int, nargs="+", default=[0, 8])
    parser.add_argument("--requests", type=int, default=500, help="measured pairs per size")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--shuffled",
        action="store_true",
        help="filter is asked of the nodes in another order each time, as where kube-scheduler's "
        "own filters run in parallel",
    )
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    arguments = parser.parse_args()
    about = machine() | {"seed": arguments.seed, "shuffled": arguments.shuffled}
    out.print(", ".join(f"{key} {value}" for key, value in about.items()), highlight=False)
    cells = [
        cell
        for nodes in arguments.nodes
        for cell in measure(
            nodes,
            arguments.pods_per_node,
            arguments.requests,
            arguments.seed,
            shuffled=arguments.shuffled,
        )
    ]
    report(cells)
    if arguments.json:
        document = {"machine": about, "cells": [asdict(c) for c in cells], "growth": growth(cells)}
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
