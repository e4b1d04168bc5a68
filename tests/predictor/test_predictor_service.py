"""The service over HTTP: models in, predictions out, errors with reasons, metrics."""

from __future__ import annotations

import asyncio
import subprocess

import httpx
import pytest
from fastapi.testclient import TestClient
from predictor_graphs import REFERENCE, light

from controlplane import binaries
from predictor.errors import StoreUnavailableError
from predictor.service.app import create_app
from predictor.service.config import REMOVED, PredictorConfig, load_config
from predictor.service.sandbox import Sandbox, SandboxLimits
from predictor.service.store import ClusterProfileStore
from predictor.service.turns import Turns
from tandem.contracts.prediction import ErrorBody, ModelSummary, Prediction
from tandem.contracts.resources import ModelProfileStatus, Source
from tandem.errors import UsageError
from tandem.kube.errors import Conflict, Unavailable
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import MODEL_PROFILES


class LentSandbox(Sandbox):
    """The tests' shared sandbox, which no service may close."""

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def lent():
    box = LentSandbox(SandboxLimits(graph_bytes=1 << 20))
    yield box
    Sandbox.close(box)


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def cluster():
    return MemoryCluster()


@pytest.fixture
def client(cluster, lent):
    config = PredictorConfig(upload_bytes=8 << 20)
    with TestClient(
        create_app(config, ClusterProfileStore(cluster), lent), raise_server_exceptions=False
    ) as client:
        yield client


def push(client, name, data=None, namespace="default"):
    return client.post(
        "/v1/models",
        params={"name": name, "namespace": namespace},
        content=light(name) if data is None else data,
    )


def error_of(answer) -> ErrorBody:
    return ErrorBody.model_validate(answer.json())


# --- models -----------------------------------------------------------------------------------


def test_push_list_show_delete(client):
    pushed = push(client, "resnet50")
    assert pushed.status_code == 201
    model = ModelSummary.model_validate(pushed.json())
    assert model.features.parameters == pytest.approx(25.61e6, rel=0.02)
    assert model.file_bytes == len(light("resnet50"))
    push(client, "squeezenet", namespace="team")
    names = [m["name"] for m in client.get("/v1/models").json()["models"]]
    assert names == ["resnet50", "squeezenet"]
    in_team = client.get("/v1/models", params={"namespace": "team"}).json()["models"]
    assert [m["name"] for m in in_team] == ["squeezenet"]
    assert client.get("/v1/models/default/resnet50").json() == pushed.json()
    assert client.delete("/v1/models/default/resnet50").status_code == 204
    gone = client.get("/v1/models/default/resnet50")
    assert gone.status_code == 404
    assert "resnet50" in error_of(gone).error
    assert client.delete("/v1/models/default/resnet50").status_code == 404


def test_pushing_again_replaces_the_features_and_keeps_what_was_observed(client, cluster):
    push(client, "m", light("vgg19"))
    status = ModelProfileStatus(observations=3).wire()
    known = cluster.get(MODEL_PROFILES, "m")
    cluster.replace(MODEL_PROFILES, known | {"status": status}, subresource="status")
    assert push(client, "m", light("squeezenet")).status_code == 201
    stored = cluster.get(MODEL_PROFILES, "m")
    assert stored["status"] == status
    assert stored["spec"]["features"]["parameters"] == pytest.approx(1.24e6, rel=0.02)


def test_a_restart_loses_nothing(client, cluster, lent):
    push(client, "vgg19")
    asked = {"model": "vgg19", "batchSize": 8, "gpuModel": "Tesla T4"}
    before = client.post("/v1/predict", json=asked).json()
    with TestClient(create_app(PredictorConfig(), ClusterProfileStore(cluster), lent)) as again:
        assert again.post("/v1/predict", json=asked).json() == before


