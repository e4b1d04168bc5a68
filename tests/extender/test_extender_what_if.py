"""Who may ask what if, and what is answered where there is no answer."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, HTTPException, Request

from scheduler_extender.planning.what_if import Change, ChangeError
from scheduler_extender.queue.forecasts.what_if import NotAskedError
from scheduler_extender.serving.readers import everybody
from scheduler_extender.serving.status.publisher import Publisher
from scheduler_extender.serving.status.routes import status_router
from scheduler_extender.serving.status.sources import local_what_if, remote_what_if

OPERATOR, TENANT = "operator", "tenant"
OWN, OTHERS = "team-a/job-b", "team-b/job-b"


class Planned:
    """What the queue controller answers."""

    def __init__(self, error: Exception | None = None, *, leads: bool = True) -> None:
        self.error, self.leads = error, leads

    async def answer(
        self, key: tuple[str, str], change: Change, gpu_type: str, batch_size: int | None
    ) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        return {"key": list(key), "gpus": change.gpus, "memory": change.memory_gib,
                "shares": change.shares, "profile": change.profile is not None,
                "limits": change.limits and (change.limits.share, change.limits.most),
                "nodes": (change.nodes, gpu_type), "batch": batch_size}  # fmt: skip


def ask(who: str, job: str, query: str, what_if: Any) -> tuple[int, Any]:
    async def may(request: Request, verb: str, resource: str, namespace: str | None) -> None:
        if who == OPERATOR or (resource, namespace) == ("gpujobs", "team-a"):
            return
        raise HTTPException(403, f"you may not {verb} {resource}")

    async def asked() -> tuple[int, Any]:
        app = FastAPI()
        app.include_router(status_router(Publisher(None), may, None, None, what_if=what_if))  # type: ignore[arg-type] # of other views
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            answer = await client.get(f"/v1/status/jobs/{job}/what-if?{query}")
        return answer.status_code, answer.json()

    return asyncio.run(asked())


def test_what_is_asked_reaches_the_controller() -> None:
    said = ask(
        TENANT, OWN, "gpus=2&memory=1073741824&share=false&batch_size=64", local_what_if(Planned())
    )  # type: ignore[arg-type] # a stand-in
    assert said == (200, {"key": ["team-a", "job-b"], "gpus": 2, "memory": 1.0, "shares": False,
                          "profile": False, "limits": None, "nodes": [0, ""],
                          "batch": 64})  # fmt: skip


def test_a_tenant_asks_about_its_own_jobs_and_never_about_the_cluster() -> None:
    planned = local_what_if(Planned())  # type: ignore[arg-type] # a stand-in
    assert ask(TENANT, OTHERS, "gpus=2", planned)[0] == 403
    # The page names the namespace of its reader as well: that of the path counts.
    assert ask(TENANT, OWN, "gpus=2&namespace=team-a", planned)[0] == 200
    assert ask(TENANT, OTHERS, "gpus=2&namespace=team-a", planned)[0] == 403
    assert ask(TENANT, OWN, "profile=fifo", planned)[0] == 403
    assert ask(TENANT, OWN, "add_nodes=2:A100", planned)[0] == 403
    assert ask(OPERATOR, OTHERS, "profile=fifo", planned)[1]["profile"] is True
    assert ask(OPERATOR, OTHERS, "add_nodes=2:A100", planned)[1]["nodes"] == [2, "A100"]
    assert ask(TENANT, OWN, "quota=max_gpus=4", planned)[0] == 403
    assert ask(OPERATOR, OTHERS, "quota=gpus=2,max_gpus=4", planned)[1]["limits"] == [2, 4]
    for quota in ("gpus=5,max_gpus=4", "gpus=1,gpus=2"):
        assert ask(OPERATOR, OTHERS, f"quota={quota}", planned)[0] == 400
    # Names of profiles alone: no file of the extender's is read for a caller.
    for name in ("nothing", "/etc/passwd", "../fifo", ""):
        assert ask(OPERATOR, OTHERS, f"profile={name}", planned)[0] == 400


@pytest.mark.parametrize(
    ("planned", "status"),
    [
        (Planned(leads=False), 421),
        (Planned(NotAskedError("nothing is forecast of it")), 409),
        (Planned(ChangeError("each of its pods asks for 2")), 400),
    ],
)
def test_where_there_is_no_answer_the_status_says_why(planned: Planned, status: int) -> None:
    local = local_what_if(planned)  # type: ignore[arg-type] # a stand-in
    assert ask(TENANT, OWN, "gpus=2", local)[0] == status

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/what-if/team-a/job-b"
        assert dict(request.url.params) == {"gpus": "2"}
        return httpx.Response(status, json={"detail": "why"})

    client = httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://extender")
    assert ask(TENANT, OWN, "gpus=2", remote_what_if(client)) == (status, {"detail": "why"})


def test_who_asks_a_replica_that_does_not_plan_asks_again_by_another_connection() -> None:
    async def asked() -> httpx.Response:
        app = FastAPI()
        local = local_what_if(Planned(leads=False))  # type: ignore[arg-type] # a stand-in
        app.include_router(status_router(Publisher(None), everybody, None, None, what_if=local))  # type: ignore[arg-type] # of other views
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await client.get(f"/v1/status/jobs/{OWN}/what-if?gpus=2")

    answer = asyncio.run(asked())
    assert (answer.status_code, answer.headers["connection"]) == (421, "close")


@pytest.mark.parametrize(
    "query",
    [
        "gpus=0",
        "memory=0",
        "batch_size=0",
        "batch_size=2147483648",
        "share=maybe",
        "gpus=x",
        "quota=8",
        "quota=borrow=no",
        "quota=gpus=-1",
        "add_nodes=A100",
        "add_nodes=0:A100",
    ],
)
def test_a_parameter_without_meaning_is_refused(query: str) -> None:
    assert ask(TENANT, OWN, query, local_what_if(Planned()))[0] == 422  # type: ignore[arg-type] # a stand-in
