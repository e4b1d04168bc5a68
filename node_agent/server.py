"""The agent's own small HTTP server: /healthz, /metrics, and what jobs tell of their progress.

The standard library's server is enough for a prober and a scraper, and adds nothing to a process
that runs on every node.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from pydantic import ValidationError

from node_agent.progress import Progress, Steps
from tandem.contracts.names import AGENT_AUDIENCE
from tandem.contracts.prediction import ErrorBody

log = logging.getLogger(__name__)

#: A client that sends nothing, or reads nothing, is dropped after this.
CLIENT_TIMEOUT_S = 10.0
#: A connection ends after this, whatever the client sends: a byte now and then keeps no thread.
CONNECTION_MAX_S = 30.0
#: Each connection has a thread. The kubelet, Prometheus and a node's jobs need few at a time.
MAX_CONNECTIONS = 64
MAX_BODY_BYTES = 4096

#: As socketserver names them; this server has sockets of streams alone.
Request = socket.socket | tuple[bytes, socket.socket]
Address = Any

#: Returns "" where the agent is well, and what is wrong otherwise.
Health = Callable[[], str]


class AgentServer:
    """Serves on `host`:`port` (0: any free one, see `port`) from a thread of its own."""

    def __init__(
        self,
        host: str,
        port: int,
        health: Health,
        registry: CollectorRegistry,
        progress: Progress,
    ) -> None:
        class Handler(_Handler):
            pass

        Handler.health = staticmethod(health)
        Handler.registry = registry
        Handler.progress = progress
        self._server = BoundedServer((host, port), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)

    def start(self) -> None:
        """Start to serve."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, and close the socket."""
        self._server.shutdown()
        self._server.server_close()


class BoundedServer(ThreadingHTTPServer):
    """A server with a bounded number of connections, each of bounded age.

    One connection too many ends the oldest connection of the address that has the most, so that a
    pod that floods the port ends its own connections and not the kubelet's.
    """

    daemon_threads = True
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._lock = threading.Lock()
        # In the order of their beginning: client's address, and when the connection began.
        self._open: dict[Request, tuple[str, float]] = {}
        super().__init__(address, handler)

    def process_request(self, request: Request, client_address: Address) -> None:
        """Note the connection, and end another one if there are too many."""
        with self._lock:
            self._open[request] = (client_address[0], time.monotonic())
            if len(self._open) > MAX_CONNECTIONS:
                counts = Counter(address for address, _ in self._open.values())
                most = max(counts, key=counts.__getitem__)
                self._end(next(each for each, (owner, _) in self._open.items() if owner == most))
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """End the connections that are too old; `serve_forever` calls this twice a second."""
        began_before = time.monotonic() - CONNECTION_MAX_S
        with self._lock:
            for request in [each for each, (_, at) in self._open.items() if at < began_before]:
                self._end(request)

    def shutdown_request(self, request: Request) -> None:
        """Forget a connection whose thread has ended."""
        with self._lock:
            self._open.pop(request, None)
            super().shutdown_request(request)

    def handle_error(self, request: Request, client_address: Address) -> None:
        """Log an error of one connection: that a client goes away is no fault of the agent."""
        log.debug("http client=%s connection=%s failed", client_address[0], request, exc_info=True)

    def _end(self, request: Request) -> None:
        """Wake the connection's thread, which closes the socket; the lock is held."""
        del self._open[request]
        with contextlib.suppress(OSError):
            cast(socket.socket, request).shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    health: Health
    registry: CollectorRegistry
    progress: Progress
    timeout = CLIENT_TIMEOUT_S
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer a prober or a scraper."""
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._answer(HTTPStatus.OK, generate_latest(self.registry), CONTENT_TYPE_LATEST)
        elif path == "/healthz":
            trouble = type(self).health()
            if trouble:
                self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, trouble, "See the agent's log.")
            else:
                self._answer(HTTPStatus.OK, b'{"status":"ok"}', "application/json")
        else:
            self._refuse(HTTPStatus.NOT_FOUND, f"No such path: {path}", "/healthz or /metrics.")

    def do_POST(self) -> None:
        """Take what a job tells of its progress."""
        length = self.headers.get("Content-Length", "")
        short = length.isdecimal() and len(length) <= len(str(MAX_BODY_BYTES))
        if not short or int(length) > MAX_BODY_BYTES:
            self.close_connection = True  # the body is not read
            self._refuse(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                "The body's length is missing or too large.",
                f"Send at most {MAX_BODY_BYTES} bytes with a Content-Length.",
            )
            return
        body = self.rfile.read(int(length))
        if self.path != "/v1/progress":
            self._refuse(HTTPStatus.NOT_FOUND, f"No such path: {self.path}", "/v1/progress.")
            return
        try:
            steps = Steps.model_validate_json(body)
        except ValidationError as error:
            why = error.errors()[0]["msg"]
            hint = 'Send {"iterations": N, "seconds": S}.'
            self._refuse(HTTPStatus.BAD_REQUEST, f"The body is not understood: {why}.", hint)
            return
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        token = token if scheme.lower() == "bearer" else ""
        if self.progress.take(token, steps, self.client_address[0]):
            self._answer(HTTPStatus.OK, b"{}", "application/json")
        else:
            hint = (
                f"Send a service account token bound to the pod, for the audience {AGENT_AUDIENCE}."
            )
            self._refuse(HTTPStatus.UNAUTHORIZED, "No pod is known by this token.", hint)

    def _refuse(self, status: HTTPStatus, error: str, hint: str) -> None:
        body = ErrorBody(error=error, hint=hint).model_dump_json().encode()
        self._answer(status, body, "application/json")

    def _answer(self, status: HTTPStatus, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        log.debug("http client=%s said=%s", self.client_address[0], format % args)
