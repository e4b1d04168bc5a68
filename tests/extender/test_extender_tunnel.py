"""Reads through the API server's proxy: TLS from end to end, and the caller's own rights."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
import uvicorn
import uvloop
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from scheduler_extender.admission.certificates import generate
from scheduler_extender.serving import tunnel
from scheduler_extender.serving.gate import Entry, Gate, Guarded, Limits, Turnstile
from scheduler_extender.serving.status import assets
from tandem.contracts.names import API_AUDIENCE, NAMESPACE
from tandem.errors import TandemError
from tandem.kube.client import KubeClient
from tandem.kube.credentials import TokenCredentials
from tandem.kube.errors import Forbidden, Unavailable
from tandem.kube.tunnel import Tunnel, upgraded

HOST = f"tandem-webhook.{NAMESPACE}.svc"
PROXY = f"/api/v1/namespaces/{NAMESPACE}/services/tandem-api/proxy"


class Site:
    """An extender's tunnel, and an API server that leads to it as kube-apiserver does.

    It keeps the Authorization header to itself, carries bytes after an upgrade, and records them.
    """

    def __init__(self, folder: Path) -> None:
        self.serving = generate([HOST], datetime.now(UTC))
        self.trusted = self.serving
        self.limits = tunnel.LIMITS
        self.carried = bytearray()  # by the proxy, towards the extender
        self.heads: list[str] = []  # that the API server has read
        self.shown: list[str] = []  # Authorization headers that the extender has read
        self.minted: list[dict] = []
        self.known = {"ada-token"}
        self.asked: list[tuple[str, str]] = []  # views of the page, with their parameters
        self.only_of = ""  # the only namespace that the caller may see
        self.go_on = threading.Event()  # lets a stream of events go on
        self.answers: dict[str, tuple[int, bytes]] = {}  # of the API server, by path
        self.gate: Gate
        self.port = self.api_port = 0
        self._folder = folder
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._end: asyncio.Event
        self._thread = threading.Thread(target=lambda: uvloop.run(self._serve()), daemon=True)

    def __enter__(self) -> Site:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)

    def client(self, token: str = "ada-token") -> KubeClient:
        credentials = TokenCredentials(f"http://127.0.0.1:{self.api_port}", token, None)
        if not token:
            credentials.authorization = lambda: None  # a client certificate instead
        return KubeClient(credentials)

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.serving.write(self._folder))
        app = FastAPI()

        @app.get("/v1/jobs")
        async def jobs(request: Request) -> dict:
            self.shown.append(request.headers.get("authorization", ""))
            allowed = self.shown[-1].removeprefix("Bearer ") in self.known
            return {"jobs": [{"name": "x" * 100_000}] if allowed else []}

        @app.api_route("/status/{path:path}", methods=["GET", "HEAD"])
        async def page(request: Request, path: str) -> Response:
            self.shown.append(request.headers.get("authorization", ""))
            return assets.response(path, request.headers)

        @app.get("/v1/status/{path:path}")
        async def view(request: Request, path: str, namespace: str = "") -> Response:
            self.asked.append((request.url.path, request.url.query))
            self.shown.append(request.headers.get("authorization", ""))
            if path == "scope" and self.only_of and namespace != self.only_of:
                return JSONResponse({"detail": "choose a namespace"}, 403)
            if path == "scope":
                return JSONResponse({"namespace": namespace or None})

            async def events() -> AsyncIterator[bytes]:
                yield b"first"
                await asyncio.to_thread(self.go_on.wait, 10)
                yield b"second"

            return StreamingResponse(events(), media_type="text/event-stream")

        @app.get("/metrics")
        @app.post("/mutate")
        async def other() -> dict:
            return {"reached": True}

        models = FastAPI()

        @models.post("/v1/models")
        async def push(request: Request) -> dict:
            self.shown.append(request.headers.get("authorization", ""))
            return {"bytes": len(await request.body()), "query": dict(request.query_params)}

        settings = uvicorn.Config(
            tunnel.narrowed(app, models),
            http="httptools", log_config=None, lifespan="off", ws="none",
        )  # fmt: skip
        settings.load()
        server = uvicorn.Server(settings)

        def make(turnstile: Turnstile, entry: Entry) -> asyncio.Protocol:
            made = Guarded(settings, server.server_state, {})
            made.turnstile, made.entry = turnstile, entry
            return made

        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        self.gate = Gate(listener, self.limits, partial(tunnel.Entrance, make, lambda: context))
        api = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.api_port = api.sockets[0].getsockname()[1]
        self._ready.set()
        await self._end.wait()
        self.gate.close()
        api.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.heads.append(head)
            path = head.split(" ")[1]
            if path in self.answers:
                await self._say(writer, *self.answers[path])
            elif path.startswith(PROXY):
                await self._carry(head, path, reader, writer)
            elif path.endswith("/token"):
                length = next(
                    int(line.split(":")[1])
                    for line in head.lower().split("\r\n")
                    if line.startswith("content-length")
                )
                self.minted.append(json.loads(await reader.readexactly(length)))
                token = f"minted-{len(self.minted)}"
                await self._say(writer, 201, json.dumps({"status": {"token": token}}).encode())
            else:
                bundle = base64.b64encode(self.trusted.ca).decode()
                hooks = {"webhooks": [{"clientConfig": {"caBundle": bundle}}]}
                await self._say(writer, 200, json.dumps(hooks).encode())
        writer.close()

    async def _say(self, writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
        head = f"HTTP/1.1 {status} -\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()

    async def _carry(
        self, head: str, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self.port)
        lines = [
            line for line in head.split("\r\n")[1:] if not line.lower().startswith("authorization")
        ]
        first = f"GET {path.removeprefix(PROXY)} HTTP/1.1"
        back.write("\r\n".join([first, *lines]).encode())

        async def pipe(
            source: asyncio.StreamReader, sink: asyncio.StreamWriter, record: bytearray | None
        ) -> None:
            while data := await source.read(65536):
                if record is not None:
                    record += data
                sink.write(data)
                await sink.drain()
            sink.close()

        await asyncio.gather(pipe(reader, back, self.carried), pipe(there, writer, None))

    def do(self, make: Callable[[], Awaitable[object]]) -> object:
        return asyncio.run_coroutine_threadsafe(make(), self._loop).result(10)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path) as found:
        yield found


def test_the_callers_own_token_reaches_the_extender_and_the_proxy_sees_none(site: Site) -> None:
    answer = Tunnel(site.client()).get("/v1/jobs", {"namespace": "team-a"})
    assert answer.status == 200
    assert len(answer.json()["jobs"][0]["name"]) == 100_000
    assert site.shown == ["Bearer ada-token"]
    assert site.carried
    assert b"ada-token" not in site.carried
    assert b"/v1/jobs" not in site.carried
    (upgrade,) = (head for head in site.heads if "/proxy/" in head)
    assert "team-a" not in upgrade


def test_a_service_that_the_api_server_does_not_trust_is_sent_no_token(site: Site) -> None:
    site.trusted = generate([HOST], datetime.now(UTC))
    with pytest.raises(TandemError, match="not trusted") as refused:
        Tunnel(site.client()).get("/v1/jobs")
    assert "tandem doctor" in refused.value.hint
    assert site.shown == []


def test_a_certificate_for_another_name_is_not_trusted(site: Site) -> None:
    reader = Tunnel(site.client(), "other")
    reader._open = lambda: upgraded(site.client().credentials, f"{PROXY}/tunnel")
    with pytest.raises(TandemError, match=r"tandem-webhook\.other\.svc"):
        reader.get("/v1/jobs")
    assert site.shown == []


def test_a_caller_with_a_certificate_mints_a_token_that_is_worth_nothing_elsewhere(
    site: Site,
) -> None:
    site.known = {"minted-1"}
    reader = Tunnel(site.client(""))
    assert reader.get("/v1/jobs").json()["jobs"]
    assert reader.get("/v1/jobs").json()["jobs"]
    (request,) = site.minted
    assert request["spec"] == {"audiences": [API_AUDIENCE], "expirationSeconds": 600}
    (head,) = (head for head in site.heads if "/token" in head)
    assert "/serviceaccounts/tandem-reader/token" in head


def test_a_caller_with_a_certificate_pushes_models_by_another_account(site: Site) -> None:
    site.known = {"minted-1", "minted-2"}
    tunnel = Tunnel(site.client(""))
    tunnel.get("/v1/jobs")
    tunnel.ask("POST", "/v1/models", {"name": "resnet50", "namespace": "team-a"}, b"graph")
    tunnel.get("/v1/jobs")
    heads = [head for head in site.heads if "/token" in head]
    assert ["tandem-editor" in head for head in heads] == [False, True]
    assert site.shown == ["Bearer minted-1", "Bearer minted-2", "Bearer minted-1"]


def test_a_named_account_is_asked_for_instead_of_the_callers_own_token(site: Site) -> None:
    Tunnel(site.client(), account=("team-a", "ci")).get("/v1/jobs")
    assert site.shown == ["Bearer minted-1"]
    assert any("/namespaces/team-a/serviceaccounts/ci/token" in head for head in site.heads)


def test_who_may_make_no_token_learns_what_to_do(site: Site) -> None:
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/tandem-reader/token"
    status = {"kind": "Status", "code": 403, "message": "cannot create resource"}
    site.answers[path] = 403, json.dumps(status).encode()
    with pytest.raises(TandemError, match="certificate and no token") as refused:
        Tunnel(site.client("")).get("/v1/jobs")
    assert "--account" in refused.value.hint


@pytest.mark.parametrize(
    ("status", "kind", "error"),
    [(403, "Status", Forbidden), (401, "Status", Forbidden), (503, "", Unavailable)],
)
def test_what_the_api_server_refuses_is_an_error_of_its_kind(
    site: Site, status: int, kind: str, error: type[Exception]
) -> None:
    said = {"kind": kind, "code": status, "message": "no endpoints available"}
    site.answers[f"{PROXY}/tunnel"] = status, json.dumps(said).encode()
    with pytest.raises(error):
        Tunnel(site.client()).get("/v1/jobs")


def test_something_on_the_way_that_drops_the_upgrade_is_named(site: Site) -> None:
    site.answers[f"{PROXY}/tunnel"] = 200, b"{}"
    with pytest.raises(Unavailable, match="does not carry streams"):
        Tunnel(site.client()).get("/v1/jobs")


def test_an_api_server_that_is_away_is_said_to_be(site: Site) -> None:
    site.api_port = 9
    with pytest.raises(Unavailable):
        Tunnel(site.client()).get("/v1/jobs")


@pytest.mark.parametrize("path", ["/metrics", "/mutate", "/v1x", "/healthz", "/status", "/statusx"])
def test_only_reads_and_the_page_are_answered_within(site: Site, path: str) -> None:
    """A review there would be counted as one of the API server's."""
    assert Tunnel(site.client()).get(path).status == 404


