"""The formulas against published measurements, and partners on types of GPU left out."""

from __future__ import annotations

import numpy as np
import pytest
from predictor_graphs import measured_data, measured_matrix

from predictor.interference.model import PREDICTED_SLOPE
from predictor.load import spread
from predictor.load.equations import time_shared_speed
from studies.predictions import loads, runs, unseen
from studies.predictions.__main__ import (
    USED,
    calibrated,
    calibrated_after_one_run,
    families_of,
    inside_of,
)
from studies.predictions.interference import measured_pairs
from studies.predictions.measured import P100, measured
from studies.predictions.pairs import best_of, coverage, in_total, in_turns, rows_of, spearman
from tandem.simulator.gavel import load_matrix
from tandem.simulator.traces import read_trace


@pytest.fixture(scope="module")
def configurations():
    return loads.known(measured(measured_data()))


def test_every_model_that_was_rebuilt_is_measured(configurations):
    assert {row.model for row in configurations} == set(loads.features())
    assert len(configurations) > 200


def test_memory_of_pytorch_jobs_from_the_graph(configurations):
    """The bar: an error of 0.30, and p95 too low for 3 % at most."""
    found = loads.memory([row for row in configurations if row.source == "carma"])
    errors = loads.errors(found)
    assert errors["log_error"] < 0.30
    assert errors["too_low"] <= 0.03


def test_the_bound_holds_for_an_allocator_that_doubles(configurations):
    found = loads.memory([row for row in configurations if row.source == "miso"])
    assert loads.errors(found)["too_low"] <= 0.03


def test_utilisation_from_the_graph_and_after_one_run(configurations):
    """The bars: 0.50 from the graph, 0.35 with a measured run."""
    rows = [row for row in configurations if row.utilisation is not None]
    assert loads.errors(loads.utilisation(rows))["rmsle"] < 0.50
    again = loads.after_one_run(
        rows,
        lambda row: row.utilisation,
        lambda load: (load.utilisation_percent, load.utilisation_p95_percent),
    )
    assert loads.errors(again)["rmsle"] < 0.35


def test_the_time_of_a_step_on_another_type_of_gpu_follows_from_a_measured_one(configurations):
    rows = [
        row for row in configurations if row.source == "gavel" and not loads.is_input_bound(row)
    ]
    again = loads.after_one_run(
        rows, lambda row: row.step_s, lambda load: (load.iteration_s or 1.0,) * 2, same_gpu=False
    )
    assert len(again) == len(rows)
    # Half of what the first formula of steps was off by, from the graph: 0.51 to 0.59.
    assert loads.errors(again)["log_error"] < 0.25
    assert loads.errors(loads.steps(rows))["log_error"] < 0.45


def test_memory_of_tensorflow_jobs_from_the_graph(configurations):
    """The same bars, for what the allocator holds and for what it has given out."""
    for source in ("miso", "salus"):
        errors = loads.errors(loads.memory([r for r in configurations if r.source == source]))
        assert errors["log_error"] < 0.30
        assert errors["too_low"] <= 0.03


def test_intervals_hold_for_families_left_out(configurations):
    """The bar: 85 to 95 %. What is in use is what all families together give.

    After one run there are six to eight families: with one more that is worse than all, the
    interval is that of the worst of them, which is wider than it has to be.
    """
    figures = calibrated(configurations) | calibrated_after_one_run(configurations)
    assert figures.keys() == USED.keys()
    for figure, groups in figures.items():
        found = spread.conformal(list(families_of(groups).values()))
        assert found == pytest.approx(USED[figure], rel=0.02), figure
        inside = [each.mean() for found in inside_of(groups).values() for each in found]
        assert np.mean(inside) >= 0.85, figure
        assert np.mean(inside) <= 0.95 or "after one run" in figure, figure


def test_two_hundred_runs_halve_the_errors_on_a_type_of_gpu_that_no_model_knows():
    """Utilisations and pairs, each run predicted before it is fed back."""
    pairs = [
        p for p in measured_pairs(measured_matrix(), measured_solo=True) if p.gpu_model == "p100"
    ]
    found = np.mean([runs.errors(pairs, P100, 240, seed) for seed in range(2)], axis=0)
    taught, first = found[runs.TAUGHT :].mean(axis=0), found[: runs.FIRST].mean(axis=0)
    assert (taught < 0.6 * first).all()
    assert taught[0] < 0.1 * first[0]


def test_unseen_models_are_not_worse_than_exclusive_gpus_and_exceed_no_memory():
    """`tandem` against `tiresias-l` where every pair is out of the domain."""
    data = measured_data()
    matrix = load_matrix(data / "colocation" / "gavel-oracle-v100-p100.json")
    solo = {n: float(r["null"]) for n, r in measured_matrix()["v100"].items()}
    trace = read_trace(data / "traces" / "philly-103959.csv", strict=True).jobs[:100]
    factors = unseen.memory_factors(data)
    alone, shared = (
        unseen.outcome(case, trace, matrix, solo, factors, 0) for case in ("tiresias-l", "unseen")
    )
    assert shared.all_s <= alone.all_s
    assert shared.kills == 0
    assert shared.error > 0.2


@pytest.mark.parametrize(("measured_solo", "slope"), [(False, PREDICTED_SLOPE), (True, 1.0)])
def test_partners_ranked_by_time_sharing_are_better_than_random_on_every_type(measured_solo, slope):
    rows = rows_of(measured_pairs(measured_matrix(), measured_solo=measured_solo))
    for gpu in np.unique(rows.gpu):
        own = rows.of(rows.gpu == gpu)
        speed = in_turns(own, time_shared_speed(own.total) ** slope)
        assert spearman(speed, own.speed) > (0.49 if measured_solo else 0.65)
        assert best_of(own, speed) > 0.5
        # Mean absolute errors were 0.133 and 0.131 by the busy share of the utilisation.
        assert measured_solo or np.abs(speed - own.speed).mean() < 0.13
        assert coverage(own, speed) > 0.9
        assert coverage(*in_total(own, speed)) > 0.9


@pytest.mark.slow
def test_what_has_run_is_planned_with_what_was_learned():
    """The bar: after 500 jobs within 5 % of perfect predictions, and no kill.

    With this seed 7.9 % are left where the memory of models that have run is not learned.
    """
    data = measured_data()
    matrix = load_matrix(data / "colocation" / "gavel-oracle-v100-p100.json")
    solo = {n: float(r["null"]) for n, r in measured_matrix()["v100"].items()}
    trace = read_trace(data / "traces" / "philly-103959.csv", strict=True).jobs[:1000]
    factors = unseen.memory_factors(data)
    perfect, learning = (
        unseen.outcome(case, trace, matrix, solo, factors, 7) for case in ("perfect", "learning")
    )
    assert learning.later_s <= 1.05 * perfect.later_s
    assert learning.kills == 0
