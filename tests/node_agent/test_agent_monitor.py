"""The node over time on simulated GPUs: pods, health, guard; times are moved by hand."""

import random
from dataclasses import replace

import pynvml
import pytest
from agent_node import GIB, Pods, stamp, uid

from node_agent.extenderpods import pod_info
from node_agent.nvml import Gpu
from node_agent.pods import ContainerEnd, PodInfo
from node_agent.progress import Pace
from node_agent.stub import StubError, StubGpu, StubProcess, StubXid, Wave
from tandem.contracts.nodepods import NodePod


def test_a_pod_and_a_process_of_no_pod(node, driver, proc):
    driver.state.processes = [StubProcess(0, 7, 4 * GIB, sm=50), StubProcess(1, 8, 2 * GIB, sm=10)]
    proc.add(7, uid(1))
    proc.add(8, None)
    status = node().run(3)
    ours, theirs = status.gpus
    assert [(use.uid, use.memory_bytes, use.foreign) for use in ours.pods] == [
        (uid(1), 4 * GIB, False)
    ]
    assert (ours.shares, ours.memory_foreign_bytes, ours.memory_used_bytes) == (2, 0, 4 * GIB)
    assert [(use.uid, use.memory_bytes, use.foreign) for use in theirs.pods] == [
        ("", 2 * GIB, True)
    ]
    assert (theirs.shares, theirs.memory_foreign_bytes) == (1, 2 * GIB)
    assert "not ours" in theirs.shares_reason
    assert ours.utilisation_percent == pytest.approx(50)


def test_pod_that_went_past_the_scheduler_is_foreign(node, driver, proc):
    driver.state.processes = [StubProcess(0, 7, 4 * GIB)]
    proc.add(7, uid(1))
    gpu = node(Pods({uid(1): PodInfo("ns", "sneak", ours=False)})).run(2).gpus[0]
    assert [(use.pod, use.foreign) for use in gpu.pods] == [("sneak", True)]
    assert (gpu.memory_foreign_bytes, gpu.shares) == (4 * GIB, 1)


def test_pod_of_our_scheduler_that_asks_for_no_gpu_is_foreign_and_its_memory_deducted(
    node, driver, proc
):
    driver.state.processes = [StubProcess(0, 7, 4 * GIB)]
    proc.add(7, uid(1))
    info = pod_info(NodePod(namespace="ns", name="idle", uid=uid(1)))
    status = node(Pods({uid(1): info})).run(2)
    gpu = status.gpus[0]
    assert [(use.pod, use.foreign) for use in gpu.pods] == [("idle", True)]
    assert (gpu.memory_foreign_bytes, gpu.shares) == (4 * GIB, 1)
    # It was given nothing, so no assignment was ignored either.
    assert {c.type: c for c in status.conditions}["AssignmentHonoured"].status == "True"


def test_unknown_pods_and_those_that_left_are_looked_for(node, driver, proc):
    driver.state.processes = [StubProcess(0, n, GIB) for n in (1, 2, 3)]
    for n in (1, 2, 3):
        proc.add(n, uid(n))
    pods = Pods({uid(n): PodInfo("ns", f"pod-{n}") for n in (1, 2)})
    one = node(pods)
    one.run(2)
    assert pods.wanted == {uid(3)}
    driver.state.processes = driver.state.processes[1:]
    one.run(2)
    assert pods.wanted == {uid(1), uid(3)}, "the first may have failed"


def test_foreign_memory_that_is_hidden_is_what_ours_leave(node, driver, proc):
    driver.state.processes = [StubProcess(0, 7, 4 * GIB), StubProcess(0, 8, None)]
    driver.state.processes.append(StubProcess(0, 9, 3 * GIB))
    proc.add(7, uid(1))
    proc.add(8, None)
    proc.add(9, None)
    assert node().run(2).gpus[0].memory_foreign_bytes == 3 * GIB


