"""The real services as processes on loopback: extender, predictor, and an agent for each node."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import yaml

from node_agent.stub import build, environment
from tandem.contracts.names import API_VERSION
from tandem.local.processes import Process, free_port
from tandem.local.waiting import wait_until
from tandem_demo.gpus import SimulatedNode

HOST = "127.0.0.1"
START_TIMEOUT_S = 60.0
#: The agents report more often than on a cluster, so that the table moves, and average over less:
#: the jobs run for seconds.
AGENT_SETTINGS = {
    "interval_s": 0.25,
    "report_interval_s": 0.25,
    "utilisation_half_life_s": 0.4,
}
#: The same for what the extender makes of the reports: averages know the time before a neighbour
#: came for twice their half-life.
LEARNING_SETTINGS = {
    "every_s": 0.25,
    "settle_s": 2 * AGENT_SETTINGS["utilisation_half_life_s"],
    "write_every_s": 1.0,
}


class Services:
    """Starts them in `folder`, where their configuration and logs are, and ends them on exit.

    Making one compiles the simulated NVML library; raises TandemError without a C compiler.
    """

    def __init__(self, folder: Path, nodes: Mapping[str, SimulatedNode]) -> None:
        self._ports = {name: free_port() for name in ("verbs", "public", "predictor")}
        self.verbs_url, self.api_url, self.predictor_url = (
            f"http://{HOST}:{port}" for port in self._ports.values()
        )
        self.page_url = f"{self.api_url}/status/"
        self._folder = folder
        self._logs = folder / "logs"
        self._logs.mkdir(parents=True, exist_ok=True)
        self._nodes = nodes
        self._library = build(folder)
        self._processes: list[Process] = []

    def __enter__(self) -> Services:
        """Start the extender and the predictor, and wait until both are ready."""
        try:
            predictor = self._start("predictor", *self._predictor())
            extender = self._start("extender", *self._extender())
            self._wait(predictor, f"{self.predictor_url}/readyz")
            self._wait(extender, f"{self.api_url}/readyz")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End all of them."""
        self.stop()

    def start_agents(self) -> None:
        """Start an agent for each node; they need the API server."""
        for node in self._nodes.values():
            # Its GPUs have addresses on a bus that this machine may use for something else.
            own = {**AGENT_SETTINGS, "sys": str(node.folder / "sys")}
            settings = self._write(f"agent-{node.name}.yaml", own)
            self._start(
                f"agent-{node.name}",
                "node_agent",
                *("--node", node.name, "--config", str(settings), "--proc", str(node.proc)),
                *("--report-url", f"{self.api_url}/apis/{API_VERSION}"),
                *("--listen", f"{HOST}:{free_port()}"),
                env=environment(self._library, node.state),
            )

    def check(self) -> None:
        """Raise TandemError if one of them has ended."""
        for process in self._processes:
            _check(process)

    def stop(self) -> None:
        """Ask all to end, then wait for each."""
        for process in self._processes:
            process.send(signal.SIGTERM)
        for process in self._processes:
            process.terminate()

    def _predictor(self) -> tuple[str, ...]:
        port = str(self._ports["predictor"])
        return "predictor", "--store", "memory", "--host", HOST, "--port", port

    def _extender(self) -> tuple[str, ...]:
        settings = {
            "api": "memory",
            "verbs": {"host": HOST, "port": self._ports["verbs"]},
            "public": {"host": HOST, "port": self._ports["public"]},
            "predictor_url": self.predictor_url,
            "leader": {"always": True},
            "learning": LEARNING_SETTINGS,
        }
        return "scheduler_extender", "--config", str(self._write("extender.yaml", settings))

    def _write(self, name: str, settings: Mapping[str, Any]) -> Path:
        path = self._folder / name
        path.write_text(yaml.safe_dump(dict(settings), sort_keys=False))
        return path

    def _start(
        self, name: str, module: str, *arguments: str, env: Mapping[str, str] | None = None
    ) -> Process:
        process = Process(
            name,
            [sys.executable, "-m", module, *arguments],
            self._logs / f"{name}.log",
            env={"PYTHONUNBUFFERED": "1", **(env or {})},
        )
        process.start()
        self._processes.append(process)
        return process

    def _wait(self, process: Process, url: str) -> None:
        def ready() -> bool:
            _check(process)
            try:
                return httpx.get(url, timeout=2.0).is_success
            except httpx.TransportError:
                return False

        wait_until(ready, f"{process.name} is ready", timeout_s=START_TIMEOUT_S, poll_s=0.1)


def _check(process: Process) -> None:
    if not process.running:
        raise process.failure(f"ended with status {process.exit_code}")