async def asked(method: str, path: str, headers: list[tuple[bytes, bytes]]) -> int:
    said = []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200})

    async def send(message):
        said.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": headers}

    async def models(scope, receive, send):
        await send({"type": "http.response.start", "status": 201})

    await tunnel.narrowed(app, models)(scope, None, send)
    return said[0]["status"]


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("GET", [], 200),
        ("GET", [(b"content-length", b"0")], 200),
        ("POST", [], 404),
        ("GET", [(b"content-length", b"5")], 404),
        ("GET", [(b"transfer-encoding", b"chunked")], 404),
    ],
)
def test_bodies_and_other_methods_are_refused(
    method: str, headers: list[tuple[bytes, bytes]], status: int
) -> None:
    assert asyncio.run(asked(method, "/v1/jobs", headers)) == status


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/models", 201),
        ("DELETE", "/v1/models/team-a/m", 201),
        ("POST", "/v1/predict", 201),
        ("POST", "/v1/predict:batch", 404),
        ("POST", "/v1/feedback", 404),
        ("POST", "/v1/interference", 404),
        ("POST", "/v1/modelsx", 404),
    ],
)
def test_models_and_predictions_are_answered_and_no_more_of_the_predictor(
    method: str, path: str, status: int
) -> None:
    headers = [(b"content-length", b"5")]
    assert asyncio.run(asked(method, path, headers)) == status


