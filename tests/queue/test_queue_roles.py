"""Gangs whose pods ask for different things start together, each pod placed by its own figures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from queue_builders import on_the_page, pod, raw_pod
from test_queue_controller import SHARED, Cluster, run

from scheduler_extender.cluster import gangs
from scheduler_extender.cluster.workloads import KINDS
from scheduler_extender.config import QueueConfig
from scheduler_extender.queue.order import pending
from scheduler_extender.queue.steps import lifecycle
from scheduler_extender.quotas.config import Quota
from tandem.contracts import names
from tandem.kube.errors import Conflict
from tandem.kube.resource import PODS
from tandem.policy.catalog import load_profile
from tandem.reasons.causes import Cause, Reason

TYPE = names.REPLICA_TYPE_LABEL


def site(*gpus: int, settings: QueueConfig | None = None, profile: str = "tandem") -> Cluster:
    """Return nodes n0, n1, ... with so many GPUs."""
    cluster = Cluster(settings=settings, profile=load_profile(profile))
    for number, count in enumerate(gpus):
        cluster.add_node(f"n{number}", gpus=count)
    return cluster


def of_gang(size: int, **more: str) -> dict[str, str]:
    return {"tandem.gpu/gang": "g", "tandem.gpu/gang-size": str(size), **more}


def template(gpus: int) -> dict[str, Any]:
    return {"spec": {"containers": [{"resources": {"limits": {"tandem.gpu/gpu": gpus}}}]}}


def pytorch_job(cluster: Cluster, name: str, workers: int, gpus: tuple[int, int]) -> None:
    """Create a PyTorchJob and its pods, as its operator does."""
    resource = KINDS["PyTorchJob"].resource
    assert resource is not None
    roles = {
        "Master": {"replicas": 1, "template": template(gpus[0])},
        "Worker": {"replicas": workers, "template": template(gpus[1])},
    }
    job = {"metadata": {"name": name}, "spec": {"pytorchReplicaSpecs": roles}}
    uid = cluster.api.create(resource, job, "default")["metadata"]["uid"]
    for role, count, wants in (("master", 1, gpus[0]), ("worker", workers, gpus[1])):
        for index in range(count):
            pod = raw_pod(f"{name}-{role}-{index}", owner=("PyTorchJob", name), gpus=wants,
                          api_version="kubeflow.org/v1", labels={TYPE: role})  # fmt: skip
            pod["metadata"]["ownerReferences"][0]["uid"] = uid
            cluster.api.create(PODS, pod)


async def cycles(cluster: Cluster, count: int = 3) -> None:
    for _ in range(count):
        await cluster.cycle()


def places(cluster: Cluster, name: str) -> dict[str, tuple[str, int]]:
    plan = cluster.gpujob(name)["status"].get("plan") or {}
    return {each["pod"]: (each["node"], len(each["gpus"])) for each in plan.get("pods", ())}


@pytest.mark.parametrize("profile", ["tandem", "fifo", "tiresias-l", "horus-f"])
def test_a_master_of_one_gpu_and_a_worker_of_four_start_where_they_fit(profile: str) -> None:
    cluster = site(4, 1, profile=profile)

    async def scenario() -> None:
        pytorch_job(cluster, "bert", 1, (1, 4))
        await cycles(cluster)
        assert places(cluster, "pytorchjob-bert") == {
            "bert-master-0": ("n1", 1),
            "bert-worker-0": ("n0", 4),
        }
        for name in ("bert-master-0", "bert-worker-0"):
            assert not cluster.gated(name)
            cluster.bind_as_planned(name)
        await cycles(cluster)
        status = cluster.gpujob("pytorchjob-bert")["status"]
        assert status["phase"] == "Running"

    run(scenario)


def test_the_gpujob_has_the_roles_and_counts_them_in_order_and_quota() -> None:
    quota = Quota(namespace="default", max_gpus=8)
    cluster = site(4, 4, settings=QueueConfig(quotas=(quota,)))

    async def scenario() -> None:
        pytorch_job(cluster, "bert", 2, (1, 4))
        await cycles(cluster)
        spec = cluster.gpujob("pytorchjob-bert")["spec"]
        assert [(each["name"], each["pods"], each["minPods"]) for each in spec["roles"]] == [
            ("worker", 2, 2),
            ("master", 1, 1),
        ]
        assert [each["demand"]["gpusPerPod"] for each in spec["roles"]] == [4, 1]
        assert not places(cluster, "pytorchjob-bert")
        status = cluster.gpujob("pytorchjob-bert")["status"]
        assert "9 asked for, 8 allowed" in status["message"]
        entry = cluster.controller.queue_state.of["default", "pytorchjob-bert"]
        assert entry.job.gpus == 9

    run(scenario)


def test_no_role_holds_gpus_while_another_waits_and_the_reason_names_it() -> None:
    cluster = site(4, 2)

    async def scenario() -> None:
        pytorch_job(cluster, "bert", 2, (1, 4))
        await cycles(cluster)
        assert not places(cluster, "pytorchjob-bert")
        message = cluster.gpujob("pytorchjob-bert")["status"]["message"]
        assert message.startswith("Its role worker needs 4 GPUs on one node for each of 2 pods"), (
            message
        )
        cluster.add_node("n2", gpus=4)
        await cycles(cluster)
        assert sorted(places(cluster, "pytorchjob-bert").values()) == [
            ("n0", 4),
            ("n1", 1),
            ("n2", 4),
        ]

    run(scenario)


def test_a_ray_head_and_larger_workers_start_together() -> None:
    cluster = site(4, 4, 1)

    async def scenario() -> None:
        for name, gpus in (("head", 1), ("worker-a", 4), ("worker-b", 4)):
            cluster.api.create(
                PODS,
                raw_pod(name, gpus=gpus, owner=("RayCluster", "ray"), api_version="ray.io/v1",
                        annotations={"tandem.gpu/gang-size": "3"}),
            )  # fmt: skip
        await cycles(cluster)
        found = places(cluster, "raycluster-ray")
        assert found["head"] == ("n2", 1)
        assert {found["worker-a"], found["worker-b"]} == {("n0", 4), ("n1", 4)}

    run(scenario)


def test_each_pod_is_placed_by_what_it_declares_itself() -> None:
    """The first has a model that is known; the second declares little, the third nothing."""
    cluster = site(3)
    small = {"tandem.gpu/memory": "1Gi", "tandem.gpu/utilization": "5"}

    async def scenario() -> None:
        for name, wants in (("a", SHARED), ("b", small), ("c", {})):
            cluster.api.create(PODS, raw_pod(name, annotations=of_gang(3, **wants)))
        await cycles(cluster, 1)
        for name in ("a", "b", "c"):
            cluster.bind_as_planned(name)
        await cycles(cluster, 1)
        claims = cluster.state.ledger.counting()
        held = {name: claims[cluster.pod(name)["metadata"]["uid"]].job for name in ("a", "b", "c")}
        assert held["a"].memory_peak_gib == pytest.approx(12)
        assert held["b"].memory_peak_gib == pytest.approx(1)
        assert (held["b"].gpu_utilisation, held["b"].exclusive) == (5, False)
        assert held["c"].exclusive
        gpus = cluster.state.gpus
        assert np.sort(gpus.memory_base_gib[~gpus.exclusive]).tolist()[-2:] == [1, 10]

    run(scenario)


def test_jobs_behind_a_gang_of_roles_do_not_take_its_gpus_in_a_strict_order() -> None:
    cluster = site(4, profile="fifo")

    async def scenario() -> None:
        cluster.api.create(PODS, raw_pod("whole", gpus=2))
        await cycles(cluster, 1)
        cluster.bind_as_planned("whole")
        for name, gpus in (("a", 3), ("b", 1)):
            cluster.api.create(PODS, raw_pod(name, gpus=gpus, annotations=of_gang(2)))
        await cycles(cluster, 1)
        cluster.now += 1
        cluster.api.create(PODS, raw_pod("late"))
        await cycles(cluster)
        assert cluster.gated("a")
        assert cluster.gated("late")
        cluster.set_phase("whole", "Succeeded")
        await cycles(cluster)
        assert not cluster.gated("a")
        assert not cluster.gated("b")
        assert cluster.gated("late")

    run(scenario)


def test_gpus_are_kept_for_a_gang_of_roles_that_has_waited_for_long() -> None:
    cluster = site(2, settings=QueueConfig(reserve_after_s=100))

    async def scenario() -> None:
        cluster.api.create(PODS, raw_pod("first"))
        await cycles(cluster, 1)
        cluster.bind_as_planned("first")
        alone = {"tandem.gpu/exclusive": "true"}
        cluster.api.create(PODS, raw_pod("a", annotations=of_gang(2)))
        cluster.api.create(PODS, raw_pod("b", annotations=of_gang(2, **alone)))
        await cycles(cluster, 1)
        cluster.now += 200
        cluster.state.tick(cluster.now)
        cluster.api.create(PODS, raw_pod("late"))
        await cycles(cluster)
        assert cluster.gated("late"), "the free GPU is kept"
        cluster.set_phase("first", "Succeeded")
        await cycles(cluster)
        assert not cluster.gated("a")
        assert not cluster.gated("b")

    run(scenario)


def test_a_gang_that_asks_in_too_many_ways_reads_so() -> None:
    cluster = site(64)

    async def scenario() -> None:
        for number in range(33):
            memory = {"tandem.gpu/memory": f"{number + 1}Gi"}
            cluster.api.create(PODS, raw_pod(f"p{number}", annotations=of_gang(33, **memory)))
        await cycles(cluster)
        status = cluster.gpujob("gang-g")["status"]
        assert (status["phase"], status["reason"]) == ("Queued", "Blocked")
        assert on_the_page(status["message"])
        assert cluster.gated("p0")

    run(scenario)


def test_what_each_role_asks_of_a_node_is_kept_however_many_ways_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pending, "_SHAPES", 3)
    cluster = site(1, 1)

    async def scenario() -> None:
        for number in range(8):
            for role in range(3):
                asks = {"cpu": f"{number + 1}", "memory": f"{role + 1}Gi"}
                pod = raw_pod(f"p{number}-{role}", annotations={
                    names.GANG: f"g{number}", names.GANG_SIZE: "3",
                    names.MEMORY: f"{role + 1}Gi",
                })  # fmt: skip
                pod["spec"]["containers"][0]["resources"]["requests"] = asks
                cluster.api.create(PODS, pod)
        await cycles(cluster)
        waiting = cluster.controller._pending
        starts = [start for each in waiting.starts.values() for start in each]
        assert len(starts) == 8
        for start in starts:
            for part in start.parts:
                assert [pod.shape for pod in waiting.shapes()[part.job.where]] == [
                    part.pods[0].shape
                ]

    run(scenario)
    assert not cluster.controller.work.failures


def test_roles_that_were_not_written_at_once_are_written_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = site(4, 1)
    patch, refused = cluster.api.patch, list[object]()

    def busy(resource: Any, name: str, body: Any, *args: Any, **more: Any) -> Any:
        if "roles" in body.get("spec", {}) and not refused:
            refused.append(body)
            raise Conflict(409, "somebody was faster")
        return patch(resource, name, body, *args, **more)

    monkeypatch.setattr(cluster.api, "patch", busy)

    async def scenario() -> None:
        pytorch_job(cluster, "bert", 2, (1, 4))
        for _ in range(4):
            cluster.now += 1
            await cluster.cycle()
        assert refused
        roles = cluster.gpujob("pytorchjob-bert")["spec"]["roles"]
        assert [each["pods"] for each in roles] == [2, 1]

    run(scenario)


def test_pods_that_start_each_alone_count_as_one_pod_in_the_order() -> None:
    cluster = site(1)

    async def scenario() -> None:
        for number in range(6):
            notes = of_gang(1, **{names.MEMORY: f"{1 + number % 2}Gi"})
            cluster.api.create(PODS, raw_pod(f"p{number}", annotations=notes))
        await cycles(cluster, 1)
        await cycles(cluster)
        assert not cluster.gpujob("gang-g")["spec"].get("roles")
        assert cluster.controller.queue_state.of["default", "gang-g"].job.gpus == 1

    run(scenario)


def test_pods_of_too_many_roles_are_counted_and_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    pods = [pod(f"p{at}", annotations={names.MEMORY: f"{at + 1}Mi"}) for at in range(40)]
    monkeypatch.setattr(gangs, "demand_of", lambda *_: pytest.fail("each is read in each step"))
    assert lifecycle.too_many_roles(pods) == Cause(Reason.TOO_MANY_ROLES, value=40, bound=32)
