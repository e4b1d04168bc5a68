"""Locality: what spreading a gang over nodes costs in truth, and who avoids it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from simulator_builders import SHARED, needs_data, run, trace

from tandem.policy.board import Board
from tandem.policy.catalog import Profile, load_profile
from tandem.policy.equations.tiresias import learned_pack_limit, spread_price
from tandem.policy.job import Job
from tandem.policy.jobs import JobArrays
from tandem.simulator.cluster import Nodes, gpu_arrays
from tandem.simulator.engine import Engine
from tandem.simulator.run import Setup
from tandem.simulator.spread import load_spread
from tandem.simulator.world import plain_world

TABLE = {
    "v100": {
        "('LM (batch size 5)', 1)": {"null": 100.0, "('LM (batch size 5)', 1)": [80.0, 80.0]},
        "('LM (batch size 5)', 2)": {"null": 180.0},
        "('LM (batch size 5)', 4)": {"null": 120.0},
        "('LM (batch size 9)', 4)": {"null": 90.0},
        "('ResNet (batch size 5)', 4)": {"null": 50.0},
    },
    "v100_unconsolidated": {
        "('LM (batch size 5)', 2)": {"null": 60.0},
        "('LM (batch size 5)', 4)": {"null": 40.0},
        "('LM (batch size 9)', 4)": {"null": 45.0},
        "('ResNet (batch size 5)', 4)": {"null": 60.0},
    },
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rates.json"
    path.write_text(json.dumps(TABLE))
    return path


def test_spreading_costs_the_ratio_of_the_rates_and_never_speeds_up(file: Path) -> None:
    table = load_spread(file, "V100")
    assert table is not None
    assert table.of("LM (batch size 5)", 1) == 0.0
    assert table.of("LM (batch size 5)", 2) == pytest.approx(2.0)
    assert table.of("LM (batch size 5)", 3) == pytest.approx(2.0)  # as 4
    assert table.of("LM (batch size 5)", 16) == pytest.approx(2.0)  # as 4, the largest
    assert table.of("ResNet (batch size 5)", 4) == 0.0
    assert table.of("GAN", 4) == pytest.approx(1.0)  # the median of 2, 1 and 0


def test_a_prediction_is_made_without_the_measurement_itself(file: Path) -> None:
    table = load_spread(file, "v100")
    assert table is not None
    assert table.predicted("LM (batch size 5)", 4) == pytest.approx(1.0)  # the other batch size
    assert table.predicted("ResNet (batch size 5)", 4) == pytest.approx(
        1.5
    )  # the median of 2 and 1


def test_a_file_without_unconsolidated_rates_has_no_cost_of_spreading(tmp_path: Path) -> None:
    path = tmp_path / "rates.json"
    path.write_text(json.dumps({"v100": TABLE["v100"]}))
    assert load_spread(path, "v100") is None


def test_a_simulation_takes_the_cost_from_the_file_of_its_truth(file: Path) -> None:
    setup = Setup(tuple(trace((0, 4, 100))), (Nodes(2, 2),), file)
    world = setup.world(setup.gpus(2))
    assert world.truth.spread_slowdown.tolist() == [2.0]
    assert world.believed[0].spread_slowdown == pytest.approx(1.0)


@needs_data
def test_gavel_s_language_model_on_eight_v100s() -> None:
    table = load_spread(SHARED / "colocation" / "gavel-simulation-v100-p100.json", "v100")
    assert table is not None
    # 698.77 steps/s on one node, 73.12 spread.
    assert table.of("LM (batch size 5)", 8) == pytest.approx(
        698.773292956699 / 73.11997842291213 - 1
    )
    assert table.of("ResNet-50 (batch size 64)", 8) == 0.0


# --- who avoids it ------------------------------------------------------------------------------


def spread_world(jobs, gpus, slowdown: list[float]):
    world = plain_world(jobs, gpus)
    truth = replace(world.truth, spread_slowdown=np.array(slowdown))
    believed = [
        replace(job, spread_slowdown=s, checkpointable=True, exclusive=True)
        for job, s in zip(world.believed, slowdown, strict=True)
    ]
    return truth, believed


def without_locality() -> Profile:
    values = load_profile("tandem").model_dump()
    values["dispatch"]["locality"] = False
    return Profile.model_validate(values)


def test_a_gang_takes_the_empty_node_and_not_the_rests_of_two() -> None:
    # Nodes of 4: a job of one GPU on the first, then a gang of four (skew 0.715, so 1.07).
    jobs = trace((0, 1, 1000), (1, 4, 100))
    gpus = gpu_arrays([Nodes(2, 4)], shares=2)
    truth, believed = spread_world(jobs, gpus, [0.0, 1.07])
    ends = {}
    for name, profile in (("with", load_profile("tandem")), ("without", without_locality())):
        ends[name] = Engine(jobs, believed, gpus, profile, truth).run().end_s[1]
    assert ends["with"] == pytest.approx(101)
    assert ends["without"] == pytest.approx(1 + 100 * 2.07)


def test_a_gang_of_which_nothing_is_lost_takes_what_there_is() -> None:
    jobs = trace((0, 1, 1000), (1, 4, 100))
    gpus = gpu_arrays([Nodes(1, 3), Nodes(1, 2)], shares=2)
    truth, believed = spread_world(jobs, gpus, [0.0, 0.0])
    outcome = Engine(jobs, believed, gpus, load_profile("tandem"), truth).run()
    assert outcome.end_s[1] == pytest.approx(101)


def board_of(jobs: list[Job], nodes: Nodes, **placed: list[int]) -> Board:
    board = Board.of(jobs, JobArrays.of(jobs), gpu_arrays([nodes]))
    for name, rows in placed.items():
        board.place(int(name[1:]), np.array(rows))
    return board


def test_a_gang_larger_than_a_node_takes_the_fewest_nodes() -> None:
    jobs = [Job(id="a", exclusive=True), Job(id="b", exclusive=True),
            Job(id="gang", pods=8, exclusive=True, spread_slowdown=1.0)]  # fmt: skip
    board = board_of(jobs, Nodes(4, 4), j0=[0], j1=[8])
    profile = load_profile("tandem")
    profile.dispatch(board, np.arange(3), profile.pipeline(), False)
    assert board.rows_of[2].tolist() == [4, 5, 6, 7, 12, 13, 14, 15]


def test_pods_of_two_gpus_stay_on_one_node_where_it_has_room() -> None:
    gang = Job(id="gang", pods=2, gpus_per_pod=2, exclusive=True, spread_slowdown=1.0)
    jobs = [Job(id="a", exclusive=True), gang]
    board = board_of(jobs, Nodes(2, 4), j0=[0])
    profile = load_profile("tandem")
    profile.dispatch(board, np.arange(2), profile.pipeline(), False)
    assert board.rows_of[1].tolist() == [4, 5, 6, 7]


def test_a_spread_gang_moves_together_when_a_node_becomes_free() -> None:
    # Nodes of 4. From 100 s on the gang runs spread, at a third of its speed, next to a job on
    # GPUs of both nodes; when that one ends at 300 s, the gang has done 66.7 s of 10,000.
    jobs = trace((0, 1, 100), (0, 4, 300), (1, 4, 10_000))
    gpus = gpu_arrays([Nodes(2, 4)], shares=2)
    truth, believed = spread_world(jobs, gpus, [0.0, 0.0, 2.0])
    ends = [
        Engine(jobs, believed, gpus, profile, truth).run().end_s[2]
        for profile in (load_profile("tandem"), without_locality())
    ]
    assert ends == pytest.approx([300 + 10_000 - 200 / 3, 100 + 30_000])


def test_what_is_not_spread_decides_as_before() -> None:
    jobs = trace((0, 1, 300), (5, 2, 200), (7, 4, 100), (9, 1, 50))
    priced = load_profile("tandem")
    assert (
        run(jobs, "2x2", priced).end_s.tolist()
        == run(jobs, "2x2", without_locality()).end_s.tolist()
    )


# --- the price ----------------------------------------------------------------------------------


def test_the_price_grows_with_skew_and_size() -> None:
    # 2 x 0.715 x 3/4; 2 x 0.092 x 7/8; one GPU cannot be spread.
    price = spread_price(np.array([0.715, 0.092, 0.7]), np.array([4, 8, 1]))
    assert price == pytest.approx([1.0725, 0.161, 0.0])


def test_the_pack_limit_is_learned_from_gangs_that_ran_spread() -> None:
    skew = np.array([0.05, 0.1, 0.6, 0.7])
    assert learned_pack_limit(skew, np.array([0, 0.02, 0.4, 0.9]), 0.1) == pytest.approx(0.35)
    assert learned_pack_limit(skew, np.array([0, 0.3, 0.4, 0.9]), 0.1) == pytest.approx(0.075)
    assert learned_pack_limit(skew, np.zeros(4), 0.1) == 0.5
    assert learned_pack_limit(np.zeros(0), np.zeros(0), 0.1) == 0.5
