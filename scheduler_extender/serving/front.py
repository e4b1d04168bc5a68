"""The process in front: the ports that clients of the pod network reach.

It serves the webhook, judges reviews by itself, and hands reads on to the extender over a socket of
the file system. It shares neither event loop nor interpreter with the extender, so that nothing a
client sends delays a verb. The extender starts it, hears from it twice a second (`Line`), and
starts another one where it ends or does not answer. It ends with the extender.

Its probe port has connections and a thread of its own: a kubelet is answered however busy the
public port is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import resource
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import uvicorn
import uvloop
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from pydantic import BaseModel, ConfigDict

from scheduler_extender.admission.config import AdmissionConfig, Rotation
from scheduler_extender.admission.rotation import Keeper
from scheduler_extender.admission.webhook import (
    Judge,
    admission_router,
    claims_of,
    namespace_of,
)
from scheduler_extender.cluster.kinds import WorkloadKind, know_templates, merged
from scheduler_extender.config import Listen, Public
from scheduler_extender.predictor_token import predictor_token
from scheduler_extender.serving import tunnel
from scheduler_extender.serving.fair import BusyError, FairWorker
from scheduler_extender.serving.gate import Entry, Gate, Guarded, Limits, Turnstile
from scheduler_extender.serving.limits import Limited, client_name
from scheduler_extender.serving.models import Predictor, models_app
from scheduler_extender.serving.parameters import known_parameters
from scheduler_extender.serving.process import return_freed_memory
from scheduler_extender.serving.readers import Agents, Readers
from scheduler_extender.serving.status.publisher import Publisher
from scheduler_extender.serving.status.routes import status_router
from scheduler_extender.serving.status.sources import (
    events_for_caller,
    remote_changes,
    remote_profiles,
    remote_reports,
    remote_what_if,
)
from scheduler_extender.serving.tls import Tls, tls_of_files
from tandem.contracts.names import API_AUDIENCE
from tandem.contracts.prediction import ErrorBody
from tandem.errors import TandemError
from tandem.kube.client import KubeClient
from tandem.log import configure_log

log = logging.getLogger(__name__)

BEAT_S = 0.5
#: The extender answers each beat at once; without an answer for this time it hangs.
HANGS_AFTER_S = 3.0
#: An API server has up to 200 changes under way, and as many connections to a webhook.
PUBLIC_LIMITS = Limits(per_address=256, total=512, rate=100.0, burst=300.0)
#: A kubelet asks a few times a second at most, each time on a new connection.
PROBE_LIMITS = Limits(per_address=8, total=64, rate=10.0, burst=20.0, longest_wait_s=0.5)
_REVIEWS_WAITING = 256
#: Bounds a fault of ours, not what clients may use: that is bounded by `Limits` and `Budget`.
_MEMORY_BYTES = 640 * 2**20
_METRICS_KEPT_S = 1.0
_READ_BYTES = 64 * 2**20
_REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"description": "There is no such parameter"},
    401: {"description": "Not a token that the API server knows"},
    403: {"description": "The caller may not read this in the API server either"},
}
_READS_AT_ONCE = 2
#: A graph waits for its turn and is parsed before the predictor answers.
_PREDICTOR_S = 50.0
_BIND_WITHIN_S = 5.0
_BACKLOG = 1024
#: What is under way when the extender ends may come to its end.
ENDS_S = 5.0


class FrontConfig(BaseModel):
    """What the process in front needs of the extender's settings."""

    model_config = ConfigDict(frozen=True)

    kubeconfig: Path | None
    namespace: str
    public: Public
    probes: Listen | None
    tunnel: Listen | None = None
    predictor_url: str | None = None
    predictor_token_file: Path | None = None
    certificate: Rotation
    admission: AdmissionConfig
    kinds: tuple[WorkloadKind, ...] = ()
    log_level: str
    socket: str


