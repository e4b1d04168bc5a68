"""A node's way changes under running, planned and half-bound pods: no GPU has two ways."""

import asyncio

import pytest
from test_queue_claims import EXCLUSIVE, NAME, Claimed
from test_queue_controller import run

from scheduler_extender.cluster.gpu_claims import GpuClaims
from scheduler_extender.cluster.ledger import Claim
from tandem.contracts import claims
from tandem.kube.resource import GPU_NODES, PODS, RESOURCE_CLAIMS

LIGHT = {"tandem.gpu/memory": "4Gi", "tandem.gpu/utilization": "10"}
SECOND = claims.claim_name("second")
BOTH = pytest.mark.parametrize("by_claims", [True, False])


def world(gpus: int = 2, *, by_claims: bool, on: bool = True) -> Claimed:
    cluster = Claimed(on=on)
    cluster.add_node("n0", gpus=gpus)
    cluster.by_claims("n0", by_claims)
    return cluster


def reports(cluster: Claimed, *closed: str, by_claims: bool) -> None:
    """Let the agent of n0 report this way; `closed` GPUs are offered to no job."""
    found = cluster.api.get(GPU_NODES, "n0")
    for gpu in found["status"]["gpus"]:
        gpu["shares"] = 0 if gpu["uuid"] in closed else 2
        gpu.pop("draShares", None)
        if by_claims:
            gpu["draShares"] = gpu["shares"]
    cluster.api.replace(GPU_NODES, found, subresource="status")


def uid_of(cluster: Claimed, name: str) -> str:
    return str(cluster.pod(name)["metadata"]["uid"])


async def runs(cluster: Claimed, name: str, claim: str = NAME) -> str:
    """Let a job be planned and bound; return its GPU."""
    cluster.submit_claimed(name, claim, annotations=LIGHT)
    await cluster.pass_s(0)
    assert await cluster.bind(name) == ""
    await cluster.pass_s(0)
    (gpu,) = cluster.state.pod(uid_of(cluster, name)).pod.devices
    return gpu


@BOTH
def test_only_gpus_without_a_pod_of_the_old_way_take_jobs_of_the_new(by_claims: bool) -> None:
    cluster = world(by_claims=by_claims)

    async def scenario() -> None:
        held = await runs(cluster, "p")
        before = cluster.allocation()
        reports(cluster, by_claims=not by_claims)
        assert cluster.controller.claims.mixed == {("n0", held)}
        other = await runs(cluster, "q", SECOND)
        assert other != held
        wanted = claims.planned(uid_of(cluster, "q"), "n0", [other], by_claims=not by_claims)
        assert cluster.allocation(SECOND) == wanted
        assert cluster.allocation() == before, "a running pod keeps its way"
        cluster.submit_claimed("r", claims.claim_name("third"), annotations=EXCLUSIVE)
        await cluster.pass_s(1)
        assert cluster.status("r").get("plan") is None
        cluster.api.delete(PODS, "p", "default")
        await cluster.pass_s(1)
        assert not cluster.controller.claims.mixed
        assert cluster.plan_of("r")["gpus"] == [held]
        assert await cluster.bind("r") == ""
        cluster.state.check()

    run(scenario)


@BOTH
def test_what_is_planned_is_bound_by_the_way_of_its_binding(by_claims: bool) -> None:
    cluster = world(by_claims=by_claims)

    async def scenario() -> None:
        cluster.submit_claimed("p")
        await cluster.pass_s(0)
        (gpu,) = cluster.plan_of("p")["gpus"]
        reports(cluster, by_claims=not by_claims)
        assert "not allocated as planned" in await cluster.bind("p")
        await cluster.pass_s(1)
        wanted = claims.planned(uid_of(cluster, "p"), "n0", [gpu], by_claims=not by_claims)
        assert cluster.allocation() == wanted
        assert await cluster.bind("p") == ""

    run(scenario)


@BOTH
def test_what_is_planned_on_a_closed_gpu_is_bound_nowhere_on_it(by_claims: bool) -> None:
    cluster = world(gpus=1, by_claims=by_claims)

    async def scenario() -> None:
        cluster.submit_claimed("p")
        await cluster.pass_s(0)
        reports(cluster, "GPU-n0-0", by_claims=by_claims)
        assert await cluster.bind("p") != ""
        await cluster.pass_s(1)
        assert await cluster.bind("p") != ""
        reports(cluster, by_claims=not by_claims)
        await cluster.pass_s(31)
        await cluster.pass_s(1)
        assert await cluster.bind("p") == ""

    run(scenario)


