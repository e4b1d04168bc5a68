"""What an agent gets of the pods of its node: by its token, of its own node, without more."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from extender_builders import gpu_job, pod
from fastapi import FastAPI
from fastapi.testclient import TestClient

from scheduler_extender.admission.config import AdmissionConfig, Rotation
from scheduler_extender.cluster.state import ClusterState
from scheduler_extender.config import Public
from scheduler_extender.serving import nodepods
from scheduler_extender.serving.front import FrontConfig, Line, front_app
from scheduler_extender.serving.nodepods import NodePods, node_pods_router
from tandem.contracts import names
from tandem.kube.access import ACCESS_REVIEWS, TOKEN_REVIEWS

PATH = "/v1/node-pods"


def front(api: Any, state: ClusterState) -> TestClient:
    """Return the public port, with an extender behind it that has this state."""
    inner = FastAPI()
    inner.include_router(node_pods_router(NodePods(state)))
    behind = httpx.AsyncClient(transport=httpx.ASGITransport(inner), base_url="http://extender")
    config = FrontConfig(
        kubeconfig=None,
        namespace=names.NAMESPACE,
        public=Public(),
        probes=None,
        certificate=Rotation(),
        admission=AdmissionConfig(),
        log_level="INFO",
        socket="",
    )
    return TestClient(front_app(config, Line(), api, behind))


class Api:
    """Knows the tokens `agent-NODE`, one of an account that is bound to no pod, one of a reader."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def create(self, resource: Any, body: dict[str, Any], *_: object) -> dict[str, Any]:
        spec = body["spec"]
        if resource == TOKEN_REVIEWS:
            name, _, node = spec["token"].partition("-")
            extra = {names.NODE_OF_TOKEN: [node]} if node else {}
            user = {"username": name, "extra": extra}
            return {"status": {"authenticated": name in ("agent", "reader"), "user": user}}
        assert resource == ACCESS_REVIEWS
        self.asked.append(spec["resourceAttributes"])
        return {"status": {"allowed": spec["user"] == "agent"}}


@pytest.fixture
def state() -> ClusterState:
    return ClusterState(now_s=0)


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def client(api: Api, state: ClusterState) -> TestClient:
    return front(api, state)


def ask(client: TestClient, token: str = "agent-n0", path: str = PATH) -> httpx.Response:
    return client.get(path, headers={"authorization": f"Bearer {token}"})


def put(state: ClusterState, name: str, gpus: int = 1, **changes: Any) -> dict[str, Any]:
    devices = changes.pop("devices", "GPU-1" if gpus else "")
    raw = pod(name, gpus, uid=name, devices=devices, **{"node_name": "n0", **changes})
    state.upsert("pods", raw)
    return raw


