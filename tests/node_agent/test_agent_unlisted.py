"""Memory in use that no listed process holds."""

from dataclasses import replace

import pynvml
import pytest
from agent_node import GIB, Pods, uid
from hypothesis import given
from hypothesis import strategies as st

from node_agent.foreign import PLACED_KNOWN_S, Unlisted
from node_agent.pods import PodInfo
from node_agent.publish import Change, compare
from node_agent.stub import StubError, StubProcess

LISTS = [
    f"nvmlDeviceGet{kind}RunningProcesses_v3" for kind in ("Compute", "Graphics", "MPSCompute")
]


def unlisted(driver, gib, index=0):
    gpus = driver.state.gpus
    gpus[index] = replace(gpus[index], unlisted=round(gib * GIB))


def placed(n, predicted_gib=None, **more):
    predicted = None if predicted_gib is None else round(predicted_gib * GIB)
    return PodInfo("ns", f"p{n}", assigned=frozenset({"GPU-a"}), predicted_memory=predicted, **more)


def figures(gpu):
    return gpu.memory_foreign_bytes, gpu.memory_unlisted_bytes, gpu.shares


def test_what_no_process_holds_is_foreign_and_takes_a_share(node, driver):
    one = node()
    before = one.run(3)
    unlisted(driver, 70)
    after = one.run(3)
    gpu = after.gpus[0]
    assert figures(gpu) == (70 * GIB, 70 * GIB, 1)
    assert "70.0 GiB of memory are in use by no process that is listed" in gpu.shares_reason
    assert [(use.uid, use.foreign, use.memory_bytes) for use in gpu.pods] == [("", True, 70 * GIB)]
    assert figures(after.gpus[1]) == (0, 0, 2)
    assert compare(before, after) is Change.URGENT
    assert after.idle_count == 1


def test_a_leak_that_is_cleared_gives_the_gpu_back(node, driver):
    unlisted(driver, 70)
    one = node()
    assert figures(one.run(2).gpus[0]) == (70 * GIB, 70 * GIB, 1)
    unlisted(driver, 0)
    gpu = one.run(2).gpus[0]
    assert figures(gpu) == (0, 0, 2)
    assert (gpu.pods, gpu.shares_reason) == ([], "")


def test_what_a_crash_leaves_behind_is_foreign_as_soon_as_the_process_is_gone(node, driver, proc):
    driver.state.processes = [StubProcess(0, 7, 70 * GIB)]
    proc.add(7, uid(1))
    pods = Pods({uid(1): placed(1, 70)})
    one = node(pods)
    assert figures(one.run(5).gpus[0]) == (0, 0, 2)
    driver.state.processes = []
    unlisted(driver, 70)
    proc.remove(7)
    # While the pod is there, its memory is reserved for it by the scheduler.
    assert figures(one.run(5).gpus[0]) == (0, 0, 2)
    pods[uid(1)] = replace(pods[uid(1)], finished=True)
    assert figures(one.run(2).gpus[0]) == (70 * GIB, 70 * GIB, 1)


def test_memory_of_a_placed_pod_whose_pids_are_hidden_is_its_own(node, driver):
    pods = Pods({uid(1): placed(1, 24)})
    one = node(pods)
    assert figures(one.run(3).gpus[0]) == (0, 0, 2)
    unlisted(driver, 20)
    assert figures(one.run(3).gpus[0]) == (0, 0, 2)
    unlisted(driver, 30)
    assert figures(one.run(3).gpus[0])[:2] == (6 * GIB, 6 * GIB), "more than it was placed with"


def test_a_pod_without_a_prediction_explains_all_that_came_with_it(node, driver):
    one = node(Pods({uid(1): placed(1)}))
    unlisted(driver, 60)
    assert figures(one.run(3).gpus[0]) == (0, 0, 2)


def test_a_pod_that_is_placed_next_to_a_leak_does_not_explain_it(node, driver):
    unlisted(driver, 60)
    pods = Pods()
    one = node(pods)
    one.run(3)
    pods[uid(1)] = placed(1, 10)
    assert figures(one.run(100).gpus[0])[0] == 60 * GIB, "its process has not begun"
    unlisted(driver, 70)
    assert figures(one.run(3).gpus[0])[0] == 60 * GIB
    unlisted(driver, 10)  # the leak is cleared
    assert figures(one.run(PLACED_KNOWN_S + 5).gpus[0])[0] <= 10 * GIB


