"""What happens on shared GPUs in the simulator, each by a sum that can be done by hand."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from simulator_builders import run, run_shared, trace

from tandem.errors import TandemError
from tandem.policy.catalog import Profile, load_profile
from tandem.simulator.cluster import gpu_arrays, parse_cluster
from tandem.simulator.engine import Engine, RunOptions
from tandem.simulator.events import Events, Kind
from tandem.simulator.world import plain_world

HALF = [[1.0]]  # next to its like, a job runs at half speed
PAIRS = load_profile("xonar-fifo-pairs")


def test_two_on_one_gpu_slow_each_other_down_and_the_survivor_speeds_up() -> None:
    # Together at half speed until the first ends at 20; 10 s of the second are left by then.
    outcome = run_shared(trace((0, 1, 10), (0, 1, 20)), "1x1", PAIRS, HALF, [0, 0])
    assert outcome.end_s.tolist() == [20, 30]
    assert outcome.run_s.tolist() == [20, 30]


def test_a_gang_runs_at_the_speed_of_its_slowest_worker() -> None:
    # Two GPUs; the gang has both, a single job joins one of them.
    outcome = run_shared(trace((0, 2, 10), (0, 1, 5)), "1x2", PAIRS, HALF, [0, 0])
    assert outcome.end_s.tolist() == [15, 10]


def test_a_preemption_and_its_resume_cost_what_they_cost() -> None:
    # The second is shorter, runs 10..15, and the first has 90 + 60 s left.
    outcome = run_shared(
        trace((0, 1, 100), (10, 1, 5)), "1x1", "srtf", HALF, [0, 0], preemption_cost_s=60
    )
    assert outcome.end_s.tolist() == [165, 15]
    assert outcome.preemptions.tolist() == [1, 0]
    assert outcome.overhead_s.tolist() == [60, 0]


def shared_engine(durations: list[float], gpus: str = "1x1", **truth: object) -> Engine:
    """Two shares, jobs submitted at 0 that do not disturb one another, and what else is true."""
    jobs = trace(*((0, 1, duration) for duration in durations))
    arrays = gpu_arrays([parse_cluster(gpus)], shares=2)
    world = plain_world(jobs, arrays)
    changed = replace(world.truth, slowdown=np.full((2, 2), 1e-9), **truth)
    return Engine(jobs, world.believed, arrays, load_profile("fifo"), changed)


def test_micro_batches_take_longer_by_their_stretch() -> None:
    outcome = shared_engine([10.0], stretch=np.array([1.25])).run()
    assert outcome.end_s.tolist() == pytest.approx([12.5])


def test_bases_that_do_not_fit_kill_the_newcomer_which_then_runs_alone() -> None:
    heavy = [(10.0, 0.0, 0.0), (10.0, 0.0, 0.0)]
    outcome = run_shared(trace((0, 1, 10), (5, 1, 10)), "1x1", PAIRS, [[0.0]], [0, 0], memory=heavy)
    assert outcome.ooms.tolist() == [0, 1]
    assert outcome.end_s[0] == pytest.approx(10, abs=0.01)
    assert outcome.end_s[1] == pytest.approx(20, abs=0.2)


@pytest.mark.parametrize(("guarded", "ooms"), [(True, [1, 0]), (False, [0, 1])])
def test_where_memory_is_guarded_the_one_that_outgrew_most_goes(
    guarded: bool, ooms: list[int]
) -> None:
    # Without a guard it is the newcomer, whose allocation fails.
    outcome = run_shared(
        trace((0, 1, 10), (5, 1, 10)), "1x1", PAIRS, [[0.0]], [0, 0],
        memory=[(11.0, 0.0, 0.0), (6.0, 0.0, 0.0)],
        believed_memory=[(5.0, 0.0, 0.0), (5.0, 0.0, 0.0)], guarded=guarded,
    )  # fmt: skip
    assert outcome.ooms.tolist() == ooms


def test_where_no_job_outgrew_its_memory_the_newcomer_goes() -> None:
    outcome = run_shared(
        trace((0, 1, 10), (5, 1, 10)), "1x1", PAIRS, [[0.0]], [0, 0],
        memory=[(11.0, 0.0, 0.0), (6.0, 0.0, 0.0)], guarded=True,
    )  # fmt: skip
    assert outcome.ooms.tolist() == [0, 1]


def test_peaks_that_fall_together_kill_one_in_its_peak_which_loses_its_run() -> None:
    peaky = [(1.0, 10.0, 0.9), (1.0, 10.0, 0.9)]
    outcome = run_shared(
        trace((0, 1, 5000), (0, 1, 5000)), "1x1", PAIRS, [[0.0]], [0, 0], memory=peaky
    )
    assert outcome.ooms.sum() == 1
    assert outcome.overhead_s.sum() > 0
    assert outcome.end_s.max() == pytest.approx(10_000 + 0, abs=1)


@pytest.mark.parametrize("guarded", [True, False])
def test_a_job_that_the_guard_evicts_keeps_its_work(guarded: bool) -> None:
    peaky = [(1.0, 10.0, 0.9), (1.0, 10.0, 0.9)]
    outcome = run_shared(
        trace((0, 1, 5000), (0, 1, 5000)), "1x1", PAIRS, [[0.0]], [0, 0], memory=peaky,
        preemption_cost_s=60.0, guarded=guarded,
    )  # fmt: skip
    assert outcome.ooms.sum() == 1
    # Both jobs ran together until the eviction; the neighbour ran all the time.
    together = 10_000 + outcome.overhead_s.sum() - outcome.end_s.max()
    assert together > 0
    assert outcome.overhead_s.sum() == pytest.approx(60.0 + (0 if guarded else together))


def test_a_pair_out_of_memory_in_the_matrix_cannot_run_together() -> None:
    outcome = run_shared(
        trace((0, 1, 10), (0, 1, 10)), "1x1", PAIRS, [[0.0, np.inf], [np.inf, 0.0]], [0, 1]
    )
    assert outcome.ooms.sum() == 1


def test_peaks_that_fit_never_kill_a_job() -> None:
    # Tandem knows of the memory, and keeps the two apart.
    peaky = [(1.0, 10.0, 0.9), (1.0, 10.0, 0.9)]
    outcome = run_shared(
        trace((0, 1, 5000), (0, 1, 5000)), "1x1", "tandem", [[0.0]], [0, 0], memory=peaky
    )
    assert outcome.ooms.sum() == 0
    assert outcome.end_s.max() == 10_000


def test_tandem_shares_where_it_pays_and_waits_where_it_does_not() -> None:
    jobs = trace((0, 1, 1000), (0, 1, 1000))
    light = run_shared(jobs, "1x1", "tandem", [[0.2]], [0, 0])
    assert light.end_s.tolist() == pytest.approx([1200, 1200])
    heavy = run_shared(jobs, "1x1", "tandem", [[3.0]], [0, 0])
    assert heavy.run_s.tolist() == pytest.approx([1000, 1000])
    assert heavy.end_s.max() == pytest.approx(2000)


def test_tandem_shares_before_it_preempts() -> None:
    # A new job meets one that has long run: with a good partner it joins, with a bad one it takes
    # the GPU over.
    jobs = trace((0, 1, 20_000), (10_000, 1, 100))
    good = run_shared(jobs, "1x1", "tandem", [[0.1]], [0, 0], preemption_cost_s=60)
    assert good.preemptions.sum() == 0
    bad = run_shared(jobs, "1x1", "tandem", [[30.0]], [0, 0], preemption_cost_s=60)
    assert bad.preemptions.tolist() == [1, 0]
    assert bad.end_s[1] == pytest.approx(10_100)


def test_without_interference_jobs_can_be_preempted_as_well() -> None:
    """As they are with the orders of the papers, in the same world."""
    found = run(trace((0, 1, 90_000), (50_000, 1, 60)), "1x1", "tandem")
    assert found.preemptions.tolist() == [1, 0]
    assert found.end_s.tolist() == pytest.approx([90_060, 50_060])


def test_guarded_keeps_the_promised_speed() -> None:
    jobs = trace((0, 1, 1000), (0, 1, 1000))
    kept = run_shared(jobs, "1x1", "tandem-guarded", [[0.3]], [0, 0])
    assert kept.run_s.max() == pytest.approx(1300)
    refused = run_shared(jobs, "1x1", "tandem-guarded", [[0.5]], [0, 0])
    assert refused.run_s.max() == pytest.approx(1000)


@pytest.mark.parametrize("seed", range(4))
def test_guarded_keeps_the_promised_speed_with_three_shares(seed: int) -> None:
    """Pairs from harmless to tenfold; a job runs for its duration over 0.73 at most in all."""
    rng = np.random.default_rng(seed)
    profile = load_profile("tandem-guarded").model_copy(update={"max_jobs_per_gpu": 3})
    slowdown = rng.choice([0.02, 0.15, 0.3, 1.0, 9.0], (6, 6)).tolist()
    jobs = trace(
        *((int(rng.integers(0, 4000)), int(rng.choice([1, 1, 1, 2, 4])), int(rng.integers(50, 900)))
          for _ in range(60))
    )  # fmt: skip
    outcome = run_shared(jobs, "2x4", profile, slowdown, rng.integers(6, size=60).tolist())
    speed = outcome.duration_s / outcome.run_s
    assert speed.min() >= 0.73 - 1e-6
    # Something shared, or the promise would be empty.
    assert speed.min() < 0.95


def test_the_worst_pair_is_taken_apart_when_a_gpu_falls_free() -> None:
    # Two share next to a third; when that ends, one of the two moves to its GPU.
    jobs = trace((0, 1, 20_000), (0, 1, 4000), (0, 1, 20_000))
    outcome = run_shared(jobs, "1x2", "tandem", [[0.6]], [0, 0, 0], preemption_cost_s=60)
    assert outcome.migrations.sum() == 1
    assert outcome.end_s.max() < 30_000


def test_a_worker_that_is_slowed_more_than_was_thought_moves_to_a_better_neighbour() -> None:
    # The first two are put together; both get along with the third, which is alone on its GPU.
    outcome = run_shared(
        trace(*[(0, 1, 5000)] * 3), "1x2", "ojpap", [[1.0, 0.0], [0.0, 0.0]], [0, 0, 1],
        believed_slowdown=[[0.0, 0.1], [0.1, 0.1]],
    )  # fmt: skip
    assert outcome.migrations.sum() == 1
    # They ran at half speed until the first look, and undisturbed from then on.
    lost_s = load_profile("ojpap").adjust.every_s / 2
    assert outcome.end_s.tolist() == pytest.approx([5000 + lost_s, 5000 + lost_s, 5000])


def test_an_adjuster_that_repeats_has_one_next_time_however_many_jobs_start() -> None:
    expected: list[float] = []

    class Counting(Events):
        def expect(self, at_s: float, kind: Kind, *more: int) -> None:
            if kind is Kind.ADJUST:
                expected.append(at_s)
            super().expect(at_s, kind, *more)

    jobs = trace(*((10 * i, 1, 5000) for i in range(4)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tandem.simulator.engine.Events", Counting)
        run_shared(jobs, "1x4", "ojpap", [[0.05]], [0] * 4)
    every_s = load_profile("ojpap").adjust.every_s
    assert len(expected) > 3
    assert np.diff(expected).min() >= every_s


def test_what_happens_in_a_pause_is_decided_on_together_when_it_ends() -> None:
    # One GPU. The first job ends at 5, within the pause after the round at 0.
    jobs = trace((0, 1, 5), (1, 1, 5), (20, 1, 5))
    asked: list[float] = []

    def pause_s(now_s: float) -> float:
        asked.append(now_s)
        return 10.0

    def ends(pause: Callable[[float], float] | None) -> list[float]:
        fifo = load_profile("fifo")
        gpus = gpu_arrays((parse_cluster("1x1"),), shares=fifo.max_jobs_per_gpu)
        world, options = plain_world(jobs, gpus), RunOptions(pause_s=pause)
        engine = Engine(jobs, world.believed, gpus, fifo, world.truth, options=options)
        return engine.run().end_s.tolist()

    assert ends(None) == [5, 10, 25]
    assert ends(pause_s) == [5, 15, 25]
    assert asked[:3] == [0, 10, 20]


def test_the_same_seed_gives_the_same_run() -> None:
    peaky = [(1.0, 10.0, 0.5)] * 6
    jobs = trace(*((10 * i, 1, 500) for i in range(6)))
    runs = [
        run_shared(jobs, "1x2", PAIRS, HALF, [0] * 6, memory=peaky, seed=7).end_s for _ in range(2)
    ]
    assert (runs[0] == runs[1]).all()


def test_a_profile_that_allows_a_job_nowhere_is_named_with_its_jobs() -> None:
    values = load_profile("fifo").model_dump()
    values["constraints"] = [
        {"kind": "shares"},
        {"kind": "interference", "max_interference": 0.0},
        {"kind": "memory_capacity"},
    ]
    with pytest.raises(TandemError, match=r"1 job never got a place: 0"):
        run_shared(
            trace((0, 1, 5)), "1x1", Profile.model_validate(values), HALF, [0], [(99.0, 0.0, 0.0)]
        )


def test_yarn_cs_waits_for_one_machine_and_best_effort_does_not() -> None:
    # One GPU of each machine is taken for 100 s; a job of 4 comes.
    jobs = trace((0, 3, 100), (0, 3, 50), (1, 4, 10))
    assert run(jobs, "2x4", "yarn-cs").end_s[2] == 60
    spread = run(trace((0, 3, 100), (0, 3, 50), (1, 2, 10)), "2x4", "best-effort")
    assert spread.end_s[2] == 11


def test_events_of_one_moment_come_by_kind_whatever_floats_make_of_their_times() -> None:
    events = Events(jobs=2, rows=1)
    events.expect(1000.0, Kind.ARRIVE, 1)
    events.expect(1000.0 + 2e-13, Kind.END, 0)
    events.expect(1000.1, Kind.TICK)
    assert list(events.due(events.next_s)) == [(Kind.END, 0), (Kind.ARRIVE, 1)]
    assert events.next_s == 1000.1


def test_what_becomes_due_on_the_way_comes_in_the_same_moment() -> None:
    events = Events(jobs=2, rows=1)
    events.expect(5.0, Kind.ARRIVE, 0)
    seen = []
    for kind, index in events.due(5.0):
        seen.append((kind, index))
        if kind is Kind.ARRIVE:
            events.expect(5.0 + 1e-12, Kind.END, 1)
    assert seen == [(Kind.ARRIVE, 0), (Kind.END, 1)]


def test_what_was_expected_before_a_change_does_not_come() -> None:
    events = Events(jobs=2, rows=2)
    for version in range(3):
        events.expect(5.0, Kind.END, 0)
        events.expect(6.0, Kind.OOM, 1)
        if version < 2:
            events.void_job(0)
            events.void_row(1)
    events.expect(6.0, Kind.OOM, 0)
    assert list(events.due(5.0)) == [(Kind.END, 0)]
    assert list(events.due(6.0)) == [(Kind.OOM, 0), (Kind.OOM, 1)]
    assert not events
    events.expect(float("inf"), Kind.TICK)
    assert not events
