"""The page's routes: the views as JSON or as a stream of events, and the page itself.

A reader sees what the API server would show: the whole cluster with the rights to list GPUNodes and
all GPUJobs, or else one namespace with the right to list its GPUJobs.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated, Any, Literal, TypeVar

import yaml
from fastapi import APIRouter, Depends, HTTPException, Request, Response
from fastapi import Query as HttpQuery
from fastapi.responses import RedirectResponse, StreamingResponse
from pydantic import BaseModel, Field
from starlette.types import Receive, Send
from starlette.types import Scope as ASGIScope

from scheduler_extender.accounting import MOST_DAYS
from scheduler_extender.serving.limits import client_name
from scheduler_extender.serving.parameters import known_parameters
from scheduler_extender.serving.readers import Check
from scheduler_extender.serving.status import assets
from scheduler_extender.serving.status.model import Cluster
from scheduler_extender.serving.status.objects import Key, Scope
from scheduler_extender.serving.status.publisher import Answer, AwayError, Publisher
from scheduler_extender.serving.status.views import (
    PARAMETERS,
    BadQueryError,
    MissingError,
    Query,
    name_neighbours,
    object_of,
    query_of,
)
from tandem.contracts.values import MAX_GPU_BYTES

#: A stream ends before the port's own limit on a request (60 s); the page opens the next one.
STREAM_S = 50.0
_ALIVE_EVERY_S = 15.0
#: Streams of one address and of all; an API server in between has one address for many people.
_STREAMS_OF_ADDRESS, _STREAMS = 64, 128
_EVENT_STREAM = "text/event-stream"
_PODS = 8  # of one job whose events are read

#: The views, and the path of each under /v1/status.
PATHS = {
    "overview": "overview",
    "nodes": "nodes",
    "node": "nodes/{node}",
    "gpus": "gpus",
    "gpu": "gpus/{node}/{gpu}",
    "jobs": "jobs",
    "job": "jobs/{namespace}/{name}",
    "models": "models",
    "model": "models/{namespace}/{name}",
}
_REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"description": "There is no such parameter, or its value has no meaning"},
    401: {"description": "Not a token that the API server knows"},
    403: {"description": "The caller may not read this in the API server either"},
    404: {"description": "There is no such object, or the caller does not see it"},
    503: {"description": "No answer now; try again soon"},
}

_Result = TypeVar("_Result")
#: Return what jobs have had of GPUs in so many days, by what, of which namespace (None: all).
Report = Callable[[int, str, str | None], Awaitable[dict[str, Any]]]
#: Return when a job would start and end with a change, by its key and what is asked.
WhatIf = Callable[[Key, dict[str, Any]], Awaitable[dict[str, Any]]]
#: GPUs that a job may be asked about.
MOST_GPUS = 100_000
#: Items of a GPU in an iteration, as the predictor may be asked of.
MOST_ITEMS = 2**31 - 1
#: Nodes that are added, and a part of the name of their type of GPU: `2:A100`.
_NODES = r"^[1-9][0-9]{0,2}:[A-Za-z0-9 ._-]{1,64}$"
#: Settings of a quota, as `queue.quotas` has them; those that are not there limit nothing.
QUOTA = r"^(gpus|max_gpus|endless_gpus)=[0-9]{1,6}(,(gpus|max_gpus|endless_gpus)=[0-9]{1,6}){0,2}$"
#: Return the events of a namespace that regard one of these names, as the caller may see them.
Events = Callable[[Request, str, list[str]], Awaitable[list[dict[str, Any]]]]
#: Return a ModelProfile as the predictor has it; None where there is none.
Profiles = Callable[[str, str], Awaitable[dict[str, Any] | None]]


class AskedChange(BaseModel):
    """What a job is asked about: `memory` in bytes, `batch_size` of each GPU.

    `quota` is that of its namespace: `gpus=8,max_gpus=16`.
    """

    gpus: Annotated[int | None, Field(ge=1, le=MOST_GPUS)] = None
    memory: Annotated[int | None, Field(ge=1, le=MAX_GPU_BYTES)] = None
    batch_size: Annotated[int | None, Field(ge=1, le=MOST_ITEMS)] = None
    share: bool | None = None
    profile: Annotated[str | None, Field(max_length=64)] = None
    quota: Annotated[str | None, Field(pattern=QUOTA)] = None
    add_nodes: Annotated[str | None, Field(pattern=_NODES)] = None


@dataclass(slots=True)
class Streams:
    """Counts the streams that are open, by address."""

    of: Counter[str] = field(default_factory=Counter)

    def enter(self, address: str) -> bool:
        """Count one more; False where there are too many."""
        if self.of[address] >= _STREAMS_OF_ADDRESS or self.of.total() >= _STREAMS:
            return False
        self.of[address] += 1
        return True

    def leave(self, address: str) -> None:
        """Count one less."""
        self.of[address] -= 1
        if not self.of[address]:
            del self.of[address]


def status_router(
    publisher: Publisher,
    may: Check,
    events: Events,
    profiles: Profiles,
    stream_s: float = STREAM_S,
    report: Report | None = None,
    what_if: WhatIf | None = None,
) -> APIRouter:
    """Return the routes under /v1/status and /status; `may` says who may read what."""
    views = APIRouter(
        prefix="/v1/status",
        tags=["status"],
        # All take it: the page sends the namespace of its reader with each request.
        dependencies=[Depends(known_parameters("namespace"))],
    )
    readers = _Readers(may)
    streams = Streams()

    @views.get("/scope", responses=_REFUSALS)
    async def scope(request: Request, namespace: str | None = None) -> dict[str, Any]:
        """Say what the caller sees: the whole cluster (`namespace` is null) or one namespace."""
        return {"namespace": (await readers.scope(request, namespace)).namespace}

    for view, path in PATHS.items():
        shown = _View(view, path, publisher, readers, streams, stream_s)
        views.add_api_route(
            f"/{path}",
            shown.answer,
            methods=["GET"],
            name=view,
            summary=f"The view {view} of the status page",
            description=f"With `Accept: {_EVENT_STREAM}`, again at each change.",
            responses=_REFUSALS,
            openapi_extra=_parameters(shown.names, PARAMETERS[view]),
        )
    _add_details(views, publisher, readers, events)

    @views.get("/models/{namespace}/{name}/profile", responses=_REFUSALS)
    async def profile(request: Request, namespace: str, name: str) -> dict[str, Any]:
        """Return the features of a model and what its runs were observed to use."""
        await may(request, "get", "modelprofiles", namespace)
        found = await profiles(namespace, name)
        if found is None:
            raise HTTPException(404, f"the predictor knows no model {namespace}/{name}")
        return found

    @views.get("/report", responses=_REFUSALS)
    async def past(
        request: Request,
        days: Annotated[int, HttpQuery(ge=1, le=MOST_DAYS)] = MOST_DAYS,
        by: Literal["namespace", "user", "model", "gpu-type", "day"] = "namespace",
        namespace: str | None = None,
    ) -> dict[str, Any]:
        """Return what jobs have had of GPUs in the last days, by one of what a row may be."""
        scope = await readers.scope(request, namespace)
        if report is None:
            raise HTTPException(503, "no past is kept here")
        found = await report(days, by, scope.namespace or namespace)
        if shared := [each for each in found.get("jobs", ()) if each["neighbours"]]:

            def work(cluster: Cluster) -> None:
                name_neighbours(cluster, scope, shared)

            await _or_503(publisher.compute(client_name(request.scope), work))
        return found

    @views.get("/jobs/{namespace}/{name}/what-if", responses=_REFUSALS)
    async def changed(
        request: Request,
        namespace: str,
        name: str,
        given: Annotated[AskedChange, HttpQuery()],
    ) -> dict[str, Any]:
        """Say when a job that waits would start and end if it asked for something else."""
        scope = await readers.scope(request, namespace)
        of_operators = (given.profile, given.add_nodes, given.quota)
        if any(each is not None for each in of_operators) and scope.namespace is not None:
            raise HTTPException(403, "you may not list gpunodes: this is the whole cluster's")
        if what_if is None:
            raise HTTPException(503, "nothing is forecast here")
        try:
            return await what_if((namespace, name), given.model_dump())
        except HTTPException as error:
            if error.status_code == HTTPStatus.MISDIRECTED_REQUEST:
                # A browser asks again, by a connection that may lead to another replica.
                error.headers = {"Connection": "close"}
            raise

    router = APIRouter()
    router.include_router(views)
    _add_page(router)
    return router


@dataclass(frozen=True, slots=True)
class _Readers:
    """Says what the caller of a request sees."""

    may: Check

    async def scope(self, request: Request, namespace: str | None) -> Scope:
        """Return the whole cluster, or the namespace that the caller may read.

        Raises:
            HTTPException: neither of them.
        """
        try:
            await self.may(request, "list", "gpunodes", None)
            await self.may(request, "list", "gpujobs", None)
        except HTTPException as error:
            if error.status_code != 403:
                raise
            if not namespace:
                detail = f"{error.detail}; choose a namespace"
                raise HTTPException(403, detail) from error
        else:
            return Scope()
        await self.may(request, "list", "gpujobs", namespace)
        return Scope(namespace)


class _View:
    """One view as an endpoint."""

    def __init__(
        self,
        view: str,
        path: str,
        publisher: Publisher,
        readers: _Readers,
        streams: Streams,
        stream_s: float,
    ) -> None:
        self.names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
        self._view, self._publisher, self._readers = view, publisher, readers
        self._streams, self._stream_s = streams, stream_s

    async def answer(self, request: Request) -> Response:
        """Return the view once as JSON, or as a stream of events."""
        given = request.path_params
        # The namespace of an object in the path takes precedence over the parameter.
        namespace = given.get("namespace") or request.query_params.get("namespace")
        reader = await self._readers.scope(request, namespace)
        client, parameters = client_name(request.scope), request.query_params.items()
        try:
            query = query_of(self._view, (given[name] for name in self.names), parameters)
        except BadQueryError as error:
            raise HTTPException(400, str(error)) from error
        if _EVENT_STREAM in request.headers.get("accept", ""):
            return await _stream(
                self._publisher, self._streams, client, reader, query, self._stream_s
            )
        answer = await _or_503(self._publisher.get(client, reader, query))
        _raise_for(answer)
        return _json(_wrapped(answer))


def _add_details(
    router: APIRouter, publisher: Publisher, readers: _Readers, events: Events
) -> None:
    """Add what the view of a job shows on demand."""

    @router.get("/jobs/{namespace}/{name}/yaml", responses=_REFUSALS)
    async def as_yaml(request: Request, namespace: str, name: str) -> dict[str, str]:
        """Return a GPUJob as YAML."""
        reader = await readers.scope(request, namespace)

        def work(cluster: Cluster) -> str:
            found = object_of(cluster, reader, (namespace, name))
            return yaml.safe_dump(found, sort_keys=False, allow_unicode=True, width=100)

        return {"yaml": await _of_object(publisher, request, work)}

    @router.get("/jobs/{namespace}/{name}/events", responses=_REFUSALS)
    async def events_of_job(request: Request, namespace: str, name: str) -> dict[str, Any]:
        """Return the events of a GPUJob and of its pods, the latest first."""
        reader = await readers.scope(request, namespace)
        key: Key = (namespace, name)

        def names(cluster: Cluster) -> list[str]:
            found = object_of(cluster, reader, key)
            job = cluster.jobs[key].whole()
            pods = [pod[0] for pod in job["facts"]["pods"][:_PODS]]
            return list(dict.fromkeys([name, found["spec"]["workload"]["name"], *pods]))

        regarding = await _of_object(publisher, request, names)
        return {"events": await events(request, namespace, regarding)}


async def _of_object(
    publisher: Publisher, request: Request, work: Callable[[Cluster], _Result]
) -> _Result:
    try:
        found: _Result = await _or_503(publisher.compute(client_name(request.scope), work))
    except MissingError as error:
        raise HTTPException(404, f"there is no {error}") from error
    return found


def _add_page(router: APIRouter) -> None:
    @router.get("/", include_in_schema=False)
    @router.get("/status", include_in_schema=False)
    async def to_the_page() -> Response:
        """Send a browser to the page; relative, since a proxy may have put a path in front."""
        return RedirectResponse("status/", 307)

    @router.api_route("/status/{path:path}", methods=["GET", "HEAD"], include_in_schema=False)
    async def page(request: Request, path: str) -> Response:
        """Return a file of the page."""
        return assets.response(path, request.headers)


async def _stream(
    publisher: Publisher,
    streams: Streams,
    address: str,
    reader: Scope,
    query: Query,
    stream_s: float,
) -> Response:
    """Return a view again and again, as server-sent events, for less than a minute.

    Only the latest view is ever kept for a reader: one that reads slowly misses what came in
    between, and a connection that takes no bytes is closed by the port's own limit.
    """
    if not streams.enter(address):
        raise HTTPException(503, "too many pages are open", {"Retry-After": "5"})
    following = publisher.follow(address, reader, query)
    try:
        next_one = await _or_503(following.__aenter__())
    except BaseException:
        streams.leave(address)
        raise

    async def left() -> None:
        streams.leave(address)
        await following.__aexit__(None, None, None)

    async def pieces() -> AsyncIterator[bytes]:
        until = time.monotonic() + stream_s
        yield b"retry: 1000\n\n"
        while (rest_s := until - time.monotonic()) > 0:
            answer = await next_one(min(rest_s, _ALIVE_EVERY_S))
            yield b": alive\n\n" if answer is None else _event(answer)

    return _Stream(pieces(), left)


class _Stream(StreamingResponse):
    """A response after which `left` is called, even where the reader goes before it begins."""

    def __init__(self, pieces: AsyncIterator[bytes], left: Callable[[], Awaitable[None]]) -> None:
        super().__init__(
            pieces,
            media_type=_EVENT_STREAM,
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )
        self._left = left

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        """Send the pieces."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._left()


