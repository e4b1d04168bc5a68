"""Errors of requests to the API server, as types that callers can tell apart."""

# ruff: noqa: N818 - the errors bear the names that Kubernetes gives these answers

from __future__ import annotations

import json
from typing import Any


class KubeError(Exception):
    """The API server refused or could not be reached.

    `status` is the HTTP status (0 when there was no answer), `reason` Kubernetes' term for it
    (`AlreadyExists`), `details` its machine-readable part, `retry_after_s` what it asked for.
    """

    def __init__(
        self,
        status: int,
        message: str,
        reason: str = "",
        details: dict[str, Any] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.reason = reason
        self.details = details or {}
        self.retry_after_s = retry_after_s


class NotFound(KubeError):
    """404: there is no such object, or the resource is not served."""


class Conflict(KubeError):
    """409: a precondition (uid, resourceVersion) did not hold, or somebody else was first."""


class Replaced(Conflict):
    """422 for a patch whose uid is not that of the object: another object has the name by now."""


class AlreadyExists(Conflict):
    """409 at creation: the name is taken."""


class Gone(KubeError):
    """410: the resourceVersion or the continue token is too old; list again."""


class Forbidden(KubeError):
    """401 or 403: who we are may not do this, or an admission policy refused it."""


class Invalid(KubeError):
    """400, 413 or 422, or etcd's refusal of a size: trying the same object again will not help."""


class TooManyRequests(KubeError):
    """429: slow down; for an eviction, a disruption budget does not allow it now."""


class Unavailable(KubeError):
    """No usable answer: connection trouble, a timeout, or a 5xx.

    `maybe_done` is False only where the request certainly never left: a write whose outcome is
    unknown must be read back before anything is concluded from it.
    """

    maybe_done: bool = True


#: The API server reads the uid in a patch as a change of an immutable field.
_UID = "metadata.uid"
_BY_STATUS: dict[int, type[KubeError]] = {
    400: Invalid,
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    413: Invalid,
    422: Invalid,
    429: TooManyRequests,
}


#: What the API server answers, as a 500, to an object that is larger than etcd or gRPC takes.
_TOO_LARGE = ("etcdserver: request is too large", "trying to send message larger than max")


def from_status(status: dict[str, Any], http_status: int = 0) -> KubeError:
    """Turn a `Status` object (of an answer, or of an ERROR event of a watch) into an error."""
    code = int(status.get("code") or http_status)
    reason = str(status.get("reason") or "")
    kind = _BY_STATUS.get(code, Unavailable if code >= 500 else KubeError)
    if code == 500 and any(words in str(status.get("message") or "") for words in _TOO_LARGE):
        kind = Invalid
    if reason == "AlreadyExists":
        kind = AlreadyExists
    elif reason == "Expired":
        kind = Gone
    details = status.get("details") or {}
    if kind is Invalid and any(c.get("field") == _UID for c in details.get("causes") or ()):
        kind = Replaced
    retry_after = details.get("retryAfterSeconds")
    return kind(
        code,
        str(status.get("message") or reason or f"HTTP {code}"),
        reason,
        details,
        float(retry_after) if retry_after else None,
    )


def from_response(http_status: int, body: bytes) -> KubeError:
    """Turn an answer outside 2xx into an error; the body need not be a `Status`."""
    try:
        status = json.loads(body)
    except ValueError:
        status = None
    if not isinstance(status, dict) or status.get("kind") != "Status":
        status = {"message": body[:500].decode("utf-8", "replace").strip()}
    return from_status(status, http_status)


def unreachable(message: str, *, maybe_done: bool) -> Unavailable:
    """Return the error for a request that got no answer."""
    error = Unavailable(0, message)
    error.maybe_done = maybe_done
    return error
