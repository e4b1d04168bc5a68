"""What callers may send, who may read, and what is answered about refused jobs."""

from __future__ import annotations

import asyncio
import logging

import httpx
import pytest
from extender_builders import gpu_node, node, pod
from fastapi import FastAPI, Request
from starlette.types import Message, Receive, Scope, Send

from scheduler_extender.admission.config import AdmissionConfig
from scheduler_extender.admission.webhook import admission_router
from scheduler_extender.cluster.state import ClusterState
from scheduler_extender.serving.api import read_router
from scheduler_extender.serving.front import checked_reads
from scheduler_extender.serving.limits import MAX_BODY_BYTES, Budget, Limited
from scheduler_extender.serving.readers import Agents, Readers
from tandem.contracts import names
from tandem.kube.access import ACCESS_REVIEWS, TOKEN_REVIEWS
from tandem.kube.errors import Forbidden, KubeError
from tandem.policy.catalog import load_profile

GROUPS = ["system:authenticated", "ml"]


class Api:
    """An API server that knows one token, whose user may list GPUJobs in the namespace ml.

    What else the user `may` do is added: verb, resource and namespace.
    """

    def __init__(self) -> None:
        self.may: set[tuple[str, str, str | None]] = {("list", "gpujobs", "ml")}
        self.asked: list[tuple[str, dict]] = []
        self.error: KubeError | None = None

    def create(self, resource, body, namespace=None):
        if self.error:
            raise self.error
        self.asked.append((resource.plural, body["spec"]))
        if resource == TOKEN_REVIEWS:
            known = body["spec"]["token"] == "known"
            user = {"username": "ada", "uid": "1", "groups": GROUPS}
            return {"status": {"authenticated": True, "user": user} if known else {}}
        assert resource == ACCESS_REVIEWS
        assert (body["spec"]["user"], body["spec"]["groups"]) == ("ada", GROUPS)
        wanted = body["spec"]["resourceAttributes"]
        assert wanted["group"] == names.GROUP
        asked = wanted["verb"], wanted["resource"], wanted.get("namespace")
        return {"status": {"allowed": asked in self.may}}


def ask(app: FastAPI, *calls: tuple[str, str]) -> list[httpx.Response]:
    async def story() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://public") as client:
            return [
                await client.get(path, headers={"authorization": token} if token else {})
                for path, token in calls
            ]

    return asyncio.run(story())


@pytest.fixture
def now() -> list[float]:
    return [1000.0]


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def app(api: Api, now: list[float]) -> FastAPI:
    return in_front(ClusterState(now_s=0), api, now)


def in_front(state: ClusterState, api: Api, now: list[float]) -> FastAPI:
    """Return the public port's routes under /v1 as a cluster has them: two apps, one in front."""
    inner = FastAPI()
    inner.include_router(read_router(state, load_profile("tandem").pipeline()))
    extender = httpx.AsyncClient(transport=httpx.ASGITransport(inner), base_url="http://extender")
    readers = Readers(api, lambda: now[0])
    app = FastAPI()
    app.include_router(checked_reads(readers, Agents(api, lambda: now[0]), extender))
    return app


@pytest.mark.parametrize(
    "path", ["/v1/gpus", "/v1/jobs", "/v1/jobs?namespace=ml", "/v1/explain/ml/p"]
)
@pytest.mark.parametrize(
    "token", ["", "Bearer", "Basic known", "Bearer unknown", "Bearer " + "x" * 20000]
)
def test_no_client_reads_without_a_token_that_the_api_server_knows(app, path, token) -> None:
    (answer,) = ask(app, (path, token))
    assert answer.status_code == 401
    assert "token" in answer.json()["detail"]


def test_a_reader_sees_what_the_api_server_would_show(app) -> None:
    token = "Bearer known"
    answers = ask(
        app,
        ("/v1/jobs?namespace=ml", token),
        ("/v1/jobs", token),
        ("/v1/jobs?namespace=other", token),
        ("/v1/gpus", token),
        ("/v1/explain/ml/p", token),
    )
    assert [answer.status_code for answer in answers] == [200, 403, 403, 403, 403]
    assert answers[1].json()["detail"] == "you may not list gpujobs.tandem.gpu in all namespaces"


