"""filter, prioritize and preempt, as kube-scheduler asks them."""

from __future__ import annotations

import copy
import json
import random

import numpy as np
import pytest
from extender_builders import NOW, gpu, gpu_job, gpu_node, load, node, pod
from pydantic import TypeAdapter, ValidationError

from scheduler_extender.cluster.state import ClusterState
from scheduler_extender.verbs.answers import MalformedPodError, Verbs
from scheduler_extender.verbs.wire import FILTER, PREEMPT, ExtenderFilterResult, HostPriority
from tandem.policy.catalog import load_profile
from tandem.policy.cluster import GpuArrays
from tandem.policy.job import Job
from tandem.policy.pipeline import Pipeline
from tandem.policy.units import Bools

PIPELINE = load_profile("tandem").pipeline()


def cluster(*objects: tuple[str, dict]) -> tuple[ClusterState, Verbs]:
    state = ClusterState(now_s=NOW)
    for kind, obj in objects:
        state.upsert(kind, obj)
    return state, Verbs(state, PIPELINE)


def ask(asks: dict, *nodes: str, **more) -> dict:
    body = {"Pod": asks, "Nodes": None, "NodeNames": list(nodes), **more}
    return FILTER.validate_json(json.dumps(body))


def filtered(verbs: Verbs, asks: dict, *nodes: str, **more) -> dict:
    answer = TypeAdapter(ExtenderFilterResult).validate_json(
        verbs.filter(ask(asks, *nodes, **more))
    )
    assert answer["Error"] == ""
    return answer


def scores(verbs: Verbs, asks: dict, *nodes: str) -> dict[str, int]:
    answer = TypeAdapter(list[HostPriority]).validate_json(
        verbs.prioritize(ask(asks, *nodes)), strict=True
    )
    return {line["Host"]: line["Score"] for line in answer}


def running(name: str, where: str, devices: str, **more) -> tuple[str, dict]:
    return "pods", pod(name, node_name=where, devices=devices, phase="Running", **more)


def question(asks: dict, nodes: list[str]) -> bytes:
    body = {"Pod": asks, "Nodes": None, "NodeNames": nodes}
    return json.dumps(body, separators=(",", ":")).encode()  # as Go writes it


def test_names_that_filter_let_through_are_known_again_as_bytes() -> None:
    _, verbs = cluster(*(("gpunodes", gpu_node(f"n{i}", f"g{i}")) for i in range(4)))
    asks = pod("p")
    passed = json.loads(verbs.filter(verbs.read(question(asks, ["n3", "gone", "n0", "n1"]))))
    assert passed["NodeNames"] == ["n3", "n0", "n1"]
    body = question(asks, ["n3", "n0", "n1"])
    assert verbs.read(body) == FILTER.validate_json(body)
    shown = [line["Host"] for line in json.loads(verbs.prioritize(verbs.read(body)))]
    assert shown == ["n3", "n0", "n1"]
    other = {"labels": {"NodeNames": '"NodeNames":["n3","n0","n1"]}'}}
    asks["metadata"] |= other
    for nodes in (["n3", "n0", "n1"], ["n0", "n3", "n1"], ["n1"], []):
        assert verbs.read(question(asks, nodes)) == FILTER.validate_json(question(asks, nodes))


@pytest.mark.parametrize(
    "change",
    [
        lambda body: b'{"Pod":{"x":' + body,
        lambda body: body.replace(b',"NodeNames"', b'"NodeNames"'),
        lambda body: body.replace(b'"Nodes":null', b'"Nodes":7'),
        lambda body: body[body.index(b'"NodeNames"') :],
        lambda body: body + b"}",
    ],
)
def test_a_question_that_only_ends_as_expected_is_refused_as_ever(change) -> None:
    _, verbs = cluster(("gpunodes", gpu_node("n0", "a")))
    body = question(pod("p"), ["n0"])
    verbs.filter(verbs.read(body))
    with pytest.raises(ValidationError):
        verbs.read(change(body))


def test_answers_have_room_for_many_nodes_with_names_of_any_length() -> None:
    names = [f"n{i}-{'x' * (i * 7 % 60)}" for i in range(150)]
    _, verbs = cluster(*(("gpunodes", gpu_node(name, f"gpu-{name}")) for name in names))
    assert filtered(verbs, pod("p"), *names)["NodeNames"] == names
    assert list(scores(verbs, pod("p"), *names)) == names
    assert set(filtered(verbs, pod("big", memory="900Gi"), *names)["FailedNodes"]) == set(names)


