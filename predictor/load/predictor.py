"""A job's load on one GPU, from the best source that there is.

The first source that answers counts, in this order: what was observed of the configuration, what
follows from other runs of the model, a learned model, the formula, what the user declared, the
whole GPU. Learned estimates come in from outside: `load_model.open_predictor` adds those of the
model that ships, which corrects the formula's memory, utilisation and time of a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from predictor.graph.sequence import at_sequence
from predictor.load.equations import Step
from predictor.load.extrapolation import VERSION as EXTRAPOLATED
from predictor.load.extrapolation import extrapolated_memory, extrapolated_utilisation
from predictor.load.memory import Setup
from predictor.load.observed import find
from predictor.load.sources import (
    Memory,
    MemorySource,
    Question,
    Utilisation,
    UtilisationSource,
    declared_memory,
    declared_utilisation,
    formula_memory,
    formula_utilisation,
    gib,
    observed_memory,
    observed_utilisation,
    whole_memory,
    whole_utilisation,
)
from predictor.load.spread import interval
from tandem.contracts.prediction import Precision, Prediction, PredictRequest
from tandem.contracts.resources import GraphFeatures, Load, Observation, PairLoad, Source
from tandem.contracts.values import LEAST_ITERATION_S, MAX_ITERATION_S
from tandem.gpu_types import find_gpu, type_name

_MAX_BYTES = 2**62  # the sum of two still fits 64 bits
#: By what bounds grow where a size or a cost in the graph is assumed. Not measured: twice the side
#: of an image, or twice the length of a sequence, is within what such graphs are trained at.
DOUBT_FACTOR = 2.0

_Estimate = TypeVar("_Estimate", Memory, Utilisation)


class Predictor:
    """Answers requests; `memory` and `utilisation` are better sources to try before the formula."""

    def __init__(
        self,
        memory: Sequence[MemorySource] = (),
        utilisation: Sequence[UtilisationSource] = (),
    ) -> None:
        self._memory = (
            observed_memory,
            extrapolated_memory,
            *memory,
            formula_memory,
            declared_memory,
        )
        self._utilisation = (
            observed_utilisation,
            extrapolated_utilisation,
            *utilisation,
            formula_utilisation,
            declared_utilisation,
        )

    def predict(
        self,
        request: PredictRequest,
        features: GraphFeatures | None,
        feature_hash: str = "",
        observed: Sequence[Observation] = (),
    ) -> Prediction:
        """Return the load of one worker of the job, and a sentence on where it comes from.

        `observed` is what is known of earlier runs of the model, of any kind.
        """
        parts = []
        if features is not None and request.sequence_length is not None:
            features, remark = at_sequence(features, request.sequence_length)
            parts += [remark] if remark else []
        seen: Observation | None = None
        earlier: tuple[Observation, ...] = ()
        if _trains_as_observed(request):
            seen = _seen(request, feature_hash, observed)
            earlier = tuple(each for each in observed if each.feature_hash == feature_hash)
        question = _question(request, features, seen, earlier)
        memory = _first(self._memory, question) or whole_memory(question)
        utilisation = _first(self._utilisation, question) or whole_utilisation(question)
        doubts = _doubts(question, request)
        if doubts:
            memory = _doubted_memory(memory, question)
            utilisation = _doubted_utilisation(utilisation)
            parts += doubts
        memory = _at_least_declared(memory, question.declared_memory_bytes)
        parts = [memory.why, utilisation.why, *parts]
        if features is not None and request.batch_size is None:
            parts.append("without a batch size the model's graph says nothing of either")
        if Source.FORMULA in (memory.source, utilisation.source):
            parts.append("not measured, so the bounds are wide")
        step, pair = utilisation.step, utilisation.pair
        versions = dict.fromkeys(v for v in (memory.version, utilisation.version) if v)
        load = Load(
            utilisation_percent=utilisation.mean,
            utilisation_p95_percent=utilisation.p95,
            memory_base_bytes=_whole(memory.base),
            memory_peak_extra_bytes=_whole(memory.peak_extra),
            peak_probability=memory.peak_probability,
            memory_p95_bytes=_whole(memory.p95),
            utilisation_source=utilisation.source,
            memory_source=memory.source,
            model_version=" ".join(versions),
            out_of_distribution=memory.out_of_distribution or utilisation.out_of_distribution,
            feature_hash=feature_hash,
            iteration_s=step.seconds if step else None,
            compute_share=step.compute_share if step else None,
            bandwidth_share=step.bandwidth_share if step else None,
            tensor_skew=features.tensor_skew if features else None,
            message_bytes=features.parameter_bytes if features else None,
            peaks_measured=memory.peaks_measured,
            active_s=seen.active_seconds if seen else None,
            idle_s=seen.idle_seconds if seen else None,
            pair=_pair_load(pair) if pair else None,
        )
        explanation = "; ".join(parts) + "."
        return Prediction(
            load=load,
            explanation=explanation[0].upper() + explanation[1:],
            memory_interval_bytes=interval(memory.peak, memory.spread, question.gpu_memory_bytes),
            utilisation_interval_percent=interval(utilisation.mean, utilisation.spread, 100.0),
            iteration_interval_s=interval(step.seconds, utilisation.step_spread) if step else None,
        )


def _pair_load(step: Step) -> PairLoad | None:
    """Return what pairs are priced by; None where no step takes a plausible time."""
    if not LEAST_ITERATION_S <= step.seconds <= MAX_ITERATION_S:
        return None
    return PairLoad(
        busy_percent=step.utilisation_percent,
        step_s=step.seconds,
        compute_share=step.compute_share,
        bandwidth_share=step.bandwidth_share,
    )


def _trains_as_observed(request: PredictRequest) -> bool:
    """Whether a request states nothing by which its runs would differ from those observed."""
    stated = (
        request.precision, request.sequence_length, request.optimizer, request.parallelism
    )  # fmt: skip
    return not any(value is not None for value in stated) and not request.gradient_checkpointing


def _seen(
    request: PredictRequest, feature_hash: str, observed: Sequence[Observation]
) -> Observation | None:
    """Return what was seen of the batch in these steps, else of a batch of a micro-batch's size."""
    gpu, batch, steps = request.gpu_model, request.batch_size, request.accumulation_steps
    seen = find(observed, feature_hash, gpu, batch, steps)
    if seen is None and steps > 1:
        seen = find(observed, feature_hash, gpu, _micro_batch(request))
    return seen