def test_a_pod_that_begins_before_the_agent_knows_it_is_not_foreign_for_ever(node, driver):
    pods = Pods()
    one = node(pods)
    one.run(60)
    unlisted(driver, 20)
    assert figures(one.run(30).gpus[0])[0] == 20 * GIB
    pods[uid(1)] = placed(1, 24)
    assert figures(one.run(2).gpus[0]) == (0, 0, 2)


@pytest.mark.parametrize(
    "other",
    [
        {"assigned": frozenset({"GPU-b"})},
        {"assigned": None},
        {"finished": True},
        {"ours": False},
    ],
)
def test_a_pod_that_is_not_placed_there_explains_nothing(node, driver, other):
    unlisted(driver, 20)
    pods = Pods({uid(1): replace(placed(1, 40), **other)})
    assert figures(node(pods).run(3).gpus[0])[0] == 20 * GIB


def test_what_processes_that_are_listed_hold_is_not_counted_twice(node, driver, proc):
    driver.state.processes = [
        StubProcess(0, 7, 10 * GIB), StubProcess(0, 8, 5 * GIB),
        StubProcess(0, 9, GIB, kind="graphics"),
    ]  # fmt: skip
    proc.add(7, uid(1))
    proc.add(8, None)
    proc.add(9, None)
    unlisted(driver, 20)
    gpu = node(Pods({uid(1): placed(1, 12)})).run(3).gpus[0]
    assert figures(gpu) == (26 * GIB, 20 * GIB, 1)
    assert gpu.memory_used_bytes == 36 * GIB


@pytest.mark.parametrize("gib", [0.1, 0.4])
def test_what_the_driver_itself_uses_is_not_foreign(node, driver, gib):
    unlisted(driver, gib)
    assert figures(node().run(3).gpus[0]) == (0, 0, 2)


def test_a_driver_that_does_not_tell_its_reserve_apart_is_allowed_one(node, driver):
    driver.state.errors = [StubError("nvmlDeviceGetMemoryInfo_v2", 13)]
    assert figures(node().run(3).gpus[0]) == (0, 0, 2)
    unlisted(driver, 70)
    foreign = figures(node().run(3).gpus[0])[0]
    assert 69 * GIB < foreign <= 70 * GIB


def test_a_process_that_ends_between_two_calls_is_no_foreign_memory(node, driver, proc):
    driver.state.processes = [StubProcess(0, 7, 40 * GIB)]
    proc.add(7, uid(1))
    one = node(memory_interval_s=1.0)
    one.run(3)
    board = one.monitor.boards["GPU-a"]
    real, board.gpu.processes = board.gpu.processes, lambda **_: ()  # for one reading
    one.run(1)
    assert one.report().gpus[0].memory_foreign_bytes == 0
    board.gpu.processes = real
    assert figures(one.run(1).gpus[0]) == (0, 0, 2)


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_NOT_SUPPORTED])
def test_lists_that_cannot_be_read_hide_no_memory(node, driver, code):
    driver.state.errors = [StubError(call, code) for call in LISTS]
    unlisted(driver, 70)
    pods = Pods()
    one = node(pods)
    assert one.run(3).gpus[0].memory_foreign_bytes == 70 * GIB
    pods[uid(1)] = placed(1, 10)
    unlisted(driver, 80 - 0.6)
    assert one.run(3).gpus[0].memory_foreign_bytes == 70 * GIB


def test_a_pod_next_to_unlisted_memory_is_not_alone(node, driver, proc):
    driver.state.processes = [StubProcess(0, 7, GIB, sm=30)]
    proc.add(7, uid(1))
    unlisted(driver, 10)
    (use, others) = node().run(8).gpus[0].pods
    assert use.activity_source == "process-utilisation"
    assert others.foreign


@given(
    st.lists(
        st.tuples(
            st.floats(0.1, 100), st.integers(0, 2**40),
            st.one_of(st.just(0), st.integers(0, 2**40), st.just(float("inf"))),
        ),
        max_size=30,
    ),
    st.booleans(),
)  # fmt: skip
def test_foreign_memory_is_never_below_zero_nor_more_than_is_unlisted(steps, known):
    now, one = 0.0, Unlisted()
    for after_s, memory, ours in steps:
        now += after_s
        found = one.foreign(now, 2**40, memory, ours, reserve_known=known)
        assert 0 <= found <= memory
        if ours == 0 and known and memory == 0:
            assert found == 0
