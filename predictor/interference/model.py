"""How much two jobs slow one another down on one GPU, from their loads.

One call prices a job against many candidates. A learned model answers inside its domain: a type
of GPU that it was trained on, and loads like those that it was trained on. Everywhere else the two
jobs are taken to share the GPU's time, shifted by what this type of GPU has shown so far. Every
figure has an upper bound, calibrated on model families that were left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from predictor.artifacts import ArtifactError, Card, serving
from predictor.interference.effects import Effect
from predictor.interference.experience import Experience
from predictor.interference.stored import opened
from predictor.load.equations import taken_turns, time_shared_speed
from tandem.contracts.prediction import InterferenceAnswer, InterferenceRequest
from tandem.contracts.resources import Load, Source
from tandem.gpu_types import UNKNOWN_GPU, GpuType, find_gpu

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

#: The name of its artifacts, and of the one model that they have.
KIND = "interference"
PART = "speed"
#: A predicted speed below this counts as this: a slowdown of 20.
_SLOWEST = 1 / 21
#: log(predicted speed / speed) that 95 % of the pairs stay below, each family of equal weight: of
#: time sharing by utilisations from the graph, and by those from a measured time of a step (no
#: published pairs have measured utilisations); and of a model whose card does not say it.
#: Derived from measured pairs on two types of GPU: docs/evidence/results/predictions.md.
PREDICTED_SPREAD = 0.48
MEASURED_SPREAD = 0.54
_MODEL_SPREAD = 0.40
#: The same of the sum of both speeds: the two sides of a pair do not both come off worst.
PREDICTED_TOTAL_SPREAD = 0.30
MEASURED_TOTAL_SPREAD = 0.37
#: The same that 90 % stay below: by it a cycle plans pairs of which nothing was measured.
PLANNED_TOTAL_SPREAD = 0.208
MEASURED_PLANNED_SPREAD = 0.21
#: Power of time-shared speed where a busy share is predicted: predicted shares saturate, so that
#: the loss they predict is on average one and a half times the loss that is measured.
PREDICTED_SLOPE = 0.65

#: The columns of `pair_features`; `job` is the one whose speed is asked, `partner` the other.
PAIR_FEATURES = (
    "job_utilisation", "job_compute", "job_bandwidth", "job_log_step",
    "partner_utilisation", "partner_compute", "partner_bandwidth", "partner_log_step",
    "total_utilisation", "total_compute", "total_bandwidth", "log_step_ratio",
    "gpu_log_flops", "gpu_log_bandwidth",
)  # fmt: skip


class TimeSharing:
    """Two jobs share the GPU's time: speed is about min(1, 1 / (u1 + u2)), u being busy shares.

    The formula knows no type of GPU. What a type of GPU has shown so far (`Experience`) shifts it,
    and what each model has shown there shifts the pairs of that model.
    Where a utilisation is predicted, only a part of the predicted loss counts. Where both steps'
    times are known, the job with the longer step gets more of the time (`taken_turns`).
    """

    version = "time-sharing/4"

    def __init__(self, experience: Experience | None = None) -> None:
        self.experience = experience or Experience()

    def speeds(self, job: Load, partners: Sequence[Load], gpu_model: str | None) -> Floats:
        """Return (partners, 2): the speeds of the job and of each partner, in (0, 1]."""
        own, *others = (_basis(load) for load in (job, *partners))
        speed = time_shared_speed(np.array([own[0] + other[0] for other in others]))
        speed = np.where(both_measured(job, partners), speed, speed**PREDICTED_SLOPE)
        shift = self.experience.shift(gpu_model)
        equal = np.clip(speed * math.exp(shift), _SLOWEST, 1.0)
        # A step whose time is not known is taken to be as long as the other.
        steps = [(own[3], other[3]) if own[3] and other[3] else (1.0, 1.0) for other in others]
        mine, theirs = np.array(steps, dtype=np.float64).reshape(-1, 2).T
        known = self._effects(job, partners, gpu_model)
        return np.clip(taken_turns(equal, mine, theirs) * np.exp(known), _SLOWEST, 1.0)

    def _effects(self, job: Load, partners: Sequence[Load], gpu_model: str | None) -> Floats:
        """Return (partners, 2): log factors by what the models of both have shown there."""
        hashes = {load.feature_hash for load in (job, *partners)}
        shown = {each: self.experience.effect(gpu_model, each) for each in hashes if each}
        mine = shown.get(job.feature_hash, Effect())
        theirs = [shown.get(partner.feature_hash, Effect()) for partner in partners]
        return np.array(
            [(mine.own + each.caused, each.own + mine.caused) for each in theirs]
        ).reshape(-1, 2)


class LearnedInterference:
    """A model trained on measured pairs, with the domain in which its figures hold."""

    def __init__(self, parts: dict[str, bytes], card: Card) -> None:
        if card.features != list(PAIR_FEATURES) or not parts:
            raise ArtifactError(
                f"The interference model {card.version} was trained on other features.",
                "Train it again with this version of Tandem.",
            )
        self.version = f"{KIND}/{card.version}"
        trained_on = map(find_gpu, card.details.get("gpus", ()))
        self._speeds = frozenset(gpu.speed for gpu in trained_on if gpu is not None)
        self._trees = opened(parts, PART)
        self._domain = LoadDomain.model_validate(card.details.get("domain", {}))
        self.spread = float(card.details.get("spread", _MODEL_SPREAD))

    def speeds(self, job: Load, partners: Sequence[Load], gpu: GpuType | None) -> Floats:
        """Return (partners, 2): speeds of the job and of each partner; loads have their shares."""
        others = load_features(partners)
        own = np.repeat(load_features([job]), len(partners), axis=0)
        rows = [pair_features(own, others, gpu), pair_features(others, own, gpu)]
        speed = self._trees.predict(np.concatenate(rows).astype(np.float32))
        both: Floats = speed.clip(_SLOWEST, 1.0).reshape(2, -1).T
        return both

    def covers(self, gpu: GpuType | None, loads: Sequence[Load]) -> Bools:
        """Return (loads,): whether each load on this type of GPU is like those trained on."""
        covered = np.zeros(len(loads), dtype=np.bool_)
        if gpu is None or gpu.speed not in self._speeds:
            return covered
        known = [index for index, load in enumerate(loads) if has_shares(load)]
        if known:
            covered[known] = self._domain.covers(load_features([loads[i] for i in known]))
        return covered


class LoadDomain(BaseModel):
    """The loads of a training set, by which a new load is recognised as one of their kind.

    A load is covered where the nearest load of the set is not further than `reach`, in units of
    the columns' standard deviations. A set without loads covers none: where nothing says in which
    domain a model's figures hold, the model does not answer.
    """

    model_config = ConfigDict(frozen=True)

    loads: list[list[float]] = []  # (loads, 4), as load_features gives them
    scale: list[float] = []
    reach: float = math.inf

    def covers(self, loads: Floats) -> Bools:
        """Return (loads,): whether each row of `load_features` is covered."""
        if not self.loads:
            return np.zeros(len(loads), dtype=np.bool_)
        seen, scale = np.array(self.loads), np.array(self.scale)
        distance = np.abs(loads[:, None, :] - seen[None, :, :]) / scale
        near: Bools = distance.max(axis=2).min(axis=1) <= self.reach
        return near


class Interference:
    """Prices pairs: the learned model inside its domain, time sharing everywhere else."""

    def __init__(
        self, learned: LearnedInterference | None = None, experience: Experience | None = None
    ) -> None:
        self._learned = learned
        self._formula = TimeSharing(experience)

    def answer(self, request: InterferenceRequest) -> InterferenceAnswer:
        """Price a job against every candidate of the request."""
        job, candidates = request.job, request.candidates
        count = len(candidates)
        gpu = find_gpu(request.gpu_model)
        speed = self._formula.speeds(job, candidates, request.gpu_model)
        measured = both_measured(job, candidates)
        width = self._formula.experience.width(request.gpu_model, MEASURED_SPREAD)
        spread = width * np.where(measured, MEASURED_SPREAD, PREDICTED_SPREAD)
        total_spread = width * np.where(measured, MEASURED_TOTAL_SPREAD, PREDICTED_TOTAL_SPREAD)
        planned = width * np.where(measured, MEASURED_PLANNED_SPREAD, PLANNED_TOTAL_SPREAD)
        in_domain = np.zeros(count, dtype=np.bool_)
        learned = self._learned
        if learned is not None and learned.covers(gpu, [job])[0]:
            in_domain = learned.covers(gpu, candidates)
            at = np.flatnonzero(in_domain)
            if len(at):
                speed[at] = learned.speeds(job, [candidates[i] for i in at], gpu)
                spread[at] = total_spread[at] = planned[at] = learned.spread
        slowdown = 1 / speed - 1
        bound = np.exp(spread)[:, None] / speed - 1
        total = speed.sum(axis=1)
        least, likely = total * np.exp(-total_spread), total * np.exp(-planned)
        outside = ~(in_domain | measured)
        by_model = learned is not None and (bool(in_domain.all()) if count else True)
        # All pairs in one call: to make them one by one costs half as much as the model.
        return InterferenceAnswer.model_validate(
            {
                "pairs": [
                    {
                        "job_slowdown": own, "partner_slowdown": caused,
                        "job_slowdown_p95": own_p95, "partner_slowdown_p95": caused_p95,
                        "total_speed_p5": p5, "total_speed_p10": p10, "out_of_distribution": unseen,
                    }
                    for (own, caused), (own_p95, caused_p95), p5, p10, unseen in zip(
                        slowdown.tolist(), bound.tolist(), least.tolist(), likely.tolist(),
                        outside.tolist(), strict=True,
                    )
                ],
                "source": Source.MODEL if by_model else Source.FORMULA,
                "model_version": (
                    learned.version if learned is not None and by_model else self._formula.version
                ),
                "out_of_distribution": bool(outside.any()),
            }
        )  # fmt: skip


def open_interference(directory: Path | None, experience: Experience | None = None) -> Interference:
    """Return what prices pairs: with the model of `directory`, else the one that is shipped."""
    found = serving(directory, KIND)
    return Interference(LearnedInterference(*found) if found else None, experience)


def both_measured(job: Load, partners: Sequence[Load]) -> Bools:
    """Return (partners,): whether the utilisations of both sides were measured."""
    found = np.array([_measured(each) for each in partners], dtype=np.bool_)
    return found & _measured(job)


def _measured(load: Load) -> bool:
    return load.utilisation_source is Source.OBSERVED


def _basis(load: Load) -> tuple[float, float | None, float | None, float | None]:
    """Return busy share (percent), shares of FLOP rate and bandwidth, time of a step (s).

    They are those of the load's pairs, where it has them and its utilisation was not measured.
    """
    pair = load.pair
    if pair is None or _measured(load):
        return load.utilisation_percent, load.compute_share, load.bandwidth_share, load.iteration_s
    return pair.busy_percent, pair.compute_share, pair.bandwidth_share, pair.step_s


def pair_features(jobs: Floats, partners: Floats, gpu: GpuType | None) -> Floats:
    """Return the rows of PAIR_FEATURES, (pairs, columns), from the `load_features` of both sides.

    `jobs` and `partners` are (pairs, 4): the speed of each job next to its partner is asked.
    """
    gpu = gpu or UNKNOWN_GPU
    device = (math.log10(gpu.training_flops), math.log10(gpu.bandwidth))
    return np.column_stack(
        [
            jobs,
            partners,
            jobs[:, :3] + partners[:, :3],
            jobs[:, 3] - partners[:, 3],
            np.tile(device, (len(jobs), 1)),
        ]
    )


def has_shares(load: Load) -> bool:
    """Return whether a load says what the job takes of a GPU's rates."""
    return None not in _basis(load)


def load_features(loads: Sequence[Load]) -> Floats:
    """Return (loads, 4): busy share, shares of FLOP rate and bandwidth, log of the step's time."""
    features = np.array([_basis(load) for load in loads], dtype=np.float64).reshape(-1, 4)
    features[:, 3] = np.log10(features[:, 3])
    return features
