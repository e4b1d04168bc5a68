"""Jobs tell their progress to the agent of their node: from step() to the rate of a pod."""

import importlib
import json
import threading
import urllib.error
import urllib.request
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from node_agent import progress
from node_agent.config import AgentSettings
from node_agent.progress import Pace, Progress, Steps
from node_agent.publish import gpu_node
from node_agent.server import AgentServer
from node_agent.tenant import Tenant
from tandem.contracts.resources import GPU, GPUNodeStatus, PodUse
from tandem.kube.errors import Unavailable
from tandem.kube.jsontext import encoded
from tandem.kube.resource import GPU_NODES
from tandem.kube.schema import schema_errors

TOKENS = {"token-of-a": "uid-a", "token-of-b": "uid-b"}


class Authenticator:
    def pod_uid(self, token, address):
        return TOKENS.get(token)


class Away:
    def pod_uid(self, token, address):
        raise Unavailable(0, "away")


@pytest.fixture(scope="module")
def service():
    taken = Progress(Authenticator())
    server = AgentServer("127.0.0.1", 0, lambda: "", CollectorRegistry(), taken)
    server.start()
    yield taken, f"http://127.0.0.1:{server.port}"
    server.stop()


@pytest.fixture
def served(service):
    """The steps that are reported, empty at first, and the agent's URL."""
    service[0]._paces.clear()
    return service