class Line:
    """What goes between extender and front, a line of JSON each way, twice a second.

    Threads: one speaks, the others read what was heard last.
    """

    def __init__(self) -> None:
        self._counted: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.heard_s = -1e9
        self.turned_s = time.monotonic()
        self.ready = False
        self.has_runtime_class = False
        self.levels: tuple[str, ...] | None = None
        self.serving = False
        self.certificate_ends_s = 0.0
        self.end: Callable[[], None] = lambda: os._exit(0)

    def count(self, what: str) -> None:
        """Count a verdict; the extender has the counters."""
        with self._lock:
            self._counted[what] += 1

    @property
    def alive(self) -> bool:
        """True while the extender's event loop answers and the public port is served."""
        return self.serving and time.monotonic() - self.heard_s < HANGS_AFTER_S

    def speak(self) -> None:
        """Exchange lines until the extender is gone (then end at once) or says that we end."""
        while True:
            with self._lock:
                counted, self._counted = self._counted, Counter()
            said = {
                "admitted": counted,
                "stands_still_s": time.monotonic() - self.turned_s,
                "serving": self.serving,
                "certificate_ends_s": self.certificate_ends_s,
            }
            try:
                sys.stdout.write(json.dumps(said) + "\n")
                sys.stdout.flush()
                answer = sys.stdin.readline()
            except OSError:
                answer = ""
            if not answer:
                os._exit(0)
            heard = json.loads(answer)
            if heard.get("end"):
                self.end()
                return
            self.ready, self.has_runtime_class = heard["ready"], heard["runtime_class"]
            self.levels = None if heard.get("levels") is None else tuple(heard["levels"])
            self.heard_s = time.monotonic()
            time.sleep(BEAT_S)


def front_app(
    config: FrontConfig, line: Line, api: KubeClient, extender: httpx.AsyncClient
) -> FastAPI:
    """Return what clients of the public port reach."""
    app = FastAPI(title="Tandem", docs_url=None, redoc_url=None)
    worker = FairWorker(_REVIEWS_WAITING)

    async def judged(request: Request, judge: Judge) -> tuple[int, bytes]:
        body = await request.body()
        try:
            answer: tuple[int, bytes] = await worker.run(
                client_name(request.scope), lambda: judge(body), len(body), namespace_of(body)
            )
        except BusyError:
            return 503, _error("this client has too many reviews under way")
        except MemoryError:
            return 503, _error("there is no memory for this review")
        return answer

    app.include_router(
        admission_router(
            config.admission,
            lambda: line.has_runtime_class,
            line.count,
            judged,
            claims_of(api),
            levels=lambda: line.levels,
        )
    )
    app.include_router(_health(line))
    readers = Readers(api, audience=API_AUDIENCE)
    app.include_router(checked_reads(readers, Agents(api), extender))
    app.include_router(
        status_router(
            Publisher(remote_changes(extender)),
            readers.check,
            events_for_caller(api, readers.require),
            remote_profiles(extender),
            report=remote_reports(extender),
            what_if=remote_what_if(extender),
        )
    )
    app.add_middleware(Limited)
    return app


def _health(line: Line) -> APIRouter:
    router = APIRouter(tags=["operation"])

    @router.get("/healthz")
    async def healthz() -> Response:
        """Answer 200 while the extender's event loop turns."""
        return _json(*health("/healthz", line))

    @router.get("/readyz")
    async def readyz() -> Response:
        """Answer 200 once the cluster has been read."""
        return _json(*health("/readyz", line))

    return router


def health(path: str, line: Line) -> tuple[int, bytes]:
    """Return the answer to a probe."""
    if path not in ("/healthz", "/readyz"):
        return 404, _error("there are /healthz and /readyz")
    if not line.alive:
        return 503, _error("the extender does not answer")
    if path == "/readyz" and not line.ready:
        return 503, _error("the cluster has not been read yet")
    return 200, b'{"status":"ok"}'


