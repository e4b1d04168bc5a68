"""Shadow mode's record: what became of each job, whenever the recorder itself ends."""

from __future__ import annotations

import random
from typing import Any

import pytest
from shadow_pods import START_S, node, pod

from scheduler_extender.shadow import store
from scheduler_extender.shadow.reading import read_node, read_pod
from scheduler_extender.shadow.recorder import REMEMBERED_S, Recorder
from scheduler_extender.shadow.service import Shadow
from scheduler_extender.shadow.store import Store
from tandem.contracts import names
from tandem.contracts.shadow import ShadowDay, ShadowJob, ShadowNode, day_in
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import CONFIG_MAPS, NODES, PODS


class Clock:
    def __init__(self) -> None:
        self.now_s = START_S

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def recorded(*pods: dict[str, Any]) -> dict[str, ShadowJob]:
    recorder = Recorder()
    for raw in pods:
        recorder.pod(read_pod(raw))
    return {job.name: job for job in recorder.jobs.values()}


def stored(api: MemoryCluster) -> list[ShadowDay]:
    return [day_in(found) for found in api.list(CONFIG_MAPS, names.NAMESPACE)]


def once(api: MemoryCluster, clock: Clock) -> None:
    """Run the recorder for a moment: it reads what is there, and ends."""
    shadow = Shadow(api, names.NAMESPACE, clock)
    shadow.stop()
    shadow.record()


# --- which jobs there are -------------------------------------------------------------------------


@pytest.mark.parametrize("resource", [names.NVIDIA_RESOURCE, names.RESOURCE])
def test_a_pod_that_asks_for_gpus_in_either_name_is_a_job(resource: str) -> None:
    found = recorded(pod("p", came=0, started=30, owner="train", gpus=2, resource=resource))
    job = found["job-train"]
    assert (job.kind, job.gpus, job.arrived_s, job.started_s) == ("Job", 2, START_S, START_S + 30)
    assert job.ended_s is None
    assert job.held_gpu_s(START_S + 90) == 120


def test_a_pod_without_gpus_is_none() -> None:
    assert recorded(pod("p", came=0, started=1, resource="cpu")) == {}


def test_the_pods_of_one_workload_are_one_job() -> None:
    first = pod("train-0", came=0, started=10, ended=70, owner="train", gpus=2)
    second = pod("train-1", came=5, started=20, ended=50, owner="train", gpus=2)
    before = [{**each, "status": {"phase": "Pending"}} for each in (first, second)]
    job = recorded(*before, first, second)["job-train"]
    assert (job.gpus, job.gpus_per_pod) == (4, 2)
    assert (job.started_s, job.ended_s) == (START_S + 10, START_S + 70)
    assert job.held_gpu_s(START_S + 1000) == 2 * 60 + 2 * 30


def test_what_a_pod_declares_is_kept_and_what_cannot_be_read_is_not() -> None:
    said = {names.MEMORY: "8Gi", names.CHECKPOINT: "true", names.MODEL: "bert"}
    job = recorded(pod("p", came=0, owner="a", annotations=said))["job-a"]
    assert (job.memory_bytes, job.checkpoint, job.model) == (8 << 30, True, "bert")
    job = recorded(pod("p", came=0, owner="a", annotations={names.MEMORY: "much"}))["job-a"]
    assert job.memory_bytes is None


def test_a_service_has_no_end_of_its_own() -> None:
    found = recorded(pod("web-1", came=0, started=1, owner="web", kind="ReplicaSet"))
    assert [job.endless for job in found.values()] == [True]


def test_a_pod_made_anew_goes_on_with_the_job() -> None:
    failed = pod("train-0", came=0, started=10, ended=40, owner="train")
    again = pod("train-1", came=50, started=60, owner="train")
    job = recorded(failed, again)["job-train"]
    assert (job.started_s, job.ended_s) == (START_S + 10, None)
    assert job.held_gpu_s(START_S + 100) == 30 + 40


def test_a_job_of_the_same_name_that_comes_later_is_another_one() -> None:
    recorder = Recorder()
    recorder.pod(read_pod(pod("train-0", came=0, started=10, ended=40, owner="train")))
    later = pod("train-1", came=100, owner="train")
    later["metadata"]["ownerReferences"][0]["uid"] = "another"
    recorder.pod(read_pod(later))
    assert sorted(job.arrived_s - START_S for job in recorder.jobs.values()) == [0, 100]


