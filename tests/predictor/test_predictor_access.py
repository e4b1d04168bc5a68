"""Who may ask the predictor what: nothing without a token, and what the API server would allow."""

from __future__ import annotations

import base64
import json
import threading

import httpx
import pytest
from fastapi.testclient import TestClient
from predictor_graphs import light
from test_predictor_service import LentSandbox
from typer.testing import CliRunner

from predictor.service.app import create_app
from predictor.service.config import PredictorConfig
from predictor.service.sandbox import Sandbox
from predictor.service.store import ClusterProfileStore
from tandem.cli.main import build_app
from tandem.contracts.names import PREDICTOR_AUDIENCE
from tandem.kube import access
from tandem.kube.access import ACCESS_REVIEWS, TOKEN_REVIEWS, Reviews
from tandem.kube.errors import KubeError
from tandem.kube.memory import MemoryCluster

#: What each user may do: (verb, resource with subresource, namespace; None is everywhere).
EDIT = {(verb, "modelprofiles", "a") for verb in ("get", "list", "create", "update", "delete")}
RIGHTS = {
    "editor": EDIT,
    "viewer": {("get", "modelprofiles", "a"), ("list", "modelprofiles", "a")},
    "scheduler": {
        ("get", "modelprofiles", None),
        ("list", "modelprofiles", None),
        ("update", "modelprofiles/status", None),
    },
}


def token_for(audience: str) -> str:
    claims = base64.urlsafe_b64encode(json.dumps({"aud": [audience]}).encode()).decode()
    return f"e30.{claims.rstrip('=')}.signature"


AUDIENCE_TOKEN = token_for(PREDICTOR_AUDIENCE)


