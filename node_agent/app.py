"""The agent as a process: reads, reports and serves until a signal stops it."""

from __future__ import annotations

import logging
import random
import threading
import time
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry
from pydantic import ValidationError

from node_agent.config import AgentSettings
from node_agent.dra.label import LabelReader
from node_agent.handover import HandOver, ways_in
from node_agent.metrics import AgentCollector, ProcessFigures
from node_agent.monitor import Monitor
from node_agent.pods import PodDirectory
from node_agent.progress import Progress
from node_agent.publish import NodeWriter, Publisher, Rhythm
from node_agent.server import AgentServer
from node_agent.tokens import TokenReviewer
from tandem.contracts.resources import GPUNodeStatus

log = logging.getLogger(__name__)

#: Readings are spread by this share of their interval, so that they do not fall into step with
#: a job's own period and see always the same moment of it.
INTERVAL_JITTER = 0.2


def stamp() -> str:
    """Return the present as Kubernetes writes it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Agent:
    """Ties the parts together. `listen` is (host, port)."""

    def __init__(
        self,
        settings: AgentSettings,
        writer: NodeWriter,
        listen: tuple[str, int],
        pods: PodDirectory | None = None,
        authenticator: TokenReviewer | None = None,
        hand_over: HandOver | None = None,
        label: LabelReader | None = None,
    ) -> None:
        self.settings = settings
        self.latest: GPUNodeStatus | None = None
        self.monitor = Monitor(settings, pods=pods, hand_over=hand_over)
        self._label = label
        self._pods = pods
        self._progress = Progress(authenticator)
        self._publisher = Publisher(settings.node, writer)
        self._remembers = False
        self._random = random.Random()  # noqa: S311 - spreads load, guards no secret
        self._rhythm = Rhythm(settings.report_interval_s, self._random)
        self._stopping = threading.Event()
        registry = CollectorRegistry()
        registry.register(ProcessFigures())
        registry.register(
            AgentCollector(
                settings.node,
                lambda: self.latest,
                self.monitor,
                self._publisher,
                pods,
                detail=settings.metrics.detail == "gpu",
            )
        )
        self.server = AgentServer(*listen, self.trouble, registry, self._progress)

    def trouble(self) -> str:
        """Return why the agent should be started anew, or ""."""
        if self._publisher.broken:
            return "Reports are no longer written."
        gone = self.monitor.gone_for_s(time.monotonic())
        if gone > self.settings.health.well_for_s:
            return f"NVML has been gone for {gone:.0f} s."
        return ""

    def stop(self) -> None:
        """Let `run` return soon; safe in a signal handler."""
        self._stopping.set()

    def run(self) -> None:
        """Read and report until `stop`."""
        self.monitor.hand_over.remember(None)
        self._publisher.start()
        if self._pods:
            self._pods.start()
        if self._label:
            self._label.start()
        self.server.start()
        log.info("agent started node=%s port=%d", self.settings.node, self.server.port)
        try:
            looked_s, asked = float("-inf"), set[str]()
            while not self._stopping.is_set():
                now = time.monotonic()
                self.monitor.tick(now, stamp())
                asks = set(self.monitor.requests)
                if asks != asked or now - looked_s >= self.settings.interval_s:
                    looked_s, asked = now, asks
                    self._report(now)
                interval = self.settings.memory_interval_s
                jitter = self._random.uniform(1 - INTERVAL_JITTER, 1 + INTERVAL_JITTER)
                self._stopping.wait(max(0.0, interval * jitter - (time.monotonic() - now)))
        finally:
            self._publisher.stop()
            self.server.stop()
            if self._pods:
                self._pods.stop()
            if self._label:
                self._label.stop()
            self.monitor.close()
            log.info("agent stopped node=%s", self.settings.node)

    def _report(self, now_s: float) -> None:
        if not self._remembers and self._publisher.known.is_set():
            self._remember(now_s)
        self.monitor.paces = self._progress.paces()
        status = self.monitor.status(now_s, stamp())
        self.latest = status
        if self._remembers and self._rhythm.is_due(now_s, status):
            self._publisher.submit(status)

    def _remember(self, now_s: float) -> None:
        """Take the GPUs of the last report: those that cannot be read now are not forgotten."""
        self._remembers = True
        raw = (self._publisher.earlier or {}).get("status")
        if not raw:
            self.monitor.hand_over.remember_ways({})
            return
        try:
            self.monitor.remember(GPUNodeStatus.model_validate(raw), now_s)
        except ValidationError as error:  # written by another version
            log.warning("earlier report not understood error=%r", error.errors()[0]["msg"])
            self.monitor.hand_over.remember_ways(ways_in(raw))