def test_a_body_comes_through_whole(site: Site) -> None:
    body = bytes(3 << 20)
    query = {"name": "m", "namespace": "team-a"}
    answer = Tunnel(site.client()).ask(
        "POST", "/v1/models", query, body, "application/octet-stream"
    )
    assert answer.json() == {"bytes": len(body), "query": query}
    assert site.shown == ["Bearer ada-token"]
    assert b"ada-token" not in site.carried


GOOD = b"GET /tunnel HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: tandem-tls\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "answered"),
    [
        (b"GET /v1/jobs HTTP/1.1\r\nAuthorization: Bearer ada-token\r\n\r\n", b"426"),
        (b"POST /tunnel HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: tandem-tls\r\n\r\n", b"426"),
        (b"GET /tunnel HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", b"426"),
        (b"\x16\x03\x01\r\n\r\n", b"426"),
        (GOOD + b"GET /v1/jobs HTTP/1.1\r\n\r\n", b""),
        (b"GET /tunnel HTTP/1.1\r\n" + b"a: " + b"b" * 20_000, b""),
        (GOOD, b"101"),
    ],
)
def test_a_stream_begins_with_one_request_and_nothing_after_it(
    site: Site, sent: bytes, answered: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", site.port), 5) as stream:
        stream.sendall(sent)
        try:
            head = stream.recv(4096)
        except ConnectionResetError:
            head = b""
    assert head[9:12] == answered
    assert site.shown == []


def test_a_place_is_free_again_whatever_a_stream_came_to(site: Site) -> None:
    Tunnel(site.client()).get("/v1/jobs")
    for sent in (b"", b"nonsense\r\n\r\n", GOOD, GOOD + b"x"):
        with socket.create_connection(("127.0.0.1", site.port), 5) as stream:
            stream.sendall(sent)
            if sent == GOOD:
                assert stream.recv(4096)
                stream.sendall(b"no handshake at all, but enough bytes of it to be read as one")

    async def until_free() -> None:
        while site.gate.turnstile.open:  # noqa: ASYNC110 - the loop closes them in its own time
            await asyncio.sleep(0.01)

    site.do(until_free)


def test_beyond_their_own_bound_a_stream_is_closed(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.limits = Limits(per_address=3, total=3, rate=1000.0, burst=1000.0)
    with site:
        held = [socket.create_connection(("127.0.0.1", site.port), 5) for _ in range(3)]
        with pytest.raises(Unavailable):
            Tunnel(site.client()).get("/v1/jobs")
        for each in held:
            each.close()
