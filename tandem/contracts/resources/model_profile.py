"""ModelProfile: the features of a model graph, and what its runs were seen to use."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tandem.contracts.base import Message
from tandem.contracts.learning import Neighbour
from tandem.contracts.resources.fields import Framework
from tandem.contracts.values import (
    MAX_INTEGER,
    Bytes,
    Count,
    Figure,
    Label,
    Measured,
    Percent,
    PhaseSeconds,
    Positive,
    Probability,
    Rate,
    Time,
    last,
)

#: Kinds of operators, and inputs, of one graph.
MAX_NAMED = 4096
Dimension = Annotated[int, Field(ge=-1, le=MAX_INTEGER)]
Coefficient = Annotated[float, Field(ge=-1e30, le=1e30)]


class GraphFeatures(Message):
    """What a model graph says before anything has run ([Horus] Table 3).

    All figures are per sample (batch 1), forward pass unless named otherwise; a multiply-add
    counts as two FLOPs. `flops` counts the multiply-add operators, `elementwise_flops` the others;
    `activation_bytes` all that nodes write, `saved_activation_bytes` what training keeps of it for
    the backward pass; `kernels` the nodes that start work on the GPU; `graph_batch` the batch that
    the graph was exported with; `unresolved_nodes` those whose shapes could not be known. Where
    the graph leaves a sequence open, figures are those of `sequence_length`, and
    `sequence_scaling` has the coefficients [c0, c1, c2] of those that are quadratics in it.
    `framework` is that of the exporter that wrote the graph, where it names itself.
    `unknown_operators` are those whose cost is only guessed, by their elements. `assumed_sizes` are
    open axes of images (a symbol, or `input[axis]`) of which nothing in the graph fixes the size.
    """

    flops: Figure
    parameters: Count
    parameter_bytes: Bytes
    activation_bytes: Bytes
    largest_tensor_bytes: Bytes
    tensor_skew: Probability
    nodes: Count
    depth: Count
    op_counts: Annotated[dict[str, Count], Field(max_length=MAX_NAMED)]
    opset: Count
    input_shapes: Annotated[
        dict[str, Annotated[list[Dimension], Field(max_length=64)]], Field(max_length=MAX_NAMED)
    ] = {}
    bytes_moved: Figure = 0.0
    backward_flops: Figure = 0.0
    elementwise_flops: Figure = 0.0
    saved_activation_bytes: Bytes = 0
    largest_activation_bytes: Bytes = 0
    kernels: Count = 0
    graph_batch: Positive = 1
    sequence_length: Count | None = None
    sequence_scaling: Annotated[
        dict[str, Annotated[list[Coefficient], Field(min_length=3, max_length=3)]],
        Field(max_length=64),
    ] = {}
    unresolved_nodes: Count = 0
    framework: Framework | None = None
    unknown_operators: Annotated[list[Label], Field(max_length=8)] = []
    assumed_sizes: Annotated[dict[str, Count], Field(max_length=MAX_NAMED)] = {}


class ModelProfileSpec(Message):
    """The features of a pushed graph; never its weights."""

    features: GraphFeatures
    feature_hash: Label
    file_sha256: Label
    file_bytes: Bytes
    producer: Label = ""


class Observation(Message):
    """What runs of a model at one batch size on one type of GPU were seen to use.

    The batch was run in `accumulation_steps` micro-batches; observations without it are of 1 step.
    `feature_hash` is that of the graph that ran: another graph pushed under the same name is not
    taken for it. Memory in the peak is the highest of all runs, the rest a moving average.
    `iterations_per_second` is what its pods reported while alone, `neighbours` the latest jobs next
    to which it ran and how much it was slowed down. `peaks_measured`: an agent has fitted the
    course of the memory of every one of these runs. `active_seconds` and `idle_seconds` are the
    mean lengths of the phases with and without kernels of a run alone.
    """

    gpu_model: Label
    batch_size: Positive
    accumulation_steps: Positive = 1
    feature_hash: Label
    runs: Positive
    memory_base_bytes: Bytes
    memory_peak_bytes: Bytes
    peak_probability: Probability
    peaks_measured: bool = False
    utilisation_percent: Percent
    active_seconds: Annotated[PhaseSeconds | None, Measured] = None
    idle_seconds: Annotated[PhaseSeconds | None, Measured] = None
    iterations_per_second: Annotated[Rate | None, Measured] = None
    neighbours: Annotated[list[Neighbour], Field(max_length=8), last(8)] = []
    last_observed_at: Time


class ModelProfileStatus(Message):
    """What was observed of this model since: how often in all, and the latest of each kind."""

    observations: Count = 0
    last_observed_at: Time | None = None
    observed: Annotated[list[Observation], Field(max_length=64), last(64)] = []
