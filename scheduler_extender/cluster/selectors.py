"""Label selectors and node selectors with the meaning that Kubernetes gives them.

A pod's requirements on nodes are compiled when the pod is read, and evaluated on sets of nodes.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any


def selects(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Say whether a metav1.LabelSelector matches; None matches nothing, an empty one everything."""
    if selector is None:
        return False
    wanted = (selector.get("matchLabels") or {}).items()
    return all(labels.get(key) == value for key, value in wanted) and all(
        _holds(each, labels.get(each["key"])) for each in selector.get("matchExpressions") or ()
    )


def _holds(expression: Mapping[str, Any], value: str | None) -> bool:
    """Say whether an expression holds for the value of its key, None where that is absent."""
    values = expression.get("values") or ()
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:
            return False  # an operator of a later Kubernetes


#: What a pod may require of nodes: the entries of its nodeSelector, the terms of its required node
#: affinity, and the requirements in these terms, all together. Real pods have fewer than 20.
MAX_NODE_REQUIREMENTS = 256
#: All values of these requirements together, such as names of nodes.
MAX_NODE_VALUES = 1000
MAX_TOLERATIONS = 256
_COMPILED_KEPT = 1024

Taint = tuple[str, str, str]  # key, value, effect


def excess(labels: int, terms: int, requirements: int, values: int, tolerations: int) -> str:
    """Return which bound these numbers exceed and by how much, '' where they exceed none."""
    asked = labels + terms + requirements
    if asked > MAX_NODE_REQUIREMENTS:
        return (
            f"at most {MAX_NODE_REQUIREMENTS} entries of nodeSelector, terms and requirements of "
            f"the required node affinity are allowed together; there are {asked}"
        )
    if values > MAX_NODE_VALUES:
        return (
            f"at most {MAX_NODE_VALUES} values in the required node affinity are allowed; "
            f"there are {values}"
        )
    if tolerations > MAX_TOLERATIONS:
        return f"at most {MAX_TOLERATIONS} tolerations are allowed; there are {tolerations}"
    return ""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One requirement on the values of a key; `values` are texts."""

    key: str
    operator: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Term:
    """Requirements of which all must hold: on labels, and on fields of the node."""

    labels: tuple[Requirement, ...]
    fields: tuple[Requirement, ...]


@dataclass(frozen=True, slots=True)
class NodeRequirements:
    """Requirements of a pod on its node's labels, name and taints, compiled once per distinct text.

    Two are equal where their `key`s are. `terms` is None where the pod has no required affinity.
    `refused` says why the requirements are not evaluated; such a pod is eligible on no node. A pod
    without a claim (`has_claim`) cannot be given the GPUs of a node that hands them over by claims.
    """

    key: str = ""
    selector: tuple[Requirement, ...] = field(default=(), compare=False)
    terms: tuple[Term, ...] | None = field(default=None, compare=False)
    exists: frozenset[tuple[str, str]] = field(default=frozenset(), compare=False)
    equal: frozenset[Taint] = field(default=frozenset(), compare=False)
    refused: str = field(default="", compare=False)
    has_claim: bool = field(default=False, compare=False)

    def tolerates(self, taint: Taint) -> bool:
        """Say whether one of the tolerations covers a taint; an empty key or effect covers all."""
        key, value, effect = taint
        wide = ((key, effect), (key, ""), ("", effect), ("", ""))
        return any(each in self.exists for each in wide) or any(
            each in self.equal for each in (taint, (key, value, ""))
        )


ANYWHERE = NodeRequirements()


def node_requirements(
    selector: Mapping[str, str],
    tolerations: Sequence[Mapping[str, Any]],
    affinity: Mapping[str, Any],
) -> NodeRequirements:
    """Return what a pod requires of its node.

    This takes time in proportion to the pod: the threads that decode objects call it, never the
    event loop. Equal requirements of many pods are one object.
    """
    required = (affinity.get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if not selector and not tolerations and required is None:
        return ANYWHERE
    terms = [] if required is None else required.get("nodeSelectorTerms") or []
    asked = [each for term in terms for part in _PARTS for each in term.get(part) or ()]
    values = sum(len(each.get("values") or ()) for each in asked)
    too_many = excess(len(selector), len(terms), len(asked), values, len(tolerations))
    if too_many:
        return NodeRequirements(key=f"refused: {too_many}", refused=too_many)
    whole = [dict(selector), list(tolerations), None if required is None else terms]
    return _compiled(json.dumps(whole, sort_keys=True))


@lru_cache(_COMPILED_KEPT)
def with_claim(required: NodeRequirements) -> NodeRequirements:
    """Return the same requirements, of a pod that gets its GPUs by a claim."""
    return replace(required, key=f"{required.key} by claim", has_claim=True)


_PARTS = ("matchExpressions", "matchFields")


@lru_cache(_COMPILED_KEPT)
def _compiled(text: str) -> NodeRequirements:
    selector, tolerations, terms = json.loads(text)
    exists, equal = set(), set()
    for each in tolerations:
        key, effect = each.get("key") or "", each.get("effect") or ""
        match each.get("operator") or "Equal":
            case "Exists":
                exists.add((key, effect))
            case "Equal":
                equal.add((key, each.get("value") or "", effect))
    return NodeRequirements(
        key=hashlib.sha256(text.encode()).hexdigest(),
        selector=tuple(Requirement(key, "In", (value,)) for key, value in selector.items()),
        terms=None
        if terms is None
        else tuple(
            Term(*(tuple(map(_requirement, t.get(p) or ())) for p in _PARTS)) for t in terms
        ),
        exists=frozenset(exists),
        equal=frozenset(equal),
    )


def _requirement(each: Mapping[str, Any]) -> Requirement:
    return Requirement(each["key"], each["operator"], tuple(each.get("values") or ()))


class LabelIndex:
    """An index of nodes by label, as sets of bits: bit i is the node in slot i.

    An operation on the sets of 5,000 nodes takes about 0.1 us, so that the largest requirements of
    a pod take about 0.2 ms. An update of a node takes time in proportion to its labels.
    """

    def __init__(self) -> None:
        self._having: dict[str, dict[str, int]] = {}
        self._ordered: dict[str, tuple[list[int], list[int]]] = {}

    def set(self, slot: int, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        """Replace the labels of the node in a slot."""
        bit = 1 << slot
        for key, value in before.items() - after.items():
            values = self._having[key]
            values[value] &= ~bit
            if not values[value]:
                del values[value]
            self._ordered.pop(key, None)
        for key, value in after.items() - before.items():
            values = self._having.setdefault(key, {})
            values[value] = values.get(value, 0) | bit
            self._ordered.pop(key, None)

    def nodes(self, requirement: Requirement, everything: int) -> int:
        """Return those of `everything` on which a requirement holds."""
        having = self._having.get(requirement.key, {})
        match requirement.operator:
            case "In":
                return _union(having, requirement.values)
            case "NotIn":
                return everything & ~_union(having, requirement.values)
            case "Exists":
                return self._present(requirement.key)
            case "DoesNotExist":
                return everything & ~self._present(requirement.key)
            case "Gt" | "Lt" as operator:
                return self._compared(requirement.key, operator, requirement.values)
            case _:
                return 0  # an operator of a later Kubernetes: the plugins decide

    def _present(self, key: str) -> int:
        return self._cumulated(key)[1][0]

    def _compared(self, key: str, operator: str, values: tuple[str, ...]) -> int:
        try:
            bound = int(next(iter(values), ""))
        except ValueError:
            return 0
        numbers, sets = self._cumulated(key)
        if operator == "Gt":
            return sets[1 + bisect_right(numbers, bound)]
        return sets[1] & ~sets[1 + bisect_left(numbers, bound)]

    def _cumulated(self, key: str) -> tuple[list[int], list[int]]:
        """Return the numbers among the values of a key in order, and sets of nodes.

        The first set has all nodes with the key. The set at 1 + i has those whose number is at
        least the i-th; the last one is empty.
        """
        known = self._ordered.get(key)
        if known is None:
            having = self._having.get(key, {})
            present, by_number = 0, defaultdict[int, int](int)
            for value, nodes in having.items():
                present |= nodes
                with suppress(ValueError):
                    by_number[int(value)] |= nodes
            numbers = sorted(by_number)
            sets = [0]
            for number in reversed(numbers):
                sets.append(sets[-1] | by_number[number])
            known = numbers, [present, *reversed(sets)]
            if having:  # tenants choose the keys that are asked, administrators those that exist
                self._ordered[key] = known
        return known


def _union(having: Mapping[str, int], values: Iterable[str]) -> int:
    found = 0
    for value in values:
        found |= having.get(value, 0)
    return found
