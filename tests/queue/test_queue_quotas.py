"""Shares, borrowing and caps of namespaces: the rules, and the controller that keeps to them."""

import asyncio
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from pydantic import ValidationError
from queue_builders import raw_pod
from test_queue_controller import Cluster, run
from test_queue_preemption import EAGER, SAVES, tiresias

from scheduler_extender.cluster.jobs import rfc3339
from scheduler_extender.cluster.writes import Writer
from scheduler_extender.config import QueueConfig
from scheduler_extender.queue.figures import QueueFigures
from scheduler_extender.queue.metrics import QueueMetrics
from scheduler_extender.quotas.config import Quota
from scheduler_extender.quotas.grants import Stake, Turn
from scheduler_extender.quotas.usage import Usage
from tandem.contracts.names import HISTORY_CONFIG_MAP as NAME
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import CONFIG_MAPS, GPU_JOBS, JOBS, PODS, Resource
from tandem.reasons.causes import Cause
from tandem.reasons.words import clause

A, B = Quota(namespace="a", gpus=2), Quota(namespace="b", gpus=2)


def stake(held: int = 0, wants: int = 1, *, endless: bool = False, leaving: int = 0) -> Stake:
    return Stake(held, wants, endless, leaving)


def shown(cause: Cause | None) -> str:
    return "" if cause is None else clause(cause)


# --- the rules --------------------------------------------------------------------------------


def test_without_quotas_the_order_stays_and_no_job_is_refused() -> None:
    turn = Turn()
    keys = [("a", "1"), ("b", "2")]
    assert turn.ranked(keys) == keys
    assert turn.refusal(("a", "1"), 10**6) is None


def test_who_keeps_within_a_share_goes_before_who_borrows() -> None:
    stakes = {("a", str(i)): stake() for i in range(4)} | {("b", "late"): stake(wants=2)}
    ranked = Turn([A, B], stakes).ranked(list(stakes))
    assert [name for _, name in ranked] == ["0", "1", "late", "2", "3"]


def test_what_runs_counts_before_what_waits_and_those_last_in_order_borrow() -> None:
    stakes = {
        ("a", "waits"): stake(),
        ("a", "first"): stake(held=1),
        ("a", "second"): stake(held=2, wants=2),
        ("b", "waits"): stake(),
    }
    turn = Turn([A, B], stakes)
    assert [name for _, name in turn.ranked(list(stakes))] == [
        "first", "waits", "waits", "second",
    ]  # fmt: skip
    assert turn.reclaims(("b", "waits"), ("a", "second"))
    assert not turn.reclaims(("b", "waits"), ("a", "first"))
    assert not turn.reclaims(("a", "waits"), ("a", "second"))


def test_a_namespace_without_a_share_only_borrows_and_the_star_is_for_it() -> None:
    stakes = {("c", "x"): stake(), ("a", "y"): stake()}
    assert Turn([A], stakes).ranked(list(stakes)) == [("a", "y"), ("c", "x")]
    everybody = Quota(namespace="*", gpus=1)
    assert Turn([A, everybody], stakes).ranked(list(stakes)) == [("c", "x"), ("a", "y")]


@pytest.mark.parametrize(
    ("quota", "said"),
    [
        (Quota(namespace="a", gpus=2, max_gpus=3), "3 held, 1 more asked for, 3 allowed"),
        (Quota(namespace="a", gpus=3, borrow=False), "3 held, 1 more asked for, a share of 3"),
        (
            Quota(namespace="a", gpus=9, gpu_seconds=50, borrow=False),
            "60 of 50 GPU-seconds",
        ),
        (
            Quota(namespace="a", endless_gpus=3),
            "services and notebooks of namespace a would hold more GPUs than they may (3 held",
        ),
    ],
)
def test_every_limit_is_kept_and_named(quota: Quota, said: str) -> None:
    stakes = {("a", "has"): stake(held=3, endless=True), ("a", "wants"): stake(endless=True)}
    turn = Turn([quota], stakes, {"a": 60.0})
    assert said in shown(turn.refusal(("a", "wants"), 1))
    assert Turn([quota], {}, {}).refusal(("a", "wants"), 1) is None