@pytest.mark.parametrize(
    ("path", "known"),
    [
        ("/v1/gpus?nod=n0", "there are node"),
        ("/v1/jobs?ns=ml", "there are namespace"),
        ("/v1/explain/ml/p?nodes=1", "there are none"),
    ],
)
def test_a_parameter_that_there_is_not_is_refused(app, path, known) -> None:
    (answer,) = ask(app, (path, "Bearer known"))
    assert answer.status_code == 400
    assert known in answer.json()["detail"]


def test_answers_are_kept_for_a_minute_and_no_longer(app, api, now) -> None:
    path = ("/v1/jobs?namespace=ml", "Bearer known")
    ask(app, path, path, path)
    assert len(api.asked) == 2
    now[0] += 61
    ask(app, path)
    assert len(api.asked) == 4


def test_an_api_server_that_does_not_say_lets_no_client_in(app, api) -> None:
    for error in (Forbidden(403, "no"), KubeError(0, "away")):
        api.error = error
        (answer,) = ask(app, ("/v1/gpus", "Bearer known"))
        assert answer.status_code == 503


def test_what_nodes_and_gpus_are_called_is_for_those_who_may_list_them(api, now) -> None:
    """A tenant learns how many GPUs refuse its pod and why, and the names of its own alone."""
    state = ClusterState(now_s=now[0])
    state.upsert("nodes", node("n0"))
    for index in range(3):
        state.upsert("gpunodes", gpu_node(f"n{index}", f"GPU-{index}", observed_at_s=now[0]))
    state.upsert("pods", pod("old", node_name="n0", devices="GPU-0", exclusive=True))
    state.upsert("pods", pod("new"))
    app = in_front(state, api, now)
    api.may.add(("get", "gpujobs", "ml"))
    (answer,) = ask(app, ("/v1/explain/ml/new", "Bearer known"))
    shown = answer.json()
    assert (shown["nodes"], shown["nodesNotShown"]) == ([], 3)
    assert shown["reasons"] == [
        {"reason": "exclusive", "gpus": 1, "nodes": 1,
         "says": "a job runs that does not share its GPU"},
        {"reason": "nodes", "gpus": 2, "nodes": 2,
         "says": "its pods cannot run because of labels, taints or a cordon"},
    ]  # fmt: skip
    assert "GPU-" not in answer.text
    assert '"n0"' not in answer.text
    (own,) = ask(app, ("/v1/explain/ml/old", "Bearer known"))
    assert (own.json()["node"], own.json()["gpus"]) == ("n0", ["GPU-0"])
    now[0] += 61
    api.may.add(("list", "gpunodes", None))
    (answer,) = ask(app, ("/v1/explain/ml/new", "Bearer known"))
    assert [each["node"] for each in answer.json()["nodes"]] == ["n0", "n1", "n2"]
    assert answer.json()["reasons"] == shown["reasons"]


# --- bodies -----------------------------------------------------------------------------------


@pytest.fixture
def echo() -> FastAPI:
    app = FastAPI()

    @app.post("/length")
    async def length(request: Request) -> int:
        return len(await request.body())

    app.add_middleware(Limited, within_s=0.2)
    return app


def send(app: FastAPI, messages: list[Message], announced: int | None = None) -> tuple[int, bytes]:
    """Send a request as a server would hand it on; return status and body of the answer."""

    async def story() -> tuple[int, bytes]:
        rest = iter(messages)
        answer: list[Message] = []

        async def receive() -> Message:
            message = next(rest, None)
            if message is None:
                await asyncio.sleep(60)
            return message or {"type": "http.disconnect"}

        async def collect(message: Message) -> None:
            answer.append(message)

        headers = [] if announced is None else [(b"content-length", str(announced).encode())]
        scope = {
            "type": "http", "method": "POST", "path": "/length", "query_string": b"",
            "headers": headers, "http_version": "1.1", "scheme": "http",
        }  # fmt: skip
        await app(scope, receive, collect)
        if not answer:
            return 0, b""
        return answer[0]["status"], b"".join(m.get("body", b"") for m in answer[1:])

    return asyncio.run(asyncio.wait_for(story(), 30))


