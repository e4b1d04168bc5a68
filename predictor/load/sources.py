"""The sources of a load: each is a function that answers a question or passes (None)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from predictor.load import spread
from predictor.load.equations import (
    Host,
    Step,
    host_of,
    input_cpus,
    pair_step,
    training_step,
    two_levels,
)
from predictor.load.measured import is_input_bound, measured_step
from predictor.load.memory import Setup, formula_levels
from tandem.contracts.prediction import Precision
from tandem.contracts.resources import GraphFeatures, Observation, Source
from tandem.gpu_types import GIB, UNKNOWN_GPU, GpuType
from tandem.reasons.counting import counted

FORMULA_VERSION = "formula/4"

# What was seen is near what will be seen; a tenth more for data that differ.
OBSERVED_MEMORY_P95_FACTOR = 1.1
PEAK_LEVEL = 0.75
_UTILISATION_P95_FACTOR = 1.6
_UTILISATION_P95_MARGIN = 10.0  # percent
_DECLARED_UTILISATION_P95_FACTOR = 1.25


@dataclass(frozen=True)
class Question:
    """A question with all that is known: `gpu_memory_bytes` is None where it is not known.

    `observed` is what was seen of this very configuration, `earlier` of all others of the graph.
    """

    features: GraphFeatures | None
    batch_size: int | None
    gpu: GpuType | None
    gpu_memory_bytes: int | None
    declared_memory_bytes: int | None
    declared_utilisation_percent: float | None
    observed: Observation | None = None
    earlier: tuple[Observation, ...] = ()
    gpu_type: str = ""
    setup: Setup = field(default_factory=Setup)

    @property
    def precision(self) -> Precision:
        """The precision that the job computes in."""
        return self.setup.precision

    @property
    def cpus(self) -> float:
        """The CPUs that make a worker's input."""
        return math.inf if self.setup.bare_loop else input_cpus(self.setup.cpus)

    @property
    def host(self) -> Host:
        """What the job's framework needs of its host; needs a graph."""
        assert self.features is not None
        host = host_of(self.features, self.setup.framework)
        return replace(host, stall_s=0.0) if self.setup.bare_loop else host


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU; see Load. `spread` is the log of the factor of its 90 % interval."""

    base: float
    peak_extra: float
    peak_probability: float
    p95: float
    source: Source
    why: str
    version: str = ""
    out_of_distribution: bool = False
    peaks_measured: bool = False
    spread: float | None = None

    @property
    def peak(self) -> float:
        """The level in the peak."""
        return self.base + self.peak_extra


@dataclass(frozen=True)
class Utilisation:
    """Share of time in which the GPU computes, percent.

    `spread` and `step_spread` are the logs of the factors of the 90 % intervals of the utilisation
    and of the step's time.
    """

    mean: float
    p95: float
    source: Source
    why: str
    version: str = ""
    out_of_distribution: bool = False
    step: Step | None = None
    spread: float | None = None
    step_spread: float | None = None
    #: The step by which pairs are priced of which nothing was measured.
    pair: Step | None = None


MemorySource = Callable[[Question], Memory | None]
UtilisationSource = Callable[[Question], Utilisation | None]


def observed_memory(question: Question) -> Memory | None:
    """Take what earlier runs of the same graph, batch and type of GPU used; passes without."""
    seen = question.observed
    if seen is None:
        return None
    p95 = OBSERVED_MEMORY_P95_FACTOR * seen.memory_peak_bytes
    if question.gpu_memory_bytes is not None:
        p95 = max(min(p95, question.gpu_memory_bytes), seen.memory_peak_bytes)
    return Memory(
        seen.memory_base_bytes,
        seen.memory_peak_bytes - seen.memory_base_bytes,
        seen.peak_probability,
        p95,
        Source.OBSERVED,
        f"memory as observed in {counted(seen.runs, 'run')}",
        peaks_measured=seen.peaks_measured,
        spread=spread.OBSERVED,
    )


def observed_utilisation(question: Question) -> Utilisation | None:
    """Take what earlier runs of the same graph, batch and type of GPU showed; passes without."""
    seen = question.observed
    if seen is None:
        return None
    step, waits = None, ""
    features, batch, gpu = question.features, question.batch_size, question.gpu or UNKNOWN_GPU
    if features is not None and batch is not None:
        step = measured_step(features, batch, gpu, seen, question.precision)
        if is_input_bound(features, batch, gpu, step, question.precision):
            waits = "; it waits for its input"
    return Utilisation(
        seen.utilisation_percent,
        min(100.0, seen.utilisation_percent + _UTILISATION_P95_MARGIN),
        Source.OBSERVED,
        f"utilisation as observed in {counted(seen.runs, 'run')}{waits}",
        step=step,
        spread=spread.OBSERVED,
        step_spread=spread.OBSERVED,
    )


def formula_memory(question: Question) -> Memory | None:
    """Estimate memory by the formula; passes without a graph or a batch size."""
    features, batch = question.features, question.batch_size
    if features is None or batch is None:
        return None
    levels = formula_levels(features, batch, question.setup)
    fixed, varying, p95 = levels.fixed, levels.varying, levels.p95
    base, extra, probability = two_levels(fixed, varying, PEAK_LEVEL)
    why = (
        f"memory by the formula of Horus, batch {batch}: {gib(fixed)} for weights, gradients, "
        f"optimiser and {gib(levels.start_up)} of start-up, {gib(varying)} for activations"
    )
    capacity = question.gpu_memory_bytes
    if capacity is not None and fixed + varying > capacity:
        # Either it runs out of memory or the formula is wrong: alone on a GPU it harms no other
        # job.
        return Memory(
            capacity, 0, 0, capacity, Source.FORMULA, f"{why}: more than the GPU's "
            f"{gib(capacity)}, so all of it", FORMULA_VERSION, out_of_distribution=True,
        )  # fmt: skip
    return Memory(
        base,
        extra,
        probability,
        max(p95 if capacity is None else min(p95, capacity), base + extra),
        Source.FORMULA,
        why,
        FORMULA_VERSION,
        _unsure(question),
        spread=spread.MEMORY,
    )


def formula_utilisation(question: Question) -> Utilisation | None:
    """Estimate utilisation by the roofline and launch overhead; passes without graph or batch."""
    step = question_step(question)
    if step is None:
        return None
    mean = step.utilisation_percent
    return Utilisation(
        mean,
        min(100.0, _UTILISATION_P95_FACTOR * mean + _UTILISATION_P95_MARGIN),
        Source.FORMULA,
        f"utilisation by roofline and launch overhead on {_gpu_name(question.gpu)}",
        FORMULA_VERSION,
        question.gpu is None or _unsure(question),
        step,
        spread.UTILISATION,
        spread.STEP,
        question_pair_step(question),
    )


def declared_memory(question: Question) -> Memory | None:
    """Take what the user declared: a flat level, since it says nothing of its course."""
    declared = question.declared_memory_bytes
    if declared is None:
        return None
    return Memory(
        declared, 0, 0, declared, Source.DECLARED, f"memory as declared ({gib(declared)})"
    )


def declared_utilisation(question: Question) -> Utilisation | None:
    """Take what the user declared, with a margin above it."""
    declared = question.declared_utilisation_percent
    if declared is None:
        return None
    p95 = min(100.0, declared * _DECLARED_UTILISATION_P95_FACTOR)
    return Utilisation(
        declared, p95, Source.DECLARED, f"utilisation as declared ({declared:.0f} %)"
    )


def whole_memory(question: Question) -> Memory:
    """Give the job the whole GPU; its source says so, also where no capacity is known (0)."""
    capacity = question.gpu_memory_bytes or 0
    return Memory(
        capacity, 0, 0, capacity, Source.WHOLE_GPU, "nothing known of its memory: the whole GPU"
    )


def whole_utilisation(question: Question) -> Utilisation:
    """Assume that the job keeps the GPU busy all the time."""
    del question
    return Utilisation(
        100.0, 100.0, Source.WHOLE_GPU, "nothing known of its utilisation: taken as 100 %"
    )


def question_step(question: Question) -> Step | None:
    """Return the step by the formula; None without a graph or a batch size."""
    if question.features is None or question.batch_size is None:
        return None
    return training_step(
        question.features, question.batch_size, question.gpu or UNKNOWN_GPU,
        precision=question.precision, host=question.host, cpus=question.cpus,
    )  # fmt: skip


def question_pair_step(question: Question) -> Step | None:
    """Return the step by which pairs of the job are priced; None as `question_step`."""
    if question.features is None or question.batch_size is None:
        return None
    return pair_step(
        question.features, question.batch_size, question.gpu or UNKNOWN_GPU, question.precision,
        host=question.host, cpus=question.cpus,
    )  # fmt: skip


def _unsure(question: Question) -> bool:
    return question.features is not None and question.features.unresolved_nodes > 0


def _gpu_name(gpu: GpuType | None) -> str:
    return "a GPU of a type not in the table" if gpu is None else gpu.name


def gib(number_of_bytes: float) -> str:
    """Return a size for people."""
    return f"{number_of_bytes / GIB:.1f} GiB"
