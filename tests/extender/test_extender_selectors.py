"""What a pod requires of its node: compiled once, evaluated on sets of nodes, and bounded."""

from __future__ import annotations

from typing import Any

import pytest
from extender_builders import gpu_node, node, pod
from hypothesis import given
from hypothesis import strategies as st

from scheduler_extender.cluster import nodes as node_book
from scheduler_extender.cluster.pods import pod_info
from scheduler_extender.cluster.selectors import (
    MAX_NODE_REQUIREMENTS,
    MAX_NODE_VALUES,
    MAX_TOLERATIONS,
    NodeRequirements,
    node_requirements,
)
from scheduler_extender.cluster.state import ClusterState

KEYS, VALUES = ("zone", "size", "disk"), ("a", "b", "2", "10", "-3", "")
OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Like")
labels = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES), max_size=3)
expressions = st.fixed_dictionaries(
    {
        "key": st.sampled_from(KEYS),
        "operator": st.sampled_from(OPERATORS),
        "values": st.lists(st.sampled_from(VALUES), max_size=2),
    }
)
fields = st.fixed_dictionaries(
    {
        "key": st.just("metadata.name"),
        "operator": st.sampled_from(("In", "NotIn")),
        "values": st.lists(st.sampled_from(("n0", "n1", "n2")), min_size=1, max_size=1),
    }
)
terms = st.fixed_dictionaries(
    {},
    optional={
        "matchExpressions": st.lists(expressions, max_size=2),
        "matchFields": st.lists(fields, max_size=2),
    },
)
effects = st.sampled_from(("NoSchedule", "NoExecute"))
taints = st.fixed_dictionaries(
    {"key": st.sampled_from(KEYS), "effect": effects},
    optional={"value": st.sampled_from(("a", "b"))},
)
tolerations = st.fixed_dictionaries(
    {},
    optional={
        "key": st.sampled_from((*KEYS, "")),
        "operator": st.sampled_from(("Exists", "Equal", "")),
        "value": st.sampled_from(("a", "b", "")),
        "effect": st.one_of(effects, st.just("")),
    },
)


def affinity(chosen: list[dict[str, Any]] | None) -> dict[str, Any]:
    if chosen is None:
        return {}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": chosen}}
    return {"nodeAffinity": required}


def holds(asked: dict[str, Any], value: str | None) -> bool:
    """Evaluate one requirement as the API documentation states it."""
    values = asked["values"]
    match asked["operator"]:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            try:
                left, right = int(value or ""), int(values[0])
            except (ValueError, IndexError):
                return False
            return left > right if operator == "Gt" else left < right
    return False


def tolerated(taint: dict[str, Any], by: dict[str, Any]) -> bool:
    if by.get("effect") not in (None, "", taint["effect"]):
        return False
    if by.get("operator") == "Exists":
        return by.get("key") in (None, "", taint["key"])
    return by.get("key", "") == taint["key"] and by.get("value", "") == taint.get("value", "")


def suits(spec: dict[str, Any], name: str, has: dict[str, str], tainted: list[Any]) -> bool:
    """Decide for one node, slowly and obviously."""
    chosen = spec["terms"]
    return (
        all(any(tolerated(taint, each) for each in spec["tolerations"]) for taint in tainted)
        and all(has.get(key) == value for key, value in spec["selector"].items())
        and (
            chosen is None
            or any(
                (term.get("matchExpressions") or term.get("matchFields"))
                and all(holds(e, has.get(e["key"])) for e in term.get("matchExpressions", ()))
                and all(holds(e, name) for e in term.get("matchFields", ()))
                for term in chosen
            )
        )
    )


specs = st.fixed_dictionaries(
    {
        "selector": labels,
        "terms": st.one_of(st.none(), st.lists(terms, max_size=3)),
        "tolerations": st.lists(tolerations, max_size=3),
    }
)
fleets = st.lists(st.tuples(labels, st.lists(taints, max_size=2)), min_size=3, max_size=3)


@given(spec=specs, first=fleets, second=fleets)
def test_sets_of_nodes_agree_with_one_node_at_a_time(spec: Any, first: Any, second: Any) -> None:
    found = ClusterState(now_s=0)
    asks = pod_info(
        pod(
            "p",
            nodeSelector=spec["selector"],
            tolerations=spec["tolerations"],
            affinity=affinity(spec["terms"]),
        )
    )
    for index in range(3):
        found.upsert("gpunodes", gpu_node(f"n{index}", f"g{index}"))
    for version, fleet in enumerate((first, second)):  # labels change while the index is kept
        for index, (has, tainted) in enumerate(fleet):
            body = node(f"n{index}", labels=has, taints=tainted)
            body["metadata"]["resourceVersion"] = str(100 + 10 * version + index)
            found.upsert("nodes", body)
        assert found.eligible_nodes(asks).tolist() == [
            suits(spec, f"n{index}", has, tainted) for index, (has, tainted) in enumerate(fleet)
        ]


def test_a_node_that_is_gone_is_in_no_set() -> None:
    found = ClusterState(now_s=0)
    for name in ("n0", "n1"):
        found.upsert("gpunodes", gpu_node(name, f"g-{name}"))
        found.upsert("nodes", node(name, labels={"zone": "a"}))
    asks = pod_info(pod("p", nodeSelector={"zone": "a"}))
    assert found.eligible_nodes(asks).tolist() == [True, True]
    found.delete("nodes", node("n1", labels={"zone": "a"}))
    assert found.eligible_nodes(asks).tolist() == [True, False]


IN_ZONE = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"affinity": affinity([IN_ZONE] * 15_000)}, f"at most {MAX_NODE_REQUIREMENTS}"),
        ({"nodeSelector": {f"k{i}": "v" for i in range(300)}}, "there are 300"),
        ({"tolerations": [{"key": "a"}] * 300}, f"at most {MAX_TOLERATIONS}"),
        (
            {
                "affinity": affinity(
                    [{"matchFields": [{"key": "metadata.name", "operator": "In",
                                       "values": [f"n{i}" for i in range(MAX_NODE_VALUES + 1)]}]}]
                )
            },
            f"at most {MAX_NODE_VALUES} values",
        ),
    ],
)  # fmt: skip
def test_what_exceeds_the_bounds_is_not_evaluated_and_says_why(
    spec: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod from before the bounds is eligible on no node; no term of it is looked at."""
    asks = pod_info(pod("p", **spec))
    assert said in asks.requires.refused
    assert asks.requires.terms is None
    found = ClusterState(now_s=0)
    found.upsert("gpunodes", gpu_node("n0", "g0"))
    found.upsert("nodes", node("n0", labels={"zone": "a"}))
    assert found.eligible_nodes(asks).tolist() == [False]


def test_equal_requirements_are_compiled_and_evaluated_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = ClusterState(now_s=0)
    found.upsert("gpunodes", gpu_node("n0", "g0"))
    found.upsert("nodes", node("n0", labels={"zone": "a"}))
    first, second = (pod_info(pod(name, affinity=affinity([IN_ZONE]))) for name in ("a", "b"))
    assert first.requires is second.requires
    evaluated: list[NodeRequirements] = []
    suiting = node_book.NodeBook._suiting
    monkeypatch.setattr(
        node_book.NodeBook,
        "_suiting",
        lambda book, required: evaluated.append(required) or suiting(book, required),
    )
    for _ in range(3):
        assert found.eligible_nodes(first).tolist() == [True]
        assert found.eligible_nodes(second).tolist() == [True]
    assert evaluated == [first.requires]
    other = node_requirements({}, (), affinity([{"matchExpressions": [], "matchFields": []}]))
    assert other != first.requires
