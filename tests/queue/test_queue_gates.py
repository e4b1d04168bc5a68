"""A pod is bound only under a live plan, whatever else keeps it from being scheduled meanwhile."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from queue_builders import raw_pod
from test_queue_controller import Cluster, run
from test_queue_preemption import EAGER

from scheduler_extender.cluster.gpu_claims import GpuClaims
from scheduler_extender.config import QueueConfig
from scheduler_extender.quotas.config import Quota
from scheduler_extender.verbs.answers import Verbs
from scheduler_extender.verbs.binding import Binder
from tandem.contracts import names
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import GPU_JOBS, PODS
from tandem.policy.catalog import load_profile

PRIVATE = "example.com/data-is-there"
BOTH_GATES = [{"name": names.SCHEDULING_GATE}, {"name": PRIVATE}]
ONE_GPU = QueueConfig(quotas=(Quota(namespace="default", max_gpus=1),))
PIPELINE = load_profile("tandem").pipeline()


class Tenant(Cluster):
    """Four GPUs, and the verbs as kube-scheduler calls them."""

    def __init__(
        self,
        settings: QueueConfig | None = None,
        api: MemoryCluster | None = None,
        gpu_claims: GpuClaims | None = None,
    ) -> None:
        super().__init__(settings=settings, api=api, gpu_claims=gpu_claims)
        refusal = self.controller.gates.refusal
        self.verbs = Verbs(self.state, PIPELINE, refusal)
        self.binder = Binder(
            self.state,
            PIPELINE,
            self.api,
            ThreadPoolExecutor(4),
            stamp=lambda: "stamp",
            refusal=refusal,
        )
        self.binder.mismatch = self.controller.claims.mismatch

    def submit(self, name: str, **spec: object) -> None:
        self.api.create(PODS, raw_pod(name, **spec))

    async def pass_s(self, seconds: float) -> None:
        self.now += seconds
        self.state.tick(self.now)
        await self.cycle()
        await self.cycle()

    def opens_its_gate(self, name: str) -> None:
        gates = self.pod(name)["spec"].get("schedulingGates") or []
        left = [gate for gate in gates if gate["name"] != PRIVATE]
        self.api.patch(PODS, name, {"spec": {"schedulingGates": left or None}}, "default")

    async def bind(self, name: str, node: str = "n0") -> str:
        metadata = self.pod(name)["metadata"]
        answer = await self.binder.bind(
            {
                "PodName": name,
                "PodNamespace": "default",
                "PodUID": metadata["uid"],
                "Node": node,
            }
        )
        await asyncio.sleep(0)
        return answer

    def filter(self, name: str) -> str:
        return self.verbs.filter({"Pod": self.pod(name), "NodeNames": ["n0"]}).decode()

    def bound(self) -> list[str]:
        pods = self.api.list(PODS)
        return sorted(p["metadata"]["name"] for p in pods if p["spec"].get("nodeName"))

    def status(self, name: str) -> dict:
        return self.gpujob(f"pod-{name}")["status"]


def tenant(settings: QueueConfig | None = None) -> Tenant:
    cluster = Tenant(settings)
    cluster.add_node("n0", gpus=4)
    return cluster


def test_a_pod_with_a_gate_of_its_own_is_planned_when_that_gate_is_gone() -> None:
    cluster = tenant()

    async def scenario() -> None:
        cluster.submit("p", schedulingGates=BOTH_GATES, gated=False)
        await cluster.pass_s(0)
        assert cluster.status("p").get("plan") is None
        assert cluster.status("p")["reason"] == "Blocked"
        assert PRIVATE in cluster.status("p")["message"]
        assert cluster.pod("p")["spec"]["schedulingGates"] == BOTH_GATES
        cluster.opens_its_gate("p")
        await cluster.pass_s(1)
        assert cluster.status("p")["phase"] == "Admitted"
        assert not cluster.gated("p")

    run(scenario)


def test_one_gated_member_keeps_its_gang_from_being_planned() -> None:
    cluster = tenant()
    both = {"tandem.gpu/gang": "g", "tandem.gpu/gang-size": "2"}

    async def scenario() -> None:
        cluster.submit("a", annotations=both)
        cluster.submit("b", annotations=both, schedulingGates=BOTH_GATES, gated=False)
        await cluster.pass_s(0)
        assert cluster.gpujob("gang-g")["status"].get("plan") is None
        message = cluster.gpujob("gang-g")["status"]["message"]
        assert "scheduling gates besides Tandem's (b: " in message
        cluster.opens_its_gate("b")
        await cluster.pass_s(1)
        assert len(cluster.gpujob("gang-g")["status"]["plan"]["pods"]) == 2

    run(scenario)


@pytest.mark.parametrize(
    "spec",
    [
        {"schedulingGates": BOTH_GATES, "gated": False},
        {},  # an unbound volume claim: the gate is opened, and the scheduler cannot place the pod
        {"gated": False},  # created while the webhook was away
    ],
    ids=["private-gate", "unbound-claim", "no-gate"],
)
def test_a_quota_holds_for_pods_whose_gates_are_open_but_whose_plans_have_expired(
    spec: dict,
) -> None:
    cluster = tenant(ONE_GPU)

    async def scenario() -> None:
        for index in range(4):
            cluster.submit(f"p{index}", **spec)
        # Each gets its plan in turn, and lets it expire.
        for _ in range(12):
            await cluster.pass_s(20)
        for index in range(4):
            cluster.opens_its_gate(f"p{index}")
        for _ in range(4):
            for index in range(4):
                await cluster.bind(f"p{index}")
            await cluster.pass_s(20)
        assert len(cluster.bound()) == 1, cluster.bound()

    run(scenario)


def test_an_expired_plan_binds_nothing_and_the_next_one_does() -> None:
    cluster = tenant()

    async def scenario() -> None:
        cluster.submit("p")
        await cluster.cycle()
        assert not cluster.gated("p")
        cluster.now += 31
        assert "waits for its turn" in await cluster.bind("p")
        assert '"n0": "the pod waits for its turn' in cluster.filter("p")
        assert cluster.state.ledger.held(cluster.pod("p")["metadata"]["uid"]) is not None
        await cluster.pass_s(0)
        assert cluster.bound() == []
        await cluster.pass_s(1)
        assert '"NodeNames":["n0"]' in cluster.filter("p")
        assert await cluster.bind("p") == ""

    run(scenario)


def test_a_job_that_is_held_after_its_plan_is_not_bound() -> None:
    cluster = tenant()

    async def scenario() -> None:
        cluster.submit("p")
        await cluster.cycle()
        assert cluster.status("p")["phase"] == "Admitted"
        cluster.api.patch(GPU_JOBS, "pod-p", {"spec": {"hold": True}}, "default")
        assert "an administrator holds it" in await cluster.bind("p")
        cluster.api.patch(GPU_JOBS, "pod-p", {"spec": {"hold": False}}, "default")
        assert await cluster.bind("p") == ""

    run(scenario)


def test_a_quota_that_was_cut_after_the_plans_keeps_the_latest_of_them_from_binding() -> None:
    """The replica that follows has the smaller quota: a change of settings is a new process."""
    before = tenant(EAGER)

    async def scenario() -> None:
        for name in ("first", "second"):
            before.submit(name)
            before.now += 1
            await before.cycle()
        assert [before.gated(name) for name in ("first", "second")] == [False, False]
        after = Tenant(ONE_GPU, api=before.api)
        after.now = before.now
        after.loop = asyncio.get_running_loop()
        assert await after.controller._leading()
        after.controller.work.hold()
        assert "(2 held, 1 allowed)" in await after.bind("second")
        assert await after.bind("first") == ""
        assert after.bound() == ["first"]

    run(scenario)


def test_a_pod_that_the_queue_has_not_seen_is_not_bound() -> None:
    cluster = tenant()
    cluster.submit("p", gated=False)

    async def scenario() -> None:
        assert "has not seen the pod" in await cluster.bind("p")

    run(scenario)


def test_annotations_that_leave_no_room_keep_only_their_pod_waiting() -> None:
    cluster = tenant()
    full = {"example.com/notes": "x" * (names.ANNOTATION_BYTES - 40)}

    async def scenario() -> None:
        cluster.submit("full", annotations=full)
        cluster.submit("other")
        for _ in range(5):
            await cluster.pass_s(1)
        assert not cluster.gated("other")
        status = cluster.status("full")
        assert (status["reason"], status.get("plan")) == ("Blocked", None)
        assert "The annotations of a pod leave no room for Tandem's (full: " in status["message"]
        assert ("full", "Blocked", status["message"]) in cluster.said
        assert len([each for each in cluster.said if each[0] == "full"]) == 1
        cluster.api.patch(
            PODS, "full", {"metadata": {"annotations": {"example.com/notes": None}}}, "default"
        )
        await cluster.pass_s(1)
        assert not cluster.gated("full")

    run(scenario)
