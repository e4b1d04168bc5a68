"""One of four GPUs answers with an error or with what cannot be; the other three do not notice."""

import ctypes
import itertools
import math
import re
import struct
import tracemalloc
from dataclasses import replace

import pynvml
import pytest
from agent_node import GIB, uid

from node_agent.stub import StubError, StubGarble, StubGpu, StubProcess, StubXid

BAD = 1
#: Every function of NVML that the agent calls on a GPU.
CALLS = (
    "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetUUID",
    "nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetNumaNodeId", "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3", "nvmlDeviceGetProcessUtilization",
    "nvmlDeviceGetSamples", "nvmlDeviceGetMigMode", "nvmlDeviceGetComputeMode",
    "nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature", "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetRetiredPagesPendingStatus", "nvmlDeviceRegisterEvents",
    "nvmlGpmQueryDeviceSupport", "nvmlGpmSampleGet", "*",
)  # fmt: skip
CODES = sorted({code for code in pynvml.NVMLError._errcode_to_string if code})
U32 = [struct.pack("<I", value) for value in (0, 1, 400, 10**6, 2**31, 2**32 - 1)]
U64 = [struct.pack("<Q", value) for value in (0, 1, 2**40, 2**40 + 1, 2**63, 2**64 - 2, 2**64 - 1)]
DOUBLES = [struct.pack("<d", v) for v in (0, -1, 1e300, math.nan, math.inf, -math.inf, 400, 5e-324)]
TEXTS = [b"\0" * 96, b"\xff\xfe" * 48, b"x" * 96, b"a,b\0", b"GPU-0\0", b"GPU-2\0", b"\x1b[2J\n\0"]


def garbles():
    """Yield (what, garble) for each field of each structure, and each value."""

    def each(call, out, fields, values, **more):
        for (name, offset), value in itertools.product(fields, values):
            yield (
                f"{call} {name}={value[:9].hex()}",
                StubGarble(call, out, value, BAD, offset, **more),
            )

    def of(kind, *names):
        return [(name, getattr(kind, name).offset) for name in names]

    v1 = of(pynvml.c_nvmlMemory_t, "total", "free", "used")
    v2 = of(pynvml.c_nvmlMemory_v2_t, "total", "reserved", "free", "used")
    yield from each("nvmlDeviceGetMemoryInfo", "memory", v1, U64)
    yield from each("nvmlDeviceGetMemoryInfo_v2", "memory", v2, U64)
    for call, out in (
        ("nvmlDeviceGetUUID", "uuid"), ("nvmlDeviceGetName", "name"),
    ):  # fmt: skip
        yield from each(call, out, [(out, 0)], TEXTS)
    rates = of(pynvml.c_nvmlUtilization_t, "gpu", "memory")
    yield from each("nvmlDeviceGetUtilizationRates", "rates", rates, U32)
    row = pynvml.c_nvmlProcessInfo_v3_t
    for call in (name for name in CALLS if "RunningProcesses" in name):
        yield from each(call, "rows", of(row, "pid", "gpuInstanceId", "computeInstanceId"), U32)
        yield from each(call, "rows", of(row, "usedGpuMemory"), U64)
    sample = pynvml.c_nvmlProcessUtilizationSample_t
    call = "nvmlDeviceGetProcessUtilization"
    yield from each(call, "rows", of(sample, "pid", "smUtil"), U32)
    yield from each(call, "rows", of(sample, "timeStamp"), U64)
    for call, when in itertools.product(
        (name for name in CALLS if "Processes" in name or "ProcessU" in name or "Samples" in name),
        ("size", "fill"),
    ):
        yield from each(call, "count", [("count", 0)], U32, when=when)
    call = "nvmlDeviceGetSamples"
    yield from each(call, "value_type", [("value_type", 0)], U32)
    yield from each(call, "samples", of(pynvml.c_nvmlSample_t, "timeStamp"), U64)
    yield from each(call, "samples", of(pynvml.c_nvmlSample_t, "sampleValue"), [*U64, *DOUBLES])
    for call, out in (
        ("nvmlDeviceGetMigMode", "current"), ("nvmlDeviceGetComputeMode", "mode"),
        ("nvmlDeviceGetTemperature", "celsius"), ("nvmlDeviceGetPowerUsage", "milliwatts"),
        ("nvmlDeviceGetRetiredPagesPendingStatus", "pending"),
        ("nvmlDeviceGetRemappedRows", "pending"), ("nvmlDeviceGetRemappedRows", "failure"),
    ):  # fmt: skip
        yield from each(call, out, [(out, 0)], U32)
    yield from each("nvmlDeviceGetTemperatureV", "reading", [("celsius", 8)], U32)
    yield from each("nvmlDeviceGetTotalEccErrors", "count", [("count", 0)], U64)
    yield from each("nvmlDeviceGetNumaNodeId", "node", [("node", 0)], U32)
    yield from each("nvmlGpmQueryDeviceSupport", "support", [("isSupported", 4)], U32)
    metric = of(pynvml.c_nvmlGpmMetric_t, "value")
    yield from each("nvmlGpmMetricsGet", "rows", metric, DOUBLES)
    result = of(pynvml.c_nvmlGpmMetric_t, "nvmlReturn")
    yield from each("nvmlGpmMetricsGet", "rows", result, U32)
    event = of(pynvml.c_nvmlEventData_t, "eventType", "eventData")
    yield from each("nvmlEventSetWait_v2", "event", event, U64)
    yield from each("nvmlEventSetWait_v2", "event", of(pynvml.c_nvmlEventData_t, "device"), U64)


