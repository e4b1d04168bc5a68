"""The agent's own small HTTP server: /healthz, /metrics, and what jobs tell of their progress.

The standard library's server is enough for a prober and a scraper, and adds nothing to a process
that runs on every node.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from pydantic import ValidationError

from node_agent.progress import Progress, Told
from tandem.contracts.names import AGENT_AUDIENCE
from tandem.contracts.prediction import ErrorBody

log = logging.getLogger(__name__)

#: A client that sends nothing, or reads nothing, is dropped after this.
CLIENT_TIMEOUT_S = 10.0
MAX_BODY_BYTES = 4096

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
        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)

    def start(self) -> None:
        """Start to serve."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, and close the socket."""
        self._server.shutdown()
        self._server.server_close()


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
        if not length.isdigit() or int(length) > MAX_BODY_BYTES:
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
            told = Told.model_validate_json(body)
        except ValidationError as error:
            why = error.errors()[0]["msg"]
            hint = 'Send {"iterations": N, "seconds": S}.'
            self._refuse(HTTPStatus.BAD_REQUEST, f"The body is not understood: {why}.", hint)
            return
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        if self.progress.take(token if scheme.lower() == "bearer" else "", told):
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
        log.debug("http client=%s " + format, self.client_address[0], *args)
