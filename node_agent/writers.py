"""Where reports go: the API server, or a plain URL where there is none (the demo)."""

from __future__ import annotations

from urllib.parse import quote

import httpx

from node_agent.publish import Object, WriteError
from tandem.kube.client import KubeClient
from tandem.kube.errors import Forbidden, KubeError, NotFound
from tandem.kube.resource import GPU_NODES, NODES

HTTP_TIMEOUT_S = 5.0


class KubeWriter:
    """Writes the status of the node's GPUNode, creating the object where it is missing.

    Each write names the version that it replaces: one that was given up, and that an API server
    comes to later all the same, cannot take the place of a newer one. The GPUNode is owned by its
    Node: the garbage collector removes it with the Node, and with nothing else. A node that is only
    away keeps its Node.
    """

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._version = ""

    def read(self, node: str) -> Object | None:
        """Return the node's GPUNode, or None where there is none."""
        try:
            return self._client.get(GPU_NODES, node)
        except NotFound:
            return None
        except KubeError as error:
            raise WriteError(str(error)) from error

    def write(self, node: str, gpu_node: Object) -> None:
        """Replace the status of the node's GPUNode."""
        version = self._version or self._current(node)
        body = {
            "metadata": {"name": node, "resourceVersion": version},
            "status": gpu_node["status"],
        }
        self._version = ""
        try:
            answer = self._client.replace(GPU_NODES, body, subresource="status")
        except KubeError as error:
            raise WriteError(str(error)) from error
        self._version = str(answer["metadata"]["resourceVersion"])

    def _current(self, node: str) -> str:
        """Return the version of the GPUNode, which is created, and given its owner, as need be."""
        found = self.read(node)
        try:
            owners = self._owners(node)
            if found is None:
                body = {"metadata": {"name": node, "ownerReferences": owners}}
                found = self._client.create(GPU_NODES, body)
            elif owners and found["metadata"].get("ownerReferences") != owners:
                body = {"metadata": {"ownerReferences": owners}}
                found = self._client.patch(GPU_NODES, node, body)
        except KubeError as error:
            raise WriteError(str(error)) from error
        return str(found["metadata"]["resourceVersion"])

    def _owners(self, node: str) -> list[Object]:
        """Return the reference to the Node; none where the agent may not read it.

        Raises:
            NotFound: it has been deleted, and what is reported of it is to go.
        """
        try:
            uid = self._client.get(NODES, node)["metadata"]["uid"]
        except Forbidden:
            return []
        return [{"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}]


class HttpWriter:
    """Puts the GPUNode to `URL/gpunodes/NODE` as JSON."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._client = httpx.Client(timeout=HTTP_TIMEOUT_S)

    def read(self, node: str) -> Object | None:  # noqa: ARG002 - nothing is kept on that side
        """Return None: nothing is remembered there."""
        return None

    def write(self, node: str, gpu_node: Object) -> None:
        """Put the GPUNode."""
        try:
            answer = self._client.put(f"{self._url}/gpunodes/{quote(node, safe='')}", json=gpu_node)
            answer.raise_for_status()
        except httpx.HTTPError as error:
            raise WriteError(str(error)) from error
