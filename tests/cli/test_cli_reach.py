"""How the commands read: rights, namespaces, errors that say what to do, and what is printed."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from tandem.cli import output, reach
from tandem.cli.main import build_app
from tandem.cli.output import clean
from tandem.cli.reach import Reader, repeated
from tandem.errors import TandemError, UsageError
from tandem.kube.errors import Forbidden, KubeError, NotFound, unreachable
from tandem.kube.tunnel import Answer, Tunnel

GPU = {
    "node": "n0", "gpu": "GPU-0", "model": "V100", "shares": 2, "held": 0, "jobs": [],
    "memoryPromisedGib": 0.0, "memoryCapacityGib": 15.6, "utilisationPromisedPercent": 0.0,
    "healthy": True, "fresh": True, "reason": "",
}  # fmt: skip
JOB = {
    "namespace": "team-a", "name": "job-train", "phase": "Queued", "position": 0,
    "expectedStart": None, "places": [], "message": "waits",
}  # fmt: skip

Answers = Callable[[str, dict[str, str]], Answer]


class Service:
    """What the tunnel leads to; `answers` may raise what the API server refuses with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.answers: Answers = lambda *_: Answer(200, b"{}")
        monkeypatch.setattr(Reader, "client", None)
        monkeypatch.setattr(Reader, "own_namespace", "team-a")

        self.sent: list[tuple[str, bytes | None]] = []

        def ask(
            _: Tunnel,
            method: str,
            path: str,
            query: dict[str, str] | None = None,
            body: bytes | None = None,
            kind: str = "",
        ) -> Answer:
            self.asked.append((path, dict(query or {})))
            self.sent.append((method, body))
            return self.answers(path, dict(query or {}))

        monkeypatch.setattr(Tunnel, "ask", ask)
        for name in ("TANDEM_SERVER", "TANDEM_TOKEN", "TANDEM_ACCOUNT", "TANDEM_CA_FILE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv("COLUMNS", raising=False)  # as in a pipe

    def say(self, body: Any, status: int = 200) -> None:
        self.answers = lambda *_: Answer(status, json.dumps(body).encode())

    def run(self, *args: str) -> Result:
        return CliRunner().invoke(build_app(), list(args))


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    return Service(monkeypatch)


def error_of(answer: Result) -> TandemError:
    assert answer.exit_code == 1
    assert isinstance(answer.exception, TandemError), answer.exception
    return answer.exception


def test_without_an_address_the_api_server_is_the_way(service: Service) -> None:
    service.say({"gpus": [GPU]})
    answer = service.run("gpus", "--node", "n0")
    assert "GPU-0" in answer.stdout
    assert service.asked == [("/v1/gpus", {"node": "n0"})]


def test_a_node_without_gpus_is_an_error_and_no_empty_table(service: Service) -> None:
    service.say({"gpus": []})
    error = error_of(service.run("gpus", "--node", "nope"))
    assert "'nope'" in error.message
    assert service.run("gpus").exit_code == 0


def test_positions_count_from_one(service: Service) -> None:
    service.say({"jobs": [{**JOB, "position": 0}, {**JOB, "position": None}]})
    lines = [line.split() for line in service.run("jobs").stdout.splitlines()[1:]]
    assert [line[3] for line in lines] == ["1", "-"]


def test_a_pipe_gets_plain_columns_however_long(service: Service) -> None:
    service.say({"jobs": [{**JOB, "message": "x" * 500}]})
    head, line = service.run("jobs").stdout.splitlines()
    assert head.startswith("namespace   job")
    assert line.endswith("x" * 500)
    assert "│" not in line


def test_a_line_in_a_pipe_is_not_broken(service: Service) -> None:
    """Nor are messages: a pipe has no width at which they would have to end."""
    sharing = {
        "gpus": 4, "jobs": 8, "gainGpus": 1.5, "gpusCounted": 4, "gpusMeasured": 0,
        "gainMeasuredGpus": None, "jobsMeasured": 2, "meanSlowdown": 0.13, "slowest": [],
    }  # fmt: skip
    service.say({"view": {"sharing": sharing}})
    first, second = service.run("sharing").stdout.splitlines()
    assert first.startswith("Sharing: 4 GPUs by 8 jobs, worth +1.5 GPUs (predicted), ")
    assert second.endswith("without it the same work needs 1.5 GPUs more.")
    console = output._Console(file=io.StringIO())
    console.print("word " * 100)
    assert console.file.getvalue().count("\n") == 1


def test_idle_gpus_are_those_that_nothing_holds_and_that_take_work(service: Service) -> None:
    others = [{"held": 1}, {"healthy": False}, {"shares": 0}, {"fresh": False}]
    service.say({"gpus": [GPU, *({**GPU, "gpu": "GPU-x", **other} for other in others)]})
    found = json.loads(service.run("gpus", "--idle", "--json").stdout)["gpus"]
    assert [gpu["gpu"] for gpu in found] == ["GPU-0"]


def test_who_may_not_list_all_jobs_gets_those_of_the_own_namespace(service: Service) -> None:
    def answers(_: str, query: dict[str, str]) -> Answer:
        if query.get("namespace") == "team-a":
            return Answer(200, json.dumps({"jobs": [JOB]}).encode())
        return Answer(403, b'{"detail": "you may not list gpujobs.tandem.gpu in all namespaces"}')

    service.answers = answers
    answer = service.run("jobs")
    assert "job-train" in answer.stdout
    assert "Namespace team-a" in answer.stderr
    error = error_of(service.run("jobs", "-n", "team-b"))
    assert "in all namespaces" in error.message
    assert "view" in error.hint


@pytest.mark.parametrize(
    ("refusal", "says", "hint"),
    [
        (Forbidden(401, "Unauthorized"), "does not accept your credentials", "log in"),
        (Forbidden(403, "cannot get services/proxy"), "cannot get services/proxy", "access.groups"),
        (NotFound(404, 'services "tandem-api" not found'), "no Tandem", "--tandem-namespace"),
        (KubeError(410, "Gone"), "no answer from Tandem: Gone", "tandem doctor"),
        (unreachable("refused", maybe_done=False), "no answer from Tandem", "tandem doctor"),
        (unreachable("no endpoints available", maybe_done=True), "no endpoints", "tandem doctor"),
    ],
)
def test_what_the_api_server_refuses_is_said_with_what_to_do(
    service: Service, refusal: KubeError, says: str, hint: str
) -> None:
    def refuse(*_: object) -> Answer:
        raise refusal

    service.answers = refuse
    error = error_of(service.run("gpus"))
    assert says in error.message
    assert hint in error.hint


@pytest.mark.parametrize(
    ("status", "body", "says", "hint"),
    [
        (401, {"detail": "the API server does not know this token"}, "this token", "--token"),
        (403, {"detail": "you may not list gpunodes"}, "may not list gpunodes", "view"),
        (404, {"error": "no pod a/b", "hint": "kubectl get pods"}, "no pod a/b", "kubectl get"),
        (404, {"detail": "Not Found"}, "knows no /v1/gpus", "older"),
        (503, {"error": "the extender does not answer"}, "does not answer", "try again"),
        (500, ["what?"], "HTTP 500", ""),
    ],
)
def test_what_the_extender_refuses_is_said_with_what_to_do(
    service: Service, status: int, body: Any, says: str, hint: str
) -> None:
    service.say(body, status)
    error = error_of(service.run("gpus"))
    assert says in error.message
    assert hint in error.hint


def test_an_answer_that_is_no_json_is_an_error(service: Service) -> None:
    service.answers = lambda *_: Answer(200, b"<html>")
    assert "no JSON" in error_of(service.run("gpus")).message


def test_an_address_that_answers_nothing_is_an_error(service: Service) -> None:
    error = error_of(service.run("gpus", "--server", "http://127.0.0.1:9"))
    assert "leave --server out" in error.hint
    assert service.asked == []


def test_an_account_has_two_names(service: Service) -> None:
    answer = service.run("gpus", "--account", "reader")
    assert isinstance(answer.exception, UsageError)


def test_a_pod_may_be_named_without_its_namespace(service: Service) -> None:
    service.say({"error": "no pod"}, 404)
    for args in (("explain", "train-0"), ("explain", "team-a/train-0")):
        error_of(service.run(*args))
    error_of(service.run("explain", "a b", "-n", "x"))
    assert [path for path, _ in service.asked] == [
        "/v1/explain/team-a/train-0",
        "/v1/explain/team-a/train-0",
        "/v1/explain/x/a%20b",
    ]
    assert isinstance(service.run("explain", "a/b/c").exception, UsageError)


def test_a_tenant_sees_how_many_gpus_refuse_a_pod_and_why(service: Service) -> None:
    """Names of nodes are for those who may list them."""
    worker = {"gpus": 1, "exclusive": False, "memoryPeakGib": 8.0, "utilisationPercent": 50.0}
    reasons = [{"reason": "exclusive", "gpus": 12, "nodes": 3, "says": "a job does not share"},
               {"reason": "nodes", "gpus": 8, "nodes": 1, "says": "taints"}]  # fmt: skip
    service.say(
        {"job": "train", "phase": "Queued", "message": "waits", "node": None, "worker": worker,
         "nodes": [], "nodesNotShown": 4, "reasons": reasons}
    )  # fmt: skip
    said = service.run("explain", "train-0").stdout
    assert "a job does not share" in said
    assert "exclusive" not in said
    assert "taints" in said
    assert "12" in said
    assert "gpunodes.tandem.gpu" in said


HOSTILE = "\x1b[31m\x1b]8;;http://x\x07[link]\r\n\x9b2J\u202e\u2066\x00"


def test_what_a_tenant_writes_changes_nothing_about_the_terminal(service: Service) -> None:
    service.say({"jobs": [{**JOB, "message": HOSTILE, "name": HOSTILE}]})
    answer = service.run("jobs")
    assert not set(answer.stdout) & set("\x1b\x07\r\x9b\u202e\u2066\x00")
    assert "[link]" in answer.stdout, "brackets are text, and no markup"


@pytest.mark.parametrize("text", ["job-train", "naïve 模型", "tab is no\tletter"])
def test_letters_of_all_languages_are_kept(text: str) -> None:
    assert clean(text) == text.replace("\t", "?")


@pytest.mark.slow
def test_a_terminal_gets_200_rows_and_the_number_of_the_others(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.say({"gpus": [{**GPU, "gpu": f"GPU-{index}"} for index in range(40_000)]})
    monkeypatch.setattr(output.out, "_force_terminal", True)
    answer = service.run("gpus")
    assert "39,800 more not shown" in answer.stdout
    assert answer.stdout.count("GPU-") == 200
    assert len(json.loads(service.run("gpus", "--json").stdout)["gpus"]) == 40_000
    assert service.run("gpus", "--limit", "3").stdout.count("GPU-") == 3


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, rounds: int) -> None:
        self.slept: list[float] = []
        self.now_s = 0.0

        def sleep(seconds: float) -> None:
            self.slept.append(seconds)
            if len(self.slept) == rounds:
                raise KeyboardInterrupt

        monkeypatch.setattr(reach, "sleep", sleep)
        monkeypatch.setattr(reach, "monotonic", lambda: self.now_s)


def test_a_view_is_repeated_until_ctrl_c_and_printed_when_it_changes(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(monkeypatch, 4)
    messages = iter(["first", "first", "second", "second"])
    service.answers = lambda *_: Answer(
        200, json.dumps({"jobs": [{**JOB, "message": next(messages)}]}).encode()
    )
    answer = service.run("jobs", "--watch")
    assert answer.exit_code == 0
    assert answer.stdout.count("first") == 1
    assert answer.stdout.count("second") == 1


def test_while_the_service_is_away_watching_goes_on(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(monkeypatch, 3)
    turns = iter([200, 503, 200])
    body = json.dumps({"jobs": [JOB]}).encode()
    service.answers = lambda *_: Answer(next(turns), body)
    answer = service.run("jobs", "-w")
    assert answer.exit_code == 0
    assert answer.stdout.count("job-train") == 2
    assert "error: HTTP 503" in answer.stderr


def test_a_slow_cluster_is_asked_a_fifth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 1)

    def slow() -> None:
        clock.now_s += 10.0

    repeated(slow, 2.0)
    assert clock.slept == [40.0]


def test_a_token_that_no_header_can_have_is_refused_without_being_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error of the request would quote it."""
    for token in ("s3cret\nX-More: 1", "s3cret\u2026"):
        monkeypatch.setenv("TANDEM_TOKEN", token)
        result = CliRunner().invoke(build_app(), ["jobs", "--server", "http://127.0.0.1:9"])
        assert isinstance(result.exception, UsageError)
        assert "s3cret" not in f"{result.exception.message} {result.output}"
    assert Reader(token=" t\n")._token == "t"