GARBLES = list(garbles())


@pytest.fixture
def four(node, driver, proc):
    """A monitor on four GPUs, a pod of ours on each."""
    driver.state.gpus = [StubGpu(f"GPU-{i}", gpm=0.5 if i < 2 else None, ecc=3) for i in range(4)]
    driver.state.processes = [StubProcess(i, 7 + i, (4 + i) * GIB, sm=50) for i in range(4)]
    for i in range(4):
        proc.add(7 + i, uid(i))
    driver.apply()
    return lambda: node(memory_interval_s=1.0)


def others(status):
    """Return the reports of the other three, without what depends on when they are made."""
    changing = {
        "active_seconds", "idle_seconds", "activity_source", "iteration_seconds",
        "memory_base_bytes", "memory_peak_extra_bytes", "peak_probability",
    }  # fmt: skip
    found = []
    for gpu in status.gpus:
        if gpu.index != BAD:
            uses = [use.model_dump(exclude=changing) for use in gpu.pods]
            found.append((gpu.model_dump(exclude={"pods"}), uses))
    return found


def the_bad_one(status):
    return next((gpu for gpu in status.gpus if gpu.index == BAD), None)


def assert_it_says_why(status):
    """The bad GPU is there as unhealthy or with what is unknown absent, or the report says why."""
    gpu = the_bad_one(status)
    if gpu is None:
        condition = {c.type: c for c in status.conditions}["AllGpusReadable"]
        assert condition.status == "False"
        assert f"GPU {BAD}: " in condition.message
    elif gpu.health == "Quarantined":
        assert gpu.health_reason
        assert gpu.shares == 0
    elif gpu.memory_used_bytes is None:
        assert gpu.memory_foreign_bytes is None
    status.wire()  # it goes over the wire


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("from_the_start", [True, False])
def test_every_code_of_every_call(four, driver, call, from_the_start):
    one = four()
    usual = others(one.run(3))
    for code in CODES:
        if from_the_start:
            one.monitor.close()
            one = four()
        driver.state.errors = [StubError(call, code, gpu=BAD)]
        status = one.run(3)
        assert others(status) == usual, code
        assert_it_says_why(status)
    driver.state.errors = []
    assert the_bad_one(one.run(110)).health == "Healthy"


@pytest.mark.slow
@pytest.mark.parametrize("from_the_start", [True, False])
def test_every_value_of_every_field(four, driver, from_the_start):
    one = four()
    usual = others(one.run(3))
    for index, (what, garble) in enumerate(GARBLES):
        if from_the_start:
            one.monitor.close()
            one = four()
        driver.state.garbles = [garble]
        driver.state.xids = [StubXid(BAD, 79, seq=index + 1)] if "Event" in what else []
        status = one.run(2 if from_the_start else 3)
        assert len(others(status)) == 3, what
        if not from_the_start:
            assert others(status) == usual, what
        assert_it_says_why(status)
        assert one.monitor.faults == {}, what
    assert len(GARBLES) > 300
    driver.state.garbles, driver.state.xids = [], []
    one.monitor.close()
    assert the_bad_one(four().run(110)).health == "Healthy"


