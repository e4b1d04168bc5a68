"""Measured pairs in, a trained model of interference out, or the reason why none was published.

A file of pairs has one JSON object a line (`MeasuredPair`): two loads that ran together on a GPU,
and the speed of each as a share of its speed alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from predictor.artifacts import Artifacts, Card
from predictor.interference.model import (
    KIND,
    PAIR_FEATURES,
    PART,
    LoadDomain,
    has_shares,
    load_features,
    pair_features,
)
from predictor.interference.pairs import MeasuredPair
from predictor.interference.stored import STORABLE, parts_of
from predictor.training.selection import (
    QUADRATIC,
    Pairs,
    candidates,
    choose,
    mean_absolute_error,
    random_folds,
    unseen_models,
    unseen_pairs,
)
from tandem.errors import TandemError, UsageError
from tandem.files import read_text
from tandem.gpu_types import find_gpu

#: Fewer families than this, and an error on unseen ones says nothing.
MIN_FAMILIES = 4
MIN_PAIRS = 50
#: Below this, a published model must beat the quadratic on unseen models; 2 % above is a tie.
_TIE = 1.02
_LEVEL = 0.95


def read_pairs(file: Path) -> list[MeasuredPair]:
    """Read a file of pairs; raises UsageError naming the first bad line."""
    lines = read_text(file).split("\n")
    found = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            pair = MeasuredPair.model_validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the line"
            raise UsageError(f"{file}, line {number}: {where}: {first['msg']}.") from None
        if not (has_shares(pair.first.load) and has_shares(pair.second.load)):
            raise UsageError(
                f"{file}, line {number}: a load lacks iterationS, computeShare or bandwidthShare.",
                "Predict the loads from the models' graphs: `tandem predict FILE.onnx --json`.",
            )
        found.append(pair)
    return found


def table(measured: Iterable[MeasuredPair]) -> Pairs:
    """Return both directions of every pair as rows."""
    rows: list[tuple[Any, ...]] = []
    for pair in measured:
        label = " + ".join(sorted((pair.first.name, pair.second.name)))
        gpu = find_gpu(pair.gpu_model)
        for job, partner in ((pair.first, pair.second), (pair.second, pair.first)):
            own, others = (load_features([side.load]) for side in (job, partner))
            (features,) = pair_features(own, others, gpu)
            speed = min(job.speed, 1.0)
            rows.append((features, speed, job.family, partner.family, label, pair.gpu_model))
    return Pairs(*(np.array(column) for column in zip(*rows, strict=True)))


def compare(pairs: Pairs) -> dict[str, dict[str, float]]:
    """Return each candidate's mean absolute error of speed, on each split."""
    return {
        name: {
            "random": mean_absolute_error(make, pairs, random_folds(pairs)),
            "unseen_pair": mean_absolute_error(make, pairs, unseen_pairs(pairs)),
            "unseen_model": mean_absolute_error(make, pairs, unseen_models(pairs)),
        }
        for name, make in candidates().items()
    }


def train(measured: list[MeasuredPair], artifacts: Artifacts) -> Card:
    """Train on all pairs and publish the best kind of model, if it beats Horus' quadratic.

    The best is that with the least mean of two errors, on unseen pairs and on unseen models, among
    those that can be stored ([OJPP] 4.2, AIP): inside its domain it answers for new pairs of known
    jobs and for new jobs. It must be better than the quadratic on unseen pairs, and not worse by
    more than 2 % on unseen models.
    Raises TandemError when it is not, or when there is too little data.
    """
    families = {job.family for pair in measured for job in (pair.first, pair.second)}
    if len(measured) < MIN_PAIRS or len(families) < MIN_FAMILIES:
        raise TandemError(
            f"{len(measured)} pairs of {len(families)} families are too few to learn from.",
            f"Measure at least {MIN_PAIRS} pairs of {MIN_FAMILIES} families.",
        )
    pairs = table(measured)
    errors = compare(pairs)
    chosen = choose(
        {
            name: (by["unseen_pair"] + by["unseen_model"]) / 2
            for name, by in errors.items()
            if name in STORABLE
        }
    )
    _check_better(errors, chosen)
    learner: Any = candidates()[chosen]()
    learner.fit(pairs.features, pairs.speed)
    gpus = Counter(pair.gpu_model for pair in measured)
    card = {
        "features": list(PAIR_FEATURES),
        "trained_on": dict(gpus) | {"pairs": len(measured), "families": len(families)},
        "errors": errors,
        "chosen": chosen,
        "details": {
            "gpus": sorted({gpu.name for name in gpus if (gpu := find_gpu(name)) is not None}),
            "families": sorted(families),
            "domain": _domain(measured).model_dump(),
            "spread": spread(pairs, chosen),
        },
    }
    return artifacts.publish(KIND, parts_of(PART, learner), card)


def spread(pairs: Pairs, chosen: str) -> float:
    """Return log(predicted / measured speed) that 95 % of the pairs of an unseen family stay below.

    Each pair is predicted by a model that never saw one of its two families; each family that is
    left out has the same weight.
    """
    make = candidates()[chosen]
    over, weights = [], []
    for train_rows, test_rows in unseen_models(pairs):
        learner = make()
        learner.fit(pairs.features[train_rows], pairs.speed[train_rows])
        predicted = np.clip(learner.predict(pairs.features[test_rows]), 1 / 21, 1.0)
        over.append(np.log(predicted / np.clip(pairs.speed[test_rows], 1 / 21, 1.0)))
        weights.append(np.full(len(test_rows), 1 / len(test_rows)))
    scores, weight = np.concatenate(over), np.concatenate(weights)
    order = np.argsort(scores)
    reached = np.cumsum(weight[order]) / weight.sum()
    quantile = scores[order][min(int(np.searchsorted(reached, _LEVEL)), len(scores) - 1)]
    return max(round(float(quantile), 4), 0.0)


def _domain(measured: Iterable[MeasuredPair]) -> LoadDomain:
    """Return the loads trained on; `reach` is the 95 % quantile of their nearest distances.

    The distance of a load to the nearest one of the same family counts for nothing where it is the
    same configuration on another type of GPU: those are one load here.
    """
    by_name = {
        (pair.gpu_model, job.name): job.load
        for pair in measured
        for job in (pair.first, pair.second)
    }
    loads = load_features(list(by_name.values()))
    names = np.array([name for _, name in by_name])
    scale = np.maximum(loads.std(axis=0), 1e-3)
    distance = (np.abs(loads[:, None] - loads[None]) / scale).max(axis=2)
    distance[names[:, None] == names[None]] = np.inf
    nearest = distance.min(axis=1)
    return LoadDomain(
        loads=loads.round(4).tolist(),
        scale=scale.round(4).tolist(),
        reach=round(float(np.quantile(nearest[np.isfinite(nearest)], 0.95)), 4),
    )


def _check_better(errors: dict[str, dict[str, float]], chosen: str) -> None:
    ours, bar = errors[chosen], errors[QUADRATIC]
    if ours["unseen_pair"] >= bar["unseen_pair"] or (
        ours["unseen_model"] > _TIE * bar["unseen_model"]
    ):
        raise TandemError(
            "The trained model is no better than the quadratic in total utilisation "
            f"(unseen pairs {ours['unseen_pair']:.3f} and {bar['unseen_pair']:.3f}, unseen models "
            f"{ours['unseen_model']:.3f} and {bar['unseen_model']:.3f}), so it was not published.",
            "Measure more pairs, of more families.",
        )
