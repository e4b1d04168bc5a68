"""Messages of the predictor service."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from tandem.contracts.base import Message
from tandem.contracts.learning import Neighbour
from tandem.contracts.resources import (
    Bytes,
    GraphFeatures,
    Load,
    Observation,
    Percent,
    Probability,
    Source,
)

# Named here as well: they are fields of the messages.
from tandem.contracts.resources import Framework as Framework
from tandem.contracts.resources import Optimizer as Optimizer
from tandem.contracts.resources import Parallelism as Parallelism
from tandem.contracts.resources import Precision as Precision
from tandem.contracts.values import Cpus, Figure, Label, Measured, PhaseSeconds, Rate, Reference

#: Kubernetes stores integers in 64 bits; Python reads larger ones without complaint.
Size = Annotated[int, Field(ge=0, le=2**63 - 1)]
BatchSize = Annotated[int, Field(ge=1, le=2**31 - 1)]
Steps = Annotated[int, Field(ge=1, le=2**31 - 1)]
AnySlowdown = Annotated[float, Field(ge=0, le=1e6)]
Candidates = Annotated[list[Load], Field(max_length=4096)]


class ModelSummary(Message):
    """The answer to a push, and one row of the list of models."""

    namespace: str
    name: str
    feature_hash: str
    file_sha256: str
    file_bytes: Bytes
    features: GraphFeatures
    observed: list[Observation] = []


class ModelList(Message):
    """The models of one namespace, or of all; sorted by namespace and name."""

    models: list[ModelSummary]


class InterferenceRequest(Message):
    """Asks how a job and each of many candidates would slow one another down on one GPU."""

    job: Load
    candidates: Candidates
    gpu_model: Label | None = None


class PairSlowdown(Message):
    """Slowdown (t_colocated / t_solo - 1, at least 0) of the job and of its partner.

    `*_slowdown` is the estimate. `*_slowdown_p95` is the upper bound that 95 % of pairs of unseen
    model families stay below; it is absent in answers of earlier versions of the predictor.
    `total_speed_p5` is the lower bound of the sum of both speeds, which 95 % of such pairs exceed:
    the two do not both come off worst. 90 % of them exceed `total_speed_p10`. `out_of_distribution`
    means that no model was trained on such a pair and that at least one of the two loads was never
    measured.
    """

    job_slowdown: AnySlowdown
    partner_slowdown: AnySlowdown
    job_slowdown_p95: AnySlowdown | None = None
    partner_slowdown_p95: AnySlowdown | None = None
    total_speed_p5: Annotated[float, Field(gt=0, le=2)] | None = None
    total_speed_p10: Annotated[float, Field(gt=0, le=2)] | None = None
    out_of_distribution: bool = False

    @property
    def planned(self) -> tuple[float, float]:
        """Return the slowdowns of the job and of its partner that a scheduling cycle uses.

        Of a pair out of distribution the bounds count, because its estimate may be wrong in either
        direction; of every other pair the estimates count. What sharing is worth is the sum of both
        speeds, so both are slowed down until they add up to its lower bound: that of nine in ten
        pairs, where an answer has it.
        """
        if not self.out_of_distribution:
            return self.job_slowdown, self.partner_slowdown
        least = self.total_speed_p5 if self.total_speed_p10 is None else self.total_speed_p10
        if least is not None:
            total = 1 / (1 + self.job_slowdown) + 1 / (1 + self.partner_slowdown)
            slower = max(total / least, 1.0)
            return slower * (1 + self.job_slowdown) - 1, slower * (1 + self.partner_slowdown) - 1
        bounds = self.job_slowdown_p95, self.partner_slowdown_p95
        job, partner = (0.0 if bound is None else bound for bound in bounds)
        return max(self.job_slowdown, job), max(self.partner_slowdown, partner)


class InterferenceAnswer(Message):
    """One entry for each candidate, in order.

    `source` is `model` where a trained model priced every pair, otherwise `formula`.
    `out_of_distribution` means that at least one pair is.
    """

    pairs: list[PairSlowdown]
    source: Source
    model_version: Label = ""
    out_of_distribution: bool = False


class PredictRequest(Message):
    """Predict the load of one worker of a job on one GPU.

    `model` names a ModelProfile in `namespace`; without it only what the user declared is known,
    and without that the answer is the whole GPU. `sequence_length` (tokens, frames) counts where
    the graph left it open. With `accumulation_steps` the batch runs in so many micro-batches:
    memory and the time of an iteration are those of one micro-batch. Where nothing is said,
    `precision` is the framework's default, and an `optimizer` keeps one copy, two in the upper
    bound. `framework` is that of the graph's producer where nothing is said. `parallelism` divides
    weights and states among `workers` GPUs. What was observed of the model answers only requests
    that state none of precision, sequence length, optimizer, parallelism, gradient checkpointing.
    `cpus` is what the job asks for, for each GPU: they make its input.
    With `candidates` the answer also has how the job and each of them would slow one another down.
    """

    namespace: Reference = "default"
    model: Reference | None = None
    batch_size: BatchSize | None = None
    accumulation_steps: Steps = 1
    precision: Precision | None = None
    sequence_length: Annotated[int, Field(ge=1, le=2**20)] | None = None
    optimizer: Optimizer | None = None
    framework: Framework | None = None
    parallelism: Parallelism | None = None
    workers: Annotated[int, Field(ge=1, le=2**20)] = 1
    gradient_checkpointing: bool = False
    cpus: Cpus | None = None
    gpu_model: Label | None = None
    gpu_memory_bytes: Size | None = None
    declared_memory_bytes: Size | None = None
    declared_utilisation_percent: Percent | None = None
    candidates: Candidates | None = None


class Interval(Message):
    """Between which figures 90 % of the models of unseen families are."""

    low: Figure
    high: Figure


class Prediction(Message):
    """A predicted load, with a sentence for people on where it comes from.

    The intervals are absent where a figure was declared or nothing is known; that of memory is of
    the peak. `interference` is there where candidates were named.
    """

    #: False of all that the predictor says; the scheduler's own answer where it does not answer.
    away: ClassVar[bool] = False

    load: Load
    explanation: str
    memory_interval_bytes: Interval | None = None
    utilisation_interval_percent: Interval | None = None
    iteration_interval_s: Interval | None = None
    interference: InterferenceAnswer | None = None


class Feedback(Message):
    """What one run of a model was measured to use, per worker and GPU, by the node agent.

    The run split each batch of `batch_size` into `accumulation_steps` micro-batches.
    `peaks_measured` says that the agent has fitted the course of its memory. `active_seconds` and
    `idle_seconds` are of the time in which it was alone on its GPU.
    """

    namespace: Reference = "default"
    model: Reference
    batch_size: BatchSize
    accumulation_steps: Steps = 1
    gpu_model: Annotated[str, Field(min_length=1, max_length=128)]
    memory_base_bytes: Size
    memory_peak_bytes: Size
    peak_probability: Probability = 0.0
    peaks_measured: bool = False
    utilisation_percent: Percent
    active_seconds: Annotated[PhaseSeconds | None, Measured] = None
    idle_seconds: Annotated[PhaseSeconds | None, Measured] = None
    iterations_per_second: Annotated[Rate | None, Measured] = None
    neighbours: Annotated[list[Neighbour], Field(max_length=8)] = []


class PredictBatch(Message):
    """Many requests in one call."""

    requests: Annotated[list[PredictRequest], Field(max_length=1000)]


class PredictionBatch(Message):
    """The answers to a PredictBatch, in its order."""

    predictions: list[Prediction]


class ErrorBody(Message):
    """Every error of our services: what is wrong, and what to do about it."""

    error: str
    hint: str = ""
