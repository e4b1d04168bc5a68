"""A learned load: what XGBoost learned to correct of the formula, with bounds that were tested.

Each part (memory, utilisation, the time of a step) predicts log(measured) - log(formula). How much
of that corrects the formula was chosen on what training did not see: for each type of GPU that was
trained on by families left out, for all others by types left out. Where that was no better than the
formula, it counts for nothing. Bounds and intervals are the estimate times factors that held on the
same. A graph or a size unlike those that were trained on (the domain) is left to the formula, and
the answer is flagged.
"""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from pydantic import BaseModel, ConfigDict, ValidationError

from predictor.artifacts import ArtifactError, Card, serving
from predictor.load.equations import training_step
from predictor.load.features import LOAD_FEATURES, SUPPORTED, Known, kind_of, known
from predictor.load.predictor import Predictor
from predictor.load.sources import (
    FORMULA_VERSION,
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
from tandem.policy.units import Floats

log = logging.getLogger(__name__)

#: The name of its artifacts, and of their models.
KIND = "load"
MEMORY, UTILISATION, ITERATION = "memory", "utilisation", "iteration"
#: In the place of a type of GPU: all that were not trained on.
ELSEWHERE = "elsewhere"
#: A formula that is corrected by more than this (a factor of 20) was wrong, or the model is.
_MAX_CORRECTION = 3.0
#: Shares within which odds are reckoned, percent: above the second the formula says "busy", and no
#: more.
_LEAST_PERCENT, _MOST_FORMULA = 0.5, 90.0
#: Beyond the range that was trained on by more than this factor (log10) is out of distribution.
_RANGE_MARGIN = 0.15
#: As is a graph of which more nodes than this share are of kinds that training never saw.
_MAX_UNSEEN_SHARE = 0.1

_Estimate = TypeVar("_Estimate", Memory, Utilisation)


class LoadDetails(BaseModel):
    """The parts of a load model apart from its trees."""

    model_config = ConfigDict(frozen=True, extra="allow")

    #: log of the factor from an estimate to its upper bound, by part.
    offsets: dict[str, float]
    #: log of the factor of the 90 % interval, by part; that of the bound where a card has none.
    spreads: dict[str, float] = {}
    #: The same on types of GPU that were not trained on.
    offsets_elsewhere: dict[str, float] = {}
    spreads_elsewhere: dict[str, float] = {}
    #: Types of GPU on which each part answers; all that were trained on where a card has none.
    types: dict[str, list[str]] = {}
    #: By part and type of GPU, or `ELSEWHERE`: how much of what was learned corrects the formula.
    #: Where a card has none, all of it on the types on which the part answers.
    weights: dict[str, dict[str, float]] = {}
    #: Over which formula it was learned; a card of before has none.
    formula: str = ""
    #: What the part of utilisation learned; `learned_percent` has the meaning of each.
    utilisation: Literal["odds", "share", "residual"] = "residual"
    #: Lowest and highest of each of SUPPORTED, in their order.
    low: list[float]
    high: list[float]
    operators: list[str]
    gpus: list[str]
    families: list[str]


class LearnedLoad:
    """The sources that a trained model adds before the formula: `memory` and `utilisation`."""

    def __init__(self, parts: dict[str, bytes], card: Card) -> None:
        if not set(card.features) <= set(LOAD_FEATURES):
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
        # An earlier version had fewer columns, and another formula.
        self._columns = [LOAD_FEATURES.index(name) for name in card.features]
        self.formula = self._details.formula
        self._first = not self.formula

    def memory(self, question: Question) -> Memory | None:
        """Predict memory; passes without a graph, a batch size, or a model of memory."""
        asked = known(question, first=self._first)
        if asked is None or MEMORY not in self._parts:
            return None
        if not self._weight(MEMORY, question):
            return _elsewhere(formula_memory(question))
        if strange := self._strange(asked):
            return _outside(formula_memory(question), strange)
        formula = asked.levels.fixed + asked.levels.varying
        total = formula * math.exp(self._correction(MEMORY, asked, question))
        p95 = total * math.exp(max(self._offset(MEMORY, question), 0.0))
        why = f"memory as learned from measured profiles{self._how_much(MEMORY, question)}"
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
            spread=self._spread(MEMORY, question),
        )

    def utilisation(self, question: Question) -> Utilisation | None:
        """Predict utilisation and the step's time; passes as `memory` does."""
        asked = known(question, first=self._first)
        if asked is None or UTILISATION not in self._parts:
            return None
        formula = formula_utilisation(question)
        busy, timed = (self._weight(part, question) for part in (UTILISATION, ITERATION))
        if not busy and not timed:
            return _elsewhere(formula)
        if strange := self._strange(asked):
            return _outside(formula, strange)
        assert formula is not None
        if timed:
            assert question.batch_size is not None
            seconds = asked.step.seconds * math.exp(self._correction(ITERATION, asked, question))
            gpu = question.gpu or UNKNOWN_GPU
            step = training_step(
                asked.features, question.batch_size, gpu, seconds, question.precision
            )
            formula = replace(formula, step=step, step_spread=self._spread(ITERATION, question))
        if not busy:
            return formula
        mean = float(
            learned_percent(
                asked.step.utilisation_percent, self._learned(UTILISATION, asked), busy,
                self._details.utilisation,
            )
        )  # fmt: skip
        offset = max(self._offset(UTILISATION, question), 0.0)
        return replace(
            formula,
            mean=mean,
            p95=min((mean + 1) * math.exp(offset) - 1, 100.0),
            source=Source.MODEL,
            why=(
                "utilisation as learned from measured profiles"
                f"{self._how_much(UTILISATION, question)}"
            ),
            version=self.version,
            spread=self._spread(UTILISATION, question),
        )

    def _learned(self, part: str, asked: Known) -> float:
        row = np.array([asked.columns], dtype=np.float32)[:, self._columns]
        return float(self._parts[part].predict(row)[0])

    def _correction(self, part: str, asked: Known, question: Question) -> float:
        learned = min(max(self._learned(part, asked), -_MAX_CORRECTION), _MAX_CORRECTION)
        return self._weight(part, question) * learned

    def _weight(self, part: str, question: Question) -> float:
        """Return how much of what a part learned counts on the type of GPU of the question."""
        details, gpu = self._details, question.gpu
        if gpu is None or part not in self._parts:
            return 0.0
        if part in details.weights:
            weights = details.weights[part]
            return weights.get(gpu.name, weights.get(ELSEWHERE, 0.0))
        return 1.0 if gpu.name in details.types.get(part, details.gpus) else 0.0

    def _how_much(self, part: str, question: Question) -> str:
        weight = self._weight(part, question)
        return "" if weight == 1 else f", of which {weight:.0%} corrects the formula"

    def _trained_on(self, part: str, question: Question) -> bool:
        weights = self._details.weights.get(part)
        return weights is None or (question.gpu is not None and question.gpu.name in weights)

    def _offset(self, part: str, question: Question) -> float:
        details = self._details
        here = self._trained_on(part, question)
        return details.offsets[part] if here else details.offsets_elsewhere[part]

    def _spread(self, part: str, question: Question) -> float:
        details = self._details
        if not self._trained_on(part, question):
            return max(details.spreads_elsewhere[part], 0.0)
        return max(details.spreads.get(part, details.offsets[part]), 0.0)

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


