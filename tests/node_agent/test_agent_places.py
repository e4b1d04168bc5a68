"""Where the GPUs of a node are: NUMA nodes, and which of them NVLink connects."""

import pytest

from node_agent.nvml import SWITCH
from node_agent.places import Place, find_places, nvlink_domains
from node_agent.publish import Change, compare
from node_agent.stub import StubError, StubGarble, StubGpu, StubLink, StubSlice
from tandem.contracts.resources import GPUNodeStatus

NOT_SUPPORTED, INVALID_ARGUMENT, LOST, NO_SYMBOL = 3, 2, 15, 13
STATE = "nvmlDeviceGetNvLinkState"
KIND = "nvmlDeviceGetNvLinkRemoteDeviceType"
REMOTE = "nvmlDeviceGetNvLinkRemotePciInfo_v2"


def pair(one, other, link=0):
    """Return both ends of a link between two GPUs."""
    return [StubLink(one, link, other), StubLink(other, link, one)]


def four(driver, *links, **errors):
    driver.state.gpus = [StubGpu(f"GPU-{i}", nvlinks=12) for i in range(4)]
    driver.state.links = list(links)
    driver.state.errors = errors.get("errors", [])
    driver.apply()


def found(nvml, tmp_path):
    places = find_places(nvml.open(), tmp_path)
    return {uuid: place.nvlink_domain for uuid, place in places.items()}


PAIRS = [*pair(0, 2), *pair(1, 3)]


@pytest.mark.parametrize(
    ("links", "domains"),
    [
        ([], [None, None, None, None]),
        (PAIRS, [0, 1, 0, 1]),
        # A chain: 3 - 1 - 2; NVLink of several hops is one domain.
        ([*pair(3, 1), *pair(1, 2, link=1)], [None, 1, 1, 1]),
        # Each of them is on a switch of its own number, and the switches are one fabric.
        ([StubLink(i, 4, i, "switch") for i in range(4)], [0, 0, 0, 0]),
        ([StubLink(1, 0, 0, "switch"), StubLink(2, 0, 0, "switch")], [None, 1, 1, None]),
        # One GPU alone on a switch, or on a CPU of IBM, has no peer.
        ([StubLink(1, 0, 0, "switch"), StubLink(2, 0, 0, "npu"), StubLink(3, 0, 0, "npu")],
         [None, None, None, None]),
        # What is said at one end alone.
        ([StubLink(3, 11, 0)], [0, None, None, 0]),
        # A GPU of another machine, or one that NVML does not show.
        ([StubLink(0, 0, 9), StubLink(1, 0, 9)], [None, None, None, None]),
    ],
)  # fmt: skip
def test_gpus_that_nvlink_connects_have_one_domain(driver, nvml, tmp_path, links, domains):
    four(driver, *links)
    assert found(nvml, tmp_path) == {f"GPU-{i}": domain for i, domain in enumerate(domains)}
    assert not nvml.binding.errors, "a board with fewer links than others is no failure"


@pytest.mark.parametrize(
    ("error", "domains"),
    [
        (StubError(STATE, NOT_SUPPORTED), [None, None, None, None]),
        (StubError(STATE, NO_SYMBOL), [None, None, None, None]),
        (StubError(STATE, 999), [None, None, None, None]),
        (StubError(STATE, NOT_SUPPORTED, gpu=0), [0, 1, 0, 1]),  # its peer says it
        (StubError(KIND, NO_SYMBOL), [0, 1, 0, 1]),
        (StubError(KIND, NOT_SUPPORTED), [0, 1, 0, 1]),
        (StubError(REMOTE, NOT_SUPPORTED), [None, None, None, None]),
        (StubError(REMOTE, INVALID_ARGUMENT, gpu=1), [0, 1, 0, 1]),
        (StubError("nvmlDeviceGetPciInfo_v3", NOT_SUPPORTED), [None, None, None, None]),
        (StubError("nvmlDeviceGetPciInfo_v3", NOT_SUPPORTED, gpu=3), [0, 1, 0, 1]),
    ],
)  # fmt: skip
def test_what_nvml_refuses_is_unknown(driver, nvml, tmp_path, error, domains):
    four(driver, *PAIRS, errors=[error])
    domain = found(nvml, tmp_path)
    assert [domain.get(f"GPU-{i}") for i in range(4)] == domains


def test_an_address_that_is_no_address_is_unknown(driver, nvml, tmp_path):
    four(driver, *PAIRS)
    # `busId` is the last field of nvmlPciInfo_t, from byte 36 on.
    driver.state.garbles = [StubGarble(REMOTE, "info", b"\xff\xfe:nonsense\0", offset=36)]
    driver.apply()
    assert set(found(nvml, tmp_path).values()) == {None}


