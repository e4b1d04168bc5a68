"""The port that the API server's proxy leads to: streams for TLS; reads and models within them.

The API server does not check our certificate, so nothing confidential may come before the caller
has. A connection therefore begins in plain text with a request to upgrade it, and goes on with TLS
between caller and extender. What is asked for within is decided by the caller's token, as on the
public port; that it came through the API server proves nothing.

All such connections have the API servers' addresses. They have a listener and bounds of their own,
so that no caller takes from the webhook what the API server may have there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import Callable

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from scheduler_extender.serving.gate import Entry, Limits, Turnstile
from scheduler_extender.serving.models import PATHS
from tandem.contracts.names import UPGRADE
from tandem.contracts.prediction import ErrorBody

log = logging.getLogger(__name__)

LIMITS = Limits(per_address=64, total=64, rate=20.0, burst=60.0)
_READ = ("/v1/", "/status/")
_HEAD_S = 5.0
_HANDSHAKE_S = 10.0
_HEAD_BYTES = 16 * 2**10
_ACCEPTED = (
    f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {UPGRADE}\r\n\r\n"
).encode()
_REFUSED = (
    b"HTTP/1.1 426 Upgrade Required\r\nConnection: close\r\nContent-Length: 0\r\n"
    b"Upgrade: " + UPGRADE.encode() + b"\r\n\r\n"
)


def upgrade_is_asked(head: bytes) -> bool:
    """Say whether the head of a request asks for the stream that we serve."""
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    headers = {
        name.strip().lower(): value.strip().lower()
        for name, _, value in (line.partition(":") for line in lines)
    }
    return (
        len(words) == 3
        and words[0] == "GET"
        and words[1] == "/tunnel"
        and headers.get("upgrade") == UPGRADE
        and "upgrade" in headers.get("connection", "")
    )


class Entrance(asyncio.Protocol):
    """A new connection, until TLS is spoken on it; then `make` makes the protocol within."""

    def __init__(
        self,
        make: Callable[[Turnstile, Entry], asyncio.Protocol],
        context: Callable[[], ssl.SSLContext],
        turnstile: Turnstile,
        entry: Entry,
    ) -> None:
        self._make, self._context = make, context
        self._turnstile, self._entry = turnstile, entry
        self._head = b""
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the request."""
        self._transport = transport
        self._entry.close = transport.abort
        self._entry.due_s = time.monotonic() + _HEAD_S

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's own
        """Free the place."""
        self._turnstile.leave(self._entry)

    def data_received(self, data: bytes) -> None:
        """Begin TLS once the request has come, unless it is another one."""
        assert self._transport is not None
        self._head += data
        head, end, more = self._head.partition(b"\r\n\r\n")
        if len(self._head) > _HEAD_BYTES or (self._task is not None) or more:
            self._transport.abort()  # nothing may come before our answer
        elif end and upgrade_is_asked(head):
            self._transport.write(_ACCEPTED)
            self._entry.due_s = time.monotonic() + _HANDSHAKE_S
            self._task = asyncio.get_running_loop().create_task(self._begin(self._transport))
        elif end:
            self._transport.write(_REFUSED)
            self._transport.close()

    async def _begin(self, plain: asyncio.Transport) -> None:
        early = _Early()
        try:
            inner = await asyncio.get_running_loop().start_tls(
                plain,
                early,
                self._context(),
                server_side=True,
                ssl_handshake_timeout=_HANDSHAKE_S,
            )
        except (OSError, ssl.SSLError, TimeoutError):
            inner = None  # a caller that does not trust us, or has gone
        if inner is None or early.lost:
            self._turnstile.leave(self._entry)
            with contextlib.suppress(OSError):
                plain.abort()
            return
        protocol = self._make(self._turnstile, self._entry)
        inner.set_protocol(protocol)
        protocol.connection_made(inner)
        if early.data:
            protocol.data_received(bytes(early.data))


class _Early(asyncio.Protocol):
    """Keeps what comes with the end of the handshake, for a protocol that does not exist yet."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.lost = False

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's own
        self.lost = True


def narrowed(reads: ASGIApp, models: ASGIApp) -> ASGIApp:
    """Return an application that answers reads under /v1, models, predictions and the page.

    Reviews would be counted as those of the API server itself.
    """

    async def chosen(scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        path = scope["path"]
        if any(path == each or path.startswith(f"{each}/") for each in PATHS):
            await models(scope, receive, send)
            return
        body = headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers
        if scope["method"] in ("GET", "HEAD") and path.startswith(_READ) and not body:
            await reads(scope, receive, send)
            return
        error = ErrorBody(error="only reads under /v1 and /status, and models, are answered here")
        await JSONResponse(error.wire(), 404, headers={"connection": "close"})(scope, receive, send)

    return chosen
