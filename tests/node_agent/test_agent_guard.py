"""The memory guard: which pod is named when a GPU is nearly full, and which pods never are."""

from dataclasses import replace

import pytest
from agent_node import GIB, Pods, uid

from node_agent.attribution import Attribution
from node_agent.guard import Offender, Tenant, offender
from node_agent.outofmemory import EPISODES, FullTimes, OutOfMemoryLog
from node_agent.pods import ContainerEnd, PodInfo
from node_agent.stub import StubProcess


def named(*tenants, tolerance=0.0):
    found = offender([Tenant(*tenant) for tenant in tenants], tolerance)
    return found and found.uid


# --- the rule ---------------------------------------------------------------------------------


def test_of_several_the_pod_with_the_most_bytes_over_its_prediction_is_named():
    # In shares of the prediction it is the other way round.
    tenants = [("little", 3, 1), ("most", 60, 50), ("some", 25, 20)]
    for turn in range(3):
        assert named(*tenants[turn:], *tenants[:turn]) == "most"


def test_the_pod_that_holds_most_is_not_named_where_it_keeps_to_its_prediction():
    assert named(("large", 70, 70), ("small", 6, 5)) == "small"


def test_of_two_that_outgrew_the_larger_one_is_not_named_for_its_size():
    assert named(("large", 50, 45), ("small", 30, 10)) == "small"


@pytest.mark.parametrize(
    ("memory", "guilty"), [(100, False), (101, False), (110, False), (111, True), (200, True)]
)
def test_a_prediction_may_be_exceeded_by_the_tolerance(memory, guilty):
    assert named(("a", memory, 100), tolerance=0.1) == ("a" if guilty else None)


def test_the_tolerance_is_that_of_each_pod_s_own_prediction():
    # The first exceeds by more bytes, within its tolerance; the second by fewer, beyond its own.
    assert named(("large", 1099, 1000), ("small", 60, 50), tolerance=0.1) == "small"


def test_without_a_tolerance_the_prediction_itself_is_still_allowed():
    assert named(("a", 100, 100)) is None
    assert named(("a", 101, 100)) == "a"


@pytest.mark.parametrize("unknown", [("x", None, 10), ("x", 90, None), ("x", None, None)])
def test_a_pod_of_which_something_is_unknown_is_never_named(unknown):
    assert named(unknown) is None
    assert named(unknown, ("a", 11, 10)) == "a"


def test_a_pod_that_was_predicted_to_need_nothing_is_judged_like_any_other():
    assert named(("a", 1, 0), ("b", 3, 1)) == "b"
    assert named(("a", 1, 0), ("b", 1, 1)) == "a"


def test_ties_go_by_uid_whatever_the_order():
    assert named(("b", 12, 10), ("a", 22, 20)) == "a"
    assert named(("a", 22, 20), ("b", 12, 10)) == "a"


def test_the_reason_names_both_figures():
    said = Offender("a", round(50.04 * GIB), round(29.96 * GIB)).reason
    assert "50.0 GiB" in said
    assert "30.0 GiB were predicted" in said


# --- on a GPU ---------------------------------------------------------------------------------


@pytest.fixture
def on(node, driver, proc):
    """Processes on GPU-a of 80 GiB as (pod, held GiB, predicted GiB): pods and a monitor."""

    def make(*tenants, elsewhere=(), **settings):
        pods, driver.state.processes = Pods(), []
        placed = [(0, t) for t in tenants] + [(1, t) for t in elsewhere]
        for gpu, (number, held, predicted) in placed:
            pid = 100 + number
            driver.state.processes.append(StubProcess(gpu, pid, round(held * GIB)))
            proc.add(pid, uid(number))
            bound = None if predicted is None else round(predicted * GIB)
            pods[uid(number)] = PodInfo("ns", f"pod-{number}", predicted_memory=bound)
        return pods, node(pods, guard={"mode": "evict", **settings})

    return make


def asked(one, seconds=1):
    return [request.pod for request in one.run(seconds).eviction_requests]


def test_of_two_that_outgrew_the_one_that_outgrew_most_is_asked_for(on):
    _, one = on((1, 12, 10), (2, 45, 30), (3, 20, 20))
    assert asked(one) == ["pod-2"]


