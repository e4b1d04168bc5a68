"""Who may read: the API server is asked, by the caller's own token.

A caller of /v1 sees what it could see of the custom resources in the API server itself. Answers are
kept for a minute, so that a dashboard does not become a load.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import HTTPException, Request

from tandem.contracts.names import GROUP
from tandem.kube.api import ClusterApi
from tandem.kube.errors import KubeError
from tandem.kube.resource import Resource

TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "TokenReview", "tokenreviews", False)
ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews", False
)
_KEPT_S = 60.0
_MOST_KEPT = 1000
_LONGEST_TOKEN = 16384

#: Raises HTTPException where the caller of a request may not `verb` a resource in a namespace.
Check = Callable[[Request, str, str, str | None], Awaitable[None]]


async def everybody(request: Request, verb: str, resource: str, namespace: str | None) -> None:
    """Let everybody read: for the API server in memory, which knows no users."""


class Readers:
    """Asks the API server who a token is, and whether they may read."""

    def __init__(self, api: ClusterApi, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._clock = clock
        self._kept: dict[tuple[bytes, str, str, str | None], tuple[float, int]] = {}

    async def check(
        self, request: Request, verb: str, resource: str, namespace: str | None
    ) -> None:
        """Raise HTTPException (401, 403 or 503) unless the request's token allows it."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or len(token) > _LONGEST_TOKEN:
            raise HTTPException(401, "a bearer token of the cluster is needed")
        # The token itself is not kept.
        key = (hashlib.sha256(token.encode()).digest(), verb, resource, namespace)
        until, status = self._kept.get(key, (0.0, 0))
        if until <= self._clock():
            try:
                status = await asyncio.to_thread(self._ask, token, verb, resource, namespace)
            except KubeError as error:
                raise HTTPException(503, "the API server does not tell who may read") from error
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            self._kept[key] = (self._clock() + _KEPT_S, status)
        if status == 401:
            raise HTTPException(401, "the API server does not know this token")
        if status == 403:
            where = f" in {namespace}" if namespace else " in all namespaces"
            raise HTTPException(403, f"you may not {verb} {resource}.{GROUP}{where}")

    def _ask(self, token: str, verb: str, resource: str, namespace: str | None) -> int:
        """Return 200, 401 or 403. Blocks."""
        review = self._api.create(TOKEN_REVIEWS, {"metadata": {}, "spec": {"token": token}})
        who: dict[str, Any] = review.get("status") or {}
        if not who.get("authenticated"):
            return 401
        user = who["user"]
        asked: dict[str, Any] = {"group": GROUP, "resource": resource, "verb": verb}
        if namespace:
            asked["namespace"] = namespace
        spec = {
            "user": user.get("username", ""),
            "uid": user.get("uid", ""),
            "groups": user.get("groups") or [],
            "extra": user.get("extra") or {},
            "resourceAttributes": asked,
        }
        answer = self._api.create(ACCESS_REVIEWS, {"metadata": {}, "spec": spec})
        return 200 if answer["status"].get("allowed") else 403
