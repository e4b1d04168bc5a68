"""Attained service: measured from containers' times, counted once, whichever process dies."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from queue_builders import gang, pod

from scheduler_extender.cluster.attained_service import with_service
from scheduler_extender.cluster.gang_index import Gangs
from scheduler_extender.cluster.gangs import TAKEN_BACK_S, Gang
from scheduler_extender.cluster.jobs import rfc3339, seconds
from scheduler_extender.cluster.pods import PodInfo
from scheduler_extender.cluster.records import PodRecord
from scheduler_extender.queue.steps import decisions
from tandem.contracts.resources import GPUJobStatus, Phase, PodService, WorkloadRef


def running(name: str, since_s: float, gpus: int = 1) -> PodInfo:
    bound = replace(pod(name, gpus=gpus, gated=False), node_name="n0", phase="Running")
    return replace(bound, started_at=rfc3339(since_s))


def ended(of: PodInfo, at_s: float) -> PodInfo:
    return replace(of, phase="Succeeded", finished_at=rfc3339(at_s))


def test_a_pod_that_pulls_its_image_attains_nothing() -> None:
    pulling = replace(pod("p", gated=False), node_name="n0", phase="Pending")
    group = gang(pulling)
    assert with_service(group.record.status, group, 1000) is group.record.status
    assert group.gpus_running == 0


def test_service_is_gpus_times_running_time_and_grows_by_what_is_new() -> None:
    group = gang(running("p", 100, gpus=2), running("q", 110))
    first = with_service(group.record.status, group, 120)
    assert first.attained_gpu_seconds == 2 * 20 + 10
    again = with_service(first, group, 120)
    assert again is first
    later = with_service(first, group, 130)
    assert later.attained_gpu_seconds == 2 * 30 + 20
    assert group.gpus_running == 3


def test_a_pod_that_ended_is_counted_to_its_end_and_once() -> None:
    p = running("p", 100)
    group = gang(p)
    status = with_service(group.record.status, group, 120)
    group.put(ended(p, 150))
    status = with_service(status, group, 500)
    assert status.attained_gpu_seconds == 50
    assert with_service(status, group, 900) is status


def test_a_pod_that_is_gone_is_counted_once_more_and_its_uid_forgotten() -> None:
    p = running("p", 100)
    group = gang(p)
    status = with_service(group.record.status, group, 120)
    group.remove(p.uid, 160.0)
    status = with_service(status, group, 500)
    assert status.attained_gpu_seconds == 60
    assert status.pod_service == []


def test_the_replacement_goes_on_from_what_the_first_pod_attained() -> None:
    first = running("p", 100)
    group = gang(ended(first, 150), phase=Phase.SUSPENDED)
    status = with_service(group.record.status, group, 200)
    second = running("p-again", 300)
    group.remove(first.uid, 200)
    group.put(second)
    status = with_service(status, group, 310)
    assert status.attained_gpu_seconds == 50 + 10
    assert [part.uid for part in status.pod_service] == [second.uid]


@pytest.mark.parametrize("seen_s", [None, 110.0, 149.0, 150.0])
def test_the_next_replica_counts_the_same_after_a_kill(seen_s: float | None) -> None:
    """A write either took effect with its counters or not at all: the sum does not depend on it."""
    p = running("p", 100)
    group = gang(p)
    status = group.record.status
    if seen_s is not None:
        status = with_service(status, group, seen_s)
    group.put(ended(p, 150))
    assert with_service(status, group, 1000).attained_gpu_seconds == 50


@pytest.mark.parametrize(("counted_until_s", "is_gone"), [(150.9, False), (151.9, True)])
def test_what_was_counted_beyond_the_end_of_a_run_is_taken_back(
    counted_until_s: float, *, is_gone: bool
) -> None:
    p = running("p", 100, gpus=4)
    group = gang(p)
    status = with_service(group.record.status, group, counted_until_s)
    assert status.attained_gpu_seconds > 200
    group.record = replace(group.record, status=status)
    group.put(ended(p, 150))
    if is_gone:
        group.remove(p.uid, 160.0)
    assert group.attained_gpu_s(170) == 200
    assert with_service(status, group, 170).attained_gpu_seconds == 200


def test_a_node_takes_back_little_by_an_end_that_it_invents() -> None:
    p = running("p", 100, gpus=4)
    group = gang(p)
    status = with_service(group.record.status, group, 150)
    group.record = replace(group.record, status=status)
    group.put(ended(p, 100))
    assert group.attained_gpu_s(170) == 200 - 4 * TAKEN_BACK_S
    assert with_service(status, group, 170).attained_gpu_seconds == 200 - 4 * TAKEN_BACK_S


def test_a_container_that_started_anew_adds_to_what_it_had() -> None:
    p = running("p", 100)
    group = gang(p)
    status = with_service(group.record.status, group, 130)
    group.put(replace(p, started_at=rfc3339(140)))
    assert with_service(status, group, 150).attained_gpu_seconds == 30 + 10


def test_a_clock_that_goes_back_takes_nothing_away() -> None:
    group = gang(running("p", 100))
    status = with_service(group.record.status, group, 130)
    assert with_service(status, group, 120).attained_gpu_seconds == 30


@given(
    st.lists(
        st.tuples(
            st.integers(0, 200),  # start
            st.sampled_from([None, 0, 7, 60]),  # run until it ends; None: it runs
            st.integers(1, 4),  # GPUs
            st.booleans(),  # counted before
            st.booleans(),  # left the gang
        ),
        max_size=8,
    )
)
@settings(deadline=None)
def test_the_sum_that_is_kept_is_what_a_write_counts(pods: list[tuple]) -> None:
    group = gang()
    counted = []
    for index, (start, run_s, gpus, before, _) in enumerate(pods):
        p = running(f"p{index}", start, gpus)
        p = p if run_s is None else ended(p, start + run_s)
        group.put(p)
        if before:
            counted.append(PodService(uid=p.uid, started_at=p.started_at, gpu_seconds=gpus * 3.0))
    status = group.record.status.model_copy(
        update={"pod_service": counted, "attained_gpu_seconds": 100.0}
    )
    group.record = replace(group.record, status=status)
    ended_gpus = sum(gpus for _, run_s, gpus, *_ in pods if run_s is not None)
    assert group.attained_gpu_s(210) >= 100 - TAKEN_BACK_S * ended_gpus
    for index, (*_, leaves) in enumerate(pods):
        if leaves:
            group.remove(f"uid-p{index}", 250)
    written = with_service(status, group, 300).attained_gpu_seconds
    clock_went_back = any(before and run_s == 0 for _, run_s, _, before, _ in pods)
    if not clock_went_back:
        assert group.attained_gpu_s(300) == pytest.approx(written)


def bound(of: PodInfo, at_s: float) -> PodInfo:
    return replace(of, bound_at=rfc3339(at_s))


def follow(group: Gang, status: GPUJobStatus) -> Gang:
    """Return the gang as the next leader sees it after the status was written."""
    group.record = replace(group.record, status=status)
    return Gang(group.key, group.record, dict(group.pods))


def test_the_status_does_not_grow_with_the_pods_that_have_ended() -> None:
    group, sizes = gang(), []
    status = group.record.status
    for index in range(600):
        begun_s = 1000.0 + 10 * index
        p = bound(running(f"p{index}", begun_s + 2), begun_s)
        group.put(ended(p, begun_s + 9))
        status = with_service(status, group, begun_s + 10)
        group.record = replace(group.record, status=status)
        sizes.append(len(status.model_dump_json()))
    assert max(sizes) < sizes[0] + 500
    assert status.attained_gpu_seconds == group.attained_gpu_s(9000) == 600 * 7
    again = follow(group, status)
    assert with_service(status, again, 9000) is status
    assert again.attained_gpu_s(9000) == 600 * 7


def test_a_status_of_the_version_before_is_folded_and_counts_no_pod_again() -> None:
    pods = [ended(bound(running(f"p{i}", 100 + i), 99 + i), 150 + i) for i in range(300)]
    counted = [PodService(uid=p.uid, started_at=p.started_at, gpu_seconds=50.0) for p in pods]
    group = gang(*pods, pod_service=counted, attained_gpu_seconds=300 * 50.0)
    group.put(bound(running("new", 1000), 999))
    status = with_service(group.record.status, group, 1010)
    assert status.attained_gpu_seconds == 300 * 50 + 10
    assert [part.uid for part in status.pod_service] == ["uid-new"]
    closed = status.model_copy(
        update={"pod_service": counted, "finished_at": rfc3339(1010), "folded_until": None}
    )
    group.record = replace(group.record, status=closed)
    (write,) = decisions.shorten(group)
    assert len(write.status.pod_service) == 1
    group.record = replace(group.record, status=write.status)
    assert decisions.shorten(group) == ()


def test_a_pod_that_was_bound_early_and_runs_late_is_counted() -> None:
    """It starts and ends between two writes, after others that were bound later are folded."""
    late = replace(bound(pod("late", gated=False), 100), node_name="n0", phase="Pending")
    group = gang(late, ended(bound(running("p", 201), 200), 210))
    status = with_service(group.record.status, group, 211)
    group = follow(group, status)
    group.put(ended(bound(running("q", 301), 300), 310))
    status = with_service(status, group, 311)
    assert status.folded_until == rfc3339(295)
    group = follow(group, status)
    group.put(ended(replace(late, phase="Running", started_at=rfc3339(320)), 340))
    status = with_service(status, group, 350)
    assert status.attained_gpu_seconds == 9 + 9 + 20
    group = follow(group, status)
    assert with_service(status, group, 400) is status


@given(st.data())
@settings(deadline=None)
def test_no_pod_is_counted_twice_or_left_out_whatever_ends_leaves_or_is_killed(
    data: st.DataObject,
) -> None:
    group, truth, now_s, serial = gang(), dict[str, float](), 1000.0, 0
    acts = st.sampled_from(["bind", "start", "end", "remove", "write", "kill", "write-lost"])
    for act in data.draw(st.lists(acts, max_size=40)):
        now_s += data.draw(st.sampled_from([0.0, 1.0, 7.0, 30.0]))
        pods = list(group.pods.values())
        match act:
            case "bind":
                serial += 1
                new = replace(pod(f"p{serial}", gated=False), node_name="n0", phase="Pending")
                group.put(bound(new, now_s))
            case "start" if waiting := [p for p in pods if p.phase == "Pending"]:
                p = data.draw(st.sampled_from(waiting))
                group.put(replace(p, phase="Running", started_at=rfc3339(now_s)))
            case "end" if runs := [p for p in pods if p.phase == "Running"]:
                p = data.draw(st.sampled_from(runs))
                truth[p.uid] = now_s - seconds(p.started_at)
                group.put(ended(p, now_s))
            case "remove" if over := [p for p in pods if p.finished]:
                # Counted before its object goes, as the controller does while it runs.
                p = data.draw(st.sampled_from(over))
                status = with_service(group.record.status, group, now_s)
                group.gone.clear()
                group.record = replace(group.record, status=status)
                group.remove(p.uid, now_s)
            case "write":
                status = with_service(group.record.status, group, now_s)
                group.gone.clear()
                group.record = replace(group.record, status=status)
            case "write-lost":
                with_service(group.record.status, group, now_s)
            case "kill":
                group = Gang(group.key, group.record, dict(group.pods))
        runs = sum(
            now_s - seconds(p.started_at) for p in group.pods.values() if p.phase == "Running"
        )
        expected = sum(truth.values()) + runs
        assert group.attained_gpu_s(now_s) == pytest.approx(expected)
        written = with_service(group.record.status, group, now_s)
        assert written.attained_gpu_seconds == pytest.approx(expected)


def test_a_standby_counts_no_pod_again_that_the_leader_has_counted_to_its_end() -> None:
    """The leader has written the service of a pod that is gone; the standby saw the pod go, too."""
    p = running("p", 100)
    group = gang(p)
    standby = Gangs(lambda: 160.0)
    standby.observe(group.job)
    pod_record = PodRecord("default", "p", p.uid, "1", p, group.key)
    standby.observe(pod_record)
    listed = with_service(group.job.status, group, 120)
    standby.observe(replace(group.job, status=listed, resource_version="2"))
    standby.forget(pod_record)
    assert standby.by_key[group.key].attained_gpu_s(500) == 60
    group.record = replace(group.job, status=listed)
    group.remove(p.uid, 160.0)
    counted = with_service(listed, group, 170)
    assert counted.attained_gpu_seconds == 60
    standby.observe(replace(group.job, status=counted, resource_version="3"))
    found = standby.by_key[group.key]
    assert found.attained_gpu_s(500) == 60
    assert with_service(counted, found, 500).attained_gpu_seconds == 60


def test_a_gpujob_that_no_longer_names_its_maker_is_found_by_it_no_more() -> None:
    gangs, job = Gangs(lambda: 0.0), gang().job
    maker = WorkloadRef(api_version="ray.io/v1", kind="RayJob", name="r", uid="uid-r")
    gangs.observe(replace(job, spec=job.spec.model_copy(update={"suspends": maker})))
    assert [found.key for found in gangs.of_maker(maker, ("default", "other"))] == [job.key]
    gangs.observe(job)
    assert gangs.of_maker(maker, ("default", "other")) == []
    gangs.check()