def test_pod_on_a_gpu_that_it_was_not_given_shows_that_assignments_are_ignored(node, driver, proc):
    driver.state.processes = [StubProcess(i, 7 + i, 4 * GIB) for i in range(2)]
    proc.add(7, uid(1))
    proc.add(8, uid(1))
    pods = Pods({uid(1): PodInfo("ns", "train", assigned=frozenset({"GPU-a"}))})
    status = node(pods).run(2)
    given, taken = status.gpus
    assert ([use.foreign for use in given.pods], given.shares) == ([False], 2)
    assert ([use.foreign for use in taken.pods], taken.shares) == ([True], 1)
    condition = {c.type: c for c in status.conditions}["AssignmentHonoured"]
    assert condition.status == "False"
    assert "ns/train runs on GPU-b" in condition.message


def test_hidden_memory_is_absent_not_zero(node, driver, proc):
    driver.state.processes = [StubProcess(0, 7, 4 * GIB), StubProcess(0, 9, None)]
    proc.add(7, uid(1))
    proc.add(9, uid(1))
    gpu = node().run(3).gpus[0]
    assert gpu.pods[0].memory_bytes is None
    assert gpu.pods[0].memory_peak_bytes is None


def test_process_that_just_ended_is_of_no_pod_yet_but_one_that_stays_hidden_is_foreign(
    node, driver
):
    driver.state.processes = [StubProcess(0, 7, 4 * GIB)]
    one = node()
    assert one.run(2).gpus[0].pods == []
    gpu = one.run(6).gpus[0]
    assert (gpu.memory_foreign_bytes, gpu.shares) == (4 * GIB, 1)


def test_pod_that_left_is_remembered_for_a_while(node, driver, proc):
    driver.state.processes = [StubProcess(0, 7, 4 * GIB)]
    proc.add(7, uid(1))
    one = node()
    one.run(2)
    driver.state.processes = []
    (use,) = one.run(2).gpus[0].pods
    assert (use.memory_bytes, use.memory_peak_bytes) == (0, 4 * GIB)
    assert one.run(60).gpus[0].pods == []


def test_processes_that_cannot_be_listed_leave_their_memory_unknown(node, driver, proc):
    driver.state.processes = [StubProcess(0, 7, 4 * GIB)]
    proc.add(7, uid(1))
    one = node()
    assert one.run(2).gpus[0].pods[0].memory_bytes == 4 * GIB
    call = "nvmlDeviceGetComputeRunningProcesses_v3"
    driver.state.errors = [StubError(call, pynvml.NVML_ERROR_NO_PERMISSION, gpu=0)]
    driver.state.processes = [StubProcess(0, 7, 5 * GIB)]
    gpu = one.run(12).gpus[0]
    assert [use.memory_bytes for use in gpu.pods] == [None]
    assert gpu.memory_foreign_bytes is None
    assert gpu.memory_used_bytes == 5 * GIB
    driver.state.errors = []
    assert one.run(12).gpus[0].pods[0].memory_bytes == 5 * GIB


def test_processes_that_have_ended_are_not_remembered(node, driver, proc):
    driver.state.processes = [StubProcess(0, 7 + n, GIB) for n in range(3)]
    for n in range(3):
        proc.add(7 + n, uid(n))
    one = node()
    one.run(2)
    assert set(one.monitor._attribution._known) == {7, 8, 9}
    driver.state.processes = driver.state.processes[:1]
    one.run(12)
    assert set(one.monitor._attribution._known) == {7}


def test_a_peak_of_two_samples_is_not_missed(node, driver, proc):
    peak = Wave(period_us=60_000_000, high_us=600_000, phase_us=5_000_000)
    driver.state.processes = [StubProcess(0, 7, GIB, extra=3 * GIB, peaks=peak)]
    proc.add(7, uid(1))
    assert node().run(61).gpus[0].pods[0].memory_peak_bytes == 4 * GIB


def scripted(driver, proc, dice):
    """32 courses on 8 GPUs: peaks of 20 to 80 % of the time, 0.5 s at least, every 3 to 15 s."""
    driver.state.gpus = [StubGpu(f"GPU-{i}", gpm=0.5 if i % 2 else None) for i in range(8)]
    script = {}
    for i in range(32):
        period = dice.uniform(3, 15)
        margin = max(0.2, 0.5 / period)
        share = dice.uniform(margin, 1 - margin)
        wave = Wave(int(period * 1e6), int(period * share * 1e6), dice.randrange(10**7))
        memory, extra = dice.uniform(1, 8) * GIB, dice.uniform(0.5, 4) * GIB
        course = StubProcess(
            i % 8, 1000 + i, int(memory), extra=int(extra), peaks=wave, sm=10 + i % 15
        )
        driver.state.processes.append(course)
        proc.add(course.pid, uid(i))
        script[uid(i)] = (course, share)
    return script


