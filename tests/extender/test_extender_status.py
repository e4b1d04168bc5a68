"""The status page's data: changes, views, streams, and what a tenant sees."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from extender_builders import GIB, NOW, Object, gpu, gpu_job, gpu_node, load, pod
from fastapi import FastAPI

from scheduler_extender.cluster.jobs import rfc3339
from scheduler_extender.cluster.state import ClusterState
from scheduler_extender.quotas.config import Quota
from scheduler_extender.serving import gate
from scheduler_extender.serving.readers import Readers, everybody
from scheduler_extender.serving.status import routes, selection
from scheduler_extender.serving.status.changes import Changes
from scheduler_extender.serving.status.model import Cluster
from scheduler_extender.serving.status.objects import RUNS_KEPT_S, Scope, most_runs
from scheduler_extender.serving.status.publisher import AwayError, Publisher
from scheduler_extender.serving.status.routes import status_router
from scheduler_extender.serving.status.selection import ORDERS, Selection
from scheduler_extender.serving.status.sources import events_for_caller, local_changes
from scheduler_extender.serving.status.views import (
    PAGE_ROWS,
    PARAMETERS,
    BadQueryError,
    MissingError,
    document,
    name_neighbours,
    object_of,
    query_of,
)
from scheduler_extender.serving.status.views.jobs import _timeline
from scheduler_extender.serving.traffic import Traffic
from tandem.cli.screen import gain_in_words
from tandem.contracts import names
from tandem.contracts.limits import limit_annotations
from tandem.kube.access import TOKEN_REVIEWS
from tandem.policy.catalog import load_profile
from tandem.policy.cluster import GpuArrays
from tandem.policy.job import Job
from tandem.reasons.words import kind_of

OPERATOR, ML = Scope(), Scope("ml")


def view(cluster: Cluster, name: str, *path: str, scope: Scope = OPERATOR, **given: str) -> Any:
    return document(cluster, scope, query_of(name, path, given.items()))


class Site:
    """A state that events change, and a model of it that follows by changes."""

    def __init__(
        self,
        quotas: list[tuple[Quota, int, float]] | None = None,
        deleted: dict[str, int] | None = None,
    ) -> None:
        self.state = ClusterState(now_s=NOW)
        self.changes = Changes(self.state, lambda: quotas or [], lambda: deleted or {})
        self.cluster = Cluster()

    def follow(self) -> bytes:
        lines = b"".join(self.changes.pieces(self.cluster.version))
        self.cluster.apply(lines)
        return lines

    def rebuilt(self) -> Cluster:
        cluster = Cluster()
        cluster.apply(b"".join(self.changes.pieces()))
        return cluster

    def run(self, name: str, node: str, gpu_id: str, namespace: str = "ml", **more: Any) -> None:
        """A bound pod and its GPUJob."""
        status = {"phase": "Running", "message": "It runs (1 pod).", **more}
        job = gpu_job(f"job-{name}", namespace=namespace, job_load=load(10, 4, 0.2))
        job["status"] |= status
        self.state.upsert("gpujobs", job)
        limit = limit_annotations(14, 80)
        self.state.upsert("pods", running(name, node, gpu_id, namespace, annotations=limit))


def running(name: str, node: str, gpu_id: str, namespace: str = "ml", **more: Any) -> Object:
    made = pod(name, node_name=node, devices=gpu_id, phase="Running", namespace=namespace, **more)
    made["metadata"]["ownerReferences"] = [
        {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": f"w-{name}",
         "controller": True}
    ]  # fmt: skip
    state = {"running": {"startedAt": rfc3339(NOW - 60)}}
    made["status"]["containerStatuses"] = [{"name": "main", "state": state}]
    return made


def slowdown(value: float, *kinds: str) -> Object:
    return {
        "at": rfc3339(NOW),
        "slowdown": {"value": value, "means": "utilisation", "reference": "solo"},
        "neighbours": [
            {"kind": kind, "slowdown": value, "means": "utilisation"} for kind in kinds
        ],
    }  # fmt: skip


@pytest.fixture
def site() -> Site:
    found = Site()
    found.state.upsert("gpunodes", gpu_node("n0", "a", "b"))
    found.state.upsert("gpunodes", gpu_node("n1", "c"))
    return found


# --- changes ----------------------------------------------------------------------------------


def kinds(lines: bytes) -> list[str]:
    return [json.loads(line)["kind"] for line in lines.splitlines()]


@pytest.mark.parametrize("scope", [OPERATOR, Scope("ml")])
def test_what_is_not_there_is_missing_and_no_error(site: Site, scope: Scope) -> None:
    site.follow()
    for name, path in (
        ("node", ("0",)),
        ("gpu", ("0", "a")),
        ("gpu", ("n0", "0")),
        ("job", ("ml", "0")),
        ("model", ("ml", "0")),
    ):
        with pytest.raises(MissingError):
            view(site.cluster, name, *path, scope=scope)


def test_what_has_not_changed_is_not_sent_again(site: Site) -> None:
    assert kinds(site.follow()) == ["whole", "node", "node", "quotas", "end"]
    assert kinds(site.follow()) == ["quotas", "end"]
    site.state.upsert("gpunodes", gpu_node("n1", "c"))
    assert kinds(site.follow()) == ["node", "quotas", "end"]


def test_a_version_of_another_process_or_an_unreadable_one_brings_everything(site: Site) -> None:
    site.follow()
    other = Changes(site.state)
    for version in (other.version, "x", "..", "a.²." + "1", site.cluster.version + "x"):
        assert kinds(b"".join(site.changes.pieces(version)))[0] == "whole", version


def test_a_node_whose_agent_falls_silent_has_changed(site: Site) -> None:
    site.follow()
    site.state.tick(NOW + 1000)
    site.follow()
    assert view(site.cluster, "overview")["gpus"]["byState"]["silent"] == 3


def test_a_plan_shows_on_its_gpus_before_any_pod_is_bound(site: Site) -> None:
    site.follow()
    site.state.upsert("pods", pod("p"))
    made = gpu_job("pod-p", plan=[("uid-ml-p", "n1", ["c"])], job_load=load(10))
    site.state.upsert("gpujobs", made)
    site.follow()
    (row,) = view(site.cluster, "gpus", state="single")["rows"]
    assert (row["gpu"], row["jobs"][0]["hold"]) == ("c", "planned")


def test_too_many_changes_are_forgotten_and_then_everything_is_sent(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler_extender.serving.status.changes._LEAST_REMEMBERED", 2)
    site.follow()
    for number in range(20):
        site.state.upsert("gpunodes", gpu_node(f"m{number}", f"g{number}"))
        site.state.delete(
            "gpunodes", {"metadata": {"name": f"m{number}", "uid": f"uid--m{number}"}}
        )
    assert kinds(site.follow())[0] == "whole"
    assert set(site.cluster.nodes) == {"n0", "n1"}


def test_a_job_of_many_pods_is_encoded_in_short_parts_and_shown_by_name(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler_extender.serving.status.changes._PODS_AT_ONCE", 10)
    site.follow()
    plan = [(f"uid-ml-large-{number:02}", "n0", ["a"]) for number in range(45)]
    planned = gpu_job("job-large", plan=plan)
    service = {"startedAt": rfc3339(NOW), "gpuSeconds": 1.0}
    planned["status"]["podService"] = [{"uid": uid, **service} for uid, _, _ in plan]
    site.state.upsert("gpujobs", planned)
    for number in reversed(range(45)):
        made = pod(f"large-{number:02}")
        made["metadata"]["ownerReferences"] = [
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "name": "large",
                "uid": "w",
                "controller": True,
            }
        ]
        site.state.upsert("pods", made)
    key = ("ml", "job-large")
    parts = list(site.changes._job(site.state.gpu_jobs()[key]))
    assert max(part.count(b'"large-') for part in parts) == 10
    assert max(part.count(b'"uid":') for part in parts) == 10
    site.follow()
    whole = object_of(site.cluster, OPERATOR, key)["status"]
    assert [each["uid"] for each in whole["plan"]["pods"]] == [uid for uid, _, _ in plan]
    assert [each["uid"] for each in whole["podService"]] == [uid for uid, _, _ in plan]
    shown = [row["pod"] for row in view(site.cluster, "job", *key)["pods"]]
    assert shown == [f"large-{number:02}" for number in range(45)]


@pytest.mark.long
def test_the_first_question_for_changes_imports_nothing() -> None:
    """An import holds the event loop: np.unique takes 95 ms when it is called first."""
    script = """
