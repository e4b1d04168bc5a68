"""Slices of MIG: GPUs of their own with their parent's sensors, as the driver has them now."""

import ctypes

import pynvml
import pytest
from agent_node import GIB, Pods, uid

from node_agent.nvml import Memory, Process
from node_agent.pods import PodInfo
from node_agent.stub import StubError, StubGpu, StubProcess, StubSlice, StubXid

PARENT = "GPU-a"
SMALL = StubSlice(0, "MIG-1", instance=7)
LARGE = StubSlice(
    0, "MIG-3", instance=2, name="NVIDIA A100-SXM4-80GB MIG 3g.40gb", memory=39 * GIB, compute=3
)
UNSUPPORTED = pynvml.NVMLError_NotSupported


@pytest.fixture
def mig(driver):
    driver.state.gpus = [StubGpu(PARENT, mig=1), StubGpu("GPU-b")]
    driver.state.slices = [SMALL, LARGE]
    driver.apply()
    return driver


@pytest.fixture
def mig_node(node, mig):
    # The fixture of a node has GPUs without MIG.
    mig.state.gpus = [StubGpu(PARENT, mig=1), StubGpu("GPU-b")]
    mig.apply()
    return node


def test_binding_and_stub_agree_on_attributes():
    assert ctypes.sizeof(pynvml.c_nvmlDeviceAttributes) == 40


def test_the_simulated_driver_answers_for_slices_what_nvml_does(mig):
    mig.state.processes = [
        StubProcess(0, 7, 2 * GIB, instance=7),
        StubProcess(0, 8, GIB, instance=2),
    ]
    mig.apply()
    pynvml.nvmlInit()
    try:
        board, whole = (pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(2))
        assert pynvml.nvmlDeviceGetMaxMigDeviceCount(board) == 7
        assert pynvml.nvmlDeviceGetMaxMigDeviceCount(whole) == 0
        first, second = (pynvml.nvmlDeviceGetMigDeviceHandleByIndex(board, n) for n in range(2))
        with pytest.raises(pynvml.NVMLError_NotFound):
            pynvml.nvmlDeviceGetMigDeviceHandleByIndex(board, 2)
        with pytest.raises(pynvml.NVMLError_NotFound):
            pynvml.nvmlDeviceGetMigDeviceHandleByIndex(whole, 0)
        assert pynvml.nvmlDeviceGetUUID(first) == "MIG-1"
        assert pynvml.nvmlDeviceGetName(second).endswith("MIG 3g.40gb")
        assert pynvml.nvmlDeviceGetGpuInstanceId(first) == 7
        assert pynvml.nvmlDeviceGetComputeInstanceId(first) == 0
        attributes = pynvml.nvmlDeviceGetAttributes_v2(second)
        assert (attributes.gpuInstanceSliceCount, attributes.memorySizeMB) == (3, 39 << 10)
        owner = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(first)
        assert pynvml.nvmlDeviceGetUUID(owner) == PARENT
        assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByUUID("MIG-3")) == "MIG-3"
        assert pynvml.nvmlDeviceGetMemoryInfo(second).total == 39 * GIB
        for handle, pids in ((first, [7]), (second, [8]), (board, [7, 8])):
            rows = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
            assert [row.pid for row in rows] == pids
        for handle in (first, board):
            with pytest.raises(UNSUPPORTED):
                pynvml.nvmlDeviceGetUtilizationRates(handle)
            with pytest.raises(UNSUPPORTED):
                pynvml.nvmlDeviceGetProcessUtilization(handle, 0)
        for call in ("Temperature", "PowerUsage", "MigMode", "ComputeMode"):
            more = (0,) if call == "Temperature" else ()
            with pytest.raises(UNSUPPORTED):
                getattr(pynvml, f"nvmlDeviceGet{call}")(first, *more)
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlDeviceGetGpuInstanceId(board)
        mig.state.slices = [SMALL]
        mig.apply()
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlDeviceGetUUID(second)
    finally:
        pynvml.nvmlShutdown()


def test_slices_are_found_in_place_of_their_gpu(mig, nvml):
    small, large, whole = nvml.open()
    assert [gpu.uuid for gpu in (small, large, whole)] == ["MIG-1", "MIG-3", "GPU-b"]
    assert [gpu.index for gpu in (small, large, whole)] == [0, 0, 1]
    assert (large.model, large.memory_bytes) == ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", 39 * GIB)
    assert (large.slice.profile, large.slice.parent, large.slice.number) == ("3g.40gb", PARENT, 1)
    assert whole.slice is None