@pytest.mark.slow
@pytest.mark.parametrize("run", range(4))
def test_eight_gpus_and_32_processes_on_scripted_courses(node, driver, proc, run, seed):
    """Every process to its pod; levels within 5 % of the script after a minute, every one."""
    script = scripted(driver, proc, random.Random(seed))
    status = node().run(61)
    seen = {use.uid: (gpu.index, use) for gpu in status.gpus for use in gpu.pods}
    assert seen.keys() == script.keys()
    for pod, (course, share) in script.items():
        gpu, use = seen[pod]
        assert gpu == course.gpu
        assert use.memory_peak_bytes == course.memory + course.extra
        assert use.memory_base_bytes == pytest.approx(course.memory, rel=0.05)
        assert use.memory_peak_extra_bytes == pytest.approx(course.extra, rel=0.05)
        assert use.peak_probability == pytest.approx(share, rel=0.05), course
        assert use.utilisation_percent == pytest.approx(course.sm, abs=1)


def test_activity_of_eight_pods_each_alone_on_its_gpu(node, driver, proc):
    """Within 10 % of the script at periods from half a second up, at levels from 40 to 100 %."""
    script = [
        (0.5, 0.5, 60), (0.5, 0.3, 100), (0.55, 0.7, 40), (0.6, 0.2, 60),
        (0.8, 0.85, 60), (1.0, 0.3, 60), (2.0, 0.5, 100), (5.0, 0.7, 40),
    ]  # fmt: skip
    driver.state.gpus = [StubGpu(f"GPU-{i}") for i in range(8)]
    for i, (period, share, level) in enumerate(script):
        wave = Wave(int(period * 1e6), int(period * share * 1e6), i * 123_457)
        driver.state.processes.append(StubProcess(i, 100 + i, GIB, sm=level, active=wave))
        proc.add(100 + i, uid(i))
    for gpu, (period, share, _) in zip(node().run(61).gpus, script, strict=True):
        (use,) = gpu.pods
        assert use.activity_source == "samples"
        ratio = use.active_seconds / use.idle_seconds
        assert ratio == pytest.approx(share / (1 - share), rel=0.1), gpu.uuid
        assert use.iteration_seconds == pytest.approx(period, rel=0.05)


def test_activity_of_a_pod_that_is_alone(node, driver, proc):
    wave = Wave(period_us=2_000_000, high_us=800_000)
    driver.state.processes = [StubProcess(0, 7, GIB, sm=100, active=wave)]
    proc.add(7, uid(1))
    (use,) = node().run(60).gpus[0].pods
    assert use.activity_source == "samples"
    assert use.active_seconds / use.idle_seconds == pytest.approx(0.8 / 1.2, rel=0.1)
    assert use.iteration_seconds == pytest.approx(2, rel=0.05)


def test_activity_next_to_another_pod_comes_from_the_process(node, driver, proc):
    driver.state.processes = [StubProcess(0, 7, GIB, sm=70), StubProcess(0, 8, GIB, sm=20)]
    proc.add(7, uid(1))
    proc.add(8, uid(2))
    first, second = node().run(20).gpus[0].pods
    assert first.activity_source == second.activity_source == "process-utilisation"
    assert (first.active_seconds, second.active_seconds) == pytest.approx((0.7, 0.2), abs=0.02)


def test_the_utilisation_of_an_mps_client_is_unknown(node, driver, proc):
    """NVML counts its work for the server. It was reported as idle before."""
    driver.state.processes = [
        StubProcess(0, 6, GIB, sm=90),
        StubProcess(0, 7, GIB, sm=60, kind="mps"),
        StubProcess(0, 8, GIB, sm=30, kind="mps"),
    ]
    for pid, owner in ((6, None), (7, uid(1)), (8, uid(2))):
        proc.add(pid, owner)
    uses = [use for use in node().run(20).gpus[0].pods if use.uid]
    assert [use.memory_bytes for use in uses] == [GIB, GIB]
    assert [(use.utilisation_percent, use.active_seconds) for use in uses] == [(None, None)] * 2


