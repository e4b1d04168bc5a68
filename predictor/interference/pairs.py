"""Measured pairs: two loads that ran on one GPU at the same time."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tandem.contracts.base import Message
from tandem.contracts.resources import Load

Speed = Annotated[float, Field(gt=0)]


class MeasuredJob(Message):
    """One side of a pair. `family` names the architecture: ResNet-50 at any batch is one family."""

    name: str
    family: str
    load: Load
    speed: Speed


class MeasuredPair(Message):
    """Two jobs on one GPU; `speed` of each is t_solo / t_colocated."""

    gpu_model: str
    first: MeasuredJob
    second: MeasuredJob
