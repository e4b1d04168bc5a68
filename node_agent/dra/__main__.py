"""`python -m node_agent.dra`: the DRA driver of one node."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from pathlib import Path

from node_agent.deviceplugin import refuse_with_device_plugin
from node_agent.dra import cdi
from node_agent.dra.driver import Driver
from node_agent.dra.services import KUBELET, Services
from node_agent.dra.slices import SlicePublisher
from node_agent.places import Places
from tandem.errors import TandemError, UsageError
from tandem.kube.client import KubeClient
from tandem.kube.pace import Pace
from tandem.kube.reflector import Reflector, Selector
from tandem.kube.resource import GPU_NODES, RESOURCE_SLICES
from tandem.log import configure_log

log = logging.getLogger("node_agent.dra")

#: Two collections of one or two objects: a lost watch is renewed soon.
_PACE = Pace(request_interval_s=1.0)


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    p = argparse.ArgumentParser(
        prog="python -m node_agent.dra",
        description="Hands the GPUs of this node to pods by Dynamic Resource Allocation.",
    )
    p.add_argument("--node", default=os.environ.get("NODE_NAME", ""), help="default: $NODE_NAME")
    p.add_argument("--kubeconfig", type=Path, help="default: the pod's service account")
    p.add_argument("--kubelet", type=Path, default=KUBELET, help=f"default: {KUBELET}")
    p.add_argument("--cdi", type=Path, default=cdi.FOLDER, help=f"default: {cdi.FOLDER}")
    p.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    return p


def main(arguments: list[str] | None = None) -> int:
    """Run the driver; return the exit code: 0, 1 (failed), 2 (usage)."""
    options = parser().parse_args(arguments)
    configure_log(options.log_level)
    # The sockets and files are root's alone.
    os.umask(0o077)
    try:
        if not options.node:
            raise UsageError("The driver does not know its node.", "Pass --node or set NODE_NAME.")
        client = KubeClient.load(options.kubeconfig)
        refuse_with_device_plugin(client, options.node)
    except TandemError as error:
        print(f"error: {error.message}\n  {error.hint}".rstrip(), file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return run(client, options.node, options.kubelet, options.cdi)


def run(client: KubeClient, node: str, kubelet: Path, cdi_folder: Path) -> int:
    """Serve until SIGTERM; return 1 where kubelet refuses the driver."""
    stopping, refused = threading.Event(), ""

    def registered(why_not: str) -> None:
        nonlocal refused
        if not why_not:
            log.info("registered with kubelet")
            return
        log.error("kubelet refuses the driver reason=%r", why_not)
        refused = why_not
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    publisher = SlicePublisher(node, client, Places())
    toolkit = cdi.Toolkit([cdi.STATIC_FOLDER, cdi_folder])
    driver = Driver(
        node, client, cdi.Specs(cdi_folder), toolkit, publisher.inventory, publisher.way
    )
    watches = [
        Reflector(
            client,
            GPU_NODES,
            publisher.take_report,
            selector=Selector(fields=f"metadata.name={node}"),
            pace=_PACE,
        ),
        Reflector(
            client,
            RESOURCE_SLICES,
            publisher.take_slice,
            selector=Selector(fields=f"spec.nodeName={node}"),
            pace=_PACE,
        ),
    ]
    services = Services(driver, kubelet, registered)
    for watch in watches:
        watch.start()
    # What is there is known before anything is written in its place.
    while not stopping.is_set() and not all(watch.synced.wait(0.5) for watch in watches):
        pass
    driver.sweep()
    publisher.start()
    services.start()
    log.info("driver started node=%s", node)
    stopping.wait()
    services.stop()
    publisher.stop()
    for watch in watches:
        watch.stop()
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
