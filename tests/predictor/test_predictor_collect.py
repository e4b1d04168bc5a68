"""The collector: its plan, its file, its processes, and PyTorch itself where there is one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from predictor.collect import __main__ as command
from predictor.collect import plan, runner
from predictor.collect.catalog import MODELS, PLAIN
from predictor.collect.records import Records
from predictor.load.predictor import Predictor
from predictor.training.profiles import is_collected, read_measured_pairs, read_profiles
from tandem.cli.main import build_app
from tandem.gpu_types import GIB

ROOT = Path(__file__).parents[2]
FAKE = "fake_backend:FakeBackend"


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


def collect(out: Path, *options: str) -> int:
    fixed = ["--device", "cpu", "--seconds", "0.01", "--warm", "1", "--backend", FAKE]
    return command.main(["--out", str(out), *fixed, *options])


def lines(file: Path, kind: str) -> list[dict]:
    found = [json.loads(line) for line in file.read_text().splitlines()]
    return [record for record in found if record["kind"] == kind]


# --- the plan ---------------------------------------------------------------------------------


def test_the_plan_has_many_models_before_it_has_many_configurations_of_each():
    models = plan.available([])
    planned = list(plan.solo(models))
    assert len(models) >= 40
    assert len({model.family for model in models}) >= 30
    assert len(planned) == len({config.key for config in planned}) >= 300
    assert len({config.model for config in planned[: len(models)]}) == len(models)
    for model in models:
        own = [config for config in planned if config.model == model.name]
        assert {config.batch for config in own} == set(model.batches)
        assert {config.precision for config in own} == set(plan.PRECISIONS)
        assert {config.optimizer for config in own} == set(plan.OPTIMIZERS)
        assert {config.sequence for config in own} == set(model.sequences or (None,))


def test_libraries_add_models_and_names_are_unique():
    everything = plan.available(["torchvision", "timm", "transformers"])
    assert len(everything) == len({model.name for model in everything})
    assert len(everything) == sum(map(len, MODELS.values())) >= 75
    assert [m.name for m in plan.available([], "^resnet50$")] == ["resnet50"]


def test_groups_fit_and_bring_new_pairs():
    memory = {f"job-{i}": (5 + i) * GIB for i in range(12)}
    families = {key: f"family-{int(key[4:]) % 4}" for key in memory}
    done: set[str] = set()
    for _ in range(100):
        group = plan.next_group(memory, families, done, 80 * GIB, 5)
        if not group:
            break
        assert 2 <= len(group) <= 5
        assert sum(memory[key] for key in group) <= 0.85 * 80 * GIB
        pairs = list(plan.new_pairs(group, done))
        assert pairs
        done |= {plan.pair_key(*pair) for pair in pairs}
    assert len(done) == 66
    first = plan.next_group(memory, families, set(), 80 * GIB, 4)
    assert len({families[key] for key in first}) == 4


# --- the file and the processes ---------------------------------------------------------------


@pytest.mark.slow
def test_a_run_is_recorded_and_gone_on_with(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "_PREPARE_S", 15.0)
    out = tmp_path / "profiles.jsonl"
    chosen = "^(resnet50|alexnet|vgg16|lenet|mlp)$"
    options = ("--models", chosen, "--variants", "1", "--minutes", "30")
    assert collect(out, *options, "--only", "solo") == 0
    status = {record["model"]: record["status"] for record in lines(out, "solo")}
    assert status == {
        "resnet50": "ok", "alexnet": "ok", "vgg16": "oom", "lenet": "crashed", "mlp": "timeout",
    }  # fmt: skip
    (crash,) = [r for r in lines(out, "solo") if r["model"] == "lenet"]
    assert "code 3" in crash["error"]
    assert "about to crash" in crash["error"]
    (header,) = lines(out, "header")
    assert header["gpu"]["model"] == "Fake GPU"
    measured = {r["model"]: r.get("measured") for r in lines(out, "solo")}["resnet50"]
    assert measured["memoryPeakBytes"] == measured["reservedPeakBytes"] + (1 << 29)
    # Again, with a line that a kill cut off: nothing is measured twice.
    with out.open("a") as file:
        file.write('{"kind": "solo", "key": "cut o')
    assert collect(out, *options, "--pair-share", "0.5") == 0
    assert len(lines(out, "solo")) == 5
    assert len(lines(out, "graph")) == 5
    assert len(lines(out, "header")) == 2
    (pair,) = lines(out, "pair")
    assert pair["status"] == "ok"
    assert pair["slowdown"] == [0, 0]
    assert 0 <= pair["overlap"] <= 1


def test_a_measurement_waits_for_no_export(tmp_path, monkeypatch):
    out = tmp_path / "profiles.jsonl"
    monkeypatch.setenv("FAKE_EXPORT_WAITS_FOR_TWO_IN", str(out))
    options = ("--models", "^(resnet50|bert-base)$", "--variants", "1", "--minutes", "2")
    assert collect(out, *options, "--only", "solo") == 0
    assert len(lines(out, "solo")) == 2
    assert all("layers" in graph for graph in lines(out, "graph"))
    assert len(lines(out, "graph")) == 2


def test_a_graph_that_a_kill_left_out_is_made_by_the_next_run(tmp_path):
    out = tmp_path / "profiles.jsonl"
    options = ("--models", "^(resnet50|bert-base)$", "--variants", "1", "--minutes", "2")
    assert collect(out, *options, "--only", "solo") == 0
    kept = [line for line in out.read_text().splitlines() if '"kind":"graph"' not in line]
    out.write_text("\n".join(kept) + "\n")
    assert collect(out, *options, "--only", "solo") == 0
    assert len(lines(out, "solo")) == 2
    assert len(lines(out, "graph")) == 2


def test_memory_of_a_process_is_a_difference_of_the_same_counter():
    """NVML counts what the driver reserves, and CUDA does not: figures of an H100."""
    reserved_by_driver, context = 503_316_480, 806_144_000
    ran = {"iterations": 97, "iterationS": 0.015, "iterationMeanS": 0.0156,
           "allocatedPeakBytes": 922_060_800, "reservedPeakBytes": 1_103_101_952,
           "reservedBytes": 1_103_101_952, "deviceUsedBytes": 1_103_101_952 + context}  # fmt: skip
    before, after = reserved_by_driver, reserved_by_driver + ran["deviceUsedBytes"]
    measured = runner._measured(ran, runner.Window(), before, after)
    assert measured["memoryPeakBytes"] == ran["reservedPeakBytes"] + context
    assert runner._measured(ran, runner.Window(), None, None) == measured


def test_no_time_is_no_measurement(tmp_path):
    out = tmp_path / "profiles.jsonl"
    assert collect(out, "--minutes", "0") == 1
    assert not lines(out, "solo")


def test_a_file_of_another_gpu_is_left_alone(tmp_path, monkeypatch, capsys):
    out = tmp_path / "profiles.jsonl"
    collect(out, "--minutes", "0")
    before = out.read_bytes()
    monkeypatch.setenv("FAKE_GPU", "Another GPU")
    assert collect(out, "--minutes", "1") == 1
    assert "name another file" in capsys.readouterr().err
    assert out.read_bytes() == before


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_kill_leaves_a_good_file_and_no_process(tmp_path, monkeypatch, how):
    out, pids = tmp_path / "profiles.jsonl", tmp_path / "pids"
    pids.mkdir()
    process = subprocess.Popen(
        [
            sys.executable, "-m", "predictor.collect", "--out", str(out), "--device", "cpu",
            "--backend", FAKE, "--seconds", "0.05", "--models", "resnet|bert", "--minutes", "30",
        ],
        cwd=ROOT,
        env=os.environ
        | {"FAKE_PIDS": str(pids), "PYTHONPATH": f"{Path(__file__).parent}:{ROOT}"},
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for(lambda: out.exists() and out.read_bytes().count(b"\n") > 3)
    finally:
        process.send_signal(how)
        process.wait(60)
    wait_for(lambda: not any(alive(int(path.name)) for path in pids.iterdir()))
    seen = Records(out).seen
    assert [record["kind"] for record in seen[:1]] == ["header"]
    assert sum(record["kind"] == "solo" for record in seen) >= 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_kill_during_a_finaliser_ends_the_run(tmp_path, monkeypatch, capsys):
    class Finaliser:
        def __del__(self):  # Python drops what the handler raises here
            os.kill(os.getpid(), signal.SIGTERM)

    class OnceFinalised(Records):
        def append(self, record):
            super().append(record)
            if record["kind"] == "solo":
                Finaliser()

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(command, "Records", OnceFinalised)
    try:
        assert collect(tmp_path / "profiles.jsonl", "--models", "resnet", "--minutes", "1") == 1
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "the same command goes on from here" in capsys.readouterr().err
    assert len(Records(tmp_path / "profiles.jsonl").of_kind("solo")) == 1


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1][:3]
    except FileNotFoundError:
        return False


def wait_for(condition) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# --- from the file to training ----------------------------------------------------------------


def test_what_was_collected_can_be_trained_on(tmp_path):
    out = tmp_path / "profiles.jsonl"
    options = ("--models", "^(resnet50|bert-base|lstm-lm)$", "--minutes", "30", "--group", "3")
    assert collect(out, *options, "--variants", "2", "--pairs", "6") == 0
    assert is_collected(out)
    profiles = read_profiles(out)
    assert len(profiles) == 6
    assert {profile.family for profile in profiles} == {"resnet", "bert", "lstm"}
    assert all(profile.origin == "measured" for profile in profiles)
    assert all(profile.features.flops == 1e9 for profile in profiles)
    pairs = read_measured_pairs(out, Predictor())
    assert len(pairs) == len(lines(out, "pair")) == 6
    assert all(pair.first.load.compute_share is not None for pair in pairs)
    assert pairs[0].first.speed == 1


def test_the_command_line(tmp_path):
    shown = CliRunner().invoke(build_app(), ["profile", "collect", "--help"])
    assert shown.exit_code == 0
    assert "--minutes" in shown.output
    wrong = CliRunner().invoke(build_app(), ["profile", "collect", "--out", "x", "--models", "("])
    assert wrong.exit_code == 2
    missing = CliRunner().invoke(build_app(), ["profile", "collect"])
    assert missing.exit_code == 2


# --- NVML -------------------------------------------------------------------------------------


@pytest.mark.long
def test_figures_of_the_driver_through_a_simulated_library(tmp_path):
    from node_agent.stub import StubGpu, StubState, build, environment

    state = StubState()
    state.gpus = [StubGpu("GPU-0", gpm=0.5), StubGpu("GPU-1")]
    file = tmp_path / "state"
    state.write(file)
    script = (
        "import json, time\n"
        "from predictor.collect.nvml import Watch, open_nvml\n"
        "gpu = open_nvml('GPU-0')\n"
        "with Watch(gpu) as watch:\n"
        "    time.sleep(0.8)\n"
        "w = watch.window\n"
        "print(json.dumps([gpu.driver_version(), w.source, len(w.utilisation), w.gpm,\n"
        "                  max(w.memory_used_bytes), gpu.utilisation_percent()]))\n"
    )
    library = build(Path(os.environ.get("XDG_CACHE_HOME", tmp_path)))
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False,
        env=os.environ | environment(library, file) | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    driver, source, count, gpm, used, percent = json.loads(done.stdout)
    assert driver
    assert source in ("samples", "rates")
    assert count > 0
    assert "smActivePercent" in gpm
    assert used >= 0
    assert 0 <= percent <= 100


def test_without_a_driver_figures_are_absent():
    script = (
        "from predictor.collect.nvml import Watch, open_nvml\n"
        "with Watch(None) as watch:\n"
        "    pass\n"
        "assert not watch.window.utilisation and not watch.window.gpm\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)


# --- PyTorch itself ---------------------------------------------------------------------------


def python_with_torch() -> str:
    """Return a Python that can import torch; skips the test, in words, where there is none."""
    tried = dict.fromkeys(
        filter(None, (os.environ.get("TANDEM_TORCH_PYTHON"), sys.executable,
                      shutil.which("python3"), "/usr/bin/python3"))
    )  # fmt: skip
    for python in tried:
        asked = subprocess.run([python, "-c", "import torch"], capture_output=True, check=False)
        if asked.returncode == 0:
            return python
    pytest.skip(
        f"no PyTorch in {', '.join(tried)} (or TANDEM_TORCH_PYTHON): models were not built, run "
        "or exported; all else of the collector ran on a stand-in"
    )


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_real_collector_on_a_cpu(tmp_path):
    python = python_with_torch()
    out = tmp_path / "profiles.jsonl"
    done = subprocess.run(
        [
            python, "-m", "predictor.collect", "--device", "cpu", "--out", str(out),
            "--models", "^(lenet|gru-lm)$", "--variants", "1", "--seconds", "0.2",
            "--minutes", "19", "--warm", "0", "--group", "2", "--pairs", "1",
        ],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [r["status"] for r in lines(out, "solo")] == ["ok"] * 2, out.read_text()[-2000:]
    for record in lines(out, "solo"):
        assert record["measured"]["iterationS"] > 0
        assert "utilisationPercent" not in record["measured"]  # a CPU has none: absent, not zero
    (pair,) = lines(out, "pair")
    assert pair["status"] == "ok"
    by_layers = {r["model"]: r["layers"] for r in lines(out, "graph")}
    # LeNet on 32 pixels: 2 (28^2 x 6 x 75 + 10^2 x 16 x 150 + 400 x 120 + 120 x 10).
    assert by_layers["lenet"]["flops"] == 2 * (352800 + 240000 + 48000 + 1200)
    assert by_layers["lenet"]["parameters"] == 6 * 76 + 16 * 151 + 401 * 120 + 121 * 10
    for profile in read_profiles(out):
        layers = by_layers[profile.name]
        # The exported graph and the layers tell of the same model.
        assert profile.features.flops == pytest.approx(layers["flops"], rel=0.02)
        assert profile.features.parameters == pytest.approx(layers["parameters"], rel=0.02)


def test_every_plain_model_is_named_once():
    assert len({model.name for model in PLAIN}) == len(PLAIN)
