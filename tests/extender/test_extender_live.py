"""filter and bind against a real API server; the oracle reads the API server only."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial

import httpx
import pytest
from extender_builders import gpu_node, pod

from controlplane import wait_until
from scheduler_extender.cluster import feed, pods
from scheduler_extender.cluster.ledger import Hold
from scheduler_extender.config import ExtenderConfig
from scheduler_extender.serving.app import verbs_app
from scheduler_extender.serving.service import Service, running
from tandem.contracts import crds, names
from tandem.kube.client import KubeClient
from tandem.kube.errors import Conflict, KubeError, unreachable
from tandem.kube.resource import GPU_NODES, PODS

pytestmark = [pytest.mark.controlplane, pytest.mark.slow]


class Faulty(KubeClient):
    """A client whose Bindings can be spoilt, one after another."""

    faults: list[Callable[[Callable[[], None]], None]]

    def bind(self, *args, **kwargs) -> None:
        done = partial(super().bind, *args, **kwargs)
        if self.faults:
            self.faults.pop(0)(done)
        else:
            done()


@pytest.fixture
def client(control_plane) -> Iterator[Faulty]:
    for definition in crds.DEFINITIONS:
        control_plane.apply(definition.manifest())
        name = definition.manifest()["metadata"]["name"]
        control_plane.await_definitions(name)
    found = Faulty.load(control_plane.kubeconfig())
    found.faults = []
    yield found
    found.close()


@pytest.fixture
def nodes(client: Faulty) -> Iterator[Callable[..., list[str]]]:
    """Makes GPUNodes with names of the test's own (there need be no Node to bind a pod to one)."""
    made: list[str] = []

    def make(count: int, gpus: int) -> list[str]:
        suffix = secrets.token_hex(3)
        for index in range(count):
            name = f"gpu-{suffix}-{index}"
            ids = [f"GPU-{suffix}-{index}-{g}" for g in range(gpus)]
            report = gpu_node(name, *ids, observed_at_s=time.time())
            client.create(GPU_NODES, {"metadata": {"name": name}, "spec": {}})
            client.patch(GPU_NODES, name, {"status": report["status"]}, subresource="status")
            made.append(name)
        return made

    yield make
    for name in made:
        client.delete(GPU_NODES, name)


@asynccontextmanager
async def extender(api: KubeClient) -> AsyncIterator[tuple[Service, httpx.AsyncClient]]:
    """The service, its own watches included; its queue controller never becomes the leader.

    So that only what these tests ask for happens, the binder may act all the same.
    """
    config = ExtenderConfig.model_validate({"leader": {"hostname": "not-here"}})
    # The service closes the client that it is given; the test still needs its own.
    async with (
        running(config, api) as service,
        httpx.AsyncClient(
            transport=httpx.ASGITransport(verbs_app(service)), base_url="http://verbs"
        ) as http,
    ):
        await asyncio.wait_for(service.feed.wait_ready(), 60)
        service.binder._may_bind = lambda: True
        service.binder._refusal = service.verbs._refusal = lambda _: ""  # nothing is planned here
        yield service, http


def create(client: KubeClient, namespace: str, name: str, **more) -> dict:
    body = pod(name, namespace=namespace, **more)
    body["metadata"] = {"name": name, "annotations": body["metadata"]["annotations"]}
    (container,) = body["spec"]["containers"]
    container["image"] = "train:1"
    container["resources"]["requests"][names.RESOURCE] = container["resources"]["limits"][
        names.RESOURCE
    ]
    body["spec"]["schedulerName"] = "nobody"
    del body["status"]
    return client.create(PODS, body, namespace)


async def schedule(http: httpx.AsyncClient, created: dict, nodes: list[str]) -> str:
    """Filter, then bind to the first node that is left, as a scheduler does; '' or the reason."""
    filtered = (await http.post("/filter", json={"Pod": created, "NodeNames": nodes})).json()
    if not filtered["NodeNames"]:
        return "; ".join(filtered["FailedNodes"].values())
    metadata = created["metadata"]
    binding = {
        "PodName": metadata["name"],
        "PodNamespace": metadata["namespace"],
        "PodUID": metadata["uid"],
        "Node": filtered["NodeNames"][0],
    }
    return (await http.post("/bind", json=binding)).json()["Error"]


async def nothing_is_held(service: Service) -> None:
    """Wait on the event loop, which alone changes the ledger: no thread may read it."""
    async with asyncio.timeout(120):
        while sum(service.state.ledger.counts().values()):  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.05)