def test_nodes_with_a_gpu_that_may_be_shared_pass() -> None:
    _, verbs = cluster(
        ("gpunodes", gpu_node("n0", "a")),
        ("gpunodes", gpu_node("n1", gpu("b", memory_gib=15))),
        running("old", "n0", "a"),
        running("other", "n1", "b"),
    )
    answer = filtered(verbs, pod("new"), "n0", "n1", "n2")
    assert answer["NodeNames"] == ["n0"]
    assert answer["FailedNodes"] == {
        "n1": "1 GPU: the memory is too small (20.0 GiB needed, 15.0 GiB there, 5.0 GiB too little)"
    }
    assert answer["FailedAndUnresolvableNodes"] == {"n2": "no Tandem node agent reports here"}


def test_no_node_fits_is_null_and_each_reason_counts_gpus_and_has_figures() -> None:
    _, verbs = cluster(
        ("gpunodes", gpu_node("n0", "a", "b", gpu("c", health="Quarantined"))),
        running("x", "n0", "a", exclusive=True),
        running("y", "n0", "b"),
        running("z", "n0", "b", namespace="other"),
    )
    answer = filtered(verbs, pod("new"), "n0")
    assert answer["NodeNames"] is None
    assert answer["FailedNodes"]["n0"] == (
        "1 GPU: a job runs that does not share its GPU; 1 GPU: all places for jobs are taken"
        " (2 of 2); 1 GPU: nothing new starts because of a fault"
    )


def test_a_pod_of_two_gpus_needs_both_on_one_node() -> None:
    _, verbs = cluster(
        ("gpunodes", gpu_node("n0", "a", "b")),
        ("gpunodes", gpu_node("n1", "a")),
        ("gpunodes", gpu_node("n2", "a", "b")),
        running("x", "n2", "b", exclusive=True),
    )
    answer = filtered(verbs, pod("new", gpus=2), "n0", "n1", "n2")
    assert answer["NodeNames"] == ["n0"]
    assert answer["FailedNodes"] == {
        "n2": "1 of the 2 GPUs wanted; 1 GPU: a job runs that does not share its GPU"
    }
    assert answer["FailedAndUnresolvableNodes"] == {"n1": "has fewer than 2 GPUs in all"}


def test_many_refused_nodes_share_their_words() -> None:
    nodes = [f"n{i}" for i in range(30)]
    _, verbs = cluster(
        *[("gpunodes", gpu_node(node, "a")) for node in nodes],
        *[running(f"p{node}", node, "a", exclusive=True) for node in nodes],
    )
    reasons = filtered(verbs, pod("new"), *nodes)["FailedNodes"]
    assert list(reasons) == nodes
    assert reasons["n3"] == "1 GPU: a job runs that does not share its GPU"
    assert {reasons[node] for node in nodes[4:]} == {
        "fewer than 1 GPU can take it, mostly because a job runs that does not share its GPU"
    }


def test_nodes_refused_for_several_reasons_each_have_theirs() -> None:
    nodes = [f"n{i}" for i in range(30)]
    state, verbs = cluster(
        *[("gpunodes", gpu_node(node, gpu("a", health="Quarantined"))) for node in nodes[:15]],
        *[("gpunodes", gpu_node(node, "a")) for node in nodes[15:]],
        *[running(f"p{node}", node, "a", exclusive=True) for node in nodes[15:]],
    )
    reasons = filtered(verbs, pod("new"), *reversed(nodes))["FailedNodes"]
    assert list(reasons) == nodes[::-1]
    assert {reasons[node] for node in nodes[:15]} == {
        "fewer than 1 GPU can take it, mostly because nothing new starts because of a fault"
    }
    assert {reasons[node] for node in nodes[15:26]} == {
        "fewer than 1 GPU can take it, mostly because a job runs that does not share its GPU"
    }
    assert reasons == filtered(Verbs(state, PIPELINE), pod("new"), *reversed(nodes))["FailedNodes"]


def test_one_refused_pod_after_another_is_answered_about_the_nodes_of_then() -> None:
    nodes = [f"n{i}" for i in range(12)]
    state, verbs = cluster(
        *[("gpunodes", gpu_node(node, "a")) for node in nodes],
        *[running(f"p{node}", node, "a", exclusive=True) for node in nodes],
    )

    def same_as_at_first(*asked: str) -> dict:
        answer = filtered(verbs, pod("new"), *asked)
        assert answer == filtered(Verbs(state, PIPELINE), pod("new"), *asked)
        return answer

    assert same_as_at_first(*nodes)["NodeNames"] is None
    assert same_as_at_first(*nodes)["NodeNames"] is None
    state.upsert("pods", pod("pn5", node_name="n5", phase="Succeeded"))
    assert same_as_at_first(*nodes)["NodeNames"] == ["n5"]
    assert same_as_at_first(*nodes[:4])["NodeNames"] is None
    state.delete("gpunodes", gpu_node("n0"))
    state.upsert("gpunodes", gpu_node("m", "a"))  # in the place of the other
    answer = same_as_at_first(*nodes[:4])
    assert answer["FailedAndUnresolvableNodes"] == {"n0": "no Tandem node agent reports here"}
    assert same_as_at_first("m", *nodes[:4])["NodeNames"] == ["m"]