def test_a_pod_within_its_tolerance_is_not_asked_for(on):
    _, one = on((1, 42, 41), (2, 36, 36))
    assert asked(one) == []
    assert one.monitor.nearly_full == {"nobody": 1}


@pytest.mark.parametrize(("held", "full"), [(75.9, False), (76.0, True)])
def test_a_gpu_is_nearly_full_from_its_share_on(on, driver, held, full):
    driver.state.gpus[0] = replace(driver.state.gpus[0], reserved=0)
    _, one = on((1, held - 20, 10), (2, 20, 20), near_full=0.95)
    assert asked(one) == (["pod-1"] if full else [])


@pytest.mark.parametrize(("reserved", "full"), [(0, False), (10, True)])
def test_memory_that_the_driver_reserves_is_not_there_for_pods(on, driver, reserved, full):
    # 68 of 80 GiB are 85 %; of the 70 GiB that processes may have they are 97 %.
    driver.state.gpus[0] = replace(driver.state.gpus[0], reserved=reserved * GIB)
    _, one = on((1, 48, 10), (2, 20, 20), near_full=0.95)
    assert asked(one) == (["pod-1"] if full else [])


def test_where_more_was_predicted_than_the_gpu_has_the_pod_that_holds_least_goes(on):
    """The GPU has room for one peak, and two have met: no pod has outgrown its prediction."""
    _, one = on((1, 45, 50), (2, 33, 50))
    (request,) = one.run(1).eviction_requests
    assert (request.pod, request.memory_bytes) == ("pod-2", None)
    assert "peaks have met" in request.reason
    assert one.monitor.nearly_full == {"nobody": 1}


def test_where_a_prediction_is_unknown_no_peaks_are_said_to_have_met(on):
    _, one = on((1, 45, 50), (2, 33, None))
    assert asked(one) == []


def test_a_pod_that_outgrew_on_another_gpu_is_left_alone(on):
    _, one = on((1, 40, 40), (2, 38, 38), elsewhere=((3, 30, 10), (4, 1, 1)))
    assert asked(one) == []


def test_a_pod_that_tandem_did_not_put_there_is_not_asked_for(on):
    pods, one = on((1, 50, 10), (2, 20, 10), (3, 9, 9))
    pods[uid(1)] = replace(pods[uid(1)], ours=False)
    assert asked(one) == ["pod-2"]


def test_a_pod_on_a_gpu_that_it_was_not_given_is_not_asked_for(on):
    pods, one = on((1, 50, 10), (2, 20, 10), (3, 9, 9))
    pods[uid(1)] = replace(pods[uid(1)], assigned=frozenset({"GPU-b"}))
    pods[uid(2)] = replace(pods[uid(2)], assigned=frozenset({"GPU-a"}))
    assert asked(one) == ["pod-2"]


def test_a_pod_that_the_api_server_does_not_know_is_not_asked_for(on):
    pods, one = on((1, 50, 10), (2, 20, 10), (3, 9, 9))
    del pods[uid(1)]
    assert asked(one) == ["pod-2"]


def test_a_gpu_has_one_request_at_a_time(on, driver):
    _, one = on((1, 40, 10), (2, 30, 10), (3, 9, 9))
    assert asked(one) == ["pod-1"]
    # The other outgrows by more meanwhile; the first is on its way out already.
    driver.state.processes[1] = StubProcess(0, 102, 55 * GIB)
    driver.state.processes[0] = StubProcess(0, 101, 16 * GIB)
    assert asked(one, 3) == ["pod-1"]
    driver.state.processes = driver.state.processes[1:]
    assert asked(one, 3) == []


def test_each_full_gpu_has_its_own_request(on):
    _, one = on((1, 60, 10), (2, 18, 18), elsewhere=((3, 50, 40), (4, 28, 28)))
    assert asked(one) == ["pod-1", "pod-3"]


def test_the_guard_goes_on_where_the_gpu_fills_again(on, driver):
    _, one = on((1, 60, 10), (2, 18, 18), mode="warn")
    one.run(3)
    driver.state.processes[0] = StubProcess(0, 101, 20 * GIB)
    one.run(3)
    assert one.monitor.nearly_full == {"outgrown": 1}
    driver.state.processes[0] = StubProcess(0, 101, 60 * GIB)
    assert one.run(3).eviction_requests == []
    assert one.monitor.nearly_full == {"outgrown": 2}


