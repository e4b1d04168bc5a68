"""Pods of one gang that ask for different things: what the first one asks is not taken for all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from queue_builders import gang, pod, raw_pod
from test_queue_controller import Cluster, run
from test_queue_gates import Tenant

from scheduler_extender.config import QueueConfig
from scheduler_extender.quotas.config import Quota
from tandem.kube.resource import GPU_JOBS, NODES, PODS

CAPPED = QueueConfig(quotas=(Quota(namespace="default", max_gpus=2),))


def of_gang(size: int, **more: str) -> dict[str, str]:
    return {"tandem.gpu/gang": "g", "tandem.gpu/gang-size": str(size), **more}


def site(settings: QueueConfig | None = None, nodes: int = 2, gpus: int = 8) -> Tenant:
    cluster = Tenant(settings)
    for number in range(nodes):
        cluster.add_node(f"w{number}", gpus=gpus)
    return cluster


def planned(cluster: Cluster) -> int:
    """Return the GPUs of all plans, as many as the pods in them ask for."""
    pods = {each["metadata"]["uid"]: each for each in cluster.api.list(PODS)}
    limits = [
        int(pods[place["uid"]]["spec"]["containers"][0]["resources"]["limits"]["tandem.gpu/gpu"])
        for job in cluster.api.list(GPU_JOBS)
        for place in (job["status"].get("plan") or {}).get("pods", ())
    ]
    return sum(limits)


def status(cluster: Cluster, name: str) -> dict[str, Any]:
    return cluster.gpujob(name)["status"]


def test_a_gang_of_one_small_pod_and_large_ones_passes_no_quota_and_reads_why() -> None:
    cluster = site(CAPPED)

    async def scenario() -> None:
        cluster.api.create(PODS, raw_pod("a", gpus=1, annotations=of_gang(2)))
        cluster.api.create(PODS, raw_pod("b", gpus=8, annotations=of_gang(2)))
        for _ in range(3):
            await cluster.cycle()
        assert planned(cluster) == 0
        assert cluster.gated("a")
        assert cluster.gated("b")
        found = status(cluster, "gang-g")
        assert (found["phase"], found["reason"]) == ("Queued", "Waiting")
        assert "9 asked for, 2 allowed" in found["message"]

    run(scenario)


def test_without_a_quota_pods_of_different_sizes_start_together() -> None:
    cluster = site()

    async def scenario() -> None:
        for name, gpus in (("a", 1), ("b", 8), ("c", 8), ("d", 8)):
            cluster.api.create(PODS, raw_pod(name, gpus=gpus, annotations=of_gang(3)))
        for _ in range(3):
            await cluster.cycle()
        assert planned(cluster) == 0, "there are 16 GPUs"
        assert status(cluster, "gang-g")["reason"] == "Waiting"
        cluster.add_node("w2", gpus=8)
        for _ in range(3):
            await cluster.cycle()
        assert planned(cluster) == 17
        assert cluster.gated("d"), "it is beyond the size of the gang"

    run(scenario)


@pytest.mark.parametrize("most", [2, 16])
def test_pods_that_start_each_alone_count_for_as_many_as_each_asks(most: int) -> None:
    """As after a change of a StatefulSet, or with the groups of workers of a RayCluster."""
    quota = Quota(namespace="default", max_gpus=most)
    cluster = site(QueueConfig(quotas=(quota,)))

    async def scenario() -> None:
        cluster.api.create(PODS, raw_pod("a", gpus=1, annotations=of_gang(1)))
        await cluster.cycle()
        for name in ("b", "c"):
            cluster.api.create(PODS, raw_pod(name, gpus=8, annotations=of_gang(1)))
        for _ in range(3):
            await cluster.cycle()
        assert planned(cluster) == {2: 1, 16: 9}[most]
        places = status(cluster, "gang-g")["plan"]["pods"]
        assert sorted(len(place["gpus"]) for place in places) == {2: [1], 16: [1, 8]}[most]

    run(scenario)


def test_a_pod_is_not_bound_with_more_gpus_than_its_plan_has() -> None:
    cluster = site()

    async def scenario() -> None:
        cluster.api.create(PODS, raw_pod("a", gpus=1))
        await cluster.cycle()
        record = cluster.state.pod_named("default", "a")
        assert record is not None
        wants_more = pod("a", uid=record.uid, gpus=8)
        node = status(cluster, "pod-a")["plan"]["pods"][0]["node"]
        claim, why = cluster.binder.choose(wants_more, node)
        assert claim is None
        assert why == "its plan has 1 GPU, and the pod asks for 8"

    run(scenario)


def test_a_plan_that_is_being_written_counts_with_all_of_its_pods() -> None:
    """Many pods of one GPUJob that start each alone, and another job of the namespace."""
    cluster = site(QueueConfig(quotas=(Quota(namespace="default", max_gpus=8),)))

    async def scenario() -> None:
        for number in range(6):
            cluster.api.create(PODS, raw_pod(f"a{number}", owner=("ReplicaSet", "a")))
        await cluster.cycle()
        turn = cluster.controller.accounts.turn()
        assert turn.held["default"] == 6
        promised = {("default", "replicaset-a"): 2}
        assert cluster.controller.accounts.turn(promised).held["default"] == 8

    run(scenario)


def test_the_larger_declaration_of_a_gang_counts_for_what_starts_together() -> None:
    cluster = site(nodes=1, gpus=2)

    async def scenario() -> None:
        small, large = {"tandem.gpu/memory": "1Gi"}, {"tandem.gpu/memory": "60Gi"}
        cluster.api.create(PODS, raw_pod("a", annotations=of_gang(2, **small)))
        cluster.api.create(PODS, raw_pod("b", annotations=of_gang(2, **large)))
        await cluster.cycle()
        for name in ("a", "b"):
            cluster.bind_as_planned(name)
        await cluster.cycle()
        base = cluster.state.gpus.memory_base_gib
        assert np.sort(base[base > 0]).tolist() == [1, 60], "each holds what it declares"

    run(scenario)


def test_who_of_a_gang_asks_for_whole_gpus_gets_them() -> None:
    cluster = site(nodes=1, gpus=2)

    async def scenario() -> None:
        shares = {"tandem.gpu/memory": "1Gi", "tandem.gpu/utilization": "5"}
        alone = shares | {"tandem.gpu/exclusive": "true"}
        for name, wants in (("a", shares), ("b", alone)):
            cluster.api.create(PODS, raw_pod(name, annotations=of_gang(2, **wants)))
        await cluster.cycle()
        for name in ("a", "b"):
            cluster.bind_as_planned(name)
        for name in ("late", "later"):
            cluster.api.create(PODS, raw_pod(name, annotations=shares))
            await cluster.cycle()
            if not cluster.gated(name):
                cluster.bind_as_planned(name)
        assert not cluster.gated("late")
        given = {
            name: cluster.pod(name)["metadata"]["annotations"]["tandem.gpu/visible-devices"]
            for name in ("a", "b", "late")
        }
        assert given["late"] == given["a"] != given["b"]
        assert cluster.gated("later")

    run(scenario)


def test_pods_of_a_gang_go_where_each_of_them_could_run() -> None:
    cluster = site()
    cluster.api.patch(NODES, "w1", {"metadata": {"labels": {"zone": "b"}}})

    async def scenario() -> None:
        cluster.api.create(PODS, raw_pod("a", annotations=of_gang(2)))
        cluster.api.create(PODS, raw_pod("b", annotations=of_gang(2), nodeSelector={"zone": "b"}))
        for _ in range(2):
            await cluster.cycle()
        places = status(cluster, "gang-g")["plan"]["pods"]
        assert {place["node"] for place in places} == {"w1"}

    run(scenario)


def test_a_gang_of_which_one_pod_saves_no_checkpoint_does_not_give_way() -> None:
    saves = {"tandem.gpu/checkpoint": "true"}
    both = gang(
        pod("a", annotations=saves, nodeName="n0", gated=False),
        pod("b", nodeName="n0", gated=False),
    )
    demand = both.job.spec.demand.model_copy(update={"checkpoint": True})
    object.__setattr__(both.job, "spec", both.job.spec.model_copy(update={"demand": demand}))
    assert not both.checkpoints
    both.remove("uid-b", 0.0)
    assert both.checkpoints


def test_services_in_the_gang_of_a_job_are_services() -> None:
    quota = Quota(namespace="default", endless_gpus=1)
    cluster = site(QueueConfig(quotas=(quota,)))

    async def scenario() -> None:
        named = of_gang(1, **{"tandem.gpu/memory": "1Gi", "tandem.gpu/checkpoint": "true"})
        cluster.api.create(PODS, raw_pod("a", annotations=named))
        await cluster.cycle()
        cluster.bind_as_planned("a")
        for name in ("b", "c"):
            cluster.api.create(PODS, raw_pod(name, annotations=named, owner=("ReplicaSet", "r")))
        for _ in range(3):
            await cluster.cycle()
        waits = [name for name in ("b", "c") if cluster.gated(name)]
        assert waits == ["b", "c"], "the gang counts as a service from its first such pod on"
        cluster.api.delete(PODS, "a", "default")
        for _ in range(3):
            await cluster.cycle()
        assert sum(cluster.gated(name) for name in ("b", "c")) == 1
        (place,) = status(cluster, "gang-g")["plan"]["pods"]
        held = cluster.state.ledger.counting()[place["uid"]]
        assert held.job.exclusive, "as every service"

    run(scenario)
