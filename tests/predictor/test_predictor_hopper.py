"""What ships against an H100 and an H200, of which nothing was learned: pages, and the bars."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from predictor.artifacts import Artifacts
from predictor.load.features import LOAD_FEATURES
from predictor.load.model import MEMORY, UTILISATION, open_load
from predictor.load.predictor import Predictor
from predictor.load.sources import question_step
from predictor.training.load import train_load
from predictor.training.load_evaluation import load_table, rmsle
from predictor.training.profiles import read_measured_pairs
from studies.predictions import h100_mps, hopper
from tandem.errors import TandemError

PAGES = Path(__file__).parents[2] / "docs" / "evidence" / "results"


@pytest.fixture(scope="module")
def measured():
    return hopper.profiles("h100")


@pytest.mark.long
@pytest.mark.parametrize("card", hopper.CARDS)
def test_the_page_is_what_the_measurements_say(card):
    assert (PAGES / f"{card}.md").read_text() == hopper.page(card)


@pytest.mark.long
@pytest.mark.parametrize("card", hopper.CARDS)
@pytest.mark.parametrize("learned", [False, True])
def test_errors_are_below_the_bars(card, learned):
    measured = hopper.profiles(card)
    table = load_table(measured)
    said = hopper.said_of(measured, open_load(None) if learned else None)
    assert rmsle(table.measured[UTILISATION], said.figures[UTILISATION]) < 0.45
    assert rmsle(table.measured[MEMORY], said.figures[MEMORY]) < 0.25
    # One of 44 and one of 26: the same model on both.
    assert (table.measured[MEMORY] > said.memory_p95).sum() <= 1


@pytest.mark.parametrize(("card", "of_none"), [("h100", 0.6), ("h200", 0.75)])
def test_pairs_run_as_time_sharing_says_once_their_jobs_have_run(card, of_none):
    pairs = read_measured_pairs(hopper.collected(card), Predictor())
    records = hopper.alone(card)
    real, said, bound = hopper.speeds(
        pairs, lambda key, load: hopper.after_a_run(load, records[key])
    )
    assert np.abs(real - said).mean() < of_none * np.abs(real - 1).mean()
    assert (real >= bound).mean() >= 0.95


def test_mps_does_more_work_and_is_less_fair_than_time_slicing():
    """Record 76 decides by these."""
    alone = {key: record["measured"]["iterationS"] for key, record in hopper.alone("h100").items()}
    slicing, mps = h100_mps.speeds(alone)
    assert (mps.sum(axis=1) / slicing.sum(axis=1)).mean() > 1
    assert mps.min() < slicing.min()


def test_a_bare_loop_has_neither_input_nor_stall(measured):
    (photos,) = [profile for profile in measured if profile.name == "resnet18"]
    bare = question_step(photos.question())
    usual = question_step(photos.model_copy(update={"bare_loop": False}).question())
    assert bare.busy_seconds == usual.busy_seconds
    # 256 photos at 2 ms on eight CPUs.
    assert usual.seconds > 256 * 2e-3 / 8 > bare.seconds


def test_what_a_bare_loop_shows_of_a_gpu_counts_for_usual_loops(measured):
    usual = [profile.model_copy(update={"bare_loop": False}) for profile in measured]
    here, there = load_table(measured).columns, load_table(usual).columns
    apart = {LOAD_FEATURES[at] for at in np.flatnonzero((here != there).any(axis=0))}
    assert apart == {"formula_log_step_s", "formula_log_utilisation", "formula_compute_share"}


def test_44_rows_are_too_few_to_train_on(measured, tmp_path):
    with pytest.raises(TandemError, match="44 profiles of 38 families are too few"):
        train_load(measured, Artifacts(tmp_path))
