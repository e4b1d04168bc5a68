"""The verbs over HTTP: bytes in, bytes out, one status for each outcome."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.types import ASGIApp, Receive, Scope, Send

from scheduler_extender.cluster.feed import Feed
from scheduler_extender.serving.limits import BODY_WITHIN_S, MAX_BODY_BYTES
from scheduler_extender.serving.metrics import Metrics
from scheduler_extender.serving.traffic import Traffic
from scheduler_extender.verbs.answers import MalformedPodError, Verbs
from scheduler_extender.verbs.binding import Binder
from scheduler_extender.verbs.wire import (
    BIND,
    PREEMPT,
    ExtenderArgs,
    ExtenderBindingArgs,
    ExtenderFilterResult,
    ExtenderPreemptionArgs,
    HostPriority,
    encode,
)
from tandem.contracts.prediction import ErrorBody

log = logging.getLogger(__name__)

_MISTAKES_SHOWN = 3

Answer = Callable[[bytes], Awaitable[bytes]]
Endpoint = Callable[[Request], Awaitable[Response]]


class _RefusedError(Exception):
    def __init__(self, status: int, error: str, hint: str = "") -> None:
        super().__init__(error)
        self.status = status
        self.body = ErrorBody(error=error, hint=hint)


def verbs_router(verbs: Verbs, binder: Binder, feed: Feed, metrics: Metrics) -> APIRouter:
    """Return the routes that kube-scheduler calls: POST /filter, /prioritize, /bind, /preempt."""

    async def filter_nodes(body: bytes) -> bytes:
        if not await binder.may_follow():
            raise _RefusedError(503, "this replica is taking over from another", "try again soon")
        return verbs.filter(verbs.read(body))

    async def prioritize(body: bytes) -> bytes:
        return verbs.prioritize(verbs.read(body))

    async def bind(body: bytes) -> bytes:
        args = BIND.validate_json(body)
        error = await binder.bind(args)
        metrics.bindings.labels("refused" if error else "bound").inc()
        if error:
            log.info("binding refused pod=%s/%s node=%s why=%s",
                     args["PodNamespace"], args["PodName"], args["Node"], error)  # fmt: skip
        return encode({"Error": error})

    async def preempt(body: bytes) -> bytes:
        return encode({"NodeNameToMetaVictims": verbs.preempt(PREEMPT.validate_json(body))})

    router = APIRouter(tags=["kube-scheduler"])
    for name, answer, request, response in (
        ("filter", filter_nodes, ExtenderArgs, ExtenderFilterResult),
        ("prioritize", prioritize, ExtenderArgs, list[HostPriority]),
        ("bind", bind, ExtenderBindingArgs, dict[str, str]),
        ("preempt", preempt, ExtenderPreemptionArgs, ExtenderPreemptionArgs),
    ):
        router.add_api_route(
            f"/{name}",
            _endpoint(name, answer, feed, metrics),
            methods=["POST"],
            summary=f"The verb {name} of the extender protocol, v1",
            openapi_extra=_schemas(request, response),
        )
    return router


class VerbsFirst:
    """ASGI: takes a verb's request straight to its endpoint.

    The framework's way there, of which a verb needs nothing, takes longer than answering for a
    hundred nodes. Everything else goes on to the application.
    """

    def __init__(self, app: ASGIApp, verbs: APIRouter, traffic: Traffic) -> None:
        self._app, self._traffic = app, traffic
        self._endpoints: dict[tuple[object, object], Endpoint] = {
            ("POST", route.path): route.endpoint
            for route in verbs.routes
            if isinstance(route, APIRoute)
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        endpoint = self._endpoints.get((scope.get("method"), scope.get("path")))
        if endpoint is None:
            await self._app(scope, receive, send)
        else:
            # A bind waits for the API server; it leaves the event loop to others meanwhile.
            waits = scope["path"] == "/bind"
            with nullcontext() if waits else self._traffic.verb():
                response = await endpoint(Request(scope, receive))
                await response(scope, receive, send)


def _endpoint(verb: str, answer: Answer, feed: Feed, metrics: Metrics) -> Endpoint:
    """Return an endpoint that reads the bytes itself: the framework's parsing costs as much as we.

    Anything but 200 is an error to kube-scheduler: it tries the pod again later.
    """

    async def endpoint(request: Request) -> Response:
        start = time.perf_counter()
        status = 200
        try:
            if not feed.ready:
                raise _RefusedError(503, "the cluster has not been read yet", "try again soon")
            content = await answer(await _body(request))
        except _RefusedError as error:
            status, content = error.status, encode(error.body.wire())
        except ValidationError as error:
            status, content = 400, encode(ErrorBody(error=_mistakes(error)).wire())
        except MalformedPodError as error:
            status, content = 400, encode(ErrorBody(error=str(error)).wire())
        except Exception:
            log.exception("verb failed verb=%s", verb)
            status, content = 500, encode(ErrorBody(error=f"{verb} failed; see the log").wire())
        metrics.verbs.labels(verb, str(status)).observe(time.perf_counter() - start)
        return Response(content, status, media_type="application/json")

    return endpoint


async def _body(request: Request) -> bytes:
    """Read the body, as far as it may go (5,000 nodes by name are 150 KiB)."""
    chunks, size = [], 0
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            async for chunk in request.stream():
                size += len(chunk)
                if size > MAX_BODY_BYTES:
                    raise _RefusedError(
                        413,
                        f"the body is over {MAX_BODY_BYTES} bytes",
                        "set nodeCacheCapable: true",
                    )
                chunks.append(chunk)
    except TimeoutError:
        raise _RefusedError(408, f"the body has not come within {BODY_WITHIN_S:g} s") from None
    return b"".join(chunks)


def _mistakes(error: ValidationError) -> str:
    """Say what is wrong, by path; the values themselves are not repeated."""
    said = [
        f"{'.'.join(map(str, mistake['loc'])) or 'body'}: {mistake['msg']}"
        for mistake in error.errors(include_url=False, include_input=False)[:_MISTAKES_SHOWN]
    ]
    return "; ".join(said)


def _schemas(request: Any, response: Any) -> dict[str, Any]:  # noqa: ANN401 - types as values
    """Return what OpenAPI says of the bodies, which the framework does not see."""

    def content(kind: Any) -> dict[str, Any]:  # noqa: ANN401 - types as values
        return {"application/json": {"schema": _spelt_out(TypeAdapter(kind).json_schema())}}

    error = content(ErrorBody)
    return {
        "requestBody": {"required": True, "content": content(request)},
        "responses": {
            "200": {"description": "The answer", "content": content(response)},
            "400": {"description": "The request cannot be read", "content": error},
            "413": {"description": "The body is too large", "content": error},
            "503": {"description": "The cluster has not been read yet", "content": error},
        },
    }


def _spelt_out(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with its definitions in place: in an OpenAPI document they are not found."""
    definitions = schema.pop("$defs", {})

    def resolved(part: Any) -> Any:  # noqa: ANN401 - any JSON
        if isinstance(part, list):
            return [resolved(one) for one in part]
        if not isinstance(part, dict):
            return part
        if "$ref" in part:
            return resolved(definitions[part["$ref"].removeprefix("#/$defs/")])
        return {key: resolved(one) for key, one in part.items()}

    whole: dict[str, Any] = resolved(schema)
    return whole
