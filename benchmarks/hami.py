"""HAMi's `/filter` and Tandem's verbs in turns: `python -m benchmarks.hami -- COMMAND {port}`.

COMMAND starts HAMi's extender, which serves plain HTTP on `{port}` and reads its API server from
KUBECONFIG, such as `scheduler --http_bind=127.0.0.1:{port} -v=4`. Each extender has a recorded API
server of its own with the same nodes, GPUs and running pods, and is asked by the same client about
pods of the same size with the names of all nodes, in turns of ten. What HAMi writes on a pod is
taken and not sent back by a watch.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks import recorded_hami
from benchmarks.recorded_api import PLANNED, node_name, waiting_pod
from benchmarks.verbs import (
    Client,
    Measured,
    ask_in_turns,
    cpu_s,
    free_ports,
    machine,
    percentiles,
    question,
    recorded_api,
    rss_mib,
    write_kubeconfig,
)
from tandem.cli.output import out, print_table

_TURN = 10
_START_S, _ANSWER_S = 120, 120
_ASKED_MIB = 12 * 1024  # as Tandem's waiting jobs: 10 GiB, and 2 at their peak


@dataclass(frozen=True)
class Figures:
    """What was measured of HAMi; times in ms, CPU by question."""

    nodes: int
    pods: int
    requests: int
    placed: int  # questions that were answered with a node
    filter_p50_ms: float
    filter_p99_ms: float
    server_cpu_ms: float
    rss_mib: float


class Hami:
    """One extender of HAMi, and the times of its answers so far."""

    def __init__(
        self, command: Sequence[str], nodes: int, pods_per_node: int, seed: int, stack: ExitStack
    ) -> None:
        self._nodes, self._pods = nodes, nodes * pods_per_node
        self._names = [node_name(index) for index in range(nodes)]
        api = stack.enter_context(recorded_api(nodes, pods_per_node, seed, hami=True))
        port, self._pid = stack.enter_context(_running(command, api))
        self._client = Client(port, _ANSWER_S)
        self.forget()

    def ask(self, number: int) -> None:
        """Ask filter of another pod; end where the answer is an error."""
        content = body(f"ask-{number % PLANNED}", self._names)
        before = cpu_s(self._pid)
        text, took = self._client.post("/filter", content)
        self._cpu_s += cpu_s(self._pid) - before
        answer = json.loads(text)
        if answer.get("Error"):
            sys.exit(f"/filter: {answer['Error']}")
        self._placed += len(answer.get("NodeNames") or ()) == 1
        self._took.append(took)

    def forget(self) -> None:
        """Begin anew: what came before was to warm up."""
        self._took: list[float] = []
        self._placed, self._cpu_s = 0, 0.0

    def figures(self) -> Figures:
        """Return the figures."""
        return Figures(
            self._nodes,
            self._pods,
            len(self._took),
            self._placed,
            *percentiles(np.array(self._took) * 1e3),
            round(self._cpu_s / len(self._took) * 1e3, 1),
            rss_mib(self._pid),
        )


def body(name: str, nodes: list[str]) -> bytes:
    """Return what kube-scheduler sends for a pod that asks HAMi for a part of a GPU."""
    pod = waiting_pod(name)
    recorded_hami.ask(pod, _ASKED_MIB)
    return question(pod, nodes)


@contextmanager
def _running(command: Sequence[str], api_port: int) -> Iterator[tuple[int, int]]:
    """Run HAMi's extender on an API server; yield its port and pid once it takes connections."""
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory() as folder:
        kubeconfig, log = Path(folder, "kubeconfig"), Path(folder, "log")
        write_kubeconfig(kubeconfig, api_port)
        started = [word.replace("{port}", str(port)) for word in command]
        with log.open("w") as file:
            try:
                server = subprocess.Popen(
                    started,
                    env=os.environ | {"KUBECONFIG": str(kubeconfig)},
                    stdout=file,
                    stderr=file,
                )
            except OSError as error:
                sys.exit(f"HAMi's extender cannot be started: {error}")
        try:
            _wait(port, server, log)
            yield port, server.pid
        finally:
            server.kill()
            server.wait(20)


def _wait(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + _START_S
    while server.poll() is None and time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    sys.exit(f"HAMi's extender ended, or did not listen in time:\n{log.read_text()[-2000:]}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure both extenders at one size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods-per-node", type=int, default=8)
    parser.add_argument("--requests", type=int, default=100, help="measured questions of each")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    parser.add_argument("command", nargs="+", help="what starts HAMi; {port} is where it listens")
    asked = parser.parse_args(arguments)
    if not any("{port}" in word for word in asked.command):
        parser.error("the command has no {port}: write it where HAMi takes its port")
    about = machine() | {"seed": asked.seed, "command": shlex.join(asked.command)}
    out.print(", ".join(f"{key} {value}" for key, value in about.items()), highlight=False)
    size = (asked.nodes, asked.pods_per_node, asked.seed)
    with ExitStack() as stack:
        both = Hami(asked.command, *size, stack), Measured(*size, stack)
        ask_in_turns(both, asked.requests, _TURN, f"{asked.nodes} nodes")
        hami, tandem = both[0].figures(), both[1].cell()
    rows = [
        ("HAMi, filter", hami.filter_p50_ms, hami.filter_p99_ms, hami.server_cpu_ms, hami.rss_mib),
        ("Tandem, filter", tandem.filter_p50_ms, tandem.filter_p99_ms, "", tandem.rss_mib),
        ("Tandem, both verbs", tandem.sum_p50_ms, tandem.sum_p99_ms, tandem.server_cpu_ms, ""),
    ]
    print_table(
        f"{asked.nodes:,} nodes, {hami.pods:,} pods; {asked.requests} questions of each",
        ("", "p50 ms", "p99 ms", "CPU ms", "MiB"),
        rows,
    )
    out.print(f"HAMi answered {hami.placed} of {hami.requests} questions with a node")
    if asked.json:
        document = {"machine": about, "hami": asdict(hami), "tandem": asdict(tandem)}
        asked.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
