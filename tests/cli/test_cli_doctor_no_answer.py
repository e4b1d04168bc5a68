"""`tandem doctor` without an API server that answers as one: it ends, and says what to do.

The servers are real ones of this process, and the client is the command's own.
"""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner
from web_servers import Serve, Web, web_servers

from scheduler_extender.admission.certificates import generate
from tandem.cli.main import build_app

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def ended() -> Iterator[threading.Event]:
    """An event that is set at the end of the test: until then, a server may hang."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def serve(ended: threading.Event) -> Iterator[Serve]:
    with web_servers() as start:
        yield start
        ended.set()


def kubeconfig(folder: Path, server: str, user: dict[str, Any] | None = None) -> Path:
    path = folder / "kubeconfig"
    context = {"cluster": "c", "user": "u", "namespace": "team-a"}
    path.write_text(
        yaml.safe_dump(
            {
                "clusters": [{"name": "c", "cluster": {"server": server}}],
                "contexts": [{"name": "x", "context": context}],
                "current-context": "x",
                "users": [{"name": "u", "user": user or {"token": "t"}}],
            }
        )
    )
    return path


def failed(path: Path, *args: str) -> dict[str, str]:
    """Return the only failed check of a run that ends with status 1."""
    answer = CliRunner().invoke(build_app(), ["doctor", "--json", "--kubeconfig", str(path), *args])
    assert isinstance(answer.exception, SystemExit), answer.exception
    assert answer.exit_code == 1
    said = json.loads(answer.stdout)
    assert said["healthy"] is False
    (found,) = (each for each in said["checks"] if each["outcome"] == "failed")
    assert found["do"], "it says what to do"
    return found


@pytest.mark.slow
def test_an_api_server_that_takes_connections_and_never_answers(
    tmp_path: Path, serve: Serve, ended: threading.Event
) -> None:
    found = failed(kubeconfig(tmp_path, serve(lambda _: ended.wait())), "--timeout", "3")
    assert found["check"] == "version"
    assert "has not answered all of it within 3 s" in found["says"]
    assert "--timeout" in found["do"]


@pytest.mark.slow
def test_an_api_server_whose_answer_never_ends(
    tmp_path: Path, serve: Serve, ended: threading.Event
) -> None:
    """Each byte comes in time, so that no limit on a read is ever reached."""

    def drips(api: Web) -> None:
        if api.path != "/metrics":
            api.says(200, {"gitVersion": "v1.37.1"})
            return
        api.send_response_only(200)
        api.end_headers()
        while not ended.wait(0.2):
            api.wfile.write(b"#")
            api.wfile.flush()

    found = failed(kubeconfig(tmp_path, serve(drips)), "--timeout", "5")
    assert found["check"] == "feature gates"
    assert "within 5 s" in found["says"]


@pytest.mark.long
def test_a_login_program_that_never_ends(tmp_path: Path, serve: Serve) -> None:
    user = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "sleep",
            "args": ["30"],
            "interactiveMode": "Never",
        }
    }
    found = failed(kubeconfig(tmp_path, "https://127.0.0.1:9", user), "--timeout", "1")
    assert found["check"] == "kubeconfig"
    assert "has given no login within 1 s" in found["says"]


def status(code: int, message: str) -> Callable[[Web], None]:
    body = {"kind": "Status", "status": "Failure", "code": code, "message": message}
    return lambda api: api.says(code, body)


ANONYMOUS = 'gpujobs is forbidden: User "system:anonymous" cannot list resource "gpujobs"'
PORTAL = b"<html><body>Please log in to the network</body></html>"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "says", "do"),
    [
        (status(401, "Unauthorized"), "does not accept your credentials", "log in again"),
        (status(403, ANONYMOUS), "does not know who you are", "log in again"),
        (status(500, "etcdserver: request timed out"), "does not answer", "network"),
        (lambda api: api.says(200, PORTAL), "the answer is no JSON", "HTTPS_PROXY"),
        (lambda api: api.says(200, []), "the answer is no object", "HTTPS_PROXY"),
        (lambda api: api.connection.close(), "does not answer", "network"),
    ],
    ids=["expired token", "no token", "broken", "portal", "list", "closes"],
)
def test_an_api_server_that_does_not_know_the_caller_or_is_none(
    tmp_path: Path, serve: Serve, answer: Callable[[Web], None], says: str, do: str
) -> None:
    found = failed(kubeconfig(tmp_path, serve(answer)))
    assert found["check"] == "version"
    assert says in found["says"]
    assert do in found["do"]


def test_nothing_listens_at_the_address(tmp_path: Path, serve: Serve) -> None:
    found = failed(kubeconfig(tmp_path, "https://127.0.0.1:1"))
    assert (found["check"], "does not answer" in found["says"]) == ("version", True)
    assert "address in your kubeconfig" in found["do"]


def test_an_authority_that_the_kubeconfig_does_not_name(tmp_path: Path, serve: Serve) -> None:
    made = generate(["127.0.0.1"], datetime.now(UTC))
    certificate, key = made.write(tmp_path / "tls")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    found = failed(kubeconfig(tmp_path, serve(lambda api: api.says(200, {}), context)))
    assert "no trusted connection" in found["says"]
    assert "fetch your kubeconfig anew" in found["do"]


def test_an_api_server_without_a_clock_is_no_bug_of_ours(tmp_path: Path, serve: Serve) -> None:
    """Its answers have no date, and it knows none of our resources."""

    def answer(api: Web) -> None:
        if api.path == "/version":
            api.says(200, {"gitVersion": "v1.37.1"})
        else:
            status(404, "404 page not found")(api)

    found = failed(kubeconfig(tmp_path, serve(answer)))
    assert found["check"] == "clocks"
    assert "its answers have no date" in found["says"]


@pytest.mark.parametrize(
    "text",
    ["", "- a\n", "hello", "a: [b\n  - :", "\x00\x01", "kind: Config\n", "clusters: [{name: 3}]\n"],
)
def test_a_file_that_is_no_kubeconfig(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    found = failed(path)
    assert found["check"] == "kubeconfig"
    assert "Give a kubeconfig file" in found["do"]


@pytest.mark.parametrize(
    ("server", "says"), [("", "no address"), ("https://[::1", "Invalid IPv6"), ("host:1", "no")]
)
def test_an_address_that_is_none(tmp_path: Path, server: str, says: str) -> None:
    found = failed(kubeconfig(tmp_path, server))
    assert found["check"] == "kubeconfig"
    assert says in found["says"]


def test_a_missing_file_an_unknown_context_and_a_folder(tmp_path: Path) -> None:
    assert failed(tmp_path / "nothing")["check"] == "kubeconfig"
    assert failed(tmp_path)["check"] == "kubeconfig"
    path = kubeconfig(tmp_path, "https://127.0.0.1:1")
    assert "gone" in failed(path, "--context", "gone")["says"]


def test_a_wrong_option_is_a_fault_of_usage(tmp_path: Path) -> None:
    for wrong in (("--timeout", "0"), ("--no-such-option",)):
        assert CliRunner().invoke(build_app(), ["doctor", *wrong]).exit_code == 2