@pytest.mark.parametrize(
    ("memory", "compute", "of", "profile"),
    [
        (9728 << 20, 1, 1, "1g.10gb"),
        (19968 << 20, 2, 2, "2g.20gb"),
        (40448 << 20, 3, 3, "3g.40gb"),
        (40448 << 20, 1, 3, "1c.3g.40gb"),
        (80640 << 20, 7, 7, "7g.80gb"),
    ],
)
def test_a_driver_that_does_not_name_the_profile_gives_its_parts(
    mig, nvml, memory, compute, of, profile
):
    mig.state.slices = [
        StubSlice(0, "MIG-1", 7, "NVIDIA A100-SXM4-80GB", memory, compute=compute, of=of)
    ]
    mig.apply()
    gpu = nvml.open()[0]
    assert gpu.slice.profile == profile
    assert gpu.model == f"NVIDIA A100-SXM4-80GB MIG {profile}"


def test_a_gpu_without_any_memory_does_not_hide_the_others(mig, nvml):
    mig.state.gpus = [StubGpu(PARENT, memory=0, mig=1), StubGpu("GPU-b")]
    mig.state.slices = [StubSlice(0, "MIG-1", 7, "NVIDIA A100-SXM4-80GB", memory=0)]
    mig.apply()
    assert "GPU-b" in [gpu.uuid for gpu in nvml.open()]


def test_a_slice_has_its_own_memory_and_processes_and_the_sensors_of_its_gpu(mig, nvml):
    mig.state.gpus[0] = StubGpu(PARENT, mig=1, temperature=61, ecc=2)
    mig.state.processes = [
        StubProcess(0, 7, 2 * GIB, instance=7),
        StubProcess(0, 8, GIB, instance=2),
    ]
    mig.apply()
    small, large, _ = nvml.open()
    assert small.memory() == Memory(2 * GIB, SMALL.reserved)
    assert small.processes() == (Process(7, 2 * GIB, "compute"),)
    assert large.processes() == (Process(8, GIB, "compute"),)
    sensors = large.sensors()
    assert (sensors.temperature_celsius, sensors.ecc_uncorrected, sensors.mig) == (61, 2, True)
    assert sensors.power_watts is None, "the sum over slices would be seven times that of the GPU"
    assert large.load() is None
    assert large.process_utilisation() is None
    assert not nvml.binding.errors


def test_the_utilisation_of_a_slice_is_read_by_gpm_where_the_board_has_it(mig, nvml):
    mig.state.gpus[0] = StubGpu(PARENT, mig=1, gpm=1.0)
    mig.state.processes = [
        StubProcess(0, 7, GIB, sm=80, instance=7), StubProcess(0, 8, GIB, sm=20, instance=2)
    ]  # fmt: skip
    mig.apply()
    small, large, _ = nvml.open()
    assert small.load() is None
    assert large.load() is None
    mig.advance(1)
    assert (small.load().percent, large.load().percent) == (80.0, 20.0)
    assert small.load() is None, "no time has passed"


def test_an_xid_is_one_of_every_slice_unless_it_names_an_instance(mig, nvml):
    nvml.open()
    mig.state.xids = [StubXid(0, 48, 1), StubXid(0, 94, 2, instance=2), StubXid(1, 79, 3)]
    mig.apply()
    assert nvml.xids() == [("MIG-1", 48), ("MIG-3", 48), ("MIG-3", 94), ("GPU-b", 79)]


def test_the_report_has_slices_as_gpus_that_take_one_job(mig_node, mig, proc):
    mig.state.processes = [
        StubProcess(0, 7, 2 * GIB, instance=7),
        StubProcess(0, 8, GIB, instance=2),
    ]
    proc.add(7, uid(1))
    proc.add(8, None)
    status = mig_node(Pods({uid(1): PodInfo("ns", "pod", assigned=("MIG-1",))})).run(2)
    small, large, whole = status.gpus
    assert [gpu.number for gpu in status.gpus] == ["0:0", "0:1", "1"]
    assert small.slice.profile == "1g.10gb"
    assert (small.shares, large.shares, whole.shares) == (1, 0, 2)
    assert "takes one job" in small.shares_reason
    assert [(use.uid, use.memory_bytes) for use in small.pods] == [(uid(1), 2 * GIB)]
    assert (large.memory_foreign_bytes, small.memory_foreign_bytes) == (GIB, 0)
    assert small.utilisation_percent is None
    assert status.gpu_count == 3


def test_a_fault_of_the_gpu_quarantines_its_slices_and_no_other_gpu(mig_node, mig):
    one = mig_node()
    one.run(2)
    mig.state.xids = [StubXid(0, 79, 1)]
    mig.apply()
    assert [gpu.health for gpu in one.run(2).gpus] == ["Quarantined", "Quarantined", "Healthy"]


def test_a_lost_gpu_is_lost_with_its_slices(mig_node, mig):
    one = mig_node()
    one.run(2)
    mig.state.errors = [StubError("*", 15, gpu=0)]
    status = one.run(2)
    assert [gpu.health for gpu in status.gpus] == ["Quarantined", "Quarantined", "Healthy"]
    assert [gpu.uuid for gpu in status.gpus] == ["MIG-1", "MIG-3", "GPU-b"]
    mig.state.errors = []
    assert [gpu.health for gpu in one.run(100).gpus] == ["Healthy"] * 3


