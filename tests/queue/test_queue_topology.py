"""Gangs that ask for a level of topology, from the labels of nodes to plans, in memory."""

from __future__ import annotations

import json
from typing import Any

import pytest
from queue_builders import raw_pod
from test_queue_controller import SHARED, Cluster
from test_queue_resources import CHANGED_S, Mixed

from scheduler_extender.cluster.jobs import job_of
from scheduler_extender.planning.relocation import has_place
from scheduler_extender.verbs.answers import Verbs
from tandem.contracts import names
from tandem.kube.resource import NODES, PODS
from tandem.policy.catalog import load_profile
from tandem.reasons.causes import Cause, Reason

ZONE, RACK = "topology.kubernetes.io/zone", "example.com/rack"
REQUIRED, PREFERRED = names.REQUIRED_TOPOLOGY, names.PREFERRED_TOPOLOGY


class Racks(Mixed):
    """Nodes of two GPUs in racks."""

    def __init__(self, *racks: int, **options: Any) -> None:
        super().__init__(levels=(ZONE, RACK), **options)
        for rack, nodes in enumerate(racks):
            for node in range(nodes):
                self.node(f"r{rack}-n{node}", gpus=2)
                self.label(f"r{rack}-n{node}", f"r{rack}")

    def label(self, node: str, rack: str | None) -> None:
        self.api.patch(NODES, node, {"metadata": {"labels": {RACK: rack}}})

    def gang(self, name: str, pods: int, notes: dict[str, str], gpus: int = 1) -> None:
        notes = {
            **SHARED, names.EXCLUSIVE: "true", names.GANG: name, names.GANG_SIZE: str(pods), **notes
        }  # fmt: skip
        for number in range(pods):
            self.api.create(PODS, raw_pod(f"{name}-{number}", annotations=notes, gpus=gpus))

    def run(self, name: str, pods: int, notes: dict[str, str], gpus: int = 1) -> set[str]:
        """Start a gang; return the racks where its pods are."""
        self.gang(name, pods, notes, gpus)
        self.cycles(2)
        racks = self.racks(name)
        for number in range(pods):
            self.bind_as_planned(f"{name}-{number}")
        return racks

    def racks(self, name: str) -> set[str]:
        return {
            place["node"].partition("-")[0]
            for place in (self.status(f"gang-{name}").get("plan") or {}).get("pods", ())
        }

    def causes(self, name: str) -> list[Cause]:
        causes = self.status(f"gang-{name}")["causes"]
        return [Cause(**{**each, "reason": Reason(each["reason"])}) for each in causes]


def test_labels_become_the_racks_of_the_arrays() -> None:
    cluster = Racks(1, 1, 1)
    rack = cluster.state.gpus.rack
    assert len(set(rack.tolist())) == 3
    cluster.label("r1-n0", "r0")
    assert len(set(cluster.state.gpus.rack.tolist())) == 2
    # The same name in another zone is another rack.
    cluster.api.patch(NODES, "r1-n0", {"metadata": {"labels": {ZONE: "b"}}})
    assert len(set(cluster.state.gpus.rack.tolist())) == 3
    for node in ("r0-n0", "r1-n0", "r2-n0"):
        cluster.api.patch(NODES, node, {"metadata": {"labels": {ZONE: None, RACK: None}}})
    assert set(cluster.state.gpus.rack.tolist()) == {0}
    assert set(cluster.state.snapshot().gpus.rack.tolist()) == {0}


def test_a_node_reports_its_gpus_before_it_is_seen() -> None:
    cluster = Cluster(levels=(RACK,))
    cluster.add_node("a")
    cluster.api.patch(NODES, "a", {"metadata": {"labels": {RACK: "r1"}}})
    cluster.add_node("b")
    assert len(set(cluster.state.gpus.rack.tolist())) == 2


@pytest.mark.parametrize("profile", ["tandem", "fifo", "horus", "tiresias-g"])
def test_a_required_rack_and_the_reason_while_none_has_room(profile: str) -> None:
    cluster = Racks(1, 2, 1, profile=load_profile(profile))
    assert cluster.run("first", 3, {REQUIRED: RACK}) == {"r1"}
    cluster.gang("second", 3, {REQUIRED: RACK})
    cluster.cycles()
    assert cluster.racks("second") == set()
    full = Cause(Reason.DOMAINS_FULL, resource=RACK, value=3, bound=2)
    assert full in cluster.causes("second")
    message = cluster.status("gang-second")["message"]
    assert f"No single {RACK} has enough free GPUs for all of its pods (3 needed" in message
    for number in range(3):
        cluster.api.delete(PODS, f"first-{number}", "default")
    cluster.cycles()
    assert cluster.racks("second") == {"r1"}


def test_no_rack_is_large_enough() -> None:
    cluster = Racks(1, 2, 1)
    cluster.gang("large", 5, {REQUIRED: RACK})
    cluster.cycles()
    small = Cause(Reason.DOMAINS_TOO_SMALL, resource=RACK, value=5, bound=4)
    assert small in cluster.causes("large")
    assert "even if no other job ran" in cluster.status("gang-large")["message"]
    # A node joins the rack: it is tried again at once.
    cluster.label("r2-n0", "r1")
    cluster.cycles()
    assert cluster.racks("large") == {"r1", "r2"}  # nodes keep their names


