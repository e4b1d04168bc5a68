"""What the API server refuses is tried ever more rarely, or not at all until something changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from queue_builders import raw_pod, settled
from test_queue_controller import Cluster

from scheduler_extender.queue.workqueue import LONGEST_S, REFUSED_S, RefusedError, WorkQueue
from tandem.contracts import names
from tandem.contracts.annotations import AnnotationError, parse_demand
from tandem.contracts.gangs import OBJECT_NAME, derived_name
from tandem.kube.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Invalid,
    KubeError,
    NotFound,
    Unavailable,
)
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import GPU_JOBS, PODS, Resource

KEY = ("team", "job")
GANG = {"tandem.gpu/gang": "g", "tandem.gpu/gang-size": "8"}
HOUR_S = 3600
INVALID = Invalid(422, "GPUJob is invalid: metadata.name")


class Failing:
    """A queue whose work for one key fails; time passes second by second."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors)
        self.now = 0.0
        self.attempts: list[float] = []
        self.reported: list[str] = []

    def step(self, key: tuple[str, str]) -> object:
        async def work() -> None:
            self.attempts.append(self.now)
            error = self.errors[min(len(self.attempts), len(self.errors)) - 1]
            if error is not None:
                raise error

        return work()

    async def refused(self, key: tuple[str, str], error: Exception) -> None:
        self.reported.append(str(error))

    async def run(self, seconds: int, *, changes: bool = False) -> None:
        queue = WorkQueue(self.step, lambda: self.now, 4, self.refused)  # type: ignore[arg-type]
        queue.add(KEY)
        queue.go()
        await settled(queue)
        for second in range(1, seconds + 1):
            self.now = float(second)
            if changes:
                queue.add(KEY)
            queue.wake()
            await settled(queue)


def failing(*errors: Exception | None, seconds: int = HOUR_S, changes: bool = False) -> Failing:
    found = Failing(*errors)
    asyncio.run(found.run(seconds, changes=changes))
    return found


@pytest.mark.parametrize("error", [INVALID, RefusedError("reported already")])
def test_a_refusal_that_cannot_change_is_final(error: Exception) -> None:
    assert failing(error).attempts == [0.0]


@pytest.mark.parametrize(
    "error",
    [Forbidden(403, "a policy"), ValueError("a bug"), Unavailable(503, "away"), Conflict(409, "x"),
     AlreadyExists(409, "x"), NotFound(404, "x")],
)  # fmt: skip
def test_what_fails_is_tried_ever_more_rarely(error: Exception) -> None:
    found = failing(error)
    pauses = [after - before for before, after in pairwise(found.attempts)]
    assert pauses == sorted(pauses)
    most = LONGEST_S if isinstance(error, Unavailable | Conflict | NotFound) else REFUSED_S
    assert pauses[-1] == most
    assert len(found.attempts) <= 10 + HOUR_S / most


@pytest.mark.parametrize("error", [INVALID, Forbidden(403, "a policy"), ValueError("a bug")])
def test_changes_of_the_object_do_not_drive_what_fails(error: Exception) -> None:
    """A tenant may change its pod as often as it likes."""
    found = failing(error, changes=True)
    assert 5 < len(found.attempts) <= 12 + HOUR_S / REFUSED_S


def test_a_change_is_looked_at_at_once_after_a_first_failure() -> None:
    assert failing(INVALID, None, seconds=1, changes=True).attempts == [0.0, 1.0]


def test_a_success_forgets_the_failures() -> None:
    found = failing(*[Unavailable(503, "away")] * 4, None, seconds=60)
    assert [round(at) for at in found.attempts[:5]] == [0, 1, 3, 7, 15]
    assert found.attempts[5] == 16.0, "a second after a success, as ever"


def test_the_owner_gets_one_event_of_the_same_refusal() -> None:
    found = failing(INVALID, changes=True)
    assert found.reported == [str(INVALID)]
    assert failing(Unavailable(503, "away"), seconds=60).reported == []


class Refuses(MemoryCluster):
    """An API server that refuses some writes."""

    def __init__(self, refuses: Callable[[str, dict], KubeError | None]) -> None:
        super().__init__()
        self._refuses = refuses
        self.refused: list[str] = []

    def create(self, resource: Resource, obj: dict, namespace: str | None = None) -> dict:
        error = self._refuses("create", obj) if resource == GPU_JOBS else None
        if error is not None:
            self.refused.append(obj["metadata"]["name"])
            raise error
        return super().create(resource, obj, namespace)

    def patch(self, resource: Resource, name: str, body: dict, *args: Any, **more: Any) -> dict:
        error = self._refuses("patch", body) if resource == PODS else None
        if error is not None:
            self.refused.append(name)
            raise error
        return super().patch(resource, name, body, *args, **more)