import sys
from test_extender_status import Site, gpu_job, gpu_node
site = Site()
site.state.upsert("gpunodes", gpu_node("n0", "a"))
site.run("one", "n0", "a")
version, known = site.changes.version, set(sys.modules)
site.state.upsert("gpunodes", gpu_node("n0", "a", "b"))
lines = b"".join(site.changes.pieces(version))
assert b'"node"' in lines and not b'"whole"' in lines
print(sorted(set(sys.modules) - known))
"""
    shown = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parent, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert shown.stdout.strip() == "[]"


def test_no_list_of_all_objects_is_made_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first page of a large cluster: the names of a group are copied when its turn comes."""
    monkeypatch.setattr("scheduler_extender.serving.status.changes.PIECE_S", 0.0)
    site = Site()
    for number in range(1000):
        site.state.upsert("gpujobs", gpu_job(f"job-{number}"))
    assert max(len(group) for groups in site.changes._live.values() for group in groups) < 30
    pieces, lines = site.changes.pieces(), []
    for number, piece in enumerate(pieces):
        lines.append(piece)
        if number == 100:  # meanwhile some go, and another comes
            site.state.upsert("gpujobs", gpu_job("job-late"))
            for gone in range(0, 1000, 2):
                site.state.delete("gpujobs", gpu_job(f"job-{gone}"))
    site.cluster.apply(b"".join(lines))
    site.follow()
    assert set(site.cluster.jobs) == set(site.state.gpu_jobs())
    assert len(site.cluster.jobs) == 501