def test_an_own_address_that_is_no_text_is_unknown(driver, nvml, tmp_path):
    four(driver, *PAIRS)
    driver.state.garbles = [StubGarble("nvmlDeviceGetPciInfo_v3", "info", b"\xff\0", offset=36)]
    driver.apply()
    assert find_places(nvml.open(), tmp_path) == {}


@pytest.mark.parametrize("call", [STATE, REMOTE, "nvmlDeviceGetPciInfo_v3"])
def test_a_lost_gpu_takes_no_place_from_the_others(driver, nvml, tmp_path, call):
    """The DRA driver had no places at all while one GPU was lost."""
    four(driver, *PAIRS, errors=[StubError(call, LOST, gpu=0)])
    places = find_places(nvml.open(), tmp_path)
    assert places["GPU-1"] == Place("0000:02:00.0", None, 1)
    assert places["GPU-3"].nvlink_domain == 1


def test_a_slice_has_the_numa_node_of_its_gpu_and_no_nvlink(driver, nvml, tmp_path):
    driver.state.gpus = [StubGpu("GPU-0", mig=1, nvlinks=12), StubGpu("GPU-1", nvlinks=12)]
    driver.state.slices = [StubSlice(0, f"MIG-{i}", i) for i in (1, 2)]
    driver.state.links = pair(0, 1)
    driver.apply()
    (tmp_path / "0000:01:00.0").mkdir()
    (tmp_path / "0000:01:00.0" / "numa_node").write_text("1\n")
    places = find_places(nvml.open(), tmp_path)
    assert places["MIG-1"] == places["MIG-2"] == Place("0000:01:00.0", 1, None)
    assert places["GPU-1"] == Place("0000:02:00.0", None, None)


def test_domains_do_not_depend_on_the_order_of_links():
    peers = {
        0: frozenset({"d"}), 1: frozenset({SWITCH}), 2: frozenset({"a"}), 3: frozenset({SWITCH}),
    }  # fmt: skip
    index_of = {"a": 0, "b": 1, "c": 2, "d": 3}
    assert nvlink_domains(peers, index_of) == {0: 0, 1: 0, 2: 0, 3: 0}


# --- the agent ------------------------------------------------------------------------------------


def test_the_agent_reports_places(node, driver):
    agent = node()
    four(driver, *PAIRS)
    for number in range(4):
        folder = agent.settings.sys / "bus/pci/devices" / f"0000:{number + 1:02x}:00.0"
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{number // 2}\n")
    gpus = agent.run(2).gpus
    assert [(gpu.numa_node, gpu.nvlink_domain) for gpu in gpus] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    wire = gpus[0].wire()
    assert (wire["numaNode"], wire["nvlinkDomain"]) == (0, 0)


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_SYMBOL, 999, LOST])
def test_a_gpu_whose_links_cannot_be_read_is_reported(node, driver, code):
    agent = node()
    four(driver, *PAIRS, errors=[StubError(STATE, code)])
    gpus = agent.run(2).gpus
    assert [gpu.uuid for gpu in gpus] == [f"GPU-{i}" for i in range(4)]
    assert {gpu.health for gpu in gpus} == {"Healthy"}
    assert "nvlinkDomain" not in gpus[0].wire()
    assert "numaNode" not in gpus[0].wire()


def test_links_are_read_when_the_session_begins_and_not_with_each_sample(node, driver, monkeypatch):
    agent = node()
    four(driver, *PAIRS)
    agent.run(1)
    asked = []
    call = agent.monitor.nvml.binding.call
    monkeypatch.setattr(
        agent.monitor.nvml.binding,
        "call",
        lambda name, *rest, **more: asked.append(name) or call(name, *rest, **more),
    )
    agent.run(5)
    assert asked
    assert not [name for name in asked if "NvLink" in name or "Pci" in name]


def test_what_an_earlier_agent_reported_is_kept_while_nvml_is_away(node, driver):
    agent = node()
    four(driver, *PAIRS)
    before = agent.run(1)
    later = node()
    later.monitor.remember(before, driver.now_s)
    assert [gpu.nvlink_domain for gpu in later.report().gpus] == [0, 1, 0, 1]


def test_a_report_of_an_agent_that_knows_no_places_is_read(node, driver):
    agent = node()
    four(driver, *PAIRS)
    wire = agent.run(1).wire()
    for gpu in wire["gpus"]:
        del gpu["nvlinkDomain"]
    older = GPUNodeStatus.model_validate(wire)
    assert [gpu.nvlink_domain for gpu in older.gpus] == [None] * 4
    assert compare(older, GPUNodeStatus.model_validate(agent.report().wire())) is Change.URGENT


def test_a_place_that_cannot_be_is_unknown():
    gpu = {"uuid": "GPU-a", "index": 0, "model": "A100", "memoryBytes": 1 << 30}
    wire = {"observedAt": "2026-11-26T12:00:00Z", "gpus": [gpu | {"nvlinkDomain": -4}]}
    assert GPUNodeStatus.model_validate(wire).gpus[0].nvlink_domain is None
