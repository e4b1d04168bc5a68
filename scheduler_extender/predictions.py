"""Requests to the predictor for a load; every job gets an answer, also without a predictor."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, ClassVar, NamedTuple
from urllib.parse import quote

import httpx
from prometheus_client import CollectorRegistry, Counter, Gauge
from pydantic import ValidationError

from scheduler_extender.cluster.jobs import unpredicted_load
from scheduler_extender.cluster.slowdowns import Slowdowns
from scheduler_extender.cluster.table import GpuKind
from tandem.contracts.prediction import (
    Feedback,
    InterferenceAnswer,
    InterferenceRequest,
    ModelSummary,
    Prediction,
    PredictRequest,
)
from tandem.contracts.resources import Demand, Load, Source

log = logging.getLogger(__name__)

TIMEOUT_S = 2.0
#: A request that takes longer is no answer in time, though it may be used.
SLOW_S = 1.0
#: Requests in a row without an answer in time, after which no caller waits any more.
OPEN_AFTER = 3
PROBE_EVERY_S = 5.0
#: How long an answer holds for jobs that declare the same, of which many may come at once.
SAME_S = 1.0
_ANSWERS_KEPT = 256
AGAIN_S = 30.0  # pairs that the predictor did not price


class AwayError(Exception):
    """The predictor does not answer, which says nothing of what it knows."""


class Unanswered(Prediction):
    """The load of a job while the predictor does not answer: nothing is known of its model."""

    away: ClassVar[bool] = True


def without_predictor(demand: Demand, why: str, *, away: bool = False) -> Prediction:
    """Return what is known without a predictor: what was declared, or the whole GPU.

    `away`: it does not answer, which says nothing of what it knows.
    """
    load = unpredicted_load(demand)
    declared = load.memory_source is Source.DECLARED
    then = "its declared memory counts" if declared else "the job gets whole GPUs"
    kind = Unanswered if away else Prediction
    return kind(load=load, explanation=f"{why}; {then}")


class _Request(NamedTuple):
    path: str
    body: dict[str, Any]


class PredictorMetrics:
    """Results of requests to the predictor."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = registry or CollectorRegistry()
        self.requests = Counter(
            "tandem_extender_predictor_requests_total",
            "Requests to the predictor: answered, refused (by a status), failed (no answer in "
            "time), or skipped while the circuit is open.",
            ["outcome"],
            registry=registry,
        )
        for outcome in ("answered", "refused", "failed", "skipped"):
            self.requests.labels(outcome)
        self.open = Gauge(
            "tandem_extender_predictor_circuit_open",
            "1 while the predictor is taken to be away and no job waits for it.",
            registry=registry,
        )


class _Circuit:
    """Open after some requests in a row without an answer in time; a probe closes it again.

    While it is open no caller waits: the last request that failed is repeated in the background,
    one at a time, until it is answered in time (half-open).
    """

    def __init__(
        self, metrics: PredictorMetrics, answers: Callable[[_Request], Awaitable[bool]]
    ) -> None:
        self._metrics = metrics
        self._answers = answers
        self._failures = 0
        self._probing: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """True while the predictor is taken to be away."""
        return self._probing is not None

    def answered(self) -> None:
        """Note an answer that came in time."""
        self._failures = 0

    def failed(self, request: _Request) -> None:
        """Note a request without an answer, or one that took too long."""
        self._failures += 1
        if self._failures >= OPEN_AFTER and self._probing is None:
            log.warning("predictor taken to be away failures=%d", self._failures)
            self._metrics.open.set(1)
            self._probing = asyncio.ensure_future(self._probe(request))

    def stop(self) -> None:
        """Probe no more."""
        if self._probing is not None:
            self._probing.cancel()

    async def _probe(self, request: _Request) -> None:
        while True:
            await asyncio.sleep(PROBE_EVERY_S)
            if await self._answers(request):
                break
        log.info("predictor answers again")
        self._failures = 0
        self._metrics.open.set(0)
        self._probing = None


