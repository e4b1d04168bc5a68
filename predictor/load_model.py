"""A learned load: what XGBoost learned to correct of the formula, with bounds that were tested.

Memory and iteration predict log(measured) - log(formula), utilisation predicts the logit of the
share. Bounds and intervals are the estimate times factors that held on families left out of
training. The model answers on the types of GPU on which it beat the formula on such families; on
every other type the formula answers. On its types, a graph or a size unlike those that it was
trained on (its domain) is left to the formula as well, and the answer is flagged.
"""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from predictor import spread
from predictor.artifacts import ArtifactError, Card, serving
from predictor.equations import training_step
from predictor.load import Predictor
from predictor.load_features import LOAD_FEATURES, SUPPORTED, Known, kind_of, known
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
from tandem.gpu_types import UNKNOWN_GPU

log = logging.getLogger(__name__)

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
    #: log of the factor of the 90 % interval, by part; that of the bound where a card has none.
    spreads: dict[str, float] = {}
    #: Types of GPU on which each part answers; all that were trained on where a card has none.
    types: dict[str, list[str]] = {}
    #: What the part of utilisation learned: the share's logit, or what to correct of the formula.
    utilisation: Literal["share", "residual"] = "residual"
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
        if not self._answers(MEMORY, question):
            return _elsewhere(formula_memory(question))
        if strange := self._strange(asked):
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
            spread=self._spread(MEMORY),
        )

    def utilisation(self, question: Question) -> Utilisation | None:
        """Predict utilisation and the step's time; passes as `memory` does."""
        asked = known(question)
        if asked is None or UTILISATION not in self._parts:
            return None
        if not self._answers(UTILISATION, question):
            return _elsewhere(formula_utilisation(question))
        if strange := self._strange(asked):
            return _outside(formula_utilisation(question), strange)
        if self._details.utilisation == "share":
            mean = float(share_percent(self._learned(UTILISATION, asked)))
        else:
            correction = math.exp(self._correction(UTILISATION, asked))
            mean = (asked.step.utilisation_percent + 1) * correction - 1
        mean = min(max(mean, 0.0), 100.0)
        p95 = min((mean + 1) * math.exp(max(self._details.offsets[UTILISATION], 0.0)) - 1, 100.0)
        step, step_spread = asked.step, spread.STEP
        if ITERATION in self._parts and self._answers(ITERATION, question):
            step_spread = self._spread(ITERATION)
            assert question.batch_size is not None
            seconds = step.seconds * math.exp(self._correction(ITERATION, asked))
            gpu = question.gpu or UNKNOWN_GPU
            step = training_step(
                asked.features, question.batch_size, gpu, seconds, question.precision
            )
        why = "utilisation as learned from measured profiles"
        return Utilisation(
            mean, p95, Source.MODEL, why, self.version, step=step,
            spread=self._spread(UTILISATION), step_spread=step_spread,
        )  # fmt: skip

    def _learned(self, part: str, asked: Known) -> float:
        row = np.array([asked.columns], dtype=np.float32)
        return float(self._parts[part].predict(row)[0])

    def _correction(self, part: str, asked: Known) -> float:
        return min(max(self._learned(part, asked), -_MAX_CORRECTION), _MAX_CORRECTION)

    def _spread(self, part: str) -> float:
        details = self._details
        return max(details.spreads.get(part, details.offsets[part]), 0.0)

    def _answers(self, part: str, question: Question) -> bool:
        """Whether a part answers on the type of GPU of the question."""
        types = self._details.types.get(part, self._details.gpus)
        return question.gpu is not None and question.gpu.name in types

    def _strange(self, asked: Known) -> str:
        """Return what was never seen in training, or nothing."""
        details = self._details
        if asked.features.unresolved_nodes:
            return "some shapes are unknown"
        ops = asked.features.op_counts
        seen = set(map(kind_of, details.operators))
        unseen = sum(count for op, count in ops.items() if kind_of(op) not in seen)
        if unseen > _MAX_UNSEEN_SHARE * sum(ops.values()):
            return "operators that it was not trained on"
        figures = np.array(asked.columns)[self._supported]
        outside = (figures < self._range[0] - _RANGE_MARGIN) | (
            figures > self._range[1] + _RANGE_MARGIN
        )
        if outside.any():
            return f"{SUPPORTED[int(outside.argmax())]} outside of what it was trained on"
        return ""


def share_percent(logit: ArrayLike) -> NDArray[np.float64]:
    """Return the share of which a logit was learned, percent."""
    return 100 / (1 + np.exp(-np.asarray(logit, dtype=np.float64)))


def _elsewhere(formula: _Estimate | None) -> _Estimate | None:
    """Return what the formula says on a type of GPU on which the model does not answer."""
    if formula is None:
        return None
    return replace(formula, why=f"{formula.why} (the learned model does not answer on this GPU)")


def _outside(formula: _Estimate | None, strange: str) -> _Estimate | None:
    """Return what the formula says, with the reason why the model does not answer."""
    if formula is None:
        return None
    why = f"{formula.why} (the learned model does not apply: {strange})"
    return replace(formula, why=why, out_of_distribution=True)


def open_load(directory: Path | None) -> LearnedLoad | None:
    """Return the load model of `directory`, else the one that is shipped, if there is one.

    Raises ArtifactError when its files are missing, damaged, or of another version of Tandem.
    """
    found = serving(directory, KIND)
    return LearnedLoad(*found) if found else None


def open_predictor(directory: Path | None, *, learned: bool = True) -> Predictor:
    """Return what predicts loads: with the model of `directory`, else the one that is shipped.

    The formula alone answers where the model cannot be read, which is logged, or is not wanted.
    """
    if not learned:
        log.info("the learned load model is disabled: the formula answers")
        return Predictor()
    try:
        model = open_load(directory)
    except ArtifactError as error:
        log.warning(
            "the learned load model is not used, the formula answers: %s %s",
            error.message, error.hint,
        )  # fmt: skip
        return Predictor()
    return Predictor([model.memory], [model.utilisation]) if model else Predictor()
