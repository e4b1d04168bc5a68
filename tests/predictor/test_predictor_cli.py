"""`tandem model` and `tandem predict` against a live service, as users run them."""

from __future__ import annotations

import json
import threading
import time

import pytest
import uvicorn
from command_tree import whole_tree
from predictor_graphs import LIGHT, bert_base, light
from typer.testing import CliRunner

from predictor.service.app import create_app
from predictor.service.config import PredictorConfig
from predictor.service.store import ClusterProfileStore
from tandem.cli.complete import completions
from tandem.cli.main import build_app
from tandem.errors import TandemError, UsageError
from tandem.kube.memory import MemoryCluster

RESNET = str(LIGHT / "light_resnet50.onnx")


@pytest.fixture(scope="module")
def server():
    config = PredictorConfig(upload_bytes=1 << 20)
    app = create_app(config, ClusterProfileStore(MemoryCluster()))
    service = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None))
    thread = threading.Thread(target=service.run)
    thread.start()
    while not service.started:
        time.sleep(0.01)
    port = service.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    service.should_exit = True
    thread.join()


def tandem(*arguments, server=None):
    result = CliRunner().invoke(
        build_app(), list(arguments), env={"TANDEM_PREDICTOR": server, "COLUMNS": "120"}
    )
    if isinstance(result.exception, TandemError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.long
def test_a_model_goes_in_and_comes_out(server):
    assert "25.61 M" in tandem("model", "push", RESNET, "--name", "resnet-50", server=server)
    listed = json.loads(tandem("model", "list", "--json", server=server))
    assert [model["name"] for model in listed] == ["resnet-50"]
    assert "resnet-50" in tandem("model", "list", server=server)
    shown = json.loads(tandem("model", "show", "resnet-50", "--json", server=server))
    assert shown["fileBytes"] == len(light("resnet50"))
    options = ["--batch-size", "32", "--gpu", "Tesla V100-SXM2-16GB", "--json"]
    asked = json.loads(tandem("predict", "--model", "resnet-50", *options, server=server))
    here = json.loads(tandem("predict", RESNET, *options))
    assert asked == here
    tandem("model", "delete", "resnet-50", server=server)
    assert json.loads(tandem("model", "list", "--json", server=server)) == []


def test_a_file_is_named_after_itself(server):
    pushed = json.loads(tandem("model", "push", RESNET, "--json", server=server))
    assert pushed["name"] == "light-resnet50"


def test_predict_prints_a_table_with_its_sources():
    printed = tandem("predict", RESNET, "--batch-size", "32", "--memory", "12Gi")
    assert "declared" in printed
    assert "formula" in printed
    assert "12.0 GiB" in printed


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (["predict", "nowhere.onnx"], UsageError, "Cannot read nowhere.onnx"),
        (["predict", "."], UsageError, "is a directory"),
        (["predict", __file__], TandemError, "not an ONNX file"),
        (["predict", RESNET, "--model", "m"], UsageError, "not both"),
        (["predict", "--memory", "a lot"], UsageError, "is not a quantity"),
        (["predict", "--memory", "-1"], UsageError, "must not be negative"),
        (["model", "push", "nowhere.onnx"], UsageError, "Cannot read"),
        (["model", "push", __file__], TandemError, "not an ONNX file"),
        (["model", "push", RESNET, "--name", "Bad_Name"], TandemError, "Bad_Name"),
        (["model", "show", "nope"], TandemError, "no model 'nope'"),
        (["model", "show", "../../healthz"], TandemError, "Not Found"),
        (["model", "delete", "nope"], TandemError, "no model 'nope'"),
    ],
)
def test_mistakes_are_explained(server, arguments, kind, words):
    with pytest.raises(kind, match=words):
        tandem(*arguments, server=server)


def test_a_file_over_the_servers_limit_is_explained(server, tmp_path):
    big = tmp_path / "big.onnx"
    big.write_bytes(bytes(8 << 20))
    with pytest.raises(TandemError, match="larger than 1048576 bytes"):
        tandem("model", "push", str(big), server=server)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "nonsense", "ftp://x"])
def test_a_server_that_is_not_there_is_explained(url):
    with pytest.raises(TandemError, match="cannot be reached") as caught:
        tandem("model", "list", server=url)
    assert "--server" in caught.value.hint


