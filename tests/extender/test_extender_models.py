"""The predictor through the tunnel: with the caller's rights, and never with the caller's token."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from scheduler_extender.serving import models
from scheduler_extender.serving.models import Predictor, models_app
from scheduler_extender.serving.readers import Readers
from tandem.kube.access import ACCESS_REVIEWS, TOKEN_REVIEWS

EDIT = {(verb, "a") for verb in ("get", "list", "create", "update", "delete")}
RIGHTS = {"editor": EDIT, "viewer": {("get", "a"), ("list", "a")}, "half": {("create", "a")}}
OWN = "the-extenders-own"
#: A request of each kind: method, path with query, body.
REQUESTS = {
    "push": ("POST", "/v1/models?name=m&namespace=a", b"graph"),
    "list": ("GET", "/v1/models?namespace=a", None),
    "list all": ("GET", "/v1/models", None),
    "show": ("GET", "/v1/models/a/m", None),
    "delete": ("DELETE", "/v1/models/a/m", None),
    "predict": ("POST", "/v1/predict", b'{"namespace": "a", "model": "m"}'),
}
MAY = {
    "editor": {"push", "list", "show", "delete", "predict"},
    "viewer": {"list", "show", "predict"},
    "half": set(),
    "stranger": set(),
}


class Api:
    """An API server in which a token is its user's name."""

    def create(self, resource: Any, body: dict, namespace: str | None = None) -> dict:
        spec = body["spec"]
        if resource == TOKEN_REVIEWS:
            known = spec["token"] in RIGHTS
            user = {"username": spec["token"]}
            return {"status": {"authenticated": known} | ({"user": user} if known else {})}
        assert resource == ACCESS_REVIEWS
        wanted = spec["resourceAttributes"]
        assert (wanted["group"], wanted["resource"]) == ("tandem.gpu", "modelprofiles")
        key = wanted["verb"], wanted.get("namespace")
        return {"status": {"allowed": key in RIGHTS[spec["user"]]}}


