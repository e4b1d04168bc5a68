"""What is observed of a job while it runs, and what was decided about it: parts of a GPUJob."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from tandem.contracts.base import Message
from tandem.contracts.values import (
    Bytes,
    Figure,
    Label,
    Measured,
    Percent,
    PhaseSeconds,
    Positive,
    Probability,
    Rate,
    Slowdown,
    Text,
    Time,
    Word,
    last,
)


class Means(StrEnum):
    """How a slowdown was measured.

    `progress`: iterations per second as the job's own pods report them; no other job's figures
    depend on it. `utilisation`: how much of the GPU's time the job's kernels get, as the agent
    measures it; an estimate.
    """

    PROGRESS = "progress"
    UTILISATION = "utilisation"


class Reference(StrEnum):
    """What a job's speed is compared with: alone in this run, alone in earlier ones, predicted."""

    SOLO = "solo"
    HISTORY = "history"
    PREDICTED = "predicted"


class ObservedSlowdown(Message):
    """How much longer an iteration takes than alone (0.6: 60 % longer); `estimated` by load."""

    value: Slowdown
    means: Means
    reference: Reference
    estimated: bool = False


class Neighbour(Message):
    """A neighbour and its effect: `kind` is its model or fingerprint, never its owner."""

    kind: Label
    slowdown: Slowdown
    means: Means


class Accrued(Message):
    """What a job has had of its GPUs while agents saw its pods on them.

    `used_gpu_seconds` is utilisation times the time for which it was known, which is
    `measured_gpu_seconds`. `beside_gpu_seconds` is what neighbours had of the same GPUs (half of
    one that two jobs share), and `lost_gpu_seconds` what the neighbours' slowdown has cost, as
    measured. Where a slowdown was only predicted, both count as `predicted_` instead.
    """

    seen_gpu_seconds: Figure = 0.0
    measured_gpu_seconds: Figure = 0.0
    used_gpu_seconds: Figure = 0.0
    beside_gpu_seconds: Figure = 0.0
    lost_gpu_seconds: Figure = 0.0
    predicted_beside_gpu_seconds: Figure = 0.0
    predicted_lost_gpu_seconds: Figure = 0.0


class Observed(Message):
    """What the agents have measured of one worker of a job, on the GPU where it shows most.

    Memory and its peaks as in a Load. `solo_utilisation_percent` and `solo_iterations_per_second`
    are of the time in which it was alone on its GPU, and so are `active_seconds` and
    `idle_seconds`, the mean lengths of its phases with and without kernels. `kind` is the model or
    fingerprint by which it is known again, `seconds` how long it was seen, `accumulation_steps` in
    how many micro-batches it runs its batch. `slowed_seconds` is the time that the whole job has
    lost to its neighbours and to accumulation, `iterations_done` the iterations that its pods have
    reported. `accrued` is what it has had of its GPUs in all. `spread`: a gang of several pods runs
    on more nodes than it needs. `remembered`: its history has been sent on.
    """

    at: Time
    kind: Label = ""
    gpu_model: Label = ""
    accumulation_steps: Positive = 1
    seconds: Figure = 0.0
    memory_base_bytes: Annotated[Bytes | None, Measured] = None
    memory_peak_bytes: Annotated[Bytes | None, Measured] = None
    peak_probability: Annotated[Probability | None, Measured] = None
    utilisation_percent: Annotated[Percent | None, Measured] = None
    solo_utilisation_percent: Annotated[Percent | None, Measured] = None
    solo_iterations_per_second: Annotated[Rate | None, Measured] = None
    active_seconds: Annotated[PhaseSeconds | None, Measured] = None
    idle_seconds: Annotated[PhaseSeconds | None, Measured] = None
    slowed_seconds: Figure = 0.0
    iterations_done: Annotated[Figure | None, Measured] = None
    accrued: Accrued | None = None
    slowdown: ObservedSlowdown | None = None
    neighbours: Annotated[list[Neighbour], Field(max_length=8), last(8)] = []
    spread: bool | None = None
    remembered: bool = False


class Decision(Message):
    """One of the latest decisions about a job: what (`Placed`, `Moved`, `Kept`), and why."""

    at: Time
    what: Word
    why: Text
