"""How each GPU is handed over, and when it goes over from one way to another.

A GPU has one way at a time. Where the node is to have another, the GPU is closed: the report offers
no share of it. It goes over once the extender has seen that report and says that no pod has the GPU
by another way. Nothing of this is kept on the node: what the last report said of the GPU, and what
the extender says of its pods, decide. docs/decisions/0092 has the reasons.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from node_agent.outofmemory import unix_time
from tandem.contracts.nodepods import NodeHolds
from tandem.contracts.resources import GPU, GPUNodeStatus

log = logging.getLogger(__name__)

ENVIRONMENT, DRA, DRA_QUEUE = WAYS = ("environment", "dra", "dra-queue")
#: The way of a GPU that the last report does not tell: by claims, allocated by whom is not known.
UNKNOWN = ""
#: A claim that kube-scheduler allocates by what it knew before the device was withdrawn is written
#: within this time. One that comes later closes the GPU again.
SETTLE_S = 30.0
#: How long a closed GPU is asked about soon; then with the rest, and when a pod leaves.
ASK_SOON_S = 30.0
#: Times of reports are written with milliseconds.
_ROUNDING_S = 0.0005


@dataclass(frozen=True, slots=True)
class Handed:
    """The way of one GPU, and why it takes no new pod for now; '' where it does."""

    way: str = ENVIRONMENT
    closed: str = ""


@dataclass(frozen=True, slots=True)
class _Closed:
    since_s: float  # of the monotonic clock
    reported_s: float  # Unix time of the first report


class HandOver:
    """The ways of a node's GPUs. `target` is that of the node; None while it is not known.

    `holds` returns what the extender said last, `ask` asks it soon. Without them, no pod of the
    node is known: the first target holds until the agent ends, as an operator moves the node then.
    """

    def __init__(
        self,
        target: str | None = ENVIRONMENT,
        holds: Callable[[], NodeHolds | None] | None = None,
        ask: Callable[[], None] = lambda: None,
    ) -> None:
        #: Set by the reader of the Node's label, in its thread.
        self.target = target
        #: What is wrong with the label; None where none is read.
        self.trouble: str | None = None
        self._holds = holds
        self._ask = ask
        self._ways: dict[str, str] = {}
        self._closed: dict[str, _Closed] = {}
        self._has_report = True

    def remember(self, report: GPUNodeStatus | None) -> None:
        """Take the ways of an earlier report; None where it is not known whether there is one."""
        if report is None:
            self._has_report = False
        else:
            self.remember_ways({gpu.uuid: way_of(gpu) for gpu in report.gpus})

    def remember_ways(self, ways: Mapping[str, str]) -> None:
        """Take the ways of GPUs by UUID; those of others begin with that of the node."""
        self._has_report = True
        if self._holds is not None:
            self._ways = dict(ways)
        self._closed = {}

    def look(self, gpus: Iterable[str], now_s: float, stamp: str) -> dict[str, Handed]:
        """Return the ways of these GPUs for the report of now; `stamp` is its time, as RFC 3339."""
        holds = self._holds() if self._holds is not None else None
        found = {uuid: self._handed(uuid, now_s, stamp, holds) for uuid in gpus}
        self._closed = {uuid: since for uuid, since in self._closed.items() if uuid in found}
        if any(now_s - each.since_s < ASK_SOON_S + SETTLE_S for each in self._closed.values()):
            self._ask()
        return found

    def _handed(self, uuid: str, now_s: float, stamp: str, holds: NodeHolds | None) -> Handed:
        target = self.target
        if uuid not in self._ways:
            fresh = target if self._has_report or self._holds is None else UNKNOWN
            if fresh is None:
                # No pod has had it. As `UNKNOWN` in a report, it would be closed to the next agent.
                return Handed(ENVIRONMENT, "how its node hands GPUs over is not known")
            self._ways[uuid] = fresh
        way = self._ways[uuid]
        if self._holds is None or target is None:
            return Handed(way, "" if way else "how its node hands GPUs over is not known")
        if way == target:
            self._closed.pop(uuid, None)
            return Handed(way, self._mixed(uuid, way, holds))
        closed = self._closed.setdefault(uuid, _Closed(now_s, unix_time(stamp)))
        why = self._obstacle(uuid, way, target, holds, now_s, closed)
        if why:
            move = f"it moves from {way} to {target}" if way else f"it moves to {target}"
            return Handed(way, f"{move}: {why}")
        log.info("gpu goes over uuid=%s from=%s to=%s", uuid, way or "unknown", target)
        self._ways[uuid] = target
        del self._closed[uuid]
        return Handed(target)

    def _mixed(self, uuid: str, way: str, holds: NodeHolds | None) -> str:
        """Say which pods have a GPU by another way than its own: bound by what was known before."""
        if holds is None or not holds.leads:
            return ""
        other = holds.by_claims if way == ENVIRONMENT else holds.by_environment
        also = holds.by_claims if way == DRA else []
        if uuid not in other and uuid not in also:
            return ""
        return f"a pod has it by another way than {way}, and is to end first"

    def _obstacle(
        self,
        uuid: str,
        way: str,
        target: str,
        holds: NodeHolds | None,
        now_s: float,
        closed: _Closed,
    ) -> str:
        """Say what keeps a closed GPU from going over to `target`, '' for nothing."""
        if holds is None or not holds.leads or holds.report_s < closed.reported_s - _ROUNDING_S:
            return "the extender has not answered yet which pods have it"
        by_dra = way in (DRA, UNKNOWN)
        if holds.by_others is None and (target == DRA_QUEUE or (by_dra and target != DRA)):
            return "scheduler.extender.config.admission.gpu_claims is off, and is to be on for this"
        if target != DRA and uuid in (holds.by_others or ()):
            return "a claim that kube-scheduler has allocated is to end first"
        others = list(holds.unknown)
        if target != DRA_QUEUE:
            others += holds.by_claims
        if target != ENVIRONMENT:
            others += holds.by_environment
        if target == DRA:
            others += holds.planned
        if uuid in others:
            return "the pods that have it now are to end first"
        if by_dra and target != DRA and now_s - closed.since_s < SETTLE_S:
            return "kube-scheduler may be allocating it still"
        return ""


def way_of(gpu: GPU) -> str:
    """Return the way of a GPU by what was reported of it; `UNKNOWN` where it was closed."""
    return _way(gpu.shares, gpu.dra_shares)


def ways_in(status: Mapping[str, Any]) -> dict[str, str]:
    """Return the ways of the GPUs by UUID in a report of another version, as it is on the wire.

    The API server has compared it with the definition: what is there has the right type.
    """
    gpus = status.get("gpus") or ()
    return {gpu["uuid"]: _way(gpu.get("shares", 0), gpu.get("draShares")) for gpu in gpus}


def _way(shares: int, dra_shares: int | None) -> str:
    if dra_shares is None:
        return ENVIRONMENT
    if shares:
        return DRA_QUEUE
    return DRA if dra_shares else UNKNOWN