def checked_reads(readers: Readers, agents: Agents, extender: httpx.AsyncClient) -> APIRouter:
    """Return the routes that the extender answers; callers of /v1 are checked here."""
    router = APIRouter(tags=["read-only"])
    known = [Depends(known_parameters())]
    turns = asyncio.Semaphore(_READS_AT_ONCE)
    metrics: list[Any] = [0.0, b"", ""]
    metrics_turn = asyncio.Lock()

    agents_turns = asyncio.Semaphore(_READS_AT_ONCE)

    async def read(path: str, query: bytes, turns: asyncio.Semaphore = turns) -> Response:
        content = bytearray()
        url = path + (f"?{query.decode('ascii', 'replace')}" if query else "")
        try:
            async with turns, extender.stream("GET", url) as answer:
                async for part in answer.aiter_raw():
                    content += part
                    if len(content) > _READ_BYTES:
                        return _json(503, _error("the answer is too large; ask for one namespace"))
        except (httpx.HTTPError, httpx.InvalidURL):
            return _json(503, _error("the extender does not answer"))
        return Response(
            bytes(content), answer.status_code, media_type=answer.headers.get("content-type")
        )

    @router.get("/metrics")
    async def exposition() -> Response:
        """Tell Prometheus; however often it is asked, the extender is asked once a second."""
        async with metrics_turn:
            if time.monotonic() - metrics[0] > _METRICS_KEPT_S:
                answer = await read("/metrics", b"")
                if answer.status_code != 200:
                    return answer
                metrics[:] = [time.monotonic(), answer.body, answer.headers["content-type"]]
        return Response(metrics[1], headers={"content-type": metrics[2]})

    @router.get("/v1/gpus", responses=_REFUSALS, dependencies=known)
    async def gpus(request: Request, node: str | None = None) -> Response:
        """List GPUs with what holds them, those of one node or all."""
        await readers.check(request, "list", "gpunodes", None)
        query = httpx.QueryParams({"node": node} if node is not None else {})
        return await read("/v1/gpus", str(query).encode())

    @router.get("/v1/jobs", responses=_REFUSALS, dependencies=known)
    async def jobs(request: Request, namespace: str | None = None) -> Response:
        """List GPUJobs with the places of their pods, those of one namespace or all."""
        await readers.check(request, "list", "gpujobs", namespace)
        # Only the namespace that was checked: a query may name several.
        query = httpx.QueryParams({"namespace": namespace} if namespace is not None else {})
        return await read("/v1/jobs", str(query).encode())

    @router.get("/v1/node-pods")
    async def node_pods(request: Request) -> Response:
        """List the pods of the node of the agent that asks, without their environment."""
        query = httpx.QueryParams({"node": await agents.node(request)})
        return await read("/v1/node-pods", str(query).encode(), agents_turns)

    @router.get("/v1/explain/{namespace}/{pod}", responses=_REFUSALS, dependencies=known)
    async def explain(request: Request, namespace: str, pod: str) -> Response:
        """Say where a pod is, or why not on each node; callers that list GPUNodes get names."""
        await readers.check(request, "get", "gpujobs", namespace)
        if not all(_plain(part) for part in (namespace, pod)):
            raise HTTPException(404, "no such pod")
        # The extender answers all that may open its socket: rights are checked here.
        nodes = await readers.allows(request, "list", "gpunodes")
        return await read(f"/v1/explain/{namespace}/{pod}", b"nodes=%d" % nodes)

    return router


def _plain(name: str) -> bool:
    """Say whether a name can be one of Kubernetes: it is put into a path."""
    return 0 < len(name) <= 253 and name.replace("-", "").replace(".", "").isalnum()


def _json(status: int, content: bytes) -> Response:
    return Response(content, status, media_type="application/json")


def _error(words: str) -> bytes:
    return json.dumps(ErrorBody(error=words).wire()).encode()


class _Probe(asyncio.Protocol):
    """Answers one GET of a probe and closes the connection."""

    def __init__(self, line: Line, turnstile: Turnstile, entry: Entry) -> None:
        self._line, self._turnstile, self._entry = line, turnstile, entry
        self._head = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's own
        self._turnstile.leave(self._entry)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._head += data
        if len(self._head) > 8192:
            self._transport.abort()
        elif b"\r\n\r\n" in self._head:
            words = self._head.split(b"\r\n", 1)[0].split(b" ")
            path = words[1].decode("ascii", "replace") if len(words) == 3 else ""
            status, content = health(path, self._line)
            self._transport.write(
                b"HTTP/1.1 %d -\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
                b"Connection: close\r\n\r\n%s" % (status, len(content), content)
            )
            self._transport.close()


async def _serve_probes(listener: socket.socket, line: Line) -> None:
    gate = Gate(listener, PROBE_LIMITS, lambda stile, entry: _Probe(line, stile, entry))
    try:
        await asyncio.Event().wait()
    finally:
        gate.close()