def _event(answer: Answer) -> bytes:
    """Return an event, without a number: one of the cluster would count what other tenants do."""
    kind = b"gone" if answer.missing else b"wrong" if answer.wrong else b"view"
    return b"event: %s\ndata: %s\n\n" % (kind, _wrapped(answer))


def _wrapped(answer: Answer) -> bytes:
    said = json.dumps(answer.missing or answer.wrong).encode()
    return b'{"time":"%s","error":%s,"view":%s}' % (_now().encode(), said, answer.content)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _raise_for(answer: Answer) -> None:
    if answer.missing:
        raise HTTPException(404, f"there is no {answer.missing}")
    if answer.wrong:
        raise HTTPException(400, answer.wrong)


async def _or_503(awaited: Awaitable[Any]) -> Any:  # noqa: ANN401 - what is awaited
    try:
        return await awaited
    except AwayError as error:
        raise HTTPException(503, str(error) or "the extender does not answer") from error


def _json(content: bytes) -> Response:
    return Response(content, media_type="application/json", headers={"Cache-Control": "no-store"})


def _parameters(names: list[str], query: Sequence[str]) -> dict[str, Any]:
    """Return what OpenAPI says of path and query, which the framework does not see."""
    return {
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
        + [{"name": name, "in": "query", "schema": {"type": "string"}} for name in query]
    }
