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
        (["--truth", "absent.json"], 2, "cannot read absent.json"),
        (["--format", "heli"], 2, "helios"),
    ],
)
def test_a_mistake_is_reported_in_a_sentence(
    tandem: Callable[..., Done], trace: Path, arguments: list[str], code: int, says: str
) -> None:
    cluster = [] if "--cluster" in arguments else ["--cluster", "1x2"]
    done = tandem("--trace", trace, *cluster, *arguments)
    assert done.returncode == code
    assert says in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_figures_are_shown_even_where_the_disk_is_full_at_the_end(
    tandem: Callable[..., Done], trace: Path
) -> None:
    done = tandem("--trace", trace, "--cluster", "1x2", "--profile", "fifo", "--json", "/dev/full")
    assert done.returncode == 1
    assert "fifo" in done.stdout
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long
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


# A model that runs at half its speed next to itself on a K80, and at 0.8 of it on a V100.
PAIRS = {
    "k80": {"a": {"null": 10.0, "a": [5.0, 5.0]}},
    "v100": {"a": {"null": 10.0, "a": [8.0, 8.0]}},
}


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    path = tmp_path / "pair.csv"
    path.write_text(f"{HEAD}\na,0,1,100\nb,0,1,100\n")
    return path


def truth_file(tmp_path: Path, pairs: dict) -> Path:
    path = tmp_path / "pairs.json"
    path.write_text(json.dumps(pairs))
    return path


@pytest.mark.parametrize(
    ("kinds", "cluster", "mean_jct_s"),
    [
        (["k80", "v100"], "1x1:K80-12G", 200),
        (["k80", "v100"], "1x1:V100", 125),
        (["k80"], "1x1:k80-12G", 200),
    ],
)
def test_interference_is_that_of_the_gpu_type_of_the_cluster(
    tandem: Callable[..., Done],
    pair: Path,
    tmp_path: Path,
    kinds: list[str],
    cluster: str,
    mean_jct_s: float,
) -> None:
    truth = truth_file(tmp_path, {kind: PAIRS[kind] for kind in kinds})
    done = tandem(
        "--trace", pair, "--cluster", cluster, "--truth", truth,
        "--profile", "xonar-fifo-pairs", "--json", "-",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)["profiles"]["xonar-fifo-pairs"]
    assert figures["avg_jct_s"] == pytest.approx(mean_jct_s)


def test_on_a_cluster_of_two_gpu_types_each_pair_has_the_slowdown_of_its_gpu(
    tandem: Callable[..., Done], tmp_path: Path
) -> None:
    four = tmp_path / "four.csv"
    four.write_text(f"{HEAD}\n" + "".join(f"{name},0,1,100\n" for name in "abcd"))
    done = tandem(
        "--trace", four, "--cluster", "1x1:V100", "--cluster", "1x1:K80-12G",
        "--truth", truth_file(tmp_path, PAIRS), "--profile", "xonar-fifo-pairs", "--json", "-",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)["profiles"]["xonar-fifo-pairs"]
    assert figures["avg_jct_s"] == pytest.approx((125 + 125 + 200 + 200) / 4)