def assignments(client: KubeClient, namespace: str) -> list[tuple[str, str]]:
    """(node, GPU) of every bound pod, from the API server alone."""
    return [
        (found["spec"]["nodeName"], device)
        for found in client.list(PODS, namespace)
        if found["spec"].get("nodeName")
        for device in found["metadata"]["annotations"][names.VISIBLE_DEVICES].split(",")
    ]


def test_64_exclusive_pods_for_16_gpus_16_at_a_time(client, nodes, namespace, control_plane):
    where = nodes(4, gpus=4)
    pods = [create(client, namespace, f"p{i}", exclusive=True) for i in range(64)]
    reader = KubeClient.load(control_plane.kubeconfig())

    async def story() -> list[str]:
        async with extender(client) as (_, http):
            turns = asyncio.Semaphore(16)

            async def request(created: dict) -> str:
                async with turns:
                    return await schedule(http, created, where)

            return await asyncio.gather(*map(request, pods))

    answers = asyncio.run(story())
    # Those who lose the race for the last GPU of a node would be tried again on another.
    taken = assignments(reader, namespace)
    assert answers.count("") == len(taken) == len(set(taken))
    assert all("a job runs that does not share its GPU" in each for each in answers if each)

    async def again() -> None:
        async with extender(KubeClient.load(control_plane.kubeconfig())) as (_, http):
            for created, answer in zip(pods, answers, strict=True):
                if answer:
                    await schedule(http, created, where)

    asyncio.run(again())
    taken = assignments(reader, namespace)
    assert len(taken) == len(set(taken)) == 16


def test_label_patches_of_a_pod_without_gpus_reach_neither_the_words_nor_the_loop(
    client, namespace, control_plane, monkeypatch
):
    """Each of its termination messages is 4 KiB of what a quadratic expression is slow for."""
    attack = ("torch." * 700)[:4096]
    body = {
        "metadata": {"name": "cpu"},
        "spec": {"containers": [{"name": f"c{i}", "image": "web:1"} for i in range(3)]},
    }
    tenant = KubeClient.load(control_plane.kubeconfig())
    created = tenant.create(PODS, body, namespace)
    uid = created["metadata"]["uid"]
    tenant.bind(namespace, "cpu", "node-of-a-cpu-pod", uid=uid)
    ended = {
        "terminated": {
            "exitCode": 1, "message": attack, "finishedAt": "2026-01-01T00:00:00Z",
            "startedAt": "2026-01-01T00:00:00Z",
        }
    }  # fmt: skip
    containers = [
        {"name": f"c{i}", "state": ended, "lastState": ended, "ready": False, "restartCount": 9,
         "image": "web:1", "imageID": "web"} for i in range(3)
    ]  # fmt: skip
    status = {"phase": "Running", "containerStatuses": containers}
    tenant.patch(PODS, "cpu", {"status": status}, namespace, subresource="status")
    searched, applied = [], []
    monkeypatch.setattr(pods, "says_out_of_memory", lambda words: bool(searched.append(words)))

    async def story() -> None:
        async with extender(client) as (service, _):
            trimmed, parse = Counter(), feed.parse_pod

            def counting(raw, before=None):
                trimmed[raw["metadata"]["uid"]] += 1
                return parse(raw, before)

            monkeypatch.setattr(feed, "parse_pod", counting)
            service.state.followers.append(
                lambda record, gone: applied.append(gone) if record.uid == uid else None
            )
            for index in range(30):
                change = {"metadata": {"labels": {"turn": str(index)}}}
                await asyncio.to_thread(tenant.patch, PODS, "cpu", change, namespace)
            async with asyncio.timeout(60):
                while trimmed[uid] < 30:  # noqa: ASYNC110 - no event tells
                    await asyncio.sleep(0.05)
            assert service.state.nodes.uses()[uid] == ("node-of-a-cpu-pod", 0.0, 0)
            assert applied == []
            # No kubelet ends it, and the garbage collector only after a minute.
            await asyncio.to_thread(
                tenant.delete, PODS, "cpu", namespace, uid=uid, grace_period_s=0
            )
            async with asyncio.timeout(60):
                # Garbage collection may end the pod first, which is an event of its own.
                while True not in applied:  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0.05)
            assert uid not in service.state.nodes.uses()

    asyncio.run(story())
    assert searched == []