def test_a_change_by_others_in_between_is_retried(client, cluster, monkeypatch):
    push(client, "m", light("vgg19"))
    replace, refusals = cluster.replace, [Conflict(409, "changed"), Conflict(409, "changed")]

    def contended(*args, **kwargs):
        if refusals:
            raise refusals.pop()
        return replace(*args, **kwargs)

    monkeypatch.setattr(cluster, "replace", contended)
    assert push(client, "m", light("squeezenet")).status_code == 201
    assert not refusals


# --- predictions ------------------------------------------------------------------------------


def test_predict_one_and_many(client):
    push(client, "resnet50")
    asked = {"model": "resnet50", "batchSize": 32, "gpuModel": "Tesla V100-SXM2-16GB"}
    one = client.post("/v1/predict", json=asked)
    assert one.status_code == 200
    prediction = Prediction.model_validate(one.json())
    assert prediction.load.memory_source is Source.FORMULA
    assert prediction.load.feature_hash
    many = client.post("/v1/predict:batch", json={"requests": [asked, {}]}).json()["predictions"]
    assert many[0] == one.json()
    assert many[1]["load"]["memorySource"] == "whole-gpu"


def test_one_call_also_prices_candidates_as_two_would(client):
    push(client, "resnet50")
    asked = {"model": "resnet50", "batchSize": 32, "gpuModel": "Tesla V100-SXM2-16GB"}
    alone = client.post("/v1/predict", json=asked).json()
    assert "interference" not in alone
    candidates = [
        client.post("/v1/predict", json=asked | {"batchSize": batch}).json()["load"]
        for batch in (1, 8, 64)
    ]
    both = client.post("/v1/predict", json=asked | {"candidates": candidates}).json()
    pair = {"job": alone["load"], "candidates": candidates, "gpuModel": asked["gpuModel"]}
    assert both == alone | {"interference": client.post("/v1/interference", json=pair).json()}
    assert len(both["interference"]["pairs"]) == 3
    assert 'tandem_predictor_pairs_priced_total{source="model"} 6.0' in client.get("/metrics").text
    none = client.post("/v1/predict", json=asked | {"candidates": []}).json()
    assert none["interference"]["pairs"] == []


def test_a_model_that_was_never_pushed_counts_as_unknown_and_is_named(client):
    answer = client.post("/v1/predict", json={"model": "nope", "declaredMemoryBytes": 2**30})
    prediction = Prediction.model_validate(answer.json())
    assert prediction.load.memory_source is Source.DECLARED
    assert "There is no model 'nope' in namespace 'default'." in prediction.explanation


RUN = {
    "model": "resnet50", "batchSize": 32, "gpuModel": "Tesla V100-SXM2-16GB",
    "memoryBaseBytes": 3 * 2**30, "memoryPeakBytes": 4 * 2**30, "peakProbability": 0.1,
    "utilisationPercent": 70,
}  # fmt: skip


def test_what_was_measured_corrects_the_next_prediction_also_after_a_restart(client, cluster, lent):
    push(client, "resnet50")
    asked = {"model": "resnet50", "batchSize": 32, "gpuModel": "NVIDIA V100-PCIE-16GB"}
    assert client.post("/v1/predict", json=asked).json()["load"]["memorySource"] == "formula"
    assert client.post("/v1/feedback", json=RUN).status_code == 200
    answer = client.post("/v1/feedback", json=RUN | {"utilisationPercent": 80})
    (seen,) = ModelSummary.model_validate(answer.json()).observed
    assert (seen.runs, seen.utilisation_percent) == (2, pytest.approx(73))
    with TestClient(create_app(PredictorConfig(), ClusterProfileStore(cluster), lent)) as again:
        prediction = Prediction.model_validate(again.post("/v1/predict", json=asked).json())
    load = prediction.load
    assert load.memory_source is load.utilisation_source is Source.OBSERVED
    assert (load.memory_base_bytes, load.memory_peak_extra_bytes) == (3 * 2**30, 2**30)
    assert load.memory_p95_bytes == round(1.1 * 4 * 2**30)
    assert "as observed in 2 runs" in prediction.explanation
    status = cluster.get(MODEL_PROFILES, "resnet50")["status"]
    assert status["observations"] == 2


