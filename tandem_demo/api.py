"""Requests of the demo to the extender's in-memory API server, on Kubernetes' own paths."""

from __future__ import annotations

import httpx

from tandem.errors import TandemError
from tandem.kube.client import Object
from tandem.kube.resource import Resource

TIMEOUT_S = 10.0


class ApiServer:
    """One connection to the API server at `url`."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=TIMEOUT_S)

    def list(self, resource: Resource) -> list[Object]:
        """Return all objects of a kind."""
        items: list[Object] = self._call("GET", resource.path())["items"]
        return items

    def create(self, resource: Resource, body: Object) -> Object:
        """Create an object; pods go through admission."""
        return self._call("POST", resource.path(body["metadata"].get("namespace")), body)

    def set_status(self, resource: Resource, known: Object, status: Object) -> Object:
        """Merge `status` into the status of the object `known`."""
        metadata = known["metadata"]
        path = resource.path(metadata.get("namespace"), metadata["name"], "status")
        return self._call("PATCH", path, {"metadata": {"uid": metadata["uid"]}, "status": status})

    def close(self) -> None:
        """Drop the connection."""
        self._client.close()

    def _call(self, method: str, path: str, body: Object | None = None) -> Object:
        try:
            answer = self._client.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise TandemError(f"The in-memory API server does not answer: {error!r}") from None
        if answer.is_error:
            raise TandemError(f"{method} {path} was refused: {answer.text[:500]}")
        result: Object = answer.json()
        return result
