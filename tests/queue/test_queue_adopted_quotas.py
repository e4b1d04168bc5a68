"""A quota on NVIDIA's resource goes on counting in an adopted namespace."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_extender.quotas.adopted import COUNTED, LABEL, OURS, changes, counterpart


def quota(
    name: str = "gpus", namespace: str = "team", hard: str = "4", used: str = "0", **spec: Any
) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": f"u-{name}"},
        "spec": {"hard": {COUNTED: hard, "pods": "10"}, **spec},
        "status": {"used": {COUNTED: used}},
    }


def kept(body: dict[str, Any]) -> dict[str, Any]:
    metadata = {**body["metadata"], "resourceVersion": "7", "uid": "u-kept"}
    return {**body, "metadata": metadata}


@pytest.mark.parametrize(
    ("hard", "used", "left"), [("4", "0", "4"), ("4", "3", "1"), ("1", "2", "0")]
)
def test_the_second_quota_has_what_the_first_one_leaves(hard: str, used: str, left: str) -> None:
    made = counterpart(quota(hard=hard, used=used))
    assert made is not None
    assert made["spec"] == {"hard": {OURS: left}}
    assert made["metadata"]["name"] == "tandem-gpus"
    assert made["metadata"]["ownerReferences"][0]["uid"] == "u-gpus"


def test_quotas_that_count_no_gpus_have_no_counterpart() -> None:
    plain = quota()
    del plain["spec"]["hard"][COUNTED]
    assert counterpart(plain) is None
    made = counterpart(quota())
    assert made is not None
    made["spec"]["hard"][COUNTED] = "1"
    assert counterpart(made) is None, "one of ours"


def test_scopes_are_kept_and_a_priority_class_is_not() -> None:
    by_class = {"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}
    other = {"scopeName": "NotTerminating", "operator": "Exists"}
    made = counterpart(
        quota(scopes=["NotTerminating"], scopeSelector={"matchExpressions": [by_class, other]})
    )
    assert made is not None
    assert made["spec"]["scopes"] == ["NotTerminating"]
    assert made["spec"]["scopeSelector"] == {"matchExpressions": [other]}


def test_only_adopted_namespaces_are_looked_after() -> None:
    create, replace, delete = changes([quota(), quota(namespace="other")], frozenset({"team"}))
    assert [body["metadata"]["namespace"] for body in create] == ["team"]
    assert (replace, delete) == ([], [])


def test_a_bound_that_changes_is_followed_and_an_end_of_adoption_too() -> None:
    made = counterpart(quota())
    assert made is not None
    mine = kept(made)
    assert mine["metadata"]["labels"] == {LABEL: "true"}
    assert changes([quota(), mine], frozenset({"team"})) == ([], [], [])
    create, (changed,), delete = changes([quota(hard="8"), mine], frozenset({"team"}))
    assert (create, delete) == ([], [])
    assert changed["spec"]["hard"] == {OURS: "8"}
    assert changed["metadata"]["resourceVersion"] == "7"
    assert changes([quota(), mine], frozenset()) == ([], [], [mine])
    assert changes([mine], frozenset({"team"})) == ([], [], [mine])
