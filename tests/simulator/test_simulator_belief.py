"""What is true of pairs, and what the policies believe of it."""

import json
from pathlib import Path

import numpy as np
import pytest
from simulator_builders import SHARED, needs_data

from tandem.errors import TandemError
from tandem.simulator.belief import cross_fitted, noisy
from tandem.simulator.gavel import draw_memory, load_matrix

SMALL = {
    "v100": {
        "a": {"null": 10.0, "a": [5.0, 5.0], "b": [8.0, 3.0]},
        "b": {"null": 4.0, "a": [3.0, 8.0], "b": [0.0, 0.0]},
    }
}


def test_slowdown_is_solo_over_together_and_0_is_out_of_memory(tmp_path: Path) -> None:
    path = tmp_path / "pairs.json"
    path.write_text(json.dumps(SMALL))
    matrix = load_matrix(path)
    assert matrix.names == ("a", "b")
    assert matrix.slowdown.tolist() == [[1.0, 0.25], [pytest.approx(1 / 3), np.inf]]


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pairs.json"
    path.write_text("[]")
    with pytest.raises(TandemError, match="no table of pair throughputs"):
        load_matrix(path)


def test_a_pair_is_predicted_without_having_been_seen() -> None:
    rng = np.random.default_rng(0)
    slowdown = rng.uniform(0.1, 1.5, size=(8, 8))
    families = np.arange(8) // 2
    before = cross_fitted(slowdown, families).slowdown
    changed = slowdown.copy()
    changed[2, 5] = 40.0
    after = cross_fitted(changed, families).slowdown
    assert after[2, 5] == pytest.approx(before[2, 5])
    assert after[5, 2] == pytest.approx(before[5, 2])
    assert not np.allclose(after, before)


def test_noise_has_the_error_that_was_asked_for() -> None:
    rng = np.random.default_rng(0)
    truth = rng.uniform(0.5, 2, size=(60, 60))
    believed = noisy(truth, 0.1, rng).slowdown
    assert np.abs((1 + believed) / (1 + truth) - 1).mean() == pytest.approx(0.1, rel=0.1)


@needs_data
def test_measured_pairs_are_predicted_and_their_memory_is_consistent() -> None:
    matrix = load_matrix(SHARED / "colocation" / "gavel-oracle-v100-p100.json")
    assert int(np.triu(~matrix.fits).sum()) == 23
    stems = [name.split(" (")[0] for name in matrix.names]
    families = np.array([sorted(set(stems)).index(stem) for stem in stems])
    assert cross_fitted(matrix.slowdown, families).mean_relative_error < 0.08
    for seed in range(5):
        courses = draw_memory(matrix, 16.0, np.random.default_rng(seed))
        peak = np.array([course.peak_gib for course in courses])
        together = peak[:, None] + peak[None, :]
        assert (together[~matrix.fits] > 16).all()
        assert (together[matrix.fits] <= 16).mean() > 0.95
        assert peak.max() < 16