def test_the_utilisation_of_a_pod_with_its_own_mps_server_is_that_of_the_server(node, driver, proc):
    driver.state.processes = [
        StubProcess(0, 6, GIB, sm=60),
        StubProcess(0, 7, GIB, sm=60, kind="mps"),
        StubProcess(0, 8, GIB, sm=20),
    ]
    for pid, owner in ((6, uid(1)), (7, uid(1)), (8, uid(2))):
        proc.add(pid, owner)
    first, second = node().run(20).gpus[0].pods
    assert first.utilisation_percent == pytest.approx(60, abs=2)
    assert second.utilisation_percent == pytest.approx(20, abs=2)


@pytest.mark.parametrize("jobs", [0, 1, 2])
def test_the_utilisation_by_process_is_read_where_jobs_share(node, driver, proc, monkeypatch, jobs):
    """It takes 1.4 ms of CPU for a GPU of an H100's driver, each second."""
    asked = []
    read = Gpu.process_utilisation
    monkeypatch.setattr(Gpu, "process_utilisation", lambda gpu: asked.append(gpu) or read(gpu))
    driver.state.processes = [StubProcess(0, 7 + i, GIB, sm=40) for i in range(jobs)]
    for each in driver.state.processes:
        proc.add(each.pid, uid(each.pid))
    one = node()
    one.run(5)
    asked.clear()
    one.run(10)
    assert bool(asked) == (jobs > 1)


def test_the_average_of_a_gpu_is_kept_where_no_new_sample_has_come(node, driver, proc):
    """It began anew, from one window, whenever the agent had read between two windows."""
    driver.state.gpus[0] = replace(driver.state.gpus[0], window_us=300_000)
    wave = Wave(period_us=1_200_000, high_us=600_000)
    driver.state.processes = [StubProcess(0, 7, GIB, sm=100, active=wave)]
    proc.add(7, uid(7))
    watched = node(interval_s=0.25, memory_interval_s=0.05, utilisation_half_life_s=10.0)
    watched.run(30)
    for _ in range(40):
        assert watched.run(0.25).gpus[0].utilisation_percent == pytest.approx(50, abs=10)


@pytest.mark.parametrize("pods", [1, 2])
def test_a_reading_between_two_windows_of_the_driver_does_not_count_as_idle(
    node, driver, proc, pods
):
    """A window of 0.3 s that is read every 0.25 s: each sixth reading finds nothing new."""
    driver.state.gpus[0] = replace(driver.state.gpus[0], window_us=300_000)
    driver.state.processes = [StubProcess(0, pid, GIB, sm=40) for pid in range(7, 7 + pods)]
    for pid in range(7, 7 + pods):
        proc.add(pid, uid(pid))
    watched = node(interval_s=0.25, memory_interval_s=0.05, utilisation_half_life_s=0.4)
    watched.run(2)
    for _ in range(40):
        found = [use.utilisation_percent for use in watched.run(0.25).gpus[0].pods]
        assert found == pytest.approx([40] * pods, abs=1)
    # Idle processes are seen within the longest window that a driver has.
    driver.state.processes = [replace(each, sm=0, mem=0) for each in driver.state.processes]
    driver.apply()
    assert all(use.utilisation_percent < 1 for use in watched.run(10).gpus[0].pods)


def test_the_load_of_a_gpu_is_not_that_of_a_pod_next_to_a_process_of_no_pod(node, driver, proc):
    driver.state.processes = [StubProcess(0, 7, GIB, sm=30), StubProcess(0, 8, GIB, sm=50)]
    proc.add(7, uid(1))
    proc.add(8, None)
    gpu = node().run(20).gpus[0]
    ours = next(use for use in gpu.pods if use.uid == uid(1))
    assert ours.utilisation_percent == pytest.approx(30, abs=2)
    assert ours.activity_source == "process-utilisation"
    assert gpu.utilisation_percent == pytest.approx(80, abs=3)


