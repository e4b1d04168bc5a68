"""What ships against an H100, of which nothing had been seen: the page, and the bars."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from predictor.artifacts import Artifacts
from predictor.load import Predictor
from predictor.load_evaluation import load_table, rmsle
from predictor.load_features import LOAD_FEATURES
from predictor.load_model import MEMORY, UTILISATION, open_load
from predictor.load_training import train_load
from predictor.profiles import read_measured_pairs
from predictor.sources import question_step
from studies.predictions import h100, h100_mps
from tandem.errors import TandemError

PAGE = Path(__file__).parents[2] / "docs" / "results" / "h100.md"


@pytest.fixture(scope="module")
def measured():
    return h100.profiles()


def test_the_page_is_what_the_measurements_say():
    assert PAGE.read_text() == h100.page()


@pytest.mark.parametrize("learned", [False, True])
def test_errors_are_below_the_bars(measured, learned):
    table = load_table(measured)
    said = h100.said_of(measured, open_load(None) if learned else None)
    assert rmsle(table.measured[UTILISATION], said.figures[UTILISATION]) < 0.45
    assert rmsle(table.measured[MEMORY], said.figures[MEMORY]) < 0.25
    assert (table.measured[MEMORY] > said.memory_p95).mean() < 0.03


def test_pairs_run_as_time_sharing_says_once_their_jobs_have_run():
    pairs = read_measured_pairs(h100.COLLECTED, Predictor())
    records = h100.alone()
    real, said, bound = h100.speeds(pairs, lambda key, load: h100.after_a_run(load, records[key]))
    assert np.abs(real - said).mean() < 0.6 * np.abs(real - 1).mean()
    assert (real >= bound).mean() >= 0.95


def test_mps_does_more_work_and_is_less_fair_than_time_slicing():
    """Record 76 decides by these."""
    alone = {key: record["measured"]["iterationS"] for key, record in h100.alone().items()}
    slicing, mps = h100_mps.speeds(alone)
    assert (mps.sum(axis=1) / slicing.sum(axis=1)).mean() > 1
    assert mps.min() < slicing.min()


def test_a_bare_loop_has_neither_input_nor_stall(measured):
    (photos,) = [profile for profile in measured if profile.name == "resnet18"]
    bare = question_step(photos.question())
    usual = question_step(photos.model_copy(update={"bare_loop": False}).question())
    assert bare.busy_seconds == usual.busy_seconds
    # 256 photos at 4 ms on eight CPUs.
    assert usual.seconds > 256 * 4e-3 / 8 > bare.seconds


def test_what_a_bare_loop_shows_of_a_gpu_counts_for_usual_loops(measured):
    usual = [profile.model_copy(update={"bare_loop": False}) for profile in measured]
    here, there = load_table(measured).columns, load_table(usual).columns
    apart = {LOAD_FEATURES[at] for at in np.flatnonzero((here != there).any(axis=0))}
    assert apart == {"formula_log_step_s", "formula_log_utilisation", "formula_compute_share"}


def test_44_rows_are_too_few_to_train_on(measured, tmp_path):
    with pytest.raises(TandemError, match="44 profiles of 38 families are too few"):
        train_load(measured, Artifacts(tmp_path))