class Api:
    """An API server in which a token is its user's name."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.away = False
        self._lock = threading.Lock()

    def create(self, resource, body, namespace=None):
        if self.away:
            raise KubeError(0, "away")
        spec = body["spec"]
        with self._lock:
            self.asked.append(resource.plural)
        if resource == TOKEN_REVIEWS:
            user = spec["token"]
            if user == AUDIENCE_TOKEN and spec.get("audiences") == [PREDICTOR_AUDIENCE]:
                user = "scheduler"
            known = {"username": user, "groups": ["system:authenticated"]}
            audiences = {"audiences": spec["audiences"]} if "audiences" in spec else {}
            status = {"authenticated": True, "user": known} | audiences
            return {"status": status if user in RIGHTS else {"authenticated": False}}
        assert resource == ACCESS_REVIEWS
        wanted = spec["resourceAttributes"]
        assert wanted["group"] == "tandem.gpu"
        name = "/".join(wanted[key] for key in ("resource", "subresource") if key in wanted)
        has = RIGHTS[spec["user"]]
        where = wanted.get("namespace")
        allowed = any((wanted["verb"], name, each) in has for each in (where, None))
        return {"status": {"allowed": allowed}}


@pytest.fixture(scope="module")
def lent():
    box = LentSandbox()
    yield box
    Sandbox.close(box)


@pytest.fixture
def api():
    return Api()


@pytest.fixture
def now():
    return [1000.0]


@pytest.fixture
def client(api, now, lent):
    reviews = Reviews(api, audience=PREDICTOR_AUDIENCE, clock=lambda: now[0])
    app = create_app(PredictorConfig(), ClusterProfileStore(MemoryCluster()), lent, reviews)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


RUN = {
    "namespace": "a", "model": "m", "batchSize": 8, "gpuModel": "Tesla T4",
    "memoryBaseBytes": 1, "memoryPeakBytes": 2, "utilisationPercent": 3.5,
}  # fmt: skip
LOAD = {
    "utilisationPercent": 40, "utilisationP95Percent": 60, "memoryBaseBytes": 1,
    "memoryPeakExtraBytes": 1, "peakProbability": 0.1, "memoryP95Bytes": 2,
    "utilisationSource": "formula", "memorySource": "formula",
}  # fmt: skip


def calls(namespace: str = "a") -> dict[str, tuple[str, str, dict]]:
    where = {"namespace": namespace}
    return {
        "push": (
            "POST",
            "/v1/models",
            {"params": where | {"name": "m"}, "content": light("squeezenet")},
        ),
        "list": ("GET", "/v1/models", {"params": where}),
        "show": ("GET", f"/v1/models/{namespace}/m", {}),
        "predict": ("POST", "/v1/predict", {"json": where | {"model": "m"}}),
        "batch": ("POST", "/v1/predict:batch", {"json": {"requests": [where]}}),
        "feedback": ("POST", "/v1/feedback", {"json": RUN | where}),
        "interference": ("POST", "/v1/interference", {"json": {"job": LOAD, "candidates": [LOAD]}}),
        "list all": ("GET", "/v1/models", {}),
        "delete": ("DELETE", f"/v1/models/{namespace}/m", {}),
    }


def ask(client, call: str, token: str = "", namespace: str = "a") -> httpx.Response:
    method, path, options = calls(namespace)[call]
    return client.request(method, path, headers=bearer(token) if token else {}, **options)


@pytest.mark.parametrize("call", list(calls()))
@pytest.mark.parametrize("token", ["", "unknown", "x" * 20000])
def test_no_request_is_served_without_a_token_that_the_api_server_knows(client, call, token):
    answer = ask(client, call, token)
    assert answer.status_code == 401
    assert "token" in answer.json()["error"]
    assert "kubectl create token" in answer.json()["hint"]


def test_health_and_metrics_need_no_token(client):
    for path in ("/healthz", "/readyz", "/metrics"):
        assert client.get(path).status_code == 200


@pytest.mark.parametrize(
    ("user", "may"),
    [
        ("editor", {"push", "list", "show", "predict", "batch", "delete"}),
        ("viewer", {"list", "show", "predict", "batch"}),
        ("scheduler", {"list", "show", "predict", "batch", "feedback", "interference", "list all"}),
    ],
)
def test_each_may_do_what_the_api_server_would_let_it_do(client, user, may):
    assert ask(client, "push", "editor").status_code == 201
    statuses = {call: ask(client, call, user).status_code for call in calls()}
    assert {call for call, status in statuses.items() if status < 300} == may
    assert {statuses[call] for call in statuses.keys() - may} == {403}


def test_rights_in_one_namespace_open_no_other(client):
    for call in calls():
        if call in ("interference", "list all"):
            continue
        answer = ask(client, call, "editor", namespace="b")
        assert answer.status_code == 403, call
        assert "in b" in answer.json()["error"]
    mixed = {"requests": [{"namespace": "a"}, {"namespace": "b"}]}
    batch = client.post("/v1/predict:batch", json=mixed, headers=bearer("editor"))
    assert batch.status_code == 403


def test_a_token_for_the_predictor_alone_is_known(client, api):
    assert ask(client, "list all", AUDIENCE_TOKEN).status_code == 200
    assert ask(client, "list all", token_for("another")).status_code == 401


def test_answers_are_kept_for_a_minute_and_many_strangers_push_out_none(client, api, now):
    for _ in range(3):
        assert ask(client, "list", "viewer").status_code == 200
    assert api.asked == ["tokenreviews", "subjectaccessreviews"]
    statuses = {ask(client, "list", f"invented{i}").status_code for i in range(200)}
    assert statuses == {401, 503}
    # Reviews of invented tokens are rationed; a caller that is known is served all the same.
    assert api.asked.count("tokenreviews") <= 1 + access._UNKNOWN_AT_ONCE
    before = len(api.asked)
    assert ask(client, "list", "viewer").status_code == 200
    assert len(api.asked) == before
    now[0] += access.KEPT_S + 1
    for i in range(200):
        ask(client, "list", f"more{i}")
    assert ask(client, "list", "viewer").status_code == 200


def test_an_api_server_that_is_away_is_said_to_be_and_lets_no_client_in(client, api):
    api.away = True
    answer = ask(client, "list", "viewer")
    assert answer.status_code == 503
    assert "try again" in answer.json()["hint"].lower()
    api.away = False
    assert ask(client, "list", "viewer").status_code == 200


def test_the_cli_sends_the_token_of_the_kubeconfig_where_it_stays_secret(monkeypatch, tmp_path):
    config = tmp_path / "config"
    config.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
                "users": [{"name": "u", "user": {"token": "mine"}}],
            }
        )
    )
    sent: list[tuple[str, str]] = []

    class Recorded:
        def __init__(self, url: str, token: str = "") -> None:
            sent.append((url, token))

        def __enter__(self) -> Recorded:
            return self

        def __exit__(self, *_: object) -> None: ...

        def request(self, *_: object, **__: object) -> bytes:
            return b'{"models": []}'

    monkeypatch.setattr("predictor.service.client.PredictorClient", Recorded)
    monkeypatch.setenv("KUBECONFIG", str(config))
    for arguments in (
        ["--server", "http://127.0.0.1:8090"],
        ["--server", "https://predictor.example"],
        ["--server", "http://predictor.example"],
        ["--server", "http://predictor.example", "--token", "given"],
    ):
        result = CliRunner().invoke(build_app(), ["model", "list", *arguments])
        assert result.exit_code == 0, result.output
    assert [token for _, token in sent] == ["mine", "mine", "", "given"]
