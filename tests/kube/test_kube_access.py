"""Who a caller is and what it may do: what the API server is asked, and for how long it counts."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from tandem.kube import access
from tandem.kube.access import (
    ACCESS_REVIEWS,
    LONGEST_TOKEN,
    TOKEN_REVIEWS,
    Access,
    Caller,
    Reviews,
    TooManyReviewsError,
    bearer_token,
)
from tandem.kube.errors import KubeError, unreachable

ADA = Caller("ada", "1", ("ml", "ops"), (("scopes", ("a", "b")),))
LIST = Access("list", "gpujobs", "ml")


class Server:
    """An API server that knows the tokens that begin with `ada`, and counts what it is asked."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.asked: list[tuple[str, dict]] = []
        self.allowed = True
        self.audiences: list[str] | None = None
        self.away = False

    def create(self, resource: Any, body: dict, namespace: str | None = None) -> dict:
        if self.away:
            raise unreachable("away", maybe_done=True)
        spec = body["spec"]
        self.asked.append((resource.plural, spec))
        if resource == ACCESS_REVIEWS:
            return {"status": {"allowed": self.allowed}}
        assert resource == TOKEN_REVIEWS
        known = "ada" in spec["token"]
        user = {"username": "ada", "uid": "1", "groups": ["ml", "ops"],
                "extra": {"scopes": ["a", "b"]}}  # fmt: skip
        audiences = spec.get("audiences") if self.audiences is None else self.audiences
        status = {"authenticated": known, "audiences": audiences}
        return {"status": status | ({"user": user} if known else {})}

    def count(self, plural: str) -> int:
        return sum(name == plural for name, _ in self.asked)


@pytest.fixture
def server() -> Server:
    return Server()


def reviews(server: Server, audience: str = "") -> Reviews:
    return Reviews(server, audience=audience, clock=lambda: server.now)  # type: ignore[arg-type]


def do(made: Reviews, *what: Any) -> list[Any]:
    """Ask one after another: tokens, or rights of Ada."""

    async def one(each: Any) -> Any:
        if isinstance(each, str):
            return await made.caller(each)
        return await made.may(ADA, each)

    async def story() -> list[Any]:
        return [await one(each) for each in what]

    return asyncio.run(story())


def token_for(*audiences: str, one: bool = False) -> str:
    claims = {"sub": "ada", "aud": audiences[0] if one else list(audiences)}
    packed = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"ada.{packed}.signature"


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("Bearer abc", "abc"), ("bearer abc", "abc"), ("Bearer  abc ", "abc"), ("Basic abc", None),
        ("Bearer", None), ("Bearer ", None), ("", None), ("abc", None),
        ("Bearer " + "x" * LONGEST_TOKEN, "x" * LONGEST_TOKEN),
        ("Bearer " + "x" * (LONGEST_TOKEN + 1), None),
    ],
)  # fmt: skip
def test_a_token_is_taken_from_the_header_of_its_scheme(header: str, token: str | None) -> None:
    assert bearer_token(header) == token


def test_a_caller_is_whom_the_api_server_names(server: Server) -> None:
    assert do(reviews(server), "ada", "eve") == [ADA, None]
    assert server.asked[0] == ("tokenreviews", {"token": "ada"})


@pytest.mark.parametrize("one", [True, False])
def test_a_token_for_the_service_is_asked_about_with_its_audience(
    server: Server, one: bool
) -> None:
    made = reviews(server, "tandem")
    mine, other = token_for("tandem", one=one), token_for("other")
    assert do(made, mine, other, "ada.not-json.x") == [ADA] * 3
    assert [spec.get("audiences") for _, spec in server.asked] == [["tandem"], None, None]


@pytest.mark.parametrize("confirmed", [[], ["other"]])
def test_a_token_whose_audience_is_not_confirmed_is_of_no_pod(
    server: Server, confirmed: list[str]
) -> None:
    server.audiences = confirmed
    assert do(reviews(server, "tandem"), token_for("tandem")) == [None]


def test_a_service_without_an_audience_asks_for_none(server: Server) -> None:
    do(reviews(server), token_for(""))
    assert "audiences" not in server.asked[0][1]


