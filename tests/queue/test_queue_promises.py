"""Promises of docs/queueing.md and docs/security.md that no other test of the queue proves."""

from __future__ import annotations

from queue_builders import raw_pod
from test_queue_controller import Cluster, run
from test_queue_preemption import Training

from tandem.kube.resource import GPU_JOBS, PODS

GANG = {"tandem.gpu/gang": "g", "tandem.gpu/gang-size": "2"}


def two_nodes() -> Cluster:
    cluster = Cluster()
    cluster.add_node("n0")
    cluster.add_node("n1")
    return cluster


def test_gangs_do_not_cross_namespaces() -> None:
    cluster = two_nodes()
    for namespace in ("default", "other"):
        raw = raw_pod("p", annotations=GANG)
        raw["metadata"]["namespace"] = namespace
        cluster.api.create(PODS, raw, namespace)
    run(cluster.cycle)
    jobs = cluster.api.list(GPU_JOBS)
    assert sorted(job["metadata"]["namespace"] for job in jobs) == ["default", "other"]
    # Each is half of a gang of two, so neither is planned.
    assert all(job["status"].get("plan") is None for job in jobs)
    for namespace in ("default", "other"):
        assert cluster.api.get(PODS, "p", namespace)["spec"]["schedulingGates"]


def test_a_gang_that_waits_holds_no_gpus() -> None:
    cluster = two_nodes()

    async def scenario() -> None:
        gang = GANG | {"tandem.gpu/gang-size": "3"}
        for i in range(3):  # three pods, two GPUs
            cluster.api.create(PODS, raw_pod(f"p{i}", annotations=gang))
        await cluster.cycle()
        assert cluster.state.ledger.counting() == {}
        for name in ("a", "b"):
            cluster.api.create(PODS, raw_pod(name))
        await cluster.cycle()
        assert len(cluster.state.ledger.counting()) == 2
        assert not cluster.gated("a")
        assert not cluster.gated("b")

    run(scenario)


def test_a_preemption_that_is_announced_is_not_taken_back() -> None:
    cluster = Training()

    async def scenario() -> None:
        await cluster.two_gives_way()
        # The job for which it gives way is withdrawn.
        cluster.job_controller_deletes("three")
        for _ in range(5):
            await cluster.pass_s(5)
            assert cluster.status("two")["phase"] == "Preempting"
            assert cluster.suspended("two")
        cluster.job_controller_deletes("two")
        await cluster.pass_s(1)
        assert cluster.status("two")["phase"] == "Suspended"

    run(scenario)