def test_feedback_of_an_unknown_model_or_of_nonsense_is_refused(client):
    assert client.post("/v1/feedback", json=RUN).status_code == 404
    refused = client.post("/v1/feedback", json=RUN | {"utilisationPercent": 300})
    assert refused.status_code == 422
    assert "body.utilisationPercent" in error_of(refused).error


def test_runs_reported_at_the_same_time_are_all_counted(client, cluster, monkeypatch):
    push(client, "resnet50")
    replace, refusals = cluster.replace, [Conflict(409, "changed")]

    def contended(*args, **kwargs):
        if refusals:
            error = refusals.pop()
            client.post("/v1/feedback", json=RUN)
            raise error
        return replace(*args, **kwargs)

    monkeypatch.setattr(cluster, "replace", contended)
    assert client.post("/v1/feedback", json=RUN).status_code == 200
    assert cluster.get(MODEL_PROFILES, "resnet50")["status"]["observations"] == 2


# --- bad input --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "words"),
    [
        ("POST", "/v1/models?name=m", b"junk", 422, "middle of a message"),
        ("POST", "/v1/models?name=m", b"", 422, "no graph"),
        ("POST", "/v1/models?name=Big_Name", b"junk", 400, "Big_Name"),
        ("POST", "/v1/models?name=m&namespace=../x", b"junk", 400, "Namespace"),
        ("POST", "/v1/models", b"junk", 422, "query.name"),
        ("POST", "/v1/predict", b"junk", 422, "body"),
        ("POST", "/v1/predict", b'{"batchSize": 0}', 422, "body.batchSize"),
        ("POST", "/v1/predict", b'{"model": "a/../b"}', 400, "Model name"),
        ("POST", "/v1/predict", b'{"declaredUtilisationPercent": 101}', 422, "less than"),
        ("POST", "/v1/predict:batch", b'{"requests": [1]}', 422, "body.requests.0"),
        ("GET", "/v1/models/default/NOPE", None, 400, "Model name"),
        ("GET", "/nothing", None, 404, "Not Found"),
        ("PUT", "/v1/models", b"", 405, "Method Not Allowed"),
    ],
)
def test_bad_input_gets_a_reason(client, method, path, content, status, words):
    headers = {"content-type": "application/json"} if content is not None else {}
    answer = client.request(method, path, content=content, headers=headers)
    assert answer.status_code == status
    assert words in error_of(answer).error


@pytest.mark.parametrize(
    ("path", "streamed", "status"),
    [
        ("/v1/models?name=m", False, 413),
        ("/v1/models?name=m", True, 413),
        ("/v1/predict", False, 413),
        ("/v1/predict", True, 413),
        ("/nothing", False, 413),
        ("/nothing", True, 404),  # its body is not read
    ],
)
def test_bodies_over_the_limit_are_refused(client, path, streamed, status):
    size = (8 << 20) + (1 << 16)
    content = (bytes(1 << 16) for _ in range(size >> 16)) if streamed else bytes(size)
    answer = client.post(path, content=content, headers={"content-type": "application/json"})
    assert answer.status_code == status
    assert error_of(answer).error


def test_a_graph_over_the_limit_gets_413(client):
    answer = push(client, "m", b"\x0a\x80\x80\x80\x01" + bytes(2 << 20))
    assert answer.status_code == 413
    assert "larger than 1048576 bytes" in error_of(answer).error


