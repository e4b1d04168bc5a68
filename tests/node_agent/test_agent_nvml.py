"""Readings through the real binding: what is there, what is absent, what is lost."""

import ctypes
from collections import Counter

import pynvml
import pytest

from node_agent.nvml import GpuLostError, Memory, NvmlGoneError, Process
from node_agent.stub import StubError, StubGpu, StubProcess, StubXid, Wave

GIB = 1 << 30


@pytest.mark.parametrize(
    ("struct", "size"),
    [
        (pynvml.c_nvmlMemory_v2_t, 40),
        (pynvml.c_nvmlProcessInfo_v3_t, 24),
        (pynvml.c_nvmlProcessUtilizationSample_t, 32),
        (pynvml.c_nvmlProcessUtilizationInfo_v1_t, 40),
        (pynvml.c_nvmlSample_t, 16),
        (pynvml.c_nvmlAccountingStats_t, 56),
        (pynvml.nvmlPciInfo_t, 68),
        (pynvml.c_nvmlEventData_t, 32),
        (pynvml.c_nvmlGpmMetric_t, 40),
    ],
)
def test_binding_and_stub_agree_on_sizes(struct, size):
    """The stub asserts the same figures when it is compiled."""
    assert ctypes.sizeof(struct) == size


def open_one(driver, nvml, gpu=None, *processes):
    driver.state.gpus = [gpu or StubGpu("GPU-a")]
    driver.state.processes = list(processes)
    driver.apply()
    return nvml.open()[0]


def test_inventory(driver, nvml):
    driver.state.gpus = [StubGpu("GPU-a"), StubGpu("GPU-b", name="NVIDIA H200", memory=141 * GIB)]
    driver.apply()
    first, second = nvml.open()
    assert nvml.driver_version == "580.65.06"
    assert (first.index, first.uuid, first.model) == (0, "GPU-a", "NVIDIA A100-SXM4-80GB")
    assert (second.index, second.uuid, second.memory_bytes) == (1, "GPU-b", 141 * GIB)


def test_memory_keeps_the_reserved_part_apart(driver, nvml):
    gpu = open_one(
        driver,
        nvml,
        StubGpu("GPU-a", reserved=GIB),
        StubProcess(0, 7, 3 * GIB),
        StubProcess(0, 8, None),
    )
    assert gpu.memory() == Memory(used=3 * GIB, reserved=GIB)
    assert gpu.processes() == (Process(7, 3 * GIB, "compute"), Process(8, None, "compute"))


def test_older_driver_has_no_second_memory_call(driver, nvml):
    gpu = open_one(driver, nvml, StubGpu("GPU-a", reserved=GIB), StubProcess(0, 7, 3 * GIB))
    driver.state.errors = [StubError("nvmlDeviceGetMemoryInfo_v2", 13)]
    driver.apply()
    assert gpu.memory() == Memory(used=4 * GIB, reserved=None)


def test_symbol_that_the_driver_lacks_is_an_absent_reading(driver, nvml):
    """The binding raises NVMLLibraryMismatchError here, which is no NVMLError."""
    gpu = open_one(driver, nvml, None, StubProcess(0, 7, GIB))
    driver.state.errors = [StubError("nvmlDeviceGetComputeRunningProcesses_v3", 13)]
    driver.apply()
    with pytest.raises(pynvml.NVMLLibraryMismatchError):
        pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(0))
    assert gpu.processes() is None


@pytest.mark.parametrize("code", [0, 6])
def test_no_rows_of_utilisation_means_idle(driver, nvml, code):
    """Code 0: sized and empty at once, which the binding raises as an error of value 0."""
    gpu = open_one(driver, nvml, None, StubProcess(0, 7, GIB, sm=50))
    driver.state.errors = [StubError("nvmlDeviceGetProcessUtilization", code, when="size")]
    driver.apply()
    assert gpu.process_utilisation() == {}


def test_utilisation_by_process(driver, nvml):
    gpu = open_one(driver, nvml, None, StubProcess(0, 7, sm=50), StubProcess(0, 8, sm=0))
    assert gpu.process_utilisation() == {7: 50.0}
    assert gpu.process_utilisation() == {}, "nothing new since the last call"
    driver.advance(1)
    assert gpu.process_utilisation() == {7: 50.0}


@pytest.mark.parametrize(
    ("call", "reading"),
    [
        ("nvmlDeviceGetProcessUtilization", "process_utilisation"),
        ("nvmlDeviceGetComputeRunningProcesses_v3", "processes"),
    ],
)
def test_list_that_keeps_growing_is_absent_and_counted(driver, nvml, call, reading):
    gpu = open_one(driver, nvml, None, StubProcess(0, 7, GIB, sm=50))
    driver.state.errors = [StubError(call, 7, when="fill")]
    driver.apply()
    assert getattr(gpu, reading)() is None
    assert sum(nvml.binding.errors.values()) == 2, "asked twice"
    driver.state.errors = []
    driver.apply()
    assert getattr(gpu, reading)()