async def serve(config: FrontConfig, line: Line) -> None:
    """Serve both ports until the process is ended."""
    api = KubeClient.load(config.kubeconfig)
    transport = httpx.AsyncHTTPTransport(uds=config.socket)
    async with (
        _tls(config, api, line) as tls,
        httpx.AsyncClient(transport=transport, base_url="http://extender", timeout=30) as extender,
        _predictor(config) as predictor,
    ):
        app = front_app(config, line, api, extender)
        settings = uvicorn.Config(
            app, http="httptools", access_log=False, log_config=None, lifespan="off", ws="none"
        )
        settings.load()
        server = uvicorn.Server(settings)

        def make(turnstile: Turnstile, entry: Entry) -> asyncio.Protocol:
            return guarded(settings, turnstile, entry)

        def guarded(
            settings: uvicorn.Config, turnstile: Turnstile, entry: Entry
        ) -> asyncio.Protocol:
            made = Guarded(settings, server.server_state, {})
            made.turnstile, made.entry = turnstile, entry
            return made

        if config.probes is not None:
            probes = await _bound(config.probes)
            run = lambda: asyncio.run(_serve_probes(probes, line))  # noqa: E731 - the thread's work
            threading.Thread(target=run, name="probes", daemon=True).start()
        gates = [Gate(await _bound(config.public), PUBLIC_LIMITS, make, lambda: tls.context)]
        if config.tunnel is not None:
            readers = Readers(api, audience=API_AUDIENCE)
            token = predictor_token(config.predictor_url, config.predictor_token_file, api)
            models = models_app(readers, Predictor(predictor, token))
            reads = uvicorn.Config(
                tunnel.narrowed(app, models),
                http="httptools",
                access_log=False,
                log_config=None,
                lifespan="off",
                ws="none",
            )
            reads.load()
            enter = partial(tunnel.Entrance, partial(guarded, reads), lambda: tls.context)
            gates.append(Gate(await _bound(config.tunnel), tunnel.LIMITS, enter))
        ending = asyncio.Event()
        loop = asyncio.get_running_loop()
        line.end = lambda: loop.call_soon_threadsafe(ending.set)  # type: ignore[assignment]
        line.serving = True
        while not ending.is_set():
            await server.on_tick(0)  # the date of the answers
            line.turned_s = time.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S):
                    await ending.wait()
        for gate in gates:
            gate.close()
        for connection in list(server.server_state.connections):
            connection.shutdown()
        until = time.monotonic() + ENDS_S
        while server.server_state.connections and time.monotonic() < until:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def _predictor(config: FrontConfig) -> AsyncIterator[httpx.AsyncClient | None]:
    """Give a client of the predictor, None where the extender has none."""
    if config.predictor_url is None:
        yield None
        return
    async with httpx.AsyncClient(
        base_url=config.predictor_url, timeout=_PREDICTOR_S, limits=httpx.Limits(max_connections=24)
    ) as client:
        yield client


async def _bound(listen: Listen) -> socket.socket:
    """Return a socket that listens; a predecessor may still be about to end."""
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    until = time.monotonic() + _BIND_WITHIN_S
    while True:
        made = socket.socket(family)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((listen.host, listen.port))
            made.listen(_BACKLOG)
        except OSError as error:
            made.close()
            if time.monotonic() > until:
                raise TandemError(
                    f"{listen.host}:{listen.port}: {error.strerror}", "Choose a free port."
                ) from error
            await asyncio.sleep(0.1)
        else:
            log.info("serving at %s:%d", *made.getsockname()[:2])
            return made


@contextlib.asynccontextmanager
async def _tls(config: FrontConfig, api: KubeClient, line: Line) -> AsyncIterator[Tls]:
    """Give the public port its certificate; the API server trusts it once we can answer."""

    def note_end(ends_s: float) -> None:
        line.certificate_ends_s = ends_s

    async def ready() -> None:
        while not line.ready:  # noqa: ASYNC110 - another thread sets it
            await asyncio.sleep(0.1)

    public = config.public
    async with tls_of_files(public, config.certificate.look_s, note_end) as tls:
        if tls is not None:
            yield tls
            return
    tls = Tls(on_change=note_end)
    keeper = Keeper(api, config.namespace, public.service_names, config.certificate)
    tls.use(await asyncio.to_thread(keeper.begin))
    async with tls.follow(keeper.look, config.certificate.look_s, ready):
        yield tls


def main() -> int:
    """Run as the extender's child: settings in the first line of stdin, then beats."""
    config = FrontConfig.model_validate_json(sys.stdin.readline())
    configure_log(config.log_level)
    know_templates(merged(config.kinds))
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # each request that is no HTTP
    return_freed_memory()
    sys.setswitchinterval(0.001)
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
    line = Line()
    threading.Thread(target=line.speak, name="beats", daemon=True).start()
    try:
        uvloop.run(serve(config, line))
    except TandemError as error:
        sys.stderr.write(f"error: {error.message}\n  {error.hint}\n")
        return 1
    return 0


if __name__ == "__main__":
    os._exit(main())  # no thread of ours is waited for