def names_of(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [each["name"] for each in answer.json()["pods"]]


def test_an_agent_gets_the_pods_of_its_own_node(
    client: TestClient, state: ClusterState, api: Api
) -> None:
    put(state, "a")
    put(state, "b", node_name="n1")
    put(state, "waits", node_name="", devices="")
    put(state, "web", 0)
    assert names_of(ask(client)) == ["a", "web"]
    assert names_of(ask(client, "agent-n1")) == ["b"]
    assert names_of(ask(client, "agent-n2")) == []
    # Whatever it names besides.
    assert names_of(ask(client, "agent-n0", f"{PATH}?node=n1")) == ["a", "web"]
    assert api.asked[0] == {
        "group": names.GROUP, "resource": "gpunodes", "subresource": "status", "verb": "update",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("token", "status"), [("agent", 403), ("reader-n0", 403), ("stranger-n0", 401), ("", 401)]
)
def test_others_get_no_event(client: TestClient, token: str, status: int) -> None:
    assert ask(client, token).status_code == status


def test_neither_environment_nor_annotations_leave_the_extender(
    client: TestClient, state: ClusterState
) -> None:
    for gpus in (0, 1):
        raw = pod(f"p{gpus}", gpus, uid=f"p{gpus}", node_name="n0", annotations={"a": "SECRET"})
        raw["metadata"]["labels"] = {"l": "SECRET"}
        for container in raw["spec"]["containers"]:
            container |= {"env": [{"name": "KEY", "value": "SECRET"}], "args": ["SECRET"]}
            container |= {"image": "SECRET", "command": ["SECRET"]}
        state.upsert("pods", raw)
    answer = ask(client)
    assert names_of(answer) == ["p0", "p1"]
    assert "SECRET" not in answer.text


ENDED = {"exitCode": 1, "finishedAt": "2026-01-02T03:04:05Z", "reason": "Error"}


def test_what_is_listed_of_a_pod_of_ours(client: TestClient, state: ClusterState) -> None:
    raw = put(state, "a", 2, devices="GPU-1,GPU-2")
    raw["metadata"]["resourceVersion"] = "1000000000"
    raw["status"] = {
        "phase": "Running",
        "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
        "containerStatuses": [
            {"name": "main", "state": {"running": {}}, "lastState": {"terminated": ENDED}},
            {"name": "side", "state": {"terminated": ENDED | {"exitCode": 0}}, "lastState": {}},
            {"name": "new", "state": {"waiting": {}}},
        ],
    }
    state.upsert("pods", raw)
    (listed,) = ask(client).json()["pods"]
    assert listed["ours"]
    assert listed["job"] == "pod-a"
    assert listed["gpus"] == ["GPU-1", "GPU-2"]
    assert listed["addresses"] == ["10.0.0.1", "fd00::1"]
    assert [(each["container"], each["exitCode"]) for each in listed["ends"]] == [
        ("main", 1), ("side", 0),
    ]  # fmt: skip
    raw["metadata"] |= {
        "resourceVersion": "1000000001",
        "deletionTimestamp": "2026-01-02T03:04:00Z",
    }
    raw["spec"]["hostNetwork"] = True
    state.upsert("pods", raw)
    (listed,) = ask(client).json()["pods"]
    assert (listed["ends"], listed["addresses"]) == ([], []), "being deleted, at the node's address"


def test_pods_that_have_ended_are_listed_for_their_exit_codes_within_bounds(
    client: TestClient, state: ClusterState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodepods, "ENDED_LISTED", 2)
    monkeypatch.setattr(nodepods, "PODS_LISTED", 3)
    for number in range(5):
        raw = put(state, f"e{number}", phase="Failed")
        at = f"2026-01-02T03:04:0{number}Z"
        raw["metadata"]["resourceVersion"] = "1000000000"
        raw["status"]["containerStatuses"] = [
            {"name": "main", "state": {"terminated": ENDED | {"finishedAt": at}}}
        ]
        state.upsert("pods", raw)
        put(state, f"r{number}", phase="Running")
        put(state, f"w{number}", 0, phase="Succeeded")
    found = names_of(ask(client))
    assert [name for name in found if name[0] == "e"] == ["e3", "e4"]
    assert len(found) == 5
    assert not [name for name in found if name[0] == "w"]


def test_what_is_gone_is_forgotten(state: ClusterState) -> None:
    found = NodePods(state)
    raws = [put(state, "a"), put(state, "web", 0)]
    assert len(found.of("n0").pods) == 2
    for raw in raws:
        state.delete("pods", raw)
    assert found.of("n0").pods == []
    assert found._nodes == {}


def test_blame_starts_from_what_the_pod_was_placed_with(
    client: TestClient, state: ClusterState
) -> None:
    note = {"gpuJob": "job-x", "memoryBaseBytes": 3, "memoryPeakExtraBytes": 4,
            "peakProbability": 0.5, "utilization": 40.0}  # fmt: skip
    put(state, "a", annotations={names.PLACED_WITH: json.dumps(note)})
    (listed,) = ask(client).json()["pods"]
    assert listed["memoryBytes"] == 7


@pytest.mark.parametrize(("source", "expected"), [("formula", True), ("whole-gpu", False)])
def test_a_pod_that_an_earlier_version_bound_is_judged_by_its_job(
    client: TestClient, state: ClusterState, source: str, expected: bool
) -> None:
    put(state, "a")
    job = gpu_job("pod-a")
    load = {
        "utilisationPercent": 50, "utilisationP95Percent": 60, "memoryBaseBytes": 1,
        "memoryPeakExtraBytes": 0, "peakProbability": 0, "memoryP95Bytes": 9,
        "utilisationSource": "formula", "memorySource": source,
        "modelVersion": "", "outOfDistribution": False, "featureHash": "",
    }  # fmt: skip
    job.setdefault("status", {})["load"] = load
    state.upsert("gpujobs", job)
    (listed,) = ask(client).json()["pods"]
    assert listed.get("memoryBytes") == (9 if expected else None)