def test_a_job_that_is_given_up_before_it_starts_is_no_job() -> None:
    recorder = Recorder()
    raw = read_pod(pod("p", came=0, owner="train"))
    recorder.pod(raw)
    recorder.gone(raw.uid, START_S + 60)
    assert recorder.jobs == {}
    assert recorder.changed == set()
    assert len(recorder.removed) == 1


def test_a_deleted_pod_ends_when_it_is_gone() -> None:
    recorder = Recorder()
    raw = read_pod(pod("p", came=0, started=10, owner="train"))
    recorder.pod(raw)
    recorder.gone(raw.uid, START_S + 60)
    (job,) = recorder.jobs.values()
    assert (job.ended_s, job.held_gpu_s(START_S + 500)) == (START_S + 60, 50)


def test_what_ended_long_ago_and_is_written_is_forgotten() -> None:
    recorder = Recorder()
    raw = read_pod(pod("p", came=0, started=10, ended=60, owner="train"))
    recorder.pod(raw)
    recorder.gone(raw.uid, START_S + 61)
    recorder.forget(START_S + 2 * REMEMBERED_S)
    assert len(recorder.jobs) == 1  # not written yet
    recorder.changed.clear()
    recorder.forget(START_S + 2 * REMEMBERED_S)
    assert recorder.jobs == {}


def test_a_node_counts_with_its_gpus_while_it_takes_pods() -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB", "nvidia.com/gpu.memory": "40960"}
    found = read_node(node("n0", 8, **labels))
    assert found == ("n0", 8, "NVIDIA-A100-SXM4-40GB", 40.0)
    assert read_node({**node("n0"), "spec": {"unschedulable": True}}) is None
    assert read_node(node("n0", 0)) is None


# --- what is kept ---------------------------------------------------------------------------------


def test_it_writes_config_maps_and_leaves_all_other_objects_as_they_are(clock: Clock) -> None:
    api = MemoryCluster(clock=clock)
    api.create(NODES, node("n0"))
    api.create(PODS, pod("train-0", came=0, owner="train"), "team-a")
    before = [api.list(NODES), api.list(PODS)]
    clock.now_s += 300
    once(api, clock)
    assert [api.list(NODES), api.list(PODS)] == before
    (day,) = stored(api)
    assert [job.name for job in day.jobs.values()] == ["job-train"]
    assert [each.name for each in day.nodes] == ["n0"]
    assert {found["metadata"]["namespace"] for found in api.list(CONFIG_MAPS)} == {names.NAMESPACE}


def test_a_job_that_went_while_nothing_was_recorded_ended_when_it_was_last_seen(
    clock: Clock,
) -> None:
    api = MemoryCluster(clock=clock)
    created = api.create(PODS, pod("train-0", came=0, started=10, owner="train"), "team-a")
    clock.now_s += 100
    once(api, clock)
    api.delete(PODS, "train-0", "team-a", uid=created["metadata"]["uid"], grace_period_s=0)
    clock.now_s += 5000
    once(api, clock)
    (day,) = stored(api)
    (job,) = day.jobs.values()
    assert job.ended_s == START_S + 100
    assert day.missed_s == 5000


def test_a_failed_write_is_made_up_for(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    from tandem.kube.errors import Unavailable

    api = MemoryCluster(clock=clock)
    shadow = Shadow(api, names.NAMESPACE, clock)
    shadow.stop()
    shadow.record()
    api.create(PODS, pod("train-0", came=0, owner="train"), "team-a")

    def fails(*_: object) -> None:
        raise Unavailable(503, "busy")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "save", fails)
        shadow.look(at_once=True)
    assert [len(day.jobs) for day in stored(api)] == [0]
    clock.now_s += 60
    shadow.look()
    assert [len(day.jobs) for day in stored(api)] == [1]


