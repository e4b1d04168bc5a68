"""bind, when everything goes well and when the API server or the network does not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from extender_builders import NOW, gpu, gpu_job, gpu_node, load, pod

from scheduler_extender.cluster.ledger import Hold
from scheduler_extender.cluster.state import ClusterState
from scheduler_extender.verbs.binding import Binder
from tandem.contracts import names
from tandem.kube.errors import Forbidden, Invalid, TooManyRequests, unreachable
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import PODS
from tandem.policy.catalog import load_profile
from tandem.reasons.counting import counted

PIPELINE = load_profile("tandem").pipeline()


class Faulty(MemoryCluster):
    """An API server whose next answers to bind and patch can be spoilt, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.bind_faults: list[Callable[[Callable[[], None]], None]] = []
        self.patch_faults: list[Exception] = []
        self.binds = 0
        self.sent: list[dict] = []
        self.touched: list[dict] = []

    def bind(self, *args, **kwargs) -> None:
        self.binds += 1
        self.sent.append(kwargs)
        done = partial(super().bind, *args, **kwargs)
        if self.bind_faults:
            self.bind_faults.pop(0)(done)
        else:
            done()

    def patch(self, *args, **kwargs):
        self.touched.append(args[2])
        if self.patch_faults:
            raise self.patch_faults.pop(0)
        return super().patch(*args, **kwargs)


def answer_lost(done: Callable[[], None]) -> None:
    done()
    raise unreachable("read timed out", maybe_done=True)


def request_lost(done: Callable[[], None]) -> None:
    raise unreachable("read timed out", maybe_done=True)


def refused(done: Callable[[], None]) -> None:
    raise Forbidden(403, "no")


class Bench:
    """A cluster, a state that may or may not watch it, and a binder."""

    def __init__(self, watching: bool = True, **more: bool) -> None:
        self.cluster = Faulty()
        self.state = ClusterState(now_s=NOW)
        self.threads = ThreadPoolExecutor(16)
        self.binder = Binder(
            self.state, PIPELINE, self.cluster, self.threads, stamp=lambda: "stamp", **more
        )
        if watching:
            loop = asyncio.get_running_loop()
            self.cluster.watch(
                PODS,
                lambda kind, obj: loop.call_soon_threadsafe(
                    self.state.delete if kind == "DELETED" else self.state.upsert, "pods", obj
                ),
            )

    def create(self, *args, **more) -> dict:
        return self.cluster.create(PODS, pod(*args, **more), "ml")

    async def bind(self, created: dict, node: str = "n0") -> str:
        metadata = created["metadata"]
        return await self.binder.bind(
            {
                "PodName": metadata["name"],
                "PodNamespace": "ml",
                "PodUID": metadata["uid"],
                "Node": node,
            }
        )

    def assigned(self, name: str) -> tuple[str | None, str | None]:
        found = self.cluster.get(PODS, name, "ml")
        return (
            found["spec"].get("nodeName"),
            (found["metadata"].get("annotations") or {}).get(names.VISIBLE_DEVICES),
        )


