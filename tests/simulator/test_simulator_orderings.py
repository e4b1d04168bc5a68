"""The orderings: worked by hand, against a plain twin, and on real traces."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from simulator_builders import needs_data, run, trace

from benchmarks.tables import load_trace
from studies.profiles.plain import mean_jct, parting

LAS = {"thresholds_gpu_s": (3250.0, 7200.0)}
# (GPUs, time) of the worked example; 2 GPUs, interval 1, ties by job number.
THREE = trace((0, 2, 2), (0, 1, 8), (0, 2, 6))
SERVICES = [4.0, 8.0, 12.0]


def completion(outcome) -> list[float]:
    return (outcome.end_s - outcome.submit_s).tolist()


def test_three_jobs_by_shortest_remaining_service() -> None:
    assert completion(run(THREE, "1x2", "srsf")) == [2, 10, 16]


def test_three_jobs_by_plain_attained_service() -> None:
    values = {"kind": "las_2d", "slice_s": 1.0}
    assert np.mean(completion(run_order(values))) == pytest.approx(11.67, abs=0.005)


def test_three_jobs_by_plain_gittins_index() -> None:
    values = {"kind": "gittins_2d", "slice_s": 1.0}
    assert np.mean(completion(run_order(values, SERVICES))) == pytest.approx(9.33, abs=0.005)


@pytest.mark.parametrize("within", ["list", "first_start", "gittins"])
def test_three_jobs_by_two_queues_with_their_boundary_at_4(within: str) -> None:
    values = {"kind": "queues", "thresholds_gpu_s": (4.0,), "within": within}
    assert completion(run_order(values, SERVICES)) == [2, 12, 16]


def run_order(order: dict, history: list[float] | None = None):
    from tandem.policy.catalog import Profile, load_profile

    profile = Profile.model_validate(load_profile("tiresias-l").model_dump() | {"order": order})
    return run(THREE, "1x2", profile, history)


# Round numbers make jobs arrive and end, cross thresholds and have the same time left at once.
ROUND_S = st.sampled_from([125, 250, 500, 1000, 2000, 3000])
jobs_strategy = st.lists(
    st.tuples(
        st.integers(0, 5000) | st.sampled_from([0, 1000]),
        st.sampled_from([1, 1, 2, 3, 4]),
        st.integers(1, 9000) | ROUND_S,
    ),
    min_size=1,
    max_size=14,
)
# Sums of floats: a job is computed to have 2e-13 s left when another arrives or crosses.
AT_ONCE = [
    (0, 2, 6451), (0, 3, 125), (0, 3, 250), (421, 1, 2527), (813, 2, 6297), (1822, 4, 125),
    (2949, 3, 3000), (3153, 3, 1000), (3233, 1, 7039),
]  # fmt: skip


@pytest.mark.parametrize(
    ("profile", "policy"),
    [("fifo", "fifo"), ("srtf", "srtf"), ("srsf", "srsf"), ("tiresias-l-list", "las")],
)
@given(rows=jobs_strategy)
@example(rows=AT_ONCE)
@settings(max_examples=40)
def test_the_engine_agrees_with_the_plain_simulator(profile: str, policy: str, rows) -> None:
    rows = sorted(rows)
    thresholds = (500.0, 3000.0) if policy == "las" else ()
    changes = {"thresholds_gpu_s": thresholds} if thresholds else {}
    outcome = run(trace(*rows), "1x4", profile, **changes)
    ours = float(np.mean(outcome.end_s - outcome.submit_s))
    assert ours == pytest.approx(mean_jct(rows, 4, policy, thresholds), rel=1e-6)


@pytest.mark.parametrize("profile", ["srtf", "srsf"])
def test_a_job_is_not_preempted_for_a_rounding_error(profile: str) -> None:
    # When the second arrives, the first has as long to run, which floats make 4e-16 s longer.
    first_s = 9.8 + 0.9
    assert first_s - 9.8 > 0.9
    outcome = run(trace((0, 1, first_s), (9.8, 1, 0.9)), "1x1", profile)
    assert outcome.preemptions.tolist() == [0, 0]


# The larger job starts later and is demoted earlier: at 2 + 10/2 = 7 s, the other one at 10 s. When
# a third job takes one of the three GPUs at 12 s, the paper keeps the job that started first.
TWO_DEMOTED = trace((0, 1, 100), (2, 2, 100), (12, 1, 5))


@pytest.mark.parametrize(
    ("profile", "ends"),
    [("tiresias-l", [100, 107, 17]), ("tiresias-l-list", [105, 102, 17])],
)
def test_inside_a_queue_the_job_that_started_first_goes_first(
    profile: str, ends: list[float]
) -> None:
    outcome = run(TWO_DEMOTED, "1x3", profile, thresholds_gpu_s=(10.0,))
    assert outcome.end_s == pytest.approx(ends)


def test_round_robin_gives_whole_slices_in_turn_and_newcomers_wait_for_theirs() -> None:
    # A, B and from 130 s on D: slices of 60 s go to A B A B D A B D; D's would-be first one at
    # 130 s falls into A's second.
    outcome = run(trace((0, 1, 180), (0, 1, 180), (130, 1, 120)), "1x1", "gandiva")
    assert outcome.end_s == pytest.approx([360, 420, 480])


def test_round_robin_skips_a_gang_that_does_not_fit_and_it_keeps_its_turn() -> None:
    # Two GPUs: A (1) and B (1) run. The gang C (2) waits from 1 s on, so the first slice ends at
    # 61 s; C is first in line then, and A and B have 59 s left after it.
    outcome = run(trace((0, 1, 120), (0, 1, 120), (1, 2, 60)), "1x2", "gandiva")
    assert outcome.end_s == pytest.approx([180, 180, 121])


def test_a_starving_job_is_promoted_to_the_first_queue() -> None:
    # Ten jobs of 90 GPU-s each keep the one GPU busy while the first, demoted at 100, waits.
    jobs = trace((0, 1, 200), *((100 + 90 * i, 1, 95) for i in range(10)))
    never = run(jobs, "1x1", "tiresias-l", thresholds_gpu_s=(100.0,))
    knob = run(jobs, "1x1", "tiresias-l", thresholds_gpu_s=(100.0,), promote_knob=1.0)
    assert never.end_s[0] > never.end_s[1:].max()
    assert knob.end_s[0] < never.end_s[0]


def test_the_shipped_knob_promotes_a_job_that_waited_eight_times_as_long_as_it_ran() -> None:
    # Demoted at 3,200 s of 4,000; jobs of 3,000 s follow one another on the one GPU. It has starved
    # after 25,600 s, at 28,800 s, and its first start is the earliest of the first queue.
    jobs = trace((0, 1, 4000), *((3200 + 3000 * i, 1, 3000) for i in range(20)))
    assert run(jobs, "1x1", "tiresias-l-promote").end_s[0] == pytest.approx(28_800 + 800)
    assert run(jobs, "1x1", "tiresias-l").end_s[0] == pytest.approx(3200 + 20 * 3000 + 800)


def test_a_promoted_job_starts_before_the_backlog_of_the_first_queue() -> None:
    # Demoted at 100 s; twenty jobs of 90 s come at once. It starved after another 100 s, and starts
    # when the job that runs then has ended, at 280 s.
    jobs = trace((0, 1, 200), *((50, 1, 90) for _ in range(20)))
    promoted = run(jobs, "1x1", "tiresias-l-list", thresholds_gpu_s=(100.0,), promote_knob=1.0)
    assert promoted.end_s[0] == pytest.approx(380, abs=1)


# Means in seconds by another group's simulator; the last by a plain one written from the papers.
TABLE = [
    ("philly-103959", "4x8", 97_980, 33_224, 33_965, 43_134),
    ("philly-0e4a51", "6x8", 1_408_372, 205_898, 195_115, 376_142),
    ("muri-trace3", "8x8", 991_167, 180_116, 172_684, 327_260),
]


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize(("name", "cluster", "fifo", "srtf", "srsf", "las"), TABLE)
def test_real_traces_give_the_independent_simulator_s_means(
    name: str, cluster: str, fifo: int, srtf: int, srsf: int, las: int
) -> None:
    jobs = load_trace(name)
    for profile, expected, changes in (
        ("fifo", fifo, {}), ("srtf", srtf, {}), ("srsf", srsf, {}), ("tiresias-l-list", las, LAS),
    ):  # fmt: skip
        outcome = run(list(jobs), cluster, profile, **changes)
        mean = float(np.mean(outcome.end_s - outcome.submit_s))
        assert mean == pytest.approx(expected, abs=1.0), profile


# 2D-LAS by the other group's simulator; two jobs of as many GPUs, one demoted when it is due and
# one not, and the moment at which that makes the two simulators part for the first time.
LATE = [
    ("philly-103959", 32, 43_216, 1_307_472.0, (195, 207)),
    ("philly-0e4a51", 48, 376_415, 962_540.0, (54, 30)),
    ("muri-trace3", 64, 312_870, 673_187.25, (23, 15)),
]


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize(("name", "gpus", "theirs", "at_s", "jobs"), LATE)
def test_demotions_looked_for_too_late_give_the_other_simulator_s_means(
    name: str, gpus: int, theirs: int, at_s: float, jobs: tuple[int, int]
) -> None:
    rows = [(j.submit_s, j.gpus, j.duration_s) for j in load_trace(name)]
    thresholds = LAS["thresholds_gpu_s"]
    assert mean_jct(rows, gpus, "late", thresholds) == pytest.approx(theirs, abs=0.5)
    assert parting(rows, gpus, thresholds) == (at_s, {jobs[0]}, {jobs[1]})