def test_a_tenant_with_many_jobs_displaces_no_other(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MOST_JOBS", 10)
    api = MemoryCluster(clock=clock)
    for number in range(20):
        raw = pod(f"p-{number}", came=number, started=30, ended=40, owner=f"j-{number}")
        api.create(PODS, raw, "team-a")
    api.create(
        PODS, pod("q", came=0, started=30, ended=40, owner="q", namespace="team-b"), "team-b"
    )
    once(api, clock)
    (day,) = stored(api)
    assert len(day.jobs) == 10
    assert day.dropped == 11
    assert [job.name for job in day.jobs.values() if job.namespace == "team-b"] == ["job-q"]


def test_the_record_is_what_the_pods_say_over_random_histories_with_restarts(
    clock: Clock, seed: int
) -> None:
    rng = random.Random(seed)
    api = MemoryCluster(clock=clock)
    truth: dict[str, tuple[float, float, float, int]] = {}
    events: list[tuple[float, dict[str, Any]]] = []
    for number in range(40):
        came = rng.randrange(0, 3 * 86_400)
        started = came + rng.randrange(0, 4000)
        ended = started + rng.randrange(1, 40_000)
        gpus = rng.randrange(1, 5)
        truth[f"job-j{number}"] = came, started, ended, gpus
        steps: list[tuple[int, dict[str, Any]]] = [
            (came, {}),
            (started, {"started": started}),
            (ended, {"started": started, "ended": ended}),
        ]
        for moment, times in steps:
            raw = pod(f"p{number}", came=came, owner=f"j{number}", gpus=gpus, **times)
            events.append((moment, raw))
    recorder, keeper = Recorder(), Store(api, names.NAMESPACE, clock)
    keeper.resume(recorder)
    there: dict[str, dict[str, Any]] = {}
    for moment, raw in sorted(events, key=lambda event: event[0]):
        clock.now_s = START_S + moment
        there[raw["metadata"]["name"]] = raw
        recorder.pod(read_pod(raw))
        chance = rng.random()
        if chance < 0.5:
            keeper.save({i: recorder.jobs[i] for i in recorder.changed}, recorder.removed, {})
            recorder.changed.clear()
        if chance < 0.1:  # a new process, which reads what is there
            recorder, keeper = Recorder(), Store(api, names.NAMESPACE, clock)
            known_s = keeper.resume(recorder)
            for each in there.values():
                recorder.pod(read_pod(each))
            recorder.settle(known_s)
    keeper.save({i: recorder.jobs[i] for i in recorder.changed}, recorder.removed, {})
    jobs = {job.name: job for day in stored(api) for job in day.jobs.values()}
    found = {
        name: (
            job.arrived_s - START_S,
            (job.started_s or 0) - START_S,
            (job.ended_s or 0) - START_S,
            job.gpus,
        )
        for name, job in jobs.items()
    }
    assert found == truth
    for name, (_, began, finished, wanted) in truth.items():
        assert jobs[name].held_gpu_s(clock.now_s) == pytest.approx(wanted * (finished - began))


def test_ten_thousand_jobs_of_a_day_fit_into_one_object() -> None:
    day = ShadowDay(number=int(START_S // 86_400), since_s=START_S, saved_s=START_S)
    rng = random.Random(7)
    for number in range(store.MOST_JOBS):
        came = START_S + rng.randrange(50_000)
        job = ShadowJob(
            id=f"team-{number % 100}/job-train-{rng.randrange(10**6)}/{rng.randrange(16**8):08x}",
            namespace=f"team-{number % 100}",
            name=f"job-train-{rng.randrange(10**6)}",
            kind="Job",
            arrived_s=came,
            gpus=rng.randrange(1, 9),
            started_s=came + rng.randrange(5000),
            ended_s=came + 5000 + rng.randrange(50_000),
            past_gpu_s=rng.uniform(1, 1e5),
        )
        day.jobs[job.id] = job
    store._bound(day)
    assert day.dropped == 0


def test_a_day_whose_nodes_alone_are_too_many_is_left_without_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store, "_MOST_BYTES", 1)
    day = ShadowDay(number=0, since_s=0.0, saved_s=0.0, nodes=[ShadowNode("n0", 1, "V100", 16.0)])
    day.jobs = {"a/j": ShadowJob(id="a/j", namespace="a", name="j", kind="Job", arrived_s=0.0)}
    store._bound(day)
    assert day.jobs == {}
    assert len(day.nodes) == 1
