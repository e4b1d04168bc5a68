"""The API server on raw JSON: no generated models, dicts inside.

The generated models of the official client cost about four times the memory of plain dicts and
say nothing that we need.
Every call has a timeout and none is retried here: who calls knows whether trying again is safe.

The calls block; an event loop runs them with `asyncio.to_thread` or a pool of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urlencode

import urllib3

from tandem.kube.credentials import (
    Credentials,
    TokenCredentials,
    bearer_token,
    load_credentials,
)
from tandem.kube.errors import Conflict, Forbidden, KubeError, from_response, unreachable
from tandem.kube.jsontext import decoded, encoded
from tandem.kube.resource import PODS, Resource

Object = dict[str, Any]
PatchType = Literal["merge", "json"]

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 10.0
#: The API server itself tries an eviction again for 10 s while the pod keeps changing.
EVICTION_TIMEOUT_S = 15.0
#: An API server that has just started refuses everybody until it has read who may do what: some
#: 20 ms, in which it refuses to say as well whether it is ready.
ROLES_READ_S = 0.5
#: It is asked no more often than this, however many requests are refused: to start takes it longer.
READY_FOR_S = 0.5
_READY = "/readyz"
#: The size of a page of a list. Decoding one holds the interpreter for about 5 ms.
PAGE_SIZE = 100

_PATCH_TYPES: dict[PatchType, str] = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
}


class Page(NamedTuple):
    """A part of a list; `resource_version` is where a watch may start after the last part."""

    items: list[Object]
    resource_version: str


class KubeClient:
    """One identity at one API server; safe to use from many threads."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._ready_at_s = float("-inf")

    @classmethod
    def load(cls, kubeconfig: Path | None = None, context: str | None = None) -> KubeClient:
        """Return the client of a kubeconfig file, or of the pod that we run in.

        Without a file: the pod's service account where there is one, else what kubectl would use.

        Raises:
            TandemError: there are no usable credentials.
        """
        return cls(load_credentials(kubeconfig, context))

    @classmethod
    def with_token(cls, host: str, token: str, ca_file: Path | None = None) -> KubeClient:
        """Return a client that bears `token` at the API server `host` (an URL)."""
        return cls(TokenCredentials(host, token, ca_file))

    @property
    def credentials(self) -> Credentials:
        """The API server, its connections and the credentials."""
        return self._credentials

    def bearer_token(self) -> str:
        """Return the token that is sent at present, '' where another credential is used."""
        return bearer_token(self._credentials)

    def close(self) -> None:
        """Drop the kept connections."""
        self._credentials.pool.clear()

    # --- one request --------------------------------------------------------------------------

    def open(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        body: object = None,
        content_type: str = "application/json",
        read_timeout_s: float = READ_TIMEOUT_S,
    ) -> urllib3.BaseHTTPResponse:
        """Send a request and return the answer unread; who calls releases the connection.

        Raises:
            Invalid: the body cannot be sent as JSON.
            Unavailable: there is no answer, or a refusal by an API server that is not ready yet.
            KubeError: the answer is not 2xx.
        """
        content_sent = None if body is None else encoded(body)
        headers = {
            "Accept": "application/json",
            "Content-Type": content_type,
            "User-Agent": "tandem",
        }
        # Asked at each request: the token of a service account is renewed every hour.
        authorization = self._credentials.authorization()
        if authorization:
            headers["Authorization"] = authorization
        url = self._credentials.host + path
        if query:
            url += "?" + urlencode({key: str(value) for key, value in query.items()})
        try:
            response = self._credentials.pool.request(
                method,
                url,
                headers=headers,
                body=content_sent,
                timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=read_timeout_s),
                preload_content=False,
            )
            if 200 <= response.status < 300:
                return response
            content = response.read()
        except (
            urllib3.exceptions.NewConnectionError,
            urllib3.exceptions.ConnectTimeoutError,
        ) as error:
            raise unreachable(f"{method} {path}: {error}", maybe_done=False) from error
        except urllib3.exceptions.HTTPError as error:
            raise unreachable(f"{method} {path}: {error}", maybe_done=True) from error
        refused = from_response(response.status, content)
        if isinstance(refused, Forbidden) and path != _READY and not self._is_ready():
            what = f"{method} {path}: the API server is not ready, and refused: {refused}"
            raise unreachable(what, maybe_done=False) from refused
        raise refused

    def _is_ready(self) -> bool:
        """Say whether the API server is ready; True where we may not ask it."""
        if time.monotonic() - self._ready_at_s < READY_FOR_S:
            return True
        for pause_s in (0.0, ROLES_READ_S):
            time.sleep(pause_s)
            try:
                answer = self.open("GET", _READY)
            except Forbidden:
                continue
            except KubeError as error:
                return 0 < error.status < 500
            answer.drain_conn()
            answer.release_conn()
            self._ready_at_s = time.monotonic()
            return True
        return True

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        body: object = None,
        content_type: str = "application/json",
        read_timeout_s: float = READ_TIMEOUT_S,
    ) -> Object:
        """Send a request and return the JSON object of the answer."""
        response = self.open(method, path, query, body, content_type, read_timeout_s)
        try:
            content = response.read()
        except urllib3.exceptions.HTTPError as error:
            raise unreachable(f"{method} {path}: {error}", maybe_done=True) from error
        finally:
            response.release_conn()
        try:
            answer = decoded(content) if content else {}
        except ValueError as error:  # a page of a proxy, say
            raise unreachable(f"{method} {path}: the answer is no JSON", maybe_done=True) from error
        if not isinstance(answer, dict):
            raise unreachable(f"{method} {path}: the answer is no object", maybe_done=True)
        return answer

    # --- objects ------------------------------------------------------------------------------

    def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object:
        """Read one object, as of now (never from a stale cache)."""
        return self.request("GET", resource.path(namespace, name))

    def pages(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        page_size: int = PAGE_SIZE,
    ) -> Iterator[Page]:
        """Read a collection consistently, page by page; all pages show the same moment.

        Raises:
            Gone: between two pages the moment was forgotten; begin again.
        """
        query: dict[str, object] = {"limit": page_size}
        if label_selector:
            query["labelSelector"] = label_selector
        if field_selector:
            query["fieldSelector"] = field_selector
        while True:
            answer = self.request("GET", resource.path(namespace), query)
            metadata = answer.get("metadata") or {}
            yield Page(answer.get("items") or [], str(metadata.get("resourceVersion") or ""))
            if not metadata.get("continue"):
                return
            query["continue"] = metadata["continue"]

    def versions(self, resource: Resource) -> list[str]:
        """Return the versions of the resource's API group that are served, the preferred first.

        Raises:
            NotFound: the group is not served.
        """
        if not resource.group:
            return [resource.version]
        answer = self.request("GET", f"/apis/{resource.group}")
        preferred = (answer.get("preferredVersion") or {}).get("version", "")
        found = [str(each["version"]) for each in answer.get("versions") or ()]
        return sorted(found, key=lambda version: version != preferred)

    def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
    ) -> list[Object]:
        """Read a whole collection, consistently."""
        pages = self.pages(
            resource, namespace, label_selector=label_selector, field_selector=field_selector
        )
        return [item for page in pages for item in page.items]

    def create(self, resource: Resource, body: Object, namespace: str | None = None) -> Object:
        """Create an object.

        Raises:
            AlreadyExists: the name is taken.
        """
        return self.request("POST", resource.path(namespace), body=_typed(resource, body))

    def replace(
        self,
        resource: Resource,
        body: Object,
        namespace: str | None = None,
        *,
        subresource: str = "",
    ) -> Object:
        """Replace an object, or its `status`; with a resourceVersion only if it is unchanged.

        Raises:
            Conflict: the object has changed since it was read.
        """
        path = resource.path(namespace, body["metadata"]["name"], subresource)
        return self.request("PUT", path, body=_typed(resource, body))

    def patch(
        self,
        resource: Resource,
        name: str,
        body: object,
        namespace: str | None = None,
        *,
        kind: PatchType = "merge",
        subresource: str = "",
    ) -> Object:
        """Patch an object, or its `status`.

        Raises:
            Conflict: the object no longer has the resourceVersion in `body`.
            Replaced: the object does not have the uid in `body`.
        """
        path = resource.path(namespace, name, subresource)
        query = {"fieldManager": "tandem"}
        return self.request("PATCH", path, query, body, _PATCH_TYPES[kind])

    def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        grace_period_s: int | None = None,
    ) -> Object:
        """Delete an object; with `uid` only if it is still that very one. Dependants follow."""
        options: Object = {"propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_period_s is not None:
            options["gracePeriodSeconds"] = grace_period_s
        return self.request("DELETE", resource.path(namespace, name), body=options)

    # --- pods ---------------------------------------------------------------------------------

    def bind(
        self,
        namespace: str,
        pod: str,
        node: str,
        *,
        uid: str,
        resource_version: str = "",
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """Put a pod on a node, with the annotations, in one update.

        The API server takes uid and resourceVersion of the Binding as preconditions, and merges
        its annotations into the pod together with `nodeName`.

        Raises:
            Conflict: the pod is another one, has changed, is bound, gated or going.
            Unavailable: with `maybe_done`, read the pod before concluding anything.
        """
        metadata: Object = {"name": pod, "namespace": namespace, "uid": uid}
        if resource_version:
            metadata["resourceVersion"] = resource_version
        if annotations:
            metadata["annotations"] = dict(annotations)
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata,
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        self.request("POST", PODS.path(namespace, pod, "binding"), body=binding)

    def evict(self, namespace: str, pod: str, *, uid: str) -> None:
        """Ask for a pod to go, within its disruption budgets.

        Raises:
            NotFound: it is gone already.
            TooManyRequests: a budget does not allow it now.
            Conflict: another pod bears the name by now.
        """
        # The API server tries an eviction whose uid is wrong for 10 s before it says so.
        there = self.get(PODS, pod, namespace)["metadata"]["uid"]
        if there != uid:
            raise Conflict(409, f"pod {namespace}/{pod} is {there} by now, not {uid}")
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        self.request(
            "POST",
            PODS.path(namespace, pod, "eviction"),
            body=eviction,
            read_timeout_s=EVICTION_TIMEOUT_S,
        )


def _typed(resource: Resource, body: Object) -> Object:
    return {"apiVersion": resource.api_version, "kind": resource.kind, **body}
