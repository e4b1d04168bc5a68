"""Scenarios: each reads like the sentence it proves."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.policy.catalog import UnknownProfileError, load_profile
from tandem.policy.cluster import GpuArrays, Snapshot
from tandem.policy.constraints.memory import MemoryCapacity, MemoryCollision
from tandem.policy.decision import Placement, Waits
from tandem.policy.equations.collision import collision_probability
from tandem.policy.equations.horus import GTX_1080, RTX_2080, slowdown_over_commit
from tandem.policy.job import Job
from tandem.policy.pipeline import Evaluation, _best_node_rows
from tandem.reasons.causes import Cause, Reason
from tandem.reasons.words import in_full

PIPELINE = load_profile("tandem").pipeline()


def cluster(*jobs_by_gpu: tuple[str, str, float, list[Job]]) -> Snapshot:
    snapshot = Snapshot.from_rows([(node, gpu, memory) for node, gpu, memory, _ in jobs_by_gpu])
    for _, gpu, _, jobs in jobs_by_gpu:
        for job in jobs:
            snapshot = snapshot.with_job(job, [snapshot.gpu_ids.index(gpu)])
    return snapshot


def job(name: str, base: float = 10, extra: float = 2, p: float = 0.2, **more: object) -> Job:
    values = {"gpu_utilisation": 40.0, **more}
    return Job(
        id=name,
        memory_base_gib=base,
        memory_peak_extra_gib=extra,
        peak_probability=p,
        **values,  # type: ignore[arg-type]
    )


def test_a_job_that_fits_next_to_another_shares_its_gpu() -> None:
    decision = PIPELINE.place(
        job("new"), cluster(("n0", "a", 80, [job("old")]), ("n0", "b", 80, []))
    )
    assert isinstance(decision, Placement)
    assert decision.pods[0].gpu_ids == ("a",)


def test_would_collide_with_its_neighbours_so_waits_and_counts_them() -> None:
    decision = PIPELINE.place(
        job("gpt2", 40, 50, 0.5),
        cluster(
            ("n0", "a", 145, [job("bert", 50, 8, 0.3)]), ("n1", "b", 145, [job("r", 50, 8, 0.5)])
        ),
    )
    assert isinstance(decision, Waits)
    _, refusal = decision.causes
    assert (refusal.reason, refusal.gpus) == (Reason.MEMORY_COLLISION, 2)
    assert (refusal.value, refusal.bound) == (pytest.approx(0.15), 0.05)


def test_a_chance_of_a_collision_that_equals_its_bound_is_within_it() -> None:
    old, new = job("old", 50, 8, 0.3), job("new", 40, 50, 0.5)
    gpus = cluster(("n0", "a", 145, [old])).gpus
    (chance,) = collision_probability(gpus.none_in_peak, gpus.one_in_peak, 0.5)
    for bound, allowed in ((chance, True), (np.nextafter(chance, 0.0), False)):
        assert MemoryCollision(max_collision_probability=float(bound))(new, gpus)[0] == allowed


def test_a_pod_goes_to_the_node_whose_best_gpus_are_best_on_average() -> None:
    node, allowed = np.array([0, 0, 0, 1, 1, 2]), np.ones(6, dtype=bool)
    rows = _best_node_rows(node, allowed, np.array([9.0, 1.0, 7.0, 8.0, 7.5, 20.0]), wanted=2)
    assert rows is not None
    assert rows.tolist() == [0, 2], "9 and 7 beat 8 and 7.5; node 2 has one GPU"
    assert _best_node_rows(node, allowed, np.zeros(6), wanted=4) is None


def test_too_little_memory_for_every_base_and_one_peak_so_waits() -> None:
    decision = PIPELINE.place(job("new", 10, 5, 0.0), cluster(("n0", "a", 24, [job("old", 10, 2)])))
    assert isinstance(decision, Waits)
    assert "25.0 GiB needed, 24.0 GiB there, 1.0 GiB too little" in in_full(decision.causes)


def test_an_exclusive_job_takes_an_empty_gpu_and_keeps_it() -> None:
    snapshot = cluster(("n0", "a", 80, [job("old")]), ("n0", "b", 80, []))
    whole = job("whole", exclusive=True)
    decision = PIPELINE.place(whole, snapshot)
    assert isinstance(decision, Placement)
    assert decision.pods[0].gpu_ids == ("b",)
    after = snapshot.with_job(whole, decision.rows)
    second = PIPELINE.place(job("second", exclusive=True), after)
    assert isinstance(second, Waits)


def test_a_gang_goes_as_a_whole_or_waits() -> None:
    snapshot = cluster(*[(f"n{i}", f"g{i}", 80, []) for i in range(3)])
    assert isinstance(PIPELINE.place(job("gang", pods=3), snapshot), Placement)
    waits = PIPELINE.place(job("gang", pods=4), snapshot)
    assert isinstance(waits, Waits)
    assert "It needs 1 GPU for each of 4 pods (3 of 3 GPUs can take it now)" in in_full(
        waits.causes
    )


def test_the_gpus_of_one_pod_are_distinct_and_of_one_node() -> None:
    snapshot = cluster(("n0", "a", 80, []), ("n1", "b", 80, []), ("n1", "c", 80, []))
    decision = PIPELINE.place(job("two", gpus_per_pod=2), snapshot)
    assert isinstance(decision, Placement)
    assert decision.pods[0].node == "n1"
    assert decision.pods[0].gpu_ids == ("b", "c")


def test_a_node_that_cannot_run_the_pods_is_left_out() -> None:
    snapshot = cluster(("n0", "a", 80, []), ("n1", "b", 80, []))
    decision = PIPELINE.place(job("j"), snapshot, np.array([False, True]))
    assert isinstance(decision, Placement)
    assert decision.pods[0].node == "n1"


def test_worked_numbers_of_the_papers() -> None:
    gpus = GpuArrays.empty(np.array([0]), np.array([80.0]), shares=4, slots=4)
    peaky = job("p", p=0.2)
    chances = []
    for _ in range(3):
        chances.append(collision_probability(gpus.none_in_peak, gpus.one_in_peak, 0.2)[0])
        gpus = gpus.with_job(peaky, [0])
    assert chances == pytest.approx([0.0, 0.04, 0.104])
    at_200 = np.array([200.0])
    assert slowdown_over_commit(at_200, GTX_1080)[0] == pytest.approx(2.27, abs=0.005)
    assert slowdown_over_commit(at_200, RTX_2080)[0] == pytest.approx(2.16, abs=0.005)
    assert slowdown_over_commit(np.array([100.0]), GTX_1080)[0] == pytest.approx(1.194, abs=5e-4)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_collision_agrees_with_summing_over_all_outcomes(ps: list[float]) -> None:
    gpus = GpuArrays.empty(np.array([0]), np.array([80.0]), shares=9, slots=9)
    for p in ps[:-1]:
        gpus = gpus.with_job(job("j", p=p), [0])
    slow = 0.0
    for outcome in range(2 ** len(ps)):
        hit = [outcome >> i & 1 for i in range(len(ps))]
        if sum(hit) >= 2:
            slow += np.prod([p if h else 1 - p for p, h in zip(ps, hit, strict=True)])
    fast = collision_probability(gpus.none_in_peak, gpus.one_in_peak, ps[-1])[0]
    assert fast == pytest.approx(slow, abs=1e-9)


def test_an_unknown_profile_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(UnknownProfileError, match="nearest: tandem"):
        load_profile("tandme")


@pytest.mark.parametrize("profile", ["tandem", "tandem-guarded", "ojpp", "c-greedy"])
def test_a_pair_whose_peaks_fit_together_is_not_refused_for_a_collision(profile: str) -> None:
    # Both in their peak with 0.4 x 0.4 = 0.16, over the bound of 0.1: 8 GiB of 80 whatever happens.
    gpus = GpuArrays.empty(np.array([0]), np.array([80.0]))
    one = Job(id="a", memory_base_gib=2, memory_peak_extra_gib=2, peak_probability=0.4,
              gpu_utilisation=10)  # fmt: skip
    collision = next(c for c in load_profile(profile).constraints if c.kind == "memory_collision")
    assert collision(one, gpus.with_job(one, [0]))[0]
    # 30 + 20 next to 20 + 20: one peak fits into 80 GiB, two do not.
    large = replace(one, memory_base_gib=30, memory_peak_extra_gib=20)
    second = replace(one, memory_base_gib=20, memory_peak_extra_gib=20)
    tight = gpus.with_job(large, [0])
    assert not collision(second, tight)[0]
    assert collision.cause(second, tight, 0).value == pytest.approx(0.16)


@pytest.mark.parametrize(
    ("measured", "resident_measured", "saves", "guarded", "allowed"),
    [
        (True, True, True, True, True), (False, True, True, True, False),
        (True, False, True, True, False), (True, True, False, True, False),
        (True, True, True, False, False),
    ],
)  # fmt: skip
def test_one_peak_suffices_where_peaks_are_measured_and_an_eviction_costs_little(
    measured: bool, resident_measured: bool, saves: bool, guarded: bool, allowed: bool
) -> None:
    # 30 + 20 next to 20 + 20 on 80 GiB: 70 with one peak, 90 with both; p = 0.2 each, 0.04
    # together.
    gpus = GpuArrays.empty(np.array([0]), np.array([80.0]))
    gpus = replace(gpus, guarded=np.array([guarded]))
    first = Job(id="a", memory_base_gib=30, memory_peak_extra_gib=20, peak_probability=0.2,
                peak_measured=resident_measured, checkpointable=saves)  # fmt: skip
    second = Job(id="b", memory_base_gib=20, memory_peak_extra_gib=20, peak_probability=0.2,
                 peak_measured=measured, checkpointable=True)  # fmt: skip
    pipeline = load_profile("tandem").pipeline()
    assert bool(pipeline.allowed(second, gpus.with_job(first, [0]))[0]) is allowed
    # A third job's peak has no room.
    wide = replace(gpus, shares=np.array([3]))
    full = wide.with_job(first, [0]).with_job(second, [0])
    assert not pipeline.allowed(replace(second, memory_base_gib=11), full)[0]


@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1)])
def test_the_constraint_that_refuses_most_is_named_first(first: int, second: int) -> None:
    pipeline = load_profile("tandem").pipeline()
    snapshot = Snapshot.from_rows([("n0", f"g{i}", 80.0) for i in range(4)])
    refused_by = np.array([0] * first + [1] * second + [-1])
    evaluation = Evaluation(refused_by < 0, refused_by, np.zeros(4))
    found = pipeline.refusals(Job(id="j"), snapshot.gpus, evaluation)
    two = [each.cause(Job(id="j"), snapshot.gpus, 0).reason for each in pipeline.constraints[:2]]
    expected = sorted(zip(two, (first, second), strict=True), key=lambda each: -each[1])
    assert [(each.reason, each.gpus) for each in found] == expected


@st.composite
def gpus_of_all_kinds(draw: st.DrawFn) -> GpuArrays:
    """GPUs that one constraint may refuse for different reasons."""
    count = draw(st.integers(1, 12))

    def each(values: st.SearchStrategy[object], dtype: type) -> np.ndarray:
        return np.array([draw(values) for _ in range(count)], dtype=dtype)

    empty = Snapshot.from_rows([("n0", f"g{i}", 80.0) for i in range(count)]).gpus
    return replace(
        empty,
        shares=each(st.integers(0, 2), np.int64),
        jobs=each(st.integers(0, 3), np.int64),
        exclusive=each(st.booleans(), np.bool_),
        memory_capacity_gib=each(st.sampled_from([0.0, 8.0, 80.0]), np.float64),
        memory_base_gib=each(st.sampled_from([0.0, 70.0]), np.float64),
    )


@given(gpus=gpus_of_all_kinds(), memory=st.sampled_from([4.0, 40.0, 90.0]), alone=st.booleans())
def test_each_gpu_is_counted_with_its_own_reason(
    gpus: GpuArrays, memory: float, *, alone: bool
) -> None:
    asks = Job(id="ns/j", memory_base_gib=memory, exclusive=alone)
    evaluation = PIPELINE.evaluate(asks, gpus)
    expected = Counter(
        PIPELINE.constraints[index].cause(asks, gpus, row).reason
        for row, index in enumerate(evaluation.refused_by.tolist())
        if index >= 0
    )
    found = PIPELINE.refusals(asks, gpus, evaluation)
    assert {each.reason: each.gpus for each in found} == expected
    assert len(found) == len(expected)


def test_a_pair_that_never_gets_along_has_another_reason_than_a_slow_one() -> None:
    slow = np.array([0.0, np.inf, 3.0])
    asks = Job(id="ns/j", memory_base_gib=4.0, own_slowdown=slow, caused_slowdown=slow)
    empty = Snapshot.from_rows([("n0", "g0", 80.0), ("n0", "g1", 80.0)]).gpus
    residents = empty.resident_class.copy()
    residents[:, 0] = [1, 2]
    gpus = replace(empty, resident_class=residents)
    bound = next(each for each in PIPELINE.constraints if each.kind == "interference")
    reasons = [bound.cause(asks, gpus, row).reason for row in range(2)]
    assert reasons == [Reason.BAD_NEIGHBOURS, Reason.SLOWDOWN]
    numbers = bound.reasons(asks, gpus)
    assert numbers is not None
    assert len(set(numbers.tolist())) == 2


def test_a_quarantined_gpu_takes_no_job_and_its_refusal_says_why() -> None:
    empty = cluster(("n0", "a", 80, []))
    ill = replace(empty, gpus=replace(empty.gpus, healthy=np.array([False])))
    assert isinstance(PIPELINE.place(job("new"), ill), Waits)
    refuses = next(each for each in PIPELINE.constraints if each.kind == "healthy")
    assert refuses.cause(job("new"), ill.gpus, 0) == Cause(Reason.QUARANTINED)


def test_a_gpu_without_a_size_takes_one_whole_job_and_no_other() -> None:
    gpus = Snapshot.from_rows([("n0", "0", 0.0), ("n0", "1", 80.0)], shares=1).gpus
    whole = Job(id="ns/whole", memory_base_gib=60.0, exclusive=True)
    other = Job(id="ns/other", memory_base_gib=6.0)
    fits = MemoryCapacity()
    assert fits(whole, gpus).tolist() == [True, True]
    assert fits(other, gpus).tolist() == [False, True]
    assert fits.cause(other, gpus, 0) == Cause(Reason.MEMORY_UNKNOWN)
    assert fits.cause(other, gpus, 1) == Cause(Reason.MEMORY, value=6.0, bound=80.0)
