"""Slices of MIG in the queue: GPUs of their own, for jobs of one GPU."""

from __future__ import annotations

import json

import pytest
from queue_builders import GIB, raw_pod
from test_queue_controller import SHARED, Cluster, run

from tandem.contracts.names import INVENTORY
from tandem.kube.resource import GPU_NODES, NODES, PODS
from tandem.policy.catalog import load_profile, profile_names

A100 = "NVIDIA A100-SXM4-80GB"
OBSERVED = "2027-01-15T08:00:00Z"  # NOW
ALONE = {"tandem.gpu/exclusive": "true"}
GANG = {"tandem.gpu/gang": "pair", "tandem.gpu/gang-size": "2", **ALONE}


def whole(number: int) -> dict:
    return {
        "uuid": f"GPU-{number}", "index": number, "model": A100, "memoryBytes": 80 * GIB,
        "shares": 2,
    }  # fmt: skip


def part(number: int, **more: object) -> dict:
    """Slice `number` of GPU 0."""
    return {
        "uuid": f"MIG-{number}", "index": 0, "model": f"{A100} MIG 1g.10gb",
        "memoryBytes": 10 * GIB, "shares": 1,
        "slice": {"profile": "1g.10gb", "parent": "GPU-0", "number": number}, **more,
    }  # fmt: skip


def cluster_of(*gpus: dict, profile: str = "tandem") -> Cluster:
    cluster = Cluster(profile=load_profile(profile))
    allocatable = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    cluster.api.create(NODES, {"metadata": {"name": "n0"}, "status": {"allocatable": allocatable}})
    status = {"observedAt": OBSERVED, "gpus": list(gpus)}
    cluster.api.create(GPU_NODES, {"metadata": {"name": "n0"}, "status": status})
    return cluster


def start(cluster: Cluster, name: str, annotations: dict[str, str], gpus: int = 1) -> None:
    cluster.api.create(PODS, raw_pod(name, gpus=gpus, annotations=annotations))


def gpus_of(cluster: Cluster, job: str) -> list[str]:
    plan = cluster.gpujob(job)["status"].get("plan") or {"pods": []}
    return sorted(gpu for pod in plan["pods"] for gpu in pod["gpus"])


@pytest.mark.parametrize("profile", profile_names())
def test_a_job_of_one_gpu_gets_a_slice_and_one_of_two_does_not(profile: str) -> None:
    cluster = cluster_of(part(0), part(1), profile=profile)
    start(cluster, "large", ALONE, gpus=2)
    run(cluster.cycle)
    run(cluster.cycle)
    assert cluster.gated("large")
    cluster.api.delete(PODS, "large", "default")
    start(cluster, "small", ALONE)
    run(cluster.cycle)
    run(cluster.cycle)
    assert gpus_of(cluster, "pod-small")[0].startswith("MIG-")


@pytest.mark.parametrize("gang", [False, True])
def test_a_job_of_two_gpus_waits_for_whole_ones_and_says_so(gang: bool) -> None:
    cluster = cluster_of(*(part(number) for number in range(7)), whole(1))
    if gang:
        start(cluster, "a", GANG)
        start(cluster, "b", GANG)
        job = "gang-pair"
    else:
        start(cluster, "a", ALONE, gpus=2)
        job = "pod-a"
    run(cluster.cycle)
    run(cluster.cycle)
    assert cluster.gated("a")
    causes = cluster.gpujob(job)["status"]["causes"]
    said = next(each for each in causes if each["reason"] == "GPUIsSlice")
    assert said["gpus"] == 7


def test_a_node_of_both_kinds_gives_whole_gpus_to_a_gang_and_a_slice_to_the_rest() -> None:
    cluster = cluster_of(part(0), part(1), whole(1), whole(2))
    start(cluster, "a", GANG)
    start(cluster, "b", GANG)
    run(cluster.cycle)
    run(cluster.cycle)
    assert gpus_of(cluster, "gang-pair") == ["GPU-1", "GPU-2"]
    for name in ("a", "b"):
        cluster.bind_as_planned(name)
    for name in ("c", "d", "e"):
        start(cluster, name, ALONE)
        run(cluster.cycle)
        run(cluster.cycle)
    assert gpus_of(cluster, "pod-c") + gpus_of(cluster, "pod-d") == ["MIG-0", "MIG-1"]
    assert cluster.gated("e"), "a slice takes one job"
    assert "MIG-0" in json.dumps(cluster.gpujob("pod-c"))


def test_a_replacement_in_a_gang_gets_no_slice() -> None:
    cluster = cluster_of(part(0), whole(1), whole(2))
    start(cluster, "a", GANG)
    start(cluster, "b", GANG)
    run(cluster.cycle)
    for name in ("a", "b"):
        cluster.bind_as_planned(name)
    # One of its pods comes back, and its GPU has gone meanwhile.
    status = {"observedAt": OBSERVED, "gpus": [part(0), {**whole(1), "shares": 0}, whole(2)]}
    cluster.api.patch(GPU_NODES, "n0", {"status": status}, subresource="status")
    at = {name: cluster.pod(name)["metadata"]["annotations"] for name in ("a", "b")}
    lost = next(name for name, notes in at.items() if "GPU-1" in json.dumps(notes))
    cluster.api.delete(PODS, lost, "default")
    start(cluster, "c", GANG)
    run(cluster.cycle)
    run(cluster.cycle)
    assert cluster.gated("c")
    assert "MIG-0" not in json.dumps(cluster.gpujob("gang-pair")["status"].get("plan"))


def test_jobs_that_share_whole_gpus_do_not_share_a_slice() -> None:
    cluster = cluster_of(part(0, model=f"{A100} MIG 7g.80gb", memoryBytes=80 * GIB))
    for name in ("a", "b"):
        start(cluster, name, SHARED)
        run(cluster.cycle)
        run(cluster.cycle)
    assert gpus_of(cluster, "pod-a") == ["MIG-0"]
    assert cluster.gated("b")


def test_slices_that_an_operator_makes_wait_for_agreement_as_other_gpus_do() -> None:
    cluster = cluster_of(whole(0))
    run(cluster.cycle)
    status = {"observedAt": OBSERVED, "gpus": [part(0), part(1)]}
    cluster.api.patch(GPU_NODES, "n0", {"status": status}, subresource="status")
    start(cluster, "a", ALONE)
    run(cluster.cycle)
    assert cluster.gated("a")
    cluster.api.patch(GPU_NODES, "n0", {"metadata": {"annotations": {INVENTORY: None}}})
    run(cluster.cycle)
    run(cluster.cycle)
    assert gpus_of(cluster, "pod-a") == ["MIG-0"]


def test_a_slice_is_known_by_its_name_where_an_older_definition_drops_the_field() -> None:
    unnamed = part(0)
    del unnamed["slice"]
    gpus = cluster_of(unnamed, whole(1)).state.gpus
    assert sorted(zip(gpus.sliced.tolist(), gpus.compute.round(3).tolist(), strict=True))[-1] == (
        True, 0.143,
    )  # fmt: skip


def test_messages_name_a_slice_as_cuda_does() -> None:
    cluster = cluster_of(part(0), part(3))
    assert cluster.state.gpu_name("n0", "MIG-3") == "n0/0:3"


def test_predictions_are_for_whole_gpus_where_there_are_some() -> None:
    mixed = cluster_of(*(part(number) for number in range(7)), whole(1))
    assert mixed.state.table.commonest_kind().model == A100
    assert cluster_of(part(0)).state.table.commonest_kind().model == f"{A100} MIG 1g.10gb"
