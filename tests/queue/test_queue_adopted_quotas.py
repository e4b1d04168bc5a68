"""A quota on NVIDIA's resource goes on counting in an adopted namespace."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from scheduler_extender.quotas.adopted import (
    COUNTED,
    LABEL,
    OURS,
    changes,
    counterpart,
    keep,
    keep_once,
)
from tandem.contracts import names
from tandem.kube.errors import AlreadyExists, Conflict, Forbidden, KubeError, NotFound
from tandem.kube.resource import NAMESPACES


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


class Server:
    """An API server with one adopted namespace, that notes what is written, or refuses it."""

    def __init__(self, *quotas: dict[str, Any], error: KubeError | None = None) -> None:
        self.quotas, self.error = list(quotas), error
        self.written: list[tuple[str, str, str]] = []
        self.selectors: list[str] = []

    def list(self, resource: Any, *, label_selector: str = "") -> list[dict[str, Any]]:
        if resource == NAMESPACES:
            self.selectors.append(label_selector)
            return [{"metadata": {"name": "team"}}]
        return self.quotas

    def _write(self, what: str, name: str, namespace: str) -> None:
        self.written.append((what, name, namespace))
        if self.error:
            raise self.error

    def create(self, _: Any, body: dict, namespace: str) -> None:
        self._write("create", body["metadata"]["name"], namespace)

    def replace(self, _: Any, body: dict, namespace: str) -> None:
        self._write("replace", body["metadata"]["name"], namespace)

    def delete(self, _: Any, name: str, namespace: str, *, uid: str) -> None:
        self._write(f"delete {uid}", name, namespace)


def all_three() -> list[dict[str, Any]]:
    """One quota that is new, one whose bound has changed, and one of ours that is not wanted."""
    changed = counterpart(quota("changed"))
    gone = counterpart(quota("gone"))
    assert changed is not None
    assert gone is not None
    return [quota("new"), quota("changed", hard="8"), kept(changed), kept(gone)]


def test_what_is_to_change_is_written_in_its_namespace() -> None:
    server = Server(*all_three())
    keep_once(server)  # type: ignore[arg-type]
    assert server.selectors == [f"{names.ADOPT_LABEL}=true"]
    assert server.written == [
        ("create", "tandem-new", "team"),
        ("replace", "tandem-changed", "team"),
        ("delete u-kept", "tandem-gone", "team"),
    ]


@pytest.mark.parametrize(
    ("error", "of"),
    [
        (AlreadyExists(409, "there is one"), ["new"]),
        (Conflict(409, "changed"), ["changed", "gone"]),
        (NotFound(404, "gone"), ["changed", "gone"]),
    ],
)
def test_a_quota_that_others_have_changed_is_left_to_the_next_look(
    error: KubeError, of: list[str]
) -> None:
    chosen = [each for each in all_three() if any(name in each["metadata"]["name"] for name in of)]
    server = Server(*chosen, error=error)
    keep_once(server)  # type: ignore[arg-type]
    assert len(server.written) == len(of)


def test_an_api_server_that_refuses_is_reported() -> None:
    with pytest.raises(Forbidden):
        keep_once(Server(quota(), error=Forbidden(403, "no")))  # type: ignore[arg-type]


@pytest.mark.parametrize("leads", [True, False])
def test_the_leader_alone_keeps_them_and_goes_on_after_an_error(leads: bool) -> None:
    server = Server(quota(), error=Forbidden(403, "no"))

    async def scenario() -> None:
        looks = 0

        def asked() -> bool:
            nonlocal looks
            looks += 1
            if looks == 4:
                raise asyncio.CancelledError
            return leads

        with pytest.raises(asyncio.CancelledError):
            await keep(server, asked, every_s=0.0)  # type: ignore[arg-type]

    asyncio.run(scenario())
    assert len(server.written) == (3 if leads else 0)