@pytest.mark.parametrize("call", sorted({g.call for _, g in GARBLES if g.when == "size"}))
def test_a_count_of_rows_that_cannot_be_takes_no_memory(four, driver, call):
    one = four()
    usual = others(one.run(3))
    driver.state.garbles = [StubGarble(call, "count", struct.pack("<I", 10**6), BAD, when="size")]
    tracemalloc.start()
    try:
        assert others(one.run(3)) == usual
        assert tracemalloc.get_traced_memory()[1] < 8 << 20  # a million rows are 16 MB and more
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"memory": 0}, "0 bytes of memory"),
        ({"reserved": 80 * GIB}, "all of its .* reserved"),
        ({"reserved": 81 * GIB}, "all of its .* reserved"),
        ({"memory": 2**64 - 1, "reserved": 0}, "18446744073709551615 bytes"),
        ({"unlisted": 100 * GIB}, "in use"),
    ],
)
@pytest.mark.parametrize("later", [True, False])
def test_memory_that_cannot_be(four, driver, bad, reason, later):
    one = four()
    usual = others(one.run(3))
    good = driver.state.gpus[BAD]
    if not later:
        one.monitor.close()
        one = four()
    driver.state.gpus[BAD] = replace(good, **bad)
    status = one.run(3)
    assert others(status) == usual
    gpu = the_bad_one(status)
    assert (gpu.health, gpu.shares, gpu.memory_used_bytes) == ("Quarantined", 0, None)
    assert re.search(reason, gpu.health_reason)
    driver.state.gpus[BAD] = good
    gpu = the_bad_one(one.run(110))
    assert (gpu.health, gpu.memory_bytes, gpu.shares) == ("Healthy", 80 * GIB, 2)


@pytest.mark.parametrize(
    "identity", [{"uuid": "x" * 4096}, {"uuid": "x" * 97}, {"name": "x" * 4096}, {"name": ""}]
)
def test_names_that_cannot_be(four, driver, identity):
    one = four()
    usual = others(one.run(3))
    one.monitor.close()
    driver.state.gpus[BAD] = replace(driver.state.gpus[BAD], **identity)
    status = four().run(3)
    assert others(status) == usual
    assert the_bad_one(status) is None
    assert_it_says_why(status)


@pytest.mark.parametrize("copied", [0, 2])
def test_a_uuid_that_two_gpus_have_is_that_of_the_one_that_the_driver_finds_by_it(
    four, driver, copied
):
    one = four()
    usual = others(one.run(3))
    one.monitor.close()
    text = f"GPU-{copied}\0".encode()
    driver.state.garbles = [StubGarble("nvmlDeviceGetUUID", "uuid", text, BAD)]
    status = four().run(3)
    assert others(status) == usual
    assert the_bad_one(status) is None
    assert_it_says_why(status)


def test_an_index_without_a_gpu_does_not_hide_those_after_it(four, driver):
    driver.state.errors = [StubError("nvmlDeviceGetHandleByIndex_v2", 2, gpu=BAD)]
    assert [gpu.index for gpu in four().run(3).gpus] == [0, 2, 3]


def test_a_count_of_gpus_that_cannot_be_is_not_gone_through(four, driver):
    count = struct.pack("<I", 2**32 - 1)
    driver.state.garbles = [StubGarble("nvmlDeviceGetCount_v2", "count", count)]
    status = four().run(3)
    assert [gpu.index for gpu in status.gpus] == [0, 1, 2, 3]
    condition = {c.type: c for c in status.conditions}["AllGpusReadable"]
    assert "NVML counts 4294967295 GPUs" in condition.message


def test_a_fault_of_the_agent_at_one_gpu_costs_that_gpu_alone(four, driver, monkeypatch):
    one = four()
    usual = others(one.run(3))
    board = one.monitor.boards[f"GPU-{BAD}"]
    for method in ("read_memory", "report"):
        with monkeypatch.context() as patched:
            patched.setattr(board, method, lambda *_, **__: 1 / 0)
            status = one.run(2)
        assert others(status) == usual
        assert "ZeroDivisionError" in the_bad_one(status).health_reason
    assert one.monitor.faults["ZeroDivisionError"]


def test_what_is_garbled_lies_where_the_binding_reads_it():
    assert ctypes.sizeof(pynvml.c_nvmlGpmMetric_t) == 40
    assert {garble.call for _, garble in GARBLES} >= {"nvmlEventSetWait_v2", "nvmlDeviceGetName"}
