"""What Prometheus reads of the queue and the fleet."""

from __future__ import annotations

import pytest
from extender_builders import NOW, gpu_job, gpu_node, node, pod

from scheduler_extender.cluster.state import ClusterState
from scheduler_extender.serving.metrics import FleetCollector


def values(state: ClusterState, max_jobs_per_gpu: int = 2) -> dict[str, float]:
    found = {}
    for family in FleetCollector(state, max_jobs_per_gpu).collect():
        for sample in family.samples:
            labels = ",".join(sample.labels.values())
            found[f"{sample.name.removeprefix('tandem_extender_')}[{labels}]"] = sample.value
    return found


def cluster(*pods: dict) -> ClusterState:
    state = ClusterState(now_s=NOW)
    state.upsert("nodes", node("n0"))
    state.upsert("gpunodes", gpu_node("n0", "GPU-a", "GPU-b"))
    for one in pods:
        state.upsert("pods", one)
    return state


def test_an_empty_cluster_has_every_series_at_zero() -> None:
    found = values(ClusterState(now_s=NOW))
    assert found["waiting_jobs[0]"] == 0
    assert set(found.values()) == {0}


def test_waiting_jobs_by_queue_and_service_by_phase() -> None:
    state = cluster()
    for name, status in (
        ("a", {"phase": "Queued", "queue": 1}),
        ("b", {}),
        ("c", {"phase": "Queued", "queue": 99}),
        ("d", {"phase": "Running", "attainedGpuSeconds": 70.5}),
    ):
        job = gpu_job(name)
        job["status"] = status
        state.upsert("gpujobs", job)
    found = values(state)
    assert (found["waiting_jobs[0]"], found["waiting_jobs[1]"], found["waiting_jobs[15]"]) == (
        1,
        1,
        1,
    )
    assert found["attained_gpu_seconds[Running]"] == 70.5


def test_gpus_by_jobs_and_what_is_promised_of_them() -> None:
    held = [
        pod(name, node_name="n0", devices="GPU-a", phase="Running", utilisation="30")
        for name in ("p", "q")
    ]
    found = values(cluster(*held))
    assert (found["gpus_by_jobs[none]"], found["gpus_by_jobs[shared]"]) == (1, 1)
    assert found["promised_utilisation_ratio[]"] == pytest.approx(0.6)
    assert found["memory_bytes[capacity]"] == 2 * 80 * 2**30
    assert 0 < found["memory_bytes[promised]"] <= found["memory_bytes[capacity]"]
    assert found["gpus_overcommitted[]"] == 0


def test_a_gpu_held_by_too_many_or_with_an_exclusive_job_is_counted() -> None:
    three = [pod(name, node_name="n0", devices="GPU-a", phase="Running") for name in "pqr"]
    alone = [
        pod("x", node_name="n0", devices="GPU-b", phase="Running", exclusive=True),
        pod("y", node_name="n0", devices="GPU-b", phase="Running"),
    ]
    assert values(cluster(*three))["gpus_overcommitted[]"] == 1
    assert values(cluster(*alone))["gpus_overcommitted[]"] == 1
