"""Authenticates and authorises callers: asks the API server, by the caller's own token.

For services that answer to users and programs. A caller sees and changes through us what the API
server would let it see and change. Both answers are kept for a minute, so that a client that asks
often is no load; a right that is taken away therefore lasts up to a minute longer.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from tandem.contracts.names import GROUP
from tandem.kube.api import ClusterApi
from tandem.kube.resource import Resource

TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "TokenReview", "tokenreviews", False)
ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews", False
)
KEPT_S = 60.0
#: Answers that are kept of each kind; the one that was used longest ago goes first.
MOST_KEPT = 1000
LONGEST_TOKEN = 16384
_LONGEST_NAMESPACE = 63
_THREADS = 4
#: Reviews of tokens that were never valid, per second and at once: invented tokens neither flood
#: the API server nor take the turn of callers that are known.
_UNKNOWN_PER_S, _UNKNOWN_AT_ONCE = 20.0, 40.0

_Answer = TypeVar("_Answer")


class TooManyReviewsError(Exception):
    """More tokens than can be reviewed have come that were never seen before; ask again soon."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A user as the API server knows it."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class Access(NamedTuple):
    """A right on a resource; `namespace` None means all namespaces, `group` "" the core API."""

    verb: str
    resource: str
    namespace: str | None = None
    subresource: str = ""
    group: str = GROUP

    def __str__(self) -> str:
        """Return the right as kubectl writes it."""
        resource = ".".join(part for part in (self.resource, self.group) if part)
        resource = "/".join(part for part in (resource, self.subresource) if part)
        where = f"in {self.namespace}" if self.namespace else "in all namespaces"
        return f"{self.verb} {resource} {where}"


def bearer_token(header: str) -> str | None:
    """Return the token in an Authorization header; None where there is none to review."""
    scheme, _, token = header.partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token or len(token) > LONGEST_TOKEN:
        return None
    return token


