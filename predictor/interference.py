"""How much two jobs slow one another down on one GPU, from their loads.

One call prices a job against many candidates. A learned model serves where one was trained and
both loads came from graphs; otherwise Horus' quadratic in the total utilisation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from predictor.artifacts import ArtifactError, Card, serving
from predictor.gpus import UNKNOWN_GPU, GpuType, find_gpu
from predictor.trees import Trees, in_json
from tandem.contracts.prediction import InterferenceAnswer, InterferenceRequest
from tandem.contracts.resources import Load, Source
from tandem.policy.equations.horus import slowdown_over_commit

Floats = NDArray[np.float64]

#: The name of its artifacts, and of the one model that they have.
KIND = "interference"
PART = "speed"
#: A predicted speed below this counts as this: a slowdown of 20.
_SLOWEST = 1 / 21

#: The columns of `pair_features`; `job` is the one whose speed is asked, `partner` the other.
PAIR_FEATURES = (
    "job_utilisation", "job_compute", "job_bandwidth", "job_log_step",
    "partner_utilisation", "partner_compute", "partner_bandwidth", "partner_log_step",
    "total_utilisation", "total_compute", "total_bandwidth", "log_step_ratio",
    "gpu_log_flops", "gpu_log_bandwidth",
)  # fmt: skip


class InterferenceModel(Protocol):
    """Prices pairs of loads on a type of GPU."""

    source: Source
    version: str

    def slowdowns(self, job: Load, partners: Sequence[Load], gpu: GpuType | None) -> Floats:
        """Return (partners, 2): the slowdown of the job, and that of each partner, at least 0."""
        ...

    def out_of_distribution(self, gpu: GpuType | None) -> bool:
        """Whether pairs on this type of GPU are unlike those that it is made of."""
        ...


class HorusInterference:
    """[Horus] Eq. (9)-(10): both slow down alike, by the GPU's total utilisation."""

    source = Source.FORMULA
    version = "horus/1"

    def slowdowns(self, job: Load, partners: Sequence[Load], gpu: GpuType | None) -> Floats:
        """Return (partners, 2) slowdowns; the type of GPU makes no difference."""
        del gpu
        total = np.array([job.utilisation_percent + p.utilisation_percent for p in partners])
        slowdown = (slowdown_over_commit(total) - 1).clip(0.0)
        return np.column_stack([slowdown, slowdown])

    def out_of_distribution(self, gpu: GpuType | None) -> bool:
        """Return False: it knows no types of GPU."""
        del gpu
        return False


class LearnedInterference:
    """A model trained on measured pairs; falls back where a load did not come from a graph."""

    source = Source.MODEL

    def __init__(self, parts: dict[str, bytes], card: Card) -> None:
        if card.features != list(PAIR_FEATURES) or f"{PART}.ubj" not in parts:
            raise ArtifactError(
                f"The interference model {card.version} was trained on other features.",
                "Train it again with this version of Tandem.",
            )
        self.version = f"{KIND}/{card.version}"
        self._gpus = frozenset(card.details.get("gpus", ()))
        self._trees = Trees(in_json(parts)[PART])

    def slowdowns(self, job: Load, partners: Sequence[Load], gpu: GpuType | None) -> Floats:
        """Return (partners, 2) slowdowns; every load must have its shares."""
        others = load_features(partners)
        own = np.repeat(load_features([job]), len(partners), axis=0)
        rows = [pair_features(own, others, gpu), pair_features(others, own, gpu)]
        speed = self._trees.predict(np.concatenate(rows).astype(np.float32))
        slowdown = (1 / speed.clip(_SLOWEST, 1.0) - 1).reshape(2, -1)
        return slowdown.T

    def out_of_distribution(self, gpu: GpuType | None) -> bool:
        """Return True on a type of GPU that it was not trained on."""
        return gpu is None or gpu.name not in self._gpus


class Interference:
    """Prices with the learned model where it can, and with Horus' quadratic otherwise."""

    def __init__(self, learned: LearnedInterference | None = None) -> None:
        self._learned = learned
        self._formula = HorusInterference()

    def answer(self, request: InterferenceRequest) -> InterferenceAnswer:
        """Price a job against every candidate of the request, all by the same model."""
        model: InterferenceModel = self._formula
        loads = (request.job, *request.candidates)
        if self._learned is not None and all(has_shares(load) for load in loads):
            model = self._learned
        gpu = find_gpu(request.gpu_model)
        slowdowns = model.slowdowns(request.job, request.candidates, gpu)
        # All pairs in one call: to make them one by one costs half as much as the model.
        return InterferenceAnswer.model_validate(
            {
                "pairs": [
                    {"job_slowdown": job, "partner_slowdown": partner}
                    for job, partner in slowdowns.tolist()
                ],
                "source": model.source,
                "model_version": model.version,
                "out_of_distribution": model.out_of_distribution(gpu),
            }
        )


def open_interference(directory: Path | None) -> Interference:
    """Return what prices pairs: with the model of `directory`, else the one that is shipped."""
    found = serving(directory, KIND)
    return Interference(LearnedInterference(*found) if found else None)


def pair_features(jobs: Floats, partners: Floats, gpu: GpuType | None) -> Floats:
    """Return the rows of PAIR_FEATURES, (pairs, columns), from the `load_features` of both sides.

    `jobs` and `partners` are (pairs, 4): the speed of each job beside its partner is asked.
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
    """Whether a load says what the job takes of a GPU's rates."""
    return None not in (load.iteration_s, load.compute_share, load.bandwidth_share)


def load_features(loads: Sequence[Load]) -> Floats:
    """Return (loads, 4): utilisation, shares of FLOP rate and bandwidth, log of the step's time."""
    features = np.array(
        [
            (load.utilisation_percent, load.compute_share, load.bandwidth_share, load.iteration_s)
            for load in loads
        ],
        dtype=np.float64,
    ).reshape(-1, 4)
    features[:, 3] = np.log10(features[:, 3])
    return features
