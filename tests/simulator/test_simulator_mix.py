"""The default mix of `--truth mix`: where it is from, and that a run says what it assumes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from studies.profiles.mix import tables
from tandem.cli.main import main
from tandem.simulator.gavel import load_matrix
from tandem.simulator.mix import FILE, TYPES

Run = Callable[..., tuple[dict, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Replay 60 jobs of the four mandatory columns on 8 GPUs that they fill."""
    trace = tmp_path / "jobs.csv"
    rows = "".join(f"j{n},{60 * n},{1 + n % 2},{3000 + 70 * (n % 7)}\n" for n in range(60))
    trace.write_text("job_id,submit_time_s,num_gpus,duration_s\n" + rows)

    def called(*more: str, cluster: str = "2x4:V100") -> tuple[dict, str]:
        words = ["--trace", str(trace), "--cluster", cluster, "--json", "-", *more]
        monkeypatch.setattr(sys, "argv", ["tandem", "simulate", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        said = capsys.readouterr()
        return json.loads(said.out), " ".join(said.err.split())

    return called


def test_the_file_is_what_the_shipped_model_says() -> None:
    assert json.loads(FILE.read_text()) == tables(), "run python -m studies.profiles.mix"


def test_each_type_has_all_configurations_and_slowdowns_of_pairs() -> None:
    for kind in TYPES:
        matrix = load_matrix(FILE, kind)
        assert len(matrix.names) == 26
        assert matrix.fits.all()
        assert 0.2 < float(np.median(matrix.slowdown)) < 1.0
        # A pair does more work than a job alone, if often not by much.
        speed = 1 / (1 + matrix.slowdown)
        assert float(np.mean(speed + speed.T)) > 1.1


def test_a_first_trial_shows_what_sharing_could_bring_and_says_what_it_assumes(run: Run) -> None:
    profiles = ("--profile", "fifo", "--profile", "tandem")
    shared, said = run("--truth", "mix", *profiles)
    assert "default mix of loads, and not yours" in said
    assert "estimates" in said
    assert "is taken to slow" not in said
    assert " ".join(shared["assumed"]) == said
    alone, said = run(*profiles)
    assert "--truth mix" in said
    assert "assumed" not in alone
    assert alone["profiles"]["tandem"]["mean_speed"] == 1.0
    ours, fifo = shared["profiles"]["tandem"], shared["profiles"]["fifo"]
    assert ours["mean_speed"] < 1.0
    assert fifo["mean_speed"] == 1.0
    assert ours["avg_jct_s"] < fifo["avg_jct_s"]


def test_a_type_that_the_mix_lacks_is_said_to_be_taken_for_another(run: Run) -> None:
    _, said = run("--truth", "mix", "--profile", "tandem", cluster="2x4:A100")
    assert "A100 is taken to slow jobs down as a V100 does." in said


@pytest.mark.parametrize("truth", ["mix", "none"])
def test_a_table_says_that_its_figures_are_estimates(
    truth: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a run says before it is on another stream: a file with the table lacks it."""
    (tmp_path / "jobs.csv").write_text("job_id,submit_time_s,num_gpus,duration_s\na,0,1,60\n")
    words = ["--trace", str(tmp_path / "jobs.csv"), "--cluster", "1x1:V100", "--truth", truth]
    monkeypatch.setattr(sys, "argv", ["tandem", "simulate", *words])
    with pytest.raises(SystemExit):
        main()
    said = "Estimates with a default mix of loads, and not yours." in capsys.readouterr().out
    assert said is (truth == "mix")


def test_a_seed_draws_other_loads(run: Run) -> None:
    found = [
        run("--truth", "mix", "--profile", "tandem", "--seed", seed)[0] for seed in ("0", "0", "1")
    ]
    figures = [each["profiles"]["tandem"]["avg_jct_s"] for each in found]
    assert figures[0] == figures[1] != figures[2]
