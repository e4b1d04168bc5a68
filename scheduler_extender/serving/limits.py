"""What a caller may send: so many bytes, within so many seconds."""

from __future__ import annotations

import asyncio

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tandem.contracts.prediction import ErrorBody

#: A review of an object of etcd's greatest size (1.5 MiB) before and after a change fits.
MAX_BODY_BYTES = 4 * 2**20
BODY_WITHIN_S = 10.0


class Limited:
    """Reads each request's body before the application sees it, as far as it may go.

    413 over `max_bytes`, 408 where it has not come `within_s`; the connection is closed.
    """

    def __init__(
        self, app: ASGIApp, max_bytes: int = MAX_BODY_BYTES, within_s: float = BODY_WITHIN_S
    ) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._within_s = within_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        body = bytearray()
        try:
            if announced.isdigit() and int(announced) > self._max_bytes:
                raise _TooLargeError
            async with asyncio.timeout(self._within_s):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        return  # the caller has gone
                    body += message.get("body", b"")
                    if len(body) > self._max_bytes:
                        raise _TooLargeError
                    if not message.get("more_body", False):
                        break
        except _TooLargeError:
            answer = _refused(413, f"the body is over {self._max_bytes} bytes")
            await answer(scope, receive, send)
            return
        except TimeoutError:
            answer = _refused(408, f"the body has not come within {self._within_s:g} s")
            await answer(scope, receive, send)
            return
        read = False

        async def replayed() -> Message:
            nonlocal read
            if read:
                return await receive()
            read = True
            return {"type": "http.request", "body": bytes(body), "more_body": False}

        await self._app(scope, replayed, send)


class _TooLargeError(Exception):
    pass


def _refused(status: int, words: str) -> JSONResponse:
    return JSONResponse(ErrorBody(error=words).wire(), status, headers={"connection": "close"})
