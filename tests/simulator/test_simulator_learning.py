"""The simulator learns from pairs that run, as the cluster does."""

from dataclasses import replace

import numpy as np
import pytest
from simulator_builders import SHARED, needs_data, run_shared, trace

from tandem.policy.adjust.learn import Learn
from tandem.policy.catalog import load_profile
from tandem.simulator.cluster import gpu_arrays, parse_cluster
from tandem.simulator.jobs import TraceJob
from tandem.simulator.run import Setup, learner_of, run_profile
from tandem.simulator.traces import read_trace
from tandem.simulator.world import plain_world

LEARN = Learn(once=True, weight_of_past=0.0)
#: Two classes that are believed to get along, and take turns of a tenth of the speed.
BAD = {"slowdown": [[0.0, 9.0], [9.0, 0.0]], "believed_slowdown": [[0.0, 0.05], [0.05, 0.0]]}


def pairs_in_turn(count: int) -> tuple[list[TraceJob], list[int]]:
    """Jobs of 1,000 s in pairs of both classes, each pair after the one before has ended."""
    jobs = [(40_000.0 * (i // 2) + i % 2, 1, 1000.0) for i in range(2 * count)]
    return trace(*jobs), [i % 2 for i in range(2 * count)]


def test_a_pair_that_gets_along_badly_is_not_made_again() -> None:
    jobs, classes = pairs_in_turn(3)
    plain = run_shared(jobs, "1x1", "tandem", classes=classes, **BAD)
    learned = run_shared(jobs, "1x1", "tandem", classes=classes, learner=LEARN, **BAD)
    slow = plain.end_s - plain.submit_s
    assert slow.min() > 5000  # all six share, at a tenth of their speed
    completion = learned.end_s - learned.submit_s
    assert completion[2:].reshape(2, 2).tolist() == [
        pytest.approx([1000, 1999], abs=70),
        pytest.approx([1000, 1999], abs=70),
    ]


def test_guarded_parts_a_pair_that_is_measured_to_be_slower_than_promised() -> None:
    wrong = {"slowdown": [[0.0, 1.0], [0.2, 0.0]], "believed_slowdown": [[0.0, 0.2], [0.2, 0.0]]}
    jobs = trace((0, 1, 1000), (0, 1, 3000))
    off = run_shared(jobs, "1x1", "tandem-guarded", classes=[0, 1], learner=LEARN, **wrong)
    # Half as fast for the 60 s until it is measured, then alone once the other has ended.
    assert (off.duration_s / off.run_s)[0] == pytest.approx(1000 / 1030)
    assert off.preemptions.tolist() == [1, 0]
    plain = run_shared(jobs, "1x1", "tandem", classes=[0, 1], learner=LEARN, **wrong)
    assert plain.preemptions.sum() == 0  # no promise: together they are faster than in turn


def test_who_learns_is_who_learns_in_a_cluster() -> None:
    gpus = gpu_arrays([parse_cluster("1x1")])
    world = plain_world(trace((0, 1, 10)), gpus)
    assert learner_of(load_profile("tandem"), world) == LEARN
    assert learner_of(load_profile("tandem-guarded"), world) == LEARN
    for name in ("ojpap", "horus", "sjf-bsbf", "tiresias-l"):
        assert learner_of(load_profile(name), world) is None
    # Predictions are of one type of GPU: what another one shows must not replace them.
    several = replace(world.truth, slowdown_by_type=np.zeros((2, 2, 2)))
    assert learner_of(load_profile("tandem"), replace(world, truth=several)) is None


@needs_data
def test_runs_of_a_trace_learn_unless_switched_off() -> None:
    jobs = read_trace(SHARED / "traces" / "philly-ed69ec.csv", "csv", strict=False).jobs[:80]
    matrix = SHARED / "colocation" / "gavel-oracle-v100-p100.json"
    setup = Setup(jobs, (parse_cluster("1x8"),), matrix, belief_error=0.5)
    learned = run_profile(setup, load_profile("tandem")).report
    off = run_profile(replace(setup, learns=False), load_profile("tandem")).report
    assert learned.mean_speed > off.mean_speed
