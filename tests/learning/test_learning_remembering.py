"""What earlier runs and the present one say of a job's need."""

import numpy as np
import pytest
from learning_builders import GIB, NOW

from scheduler_extender.cluster.jobs import SETTLED_S, load_now, policy_job, sub_batches_now
from scheduler_extender.learning import sharing
from scheduler_extender.learning.run_history import RunHistory, feedback, in_steps_kind
from scheduler_extender.queue.pods.memory_needs import raised_in_steps
from tandem.contracts.learning import Means, Observed
from tandem.contracts.resources import Demand, GPUJobStatus, Load, Source, SubBatch
from tandem.policy.cluster import GpuArrays
from tandem.policy.constraints.memory import MemoryCollision
from tandem.policy.job import Job

A100 = "NVIDIA A100-SXM4-80GB"
STAMP = "2026-01-01T00:00:00Z"


def seen(
    peak_gib: float, kind: str = "image:x", seconds: float = 900.0, **more: object
) -> Observed:
    values: dict[str, object] = {
        "solo_utilisation_percent": 70.0, "memory_base_bytes": int(peak_gib * GIB / 2),
        "peak_probability": 0.3,
    }  # fmt: skip
    return Observed.model_validate(
        {
            "at": STAMP, "kind": kind, "gpu_model": A100, "seconds": seconds,
            "memory_peak_bytes": int(peak_gib * GIB), **values, **more,
        }
    )  # fmt: skip


def load(p95_gib: float, source: Source) -> Load:
    return Load(
        utilisation_percent=40, utilisation_p95_percent=60, memory_base_bytes=int(p95_gib * GIB),
        memory_peak_extra_bytes=0, peak_probability=0.0, memory_p95_bytes=int(p95_gib * GIB),
        utilisation_source=source, memory_source=source,
    )  # fmt: skip


def now(predicted: Load, observed: Observed, demand: Demand | None = None) -> Load:
    status = GPUJobStatus(load=predicted, observed=observed)
    return load_now(demand or Demand(gpus_per_pod=1), status)


def test_more_than_predicted_counts_at_once_and_less_after_a_while() -> None:
    assert now(load(10, Source.DECLARED), seen(30, seconds=5)).memory_p95_bytes == 30 * GIB
    assert now(load(40, Source.MODEL), seen(20, seconds=5)).memory_p95_bytes == 40 * GIB
    settled = now(load(40, Source.MODEL), seen(20, seconds=SETTLED_S))
    assert (settled.memory_p95_bytes, settled.memory_source) == (22 * GIB, Source.OBSERVED)


def test_the_measured_step_replaces_time_and_shares_together() -> None:
    """A step that takes twice as long as predicted takes about half the GPU's rates."""
    shares = {"iteration_s": 0.1, "compute_share": 0.6, "bandwidth_share": 0.4}
    predicted = load(10, Source.MODEL).model_copy(update=shares)
    first_minutes = {"seconds": 120.0, "solo_utilisation_percent": 30.0}
    measured = now(predicted, seen(9, solo_iterations_per_second=5.0, **first_minutes))
    assert measured.iteration_s == pytest.approx(0.2, rel=0.12)
    assert measured.compute_share == pytest.approx(0.3, rel=0.12)
    assert measured.bandwidth_share == pytest.approx(0.2, rel=0.12)
    faster = now(predicted, seen(9, solo_iterations_per_second=40.0, **first_minutes))
    assert faster.compute_share == 1.0
    as_predicted = now(predicted, seen(9, solo_iterations_per_second=9.5, **first_minutes))
    assert as_predicted.iteration_s == 0.1


def test_what_was_raised_or_declared_is_not_lowered() -> None:
    for source in (Source.OBSERVED, Source.DECLARED):
        assert now(load(40, source), seen(20)).memory_p95_bytes == 40 * GIB


def test_a_gpu_that_no_longer_meets_its_collision_bound_takes_no_new_job() -> None:
    demand, bound = Demand(gpus_per_pod=1), MemoryCollision(max_collision_probability=0.1)
    newcomer = Job(id="ml/new", memory_base_gib=55, peak_probability=0.2)
    gpus = GpuArrays.empty(np.zeros(1, dtype=np.int64), np.array([80.0]))
    predicted = load(10, Source.MODEL)
    for observed, allowed in (
        (seen(9, peak_probability=0.9), True),
        (seen(30, peak_probability=0.9), False),
    ):
        status = GPUJobStatus(load=predicted, observed=observed.model_copy(update={"seconds": 5.0}))
        worker = policy_job("ml/a", demand, load_now(demand, status))
        assert bool(bound(newcomer, gpus.with_job(worker, [0]))[0]) is allowed


def test_a_fingerprint_is_recognised_once_it_has_been_stable() -> None:
    memory, demand = RunHistory(), Demand(gpus_per_pod=1)
    memory.enter("ml", seen(20), NOW)
    assert memory.load("ml", "image:x", A100, demand) is None
    memory.enter("ml", seen(21), NOW + 1)
    found = memory.load("ml", "image:x", A100, demand)
    assert found is not None
    assert found.memory_source is Source.OBSERVED
    assert found.memory_p95_bytes == round(1.1 * 21 * GIB)
    assert memory.load("other", "image:x", A100, demand) is None
    memory.enter("ml", seen(40), NOW + 2)
    assert memory.load("ml", "image:x", A100, demand) is None


