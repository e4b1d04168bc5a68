"""`tandem simulate` as a user meets it."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tandem.cli.main import main

HEAD = "job_id,submit_time_s,num_gpus,duration_s"
FIGURES = {
    "jobs", "avg_jct_s", "median_jct_s", "p95_jct_s", "p99_jct_s", "makespan_s", "avg_queue_s",
    "preemptions", "migrations", "ooms", "mean_gpu_utilisation", "gpu_seconds", "max_gpus_used",
    "mean_slowdown", "mean_speed", "wall_s",
}  # fmt: skip


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(f"{HEAD}\na,0,2,2\nb,0,1,8\nc,0,2,6\n")
    return path


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def tandem(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Done]:
    """Run the command in this process, as its entry point does."""

    def call(*arguments: object) -> Done:
        monkeypatch.setenv("COLUMNS", "160")
        monkeypatch.setattr(sys, "argv", ["tandem", "simulate", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return Done(int(ended.value.code or 0), said.out, said.err)

    return call


def test_the_worked_example_through_the_command(
    tandem: Callable[..., Done], trace: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    done = tandem(
        "--trace",
        trace,
        "--cluster",
        "1x2",
        "--profile",
        "srsf",
        "--profile",
        "fifo",
        "--json",
        out,
    )
    assert done.returncode == 0, done.stderr
    profiles = json.loads(out.read_text())["profiles"]
    assert list(profiles) == ["srsf", "fifo"]
    assert set(profiles["srsf"]) == FIGURES
    assert profiles["srsf"]["avg_jct_s"] == pytest.approx(28 / 3)
    assert profiles["srsf"]["jobs"] == 3
    assert "srsf" in done.stdout


def test_a_value_is_set_and_json_goes_to_stdout(tandem: Callable[..., Done], trace: Path) -> None:
    done = tandem(
        "--trace", trace, "--cluster", "1x2", "--profile", "tiresias-l",
        "--set", "order.thresholds_gpu_s=[4]", "--json", "-",
    )  # fmt: skip
    figures = json.loads(done.stdout)["profiles"]["tiresias-l"]
    assert figures["avg_jct_s"] == pytest.approx(10)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--profile", "tiresias"], 2, "tiresias-l"),
        (["--profile", "fifo", "--set", "ordr.blocks=true"], 2, "Nearest: order"),
        (["--profile", "fifo", "--set", "order.blocks=perhaps"], 2, "order.fifo.blocks"),
        (["--cluster", "two"], 2, "NODESxGPUS:TYPE"),
        (["--cluster", "1x1"], 1, "a wants 2 GPUs of 1"),
        (["--truth", "absent.json"], 1, "cannot read absent.json"),
        (["--format", "heli"], 2, "helios"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(
    tandem: Callable[..., Done], trace: Path, arguments: list[str], code: int, says: str
) -> None:
    cluster = [] if "--cluster" in arguments else ["--cluster", "1x2"]
    done = tandem("--trace", trace, *cluster, *arguments)
    assert done.returncode == code
    assert says in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_figures_are_shown_even_where_the_file_for_them_cannot_be_written(
    tandem: Callable[..., Done], trace: Path, tmp_path: Path
) -> None:
    found = tmp_path / "absent" / "found.json"
    done = tandem("--trace", trace, "--cluster", "1x2", "--profile", "fifo", "--json", found)
    assert done.returncode == 1
    assert "fifo" in done.stdout
    assert "No such file or directory" in done.stderr
    assert "Traceback" not in done.stderr


def test_profiles_in_parallel_and_pictures(
    tandem: Callable[..., Done], trace: Path, tmp_path: Path
) -> None:
    done = tandem(
        "--trace", trace, "--cluster", "1x2", "--profile", "fifo", "--profile", "srtf",
        "--jobs", 2, "--plots", tmp_path / "plots", "--plot-format", "png",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    names = sorted(path.name for path in (tmp_path / "plots").iterdir())
    assert names == ["completion_times.png", "in_use.png", "table.png", "waiting.png"]
