"""What the custom resources have in common."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from tandem.contracts.base import Message, SharedEmpty
from tandem.contracts.values import Count, Text, Time, Word, first


class Condition(Message):
    """A condition as Kubernetes defines it (metav1.Condition)."""

    type: Word
    status: Word
    reason: Word = ""
    message: Text = ""
    last_transition_time: Time
    observed_generation: Count | None = None


Conditions = Annotated[list[Condition], Field(max_length=32), first(32), SharedEmpty]


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
    """What is kept of each weight between steps: nothing, a part of a copy of it, or copies."""

    SGD = "sgd"
    MOMENTUM = "momentum"
    ADAM = "adam"
    RMSPROP = "rmsprop"
    ADAGRAD = "adagrad"
    LION = "lion"
    LAMB = "lamb"
    ADAFACTOR = "adafactor"
    ADAM_8BIT = "adam-8bit"
    LION_8BIT = "lion-8bit"

    @property
    def copies(self) -> float:
        """Copies of the weights in 32 bits that it keeps.

        Adafactor keeps a row and a column of each matrix; states in 8 bits are a quarter of a copy.
        """
        return _COPIES[self.value]


_COPIES = {
    "sgd": 0.0, "momentum": 1.0, "adam": 2.0, "rmsprop": 1.0, "adagrad": 1.0, "lion": 1.0,
    "lamb": 2.0, "adafactor": 0.02, "adam-8bit": 0.5, "lion-8bit": 0.25,
}  # fmt: skip


class Framework(StrEnum):
    """The framework that a job trains with: its start-up and its allocator take memory."""

    PYTORCH = "pytorch"
    TENSORFLOW = "tensorflow"
    JAX = "jax"


class Parallelism(StrEnum):
    """How the workers of a job divide weights, gradients and optimiser state among them.

    `ddp`: each holds all of them. `zero-1` divides the optimiser state, `zero-2` the gradients as
    well, `zero-3` and `fsdp` everything.
    """

    DDP = "ddp"
    ZERO_1 = "zero-1"
    ZERO_2 = "zero-2"
    ZERO_3 = "zero-3"
    FSDP = "fsdp"
