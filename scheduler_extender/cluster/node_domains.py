"""In which domains of the topology nodes are, by their labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tandem.policy.topology import Topology
from tandem.policy.units import Ints

#: A node is a domain of its own; no level that gathers nodes.
_HOSTNAME = "kubernetes.io/hostname"


class NodeDomains:
    """The domains of nodes in slots, level by level; `levels` are keys of labels, widest first.

    A domain is named by its own label and those of all wider levels: two zones may each have a rack
    r1. A node without the label of a level is in no domain of it. A domain has a number while a
    node is in it.
    """

    def __init__(self, levels: Sequence[str]) -> None:
        self._levels = tuple(levels)
        self._domain = np.full((64, len(self._levels)), -1, dtype=np.int64)
        self._rack = np.full(64, -1, dtype=np.int64)
        self._numbers = [_Numbers() for _ in self._levels]
        self._racks = _Numbers()
        self._values: dict[int, tuple[str, ...]] = {}  # by slot
        self._known: tuple[Ints, Topology] | None = None

    def put(self, slot: int, labels: Mapping[str, str]) -> None:
        """Set the labels of the node in a slot."""
        values = tuple(labels.get(level, "") for level in self._levels)
        before = self._values.get(slot, ("",) * len(values))
        if values == before:
            return
        while slot >= len(self._domain):
            self._domain = np.concatenate((self._domain, np.full_like(self._domain, -1)))
            self._rack = np.concatenate((self._rack, np.full_like(self._rack, -1)))
        self._values[slot] = values
        for index, numbers in enumerate(self._numbers):
            self._domain[slot, index] = numbers.move(
                before[: index + 1] if before[index] else None,
                values[: index + 1] if values[index] else None,
            )
        self._rack[slot] = self._racks.move(self._gathering(before), self._gathering(values))
        self._known = None

    def rack(self, slot: int) -> int:
        """Return a number that nodes with the same labels share; 0 of those with none of them."""
        return int(self._rack[slot]) + 1 if slot < len(self._rack) else 0

    def index(self, level: str) -> int | None:
        """Return the place of a level among the levels; None where it is none of them."""
        return self._levels.index(level) if level in self._levels else None

    def at(self, slots: Ints, index: int) -> Ints:
        """Return the domain of the nodes in some slots at a level; -1 where one is in none."""
        there = (slots >= 0) & (slots < len(self._domain))
        found: Ints = np.where(there, self._domain[np.where(there, slots, 0), index], -1)
        return found

    def of(self, slots: Ints) -> Topology | None:
        """Return the topology of the nodes in some slots, in their order; None without levels.

        It is the same object while nothing has changed and the same slots are asked about.
        """
        if not self._levels:
            return None
        if self._known is not None and self._known[0] is slots:
            return self._known[1]
        domain = np.full((len(slots), len(self._levels)), -1, dtype=np.int64)
        there = slots < len(self._domain)
        domain[there] = self._domain[slots[there]]
        found = Topology(self._levels, domain)
        if len(slots) > 1:  # all nodes; the others are asked about one by one
            self._known = slots, found
        return found

    def _gathering(self, values: tuple[str, ...]) -> tuple[str, ...] | None:
        """Return what names the narrowest domain that may have several nodes; None: none does."""
        found = tuple(
            value for level, value in zip(self._levels, values, strict=True) if level != _HOSTNAME
        )
        return found if any(found) else None


class _Numbers:
    """Numbers of names that are in use; a node that gets ever new labels takes up one of each."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, ...], list[int]] = {}  # number, nodes
        self._free: list[int] = []

    def move(self, before: tuple[str, ...] | None, after: tuple[str, ...] | None) -> int:
        """Let a node go from one name to another; return the number of that, -1 of None."""
        number = -1
        if after is not None:
            known = self._of.get(after)
            if known is None:
                known = self._of[after] = [self._free.pop() if self._free else len(self._of), 0]
            known[1] += 1
            number = known[0]
        if before is not None:
            left = self._of[before]
            left[1] -= 1
            if not left[1]:
                self._free.append(left[0])
                del self._of[before]
        return number
