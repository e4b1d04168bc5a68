"""The predictor service as a command-line user calls it."""

from __future__ import annotations

import httpx
from pydantic import ValidationError

from tandem.contracts.prediction import ErrorBody
from tandem.errors import TandemError, UsageError

_CONNECT_TIMEOUT_S = 5.0
_ANSWER_TIMEOUT_S = 60.0


class PredictorClient:
    """The predictor service; every failure is an error for people.

    Raises:
        UsageError: the URL is none, or the token cannot be sent.
    """

    def __init__(self, url: str, token: str = "") -> None:
        self._url = url
        timeout = httpx.Timeout(_ANSWER_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S)
        if not (token.isascii() and token.isprintable()):
            raise UsageError("A token has printable ASCII characters only.")
        headers = {"authorization": f"Bearer {token}"} if token else {}
        try:
            self._client = httpx.Client(base_url=url, timeout=timeout, headers=headers)
        except httpx.InvalidURL as error:
            raise UsageError(f"{url!r} is no URL: {error}") from None

    def __enter__(self) -> PredictorClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def request(self, method: str, path: str, **options: object) -> bytes:
        """Return the body of a 2xx answer; raises TandemError for anything else."""
        try:
            answer = self._client.request(method, path, **options)  # type: ignore[arg-type] # passed through
        except httpx.TimeoutException:
            raise TandemError(
                f"The predictor at {self._url} did not answer in time.",
                "Look at its log, or try again.",
            ) from None
        except (httpx.TransportError, httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            raise TandemError(
                f"The predictor at {self._url} cannot be reached: {error}",
                "Give its URL with --server or TANDEM_PREDICTOR; without one, the API server of "
                "your kubeconfig leads to it.",
            ) from None
        if answer.is_success:
            return answer.content
        raise _error_of(answer)


def _error_of(answer: httpx.Response) -> TandemError:
    try:
        body = ErrorBody.model_validate_json(answer.content)
    except ValidationError:
        return TandemError(
            f"The server answered {answer.status_code} and no reason.",
            "Is that URL the predictor's?",
        )
    return TandemError(body.error, body.hint)