def test_the_last_share_goes_to_one_and_the_other_learns_why(client, nodes, namespace):
    (where,) = nodes(1, gpus=1)
    pods = [create(client, namespace, f"p{i}") for i in range(3)]

    async def story() -> list[str]:
        async with extender(client) as (_, http):
            assert await schedule(http, pods[0], [where]) == ""
            return await asyncio.gather(*(schedule(http, each, [where]) for each in pods[1:]))

    answers = sorted(asyncio.run(story()))
    assert answers[0] == ""
    assert "all places for jobs are taken (2 of 2)" in answers[1]


def test_a_lost_answer_a_lost_request_and_a_late_one(client, nodes, namespace, control_plane):
    (where,) = nodes(1, gpus=2)
    reader = KubeClient.load(control_plane.kubeconfig())
    late: list[Callable[[], None]] = []

    def answer_lost(done: Callable[[], None]) -> None:
        done()
        raise unreachable("read timed out", maybe_done=True)

    def delayed(done: Callable[[], None]) -> None:
        late.append(done)
        raise unreachable("read timed out", maybe_done=True)

    async def story() -> None:
        async with extender(client) as (service, http):
            first = create(client, namespace, "first")
            client.faults = [answer_lost]
            assert await schedule(http, first, [where]) == ""
            assert await schedule(http, first, [where]) == ""
            second = create(client, namespace, "second")
            client.faults = [delayed]
            assert await schedule(http, second, [where]) == ""
            # What was on its way finds the pod changed: the API server refuses it.
            with pytest.raises(Conflict):
                late[0]()
            third = create(client, namespace, "third")
            client.faults = [delayed, delayed]
            assert "trying again later" in await schedule(http, third, [where])
            with pytest.raises(Conflict):
                late[1]()
            assert service.state.ledger.claim(third["metadata"]["uid"], Hold.RESERVED) is None

    asyncio.run(story())
    assert len(assignments(reader, namespace)) == 2


def test_dropped_answers_lead_to_one_assignment_each(client, nodes, namespace, control_plane):
    """Five here, 200 in `make chaos`; every second one is lost on its way there, not back."""
    count = max(5, round(200 * float(os.environ.get("TANDEM_CHAOS", "0"))))
    (where,) = nodes(1, gpus=2)
    reader = KubeClient.load(control_plane.kubeconfig())
    dropped = 0

    def answer_lost(done: Callable[[], None]) -> None:
        nonlocal dropped
        dropped += 1
        if dropped % 2:
            done()
        raise unreachable("read timed out", maybe_done=True)

    async def story() -> None:
        async with extender(client) as (service, http):
            for number in range(count):
                made = create(client, namespace, f"p{number}")
                client.faults = [answer_lost]
                assert await schedule(http, made, [where]) == ""
                assert len(assignments(reader, namespace)) == 1
                client.delete(PODS, f"p{number}", namespace, grace_period_s=0)
                await nothing_is_held(service)

    asyncio.run(story())
    assert dropped == count


def test_a_touch_of_another_pod_of_the_same_name_is_refused(client, namespace):
    """What settling a Binding relies on: the uid in a merge patch is a precondition."""
    old = create(client, namespace, "p")
    client.delete(PODS, "p", namespace, grace_period_s=0)
    wait_until(lambda: not client.list(PODS, namespace), "the first pod is gone")
    create(client, namespace, "p")
    touch = {"metadata": {"uid": old["metadata"]["uid"], "annotations": {names.WAKE: "x"}}}
    with pytest.raises(KubeError) as caught:
        client.patch(PODS, "p", touch, namespace)
    assert caught.value.status in (409, 422)


def test_a_replica_that_reads_the_api_server_anew_sees_the_same_shares(
    client, nodes, namespace, control_plane
):
    """A restart at any moment loses nothing: the assignments are in the pods."""
    where = nodes(2, gpus=2)
    pods = [create(client, namespace, f"p{i}") for i in range(6)]

    async def bind_some(api: KubeClient, some: list[dict]) -> Counter[tuple[str, str]]:
        async with extender(api) as (service, http):
            for each in some:
                assert await schedule(http, each, where) == ""
            return Counter(
                {
                    (node, gpu): len(service.state.ledger.holders(node, gpu))
                    for node, gpu in service.state.table.row_of
                    if node in where
                }
            )

    before = asyncio.run(bind_some(client, pods[:3]))
    fresh = KubeClient.load(control_plane.kubeconfig())
    assert asyncio.run(bind_some(fresh, [])) == before
    asyncio.run(bind_some(KubeClient.load(control_plane.kubeconfig()), pods[3:]))
    reader = KubeClient.load(control_plane.kubeconfig())
    assert max(Counter(assignments(reader, namespace)).values()) <= 2