def post(url, body, token="token-of-a", path="/v1/progress"):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(url + path, body, headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def steps(iterations=50, seconds=10):
    return json.dumps({"iterations": iterations, "seconds": seconds}).encode()


def test_rate_of_the_pod_that_tells_and_of_no_other(served):
    taken, url = served
    assert post(url, steps())[0] == 200
    assert taken.paces() == {"uid-a": Pace(5.0)}
    assert post(url, steps(10), token="token-of-b")[0] == 200
    assert taken.paces() == {"uid-a": Pace(5.0), "uid-b": Pace(1.0)}


@pytest.mark.parametrize(
    ("body", "token", "path", "status"),
    [
        (steps(), "forged", "/v1/progress", 401),
        (steps(), "", "/v1/progress", 401),
        (steps(seconds=0), "token-of-a", "/v1/progress", 400),
        (steps(iterations=-1), "token-of-a", "/v1/progress", 400),
        (b'{"iterations": NaN, "seconds": 1}', "token-of-a", "/v1/progress", 400),
        (steps(1e9, 5e-324), "token-of-a", "/v1/progress", 400),
        (b'{"iterations": 1e999, "seconds": 1}', "token-of-a", "/v1/progress", 400),
        (b"\xff\x00", "token-of-a", "/v1/progress", 400),
        (b"[" * 4000, "token-of-a", "/v1/progress", 400),
        (b"x" * 5000, "token-of-a", "/v1/progress", 413),
        (steps(), "token-of-a", "/v2", 404),
    ],
)
def test_bad_requests_are_answered_in_words(served, body, token, path, status):
    taken, url = served
    code, answer = post(url, body, token, path)
    assert code == status
    assert answer["error"]
    assert answer["hint"]
    assert taken.paces() == {}


@pytest.mark.parametrize(
    "body",
    [
        {"iterations": 1e9, "seconds": 1e-3},
        {"iterations": 5e-324, "seconds": 86_400},
        {"iterations": 1, "seconds": 1, "iterationsRecorded": 5e-324, "activeSeconds": 86_400},
        {"iterations": 1, "seconds": 1, "iterationsRecorded": 1e9, "idleSeconds": 5e-324},
    ],
)
def test_no_figures_of_a_pod_make_a_report_that_an_api_server_cannot_read(served, body):
    taken, url = served
    assert post(url, json.dumps(body).encode())[0] == 200
    one = Tenant("uid-a", AgentSettings(node="n"), 10)
    use = one.use(0.0, None, foreign=False, pace=taken.paces()["uid-a"])
    gpu = GPU(uuid="GPU-a", index=0, model="A100", memory_bytes=1, pods=[use])
    report = gpu_node("n", GPUNodeStatus(observed_at="2026-01-02T03:04:05Z", gpus=[gpu]))
    assert json.loads(encoded(report)) == report
    assert schema_errors(GPU_NODES, report) == []


@pytest.mark.parametrize("figure", [float("inf"), float("nan"), -1.0, 1e300, 10**400])
def test_a_bad_figure_of_a_pod_costs_itself_and_not_the_report(figure):
    """Whatever put it there: the other figures of the pod, and all other pods, are reported."""
    pods = [PodUse(uid="a", iterations_per_second=figure, memory_bytes=7), PodUse(uid="b")]
    assert pods[0] == PodUse(uid="a", memory_bytes=7)
    raw = {"uid": "a", "memoryBytes": 7, "activeSeconds": figure, "peakProbability": figure}
    assert PodUse.model_validate(raw) == PodUse(uid="a", memory_bytes=7)


def test_no_pod_is_believed_while_tokens_cannot_be_reviewed():
    assert Progress(Away()).take("token-of-a", Steps(iterations=1, seconds=1)) is False
    assert Progress(None).take("token-of-a", Steps(iterations=1, seconds=1)) is False


def test_rate_that_is_old_is_forgotten(served, monkeypatch):
    taken, url = served
    post(url, steps())
    monkeypatch.setattr(progress, "FRESH_S", -1)
    assert taken.paces() == {}


@pytest.fixture
def helper(monkeypatch):
    """A fresh `tandem.progress`, as in a process of its own."""
    module = importlib.reload(importlib.import_module("tandem.progress"))
    monkeypatch.setattr(module, "EVERY_S", 0.05)
    return module


def test_step_off_our_nodes_starts_nothing(helper, monkeypatch):
    monkeypatch.delenv(helper.AGENT_URL, raising=False)
    before = threading.active_count()
    helper.step()
    assert threading.active_count() == before


@pytest.fixture
def arrival(helper, served, monkeypatch, tmp_path):
    """The agent hears this process; return an event that is set by what `of` says of a message."""
    taken, url = served
    (tmp_path / "token").write_text("token-of-a\n")
    monkeypatch.setenv(helper.AGENT_URL, url)
    monkeypatch.setenv(helper.TOKEN_FILE, str(tmp_path / "token"))

    def of(awaited):
        arrived = threading.Event()
        original = taken.take

        def take(token, steps, address):
            done = original(token, steps, address)
            if awaited(steps):
                arrived.set()
            return done

        monkeypatch.setattr(taken, "take", take)
        return arrived

    return of


def test_step_reaches_the_agent(helper, served, arrival):
    arrived = arrival(lambda steps: steps.iterations)
    for _ in range(100):
        helper.step()
    helper.step(20)
    assert arrived.wait(60)
    assert "uid-a" in served[0].paces()


def test_what_profile_records_reaches_the_agent_with_the_iterations(helper, served, arrival):
    seen = SimpleNamespace(iterations=0, active_s=0.0, idle_s=0.0)
    helper._profiles.append(seen)
    arrived = arrival(lambda steps: steps.iterations_recorded)
    helper.step()
    seen.active_s, seen.idle_s, seen.iterations = 3.0, 1.0, 10
    assert arrived.wait(60)
    assert served[0].paces()["uid-a"].activity == (0.3, 0.1)


def test_step_survives_an_agent_that_is_away_and_a_missing_token(helper, monkeypatch):
    monkeypatch.setenv(helper.AGENT_URL, "http://127.0.0.1:9")
    monkeypatch.setenv(helper.TOKEN_FILE, "/nowhere")
    tried = threading.Event()
    original = helper._post

    def post_and_note(*arguments):
        try:
            original(*arguments)
        finally:
            tried.set()

    monkeypatch.setattr(helper, "_post", post_and_note)
    helper.step()
    assert tried.wait(60)
    tried.clear()
    assert tried.wait(60), "it goes on trying"
    helper.step()