def test_activity_that_a_job_has_recorded_itself_counts_for_more_than_samples(node, driver, proc):
    wave = Wave(period_us=2_000_000, high_us=800_000)
    driver.state.processes = [StubProcess(0, 7, GIB, sm=100, active=wave)]
    proc.add(7, uid(1))
    one = node()
    one.monitor.paces = {uid(1): Pace(2.0, (0.3, 0.2))}
    (use,) = one.run(60).gpus[0].pods
    assert use.activity_source == "cuda-events"
    assert (use.active_seconds, use.idle_seconds) == (0.3, 0.2)


def test_only_an_agent_that_evicts_says_that_it_guards_the_memory(node):
    assert [gpu.memory_guarded for gpu in node().run(2).gpus] == [False, False]
    guards = node(guard={"mode": "evict"})
    assert [gpu.memory_guarded for gpu in guards.run(2).gpus] == [True, True]


# --- health -----------------------------------------------------------------------------------


def test_lost_gpu_is_quarantined_alone_and_comes_back(node, driver, proc):
    driver.state.processes = [StubProcess(0, 7, 4 * GIB), StubProcess(1, 8, GIB)]
    proc.add(7, uid(1))
    proc.add(8, uid(2))
    one = node()
    one.run(2)
    driver.state.errors = [StubError("*", 15, gpu=0)]
    lost, well = one.run(2).gpus
    assert (lost.health, lost.shares) == ("Quarantined", 0)
    assert "lost" in lost.health_reason
    assert lost.memory_used_bytes is None
    assert lost.pods[0].memory_bytes is None
    assert (well.health, well.shares, well.memory_used_bytes) == ("Healthy", 2, GIB)
    lost, _ = one.run(120).gpus
    assert (lost.uuid, lost.health_reason) == ("GPU-a", "the GPU is lost"), "remembered, said once"
    driver.state.errors = []
    assert one.run(35).gpus[0].health == "Quarantined", "not well for long enough"
    back = one.run(60).gpus[0]
    assert (back.health, back.shares, back.memory_used_bytes) == ("Healthy", 2, 4 * GIB)


def test_a_gpu_that_is_lost_between_two_readings_is_quarantined_alone(node, driver, proc):
    one = node()
    one.run(2)
    driver.state.errors = [StubError("nvmlDeviceGetSamples", 15, gpu=0)]
    lost, well = one.run(10).gpus
    assert (lost.health, lost.health_reason) == ("Quarantined", "the GPU is lost")
    assert (well.health, well.shares) == ("Healthy", 2)


@pytest.mark.parametrize("gone", [False, True])
def test_the_conditions_say_what_can_be_read(node, driver, gone):
    one = node()
    if gone:
        driver.state.errors = [StubError("*", pynvml.NVML_ERROR_UNINITIALIZED)]
        driver.apply()
    found = {c.type: (c.status, c.reason) for c in one.run(2).conditions}
    assert found["NvmlAvailable"] == (("False", "Gone") if gone else ("True", "Available"))
    assert found["AllGpusReadable"] == ("True", "Readable")
    assert found["AssignmentHonoured"] == ("True", "Honoured")
    assert "VariableHonoured" not in found, "no canary was asked"


def test_gpu_that_vanishes_from_the_bus_stays_in_the_report(node, driver):
    one = node()
    one.run(2)
    del driver.state.gpus[1]
    gone = one.run(40).gpus[1]
    assert (gone.uuid, gone.health, gone.shares) == ("GPU-b", "Quarantined", 0)


@pytest.mark.parametrize(
    ("code", "health"), [(79, "Quarantined"), (48, "Quarantined"), (31, "Healthy")]
)
def test_xid(node, driver, code, health):
    one = node()
    one.run(2)
    driver.state.xids = [StubXid(0, code, seq=1)]
    assert one.run(2).gpus[0].health == health
    assert one.monitor.boards["GPU-a"].xids == {code: 1}
    assert one.run(65).gpus[0].health == "Healthy"


@pytest.mark.parametrize("trouble", [{"pending": 1}, {"failure": 1}])
def test_memory_repair(node, driver, trouble):
    driver.state.gpus = [StubGpu("GPU-a", **trouble)]
    gpu = node().run(2).gpus[0]
    assert gpu.health == "Quarantined"
    assert "memory" in gpu.health_reason


@pytest.mark.parametrize("errors", [None, 0, 2])
def test_ecc_errors_are_reported_where_the_board_counts_them(node, driver, errors):
    driver.state.gpus = [StubGpu("GPU-a", ecc=errors)]
    assert node().run(2).gpus[0].ecc_uncorrected_errors == errors


