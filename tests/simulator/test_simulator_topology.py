"""Racks in the simulator: jobs that require or prefer one, and runs without them as before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.errors import TandemError, UsageError
from tandem.policy.catalog import load_profile
from tandem.simulator.cluster import Nodes, gpu_arrays, parse_cluster, racks
from tandem.simulator.engine import Engine, RunOptions
from tandem.simulator.jobs import TraceJob
from tandem.simulator.outcome import Outcome
from tandem.simulator.run import Setup, check_fits
from tandem.simulator.traces import read_trace
from tandem.simulator.world import plain_world


def run(trace: list[TraceJob], cluster: str, profile: str, *, topology: bool = True) -> Outcome:
    nodes, chosen = (parse_cluster(cluster),), load_profile(profile)
    gpus = gpu_arrays(nodes, shares=chosen.max_jobs_per_gpu)
    world = plain_world(trace, gpus)
    options = RunOptions(record_decisions=True, topology=racks(nodes) if topology else None)
    engine = Engine(trace, world.believed, gpus, chosen, world.truth, options=options)
    return engine.run()


def random_trace(seed: int, *, asks: str) -> list[TraceJob]:
    rng = np.random.default_rng(seed)
    return [
        TraceJob(
            str(i), float(rng.uniform(0, 500)), int(rng.choice([1, 2, 4, 8])),
            float(rng.uniform(50, 500)), **({asks: "rack"} if asks and rng.random() < 0.5 else {}),
        )
        for i in range(30)
    ]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("profile", ["tandem", "fifo", "tiresias-g", "horus", "srtf"])
@given(seed=st.integers(0, 10**6))
@settings(max_examples=8, deadline=None)
def test_a_job_that_requires_a_rack_runs_in_one(profile: str, seed: int) -> None:
    trace = sorted(random_trace(seed, asks="required_topology"), key=lambda job: job.submit_s)
    outcome = run(trace, "6x4:V100/2", profile)
    of = {job.id: job for job in trace}
    starts = [(name, rows) for _, verb, name, rows in outcome.decisions if verb == "start"]
    assert {name for name, _ in starts} == set(of)
    for name, rows in starts:
        in_racks = {row // 8 for row in rows}
        assert len(in_racks) == 1 or of[name].required_topology is None


@pytest.mark.parametrize("profile", ["tandem", "fifo", "horus"])
def test_jobs_that_ask_for_nothing_run_as_without_a_topology(profile: str) -> None:
    trace = sorted(random_trace(7, asks=""), key=lambda job: job.submit_s)
    with_it = run(trace, "6x4:V100/2", profile)
    without = run(trace, "6x4:V100/2", profile, topology=False)
    assert with_it.decisions == without.decisions
    assert with_it.end_s.tobytes() == without.end_s.tobytes()


def test_a_rack_that_is_taken_in_front_of_a_job_does_not_hold_it_up() -> None:
    first = TraceJob("first", 0.0, 8, 1000.0, required_topology="rack")
    second = replace(first, id="second")
    outcome = run([first, second], "4x4:V100/2", "fifo")
    assert outcome.end_s.tolist() == [1000.0, 1000.0]


def test_a_preferred_rack_keeps_a_gang_together() -> None:
    small = [TraceJob(f"s{i}", 0.0, 1, 5000.0) for i in range(3)]
    gang = TraceJob("gang", 1.0, 8, 100.0, preferred_topology="rack")
    outcome = run([*small, gang], "4x4:V100/2", "fifo")
    rows = next(rows for _, _, name, rows in outcome.decisions if name == "gang")
    assert {row // 8 for row in rows} == {1}


def test_racks_of_a_cluster() -> None:
    assert parse_cluster("5x8:V100/2").nodes_per_rack == 2
    assert parse_cluster("5x8/2") == Nodes(5, 8, nodes_per_rack=2)
    assert racks((parse_cluster("5x8"),)) is None
    mixed = (parse_cluster("3x1/2"), parse_cluster("1x1"), parse_cluster("2x1:A100-80G/1"))
    topology = racks(mixed)
    assert topology is not None
    assert topology.domain[:, 0].tolist() == [0, 0, 1, -1, 2, 3]
    assert gpu_arrays(mixed).rack.tolist() == [1, 1, 2, 0, 3, 4]
    with pytest.raises(UsageError, match="racks without nodes"):
        parse_cluster("5x8/0")


def test_a_trace_may_name_the_level(tmp_path: Path) -> None:
    head = "job_id,submit_time_s,num_gpus,duration_s,required_topology,preferred_topology\n"
    file = tmp_path / "trace.csv"
    file.write_text(head + "a,0,2,10,rack,\nb,1,2,10,,rack\nc,2,2,10,zone,\n")
    trace = read_trace(file)
    assert [job.required_topology for job in trace.jobs] == ["rack", None]
    assert [job.preferred_topology for job in trace.jobs] == [None, "rack"]
    assert trace.skipped == ((4, "required_topology 'zone' must be rack, or empty"),)


@pytest.mark.parametrize(("cluster", "largest"), [("4x4/1", 4), ("4x4", 0)])
def test_a_job_that_no_rack_holds_is_refused_before_the_run(cluster: str, largest: int) -> None:
    trace = (TraceJob("wide", 0.0, 8, 10.0, required_topology="rack"),)
    with pytest.raises(TandemError, match=f"wide wants 8 GPUs of one rack.*{largest}"):
        check_fits(Setup(trace, (parse_cluster(cluster),)))