class Drip:
    """An upload that sends a byte now and then, or nothing after the first."""

    def __init__(self, app, query: bytes = b"name=m", every_s: float | None = None) -> None:
        self.began = asyncio.Event()
        self.status, self.body = 0, b""
        self._app, self._query, self._every_s = app, query, every_s
        self._data = iter(light("vgg19"))
        self.task = asyncio.create_task(self._push())

    async def _push(self) -> None:
        scope = {
            "type": "http", "method": "POST", "path": "/v1/models", "query_string": self._query,
            "headers": [], "root_path": "", "scheme": "http", "server": ("test", 80),
        }  # fmt: skip
        await self._app(scope, self._receive, self._send)

    async def _receive(self):
        if self.began.is_set():
            await (asyncio.sleep(self._every_s) if self._every_s else asyncio.Event().wait())
        self.began.set()
        return {"type": "http.request", "body": bytes([next(self._data)]), "more_body": True}

    async def _send(self, message):
        self.status = message.get("status", self.status)
        self.body += message.get("body", b"")


def asking(app):
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


@pytest.mark.long
@pytest.mark.anyio
@pytest.mark.parametrize(
    ("name", "every_s"), [("UPLOAD_IDLE_S", None), ("UPLOAD_S", 0.01)], ids=["silent", "dripping"]
)
async def test_an_upload_that_does_not_come_is_given_up_and_others_are_turned_away(
    cluster, lent, monkeypatch, name, every_s
):
    """Neither a client that stops sending nor one that sends a byte now and then."""
    monkeypatch.setattr("predictor.service.turns.PARALLEL_UPLOADS", 1)
    monkeypatch.setattr(f"predictor.service.turns.{name}", 0.5)
    app = create_app(PredictorConfig(), ClusterProfileStore(cluster), lent)
    drip = Drip(app, every_s=every_s)
    await drip.began.wait()
    async with asking(app) as client:
        busy = await client.post("/v1/models?name=n", content=light("vgg19"))
        assert busy.status_code == 429
        assert "being pushed already" in error_of(busy).error
        await drip.task
        assert drip.status == 422
        assert b"stood still or was slower than 64 KiB/s" in drip.body
        assert (await client.post("/v1/models?name=n", content=light("vgg19"))).is_success


@pytest.mark.anyio
async def test_slow_uploads_of_one_namespace_give_way_to_those_of_another(cluster, lent):
    app = create_app(PredictorConfig(), ClusterProfileStore(cluster), lent)
    drips = [Drip(app, f"name=m{i}&namespace=mallory".encode(), 0.01) for i in range(8)]
    await asyncio.gather(*(drip.began.wait() for drip in drips))
    async with asking(app) as client:
        own = await client.post("/v1/models?name=n&namespace=mallory", content=light("vgg19"))
        assert own.status_code == 429
        for name in ("n1", "n2"):
            answer = await client.post(f"/v1/models?name={name}", content=light("vgg19"))
            assert answer.status_code == 201
    (refused,) = [drip for drip in drips if drip.task.done()]
    assert refused.status == 422
    assert b"gave way to a model of another namespace" in refused.body
    for drip in drips:
        drip.task.cancel()


@pytest.mark.anyio
async def test_a_namespace_leaves_a_turn_for_the_graphs_of_another_one():
    """Also while graphs that take long wait, and those that were given up take no turn."""
    turns, order, over = Turns(2), [], asyncio.Event()

    async def parse(namespace: str) -> None:
        async with turns.turn(namespace):
            order.append(namespace)
            if namespace == "mallory":
                await over.wait()

    tasks = [asyncio.create_task(parse("mallory")) for _ in range(5)]
    await asyncio.sleep(0)
    await asyncio.wait_for(asyncio.gather(*(parse("honest") for _ in range(3))), 10)
    assert order == ["mallory", "honest", "honest", "honest"]
    tasks[1].cancel()
    over.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order.count("mallory") == 4
    await asyncio.wait_for(parse("honest"), 10)