def test_a_gpu_type_that_was_not_measured_is_refused_with_those_that_were(
    tandem: Callable[..., Done], pair: Path, tmp_path: Path
) -> None:
    done = tandem(
        "--trace", pair, "--cluster", "1x1:A100", "--truth", truth_file(tmp_path, PAIRS)
    )  # fmt: skip
    assert done.returncode == 1
    said = done.stderr.replace("\n", " ")
    assert "'A100'" in said
    assert "k80, v100" in said


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "table",
    [
        {"a": {"null": 10.0}},  # no pair was measured
        {"a": {"null": 10.0, "a": [5, 5], "b": [0, 0]}, "b": {"null": 4.0, "a": [0, 0]}},
    ],
)
@pytest.mark.parametrize("profile", ["tandem", "ojpap", "sjf-bsbf", "xonar"])
def test_models_that_fit_next_to_no_other_raise_no_warning(
    tandem: Callable[..., Done], pair: Path, tmp_path: Path, table: dict, profile: str
) -> None:
    truth = truth_file(tmp_path, {"v100": table})
    done = tandem(
        "--trace", pair, "--cluster", "1x2:V100", "--truth", truth, "--profile", profile
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_replay_in_which_no_job_can_share_says_so_and_what_is_missing(
    tandem: Callable[..., Done], trace: Path, tmp_path: Path
) -> None:
    done = tandem("--trace", trace, "--cluster", "1x2", "--profile", "tandem")
    assert done.returncode == 0
    said = " ".join(done.stderr.split())
    assert "no two share a GPU" in said
    assert "--truth" in said
    loads = tmp_path / "loads.csv"
    loads.write_text(f"{HEAD},model\na,0,2,2,bert\nb,0,1,8,vgg\n")
    done = tandem("--trace", loads, "--cluster", "1x2", "--profile", "tandem")
    assert "best case" in " ".join(done.stderr.split())


@pytest.mark.parametrize("option", ["--json", "--plots"])
def test_an_output_that_cannot_be_written_is_refused_before_the_replay(
    tandem: Callable[..., Done],
    trace: Path,
    tmp_path: Path,
    option: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def replayed(*_: object, **__: object) -> None:
        raise AssertionError("the replay has begun")

    monkeypatch.setattr("tandem.simulator.run.run_profiles", replayed)
    (tmp_path / "file").write_text("")
    done = tandem("--trace", trace, "--cluster", "1x2", option, tmp_path / "file" / "out")
    assert done.returncode == 2
    assert option in done.stderr
    assert "Not a directory" in done.stderr


def test_plots_without_the_library_are_refused_before_the_replay(
    tandem: Callable[..., Done], trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replayed(*_: object, **__: object) -> None:
        raise AssertionError("the replay has begun")

    monkeypatch.setattr("tandem.simulator.run.run_profiles", replayed)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = tandem("--trace", trace, "--cluster", "1x2", "--plots", tmp_path / "plots")
    assert done.returncode == 1
    assert "matplotlib" in done.stderr
    assert "pip install" in done.stderr


ELASTIC = f"{HEAD},min_gpus,throughput"


def test_the_command_says_how_often_elastic_jobs_were_resized(
    tandem: Callable[..., Done], tmp_path: Path
) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"{ELASTIC}\na,0,3,10,,\ne,0,4,100,1,1:1 4:4\nf,0,4,100,1,\n")
    arguments = "--trace", path, "--cluster", "1x4", "--profile", "fifo", "--resize-cost", 0
    done = tandem(*arguments, "--json", "-")
    document = json.loads(done.stdout)
    found = document["profiles"]["fifo"]
    assert found.keys() == FIGURES | {"resizes", "shrinks"}
    assert (found["resizes"], found["shrinks"]) == (1, 0)
    assert found["mean_gpu_utilisation"] == pytest.approx(100.0)
    (assumed,) = document["assumed"]
    assert assumed.startswith("1 elastic job of the trace has no throughput")
    assert " ".join(assumed.split()) in " ".join(done.stderr.split())
    assert "resizes" in tandem(*arguments).stdout


def test_a_resize_costs_what_the_command_says(tandem: Callable[..., Done], tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"{ELASTIC}\na,0,3,10,,\ne,0,4,100,1,1:1 4:4\n")
    arguments = "--trace", path, "--cluster", "1x4", "--profile", "fifo", "--json", "-"
    spans = [
        json.loads(tandem(*arguments, *cost).stdout)["profiles"]["fifo"]["makespan_s"]
        for cost in (("--resize-cost", 0), ("--resize-cost", 5), ())
    ]
    assert spans == pytest.approx([107.5, 112.5, 167.5])


def test_of_a_trace_without_elastic_jobs_nothing_more_is_said(
    tandem: Callable[..., Done], tmp_path: Path
) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"{ELASTIC}\na,0,3,10,3,\ne,0,4,100,,\n")
    done = tandem("--trace", path, "--cluster", "1x4", "--profile", "fifo", "--json", "-")
    document = json.loads(done.stdout)
    assert document["profiles"]["fifo"].keys() == FIGURES
    assert "assumed" not in document
