"""Where a pod could run as far as CPU, memory, pod slots, labels and taints are concerned.

kube-scheduler decides this; the queue controller asks here first, so that it does not plan a gang
onto nodes that the plugins will refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from scheduler_extender.cluster.pods import PodInfo
from scheduler_extender.cluster.records import NodeRecord
from scheduler_extender.cluster.selectors import holds
from tandem.policy.units import Bools, Ints

_CPU, _MEMORY, _PODS = range(3)
_MASKS_KEPT = 256

Use = tuple[str, float, int]  # node, CPU in cores, memory in bytes


class NodeBook:
    """Nodes by name, and what the pods on them ask for; `None` as a use takes a pod out.

    Free amounts are kept per slot and change with each pod; whether labels and taints suit a pod
    is worked out once per kind of pod and kept until a node changes.
    """

    def __init__(self) -> None:
        self._slots: dict[str, int] = {}
        self._records: list[NodeRecord | None] = []
        self._total = np.zeros((64, 3))
        self._used = np.zeros((64, 3))
        self._uses: dict[str, Use] = {}
        self._masks: dict[object, Bools] = {}
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

    def use(self, uid: str, use: Use | None) -> None:
        """Set what a pod takes, and where."""
        before = self._uses.get(uid)
        if before == use:
            return
        if before is not None:
            self._used[self._slot(before[0])] -= (before[1], before[2], 1)
            del self._uses[uid]
        if use is not None:
            self._used[self._slot(use[0])] += (use[1], use[2], 1)
            self._uses[uid] = use

    def eligible(self, pod: PodInfo, names: tuple[str, ...]) -> Bools:
        """Return (nodes,), True where the pod could run; False for a node that is not there."""
        at = self._at(names)
        free = self._total[at] - self._used[at]
        return (
            self._mask(pod)[at]
            & (free[:, _CPU] >= pod.cpu - 1e-6)  # sums of fractions of a core are not exact
            & (free[:, _MEMORY] >= pod.memory_bytes)
            & (free[:, _PODS] >= 1)
        )

    def capable(self, pod: PodInfo, names: tuple[str, ...]) -> Bools:
        """Return (nodes,), True where the pod could run if nothing else did."""
        at = self._at(names)
        total = self._total[at]
        return (
            self._mask(pod)[at]
            & (total[:, _CPU] >= pod.cpu - 1e-6)
            & (total[:, _MEMORY] >= pod.memory_bytes)
        )

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
        return slot

    def _mask(self, pod: PodInfo) -> Bools:
        key = repr((pod.node_selector, pod.tolerations, pod.affinity.get("nodeAffinity")))
        mask = self._masks.get(key)
        if mask is None:
            if len(self._masks) >= _MASKS_KEPT:
                self._masks.clear()
            suits = _suitability(pod)
            mask = np.fromiter((r is not None and suits(r) for r in self._records), np.bool_)
            self._masks[key] = mask
        return mask


def _suits_whom(record: NodeRecord | None) -> object:
    return record and (record.labels, record.taints, record.unschedulable)


def _suitability(pod: PodInfo) -> Callable[[NodeRecord], bool]:
    """Return a test of nodes for one kind of pod, taints shared by many worked out once."""
    selector = tuple(pod.node_selector.items())
    required = (pod.affinity.get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    terms = None if required is None else required.get("nodeSelectorTerms") or []
    tolerated: dict[tuple[tuple[str, str, str], ...], bool] = {}

    def suits(node: NodeRecord) -> bool:
        if node.unschedulable:
            return False
        fine = tolerated.get(node.taints)
        if fine is None:
            fine = tolerated[node.taints] = all(
                any(_tolerates(t, taint) for t in pod.tolerations) for taint in node.taints
            )
        labels = node.labels
        return (
            fine
            and all(labels.get(key) == value for key, value in selector)
            and (terms is None or any(_term_holds(term, node) for term in terms))
        )

    return suits


def _tolerates(toleration: Mapping[str, Any], taint: tuple[str, str, str]) -> bool:
    key, value, effect = taint
    if toleration.get("effect") not in (None, "", effect):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", key)
    return toleration.get("key") == key and (toleration.get("value") or "") == value


def _term_holds(term: Mapping[str, Any], node: NodeRecord) -> bool:
    labels = term.get("matchExpressions") or ()
    fields = term.get("matchFields") or ()
    if not labels and not fields:
        return False  # an empty term matches nothing
    return all(holds(e, node.labels.get(e["key"])) for e in labels) and all(
        holds(e, node.name if e["key"] == "metadata.name" else None) for e in fields
    )