def test_the_pods_own_plan_does_not_stand_in_its_way_but_others_do() -> None:
    plan = gpu_job("pod-mine", plan=[("mine", "n0", ["a"])], job_load=load(60))
    _, verbs = cluster(("gpunodes", gpu_node("n0", "a")), ("gpujobs", plan))
    assert filtered(verbs, pod("mine", uid="mine"), "n0")["NodeNames"] == ["n0"]
    assert filtered(verbs, pod("other", memory="60Gi"), "n0")["NodeNames"] is None


def test_the_planned_node_gets_ten_and_the_others_eight_at_most() -> None:
    plan = gpu_job("pod-mine", plan=[("mine", "n2", ["c"])], job_load=load(10))
    _, verbs = cluster(
        *[
            ("gpunodes", gpu_node(node, gpu_id))
            for node, gpu_id in zip(["n0", "n1", "n2"], "abc", strict=True)
        ],
        ("gpujobs", plan),
        running("old", "n0", "a"),
    )
    assert scores(verbs, pod("mine", uid="mine"), "n0", "n1", "n2", "n3") == {
        "n0": 8,  # in use already, and cheap
        "n1": 0,
        "n2": 10,
        "n3": 0,
    }
    assert scores(verbs, pod("web", gpus=0), "n0") == {"n0": 0}


def test_scores_of_several_gpus_are_those_of_the_best_together() -> None:
    _, verbs = cluster(
        ("gpunodes", gpu_node("n0", "a", "b", "c")),
        ("gpunodes", gpu_node("n1", "d", "e", "f")),
        ("gpunodes", gpu_node("n2", "g", "h")),
        running("x", "n0", "a"),
        running("y", "n1", "d,e", gpus=2),
    )
    found = scores(verbs, pod("new", gpus=2), "n0", "n1", "n2")
    assert found["n1"] == 8 > found["n0"] > found["n2"] == 0
    assert scores(verbs, pod("new", gpus=3), "n0", "n1", "n2")["n2"] == 0


def test_questions_change_nothing_and_an_answer_is_not_kept_past_a_change() -> None:
    state, verbs = cluster(("gpunodes", gpu_node("n0", "a")))
    before = state.table.generation
    assert filtered(verbs, pod("new", uid="u"), "n0")["NodeNames"] == ["n0"]
    assert scores(verbs, pod("new", uid="u"), "n0") == {"n0": 8}
    assert state.table.generation == before
    state.upsert(*running("x", "n0", "a", exclusive=True))
    assert filtered(verbs, pod("new", uid="u"), "n0")["NodeNames"] is None


class Widest:
    """A constraint that allows all, and how many GPUs it was asked about at most."""

    kind = "widest"
    rows = 0

    def __call__(self, _: Job, gpus: GpuArrays) -> Bools:
        self.rows = max(self.rows, len(gpus))
        return np.ones(len(gpus), dtype=np.bool_)


def test_a_question_about_one_node_is_answered_from_the_gpus_of_that_node() -> None:
    state, _ = cluster(*(("gpunodes", gpu_node(f"n{i}", "a", "b")) for i in range(20)))
    widest = Widest()
    verbs = Verbs(state, Pipeline((widest,)))
    assert filtered(verbs, pod("p"), "n7")["NodeNames"] == ["n7"]
    assert scores(verbs, pod("p"), "n7") == {"n7": 8}
    assert widest.rows == 2


