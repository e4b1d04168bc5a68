"""Why a graph or a request was refused, in words for people and in a slug for metrics."""

from __future__ import annotations

from enum import StrEnum

from tandem.errors import TandemError


class Refusal(StrEnum):
    """Why a graph was refused; a bounded label for metrics."""

    MALFORMED = "malformed"
    UNSUPPORTED = "unsupported"
    TOO_LARGE = "too-large"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    CRASHED = "crashed"


class GraphError(TandemError):
    """A graph that cannot be turned into features. `hint` says what to do about it."""

    def __init__(self, refusal: Refusal, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.refusal = refusal


class ModelNotFoundError(TandemError):
    """No model of that name was pushed to that namespace."""

    def __init__(self, namespace: str, name: str) -> None:
        super().__init__(
            f"There is no model {name!r} in namespace {namespace!r}.",
            "Push it with `tandem model push FILE.onnx --name NAME`; "
            "`tandem model list` shows what there is.",
        )


class UnauthenticatedError(TandemError):
    """The request bears no token that the API server knows."""

    def __init__(self, message: str) -> None:
        super().__init__(
            message,
            "`tandem` sends the token of your kubeconfig; where it has none, give --token or "
            "TANDEM_TOKEN, as from `kubectl create token ACCOUNT`.",
        )


class ForbiddenError(TandemError):
    """The API server would not let the caller do that; `access` says what."""

    def __init__(self, access: str) -> None:
        super().__init__(
            f"You may not {access}.", "Ask an administrator of the namespace for that right."
        )


class StoreUnavailableError(TandemError):
    """The store of models cannot be reached at present; the same request may succeed later."""


class BusyError(TandemError):
    """The service has as much to do as it takes on; the same request may succeed soon."""


class SandboxUnavailableError(TandemError):
    """No graph can be read at present."""
