"""Asking the predictor for a load; whatever happens there, a job gets an answer and goes on."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import httpx
from pydantic import ValidationError

from scheduler_extender.cluster.jobs import unpredicted_load
from tandem.contracts.prediction import (
    Feedback,
    InterferenceAnswer,
    InterferenceRequest,
    Prediction,
    PredictRequest,
)
from tandem.contracts.resources import Demand, Load

log = logging.getLogger(__name__)

TIMEOUT_S = 2.0


class Predictor(Protocol):
    """Says what a job will use."""

    async def predict(self, namespace: str, demand: Demand, gpu: GpuKind | None) -> Prediction:
        """Return the predicted load of one worker of the job; never raises for want of one."""
        ...

    async def interference(
        self, job: Load, candidates: Sequence[Load], gpu: GpuKind | None
    ) -> InterferenceAnswer | None:
        """Return what the job and each candidate do to one another; None if nobody can say."""
        ...


class GpuKind(Protocol):
    """The type of GPU that a prediction is for."""

    @property
    def model(self) -> str:
        """Name as NVML gives it."""
        ...

    @property
    def memory_bytes(self) -> int:
        """Total memory."""
        ...


def without_predictor(demand: Demand, why: str) -> Prediction:
    """Return what is known without a predictor: what was declared, or the whole GPU."""
    load = unpredicted_load(demand)
    return Prediction(load=load, explanation=f"{why}; {load.memory_source.value} counts")


class HttpPredictor:
    """The predictor service at `url`; without one, declared values or the whole GPU."""

    def __init__(self, url: str | None) -> None:
        self._client = httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S) if url else None

    async def predict(self, namespace: str, demand: Demand, gpu: GpuKind | None) -> Prediction:
        """Ask the service; fall back to what was declared where it cannot say."""
        if self._client is None:
            return without_predictor(demand, "no predictor is configured")
        if demand.model is None and demand.declared_memory_bytes is None:
            return without_predictor(demand, "neither a model nor its memory is named")
        request = PredictRequest(
            namespace=namespace,
            model=demand.model,
            batch_size=demand.batch_size,
            gpu_model=gpu.model if gpu else None,
            gpu_memory_bytes=gpu.memory_bytes if gpu else None,
            declared_memory_bytes=demand.declared_memory_bytes,
            declared_utilisation_percent=demand.declared_utilisation_percent,
        )
        try:
            answer = await self._client.post("/v1/predict", json=request.wire())
            answer.raise_for_status()
            return Prediction.model_validate_json(answer.content)
        except httpx.HTTPStatusError as error:
            said = error.response.text[:300]
            log.warning("predictor refused status=%s said=%s", error.response.status_code, said)
            return without_predictor(demand, f"the predictor refused: {said}")
        except (httpx.HTTPError, ValidationError) as error:
            log.warning("predictor unusable error=%r", error)
            return without_predictor(demand, "the predictor is not reachable")

    async def interference(
        self, job: Load, candidates: Sequence[Load], gpu: GpuKind | None
    ) -> InterferenceAnswer | None:
        """Ask the service, all candidates in one call."""
        if self._client is None:
            return None
        request = InterferenceRequest(
            job=job, candidates=list(candidates), gpu_model=gpu.model if gpu else None
        )
        try:
            answer = await self._client.post("/v1/interference", json=request.wire())
            answer.raise_for_status()
            return InterferenceAnswer.model_validate_json(answer.content)
        except (httpx.HTTPError, ValidationError) as error:
            log.warning("predictor prices no pairs error=%r", error)
            return None

    async def tell(self, feedback: Feedback) -> bool:
        """Send what a run of a model was observed to use; False where it was not taken."""
        if self._client is None:
            return False
        try:
            answer = await self._client.post("/v1/feedback", json=feedback.wire())
        except httpx.HTTPError as error:
            log.warning("predictor not told error=%r", error)
            return False
        return answer.is_success

    async def aclose(self) -> None:
        """Drop the connections."""
        if self._client is not None:
            await self._client.aclose()
