"""The in-memory API server over HTTP, on Kubernetes' own paths: for the demo, never for a cluster.

Mounted only where the configuration says `api: memory`. It authenticates no client and has no
watches: readers list.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import APIRouter, Body, Request
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute

from scheduler_extender.admission.config import AdmissionConfig
from scheduler_extender.admission.json_patch import patched
from scheduler_extender.admission.patch import admit_pod
from scheduler_extender.admission.podshape import PodShape
from tandem.kube.client import Object
from tandem.kube.errors import Invalid, KubeError, NotFound
from tandem.kube.memory import Admit, MemoryCluster
from tandem.kube.resource import EVENTS, GPU_JOBS, GPU_NODES, NODES, PODS, Resource

SERVED = (PODS, NODES, EVENTS, GPU_JOBS, GPU_NODES)

Json = Annotated[dict[str, Any], Body()]


def admission(config: AdmissionConfig) -> Admit:
    """Return what the webhook does to a pod at its creation; it raises Invalid where it refuses."""

    def admit(pod: Object) -> Object:
        verdict = admit_pod(PodShape.model_validate(pod), config)
        if verdict.errors:
            raise Invalid(422, "; ".join(str(error) for error in verdict.errors))
        return patched(pod, verdict.patch)

    return admit


class _StatusRoute(APIRoute):
    """Answers errors with a `Status` object, as an API server does."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def with_status(request: Request) -> Response:
            try:
                return await handle(request)
            except KubeError as error:
                status = {
                    "kind": "Status",
                    "apiVersion": "v1",
                    "status": "Failure",
                    "code": error.status,
                    "reason": error.reason or type(error).__name__,
                    "message": error.message,
                }
                return JSONResponse(status, status_code=error.status)

        return with_status


def memory_router(cluster: MemoryCluster) -> APIRouter:
    """Return routes to list, create, read, report on and delete the objects of `cluster`."""
    router = APIRouter(route_class=_StatusRoute, include_in_schema=False)
    for resource in SERVED:
        _add(router, cluster, resource)
    return router


def _add(router: APIRouter, cluster: MemoryCluster, resource: Resource) -> None:
    """Serve one resource; paths of cluster-scoped ones have no namespace in them."""

    async def list_all(namespace: str | None = None) -> Object:
        page = next(iter(cluster.pages(resource, namespace)))
        return {
            "apiVersion": resource.api_version,
            "kind": f"{resource.kind}List",
            "metadata": {"resourceVersion": page.resource_version},
            "items": page.items,
        }

    async def create(body: Json, namespace: str | None = None) -> Object:
        return cluster.create(resource, body, namespace)

    async def read(name: str, namespace: str | None = None) -> Object:
        return cluster.get(resource, name, namespace)

    async def report(name: str, body: Json, namespace: str | None = None) -> Object:
        """Replace the status; what is not there yet is created, so that a report is one call."""
        body["metadata"] = (body.get("metadata") or {}) | {"name": name}
        try:
            return cluster.replace(resource, body, namespace, subresource="status")
        except NotFound:
            return cluster.create(resource, body, namespace)

    async def patch_status(name: str, body: Json, namespace: str | None = None) -> Object:
        return cluster.patch(resource, name, body, namespace, subresource="status")

    async def delete(name: str, namespace: str | None = None) -> Object:
        return cluster.delete(resource, name, namespace)

    everywhere = resource.path()
    items = everywhere
    if resource.namespaced:
        prefix, plural = everywhere.rsplit("/", 1)
        items = f"{prefix}/namespaces/{{namespace}}/{plural}"
    item = f"{items}/{{name}}"
    for path in {everywhere, items}:
        router.get(path)(list_all)
    router.post(items, status_code=201)(create)
    router.get(item)(read)
    router.put(item)(report)
    router.patch(f"{item}/status")(patch_status)
    router.delete(item)(delete)