def test_an_api_server_that_is_away_gets_503_and_not_ready(client, cluster, monkeypatch):
    def away(*_, **__):
        raise Unavailable(0, "connection refused")

    for verb in ("get", "list", "create", "delete"):
        monkeypatch.setattr(cluster, verb, away)
    assert push(client, "vgg19").status_code == 503
    for method, path in (("GET", "/readyz"), ("GET", "/v1/models"), ("DELETE", "/v1/models/a/b")):
        answer = client.request(method, path)
        assert answer.status_code == 503
        assert "connection refused" in error_of(answer).error
    assert client.post("/v1/predict", json={"model": "vgg19"}).status_code == 503
    assert client.post("/v1/predict", json={}).status_code == 200
    assert client.get("/healthz").status_code == 200


def test_a_bug_gets_500_without_its_traceback(client, cluster, monkeypatch, caplog):
    monkeypatch.setattr(cluster, "list", lambda *_: 1 / 0)
    answer = client.get("/v1/models")
    assert answer.status_code == 500
    assert "division" not in answer.text
    assert "ZeroDivisionError" in caplog.text


def test_a_store_under_contention_gives_up_with_a_reason(cluster, monkeypatch, sandbox):
    store = ClusterProfileStore(cluster)
    parsed = sandbox.parse_file([light("vgg19")])
    store.put("default", "m", parsed, "test")

    def contended(*_, **__):
        raise Conflict(409, "changed")

    monkeypatch.setattr(cluster, "replace", contended)
    with pytest.raises(StoreUnavailableError, match="by others"):
        store.put("default", "m", parsed, "test")


# --- about itself -----------------------------------------------------------------------------


def test_metrics_count_by_route_source_and_reason(client):
    push(client, "vgg19")
    push(client, "m", b"junk")
    client.post("/v1/predict", json={"model": "vgg19", "batchSize": 1})
    client.get("/v1/models/default/vgg19")
    client.get("/v1/models/default/other")
    text = client.get("/metrics").text
    assert 'tandem_predictor_graphs_refused_total{reason="malformed"} 1.0' in text
    assert 'predictions_total{resource="memory",source="formula"} 1.0' in text
    assert "tandem_predictor_graph_parse_duration_seconds_count 1.0" in text
    route = 'method="GET",route="/v1/models/{namespace}/{name}"'
    assert f'duration_seconds_count{{{route},status="200"}} 1.0' in text
    assert f'duration_seconds_count{{{route},status="404"}} 1.0' in text


def test_metrics_pass_promtool(client):
    promtool = binaries.find("promtool")
    if promtool is None:
        pytest.skip("no promtool on this machine: `tandem controlplane build` unpacks it")
    push(client, "vgg19")
    push(client, "m", b"junk")
    client.post("/v1/predict", json={"model": "vgg19", "batchSize": 1})
    done = subprocess.run(
        [promtool, "check", "metrics"],
        input=client.get("/metrics").content,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_api_describes_itself(client):
    paths = client.get("/openapi.json").json()["paths"]
    assert set(paths) == {
        "/v1/models", "/v1/models/{namespace}/{name}", "/v1/predict", "/v1/predict:batch",
        "/v1/interference", "/v1/feedback", "/healthz", "/readyz",
    }  # fmt: skip
    body = paths["/v1/models"]["post"]["requestBody"]["content"]
    assert list(body) == ["application/octet-stream"]


@pytest.mark.parametrize("name", sorted(REFERENCE))
def test_each_shipped_graph_can_be_pushed_and_predicted(client, name):
    stored_as = name.replace("_", "-")
    assert push(client, stored_as, light(name)).status_code == 201
    answer = client.post("/v1/predict", json={"model": stored_as, "batchSize": 16}).json()
    assert answer["load"]["memorySource"] == "formula"


# --- settings ---------------------------------------------------------------------------------


def test_settings_come_from_a_file_and_flags_win(tmp_path):
    file = tmp_path / "predictor.yaml"
    file.write_text("port: 1234\nsandbox:\n  parallel: 7\n")
    config = load_config(file, {"port": 99, "host": None})
    assert (config.port, config.sandbox.parallel, config.host) == (99, 7, "0.0.0.0")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prot: 1\n", "Setting prot"),
        ("sandbox: {cpu: 1}\n", "Setting sandbox.cpu"),
        ("port: many\n", "Setting port"),
        ("- a\n", "by name"),
        ("a: [\n", "not YAML"),
        ("port: yes\n", "Setting port: a truth value"),
        ("sandbox: {wall_s: .inf}\n", "Setting sandbox.wall_s: Input should be a finite number"),
    ],
)
def test_settings_that_make_no_sense_are_named(tmp_path, text, words):
    file = tmp_path / "predictor.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match=words):
        load_config(file, {})