class HttpPredictor:
    """The predictor service at `url`; without one, declared values or the whole GPU.

    `token` gives the bearer token by which the service knows us, where it asks for one.
    """

    def __init__(
        self,
        url: str | None,
        *,
        token: Callable[[], str] = lambda: "",
        metrics: PredictorMetrics | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._client = (
            httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, transport=transport) if url else None
        )
        self._token = token
        self._metrics = metrics or PredictorMetrics()
        self._circuit = _Circuit(self._metrics, self._answers)
        self._said: dict[PredictRequest, tuple[float, Prediction]] = {}  # and when

    async def predict(
        self, namespace: str, demand: Demand, gpu: GpuKind | None, steps: int = 1
    ) -> Prediction:
        """Return the predicted load of one worker; what was declared where none is known.

        Of a micro-batch, where the batch is run in `steps`.
        """
        if self._client is None:
            return without_predictor(demand, "no predictor is configured")
        if demand.model is None and demand.declared_memory_bytes is None:
            return without_predictor(demand, "neither a model nor its memory is named")
        request = PredictRequest(
            namespace=namespace,
            model=demand.model,
            batch_size=demand.batch_size,
            accumulation_steps=steps,
            precision=demand.precision,
            sequence_length=demand.sequence_length,
            optimizer=demand.optimizer,
            framework=demand.framework,
            parallelism=demand.parallelism,
            workers=demand.gang_size * demand.gpus_per_pod,
            gradient_checkpointing=demand.gradient_checkpointing,
            cpus=demand.cpus,
            gpu_model=gpu.model if gpu else None,
            gpu_memory_bytes=gpu.memory_bytes if gpu else None,
            declared_memory_bytes=demand.declared_memory_bytes,
            declared_utilisation_percent=demand.declared_utilisation_percent,
        )
        said = self._said_of(request)
        if said is not None:
            return said
        answer = await self._post(_Request("/v1/predict", request.wire()))
        if answer is None:
            return without_predictor(demand, "the predictor does not answer", away=True)
        if not answer.is_success:
            why = answer.text[:300]
            log.warning("predictor refused status=%s said=%s", answer.status_code, why)
            away = answer.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR
            return without_predictor(demand, f"the predictor refused: {why}", away=away)
        try:
            prediction = Prediction.model_validate_json(answer.content)
        except ValidationError as error:
            log.warning("predictor unusable error=%r", error)
            return without_predictor(demand, "the predictor's answer cannot be read", away=True)
        self._keep(request, prediction)
        return prediction

    def _said_of(self, request: PredictRequest) -> Prediction | None:
        """Return what the predictor has said of the same a moment ago."""
        at_s, said = self._said.get(request, (-math.inf, None))
        return said if time.monotonic() - at_s < SAME_S else None

    def _keep(self, request: PredictRequest, said: Prediction) -> None:
        """Keep an answer for jobs that declare the same.

        One that a model is not known is not kept: it may be pushed right now.
        """
        unknown = said.load.memory_source in (Source.WHOLE_GPU, Source.DECLARED)
        if request.model is not None and unknown:
            return
        self._said.pop(request, None)
        self._said[request] = (time.monotonic(), said)
        while len(self._said) > _ANSWERS_KEPT:
            del self._said[next(iter(self._said))]

    async def interference(
        self, job: Load, candidates: Sequence[Load], gpu: GpuKind | None
    ) -> InterferenceAnswer | None:
        """Return what the job and each candidate do to one another; None if that is unknown."""
        request = InterferenceRequest(
            job=job, candidates=list(candidates), gpu_model=gpu.model if gpu else None
        )
        answer = await self._post(_Request("/v1/interference", request.wire()))
        if answer is None or not answer.is_success:
            return None
        try:
            return InterferenceAnswer.model_validate_json(answer.content)
        except ValidationError as error:
            log.warning("predictor prices no pairs error=%r", error)
            return None

    async def tell(self, feedback: Feedback) -> bool:
        """Send what a run of a model was observed to use; False where it was not taken."""
        self._said.clear()  # it may say something else from now on
        answer = await self._post(_Request("/v1/feedback", feedback.wire()))
        return answer is not None and answer.is_success

    async def model(self, namespace: str, name: str) -> ModelSummary | None:
        """Return what the service knows of a model; None where it knows none, or is none.

        For readers of the status page: it does not count for the circuit.

        Raises:
            AwayError: it does not say.
        """
        if self._client is None:
            return None
        path = f"/v1/models/{quote(namespace, safe='')}/{quote(name, safe='')}"
        try:
            async with asyncio.timeout(TIMEOUT_S):
                answer = await self._client.get(path, headers=self._headers())
            if answer.status_code == HTTPStatus.NOT_FOUND:
                return None
            answer.raise_for_status()
            return ModelSummary.model_validate_json(answer.content)
        except (httpx.HTTPError, TimeoutError, OSError, ValidationError) as error:
            log.warning("model not read model=%s/%s error=%r", namespace, name, error)
            raise AwayError("the predictor does not answer") from error

    @property
    def is_configured(self) -> bool:
        """True where there is a service to ask."""
        return self._client is not None

    async def answers(self) -> bool:
        """Say whether the service answers at all; its readiness is its own affair."""
        if self._client is None:
            return False
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return (await self._client.get("/healthz")).is_success
        except (httpx.HTTPError, TimeoutError, OSError) as error:
            log.warning("predictor does not answer error=%r", error)
            return False

    def _headers(self) -> dict[str, str]:
        token = self._token()
        return {"authorization": f"Bearer {token}"} if token else {}

    async def _post(self, request: _Request) -> httpx.Response | None:
        """Return the answer; None where there is none in time, or the circuit is open."""
        if self._client is None:
            return None
        if self._circuit.is_open:
            self._metrics.requests.labels("skipped").inc()
            return None
        began = time.perf_counter()
        answer = await self._send(request)
        if answer is None or time.perf_counter() - began > SLOW_S:
            self._circuit.failed(request)
        else:
            self._circuit.answered()
        return answer

    async def _answers(self, request: _Request) -> bool:
        began = time.perf_counter()
        return await self._send(request) is not None and time.perf_counter() - began <= SLOW_S

    async def _send(self, request: _Request) -> httpx.Response | None:
        assert self._client is not None
        try:
            async with asyncio.timeout(TIMEOUT_S):  # httpx's own limits are for each step of it
                answer = await self._client.post(
                    request.path, json=request.body, headers=self._headers()
                )
        except (httpx.HTTPError, TimeoutError, OSError) as error:
            log.warning("predictor does not answer path=%s error=%r", request.path, error)
            self._metrics.requests.labels("failed").inc()
            return None
        self._metrics.requests.labels("answered" if answer.is_success else "refused").inc()
        return answer

    async def aclose(self) -> None:
        """Drop the connections."""
        self._circuit.stop()
        if self._client is not None:
            await self._client.aclose()


@dataclass(eq=False)
class Pricing:
    """Has new classes of loads priced ahead of the plans that need them. On the event loop.

    One class after the other, each against all that are known.
    """

    _predictor: HttpPredictor
    _slowdowns: Slowdowns
    _gpu_kind: Callable[[], GpuKind | None]
    _clock: Callable[[], float]
    _again_s: float = 0.0
    _task: asyncio.Task[None] | None = None

    async def ask(self) -> None:
        """Have all new classes priced; where the predictor is away, the formula holds meanwhile."""
        while self._clock() >= self._again_s:
            asked = self._slowdowns.to_ask()
            if asked is None:
                return
            index, load, others, candidates = asked
            gpu = GpuKind(load.gpu_model, 0) if load.gpu_model else self._gpu_kind()
            answer = await self._predictor.interference(load, candidates, gpu)
            if answer is None:
                self._slowdowns.not_said(index)
                self._again_s = self._clock() + AGAIN_S
                return
            self._slowdowns.said(index, others, answer)

    def step(self) -> None:
        """Ask for what is left, while everything else goes on."""
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self.ask())

    def stop(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()
