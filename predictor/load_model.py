"""A learned load: what XGBoost learned to correct of the formula, with bounds that were tested.

Each part (memory, utilisation, iteration) predicts log1p(measured) - log1p(formula). Memory's upper
bound is the estimate times a factor that held on families left out of training. Outside of what it
was trained on (its domain) the model is not used: the formula answers, and the answer is flagged.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from predictor import spread
from predictor.artifacts import ArtifactError, Card, serving
from predictor.equations import training_step
from predictor.gpus import UNKNOWN_GPU
from predictor.load_features import LOAD_FEATURES, SUPPORTED, Known, known
from predictor.sources import (
    PEAK_LEVEL,
    Memory,
    Question,
    Utilisation,
    formula_memory,
    formula_utilisation,
    gib,
)
from predictor.trees import Trees, in_json
from tandem.contracts.resources import Source

#: The name of its artifacts, and of their models.
KIND = "load"
MEMORY, UTILISATION, ITERATION = "memory", "utilisation", "iteration"
#: A formula that is corrected by more than this (a factor of 20) was wrong, or the model is.
_MAX_CORRECTION = 3.0
#: Beyond the range that was trained on by more than this factor (log10) is out of distribution.
_RANGE_MARGIN = 0.15
#: As is a graph of which more nodes than this share are of kinds that training never saw.
_MAX_UNSEEN_SHARE = 0.1

_Estimate = TypeVar("_Estimate", Memory, Utilisation)


class LoadDetails(BaseModel):
    """What a load model needs beside its trees."""

    model_config = ConfigDict(frozen=True, extra="allow")

    #: log of the factor from an estimate to its upper bound, by part.
    offsets: dict[str, float]
    #: Lowest and highest of each of SUPPORTED, in their order.
    low: list[float]
    high: list[float]
    operators: list[str]
    gpus: list[str]
    families: list[str]


class LearnedLoad:
    """The sources that a trained model adds before the formula: `memory` and `utilisation`."""

    def __init__(self, parts: dict[str, bytes], card: Card) -> None:
        if card.features != list(LOAD_FEATURES):
            raise ArtifactError(
                f"The load model {card.version} was trained on other features.",
                "Train it again with this version of Tandem.",
            )
        try:
            self._details = LoadDetails.model_validate(card.details)
        except ValidationError as error:
            raise ArtifactError(f"The card of the load model {card.version} is damaged.") from error
        self.version = f"{KIND}/{card.version}"
        self._parts = {name: Trees(model) for name, model in in_json(parts).items()}
        self._range = np.array([self._details.low, self._details.high])
        self._supported = [LOAD_FEATURES.index(name) for name in SUPPORTED]

    def memory(self, question: Question) -> Memory | None:
        """Predict memory; passes without a graph, a batch size, or a model of memory."""
        asked = known(question)
        if asked is None or MEMORY not in self._parts:
            return None
        if strange := self._strange(asked, question):
            return _outside(formula_memory(question), strange)
        formula = asked.levels.fixed + asked.levels.varying
        total = formula * math.exp(self._correction(MEMORY, asked))
        p95 = total * math.exp(max(self._details.offsets[MEMORY], 0.0))
        why = "memory as learned from measured profiles"
        capacity = question.gpu_memory_bytes
        if capacity is not None and total > capacity:
            why += f": {gib(total)}, more than the GPU's {gib(capacity)}, so all of it"
            return Memory(capacity, 0, 0, capacity, Source.MODEL, why, self.version, True)
        extra = total * (1 - PEAK_LEVEL) * asked.levels.varying / formula
        return Memory(
            total - extra,
            extra,
            1 - PEAK_LEVEL,
            p95 if capacity is None else min(p95, capacity),
            Source.MODEL,
            why,
            self.version,
            spread=max(self._details.offsets[MEMORY], 0.0),
        )

    def utilisation(self, question: Question) -> Utilisation | None:
        """Predict utilisation and the step's time; passes as `memory` does."""
        asked = known(question)
        if asked is None or UTILISATION not in self._parts:
            return None
        if strange := self._strange(asked, question):
            return _outside(formula_utilisation(question), strange)
        correction = math.exp(self._correction(UTILISATION, asked))
        mean = min((asked.step.utilisation_percent + 1) * correction - 1, 100.0)
        mean = max(mean, 0.0)
        p95 = min((mean + 1) * math.exp(max(self._details.offsets[UTILISATION], 0.0)) - 1, 100.0)
        step, step_spread = asked.step, spread.STEP
        if ITERATION in self._parts:
            step_spread = max(self._details.offsets.get(ITERATION, spread.STEP), 0.0)
            assert question.batch_size is not None
            seconds = step.seconds * math.exp(self._correction(ITERATION, asked))
            gpu = question.gpu or UNKNOWN_GPU
            step = training_step(
                asked.features, question.batch_size, gpu, seconds, question.precision
            )
        why = "utilisation as learned from measured profiles"
        return Utilisation(
            mean, p95, Source.MODEL, why, self.version, step=step,
            spread=max(self._details.offsets[UTILISATION], 0.0), step_spread=step_spread,
        )  # fmt: skip

    def _correction(self, part: str, asked: Known) -> float:
        row = np.array([asked.columns], dtype=np.float32)
        learned = float(self._parts[part].predict(row)[0])
        return min(max(learned, -_MAX_CORRECTION), _MAX_CORRECTION)

    def _strange(self, asked: Known, question: Question) -> str:
        """Return what was never seen in training, or nothing."""
        details = self._details
        if question.gpu is None or question.gpu.name not in details.gpus:
            return "a type of GPU that it was not trained on"
        if asked.features.unresolved_nodes:
            return "some shapes are unknown"
        ops = asked.features.op_counts
        unseen = sum(count for op, count in ops.items() if op not in details.operators)
        if unseen > _MAX_UNSEEN_SHARE * sum(ops.values()):
            return "operators that it was not trained on"
        figures = np.array(asked.columns)[self._supported]
        outside = (figures < self._range[0] - _RANGE_MARGIN) | (
            figures > self._range[1] + _RANGE_MARGIN
        )
        if outside.any():
            return f"{SUPPORTED[int(outside.argmax())]} outside of what it was trained on"
        return ""


def _outside(formula: _Estimate | None, strange: str) -> _Estimate | None:
    """Return what the formula says, with the reason why the model does not answer."""
    if formula is None:
        return None
    why = f"{formula.why} (the learned model does not apply: {strange})"
    return replace(formula, why=why, out_of_distribution=True)


def open_load(directory: Path | None) -> LearnedLoad | None:
    """Return the load model of `directory`, else the one that is shipped, if there is one."""
    found = serving(directory, KIND)
    return LearnedLoad(*found) if found else None