@pytest.mark.slow
def test_the_event_loop_turns_for_others_between_two_pieces(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler_extender.serving.status.changes.PIECE_S", 0.0)
    monkeypatch.setattr("scheduler_extender.serving.status.sources._REST_S", 0.05)
    version, turns = site.changes.version, 0
    for number in range(10):
        site.state.upsert("gpunodes", gpu_node(f"m{number}", f"g{number}"))

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def script() -> None:
        task = asyncio.create_task(other())
        async for _ in local_changes(site.changes)(version, 0.0):
            pass
        task.cancel()

    pieces = len(list(site.changes.pieces(version)))
    asyncio.run(script())
    assert turns > 2 * pieces > 10


def test_verbs_go_first_after_each_piece(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A verb is read, answered and written in several turns of the event loop."""
    monkeypatch.setattr("scheduler_extender.serving.status.changes.PIECE_S", 0.0)
    paused = 0

    class Watched(Traffic):
        async def pause(self, within_s: float) -> None:
            nonlocal paused
            assert 0 < within_s < 1, "a verb whose client hangs must not hold the page for long"
            paused += 1

    async def script(version: str) -> bytes:
        return b"".join([part async for part in local_changes(site.changes, Watched())(version, 0)])

    version = site.changes.version
    for number in range(10):
        site.state.upsert("gpunodes", gpu_node(f"m{number}", f"g{number}"))
    for since in (version, ""):  # changes; the whole cluster
        pieces, paused = list(site.changes.pieces(since)), 0
        assert len(pieces) > 5
        assert asyncio.run(script(since)) == b"".join(pieces)
        assert paused == len(pieces)


def test_a_pause_ends_with_the_last_verb() -> None:
    async def script() -> None:
        traffic = Traffic()
        with traffic.verb():
            with traffic.verb():
                waits = asyncio.create_task(traffic.pause(60))
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.01)
            assert not waits.done()
        assert traffic.flows, "the next verb of the same pod is on its way"
        await asyncio.wait_for(waits, 10)
        assert not traffic.flows
        with traffic.verb():
            await asyncio.wait_for(traffic.pause(0.001), 10)

    asyncio.run(script())


def test_a_model_that_follows_equals_one_that_is_built_anew(seed: int) -> None:
    """Whatever happens in whatever order, deltas and the whole give the same views."""
    draw = random.Random(seed)
    site = Site()
    alive: dict[tuple[str, str, str], Object] = {}
    for step in range(200):
        kind = draw.choice(("gpunodes", "gpujobs", "pods"))
        number = draw.randrange(6)
        if kind == "gpunodes":
            ids = [f"g{number}{index}" for index in range(draw.randrange(1, 4))]
            health = draw.choice(("Healthy", "Healthy", "Quarantined"))
            made = gpu_node(f"n{number}", *(gpu(one, health=health) for one in ids))
        elif kind == "gpujobs":
            made = gpu_job(f"job-p{number}", namespace=draw.choice(("ml", "other")))
            phase = draw.choice(("Queued", "Running", "Failed"))
            made["status"] |= {"phase": phase, "observed": slowdown(draw.random(), "bert")}
        else:
            where = draw.randrange(6)
            made = running(f"p{number}", f"n{where}", f"g{where}0", draw.choice(("ml", "other")))
            made["status"]["phase"] = draw.choice(("Running", "Succeeded"))
        metadata = made["metadata"]
        key = (kind, metadata.get("namespace", ""), metadata["name"])
        if key in alive and draw.random() < 0.3:
            site.state.delete(kind, alive.pop(key))
        else:
            site.state.upsert(kind, made)
            alive[key] = made
        if draw.random() < 0.3:
            site.state.tick(NOW + step)
        if draw.random() < 0.5:
            site.follow()
            # A selection follows from its first use on, so that each is used all along.
            all_lists(site.cluster, phases=("",), sharings=("",))
            if draw.random() < 0.05:
                assert all_lists(site.cluster) == all_lists(site.rebuilt())
    site.follow()
    site.state.check()
    anew = site.rebuilt()
    assert all_lists(site.cluster) == all_lists(anew)
    for scope in (OPERATOR, ML, Scope("other")):
        for row in view(anew, "gpus", scope=scope)["rows"]:
            at = (row["node"], row["gpu"])
            assert view(site.cluster, "gpu", *at, scope=scope) == view(
                anew, "gpu", *at, scope=scope
            )


def all_lists(
    cluster: Cluster,
    phases: tuple[str, ...] = ("", "Waiting", "Queued", "Running", "Failed"),
    sharings: tuple[str, ...] = ("", "true"),
) -> dict[tuple[str, ...], Any]:
    """Every list and the overview, in each scope, order and phase."""
    found: dict[tuple[str, ...], Any] = {}
    for scope, namespace in ((OPERATOR, ""), (ML, ""), (Scope("other"), ""), (OPERATOR, "ml")):
        where = (scope.namespace or "", namespace)
        for name in ("overview", "nodes", "gpus", "models"):
            found[*where, name] = view(cluster, name, scope=scope, namespace=namespace)
        for sort in ORDERS:
            for phase in phases:
                for sharing in sharings:
                    found[*where, "jobs", sort, phase, sharing] = view(
                        cluster, "jobs", scope=scope, namespace=namespace, sort=sort, phase=phase,
                        sharing=sharing,
                    )  # fmt: skip
    return found


def test_a_change_of_one_node_or_job_looks_at_no_other(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(50):
        site.state.upsert("gpunodes", gpu_node(f"m{number}", f"g{number}"))
        site.state.upsert("gpujobs", gpu_job(f"job-{number}"))
    site.follow()
    lists = [("overview", {}), ("jobs", {}), ("jobs", {"phase": "Waiting"}), ("models", {})]
    for name, given in lists:
        view(site.cluster, name, **given)
    looked: list[str] = []
    sums, compare = Selection._sums, selection.by_position

    def count_node(self: Selection, node: Any, gpus: Any) -> Any:
        looked.append(node.name)
        return sums(self, node, gpus)

    def count_job(job: Any) -> Any:
        looked.append(job.name)
        return compare(job)

    monkeypatch.setattr(Selection, "_sums", count_node)
    monkeypatch.setattr(selection, "by_position", count_job)
    site.state.upsert("gpunodes", gpu_node("m7", "g7"))
    changed = gpu_job("job-7")
    changed["status"]["phase"] = "Failed"
    site.state.upsert("gpujobs", changed)
    site.follow()
    for name, given in lists:
        view(site.cluster, name, **given)
    assert set(looked) == {"m7", "job-7"}


def test_ended_runs_are_bounded_in_number_and_age(site: Site) -> None:
    def end(number: int) -> None:
        ended = running(f"old-{number}", "n0", "a")
        ended["status"]["phase"] = "Succeeded"
        site.state.upsert("pods", ended)

    for number in range(300):
        end(number)
    site.follow()
    kept = most_runs(3)
    runs = site.cluster.runs_of(OPERATOR)
    assert len(runs) == len(site.rebuilt().runs_of(OPERATOR)) == kept < 300
    assert runs[0]["pod"] == "old-299"
    site.state.tick(NOW + RUNS_KEPT_S + 1)
    end(300)
    assert [run["pod"] for run in site.rebuilt().runs_of(OPERATOR)] == ["old-300"]


def test_a_question_for_changes_is_answered_once_there_is_one(site: Site) -> None:
    async def script() -> None:
        site.follow()
        waiting = asyncio.create_task(site.changes.wait(site.cluster.version, 60.0))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        site.state.upsert("gpujobs", gpu_job("job-new"))
        await asyncio.wait_for(waiting, 5.0)
        site.follow()
        await asyncio.wait_for(site.changes.wait(site.cluster.version, 0.01), 5.0)

    asyncio.run(script())


# --- views ------------------------------------------------------------------------------------


def test_each_gpu_has_one_state_and_the_states_add_up(site: Site) -> None:
    site.state.upsert(
        "gpunodes", gpu_node("n2", gpu("d", health="Quarantined"), gpu("e", shares=0))
    )
    site.run("one", "n0", "a")
    site.run("two", "n0", "b", observed=slowdown(0.3, "bert"))
    site.run("three", "n0", "b")
    site.follow()
    overview = view(site.cluster, "overview")["gpus"]
    assert {state: count for state, count in overview["byState"].items() if count} == {
        "quarantined": 1, "unavailable": 1, "slowed": 1, "single": 1, "idle": 1,
    }  # fmt: skip
    assert sum(overview["byState"].values()) == overview["total"] == 5
    for state, count in overview["byState"].items():
        rows = view(site.cluster, "gpus", state=state)["rows"]
        assert len(rows) == count
        assert all(row["state"] == state for row in rows)


def test_every_count_of_the_overview_is_the_length_of_the_list_it_links_to(site: Site) -> None:
    site.run("r", "n0", "a")
    site.run("s", "n0", "a")
    for name, phase, reason in (
        ("q1", "Queued", "MemoryPeaksCollide"),
        ("q2", "Queued", "BehindOthers"),
        ("f", "Failed", "Failed"),
    ):
        made = gpu_job(f"job-{name}")
        made["status"] |= {"phase": phase, "reason": "Waiting", "causes": [{"reason": reason}]}
        site.state.upsert("gpujobs", made)
    site.follow()
    overview = view(site.cluster, "overview")
    for phase, count in overview["jobs"]["byPhase"].items():
        assert view(site.cluster, "jobs", phase=phase)["total"] == count
    assert view(site.cluster, "jobs", phase="Waiting")["total"] == overview["jobs"]["waiting"] == 2
    assert {row["reason"] for row in overview["jobs"]["byReason"]} == {"memory_collision", "behind"}
    for row in overview["jobs"]["byReason"]:
        assert view(site.cluster, "jobs", reason=row["reason"])["total"] == row["count"]
    for row in overview["attention"]:
        assert view(site.cluster, row["view"], **row["filter"])["total"] == row["count"]
    for row in overview["namespaces"]["rows"]:
        name = row["namespace"]
        for phase in ("Running", "Waiting"):
            found = view(site.cluster, "jobs", namespace=name, phase=phase)
            assert found["total"] == row[phase.lower()]
        assert view(site.cluster, "gpus", namespace=name)["total"] == row["gpus"]
    shared = overview["sharing"]
    assert view(site.cluster, "gpus", state="sharing")["total"] == shared["gpus"] == 1
    assert view(site.cluster, "jobs", sharing="true")["total"] == shared["jobs"] == 2
    for row in view(site.cluster, "nodes")["rows"]:
        assert view(site.cluster, "gpus", node=row["node"])["total"] == row["gpus"]
        assert view(site.cluster, "jobs", node=row["node"])["total"] == row["jobs"]
        for state, count in row["byState"].items():
            assert view(site.cluster, "gpus", node=row["node"], state=state)["total"] == count


def test_the_gain_of_sharing_is_what_the_measured_speeds_add_up_to(site: Site) -> None:
    # Two jobs at 1 / 1.25 each do the work of 1.6 GPUs on one.
    site.run("one", "n0", "a", observed=slowdown(0.25))
    site.run("two", "n0", "a", observed=slowdown(0.25))
    site.run("three", "n0", "b")
    site.follow()
    sharing = view(site.cluster, "overview")["sharing"]
    assert (sharing["gpus"], sharing["jobs"], sharing["gainGpus"]) == (1, 2, 0.6)
    assert (sharing["gainMeasuredGpus"], sharing["gpusMeasured"]) == (0.6, 1)
    assert sharing["meanSlowdown"] == 0.25
    assert view(site.cluster, "jobs", sharing="true")["total"] == 2


def test_a_gain_says_how_much_of_it_is_measured(site: Site) -> None:
    site.run("one", "n0", "a", observed=slowdown(0.25))
    site.run("two", "n0", "a", observed=slowdown(0.25))
    site.run("three", "n1", "c", observed=slowdown(0.25))
    site.run("four", "n1", "c")  # of which nothing is measured
    site.follow()
    sharing = view(site.cluster, "overview")["sharing"]
    assert (sharing["gainMeasuredGpus"], sharing["gpusMeasured"]) == (0.6, 1)
    assert gain_in_words(sharing | {"gainGpus": 0.9, "gpusCounted": 2}) == (
        "+0.6 measured, +0.3 predicted"
    )
    assert gain_in_words(sharing | {"gainGpus": 0.6, "gpusCounted": 1}) == "measured"
    assert gain_in_words(sharing | {"gainMeasuredGpus": None}) == "predicted"


def test_a_namespace_over_its_quota_comes_first() -> None:
    quotas = [(Quota(namespace="ml", gpus=1), 2, 0.0), (Quota(namespace="bio", gpus=9), 0, 0.0)]
    site = Site(quotas)
    site.state.upsert("gpunodes", gpu_node("n0", "a", "b"))
    site.run("one", "n0", "a")
    site.run("two", "n0", "b")
    site.follow()
    rows = view(site.cluster, "overview")["namespaces"]["rows"]
    assert [(row["namespace"], row["overQuota"]) for row in rows] == [("ml", True), ("bio", False)]


def test_deleted_pods_that_hold_gpus_need_attention_of_those_who_see_them() -> None:
    site = Site(deleted={"ml": 2, "bio": 1})
    site.follow()

    def count(**how: Any) -> int:
        rows = view(site.cluster, "overview", **how)["attention"]
        return sum(row["count"] for row in rows if row["kind"] == "deleted")

    assert (count(), count(namespace="ml"), count(scope=Scope("bio"))) == (3, 2, 1)


def test_gpus_of_a_job_without_a_gpujob_count_as_held(site: Site) -> None:
    site.state.upsert("gpunodes", gpu_node("n0", "a", "b"))
    site.run("one", "n0", "a")
    site.state.upsert("pods", running("deleted", "n0", "b"))
    site.follow()
    (row,) = view(site.cluster, "overview")["namespaces"]["rows"]
    assert (row["namespace"], row["gpusHeld"]) == ("ml", 2)


def test_a_gpu_shows_predictions_next_to_measurements_and_what_ran_before(site: Site) -> None:
    site.run("one", "n0", "a")
    use = {"namespace": "ml", "pod": "one", "uid": "uid-ml-one", "memoryBytes": 9 * GIB,
           "utilisationPercent": 33}  # fmt: skip
    measured = gpu("a", memoryUsedBytes=9 * GIB, temperatureCelsius=61, pods=[use])
    site.state.upsert("gpunodes", gpu_node("n0", measured, "b"))
    ended = running("old", "n0", "a")
    ended["status"] = {
        "phase": "Succeeded",
        "containerStatuses": [{"name": "main", "state": {"terminated": {
            "exitCode": 0, "startedAt": rfc3339(NOW - 600), "finishedAt": rfc3339(NOW - 300)}}}],
    }  # fmt: skip
    site.state.upsert("pods", ended)
    site.follow()
    found = view(site.cluster, "gpu", "n0", "a")
    (resident,) = found["residents"]
    assert resident["predicted"]["memoryPeakBytes"] == 14 * GIB
    assert (resident["measured"]["memoryBytes"], resident["measured"]["utilisationPercent"]) == (
        9 * GIB, 33,
    )  # fmt: skip
    assert found["temperatureCelsius"] == 61
    (run,) = found["runs"]
    assert (run["pod"], run["startedAt"]) == ("old", rfc3339(NOW - 600))


def test_sorted_gpus_come_in_the_same_order_on_each_page(site: Site) -> None:
    """With many equal values; the first pages are not made by sorting all GPUs."""
    count = 7 * PAGE_ROWS - 30
    for number in range(count):
        one = gpu(f"g{number:03}") | {"temperatureCelsius": float(number * 37 % 11)}
        site.state.upsert("gpunodes", gpu_node(f"m{number:03}", one))
    site.follow()
    pages = [view(site.cluster, "gpus", sort="temperature", page=str(n)) for n in range(1, 9)]
    assert {page["total"] for page in pages} == {count + 3}
    assert {page["pages"] for page in pages} == {7}
    rows = [row for page in pages for row in page["rows"]]
    found = [(-(row["temperatureCelsius"] or 0.0), row["node"], row["gpu"]) for row in rows]
    assert len(found) == count + 3
    assert found == sorted(found)


def test_lists_are_cut_into_pages(site: Site) -> None:
    for number in range(PAGE_ROWS + 5):
        site.state.upsert("gpujobs", gpu_job(f"job-{number:04}"))
    site.follow()
    first, second = (view(site.cluster, "jobs", sort="name", page=page) for page in ("1", "2"))
    assert (len(first["rows"]), len(second["rows"]), first["pages"]) == (PAGE_ROWS, 5, 2)
    assert view(site.cluster, "jobs", page="9")["rows"] == []


@pytest.mark.parametrize(
    ("name", "given"),
    [("jobs", {"page": "0"}), ("jobs", {"page": "²"}), ("jobs", {"phase": "x"}),
     ("jobs", {"reason": "x"}), ("jobs", {"sort": "x"}), ("gpus", {"state": "x"}),
     ("gpus", {"sort": "x"}), ("nodes", {"state": "x"}), ("jobs", {"q": "x" * 300})],
)  # fmt: skip
def test_a_parameter_without_meaning_is_refused(site: Site, name: str, given: dict) -> None:
    with pytest.raises(BadQueryError):
        view(site.cluster, name, **given)


def test_models_next_to_which_a_job_was_slow_have_their_names(site: Site) -> None:
    theirs, own = f"{'a' * 64}@32", f"{'b' * 64}@64"
    seen = slowdown(0.25, theirs, f"{'c' * 64}@8")
    site.run("one", "n0", "a", observed=seen)
    for namespace, name, model, batch, kind in (
        ("bio", "two", "gpt2", 32, theirs),
        ("ml", "three", "bert", 64, own),
    ):
        made = gpu_job(f"job-{name}", namespace=namespace)
        made["spec"]["demand"] |= {"model": model, "batchSize": batch}
        made["status"] |= {"phase": "Running", "observed": {"at": rfc3339(NOW), "kind": kind}}
        site.state.upsert("gpujobs", made)
    site.follow()

    def names(**scope: Any) -> list[str | None]:
        job = view(site.cluster, "job", "ml", "job-one", **scope)
        return [each["model"] for each in job["observed"]["neighbours"]]

    assert names() == ["gpt2 (batch 32)", None]
    assert names(scope=Scope("ml")) == [None, None], "it is a model of another namespace"

    def reported(scope: Scope) -> dict[str, Any]:
        job = {"namespace": "ml", "neighbours": [[theirs, 0.25], [own, 0.1]]}
        name_neighbours(site.cluster, scope, [job])
        return job

    assert reported(Scope())["neighbourModels"] == ["gpt2 (batch 32)", "bert (batch 64)"]
    assert reported(Scope())["neighbours"][0] == [theirs, 0.25]
    tenant = reported(Scope("ml"))
    assert tenant["neighbourModels"] == ["", "bert (batch 64)"]
    assert tenant["neighbours"] == [["", 0.25], [own, 0.1]], "their graph is not shown"


# --- reasons ----------------------------------------------------------------------------------


def test_each_constraint_s_reason_has_a_kind_of_its_own() -> None:
    gpus = GpuArrays.empty(node=[0], memory_capacity_gib=[1.0], slots=2)
    job = Job(id="ml/j", memory_base_gib=2.0, memory_peak_extra_gib=1.0)
    for constraint in load_profile("tandem").pipeline().constraints:
        assert kind_of([constraint.cause(job, gpus, 0)]) != "other", constraint.kind


def test_jobs_are_counted_by_the_reason_that_counts_and_not_by_words(site: Site) -> None:
    causes = [{"reason": "NeedsGPUs", "amount": "1 GPU"}, {"reason": "MemoryTooSmall", "gpus": 1}]
    for name, more in (
        ("of-now", {"causes": causes, "message": "quarantined: all shares taken"}),
        ("of-before", {"message": "needs 17.4 GiB of memory; 15.6 GiB there"}),
        ("held", {"reason": "Held", "message": "an administrator holds it"}),
    ):
        made = gpu_job(name)
        made["status"] |= {"phase": "Queued", "reason": "Waiting", "position": 0, **more}
        site.state.upsert("gpujobs", made)
    site.follow()
    found = view(site.cluster, "overview")["jobs"]["byReason"]
    assert {each["reason"]: each["count"] for each in found} == {"memory": 1, "other": 1, "held": 1}
    (row,) = view(site.cluster, "jobs", reason="memory")["rows"]
    assert (row["name"], row["short"]) == ("of-now", "The memory is too small")


# --- tenants ----------------------------------------------------------------------------------

SECRET = "zzsecret"


def with_other_tenants(site: Site) -> None:
    """Another tenant on the same GPUs, with its mark in every name and word that it can write."""
    for number, at in enumerate((("n0", "a"), ("n0", "b"), ("n1", "c"))):
        name = f"{SECRET}{number}"
        site.run(name, *at, namespace=SECRET, observed=slowdown(0.4, f"{SECRET}-model"))
        made = gpu_job(f"job-{name}", namespace=SECRET)
        made["spec"]["demand"] |= {"model": f"{SECRET}-model"}
        made["status"] |= {
            "phase": "Running", "message": SECRET, "observed": slowdown(0.4, "bert"),
        }  # fmt: skip
        site.state.upsert("gpujobs", made)
    for number in range(7):
        made = gpu_job(f"job-{SECRET}-w{number}", namespace=SECRET)
        made["status"] |= {"message": f"{SECRET} waits", "position": number}
        site.state.upsert("gpujobs", made)
    done = running(f"{SECRET}-old", "n0", "a", SECRET)
    done["status"]["phase"] = "Succeeded"
    site.state.upsert("pods", done)
    use = {"namespace": SECRET, "pod": f"{SECRET}0", "uid": f"uid-{SECRET}-{SECRET}0",
           "memoryBytes": 30 * GIB}  # fmt: skip
    event = {
        "gpu": "a", "namespace": SECRET, "pod": SECRET, "uid": "u", "container": SECRET,
        "exitCode": 1, "endedAt": rfc3339(NOW),
    }  # fmt: skip
    theirs = gpu("a", pods=[use], memoryUsedBytes=50 * GIB, utilisationPercent=97,
                 temperatureCelsius=80, powerWatts=390)  # fmt: skip
    report = gpu_node("n0", theirs, "b")
    report["status"]["outOfMemory"] = [event]
    site.state.upsert("gpunodes", report)


def all_views(cluster: Cluster, scope: Scope) -> dict[str, Any]:
    """Every view that a reader can open, by name."""
    found: dict[str, Any] = {}
    for name in ("overview", "nodes", "gpus", "jobs", "models"):
        found[name] = view(cluster, name, scope=scope)
    for state in ("busy", "slowed", "shared", "single", "idle"):
        found[f"gpus {state}"] = view(cluster, "gpus", scope=scope, state=state)
    for sharing in ("true", "false"):
        found[f"sharing {sharing}"] = view(cluster, "jobs", scope=scope, sharing=sharing)
    for node in ("n0", "n1"):
        found[node] = one(cluster, scope, "node", node)
    for at in (("n0", "a"), ("n0", "b"), ("n1", "c")):
        found["/".join(at)] = one(cluster, scope, "gpu", *at)
    for key in sorted(cluster.jobs):
        found["/".join(key)] = one(cluster, scope, "job", *key)
        try:
            found["yaml " + "/".join(key)] = object_of(cluster, scope, key)
        except MissingError:
            found["yaml " + "/".join(key)] = None
    for namespace in ("ml", SECRET):
        for model in ("bert", f"{SECRET}-model"):
            found[f"{namespace}/{model}"] = one(cluster, scope, "model", namespace, model)
    return found


def one(cluster: Cluster, scope: Scope, name: str, *path: str) -> Any:
    try:
        return view(cluster, name, *path, scope=scope)
    except MissingError:
        return None


def own_jobs(site: Site) -> None:
    site.run("own", "n0", "a", observed=slowdown(0.2, "bert", f"{SECRET}-model"))
    made = gpu_job("job-wait")
    made["spec"]["demand"] |= {"model": "bert"}
    made["status"] |= {"position": 5, "message": "n0/a: memory peaks would collide"}
    site.state.upsert("gpujobs", made)


def test_a_tenant_sees_nothing_of_other_tenants_in_any_view(site: Site) -> None:
    own_jobs(site)
    with_other_tenants(site)
    site.follow()
    operator = json.dumps(all_views(site.cluster, OPERATOR))
    assert SECRET in operator, "otherwise this proves nothing"
    for name, found in all_views(site.cluster, ML).items():
        assert SECRET not in json.dumps(found), name


def with_and_without_others(site: Site) -> Site:
    """Give a site jobs of one's own and of others; return one that has the former alone."""
    alone = Site()
    for each in (site, alone):
        each.state.upsert("gpunodes", gpu_node("n0", "a", "b", observed_at_s=NOW, version=10**6))
        each.state.upsert("gpunodes", gpu_node("n1", "c"))
        own_jobs(each)
    with_other_tenants(site)
    return alone


def test_no_figure_of_a_tenant_s_views_depends_on_other_tenants(site: Site) -> None:
    """The views are the same, to the byte, whether other tenants use the cluster or not."""
    alone = with_and_without_others(site)
    for each in (site, alone):
        each.follow()
    mine = {name: all_views(each.cluster, ML) for name, each in (("all", site), ("alone", alone))}
    for name, found in mine["alone"].items():
        assert json.dumps(mine["all"][name]) == json.dumps(found), name


# --- publisher --------------------------------------------------------------------------------


@pytest.mark.slow
def test_no_byte_of_a_tenant_s_answers_depends_on_other_tenants(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over HTTP, with all that goes before and after a view, as an answer and as a stream."""
    monkeypatch.setattr(routes, "_now", lambda: "2026-11-22T10:00:00.000Z")
    alone = with_and_without_others(site)

    async def script(each: Site, path: str, accept: str) -> tuple[int, dict[str, str], bytes]:
        app = app_of(each, Readers(Api()).check, stream_s=0.1)  # type: ignore[arg-type]
        headers = {"authorization": "Bearer tenant", "accept": accept}
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            answer = await client.get(f"/v1/status/{path}", headers=headers)
            return answer.status_code, dict(answer.headers), answer.content

    paths = [
        "overview", "jobs", "jobs?phase=Waiting", "gpus", "gpus/n0/a", "nodes", "nodes/n0",
        "models", "models/ml/bert", "jobs/ml/job-own", "jobs/ml/job-wait/yaml",
        f"jobs/ml/job-{SECRET}0",
    ]  # fmt: skip
    for path in paths:
        path += ("&" if "?" in path else "?") + "namespace=ml"
        for accept in ("application/json", _EVENTS):
            both = [asyncio.run(script(each, path, accept)) for each in (site, alone)]
            assert both[0] == both[1], (path, accept)
            assert both[0][0] in (200, 404), path


def publisher(site: Site, every_s: float = 0.02) -> Publisher:
    return Publisher(local_changes(site.changes), every_s=every_s)


JOBS = query_of("jobs", (), ())


def test_fifty_readers_of_a_view_cost_what_one_costs(site: Site) -> None:
    async def script() -> None:
        shared = publisher(site)
        async with contexts(shared, 50) as readers:
            first = [await each(1.0) for each in readers]
            assert len({id(answer) for answer in first}) == 1
            before = shared.computed
            site.state.upsert("gpujobs", gpu_job("job-new"))
            second = [await each(5.0) for each in readers]
            assert len({id(answer) for answer in second}) == 1
            assert b"job-new" in second[0].content
            assert shared.computed == before + 1
        assert shared.readers == 0
        await shared.close()

    asyncio.run(script())


def contexts(shared: Publisher, count: int) -> Any:
    from contextlib import AsyncExitStack, asynccontextmanager

    @asynccontextmanager
    async def entered() -> AsyncIterator[list[Callable]]:
        async with AsyncExitStack() as stack:
            yield [
                await stack.enter_async_context(shared.follow("c", OPERATOR, JOBS))
                for _ in range(count)
            ]

    return entered()


def test_a_reader_that_does_not_read_misses_what_came_between_and_holds_up_no_other(
    site: Site,
) -> None:
    async def script() -> None:
        shared = publisher(site)
        async with contexts(shared, 2) as (slow, quick):
            await slow(1.0)
            await quick(1.0)
            for number in range(5):
                site.state.upsert("gpujobs", gpu_job(f"job-{number}"))
                answer = await quick(5.0)
                assert f"job-{number}".encode() in answer.content
            latest = await slow(1.0)
            assert b"job-0" in latest.content
            assert b"job-4" in latest.content
            assert await slow(0.05) is None
        await shared.close()

    asyncio.run(script())


def test_nothing_is_asked_of_the_extender_while_no_page_is_open(site: Site) -> None:
    asked = 0

    async def source(since: str, wait_s: float) -> AsyncIterator[bytes]:
        nonlocal asked
        asked += 1
        async for piece in local_changes(site.changes)(since, wait_s):
            yield piece

    async def script() -> None:
        shared = Publisher(source, every_s=0.01)
        async with shared.follow("c", OPERATOR, JOBS):
            await asyncio.sleep(0.1)
            assert asked > 1
        await asyncio.sleep(0.05)
        before = asked
        await asyncio.sleep(0.2)
        assert asked == before
        await shared.close()

    asyncio.run(script())


def test_an_extender_that_is_away_for_a_while_leaves_readers_what_they_have(site: Site) -> None:
    away = False

    async def source(since: str, wait_s: float) -> AsyncIterator[bytes]:
        for number, piece in enumerate(site.changes.pieces(since)):
            yield piece
            if away and number == 0:
                raise AwayError("gone")

    async def script() -> None:
        nonlocal away
        shared = Publisher(source, every_s=0.01)
        async with shared.follow("c", OPERATOR, JOBS) as following:
            await following(1.0)
            away = True
            assert await following(0.2) is None
            with pytest.raises(AwayError):
                await shared.get("c", OPERATOR, JOBS)
            site.state.upsert("gpujobs", gpu_job("job-later"))
            away = False
            answer = await following(5.0)
            assert b"job-later" in answer.content
        await shared.close()

    asyncio.run(script())


# --- HTTP -------------------------------------------------------------------------------------


class Api:
    """An API server with an operator, and a tenant that may list GPUJobs in `ml`."""

    def create(self, resource: Any, body: Any, namespace: Any = None) -> Any:
        spec = body["spec"]
        if resource == TOKEN_REVIEWS:
            known = spec["token"] in ("operator", "tenant")
            user = {"username": spec["token"], "uid": "1", "groups": []}
            return {"status": {"authenticated": known, "user": user}}
        wanted = spec["resourceAttributes"]
        own = (wanted["resource"], wanted.get("namespace")) == ("gpujobs", "ml")
        return {"status": {"allowed": spec["user"] == "operator" or own}}


def app_of(site: Site, may: Any = everybody, stream_s: float = 50.0) -> FastAPI:
    async def events(*_: Any) -> list:
        return []

    async def profiles(*_: Any) -> None:
        return None

    app = FastAPI()
    app.include_router(status_router(publisher(site), may, events, profiles, stream_s))
    return app


async def ask(app: FastAPI, path: str, token: str = "") -> httpx.Response:
    transport = httpx.ASGITransport(app)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        return await client.get(path, headers=headers)


PATHS = [
    "overview", "nodes", "nodes/n0", "gpus", "gpus/n0/a", "jobs", "jobs/ml/job-own", "models",
    "models/ml/bert", "jobs/ml/job-own/yaml", "jobs/ml/job-own/events", "scope",
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_a_reader_sees_the_scope_that_the_api_server_allows(site: Site, path: str) -> None:
    own_jobs(site)
    with_other_tenants(site)
    app = app_of(site, Readers(Api()).check)
    url = f"/v1/status/{path}"

    async def script() -> None:
        for token in ("", "unknown"):
            assert (await ask(app, url, token)).status_code == 401
        assert (await ask(app, url, "operator")).status_code == 200
        in_path = "/ml/" in path
        answer = await ask(app, url, "tenant")
        assert answer.status_code == (200 if in_path else 403), answer.text
        assert (await ask(app, url + "?namespace=other", "tenant")).status_code == (
            200 if in_path else 403
        )
        answer = await ask(app, url + "?namespace=ml", "tenant")
        assert answer.status_code == 200
        assert SECRET not in answer.text

    asyncio.run(script())


@pytest.mark.parametrize("path", [*PATHS, "report", "jobs/ml/job-own/what-if",
                                  "models/ml/bert/profile"])  # fmt: skip
def test_a_parameter_that_an_endpoint_does_not_have_is_refused(site: Site, path: str) -> None:
    own_jobs(site)
    app = app_of(site, everybody)
    url = f"/v1/status/{path}"

    async def script() -> None:
        answer = await ask(app, f"{url}?namespace=ml&fase=Running", "")
        assert answer.status_code == 400
        said, _, known = answer.json()["detail"].partition("; there are ")
        assert said == "'fase' is no parameter here"
        for name in known.split(", "):  # each that it names is one
            again = await ask(app, f"{url}?{name}=", "")
            assert "is no parameter" not in again.text
        if path in PARAMETERS:
            assert set(known.split(", ")) == {"namespace", *PARAMETERS[path]}

    asyncio.run(script())


class ApiOfEvents(Api):
    """It knows tokens for the audience `tandem-api` in reviews, and takes them for nothing else."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    def create(self, resource: Any, body: Any, namespace: Any = None) -> Any:
        spec = body["spec"]
        if resource == TOKEN_REVIEWS and spec.get("audiences"):
            claims = json.loads(base64.b64decode(spec["token"].split(".")[1]))
            user = {"username": claims["sub"], "uid": "1", "groups": []}
            found = {"authenticated": True, "audiences": spec["audiences"], "user": user}
            return {"status": found}
        if resource == TOKEN_REVIEWS:
            return super().create(resource, body, namespace)
        wanted = spec["resourceAttributes"]
        if wanted["resource"] == "events":
            own = (wanted["group"], wanted["verb"], wanted["namespace"]) == ("", "list", "ml")
            return {"status": {"allowed": own and spec["user"] == "tenant"}}
        return super().create(resource, body, namespace)

    def request(self, method: str, path: str, query: dict[str, Any]) -> dict[str, Any]:
        """Answer the extender's own account."""
        self.paths.append(path)
        assert method == "GET"
        name = query["fieldSelector"].removeprefix("involvedObject.name=")
        return {
            "items": [{"metadata": {}, "message": "it waits", "involvedObject": {"name": name}}]
        }


def minted(user: str) -> str:
    """Return a token of a user for the read-only API alone, as the API server makes it."""
    claims = json.dumps({"aud": [names.API_AUDIENCE], "sub": user}).encode()
    return f"e30.{base64.b64encode(claims).decode()}.c2ln"


def test_events_are_shown_to_every_token_of_a_caller_that_may_list_them(site: Site) -> None:
    """The API server itself knows no token that was made for the read-only API alone."""
    own_jobs(site)
    api = ApiOfEvents()
    readers = Readers(api, audience=names.API_AUDIENCE)
    events = events_for_caller(api, readers.require)
    app = FastAPI()
    app.include_router(status_router(publisher(site), readers.check, events, None))
    url = "/v1/status/jobs/ml/job-own/events"

    async def script() -> None:
        for token in ("tenant", minted("tenant")):
            answer = await ask(app, url, token)
            assert answer.status_code == 200, answer.text
            shown = answer.json()["events"]
            assert {"job-own", "it waits"} <= {shown[0]["name"], shown[0]["note"]}
        assert set(api.paths) == {"/api/v1/namespaces/ml/events"}
        before = len(api.paths)
        # An operator sees every job, which is no right to list events.
        for token in ("operator", minted("operator")):
            answer = await ask(app, url, token)
            assert answer.status_code == 403
            assert answer.json()["detail"] == "you may not list events in ml"
        assert (await ask(app, url, minted("stranger"))).status_code == 403
        assert len(api.paths) == before

    asyncio.run(script())


def test_objects_of_other_tenants_are_not_there_for_a_tenant(site: Site) -> None:
    own_jobs(site)
    with_other_tenants(site)
    app = app_of(site, Readers(Api()).check)

    async def script() -> None:
        for path in (f"jobs/{SECRET}/job-{SECRET}0", f"models/{SECRET}/{SECRET}-model"):
            answer = await ask(app, f"/v1/status/{path}?namespace=ml", "tenant")
            assert answer.status_code == 403
        answer = await ask(app, "/v1/status/gpus/n1/c?namespace=ml", "tenant")
        assert answer.status_code == 404

    asyncio.run(script())


@pytest.mark.long
def test_a_stream_sends_the_view_and_then_its_changes_and_ends_in_time(site: Site) -> None:
    app = app_of(site, stream_s=1.0)

    async def script() -> bytes:
        async def change() -> None:
            await asyncio.sleep(0.3)
            site.state.upsert("gpujobs", gpu_job("job-late"))

        changing = asyncio.create_task(change())
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            answer = await client.get("/v1/status/jobs", headers={"accept": "text/event-stream"})
        await changing
        assert answer.headers["content-type"].startswith("text/event-stream")
        return answer.content

    text = asyncio.run(script()).decode()
    views = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    assert [each["view"]["total"] for each in views] == [0, 1]
    assert "event: view" in text


def test_more_streams_than_are_allowed_are_refused_and_ended_ones_are_not_counted(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "_STREAMS_OF_ADDRESS", 2)
    app = app_of(site, stream_s=0.3)

    async def script() -> list[int]:
        transport = httpx.ASGITransport(app)
        headers = {"accept": "text/event-stream"}
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:

            async def open_one() -> int:
                return (await client.get("/v1/status/jobs", headers=headers)).status_code

            together = await asyncio.gather(*(open_one() for _ in range(3)))
            return [*sorted(together), await open_one()]

    assert asyncio.run(script()) == [200, 200, 503, 200]


def test_what_a_tenant_writes_stays_data(site: Site) -> None:
    """Markup in a message is carried as JSON text; a line end cannot begin another event."""
    nasty = '<script>alert(1)</script>\n\nevent: view\ndata: {"x":1}\n\n\u2028'
    made = gpu_job("job-x")
    made["status"] |= {"message": nasty}
    made["spec"]["demand"] |= {"model": nasty}
    made["metadata"]["labels"] = {names.GROUP: nasty}
    site.state.upsert("gpujobs", made)
    app = app_of(site, stream_s=0.2)

    async def script() -> str:
        transport = httpx.ASGITransport(app)
        headers = {"accept": "text/event-stream"}
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return (await client.get("/v1/status/jobs", headers=headers)).text

    text = asyncio.run(script())
    assert text.isascii()
    events = [part for part in text.split("\n\n") if "event:" in part]
    assert len(events) == 1
    (line,) = [line for line in events[0].split("\n") if line.startswith("data: ")]
    assert json.loads(line[6:])["view"]["rows"][0]["message"] == nasty


@pytest.mark.slow
def test_a_reader_that_never_reads_is_cut_off_and_the_others_get_their_updates(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On sockets, behind the public port's own gate: the bytes of a stream fill its connection."""
    monkeypatch.setattr(gate, "_REQUEST_S", 3.0)
    app = app_of(site, stream_s=1.0)
    words = "n0/a: needs 17.4 GiB of memory; " * 100

    def change(number: int) -> None:
        for each in range(PAGE_ROWS):
            made = gpu_job(f"job-{each}")
            made["status"]["message"] = f"change {number}: {words}"
            site.state.upsert("gpujobs", made)

    async def follow(url: str, seen: list[int]) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
            while True:
                async with client.stream("GET", url, headers={"accept": _EVENTS}) as answer:
                    async for line in answer.aiter_lines():
                        if f"change {len(seen)}: " in line:
                            seen.append(len(seen))
                            change(len(seen))

    async def script() -> None:
        change(0)
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**16)
        at = listener.getsockname()
        settings = uvicorn.Config(
            app, http="httptools", access_log=False, log_config=None, lifespan="off", ws="none"
        )
        settings.load()
        server = uvicorn.Server(settings)
        connections: list[gate.Guarded] = []

        def make(turnstile: gate.Turnstile, entry: gate.Entry) -> asyncio.Protocol:
            made = gate.Guarded(settings, server.server_state, {})
            made.turnstile, made.entry = turnstile, entry
            connections.append(made)
            return made

        opened = gate.Gate(listener, gate.Limits(8, 8, 100.0, 100.0), make)
        with socket.create_connection(at) as hanging:
            head = f"GET /v1/status/jobs HTTP/1.1\r\nHost: x\r\nAccept: {_EVENTS}\r\n\r\n"
            hanging.sendall(head.encode())
            async with asyncio.timeout(60):
                while not connections:  # noqa: ASYNC110 - a gate has no event for it
                    await asyncio.sleep(0.02)
                seen: list[int] = []
                reading = asyncio.create_task(
                    follow(f"http://127.0.0.1:{at[1]}/v1/status/jobs", seen)
                )
                blocked_at, (first, *_) = 0, connections
                while not first.transport.is_closing():
                    if not blocked_at and first.flow.write_paused:
                        blocked_at = len(seen)
                    await asyncio.sleep(0.02)
                assert blocked_at, "the hanging reader's connection takes no more bytes"
                assert len(seen) > blocked_at + 1, "the other reader goes on meanwhile"
                reading.cancel()
        opened.close()

    asyncio.run(script())


_EVENTS = "text/event-stream"


@pytest.mark.parametrize(
    ("more", "again"), [({}, False), ({"startedAt": "2026-11-26T10:00:02Z"}, True)]
)
def test_a_job_waits_again_only_after_it_has_had_a_place(more: dict[str, str], again: bool) -> None:
    times = {"queuedAt": "2026-11-26T10:00:00Z", "waitingSince": "2026-11-26T10:00:03Z"}
    steps = [step["what"] for step in _timeline(times | more)]
    assert ("Waiting again" in steps) is again