class Service:
    """The predictor: what it was asked, and what it answers."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, bytes]] = []
        self.tokens: list[str] = []
        self.answer: Callable[[], httpx.Response] = lambda: httpx.Response(200, json={"ok": 1})
        self.waits: asyncio.Event | None = None

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        body = b"".join([part async for part in request.stream])
        self.asked.append((request.method, request.url.raw_path.decode(), body))
        self.tokens.append(request.headers.get("authorization", ""))
        if self.waits is not None:
            await self.waits.wait()
        return self.answer()


def asked(service: Service | None, story: Callable[[httpx.AsyncClient], Any]) -> Any:
    async def run() -> Any:
        behind = None
        if service is not None:
            transport = httpx.MockTransport(service)
            behind = httpx.AsyncClient(transport=transport, base_url="http://predictor")
        app = models_app(Readers(Api()), Predictor(behind, lambda: OWN))
        asgi = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=asgi, base_url="http://tunnel") as client:
            return await story(client)

    return asyncio.run(run())


def ask(service: Service | None, name: str, user: str) -> httpx.Response:
    method, path, body = REQUESTS[name]
    headers = {"authorization": f"Bearer {user}"} if user else {}
    return asked(
        service, lambda client: client.request(method, path, content=body, headers=headers)
    )


@pytest.mark.parametrize("user", [*MAY, ""])
def test_a_caller_may_what_the_api_server_allows_and_nothing_else(user: str) -> None:
    for name, (method, path, body) in REQUESTS.items():
        service = Service()
        answer = ask(service, name, user)
        if name in MAY.get(user, ()):
            assert answer.status_code == 200, name
            assert service.asked == [(method, path, body or b"")]
            assert service.tokens == [f"Bearer {OWN}"]
        else:
            assert answer.status_code == (403 if user in RIGHTS else 401), name
            assert service.asked == []


def test_a_parameter_that_there_is_not_is_refused() -> None:
    service = Service()
    headers = {"authorization": "Bearer viewer"}
    answer = asked(service, lambda client: client.get("/v1/models?ns=a", headers=headers))
    assert answer.status_code == 400
    assert answer.json()["detail"] == "'ns' is no parameter here; there are namespace"
    assert service.asked == []


def test_what_the_predictor_answers_comes_back_as_it_is() -> None:
    service = Service()
    error = {"error": "no model 'm'", "hint": "push it"}
    service.answer = lambda: httpx.Response(404, json=error)
    answer = ask(service, "show", "viewer")
    assert (answer.status_code, answer.json()) == (404, error)
    service.answer = lambda: httpx.Response(204)
    answer = ask(service, "delete", "editor")
    assert (answer.status_code, answer.content) == (204, b"")


def test_a_predictor_that_refuses_the_extender_is_not_taken_for_a_refused_caller() -> None:
    service = Service()
    for status in (401, 403):
        service.answer = lambda status=status: httpx.Response(status, json={"error": "no"})
        answer = ask(service, "list", "viewer")
        assert answer.status_code == 503
        assert "refuses the extender" in answer.json()["error"]


def test_a_predictor_that_is_away_or_absent_is_named() -> None:
    service = Service()

    def away() -> httpx.Response:
        raise httpx.ConnectError("refused")

    service.answer = away
    answer = ask(service, "list", "viewer")
    assert answer.status_code == 503
    assert answer.json()["error"] == "the predictor does not answer"
    answer = ask(None, "list", "viewer")
    assert answer.status_code == 404
    assert "no predictor" in answer.json()["error"]


def test_a_body_over_the_bound_is_refused_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "PUSH_BYTES", 1000)
    service = Service()

    async def story(client: httpx.AsyncClient) -> httpx.Response:
        async def body():
            for _ in range(100):
                yield bytes(100)

        headers = {"authorization": "Bearer editor"}
        return await client.post(REQUESTS["push"][1], content=body(), headers=headers)

    answer = asked(service, story)
    assert answer.status_code == 413
    assert "weights" in answer.json()["hint"]
    assert service.asked == []
    large = {"namespace": "a", "x": "x" * 70_000}
    headers = {"authorization": "Bearer viewer"}
    answer = asked(service, lambda c: c.post("/v1/predict", json=large, headers=headers))
    assert answer.status_code == 413


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"1", b"{", b"[" * 100_00, b'{"namespace": 1}', b'{"namespace": "../x"}']
)
def test_what_is_no_request_for_a_prediction_is_refused(body: bytes) -> None:
    headers = {"authorization": "Bearer viewer"}
    service = Service()
    answer = asked(service, lambda c: c.post("/v1/predict", content=body, headers=headers))
    assert answer.status_code == 422
    assert service.asked == []


@pytest.mark.parametrize("name", ["..", ".", "%2e%2e", "a%2fb", "a b", "x" * 300, "é"])
def test_a_name_that_would_lead_elsewhere_is_refused(name: str) -> None:
    headers = {"authorization": "Bearer editor"}
    service = Service()
    answer = asked(service, lambda c: c.get(f"/v1/models/a/{name}", headers=headers))
    assert answer.status_code in (403, 404, 422)
    query = {"name": "m", "namespace": name}
    answer = asked(service, lambda c: c.post("/v1/models", params=query, headers=headers))
    assert answer.status_code in (403, 422)
    assert service.asked == []


def test_one_namespace_keeps_no_other_from_pushing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RIGHTS, "other", {("create", "b"), ("update", "b")})
    service = Service()

    async def story(client: httpx.AsyncClient) -> None:
        service.waits = asyncio.Event()

        async def push(user: str, namespace: str) -> httpx.Response:
            headers = {"authorization": f"Bearer {user}"}
            path = f"/v1/models?name=m&namespace={namespace}"
            return await client.post(path, content=b"graph", headers=headers)

        first = asyncio.create_task(push("editor", "a"))
        while not service.asked:  # noqa: ASYNC110 - the double has no event for it
            await asyncio.sleep(0.01)
        second = await push("editor", "a")
        assert second.status_code == 503
        assert "try again" in second.json()["detail"]
        third = asyncio.create_task(push("other", "b"))
        while len(service.asked) < 2:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
        service.waits.set()
        assert [(await each).status_code for each in (first, third)] == [200, 200]
        assert (await push("editor", "a")).status_code == 200  # the slot is free again

    asked(service, story)