def refusing(error: KubeError) -> Refuses:
    return Refuses(lambda verb, obj: error if verb == "create" else None)


async def minutes(cluster: Cluster, count: int) -> None:
    for _ in range(60 * count):
        cluster.now += 1.0
        cluster.state.tick(cluster.now)
        await cluster.cycle()


def test_a_gpujob_that_is_invalid_is_tried_once_for_each_change_and_its_owner_reads_why() -> None:
    cluster = Cluster(refusing(INVALID))

    async def scenario() -> None:
        for index in range(8):
            cluster.api.create(PODS, raw_pod(f"p{index}", annotations=GANG))
        await cluster.cycle()
        await minutes(cluster, 10)
        assert 1 <= len(cluster.api.refused) <= 3  # type: ignore[attr-defined]
        reported = [note for _, reason, note in cluster.said if reason == "Refused"]
        assert reported == [f"The API server refuses a GPUJob gang-g for it: {INVALID}"]
        cluster.api._refuses = lambda verb, obj: None  # type: ignore[attr-defined]
        cluster.api.patch(PODS, "p0", {"metadata": {"labels": {"x": "y"}}}, "default")
        await minutes(cluster, 1)
        assert cluster.gpujob("gang-g")

    asyncio.run(scenario())


def test_annotations_that_cannot_be_read_are_read_again_when_they_change() -> None:
    cluster = Cluster()
    reads: list[str] = []
    get = cluster.api.get

    def counted(resource: Resource, name: str, *args: Any) -> dict:
        reads.append(resource.plural)
        return get(resource, name, *args)

    async def scenario() -> None:
        cluster.api.create(PODS, raw_pod("bad", annotations={"tandem.gpu/memory": "lots"}))
        await cluster.cycle()
        cluster.api.get = counted  # type: ignore[method-assign]
        await minutes(cluster, 10)
        assert len([reason for _, reason, _ in cluster.said if reason == "InvalidAnnotation"]) <= 2
        assert reads.count("jobs") <= 2

    asyncio.run(scenario())


def test_a_gate_that_cannot_be_removed_is_tried_once_for_each_plan() -> None:
    forbidden = Forbidden(403, "a webhook of the cluster")
    cluster = Cluster(
        Refuses(lambda verb, body: forbidden if "schedulingGates" in body.get("spec", {}) else None)
    )
    for name in ("n0", "n1"):
        cluster.add_node(name)

    async def scenario() -> None:
        cluster.api.create(PODS, raw_pod("p", annotations={"tandem.gpu/model": "resnet50"}))
        await cluster.cycle()
        await minutes(cluster, 10)

    asyncio.run(scenario())
    plans = cluster.gpujob("pod-p")["status"]["attempts"]
    assert 1 <= len(cluster.api.refused) <= plans + 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("g", "group-g"), ("My-Group", "group-my-group"), ("a.b-1", "group-a.b-1"),
        ("My_Group", "group-my-group-a9"), ("a..b", "group-a-b-"), ("x.-y", "group-x-y-"),
    ],
)  # fmt: skip
def test_a_group_that_is_no_name_of_an_object_gets_one(value: str, name: str) -> None:
    found = derived_name("p", {}, {names.COSCHEDULING_GROUP_LABEL: value}, None)
    assert found.startswith(name[: -2 if name.endswith("a9") else None])
    assert OBJECT_NAME.fullmatch(found)
    assert len(found) <= 253


def test_no_two_groups_become_one() -> None:
    values = ["my_group", "My_Group", "my-group", "my__group", "my.group", "my..group", "my-_group"]
    found = {derived_name("p", {}, {names.COSCHEDULING_GROUP_LABEL: each}, None) for each in values}
    assert len(found) == len(values)


@given(kind=st.text(min_size=1, max_size=20), name=st.text(max_size=400))
def test_every_owner_leads_to_a_name_that_the_api_server_takes(kind: str, name: str) -> None:
    """Nothing checks the names in owner references."""
    found = derived_name("p", {}, {}, (kind, name))
    assert OBJECT_NAME.fullmatch(found)
    assert len(found) <= 253
    plain = f"{kind.lower()}-{name}".lower()
    if OBJECT_NAME.fullmatch(plain) and len(plain) <= 253:
        assert found == plain, "what has been created before is found again"


def test_a_gang_whose_name_no_object_can_have_is_refused_at_admission() -> None:
    for value in ("a..b", "a.-b", "a-.b"):
        with pytest.raises(AnnotationError):
            parse_demand({names.GANG: value, names.GANG_SIZE: "2"}, 1)
    assert parse_demand({names.GANG: "team-a.run-7", names.GANG_SIZE: "2"}, 1).gang_size == 2
