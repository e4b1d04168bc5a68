"""The ports of the extender: the bodies of the verbs, and every path of the page and of /v1.

Requests go to the applications in this process, so that whatever is not answered is seen here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from extender_builders import NOW, gpu_job, gpu_node, load, node, pod
from fuzz_batch import WATCHDOG, Batch, no_traceback_logged
from mutators import ODD, changed, changed_bytes

from scheduler_extender.config import ExtenderConfig
from scheduler_extender.serving.app import public_app, verbs_app
from scheduler_extender.serving.service import Service, running
from scheduler_extender.serving.status.views.query import PARAMETERS
from tandem.contracts import names
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import GPU_JOBS, GPU_NODES, NODES, PODS

pytestmark = [pytest.mark.slow, WATCHDOG]

Asked = tuple[str, str, dict[str, Any]]  # method, URL, options of httpx


@contextlib.asynccontextmanager
async def extender() -> AsyncIterator[tuple[Service, MemoryCluster, httpx.AsyncClient]]:
    """The whole service on an API server in memory, with two nodes and two jobs."""
    config = ExtenderConfig.model_validate({"api": "memory", "log_level": "WARNING"})
    cluster = MemoryCluster()
    async with running(config, cluster, clock=lambda: NOW) as service:
        service.binder._may_bind = lambda: True  # there is no Lease that could name a leader
        service.binder._refusal = service.verbs._refusal = lambda _: ""  # and no leader that plans
        for name in ("n0", "n1"):
            cluster.create(NODES, node(name))
            cluster.create(GPU_NODES, gpu_node(name, f"GPU-{name}-a", f"GPU-{name}-b"))
        for name in ("p", "q"):
            cluster.create(PODS, pod(name), "ml")
            cluster.create(GPU_JOBS, gpu_job(f"pod-{name}", job_load=load(10, 4, 0.2)), "ml")
        await service.feed.wait_ready()
        apps = {"verbs": verbs_app(service), "public": public_app(service)}
        mounts = {f"http://{name}": httpx.ASGITransport(app) for name, app in apps.items()}
        async with httpx.AsyncClient(mounts=mounts) as client:
            yield service, cluster, client


def batch(
    what: str,
    few: int,
    draw: Callable[[random.Random], Asked],
    check: Callable[[Asked, httpx.Response], str],
) -> None:
    """Send what is drawn, one after the other, to one extender, which is there at the end."""
    with asyncio.Runner() as runner:
        stack = contextlib.AsyncExitStack()
        _, _, client = runner.run(stack.enter_async_context(extender()))

        def case(rng: random.Random) -> str:
            asked = draw(rng)
            method, url, options = asked
            with no_traceback_logged():
                try:
                    if httpx.URL(url).host not in ("public", "verbs"):
                        return "an address of another server"
                    answer = runner.run(
                        asyncio.wait_for(client.request(method, url, **options), 60)
                    )
                except (httpx.InvalidURL, UnicodeError):
                    return "no URL"
            assert answer.status_code < 500, (asked, answer.text[:300])
            return check(asked, answer)

        try:
            Batch(what, few).run(case)
            ready = runner.run(client.get("http://public/readyz"))
            assert ready.status_code in (200, 503)
        finally:
            runner.run(stack.aclose())


def bodies() -> dict[str, Any]:
    asked = pod("p")
    nodes = {"items": [{"metadata": {"name": "n0"}}, {"metadata": {"name": "n1"}}]}
    victims = {"n0": {"Pods": [{"UID": "uid-ml-p"}], "NumPDBViolations": 0}}
    return {
        "filter": {"Pod": asked, "NodeNames": ["n0", "n1", "n9"], "Nodes": None},
        "prioritize": {"Pod": asked, "Nodes": nodes, "NodeNames": None},
        "bind": {"PodName": "p", "PodNamespace": "ml", "PodUID": "uid-ml-p", "Node": "n0"},
        "preempt": {"Pod": asked, "NodeNameToMetaVictims": victims, "NodeNameToVictims": {}},
    }


def test_bodies_of_verbs_are_answered_in_the_protocol() -> None:
    sound = bodies()

    def draw(rng: random.Random) -> Asked:
        verb = rng.choice(sorted(sound))
        body = sound[verb]
        if rng.random() < 0.7:
            body = changed(body, rng)
        content = json.dumps(body).encode()
        if rng.random() < 0.3:
            content = changed_bytes(content, rng)
        return "POST", f"http://verbs/{verb}", {"content": content}

    def check(asked: Asked, answer: httpx.Response) -> str:
        found = json.loads(answer.content, parse_constant=no_constant)
        verb = asked[1].rpartition("/")[2]
        if answer.status_code != 200:
            assert found["error"]
            return f"{answer.status_code}"
        body = json.loads(asked[2]["content"])
        nodes = nodes_of(body) if verb in ("filter", "prioritize") else []
        match verb:
            case "filter":
                said = [
                    *(found["NodeNames"] or ()),
                    *found["FailedNodes"],
                    *found["FailedAndUnresolvableNodes"],
                ]
                assert found["Error"] or set(said) == set(nodes), (said, nodes)
            case "prioritize":
                assert sorted(each["Host"] for each in found) == sorted(nodes)
                assert all(
                    type(each["Score"]) is int and 0 <= each["Score"] <= 10 for each in found
                )
            case "preempt":
                named = body.get("NodeNameToMetaVictims")
                given = named if named is not None else body.get("NodeNameToVictims") or {}
                assert set(found["NodeNameToMetaVictims"] or ()) <= set(given)
            case _:
                assert isinstance(found["Error"], str)
        return "answered"

    batch("bodies of the verbs", 100, draw, check)


def nodes_of(body: dict[str, Any]) -> list[str]:
    """Return the nodes that a request names, in either of the two ways."""
    if body.get("NodeNames") is not None:
        return list(body["NodeNames"])
    items = (body.get("Nodes") or {}).get("items") or ()
    return [(item.get("metadata") or {}).get("name", "") for item in items]


def no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


_PATHS = (
    "/status/",
    "/status/index.html",
    "/status/app.js",
    "/",
    "/readyz",
    "/healthz",
    "/metrics",
    "/openapi.json",
    "/v1/gpus",
    "/v1/jobs",
    "/v1/explain/ml/p",
    "/v1/explain/ml/absent",
    "/api/v1/pods",
    "/api/v1/namespaces/ml/pods",
    "/api/v1/namespaces/ml/pods/p",
    "/api/v1/nodes/n0",
    f"/apis/{names.API_VERSION}/gpunodes/n0",
    f"/apis/{names.API_VERSION}/namespaces/ml/gpujobs/pod-p",
    *(f"/v1/status/{view}" for view in PARAMETERS),
    "/v1/status/jobs/ml/pod-p",
    "/v1/status/nodes/n0",
    "/v1/status/gpus/n0/GPU-n0-a",
    "/v1/status/jobs/ml/pod-p/events",
    "/v1/status/models/ml/m",
    "/v1/status/overview/stream",
)
_VALUES = (
    *(str(value) for value in ODD if isinstance(value, str | int) and len(str(value)) < 500),
    "ml",
    "n0",
    "GPU-n0-a",
    "2",
    "Queued",
    "ready",
    "worst",
    "-memory",
    "²",
    "%00",
    "a" * 300,
)


def test_paths_and_parameters_are_answered() -> None:
    sortable = sorted({name for each in PARAMETERS.values() for name in each})

    def draw(rng: random.Random) -> Asked:
        path = rng.choice(_PATHS)
        if rng.random() < 0.4:
            parts = path.split("/")
            at = rng.randrange(1, len(parts))
            parts[at] = quote(
                rng.choice(_VALUES).encode(errors="surrogatepass"), safe=rng.choice(("", "./%"))
            )
            path = "/".join(parts)
        if rng.random() < 0.1:
            path = quote(changed_bytes(path.encode(), rng), safe="/%.")
        if path.endswith("/stream"):
            path = path.removesuffix("/stream")  # it lasts for as long as it may
        query = {}
        for _ in range(rng.choice((0, 0, 1, 2, 4))):
            value = rng.choice(_VALUES).encode(errors="replace").decode()
            # What a view does not have is refused before anything else is read.
            own = PARAMETERS.get(path.removeprefix("/v1/status/")) or sortable
            names = own if rng.random() < 0.9 else (*sortable, "since", "watch", "x")
            query[rng.choice(names)] = value
        method = rng.choice(("GET", "GET", "GET", "GET", "HEAD", "DELETE", "OPTIONS", "TRACE"))
        if method == "DELETE":
            path = "/api/v1/namespaces/ml/pods/absent"
        headers = {}
        if rng.random() < 0.3:
            name = rng.choice(
                (
                    "accept",
                    "accept-encoding",
                    "if-none-match",
                    "range",
                    "authorization",
                    "content-length",
                    "last-event-id",
                    "x-forwarded-for",
                    "cookie",
                )
            )
            headers[name] = rng.choice(
                (
                    "",
                    "x",
                    "²",
                    "gzip;q=nan",
                    "bytes=0-9999999999",
                    "Bearer x",
                    "*",
                    "9" * 30,
                    "text/event-stream;q=0",
                    '"a"',
                    "1, 2",
                )
            )
        encoded = {key: value.encode("latin-1", "replace") for key, value in headers.items()}
        return method, f"http://public{path}", {"params": query, "headers": encoded}

    def check(asked: Asked, answer: httpx.Response) -> str:
        if answer.headers.get("content-type", "").startswith("application/json") and answer.content:
            json.loads(answer.content, parse_constant=no_constant)
        page = asked[2]["params"].get("page", "")
        if answer.status_code == 200 and page and "/v1/status/" in asked[1] and answer.content:
            view = asked[1].rpartition("/v1/status/")[2]
            if view in PARAMETERS and "page" in PARAMETERS[view]:
                assert page.isascii()
                assert int(page) >= 1
        return f"{answer.status_code // 100}xx"

    batch("paths and parameters of the page and the API", 100, draw, check)