def scenario(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(asyncio.wait_for(test(), 60))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@pytest.mark.parametrize(
    ("differs", "gpus", "given"),
    [
        ({}, 2, "a,c"),
        ({"c": {"health": "Quarantined"}}, 2, "b,d"),
        ({"c": {"shares": 1}}, 2, "b,d"),
        ({"c": {"nvlinkDomain": None}}, 2, "b,d"),
        ({"a": {"nvlinkDomain": None}, "b": {"nvlinkDomain": None}}, 2, "a,b"),
        ({}, 3, "a,b,c"),
        ({}, 1, "a"),
    ],
)
def test_a_pod_without_a_plan_for_the_node_gets_gpus_that_nvlink_connects(
    differs: dict[str, dict[str, object]], gpus: int, given: str
) -> None:
    @scenario
    async def run() -> None:
        bench = Bench()
        domains = {"a": 0, "b": 1, "c": 0, "d": 1}
        reported = [
            gpu(name) | {"nvlinkDomain": domain} | differs.get(name, {})
            for name, domain in domains.items()
        ]
        bench.state.upsert("gpunodes", gpu_node("n0", *reported))
        created = bench.create("p", gpus, exclusive=True)
        assert await bench.bind(created) == ""
        assert bench.assigned("p") == ("n0", given)

    run()


@scenario
async def test_a_bound_pod_has_its_gpu_and_its_node_from_one_write() -> None:
    bench = Bench()
    bench.state.upsert("gpunodes", gpu_node("n0", "a", "b"))
    seen = []
    bench.cluster.watch(PODS, lambda _, obj: seen.append(obj))
    created = bench.create("p")
    assert await bench.bind(created) == ""
    half = [
        o
        for o in seen
        if bool(o["spec"].get("nodeName"))
        != (names.VISIBLE_DEVICES in (o["metadata"].get("annotations") or {}))
    ]
    assert half == []
    assert bench.assigned("p") == ("n0", "a")
    await asyncio.sleep(0.01)
    assert bench.state.ledger.held(created["metadata"]["uid"])[0] is Hold.BOUND


@scenario
async def test_asking_again_for_the_same_node_is_success_and_for_another_is_not() -> None:
    bench = Bench()
    bench.state.upsert("gpunodes", gpu_node("n0", "a"))
    bench.state.upsert("gpunodes", gpu_node("n1", "b"))
    created = bench.create("p")
    answers = await asyncio.gather(*(bench.bind(created) for _ in range(5)))
    assert answers == [""] * 5
    assert bench.cluster.binds == 1
    await asyncio.sleep(0.01)
    assert await bench.bind(created) == ""
    assert await bench.bind(created, "n1") == "the pod is bound to n0 already"
    assert bench.cluster.binds == 1


@scenario
async def test_the_planned_gpu_is_taken_while_it_may_be_and_the_next_best_otherwise() -> None:
    bench = Bench()
    bench.state.upsert("gpunodes", gpu_node("n0", "a", "b", "c"))
    one, two = bench.create("one"), bench.create("two")
    for name, created, planned in (("one", one, "b"), ("two", two, "c")):
        plan = [(created["metadata"]["uid"], "n0", [planned])]
        bench.state.upsert("gpujobs", gpu_job(f"pod-{name}", plan=plan, job_load=load(60)))
    assert await bench.bind(one) == ""
    assert bench.assigned("one") == ("n0", "b")
    bench.state.upsert("pods", pod("sly", node_name="n0", devices="c", exclusive=True))
    assert await bench.bind(two) == ""
    assert bench.assigned("two") == ("n0", "a")


@scenario
async def test_no_gpu_is_a_reason_in_words_and_leaves_nothing_reserved() -> None:
    bench = Bench()
    bench.state.upsert("gpunodes", gpu_node("n0", "a"))
    assert await bench.bind(bench.create("p", exclusive=True)) == ""
    late = bench.create("late")
    assert await bench.bind(late) == "1 GPU: a job runs that does not share its GPU"
    assert await bench.bind(bench.create("wide", 2)) == (
        "1 GPU: a job runs that does not share its GPU"
    )
    assert bench.state.ledger.held(late["metadata"]["uid"]) is None


@scenario
async def test_a_pod_that_asks_for_0_gpus_is_bound_without_any() -> None:
    """kube-scheduler asks about each pod that names the resource, whatever its amount."""
    bench = Bench()
    bench.state.upsert("gpunodes", gpu_node("n0", "a"))
    web = bench.create("web", 0)
    assert await bench.bind(web) == ""
    assert bench.assigned("web") == ("n0", None)
    assert bench.cluster.sent == [{"uid": web["metadata"]["uid"]}], "none of our annotations"
    assert bench.state.ledger.held(web["metadata"]["uid"]) is None
    assert await bench.bind(web) == ""
    assert await bench.bind(web, "n1") == "the pod is bound to n0 already"
    assert bench.cluster.binds == 1


@pytest.mark.parametrize("fault", [answer_lost, request_lost, refused])
def test_a_pod_without_gpus_whose_binding_fails_is_asked_about_again(
    fault: Callable[[Callable[[], None]], None],
) -> None:
    async def story() -> None:
        bench = Bench()
        web = bench.create("web", 0)
        bench.cluster.bind_faults = [fault]
        assert await bench.bind(web) != ""
        assert await bench.bind(web) == ""
        assert bench.assigned("web") == ("n0", None)

    scenario(story)()


@scenario
async def test_two_pods_at_the_same_last_share_one_is_bound_the_other_learns_why() -> None:
    bench = Bench()
    bench.state.upsert("gpunodes", gpu_node("n0", "a"))
    assert await bench.bind(bench.create("there")) == ""
    rivals = [bench.create("one"), bench.create("two")]
    answers = sorted(await asyncio.gather(*map(bench.bind, rivals)))
    assert answers == ["", "1 GPU: all places for jobs are taken (2 of 2)"]


@pytest.mark.parametrize("watching", [True, False])
def test_an_answer_that_got_lost_is_found_out_and_the_retry_succeeds(watching: bool) -> None:
    async def story() -> None:
        bench = Bench(watching)
        bench.state.upsert("gpunodes", gpu_node("n0", "a", "b"))
        created = bench.create("p")
        bench.cluster.bind_faults = [answer_lost]
        bench.cluster.patch_faults = [unreachable("still away", maybe_done=True)]
        assert await bench.bind(created) == ""
        assert await bench.bind(created) == ""
        assert bench.cluster.binds == 1
        assert bench.assigned("p") == ("n0", "a")
        assert bench.state.gpus.jobs[bench.state.table.rows("n0")].tolist() == [1, 0]

    asyncio.run(asyncio.wait_for(story(), 60))


@scenario
async def test_a_request_that_got_lost_is_sent_again_and_a_late_one_conflicts() -> None:
    bench = Bench()
    bench.state.upsert("gpunodes", gpu_node("n0", "a", "b"))
    created = bench.create("p")
    late: list[Callable[[], None]] = []

    def delayed(done: Callable[[], None]) -> None:
        late.append(done)
        raise unreachable("read timed out", maybe_done=True)

    bench.cluster.bind_faults = [delayed, refused]
    assert await bench.bind(created) == "the API server refused: no"
    assert bench.state.ledger.held(created["metadata"]["uid"]) is None
    with pytest.raises(Exception, match="precondition failed"):
        late[0]()
    assert bench.assigned("p") == (None, None)


@scenario
async def test_gpus_stay_reserved_while_the_outcome_is_unknown() -> None:
    bench = Bench()
    bench.state.upsert("gpunodes", gpu_node("n0", "a"))
    bench.state.upsert("gpunodes", gpu_node("n1", "b"))
    first, second = bench.create("one", exclusive=True), bench.create("two")
    bench.cluster.bind_faults = [answer_lost]
    bench.cluster.patch_faults = [TooManyRequests(429, "slow down")] * 2
    under_way = asyncio.create_task(bench.bind(first))
    await asyncio.sleep(0.1)
    assert await bench.bind(second) == "1 GPU: a job runs that does not share its GPU"
    assert "is under way" in await bench.bind(first, "n1")
    assert bench.binder.under_way == 1
    assert await under_way == ""


@scenario
async def test_a_pod_that_changed_since_is_read_again_once() -> None:
    bench = Bench(watching=False)
    bench.state.upsert("gpunodes", gpu_node("n0", "a"))
    created = bench.create("p")
    bench.state.upsert("pods", created)
    bench.cluster.patch(PODS, "p", {"metadata": {"labels": {"x": "y"}}}, "ml")
    assert await bench.bind(created) == ""
    assert bench.assigned("p") == ("n0", "a")


@scenario
async def test_a_pod_that_is_gone_or_another_of_its_name_is_not_bound() -> None:
    bench = Bench(watching=False)
    bench.state.upsert("gpunodes", gpu_node("n0", "a"))
    created = bench.create("p")
    bench.state.upsert("pods", created)
    bench.cluster.delete(PODS, "p", "ml")
    assert await bench.bind(created) == "the API server refused: pods 'p' not found"
    other = bench.create("p")
    assert await bench.bind(created) == "the pod is gone"
    assert bench.assigned("p") == (None, None)
    assert not bench.state.gpus.jobs[bench.state.table.rows("n0")].any()
    assert other["metadata"]["uid"] != created["metadata"]["uid"]


@scenario
async def test_64_exclusive_pods_for_16_gpus_16_at_a_time_fill_each_once() -> None:
    bench = Bench()
    for node in range(4):
        bench.state.upsert("gpunodes", gpu_node(f"n{node}", *[f"g{i}" for i in range(4)]))
    pods = [bench.create(f"p{i}", exclusive=True) for i in range(64)]
    turns = asyncio.Semaphore(16)

    async def request(created: dict, index: int) -> str:
        async with turns:
            return await bench.bind(created, f"n{index % 4}")

    answers = await asyncio.gather(*(request(p, i) for i, p in enumerate(pods)))
    assert answers.count("") == 16
    # The oracle reads the API server only.
    taken = [
        (found["spec"]["nodeName"], device)
        for found in bench.cluster.list(PODS)
        if found["spec"].get("nodeName")
        for device in found["metadata"]["annotations"][names.VISIBLE_DEVICES].split(",")
    ]
    assert len(taken) == len(set(taken)) == 16
    bench.state.check()


@scenario
async def test_whatever_fault_strikes_no_gpu_goes_over_its_shares_and_nothing_leaks() -> None:
    bench = Bench()
    for node in range(2):
        bench.state.upsert("gpunodes", gpu_node(f"n{node}", "a", "b"))
    kinds = (answer_lost, request_lost, refused, lambda done: done())
    for number in range(40):
        bench.cluster.bind_faults = [kinds[(number * 7 + k) % 4] for k in range(3)]
        created = bench.create(f"p{number}")
        answer = await bench.bind(created, f"n{number % 2}")
        where, devices = bench.assigned(f"p{number}")
        assert (where is not None) == (answer == ""), answer
        assert (where is None) == (devices is None)
        if number % 5 == 4:
            bench.cluster.delete(PODS, f"p{number}", "ml")
    await asyncio.sleep(0.05)
    held: dict[tuple[str, str], int] = {}
    for found in bench.cluster.list(PODS):
        if found["spec"].get("nodeName"):
            for device in found["metadata"]["annotations"][names.VISIBLE_DEVICES].split(","):
                key = found["spec"]["nodeName"], device
                held[key] = held.get(key, 0) + 1
    assert max(held.values()) <= 2
    assert bench.state.ledger.counts()[Hold.RESERVED] == 0
    bench.state.check()


@pytest.mark.slow
@pytest.mark.parametrize("lost", [answer_lost, request_lost])
def test_who_leads_no_more_finds_out_without_writing(lost) -> None:
    async def story() -> None:
        bench = Bench()
        leads = True
        bench.binder._may_bind = lambda: leads
        created = bench.create("p")

        def loses(done: Callable[[], None]) -> None:
            nonlocal leads
            leads = False
            lost(done)

        gpus = gpu_node("n0", "GPU-0")
        bench.state.upsert("gpunodes", gpus)
        bench.cluster.bind_faults = [loses]
        bench.cluster.patch_faults = [Forbidden(403, "this one must not write")]
        said = await bench.bind(created)
        bound = lost is answer_lost
        assert said == ("" if bound else "this replica does not lead (yet): trying again")
        assert (bench.assigned("p")[0] == "n0") is bound
        assert bench.cluster.patch_faults, "something was written"
        held = bench.state.ledger.claim(created["metadata"]["uid"], Hold.RESERVED)
        assert held is None

    asyncio.run(asyncio.wait_for(story(), 60))


# --- what a Binding is certain of ---------------------------------------------------------------


@scenario
async def test_a_binding_carries_the_uid_and_the_version_that_were_decided_on() -> None:
    bench = Bench()
    bench.state.upsert("gpunodes", gpu_node("n0", "a", "b"))
    created = bench.create("p", 2)
    await asyncio.sleep(0)
    assert await bench.bind(created) == ""
    (sent,) = bench.cluster.sent
    assert sent["uid"] == created["metadata"]["uid"]
    assert sent["resource_version"] == created["metadata"]["resourceVersion"]
    assert sent["annotations"] == {
        names.VISIBLE_DEVICES: "a,b",
        names.GPU_JOB: "pod-p",
        names.MEMORY_FRACTION: "0.1375",
        names.PYTORCH_ALLOC_CONF: "per_process_memory_fraction:0.1375",
        names.PLACED_WITH: '{"gpuJob":"pod-p","memoryBaseBytes":10737418240,'
        '"memoryPeakExtraBytes":0,"peakProbability":0.0,"utilization":40.0}',
    }


@scenario
async def test_a_pod_of_the_same_name_with_another_uid_is_not_bound() -> None:
    bench = Bench(watching=False)  # the extender knows neither of the two
    bench.state.upsert("gpunodes", gpu_node("n0", "a"))
    former = bench.create("p")
    bench.cluster.delete(PODS, "p", "ml")
    bench.create("p")
    assert await bench.bind(former) == "the pod is gone"
    assert bench.cluster.binds == 0
    assert bench.assigned("p") == (None, None)


@scenario
async def test_a_pod_that_is_replaced_while_it_is_bound_leaves_its_name_s_heir_alone() -> None:
    bench = Bench(watching=False)
    bench.state.upsert("gpunodes", gpu_node("n0", "a"))
    former = bench.create("p")

    def replaced(done: Callable[[], None]) -> None:
        bench.cluster.delete(PODS, "p", "ml")
        bench.create("p")
        done()

    bench.cluster.bind_faults = [replaced]
    assert await bench.bind(former) == "the pod is gone"
    assert bench.assigned("p") == (None, None)
    heir = bench.cluster.get(PODS, "p", "ml")
    assert names.WAKE not in heir["metadata"]["annotations"]
    assert bench.state.ledger.held(former["metadata"]["uid"]) is None
    assert bench.state.ledger.held(heir["metadata"]["uid"]) is None


@scenario
async def test_a_replica_that_leads_no_more_takes_the_heir_of_a_name_for_no_success() -> None:
    bench = Bench(watching=False)
    leads = True
    bench.binder._may_bind = lambda: leads
    bench.state.upsert("gpunodes", gpu_node("n0", "a"))
    former = bench.create("p")

    def replaced(done: Callable[[], None]) -> None:
        nonlocal leads
        leads = False
        bench.cluster.delete(PODS, "p", "ml")
        heir = bench.create("p")
        devices = {names.VISIBLE_DEVICES: "a"}
        MemoryCluster.bind(
            bench.cluster, "ml", "p", "n0", uid=heir["metadata"]["uid"], annotations=devices
        )
        raise unreachable("read timed out", maybe_done=True)

    bench.cluster.bind_faults = [replaced]
    assert await bench.bind(former) == "the pod is gone"
    assert bench.state.ledger.held(former["metadata"]["uid"]) is None


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_pod_that_another_scheduler_has_bound_without_gpus_is_no_success(gpus: int) -> None:
    async def story() -> None:
        bench = Bench()
        bench.state.upsert("gpunodes", gpu_node("n0", "a", "b"))
        created = bench.create("p", gpus)
        MemoryCluster.bind(bench.cluster, "ml", "p", "n0", uid=created["metadata"]["uid"])
        await asyncio.sleep(0)
        assert await bench.bind(created) == "the pod was bound to n0 by somebody else, without GPUs"
        assert bench.cluster.binds == 0

    asyncio.run(asyncio.wait_for(story(), 60))


@scenario
async def test_gpus_are_held_before_the_binding_is_sent_and_given_back_when_it_is_refused() -> None:
    bench = Bench()
    bench.state.upsert("gpunodes", gpu_node("n0", "a"))
    created = bench.create("p")
    uid = created["metadata"]["uid"]
    seen = []

    def looks(done: Callable[[], None]) -> None:
        seen.append(bench.state.ledger.claim(uid, Hold.RESERVED).gpus)
        raise Forbidden(403, "no")

    bench.cluster.bind_faults = [looks]
    assert await bench.bind(created) == "the API server refused: no"
    assert seen == [("a",)]
    assert bench.state.ledger.held(uid) is None


@pytest.mark.slow
@scenario
async def test_a_replica_that_does_not_lead_sends_nothing_and_holds_nothing() -> None:
    bench = Bench()
    bench.binder._may_bind = lambda: False
    bench.state.upsert("gpunodes", gpu_node("n0", "a"))
    created = bench.create("p")
    await asyncio.sleep(0)
    assert "does not lead" in await bench.bind(created)
    assert bench.cluster.binds == 0
    assert bench.state.ledger.held(created["metadata"]["uid"]) is None


@scenario
async def test_a_pod_that_may_not_start_now_is_not_bound_whatever_is_free() -> None:
    bench = Bench()
    bench.binder._refusal = lambda pod: f"{pod.name} waits for its turn"
    bench.state.upsert("gpunodes", gpu_node("n0", "a"))
    created = bench.create("p")
    await asyncio.sleep(0)
    assert await bench.bind(created) == "p waits for its turn"
    assert bench.cluster.binds == 0


@pytest.mark.parametrize("asks", [True, False])
def test_the_steps_of_accumulation_are_passed_to_jobs_that_may_accumulate(asks: bool) -> None:
    async def story() -> None:
        bench = Bench()
        bench.state.upsert("gpunodes", gpu_node("n0", "a"))
        wanted = {names.ACCUMULATION: "true"} if asks else {}
        assert await bench.bind(bench.create("p", annotations=wanted)) == ""
        (sent,) = bench.cluster.sent
        assert (names.ACCUMULATION_STEPS in sent["annotations"]) is asks

    asyncio.run(asyncio.wait_for(story(), 60))


@pytest.mark.parametrize(
    ("asks", "sizes_gib", "fraction"),
    [
        ({}, (80, 40), "0.275"),  # 10 GiB and a tenth of the smaller one
        ({"memory": "39Gi"}, (80, 40), "1"),
        ({"memory": None}, (80, 40), None),  # nothing is known: whole GPUs
        ({"exclusive": True}, (80, 40), None),
    ],
)
def test_a_job_that_may_share_is_given_a_limit_of_memory(
    asks: dict, sizes_gib: tuple[int, ...], fraction: str | None
) -> None:
    async def story() -> None:
        bench = Bench()
        gpus = [gpu(name, memory_gib=size) for name, size in zip("ab", sizes_gib, strict=False)]
        bench.state.upsert("gpunodes", gpu_node("n0", *gpus))
        created = bench.create("p", **{"gpus": 2, **asks})
        await asyncio.sleep(0)
        assert await bench.bind(created) == ""
        (sent,) = bench.cluster.sent
        assert sent["annotations"].get(names.MEMORY_FRACTION) == fraction
        pytorch = fraction and f"per_process_memory_fraction:{fraction}"
        assert sent["annotations"].get(names.PYTORCH_ALLOC_CONF) == pytorch

    asyncio.run(asyncio.wait_for(story(), 60))


@scenario
async def test_a_limit_that_no_container_reads_is_not_written() -> None:
    """Otherwise an out-of-memory would be taken for one at that limit."""
    bench = Bench(memory_limits=False)
    bench.state.upsert("gpunodes", gpu_node("n0", "a"))
    assert await bench.bind(bench.create("p")) == ""
    (sent,) = bench.cluster.sent
    assert not {names.MEMORY_FRACTION, names.PYTORCH_ALLOC_CONF} & set(sent["annotations"])


@scenario
async def test_a_plan_whose_gpus_are_gone_is_not_followed() -> None:
    bench = Bench()
    bench.state.upsert("gpunodes", gpu_node("n0", "b", "c", "d"))
    created = bench.create("p", 2)
    plan = [(created["metadata"]["uid"], "n0", ["a", "x"])]
    bench.state.upsert("gpujobs", gpu_job("pod-p", plan=plan, job_load=load(10)))
    assert await bench.bind(created) == ""
    node, devices = bench.assigned("p")
    assert node == "n0"
    assert devices is not None
    assert len(set(devices.split(","))) == 2
    assert set(devices.split(",")) <= {"b", "c", "d"}


@pytest.mark.parametrize("planned", [["b"], ["b", "c", "d"]], ids=["too-few", "too-many"])
def test_a_pod_whose_plan_has_another_number_of_gpus_is_not_bound(planned: list[str]) -> None:
    async def story() -> None:
        bench = Bench()
        bench.state.upsert("gpunodes", gpu_node("n0", "b", "c", "d"))
        bench.state.upsert("gpunodes", gpu_node("n1", "e", "f"))
        created = bench.create("p", 2)
        plan = [(created["metadata"]["uid"], "n0", planned)]
        bench.state.upsert("gpujobs", gpu_job("pod-p", plan=plan, job_load=load(10)))
        for node in ("n0", "n1"):
            why = await bench.bind(created, node)
            assert why == f"its plan has {counted(len(planned), 'GPU')}, and the pod asks for 2"
        assert bench.cluster.binds == 0

    asyncio.run(asyncio.wait_for(story(), 60))


@scenario
async def test_a_plan_for_another_node_does_not_choose_the_gpus_here() -> None:
    bench = Bench()
    bench.state.upsert("gpunodes", gpu_node("n0", "a", "b"))
    bench.state.upsert("gpunodes", gpu_node("n1", "b"))
    created = bench.create("p")
    plan = [(created["metadata"]["uid"], "n1", ["b"])]
    bench.state.upsert("gpujobs", gpu_job("pod-p", plan=plan, job_load=load(10)))
    assert await bench.bind(created) == ""
    assert bench.assigned("p") == ("n0", "a")


@scenario
async def test_a_node_with_too_few_gpus_says_so() -> None:
    bench = Bench()
    bench.state.upsert("gpunodes", gpu_node("n0", "a"))
    created = bench.create("p", 2)
    assert await bench.bind(created) == "1 of the 2 GPUs wanted"
    assert bench.cluster.binds == 0


@scenario
async def test_the_touch_that_settles_an_outcome_names_the_pod_and_the_version_of_its_binding() -> (
    None
):
    bench = Bench()
    bench.state.upsert("gpunodes", gpu_node("n0", "a"))
    created = bench.create("p")
    bench.cluster.bind_faults = [request_lost]
    assert await bench.bind(created) == ""
    (touch,) = bench.cluster.touched
    metadata = created["metadata"]
    assert touch == {
        "metadata": {
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
            "annotations": {names.WAKE: "stamp"},
        }
    }


@scenario
async def test_a_touch_that_is_refused_while_the_pod_stays_as_it_was_settles_nothing() -> None:
    bench = Bench()
    bench.state.upsert("gpunodes", gpu_node("n0", "a"))
    created = bench.create("p", exclusive=True)
    bench.cluster.bind_faults = [request_lost]
    bench.cluster.patch_faults = [Invalid(422, "a webhook refuses it")]
    held = []
    patch = bench.cluster.patch

    def noting(*args, **kwargs):
        held.append(bench.state.ledger.held(created["metadata"]["uid"])[0])
        return patch(*args, **kwargs)

    bench.cluster.patch = noting
    assert await bench.bind(created) == ""
    assert held == [Hold.RESERVED] * 2
    assert bench.cluster.binds == 2


@scenario
async def test_a_request_that_was_never_sent_gives_its_gpus_back_at_once() -> None:
    def not_sent(_: Callable[[], None]) -> None:
        raise unreachable("connection refused", maybe_done=False)

    bench = Bench()
    bench.state.upsert("gpunodes", gpu_node("n0", "a"))
    created = bench.create("p")
    bench.cluster.bind_faults = [not_sent]
    assert "the API server refused" in await bench.bind(created)
    assert bench.state.ledger.held(created["metadata"]["uid"]) is None
    assert bench.cluster.touched == []


@scenario
async def test_a_caller_that_hangs_up_does_not_stop_the_binding() -> None:
    bench = Bench()
    bench.state.upsert("gpunodes", gpu_node("n0", "a"))
    created = bench.create("p")
    loop, sent = asyncio.get_running_loop(), asyncio.Event()

    def tells(done: Callable[[], None]) -> None:
        loop.call_soon_threadsafe(sent.set)
        answer_lost(done)

    bench.cluster.bind_faults = [tells]
    caller = asyncio.create_task(bench.bind(created))
    await sent.wait()
    caller.cancel()
    await bench.binder.drained(30.0)
    assert bench.assigned("p") == ("n0", "a")
    assert bench.state.ledger.held(created["metadata"]["uid"])[0] is Hold.BOUND
    assert bench.binder.under_way == 0
