"""Plans allocate claims before gates open, take them back, and bind nothing that differs."""

import asyncio
import json
import threading

import pytest
from test_queue_controller import run
from test_queue_gates import Tenant

from scheduler_extender.cluster.gpu_claims import GpuClaims, parse_claim
from scheduler_extender.config import QueueConfig
from tandem.contracts import claims, names
from tandem.kube.errors import Conflict
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import GPU_JOBS, GPU_NODES, PODS, RESOURCE_CLAIMS

NAME = claims.claim_name("review")
EXCLUSIVE = {names.EXCLUSIVE: "true"}


class Claimed(Tenant):
    """One node of four GPUs that it hands over by claims, and one of one GPU that it does not."""

    def __init__(self, api: MemoryCluster | None = None, *, on: bool = True) -> None:
        self.known = GpuClaims() if on else None
        super().__init__(QueueConfig(plan_life_s=30), api, self.known)
        if self.known is not None:
            self.api.watch(RESOURCE_CLAIMS, self._claim_event)
        self.delayed = False

    def _claim_event(self, event, raw):
        if getattr(self, "delayed", False):
            return
        if threading.current_thread() is threading.main_thread():
            self.known.take(event, parse_claim(raw))
        else:
            self.loop.call_soon_threadsafe(self.known.take, event, parse_claim(raw))

    def by_claims(self, node, way=True):
        found = self.api.get(GPU_NODES, node)
        for gpu in found["status"]["gpus"]:
            gpu.pop("draShares", None)
            if way:
                gpu["draShares"] = gpu["shares"]
        self.api.replace(GPU_NODES, found, subresource="status")

    def submit_claimed(self, name, claim=NAME, **more):
        self.submit(name, resourceClaims=[claims.entry(claim)], **more)

    def claim(self, name=NAME):
        return self.api.get(RESOURCE_CLAIMS, name, "default")

    def allocation(self, name=NAME):
        return claims.read(self.claim(name))

    def has_claims(self):
        return self.api.list(RESOURCE_CLAIMS)

    def hold(self, name, hold=True):
        self.api.patch(GPU_JOBS, f"pod-{name}", {"spec": {"hold": hold}}, "default")

    def asked(self, name, *nodes):
        """Return what filter answers to a request as kube-scheduler sends it."""
        body = json.dumps({"Pod": self.pod(name), "NodeNames": list(nodes)}).encode()
        return self.verbs.filter(self.verbs.read(body)).decode()

    def plan_of(self, name):
        (place,) = self.status(name)["plan"]["pods"]
        return place


def world(**options) -> Claimed:
    cluster = Claimed(**options)
    cluster.add_node("n0", gpus=4)
    cluster.by_claims("n0")
    return cluster


def test_the_claim_is_allocated_as_planned_before_the_gate_opens_and_binds() -> None:
    cluster = world()

    async def scenario() -> None:
        cluster.submit_claimed("p")
        assert not cluster.has_claims()
        await cluster.pass_s(0)
        place, uid = cluster.plan_of("p"), cluster.pod("p")["metadata"]["uid"]
        assert cluster.allocation() == claims.planned(uid, "n0", place["gpus"], by_claims=True)
        (result,) = cluster.claim()["status"]["allocation"]["devices"]["results"]
        # Of a job of which nothing is known the whole GPU.
        assert result["consumedCapacity"] == {"shares": "2", "memory": str(80 << 30)}
        assert not cluster.gated("p")
        assert '"NodeNames":["n0"]' in cluster.asked("p", "n0")
        assert await cluster.bind("p") == ""
        assert cluster.pod("p")["metadata"]["annotations"][names.VISIBLE_DEVICES] in place["gpus"]

    run(scenario)


def test_a_node_of_the_environment_takes_it_with_a_claim_for_the_node_alone() -> None:
    cluster = Claimed()
    cluster.add_node("n0", gpus=1)

    async def scenario() -> None:
        cluster.submit_claimed("p")
        await cluster.pass_s(0)
        assert cluster.allocation() == claims.Allocation("n0")
        assert await cluster.bind("p") == ""

    run(scenario)