def part(size: int, *, more: bool) -> Message:
    return {"type": "http.request", "body": b"x" * size, "more_body": more}


def test_a_body_of_four_mebibytes_is_read_and_one_of_a_byte_more_is_not(echo) -> None:
    half = MAX_BODY_BYTES // 2
    assert send(echo, [part(half, more=True), part(half, more=False)]) == (200, b"%d" % (2 * half))
    status, body = send(echo, [part(half, more=True), part(half, more=True), part(1, more=False)])
    assert (status, b"over 4194304 bytes" in body) == (413, True)


def test_a_body_that_is_announced_too_large_is_not_waited_for(echo) -> None:
    assert send(echo, [], announced=MAX_BODY_BYTES + 1)[0] == 413


def test_a_body_that_does_not_come_is_not_waited_for_for_ever(echo) -> None:
    assert send(echo, [part(5, more=True)])[0] == 408


def test_a_caller_that_goes_is_forgotten(echo) -> None:
    assert send(echo, [part(5, more=True), {"type": "http.disconnect"}])[0] == 0


# --- refusals ---------------------------------------------------------------------------------


def test_a_refusal_is_logged_counted_and_given_to_the_audit_log(caplog) -> None:
    counted: list[str] = []
    app = FastAPI()
    app.include_router(admission_router(AdmissionConfig(), count=counted.append))
    container = {"name": "c", "image": "i", "resources": {"limits": {names.RESOURCE: "1"}}}
    pod = {
        "metadata": {"annotations": {names.MEMORY: "a secret of mine"}},
        "spec": {"containers": [container]},
    }
    review = {
        "request": {
            "uid": "u", "kind": {"group": "", "kind": "Pod"}, "namespace": "ml", "name": "p",
            "operation": "CREATE", "object": pod, "userInfo": {"username": "ada\nforged=1"},
        }
    }  # fmt: skip

    async def story() -> dict:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://public") as client:
            return (await client.post("/mutate", json=review)).json()["response"]

    with caplog.at_level(logging.INFO, logger="scheduler_extender.admission.webhook"):
        answer = asyncio.run(story())
    assert not answer["allowed"]
    assert names.MEMORY in answer["auditAnnotations"]["refused"]
    (line,) = caplog.messages
    assert line.startswith(r"refused user='ada\nforged=1' kind=Pod object=ml/p fields=")
    assert "a secret of mine" not in line
    assert counted == ["refused"]


def test_what_is_no_request_goes_to_the_application_as_it_is() -> None:
    """The start and the end of the service, say."""
    seen: list[tuple] = []

    async def application(*what: object) -> None:
        seen.append(what)

    async def receive() -> Message:
        raise AssertionError("nothing is read")

    async def send(_: Message) -> None:
        raise AssertionError("nothing is sent")

    scope = {"type": "lifespan"}
    asyncio.run(Limited(application)(scope, receive, send))
    assert seen == [(scope, receive, send)]


def test_a_body_that_has_come_is_not_given_up_while_its_request_is_served() -> None:
    async def story() -> None:
        served: list[str] = []
        done = asyncio.Event()

        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            await receive()
            served.append(scope["client"][0])
            if len(served) == 2:
                both.set()
            await done.wait()

        both = asyncio.Event()
        limited = Limited(application, budget=Budget(per_client=10, in_all=20))

        async def call(client: str) -> None:
            async def receive() -> Message:
                return {"type": "http.request", "body": b"x" * 10, "more_body": False}

            async def send(_: Message) -> None:
                raise AssertionError("nothing is refused")

            scope = {"type": "http", "client": (client, 1), "headers": []}
            await limited(scope, receive, send)

        calls = [asyncio.create_task(call(client)) for client in ("10.0.0.1", "10.0.0.2")]
        await both.wait()
        late = asyncio.create_task(call("10.0.0.3"))
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(served) == 2
        assert not late.done(), "it waits for memory"
        done.set()
        await asyncio.gather(*calls, late)
        assert len(served) == 3

    asyncio.run(asyncio.wait_for(story(), 60))