def test_memory_that_is_not_available_is_none(driver, nvml):
    gpu = open_one(driver, nvml, None, StubProcess(0, 7, None))
    assert gpu.processes() == (Process(7, None, "compute"),)


def test_a_client_of_mps_is_listed_once_with_its_most_memory(driver, nvml):
    """An H100's driver has it in two lists (studies/predictions/h100-mps.json)."""
    gpu = open_one(driver, nvml, None, StubProcess(0, 7, 2 * GIB, kind="mps"))
    assert gpu.processes() == (Process(7, 2 * GIB, "mps"),)
    assert gpu.processes(all_kinds=False) == (Process(7, 2 * GIB, "mps"),)


def test_unsupported_sensors_are_absent(driver, nvml):
    old = StubGpu(
        "GPU-a",
        mig=None,
        mode=None,
        temperature=None,
        power_mw=None,
        pending=None,
        failure=None,
        ecc=None,
    )
    sensors = open_one(driver, nvml, old).sensors()
    assert {getattr(sensors, name) for name in sensors.__slots__} == {None}


def test_sensors(driver, nvml):
    sensors = open_one(driver, nvml, StubGpu("GPU-a", mode=3, mig=1, pending=1, ecc=2)).sensors()
    assert (sensors.temperature_celsius, sensors.power_watts) == (40, 70)
    assert (sensors.mig, sensors.compute_mode) == (True, "ExclusiveProcess")
    assert (sensors.ecc_uncorrected, sensors.repair_pending, sensors.repair_failed) == (
        2,
        True,
        False,
    )


def test_older_driver_tells_temperature_by_the_older_call(driver, nvml):
    gpu = open_one(driver, nvml)
    driver.state.errors = [StubError("nvmlDeviceGetTemperatureV", 13)]
    driver.apply()
    assert gpu.sensors().temperature_celsius == 40


def test_load_comes_from_the_best_source_there_is(driver, nvml):
    busy = StubProcess(0, 7, sm=50, mem=20)
    gpu = open_one(driver, nvml, StubGpu("GPU-a", gpm=0.5), busy)
    assert gpu.load().source == "samples", "GPM needs a first snapshot"
    driver.advance(1)
    load = gpu.load()
    assert (load.source, load.percent, load.memory_activity) == ("gpm", 25.0, 20.0)
    driver.state.errors = [StubError("nvmlGpmSampleGet", 3)]
    driver.advance(1)
    load = gpu.load()
    assert (load.source, load.percent, load.memory_activity) == ("samples", 50.0, None)
    driver.state.errors += [StubError("nvmlDeviceGetSamples", 3)]
    driver.advance(1)
    assert (gpu.load().source, gpu.load().samples) == ("rates", ())
    driver.state.errors += [StubError("nvmlDeviceGetUtilizationRates", 3)]
    driver.advance(1)
    assert gpu.load() is None


def test_samples_are_read_once_and_carry_their_own_time(driver, nvml):
    wave = Wave(period_us=2_000_000, high_us=1_000_000)
    gpu = open_one(
        driver, nvml, StubGpu("GPU-a", window_us=250_000), StubProcess(0, 7, sm=80, active=wave)
    )
    gpu.load()
    driver.advance(2)
    samples = gpu.load().samples
    assert [sample.percent for sample in samples] == [80] * 4 + [0] * 4
    assert samples[-1].time_s - samples[0].time_s == pytest.approx(1.75)


def test_lost_gpu_concerns_that_gpu_alone(driver, nvml):
    driver.state.gpus = [StubGpu("GPU-a"), StubGpu("GPU-b")]
    driver.apply()
    first, second = nvml.open()
    driver.state.errors = [StubError("*", 15, gpu=0)]
    driver.apply()
    with pytest.raises(GpuLostError, match="lost"):
        first.memory()
    assert second.memory() is not None


def test_gpu_that_cannot_be_identified_is_left_out_with_its_reason(driver, nvml):
    driver.state.gpus = [StubGpu("GPU-a"), StubGpu("GPU-b")]
    driver.state.errors = [StubError("nvmlDeviceGetUUID", 999, gpu=0)]
    driver.apply()
    assert [gpu.uuid for gpu in nvml.open()] == ["GPU-b"]
    assert nvml.unreadable == {0: "Unknown Error"}


def test_driver_that_is_not_loaded(driver, nvml):
    driver.state.driver = ""
    driver.apply()
    with pytest.raises(NvmlGoneError, match="Driver Not Loaded"):
        nvml.open()