@pytest.mark.parametrize(
    ("right", "attributes"),
    [
        (LIST, {"namespace": "ml"}),
        (Access("list", "gpujobs"), {}),
        (Access("list", "gpujobs", "ml", "status"), {"namespace": "ml", "subresource": "status"}),
        (
            Access("list", "pods", "ml", group=""),
            {"namespace": "ml", "group": "", "resource": "pods"},
        ),
    ],
)
def test_a_right_is_asked_about_for_the_whole_caller(
    server: Server, right: Access, attributes: dict
) -> None:
    assert do(reviews(server), right) == [True]
    ((_, spec),) = server.asked
    expected = {"group": "tandem.gpu", "resource": "gpujobs", "verb": "list"} | attributes
    assert spec == {
        "user": "ada", "uid": "1", "groups": ["ml", "ops"], "extra": {"scopes": ["a", "b"]},
        "resourceAttributes": expected,
    }  # fmt: skip


def test_a_right_reads_as_kubectl_writes_it() -> None:
    assert str(LIST) == "list gpujobs.tandem.gpu in ml"
    every = Access("get", "nodes", None, "status", "")
    assert str(every) == "get nodes/status in all namespaces"


@pytest.mark.parametrize("question", ["ada", "eve", LIST])
@pytest.mark.parametrize("allowed", [True, False])
def test_an_answer_counts_for_a_minute(server: Server, question: Any, allowed: bool) -> None:
    server.allowed = allowed
    made = reviews(server)
    first = do(made, question)
    server.now += 59.9
    assert do(made, question) == first
    assert len(server.asked) == 1
    server.now += 0.1
    assert do(made, question) == first
    assert len(server.asked) == 2


def test_one_right_opens_no_other_and_a_token_no_other_s(server: Server) -> None:
    made = reviews(server)
    do(made, LIST, LIST._replace(verb="delete"), LIST._replace(namespace="ops"))
    assert server.count("subjectaccessreviews") == 3
    do(made, "ada-1", "ada-2")
    assert server.count("tokenreviews") == 2


def test_a_namespace_that_cannot_exist_is_not_asked_about(server: Server) -> None:
    longest = LIST._replace(namespace="n" * 63)
    assert do(reviews(server), longest, LIST._replace(namespace="n" * 64)) == [True, False]
    assert len(server.asked) == 1


def test_an_api_server_that_is_away_confirms_no_token_and_is_asked_again(server: Server) -> None:
    made = reviews(server)
    server.away = True
    for question in ("ada", LIST):
        with pytest.raises(KubeError):
            do(made, question)
    server.away = False
    assert do(made, "ada", LIST) == [ADA, True]


def test_invented_tokens_are_reviewed_a_few_at_a_time_and_known_callers_are_not_held_up(
    server: Server,
) -> None:
    made = reviews(server)
    assert do(made, "ada") == [ADA]
    assert do(made, *(f"eve-{n}" for n in range(39))) == [None] * 39
    with pytest.raises(TooManyReviewsError):
        do(made, "eve-more")
    server.now += 61  # its answer is too old by now, and it is known all the same
    asked = len(server.asked)
    assert do(made, *(f"later-{n}" for n in range(40))) == [None] * 40
    assert do(made, "ada") == [ADA]
    assert len(server.asked) == asked + 41
    server.now += 0.04
    with pytest.raises(TooManyReviewsError):
        do(made, "eve-more")
    server.now += 0.02
    assert do(made, "eve-more") == [None]


def test_the_answer_that_was_used_longest_ago_goes_first(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "MOST_KEPT", 2)
    made = reviews(server)
    do(made, "ada-1", "ada-2", "ada-1", "ada-3")
    assert server.count("tokenreviews") == 3
    do(made, "ada-1", "ada-3")
    assert server.count("tokenreviews") == 3
    do(made, "ada-2")
    assert server.count("tokenreviews") == 4


def test_many_that_ask_the_same_at_once_ask_once_and_one_that_goes_takes_it_from_no_other(
    server: Server,
) -> None:
    made = reviews(server)

    async def story() -> list[Any]:
        tasks = [asyncio.ensure_future(made.caller("ada")) for _ in range(5)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        return await asyncio.gather(*tasks[1:])

    assert asyncio.run(story()) == [ADA] * 4
    assert len(server.asked) == 1
