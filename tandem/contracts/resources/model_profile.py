"""ModelProfile: the features of a model graph, and what its runs were seen to use."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tandem.contracts.base import Message
from tandem.contracts.learning import Neighbour
from tandem.contracts.resources.fields import Bytes, Count, Framework, Percent, Probability, Time


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

    flops: Annotated[float, Field(ge=0)]
    parameters: Count
    parameter_bytes: Bytes
    activation_bytes: Bytes
    largest_tensor_bytes: Bytes
    tensor_skew: Probability
    nodes: Count
    depth: Count
    op_counts: dict[str, int]
    opset: Count
    input_shapes: dict[str, list[int]] = {}
    bytes_moved: Annotated[float, Field(ge=0)] = 0.0
    backward_flops: Annotated[float, Field(ge=0)] = 0.0
    elementwise_flops: Annotated[float, Field(ge=0)] = 0.0
    saved_activation_bytes: Bytes = 0
    largest_activation_bytes: Bytes = 0
    kernels: Count = 0
    graph_batch: Annotated[int, Field(ge=1)] = 1
    sequence_length: Count | None = None
    sequence_scaling: dict[str, Annotated[list[float], Field(min_length=3, max_length=3)]] = {}
    unresolved_nodes: Count = 0
    framework: Framework | None = None
    unknown_operators: Annotated[
        list[Annotated[str, Field(max_length=128)]], Field(max_length=8)
    ] = []
    assumed_sizes: dict[str, Count] = {}


class ModelProfileSpec(Message):
    """The features of a pushed graph; never its weights."""

    features: GraphFeatures
    feature_hash: str
    file_sha256: str
    file_bytes: Bytes
    producer: str = ""


class Observation(Message):
    """What runs of a model at one batch size on one type of GPU were seen to use.

    The batch was run in `accumulation_steps` micro-batches; observations without it are of 1 step.
    `feature_hash` is that of the graph that ran: another graph pushed under the same name is not
    taken for it. Memory in the peak is the highest of all runs, the rest a moving average.
    `iterations_per_second` is what its pods told while alone, `neighbours` the latest jobs next to
    which it ran and how much it was slowed down. `peaks_measured`: an agent has fitted the course
    of the memory of every one of these runs. `active_seconds` and `idle_seconds` are the mean
    lengths of the phases with and without kernels of a run alone.
    """

    gpu_model: str
    batch_size: Annotated[int, Field(ge=1)]
    accumulation_steps: Annotated[int, Field(ge=1)] = 1
    feature_hash: str
    runs: Annotated[int, Field(ge=1)]
    memory_base_bytes: Bytes
    memory_peak_bytes: Bytes
    peak_probability: Probability
    peaks_measured: bool = False
    utilisation_percent: Percent
    active_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    idle_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    iterations_per_second: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    neighbours: Annotated[list[Neighbour], Field(max_length=8)] = []
    last_observed_at: Time


class ModelProfileStatus(Message):
    """What was observed of this model since: how often in all, and the latest of each kind."""

    observations: Count = 0
    last_observed_at: Time | None = None
    observed: Annotated[list[Observation], Field(max_length=64)] = []
