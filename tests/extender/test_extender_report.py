"""Who is shown which report, and what is answered where there is none."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, HTTPException, Request

from scheduler_extender.serving.status.publisher import Publisher
from scheduler_extender.serving.status.routes import status_router
from scheduler_extender.serving.status.sources import local_reports, remote_reports
from tandem.kube.errors import Unavailable

OPERATOR, TENANT = "operator", "tenant"


def ask(who: str, query: str = "", *, report: Any = "given") -> tuple[int, Any]:
    """Return status and answer; the report says for whom it was made."""

    async def may(request: Request, verb: str, resource: str, namespace: str | None) -> None:
        if who == OPERATOR or (resource, namespace) == ("gpujobs", "team-a"):
            return
        raise HTTPException(403, f"you may not {verb} {resource}")

    async def made(days: int, by: str, namespace: str | None) -> dict[str, Any]:
        return {"days": days, "by": by, "namespace": namespace}

    async def asked() -> tuple[int, Any]:
        app = FastAPI()
        chosen = made if report == "given" else report
        app.include_router(status_router(Publisher(None), may, None, None, report=chosen))  # type: ignore[arg-type] # of other views
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            answer = await client.get(f"/v1/status/report{query}")
        return answer.status_code, answer.json()

    return asyncio.run(asked())


def test_an_operator_sees_all_and_may_choose_a_namespace() -> None:
    assert ask(OPERATOR) == (200, {"days": 30, "by": "namespace", "namespace": None})
    status, found = ask(OPERATOR, "?namespace=team-b&by=user&days=7")
    assert (status, found) == (200, {"days": 7, "by": "user", "namespace": "team-b"})


def test_a_tenant_sees_its_namespace_alone() -> None:
    assert ask(TENANT)[0] == 403
    assert ask(TENANT, "?namespace=team-b")[0] == 403
    assert ask(TENANT, "?namespace=")[0] == 403
    assert ask(TENANT, "?namespace=team-a")[1]["namespace"] == "team-a"
    # Of several, the one that was checked is the one that is shown.
    for query in ("?namespace=team-a&namespace=team-b", "?namespace=team-b&namespace=team-a"):
        status, found = ask(TENANT, query)
        assert status == 403 or found["namespace"] == "team-a"


@pytest.mark.parametrize("query", ["?days=0", "?days=31", "?by=pod", "?days=x"])
def test_a_parameter_without_meaning_is_refused(query: str) -> None:
    assert ask(OPERATOR, query)[0] in (400, 422)


def test_without_an_answer_of_the_api_server_there_is_no_report() -> None:
    async def away(*_: object) -> dict[str, Any]:
        raise Unavailable(503, "away")

    assert ask(OPERATOR, report=local_reports(away))[0] == 503
    assert ask(OPERATOR, report=None)[0] == 503

    def answer(request: httpx.Request) -> httpx.Response:
        del request
        raise httpx.ConnectError("gone")

    client = httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://extender")
    assert ask(OPERATOR, report=remote_reports(client))[0] == 503