class Reviews:
    """Asks the API server, on an event loop; the requests are made in threads.

    Tokens for `audience` are accepted next to those for the API server itself: a service's own
    account shows a token that opens nothing else. Tokens are not kept, only their hashes.
    """

    def __init__(
        self,
        api: ClusterApi,
        *,
        audience: str = "",
        clock: Callable[[], float] = time.monotonic,
        most_kept: int | None = None,
    ) -> None:
        self._api = api
        self._audience = audience
        self._clock = clock
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="review")
        self._callers: _Kept[Caller] = _Kept(clock, most_kept)
        self._strangers: _Kept[bool] = _Kept(clock)
        self._rights: _Kept[bool] = _Kept(clock, most_kept)
        self._unknown = _UNKNOWN_AT_ONCE  # reviews of unknown tokens that may be made at once
        self._unknown_at_s = clock()

    async def caller(self, token: str) -> Caller | None:
        """Return whose token it is; None where the API server does not know it.

        Raises:
            KubeError: the API server does not say.
            TooManyReviewsError: too many unknown tokens have come.
        """
        key = hashlib.sha256(token.encode()).digest()
        if self._strangers.get(key):
            return None
        known = self._callers.get(key)
        if known is not None:
            return known
        if not self._callers.was_there(key):
            self._count_unknown()
        found = await self._callers.ask(key, lambda: self._review(token))
        if found is None:
            self._callers.drop(key)
            self._strangers.put(key, True)
        return found

    async def may(self, caller: Caller, access: Access) -> bool:
        """Say whether the API server would let the caller do that.

        Raises:
            KubeError: the API server does not say.
        """
        if len(access.namespace or "") > _LONGEST_NAMESPACE:
            return False  # there is none; such keys are not kept either
        key = (caller, access)
        known = self._rights.get(key)
        if known is not None:
            return known
        return bool(await self._rights.ask(key, lambda: self._allowed(caller, access)))

    def close(self) -> None:
        """Make no more requests."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _count_unknown(self) -> None:
        now = self._clock()
        more = (now - self._unknown_at_s) * _UNKNOWN_PER_S
        self._unknown = min(_UNKNOWN_AT_ONCE, self._unknown + more)
        self._unknown_at_s = now
        if self._unknown < 1:
            raise TooManyReviewsError
        self._unknown -= 1

    async def _review(self, token: str) -> Caller | None:
        spec: dict[str, Any] = {"token": token}
        if self._audience and self._audience in unverified_audiences(unverified_claims(token)):
            spec["audiences"] = [self._audience]
        review = await self._create(TOKEN_REVIEWS, spec)
        status: dict[str, Any] = review.get("status") or {}
        if not status.get("authenticated"):
            return None
        if "audiences" in spec and self._audience not in (status.get("audiences") or []):
            return None  # an authenticator that does not know audiences has answered
        user = status["user"]
        return Caller(
            user.get("username", ""),
            user.get("uid", ""),
            tuple(user.get("groups") or ()),
            tuple((name, tuple(values)) for name, values in (user.get("extra") or {}).items()),
        )

    async def _allowed(self, caller: Caller, access: Access) -> bool:
        attributes = {"group": access.group, "resource": access.resource, "verb": access.verb}
        if access.namespace:
            attributes["namespace"] = access.namespace
        if access.subresource:
            attributes["subresource"] = access.subresource
        spec = {
            "user": caller.name,
            "uid": caller.uid,
            "groups": list(caller.groups),
            "extra": {name: list(values) for name, values in caller.extra},
            "resourceAttributes": attributes,
        }
        answer = await self._create(ACCESS_REVIEWS, spec)
        return bool((answer.get("status") or {}).get("allowed"))

    async def _create(self, resource: Resource, spec: dict[str, Any]) -> dict[str, Any]:
        body = {"metadata": {}, "spec": spec}
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._api.create, resource, body)


class _Kept(Generic[_Answer]):
    """Answers by key, for a minute; each is asked for once at a time."""

    def __init__(self, clock: Callable[[], float], most: int | None = None) -> None:
        self._clock = clock
        self._most = most or MOST_KEPT
        self._answers: OrderedDict[Hashable, tuple[float, _Answer]] = OrderedDict()
        self._asking: dict[Hashable, asyncio.Task[_Answer | None]] = {}

    def get(self, key: Hashable) -> _Answer | None:
        """Return the answer that is kept, if it is still good."""
        known = self._answers.get(key)
        if known is None or known[0] <= self._clock():
            return None
        self._answers.move_to_end(key)
        return known[1]

    def was_there(self, key: Hashable) -> bool:
        """Say whether there was an answer, though it may be too old by now."""
        return key in self._answers

    def put(self, key: Hashable, answer: _Answer) -> None:
        """Keep an answer."""
        self._answers[key] = (self._clock() + KEPT_S, answer)
        self._answers.move_to_end(key)
        while len(self._answers) > self._most:
            self._answers.popitem(last=False)

    def drop(self, key: Hashable) -> None:
        """Forget an answer."""
        self._answers.pop(key, None)

    async def ask(
        self, key: Hashable, question: Callable[[], Awaitable[_Answer | None]]
    ) -> _Answer | None:
        """Ask, or join a request that asks the same already; an answer is kept."""
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = asyncio.ensure_future(question())
            task.add_done_callback(lambda _: self._asking.pop(key, None))
        # A caller that goes away takes the answer from no other.
        answer = await asyncio.shield(task)
        if answer is not None:
            self.put(key, answer)
        return answer


def unverified_claims(token: str) -> dict[str, Any]:
    """Return what a token (a JWT) claims; {} for anything else. It only chooses the question."""
    parts = token.split(".", 3)
    if len(parts) != 3:
        return {}
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}


def unverified_audiences(claims: Mapping[str, Any]) -> list[str]:
    """Return for whom a token claims to be meant."""
    found = claims.get("aud")
    if isinstance(found, str):
        return [found]
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []
