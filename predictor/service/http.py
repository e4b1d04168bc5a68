"""The middleware of every request: a limit on its body, its duration, and readable errors."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from predictor.errors import (
    BusyError,
    ForbiddenError,
    GraphError,
    ModelNotFoundError,
    Refusal,
    SandboxUnavailableError,
    StoreUnavailableError,
    UnauthenticatedError,
)
from predictor.service.metrics import Metrics
from tandem.contracts.prediction import ErrorBody
from tandem.errors import TandemError, UsageError

log = logging.getLogger(__name__)

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_BODY_TOO_LARGE = 413


class BodyTooLargeError(TandemError):
    """A request's body is larger than the service takes."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"The request is larger than {limit} bytes.",
            "Send less, or raise the predictor's limit for models (upload_bytes).",
        )


class Edge:
    """ASGI middleware: refuses bodies over their limit as they arrive, and measures each answer.

    `limit_of` gives the limit of a request by its method and path.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, limit_of: Callable[[str, str], int]) -> None:
        self._app = app
        self._metrics = metrics
        self._limit_of = limit_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        limit = self._limit_of(scope["method"], scope["path"])
        body = _LimitedBody(receive, limit, already_over=_declared_length(scope) > limit)
        status = 500

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        async def unless_over(message: Message) -> None:
            if not body.over:  # otherwise our own answer goes out, below
                await answer(message)

        try:
            if not body.over:
                await self._app(scope, body.receive, unless_over)
        except BodyTooLargeError:
            assert body.over
        finally:
            if body.over:
                await error_response(BodyTooLargeError(limit))(scope, receive, answer)
            method = scope["method"] if scope["method"] in _METHODS else "other"
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.answered(method, route, status, time.perf_counter() - started)


class _LimitedBody:
    """The body of a request, up to a limit; `over` once it is exceeded."""

    def __init__(self, receive: Receive, limit: int, *, already_over: bool) -> None:
        self._receive = receive
        self._limit = self._left = limit
        self.over = already_over

    async def receive(self) -> Message:
        """Return the next part of the body; raises BodyTooLargeError past the limit."""
        message = await self._receive()
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            if self._left < 0:
                self.over = True
                raise BodyTooLargeError(self._limit)
        return message


def _declared_length(scope: Scope) -> int:
    declared = dict(scope["headers"]).get(b"content-length", b"0")
    return int(declared) if declared.isdigit() else 0


def add_error_handlers(app: FastAPI) -> None:
    """Make every error of `app` an ErrorBody."""

    async def tandem_error(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, TandemError)
        return error_response(error)

    async def invalid(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return _response(422, f"{where}: {first['msg']}.", "The API is described at /docs.")

    async def http_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        return _response(
            error.status_code,
            f"{request.method} {request.url.path[:200]}: {error.detail}.",
            "The API is described at /docs.",
        )

    async def bug(request: Request, error: Exception) -> JSONResponse:
        log.error("request failed path=%s", request.url.path, exc_info=error)
        return _response(500, "The predictor failed.", "Its log has the details; please report it.")

    app.add_exception_handler(TandemError, tandem_error)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(Exception, bug)


def error_response(error: TandemError) -> JSONResponse:
    """Return the answer for an error that the caller can mend."""
    return _response(_status_of(error), error.message, error.hint)


def _status_of(error: TandemError) -> int:
    match error:
        case BodyTooLargeError():
            return _BODY_TOO_LARGE
        case GraphError():
            return _BODY_TOO_LARGE if error.refusal is Refusal.TOO_LARGE else 422
        case ModelNotFoundError():
            return 404
        case UnauthenticatedError():
            return 401
        case ForbiddenError():
            return 403
        case StoreUnavailableError() | SandboxUnavailableError():
            return 503
        case UsageError():
            return 400
        case BusyError():
            return 429
        case _:
            return 500


def _response(status: int, error: str, hint: str) -> JSONResponse:
    return JSONResponse(ErrorBody(error=error, hint=hint).wire(), status_code=status)
