"""What a bound pod holds is what it was placed with, whatever is said of it since."""

from __future__ import annotations

from typing import Any

import pytest
from extender_builders import GIB, NOW, gpu_job, gpu_node, load, pod

from scheduler_extender.cluster.parsing import parse_pod
from scheduler_extender.cluster.state import ClusterState
from scheduler_extender.cluster.workloads import above, gpujob_name, role_of, workload_of
from scheduler_extender.queue.order.pending import PendingJobs
from tandem.contracts import names
from tandem.contracts.placement import PlacedWith

DECOY = {"scheduling.x-k8s.io/pod-group": "decoy"}
SMALL = load(1 / 1024)


def placed(gib: float = 40, extra: float = 8, **more: Any) -> dict[str, str]:
    figures = PlacedWith(
        gpu_job="pod-a",
        memory_base_bytes=int(gib * GIB),
        memory_peak_extra_bytes=int(extra * GIB),
        peak_probability=0.25,
        utilization=60.0,
        **more,
    )
    return {names.GPU_JOB: "pod-a", names.PLACED_WITH: figures.text()}


def running(labels: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    raw = pod("a", uid="u", memory=None, node_name="n0", devices="g0", phase="Running", **more)
    raw["metadata"]["labels"] = labels or {}
    return raw


def state(*objects: tuple[str, dict[str, Any]]) -> ClusterState:
    found = ClusterState(now_s=NOW)
    for kind, obj in (("gpunodes", gpu_node("n0", "g0")), *objects):
        found.upsert(kind, obj)
    return found


def held_gib(found: ClusterState) -> tuple[float, float]:
    found.check()
    rows = found.table.rows("n0")
    job = next(iter(found.ledger.counting().values())).job
    assert found.gpus.memory_base_gib[rows].tolist() == [job.memory_base_gib]
    return job.memory_base_gib, job.memory_peak_gib


def test_a_label_on_a_running_pod_changes_nothing() -> None:
    jobs = (
        ("gpujobs", gpu_job("pod-a", job_load=load(40, 8, 0.25))),
        ("gpujobs", gpu_job("group-decoy", job_load=SMALL)),
    )
    found = state(*jobs, ("pods", running(version=1)))
    assert held_gib(found) == (40, 48)
    found.upsert("pods", running(DECOY, version=2))
    assert held_gib(found) == (40, 48)
    assert found.pod("u").gpujob == ("ml", "pod-a")


@pytest.mark.parametrize("exclusive", [True, False])
def test_after_a_restart_a_label_on_a_running_pod_changes_nothing(exclusive: bool) -> None:
    job = gpu_job("pod-a", job_load=load(40, 8, 0.25))
    job["spec"]["demand"]["exclusive"] = exclusive
    found = state(
        ("gpujobs", job),
        ("gpujobs", gpu_job("group-decoy", job_load=SMALL)),
        ("pods", running(DECOY, annotations=placed())),
    )
    assert held_gib(found) == (40, 48)
    (claim,) = found.ledger.counting().values()
    assert (claim.job.exclusive, claim.job.id) == (exclusive, "ml/pod-a")


def test_without_its_gpujob_a_pod_holds_what_it_was_placed_with() -> None:
    notes = placed() | {names.MEMORY: "1Mi"}
    found = state(("pods", running(annotations=notes)))
    assert held_gib(found) == (40, 48)
    (claim,) = found.ledger.counting().values()
    assert (claim.job.peak_probability, claim.job.gpu_utilisation) == (0.25, 60)
    assert not claim.job.exclusive


@pytest.mark.parametrize(
    "figures",
    [
        PlacedWith(gpu_job="pod-a"),
        PlacedWith(gpu_job="pod-a", exclusive=True),
        PlacedWith(gpu_job="pod-a", memory_base_bytes=GIB, exclusive=True),
    ],
)
def test_without_its_gpujob_a_pod_on_whole_gpus_keeps_them(figures: PlacedWith) -> None:
    notes = {names.GPU_JOB: "pod-a", names.PLACED_WITH: figures.text(), names.MEMORY: "1Mi"}
    found = state(("pods", running(annotations=notes)))
    (claim,) = found.ledger.counting().values()
    assert claim.job.exclusive


def test_a_lower_prediction_frees_no_memory_until_it_is_measured() -> None:
    found = state(
        ("gpujobs", gpu_job("pod-a", job_load=load(2), version=1)),
        ("pods", running(annotations=placed())),
    )
    assert held_gib(found) == (40, 48)
    measured = load(2, 1) | {"memorySource": "observed"}
    found.upsert("gpujobs", gpu_job("pod-a", job_load=measured, version=2))
    assert held_gib(found) == (2, 3)
    found.upsert("gpujobs", gpu_job("pod-a", job_load=load(44, 8), version=3))
    assert held_gib(found) == (44, 52)


def test_the_annotation_decides_once_it_is_written_and_never_changes() -> None:
    first = pod("a", uid="u", version=1)
    found = state(("pods", first))
    later = pod("a", uid="u", version=2, annotations={names.GPU_JOB: "group-x"})
    found.upsert("pods", later)
    assert found.pod("u").gpujob == ("ml", "group-x")
    found.upsert("pods", pod("a", uid="u", version=3, annotations={names.GPU_JOB: "group-y"}))
    assert found.pod("u").gpujob == ("ml", "group-x")
    found.upsert("pods", pod("a", uid="u", version=4))
    assert found.pod("u").gpujob == ("ml", "group-x")
    found.check()


def test_another_pod_of_the_same_name_has_a_gpujob_of_its_own() -> None:
    found = state(("pods", running(DECOY, version=1)))
    found.upsert("pods", pod("a", uid="v", version=2))
    assert found.pod("v").gpujob == ("ml", "pod-a")
    assert found.pod("u") is None


def test_a_question_about_a_known_pod_is_answered_for_its_own_gpujob() -> None:
    found = state(
        ("gpujobs", gpu_job("pod-a", job_load=load(40))),
        ("gpujobs", gpu_job("group-decoy", job_load=SMALL)),
        ("pods", pod("a", uid="u", memory=None, version=1)),
    )
    asked = pod("a", uid="u", memory=None, version=1)
    asked["metadata"]["labels"] = DECOY
    assert found.worker(parse_pod(asked).pod).memory_base_gib == 40


def test_owners_and_roles_that_change_later_mean_nothing() -> None:
    raw = running(annotations=placed(role="worker"))
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": "b", "uid": "b"}
    raw["metadata"]["ownerReferences"] = [reference | {"controller": True}]
    raw["metadata"]["labels"] = {names.JOBSET_LABEL: "b", names.REPLICATED_JOB_LABEL: "leader"}
    found = parse_pod(raw).pod
    assert gpujob_name(found) == "pod-a"
    assert workload_of(found).kind == "Pod"
    assert above(found) is None
    assert role_of(found) == "worker"


def test_the_role_of_a_waiting_pod_stays_the_first_that_was_seen() -> None:
    def waiting(role: str, version: int) -> dict[str, Any]:
        raw = pod("a", uid="u", version=version)
        raw["metadata"]["labels"] = {names.REPLICA_TYPE_LABEL: role}
        return raw

    found = state(("pods", waiting("Worker", 1)))
    found.upsert("pods", waiting("Master", 2))
    assert role_of(found.pod("u").pod) == "worker"


def test_a_pod_that_accumulates_nothing_is_not_counted_with_a_part_of_its_batch() -> None:
    part = {"steps": 2, "memoryBaseBytes": 6 * GIB, "memoryPeakBytes": 8 * GIB, "stretch": 1.5}
    job = gpu_job("gang-g", plan=[("a", "n0", ["g0"]), ("b", "n0", ["g1"])], job_load=load(20))
    job["spec"]["demand"] |= {"accumulation": True, "batchSize": 64, "gangSize": 2}
    job["status"] |= {"subBatches": [part]}
    job["status"]["plan"]["accumulationSteps"] = 2
    found = ClusterState(now_s=NOW)
    found.upsert("gpunodes", gpu_node("n0", "g0", "g1"))
    found.upsert("gpujobs", job)
    for name, notes in (("a", {names.ACCUMULATION: "true"}), ("b", {})):
        wanted = {names.GANG: "g", names.GANG_SIZE: "2"} | notes
        found.upsert("pods", pod(name, uid=name, memory=None, annotations=wanted))
    workers = {name: found.worker(found.pod(name).pod) for name in ("a", "b")}
    assert [workers[name].memory_base_gib for name in ("a", "b")] == [6, 20]
    pending = PendingJobs(lambda: None)
    waiting = found.gangs.by_key["ml", "gang-g"]
    pending.note(waiting, waiting.job, NOW + 60)
    (start,) = pending.starts["ml", "gang-g"]
    assert start.job.sub_batches == ()
