"""filter, prioritize and preempt only read: nothing that they call inserts into the state."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields, is_dataclass
from types import FunctionType, MethodType

import numpy as np
import pytest
from extender_builders import NOW, gpu_job, gpu_node, load, pod

from scheduler_extender.cluster.pods import pod_info
from scheduler_extender.cluster.state import ClusterState
from scheduler_extender.verbs.answers import Verbs
from scheduler_extender.verbs.wire import PREEMPT
from tandem.contracts import names
from tandem.policy.catalog import load_profile

PIPELINE = load_profile("tandem").pipeline()
NODES = [f"n{i}" for i in range(8)]


def contents(thing: object, seen: dict[int, object] | None = None) -> object:
    """Return all values that can be reached from an object, as nested tuples."""
    seen = {} if seen is None else seen
    if isinstance(thing, str | bytes | int | float | bool | type | FunctionType | None):
        return thing
    if isinstance(thing, np.ndarray):
        if thing.dtype == np.object_:
            return contents(thing.tolist(), seen)
        return thing.shape, hashlib.sha256(thing.tobytes()).hexdigest()
    if id(thing) in seen:
        return "..."
    seen[id(thing)] = thing  # kept alive, so that no other object gets its id
    if isinstance(thing, dict):
        return tuple((contents(key, seen), contents(each, seen)) for key, each in thing.items())
    if isinstance(thing, list | tuple):
        return tuple(contents(each, seen) for each in thing)
    if isinstance(thing, set | frozenset):
        return tuple(sorted(map(repr, thing)))
    if isinstance(thing, MethodType):
        return contents(thing.__self__, seen)
    if is_dataclass(thing):
        return tuple(contents(getattr(thing, each.name), seen) for each in fields(thing))
    slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    named = {name: getattr(thing, name) for name in slots if hasattr(thing, name)}
    return contents(named | getattr(thing, "__dict__", {}), seen)


def cluster() -> ClusterState:
    """Eight nodes, a pod that runs on the first, and gangs whose loads have no class yet."""
    state = ClusterState(now_s=NOW)
    for name in NODES:
        state.upsert("gpunodes", gpu_node(name, f"{name}-a", f"{name}-b"))
    state.upsert("pods", pod("runs", node_name="n0", devices="n0-a", phase="Running"))
    state.upsert("gpujobs", gpu_job("pod-learned", job_load=load(10, utilisation=33)))
    state.upsert("pods", pod("learned", uid="uid-ml-learned"))
    # Two views of the table are derived once for each layout, at their first use.
    assert state.table.across.size > 0
    assert len(state.gpus) > 0
    return state


QUESTIONS = {
    "a pod that the state has": pod("learned", uid="uid-ml-learned"),
    "a pod that the state has not seen": pod("unseen", utilisation="57"),
    "a pod that says nothing of its load": pod("bare", memory=None),
    "a pod that names a model": pod("named", annotations={names.MODEL: "resnet50"}),
    "a pod that never shares": pod("alone", exclusive=True),
    "a pod that fits nowhere": pod("wide", 4),
    "a pod without GPUs": pod("none", 0),
}


@pytest.mark.parametrize("asked", QUESTIONS.values(), ids=QUESTIONS)
def test_no_verb_that_asks_changes_the_state(asked: dict) -> None:
    state = cluster()
    verbs = Verbs(state, PIPELINE)
    before = contents(state)
    body = json.dumps({"Pod": asked, "Nodes": None, "NodeNames": [*NODES, "gone"]}).encode()
    passed = json.loads(verbs.filter(verbs.read(body)))["NodeNames"]
    next_body = {"Pod": asked, "Nodes": None, "NodeNames": passed}
    verbs.prioritize(verbs.read(json.dumps(next_body, separators=(",", ":")).encode()))
    victims = {"n0": {"Pods": [{"UID": "uid-ml-runs"}], "NumPDBViolations": 0}}
    proposed = {"Pod": asked, "NodeNameToMetaVictims": victims}
    verbs.preempt(PREEMPT.validate_json(json.dumps(proposed)))
    assert contents(state) == before


def test_a_load_without_a_class_is_priced_as_its_class_would_be() -> None:
    state = cluster()
    asked = pod_info(QUESTIONS["a pod that the state has not seen"])
    read = state.worker(asked)
    held = state.worker_to_hold(asked)
    runs = state.pod("uid-ml-runs")
    assert runs is not None
    neighbour = state.worker(runs.pod).interference_class
    assert read.own_slowdown[neighbour] == held.own_slowdown[neighbour] > 0
    assert read.caused_slowdown[neighbour] == held.caused_slowdown[neighbour]


def test_what_filter_found_serves_the_next_prioritize_and_no_other_pod() -> None:
    """The answer of prioritize is the same with and without a filter before it."""
    state = cluster()
    asked, other = pod("one", utilisation="20"), pod("other", 2, utilisation="80")
    body = json.dumps({"Pod": asked, "Nodes": None, "NodeNames": NODES}).encode()
    others = json.dumps({"Pod": other, "Nodes": None, "NodeNames": NODES}).encode()
    fresh = {each: Verbs(state, PIPELINE).prioritize(Verbs(state, PIPELINE).read(each))
             for each in (body, others)}  # fmt: skip
    verbs = Verbs(state, PIPELINE)
    verbs.filter(verbs.read(body))
    assert verbs.prioritize(verbs.read(others)) == fresh[others]
    assert verbs.prioritize(verbs.read(body)) == fresh[body]
    state.upsert("pods", pod("new", node_name="n3", devices="n3-a", phase="Running"))
    changed = Verbs(state, PIPELINE)
    assert verbs.prioritize(verbs.read(body)) == changed.prioritize(changed.read(body))