def share_logit(percent: ArrayLike, most: float = _MOST_FORMULA) -> Floats:
    """Return log(share / (1 - share)); the share is cut at half a percent and at `most`."""
    share = np.clip(np.asarray(percent, dtype=np.float64), _LEAST_PERCENT, most) / 100
    return np.asarray(np.log(share / (1 - share)))


def learned_percent(formula: ArrayLike, learned: ArrayLike, weight: ArrayLike, kind: str) -> Floats:
    """Return utilisation by the formula, corrected by as much as `weight` of what was learned.

    The estimate lies between the formula and the model, `weight` of the way on a logarithmic scale.
    Of `odds` the model learned the logarithm over those of the formula, which saturates: they count
    as at most 9 to 1. Models of earlier versions learned the share (`share`) or a factor of it.
    """
    percent, what = np.asarray(formula, dtype=np.float64), np.asarray(learned, dtype=np.float64)
    match kind:
        case "odds":
            model = 100 / (1 + np.exp(-(share_logit(percent) + what)))
        case "share":
            model = 100 / (1 + np.exp(-what))
        case _:
            bounded = np.clip(what, -_MAX_CORRECTION, _MAX_CORRECTION)
            model = np.maximum((percent + 1) * np.exp(bounded) - 1, 0.0)
    way = np.asarray(weight) * (np.log(model + 1) - np.log(percent + 1))
    return np.asarray(np.clip((percent + 1) * np.exp(way) - 1, 0.0, 100.0))


def _elsewhere(formula: _Estimate | None) -> _Estimate | None:
    """Return what the formula says on a type of GPU on which the model does not answer."""
    if formula is None:
        return None
    return replace(formula, why=f"{formula.why} (no learned model covers this type of GPU)")


def _outside(formula: _Estimate | None, strange: str) -> _Estimate | None:
    """Return what the formula says, with the reason why the model does not answer."""
    if formula is None:
        return None
    why = f"{formula.why} (the learned model does not apply: {strange})"
    return replace(formula, why=why, out_of_distribution=True)


def open_load(directory: Path | None) -> LearnedLoad | None:
    """Return the load model of `directory`, else the one that is shipped, if there is one.

    Raises ArtifactError when its files are missing, damaged, or of another version of Tandem. A
    model that learned to correct another formula is used, and logged.
    """
    found = serving(directory, KIND)
    if found is None:
        return None
    model = LearnedLoad(*found)
    if model.formula != FORMULA_VERSION:
        log.warning(
            "the load model %s corrects an earlier formula (%s, now %s): train it again",
            model.version, model.formula or "the first", FORMULA_VERSION,
        )  # fmt: skip
    return model


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
