"""Where the page's data come from: the extender of this process, or the one behind the front."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import httpx
from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import StreamingResponse

from scheduler_extender.serving.status.objects import Key
from scheduler_extender.serving.status.publisher import AwayError, Source
from scheduler_extender.serving.status.routes import AskedChange, Events, Profiles, Report, WhatIf
from scheduler_extender.serving.traffic import Traffic
from tandem.errors import TandemError
from tandem.kube.access import Access
from tandem.kube.client import KubeClient
from tandem.kube.errors import KubeError
from tandem.kube.resource import EVENTS

if TYPE_CHECKING:  # the process in front starts without what only the extender needs
    from scheduler_extender.planning.forecast_quotas import Limits
    from scheduler_extender.predictions import HttpPredictor
    from scheduler_extender.queue.forecasts.what_if import WhatIf as Planned
    from scheduler_extender.serving.status.changes import Changes
    from tandem.kube.memory import MemoryCluster

_SHOWN = 50  # events of a job
#: After so many pieces of changes, the event loop belongs to the verbs for the first time here. A
#: request of a large cluster is read, answered and written in several turns of the loop, and would
#: wait for a piece at each of them. The whole cluster, for the first page, takes seconds and rests
#: less.
_REST_S, _PIECES = 0.002, 1
_REST_OF_WHOLE_S, _PIECES_OF_WHOLE = 0.001, 3
#: A piece lets the verbs under way go first, for this time at most: a verb may wait for its client.
_BEHIND_VERBS_S, _BEHIND_VERBS_OF_WHOLE_S = 0.05, 0.005
#: So much is sent at once: both processes take longer for the HTTP of a piece than for the piece.
_SENT_BYTES = 64 * 2**10
_PATH, _REPORT, _WHAT_IF = "/v1/changes", "/v1/report", "/v1/what-if"
_LONGEST_WAIT_S = 5.0

#: Raises HTTPException where the caller of a request does not have a right.
Require = Callable[[Request, Access], Awaitable[None]]


def local_changes(changes: Changes, traffic: Traffic | None = None) -> Source:
    """Return the changes of the extender in this process, which let the verbs go first.

    It yields several pieces of `Changes.pieces` at once.
    """
    verbs = traffic or Traffic()

    async def pieces(since: str, wait_s: float) -> AsyncIterator[bytes]:
        await changes.wait(since, wait_s)
        rest_s, run, behind_s = _REST_OF_WHOLE_S, _PIECES_OF_WHOLE, _BEHIND_VERBS_OF_WHOLE_S
        if changes.knows(since):
            rest_s, run, behind_s = _REST_S, _PIECES, _BEHIND_VERBS_S
        pending = bytearray()
        for number, piece in enumerate(changes.pieces(since), 1):
            pending += piece
            if len(pending) >= _SENT_BYTES:
                yield bytes(pending)
                pending.clear()
            await asyncio.sleep(0 if number % run else rest_s)
            await verbs.pause(behind_s)
        yield bytes(pending)

    return pieces


def remote_changes(extender: httpx.AsyncClient) -> Source:
    """Return the changes of the extender behind a connection."""

    async def pieces(since: str, wait_s: float) -> AsyncIterator[bytes]:
        given = {"since": since, "wait_s": f"{wait_s:.3f}"}
        try:
            async with extender.stream("GET", _PATH, params=given) as answer:
                if answer.status_code != 200:
                    raise AwayError("the extender does not answer")
                async for part in answer.aiter_raw():
                    yield part
        except httpx.HTTPError as error:
            raise AwayError("the extender does not answer") from error

    return pieces


def inner_router(
    changes: Changes,
    predictor: HttpPredictor,
    traffic: Traffic,
    report: Report,
    what_if: Planned,
) -> APIRouter:
    """Return what the process in front asks for the page; no other process can ask it."""
    router = APIRouter()
    source = local_changes(changes, traffic)

    @router.get(_PATH)
    async def changed(since: str = "", wait_s: float = 0.0) -> StreamingResponse:
        within_s = min(wait_s, _LONGEST_WAIT_S)
        return StreamingResponse(source(since, within_s), media_type="application/x-ndjson")

    @router.get("/v1/profiles/{namespace}/{name}")
    async def profile(namespace: str, name: str) -> dict[str, Any]:
        found = await local_profiles(predictor)(namespace, name)
        if found is None:
            raise HTTPException(404)
        return found

    @router.get(_REPORT)
    async def past(days: int, by: str, namespace: str | None = None) -> dict[str, Any]:
        return await local_reports(report)(days, by, namespace)

    @router.get(f"{_WHAT_IF}/{{namespace}}/{{name}}")
    async def asked(
        namespace: str,
        name: str,
        given: Annotated[AskedChange, Query()],
    ) -> dict[str, Any]:
        return await local_what_if(what_if)((namespace, name), given.model_dump())

    return router


def local_what_if(what_if: Planned) -> WhatIf:
    """Return what the extender in this process says of changes."""

    async def made(key: Key, given: dict[str, Any]) -> dict[str, Any]:
        from scheduler_extender.planning.what_if import Change, ChangeError
        from scheduler_extender.queue.forecasts.what_if import NotAskedError
        from tandem.policy.catalog import load_profile, profile_names
        from tandem.policy.units import BYTES_PER_GIB

        if not what_if.leads:
            raise HTTPException(421, "this replica does not plan: another one does")
        try:
            name, memory = given["profile"], given["memory"]
            if name is not None and name not in profile_names():  # no file of the extender's
                raise HTTPException(400, f"there is no profile {name!r}")
            nodes, _, gpu_type = (given["add_nodes"] or "0:").partition(":")
            change = Change(
                gpus=given["gpus"],
                memory_gib=None if memory is None else memory / BYTES_PER_GIB,
                shares=given["share"],
                profile=None if name is None else load_profile(name),
                nodes=int(nodes),
                limits=_limits(key[0], given["quota"]),
            )
            return await what_if.answer(key, change, gpu_type, given["batch_size"])
        except NotAskedError as error:
            raise HTTPException(409, str(error)) from error
        except (ChangeError, TandemError) as error:
            raise HTTPException(400, str(error)) from error

    return made


def _limits(namespace: str, quota: str | None) -> Limits | None:
    """Return what a quota (`gpus=8,max_gpus=16`) would come to.

    Raises:
        ChangeError: a cap below the share, or a setting that is there twice.
    """
    from scheduler_extender.planning.forecast_quotas import Limits
    from scheduler_extender.planning.what_if import ChangeError
    from scheduler_extender.quotas.config import Quota

    if quota is None:
        return None
    parts = [part.partition("=") for part in quota.split(",")]
    settings = {name: int(value) for name, _, value in parts}
    if len(settings) < len(parts):
        raise ChangeError(f"{quota!r} sets one of them twice")
    try:
        chosen = Quota.model_validate({"namespace": namespace, **settings})
    except ValueError as error:
        raise ChangeError(f"{quota!r}: max_gpus must be at least gpus") from error
    return Limits(chosen.gpus or 0, chosen.borrow, chosen.max_gpus, chosen.endless_gpus)


def remote_what_if(extender: httpx.AsyncClient) -> WhatIf:
    """Return what the extender behind a connection says of changes, one at a time."""
    turn = asyncio.Lock()

    async def made(key: Key, given: dict[str, Any]) -> dict[str, Any]:
        path = f"{_WHAT_IF}/{quote(key[0], safe='')}/{quote(key[1], safe='')}"
        query = {name: str(value) for name, value in given.items() if value is not None}
        return await _said(extender, turn, path, query)

    return made


def local_reports(report: Report) -> Report:
    """Return reports of the extender in this process."""

    async def made(days: int, by: str, namespace: str | None) -> dict[str, Any]:
        try:
            return await report(days, by, namespace)
        except KubeError as error:
            words = "the API server does not say what is kept of the past"
            raise HTTPException(503, words) from error

    return made


def remote_reports(extender: httpx.AsyncClient) -> Report:
    """Return reports of the extender behind a connection, one at a time."""
    turn = asyncio.Lock()

    async def made(days: int, by: str, namespace: str | None) -> dict[str, Any]:
        given = {"days": str(days), "by": by}
        if namespace is not None:
            given["namespace"] = namespace
        return await _said(extender, turn, _REPORT, given)

    return made


async def _said(
    extender: httpx.AsyncClient, turn: asyncio.Lock, path: str, query: dict[str, str]
) -> dict[str, Any]:
    """Return what the extender answers in its turn; raises what it refuses, 503 without answer."""
    try:
        async with turn:
            answer = await extender.get(path, params=query)
    except httpx.HTTPError as error:
        raise HTTPException(503, "the extender does not answer") from error
    if not answer.is_success:
        raise HTTPException(answer.status_code, str(answer.json().get("detail") or "no answer"))
    found: dict[str, Any] = answer.json()
    return found


def local_profiles(predictor: HttpPredictor) -> Profiles:
    """Return models as the predictor has them."""
    from scheduler_extender.predictions import AwayError as PredictorAwayError

    async def profile(namespace: str, name: str) -> dict[str, Any] | None:
        try:
            found = await predictor.model(namespace, name)
        except PredictorAwayError as error:
            raise HTTPException(503, str(error)) from error
        return None if found is None else found.wire()

    return profile


def remote_profiles(extender: httpx.AsyncClient) -> Profiles:
    """Return models as the predictor of the extender behind a connection has them."""

    async def profile(namespace: str, name: str) -> dict[str, Any] | None:
        path = f"/v1/profiles/{quote(namespace, safe='')}/{quote(name, safe='')}"
        try:
            answer = await extender.get(path)
        except httpx.HTTPError as error:
            raise HTTPException(503, "the extender does not answer") from error
        if answer.status_code == 503:
            raise HTTPException(503, str(answer.json()["detail"]))
        found: dict[str, Any] | None = answer.json() if answer.is_success else None
        return found

    return profile


def events_for_caller(api: KubeClient, require: Require) -> Events:
    """Return the events of a namespace to callers that have the right to list them there.

    They are read by our own account: a token for our audience alone opens nothing at the API
    server, and the token of a caller goes to no other service.
    """

    async def events(request: Request, namespace: str, names: list[str]) -> list[dict[str, Any]]:
        await require(request, Access("list", "events", namespace, group=""))
        try:
            found = await asyncio.to_thread(_of_api, api, namespace, names)
        except KubeError as error:
            raise HTTPException(503, "the API server does not answer") from error
        return _latest(found)

    return events


def events_in_memory(cluster: MemoryCluster) -> Events:
    """Return the events of the API server in memory."""

    async def events(_: Request, namespace: str, names: list[str]) -> list[dict[str, Any]]:
        found = cluster.list(EVENTS, namespace)
        return _latest(each for each in found if each["regarding"]["name"] in names)

    return events


def _of_api(api: KubeClient, namespace: str, names: list[str]) -> list[dict[str, Any]]:
    """Read events by the core API: the right to list them there is the one that was checked."""
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/events"
    found: list[dict[str, Any]] = []
    for name in names:
        query = {"fieldSelector": f"involvedObject.name={name}", "limit": _SHOWN}
        found += api.request("GET", path, query).get("items") or []
    return found


def _latest(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = [_row(each) for each in found]
    return sorted(rows, key=lambda row: str(row["at"]), reverse=True)[:_SHOWN]


def _row(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event of either API with what is shown of it."""
    series, regarding = event.get("series") or {}, event.get("regarding")
    regarding = regarding or event.get("involvedObject") or {}
    at = (
        series.get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or event["metadata"].get("creationTimestamp")
    )
    return {
        "at": at,
        "type": event.get("type") or "Normal",
        "reason": event.get("reason") or "",
        "note": event.get("note") or event.get("message") or "",
        "kind": regarding.get("kind") or "",
        "name": regarding.get("name") or "",
        "count": series.get("count") or event.get("count") or 1,
    }