# --- gradient accumulation --------------------------------------------------------------------

SPLIT = {
    "model": "resnet50", "batchSize": 256, "gpuModel": "NVIDIA A100-SXM4-80GB",
    "accumulationSteps": 8, "memoryBaseBytes": 12 << 30, "memoryPeakBytes": 18 << 30,
    "peakProbability": 0.2, "utilisationPercent": 70,
}  # fmt: skip


def ask_whole(client, **more) -> Prediction:
    asked = {"model": "resnet50", "batchSize": 256, "gpuModel": "NVIDIA A100-SXM4-80GB", **more}
    return Prediction.model_validate(client.post("/v1/predict", json=asked).json())


def test_a_run_in_micro_batches_is_extrapolated_to_the_whole_batch(client):
    push(client, "resnet50")
    before = ask_whole(client).load
    assert before.memory_p95_bytes > 40 << 30
    assert client.post("/v1/feedback", json=SPLIT).status_code == 200
    after = ask_whole(client).load
    # 18 GiB with an eighth of the batch on the GPU: far more than that for the whole of it.
    assert (after.memory_source, after.memory_p95_bytes > 40 << 30) == (Source.MODEL, True)
    split = ask_whole(client, accumulationSteps=8).load
    assert split.memory_source is Source.OBSERVED
    assert split.memory_p95_bytes == pytest.approx(1.1 * (18 << 30))
    # Both kinds of runs stand next to each other, and each is found by its own steps.
    whole = SPLIT | {"accumulationSteps": 1, "memoryPeakBytes": 44 << 30}
    assert client.post("/v1/feedback", json=whole).status_code == 200
    assert ask_whole(client).load.memory_p95_bytes == pytest.approx(1.1 * (44 << 30))
    assert ask_whole(client, accumulationSteps=8).load == split


def test_a_batch_in_steps_is_predicted_as_a_micro_batch(client):
    push(client, "resnet50")
    part = {"batchSize": 64, "accumulationSteps": 1}
    assert ask_whole(client, accumulationSteps=4).load == ask_whole(client, **part).load
    assert client.post("/v1/feedback", json=SPLIT | part).status_code == 200
    assert ask_whole(client, accumulationSteps=4).load.memory_source is Source.OBSERVED


def test_observations_from_before_steps_were_reported_are_of_the_whole_batch(client, cluster):
    push(client, "resnet50")
    assert client.post("/v1/feedback", json=SPLIT | {"accumulationSteps": 1}).status_code == 200
    item = cluster.get(MODEL_PROFILES, "resnet50", "default")
    for seen in item["status"]["observed"]:
        del seen["accumulationSteps"]
    cluster.replace(MODEL_PROFILES, item, "default", subresource="status")
    assert ask_whole(client).load.memory_source is Source.OBSERVED
    split = ask_whole(client, accumulationSteps=8).load
    assert split.memory_source is Source.MODEL  # extrapolated to an eighth of the batch
    assert split.memory_p95_bytes < SPLIT["memoryPeakBytes"] * 1.1


@pytest.mark.parametrize("setting", REMOVED)
def test_a_removed_setting_is_refused_with_what_to_do_instead(tmp_path, setting):
    file = tmp_path / "predictor.yaml"
    file.write_text(f"{setting}: 1")
    with pytest.raises(UsageError, match=f"Setting {setting} was removed: "):
        load_config(file, {})