def test_a_pod_is_judged_by_what_it_holds_now_and_not_by_its_peak(on, driver):
    _, one = on((1, 60, 19), (2, 10, 60))
    assert asked(one) == []  # 70 of 80 GiB
    driver.state.processes[0] = StubProcess(0, 101, 19 * GIB)
    driver.state.processes[1] = StubProcess(0, 102, 59 * GIB)
    assert asked(one, 3) == []
    assert one.monitor.nearly_full == {"nobody": 1}


def test_the_guard_names_the_gpu_that_is_full(on):
    _, one = on((1, 10, 10), (2, 10, 10), elsewhere=((3, 50, 40), (4, 28, 28)))
    (request,) = one.run(1).eviction_requests
    assert (request.pod, request.gpu) == ("pod-3", "GPU-b")


# --- whose process it is ----------------------------------------------------------------------


def test_memory_goes_to_the_pod_that_a_pid_belongs_to_now(on, proc):
    pods, one = on((1, 50, 60), (2, 20, 20))
    one.run(5)
    proc.add(101, uid(3), start=2)  # the PID is used again, by a process of a third pod
    pods[uid(3)] = PodInfo("ns", "pod-3", predicted_memory=60 * GIB)
    gpu = one.run(5).gpus[0]
    held = {use.pod: use.memory_bytes for use in gpu.pods if use.memory_bytes}
    assert held == {"pod-3": 50 * GIB, "pod-2": 20 * GIB}


def test_a_process_that_takes_the_place_of_another_with_the_same_memory_is_found(on, driver, proc):
    pods, one = on((1, 50, 60), (2, 20, 20))
    one.run(5)
    proc.add(103, uid(3))
    driver.state.processes[0] = StubProcess(0, 103, 50 * GIB)
    pods[uid(3)] = PodInfo("ns", "pod-3", predicted_memory=60 * GIB)
    held = {use.pod: use.memory_bytes for use in one.run(12).gpus[0].pods if use.memory_bytes}
    assert held == {"pod-3": 50 * GIB, "pod-2": 20 * GIB}


@pytest.mark.parametrize("passed", [False, True])
def test_a_pid_that_passes_on_between_two_readings_is_not_attributed(proc, passed):
    class Racing(Attribution):
        def _read(self, pid, name):
            text = super()._read(pid, name)
            if passed and name == "cgroup":
                proc.add(pid, uid(9), start=2)
            return text

    proc.add(7, uid(1), start=1)
    attribution = Racing(proc.root)
    if passed:
        with pytest.raises(ProcessLookupError):
            attribution.container(7)
    else:
        assert attribution.container(7).pod_uid == uid(1)


def test_the_start_time_is_read_behind_a_name_that_looks_like_fields(proc):
    attribution = Attribution(proc.root)
    proc.add(7, uid(1), start=5)
    stat = proc.root / "7" / "stat"
    fields = stat.read_text().split()
    stat.write_text(stat.read_text().replace("(a (b) c)", "(x) S 1 2 3 (y"))
    assert attribution.container(7).pod_uid == uid(1)
    proc.add(7, uid(2), start=5)
    stat.write_text(stat.read_text().replace("(a (b) c)", "(x) S 1 2 3 (y"))
    assert attribution.container(7).pod_uid == uid(1), "the same process"
    assert fields[-3] == "5"


def test_what_is_remembered_is_not_read_again(proc):
    attribution = Attribution(proc.root)
    proc.add(7, uid(1), start=1)
    assert attribution.remembered(7).pod_uid == uid(1)
    proc.add(7, uid(2), start=2)
    assert attribution.remembered(7).pod_uid == uid(1)
    assert attribution.container(7).pod_uid == uid(2)
    assert attribution.remembered(7).pod_uid == uid(2)


@pytest.mark.parametrize("name", ["stat", "cgroup"])
def test_a_process_that_ends_while_it_is_read_is_gone(proc, name):
    proc.add(7, uid(1))
    (proc.root / "7" / name).write_text("")
    with pytest.raises(ProcessLookupError):
        Attribution(proc.root).container(7)


# --- out of memory, inferred ------------------------------------------------------------------

AT_S = 1000.0