def test_a_pod_without_a_claim_goes_to_no_node_that_gives_gpus_by_claims() -> None:
    for on in (True, False):
        cluster = world(on=on)

        async def scenario(cluster: Claimed = cluster) -> None:
            cluster.submit("p")
            await cluster.pass_s(0)
            assert cluster.status("p").get("plan") is None
            assert {"reason": "ClaimMissing", "nodes": 1} in cluster.status("p")["causes"]
            cluster.submit("elsewhere", nodeSelector={"of": "others"})
            await cluster.pass_s(1)
            causes = cluster.status("elsewhere")["causes"]
            assert {"reason": "NodeUnsuitable", "nodes": 1} in causes, "a claim would not help"
            cluster.add_node("n1", gpus=1)
            await cluster.pass_s(1)
            assert cluster.plan_of("p")["node"] == "n1"
            answer = cluster.asked("p", "n0", "n1")
            assert '"NodeNames":["n1"]' in answer
            assert "by claims, and the pod has none" in answer
            assert "by claims" in await cluster.bind("p", "n0")
            assert await cluster.bind("p", "n1") == ""

        run(scenario)


def test_off_a_pod_with_a_claim_from_before_is_let_through_nowhere() -> None:
    cluster = world(on=False)

    async def scenario() -> None:
        cluster.submit_claimed("p")
        await cluster.pass_s(0)
        assert cluster.gated("p")
        assert not cluster.has_claims()

    run(scenario)


def test_an_expired_plan_takes_its_allocation_and_reservation_back() -> None:
    cluster = world()

    async def scenario() -> None:
        cluster.submit_claimed("p")
        await cluster.pass_s(0)
        uid = cluster.pod("p")["metadata"]["uid"]
        # As a kube-scheduler leaves it that dies before it asks to bind.
        reserved = [{"resource": "pods", "name": "p", "uid": uid}]
        cluster.api.patch(
            RESOURCE_CLAIMS, NAME, {"status": {"reservedFor": reserved}}, "default",
            subresource="status",
        )  # fmt: skip
        cluster.hold("p")
        await cluster.pass_s(1)
        assert cluster.allocation() is None
        assert not cluster.claim()["status"].get("reservedFor")
        assert await cluster.bind("p") != ""
        cluster.hold("p", hold=False)
        await cluster.pass_s(31)
        await cluster.pass_s(1)
        assert cluster.allocation() is not None
        assert await cluster.bind("p") == ""

    run(scenario)


def test_a_plan_for_another_gpu_moves_the_allocation_before_it_binds() -> None:
    cluster = world()

    async def scenario() -> None:
        cluster.submit_claimed("p")
        await cluster.pass_s(0)
        uid = cluster.pod("p")["metadata"]["uid"]
        gpujob = cluster.gpujob("pod-p")
        (place,) = gpujob["status"]["plan"]["pods"]
        other = next(f"GPU-n0-{i}" for i in range(4) if f"GPU-n0-{i}" not in place["gpus"])
        place["gpus"] = [other]
        cluster.api.replace(GPU_JOBS, gpujob, "default", subresource="status")
        await asyncio.sleep(0)
        assert "not allocated as planned" in await cluster.bind("p")
        await cluster.pass_s(1)
        assert cluster.allocation() == claims.planned(uid, "n0", [other], by_claims=True)
        assert await cluster.bind("p") == ""

    run(scenario)


def test_bound_to_gpus_of_another_allocation_never_happens() -> None:
    """The claim has been changed behind the plan: kube-scheduler's attempt is refused."""
    cluster = world()

    async def scenario() -> None:
        cluster.submit_claimed("p")
        await cluster.pass_s(0)
        cluster.api.patch(
            RESOURCE_CLAIMS, NAME, {"status": {"allocation": None}}, "default",
            subresource="status",
        )  # fmt: skip
        await asyncio.sleep(0)
        assert "not allocated as planned" in await cluster.bind("p")
        await cluster.pass_s(1)
        assert await cluster.bind("p") == ""

    run(scenario)


def test_a_claim_of_the_same_name_that_is_not_the_pods_own_is_left_alone() -> None:
    cluster = world()

    async def scenario() -> None:
        body = claims.body(NAME, "default", "another", "uid-of-another", 1)
        cluster.api.create(RESOURCE_CLAIMS, body)
        cluster.submit_claimed("p")
        await cluster.pass_s(0)
        assert cluster.gated("p")
        assert cluster.allocation() is None
        assert ("p", "ClaimRefused") in {each[:2] for each in cluster.said}
        said = len(cluster.said)
        await cluster.pass_s(1)
        assert len(cluster.said) == said, "said once for a plan"

    run(scenario)