@pytest.mark.parametrize(
    ("board", "reason"),
    [({"mig": 1}, "MIG"), ({"mode": 3}, "ExclusiveProcess"), ({"mode": 2}, "Prohibited")],
)
def test_gpu_that_cannot_be_shared_is_not_offered(node, driver, board, reason):
    driver.state.gpus = [StubGpu("GPU-a", **board)]
    gpu = node().run(2).gpus[0]
    assert (gpu.shares, gpu.health) == (0, "Healthy")
    assert reason in gpu.shares_reason
    if "mode" in board:
        assert gpu.compute_mode == reason


@pytest.mark.parametrize(
    ("kinds", "mps"), [((), False), (("compute",), False), (("compute", "mps"), True)]
)
def test_a_gpu_with_a_client_of_mps_says_so(node, driver, proc, kinds, mps):
    driver.state.processes = [StubProcess(0, 7 + i, GIB, kind=k) for i, k in enumerate(kinds)]
    for each in driver.state.processes:
        proc.add(each.pid, uid(1))
    assert node().run(2).gpus[0].mps is mps


def test_display_takes_memory_but_no_share(node, driver, proc):
    driver.state.processes = [StubProcess(0, 7, GIB, kind="graphics")]
    proc.add(7, None)
    gpu = node().run(2).gpus[0]
    assert (gpu.shares, gpu.memory_foreign_bytes) == (2, GIB)


def test_nvml_that_is_gone_quarantines_all_and_recovers(node, driver, proc):
    driver.state.processes = [StubProcess(0, 7, GIB)]
    proc.add(7, uid(1))
    one = node()
    one.run(2)
    driver.state.errors = [StubError("*", pynvml.NVML_ERROR_UNINITIALIZED)]
    status = one.run(5)
    assert [gpu.health for gpu in status.gpus] == ["Healthy"] * 2, (
        "a hiccup is no trouble of theirs"
    )
    assert status.gpus[0].memory_used_bytes is None
    status = one.run(20)
    assert [gpu.health for gpu in status.gpus] == ["Quarantined"] * 2
    assert status.conditions[0].status == "False"
    assert one.monitor.gone_for_s(driver.now_s) == pytest.approx(25, abs=2)
    driver.state.errors = []
    status = one.run(70)
    assert [gpu.health for gpu in status.gpus] == ["Healthy"] * 2
    assert (status.conditions[0].status, status.gpus[0].memory_used_bytes) == ("True", GIB)


def test_gpus_of_an_earlier_report_are_not_forgotten(node, driver):
    earlier = node().run(2)
    driver.state.driver = ""
    one = node()
    one.monitor.remember(earlier, driver.now_s)
    gpus = one.run(15).gpus
    assert [(gpu.uuid, gpu.health) for gpu in gpus] == [
        ("GPU-a", "Quarantined"),
        ("GPU-b", "Quarantined"),
    ]


# --- memory guard -----------------------------------------------------------------------------


@pytest.fixture
def crowded(driver, proc):
    """Two pods on an 80 GiB GPU: the first outgrew its prediction, the second did not."""
    driver.state.processes = [StubProcess(0, 7, 50 * GIB), StubProcess(0, 8, 28 * GIB)]
    proc.add(7, uid(1))
    proc.add(8, uid(2))
    return Pods(
        {
            uid(1): PodInfo("a", "greedy", predicted_memory=30 * GIB),
            uid(2): PodInfo("b", "innocent", predicted_memory=30 * GIB),
        }
    )


def test_guard_asks_for_who_outgrew_its_prediction(node, driver, crowded):
    one = node(crowded, guard={"mode": "evict"})
    (request,) = one.run(1).eviction_requests
    assert (request.namespace, request.pod, request.uid) == ("a", "greedy", uid(1))
    assert (request.gpu, request.memory_bytes) == ("GPU-a", 50 * GIB)
    assert "50.0 GiB where 30.0 GiB were predicted" in request.reason
    assert one.run(5).eviction_requests == [request], "asked once"
    driver.state.processes = driver.state.processes[1:]
    assert one.run(1).eviction_requests == []