def test_a_level_of_which_no_node_has_the_label() -> None:
    cluster = Racks(1, 2)
    cluster.gang("zoned", 2, {REQUIRED: ZONE})
    cluster.cycles()
    small = Cause(Reason.DOMAINS_TOO_SMALL, resource=ZONE, value=2, bound=0)
    assert small in cluster.causes("zoned")


def test_a_preferred_rack_gives_way() -> None:
    cluster = Racks(1, 2, 1)
    assert cluster.run("first", 2, {PREFERRED: RACK}, gpus=2) == {"r1"}
    assert cluster.run("second", 2, {PREFERRED: RACK}, gpus=2) == {"r0", "r2"}


def test_a_pod_that_is_made_again_joins_the_others_in_their_rack() -> None:
    cluster = Racks(1, 2)
    assert cluster.run("first", 3, {REQUIRED: RACK}) == {"r1"}
    cluster.api.delete(PODS, "first-1", "default")
    notes = cluster.pod("first-0")["metadata"]["annotations"]
    notes = {key: notes[key] for key in notes if key in names.USER_ANNOTATIONS}
    cluster.api.create(PODS, raw_pod("first-9", annotations=notes))
    cluster.cycles(8)
    plan = cluster.status("gang-first")["plan"]["pods"]
    assert [each["node"].partition("-")[0] for each in plan if each["pod"] == "first-9"] == ["r1"]


def test_the_filter_follows_labels_that_change_after_the_plan() -> None:
    cluster = Racks(1, 2)
    cluster.gang("first", 4, {REQUIRED: RACK})
    cluster.cycles(2)
    verbs = Verbs(cluster.state, load_profile("tandem").pipeline())
    plan = cluster.status("gang-first")["plan"]["pods"]
    first, last = plan[0], next(p for p in plan if p["node"] != plan[0]["node"])
    every = ["r0-n0", "r1-n0", "r1-n1"]

    def answer(pod: str, nodes: list[str]) -> tuple[list[str], dict[str, str]]:
        said = json.loads(verbs.filter({"Pod": cluster.pod(pod), "NodeNames": nodes}))
        return said["NodeNames"] or [], said["FailedAndUnresolvableNodes"] or {}

    other = f"is in another {RACK} than the other pods of the job"
    assert answer(last["pod"], every) == ([last["node"]], {"r0-n0": other})
    assert answer(last["pod"], [last["node"]]) == ([last["node"]], {})
    assert answer(last["pod"], ["r0-n0"]) == ([], {"r0-n0": other})
    cluster.label(last["node"], "r0")
    assert answer(last["pod"], every)[0] == []
    assert answer(last["pod"], [last["node"]]) == ([], {last["node"]: other})
    assert answer(first["pod"], [first["node"]]) == ([first["node"]], {})


def test_what_is_planned_and_not_bound_is_planned_anew_when_labels_change() -> None:
    cluster = Racks(2, 3)
    cluster.gang("first", 4, {REQUIRED: RACK})
    cluster.cycles(2)
    assert cluster.racks("first") == {"r0"}
    cluster.label("r0-n1", "r1")
    cluster.now += 60  # the plan expires, as kube-scheduler finds no node for all
    cluster.cycles(6)
    plan = cluster.status("gang-first")["plan"]["pods"]
    assert {each["node"] for each in plan} <= {"r0-n1", "r1-n0", "r1-n1", "r1-n2"}


def test_roles_of_a_gang_are_in_one_rack() -> None:
    cluster = Racks(1, 2, 1)
    notes = {**SHARED, names.EXCLUSIVE: "true", names.GANG: "two", names.GANG_SIZE: "3",
             REQUIRED: RACK}  # fmt: skip
    for number, gpus in enumerate((1, 1, 2)):
        cluster.api.create(PODS, raw_pod(f"two-{number}", annotations=notes, gpus=gpus))
    cluster.now += CHANGED_S
    cluster.cycles(3)
    assert cluster.racks("two") == {"r1"}


@pytest.mark.parametrize("level", [REQUIRED, PREFERRED])
def test_a_gang_has_another_place_only_where_one_domain_of_its_level_holds_it_whole(
    level: str,
) -> None:
    cluster = Racks(2, 2)
    assert cluster.run("mover", 3, {level: RACK}) == {"r0"}
    assert cluster.run("blocker", 2, {REQUIRED: RACK}) == {"r1"}
    gang = cluster.controller.gangs.by_key["default", "gang-mover"]
    assert gang.record is not None
    job = job_of("default/gang-mover", gang.record.spec, gang.record.status)
    pipeline = load_profile("tandem").pipeline()

    def finds_one(away_from: int) -> bool:
        """Say so where the GPUs of as many of its own pods offer no share any more."""
        shunned = frozenset(pod.uid for pod in gang.holders()[:away_from])
        return has_place(cluster.state, pipeline, gang, job, shunned)

    # r0 has a free GPU besides, r1 has two.
    assert finds_one(0)
    assert finds_one(1)
    assert finds_one(2) == (level == PREFERRED)
