"""Web servers of this process that answer as a test says, also over TLS."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Web(BaseHTTPRequestHandler):
    """Answers a GET or POST, whose body is `content`, by the server's `answer`."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.answer(self)

    do_POST = do_GET  # noqa: N815 - as http.server calls it

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def says(self, status: int, body: object, **headers: str) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response_only(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


Serve = Callable[..., str]


@contextmanager
def web_servers() -> Iterator[Serve]:
    """Yield what starts a server by its `answer` and its TLS, if any, and returns its URL."""
    servers: list[ThreadingHTTPServer] = []

    def started(answer: Callable[[Web], None], tls: ssl.SSLContext | None = None) -> str:
        server = ThreadingHTTPServer(("127.0.0.1", 0), Web)
        server.daemon_threads, server.answer = True, answer
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}"

    try:
        yield started
    finally:
        for each in servers:
            each.shutdown()
            each.server_close()
