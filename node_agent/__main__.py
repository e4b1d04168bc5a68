"""`python -m node_agent`: the agent of one node."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from node_agent.app import Agent, stamp
from node_agent.config import REMOVED, AgentSettings
from node_agent.deviceplugin import refuse_with_device_plugin
from node_agent.dra.label import LabelReader, labelled
from node_agent.extenderpods import Extender, ExtenderPods
from node_agent.handover import HandOver
from node_agent.monitor import Monitor
from node_agent.publish import gpu_node
from node_agent.tokens import TokenReviewer
from node_agent.writers import HttpWriter, KubeWriter
from tandem.cli.output import print_json
from tandem.contracts import names
from tandem.errors import TandemError, UsageError
from tandem.files import read_yaml
from tandem.kube.client import KubeClient
from tandem.log import configure_log

log = logging.getLogger("node_agent")


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    p = argparse.ArgumentParser(
        prog="python -m node_agent",
        description="Reports what the GPUs of this node and the pods on them really do.",
    )
    p.add_argument("--node", default=os.environ.get("NODE_NAME", ""), help="default: $NODE_NAME")
    p.add_argument("--config", type=Path, help="a YAML file with the settings")
    where = p.add_mutually_exclusive_group()
    where.add_argument("--kubeconfig", type=Path, help="default: the pod's service account")
    where.add_argument("--report-url", help="report to this URL instead of an API server")
    where.add_argument("--once", action="store_true", help="print one report as JSON, and end")
    p.add_argument("--extender", help="https address of the extender, which knows the node's pods")
    p.add_argument("--extender-token", type=Path, help="default: the token for the API server")
    p.add_argument("--interval", type=float, help="seconds between full readings")
    p.add_argument("--shares", type=int, help="jobs that may share a GPU")
    p.add_argument("--proc", type=Path, help="the host's /proc")
    p.add_argument(
        "--canary",
        type=Path,
        help="folder in which a container without GPUs has noted the GPUs that it sees",
    )
    p.add_argument(
        "--hand-over",
        choices=["environment", "dra", "dra-queue", "label"],
        help="how GPUs reach containers; dra: by the node's DRA driver, past the queue; dra-queue:"
        f" by it, as the queue says; label: as the Node's label {names.HAND_OVER_LABEL} says",
    )
    p.add_argument("--listen", default="127.0.0.1:9405", help="for /healthz and /metrics")
    p.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    return p


def main(arguments: list[str] | None = None) -> int:
    """Run the agent; return the exit code: 0, 1 (failed), 2 (usage)."""
    options = parser().parse_args(arguments)
    configure_log(options.log_level)
    try:
        settings = _settings(options)
        if options.once:
            return _once(settings)
        agent = _agent(settings, options)
    except TandemError as error:
        print(f"error: {error.message}\n  {error.hint}".rstrip(), file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: agent.stop())
    agent.run()
    return 0


def _settings(options: argparse.Namespace) -> AgentSettings:
    """Return the settings of the file, with what the command line says on top."""
    given = {
        "node": options.node,
        "interval_s": options.interval,
        "shares": options.shares,
        "proc": options.proc,
        "canary": options.canary,
        "hand_over": options.hand_over,
    }
    return read_settings(
        options.config,
        {name: value for name, value in given.items() if value is not None and value != ""},
    )


def read_settings(file: Path | None, given: Mapping[str, object]) -> AgentSettings:
    """Return the settings of a file, with what is `given` on top; raises UsageError."""
    values: dict[str, object] = {}
    if file is not None:
        read = read_yaml(file, "Settings are YAML by name, such as `shares: 2`.")
        if not isinstance(read, dict | None):
            raise UsageError(f"{file} must hold settings by name, such as `shares: 2`.")
        values = read or {}
    values |= given
    try:
        return AgentSettings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        if field == "node":
            raise UsageError(
                "The agent does not know its node.", "Pass --node NAME or set NODE_NAME."
            ) from error
        if field in REMOVED:
            raise UsageError(f"The setting {field} was removed: {REMOVED[field]}.") from error
        raise UsageError(f"The setting {field} is wrong: {first['msg']}.") from error


def _agent(settings: AgentSettings, options: argparse.Namespace) -> Agent:
    listen = _address(options.listen)
    if options.report_url:
        return Agent(settings, HttpWriter(options.report_url), listen)
    client = KubeClient.load(options.kubeconfig)
    refuse_with_device_plugin(client, settings.node)
    by_label = settings.hand_over == "label"
    if not options.extender:
        way = labelled(client, settings.node) if by_label else settings.hand_over
        return Agent(settings, KubeWriter(client), listen, hand_over=HandOver(way))
    file = options.extender_token
    # Read each time, since kubelet renews it.
    token = client.bearer_token if file is None else lambda: file.read_text().strip()
    pods = ExtenderPods(Extender(options.extender, client, token))
    hand_over = HandOver(
        None if by_label else settings.hand_over, holds=lambda: pods.holds, ask=pods.ask_soon
    )
    label = LabelReader(client, settings.node, hand_over) if by_label else None
    if label is not None:
        label.look()
    return Agent(
        settings, KubeWriter(client), listen, pods, TokenReviewer(client, pods), hand_over, label
    )


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and len(port) <= 5) or int(port) > 65535:
        raise UsageError(f"--listen {text} names no port.", "Write HOST:PORT, as 0.0.0.0:9405.")
    return host.strip("[]"), int(port)


def _once(settings: AgentSettings) -> int:
    """Read twice, a full interval apart (rates need two readings), and print the report."""
    monitor = Monitor(settings)
    monitor.tick(time.monotonic(), stamp())
    if not monitor.gone_for_s(time.monotonic()):
        time.sleep(settings.interval_s)
        monitor.tick(time.monotonic(), stamp())
    status = monitor.status(time.monotonic(), stamp())
    monitor.close()
    print_json(gpu_node(settings.node, status))
    return 0 if status.gpus else 1


if __name__ == "__main__":
    sys.exit(main())
