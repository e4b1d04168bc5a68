"""What the agent keeps of a pod."""

from types import SimpleNamespace
from typing import ClassVar

import pytest

from node_agent.kubepods import (
    KubePods,
    pod_info,
    predicted_memory,
    refuse_beside_device_plugin,
    trim,
)
from tandem.contracts import names
from tandem.errors import TandemError
from tandem.kube.errors import NotFound, Unavailable
from tandem.kube.reflector import EventType


def pod(**metadata):
    return {
        "metadata": {
            "name": "train-0-x", "namespace": "team", "uid": "u", "resourceVersion": "1",
            "managedFields": ["much"], **metadata,
        },
        "spec": {
            "schedulerName": names.SCHEDULER_NAME,
            "containers": [
                {"name": "side"},
                {"name": "main", "resources": {"limits": {names.RESOURCE: "1"}}},
            ],
        },
        "status": {"phase": "Running"},
    }  # fmt: skip


OWNER = {"kind": "Job", "name": "train-0", "controller": True}


def test_only_what_is_used_is_kept():
    kept = trim(pod(ownerReferences=[{"kind": "X", "name": "y"}, OWNER]))
    assert kept == {
        "metadata": {
            "name": "train-0-x", "namespace": "team", "uid": "u", "resourceVersion": "1",
            "ownerReferences": [OWNER],
        },
        "spec": {"schedulerName": names.SCHEDULER_NAME, "asksForGpus": True},
        "status": {"ended": [], "addresses": []},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("metadata", "job"),
    [
        ({}, "pod-train-0-x"),
        ({"ownerReferences": [OWNER]}, "job-train-0"),
        ({"ownerReferences": [OWNER], "annotations": {names.GANG: "g"}}, "gang-g"),
        ({"labels": {names.COSCHEDULING_GROUP_LABEL: "pg"}}, "group-pg"),
    ],
)
def test_job_of_a_pod(metadata, job):
    info = pod_info(trim(pod(**metadata)))
    assert (info.namespace, info.name, info.job, info.ours) == ("team", "train-0-x", job, True)


def test_pod_belongs_on_the_gpus_that_it_was_given():
    info = pod_info(trim(pod(annotations={names.VISIBLE_DEVICES: "GPU-1,GPU-2"})))
    assert info.belongs_on("GPU-2")
    assert not info.belongs_on("GPU-3")


def test_pod_that_was_given_nothing_belongs_nowhere():
    info = pod_info(trim(pod()))
    assert info.ours
    assert not info.belongs_on("GPU-3")


@pytest.mark.parametrize("limits", [None, {}, {names.RESOURCE: "0"}, {"cpu": "1"}])
def test_pod_of_our_scheduler_that_asks_for_no_gpu_belongs_nowhere(limits):
    idle = pod()
    idle["spec"]["containers"] = [{"name": "main", "resources": {"limits": limits}}]
    info = pod_info(trim(idle))
    assert not info.ours
    assert not info.belongs_on("GPU-1")


def test_pod_of_another_scheduler_belongs_nowhere():
    other = pod()
    other["spec"]["schedulerName"] = "default-scheduler"
    assert not pod_info(trim(other)).belongs_on("GPU-1")


ENDED = {"exitCode": 1, "finishedAt": "2026-01-02T03:04:05Z", "reason": "Error"}


def test_last_end_of_each_container():
    failed = pod()
    failed["status"]["containerStatuses"] = [
        {"name": "main", "state": {"running": {}}, "lastState": {"terminated": ENDED}},
        {"name": "side", "state": {"terminated": ENDED | {"exitCode": 0}}, "lastState": {}},
        {"name": "new", "state": {"waiting": {}}},
    ]
    ends = pod_info(trim(failed)).ends
    assert [(end.container, end.exit_code, end.reason) for end in ends] == [
        ("main", 1, "Error"), ("side", 0, "Error")
    ]  # fmt: skip
    assert ends[0].at_s == 1767323045
    failed["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:00Z"
    assert pod_info(trim(failed)).ends == (), "it was told to go"


@pytest.mark.parametrize(
    ("load", "predicted"),
    [
        (None, None),
        ({"memorySource": "formula", "memoryP95Bytes": 5}, 5),
        ({"memorySource": "whole-gpu", "memoryP95Bytes": 0}, None),
    ],
)
def test_what_was_predicted(load, predicted):
    assert predicted_memory({"status": {"load": load}}) == predicted
    assert predicted_memory({}) is None


@pytest.mark.parametrize(
    ("error", "told"), [(NotFound(404, "gone"), False), (Unavailable(0, "away"), True)]
)
def test_a_pod_keeps_its_prediction_where_its_gpujob_cannot_be_read(error, told, caplog):
    class Client:
        answers: ClassVar = [{"status": {"load": {"memorySource": "model", "memoryP95Bytes": 5}}}]

        def get(self, *_):
            if self.answers:
                return self.answers.pop()
            raise error

    pods = KubePods(Client(), "n0")
    one = trim(pod())
    for kind in (EventType.ADDED, EventType.MODIFIED):
        pods._take(kind, one)
        assert pods.find("u").predicted_memory == 5
    assert ("prediction unknown" in caplog.text) is told, (
        "the agent warns where the API server fails, and not where the GPUJob was deleted"
    )


@pytest.mark.parametrize(
    ("capacity", "shown"),
    [
        ({"nvidia.com/gpu": "8"}, "8 nvidia.com/gpu"),
        ({"nvidia.com/gpu": "1k"}, "1k nvidia.com/gpu"),
        ({"nvidia.com/gpu": "0", "nvidia.com/mig-1g.5gb": "7"}, "7 nvidia.com/mig-1g.5gb"),
        ({"nvidia.com/gpu.shared": "40"}, "40 nvidia.com/gpu.shared"),
        ({"nvidia.com/gpu": "0", "nvidia.com/hostdev": "4", "cpu": "8"}, ""),
        ({}, ""),
    ],
)
def test_each_resource_of_gpus_of_a_device_plugin_is_seen(capacity, shown):
    client = SimpleNamespace(get=lambda *_: {"status": {"capacity": capacity}})
    if not shown:
        refuse_beside_device_plugin(client, "n0")
        return
    with pytest.raises(TandemError) as refusal:
        refuse_beside_device_plugin(client, "n0")
    assert f"hands out {shown} through" in refusal.value.message