@pytest.mark.parametrize("mode", ["off", "warn"])
def test_guard_that_may_not_ask(node, crowded, mode):
    one = node(crowded, guard={"mode": mode})
    assert one.run(1).eviction_requests == []
    assert one.monitor.nearly_full["outgrown"] == (mode == "warn")


def test_guard_blames_no_pod_without_a_prediction(node, crowded):
    crowded[uid(1)] = PodInfo("a", "greedy")
    one = node(crowded, guard={"mode": "evict"})
    assert one.run(1).eviction_requests == []
    assert one.monitor.nearly_full == {"nobody": 1}


def test_guard_leaves_a_pod_that_is_alone(node, driver, crowded):
    driver.state.processes = [StubProcess(0, 7, 79 * GIB)]
    assert node(crowded, guard={"mode": "evict"}).run(1).eviction_requests == []


# --- out of memory ----------------------------------------------------------------------------


def fails(driver, pods, uid, *, after_s=0.0, **end):
    """Let a container of the pod end after some time, as kubelet tells it: in whole seconds."""
    end = {"container": "main", "exit_code": 1, "at_s": float(int(driver.now_s + after_s))} | end
    pods[uid] = replace(pods[uid], ends=(ContainerEnd(**end),))


@pytest.mark.long
def test_failure_on_a_full_gpu_is_put_down_to_who_outgrew(node, driver, crowded):
    driver.state.processes[0] = StubProcess(0, 7, 51 * GIB)
    one = node(crowded)
    one.run(3)
    died = uid(2)
    driver.state.processes = driver.state.processes[:1]
    one.run(2)
    fails(driver, crowded, died)
    (failure,) = one.run(2).out_of_memory
    assert (failure.pod, failure.uid, failure.container, failure.exit_code) == (
        "innocent",
        died,
        "main",
        1,
    )
    assert (failure.inferred, failure.memory_bytes, failure.gpu) == (True, 28 * GIB, "GPU-a")
    assert (failure.blamed.pod, failure.blamed.memory_bytes) == ("greedy", 51 * GIB)
    assert failure.blamed.predicted_bytes == 30 * GIB
    assert one.run(300).out_of_memory == [failure], "reported once, and kept"
    assert one.monitor.out_of_memory.counts == {"outgrown": 1}
    again = node(crowded)
    again.monitor.remember(one.report(), driver.now_s)
    assert again.run(1).out_of_memory == [failure], "an agent that starts anew does not forget"
    assert one.run(300).out_of_memory == []


def test_failure_where_no_pod_outgrew_blames_none(node, driver, crowded):
    pods = [replace(info, predicted_memory=60 * GIB) for info in crowded.values()]
    crowded.update(zip(crowded, pods, strict=True))
    driver.state.processes[0] = StubProcess(0, 7, 51 * GIB)
    one = node(crowded)
    one.run(3)
    fails(driver, crowded, uid(1))
    (failure,) = one.run(2).out_of_memory
    assert failure.blamed is None


@pytest.mark.parametrize(
    "end",
    [
        {"exit_code": 0},
        {"exit_code": 137},
        {"exit_code": 143},
        {"reason": "OOMKilled"},
        {"after_s": -60},
        {"after_s": 30},
    ],
)
def test_other_ends_are_not_taken_for_it(node, driver, crowded, end):
    driver.state.processes[0] = StubProcess(0, 7, 51 * GIB)
    one = node(crowded)
    one.run(10)
    driver.state.processes = driver.state.processes[1:]
    fails(driver, crowded, uid(1), **end)
    assert one.run(5).out_of_memory == []


def test_failure_with_memory_that_is_free_is_not_taken_for_it(node, driver, crowded):
    driver.state.processes[0] = StubProcess(0, 7, 48 * GIB)
    one = node(crowded)
    one.run(10)
    fails(driver, crowded, uid(1))
    assert one.run(5).out_of_memory == []


# --- errors -----------------------------------------------------------------------------------