def test_compute_instances_that_share_memory_are_not_offered(mig_node, mig):
    mig.state.slices = [
        StubSlice(0, "MIG-c0", 2, "NVIDIA A100-SXM4-80GB MIG 1c.3g.40gb", compute=1, of=3),
        StubSlice(0, "MIG-c1", 2, "NVIDIA A100-SXM4-80GB MIG 2c.3g.40gb", compute=2, of=3,
                  compute_instance=1),
        SMALL,
    ]  # fmt: skip
    assert [gpu.shares for gpu in mig_node().run(2).gpus] == [0, 0, 1, 2]


def test_a_gpu_in_mig_mode_without_slices_is_not_offered(mig_node, mig):
    mig.state.slices = []
    gpu = mig_node().run(2).gpus[0]
    assert (gpu.uuid, gpu.shares, gpu.mig) == (PARENT, 0, True)
    assert "no slices" in gpu.shares_reason


def test_slices_that_come_while_jobs_run_join_the_report_and_change_nothing_else(
    mig_node, mig, proc
):
    mig.state.slices = [SMALL]
    mig.state.processes = [StubProcess(0, 7, 2 * GIB, instance=7)]
    proc.add(7, uid(1))
    one = mig_node()
    assert [gpu.uuid for gpu in one.run(2).gpus] == ["MIG-1", "GPU-b"]
    mig.state.slices = [LARGE, SMALL]  # the handle of the first is another slice's now
    status = one.run(2)
    assert [gpu.uuid for gpu in status.gpus] == ["MIG-3", "MIG-1", "GPU-b"]
    assert [gpu.health for gpu in status.gpus] == ["Healthy"] * 3
    assert [use.uid for use in status.gpus[1].pods] == [uid(1)]
    assert status.gpus[0].pods == []


def test_a_slice_that_goes_is_quarantined_until_its_gpu_is_divided_anew(mig_node, mig):
    one = mig_node()
    one.run(2)
    mig.state.slices = [SMALL]
    status = one.run(2)
    assert {gpu.uuid: gpu.health for gpu in status.gpus} == {
        "MIG-1": "Healthy", "MIG-3": "Quarantined", "GPU-b": "Healthy",
    }  # fmt: skip
    gone = next(gpu for gpu in status.gpus if gpu.uuid == "MIG-3")
    assert "no longer found" in gone.health_reason
    mig.state.slices = [SMALL, StubSlice(0, "MIG-9", instance=1)]
    assert {gpu.uuid: gpu.health for gpu in one.run(2).gpus} == {
        "MIG-1": "Healthy", "MIG-9": "Healthy", "GPU-b": "Healthy",
    }  # fmt: skip


def test_fewer_and_larger_slices_replace_all_that_were_there(mig_node, mig):
    mig.state.slices = [StubSlice(0, f"MIG-old-{n}", instance=n) for n in range(7)]
    one = mig_node()
    assert len(one.run(2).gpus) == 8
    mig.state.slices = [LARGE]
    assert [gpu.uuid for gpu in one.run(2).gpus] == ["MIG-3", "GPU-b"]


def test_a_gpu_that_leaves_mig_mode_is_whole_again(mig_node, mig):
    one = mig_node()
    one.run(2)
    mig.state.gpus[0], mig.state.slices = StubGpu(PARENT), []
    status = one.run(2)
    assert [(gpu.uuid, gpu.shares, gpu.slice) for gpu in status.gpus] == [
        (PARENT, 2, None), ("GPU-b", 2, None),
    ]  # fmt: skip


def test_an_agent_that_starts_remembers_the_slices_of_the_last_report(mig_node, mig):
    report = mig_node().run(2)
    mig.state.errors = [StubError("*", 15, gpu=0)]
    mig.apply()
    other = mig_node()
    other.monitor.remember(report, mig.now_s)
    status = other.run(2)
    assert [(gpu.number, gpu.health) for gpu in status.gpus] == [
        ("0:0", "Quarantined"), ("0:1", "Quarantined"), ("1", "Healthy"),
    ]  # fmt: skip


def test_two_slices_of_one_name_make_their_gpu_unreadable(mig_node, mig):
    mig.state.slices = [SMALL, StubSlice(0, "MIG-1", instance=3)]
    status = mig_node().run(2)
    assert [gpu.uuid for gpu in status.gpus] == ["GPU-b"]
    readable = next(each for each in status.conditions if each.type == "AllGpusReadable")
    assert "two slices have the UUID MIG-1" in readable.message


def test_a_call_for_slices_that_fails_once_changes_nothing(mig_node, mig):
    one = mig_node()
    one.run(2)
    mig.state.errors = [StubError("nvmlDeviceGetMaxMigDeviceCount", 999)]
    assert [gpu.health for gpu in one.run(3).gpus] == ["Healthy"] * 3
