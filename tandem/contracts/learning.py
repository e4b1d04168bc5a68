"""What is observed of a job while it runs, and what was decided about it: parts of a GPUJob."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from tandem.contracts.base import Message

Percent = Annotated[float, Field(ge=0, le=100)]
Probability = Annotated[float, Field(ge=0, le=1)]
Bytes = Annotated[int, Field(ge=0)]
Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
Slowdown = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]


class Means(StrEnum):
    """How a slowdown was measured.

    `progress`: iterations per second as the job's own pods tell them; nobody else is asked to
    believe it. `utilisation`: how much of the GPU's time the job's kernels get, as the agent
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
    """What beside whom: `kind` is the neighbour's model or fingerprint, never its owner."""

    kind: Annotated[str, Field(max_length=128)]
    slowdown: Slowdown
    means: Means


class Observed(Message):
    """What the agents have measured of one worker of a job, on the GPU where it shows most.

    Memory and its peaks as in a Load. `solo_utilisation_percent` and `solo_iterations_per_second`
    are of the time in which it was alone on its GPU, and so are `active_seconds` and
    `idle_seconds`, the mean lengths of its phases with and without kernels. `kind` is the model or
    fingerprint by which it is known again, `seconds` how long it was seen, `accumulation_steps` in
    how many micro-batches it runs its batch. `slowed_seconds` is the time that the whole job has
    lost to its neighbours and to accumulation, `iterations_done` what its pods have told of their
    progress. `spread`: a gang of several pods runs on more nodes than it needs. `remembered`: its
    history has been sent on.
    """

    at: Time
    kind: Annotated[str, Field(max_length=128)] = ""
    gpu_model: str = ""
    accumulation_steps: Annotated[int, Field(ge=1)] = 1
    seconds: Annotated[float, Field(ge=0)] = 0.0
    memory_base_bytes: Bytes | None = None
    memory_peak_bytes: Bytes | None = None
    peak_probability: Probability | None = None
    utilisation_percent: Percent | None = None
    solo_utilisation_percent: Percent | None = None
    solo_iterations_per_second: Annotated[float, Field(ge=0)] | None = None
    active_seconds: Annotated[float, Field(ge=0)] | None = None
    idle_seconds: Annotated[float, Field(ge=0)] | None = None
    slowed_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    iterations_done: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    slowdown: ObservedSlowdown | None = None
    neighbours: Annotated[list[Neighbour], Field(max_length=8)] = []
    spread: bool | None = None
    remembered: bool = False


class Decision(Message):
    """One of the latest decisions about a job: what (`Placed`, `Moved`, `Kept`), and why."""

    at: Time
    what: str
    why: Annotated[str, Field(max_length=2000)]
