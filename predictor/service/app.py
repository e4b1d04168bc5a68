"""The predictor as a service: models in, predictions out. Messages: tandem.contracts.prediction."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Annotated

import anyio
import anyio.to_thread
from fastapi import FastAPI, Query, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from predictor.errors import GraphError, ModelNotFoundError, Refusal
from predictor.graph.skim import Skimmer
from predictor.interference.experience import Experience
from predictor.interference.model import open_interference
from predictor.load.model import open_predictor
from predictor.service.access import Authenticated, Authority, feed_back, read_models
from predictor.service.access import delete_model as delete_model_rights
from predictor.service.access import push_model as push_model_rights
from predictor.service.config import PredictorConfig
from predictor.service.drift import Drift
from predictor.service.http import Edge, add_error_handlers
from predictor.service.metrics import Metrics
from predictor.service.sandbox import Sandbox
from predictor.service.store import ProfileStore, check_names
from predictor.service.turns import Turns, Upload, Uploads
from tandem.contracts.base import Message
from tandem.contracts.prediction import (
    ErrorBody,
    Feedback,
    InterferenceAnswer,
    InterferenceRequest,
    ModelList,
    ModelSummary,
    PredictBatch,
    Prediction,
    PredictionBatch,
    PredictRequest,
)
from tandem.contracts.resources import Observation
from tandem.errors import TandemError
from tandem.kube.access import Reviews

log = logging.getLogger(__name__)

#: A request that is no model: a batch of predictions for thousands of jobs is smaller.
BODY_BYTES = 4 << 20
_MODELS = "/v1/models"
_PRODUCER = "predictor"
_ERRORS: dict[int | str, dict[str, object]] = {
    status: {"model": ErrorBody} for status in (400, 401, 403, 404, 413, 422, 500, 503)
}
_RAW_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


class _Service:
    """The work of the handlers."""

    def __init__(
        self, config: PredictorConfig, store: ProfileStore, sandbox: Sandbox, metrics: Metrics
    ) -> None:
        self._store = store
        self._sandbox = sandbox
        self._metrics = metrics
        self._predictor = open_predictor(config.artifacts, learned=config.learned_load)
        self._drift = Drift(self._predictor)
        self._experience = Experience()
        self._pricing = open_interference(config.artifacts, self._experience)
        self._uploads = Uploads()
        # Graphs wait for their turn here and not in the threads that predictions need.
        self._turns = Turns(sandbox.limits.parallel)
        self._parsers = anyio.CapacityLimiter(sandbox.limits.parallel)

    async def push(self, request: Request, namespace: str, name: str) -> ModelSummary:
        check_names(namespace, name)
        try:
            async with self._uploads.slot(namespace) as upload:
                skimmer = await self._receive(request, upload)
                async with self._turns.turn(namespace):
                    started = time.perf_counter()
                    parsed = await anyio.to_thread.run_sync(
                        self._sandbox.parse_skimmed, skimmer, limiter=self._parsers
                    )
                self._metrics.parsed(time.perf_counter() - started)
        except GraphError as error:
            self._metrics.refused(error.refusal.value)
            log.info("graph refused reason=%s error=%s", error.refusal, error.message)
            raise
        summary = await run_in_threadpool(self._store.put, namespace, name, parsed, _PRODUCER)
        log.info("model stored namespace=%s name=%s bytes=%d", namespace, name, parsed.file_bytes)
        return summary

    async def _receive(self, request: Request, upload: Upload) -> Skimmer:
        """Skim the body as it comes; `upload` ends one that comes too slowly."""
        skimmer = Skimmer(self._sandbox.limits.graph_bytes)
        try:
            async for chunk in request.stream():
                await run_in_threadpool(skimmer.feed, chunk)
                upload.took(len(chunk))
        except ClientDisconnect:
            raise GraphError(Refusal.MALFORMED, "The upload was broken off.") from None
        upload.end()
        return skimmer

    def feedback(self, run: Feedback, now: str) -> ModelSummary:
        model = self._store.observe(run, now)
        self._experience.add(
            run.namespace,
            _kind(model.feature_hash, run.batch_size, run.accumulation_steps),
            run.gpu_model,
            run.utilisation_percent,
            run.neighbours,
            _iteration_s(run),
        )
        drifted = self._drift.add(run, model.features)
        if drifted is not None:
            self._metrics.fed_back(*drifted)
        return model

    def recall(self) -> None:
        """Fill what types of GPU have shown from the stored observations, twice over.

        The first pass makes every utilisation known, the second pass reads the neighbours.
        """
        try:
            models = self._store.list(None)
        except TandemError as error:
            log.warning("observations not read error=%s", error.message)
            return
        for neighbours_too in (False, True):
            for model in models:
                for seen in model.observed:
                    self._experience.add(
                        model.namespace,
                        _kind(seen.feature_hash, seen.batch_size, seen.accumulation_steps),
                        seen.gpu_model,
                        seen.utilisation_percent,
                        seen.neighbours if neighbours_too else (),
                        _iteration_s(seen),
                    )

    def predict(self, request: PredictRequest) -> Prediction:
        model = None
        missing = ""
        if request.model is not None:
            try:
                model = self._store.get(request.namespace, request.model)
            except ModelNotFoundError as error:
                missing = f"{error.message} "
        prediction = self._predictor.predict(
            request,
            model.features if model else None,
            model.feature_hash if model else "",
            model.observed if model else (),
        )
        self._metrics.predicted(prediction.load)
        return prediction.model_copy(update={"explanation": missing + prediction.explanation})

    def priced(self, request: PredictRequest, prediction: Prediction) -> Prediction:
        if request.candidates is None:
            return prediction
        asked = InterferenceRequest(
            job=prediction.load, candidates=request.candidates, gpu_model=request.gpu_model
        )
        return prediction.model_copy(update={"interference": self.price(asked)})

    def price(self, request: InterferenceRequest) -> InterferenceAnswer:
        answer = self._pricing.answer(request)
        self._metrics.priced(len(answer.pairs), answer.source.value)
        return answer


def create_app(
    config: PredictorConfig,
    store: ProfileStore,
    sandbox: Sandbox | None = None,
    reviews: Reviews | None = None,
) -> FastAPI:
    """Return the service. `sandbox` is started with it and closed at the end.

    `reviews` says who may ask; without it anyone may, as with models in memory.
    """
    sandbox = sandbox or Sandbox(config.sandbox)
    authority = Authority(reviews)
    metrics = Metrics()
    service = _Service(config, store, sandbox, metrics)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await run_in_threadpool(sandbox.start)
        await run_in_threadpool(service.recall)
        yield
        await run_in_threadpool(sandbox.close)

    app = FastAPI(title="Tandem predictor", version="v1", lifespan=lifespan, responses=_ERRORS)
    app.add_middleware(Authenticated, reviews=reviews)
    app.add_middleware(
        Edge,
        metrics=metrics,
        limit_of=lambda method, path: (
            config.upload_bytes if (method, path) == ("POST", _MODELS) else BODY_BYTES
        ),
    )
    add_error_handlers(app)

    @app.post(_MODELS, status_code=201, response_model_exclude_none=True, openapi_extra=_RAW_BODY)
    async def push_model(
        request: Request,
        name: Annotated[str, Query(description="name of the ModelProfile")],
        namespace: str = "default",
    ) -> ModelSummary:
        """Take an ONNX file as the raw body, keep its features under a name."""
        check_names(namespace, name)
        await authority.check(request, push_model_rights(namespace))
        return await service.push(request, namespace, name)

    @app.get(_MODELS, response_model_exclude_none=True)
    async def list_models(request: Request, namespace: str | None = None) -> ModelList:
        """Return the models of a namespace, or of all."""
        if namespace is not None:
            check_names(namespace)
        await authority.check(request, read_models(namespace, "list"))
        return ModelList(models=await run_in_threadpool(store.list, namespace))

    @app.get(_MODELS + "/{namespace}/{name}", response_model_exclude_none=True)
    async def show_model(request: Request, namespace: str, name: str) -> ModelSummary:
        """Return one model with its features."""
        check_names(namespace, name)
        await authority.check(request, read_models(namespace))
        return await run_in_threadpool(store.get, namespace, name)

    @app.delete(_MODELS + "/{namespace}/{name}", status_code=204)
    async def delete_model(request: Request, namespace: str, name: str) -> Response:
        """Forget a model."""
        check_names(namespace, name)
        await authority.check(request, delete_model_rights(namespace))
        await run_in_threadpool(store.delete, namespace, name)
        return Response(status_code=204)

    @app.post("/v1/predict", response_model=Prediction)
    async def predict(request: Request, asked: PredictRequest) -> Response:
        """Predict one job's load; a model that is not there counts as unknown, and is named."""
        await authority.check(request, read_models(asked.namespace))
        prediction = await run_in_threadpool(service.predict, asked)  # the store may block
        return _as_it_is(service.priced(asked, prediction))

    @app.post("/v1/predict:batch", response_model_exclude_none=True)
    async def predict_batch(request: Request, batch: PredictBatch) -> PredictionBatch:
        """Predict many loads at once."""
        for namespace in sorted({one.namespace for one in batch.requests}):
            await authority.check(request, read_models(namespace))

        def predict_all() -> list[Prediction]:
            return [service.priced(one, service.predict(one)) for one in batch.requests]

        return PredictionBatch(predictions=await run_in_threadpool(predict_all))

    @app.post("/v1/feedback", response_model_exclude_none=True)
    async def feedback(request: Request, run: Feedback) -> ModelSummary:
        """Take what a run was measured to use: it corrects the next prediction of its kind."""
        check_names(run.namespace, run.model)
        await authority.check(request, feed_back(run.namespace))
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return await run_in_threadpool(service.feedback, run, now)

    @app.post("/v1/interference", response_model=InterferenceAnswer)
    async def interference(request: Request, asked: InterferenceRequest) -> Response:
        """Predict how a job and each of many candidates would slow one another down."""
        await authority.check(request, read_models(None, "list"))  # by what all have shown
        return _as_it_is(service.price(asked))

    _add_probes(app, store, metrics)
    return app


def _add_probes(app: FastAPI, store: ProfileStore, metrics: Metrics) -> None:
    """Add the probes and the metrics, which ask for no token."""

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Answer while the process lives."""
        return {"status": "ok"}

    @app.get("/readyz")
    def readyz() -> dict[str, str]:
        """Answer when the store does too."""
        store.check()
        return {"status": "ok"}

    @app.get("/metrics", include_in_schema=False)
    async def show_metrics() -> Response:
        return Response(metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _kind(feature_hash: str, batch_size: int, accumulation_steps: int) -> str:
    """Return by what a run's utilisation is known; one in micro-batches is a kind of its own."""
    steps = f"/{accumulation_steps}" if accumulation_steps > 1 else ""
    return f"{feature_hash}@{batch_size}{steps}"


def _iteration_s(run: Feedback | Observation) -> float | None:
    """Return the time of one micro-batch, where the run's pods reported their progress."""
    if not run.iterations_per_second:
        return None
    return 1 / (run.iterations_per_second * run.accumulation_steps)


def _as_it_is(answer: Message) -> Response:
    """Return an answer that is not checked once more: that takes as long as to make it."""
    return Response(
        answer.model_dump_json(by_alias=True, exclude_none=True), media_type="application/json"
    )
