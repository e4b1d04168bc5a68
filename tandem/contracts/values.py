"""Kinds of values in messages, each with its bound.

A tenant, a node or an agent writes most of them in the end. A text that is too long is cut and a
list keeps its first entries: an object of an earlier version that has more stays readable. A
measurement outside its bounds is absent, as one that could not be made: a bad figure costs itself
and never the message around it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, WrapValidator

#: Control characters would write lines of their own into logs and terminals.
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
PRINTABLE = r"^[^\x00-\x1f\x7f]*$"

#: GPUs of one node, and pods on one GPU, in a report.
MAX_GPUS = MAX_USES = 64
#: 1 TiB: more than any GPU has.
MAX_GPU_BYTES = 2**40
#: JSON schemas keep bounds as floating point numbers, in which this one is exact.
MAX_INTEGER = 2**62
#: Pods of one gang.
MAX_PODS = 10_000
#: Ways in which the pods of one gang may ask for different things: each is placed by itself.
MAX_ROLES = 32
#: Resources of a pod other than GPUs that are counted by name, and memory.
MAX_RESOURCES = 66
#: A GPUJob with as many entries as this is larger than etcd takes (1.5 MiB).
MAX_ENTRIES = 16_384


def shortened(text: str, longest: int) -> str:
    """Return a text of at most `longest` characters."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def cut(longest: int, *, printable: bool = True) -> BeforeValidator:
    """Return what cuts a text to `longest` characters; `printable`: without control characters."""

    def shorten(value: Any) -> Any:  # noqa: ANN401 - whatever a message has there
        if not isinstance(value, str):
            return value
        # `isprintable` is narrower, and takes a tenth of the time of looking for some to replace.
        if printable and not value.isprintable():
            value = _CONTROL.sub(" ", value)
        return value if len(value) <= longest else shortened(value, longest)

    return BeforeValidator(shorten)


def first(most: int) -> BeforeValidator:
    """Return what keeps the first `most` entries of a list."""
    return BeforeValidator(lambda value: value[:most] if isinstance(value, list) else value)


def last(most: int) -> BeforeValidator:
    """Return what keeps the last `most` entries of a list."""
    return BeforeValidator(lambda value: value[-most:] if isinstance(value, list) else value)


def _absent(value: Any, check: Callable[[Any], Any]) -> Any:  # noqa: ANN401 - whatever a message has there
    try:
        return check(value)
    except ValidationError:
        return None


#: For what a message can do without: a value outside its bounds is absent.
Measured = WrapValidator(_absent)

#: A rate below this is none: what is divided by it would be an infinity.
LEAST_RATE = 1e-6


def at_least(rate: float) -> float:
    """Return a rate, 0 where it is too low to divide by."""
    return rate if rate >= LEAST_RATE else 0.0


Percent = Annotated[float, Field(ge=0, le=100)]
Probability = Annotated[float, Field(ge=0, le=1)]
Bytes = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
GpuBytes = Annotated[int, Field(ge=0, le=MAX_GPU_BYTES)]
Count = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
Positive = Annotated[int, Field(ge=1, le=MAX_INTEGER)]
#: FLOPs, bytes that move, GPU-seconds: what is summed.
Figure = Annotated[float, Field(ge=0, le=1e30)]
#: A phase or an iteration of a job: a day at most.
PhaseSeconds = Annotated[float, Field(ge=0, le=86_400)]
LEAST_ITERATION_S, MAX_ITERATION_S = 1e-9, 1e9
IterationSeconds = Annotated[float, Field(ge=LEAST_ITERATION_S, le=MAX_ITERATION_S)]
Rate = Annotated[float, Field(ge=0, le=1e6), AfterValidator(at_least)]
#: CPUs for each GPU: at least a thousandth, the smallest part that Kubernetes counts.
LEAST_CPUS, MAX_CPUS = 1e-3, 2.0**20
Cpus = Annotated[float, Field(ge=LEAST_CPUS, le=MAX_CPUS)]
Slowdown = Annotated[float, Field(ge=0, le=1000)]

#: What every reader takes for the same time. The API server's own check of the format lets through
#: `12:00:00z`, `12:00:00x5Z` and an offset of 99 hours.
_TIME = (
    r"^[1-9]\d{3}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-](0\d|1\d|2[0-3]):[0-5]\d)$".replace(
        r"\d", "[0-9]"
    )
)
Time = Annotated[
    str, Field(max_length=64, json_schema_extra={"format": "date-time", "pattern": _TIME})
]
#: Names of objects and of containers; '' where there is none.
Name = Annotated[str, Field(max_length=253, pattern=r"^[a-z0-9.-]*$")]
Uid = Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z0-9._-]*$")]
#: As NVML names a GPU; it goes into a list that commas separate.
GPU_ID = r"^[A-Za-z0-9][A-Za-z0-9._:/-]*$"
GpuId = Annotated[str, Field(max_length=96, pattern=GPU_ID)]
#: One word of our own, such as a reason.
Word = Annotated[str, Field(max_length=64, pattern=PRINTABLE), cut(64)]
#: Names of types of GPUs, versions, hashes.
Label = Annotated[str, Field(max_length=128, pattern=PRINTABLE), cut(128)]
#: Names from Kubernetes that are not ours to restrict further.
Reference = Annotated[str, Field(max_length=253), cut(253)]
#: A sentence for people, and one of an agent, which is shown in terminals and logs.
LONGEST_TEXT = 2000
Text = Annotated[str, Field(max_length=LONGEST_TEXT), cut(LONGEST_TEXT, printable=False)]
AgentText = Annotated[str, Field(max_length=LONGEST_TEXT, pattern=PRINTABLE), cut(LONGEST_TEXT)]