@BOTH
def test_a_binding_under_way_closes_its_gpu_for_the_new_way(by_claims: bool) -> None:
    cluster = world(gpus=1, by_claims=by_claims)

    async def scenario() -> None:
        cluster.submit_claimed("p", annotations=LIGHT)
        await cluster.pass_s(0)
        uid = uid_of(cluster, "p")
        plan = cluster.state.ledger.held(uid)[1]
        cluster.state.reserve(uid, Claim("n0", plan.gpus, plan.job))
        reports(cluster, by_claims=not by_claims)
        assert cluster.controller.claims.mixed == {("n0", "GPU-n0-0")}
        holds = cluster.controller.ways.holds("n0")
        assert (holds.by_claims, holds.by_environment) == (
            (["GPU-n0-0"], []) if by_claims else ([], ["GPU-n0-0"])
        )
        cluster.submit_claimed("q", SECOND, annotations=LIGHT)
        await cluster.pass_s(1)
        assert cluster.status("q").get("plan") is None

    run(scenario)


@BOTH
def test_another_leader_finds_the_ways_of_running_pods(by_claims: bool) -> None:
    cluster = world(by_claims=by_claims)

    async def scenario() -> None:
        held = await runs(cluster, "p")
        reports(cluster, by_claims=not by_claims)
        other = Claimed(cluster.api)
        other.now, other.loop = cluster.now, cluster.loop
        await other.pass_s(0)
        assert other.controller.claims.mixed == {("n0", held)}
        assert await runs(other, "q", SECOND) != held

    run(scenario)


def test_the_ways_of_a_node_as_its_agent_hears_of_them() -> None:
    cluster = world(gpus=3, by_claims=False)

    async def scenario() -> None:
        assert cluster.controller.ways.holds("n9") is None
        by_environment = await runs(cluster, "p")
        reports(cluster, by_environment, by_claims=True)
        by_claims = await runs(cluster, "q", SECOND)
        cluster.submit_claimed("r", claims.claim_name("third"), annotations=EXCLUSIVE)
        await cluster.pass_s(1)
        holds = cluster.controller.ways.holds("n0")
        assert not holds.leads, "no term has begun here"
        assert holds.report_s == cluster.state.gpu_nodes()["", "n0"].observed_at_s
        assert holds.by_environment == [by_environment]
        assert holds.by_claims == [by_claims]
        assert holds.planned == cluster.plan_of("r")["gpus"]
        assert (holds.unknown, holds.by_others) == ([], [])
        # As while the claims of a new leader are read.
        cluster.controller.ways._claims = GpuClaims()
        assert cluster.controller.ways.holds("n0").unknown == sorted([by_environment, by_claims])

    run(scenario)


def test_off_the_claims_of_others_are_not_known() -> None:
    cluster = world(by_claims=False, on=False)

    async def scenario() -> None:
        cluster.submit("p", annotations=LIGHT)
        await cluster.pass_s(0)
        assert await cluster.bind("p") == ""
        await cluster.pass_s(0)
        holds = cluster.controller.ways.holds("n0")
        assert holds.by_others is None
        assert len(holds.by_environment) == 1

    run(scenario)


@BOTH
def test_a_gpu_that_kube_scheduler_has_allocated_takes_no_job_of_either_way(
    by_claims: bool,
) -> None:
    cluster = world(gpus=1, by_claims=by_claims)

    async def scenario() -> None:
        body = claims.body("mine", "default", "x", "x", 1)
        del body["metadata"]["ownerReferences"], body["metadata"]["finalizers"]
        body["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "tandem.gpu"
        wanted = claims.planned("x", "n0", ["GPU-n0-0"], by_claims=True)
        capacity = {"gpu-n0-0": {"shares": "1"}}
        status = {"allocation": claims.written(wanted, capacity, "2026-01-01T00:00:00Z")}
        reports(cluster, "GPU-n0-0", by_claims=by_claims)
        cluster.api.create(RESOURCE_CLAIMS, {**body, "status": status})
        await asyncio.sleep(0)
        assert cluster.controller.ways.holds("n0").by_others == ["GPU-n0-0"]
        reports(cluster, by_claims=by_claims)
        cluster.submit_claimed("p", annotations=LIGHT)
        await cluster.pass_s(0)
        assert cluster.status("p").get("plan") is None
        cluster.api.delete(RESOURCE_CLAIMS, "mine", "default")
        await cluster.pass_s(1)
        assert cluster.plan_of("p")["node"] == "n0"

    run(scenario)
