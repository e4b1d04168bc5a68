"""Nodes and neighbours that a gang avoids for a while: refused plans and observed slowdowns.

Kept in memory: forgotten with the process, it is learned again at the cost of one more try.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from scheduler_extender.cluster.records import Key
from scheduler_extender.planning.questions import Avoids

NODE_S = 60.0  # a node whose plugins refused a plan; doubled with each refusal
LONGEST_NODE_S = 1800.0
REST_S = 5.0  # a gang that was refused twice in a row waits before the third plan; doubled as well
LONGEST_REST_S = 300.0
APART_S = 3600.0  # two gangs that one was moved away from


@dataclass(slots=True)
class _Known:
    refusals: int = 0
    rests_until_s: float = 0.0
    nodes: dict[str, float] = field(default_factory=dict)  # until
    neighbours: dict[Key, float] = field(default_factory=dict)  # until


class AntiAffinity:
    """Nodes and neighbours to avoid, by gang. Runs on the event loop."""

    def __init__(self) -> None:
        self._known: dict[Key, _Known] = {}

    def refused(self, key: Key, nodes: Iterable[str], now_s: float) -> float:
        """Note that a plan was not followed on `nodes`; return until when the gang rests."""
        known = self._known.setdefault(key, _Known())
        until_s = now_s + min(NODE_S * 2**known.refusals, LONGEST_NODE_S)
        known.nodes |= dict.fromkeys(nodes, until_s)
        if known.refusals > 0:
            rest_s = min(REST_S * 2 ** (known.refusals - 1), LONGEST_REST_S)
            known.rests_until_s = now_s + rest_s
        known.refusals = min(known.refusals + 1, 16)
        return known.rests_until_s

    def apart(self, key: Key, neighbour: Key, now_s: float) -> None:
        """Keep a gang from the GPUs of another for an hour, whichever of the two comes second."""
        for one, other in ((key, neighbour), (neighbour, key)):
            self._known.setdefault(one, _Known()).neighbours[other] = now_s + APART_S

    def runs(self, key: Key) -> None:
        """Note that a gang has got its place: its refusals are over."""
        known = self._known.get(key)
        if known is not None and known.refusals:
            self._known[key] = _Known(neighbours=known.neighbours)

    def rests_until_s(self, key: Key) -> float:
        """Return until when a gang is not planned; 0 where it never rested."""
        known = self._known.get(key)
        return 0.0 if known is None else known.rests_until_s

    def all(self, now_s: float) -> dict[Key, Avoids]:
        """Return what each gang avoids now."""
        found = {}
        for key, known in self._known.items():
            nodes = frozenset(n for n, until_s in known.nodes.items() if now_s < until_s)
            others = frozenset(k for k, until_s in known.neighbours.items() if now_s < until_s)
            if nodes or others:
                found[key] = Avoids(nodes, others)
        return found

    def forget(self, key: Key) -> None:
        """Forget a gang that is gone."""
        self._known.pop(key, None)
