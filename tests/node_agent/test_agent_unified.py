"""GPUs of which NVML gives no size."""

import pytest
from agent_node import GIB, uid

from node_agent.stub import StubError, StubGpu, StubProcess
from node_agent.unified import system_bytes
from tandem.contracts.resources import MemorySource


def meminfo(folder, gib, prefix=""):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "meminfo").write_text(f"{prefix}MemTotal:  {gib << 20} kB\n{prefix}MemFree: 5 kB\n")


@pytest.fixture
def spark(driver, proc):
    """A GB10 without memory of its own next to a GPU with."""

    def make(name="NVIDIA GB10"):
        driver.state.gpus = [StubGpu("GPU-a"), StubGpu("GPU-u", name, memory=None)]
        driver.state.processes = [StubProcess(1, 7, 3 * GIB)]
        proc.add(7, uid(1))

    return make


def test_a_gpu_without_a_size_is_listed_for_one_whole_job(node, spark):
    one = node()
    spark("NVIDIA Something")
    _, gpu = one.run(3).gpus
    assert (gpu.memory_bytes, gpu.memory_source) == (0, MemorySource.UNKNOWN)
    assert (gpu.health, gpu.shares) == ("Healthy", 1)
    assert "size of its memory is unknown" in gpu.shares_reason
    assert [use.memory_bytes for use in gpu.pods] == [3 * GIB]
    assert gpu.wire()["memorySource"] == "Unknown"
    conditions = {c.type: c.status for c in one.report().conditions}
    assert conditions["AllGpusReadable"] == "True"


def test_the_systems_memory_is_that_of_an_integrated_gpu(node, spark, proc):
    meminfo(proc.root, 119)
    one = node()
    spark()
    _, gpu = one.run(3).gpus
    assert (gpu.memory_bytes, gpu.memory_source) == (119 * GIB, MemorySource.SYSTEM)
    assert (gpu.health, gpu.shares) == ("Healthy", 1)


@pytest.mark.parametrize(
    ("model", "node", "gib"),
    [
        ("NVIDIA GB10", None, 119),
        ("NVIDIA-GB10", None, 119),
        ("NVIDIA Thor", None, 119),
        ("Orin (nvgpu)", None, 119),
        ("NVIDIA GH200 480GB", 1, 96),
        ("NVIDIA GH200 480GB", None, None),
        ("NVIDIA GH200 480GB", 9, None),
        ("NVIDIA A100-SXM4-80GB", None, None),
    ],
)
def test_where_the_size_is_from(tmp_path, model, node, gib):
    meminfo(tmp_path / "proc", 119)
    meminfo(tmp_path / "nodes" / "node1", 96, "Node 1 ")
    found = system_bytes(model, node, tmp_path / "proc", tmp_path / "nodes")
    assert found == (None if gib is None else gib * GIB)


@pytest.mark.parametrize("text", ["", "MemTotal: 0 kB", "MemTotal: x kB", "\udcff"])
def test_a_system_that_does_not_tell_its_memory(tmp_path, text):
    (tmp_path / "meminfo").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert system_bytes("NVIDIA GB10", None, tmp_path) is None


def test_a_gpu_without_a_size_is_remembered_as_such(node, spark, driver):
    one = node()
    spark("NVIDIA Something")
    report = one.run(3)
    one.monitor.close()
    driver.state.errors = [StubError("nvmlInitWithFlags", 9)]
    again = node()
    again.monitor.remember(report, driver.now_s)
    _, gpu = again.run(2).gpus
    assert (gpu.memory_bytes, gpu.memory_source) == (0, MemorySource.UNKNOWN)


def test_a_gpu_whose_size_comes_later_is_shared_from_then_on(node, spark, driver):
    one = node()
    spark("NVIDIA Something")
    one.run(3)
    driver.state.gpus[1] = StubGpu("GPU-u", "NVIDIA Something")
    _, gpu = one.run(3).gpus
    assert (gpu.memory_bytes, gpu.memory_source, gpu.shares) == (80 * GIB, None, 2)
