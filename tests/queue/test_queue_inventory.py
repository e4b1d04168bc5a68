"""A node that reports other GPUs than it had takes no new jobs until an operator agrees."""

from __future__ import annotations

import json

import pytest
from queue_builders import GIB, raw_pod
from test_queue_controller import NOW, SHARED, Cluster, run

from tandem.contracts.names import INVENTORY
from tandem.kube.errors import Forbidden
from tandem.kube.resource import GPU_NODES, PODS


def gpu(index: int, **more: object) -> dict:
    known = {"uuid": f"GPU-n0-{index}", "index": index, "model": "NVIDIA A100"}
    return known | {"memoryBytes": 80 * GIB, "shares": 2} | more


def report(cluster: Cluster, *gpus: dict, **status: object) -> None:
    body = {"status": {"gpus": list(gpus), **status}}
    cluster.api.patch(GPU_NODES, "n0", body, subresource="status")


def noted(cluster: Cluster) -> set[str]:
    metadata = cluster.api.get(GPU_NODES, "n0")["metadata"]
    return set(json.loads((metadata.get("annotations") or {}).get(INVENTORY) or "{}"))


def agree(cluster: Cluster) -> None:
    """Do as `kubectl annotate gpunode n0 tandem.gpu/inventory-`."""
    cluster.api.patch(GPU_NODES, "n0", {"metadata": {"annotations": {INVENTORY: None}}})


def placed(cluster: Cluster, name: str) -> bool:
    cluster.api.create(PODS, raw_pod(name, annotations=SHARED))
    run(cluster.cycle)
    return not cluster.gated(name)


@pytest.fixture
def cluster() -> Cluster:
    """One node of two GPUs, which are noted."""
    cluster = Cluster()
    cluster.add_node("n0", gpus=2)
    run(cluster.cycle)
    assert noted(cluster) == {"GPU-n0-0", "GPU-n0-1"}
    return cluster


def test_made_up_gpus_draw_no_job_until_an_operator_agrees(cluster: Cluster) -> None:
    assert placed(cluster, "before")
    cluster.bind_as_planned("before")
    made_up = [gpu(index, uuid=f"GPU-x-{index}") for index in range(2, 60)]
    report(cluster, gpu(0), gpu(1), *made_up)
    assert not placed(cluster, "after")
    assert len(cluster.state.rows_of("n0", [f"GPU-x-{index}" for index in range(2, 60)])) == 0
    assert noted(cluster) == {"GPU-n0-0", "GPU-n0-1"}
    assert cluster.pod("before")["spec"]["nodeName"] == "n0"
    assert len(cluster.state.ledger.counting()) == 1, "who runs there goes on"
    agree(cluster)
    run(cluster.cycle)
    assert len(noted(cluster)) == 60
    assert not cluster.gated("after")


@pytest.mark.parametrize("change", [{"uuid": "GPU-new"}, {"model": "NVIDIA H100 80GB HBM3"}])
def test_a_gpu_that_was_swapped_waits_for_the_operator(cluster: Cluster, change: dict) -> None:
    report(cluster, gpu(0), gpu(1, **change))
    assert not placed(cluster, "a")
    agree(cluster)
    run(cluster.cycle)
    assert not cluster.gated("a")


def test_a_lost_gpu_is_no_change_and_may_come_back(cluster: Cluster) -> None:
    report(cluster, gpu(0))
    assert placed(cluster, "a")
    report(cluster, gpu(0), gpu(1, health="Quarantined"))
    assert placed(cluster, "b")
    report(cluster, gpu(0), gpu(1))
    assert placed(cluster, "c")
    assert noted(cluster) == {"GPU-n0-0", "GPU-n0-1"}


def test_a_gpu_larger_than_its_type_takes_no_job() -> None:
    cluster = Cluster()
    cluster.add_node("n0", gpus=1)
    report(cluster, gpu(0, memoryBytes=1 << 40))
    assert not placed(cluster, "a")


def test_a_node_that_cannot_read_all_gpus_is_noted_when_it_can_or_after_an_hour() -> None:
    cluster = Cluster()
    cluster.add_node("n0", gpus=1)
    unreadable = {"type": "AllGpusReadable", "status": "False",
                  "lastTransitionTime": "2027-01-15T08:00:00Z"}  # fmt: skip
    report(cluster, gpu(0), conditions=[unreadable])
    run(cluster.cycle)
    assert noted(cluster) == set()
    report(cluster, gpu(0), gpu(1), conditions=[unreadable | {"status": "True"}])
    run(cluster.cycle)
    assert noted(cluster) == {"GPU-n0-0", "GPU-n0-1"}
    agree(cluster)
    cluster.now = NOW + 3601
    report(cluster, gpu(0), conditions=[unreadable])
    run(cluster.cycle)
    assert noted(cluster) == {"GPU-n0-0"}


def test_a_note_that_is_refused_is_tried_again_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An upgrade brings the right to it after the new scheduler, perhaps."""
    cluster = Cluster()
    tried, patch = [], cluster.api.patch

    def refuse(resource: object, *rest: object, **more: object) -> dict:
        if resource is not GPU_NODES:
            return patch(resource, *rest, **more)  # type: ignore[arg-type]
        tried.append(cluster.now)
        raise Forbidden(403, "may not patch")

    monkeypatch.setattr(cluster.api, "patch", refuse)
    cluster.add_node("n0", gpus=2)
    assert placed(cluster, "a"), "what is not noted yet counts as it is reported"
    for _ in range(600):
        cluster.now += 1
        run(cluster.cycle)
    assert [round(at - NOW) for at in tried] == [0, 30, 90, 210, 450]