def test_what_a_cycle_gives_away_counts_at_once() -> None:
    turn = Turn([Quota(namespace="a", max_gpus=2)], {("a", "x"): stake()})
    assert turn.refusal(("a", "x"), 2) is None
    turn.take(("a", "x"), 2)
    assert turn.refusal(("a", "y"), 1) is not None


@pytest.mark.parametrize("most", [1, 2, 3, 5])
@pytest.mark.parametrize("held", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("wants", [1, 2, 3])
def test_a_cap_of_any_size_is_filled_and_never_exceeded(most: int, held: int, wants: int) -> None:
    stakes = {("a", "has"): stake(held=held), ("a", "new"): stake(wants=wants)}
    turn = Turn([Quota(namespace="a", max_gpus=most)], stakes)
    assert (turn.refusal(("a", "new"), wants) is None) is (held + wants <= most)
    assert turn.excess(("a", "new"), wants) == min(wants, max(0, held + wants - most))
    # Another namespace is not concerned, and a cap for all is each one's own.
    assert turn.refusal(("b", "new"), wants) is None
    everybody = Turn([Quota(namespace="*", max_gpus=most)], stakes)
    assert (everybody.refusal(("b", "new"), wants) is None) is (wants <= most)


@pytest.mark.parametrize("most", [1, 2, 4])
def test_a_cap_for_services_counts_services_alone(most: int) -> None:
    stakes = {
        ("a", "job"): stake(held=9),
        ("a", "lab"): stake(held=most - 1, endless=True),
        ("a", "serve"): stake(endless=True),
        ("a", "train"): stake(),
    }
    turn = Turn([Quota(namespace="a", endless_gpus=most)], stakes)
    assert turn.refusal(("a", "serve"), 1) is None
    assert ("services and notebooks" in shown(turn.refusal(("a", "serve"), 2))) is (most > 1)
    assert turn.refusal(("a", "train"), 5) is None
    turn.take(("a", "serve"), 1)
    assert "services and notebooks" in shown(turn.refusal(("a", "serve"), 1))


def test_a_share_that_may_not_be_exceeded_is_filled_to_the_last_gpu() -> None:
    turn = Turn([Quota(namespace="a", gpus=3, borrow=False)], {("a", "x"): stake(held=1)})
    assert turn.refusal(("a", "y"), 2) is None
    assert "1 held, 3 more asked for, a share of 3" in shown(turn.refusal(("a", "y"), 3))


@pytest.mark.parametrize(("used", "spent"), [(99.0, False), (100.0, True), (101.0, True)])
def test_gpu_seconds_are_spent_when_the_window_has_them_all(used: float, spent: bool) -> None:
    quota = Quota(namespace="a", gpus=4, gpu_seconds=100, borrow=False)
    turn = Turn([quota], {("a", "x"): stake()}, {"a": used, "b": 999.0})
    assert (turn.refusal(("a", "x"), 1) is not None) is spent


def test_who_keeps_within_a_share_is_lent_to_only_while_others_borrow() -> None:
    stakes = {("a", "has"): stake(held=3), ("a", "wants"): stake(), ("b", "wants"): stake()}
    turn = Turn([A, B], stakes)
    turn.ranked(list(stakes))
    assert turn.lends_to(("b", "wants"))
    assert not turn.lends_to(("a", "wants")), "it would borrow itself"
    assert not turn.lends_to(("a", "has"))
    assert not turn.lends_to(("b", "unknown"))
    fair = {("a", "has"): stake(held=2), ("b", "wants"): stake()}
    turn = Turn([A, B], fair)
    turn.ranked(list(fair))
    assert not turn.lends_to(("b", "wants"))


def test_a_copy_of_an_account_does_not_change_it() -> None:
    turn = Turn([Quota(namespace="a", max_gpus=2)], {("a", "x"): stake(held=1)})
    copy = turn.copy()
    copy.take(("a", "y"), 1)
    assert copy.refusal(("a", "y"), 1) is not None
    assert turn.refusal(("a", "y"), 1) is None


def test_how_much_a_namespace_must_give_up_first() -> None:
    quota = Quota(namespace="a", max_gpus=4)
    assert Turn([quota], {("a", "x"): stake(held=3)}).excess(("a", "y"), 2) == 1
    going = {("a", "x"): stake(held=3, leaving=3)}
    assert Turn([quota], going).excess(("a", "y"), 2) == 0


def test_settings_that_contradict_themselves_are_refused() -> None:
    with pytest.raises(ValidationError, match="max_gpus must be at least gpus"):
        Quota(namespace="a", gpus=3, max_gpus=2)
    assert Quota(namespace="a", gpus=3, max_gpus=3).max_gpus == 3
    assert Quota(namespace="a", max_gpus=0).max_gpus == 0, "none at all"
    with pytest.raises(ValidationError, match="set gpus as well"):
        Quota(namespace="a", gpu_seconds=3600)
    with pytest.raises(ValidationError, match="two quotas for a"):
        QueueConfig(quotas=(A, A))
    both = (A, A.model_copy(update={"namespace": "b"}))
    assert QueueConfig(quotas=both).quotas == both


# --- GPU-seconds ------------------------------------------------------------------------------


def test_usage_is_counted_forgotten_after_the_window_and_not_made_up_for_a_gap() -> None:
    usage = Usage(None, window_s=240.0)
    for now in range(1000, 1031, 10):
        usage.advance(now, {"a": 2})
    assert usage.used(1030) == {"a": 60.0}
    usage.advance(1100, {"a": 2})
    assert usage.used(1100) == {"a": 60.0}
    assert usage.used(1300) == {}


def test_usage_outlives_the_leader_with_what_was_learned() -> None:
    api = MemoryCluster()
    api.create(CONFIG_MAPS, {"metadata": {"name": NAME}, "data": {"other": "1"}}, "tandem-system")

    first = Usage("tandem-system", 2400.0)
    for now in (1000.0, 1010.0):
        first.advance(now, {"a": 1})
    save(api, first, 1010.0)
    second = Usage("tandem-system", 2400.0)
    save(api, second, 1020.0)
    assert second.used(1020) == {"a": 10.0}
    second.advance(1020, {"a": 1})
    second.advance(1030, {"a": 1})
    save(api, second, 1060.0)
    save(api, first, 1100.0)
    assert first.used(1100) == {"a": 20.0}
    assert api.get(CONFIG_MAPS, NAME, "tandem-system")["data"]["other"] == "1"


class NamespacedPaths(MemoryCluster):
    """Takes an object only at the path of its namespace, as an API server does (405 elsewhere)."""

    def create(
        self, resource: Resource, body: dict[str, Any], namespace: str | None = None
    ) -> dict[str, Any]:
        assert namespace is not None
        return super().create(resource, body, namespace)


def test_usage_makes_its_object_in_its_own_namespace_where_there_is_none() -> None:
    api, usage = NamespacedPaths(), Usage("tandem-system", 2400.0)
    for now in (1000.0, 1010.0):
        usage.advance(now, {"a": 1})
    save(api, usage, 1010.0)
    again = Usage("tandem-system", 2400.0)
    save(api, again, 1020.0)
    assert api.get(CONFIG_MAPS, NAME, "tandem-system")["data"]
    assert again.used(1020) == {"a": 10.0}


def test_usage_leaves_the_window_with_its_bucket_and_not_before() -> None:
    usage = Usage(None, window_s=240.0)  # buckets of 10 s
    usage.advance(1000, {"a": 3})
    usage.advance(1010, {"a": 3, "b": 1})
    assert usage.used(1249.9) == {"a": 30.0, "b": 10.0}
    assert usage.used(1250) == {}


@pytest.mark.parametrize(("passed_s", "counted"), [(29.9, True), (30, True), (30.1, False)])
def test_a_gap_beyond_its_bound_is_not_counted(passed_s: float, counted: bool) -> None:
    usage = Usage(None, window_s=2400.0)
    usage.advance(1000, {"a": 1})
    usage.advance(1000 + passed_s, {"a": 1})
    assert bool(usage.used(1100)) is counted
    usage.advance(900, {"a": 1})  # a clock that was set back counts nothing
    assert bool(usage.used(1100)) is counted


class Contended(MemoryCluster):
    """An API server at which another replica writes between a read and a write."""

    def replace(self, resource: Any, body: Any, *args: Any, **kwargs: Any) -> Any:
        changed = {"data": {"other": "2"}}
        super().patch(resource, body["metadata"]["name"], changed, "tandem-system")
        return super().replace(resource, body, *args, **kwargs)


def save(api: MemoryCluster, usage: Usage, now_s: float) -> None:
    writer = Writer(api, None, lambda *_: None, lambda: now_s)  # type: ignore[arg-type] # no picture is touched
    asyncio.run(usage.save(writer, now_s))


def test_usage_does_not_undo_what_another_wrote_in_between() -> None:
    api = Contended()
    api.create(CONFIG_MAPS, {"metadata": {"name": NAME}, "data": {"other": "1"}}, "tandem-system")
    usage = Usage("tandem-system", 2400.0)
    usage.advance(1000, {"a": 1})
    usage.advance(1010, {"a": 1})
    save(api, usage, 1010.0)
    assert api.get(CONFIG_MAPS, NAME, "tandem-system")["data"] == {"other": "2"}
    assert usage.used(1010) == {"a": 10.0}, "written the next time"


def test_usage_keeps_a_history_that_is_stored_as_bytes() -> None:
    api = MemoryCluster()
    large = {"metadata": {"name": NAME}, "binaryData": {"history": "AAAA"}}
    api.create(CONFIG_MAPS, large, "tandem-system")
    usage = Usage("tandem-system", 2400.0)
    usage.advance(1000, {"a": 1})
    usage.advance(1010, {"a": 1})
    save(api, usage, 1010.0)
    stored = api.get(CONFIG_MAPS, NAME, "tandem-system")
    assert stored["binaryData"] == {"history": "AAAA"}
    assert "quotaGpuSeconds" in stored["data"]


def test_usage_is_written_from_time_to_time() -> None:
    api, usage = MemoryCluster(), Usage("tandem-system", 2400.0)
    usage.advance(1000, {"a": 1})
    usage.advance(1010, {"a": 1})
    save(api, usage, 1010.0)
    before = api.get(CONFIG_MAPS, NAME, "tandem-system")["data"]
    usage.advance(1020, {"a": 1})
    save(api, usage, 1039.9)
    assert api.get(CONFIG_MAPS, NAME, "tandem-system")["data"] == before
    save(api, usage, 1040.0)
    assert api.get(CONFIG_MAPS, NAME, "tandem-system")["data"] != before


# --- the controller ---------------------------------------------------------------------------


class Teams(Cluster):
    """One node of four GPUs; Jobs of several namespaces, each of one pod on whole GPUs."""

    def __init__(self, *quotas: Quota, window_s: float = 1000.0) -> None:
        settings = EAGER.model_copy(update={"quotas": quotas, "quota_window_s": window_s})
        super().__init__(profile=tiresias(100.0), settings=settings)
        self.add_node("n0", gpus=4)

    def submit(self, team: str, name: str, gpus: int = 1, kind: str = "Job") -> None:
        self.now += 1
        if kind == "Job":
            self.api.create(JOBS, {"metadata": {"name": name}, "spec": {}}, team)
        raw = raw_pod(f"{name}-pod", gpus=gpus, owner=(kind, name), annotations=SAVES)
        raw["metadata"] |= {"namespace": team, "creationTimestamp": rfc3339(self.now)}
        if kind == "Job":
            uid = self.api.get(JOBS, name, team)["metadata"]["uid"]
            raw["metadata"]["ownerReferences"][0]["uid"] = uid
        self.api.create(PODS, raw)

    async def pass_s(self, seconds: float) -> None:
        self.now += seconds
        self.state.tick(self.now)
        for _ in range(3):
            await self.cycle()
            for pod in self.api.list(PODS):
                if not pod["spec"].get("nodeName") and not pod["spec"].get("schedulingGates"):
                    self._run(pod)

    def _run(self, pod: dict) -> None:
        team, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        places = [
            place
            for job in self.api.list(GPU_JOBS)
            for place in (job["status"].get("plan") or {}).get("pods", ())
        ]
        (place,) = [each for each in places if each["uid"] == pod["metadata"]["uid"]]
        devices = {"tandem.gpu/visible-devices": ",".join(place["gpus"])}
        self.api.bind(team, name, place["node"], uid=place["uid"], annotations=devices)
        state = {"running": {"startedAt": rfc3339(self.now)}}
        status = {"phase": "Running", "containerStatuses": [{"state": state}]}
        self.api.patch(PODS, name, {"status": status}, team, subresource="status")

    def status(self, team: str, name: str, kind: str = "job") -> dict:
        return self.api.get(GPU_JOBS, f"{kind}-{name}", team)["status"]

    def phases(self) -> dict[str, str]:
        return {
            job["metadata"]["name"].removeprefix("job-"): job["status"]["phase"]
            for job in self.api.list(GPU_JOBS)
        }

    async def comes(self, name: str, phase: str) -> None:
        """Let a few seconds pass until a job has come into a phase."""
        for _ in range(10):
            await self.pass_s(1)
            if self.phases().get(name) == phase:
                return
        raise AssertionError(f"{name} is not {phase}: {self.phases()}")

    def ends(self, team: str, name: str) -> None:
        """Let a Job's pod be gone, as the Job controller does when it is suspended."""
        self.api.delete(PODS, f"{name}-pod", team)


def test_what_no_namespace_needs_is_lent_and_taken_back_from_who_may_be_preempted() -> None:
    cluster = Teams(A, B)

    async def scenario() -> None:
        for name in ("a1", "a2", "a3", "a4"):
            cluster.submit("a", name)
            await cluster.comes(name, "Running")
        cluster.submit("b", "b1")
        # Nothing but the share speaks for it: neither has had more service than the other's cost.
        await cluster.comes("a4", "Preempting")
        phases = cluster.phases()
        assert [phases[name] for name in ("a1", "a2", "a3", "b1")] == ["Running"] * 3 + ["Queued"]
        cluster.ends("a", "a4")
        await cluster.comes("b1", "Running")

    run(scenario)


def test_a_cap_refuses_with_its_reason_and_blocks_no_other_namespace() -> None:
    cluster = Teams(Quota(namespace="a", max_gpus=1))

    async def scenario() -> None:
        for name in ("a1", "a2"):
            cluster.submit("a", name)
        cluster.submit("b", "b1", gpus=3)
        await cluster.comes("b1", "Running")
        await cluster.comes("a1", "Running")
        assert cluster.phases()["a2"] == "Queued"
        message = cluster.status("a", "a2")["message"]
        assert (
            "Namespace a would hold more GPUs than it may (1 held, 1 more asked for, 1 allowed)"
            in message
        )
        # Within the namespace the order holds: who has had its share of time gives way.
        await cluster.pass_s(150)
        await cluster.comes("a1", "Preempting")
        cluster.ends("a", "a1")
        await cluster.comes("a2", "Running")
        assert cluster.phases()["b1"] == "Running"

    run(scenario)


@pytest.mark.parametrize(("most", "gpus", "running"), [(2, 1, 2), (3, 1, 3), (3, 2, 1), (4, 2, 2)])
def test_a_cap_above_one_gpu_holds_in_every_cycle(most: int, gpus: int, running: int) -> None:
    cluster = Teams(Quota(namespace="a", max_gpus=most))

    async def scenario() -> None:
        for index in range(4):
            cluster.submit("a", f"a{index}", gpus=gpus)
        for _ in range(6):
            await cluster.pass_s(1)
            assert list(cluster.phases().values()).count("Running") <= running
        assert list(cluster.phases().values()).count("Running") == running

    run(scenario)


def test_services_and_notebooks_have_a_cap_of_their_own_and_are_never_preempted() -> None:
    cluster = Teams(Quota(namespace="a", endless_gpus=1))

    async def scenario() -> None:
        cluster.submit("a", "lab", kind="StatefulSet")
        cluster.submit("a", "serve", kind="ReplicaSet")
        cluster.submit("a", "a1", gpus=3)
        await cluster.comes("a1", "Running")
        assert cluster.status("a", "lab", "statefulset")["phase"] == "Running"
        assert "Services and notebooks" in cluster.status("a", "serve", "replicaset")["message"]
        await cluster.pass_s(500)
        cluster.submit("a", "a2")
        await cluster.comes("a1", "Preempting")
        assert cluster.status("a", "lab", "statefulset")["phase"] == "Running"

    run(scenario)


def test_who_has_had_its_gpu_seconds_gives_way_to_who_has_not() -> None:
    cluster = Teams(
        Quota(namespace="a", gpus=4, gpu_seconds=100), Quota(namespace="b", gpus=4),
        window_s=24_000,
    )  # fmt: skip

    async def scenario() -> None:
        cluster.submit("a", "a1", gpus=4)
        await cluster.pass_s(1)
        for _ in range(5):
            await cluster.pass_s(10)
        cluster.submit("a", "a2")
        cluster.submit("b", "b1")
        await cluster.comes("a1", "Preempting")
        cluster.ends("a", "a1")
        await cluster.comes("b1", "Running")

    run(scenario)


def test_the_time_of_all_running_jobs_of_a_namespace_is_counted() -> None:
    cluster = Teams(Quota(namespace="a", gpus=4, gpu_seconds=1e6), window_s=24_000)

    async def scenario() -> None:
        cluster.submit("a", "a1", gpus=2)
        cluster.submit("a", "a2")
        await cluster.comes("a2", "Running")
        ((_, held, before),) = cluster.controller.accounts.figures()
        assert held == 3
        for _ in range(4):
            await cluster.pass_s(10)
        ((_, _, after),) = cluster.controller.accounts.figures()
        assert after - before == pytest.approx(3 * 40)

    run(scenario)


def test_what_named_namespaces_hold_and_may_have_is_a_metric() -> None:
    cluster = Teams(Quota(namespace="a", gpus=2, max_gpus=3), Quota(namespace="*", gpus=1))
    registry = CollectorRegistry()
    QueueMetrics(registry).watch(QueueFigures(cluster.controller))

    async def scenario() -> None:
        cluster.submit("a", "a1", gpus=2)
        await cluster.comes("a1", "Running")
        cluster.submit("elsewhere", "e1")
        await cluster.comes("e1", "Running")

    run(scenario)
    shown = {
        metric.name.removeprefix("tandem_queue_quota_"): [
            (sample.labels["namespace"], sample.value) for sample in metric.samples
        ]
        for metric in registry.collect()
        if metric.name.startswith("tandem_queue_quota_")
    }
    assert shown == {
        "held_gpus": [("a", 2.0)], "gpus": [("a", 2.0)], "max_gpus": [("a", 3.0)],
        "used_gpu_seconds": [], "gpu_seconds": [],
    }  # fmt: skip
