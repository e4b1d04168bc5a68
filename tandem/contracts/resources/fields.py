"""What the custom resources have in common."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from tandem.contracts.base import Message

Percent = Annotated[float, Field(ge=0, le=100)]
Probability = Annotated[float, Field(ge=0, le=1)]
Bytes = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]
Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


class Condition(Message):
    """A condition as Kubernetes defines it (metav1.Condition)."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: Time
    observed_generation: int | None = None


class Source(StrEnum):
    """Where a predicted figure comes from, best first."""

    OBSERVED = "observed"
    MODEL = "model"
    FORMULA = "formula"
    DECLARED = "declared"
    WHOLE_GPU = "whole-gpu"


class Precision(StrEnum):
    """How a job computes: the framework's default, or autocast to 16 bits over 32-bit weights."""

    FP32 = "fp32"
    AMP = "amp"
    BF16 = "bf16"

    @property
    def half(self) -> bool:
        """Whether activations take 16 bits."""
        return self is not Precision.FP32


class Optimizer(StrEnum):
    """What is kept of each weight between steps: nothing, one more copy of it, or two."""

    SGD = "sgd"
    MOMENTUM = "momentum"
    ADAM = "adam"

    @property
    def copies(self) -> int:
        """Copies of the weights that it keeps."""
        return {"sgd": 0, "momentum": 1, "adam": 2}[self.value]
