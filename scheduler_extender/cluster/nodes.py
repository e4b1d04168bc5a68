"""On which nodes a pod could run, by what they have besides GPUs, and by labels and taints.

kube-scheduler decides this; the queue controller asks here first, so that it does not plan a gang
onto nodes that the plugins will refuse.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import repeat

import numpy as np

from scheduler_extender.cluster.node_domains import NodeDomains
from scheduler_extender.cluster.pods import PodInfo, Use
from scheduler_extender.cluster.records import NodeRecord
from scheduler_extender.cluster.selectors import (
    LabelIndex,
    NodeRequirements,
    Taint,
    Term,
    with_claim,
)
from tandem.policy.topology import Topology
from tandem.policy.units import Bools, Floats, Ints
from tandem.reasons.causes import Cause, Reason

_CPU, _MEMORY, _PODS = range(3)
_NAMED = ("cpu", "memory", "pods")
_TOTAL, _USED = range(2)
#: Other resources that are counted: a node that names ever new ones shall not use up our memory.
_MOST_RESOURCES = 256
_MASKS_KEPT = 2048
_NODE_NAME = "metadata.name"


@dataclass(frozen=True, slots=True)
class _Asks:
    """The node requirements of a pod; `mask` (slots,) is True where labels and taints suit it.

    `gpus` is how many GPUs each of several pods asks for that start together, else 0. `claimed` is
    the mask of the same pods if all had claims; None where that makes no difference.
    """

    mask: Bools
    cpu: float
    memory_bytes: int
    amounts: Mapping[str, int]
    refused: str = ""
    gpus: int = 0
    claimed: Bools | None = None

    def by_name(self) -> Iterable[tuple[str, float]]:
        """Yield each resource with how much of it a pod asks for; sums of cores are not exact."""
        yield from (("cpu", self.cpu - _EXACT), ("memory", self.memory_bytes), ("pods", 1))
        yield from self.amounts.items()


_EXACT = 1e-6  # of a core


@dataclass(frozen=True, slots=True)
class NodesPicture:
    """Copies of what the nodes have, and of what pods ask, by number.

    `total` and `used` are (nodes, 3), those of the other resources that are asked for (2, nodes).
    """

    names: tuple[str, ...]
    asks: Mapping[int, _Asks]
    at: Ints  # (nodes,) slots
    total: Floats
    used: Floats
    others: Mapping[str, Floats]
    topology: Topology | None = None  # of the nodes; None: no level is named

    def eligible(self, number: int) -> Bools:
        """Return (nodes,), True where the pod could run now."""
        free = self.total - self.used
        suits = self._suits(number, free) & (free[:, _PODS] >= 1)
        for name, amount in self.asks[number].amounts.items():
            column = self.others[name]
            suits &= column[_TOTAL] - column[_USED] >= amount
        return suits

    def capable(self, number: int) -> Bools:
        """Return (nodes,), True where the pod could run if nothing else did."""
        suits = self._suits(number, self.total)
        for name, amount in self.asks[number].amounts.items():
            suits &= self.others[name][_TOTAL] >= amount
        return suits

    def _suits(self, number: int, has: Floats) -> Bools:
        asks = self.asks[number]
        return (
            asks.mask[self.at]
            & (has[:, _CPU] >= asks.cpu - _EXACT)
            & (has[:, _MEMORY] >= asks.memory_bytes)
        )

    def most(self, number: int, gpus: Ints, *, empty: bool = False) -> Ints | None:
        """Return (nodes,) GPUs that pods which start together may take at most of each node.

        By what they ask besides GPUs; with `empty`, if nothing else ran. `gpus` (nodes,) is how
        many there are: None where no node is too small for as many pods as it has GPUs for.
        """
        asks = self.asks.get(number)
        if asks is None or not asks.gpus:
            return None
        pods = room = gpus // asks.gpus
        for _, holds in self._holding(asks, empty=empty):
            room = np.minimum(room, holds)
        short = room < pods
        most: Ints = np.where(short, room * asks.gpus, gpus)
        return most if (short & asks.mask[self.at]).any() else None

    def short_of(self, number: int, gpus: Ints) -> list[str]:
        """Return the resources of which a node has enough for a pod, and not for all its GPUs."""
        asks = self.asks[number]
        pods = gpus // max(1, asks.gpus)
        holding = self._holding(asks, empty=False)
        one = np.logical_and.reduce([holds >= 1 for _, holds in holding] + [asks.mask[self.at]])
        return [name for name, holds in holding if (one & (holds < pods)).any()]

    def _holding(self, asks: _Asks, *, empty: bool) -> list[tuple[str, Ints]]:
        """Return for each resource that is asked for how many pods each node holds, (nodes,)."""
        return [
            (name, np.maximum(self._has(name, empty=empty) // amount, 0).astype(np.int64))
            for name, amount in asks.by_name()
            if amount > 0
        ]

    def _has(self, name: str, *, empty: bool) -> Floats:
        """Return (nodes,): how much of a resource there is, or is free now."""
        if name in _NAMED:
            at = _NAMED.index(name)
            total, used = self.total[:, at], self.used[:, at]
        else:
            total, used = self.others[name]
        return total if empty else total - used

    def lacking(self, number: int) -> list[Cause | None]:
        """Return for each node what keeps the pod off it now, None where it could run.

        Of several things the first: what no other pod's end would change comes before the rest.
        """
        at, things = self._lacking(number)
        causes = [None, *things]
        return [causes[index] for index in at.tolist()]

    def lacking_amounts(self, number: int) -> tuple[Ints, list[Cause]]:
        """Return (nodes,) by which cause a pod is short of the resources besides CPU and memory.

        From 1 on, 0 where it is not; and the causes.
        """
        at, things = self._lacking(number)
        amounts = self.asks[number].amounts
        of = np.array([False, *(cause.resource in amounts for cause in things)])
        return np.where(of[at], at, 0), things

    def why_not(self, number: int) -> tuple[Cause, ...]:
        """Return what keeps the pod off how many nodes, most first."""
        at, things = self._lacking(number)
        counted = zip(np.bincount(at, minlength=len(things) + 1).tolist()[1:], things, strict=True)
        common = sorted((each for each in counted if each[0]), key=lambda each: -each[0])[:_CAUSES]
        return tuple(replace(cause, nodes=count) for count, cause in common)

    def _lacking(self, number: int) -> tuple[Ints, list[Cause]]:
        """Return (nodes,) which of the things is lacking, from 1 on, and the things."""
        asks = self.asks[number]
        at, things = np.zeros(len(self.at), dtype=np.int64), list[Cause]()
        for empty in (False, True):
            reason = Reason.NODE_TOO_SMALL if empty else Reason.NODE_SHORT
            for name, amount in reversed([*asks.by_name()]):
                if amount > 0:
                    things.append(Cause(reason, resource=name, amount=_written(name, asks)))
                    at[self._has(name, empty=empty) < amount] = len(things)
        things.append(Cause(Reason.NODE_UNSUITABLE, detail=asks.refused or None))
        at[~asks.mask[self.at]] = len(things)
        if asks.claimed is not None:
            things.append(Cause(Reason.CLAIM_MISSING))
            at[(asks.claimed & ~asks.mask)[self.at]] = len(things)
        return at, things

    def holds(
        self, number: int, taken: Mapping[str, Floats], *, empty: bool = False
    ) -> Ints | None:
        """Return (nodes,) how many pods each node has room for once `taken` is subtracted.

        `taken` (nodes,) is by resource; with `empty`, nothing else runs. None where nothing is
        known of the number.
        """
        asks = self.asks.get(number)
        if asks is None:
            return None
        room = [
            np.maximum((self._has(name, empty=empty) - taken.get(name, 0.0)) // amount, 0)
            for name, amount in asks.by_name()
            if amount > 0
        ]
        fewest: Ints = np.minimum.reduce(room).astype(np.int64)
        return fewest

    def take(self, number: int, pods: Ints, taken: dict[str, Floats]) -> None:
        """Add what `pods` (nodes,) of a number ask to what is `taken`."""
        for name, amount in self.asks[number].by_name():
            if amount > 0:
                taken[name] = (pods * amount + taken.get(name, 0.0)).astype(np.float64)

    def room(self) -> Room:
        """Return what is free, to be taken pod by pod."""
        others = {name: column[_TOTAL] - column[_USED] for name, column in self.others.items()}
        return Room(self.total - self.used, others)


_CAUSES = 4  # reasons of one pod


def _written(name: str, asks: _Asks) -> str:
    """Return how much of a resource a pod asks for, as people write it."""
    if name == "cpu":
        return f"{asks.cpu:g}"
    amount = asks.memory_bytes if name == "memory" else asks.amounts.get(name, 1)
    for unit, size in _UNITS if name == "memory" or name.startswith(_IN_BYTES) else ():
        if amount >= size and amount % (size // 1024) == 0:
            return f"{amount / size:.10g}{unit}"
    return str(amount)


_IN_BYTES = ("ephemeral-storage", "hugepages-")
_UNITS = (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20))


class Room:
    """Free resources of nodes besides GPUs, taken pod by pod; used by one thread."""

    def __init__(self, free: Floats, others: dict[str, Floats]) -> None:
        self._free, self._others = free, others

    def take(self, pods: Sequence[tuple[PodInfo, int]]) -> str:
        """Take what pods ask, each of a node (row), and return ''; else which resource is short.

        Nothing is taken then.
        """
        for index, (pod, node) in enumerate(pods):
            short = self._add(pod, node, -1)
            if short:
                for taken, there in pods[: index + 1]:
                    self._add(taken, there, 1)
                return short
        return ""

    def _add(self, pod: PodInfo, node: int, by: int) -> str:
        """Add what a pod asks to what is free; return of which resource there is too little."""
        free = self._free[node]
        asked = (pod.cpu, pod.memory_bytes, 1)
        free += np.multiply(asked, by)
        short = [name for name, left, of in zip(_NAMED, free.tolist(), asked, strict=True)
                 if of and left < -_EXACT]  # fmt: skip
        for name, amount in pod.amounts:
            column = self._others[name]  # of all that is asked for in this round
            column[node] += by * amount
            if column[node] < 0:
                short.append(name)
        return short[0] if short else ""


class NodeBook:
    """Nodes by name, and what the pods on them ask for; `None` as a use takes a pod out.

    Free amounts are kept per slot and change with each pod. Whether labels and taints suit a pod is
    evaluated on sets of nodes, once per distinct requirements, and kept until a node changes. A
    node gets its slot when it is put or asked about. Any user may create pods that name any node:
    those on unknown ones wait in `_elsewhere`, and take no slot.
    """

    def __init__(self, levels: Sequence[str] = ()) -> None:
        self._slots: dict[str, int] = {}
        self._domains = NodeDomains(levels)
        self._records: list[NodeRecord | None] = []
        self._total = np.zeros((64, 3))
        self._used = np.zeros((64, 3))
        # (2, slots) of each other resource that a node has: its total, and what is used of it.
        self._others: dict[str, Floats] = {}
        self._uses: dict[str, Use] = {}
        self._elsewhere: dict[str, set[str]] = {}  # uids by node
        self._masks: dict[NodeRequirements, Bools] = {}
        self._labels = LabelIndex()
        self._names = LabelIndex()
        self._tainted: dict[tuple[Taint, ...], int] = {}
        self._schedulable = 0
        #: Nodes that hand their GPUs over by claims.
        self.by_claims: set[str] = set()
        self._by_claims = 0
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
        self._put_others(slot, before.amounts if before else {}, record.amounts if record else {})
        if _suits_whom(before) != _suits_whom(record):
            self._masks.clear()
            self._index(slot, before, record)
            self._domains.put(slot, record.labels if record else {})

    def put_by_claims(self, name: str, by_claims: bool) -> None:
        """Set whether a node hands its GPUs over by claims."""
        if (name in self.by_claims) is by_claims:
            return
        self.by_claims ^= {name}
        self._by_claims ^= 1 << self._slot(name)
        self._masks.clear()

    def use_levels(self, levels: Sequence[str]) -> None:
        """Let other labels be the levels of topology."""
        self._domains = NodeDomains(levels)
        for slot, record in enumerate(self._records):
            if record is not None:
                self._domains.put(slot, record.labels)

    def rack(self, name: str) -> int:
        """Return the number of the narrowest domain that a node is in; 0 where it is in none."""
        slot = self._slots.get(name)
        return 0 if slot is None else self._domains.rack(slot)

    def in_domain_of(self, node: str, level: str, names: Sequence[str]) -> Bools:
        """Return (names,), True for nodes in the domain of `node` at a level of topology.

        Where there is no such level, a node is in its own alone.
        """
        index = self._domains.index(level)
        if index is None:
            return np.array([name == node for name in names], dtype=np.bool_)
        slots = np.fromiter(map(self._slots.get, (node, *names), repeat(-1)), np.int64)
        domain = self._domains.at(slots, index)
        inside: Bools = domain[1:] == domain[0]
        return inside

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
            for name, amount in use[3:]:
                if name in self._others:
                    self._others[name][_USED, slot] += by * amount
        elif by > 0:
            self._elsewhere.setdefault(use[0], set()).add(uid)
        else:
            self._elsewhere[use[0]].remove(uid)
            if not self._elsewhere[use[0]]:
                del self._elsewhere[use[0]]

    def _put_others(self, slot: int, before: Mapping[str, int], after: Mapping[str, int]) -> None:
        """Set what a node has of the other resources.

        Only resources that a node has are counted: no node offers the others, and any user may name
        such. Those that are new are summed up over the pods that are there.
        """
        new = [name for name in after if after[name] and name not in self._others]
        for name in new[: max(0, _MOST_RESOURCES - len(self._others))]:
            self._others[name] = np.zeros((2, len(self._total)))
        if new:
            self._sum_up(frozenset(new) & self._others.keys())
        for name in before.keys() | after.keys():
            column = self._others.get(name)
            if column is None:
                continue
            column[_TOTAL, slot] = after.get(name, 0)
            if name not in after and not column[_TOTAL].any():
                del self._others[name]

    def _sum_up(self, new: frozenset[str]) -> None:
        for node, _, _, *amounts in self._uses.values():
            slot = self._slots.get(node) if amounts else None
            if slot is not None:
                for name, amount in amounts:
                    if name in new:
                        self._others[name][_USED, slot] += amount

    def eligible(self, pod: PodInfo, names: tuple[str, ...]) -> Bools:
        """Return (nodes,), True where the pod could run; False for a node that is not there."""
        return self.picture_without(pod, names).eligible(0)

    def picture_without(self, pod: PodInfo, names: tuple[str, ...]) -> NodesPicture:
        """Return what decides where one pod, number 0, could run; what itself takes is free."""
        own = self._uses.get(pod.uid)
        self.use(pod.uid, None)
        try:
            return self.picture({0: (pod,)}, names)
        finally:
            self.use(pod.uid, own)

    def capable(self, pods: Sequence[PodInfo], names: tuple[str, ...]) -> Bools:
        """Return (nodes,), True where each of the pods could run if nothing else did."""
        return self.picture({0: pods}, names).capable(0)

    def picture(
        self,
        pods: Mapping[int, Sequence[PodInfo]],
        names: tuple[str, ...],
        together: Mapping[int, int] | None = None,
        promised: Mapping[str, Use] | None = None,
    ) -> NodesPicture:
        """Return what decides where `pods`, by number, could run, to be read by another thread.

        Several pods of one number run where each of them could. `together` has how many GPUs each
        pod of a number asks for whose pods start together. What is `promised` to pods, by uid, is
        taken unless it is counted already.
        """
        at = self._at(names)
        asks = {
            number: _Asks(
                reduce(np.logical_and, (self._mask(pod.requires) for pod in alike)),
                max(pod.cpu for pod in alike),
                max(pod.memory_bytes for pod in alike),
                _most_of(alike),
                next((pod.requires.refused for pod in alike if pod.requires.refused), ""),
                (together or {}).get(number, 0),
                self._claimed(alike),
            )
            for number, alike in pods.items()
        }
        coming = [(uid, use) for uid, use in (promised or {}).items() if uid not in self._uses]
        for uid, use in coming:
            self.use(uid, use)
        try:
            nothing = np.zeros((2, len(at)))
            others = {
                name: self._others[name][:, at] if name in self._others else nothing
                for name in frozenset().union(*(each.amounts for each in asks.values()))
            }
            return NodesPicture(
                names, asks, at, self._total[at], self._used[at], others, self._domains.of(at)
            )
        finally:
            for uid, _ in coming:
                self.use(uid, None)

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
        """Return the slots of `names`; worked out once for the same tuple of all nodes."""
        if len(names) == 1:
            return np.array([self._slot(names[0])])
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
                for name, column in self._others.items():
                    self._others[name] = np.hstack((column, np.zeros_like(column)))
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

    def _claimed(self, pods: Sequence[PodInfo]) -> Bools | None:
        """Return `_mask` of pods if all had claims, None where no node asks for that."""
        if not self._by_claims or all(pod.requires.has_claim for pod in pods):
            return None
        return reduce(np.logical_and, (self._mask(with_claim(pod.requires)) for pod in pods))

    def _suiting(self, required: NodeRequirements) -> int:
        """Return the nodes whose labels, name and taints suit a pod, as a set of bits."""
        if required.refused:
            return 0
        found = self._schedulable & _union(
            nodes
            for taints, nodes in self._tainted.items()
            if all(required.tolerates(taint) for taint in taints)
        )
        if not required.has_claim:
            found &= ~self._by_claims
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


def _most_of(pods: Sequence[PodInfo]) -> Mapping[str, int]:
    """Return of each other resource the most that one of the pods asks for."""
    most: dict[str, int] = {}
    for pod in pods:
        for name, amount in pod.amounts:
            most[name] = max(most.get(name, 0), amount)
    return most


def _union(sets: Iterable[int]) -> int:
    found = 0
    for each in sets:
        found |= each
    return found