def test_speed_alone_is_its_namespaces_own_and_load_is_everybodys() -> None:
    memory = RunHistory()
    memory.enter("ml", seen(20, solo_iterations_per_second=2.0), NOW)
    assert memory.alone("ml", "image:x", A100) == {Means.PROGRESS: 2.0, Means.UTILISATION: 70.0}
    assert memory.alone("other", "image:x", A100) == {Means.UTILISATION: 70.0}
    assert memory.alone("other", "image:y", A100) == {}


def test_a_namespace_forgets_its_own_and_a_restart_forgets_nothing() -> None:
    memory = RunHistory()
    memory.enter("ml", seen(20), NOW)
    for number in range(200):
        memory.enter("flood", seen(20, kind=f"image:{number}"), NOW + number)
    assert len(memory) == 65
    again = RunHistory()
    again.merge(memory.stored())
    assert sorted(again.stored(), key=str) == sorted(memory.stored(), key=str)
    again.enter("flood", seen(20, kind="image:new"), NOW + 300)
    again.merge(memory.stored())
    assert len(again) == 65


def test_feedback_needs_a_model_and_a_time_alone() -> None:
    demand = Demand(gpus_per_pod=1, model="bert", batch_size=32)
    reported = feedback("ml", demand, seen(20))
    assert reported is not None
    assert (reported.memory_peak_bytes, reported.utilisation_percent) == (20 * GIB, 70.0)
    assert feedback("ml", Demand(gpus_per_pod=1), seen(20)) is None
    assert feedback("ml", demand, seen(20, solo_utilisation_percent=None)) is None
    assert feedback("ml", demand, seen(20, seconds=10.0)) is None


# --- gradient accumulation --------------------------------------------------------------------


def split_status(observed: Observed | None = None, source: Source = Source.FORMULA) -> GPUJobStatus:
    """A batch that takes 40 GiB, 24 in two micro-batches, 16 in four."""
    parts = [
        SubBatch(steps=s, memory_base_bytes=p * GIB // 2, memory_peak_bytes=p * GIB, stretch=1.2)
        for s, p in ((2, 24), (4, 16))
    ]
    return GPUJobStatus(load=load(40, source), sub_batches=parts, observed=observed)


def peaks_gib(status: GPUJobStatus) -> list[float]:
    """What counts of the whole batch and of each way to split it."""
    whole = load_now(Demand(gpus_per_pod=1), status).memory_p95_bytes
    return [whole / GIB, *(each.memory_peak_bytes / GIB for each in sub_batches_now(status))]


def test_what_a_run_in_micro_batches_used_lowers_no_need_of_the_whole_batch() -> None:
    settled = seen(10, seconds=SETTLED_S, accumulation_steps=4)
    assert peaks_gib(split_status(settled)) == [40, 24, pytest.approx(11)]
    assert peaks_gib(split_status(settled.model_copy(update={"seconds": 5.0}))) == [40, 24, 16]


def test_a_run_that_needs_more_than_was_said_raises_all_ways_to_run_it() -> None:
    by_half = seen(24, seconds=5, accumulation_steps=4)
    assert peaks_gib(split_status(by_half)) == [60, 36, 24]
    assert peaks_gib(split_status(seen(60, seconds=5))) == [60, 36, 24]


def test_running_out_of_memory_raises_the_way_that_ran_and_all_others() -> None:
    for steps, held in ((4, 20), (1, 50)):
        more, parts = raised_in_steps(split_status(), steps, held * GIB, 80 * GIB)
        whole = more.memory_p95_bytes / GIB
        assert whole == pytest.approx(40 * 1.1 * held / (16 if steps == 4 else 40))
        factor = whole / 40
        assert [p.memory_peak_bytes / GIB for p in parts] == pytest.approx(
            [24 * factor, 16 * factor]
        )
        assert more.memory_source is Source.OBSERVED


def test_runs_in_steps_are_remembered_separately_from_whole_ones() -> None:
    memory = RunHistory()
    memory.enter("ml", seen(20, kind="h@64", solo_iterations_per_second=2.0), NOW)
    memory.enter(
        "ml", seen(9, kind="h@64", solo_iterations_per_second=1.6, accumulation_steps=2), NOW
    )
    assert memory.alone("ml", "h@64", A100)[Means.PROGRESS] == 2.0
    assert memory.alone("ml", in_steps_kind("h@64", 2), A100)[Means.PROGRESS] == 1.6
    reported = feedback(
        "ml",
        Demand(gpus_per_pod=1, model="bert", batch_size=64),
        seen(9, accumulation_steps=2),
    )
    assert reported is not None
    assert (reported.batch_size, reported.accumulation_steps) == (64, 2)


def test_only_a_utilisation_that_runs_have_shown_is_compared_with() -> None:
    """What a model is wrong by would be taken for what a neighbour does."""
    for source, compared in (
        (Source.OBSERVED, True), (Source.MODEL, False), (Source.FORMULA, False),
        (Source.DECLARED, False),
    ):  # fmt: skip
        found = sharing._predicted(GPUJobStatus(load=load(10, source)), 1)
        assert (Means.UTILISATION in found) is compared
