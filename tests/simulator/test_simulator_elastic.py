"""Elastic jobs in the simulator: they start small, grow into idle GPUs, and shrink for others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_builders import trace

from tandem.errors import TandemError
from tandem.policy.catalog import load_profile
from tandem.policy.elastic import SMALLER_FOR_S
from tandem.simulator.cluster import gpu_arrays, parse_cluster, racks
from tandem.simulator.elastic import in_pods
from tandem.simulator.engine import Engine, RunOptions
from tandem.simulator.jobs import TraceJob
from tandem.simulator.outcome import Outcome
from tandem.simulator.run import Setup, check_fits
from tandem.simulator.traces import read_trace
from tandem.simulator.truth import Latency, MemoryCourse
from tandem.simulator.world import plain_world

PROFILES = ("tandem", "fifo", "srtf", "tiresias-l", "sjf-bsbf", "gandiva")
SHARED_PROFILES = ("tandem", "srtf")


def elastic(
    name: str, submit_s: float, least: int, most: int, duration_s: float, *per_s: tuple[int, float]
) -> TraceJob:
    """Return a job that runs on from `least` to `most` GPUs."""
    return TraceJob(name, submit_s, most, duration_s, min_gpus=least, throughput=per_s)


def run(
    jobs: Sequence[TraceJob], cluster: str, profile: str, slowdown: float = 0.0, **truth: object
) -> Outcome:
    """Run jobs; with `slowdown` GPUs are shared, and each neighbour costs that much."""
    chosen, nodes = load_profile(profile), parse_cluster(cluster)
    gpus = gpu_arrays([nodes], shares=chosen.max_jobs_per_gpu)
    world = plain_world(jobs, gpus)
    believed = list(world.believed)
    if slowdown:
        table = np.array([[0.0, 0.0, 0.0], [0.0, np.inf, np.inf], [0.0, np.inf, slowdown]])
        truth |= {"slowdown": table, "job_class": np.full(len(jobs), 2)}
        believed = [
            replace(job, interference_class=2, own_slowdown=table[2], caused_slowdown=table[:, 2])
            for job in believed
        ]
    options = RunOptions(record_decisions=True, topology=racks([nodes]))
    changed = replace(world.truth, **truth)
    return Engine(jobs, believed, gpus, chosen, changed, options=options).run()


def held(jobs: Sequence[TraceJob], outcome: Outcome) -> list[tuple[float, dict[str, int]]]:
    """Return from when on which jobs have how many GPUs."""
    ends = [(float(t), "end", job.id, ()) for t, job in zip(outcome.end_s, jobs, strict=True)]
    now: dict[str, int] = {}
    found = []
    for at_s, verb, name, rows in sorted(
        [*outcome.decisions, *ends], key=lambda each: (each[0], each[1] != "end")
    ):
        if verb in ("end", "stop"):
            del now[name]
        else:
            now[name] = len(rows)
        found.append((at_s, dict(now)))
    return found


def test_a_job_starts_with_what_is_free_and_grows_once_gpus_are_idle() -> None:
    # 10 s on 1 of 4 GPUs, then 90 s of 4 GPUs are left but for what one did in 10 s.
    jobs = [*trace((0, 3, 10)), elastic("e", 0, 1, 4, 100)]
    outcome = run(jobs, "1x4", "fifo")
    assert outcome.end_s.tolist() == [10, 10 + 100 - 2.5]
    assert outcome.grown.tolist() == [0, 1]


def test_without_its_minimum_it_waits() -> None:
    outcome = run([*trace((0, 3, 10)), elastic("e", 0, 2, 4, 100)], "1x4", "fifo")
    assert outcome.end_s.tolist() == [10, 110]
    assert outcome.resizes.sum() == 0  # what it gets when it starts is no resize


def test_it_gets_smaller_before_it_is_stopped_for_a_shorter_job() -> None:
    jobs = [elastic("e", 0, 1, 4, 1000), TraceJob("b", 10, 2, 30)]
    outcome = run(jobs, "1x4", "srtf")
    assert outcome.preemptions.tolist() == [0, 0]
    assert outcome.shrunk.tolist() == [1, 0]
    assert outcome.end_s[1] == 40
    # It had 4 GPUs for 10 s, 2 for as long as it stays smaller, and 4 again.
    assert outcome.end_s[0] == pytest.approx(1000 + SMALLER_FOR_S / 2)


def test_a_job_that_is_fixed_is_stopped_where_elastic_ones_are_too_small() -> None:
    jobs = [elastic("e", 0, 3, 4, 1000), TraceJob("b", 10, 2, 30)]
    outcome = run(jobs, "1x4", "srtf")
    assert outcome.preemptions.tolist() == [1, 0]
    assert outcome.shrunk.sum() == 0


def test_another_job_is_spared_by_one_that_gets_smaller() -> None:
    # The longest is stopped for the third; the elastic one behind it in the order gives a GPU up.
    jobs = [TraceJob("a", 0, 2, 500), elastic("e", 0, 1, 2, 1000), TraceJob("b", 10, 1, 30)]
    outcome = run(jobs, "1x4", "srtf")
    assert outcome.preemptions.sum() == 0
    assert outcome.shrunk.tolist() == [0, 1, 0]


def test_no_job_is_stopped_for_one_that_grows() -> None:
    # The elastic job has the better right to every GPU, and only the minimum is worth a preemption.
    jobs = [TraceJob("long", 0, 3, 5000), elastic("e", 10, 1, 4, 100)]
    outcome = run(jobs, "1x4", "srtf")
    assert outcome.preemptions.sum() == 0
    assert outcome.end_s[1] == pytest.approx(10 + 400)


def test_it_runs_as_fast_as_its_throughput_says() -> None:
    points = (1, 10.0), (2, 19.0), (4, 30.0)
    outcome = run([elastic("e", 0, 1, 4, 100, *points)], "1x2", "fifo")
    assert outcome.end_s.tolist() == pytest.approx([100 * 30 / 19])
    assert elastic("e", 0, 1, 4, 100, *points).speed_with(3) == pytest.approx(24.5 / 30)


def test_a_resize_costs_and_a_second_one_meanwhile_only_begins_it_anew() -> None:
    jobs = [*trace((0, 2, 10), (0, 1, 30)), elastic("e", 0, 1, 4, 1000)]
    free = run(jobs, "1x4", "fifo").end_s[2]
    outcome = run(jobs, "1x4", "fifo", resize_cost_s=60.0)
    assert outcome.resizes.tolist() == [0, 0, 2]
    # It does nothing from 10 to 90: for 20 s on three GPUs, and for 60 s on all four.
    assert outcome.end_s[2] == pytest.approx(free + 20 * 3 / 4 + 60)
    assert outcome.overhead_s[2] == pytest.approx(20 * 3 / 4 + 60)


def test_service_counts_the_gpus_that_it_held() -> None:
    jobs = [*trace((0, 3, 10)), elastic("e", 0, 1, 4, 100)]
    chosen = load_profile("fifo")
    gpus = gpu_arrays([parse_cluster("1x4")], shares=1)
    world = plain_world(jobs, gpus)
    engine = Engine(jobs, world.believed, gpus, chosen, world.truth)
    engine.run()
    assert engine.board.arrays.attained_at_since[:2].tolist() == pytest.approx([30, 10 + 97.5 * 4])


def test_pods_that_join_stay_in_the_rack_of_their_job() -> None:
    jobs = [
        TraceJob("a", 0, 4, 10),
        TraceJob("b", 0, 2, 200),
        replace(elastic("e", 0, 2, 8, 1000), required_topology="rack"),
    ]
    outcome = run(jobs, "4x2:V100/2", "fifo")
    rows = [set(rows) for _, _, name, rows in outcome.decisions if name == "e"]
    assert {frozenset(row // 4 for row in at) for at in rows} in (
        {frozenset({0})},
        {frozenset({1})},
    )


def test_while_a_job_has_yet_to_begin_it_does_not_grow() -> None:
    jobs = [*trace((0, 3, 10)), elastic("e", 0, 1, 4, 100)]
    latency = Latency(start_s=np.array([0.0, 50.0]), release_s=np.zeros(2))
    outcome = run(jobs, "1x4", "fifo", latency=latency)
    assert [at_s for at_s, verb, *_ in outcome.decisions if verb == "grow"] == [50.0]


def test_memory_that_runs_over_takes_a_job_back_to_its_minimum() -> None:
    # Two of 10 GiB do not fit on a GPU of 12: the newcomer goes, on both GPUs that it has.
    jobs = [TraceJob("a", 0, 2, 50), elastic("e", 5, 1, 2, 100)]
    memory = {"memory": [MemoryCourse(10.0, 0.0, 0.0)] * 2, "memory_gib": np.full(2, 12.0)}
    outcome = run(jobs, "1x2", "xonar-fifo-pairs", slowdown=1e-9, **memory)
    assert outcome.ooms.tolist() == [0, 1]
    sizes = [len(rows) for _, verb, name, rows in outcome.decisions if name == "e"]
    assert sizes == [1, 2, 1, 2]
    assert outcome.end_s.tolist() == pytest.approx([50, 150], abs=0.2)


@st.composite
def workloads(draw: st.DrawFn) -> list[TraceJob]:
    """Jobs that fit on eight GPUs, some of them elastic."""
    jobs = []
    for number in range(draw(st.integers(1, 9))):
        most = draw(st.integers(1, 8))
        speed = sorted(draw(st.lists(st.floats(1, 100), min_size=most, max_size=most)))
        job = TraceJob(
            str(number), draw(st.integers(0, 300)), most, draw(st.integers(1, 2000)),
            min_gpus=draw(st.one_of(st.none(), st.integers(1, most))),
        )  # fmt: skip
        if job.is_elastic and draw(st.booleans()):
            job = replace(job, throughput=tuple(enumerate(speed, 1)))
        jobs.append(job)
    return sorted(jobs, key=lambda job: job.submit_s)


@pytest.mark.parametrize("profile", PROFILES)
@settings(max_examples=15, deadline=None)
@given(jobs=workloads(), cost_s=st.sampled_from([0.0, 60.0]))
def test_whatever_happens_sizes_keep_to_their_bounds_and_all_work_is_done(
    profile: str, jobs: list[TraceJob], cost_s: float
) -> None:
    outcome = run(jobs, "2x4", profile, resize_cost_s=cost_s)
    of = {job.id: job for job in jobs}
    work_s = dict.fromkeys(of, 0.0)
    before_s, before = 0.0, dict[str, int]()
    for at_s, now in held(jobs, outcome):
        for name, gpus in before.items():
            assert of[name].least_gpus <= gpus <= of[name].gpus
            work_s[name] += (at_s - before_s) * of[name].speed_with(gpus)
        assert sum(now.values()) <= 8
        before_s, before = at_s, now
    wanted_s = [job.duration_s for job in jobs] + outcome.overhead_s
    assert list(work_s.values()) == pytest.approx(wanted_s, rel=1e-6, abs=1e-3)


@pytest.mark.parametrize("profile", SHARED_PROFILES)
@settings(max_examples=15, deadline=None)
@given(jobs=workloads())
def test_where_gpus_are_shared_all_jobs_end_and_keep_to_their_bounds(
    profile: str, jobs: list[TraceJob]
) -> None:
    outcome = run(jobs, "2x4", profile, slowdown=0.3, resize_cost_s=60.0)
    of = {job.id: job for job in jobs}
    for _, now in held(jobs, outcome):
        assert all(of[name].least_gpus <= gpus <= of[name].gpus for name, gpus in now.items())
        assert sum(now.values()) <= 16


def test_pods_of_one_job_are_on_different_gpus() -> None:
    jobs = [
        elastic("e", 0, 1, 6, 257), *trace((0, 4, 1), (1, 3, 333), (1, 8, 1)),
    ]  # fmt: skip
    outcome = run(jobs, "2x4", "tandem", slowdown=0.3, resize_cost_s=60.0)
    starts = [rows for _, verb, _, rows in outcome.decisions if verb != "stop"]
    assert starts
    assert all(len(set(rows)) == len(rows) for rows in starts)


@pytest.mark.parametrize("profile", PROFILES)
@settings(max_examples=15, deadline=None)
@given(jobs=workloads())
def test_a_minimum_of_all_that_a_job_wants_changes_nothing_in_a_single_bit(
    profile: str, jobs: list[TraceJob]
) -> None:
    fixed = [replace(job, min_gpus=None, throughput=()) for job in jobs]
    same = [
        replace(job, min_gpus=job.gpus, throughput=tuple((n, 7.0) for n in range(1, job.gpus + 1)))
        for job in jobs
    ]
    one, other = run(fixed, "2x4", profile), run(same, "2x4", profile)
    assert one.end_s.tobytes() == other.end_s.tobytes()
    assert one.decisions == other.decisions
    assert one.busy_gpu_s == other.busy_gpu_s


@settings(max_examples=25, deadline=None)
@given(jobs=workloads())
def test_no_gpu_is_idle_while_a_running_job_wants_it(jobs: list[TraceJob]) -> None:
    outcome = run(jobs, "1x8", "fifo")
    of = {job.id: job for job in jobs}
    states = held(jobs, outcome)
    for (at_s, now), (next_s, _) in pairwise(states):
        wanted = sum(of[name].gpus - gpus for name, gpus in now.items())
        assert next_s == at_s or not wanted or sum(now.values()) == 8


def test_pods_of_several_gpus_grow_and_shrink_as_wholes() -> None:
    jobs = [
        replace(elastic("e", 0, 2, 8, 1000), gpus_per_pod=2),
        TraceJob("b", 10, 3, 30),
    ]
    outcome = run(jobs, "2x4", "srtf")
    sizes = [rows for _, _, name, rows in outcome.decisions if name == "e"]
    assert all(len(rows) % 2 == 0 for rows in sizes)
    assert outcome.shrunk.tolist() == [1, 0]
    node = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    for rows in sizes:
        for pod in in_pods(np.array(rows), node, 2):
            assert len(pod) == 2
            assert len({row // 4 for row in pod}) == 1
    with pytest.raises(ValueError, match="2 GPUs a pod"):
        run([replace(elastic("e", 0, 1, 4, 10), gpus_per_pod=2)], "1x4", "fifo")


def test_the_gpus_of_a_pod_are_those_of_one_node() -> None:
    node = np.array([0, 0, 1, 1])
    assert in_pods(np.array([0, 2, 1, 3]), node, 2) == [(0, 1), (2, 3)]
    assert in_pods(np.array([3, 0]), node, 1) == [(3,), (0,)]


def test_a_job_fits_by_its_minimum() -> None:
    nodes = (parse_cluster("1x4:V100"),)
    check_fits(Setup((elastic("e", 0, 4, 9, 10),), nodes))
    with pytest.raises(TandemError, match="e wants 5 GPUs at least of 4"):
        check_fits(Setup((elastic("e", 0, 5, 9, 10),), nodes))


# --- traces ----------------------------------------------------------------

HEAD = "job_id,submit_time_s,num_gpus,duration_s,min_gpus,throughput"


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join((HEAD, *lines)) + "\n")
    return path


def test_the_columns_of_elastic_jobs_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "a,0,4,10,2,2:19.5 4:36", "b,0,4,10,,", "c,0,4,10,1,")
    a, b, c = read_trace(path).jobs
    assert (a.min_gpus, a.throughput) == (2, ((2, 19.5), (4, 36.0)))
    assert (b.min_gpus, b.throughput, b.is_elastic) == (None, (), False)
    assert (c.min_gpus, c.is_elastic, c.speed_with(1)) == (1, True, 0.25)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ("5,", "min_gpus 5 is above num_gpus 4"),
        ("0,", "min_gpus '0' must be at least 1"),
        ("1,1:1 2", "throughput '2' must be GPUs:throughput, as in 2:19.5"),
        ("1,1:1 2:fast 4:2", "throughput 'fast' is not a number"),
        ("1,1:0 4:2", "throughput '0' must be above 0"),
        ("1,4:2 1:1", "throughput must have each number of GPUs once, the fewest first"),
        ("1,2:1 4:2", "throughput goes from 2 to 4 GPUs, and must go from 1 to 4"),
        ("1,1:1 2:2", "throughput goes from 1 to 2 GPUs, and must go from 1 to 4"),
    ],
)
def test_what_is_wrong_with_an_elastic_job_is_said(
    tmp_path: Path, columns: str, reason: str
) -> None:
    read = read_trace(write(tmp_path / "t.csv", "a,0,1,5,,", f"x,0,4,5,{columns}"))
    assert read.skipped == ((3, reason),)