def full(*episodes):
    """The times (from, to) at which pod 1 held 50 of 30 GiB on a full GPU, and pod 2 20 of 20."""
    times = FullTimes()
    for begins_s, ends_s in episodes:
        for at_s in (begins_s, ends_s):
            held = [Tenant(uid(1), 50 * GIB, 30 * GIB), Tenant(uid(2), 20 * GIB, 20 * GIB)]
            times.note(at_s, held)
    return times


def ended(at_s, code=1, reason=""):
    return ContainerEnd("main", code, at_s, reason)


@pytest.mark.parametrize(
    ("at_s", "found"),
    [(998.9, False), (999.1, True), (1000.0, True), (1011.0, True), (1011.1, False)],
)
def test_a_container_ran_out_where_it_failed_while_its_gpu_was_full_or_soon_after(at_s, found):
    # The GPU was full from 1000 to 1001; ends are reported in whole seconds, cut off.
    assert bool(full((1000.0, 1001.0)).cause(uid(2), ended(at_s))) is found


def test_a_pod_that_held_nothing_then_did_not_run_out():
    assert full((1000.0, 1001.0)).cause(uid(3), ended(AT_S)) is None


@pytest.mark.parametrize("code", [0, 137, 143])
def test_an_end_with_another_cause_is_not_put_down_to_memory(code):
    assert full((1000.0, 1001.0)).cause(uid(2), ended(AT_S, code)) is None
    assert full((1000.0, 1001.0)).cause(uid(2), ended(AT_S, 1, "OOMKilled")) is None


def test_times_close_together_are_one_and_the_latest_that_fits_counts():
    times = full((1000.0, 1001.0), (1002.5, 1003.0), (1050.0, 1051.0))
    first = times.cause(uid(1), ended(1003.0))
    assert (first.from_s, first.to_s) == (1000.0, 1003.0)
    assert times.cause(uid(1), ended(1052.0)).from_s == 1050.0


def test_what_a_pod_held_at_most_while_the_gpu_was_full_counts():
    times = FullTimes()
    for at_s, held in ((1000.0, 30), (1000.5, 50), (1001.0, 40)):
        times.note(at_s, [Tenant(uid(1), held, 10)])
    assert times.cause(uid(1), ended(1001.0)).holders[uid(1)].memory == 50


def test_only_the_last_times_are_remembered():
    times = full(*((100.0 * n, 100.0 * n + 1) for n in range(1, EPISODES + 3)))
    assert times.cause(uid(1), ended(201.0)) is None
    assert times.cause(uid(1), ended(301.0)) is not None


def test_the_pod_that_outgrew_is_blamed_for_the_failure_of_its_neighbour():
    log = OutOfMemoryLog()
    pods = {
        uid(1): PodInfo("a", "greedy"),
        uid(2): PodInfo("b", "innocent", ends=(ended(AT_S),)),
        uid(3): None,
    }
    log.look(AT_S, "GPU-a", full((1000.0, 1001.0)), pods)
    (failure,) = log.latest(AT_S)
    assert (failure.namespace, failure.pod, failure.memory_bytes) == ("b", "innocent", 20 * GIB)
    assert (failure.blamed.namespace, failure.blamed.pod, failure.blamed.uid) == (
        "a",
        "greedy",
        uid(1),
    )
    assert (failure.blamed.memory_bytes, failure.blamed.predicted_bytes) == (50 * GIB, 30 * GIB)
    assert log.counts == {"outgrown": 1}
    log.look(AT_S + 1, "GPU-a", full((1000.0, 1001.0)), pods)
    assert len(log.latest(AT_S + 1)) == 1, "reported once"
    pods[uid(2)] = PodInfo("b", "innocent", ends=(ended(AT_S + 2),))
    log.look(AT_S + 2, "GPU-a", full((1000.0, AT_S + 1)), pods)
    assert log.counts == {"outgrown": 2}


def test_a_failure_is_reported_for_a_while_and_then_no_more():
    log = OutOfMemoryLog()
    pods = {uid(2): PodInfo("b", "innocent", ends=(ended(AT_S),))}
    log.look(AT_S, "GPU-a", full((1000.0, 1001.0)), pods)
    assert len(log.latest(AT_S + 599)) == 1
    assert log.latest(AT_S + 600) == []