@pytest.mark.slow
def test_predict_takes_everything_that_an_annotation_says():
    """Each option that the formulas use changes the prediction, and none is left out."""
    base = ["predict", RESNET, "--batch-size", "32", "--gpu", "NVIDIA A100-SXM4-40GB", "--json"]
    before = json.loads(tandem(*base))["load"]
    changes = {
        "--accumulation-steps": ["--accumulation-steps", "4"],
        "--precision": ["--precision", "bf16"],
        "--optimizer": ["--optimizer", "adam-8bit"],
        "--framework": ["--framework", "jax"],
        "--parallelism": ["--parallelism", "fsdp", "--workers", "8"],
        "--gradient-checkpointing": ["--gradient-checkpointing"],
        "--gpu-memory": ["--gpu-memory", "4Gi"],
    }
    for name, options in changes.items():
        after = json.loads(tandem(*base, *options))["load"]
        assert after["memoryP95Bytes"] != before["memoryP95Bytes"], name


def test_predict_has_an_option_for_each_annotation_of_a_load():
    """What `parse_demand` reads of a load and a PredictRequest has, a user can ask about."""
    from tandem.contracts import names

    options = {
        option for parameter in whole_tree().commands["predict"].params for option in parameter.opts
    }
    not_of_a_load = {
        names.ITERATIONS, names.EXCLUSIVE, names.CHECKPOINT, names.GANG, names.GANG_SIZE,
        names.REQUIRED_TOPOLOGY, names.PREFERRED_TOPOLOGY,
    }  # fmt: skip
    named = {names.ACCUMULATION: "--accumulation-steps"}
    for annotation in names.USER_ANNOTATIONS:
        if annotation not in not_of_a_load:
            option = "--" + annotation.removeprefix(f"{names.GROUP}/")
            assert named.get(annotation, option) in options, annotation


def test_the_sequence_length_reaches_the_features(tmp_path):
    graph = tmp_path / "tokens.onnx"
    graph.write_bytes(bert_base().SerializeToString())
    memory = [
        json.loads(
            tandem("predict", str(graph), "--batch-size", "8", "--sequence-length", n, "--json")
        )["load"]["memoryP95Bytes"]
        for n in ("128", "512")
    ]
    assert memory[0] < memory[1]


def test_predict_shows_the_interval_and_the_source_of_each_figure(server):
    options = ["--batch-size", "32", "--gpu", "NVIDIA A100-SXM4-40GB"]
    said = json.loads(tandem("predict", RESNET, *options, "--json"))
    load = said["load"]
    memory = load["memoryBaseBytes"] + load["memoryPeakExtraBytes"]
    for interval, figure in (
        (said["memoryIntervalBytes"], memory),
        (said["utilisationIntervalPercent"], load["utilisationPercent"]),
        (said["iterationIntervalS"], load["iterationS"]),
    ):
        assert interval["low"] < figure < interval["high"]
    printed = tandem("predict", RESNET, *options)
    assert f"{said['memoryIntervalBytes']['low'] / 1024**3:.1f} GiB to" in printed
    assert "Time of a step" in printed
    assert "90 % interval" in printed
    declared = json.loads(tandem("predict", "--memory", "12Gi", "--json", server=server))
    assert "memoryIntervalBytes" not in declared


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--precision", "b"], ["bf16"]),
        (["--optimizer", "adam"], ["adam", "adam-8bit"]),
        (["--framework", "p"], ["pytorch"]),
        (["--parallelism", "zero"], ["zero-1", "zero-2", "zero-3"]),
        (["--gpu", "A100 8"], ["A100 80GB"]),
    ],
)
def test_the_shell_completes_what_can_be_said(words, found):
    assert set(found) <= set(completions(["predict", *words]))


def test_an_unknown_type_of_gpu_is_said():
    printed = CliRunner().invoke(build_app(), ["predict", RESNET, "--gpu", "RTX 4O90"])
    assert printed.exit_code == 0
    assert "No figures of a GPU 'RTX 4O90' are known; nearest: RTX 4090" in printed.stderr
    printed = CliRunner().invoke(build_app(), ["predict", RESNET, "--gpu", "Tesla V100-SXM2-16GB"])
    assert "No figures" not in printed.stderr


def test_what_is_not_known_is_a_whole_gpu_and_not_0_gib():
    """Without a batch size the graph says nothing, and without a type the GPU has no size."""
    printed = tandem("predict", RESNET)
    assert "a whole GPU" in printed
    assert "0.0 GiB" not in printed


def test_a_kind_of_model_that_does_not_exist_is_a_usage_error():
    assert CliRunner().invoke(build_app(), ["train", "rollback", "nope"]).exit_code == 2
