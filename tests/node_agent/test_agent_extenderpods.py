"""What the agent keeps of the pods that the extender tells it, and when it asks."""

import json
import ssl
from types import SimpleNamespace

import pytest

from node_agent import extenderpods
from node_agent.deviceplugin import refuse_with_device_plugin
from node_agent.extenderpods import AskError, Extender, ExtenderPods
from node_agent.pods import ContainerEnd
from tandem.errors import TandemError, UsageError

OURS = {
    "namespace": "team", "name": "train-0-x", "uid": "u", "ours": True, "job": "job-train",
    "gpus": ["GPU-1", "GPU-2"], "memoryBytes": 5, "addresses": ["10.0.0.1", "fd00::1"],
    "ends": [
        {"container": "main", "exitCode": 1, "finishedAt": "2026-01-02T03:04:05Z",
         "reason": "Error"}
    ],
}  # fmt: skip
THEIRS = {"namespace": "web", "name": "server", "uid": "w"}


class Said:
    """An extender that says `pods`, or fails; counts."""

    def __init__(self, *pods):
        self.pods = pods
        self.asked = 0
        self.body = None

    def __call__(self):
        self.asked += 1
        if self.body is not None:
            return self.body
        if self.pods is None:
            raise AskError("away")
        return json.dumps({"pods": self.pods, "more": "of a later version"}).encode()


@pytest.fixture
def said():
    return Said(OURS, THEIRS)


@pytest.fixture
def pods(said):
    found = ExtenderPods(said)
    assert found.refresh()
    return found


def test_what_is_listed_of_pods(pods):
    info = pods.find("u")
    assert (info.namespace, info.name, info.job, info.ours) == (
        "team", "train-0-x", "job-train", True,
    )  # fmt: skip
    assert info.predicted_memory == 5
    assert info.ends == (ContainerEnd("main", 1, 1767323045, "Error"),)
    assert (pods.at("10.0.0.1"), pods.at("fd00::1"), pods.at("10.0.0.2")) == ("u", "u", None)
    theirs = pods.find("w")
    assert (theirs.namespace, theirs.name, theirs.ours) == ("web", "server", False)
    assert pods.find("?") is None


def test_pod_belongs_on_the_gpus_that_it_was_given(pods, said):
    info = pods.find("u")
    assert info.belongs_on("GPU-2")
    assert not info.belongs_on("GPU-3")
    assert not pods.find("w").belongs_on("GPU-1")
    said.pods = [OURS | {"gpus": []}]
    pods.refresh()
    assert not pods.find("u").belongs_on("GPU-1"), "it was given nothing"


@pytest.mark.parametrize(
    "body", [None, b"", b"no", b"[]", b'{"pods": [{}]}', b'{"pods": [{"uid": 1}]}', b"[" * 9000]
)
def test_the_latest_answer_goes_on_counting(pods, said, body, caplog):
    said.pods, said.body = None, body
    assert not pods.refresh()
    assert pods.find("u").name == "train-0-x"
    assert "pods unknown" in caplog.text


def test_a_pod_that_is_gone_is_forgotten_with_its_address(pods, said):
    said.pods = [THEIRS]
    assert pods.refresh()
    assert (pods.find("u"), pods.at("10.0.0.1")) == (None, None)


def test_a_pod_is_looked_for_a_while_and_not_for_ever(said):
    now = [0.0]
    pods = ExtenderPods(said, lambda: now[0])

    def wanted():
        pods._soon.clear()
        pods.look_for(["static"])
        return pods._soon.is_set()

    assert wanted()
    now[0] += extenderpods.LOOK_S - 1
    assert wanted()
    now[0] += 1
    assert not wanted()
    pods.look_for([])
    now[0] += extenderpods.FORGET_LOOK_S
    pods.refresh()
    assert wanted(), "now and then"
    pods._soon.clear()
    pods.look_for(["static", "new"])
    assert pods._soon.is_set()


def test_the_first_answer_is_there_when_the_agent_starts(said):
    pods = ExtenderPods(said)
    pods.start()
    assert pods.find("u").name == "train-0-x"
    pods.stop()


@pytest.mark.parametrize("url", ["http://extender", "extender", "https://"])
def test_the_token_goes_nowhere_unencrypted(url):
    with pytest.raises(UsageError):
        Extender(url, None, lambda: "secret")


def test_an_extender_that_is_not_there_is_no_fault_of_the_agent(tmp_path):
    asked = []

    def get(*_):
        asked.append(1)
        return {"webhooks": [{"clientConfig": {}}]}

    extender = Extender("https://localhost:9", SimpleNamespace(get=get), lambda: "secret")
    with pytest.raises(AskError, match="certificate"):
        extender()
    assert asked

    def unreadable():
        return (tmp_path / "token").read_text()

    extender = Extender("https://localhost:9", None, unreadable)
    extender._context = ssl.create_default_context()
    with pytest.raises(AskError):
        extender()


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
        refuse_with_device_plugin(client, "n0")
        return
    with pytest.raises(TandemError) as refusal:
        refuse_with_device_plugin(client, "n0")
    assert f"hands out {shown} through" in refusal.value.message