def _micro_batch(request: PredictRequest) -> int | None:
    """Return the samples that are on the GPU at once."""
    if request.batch_size is None:
        return None
    return -(-request.batch_size // request.accumulation_steps)


def _question(
    request: PredictRequest,
    features: GraphFeatures | None,
    observed: Observation | None,
    earlier: tuple[Observation, ...],
) -> Question:
    gpu = find_gpu(request.gpu_model)
    capacity = request.gpu_memory_bytes
    return Question(
        features=features,
        batch_size=_micro_batch(request),
        gpu=gpu,
        gpu_memory_bytes=capacity if capacity is not None or gpu is None else gpu.memory_bytes,
        declared_memory_bytes=request.declared_memory_bytes,
        declared_utilisation_percent=request.declared_utilisation_percent,
        observed=observed,
        earlier=earlier,
        gpu_type=type_name(request.gpu_model),
        setup=Setup(
            precision=request.precision or Precision.FP32,
            optimizer=request.optimizer,
            framework=request.framework,
            parallelism=request.parallelism,
            workers=request.workers,
            gradient_checkpointing=request.gradient_checkpointing,
            cpus=request.cpus,
        ),
    )


def _whole(number_of_bytes: float) -> int:
    return min(round(number_of_bytes), _MAX_BYTES)


def _first(
    sources: Sequence[Callable[[Question], _Estimate | None]], question: Question
) -> _Estimate | None:
    return next((e for source in sources if (e := source(question)) is not None), None)


def _doubts(question: Question, request: PredictRequest) -> list[str]:
    """Return what the figures of a graph rest on that the graph itself does not say."""
    features = question.features
    if features is None or question.batch_size is None:
        return []
    doubts = []
    if features.unknown_operators:
        doubts.append(f"the cost of {', '.join(features.unknown_operators)} is only guessed")
    if features.assumed_sizes:
        sizes = ", ".join(f"{axis} = {size}" for axis, size in features.assumed_sizes.items())
        doubts.append(f"the graph leaves sizes open, which are assumed: {sizes}")
    if features.sequence_length is not None and request.sequence_length is None:
        doubts.append(
            f"the graph leaves the sequence length open: {features.sequence_length} is assumed"
        )
    return doubts


def _rests_on_the_graph(estimate: Memory | Utilisation) -> bool:
    """Whether it is computed from the figures of the graph alone, with no run behind it."""
    return estimate.source in (Source.FORMULA, Source.MODEL) and estimate.version != EXTRAPOLATED


def _doubted_memory(memory: Memory, question: Question) -> Memory:
    if not _rests_on_the_graph(memory):
        return memory
    p95 = max(DOUBT_FACTOR * memory.p95, memory.peak)
    if question.gpu_memory_bytes is not None:
        p95 = max(min(p95, question.gpu_memory_bytes), memory.peak)
    return replace(memory, p95=p95, spread=_doubted(memory.spread), out_of_distribution=True)


def _doubted_utilisation(utilisation: Utilisation) -> Utilisation:
    if not _rests_on_the_graph(utilisation):
        return utilisation
    return replace(
        utilisation,
        p95=min(100.0, DOUBT_FACTOR * utilisation.p95),
        out_of_distribution=True,
        spread=_doubted(utilisation.spread),
        step_spread=_doubted(utilisation.step_spread),
    )


def _doubted(spread: float | None) -> float | None:
    return None if spread is None else spread + math.log(DOUBT_FACTOR)


def _at_least_declared(memory: Memory, declared: int | None) -> Memory:
    """Raise an estimate to what the user declared; a lower declaration changes nothing."""
    if declared is None or declared <= memory.peak or memory.source is Source.DECLARED:
        return memory
    return replace(
        memory,
        base=declared - memory.peak_extra,
        p95=max(memory.p95, declared),
        source=Source.DECLARED,
        peaks_measured=False,
        spread=None,
        why=f"{memory.why}; raised to the {gib(declared)} declared",
    )