def test_one_node_is_judged_as_it_is_among_all(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(30):
        names = [f"n{i}" for i in range(draw.randint(2, 5))]
        gpus = {name: [f"{name}-{i}" for i in range(draw.randint(1, 3))] for name in names}
        planned = draw.choice(names)
        plan = gpu_job(
            "pod-p", plan=[("p", planned, [gpus[planned][0]])], job_load=load(draw.choice((10, 70)))
        )
        _, verbs = cluster(
            *(("nodes", storing(name, draw.choice(("1", "9")))) for name in names),
            *(("gpunodes", gpu_node(name, *gpus[name])) for name in names),
            *(
                running(f"r{i}", node, draw.choice(gpus[node]), exclusive=draw.random() < 0.3)
                for i, node in enumerate(draw.choices(names, k=4))
            ),
            *([("gpujobs", plan)] if draw.random() < 0.7 else []),
        )
        asks = pod("p", draw.choice((1, 1, 2, 3)), uid="p", memory=draw.choice(("10Gi", "75Gi")))
        without_disk = copy.deepcopy(asks)
        if draw.random() < 0.5:
            asks["spec"]["containers"][0]["resources"]["requests"]["example.com/disk"] = "5"
        together = filtered(verbs, asks, *names, "gone")
        scored = scores(verbs, asks, *names, "gone")
        for name in (*names, "gone"):
            alone = filtered(verbs, asks, name)
            passes = name in (together["NodeNames"] or ())
            assert alone["NodeNames"] == ([name] if passes else None)
            for refusals in ("FailedNodes", "FailedAndUnresolvableNodes"):
                expected = {key: why for key, why in together[refusals].items() if key == name}
                if len(names) <= 4 or refusals != "FailedNodes":  # the first four in full
                    assert alone[refusals] == expected
                assert alone[refusals].keys() == expected.keys()
            score = scores(verbs, asks, name)[name]
            gpus_do = filtered(verbs, without_disk, name)["NodeNames"] == [name]
            assert score == (10 if scored[name] == 10 else 8 if gpus_do else 0)


def storing(name: str, disks: str) -> dict:
    """A node with some of another resource."""
    found = node(name)
    found["status"]["allocatable"]["example.com/disk"] = disks
    return found


def test_whole_nodes_and_pods_without_gpus_are_answered_too() -> None:
    _, verbs = cluster(("gpunodes", gpu_node("n0", "a")))
    nodes = {"items": [{"metadata": {"name": "n0"}}, {"metadata": {"name": "n1"}}]}
    assert filtered(verbs, pod("new"), NodeNames=None, Nodes=nodes)["NodeNames"] == ["n0"]
    assert filtered(verbs, pod("web", gpus=0), "n7")["NodeNames"] == ["n7"]
    assert filtered(verbs, pod("new"))["NodeNames"] is None


def test_a_profile_may_have_no_constraints_and_no_scorers() -> None:
    state, _ = cluster(("gpunodes", gpu_node("n0", "a")))
    verbs = Verbs(state, Pipeline(()))
    answer = filtered(verbs, pod("new"), "n0", "n1")
    assert answer["NodeNames"] == ["n0"]
    assert list(answer["FailedAndUnresolvableNodes"]) == ["n1"]
    assert scores(verbs, pod("new"), "n0", "n1") == {"n0": 8, "n1": 0}


def test_names_of_any_kind_come_back_as_they_are() -> None:
    odd = ['a"b', "ü" * 40, "x" * 250]
    _, verbs = cluster(*[("gpunodes", gpu_node(name, "a")) for name in odd])
    assert filtered(verbs, pod("new"), *odd)["NodeNames"] == odd
    assert list(scores(verbs, pod("new"), *odd)) == odd
    refused = filtered(verbs, pod("big", memory="200Gi"), *odd, "y")
    assert list(refused["FailedNodes"]) == odd


def test_a_pod_that_came_past_the_webhook_with_unreadable_annotations_gets_whole_gpus() -> None:
    _, verbs = cluster(("gpunodes", gpu_node("n0", "a", "b")), running("x", "n0", "a"))
    odd = pod("odd", memory="lots")
    assert filtered(verbs, odd, "n0")["NodeNames"] == ["n0"]
    assert filtered(verbs, pod("odd", 2, memory="lots"), "n0")["NodeNames"] is None


@pytest.mark.parametrize("asks", [{}, {"metadata": {"name": "x"}}, pod("x", gpus="many")])
def test_a_malformed_pod_is_an_error_of_the_caller(asks: dict) -> None:
    _, verbs = cluster()
    with pytest.raises(MalformedPodError):
        verbs.filter(ask(asks, "n0"))


def test_preemption_keeps_the_nodes_where_the_victims_would_free_a_gpu_that_fits() -> None:
    _, verbs = cluster(
        ("gpunodes", gpu_node("n0", "a")),
        ("gpunodes", gpu_node("n1", "b")),
        running("v0", "n0", "a", exclusive=True, uid="v0"),
        running("v1", "n1", "b", exclusive=True, uid="v1"),
    )
    victims = {"n0": {"Pods": [{"UID": "v0"}], "NumPDBViolations": 1}, "n1": {"Pods": []}}
    args = PREEMPT.validate_json(json.dumps({"Pod": pod("new"), "NodeNameToMetaVictims": victims}))
    assert verbs.preempt(args) == {"n0": victims["n0"]}
    whole = {"n0": {"Pods": [{"metadata": {"uid": "v0"}, "spec": {}}], "NumPDBViolations": 0}}
    args = PREEMPT.validate_json(json.dumps({"Pod": pod("new"), "NodeNameToVictims": whole}))
    assert verbs.preempt(args) == {"n0": {"Pods": [{"UID": "v0"}], "NumPDBViolations": 0}}
