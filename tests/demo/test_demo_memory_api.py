"""The in-memory API server over HTTP: what the demo and the agents ask of it."""

from __future__ import annotations

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from scheduler_extender.admission.config import AdmissionConfig
from scheduler_extender.serving.memory_api import admission, memory_router, patched
from tandem.contracts import names
from tandem.errors import TandemError
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import GPU_NODES, NODES, PODS
from tandem_demo.kubelet import visible_device
from tandem_demo.workload import JOBS

PODS_PATH = "/api/v1/namespaces/demo/pods"
AGENT_PATH = f"/apis/{names.API_VERSION}/gpunodes/node-a"


@pytest.fixture
def cluster():
    return MemoryCluster(admission(AdmissionConfig()))


@pytest.fixture
def http(cluster):
    app = FastAPI()
    app.include_router(memory_router(cluster))
    with TestClient(app) as client:
        yield client


def test_a_pod_goes_through_the_webhooks_admission(http):
    answer = http.post(PODS_PATH, json=JOBS[0].pod())
    assert answer.status_code == 201
    pod = answer.json()
    assert pod["spec"]["schedulerName"] == names.SCHEDULER_NAME
    assert pod["spec"]["schedulingGates"] == [{"name": names.SCHEDULING_GATE}]
    with pytest.raises(TandemError, match="does not see exactly one GPU"):
        visible_device(pod)
    pod["metadata"]["annotations"][names.VISIBLE_DEVICES] = "GPU-1"
    assert visible_device(pod) == "GPU-1"


def test_an_unreadable_annotation_is_refused_and_nothing_is_created(http, cluster):
    pod = JOBS[0].pod()
    pod["metadata"]["annotations"][names.BATCH_SIZE] = "many"
    answer = http.post(PODS_PATH, json=pod)
    assert answer.status_code == 422
    assert answer.json()["kind"] == "Status"
    assert '"many" is not allowed' in answer.json()["message"]
    assert cluster.list(PODS) == []


def test_an_agents_report_creates_its_gpunode_and_then_replaces_the_status(http, cluster):
    gpu = {"uuid": "GPU-1", "index": 0, "model": "V100", "memoryBytes": 16 << 30}
    stamp = {"observedAt": "2026-01-02T03:04:05Z"}
    assert http.put(AGENT_PATH, json={"status": {"gpus": [gpu]} | stamp}).is_success
    first = cluster.get(GPU_NODES, "node-a")
    assert http.put(AGENT_PATH, json={"status": {"agentVersion": "2"} | stamp}).is_success
    second = cluster.get(GPU_NODES, "node-a")
    assert second["metadata"]["uid"] == first["metadata"]["uid"]
    assert second["status"] == {"agentVersion": "2"} | stamp


def test_status_is_merged_and_lists_tell_namespaces_apart(http):
    http.post(PODS_PATH, json=JOBS[0].pod())
    name = JOBS[0].name
    answer = http.patch(f"{PODS_PATH}/{name}/status", json={"status": {"phase": "Running"}})
    assert answer.json()["status"] == {"phase": "Running"}
    assert [pod["metadata"]["name"] for pod in http.get("/api/v1/pods").json()["items"]] == [name]
    assert http.get("/api/v1/namespaces/other/pods").json()["items"] == []


def test_what_is_not_there_or_there_already_is_answered_as_an_api_server_does(http):
    missing = http.get(f"{PODS_PATH}/absent")
    assert (missing.status_code, missing.json()["reason"]) == (404, "NotFound")
    node = {"metadata": {"name": "node-a"}}
    assert http.post(NODES.path(), json=node).status_code == 201
    again = http.post(NODES.path(), json=node)
    assert (again.status_code, again.json()["reason"]) == (409, "AlreadyExists")
    assert http.delete(NODES.path(name="node-a")).is_success
    assert http.get(NODES.path()).json()["items"] == []


def test_patches_add_into_lists_and_remove():
    document = {"a": {"x/y": 1}, "list": ["first"]}
    changed = patched(
        document,
        [
            {"op": "add", "path": "/list/0", "value": "zeroth"},
            {"op": "add", "path": "/list/-", "value": "last"},
            {"op": "remove", "path": "/a/x~1y"},
        ],
    )
    assert changed == {"a": {}, "list": ["zeroth", "first", "last"]}
    assert document == {"a": {"x/y": 1}, "list": ["first"]}
