"""On which nodes a pod could run, by CPU, memory, pod slots, labels and taints.

kube-scheduler decides this; the queue controller asks here first, so that it does not plan a gang
onto nodes that the plugins will refuse.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from scheduler_extender.cluster.pods import PodInfo
from scheduler_extender.cluster.records import NodeRecord
from scheduler_extender.cluster.selectors import LabelIndex, NodeRequirements, Taint, Term
from tandem.policy.units import Bools, Floats, Ints

_CPU, _MEMORY, _PODS = range(3)
_MASKS_KEPT = 2048
_NODE_NAME = "metadata.name"

Use = tuple[str, float, int]  # node, CPU in cores, memory in bytes


@dataclass(frozen=True, slots=True)
class _Asks:
    """What a pod asks of a node; `mask` (slots,) is True where labels and taints suit it."""

    mask: Bools
    cpu: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class NodesPicture:
    """Copies of what the nodes have, (nodes, 3), and of what pods ask, by number."""

    asks: Mapping[int, _Asks]
    at: Ints  # (nodes,) slots
    total: Floats
    used: Floats

    def eligible(self, number: int) -> Bools:
        """Return (nodes,), True where the pod could run now."""
        free = self.total - self.used
        return self._suits(number, free) & (free[:, _PODS] >= 1)

    def capable(self, number: int) -> Bools:
        """Return (nodes,), True where the pod could run if nothing else did."""
        return self._suits(number, self.total)

    def _suits(self, number: int, has: Floats) -> Bools:
        asks = self.asks[number]
        return (
            asks.mask[self.at]
            & (has[:, _CPU] >= asks.cpu - 1e-6)  # sums of fractions of a core are not exact
            & (has[:, _MEMORY] >= asks.memory_bytes)
        )


class NodeBook:
    """Nodes by name, and what the pods on them ask for; `None` as a use takes a pod out.

    Free amounts are kept per slot and change with each pod. Whether labels and taints suit a pod is
    evaluated on sets of nodes, once per distinct requirements, and kept until a node changes. A
    node gets its slot when it is put or asked about. Anybody may create pods that name any node:
    those on unknown ones wait in `_elsewhere`, and take no slot.
    """

    def __init__(self) -> None:
        self._slots: dict[str, int] = {}
        self._records: list[NodeRecord | None] = []
        self._total = np.zeros((64, 3))
        self._used = np.zeros((64, 3))
        self._uses: dict[str, Use] = {}
        self._elsewhere: dict[str, set[str]] = {}  # uids by node
        self._masks: dict[NodeRequirements, Bools] = {}
        self._labels = LabelIndex()
        self._names = LabelIndex()
        self._tainted: dict[tuple[Taint, ...], int] = {}
        self._schedulable = 0
        self._asked: tuple[str, ...] = ()
        self._asked_at = np.zeros(0, dtype=np.int64)

    def get(self, name: str) -> NodeRecord | None:
        """Return a node."""
        slot = self._slots.get(name)
        return None if slot is None else self._records[slot]

    def put(self, name: str, record: NodeRecord | None) -> None:
        """Set a node, or with None forget it; what runs there is still counted."""
        slot = self._slot(name)
        before, self._records[slot] = self._records[slot], record
        self._total[slot] = (record.cpu, record.memory_bytes, record.pods) if record else 0.0
        if _suits_whom(before) != _suits_whom(record):
            self._masks.clear()
            self._index(slot, before, record)

    def use(self, uid: str, use: Use | None) -> None:
        """Set what a pod takes, and where."""
        before = self._uses.get(uid)
        if before == use:
            return
        if before is not None:
            self._add(uid, before, -1)
            del self._uses[uid]
        if use is not None:
            self._uses[uid] = use
            self._add(uid, use, 1)

    def _add(self, uid: str, use: Use, by: int) -> None:
        """Add what a pod takes to its node, or with -1 take it out."""
        slot = self._slots.get(use[0])
        if slot is not None:
            self._used[slot] += (by * use[1], by * use[2], by)
        elif by > 0:
            self._elsewhere.setdefault(use[0], set()).add(uid)
        else:
            self._elsewhere[use[0]].remove(uid)
            if not self._elsewhere[use[0]]:
                del self._elsewhere[use[0]]

    def eligible(self, pod: PodInfo, names: tuple[str, ...]) -> Bools:
        """Return (nodes,), True where the pod could run; False for a node that is not there."""
        return self.picture({0: (pod,)}, names).eligible(0)

    def capable(self, pods: Sequence[PodInfo], names: tuple[str, ...]) -> Bools:
        """Return (nodes,), True where each of the pods could run if nothing else did."""
        return self.picture({0: pods}, names).capable(0)

    def picture(
        self, pods: Mapping[int, Sequence[PodInfo]], names: tuple[str, ...]
    ) -> NodesPicture:
        """Return what decides where `pods`, by number, could run, to be read by another thread.

        Several pods of one number run where each of them could.
        """
        at = self._at(names)
        asks = {
            number: _Asks(
                reduce(np.logical_and, (self._mask(pod.requires) for pod in alike)),
                max(pod.cpu for pod in alike),
                max(pod.memory_bytes for pod in alike),
            )
            for number, alike in pods.items()
        }
        return NodesPicture(asks, at, self._total[at], self._used[at])

    def _index(self, slot: int, before: NodeRecord | None, after: NodeRecord | None) -> None:
        bit = 1 << slot
        none: dict[str, str] = {}
        self._labels.set(slot, before.labels if before else none, after.labels if after else none)
        if (before is None) != (after is None):
            names = ({_NODE_NAME: each.name} if each else none for each in (before, after))
            self._names.set(slot, *names)
        if before is not None:
            self._tainted[before.taints] &= ~bit
            if not self._tainted[before.taints]:
                del self._tainted[before.taints]
        self._schedulable &= ~bit
        if after is not None:
            self._tainted[after.taints] = self._tainted.get(after.taints, 0) | bit
            if not after.unschedulable:
                self._schedulable |= bit

    def uses(self) -> Mapping[str, Use]:
        """Return what is counted, by pod uid."""
        return self._uses

    def _at(self, names: tuple[str, ...]) -> Ints:
        """Return the slots of `names`; worked out once for the same tuple."""
        if self._asked is not names:
            self._asked = names
            self._asked_at = np.fromiter(map(self._slot, names), np.int64, len(names))
        return self._asked_at

    def _slot(self, name: str) -> int:
        slot = self._slots.get(name)
        if slot is None:
            slot = self._slots[name] = len(self._records)
            self._records.append(None)
            if slot == len(self._total):
                self._total = np.concatenate((self._total, np.zeros_like(self._total)))
                self._used = np.concatenate((self._used, np.zeros_like(self._used)))
            self._masks.clear()
            for uid in sorted(self._elsewhere.pop(name, ())):
                self._add(uid, self._uses[uid], 1)
        return slot

    def _mask(self, required: NodeRequirements) -> Bools:
        mask = self._masks.get(required)
        if mask is None:
            while len(self._masks) >= _MASKS_KEPT:
                del self._masks[next(iter(self._masks))]
            count = len(self._records)
            packed = self._suiting(required).to_bytes(count // 8 + 1, "little")
            bits = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little", count=count)
            mask = self._masks[required] = bits.astype(np.bool_)
        return mask

    def _suiting(self, required: NodeRequirements) -> int:
        """Return the nodes whose labels, name and taints suit a pod, as a set of bits."""
        if required.refused:
            return 0
        found = self._schedulable & _union(
            nodes
            for taints, nodes in self._tainted.items()
            if all(required.tolerates(taint) for taint in taints)
        )
        for each in required.selector:
            found &= self._labels.nodes(each, self._schedulable)
        if required.terms is None:
            return found
        return found & _union(self._matching(term) for term in required.terms)

    def _matching(self, term: Term) -> int:
        if not term.labels and not term.fields:
            return 0  # an empty term matches nothing
        found = self._schedulable
        for index, asked in ((self._labels, term.labels), (self._names, term.fields)):
            for each in asked:
                found &= index.nodes(each, self._schedulable)
                if not found:
                    return 0
        return found


def _suits_whom(record: NodeRecord | None) -> object:
    return record and (record.labels, record.taints, record.unschedulable)


def _union(sets: Iterable[int]) -> int:
    found = 0
    for each in sets:
        found |= each
    return found