def test_library_that_is_missing(driver, nvml, monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", missing)
    with pytest.raises(NvmlGoneError, match="Library Not Found"):
        nvml.open()


def test_session_that_ended_is_gone_but_one_odd_call_is_not(driver, nvml):
    gpu = open_one(driver, nvml)
    driver.state.errors = [
        StubError("nvmlDeviceGetMemoryInfo_v2", 1),
        StubError("nvmlDeviceGetMemoryInfo", 1),
    ]
    driver.apply()
    assert gpu.memory() is None
    driver.state.errors = [StubError("*", 1)]
    driver.apply()
    with pytest.raises(NvmlGoneError):
        gpu.memory()
    driver.state.errors = []
    driver.apply()
    assert nvml.open()[0].memory() is not None


def test_xids_are_reported_once_for_their_gpu(driver, nvml):
    driver.state.gpus = [StubGpu("GPU-a"), StubGpu("GPU-b")]
    driver.apply()
    nvml.open()
    assert nvml.xids() == []
    driver.state.xids = [StubXid(1, 79, seq=1), StubXid(0, 13, seq=2)]
    driver.apply()
    assert nvml.xids() == [("GPU-b", 79), ("GPU-a", 13)]
    assert nvml.xids() == []


def listed(driver, nvml, *rows):
    return open_one(driver, nvml, None, *rows).processes()


def test_rows_of_one_process_in_a_list_are_different_memory(driver, nvml):
    rows = [StubProcess(0, 7, 7 * GIB), StubProcess(0, 8, GIB), StubProcess(0, 7, GIB)]
    assert listed(driver, nvml, *rows) == (
        Process(7, 8 * GIB, "compute"),
        Process(8, GIB, "compute"),
    )


def test_rows_of_two_mig_instances_are_added_up(driver, nvml):
    rows = [StubProcess(0, 7, 2 * GIB, instance=instance) for instance in (1, 2)]
    assert listed(driver, nvml, *rows) == (Process(7, 4 * GIB, "compute"),)


def test_another_list_says_the_same_memory_again(driver, nvml):
    rows = [StubProcess(0, 7, 3 * GIB), StubProcess(0, 7, 2 * GIB)]
    again = [StubProcess(0, 7, 3 * GIB, kind="graphics"), StubProcess(0, 7, GIB, kind="graphics")]
    assert listed(driver, nvml, *rows, *again) == (Process(7, 5 * GIB, "graphics"),)


def test_the_list_of_mps_clients_says_the_same_memory_again(driver, nvml):
    rows = [StubProcess(0, 7, size * GIB, kind="mps") for size in (3, 1)]
    assert listed(driver, nvml, *rows) == (Process(7, 4 * GIB, "mps"),)


def test_the_driver_is_asked_for_its_room_once(driver, nvml, monkeypatch):
    """Each of these calls takes 0.7 ms of CPU in an H100's driver, each second."""
    gpu = open_one(driver, nvml, None, StubProcess(0, 7, GIB, sm=50))
    calls = Counter()
    pointer = pynvml._nvmlGetFunctionPointer

    def counted(name):
        def call(*arguments):
            calls[name] += 1
            return pointer(name)(*arguments)

        return call

    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer", counted)
    for expected in (2, 1, 1):
        driver.advance(1)
        calls.clear()
        assert gpu.process_utilisation() == {7: 50.0}
        assert gpu.load().samples
        assert calls["nvmlDeviceGetProcessUtilization"] == expected
        assert calls["nvmlDeviceGetSamples"] == expected


@pytest.mark.parametrize("more", [1, 50])
def test_more_rows_than_there_was_room_for_are_read(driver, nvml, monkeypatch, more):
    gpu = open_one(driver, nvml, None, StubProcess(0, 7, GIB, sm=50))
    assert gpu.process_utilisation() == {7: 50.0}
    (key,) = (key for key in nvml.binding._rooms if "Process" in key[0])
    nvml.binding._rooms[key] = 1
    driver.state.processes += [StubProcess(0, 8 + i, GIB, sm=10) for i in range(more)]
    driver.advance(1)
    driver.apply()
    assert len(gpu.process_utilisation()) == 1 + more


@pytest.mark.parametrize("kind", ["compute", "mps", "graphics"])
def test_a_row_without_a_figure_makes_the_sum_of_its_list_unknown(driver, nvml, kind):
    rows = [StubProcess(0, 7, GIB, kind=kind), StubProcess(0, 7, None, kind=kind)]
    for order in (rows, rows[::-1]):
        assert listed(driver, nvml, *order) == (Process(7, None, kind),)


def test_a_list_without_figures_takes_nothing_from_one_that_has_them(driver, nvml):
    for kinds in (("compute", "graphics"), ("graphics", "mps")):
        rows = [StubProcess(0, 7, GIB, kind=kinds[0]), StubProcess(0, 7, None, kind=kinds[1])]
        assert [(one.pid, one.memory) for one in listed(driver, nvml, *rows)] == [(7, GIB)]


def test_a_process_on_two_gpus_holds_its_memory_on_each(driver, nvml):
    driver.state.gpus = [StubGpu("GPU-a"), StubGpu("GPU-b")]
    driver.state.processes = [StubProcess(0, 7, GIB), StubProcess(1, 7, 2 * GIB)]
    driver.apply()
    assert [gpu.processes()[0].memory for gpu in nvml.open()] == [GIB, 2 * GIB]


def test_a_process_that_holds_more_than_the_gpu_has_no_figure(driver, nvml):
    assert listed(driver, nvml, StubProcess(0, 7, 81 * GIB)) == (Process(7, None, "compute"),)
