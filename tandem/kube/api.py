"""What the services ask of an API server: met by the real client and by the one in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from tandem.kube.client import Object, PatchType
from tandem.kube.resource import Resource


class ClusterApi(Protocol):
    """Reads and writes of single objects; see `tandem.kube.client.KubeClient` for each."""

    def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object: ...

    def versions(self, resource: Resource) -> list[str]: ...

    def list(self, resource: Resource, namespace: str | None = None) -> list[Object]: ...

    def create(self, resource: Resource, body: Object, namespace: str | None = None) -> Object: ...

    def replace(
        self,
        resource: Resource,
        body: Object,
        namespace: str | None = None,
        *,
        subresource: str = "",
    ) -> Object: ...

    def patch(
        self,
        resource: Resource,
        name: str,
        body: object,
        namespace: str | None = None,
        *,
        kind: PatchType = "merge",
        subresource: str = "",
    ) -> dict[str, Any]: ...

    def delete(
        self, resource: Resource, name: str, namespace: str | None = None, *, uid: str | None = None
    ) -> Object: ...

    def bind(
        self,
        namespace: str,
        pod: str,
        node: str,
        *,
        uid: str,
        resource_version: str = "",
        annotations: Mapping[str, str] | None = None,
    ) -> None: ...

    def evict(self, namespace: str, pod: str, *, uid: str) -> None: ...
