"""The predictor as users reach it: through the tunnel, with their own rights.

The caller's token is checked here and goes no further: the predictor is asked with our own, over
the pod network, where a user's token could be read. What a caller may do with the models of a
namespace is decided by the API server, as the predictor itself decides it for its own callers.

Bodies pass through and are kept nowhere. A client leaves the weights out of a file that it pushes
(`predictor.graph.skim`), so the bound is that of a graph, with room for what surrounds it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
from fastapi import Depends, FastAPI, HTTPException, Request, Response

from scheduler_extender.serving.parameters import known_parameters
from scheduler_extender.serving.readers import Readers
from tandem.contracts.prediction import ErrorBody
from tandem.kube.access import Access
from tandem.kube.resource import MODEL_PROFILES

#: Paths that are answered here and not by the extender.
PATHS = ("/v1/models", "/v1/predict")
PUSH_BYTES = 34 * 2**20
_REQUEST_BYTES = 64 * 2**10
_ANSWER_BYTES = 16 * 2**20
#: Models that are pushed at once: of a namespace, and of all.
_PUSHES, _PUSHES_IN_ALL = 1, 8
_REQUESTS_IN_ALL = 16
_MODELS = MODEL_PROFILES.plural
#: What may stand in a path. The predictor says more about a name that Kubernetes does not take.
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")


class _Slots:
    """So many at once of one kind, and so many in all; clients of others try again later."""

    def __init__(self, each: int, total: int) -> None:
        self._each, self._total = each, total
        self._open: Counter[str] = Counter()

    @asynccontextmanager
    async def of(self, kind: str) -> AsyncIterator[None]:
        """Hold a slot meanwhile."""
        if self._open[kind] >= self._each or self._open.total() >= self._total:
            raise HTTPException(503, "others ask the predictor at present; try again soon")
        self._open[kind] += 1
        try:
            yield
        finally:
            self._open[kind] -= 1
            if not self._open[kind]:
                del self._open[kind]


class _TooLargeError(Exception):
    """The body is over what is let through."""


class Predictor:
    """Hands requests on; `client` is None where the extender has no predictor."""

    def __init__(self, client: httpx.AsyncClient | None, token: Callable[[], str]) -> None:
        self._client, self._token = client, token

    async def ask(
        self,
        method: str,
        path: str,
        params: dict[str, str] | None = None,
        content: AsyncIterator[bytes] | bytes | None = None,
        kind: str = "application/json",
    ) -> Response:
        """Return what the predictor answers, or why it gives no answer."""
        if self._client is None:
            return _error(404, "this installation has no predictor", "")
        headers = {"content-type": kind}
        if bearer := self._token():
            headers["authorization"] = f"Bearer {bearer}"
        answered = bytearray()
        try:
            async with self._client.stream(
                method, path, params=params, content=content, headers=headers
            ) as answer:
                async for part in answer.aiter_bytes():
                    answered += part
                    if len(answered) > _ANSWER_BYTES:
                        return _error(503, "the answer is too large", "ask for one namespace (-n)")
        except _TooLargeError:
            return _error(
                413, f"the graph is over {PUSH_BYTES} bytes", "leave the weights out of the file"
            )
        except (httpx.HTTPError, httpx.InvalidURL):
            return _error(503, "the predictor does not answer", "`tandem doctor` says why")
        if answer.status_code in (401, 403):  # it refuses us, and the caller has been checked
            return _error(
                503, "the predictor refuses the extender's token", "`tandem doctor` says why"
            )
        media_type = answer.headers.get("content-type")
        return Response(bytes(answered), answer.status_code, media_type=media_type)


def models_app(readers: Readers, predictor: Predictor) -> FastAPI:
    """Return what answers `PATHS`."""
    app = FastAPI(
        title="Tandem, models",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(known_parameters())],
    )
    pushes, requests = _Slots(_PUSHES, _PUSHES_IN_ALL), _Slots(_REQUESTS_IN_ALL, _REQUESTS_IN_ALL)

    @app.post("/v1/models")
    async def push(request: Request, name: str, namespace: str) -> Response:
        """Hand a graph on to the predictor."""
        _check_names(namespace, name)
        await readers.require(request, Access("create", _MODELS, namespace))
        await readers.require(request, Access("update", _MODELS, namespace))
        params = {"name": name, "namespace": namespace}
        async with pushes.of(namespace):
            body = _bounded(request, PUSH_BYTES)
            return await predictor.ask(
                "POST", "/v1/models", params, body, "application/octet-stream"
            )

    @app.get("/v1/models")
    async def list_models(request: Request, namespace: str | None = None) -> Response:
        """List the models of a namespace, or of all."""
        if namespace is not None:
            _check_names(namespace)
        await readers.require(request, Access("list", _MODELS, namespace))
        params = {"namespace": namespace} if namespace is not None else {}
        async with requests.of(""):
            return await predictor.ask("GET", "/v1/models", params)

    @app.get("/v1/models/{namespace}/{name}")
    async def show(request: Request, namespace: str, name: str) -> Response:
        """Show a model."""
        _check_names(namespace, name)
        await readers.require(request, Access("get", _MODELS, namespace))
        async with requests.of(""):
            return await predictor.ask("GET", f"/v1/models/{namespace}/{name}")

    @app.delete("/v1/models/{namespace}/{name}")
    async def delete(request: Request, namespace: str, name: str) -> Response:
        """Delete a model."""
        _check_names(namespace, name)
        await readers.require(request, Access("delete", _MODELS, namespace))
        async with requests.of(""):
            return await predictor.ask("DELETE", f"/v1/models/{namespace}/{name}")

    @app.post("/v1/predict")
    async def predict(request: Request) -> Response:
        """Predict a job's load; the body is a PredictRequest."""
        try:
            body = b"".join([part async for part in _bounded(request, _REQUEST_BYTES)])
            asked = json.loads(body)
            namespace = asked.get("namespace", "default")
            _check_names(namespace)
        except _TooLargeError:
            return _error(413, f"the body is over {_REQUEST_BYTES} bytes", "")
        except (ValueError, RecursionError, AttributeError, TypeError):
            return _error(422, "the body is no PredictRequest", "")
        await readers.require(request, Access("get", _MODELS, namespace))
        async with requests.of(""):
            return await predictor.ask("POST", "/v1/predict", content=body)

    return app


async def _bounded(request: Request, most: int) -> AsyncIterator[bytes]:
    seen = 0
    async for part in request.stream():
        seen += len(part)
        if seen > most:
            raise _TooLargeError
        yield part


def _check_names(*names: str) -> None:
    """Raise HTTPException for what can name nothing in Kubernetes: names are put into a path."""
    for name in names:
        if not isinstance(name, str) or not _PART.fullmatch(name):
            raise HTTPException(422, f"{str(name)[:100]!r} is no name in Kubernetes")


def _error(status: int, words: str, hint: str) -> Response:
    content = json.dumps(ErrorBody(error=words, hint=hint).wire())
    return Response(content, status, media_type="application/json")
