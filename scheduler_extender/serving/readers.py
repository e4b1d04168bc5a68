"""Who may read: a caller of /v1 sees what the API server itself would show it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable

from fastapi import HTTPException, Request

<<<<<<< HEAD
from tandem.kube.access import Access, Reviews, TooManyReviewsError, bearer_token
from tandem.kube.api import ClusterApi
from tandem.kube.errors import KubeError
=======
from scheduler_extender.serving.limits import client_name
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
#: Reviews under way at the API server: anyone can send made-up tokens.
_ASKING, _ASKING_PER_CLIENT = 16, 4
>>>>>>> 7b136fd (A process of its own serves the ports that clients of the pod network reach)

#: Raises HTTPException where the caller of a request may not `verb` a resource in a namespace.
Check = Callable[[Request, str, str, str | None], Awaitable[None]]


async def everybody(request: Request, verb: str, resource: str, namespace: str | None) -> None:
    """Let everybody read: for the API server in memory, which knows no users."""


class Readers:
    """Asks the API server who a token is, and whether they may read."""

    def __init__(self, api: ClusterApi, clock: Callable[[], float] = time.monotonic) -> None:
<<<<<<< HEAD
        self._reviews = Reviews(api, clock=clock)
=======
        self._api = api
        self._clock = clock
        self._kept: dict[tuple[bytes, str, str, str | None], tuple[float, int]] = {}
        self._asking: Counter[str] = Counter()  # reviews under way, by client
>>>>>>> 7b136fd (A process of its own serves the ports that clients of the pod network reach)

    async def check(
        self, request: Request, verb: str, resource: str, namespace: str | None
    ) -> None:
        """Raise HTTPException (401, 403 or 503) unless the request's token allows it."""
        token = bearer_token(request.headers.get("authorization", ""))
        if token is None:
            raise HTTPException(401, "a bearer token of the cluster is needed")
<<<<<<< HEAD
        access = Access(verb, resource, namespace)
        try:
            caller = await self._reviews.caller(token)
            allowed = caller is not None and await self._reviews.may(caller, access)
        except KubeError as error:
            raise HTTPException(503, "the API server does not tell who may read") from error
        except TooManyReviewsError as error:
            raise HTTPException(503, "too many unknown tokens are being reviewed") from error
        if caller is None:
=======
        # The token itself is not kept.
        key = (hashlib.sha256(token.encode()).digest(), verb, resource, namespace)
        until, status = self._kept.get(key, (0.0, 0))
        if until <= self._clock():
            client = client_name(request.scope)
            if self._asking[client] >= _ASKING_PER_CLIENT or self._asking.total() >= _ASKING:
                raise HTTPException(429, "too many tokens are being reviewed; try again")
            self._asking[client] += 1
            try:
                status = await asyncio.to_thread(self._ask, token, verb, resource, namespace)
            except KubeError as error:
                raise HTTPException(503, "the API server does not tell who may read") from error
            finally:
                self._asking[client] -= 1
                self._asking += Counter()  # without those that ask nothing
            while len(self._kept) >= _MOST_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = (self._clock() + _KEPT_S, status)
        if status == 401:
>>>>>>> 7b136fd (A process of its own serves the ports that clients of the pod network reach)
            raise HTTPException(401, "the API server does not know this token")
        if not allowed:
            raise HTTPException(403, f"you may not {access}")
