"""Authorises callers of the predictor: the API server decides, by the caller's own token.

A model belongs to its namespace. Pushing one needs the right to create and to update ModelProfiles
there, and so on; an admission policy keeps these rights from being used around the predictor.
"""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from predictor.errors import ForbiddenError, StoreUnavailableError, UnauthenticatedError
from predictor.service.http import error_response
from tandem.errors import TandemError
from tandem.kube.access import Access, Caller, Reviews, TooManyReviewsError, bearer_token
from tandem.kube.errors import KubeError
from tandem.kube.resource import MODEL_PROFILES

_PROTECTED = "/v1/"
_CALLER = "tandem_caller"
_RESOURCE = MODEL_PROFILES.plural


def read_models(namespace: str | None, verb: str = "get") -> list[Access]:
    """Return the rights to see models; in all namespaces where none is named."""
    return [Access(verb, _RESOURCE, namespace)]


def push_model(namespace: str) -> list[Access]:
    """Return the rights to store or replace a model."""
    return [Access("create", _RESOURCE, namespace), Access("update", _RESOURCE, namespace)]


def delete_model(namespace: str) -> list[Access]:
    """Return the right to delete a model."""
    return [Access("delete", _RESOURCE, namespace)]


def feed_back(namespace: str) -> list[Access]:
    """Return the right to say what a run of a model was observed to use."""
    return [Access("update", _RESOURCE, namespace, "status")]


class Authenticated:
    """ASGI middleware: knows the caller of each request to the API before its body is read.

    Without `reviews` nothing is asked: for models in memory, which belong to no cluster.
    """

    def __init__(self, app: ASGIApp, reviews: Reviews | None) -> None:
        self._app = app
        self._reviews = reviews

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if (
            self._reviews is not None
            and scope["type"] == "http"
            and scope["path"].startswith(_PROTECTED)
        ):
            try:
                scope[_CALLER] = await self._caller(self._reviews, Headers(scope=scope))
            except TandemError as error:
                await error_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    @staticmethod
    async def _caller(reviews: Reviews, headers: Headers) -> Caller:
        token = bearer_token(headers.get("authorization", ""))
        if token is None:
            raise UnauthenticatedError("A bearer token of the cluster is needed.")
        try:
            caller = await reviews.caller(token)
        except (KubeError, TooManyReviewsError) as error:
            raise _cannot_tell() from error
        if caller is None:
            raise UnauthenticatedError("The API server does not know this token.")
        return caller


class Authority:
    """Says whether the caller of a request has certain rights."""

    def __init__(self, reviews: Reviews | None) -> None:
        self._reviews = reviews

    async def check(self, request: Request, wanted: Iterable[Access]) -> None:
        """Return where the caller has all rights in `wanted`.

        Raises:
            ForbiddenError: it has not.
            StoreUnavailableError: the API server does not say.
        """
        if self._reviews is None:
            return
        for access in wanted:
            try:
                allowed = await self._reviews.may(request.scope[_CALLER], access)
            except KubeError as error:
                raise _cannot_tell() from error
            if not allowed:
                raise ForbiddenError(str(access))


def _cannot_tell() -> StoreUnavailableError:
    return StoreUnavailableError(
        "The API server does not say at present who may ask.", "Try again soon."
    )