def test_a_write_that_comes_too_late_loses() -> None:
    """The allocation of an earlier leader, and what it knew of the claim."""
    cluster = world()

    async def scenario() -> None:
        cluster.submit_claimed("p")
        await cluster.pass_s(0)
        before = cluster.claim()
        cluster.hold("p")
        await cluster.pass_s(1)
        late = {
            "metadata": {"resourceVersion": before["metadata"]["resourceVersion"]},
            "status": before["status"],
        }
        with pytest.raises(Conflict):
            cluster.api.patch(RESOURCE_CLAIMS, NAME, late, "default", subresource="status")
        assert cluster.allocation() is None

    run(scenario)


def test_an_allocation_without_a_plan_is_taken_back() -> None:
    cluster = world()

    async def scenario() -> None:
        cluster.submit_claimed("p", annotations=EXCLUSIVE, gated=False, schedulingGates=[
            {"name": names.SCHEDULING_GATE}, {"name": "example.com/mine"},
        ])  # fmt: skip
        await cluster.pass_s(0)
        uid = cluster.pod("p")["metadata"]["uid"]
        body = claims.body(NAME, "default", "p", uid, 1)
        wanted = claims.planned(uid, "n0", ["GPU-n0-0"], by_claims=True)
        capacity = {"gpu-n0-0": {"shares": "1"}}
        status = {"allocation": claims.written(wanted, capacity, "2026-01-01T00:00:00Z")}
        cluster.api.create(RESOURCE_CLAIMS, {**body, "status": status})
        await cluster.pass_s(1)
        assert cluster.allocation() is None

    run(scenario)


def test_another_leader_allocates_the_same_anew_so_that_late_writes_lose() -> None:
    cluster = world()

    async def scenario() -> None:
        cluster.submit_claimed("p")
        await cluster.pass_s(0)
        before, allocation = cluster.claim(), cluster.allocation()
        other = Claimed(cluster.api)
        other.now = cluster.now
        other.loop = cluster.loop
        assert other.controller.claims.begin_term() == {("default", "pod-p")}
        assert "not allocated as planned" in await other.bind("p")
        await other.pass_s(1)
        assert cluster.allocation() == allocation
        late = {
            "metadata": {"resourceVersion": before["metadata"]["resourceVersion"]},
            "status": {"allocation": None},
        }
        with pytest.raises(Conflict):
            cluster.api.patch(RESOURCE_CLAIMS, NAME, late, "default", subresource="status")
        assert await other.bind("p") == ""

    run(scenario)


def test_a_gpu_that_a_claim_by_hand_has_takes_no_job_until_it_is_gone() -> None:
    cluster = Claimed()
    cluster.add_node("n0", gpus=1)
    cluster.by_claims("n0")

    async def scenario() -> None:
        body = claims.body("mine", "default", "x", "x", 1)
        del body["metadata"]["ownerReferences"], body["metadata"]["finalizers"]
        body["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "tandem.gpu"
        wanted = claims.planned("x", "n0", ["GPU-n0-0"], by_claims=True)
        capacity = {"gpu-n0-0": {"shares": "1"}}
        status = {"allocation": claims.written(wanted, capacity, "2026-01-01T00:00:00Z")}
        cluster.api.create(RESOURCE_CLAIMS, {**body, "status": status})
        cluster.submit_claimed("p")
        await cluster.pass_s(0)
        assert cluster.status("p").get("plan") is None
        cluster.api.delete(RESOURCE_CLAIMS, "mine", "default")
        await cluster.pass_s(1)
        assert cluster.plan_of("p")["node"] == "n0"

    run(scenario)


def test_an_older_version_of_a_claim_and_one_that_is_gone_change_nothing() -> None:
    known, seen = GpuClaims(), []
    known.changed = lambda record, gone: seen.append((record.resource_version, gone))
    raw = claims.body(NAME, "default", "p", "uid", 1)

    def version(number):
        metadata = {**raw["metadata"], "uid": "c", "resourceVersion": str(number)}
        return parse_claim({**raw, "metadata": metadata})

    for event, number in (("ADDED", 5), ("MODIFIED", 4), ("MODIFIED", 5), ("MODIFIED", 7)):
        known.take(event, version(number))
    known.take("DELETED", version(7))
    known.take("MODIFIED", version(8))
    assert seen == [("5", False), ("7", False), ("7", True)]


def by_hand(cluster, name="mine", gpus=1):
    body = claims.body(name, "default", "p", "u", gpus)
    metadata = {"name": name, "namespace": "default", "finalizers": ["example.com/kept"]}
    spec = body["spec"]
    spec["devices"]["requests"][0]["name"] = "card"
    cluster.api.create(RESOURCE_CLAIMS, body | {"metadata": metadata}, "default")


def test_a_claim_that_a_user_has_made_is_allocated_to_its_pod() -> None:
    cluster = world()

    async def scenario() -> None:
        by_hand(cluster)
        cluster.submit_claimed("p", "mine")
        await cluster.pass_s(0)
        place, uid = cluster.plan_of("p"), cluster.pod("p")["metadata"]["uid"]
        claim = cluster.claim("mine")
        assert claims.read(claim) == claims.planned(uid, "n0", place["gpus"], by_claims=True)
        assert claim["metadata"]["annotations"] == {names.CLAIM_POD: uid}
        assert claim["metadata"]["finalizers"] == ["example.com/kept", claims.FINALIZER]
        assert "ownerReferences" not in claim["metadata"], "it outlives the pod"
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        assert result["request"] == "card"
        assert await cluster.bind("p") == ""

    run(scenario)


def test_a_second_pod_gets_nothing_by_it_until_the_first_has_ended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = world()

    async def scenario() -> None:
        by_hand(cluster)
        cluster.submit_claimed("first", "mine")
        await cluster.pass_s(0)
        cluster.submit_claimed("second", "mine")
        await cluster.pass_s(0)
        first = cluster.pod("first")["metadata"]["uid"]
        assert cluster.claim("mine")["metadata"]["annotations"] == {names.CLAIM_POD: first}
        assert cluster.gated("second")
        assert "that of pod first" in caplog.text
        assert await cluster.bind("first") == ""
        cluster.api.delete(PODS, "first", "default")
        # As kube-controller-manager does when the pod is gone.
        cluster.api.patch(
            RESOURCE_CLAIMS, "mine", {"status": {"allocation": None}}, "default",
            subresource="status",
        )  # fmt: skip
        await cluster.pass_s(0)
        second = cluster.pod("second")["metadata"]["uid"]
        assert cluster.claim("mine")["metadata"]["annotations"] == {names.CLAIM_POD: second}
        assert await cluster.bind("second") == ""

    run(scenario)


def test_a_claim_that_is_in_use_is_not_taken_over() -> None:
    """By kube-scheduler's word, also where the pod is not known any more."""
    cluster = world()

    async def scenario() -> None:
        by_hand(cluster)
        reserved = {"reservedFor": [{"resource": "pods", "name": "gone", "uid": "gone"}]}
        cluster.api.patch(
            RESOURCE_CLAIMS, "mine", {"status": reserved}, "default", subresource="status"
        )
        cluster.submit_claimed("p", "mine")
        await cluster.pass_s(0)
        assert cluster.gated("p")
        assert cluster.allocation("mine") is None
        cluster.api.patch(
            RESOURCE_CLAIMS, "mine", {"status": {"reservedFor": None}}, "default",
            subresource="status",
        )  # fmt: skip
        await cluster.pass_s(0)
        assert await cluster.bind("p") == ""

    run(scenario)


def test_a_pod_whose_claim_is_not_there_waits_for_it_and_none_is_made() -> None:
    cluster = world()

    async def scenario() -> None:
        cluster.submit_claimed("p", "mine")
        await cluster.pass_s(0)
        assert cluster.gated("p")
        assert not cluster.has_claims()
        by_hand(cluster)
        await cluster.pass_s(0)
        assert await cluster.bind("p") == ""

    run(scenario)


def test_a_claim_for_another_number_of_gpus_is_not_the_pods() -> None:
    cluster = world()

    async def scenario() -> None:
        by_hand(cluster, gpus=2)
        cluster.submit_claimed("p", "mine")
        await cluster.pass_s(0)
        assert cluster.gated("p")
        assert cluster.allocation("mine") is None

    run(scenario)
