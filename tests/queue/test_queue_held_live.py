"""GPUs held without running, on a real API server with its controllers; kwok plays the kubelets."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from controlplane import ControlPlane, Node
from scheduler_extender.cluster.jobs import rfc3339
from scheduler_extender.config import ExtenderConfig
from scheduler_extender.queue.controller import Controller
from scheduler_extender.queue.pods.preemption import BUDGETS
from scheduler_extender.serving.app import verbs_app
from scheduler_extender.serving.service import Service, running
from tandem.contracts import crds, names
from tandem.kube.client import KubeClient
from tandem.kube.errors import NotFound, TooManyRequests
from tandem.kube.resource import GPU_JOBS, GPU_NODES, JOBS, NODES, PODS

pytestmark = [pytest.mark.controlplane, pytest.mark.slow]

GIB = 1 << 30
FOR_EVER_S = 2**31 - 1
START_WITHIN_S = 5.0


@pytest.fixture
def client(control_plane: ControlPlane) -> Iterator[KubeClient]:
    for definition in crds.DEFINITIONS:
        control_plane.apply(definition.manifest())
        control_plane.await_definitions(definition.manifest()["metadata"]["name"])
    found = KubeClient.load(control_plane.kubeconfig())
    yield found
    found.close()


@pytest.fixture
def node(client: KubeClient, control_plane: ControlPlane) -> Iterator[str]:
    """A node of two GPUs, whose agent has just reported."""
    name = f"gpu-{secrets.token_hex(3)}"
    control_plane.add_nodes([Node(name, cpu=64)])
    client.create(GPU_NODES, {"metadata": {"name": name}, "spec": {}})
    gpus = [
        {
            "uuid": f"GPU-{name}-{i}",
            "index": i,
            "model": "A100",
            "memoryBytes": 80 * GIB,
            "shares": 2,
        }
        for i in range(2)
    ]
    report = {"observedAt": rfc3339(time.time()), "gpus": gpus}
    client.patch(GPU_NODES, name, {"status": report}, subresource="status")
    yield name
    client.delete(GPU_NODES, name)
    client.delete(NODES, name)


class Story:
    """What a user does, what a kube-scheduler would do, and what the API server says."""

    def __init__(self, api: KubeClient, http: httpx.AsyncClient, namespace: str, node: str) -> None:
        self.api, self.http, self.namespace, self.node = api, http, namespace, node

    async def apply(
        self, name: str, annotation: str = "", grace_s: int = 30, memory: str = ""
    ) -> None:
        """Create a Job as the webhook would have left it."""
        amount = {names.RESOURCE: "1"}
        container = {
            "name": "main",
            "image": "train:1",
            "resources": {"limits": amount, "requests": amount},
        }
        annotations = {names.MEMORY: memory} if memory else {names.EXCLUSIVE: "true"}
        if annotation:
            annotations[f"kwok.tandem.gpu/{annotation}"] = "true"
        spec = {
            "schedulerName": "nobody",
            "schedulingGates": [{"name": names.SCHEDULING_GATE}],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": grace_s,
            "containers": [container],
        }
        template = {"metadata": {"annotations": annotations}, "spec": spec}
        body = {"metadata": {"name": name}, "spec": {"template": template}}
        await asyncio.to_thread(self.api.create, JOBS, body, self.namespace)

    async def until(self, found: Callable[[], Any], what: str) -> Any:
        """Return what `found` finds, once it does; what is not there yet is not found."""
        try:
            async with asyncio.timeout(180):
                while True:
                    try:
                        if answer := await asyncio.to_thread(found):
                            return answer
                    except NotFound:
                        pass
                    await asyncio.sleep(0.2)
        except TimeoutError:
            raise AssertionError(f"not in time: {what}") from None

    def status(self, job: str) -> dict[str, Any]:
        return self.api.get(GPU_JOBS, f"job-{job}", self.namespace).get("status") or {}

    def pod_of(self, job: str) -> dict[str, Any] | None:
        pods = self.api.list(PODS, self.namespace, label_selector=f"job-name={job}")
        return next(iter(pods), None)

    def open_pod_of(self, job: str) -> dict[str, Any] | None:
        pod = self.pod_of(job)
        return pod if pod is not None and not pod["spec"].get("schedulingGates") else None

    async def bind(self, job: str) -> str:
        """Bind the pod of a job as soon as it is its turn; return its name."""
        pod = await self.until(lambda: self.open_pod_of(job), f"{job} has its turn")
        metadata = pod["metadata"]
        binding = {
            "PodName": metadata["name"],
            "PodNamespace": self.namespace,
            "PodUID": metadata["uid"],
            "Node": self.node,
        }
        assert (await self.http.post("/bind", json=binding)).json()["Error"] == ""
        return str(metadata["name"])

    async def runs(self, pod: str) -> None:
        """Wait until the containers of a pod run."""
        phase = "Running"
        await self.until(
            lambda: self.api.get(PODS, pod, self.namespace)["status"].get("phase") == phase,
            f"{pod} runs",
        )

    async def delete_pod(self, name: str, grace_s: int) -> None:
        await asyncio.to_thread(self.api.delete, PODS, name, self.namespace, grace_period_s=grace_s)


@asynccontextmanager
async def story(
    plane: ControlPlane, namespace: str, node: str
) -> AsyncIterator[tuple[Story, Service]]:
    settings = {
        "leader": {"always": True},
        "namespace": namespace,
        "stale_after_s": 3600,
        "queue": {
            "quotas": [{"namespace": namespace, "max_gpus": 1}],
            "start_within_s": START_WITHIN_S,
            "pull_within_s": START_WITHIN_S,
        },
    }
    config = ExtenderConfig.model_validate(settings)
    async with (
        running(config, KubeClient.load(plane.kubeconfig())) as service,
        httpx.AsyncClient(
            transport=httpx.ASGITransport(verbs_app(service)), base_url="http://verbs"
        ) as http,
    ):
        await asyncio.wait_for(service.feed.wait_ready(), 60)
        yield Story(KubeClient.load(plane.kubeconfig()), http, namespace, node), service


def test_gpus_of_a_deleted_job_count_until_its_pods_have_ended(
    control_plane: ControlPlane, client: KubeClient, namespace: str, node: str
) -> None:
    async def scenario() -> None:
        async with story(control_plane, namespace, node) as (it, _):
            await it.apply("first", "ignores-sigterm", FOR_EVER_S)
            pod = await it.bind("first")
            await it.runs(pod)
            await asyncio.to_thread(client.delete, JOBS, "first", namespace)
            await it.until(lambda: not client.list(GPU_JOBS, namespace), "its GPUJob is gone")
            await it.apply("second")
            said = (
                f"Namespace {namespace} would hold more GPUs than it may (1 held, 1 more asked for"
            )
            await it.until(lambda: said in it.status("second").get("message", ""), said)

            def grace_s() -> bool:
                metadata = client.get(PODS, pod, namespace)["metadata"]
                return bool(metadata["deletionGracePeriodSeconds"] == names.MAX_GRACE_S)

            await it.until(grace_s, "its grace period is cut")
            await it.delete_pod(pod, FOR_EVER_S)
            assert await asyncio.to_thread(grace_s), "a later deletion extends nothing"
            await it.delete_pod(pod, 1)
            await it.bind("second")

    asyncio.run(scenario())


def test_a_budget_and_a_long_grace_period_do_not_keep_the_memory_guard_from_an_offender(
    control_plane: ControlPlane, client: KubeClient, namespace: str, node: str
) -> None:
    async def scenario() -> None:
        async with story(control_plane, namespace, node) as (it, service):
            await it.apply("greedy", "ignores-sigterm", names.MAX_GRACE_S, memory="10Gi")
            pod = await it.bind("greedy")
            await it.runs(pod)
            selector = {"matchLabels": {"job-name": "greedy"}}
            budget = {
                "metadata": {"name": "never"},
                "spec": {"maxUnavailable": 0, "selector": selector},
            }
            await asyncio.to_thread(client.create, BUDGETS, budget, namespace)

            def refused() -> bool:
                try:
                    client.evict(namespace, pod, uid=found["metadata"]["uid"])
                except TooManyRequests:
                    return True
                return False

            found = await asyncio.to_thread(client.get, PODS, pod, namespace)
            assert await asyncio.to_thread(refused)
            request = {
                "namespace": namespace,
                "pod": pod,
                "uid": found["metadata"]["uid"],
                "gpu": found["metadata"]["annotations"][names.VISIBLE_DEVICES],
                "reason": "holds 60.0 GiB where 10.0 GiB were predicted",
                "requestedAt": rfc3339(time.time()),
                "memoryBytes": 60 * GIB,
            }
            report = {"status": {"evictionRequests": [request]}}
            await asyncio.to_thread(client.patch, GPU_NODES, node, report, subresource="status")

            def deleted() -> bool:
                return "deletionTimestamp" in client.get(PODS, pod, namespace)["metadata"]

            await it.until(deleted, "it is deleted")
            # Its containers ignore SIGTERM: 30 s later its grace period of an hour is cut.
            await it.until(lambda: pod not in names_of(client.list(PODS, namespace)), "it is gone")
            controller = service.state.listener
            assert isinstance(controller, Controller)
            assert +controller.evictions.outcomes == {"deleted": 1, "shortened": 1}

    asyncio.run(scenario())


def names_of(objects: list[dict[str, Any]]) -> set[str]:
    return {each["metadata"]["name"] for each in objects}


def test_a_job_whose_containers_do_not_start_gives_up_its_gpus_and_rests(
    control_plane: ControlPlane, client: KubeClient, namespace: str, node: str
) -> None:
    async def scenario() -> None:
        async with story(control_plane, namespace, node) as (it, _):
            await it.apply("never", "never-starts")
            pod = await it.bind("never")

            def queued() -> dict[str, Any] | None:
                status = it.status("never")
                back = (status.get("phase"), status.get("reason")) == ("Queued", "NeverStarted")
                return status if back else None

            status = await it.until(queued, "it is queued again")
            assert status["failedStarts"] == 1
            assert "Its containers did not start in time" in status["message"]
            assert f"({pod} on {node} for " in status["message"]
            await it.apply("next")  # its namespace may have one GPU, which is free again
            await it.bind("next")
            again = await it.until(lambda: it.pod_of("never"), "its Job has made another pod")
            assert again["spec"]["schedulingGates"], "it rests"
            assert client.get(JOBS, "never", namespace)["spec"]["suspend"] is False

    asyncio.run(scenario())
