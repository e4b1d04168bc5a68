"""The devices that the DRA driver publishes, by what the agent reports."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.board import HANDED_OVER, UNNAMED
from node_agent.dra.devices import (
    QUARANTINED,
    devices,
    inventory,
    semantic_version,
)
from node_agent.dra.label import labelled
from node_agent.dra.slices import SlicePublisher
from node_agent.places import Place, Places
from node_agent.stub import StubError, StubGarble, StubGpu
from tandem.contracts.claims import QUEUE_TAINT, device_name
from tandem.contracts.names import HAND_OVER_LABEL
from tandem.contracts.resources import GPU, GPUNodeStatus, Health, Slice
from tandem.errors import TandemError
from tandem.kube.errors import Conflict, NotFound
from tandem.kube.memory import MemoryCluster
from tandem.kube.reflector import EventType
from tandem.kube.resource import NODES, RESOURCE_SLICES

GIB = 1 << 30
NOW = "2026-11-26T12:00:00Z"


def gpu(uuid="GPU-a", index=0, shares=2, **more):
    values = {"model": "NVIDIA A100-SXM4-80GB", "memory_bytes": 80 * GIB, "shares": 0, **more}
    return GPU(uuid=uuid, index=index, dra_shares=shares, **values)


def report(*gpus):
    return GPUNodeStatus(observed_at=NOW, driver_version="580.65.06", gpus=list(gpus))


# --- the agent ------------------------------------------------------------------------------------


def test_a_node_of_dra_offers_the_queue_nothing(node):
    agent = node(hand_over="dra", shares=4)
    agent.run(2)
    found = agent.gpu()
    assert (found.shares, found.dra_shares, found.shares_reason) == (0, 4, HANDED_OVER)
    assert inventory(agent.report()) == {"gpu-a": "GPU-a", "gpu-b": "GPU-b"}


def test_a_node_of_dra_and_queue_offers_its_shares_to_the_queue_and_to_no_other_claim(node):
    agent = node(hand_over="dra-queue", shares=4)
    agent.run(2)
    found = agent.gpu()
    assert (found.shares, found.dra_shares, found.shares_reason) == (4, 4, "")
    assert inventory(agent.report()) == {"gpu-a": "GPU-a", "gpu-b": "GPU-b"}
    for device in devices(agent.report(), {}):
        assert device["taints"] == [{"key": QUEUE_TAINT, "effect": "NoSchedule"}]


def test_a_gpu_without_a_name_for_dra_is_not_offered_to_the_queue(node, driver):
    driver.state.gpus = [StubGpu("GPU-" + "a" * 60)]
    driver.apply()
    agent = node(hand_over="dra-queue")
    agent.run(2)
    (found,) = agent.report().gpus
    assert (found.shares, found.dra_shares, found.shares_reason) == (0, 0, UNNAMED)


def test_a_quarantined_gpu_of_the_queue_is_a_device_with_its_own_taint_alone():
    sick = gpu(shares=0, health=Health.QUARANTINED)
    (device,) = devices(report(sick), {})
    assert [taint["key"] for taint in device["taints"]] == [QUARANTINED]


def test_a_node_of_the_environment_offers_dra_nothing(node):
    agent = node()
    agent.run(2)
    assert (agent.gpu().shares, agent.gpu().dra_shares) == (2, None)
    assert devices(agent.report(), {}) == []
    assert "draShares" not in agent.report().gpus[0].wire()


def test_the_label_decides_and_what_is_not_known_is_not_guessed():
    api = MemoryCluster()
    with pytest.raises(TandemError, match="not known"):
        labelled(api, "n0")
    api.create(NODES, {"metadata": {"name": "n1"}})
    for name, way in {"n2": "dra", "n3": "x"}.items():
        api.create(NODES, {"metadata": {"name": name, "labels": {HAND_OVER_LABEL: way}}})
    assert labelled(api, "n1") == "environment"
    assert labelled(api, "n2") == "dra"
    with pytest.raises(TandemError, match="hand-over=x"):
        labelled(api, "n3")


def test_the_address_on_the_bus_is_read_from_nvml_and_its_numa_node_from_the_kernel(
    driver, tmp_path
):
    driver.state.gpus = [StubGpu("GPU-a"), StubGpu("GPU-b")]
    driver.apply()
    for name, node in (("0000:01:00.0", "1"), ("0000:02:00.0", "-1")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "numa_node").write_text(f"{node}\n")
    places = Places(tmp_path)
    assert places() == {"GPU-a": Place("0000:01:00.0", 1), "GPU-b": Place("0000:02:00.0", None)}


@pytest.mark.parametrize(
    "fault",
    [StubError("nvmlDeviceGetPciInfo_v3", 15, gpu=0),
     StubGarble("nvmlDeviceGetPciInfo_v3", "info", b"\xff\0", gpu=0, offset=36)],
    ids=["lost", "no text"],
)  # fmt: skip
def test_a_gpu_that_does_not_answer_takes_no_place_from_the_others(driver, tmp_path, fault):
    """The thread that publishes ended."""
    driver.state.gpus = [StubGpu("GPU-a"), StubGpu("GPU-b")]
    (driver.state.errors if isinstance(fault, StubError) else driver.state.garbles).append(fault)
    driver.apply()
    assert Places(tmp_path)() == {"GPU-b": Place("0000:02:00.0")}


# --- devices --------------------------------------------------------------------------------------


def test_a_device_says_which_gpus_nvlink_connects_with_it():
    at = {"GPU-a": Place(None, None, 4)}
    (found,) = devices(report(gpu()), at)
    assert found["attributes"]["nvlinkDomain"] == {"int": 4}
    assert "resource.kubernetes.io/pciBusID" not in found["attributes"]


def test_a_gpu_is_one_device_that_claims_share():
    (found,) = devices(report(gpu()), {"GPU-a": Place("0000:3b:00.0", 1)})
    assert found == {
        "name": "gpu-a",
        "attributes": {
            "uuid": {"string": "GPU-a"},
            "type": {"string": "NVIDIA A100-SXM4-80GB"},
            "index": {"int": 0},
            "driverVersion": {"version": "580.65.6"},
            "resource.kubernetes.io/pciBusID": {"string": "0000:3b:00.0"},
            "resource.kubernetes.io/numaNode": {"int": 1},
        },
        "allowMultipleAllocations": True,
        "capacity": {
            "shares": {
                "value": "2",
                "requestPolicy": {"default": "2", "validRange": {"min": "1", "step": "1"}},
            },
            "memory": {
                "value": "81920Mi",
                "requestPolicy": {
                    "default": "81920Mi",
                    "validRange": {"min": "1Mi", "step": "1Mi"},
                },
            },
        },
    }


def test_a_quarantined_gpu_stays_with_a_taint_and_one_that_is_not_offered_goes():
    sick = gpu("GPU-b", shares=0, health=Health.QUARANTINED, health_reason="Xid 79")
    closed = gpu("GPU-c", shares=0, shares_reason="compute mode ExclusiveProcess")
    found = devices(report(gpu(), sick, closed), {})
    assert [(each["name"], each.get("taints")) for each in found] == [
        ("gpu-a", None),
        ("gpu-b", [{"key": QUARANTINED, "effect": "NoSchedule"}]),
    ]
    # Its claims go on: a pod that has it is prepared again after a restart of kubelet.
    assert "gpu-c" in inventory(report(closed))


def test_a_slice_is_a_device_that_names_its_parent():
    part = gpu("MIG-1", shares=1, slice=Slice(profile="1g.10gb", parent="GPU-a", number=3))
    (found,) = devices(report(part), {})
    assert found["attributes"]["parent"] == {"string": "GPU-a"}
    assert found["attributes"]["profile"] == {"string": "1g.10gb"}
    policy = found["capacity"]["shares"]["requestPolicy"]
    assert policy == {"default": "1", "validRange": {"min": "1"}}


def test_a_gpu_of_unknown_memory_has_no_such_capacity():
    (found,) = devices(report(gpu(memory_bytes=0, shares=1)), {})
    assert list(found["capacity"]) == ["shares"]


def test_uuids_that_make_no_name_or_the_same_one_are_left_out():
    assert device_name("MIG-GPU-1/2/3") is None
    assert device_name("GPU-" + "a" * 60) is None
    found = devices(report(gpu("GPU-A"), gpu("GPU-a", 1), gpu("GPU-1/2", 2)), {})
    assert [each["attributes"]["uuid"]["string"] for each in found] == ["GPU-A"]


@pytest.mark.parametrize(
    ("text", "version"),
    [("580.65.06", "580.65.6"), ("535.104", "535.104.0"), ("", ""), ("1.2.3.4", ""), ("5a", "")],
)
def test_versions_are_semantic_or_left_out(text, version):
    assert semantic_version(text) == version


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=100))
def test_any_text_makes_a_version_or_none(text):
    assert all(part.isdigit() for part in semantic_version(text).split(".") if part)


# --- publishing -----------------------------------------------------------------------------------


@pytest.fixture
def api():
    api = MemoryCluster()
    api.create(NODES, {"metadata": {"name": "n0"}})
    return api


@pytest.fixture
def publisher(api):
    publisher = SlicePublisher("n0", api, dict)
    api.watch(RESOURCE_SLICES, publisher.take_slice)
    return publisher


def tell(publisher, *gpus):
    body = {"metadata": {"name": "n0"}, "status": report(*gpus).wire()}
    publisher.take_report(EventType.MODIFIED, body)


def published(api):
    return api.get(RESOURCE_SLICES, "n0-tandem.gpu")


def test_the_slice_belongs_to_the_node_and_is_written_when_something_changes(api, publisher):
    publisher.publish()
    assert api.list(RESOURCE_SLICES) == [], "nothing before the first report"
    tell(publisher, gpu())
    publisher.publish()
    first = published(api)
    assert first["metadata"]["ownerReferences"][0]["kind"] == "Node"
    assert first["spec"]["pool"] == {"name": "n0", "generation": 1, "resourceSliceCount": 1}
    tell(publisher, gpu(memory_used_bytes=7 * GIB))
    publisher.publish()
    assert published(api) == first, "what is used is not published"
    tell(publisher, gpu(health=Health.QUARANTINED, shares=0))
    publisher.publish()
    assert published(api)["spec"]["pool"]["generation"] == 2


def test_a_slice_that_kubelet_deleted_is_published_anew(api, publisher):
    tell(publisher, gpu())
    publisher.publish()
    api.delete(RESOURCE_SLICES, publisher.name)
    publisher.publish()
    assert len(published(api)["spec"]["devices"]) == 1


def test_a_restarted_driver_writes_what_is_there_not_again(api, publisher):
    tell(publisher, gpu())
    publisher.publish()
    before = published(api)
    again = SlicePublisher("n0", api, dict)
    api.watch(RESOURCE_SLICES, again.take_slice)
    tell(again, gpu())
    again.publish()
    assert published(api) == before


def test_a_slice_that_another_has_changed_meanwhile_is_read_and_written_again(api):
    blind = SlicePublisher("n0", api, dict)
    tell(blind, gpu())
    blind.publish()
    other = published(api)
    other["metadata"]["labels"] = {"x": "y"}
    api.replace(RESOURCE_SLICES, other)
    tell(blind, gpu(), gpu("GPU-b", 1))
    with pytest.raises(Conflict):
        blind.publish()
    blind.publish()
    assert len(published(api)["spec"]["devices"]) == 2


def test_gpus_that_another_driver_publishes_are_not_published(api, publisher):
    theirs = {
        "metadata": {"name": "theirs"},
        "spec": {
            "driver": "gpu.nvidia.com",
            "nodeName": "n0",
            "devices": [{"name": "gpu-0", "attributes": {"uuid": {"string": "GPU-a"}}}],
        },
    }
    api.create(RESOURCE_SLICES, theirs)
    tell(publisher, gpu(), gpu("GPU-b", 1))
    publisher.publish()
    assert [each["name"] for each in published(api)["spec"]["devices"]] == ["gpu-b"]
    api.delete(RESOURCE_SLICES, "theirs")
    publisher.publish()
    assert len(published(api)["spec"]["devices"]) == 2


def test_a_node_that_goes_back_to_the_environment_has_no_slice(api, publisher):
    tell(publisher, gpu())
    publisher.publish()
    tell(publisher, gpu(shares=None))
    publisher.publish()
    with pytest.raises(NotFound):
        published(api)


def test_a_report_that_is_not_understood_changes_nothing(api, publisher):
    tell(publisher, gpu())
    publisher.publish()
    publisher.take_report(EventType.MODIFIED, {"metadata": {}, "status": {"gpus": 7}})
    publisher.take_report(EventType.DELETED, {"metadata": {}})
    publisher.publish()
    assert len(published(api)["spec"]["devices"]) == 1
