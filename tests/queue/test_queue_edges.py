"""Edges of gangs, plans and quotas that the stories of the queue do not come to."""

from __future__ import annotations

import pytest
from queue_builders import pod
from test_queue_controller import run
from test_queue_preemption import SAVES, Training
from test_queue_quotas import A, B, Teams
from test_queue_sizes import GPU, PART, replicated

from scheduler_extender.cluster.workloads import gang_size
from tandem.kube.resource import PODS


def test_replicas_of_a_job_set_that_have_succeeded_are_not_waited_for() -> None:
    parts = [replicated("first", GPU, 2) | {"replicas": 2}, replicated("second", GPU, 4)]
    job_set = {"kind": "JobSet", "spec": {"replicatedJobs": parts}}
    worker = pod("p", labels={PART: "first"})
    assert gang_size(worker, job_set) == 8
    ended = {"replicatedJobsStatus": [{"name": "first", "succeeded": 1}]}
    assert gang_size(worker, job_set | {"status": ended}) == 6
    ended["replicatedJobsStatus"][0]["succeeded"] = 5  # more than there are
    assert gang_size(worker, job_set | {"status": ended}) == 4


def test_two_jobs_within_a_share_take_back_the_gpus_of_two_borrowers_at_once() -> None:
    cluster = Teams(A, B)

    async def scenario() -> None:
        for name in ("a1", "a2", "a3", "a4"):
            cluster.submit("a", name)
            await cluster.comes(name, "Running")
        cluster.submit("b", "b1")
        cluster.submit("b", "b2")
        await cluster.pass_s(1)
        phases = cluster.phases()
        assert [phases[name] for name in ("a1", "a2")] == ["Running"] * 2
        assert [phases[name] for name in ("a3", "a4")] == ["Preempting"] * 2
        for name in ("b1", "b2"):
            assert "ther jobs give up GPUs for it" in cluster.status("b", name)["message"]
        cluster.ends("a", "a3")
        cluster.ends("a", "a4")
        await cluster.comes("b1", "Running")
        await cluster.comes("b2", "Running")

    run(scenario)


def test_a_new_leader_completes_a_preemption_that_another_one_began() -> None:
    before = Training()

    async def scenario() -> None:
        await before.two_gives_way()
        before.api._watchers.clear()
        after = Training(api=before.api)
        after.now = before.now
        after.job_controller_deletes("two")
        await after.pass_s(1)
        assert after.status("two")["phase"] == "Suspended"
        assert not after.suspended("two")
        assert after.controller.work.failures == 0

    run(scenario)


def test_service_of_pods_that_are_leaving_survives_a_change_of_leader() -> None:
    """The pods may be gone when the new leader begins: it has nothing left to count."""
    before = Training()

    async def scenario() -> None:
        await before.two_gives_way()
        for _ in range(30):  # it saves what it has
            await before.pass_s(1)
        before.api._watchers.clear()
        before.job_controller_deletes("two")
        after = Training(api=before.api)
        after.now = before.now
        await after.pass_s(1)
        assert after.status("two")["phase"] == "Suspended"
        assert after.status("two")["attainedGpuSeconds"] == pytest.approx(136, abs=3)

    run(scenario)


def test_a_pod_without_service_that_is_gone_does_not_keep_its_gang_from_being_suspended() -> None:
    cluster = Training()

    async def scenario() -> None:
        await cluster.two_gives_way()
        never_ran = cluster.new_pod("two", 1, SAVES)
        await cluster.cycle()
        cluster.api.delete(PODS, never_ran, "default")
        cluster.job_controller_deletes("two")
        await cluster.pass_s(1)
        assert cluster.status("two")["phase"] == "Suspended"

    run(scenario)
