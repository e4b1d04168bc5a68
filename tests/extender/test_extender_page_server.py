"""`tandem page`: the page on a port of this machine, read through the verified tunnel."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import Result
from test_extender_tunnel import Site
from typer.testing import CliRunner

from tandem.cli import page as command
from tandem.cli.main import build_app
from tandem.cli.page import PageServer
from tandem.cli.reach import Reader
from tandem.errors import TandemError, UsageError
from tandem.kube.tunnel import Tunnel


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path) as found:
        yield found
        found.go_on.set()


@pytest.fixture
def server(site: Site) -> Iterator[PageServer]:
    with PageServer(Tunnel(site.client())) as found:
        found.start()
        yield found


def get(address: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.netloc, timeout=10)
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    connection.request(method, target, headers=headers)
    answer = connection.getresponse()
    try:
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def test_the_page_and_its_views_come_through_the_tunnel_with_the_callers_token(
    site: Site, server: PageServer
) -> None:
    status, headers, content = get(server.address, Cookie="a=b", Authorization="Bearer other")
    assert status == 200
    assert b"<title>Tandem</title>" in content
    assert "default-src 'none'" in headers["content-security-policy"]
    assert get(server.address, **{"If-None-Match": headers["etag"]})[0] == 304
    assert get(server.address, "HEAD")[::2] == (200, b"")
    scope = server.address.replace("/status/", "/v1/status/scope?a=1&b=%20")
    assert json.loads(get(scope)[2]) == {"namespace": None}
    assert site.asked == [("/v1/status/scope", "a=1&b=%20")]
    assert set(site.shown) == {"Bearer ada-token"}
    assert b"ada-token" not in site.carried


def test_a_stream_arrives_piece_by_piece(site: Site, server: PageServer) -> None:
    parts = urlsplit(server.address.replace("/status/", "/v1/status/overview"))
    connection = http.client.HTTPConnection(parts.netloc, timeout=10)
    connection.request("GET", parts.path, headers={"Accept": "text/event-stream"})
    answer = connection.getresponse()
    assert answer.read1(100) == b"first"
    site.go_on.set()
    assert answer.read() == b"second"


def test_without_the_secret_there_is_nothing(site: Site, server: PageServer) -> None:
    base = f"http://{server.place}"
    wrong = [
        f"{base}/", f"{base}/status/", f"{base}/x{server.secret}/status/", f"{base}//status/",
        f"{base}/{server.secret[:-1]}/status/", f"{base}/{'%00' * 9}/status/",
        f"{base}/{server.secret}/metrics", f"{base}/{server.secret}/v1/jobs",
        f"{base}/{server.secret}/v1/models",
    ]  # fmt: skip
    for address in wrong:
        assert get(address)[0] == 404, address
    # A page elsewhere whose name was made to lead here.
    assert get(server.address, Host="evil.example")[0] == 404
    assert get(server.address, Host=f"evil.example:{server.server_port}")[0] == 404
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert get(server.address, method)[0] == 501, method
    assert site.shown == [], "nothing of this has reached the extender"


def test_a_caller_that_goes_away_or_writes_nonsense_leaves_the_terminal_alone(
    site: Site, server: PageServer, capfd: pytest.CaptureFixture[str]
) -> None:
    """Any user of the machine can; an error in a thread would be printed with its traceback."""
    asked = f"GET /{server.secret}/status/\xe9 HTTP/1.1\r\nHost: {server.place}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as nonsense:
        nonsense.sendall(asked.encode("latin-1"))
        assert b" 404 " in nonsense.recv(100)
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as gone:
        gone.sendall(b"GET /")
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert get(f"http://{server.place}/")[0] == 404  # the one before has been accepted by then
    while any("process_request_thread" in each.name for each in threading.enumerate()):
        time.sleep(0.01)
    assert capfd.readouterr().err == ""
    assert site.shown == []


def test_the_address_that_the_browser_is_started_with_works_once(server: PageServer) -> None:
    first = server.first_address
    assert server.secret not in first
    status, headers, _ = get(first)
    assert (status, headers["location"]) == (303, server.address)
    assert get(first)[0] == 404


def test_who_sees_one_namespace_gets_its_views(site: Site) -> None:
    with PageServer(Tunnel(site.client()), namespace="team-a") as server:
        server.start()
        views = server.address.replace("/status/", "/v1/status/")
        for query in ("", "?q=x", "?namespace=team-b"):
            get(f"{views}scope{query}")
    asked = [query for _, query in site.asked]
    assert asked == ["namespace=team-a", "q=x&namespace=team-a", "namespace=team-b"]


def test_an_extender_that_goes_away_is_an_answer_in_words(site: Site, server: PageServer) -> None:
    site.answers["/api/v1/namespaces/tandem-system/services/tandem-api/proxy/tunnel"] = (503, b"{}")
    status, _, content = get(server.address)
    assert status == 502
    assert json.loads(content)["detail"]


def test_a_port_that_is_taken_is_said(server: PageServer) -> None:
    with pytest.raises(UsageError, match=str(server.server_port)):
        PageServer(server.tunnel, server.server_port)


def run(site: Site, monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[Result, list[str]]:
    """Run the command until it would wait; return what it printed, and what a browser was given."""
    opened: list[str] = []

    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            if timeout is None and threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(Reader, "client", site.client())
    monkeypatch.setattr(Reader, "own_namespace", "team-a")
    monkeypatch.setattr(command, "Event", Interrupted)
    monkeypatch.setattr(command.webbrowser, "open", lambda url: opened.append(url) or True)
    return CliRunner().invoke(build_app(), ["page", *words]), opened


def test_the_command_prints_the_address_and_opens_a_browser(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, opened = run(site, monkeypatch)
    assert answer.exit_code == 0, answer.exception
    address = answer.stdout.strip()
    assert urlsplit(address).hostname == "127.0.0.1"
    assert address.endswith("/status/")
    (first,) = opened
    assert urlsplit(first).netloc == urlsplit(address).netloc
    assert urlsplit(address).path.split("/")[1] not in first
    with contextlib.suppress(OSError):
        raise AssertionError(f"the port is still open: {get(address)}")


def test_no_browser_is_opened_where_none_is_wanted(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, opened = run(site, monkeypatch, "--no-browser", "--json")
    assert json.loads(answer.stdout)["url"].startswith("http://127.0.0.1:")
    assert opened == []


def test_an_address_is_opened_as_it_is_and_nothing_else(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, opened = run(site, monkeypatch, "--server", "https://extender:8443/")
    assert answer.stdout == "https://extender:8443/status/\n"
    assert opened == ["https://extender:8443/status/"]
    for wrong in ("extender:8443", "file:///etc/passwd", "https://", "http://[", "javascript:x"):
        answer, opened = run(site, monkeypatch, "--server", wrong)
        assert isinstance(answer.exception, UsageError), (wrong, answer.exception)
        assert opened == []


def test_a_tenant_gets_the_page_of_the_own_namespace(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.only_of = "team-a"
    answer, opened = run(site, monkeypatch)
    assert answer.exit_code == 0, answer.exception
    assert opened
    site.only_of = "team-b"
    answer, opened = run(site, monkeypatch)
    assert isinstance(answer.exception, TandemError)
    assert opened == []