CALLS = sorted(
    {
        "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID",
        "nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3",
        "nvmlDeviceGetProcessUtilization", "nvmlDeviceGetSamples", "nvmlDeviceGetMigMode",
        "nvmlDeviceGetComputeMode", "nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature",
        "nvmlDeviceGetPowerUsage", "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetRemappedRows",
        "nvmlDeviceGetRetiredPagesPendingStatus", "nvmlSystemGetDriverVersion",
        "nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2",
        "nvmlEventSetFree", "nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc",
        "nvmlGpmSampleGet", "nvmlGpmMetricsGet", "nvmlGpmSampleFree", "nvmlInitWithFlags",
        "nvmlShutdown", "*",
    }
)  # fmt: skip
CODES = [*range(1, 31), 999]


def check_absent_not_zero(status, driver):
    """Whatever is reported is the truth; what cannot be read is not reported."""
    for gpu in status.gpus:
        if gpu.memory_used_bytes is not None:
            assert gpu.memory_used_bytes in (4 * GIB, 4 * GIB + (600 << 20))
        if gpu.temperature_celsius is not None:
            assert gpu.temperature_celsius == 40
        if gpu.power_watts is not None:
            assert gpu.power_watts == 70
        if gpu.ecc_uncorrected_errors is not None:
            assert gpu.ecc_uncorrected_errors == 3
        for use in gpu.pods:
            if use.memory_bytes is not None:
                assert use.memory_bytes == 4 * GIB


def busy_pair(driver, proc):
    driver.state.gpus = [StubGpu("GPU-a", gpm=0.5, ecc=3), StubGpu("GPU-b", ecc=3)]
    driver.state.processes = [StubProcess(0, 7, 4 * GIB, sm=50), StubProcess(1, 8, 4 * GIB, sm=50)]
    proc.add(7, uid(1))
    proc.add(8, uid(2))


def assert_well_again(one):
    status = one.run(110)
    assert [gpu.health for gpu in status.gpus] == ["Healthy"] * 2
    for gpu in status.gpus:
        assert (gpu.memory_used_bytes, gpu.shares, len(gpu.pods)) == (4 * GIB, 2, 1)
        assert gpu.utilisation_percent == pytest.approx(25 if gpu.uuid == "GPU-a" else 50)
        assert gpu.temperature_celsius == 40


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
def test_every_code_at_a_call(node, driver, proc, call):
    busy_pair(driver, proc)
    one = node(memory_interval_s=1.0)
    one.run(3)
    for code in CODES:
        driver.state.errors = [StubError(call, code)]
        check_absent_not_zero(one.run(2), driver)
    driver.state.errors = []
    assert_well_again(one)


@pytest.mark.slow
def test_random_errors_for_ten_thousand_steps(node, driver, proc, seed):
    dice = random.Random(seed)
    busy_pair(driver, proc)
    one = node(memory_interval_s=1.0)
    for step in range(10_000):
        if step % 3 == 0:
            driver.state.errors = [
                StubError(
                    dice.choice(CALLS),
                    dice.choice(CODES),
                    dice.choice([None, 0, 1]),
                    dice.choice(["any", "size", "fill"]),
                )
                for _ in range(dice.randrange(4))
            ]
        driver.advance(1)
        one.monitor.tick(driver.now_s, stamp(driver))
        if step % 10 == 0:
            check_absent_not_zero(one.report(), driver)
    driver.state.errors = []
    assert_well_again(one)


def test_a_replaced_gpu_leaves_the_report_with_its_quarantine(node, driver):
    one = node()
    one.run(2)
    one.monitor.close()
    # The node is off while a GPU is replaced; its agent reads what it reported before.
    driver.state.gpus = [StubGpu("GPU-a"), StubGpu("GPU-new")]
    driver.apply()
    again = node()
    again.monitor.remember(one.report(), driver.now_s)
    report = again.run(2)
    assert [gpu.uuid for gpu in report.gpus] == ["GPU-a", "GPU-new"]
    assert [gpu.health for gpu in report.gpus] == ["Healthy", "Healthy"]


def test_a_gpu_that_is_missing_without_another_in_its_place_stays_quarantined(node, driver):
    one = node()
    one.run(2)
    one.monitor.close()
    driver.state.gpus = [StubGpu("GPU-b")]
    driver.apply()
    again = node()
    again.monitor.remember(one.report(), driver.now_s)
    health = {gpu.uuid: gpu.health for gpu in again.run(2).gpus}
    assert health == {"GPU-a": "Quarantined", "GPU-b": "Healthy"}
