"""When and how the node's report goes out: rarely, at once when it matters, never in a burst.

`Rhythm` decides (pure), `Publisher` carries the latest report out in a thread of its own: while
the other side is away it keeps only the newest one, so that its return sees one write.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from enum import IntEnum
from typing import Any, Protocol

from tandem.contracts.names import API_VERSION
from tandem.contracts.resources import GPU, GPUNodeStatus, PodUse
from tandem.contracts.values import MAX_GPU_BYTES

log = logging.getLogger(__name__)

Object = dict[str, Any]

#: Heartbeats of many nodes spread over this share of their period, to either side.
HEARTBEAT_JITTER = 0.1
#: A heartbeat comes after so many intervals, and after this time at most: the scheduler holds a
#: report to be stale after 150 s by default, so that one heartbeat may be lost at any interval.
HEARTBEAT_INTERVALS = 6
HEARTBEAT_MAX_S = 60.0
#: What decides where work may go is reported after this part of an interval, and this at most.
URGENT = 0.1
URGENT_MAX_S = 1.0
#: Smaller changes are the noise of a running job: a share of the GPU's memory, and points.
MEMORY_CHANGE = 0.05
UTILISATION_CHANGE = 10.0
RETRY_MIN_S, RETRY_MAX_S = 1.0, 30.0
FIRST_READ_S = 5.0


class WriteError(Exception):
    """A report could not be written, or the last one read; trying again later may help."""


class NodeWriter(Protocol):
    """Where reports go."""

    def read(self, node: str) -> Object | None:
        """Return the node's GPUNode as it was last written, or None.

        Raises:
            WriteError: it could not be read.
        """
        ...

    def write(self, node: str, gpu_node: Object) -> None:
        """Write the node's GPUNode.

        Raises:
            WriteError: it was not, or perhaps not, written.
        """
        ...


def gpu_node(node: str, status: GPUNodeStatus) -> Object:
    """Return the GPUNode of `node` as it goes over the wire."""
    return {
        "apiVersion": API_VERSION,
        "kind": "GPUNode",
        "metadata": {"name": node},
        "status": status.wire(),
    }


class Change(IntEnum):
    """The extent to which a report differs from the previous one."""

    NONE = 0
    NOTABLE = 1
    URGENT = 2


def compare(before: GPUNodeStatus, after: GPUNodeStatus) -> Change:
    """Return how much changed: urgent is what decides where work may go, or who must leave."""
    if _decisive(before) != _decisive(after):
        return Change.URGENT
    pairs = zip(before.gpus, after.gpus, strict=True)
    return Change.NOTABLE if any(_differs(a, b) for a, b in pairs) else Change.NONE


def _decisive(status: GPUNodeStatus) -> object:
    gpus = [
        (
            gpu.uuid, gpu.number, gpu.health, gpu.health_reason, gpu.shares, gpu.dra_shares,
            gpu.numa_node, gpu.nvlink_domain,
        )
        for gpu in status.gpus
    ]  # fmt: skip
    requests = [(request.uid, request.gpu) for request in status.eviction_requests]
    failed = [(one.uid, one.container, one.ended_at) for one in status.out_of_memory]
    conditions = [(condition.type, condition.status) for condition in status.conditions]
    return gpus, requests, failed, conditions


def _differs(before: GPU, after: GPU) -> bool:
    step = MEMORY_CHANGE * (after.memory_bytes or MAX_GPU_BYTES)
    uses = {_who(use): use for use in before.pods}
    if uses.keys() != {_who(use) for use in after.pods}:
        return True
    figures = [
        (before.memory_used_bytes, after.memory_used_bytes, step),
        (before.memory_foreign_bytes, after.memory_foreign_bytes, step),
        (before.utilisation_percent, after.utilisation_percent, UTILISATION_CHANGE),
    ]
    for use in after.pods:
        known = uses[_who(use)]
        figures += [
            (known.memory_bytes, use.memory_bytes, step),
            (known.memory_peak_bytes, use.memory_peak_bytes, step),
            (known.memory_base_bytes, use.memory_base_bytes, step),
            (known.utilisation_percent, use.utilisation_percent, UTILISATION_CHANGE),
        ]
    return any(_moved(a, b, by) for a, b, by in figures)


def _who(use: PodUse) -> tuple[str, str, str, bool]:
    return use.uid, use.namespace, use.pod, use.foreign


def _moved(before: float | None, after: float | None, by: float) -> bool:
    if before is None or after is None:
        return before is not after
    return abs(after - before) >= by


class Rhythm:
    """Decides which reports go out; `randomness` spreads the heartbeats.

    `interval_s` is the least time between two reports when figures change. Neither heartbeats nor
    urgent reports wait longer where it is above 10 s: clusters of many nodes make it longer.
    """

    def __init__(self, interval_s: float, randomness: random.Random) -> None:
        self._interval_s = interval_s
        self._urgent_s = min(URGENT * interval_s, URGENT_MAX_S)
        self._mean_heartbeat_s = min(HEARTBEAT_INTERVALS * interval_s, HEARTBEAT_MAX_S)
        self._random = randomness
        self._last: GPUNodeStatus | None = None
        self._sent_s = 0.0
        self._heartbeat_s = 0.0

    def is_due(self, now_s: float, status: GPUNodeStatus) -> bool:
        """Return whether `status` is to be sent at `now_s`; if so it counts as sent."""
        if self._last is not None:
            waited = now_s - self._sent_s
            change = compare(self._last, status)
            due = (
                waited >= self._heartbeat_s
                or (change is Change.URGENT and waited >= self._urgent_s)
                or (change is Change.NOTABLE and waited >= self._interval_s)
            )
            if not due:
                return False
        jitter = self._random.uniform(-HEARTBEAT_JITTER, HEARTBEAT_JITTER)
        self._heartbeat_s = self._mean_heartbeat_s * (1 + jitter)
        self._last, self._sent_s = status, now_s
        return True


class Publisher:
    """Reads the node's GPUNode, then writes the newest report, each again until it succeeds.

    The first report takes the place of the last one, and with it what is kept nowhere else, such as
    by which way each GPU is handed over. So that one is read first. A report that waits gives way
    to a newer one. `written` and `failed` count attempts; `last_written_s` is the time of the last
    success (Unix time), 0 before the first.
    """

    def __init__(self, node: str, writer: NodeWriter) -> None:
        #: The GPUNode as it was before, None where there was none; valid once `known` is set.
        self.earlier: Object | None = None
        self.known = threading.Event()
        self.written = 0
        self.failed = 0
        self.last_written_s = 0.0
        self._node = node
        self._writer = writer
        self._newest: GPUNodeStatus | None = None
        self._retry_s = RETRY_MIN_S
        self._stopping = False
        self._tried = threading.Event()
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    def start(self) -> None:
        """Begin to read; wait a moment, so that the first look at the GPUs can be reported."""
        self._thread.start()
        self._tried.wait(FIRST_READ_S)

    @property
    def broken(self) -> bool:
        """True where a bug has ended the thread: nothing will be written any more."""
        started = self._thread.ident is not None
        return started and not self._thread.is_alive() and not self._stopping

    def submit(self, status: GPUNodeStatus) -> None:
        """Let `status` be written next; one that still waits is dropped."""
        with self._wake:
            self._newest = status
            self._wake.notify()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop; what is being written is waited for, what waits is not."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not (self.known.is_set() or self._stopping):
            try:
                self.earlier = self._writer.read(self._node)
            except WriteError as error:
                self._tried.set()
                self._pause("earlier report unknown", error)
            else:
                self._retry_s = RETRY_MIN_S
                self.known.set()
                self._tried.set()
        while (status := self._take()) is not None:
            try:
                self._writer.write(self._node, gpu_node(self._node, status))
            except WriteError as error:
                with self._wake:
                    if self._newest is None:
                        self._newest = status
                self._pause("report failed", error)
            else:
                self._retry_s = RETRY_MIN_S
                self.written += 1
                self.last_written_s = time.time()

    def _pause(self, what: str, error: WriteError) -> None:
        """Count an attempt that failed, and wait for longer each time."""
        self.failed += 1
        log.warning("%s node=%s error=%r", what, self._node, str(error))
        # A new report ends no wait early: else it would shorten that of a failing one.
        wait_s = self._retry_s * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load only
        with self._wake:
            self._wake.wait_for(lambda: self._stopping, wait_s)
        self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)

    def _take(self) -> GPUNodeStatus | None:
        with self._wake:
            self._wake.wait_for(lambda: self._stopping or self._newest is not None)
            newest, self._newest = self._newest, None
            return None if self._stopping else newest
