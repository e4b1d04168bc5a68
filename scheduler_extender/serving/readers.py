"""Access to /v1: a caller sees what the API server would show to it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from fastapi import HTTPException, Request

from tandem.contracts.names import API_AUDIENCE, NODE_OF_TOKEN
from tandem.kube.access import Access, Caller, Reviews, TooManyReviewsError, bearer_token
from tandem.kube.api import ClusterApi
from tandem.kube.errors import KubeError

#: As many nodes as Kubernetes supports in a cluster, with room for tokens that are renewed.
_AGENTS_KEPT = 20_000
_FORBIDDEN = 403

#: Raises HTTPException where the caller of a request lacks a right on a resource of ours: the verb,
#: the resource, and the namespace (None: all).
Check = Callable[[Request, str, str, str | None], Awaitable[None]]


async def everybody(request: Request, verb: str, resource: str, namespace: str | None) -> None:
    """Let everybody read: for the API server in memory, which knows no users."""


class Readers:
    """Asks the API server who a token is, and whether they may read.

    Tokens for `audience` are accepted next to those for the API server itself.
    """

    def __init__(
        self,
        api: ClusterApi,
        clock: Callable[[], float] = time.monotonic,
        *,
        audience: str = "",
    ) -> None:
        self._reviews = Reviews(api, audience=audience, clock=clock)

    async def check(
        self, request: Request, verb: str, resource: str, namespace: str | None
    ) -> None:
        """Raise HTTPException (401, 403 or 503) unless the request's token allows it."""
        await self.require(request, Access(verb, resource, namespace))

    async def allows(
        self, request: Request, verb: str, resource: str, namespace: str | None = None
    ) -> bool:
        """Say whether the request's token has a right; raises HTTPException (401 or 503)."""
        try:
            await self.check(request, verb, resource, namespace)
        except HTTPException as error:
            if error.status_code != _FORBIDDEN:
                raise
            return False
        return True

    async def require(self, request: Request, access: Access) -> None:
        """Raise HTTPException (401, 403 or 503) unless the request's token has a right."""
        await _require(self._reviews, request, access)


class Agents:
    """Tells agents by their tokens: each is of a pod on the node that it speaks for.

    They have answers of their own, so that neither readers nor invented tokens crowd them out.
    """

    def __init__(self, api: ClusterApi, clock: Callable[[], float] = time.monotonic) -> None:
        self._reviews = Reviews(api, audience=API_AUDIENCE, clock=clock, most_kept=_AGENTS_KEPT)

    async def node(self, request: Request) -> str:
        """Return the node of the agent that asks: one that may report GPUs, with its token's node.

        Raises HTTPException (401, 403 or 503) for others.
        """
        caller = await _require(
            self._reviews, request, Access("update", "gpunodes", subresource="status")
        )
        node = dict(caller.extra).get(NODE_OF_TOKEN) or ("",)
        if not node[0]:
            raise HTTPException(_FORBIDDEN, "this token is bound to no pod on a node")
        return node[0]


async def _require(reviews: Reviews, request: Request, access: Access) -> Caller:
    token = bearer_token(request.headers.get("authorization", ""))
    if token is None:
        raise HTTPException(401, "a bearer token of the cluster is needed")
    try:
        caller = await reviews.caller(token)
        allowed = caller is not None and await reviews.may(caller, access)
    except KubeError as error:
        raise HTTPException(503, "the API server does not say who may read") from error
    except TooManyReviewsError as error:
        raise HTTPException(503, "too many unknown tokens are being reviewed") from error
    if caller is None:
        raise HTTPException(401, "the API server does not know this token")
    if not allowed:
        raise HTTPException(_FORBIDDEN, f"you may not {access}")
    return caller
