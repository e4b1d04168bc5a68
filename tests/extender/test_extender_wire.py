"""The extender protocol: what is read of a request, and how an answer is put together."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from scheduler_extender.verbs.wire import (
    BIND,
    FILTER,
    PREEMPT,
    asked_nodes,
    asked_victims,
    encode,
    filter_answer,
)

ARGS = {"PodName": "p", "PodNamespace": "ml", "PodUID": "u", "Node": "n0"}


def named(*names: str) -> dict[str, Any]:
    return {"items": [{"metadata": {"name": name}} for name in names]}


@pytest.mark.parametrize(
    ("args", "nodes"),
    [
        ({"NodeNames": ["n1", "n0"]}, ["n1", "n0"]),
        ({"NodeNames": []}, []),
        ({"NodeNames": ["n0"], "Nodes": named("n1")}, ["n0"]),
        ({"NodeNames": [], "Nodes": named("n1")}, []),
        ({"NodeNames": None, "Nodes": named("n1", "n0")}, ["n1", "n0"]),
        ({"Nodes": {"items": None}}, []),
        ({"Nodes": None}, []),
        ({}, []),
        ({"Nodes": {"items": [{}, {"metadata": {}}]}}, ["", ""]),
    ],
)
def test_nodes_are_read_whichever_way_they_were_sent(args: dict, nodes: list[str]) -> None:
    assert asked_nodes(FILTER.validate_json(json.dumps(args))) == nodes


def test_victims_are_read_whichever_way_they_were_sent() -> None:
    meta = {"n0": {"Pods": [{"UID": "a"}, {"UID": "b"}], "NumPDBViolations": 2}}
    sent = PREEMPT.validate_json(json.dumps({"NodeNameToMetaVictims": meta}))
    assert asked_victims(sent) == meta
    pods = [{"metadata": {"uid": "a", "name": "x"}}, {"metadata": {"uid": "b"}}, {}]
    whole = {"n0": {"Pods": pods, "NumPDBViolations": 2}, "n1": {"Pods": None}}
    sent = PREEMPT.validate_json(json.dumps({"NodeNameToVictims": whole}))
    assert asked_victims(sent) == {
        "n0": {"Pods": [{"UID": "a"}, {"UID": "b"}, {"UID": ""}], "NumPDBViolations": 2},
        "n1": {"Pods": [], "NumPDBViolations": 0},
    }
    both = {"NodeNameToMetaVictims": {}, "NodeNameToVictims": whole}
    assert asked_victims(PREEMPT.validate_json(json.dumps(both))) == {}
    assert asked_victims(PREEMPT.validate_json(b"{}")) == {}


def test_what_nothing_reads_is_dropped() -> None:
    spec = {"nodeName": "n0", "volumes": [{}], "containers": [{"name": "c", "image": "i"}]}
    pod = {"metadata": {"name": "p", "managedFields": [{}]}, "spec": spec, "status": {}}
    read = FILTER.validate_json(json.dumps({"Pod": pod, "Extra": 1}))
    assert read == {
        "Pod": {"metadata": {"name": "p"},
                "spec": {"nodeName": "n0", "containers": [{"name": "c"}]}},
    }  # fmt: skip


@pytest.mark.parametrize("missing", sorted(ARGS))
def test_a_binding_names_the_pod_exactly_and_its_node(missing: str) -> None:
    assert BIND.validate_json(json.dumps(ARGS)) == ARGS
    with pytest.raises(ValidationError):
        BIND.validate_json(json.dumps({k: v for k, v in ARGS.items() if k != missing}))
    with pytest.raises(ValidationError):
        BIND.validate_json(json.dumps(ARGS | {missing: None}))
    longest = ARGS | {missing: "x" * 4096}
    assert BIND.validate_json(json.dumps(longest)) == longest
    with pytest.raises(ValidationError):
        BIND.validate_json(json.dumps(ARGS | {missing: "x" * 4097}))


@pytest.mark.parametrize(
    ("fitting", "nodes"), [(b"", None), (b'"a"', ["a"]), (b'"a","b"', ["a", "b"])]
)
def test_an_answer_to_filter_has_the_fields_of_the_protocol(
    fitting: bytes, nodes: list[str] | None
) -> None:
    assert json.loads(filter_answer(fitting, (b"", b'"c":"why"', b""), b'"d":"never"')) == {
        "Nodes": None,
        "NodeNames": nodes,
        "FailedNodes": {"c": "why"},
        "FailedAndUnresolvableNodes": {"d": "never"},
        "Error": "",
    }
    assert json.loads(filter_answer(fitting))["FailedNodes"] == {}


def test_other_answers_are_json_without_spaces() -> None:
    assert encode({"Error": "", "n": [1, 2]}) == b'{"Error":"","n":[1,2]}'
